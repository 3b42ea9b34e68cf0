//! The plugin in its process: what it does without a system call, after NCCL closed it, in a forked
//! child, and what it leaves when the process is killed.

use std::ffi::CString;
use std::path::Path;
use std::process::Command;

use gpufleet_hooks_shm::process::{monotonic_ns, unix_ns};

use crate::alone::{Agent, LONGEST_NS, alone, joined, watched};
use crate::nccl::{ALL, Call, Nccl, Pointer, VERSIONS};

/// Runs `child` in a forked child that may make no system call but to end itself; the wait status.
fn forked(is_confined: bool, child: impl FnOnce()) -> i32 {
    // SAFETY: the child calls the plugin, which allocates nothing there, and leaves at once.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid == 0 {
        // SAFETY: only the child is confined; _exit would make a call that is not allowed.
        unsafe {
            let strict = libc::SECCOMP_MODE_STRICT;
            if is_confined && libc::prctl(libc::PR_SET_SECCOMP, strict) != 0 {
                libc::syscall(libc::SYS_exit, 77);
            }
            child();
            libc::syscall(libc::SYS_exit, 0);
        }
    }
    let mut status = -1;
    // SAFETY: `pid` is our child and `status` is ours.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    status
}

fn work(nccl: Nccl, context: Pointer) {
    for sequence in 0..3000 {
        let call = Call {
            sequence,
            ..Call::ALL_REDUCE
        };
        let handle = nccl.enqueue(context, call);
        // Some are lost, so that the ring comes round to them.
        if sequence % 3 != 0 {
            nccl.channel(context, handle, 0, 100, 300);
            nccl.channel(context, handle, 1, 100, 300);
        }
        let send = nccl.point_to_point(context, c"Send", 1, 10);
        nccl.stop(send);
        nccl.channel(context, send, 0, 100, 300);
    }
}

#[test]
fn callbacks_make_no_system_call_and_a_forked_child_writes_nothing() {
    alone(&ALL, || {
        let mut agent = Agent::listen();
        for version in VERSIONS {
            let nccl = Nccl::load(version);
            let context = nccl.eight();
            assert_eq!(forked(false, || work(nccl, context)), 0);
            match forked(true, || work(nccl, context)) {
                0 => {}
                status if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 77 => {
                    eprintln!("NOT RUN: this kernel confines no process (seccomp)");
                }
                status => panic!("a callback made a system call: wait status {status}"),
            }
            assert!(
                agent.together().recent.is_empty(),
                "the child's are nobody's"
            );
            nccl.finalize(context);
        }
        // The confinement itself works, or the check above is worth nothing.
        // SAFETY: asks for the process' number.
        let caught = forked(true, || unsafe {
            libc::syscall(libc::SYS_getppid);
        });
        assert!(
            libc::WIFSIGNALED(caught) || libc::WEXITSTATUS(caught) == 77,
            "a system call goes unseen: wait status {caught}"
        );
    });
}

#[test]
fn it_stays_when_nccl_closes_it() {
    alone(&ALL, || {
        let mut agent = Agent::listen();
        // Before it has a thread, which would keep it as well.
        let unused = Nccl::load(6);
        // SAFETY: what NCCL does with the last communicator.
        unsafe { libc::dlclose(unused.library.0) };
        assert!(Nccl::is_loaded(), "gone with the last communicator");
        let nccl = Nccl::load(6);
        let context = nccl.eight();
        for _ in 0..3 {
            // SAFETY: likewise.
            unsafe { libc::dlclose(nccl.library.0) };
        }
        let handle = nccl.enqueue(context, Call::ALL_REDUCE);
        nccl.channel(context, handle, 0, 1, 2);
        nccl.channel(context, handle, 1, 1, 2);
        assert_eq!(agent.together().recent.len(), 1);
    });
}

#[test]
fn a_process_that_is_killed_leaves_what_it_was_waiting_for() {
    let seen = watched(
        &ALL,
        || {
            let nccl = Nccl::load(5);
            let context = nccl.eight();
            let call = Call {
                function: Some(c"ReduceScatter"),
                sequence: 1234,
                ..Call::ALL_REDUCE
            };
            nccl.enqueue(context, call);
            // Hangs, as a program does whose other ranks are gone. Never finalized.
            loop {
                std::thread::park();
            }
        },
        |mut listener| {
            let mut client = joined(&mut listener);
            // The region is read after the process is gone.
            let pid = client.peer.pid;
            let end = monotonic_ns() + LONGEST_NS;
            while client
                .reader
                .snapshot(unix_ns())
                .expect("a region")
                .together
                .in_flight
                .is_empty()
            {
                assert!(monotonic_ns() < end, "nothing is in flight");
                std::thread::yield_now();
            }
            // SAFETY: the process is the one that this test started.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            client
        },
    );
    let Some((status, mut client)) = seen else {
        return;
    };
    assert!(!status.success());
    let together = client
        .reader
        .snapshot(unix_ns())
        .expect("a region")
        .together;
    let [flying] = together.in_flight[..] else {
        panic!("one in flight, not {:?}", together.in_flight);
    };
    assert_eq!(
        (flying.function.text(), flying.number),
        ("ReduceScatter", 1234)
    );
}

/// A library that says it is NCCL of a version, and has a function that could be its log.
fn fake(folder: &Path, version: u32) -> Option<Pointer> {
    let source = folder.join(format!("nccl{version}.c"));
    let library = folder.join(format!("libnccl{version}.so"));
    let text = format!(
        "int ncclGetVersion(int *version) {{ *version = {version}; return 0; }}\n\
         void ncclDebugLog(void) {{ }}\n"
    );
    std::fs::write(&source, text).expect("it can be written");
    let built = Command::new("gcc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status();
    match built {
        Ok(status) => assert!(status.success(), "gcc"),
        Err(error) => {
            eprintln!("NOT RUN: no library stands in for NCCL, gcc does not start: {error}");
            return None;
        }
    }
    let path = CString::new(library.to_str().expect("a path")).expect("a path");
    // SAFETY: the library has no initialisers.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!library.is_null(), "{path:?}");
        let log = libc::dlsym(library, c"ncclDebugLog".as_ptr());
        assert!(!log.is_null());
        Some(Pointer(log))
    }
}

#[test]
fn the_version_is_found_where_the_log_function_lies() {
    let check = |interface: &str, version: &str, mask: &str| {
        let environment = [("INTERFACE", interface), ("NCCL", version), ("MASK", mask)];
        alone(&environment, || {
            let given = |name| -> u32 {
                let text = std::env::var(name).expect("given");
                text.parse().expect("a number")
            };
            let folder = tempfile::tempdir().expect("a folder");
            let Some(log) = fake(folder.path(), given("NCCL")) else {
                return;
            };
            let mut agent = Agent::listen();
            let nccl = Nccl::load(given("INTERFACE")).with_log(log.0);
            let (_context, mask) = nccl.init(1, 8, 3);
            assert_eq!(mask as u32, given("MASK"));
            let together = agent.together();
            assert_eq!(together.nccl_version, u64::from(given("NCCL")));
            assert_eq!(together.profiler_interface, u64::from(given("INTERFACE")));
        });
    };
    check("4", "22705", "70");
    check("6", "23007", "70");
    check("6", "23102", "6");
    check("7", "23203", "6");
}

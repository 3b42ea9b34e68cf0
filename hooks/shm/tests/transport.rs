//! The way from training processes to the agent: restarts, deaths, floods, garbage.
#![expect(
    unsafe_code,
    reason = "the clients that die and flood are forked children"
)]

use std::collections::HashMap;
use std::io::{PipeReader, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use gpufleet_hooks_shm::client::{Client, Options, State};
use gpufleet_hooks_shm::process::{monotonic_ns, unix_ns};
use gpufleet_hooks_shm::reader::Snapshot;
use gpufleet_hooks_shm::records::Step;
use gpufleet_hooks_shm::server::{self, ClientId, Event, Leaving, Limits, Listener};
use gpufleet_hooks_shm::wire::{Hello, Refusal, Reply};
use gpufleet_hooks_shm::words::WriterKind;
use gpufleet_hooks_shm::{create, layout};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recv, sendmsg, socket_with,
};

/// How long anything here may take before it has failed.
const LONGEST_NS: u64 = 60_000_000_000;

fn options(socket: &Path) -> Options {
    Options {
        socket: socket.to_owned(),
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(10),
        ..Options::new(WriterKind::Rust)
    }
}

fn listener(socket: &Path, limits: Limits) -> Listener {
    let by_pid = Box::new(|pid: i32| pid.to_string());
    Listener::bind(socket, limits, by_pid).expect("the socket is free")
}

/// Turns until `found` makes something of an event.
fn until<T>(listener: &mut Listener, mut found: impl FnMut(Event) -> Option<T>) -> T {
    let end = monotonic_ns() + LONGEST_NS;
    while monotonic_ns() < end {
        for event in listener.turn(Duration::from_millis(50)).expect("a turn") {
            if let Some(it) = found(event) {
                return it;
            }
        }
    }
    panic!("it did not happen");
}

fn joined(listener: &mut Listener) -> Box<server::Client> {
    until(listener, |event| match event {
        Event::Joined(client) => Some(client),
        _ => None,
    })
}

fn snapshot(client: &mut server::Client) -> Snapshot {
    client.reader.snapshot(unix_ns()).expect("a region")
}

fn step(number: u64) -> Step {
    Step {
        step: number,
        ended_at: unix_ns(),
        wall_ns: 1,
        tokens: number,
        ..Step::default()
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn what_was_written_before_there_was_an_agent_is_there_when_it_comes() {
    let folder = folder();
    let socket = folder.path().join("hooks.sock");
    let client = Client::start(options(&socket));
    (1..=5).for_each(|it| client.writer().step(&step(it)));
    assert_eq!(client.state(), State::Away);
    let mut listener = listener(&socket, Limits::default());
    let mut taken = joined(&mut listener);
    assert_eq!(taken.peer.pid, std::process::id() as i32);
    let seen = snapshot(&mut taken);
    assert_eq!((seen.steps.len(), seen.totals.tokens), (5, 15));
    assert_eq!(seen.header.start_ticks, taken.peer.start_ticks);
    assert!(seen.header.heartbeats > 0);
    let end = monotonic_ns() + LONGEST_NS;
    while client.state() != State::Connected && monotonic_ns() < end {
        std::thread::yield_now();
    }
    assert_eq!(client.state(), State::Connected);
    drop(client);
    let reason = until(&mut listener, |event| match event {
        Event::Left { id, reason, .. } if id == taken.id => Some(reason),
        _ => None,
    });
    assert_eq!(reason, Leaving::Closed);
}

/// A field of a thread's status.
fn field(status: &str, name: &str) -> Option<String> {
    let mut lines = status.lines();
    let found = lines.find_map(|line| line.strip_prefix(name));
    found.map(|it| it.trim().to_owned())
}

/// The signals that this thread blocks.
fn blocked_here() -> Option<String> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    field(&status, "SigBlk:")
}

/// The signals that a client's thread blocks, one bit each.
fn blocked_by_client() -> Option<u64> {
    let threads = std::fs::read_dir("/proc/self/task").expect("the threads of this process");
    threads.flatten().find_map(|thread| {
        let status = std::fs::read_to_string(thread.path().join("status")).ok()?;
        let blocked = u64::from_str_radix(&field(&status, "SigBlk:")?, 16).ok()?;
        (field(&status, "Name:")? == "gpufleet-hooks").then_some(blocked)
    })
}

#[test]
fn the_thread_of_a_client_takes_no_signal_of_the_training_process() {
    let folder = folder();
    let socket = folder.path().join("hooks.sock");
    let before = blocked_here();
    assert!(before.is_some());
    let _client = Client::start(options(&socket));
    assert_eq!(blocked_here(), before, "others take what they took");
    joined(&mut listener(&socket, Limits::default()));
    let blocked = blocked_by_client().expect("the client's thread");
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGCHLD] {
        assert_eq!(blocked >> (signal - 1) & 1, 1, "signal {signal}");
    }
}

#[test]
fn a_client_beyond_the_limit_is_told_and_comes_again_later() {
    let folder = folder();
    let socket = folder.path().join("hooks.sock");
    let limits = Limits {
        per_group: 1,
        retry_after: Duration::from_millis(20),
        ..Limits::default()
    };
    let mut listener = listener(&socket, limits);
    let first = Client::start(options(&socket));
    let of_first = joined(&mut listener);
    let second = Client::start(options(&socket));
    assert_eq!(refused(&mut listener), Refusal::Group);
    let end = monotonic_ns() + LONGEST_NS;
    while second.state() != State::Refused && monotonic_ns() < end {
        listener.turn(Duration::from_millis(1)).expect("a turn");
    }
    assert_eq!(second.state(), State::Refused);
    drop(first);
    let of_second = joined(&mut listener);
    assert_ne!(of_second.id, of_first.id);
}

#[test]
fn the_agent_that_has_the_region_says_whether_the_process_may_probe() {
    let folder = folder();
    let socket = folder.path().join("hooks.sock");
    let client = Client::start(options(&socket));
    assert!(!client.is_probe_off(), "nobody has switched it off");
    for is_probe_off in [true, false] {
        let limits = Limits {
            is_probe_off,
            ..Limits::default()
        };
        let mut listener = listener(&socket, limits);
        joined(&mut listener);
        let end = monotonic_ns() + LONGEST_NS;
        while client.is_probe_off() != is_probe_off && monotonic_ns() < end {
            std::thread::yield_now();
        }
        assert_eq!(client.is_probe_off(), is_probe_off);
    }
}

#[test]
fn an_agent_killed_a_hundred_times_loses_no_step() {
    let folder = folder();
    let socket = folder.path().join("hooks.sock");
    let client = Client::start(options(&socket));
    let writer = client.writer();
    let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut seen, mut missed, mut place) = (0, 0, (0, 0));
    let mut last = None;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    writer.step(&step(written.fetch_add(1, Ordering::Relaxed)));
                    std::thread::park_timeout(Duration::from_micros(100));
                }
            });
        }
        for life in 0..100 {
            // A killed agent leaves its socket behind: every life but the first replaces one.
            assert_eq!(socket.exists(), life > 0);
            // While nobody listens the writers go on, however busy the machine is.
            let before = written.load(Ordering::Relaxed);
            let end = monotonic_ns() + LONGEST_NS;
            while written.load(Ordering::Relaxed) < before + 4 && monotonic_ns() < end {
                std::thread::yield_now();
            }
            let mut listener = listener(&socket, Limits::default());
            let mut taken = joined(&mut listener);
            taken.reader.go_on_from(place);
            let now = snapshot(&mut taken);
            seen += now.steps.len() as u64;
            missed += now.steps_missed;
            place = taken.reader.place();
            last = Some(taken);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let mut last = last.expect("a hundred lives");
    let end = snapshot(&mut last);
    let written = written.load(Ordering::Relaxed);
    assert!(written >= 400, "four steps in each life: {written}");
    assert_eq!(end.totals.steps, written);
    assert_eq!(end.totals.tokens, (0..written).sum::<u64>());
    assert!(end.totals.is_whole);
    seen += end.steps.len() as u64;
    missed += end.steps_missed;
    assert_eq!(seen + missed, written);
    assert!(end.refused.is_empty(), "{:?}", end.refused);
}

/// A forked child that does `work` and then waits to be killed.
struct Child(i32);

impl Child {
    fn start(work: impl FnOnce()) -> Self {
        // SAFETY: the child does `work` and waits; it never returns into the test.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork");
        if pid == 0 {
            work();
            loop {
                // SAFETY: waits for a signal, which is to be the last.
                unsafe { libc::pause() };
            }
        }
        Self(pid)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a child of ours, killed once and buried.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn the_last_state_of_a_killed_process_stays_readable_and_its_death_is_told() {
    let folder = folder();
    let socket = folder.path().join("hooks.sock");
    let mut listener = listener(&socket, Limits::default());
    let child = Child::start(|| {
        let client = Client::start(options(&socket));
        client.writer().step(&step(41));
        std::mem::forget(client);
    });
    let mut taken = joined(&mut listener);
    assert_eq!(taken.peer.pid, child.0);
    let end = monotonic_ns() + LONGEST_NS;
    while snapshot(&mut taken).totals.steps == 0 && monotonic_ns() < end {
        std::thread::yield_now();
    }
    drop(child);
    let (left, reason) = until(&mut listener, |event| match event {
        Event::Left { id, reason, .. } => Some((id, reason)),
        _ => None,
    });
    assert_eq!((left, reason), (taken.id, Leaving::Ended));
    let seen = snapshot(&mut taken);
    assert_eq!((seen.totals.last_step, seen.end), (41, None));
}

/// When each of so many clients was seen to leave.
fn left(listener: &mut Listener, count: usize) -> HashMap<ClientId, i64> {
    let mut moments = HashMap::new();
    until(listener, |event| {
        if let Event::Left { id, at, .. } = event {
            moments.insert(id, at);
        }
        (moments.len() == count).then_some(())
    });
    moments
}

#[test]
fn each_death_has_the_moment_at_which_it_was_seen_and_deaths_seen_together_have_one() {
    let folder = folder();
    let socket = folder.path().join("hooks.sock");
    let mut listener = listener(&socket, Limits::default());
    let mut child = || {
        let child = Child::start(|| std::mem::forget(Client::start(options(&socket))));
        (joined(&mut listener).id, child)
    };
    let [first, second, third] = [child(), child(), child()];
    let before = unix_ns();
    drop(second.1);
    let alone = left(&mut listener, 1)[&second.0];
    // Both are gone before anybody looks.
    drop((third.1, first.1));
    let moments = left(&mut listener, 2);
    assert!(before < alone && alone < moments[&first.0]);
    assert_eq!(moments[&first.0], moments[&third.0]);
    assert!(moments[&first.0] <= unix_ns());
}

fn connected(path: &Path) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let socket = socket.expect("a socket");
    let address = SocketAddrUnix::new(path).expect("an address");
    connect(&socket, &address).expect("somebody listens");
    socket
}

fn tell(socket: &OwnedFd, bytes: &[u8], file: Option<&OwnedFd>) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut files = SendAncillaryBuffer::new(&mut space);
    let file = file.map(|it| [it.as_fd()]);
    if let Some(file) = &file {
        files.push(SendAncillaryMessage::ScmRights(file));
    }
    let text = [std::io::IoSlice::new(bytes)];
    sendmsg(socket, &text, &mut files, SendFlags::NOSIGNAL).expect("it is taken");
}

fn refused(listener: &mut Listener) -> Refusal {
    until(listener, |event| match event {
        Event::Refused { reason, .. } => Some(reason),
        _ => None,
    })
}

#[test]
fn a_message_or_file_that_is_none_is_refused_by_name_and_told() {
    let folder = folder();
    let socket = folder.path().join("hooks.sock");
    let mut listener = listener(&socket, Limits::default());
    let mut check = |bytes: &[u8], file: Option<OwnedFd>, expected: Refusal| {
        let client = connected(&socket);
        tell(&client, bytes, file.as_ref());
        assert_eq!(refused(&mut listener), expected);
        let mut bytes = [0; 32];
        let (length, _) = recv(&client, &mut bytes, RecvFlags::empty()).expect("an answer");
        let reply = Reply::from_bytes(&bytes[..length]).expect("a reply");
        assert_eq!(reply.refusal, Some(expected));
        assert!(reply.retry_after_ms > 0);
        assert_eq!(listener.connections(), 0);
    };
    let hello = |layout: u64, size: usize| {
        let size = size as u64;
        Hello { layout, size }.to_bytes()
    };
    let good = hello(1, layout::SIZE_BYTES);
    let unsealed = || memfd_create("t", MemfdFlags::CLOEXEC).expect("a memory file");
    let empty = || create().expect("a memory file");
    check(b"garbage", None, Refusal::Message);
    check(&[0; 200], None, Refusal::Message);
    check(&good, None, Refusal::Message);
    check(
        &hello(2, layout::SIZE_BYTES),
        Some(empty()),
        Refusal::Version,
    );
    check(&hello(1, 4096), Some(empty()), Refusal::Region);
    check(&good, Some(unsealed()), Refusal::Region);
    // Sealed and as large as it should be, but nobody ever wrote its header.
    check(&good, Some(empty()), Refusal::Region);
}

#[test]
fn a_client_that_says_nothing_or_far_too_much_is_sent_away() {
    let folder = folder();
    let socket = folder.path().join("hooks.sock");
    let limits = Limits {
        silence: Duration::from_millis(20),
        ..Limits::default()
    };
    let mut listener = listener(&socket, limits);
    let silent = connected(&socket);
    assert_eq!(refused(&mut listener), Refusal::Silent);
    drop(silent);
    let client = Client::start(options(&socket));
    let taken = joined(&mut listener);
    // The client's own socket, found by asking the kernel for the other end: it floods on it.
    let mine = (3..256).find(|it| {
        // SAFETY: the number is looked at during this call only; the kernel says when it is no file.
        let file = unsafe { BorrowedFd::borrow_raw(*it) };
        let name = rustix::net::getpeername(file).ok().flatten();
        name.and_then(|it| SocketAddrUnix::try_from(it).ok())
            .is_some_and(|it| it.path_bytes() == Some(socket.as_os_str().as_encoded_bytes()))
    });
    let mine = mine.expect("the client is connected");
    for _ in 0..=2 * limits.messages_per_second {
        // SAFETY: sends bytes of ours on a socket that is open.
        unsafe { libc::send(mine, b"x".as_ptr().cast(), 1, libc::MSG_NOSIGNAL) };
    }
    let reason = until(&mut listener, |event| match event {
        Event::Left { id, reason, .. } if id == taken.id => Some(reason),
        _ => None,
    });
    assert_eq!(reason, Leaving::Messages);
    drop(client);
}

#[test]
fn a_thousand_hostile_connections_are_capped_and_nobody_else_is_affected() {
    const HOSTILE: usize = 1000;
    let folder = folder();
    let socket = folder.path().join("hooks.sock");
    let limits = Limits::default();
    let mut listener = listener(&socket, limits);
    let honest = Client::start(options(&socket));
    let mut taken = joined(&mut listener);
    let (is_over, mut over) = std::io::pipe().expect("a pipe");
    let flood = Child::start(|| {
        for number in 0..HOSTILE {
            let client = connected(&socket);
            if number % 3 == 0 {
                // The agent may have closed it already.
                // SAFETY: sends bytes of ours on a socket of ours.
                unsafe {
                    let bytes = b"garbage".as_ptr().cast();
                    libc::send(client.as_raw_fd(), bytes, 7, libc::MSG_NOSIGNAL)
                };
            }
            if number % 2 == 0 {
                std::mem::forget(client);
            }
        }
        over.write_all(b"x").expect("the test reads");
    });
    let mut second = None;
    let mut refusals: HashMap<Refusal, usize> = HashMap::new();
    let mut most = 0;
    let mut newcomer = None;
    let end = monotonic_ns() + LONGEST_NS;
    while (newcomer.is_none() || !has_byte(&is_over)) && monotonic_ns() < end {
        for event in listener.turn(Duration::from_millis(50)).expect("a turn") {
            match event {
                Event::Joined(client) => newcomer = Some(client),
                Event::Left { id, reason, .. } => panic!("{id:?} left: {reason:?}"),
                Event::Refused { reason, peer } => {
                    assert_eq!(peer.map(|it| it.pid), Some(flood.0));
                    *refusals.entry(reason).or_default() += 1;
                }
            }
        }
        // In the middle of the flood somebody else comes.
        if refusals.values().sum::<usize>() > HOSTILE / 4 && second.is_none() {
            second = Some(Client::start(options(&socket)));
        }
        most = most.max(listener.connections());
        honest.writer().step(&step(1));
    }
    assert!(has_byte(&is_over), "the flood was not over in time");
    // The flood had all its places, and beside it stand the two that are honest.
    let of_flood = limits.per_group..=limits.per_group + 2;
    assert!(of_flood.contains(&most), "{most} connections at once");
    assert!(refusals.contains_key(&Refusal::Group), "{refusals:?}");
    assert_eq!(
        newcomer.map(|it| it.peer.pid),
        Some(std::process::id() as i32)
    );
    let seen = snapshot(&mut taken);
    assert!(seen.totals.steps > 0 && seen.steps_missed == 0);
    assert_eq!(honest.state(), State::Connected);
}

/// Whether there is something to read.
fn has_byte(pipe: &PipeReader) -> bool {
    let mut files = [PollFd::new(pipe, PollFlags::IN)];
    poll(&mut files, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

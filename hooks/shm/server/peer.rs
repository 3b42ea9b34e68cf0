//! Who is at the other end of a socket: what the kernel says, never what the client says.
#![expect(unsafe_code, reason = "SO_PEERCRED of an invisible process is pid 0")]

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::process::start_ticks;

/// Most bytes read of /proc/<pid>/cgroup: nested containers have a few hundred.
const CGROUP_BYTES: u64 = 4096;

/// The process that connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its process id on this machine.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// When it started, clock ticks since boot: with the pid it names one process for ever.
    pub start_ticks: u64,
    /// What limits are kept by: its cgroup, or what the agent says.
    pub group: String,
}

/// What the kernel says of the process that connected; `None` when it is gone or cannot be seen.
pub(super) fn of(socket: &OwnedFd, group: &dyn Fn(i32) -> String) -> Option<(Peer, OwnedFd)> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is the size of the struct.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if got != 0 || credentials.pid <= 0 {
        return None;
    }
    let pid = credentials.pid;
    // Held first: what is read after it is about the process it holds, or fails.
    let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let peer = Peer {
        pid,
        uid: credentials.uid,
        gid: credentials.gid,
        start_ticks: start_ticks(&pid.to_string())?,
        group: group(pid),
    };
    Some((peer, process))
}

/// The cgroup of a process: its container. Empty when it cannot be read.
pub fn cgroup(pid: i32) -> String {
    let mut text = String::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/cgroup")) {
        // A cgroup that is not UTF-8 is in the group of those that cannot be read.
        let _read = file.take(CGROUP_BYTES).read_to_string(&mut text);
    }
    let last = text.lines().last().unwrap_or_default();
    last.splitn(3, ':').nth(2).unwrap_or_default().to_owned()
}

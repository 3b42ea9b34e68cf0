//! How a process ended, as the kernel says: for one that was killed and could not say it itself.
//!
//! Its status is in /proc until its parent has asked for it, and from Linux 6.15 on in what a pidfd
//! tells after that. Whether memory was the reason is in its cgroup's count of kills.
#![expect(unsafe_code, reason = "what a pidfd tells has no safe wrapper")]

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use gpufleet_hooks_shm::process::start_ticks;
use gpufleet_hooks_shm::server::Peer;
use gpufleet_hooks_tell::events::Exit;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Where cgroups are.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Field 52 of /proc/<pid>/stat, counted from the field after the closing parenthesis.
const STATUS_FIELD: usize = 49;

/// Asks a pidfd what it knows: _IOWR(0xff, 11, 64 bytes), linux/pidfd.h.
const GET_INFO: libc::c_ulong = 0xc040_ff0b;

/// Asks for the exit status, and says that it was given.
const EXIT: u64 = 1 << 3;

/// What the kernel says of a process that is watched.
#[derive(Debug)]
pub(super) struct Watch {
    peer: Peer,
    process: Option<OwnedFd>,
    oom_kills: Option<u64>,
}

/// `struct pidfd_info` as of Linux 6.15; later ones write no more than it was asked for.
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

impl Watch {
    /// Watches a process from now on.
    pub(super) fn new(peer: &Peer) -> Self {
        let open = |pid| pidfd_open(pid, PidfdFlags::empty()).ok();
        let process = Pid::from_raw(peer.pid).and_then(open);
        // Looked at after it is held: else it could be of a later process with the same id.
        let is_it = start_ticks(&peer.pid.to_string()) == Some(peer.start_ticks);
        Self {
            process: process.filter(|_| is_it),
            oom_kills: oom_kills(&peer.group),
            peer: peer.clone(),
        }
    }

    /// Whether it has ended, whether or not its parent has asked how.
    pub(super) fn has_ended(&self) -> bool {
        match &self.process {
            Some(process) => {
                let mut files = [PollFd::new(process, PollFlags::IN)];
                poll(&mut files, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
            }
            None => start_ticks(&self.peer.pid.to_string()) != Some(self.peer.start_ticks),
        }
    }

    /// How it ended, once it has.
    pub(super) fn exit(&self) -> Exit {
        let known = self
            .unasked()
            .or_else(|| self.process.as_ref().and_then(told));
        let signal = known.map(|it| it & 0x7f).filter(|it| *it != 0);
        let kills = oom_kills(&self.peer.group).zip(self.oom_kills);
        Exit {
            status: known.filter(|_| signal.is_none()).map(|it| it >> 8 & 0xff),
            signal,
            oom_kills: kills.and_then(|(now, before)| now.checked_sub(before)),
            at: None,
        }
    }

    /// The status of a process that has ended and that its parent has not asked for.
    fn unasked(&self) -> Option<i32> {
        let pid = self.peer.pid.to_string();
        if start_ticks(&pid) != Some(self.peer.start_ticks) {
            return None;
        }
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let has_ended = fields.next() == Some("Z");
        let status = fields.nth(STATUS_FIELD - 1)?.parse().ok()?;
        has_ended.then_some(status)
    }
}

/// The status of a process that is gone.
fn told(process: &OwnedFd) -> Option<i32> {
    let mut info = Info {
        mask: EXIT,
        ..Info::default()
    };
    // SAFETY: the kernel writes at most the 64 bytes that the number of the call says, which is the size
    // of the struct; any bytes are valid in it.
    let got = unsafe { libc::ioctl(process.as_raw_fd(), GET_INFO, &raw mut info) };
    (got == 0 && info.mask & EXIT != 0).then_some(info.exit_code)
}

/// How many processes of a cgroup the kernel killed for memory.
fn oom_kills(group: &str) -> Option<u64> {
    let path = PathBuf::from(format!("{CGROUPS}{group}/memory.events"));
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|it| it.strip_prefix("oom_kill "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn watched(script: &str) -> (Child, Watch) {
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .stdin(std::process::Stdio::null());
        let child = command.spawn();
        let child = child.expect("there is a shell");
        let pid = child.id();
        let watch = Watch::new(&Peer {
            pid: pid.cast_signed(),
            uid: 0,
            gid: 0,
            start_ticks: start_ticks(&pid.to_string()).expect("it is our child"),
            group: String::new(),
        });
        (child, watch)
    }

    /// Waits until it has ended, without asking how.
    fn ends(watch: &Watch) {
        let process = watch.process.as_ref().expect("it was held");
        let mut files = [PollFd::new(process, PollFlags::IN)];
        poll(&mut files, None).expect("it ends");
    }

    #[test]
    fn a_kill_and_a_status_are_known_before_and_after_the_parent_asked() {
        let killed = Exit {
            signal: Some(9),
            ..Exit::default()
        };
        let returned = Exit {
            status: Some(3),
            ..Exit::default()
        };
        for (script, expected) in [
            ("sleep 1; kill -9 $$", killed),
            ("sleep 1; exit 3", returned),
        ] {
            let (mut child, watch) = watched(script);
            ends(&watch);
            assert_eq!(watch.exit(), expected, "{script}");
            child.wait().expect("our child");
            // Before Linux 6.15 nobody knows any more.
            let after = watch.exit();
            assert!(after == expected || after == Exit::default(), "{after:?}");
        }
    }

    #[test]
    fn of_a_process_that_lives_nothing_is_said() {
        let (mut child, watch) = watched("exec sleep 60");
        assert_eq!(watch.exit(), Exit::default());
        child.kill().expect("our child");
        child.wait().expect("our child");
    }
}

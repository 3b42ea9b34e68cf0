//! How a process ended, as the kernel says: for one that was killed and could not say it itself.
//!
//! Its status is in /proc until its parent has asked for it, and from Linux 6.15 on in what a pidfd
//! tells after that. Whether memory was the reason is in its cgroup's count of kills ([`super::kills`]).
#![expect(unsafe_code, reason = "what a pidfd tells has no safe wrapper")]

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};

use gpufleet_hooks_shm::process::start_ticks;
use gpufleet_hooks_shm::server::Peer;
use gpufleet_hooks_tell::events::Exit;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::kills::{Cgroups, Kills};

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
    kills: Kills,
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
    pub(super) fn new(peer: &Peer, cgroups: &mut Cgroups) -> Self {
        let open = |pid| pidfd_open(pid, PidfdFlags::empty()).ok();
        let process = Pid::from_raw(peer.pid).and_then(open);
        let kills = cgroups.count(peer.pid);
        // Looked at after both: else they could be of a later process with the same id.
        let is_it = start_ticks(&peer.pid.to_string()) == Some(peer.start_ticks);
        Self {
            process: process.filter(|_| is_it),
            kills: if is_it { kills } else { Kills::default() },
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
        Exit {
            status: known.filter(|_| signal.is_none()).map(|it| it >> 8 & 0xff),
            signal,
            oom_kills: self.kills.since(),
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Child, Command};

    use super::*;

    /// Runs a script on a machine whose `/proc` and cgroups are in this folder.
    fn watched(script: &str, machine: &Path) -> (Child, Watch) {
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .stdin(std::process::Stdio::null());
        let child = command.spawn();
        let child = child.expect("there is a shell");
        let pid = child.id();
        let of_process = machine.join(format!("proc/{pid}"));
        fs::create_dir_all(&of_process).expect("made");
        fs::write(of_process.join("cgroup"), "0::/a\n").expect("written");
        let peer = Peer {
            pid: pid.cast_signed(),
            uid: 0,
            gid: 0,
            start_ticks: start_ticks(&pid.to_string()).expect("it is our child"),
            group: String::new(),
        };
        let watch = Watch::new(&peer, &mut Cgroups::for_tests(machine));
        (child, watch)
    }

    fn machine() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder")
    }

    /// So many were killed in the only cgroup of a machine.
    fn kills(machine: &Path, count: u64) {
        let folder = machine.join("host/a");
        fs::create_dir_all(&folder).expect("made");
        let text = format!("oom 9\noom_kill {count}\n");
        fs::write(folder.join("memory.events"), text).expect("written");
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
            let machine = machine();
            let (mut child, watch) = watched(script, machine.path());
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
        let machine = machine();
        let (mut child, watch) = watched("exec sleep 60", machine.path());
        assert_eq!(watch.exit(), Exit::default());
        child.kill().expect("our child");
        child.wait().expect("our child");
    }

    #[test]
    fn what_was_killed_for_want_of_memory_where_it_ran_is_counted_from_when_it_was_met() {
        let machine = machine();
        kills(machine.path(), 4);
        let (mut child, watch) = watched("exec sleep 60", machine.path());
        kills(machine.path(), 6);
        child.kill().expect("our child");
        ends(&watch);
        let expected = Exit {
            signal: Some(9),
            oom_kills: Some(2),
            ..Exit::default()
        };
        assert_eq!(watch.exit(), expected);
        child.wait().expect("our child");
    }

    #[test]
    fn of_another_process_with_the_same_id_nothing_is_counted() {
        let machine = machine();
        kills(machine.path(), 4);
        let (mut child, watch) = watched("exec sleep 60", machine.path());
        let another = Peer {
            start_ticks: watch.peer.start_ticks + 1,
            ..watch.peer.clone()
        };
        let watch = Watch::new(&another, &mut Cgroups::for_tests(machine.path()));
        assert_eq!(watch.exit(), Exit::default());
        child.kill().expect("our child");
        child.wait().expect("our child");
    }
}

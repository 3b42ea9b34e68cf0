//! One program that runs for a test.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::wait;

/// How long a program may take to stop when asked to.
pub const STOP_LIMIT: Duration = Duration::from_secs(60);
/// How long its children may outlive a program that was killed.
const ORPHAN_LIMIT: Duration = Duration::from_secs(20);

/// A running program with a process group of its own.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Option<Child>,
    group: libc::pid_t,
    log: PathBuf,
}

impl Process {
    /// Starts a program; what it prints is appended to `log`.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Self {
        let open = || {
            File::options()
                .create(true)
                .append(true)
                .open(log)
                .expect("the test's own folder can be written")
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(open())
            .stderr(open())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name} ({command:?}): {error}"));
        Self {
            name: name.to_owned(),
            group: child.id().cast_signed(),
            child: Some(child),
            log: log.to_path_buf(),
        }
    }

    /// Its process id, which is also its group's.
    pub fn id(&self) -> u32 {
        self.group.cast_unsigned()
    }

    /// Everything it has printed.
    pub fn output(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Fails the test when the program has ended by itself.
    ///
    /// # Panics
    /// With the end of what it printed.
    pub fn must_run(&mut self) {
        assert!(
            self.runs(),
            "{} ended by itself:\n{}",
            self.name,
            self.tail()
        );
    }

    /// kill -9 of the program alone. Its children must then go by themselves.
    ///
    /// # Panics
    /// When they do not.
    pub fn kill(mut self) {
        self.end(libc::SIGKILL);
    }

    /// Asks it to stop and waits for it.
    ///
    /// # Panics
    /// When it does not stop in time, or leaves a child behind.
    pub fn stop(mut self) -> ExitStatus {
        self.end(libc::SIGTERM)
            .expect("the program ran until now: it is stopped once")
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// When it does not within `limit`.
    pub fn wait(mut self, limit: Duration) -> ExitStatus {
        let what = format!("{} ends; it printed:\n{}", self.name, self.tail());
        let child = self.child.as_mut().expect("it is waited for once");
        let status = wait::until(&what, limit, || child.try_wait().ok().flatten());
        self.child = None;
        self.no_orphans();
        status
    }

    /// The end of what it printed.
    pub fn tail(&self) -> String {
        let output = self.output();
        let lines: Vec<_> = output.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    fn end(&mut self, signal: libc::c_int) -> Option<ExitStatus> {
        let mut child = self.child.take()?;
        send(self.group, signal);
        let what = format!(
            "{} stops after signal {signal}:\n{}",
            self.name,
            self.tail()
        );
        let status = wait::until(&what, STOP_LIMIT, || child.try_wait().ok().flatten());
        self.no_orphans();
        Some(status)
    }

    fn no_orphans(&self) {
        let begin = wait::now();
        while group_lives(self.group) {
            if wait::now() - begin > ORPHAN_LIMIT {
                send(-self.group, libc::SIGKILL);
                assert!(
                    std::thread::panicking(),
                    "{} left processes of its own behind",
                    self.name
                );
                return;
            }
            wait::pause(Duration::from_millis(20));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        if std::thread::panicking() {
            eprintln!("---- {} printed last:\n{}", self.name, self.tail());
            send(-self.group, libc::SIGKILL);
            // Reaps it; that it was already gone is what was wanted.
            let _ = child.wait();
            return;
        }
        send(self.group, libc::SIGKILL);
        let _ = child.wait();
        self.no_orphans();
    }
}

/// Sends a signal; a process that is already gone is no error.
#[expect(
    unsafe_code,
    reason = "kill(2) has no safe wrapper in the standard library"
)]
fn send(pid: libc::pid_t, signal: libc::c_int) {
    // SAFETY: kill(2) takes two numbers and touches no memory of ours; the pid is of a child that
    // we have not reaped, or the negative of its group.
    let _ = unsafe { libc::kill(pid, signal) };
}

/// Whether a process of this group is left, zombies left out.
fn group_lives(group: libc::pid_t) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return false;
    };
    processes.flatten().any(|entry| {
        // "pid (name) state ppid pgrp …": the name may hold spaces and brackets.
        std::fs::read_to_string(entry.path().join("stat"))
            .ok()
            .and_then(|stat| {
                let mut rest = stat.rsplit_once(") ")?.1.split(' ');
                let state = rest.next()?;
                Some(state != "Z" && rest.nth(1)? == group.to_string())
            })
            .unwrap_or(false)
    })
}

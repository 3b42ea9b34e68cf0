//! One child process from the parent's side: started, asked, listened to, watched.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Blocking;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::net::UnixStream;

use super::page::{Lane, Page, Running, uptime};
use super::wire::{self, FromChild, LibraryFacts, Start, ToChild};
use super::xid::wait::WAIT;

/// Bytes taken from the socket at once.
const READ_BYTES: usize = 16 * 1024;

/// A child that is busy for so long outside any driver call has gone wrong by itself.
const LONGEST_ROUND: Duration = Duration::from_secs(60);

/// How children are started.
#[derive(Debug, Clone)]
pub struct Spawner {
    /// The program; it must know the argument `nvml-child`.
    pub program: PathBuf,
    /// Variables of its environment beside the parent's own.
    pub environment: Vec<(OsString, OsString)>,
}

/// How long a driver call may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Any call.
    pub(crate) call: Duration,
    /// A call that may take seconds with nothing wrong.
    pub(crate) slow_call: Duration,
}

/// A running child.
pub(crate) struct Process {
    child: Child,
    socket: UnixStream,
    received: Vec<u8>,
    page: Page,
    /// When the round it is busy with was asked for.
    asked: Option<Duration>,
    /// What the library said of itself.
    pub(crate) library: Option<LibraryFacts>,
    /// Rounds that it ended.
    pub(crate) rounds: u64,
    /// Whether it is to be replaced when it is idle.
    pub(crate) is_stale: bool,
    /// Whether it was to be given up on when the last round ended.
    seemed_stuck: bool,
}

/// Why a child is given up on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Stuck {
    /// In a driver call.
    Call(Lane, Running),
    /// In itself.
    Itself,
}

impl Spawner {
    /// The agent's own program, whatever its file is called now.
    pub fn own() -> Self {
        Self {
            program: PathBuf::from("/proc/self/exe"),
            environment: Vec::new(),
        }
    }

    pub(crate) fn spawn(&self, start: &Start) -> io::Result<Process> {
        let (mut ours, theirs) = Blocking::pair()?;
        let (page, file) = Page::create()?;
        let child = Command::new(&self.program)
            .arg("nvml-child")
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(file))
            .spawn()?;
        // The first message fits the socket's buffer, so this does not wait for the child.
        wire::send(&mut ours, &ToChild::Start(start.clone()))?;
        ours.set_nonblocking(true)?;
        Ok(Process {
            child,
            socket: UnixStream::from_std(ours)?,
            received: Vec::new(),
            page,
            asked: None,
            library: None,
            rounds: 0,
            is_stale: false,
            seemed_stuck: false,
        })
    }
}

impl Process {
    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The process itself, to be buried.
    pub(crate) fn into_child(self) -> Box<Child> {
        Box::new(self.child)
    }

    /// Whether it is busy with a round.
    pub(crate) fn is_busy(&self) -> bool {
        self.asked.is_some()
    }

    /// Asks for a round.
    pub(crate) fn ask(&mut self) -> io::Result<()> {
        let mut frame = Vec::new();
        wire::send(&mut frame, &ToChild::Round)?;
        // Five bytes, and never more than one request outstanding: there is room for them. Written
        // past the runtime, which would first want to hear from the kernel that there is.
        let written = rustix::io::write(&self.socket, &frame)?;
        if written != frame.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.asked = Some(uptime());
        Ok(())
    }

    /// The round is over.
    pub(crate) fn ended_round(&mut self) {
        self.asked = None;
        self.rounds += 1;
    }

    /// The next message. May be dropped at any time without losing one.
    pub(crate) async fn next(&mut self) -> io::Result<FromChild> {
        loop {
            if let Some(message) = self.try_next()? {
                return Ok(message);
            }
            self.socket.readable().await?;
        }
    }

    /// The next message, if it is there.
    pub(crate) fn try_next(&mut self) -> io::Result<Option<FromChild>> {
        loop {
            if let Some(message) = wire::take(&mut self.received)? {
                return Ok(Some(message));
            }
            self.received.reserve(READ_BYTES);
            match self.socket.try_read_buf(&mut self.received) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// The call it is in.
    pub(crate) fn running(&self) -> Option<Running> {
        self.page.running(Lane::Read)
    }

    /// Whether it is to be given up on at the end of a round, where nothing but the wait can be stuck.
    /// Only at the second look in a row: when the whole machine stood still, a wait looks old until
    /// its thread has run again.
    pub(crate) fn stuck_again(&mut self, limits: Limits) -> Option<Stuck> {
        let stuck = self.stuck(limits);
        let seemed = std::mem::replace(&mut self.seemed_stuck, stuck.is_some());
        stuck.filter(|_| seemed)
    }

    /// Whether it is to be given up on.
    pub(crate) fn stuck(&self, limits: Limits) -> Option<Stuck> {
        for (lane, waits) in [(Lane::Read, Duration::ZERO), (Lane::Wait, WAIT)] {
            let Some(running) = self.page.running(lane) else {
                continue;
            };
            let limit = if running.function.is_slow_at_times() {
                limits.slow_call
            } else {
                limits.call
            };
            if running.age > limit + waits {
                return Some(Stuck::Call(lane, running));
            }
        }
        let busy = uptime().saturating_sub(self.asked?);
        (busy > LONGEST_ROUND && self.running().is_none()).then_some(Stuck::Itself)
    }
}

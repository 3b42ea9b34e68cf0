//! The process that talks to the driver: single-threaded but for the XID wait, no runtime, no
//! config, no log. It does what its parent asks over the socket and ends when the parent is gone.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use anyhow::Context;
use gpufleet_telemetry::sample::Missing;

use super::device::{Gpu, Round};
use super::gpm::Request;
use super::library::Library;
use super::page::{Page, uptime};
use super::wire::{Done, FromChild, Start, ToChild, receive, send};
use super::xid::wait::{Told, Waiting};

/// The library is asked how many GPUs there are once in so many rounds.
const COUNT_EVERY: u32 = 10;

/// What the child keeps between rounds.
struct Child {
    library: Library,
    start: Start,
    gpus: Vec<Gpu>,
    request: Request,
    waiting: Option<Waiting>,
    deaf: Option<Missing>,
    rounds: u32,
}

/// What the child process does until its parent is gone.
///
/// # Errors
/// When it was not started by an agent, or the socket to the parent fails.
pub(crate) fn run() -> anyhow::Result<()> {
    const BY_HAND: &str = "nvml-child is started by the agent, not by hand";
    // A call that hangs would keep this process past its parent, which then nobody would kill.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // The parent passes the socket as standard input and the shared page as standard output.
    let socket = io::stdin().as_fd().try_clone_to_owned().context(BY_HAND)?;
    let page = io::stdout().as_fd().try_clone_to_owned().context(BY_HAND)?;
    let page = Arc::new(Page::open(page).context(BY_HAND)?);
    // What the library prints must not land in the page.
    let nowhere = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    rustix::stdio::dup2_stdin(&nowhere)?;
    let mut socket = UnixStream::from(socket);
    let start = match receive(&mut socket).context(BY_HAND)? {
        Some(ToChild::Start(start)) => start,
        Some(ToChild::Round) | None => return Ok(()),
    };
    let library = match Library::load(&start.library_path, page) {
        Ok((library, facts)) => {
            send(&mut socket, &FromChild::Ready(facts.clone()))?;
            (library, facts.count)
        }
        Err(failure) => return Ok(send(&mut socket, &FromChild::Failed(failure))?),
    };
    let mut child = Child::new(library.0, start, library.1);
    while let Some(ToChild::Round) = receive(&mut socket)? {
        child.round(&mut socket)?;
    }
    Ok(())
}

impl Child {
    fn new(library: Library, start: Start, count: u32) -> Self {
        let wanted = |index: &u32| {
            start.only.is_none_or(|only| only == *index) && !start.without.contains(index)
        };
        Self {
            gpus: (0..count).filter(wanted).map(Gpu::new).collect(),
            library,
            start,
            request: Request::new(),
            waiting: None,
            deaf: None,
            rounds: 0,
        }
    }

    fn round(&mut self, to: &mut UnixStream) -> io::Result<()> {
        let told = self.listen();
        for gpu in &mut self.gpus {
            let mut round = Round {
                library: &self.library,
                request: &mut self.request,
                now: uptime(),
            };
            // Each is sent at once: if the next one hangs, this one's readings are not lost.
            let answer = match gpu.open(&mut round) {
                Err(missing) => gpu.silent(missing),
                Ok(new) => {
                    if let Some(facts) = new {
                        send(to, &FromChild::Known(gpu.index(), Box::new(facts)))?;
                    }
                    gpu.read(&mut round)
                }
            };
            send(to, &FromChild::Gpu(Box::new(answer)))?;
        }
        if self.rounds == 0 {
            self.wait_for_events();
        }
        let ask = self.rounds % COUNT_EVERY == COUNT_EVERY - 1;
        self.rounds = self.rounds.wrapping_add(1);
        let count = ask.then(|| self.library.count().ok()).flatten();
        send(to, &FromChild::Done(Done { count, ..told }))
    }

    fn wait_for_events(&mut self) {
        if !self.start.xids {
            return;
        }
        let gpus: Vec<_> = self.gpus.iter().filter_map(Gpu::handle).collect();
        match Waiting::start(&self.library, gpus) {
            Ok(waiting) => self.waiting = Some(waiting),
            Err(_) => self.deaf = Some(Missing::Unknown),
        }
    }

    /// What the waiting thread heard since the last round.
    fn listen(&mut self) -> Done {
        let mut done = Done::default();
        let Some(waiting) = &self.waiting else {
            done.xids_missing = self.deaf;
            return done;
        };
        let mut changed = Vec::new();
        for told in waiting.take() {
            match told {
                Told::Xid(xid) => done.xids.push(xid),
                Told::Changed(index) => changed.push(index),
                Told::Deaf(missing) => self.deaf = Some(missing),
            }
        }
        done.xids_dropped = waiting.take_dropped();
        done.xids_missing = self.deaf;
        for gpu in &mut self.gpus {
            if gpu
                .handle()
                .is_some_and(|(index, _)| changed.contains(&index))
            {
                gpu.look_again();
            }
        }
        done
    }
}

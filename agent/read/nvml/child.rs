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
    /// Who waits for events, or why nobody does.
    waiting: Result<Waiting, Missing>,
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
        // GPUs are opened in the first round, and events waited for when it ends.
        let nobody = match start.xids {
            true => Missing::NotReady,
            false => Missing::DriverHang,
        };
        Self {
            gpus: (0..count).filter(wanted).map(Gpu::new).collect(),
            library,
            start,
            request: Request::new(),
            waiting: Err(nobody),
            rounds: 0,
        }
    }

    fn round(&mut self, to: &mut UnixStream) -> io::Result<()> {
        for gpu in &mut self.gpus {
            let mut round = Round {
                library: &self.library,
                request: &mut self.request,
                now: uptime(),
            };
            // Each is sent at once: if the next one hangs, this one's readings are not lost.
            let mut answer = match gpu.open(&mut round) {
                Err(missing) => gpu.silent(missing),
                Ok(new) => {
                    if let Some(facts) = new {
                        send(to, &FromChild::Known(gpu.index(), Box::new(facts)))?;
                    }
                    gpu.read(&mut round)
                }
            };
            let waiting = self.waiting.as_ref().map_err(|missing| *missing);
            let hears = waiting.and_then(|waiting| waiting.hears(gpu.index()));
            answer.xids_missing = hears.err();
            send(to, &FromChild::Gpu(Box::new(answer)))?;
        }
        let ask = self.rounds % COUNT_EVERY == COUNT_EVERY - 1;
        self.rounds = self.rounds.wrapping_add(1);
        let count = ask.then(|| self.library.count().ok()).flatten();
        let told = self.listen();
        send(to, &FromChild::Done(Done { count, ..told }))
    }

    /// What was heard since the last round. Where nobody waits any more, or yet, a wait begins for
    /// the GPUs that answer.
    fn listen(&mut self) -> Done {
        let waiting = self.waiting.as_ref();
        // Asked first: what a thread tells before its end is not left behind with it.
        let is_over = waiting.map_or(true, Waiting::is_over);
        let (told, dropped) = waiting.map(Waiting::take).unwrap_or_default();
        let mut done = Done {
            xids_dropped: dropped,
            ..Done::default()
        };
        for told in told {
            match told {
                Told::Xid(xid) => done.xids.push(xid),
                Told::Changed(index) => {
                    let of_index = |gpu: &&mut Gpu| gpu.index() == index;
                    if let Some(gpu) = self.gpus.iter_mut().find(of_index) {
                        gpu.look_again();
                    }
                }
            }
        }
        if is_over && self.start.xids {
            let gpus = self.gpus.iter().filter_map(Gpu::handle).collect();
            let started = Waiting::start(&self.library, gpus);
            self.waiting = started.map_err(|_| Missing::Unknown);
        }
        done
    }
}

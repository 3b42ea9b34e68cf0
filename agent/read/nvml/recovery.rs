//! When things go wrong: hangs, crashes, a library that cannot be used, and the way back.

use std::time::Duration;

use gpufleet_telemetry::event::{EventKind, Severity};
use gpufleet_telemetry::sample::Missing;

use super::page::{Lane, Running, uptime};
use super::process::Stuck;
use super::round::Ended;
use super::wire::{Failure, FromChild, Start};
use super::{LIST_EVERY, Main, Nvml, RETRY_CHILD, RETRY_GPU, RETRY_LIBRARY, Watched};
use crate::read::Turn;

impl Nvml {
    /// The child is in a call that does not return.
    pub(super) fn hang(&mut self, stuck: Stuck, turn: &Turn) -> Ended {
        let (lane, running) = match stuck {
            Stuck::Call(lane, running) => (lane, running),
            Stuck::Itself => {
                let error = std::io::Error::other("it is busy with something else than the driver");
                self.ended(&error, turn);
                return Ended::Over;
            }
        };
        self.tell_hang(running, turn);
        self.bury_main(Main::down(Duration::ZERO, None));
        match (running.gpu, lane) {
            (Some(gpu), _) => {
                let id = self.fleet.at(gpu, turn);
                self.fleet.lose(&id, Missing::DriverHang, turn);
                self.watch_hung(gpu);
            }
            (None, Lane::Wait) => self.deaf_until = Some(uptime() + RETRY_GPU),
            (None, Lane::Read) => {
                self.main = Main::down(uptime() + RETRY_LIBRARY, None);
                return Ended::Over;
            }
        }
        if self.yard.is_full() {
            let message = format!(
                "{} processes hang in the driver and cannot be killed: no new one is started until \
                 one of them ends; the node needs a reboot if none does",
                self.yard.unreaped()
            );
            self.fleet
                .tell_node(turn, EventKind::ReaderFailed, Severity::Error, message, []);
            return Ended::Over;
        }
        Ended::Again
    }

    fn watch_hung(&mut self, gpu: u32) {
        let watched = Watched {
            why: Missing::DriverHang,
            next_try: uptime() + RETRY_GPU,
            every: RETRY_GPU,
        };
        self.watched.insert(gpu, watched);
    }

    fn tell_hang(&mut self, running: Running, turn: &Turn) {
        let began = turn.at.shifted(-(running.age.as_nanos() as i64));
        let function = running.function.name();
        let seconds = running.age.as_secs_f64();
        let attributes = [
            ("function", function.to_owned()),
            ("since", began.0.to_string()),
            ("for_seconds", format!("{seconds:.1}")),
        ];
        let id = running.gpu.map(|gpu| self.fleet.at(gpu, turn));
        match (id, running.gpu) {
            (Some(id), Some(gpu)) => {
                let message = format!("GPU {gpu}: {function} has not returned for {seconds:.1} s");
                self.fleet.tell(
                    &id,
                    turn,
                    EventKind::DriverHang,
                    Severity::Error,
                    message,
                    attributes,
                );
            }
            (_, gpu) => {
                let message = format!("{function} has not returned for {seconds:.1} s");
                let gpu = gpu.map(|gpu| ("gpu", gpu.to_string()));
                let attributes = attributes.into_iter().chain(gpu);
                self.fleet.tell_node(
                    turn,
                    EventKind::DriverHang,
                    Severity::Error,
                    message,
                    attributes,
                );
            }
        }
    }

    /// The child ended by itself, or its socket failed.
    pub(super) fn ended(&mut self, error: &std::io::Error, turn: &Turn) {
        let Main::Up(process) = &self.main else {
            return;
        };
        let running = process.running();
        let mut attributes = vec![("error", error.to_string())];
        let mut message = format!("the process that talks to the driver ended ({error})");
        if let Some(running) = running {
            message = format!("{message} in {}", running.function.name());
            attributes.push(("function", running.function.name().to_owned()));
            if let Some(gpu) = running.gpu {
                // A call that crashes is left alone like one that hangs.
                message = format!("{message} of GPU {gpu}");
                attributes.push(("gpu", gpu.to_string()));
                self.watch_hung(gpu);
            }
        }
        self.fleet.tell_node(
            turn,
            EventKind::ReaderFailed,
            Severity::Error,
            message.clone(),
            attributes,
        );
        self.failing = true;
        let failure = Failure {
            missing: Missing::Unknown,
            why: format!(
                "{message}; a new one is started in {} s",
                RETRY_CHILD.as_secs()
            ),
        };
        self.bury_main(Main::down(uptime() + RETRY_CHILD, Some(failure)));
    }

    /// The library cannot be used.
    pub(super) fn fail(&mut self, failure: Failure, retry: Duration, turn: &Turn) {
        // Without GPUs the whole round fails, and the sample loop tells of that.
        if !self.fleet.is_empty() && !std::mem::replace(&mut self.failing, true) {
            let message = format!("NVML cannot be used: {}", failure.why);
            let attributes = [("error", failure.why.clone())];
            self.fleet.tell_node(
                turn,
                EventKind::ReaderFailed,
                Severity::Error,
                message,
                attributes,
            );
        }
        self.bury_main(Main::down(uptime() + retry, Some(failure)));
    }

    pub(super) fn works_again(&mut self, turn: &Turn) {
        if std::mem::take(&mut self.failing) {
            let message = "NVML can be used again".to_owned();
            self.fleet.tell_node(
                turn,
                EventKind::ReaderRecovered,
                Severity::Info,
                message,
                [],
            );
        }
    }

    /// Compares the kernel's list of GPUs with the one the library has had since it was loaded.
    pub(super) fn compare_lists(&mut self) {
        let Main::Up(process) = &mut self.main else {
            return;
        };
        let (Some(library), now) = (&process.library, uptime()) else {
            return;
        };
        if self.config.kernel_list_path.as_os_str().is_empty()
            || now.saturating_sub(self.listed_at) < LIST_EVERY.min(self.period * 10)
        {
            return;
        }
        self.listed_at = now;
        let listed = std::fs::read_dir(&self.config.kernel_list_path)
            .map(Iterator::count)
            .ok();
        // Acted on once per change: a container may be shown fewer GPUs than the kernel has.
        if listed.is_some() && listed != self.listed {
            let known_before = self.listed.is_some();
            self.listed = listed;
            process.is_stale |= known_before && listed != Some(library.count as usize);
        }
    }

    /// Some time after a wait for XIDs that hung, replaces the child that does not wait for them.
    pub(super) fn listen_again(&mut self) {
        // A killed child that still hangs is the answer: a second one would be given up for nothing.
        if self.yard.unreaped() > 0 {
            return;
        }
        let due = self.deaf_until.take_if(|until| uptime() >= *until);
        if due.is_some()
            && let Main::Up(process) = &mut self.main
        {
            process.is_stale = true;
        }
    }

    /// Tries one GPU that does not answer, with a child that touches no other. Never waits.
    pub(super) fn probe(&mut self, turn: &Turn) {
        if matches!(self.main, Main::Released) {
            return;
        }
        if self.probe.is_none() {
            self.start_probe();
        }
        let limits = self.limits();
        let Some((gpu, mut probe)) = self.probe.take() else {
            return;
        };
        loop {
            match probe.try_next() {
                Ok(Some(FromChild::Gpu(answer))) if answer.outcome.is_ok() => {
                    // It answers: the next child of the main line reads it like the others.
                    self.watched.remove(&gpu);
                    if let Main::Up(process) = &mut self.main {
                        process.is_stale = true;
                    }
                    tracing::info!(gpu, at = turn.at.0, "a GPU that did not answer does again");
                    return self.yard.bury(probe.into_child());
                }
                Ok(Some(FromChild::Ready(_) | FromChild::Known(..))) => {}
                Ok(Some(_)) | Err(_) => return self.yard.bury(probe.into_child()),
                Ok(None) => break,
            }
        }
        match probe.stuck(limits) {
            Some(_) => self.yard.bury(probe.into_child()),
            None => self.probe = Some((gpu, probe)),
        }
    }

    fn start_probe(&mut self) {
        let now = uptime();
        // A killed child that still hangs is the answer: the driver has not come back.
        if self.yard.unreaped() > 0 {
            return;
        }
        let Some((gpu, watched)) = self.watched.iter_mut().find(|(_, it)| now >= it.next_try)
        else {
            return;
        };
        watched.next_try = now + watched.every;
        let gpu = *gpu;
        let started = self.spawner.spawn(&Start {
            library_path: self.config.library_path.to_string_lossy().into_owned(),
            only: Some(gpu),
            without: Vec::new(),
            xids: false,
        });
        match started.and_then(|mut probe| probe.ask().map(|()| probe)) {
            Ok(probe) => self.probe = Some((gpu, probe)),
            Err(error) => tracing::warn!(gpu, %error, "cannot start a process to try a GPU again"),
        }
    }
}

//! One round: there is a child, it is asked, and it is heard out until it is done, stuck or late.

use std::time::Duration;

use gpufleet_telemetry::sample::{Missing, Readings, ResourceSamples};

use super::wire::{Failure, FromChild, Start};
use super::{Main, Nvml, RETRY_LIBRARY, Watched};
use super::{library, page::uptime};
use crate::read::{Read, ReadError, Turn};

/// How often a busy child is looked at for a call that does not return.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Share of the deadline that a round uses; the rest is for what is done with it.
const OF_DEADLINE: f64 = 0.95;

/// Whether the child is busy with a round of this turn.
#[derive(PartialEq)]
enum Begun {
    /// It was asked now.
    Asked,
    /// It was still busy with an earlier one.
    Busy,
}

/// How a wait for the child ended.
pub(super) enum Ended {
    /// The round is over.
    Done,
    /// Time is up, or there is no child to wait for.
    Over,
    /// The child was replaced: ask the new one.
    Again,
}

impl Nvml {
    /// One round.
    pub(super) async fn round(&mut self, turn: &Turn) -> Result<Readings, ReadError> {
        let end = uptime() + self.deadline().mul_f64(OF_DEADLINE);
        self.yard.reap();
        self.obey(turn).await;
        self.compare_lists();
        self.listen_again();
        self.probe(turn);
        let mut resources = Vec::new();
        // A turn may begin with the rest of a round that was late; then it asks for one of its own.
        let mut asked = false;
        while let Some(begun) = self.begin(turn) {
            asked |= begun == Begun::Asked;
            match self.collect(turn, end, &mut resources).await {
                Ended::Done if !asked => {}
                Ended::Done | Ended::Over => break,
                Ended::Again => asked = false,
            }
        }
        resources.push(self.fleet.own(self.restarts));
        let opening = match &self.main {
            Main::Up(process) if process.rounds == 0 => Missing::NotReady,
            Main::Up(_) => Missing::Timeout,
            Main::Released => Missing::Released,
            Main::Down {
                failure: Some(failure),
                ..
            } => failure.missing,
            Main::Down { failure: None, .. } => Missing::DriverHang,
        };
        let watched = &self.watched;
        self.fleet.fill(turn.monotonic, &mut resources, |index| {
            match watched.get(&index) {
                Some(watched) if watched.why == Missing::DriverHang => Missing::DriverHang,
                _ => opening,
            }
        });
        match &self.main {
            Main::Down {
                failure: Some(failure),
                ..
            } if self.fleet.is_empty() => Err(error_of(failure)),
            _ => Ok(Readings {
                at: turn.at,
                resources,
                events: self.fleet.take_events(),
            }),
        }
    }

    /// Makes sure that there is a child and that it is busy with a round; none when there can be
    /// no child now.
    fn begin(&mut self, turn: &Turn) -> Option<Begun> {
        if let Main::Up(process) = &self.main
            && process.is_stale
            && !process.is_busy()
        {
            self.bury_main(Main::down(Duration::ZERO, None));
        }
        if let Main::Down { not_before, .. } = &self.main {
            if uptime() < *not_before || self.yard.is_full() {
                return None;
            }
            if let Err(error) = self.spawn() {
                let why = format!("the NVML process cannot be started: {error}");
                self.fail(
                    Failure {
                        missing: Missing::Unknown,
                        why,
                    },
                    RETRY_LIBRARY,
                    turn,
                );
                return None;
            }
        }
        let Main::Up(process) = &mut self.main else {
            return None;
        };
        if process.is_busy() {
            return Some(Begun::Busy);
        }
        match process.ask() {
            Ok(()) => Some(Begun::Asked),
            Err(error) => {
                self.ended(&error, turn);
                None
            }
        }
    }

    fn spawn(&mut self) -> std::io::Result<()> {
        let hung = |(index, watched): (&u32, &Watched)| {
            (watched.why == Missing::DriverHang).then_some(*index)
        };
        let process = self.spawner.spawn(&Start {
            library_path: self.config.library_path.to_string_lossy().into_owned(),
            only: None,
            without: self.watched.iter().filter_map(hung).collect(),
            xids: self.deaf_until.is_none(),
        })?;
        self.heard.clear();
        self.main = Main::Up(Box::new(process));
        Ok(())
    }

    /// Hears the child out until its round is over, it is stuck, or time is up.
    async fn collect(
        &mut self,
        turn: &Turn,
        end: Duration,
        to: &mut Vec<ResourceSamples>,
    ) -> Ended {
        loop {
            let limits = self.limits();
            let Main::Up(process) = &mut self.main else {
                return Ended::Over;
            };
            let left = end.saturating_sub(uptime());
            if left.is_zero() {
                return Ended::Over;
            }
            let message = tokio::time::timeout(left.min(LOOK_EVERY), process.next()).await;
            match message {
                Err(_) => match process.stuck(limits) {
                    Some(stuck) => return self.hang(stuck, turn),
                    None => continue,
                },
                Ok(Err(error)) => {
                    self.ended(&error, turn);
                    return Ended::Again;
                }
                Ok(Ok(FromChild::Ready(facts))) => {
                    process.library = Some(facts.clone());
                    let moved = self.fleet.count_changed(facts.count);
                    self.fleet.loaded(facts, turn);
                    self.works_again(turn);
                    if moved && !self.watched.is_empty() {
                        // Indices have moved, and this child leaves some alone by their old ones:
                        // who hangs is found out anew.
                        self.watched.clear();
                        self.bury_main(Main::down(Duration::ZERO, None));
                        return Ended::Again;
                    }
                }
                Ok(Ok(FromChild::Failed(failure))) => {
                    self.fail(failure, RETRY_LIBRARY, turn);
                    return Ended::Over;
                }
                Ok(Ok(FromChild::Known(index, facts))) => {
                    self.fleet.identify(index, &facts, turn);
                }
                Ok(Ok(FromChild::Gpu(answer))) => self.heard_gpu(*answer, turn, to),
                Ok(Ok(FromChild::Done(done))) => {
                    self.done(&done, turn);
                    return Ended::Done;
                }
            }
        }
    }
}

fn error_of(failure: &Failure) -> ReadError {
    match failure.missing {
        _ if failure.why == library::NO_GPU => ReadError::Nothing {
            why: failure.why.clone(),
        },
        Missing::NoPermission => ReadError::NotPermitted {
            what: "talking to the NVIDIA driver".to_owned(),
            fix: failure.why.clone(),
        },
        _ => ReadError::Unavailable {
            why: failure.why.clone(),
        },
    }
}

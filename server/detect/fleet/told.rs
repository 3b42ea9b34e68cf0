//! GPUs and shares of which it was said that they do nothing, while it is not known who holds them or what they do.
//!
//! Then nobody knows whether it is over. Once it is known again, and the job before has them and they still do nothing,
//! they did nothing all the time: a kubelet that does not answer for half a minute begins no hour anew. One that was
//! active meanwhile has done something, whoever held it.
//!
//! Limits: some hundred bytes for each that does nothing; a stall shows again only after it has lasted, and up to then
//! nobody knows of it either.

use std::collections::HashMap;
use std::sync::Arc;

use gpufleet_analysis::incident::{Family, Place};
use gpufleet_analysis::ledger::State;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::{Held, STALL_LEARNS_S, all, job_of};
use crate::detect::detector::TickSnapshot;
use crate::detect::gather::{is_at_work, is_unknown};
use crate::detect::runs::{self, Holders};

/// Those that were told to do nothing, by their numbers.
#[derive(Default)]
pub(super) struct Told {
    /// At the last tick.
    last: HashMap<u32, Said>,
    /// Before it was not known who holds them or what they do, which may have been some ticks ago.
    before: HashMap<u32, Said>,
}

/// What was said of one.
#[derive(Clone)]
struct Said {
    family: Family,
    job: Arc<str>,
    since: Option<Timestamp>,
    /// When it was last not known who holds it or what it does.
    unknown_at: Option<Timestamp>,
}

/// What is known of it now.
enum Still {
    /// It does something, for another or for nobody, or is told again by itself.
    Over,
    /// Nothing is heard of it.
    Silent,
    /// Whether it does something is not known.
    Unknown,
    /// It does nothing, as before.
    Rests,
}

/// What is known of them without what is told now.
#[derive(Default)]
pub(super) struct Known {
    /// Since when those do nothing that did nothing before, by their numbers.
    pub(super) since: HashMap<u32, Timestamp>,
    /// Where nobody knows whether it is over.
    pub(super) unread: Vec<(Family, Place)>,
}

impl Told {
    /// Looks at those of which it is not known, or lately was not, who holds them or what they do.
    pub(super) fn look(&mut self, tick: &TickSnapshot<'_>) -> Known {
        let mut known = Known::default();
        let mut before = std::mem::take(&mut self.before);
        if before.is_empty() && self.last.is_empty() {
            return known;
        }
        let looked = all(tick).filter_map(|held| {
            let at_last = || {
                let is_open = held.status.state == State::Unobserved;
                self.last.get(&held.number).filter(|_| is_open).cloned()
            };
            let said = before.remove(&held.number).or_else(at_last)?;
            Some((held, said))
        });
        let looked: Vec<(Held<'_>, Said)> = looked.collect();
        let names = looked.iter().map(|it| it.0.name());
        let holders = runs::holders(tick.runs(), names, tick.now);
        for (held, mut said) in looked {
            if is_unknown(&held.status) {
                said.unknown_at = Some(tick.now);
            }
            match said.still(&held, job_of(&held, &holders), tick.now) {
                Still::Over => continue,
                Still::Silent => {}
                Still::Unknown => known.unread.push((said.family, said.place(&held))),
                Still::Rests => known
                    .since
                    .extend(said.since.map(|since| (held.number, since))),
            }
            self.before.insert(held.number, said);
        }
        known
    }

    /// Keeps what is said now; of some it is known since when they do nothing before they were seen.
    pub(super) fn keep(
        &mut self,
        waiting: &[(Family, Held<'_>)],
        holders: &Holders<'_>,
        since: &HashMap<u32, Timestamp>,
    ) {
        let mut last = std::mem::take(&mut self.last);
        for (family, held) in waiting {
            let job = job_of(held, holders);
            let known = last.remove(&held.number).map(|it| it.job);
            let known = known.filter(|it| **it == *job);
            let began = since.get(&held.number).copied();
            let said = Said {
                family: *family,
                job: known.unwrap_or_else(|| job.into()),
                since: began.or(held.status.since),
                unknown_at: None,
            };
            self.last.insert(held.number, said);
        }
    }
}

impl Said {
    /// Whether it still does nothing, by what is known of it now and the job that holds it.
    fn still(&self, held: &Held<'_>, job: &str, now: Timestamp) -> Still {
        let is_idle = self.family == Family::Idle;
        let is_same = *self.job == *job;
        match held.status.state {
            State::Unobserved if !is_unknown(&held.status) => Still::Silent,
            // What is stalled looks busy.
            State::Unobserved if is_idle && held.is_active => Still::Over,
            State::Unobserved => Still::Unknown,
            // A pause is what the first minutes of idleness look like, and work those of a stall.
            State::Parked | State::HeldEmpty | State::Gap if is_idle && is_same => Still::Rests,
            state if !is_idle && is_same && is_at_work(state) && self.may_stall(now) => {
                Still::Unknown
            }
            _ => Still::Over,
        }
    }

    /// Whether a stall would not be seen yet.
    fn may_stall(&self, now: Timestamp) -> bool {
        let shows = STALL_LEARNS_S * NANOS_PER_SECOND;
        self.unknown_at.is_some_and(|at| now.since(at) < shows)
    }

    /// Where it was said.
    fn place(&self, held: &Held<'_>) -> Place {
        Place {
            run: (!self.job.is_empty()).then(|| self.job.to_string()),
            ..Place::gpu(held.cluster, held.node, held.card)
        }
    }
}

//! The ranks of a training job that one node of the simulated fleet runs: their readings, the blocks
//! of their steps and what happens to them.
//!
//! What a job does at a moment follows from the seed ([`Schedule`]). Only running totals are state,
//! and what a fault that somebody put in did to the job: steps that it did not do, attempts that it
//! cost. Every node keeps its own copy and comes to the same, because all see the same faults.

use std::sync::Arc;

use gpufleet_agent::read::NodeFacts;
use gpufleet_telemetry::event::Event;
use gpufleet_telemetry::identity::Resource;
use gpufleet_telemetry::otlp::{encode_events, encode_steps};
use gpufleet_telemetry::steps::{Packer, StepBlock, StepRecord};
use gpufleet_telemetry::tick::ResourceTick;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::training::{Phase, RunId};
use prost::Message as _;

use super::noise::Noise;
use super::schedule::{Attempt, Doing, Schedule};
use super::trouble::Trouble;

mod cast;

mod pace;

mod story;

mod values;

pub use cast::Cast;

use cast::Seat;
use values::Totals;

/// What the ranks of a node told in one tick beside their readings.
#[derive(Debug, Clone, Default)]
pub struct Told {
    /// What happened.
    pub events: Vec<Event>,
    /// The steps of each rank, by its id.
    pub steps: Vec<(Arc<str>, Vec<StepRecord>)>,
}

/// The ranks of one job on one node.
#[derive(Debug, Clone)]
pub struct Training {
    cast: Cast,
    schedule: Schedule,
    noise: Noise,
    run: Option<Run>,
    /// Attempts that faults cost.
    restarts: u32,
    /// Steps done when a fault ended the attempt; none while nothing is broken.
    broke_at: Option<u64>,
}

/// The attempt that runs, as far as this node has part in it.
#[derive(Debug, Clone)]
struct Run {
    attempt: Attempt,
    id: RunId,
    /// Steps that the schedule has and a fault took.
    lag: u64,
    /// When its totals began.
    since: Timestamp,
    phase: (Option<Phase>, Timestamp),
    ranks: Vec<(Seat, Arc<Resource>, Totals)>,
}

/// A tick's part in which the attempt lives.
#[derive(Debug, Clone, Copy)]
struct Span {
    from: Timestamp,
    until: Timestamp,
}

impl Told {
    /// Puts what was told later behind this.
    pub fn extend(&mut self, later: Self) {
        self.events.extend(later.events);
        for (rank, records) in later.steps {
            match self.steps.iter_mut().find(|(it, _)| *it == rank) {
                Some((_, before)) => before.extend(records),
                None => self.steps.push((rank, records)),
            }
        }
    }

    /// The requests in which the agent ships it: events, and steps.
    pub fn requests(&self, sender: &Resource) -> Vec<Vec<u8>> {
        let blocks = self.blocks();
        let steps = blocks.iter().map(|(id, blocks)| (&**id, blocks.as_slice()));
        let events = encode_events(&self.events, sender);
        let requests = [
            (!self.events.is_empty()).then(|| events.encode_to_vec()),
            (!blocks.is_empty()).then(|| encode_steps(steps, sender).encode_to_vec()),
        ];
        requests.into_iter().flatten().collect()
    }

    /// The steps as the agent packs them.
    pub fn blocks(&self) -> Vec<(Arc<str>, Vec<StepBlock>)> {
        let packed = self.steps.iter().map(|(rank, records)| {
            let mut packer = Packer::default();
            for record in records {
                packer.push(*record);
            }
            (Arc::clone(rank), packer.take(true))
        });
        packed.filter(|(_, blocks)| !blocks.is_empty()).collect()
    }
}

impl Training {
    /// The ranks of the job on a node; none where the node trains nothing.
    pub fn new(cast: Cast, fleet: Noise, seed: u64) -> Self {
        Self {
            schedule: Schedule::new(cast.size(), fleet),
            noise: Noise::new(seed, 3, cast.number()),
            cast,
            run: None,
            restarts: 0,
            broke_at: None,
        }
    }

    /// Who plays in it.
    pub fn cast(&self) -> &Cast {
        &self.cast
    }

    /// Whether its ranks move data between nodes at this moment.
    pub fn talks(&self, at: Timestamp) -> bool {
        let is_at_work = matches!(self.schedule.doing(at), Doing::Training { .. });
        self.cast.nodes().len() > 1 && self.run.is_some() && is_at_work
    }

    /// Whether a fault ended the job, so that its GPUs are held by nobody.
    pub fn is_broken(&self) -> bool {
        self.broke_at.is_some()
    }

    /// What the agent reads and hears of the ranks in the tick from `start` to `end`.
    pub fn tick(
        &mut self,
        facts: &NodeFacts,
        (start, end): (Timestamp, Timestamp),
        trouble: Trouble,
    ) -> (Vec<ResourceTick>, Told) {
        let mut told = Told::default();
        let ended = self.schedule.ended(end.shifted(-1).minute());
        if let Trouble::Broken(fault) = trouble {
            if let Some(run) = self.run.take() {
                let done = self.schedule.done(&run.attempt, start);
                self.broke_at = Some(done.saturating_sub(run.lag));
                let last = run.attempt.after_step + done.saturating_sub(run.lag);
                told.events = story::broken(&self.cast, &run, fault, start, last);
            }
            return (Vec::new(), told);
        }
        if self.broke_at.is_none() {
            let number = ended.number + self.restarts;
            let run = self.run_id(&ended, number);
            let last = ended.after_step + self.schedule.done(&ended, ended.ends);
            let all = story::ending(&self.cast, &ended, &run, last);
            let now = all.into_iter().filter(|it| (start..end).contains(&it.at));
            told.events.extend(now);
        }
        let runs = self.schedule.attempt(start.minute());
        let attempt = runs.or_else(|| self.schedule.attempt(end.shifted(-1).minute()));
        let Some(attempt) = attempt else {
            self.run = None;
            return (Vec::new(), told);
        };
        self.begin(facts, attempt, start, &mut told);
        let span = Span {
            from: start.max(attempt.began),
            until: end.min(attempt.ends),
        };
        let ticks = self.live(span, trouble, &mut told);
        let tick = |(resource, points)| ResourceTick {
            resource,
            start,
            end,
            points,
        };
        (ticks.into_iter().map(tick).collect(), told)
    }

    /// Begins the attempt where it does not run yet: because its time has come, because this process
    /// has just started, or because what was broken works again.
    fn begin(&mut self, facts: &NodeFacts, attempt: Attempt, start: Timestamp, told: &mut Told) {
        let is_same = |run: &Run| run.attempt.turn == attempt.turn;
        if self.run.as_ref().is_some_and(is_same) {
            return;
        }
        let mut began = attempt.began;
        let mut lag = 0;
        if let Some(done) = self.broke_at.take() {
            self.restarts += 1;
            began = start;
            let kept = done - done % self.schedule.cycle_steps();
            lag = self.schedule.done(&attempt, start).saturating_sub(kept);
        }
        let id = self.run_id(&attempt, attempt.number + self.restarts);
        let seats = self.cast.seats();
        let ranks: Vec<_> = seats
            .map(|seat| {
                let resource = self.cast.resource(facts, &id, seat);
                (seat, Arc::new(resource), Totals::default())
            })
            .collect();
        let started = |(_, resource, _): &(Seat, Arc<Resource>, Totals)| {
            story::started(&self.cast, resource, began, id.attempt)
        };
        told.events.extend(ranks.iter().map(started));
        self.run = Some(Run {
            attempt,
            id,
            lag,
            since: start.max(began),
            phase: (None, began),
            ranks,
        });
    }

    fn run_id(&self, attempt: &Attempt, number: u32) -> RunId {
        RunId {
            job: self.cast.job(attempt.job),
            attempt: number,
        }
    }

    /// What the ranks do in the span: totals and steps; then their readings.
    fn live(
        &mut self,
        span: Span,
        trouble: Trouble,
        told: &mut Told,
    ) -> Vec<(Arc<Resource>, Vec<gpufleet_telemetry::tick::Point>)> {
        let Some(mut run) = self.run.take() else {
            return Vec::new();
        };
        let before = self.schedule.done(&run.attempt, span.from);
        let steps = self.steps(&run.attempt, span, trouble);
        let planned = self.schedule.done(&run.attempt, span.until) - before;
        let first = run.attempt.after_step + before.saturating_sub(run.lag) + 1;
        run.lag += planned.saturating_sub(steps.len() as u64);
        let stands = self.stands_still(&mut run, span, trouble, told);
        let mut readings = Vec::with_capacity(run.ranks.len());
        let mut ranks = std::mem::take(&mut run.ranks);
        for (seat, resource, totals) in &mut ranks {
            let mut records = Vec::with_capacity(steps.len());
            for (number, step) in (first..).zip(&steps) {
                let times = self.times(*seat, number, step, trouble);
                let record = StepRecord {
                    step: number,
                    ended_at: step.ended,
                    times,
                    tokens: self.cast.tokens(),
                    samples: self.cast.samples(),
                };
                totals.step(&record);
                records.push(record);
            }
            totals.stand(&stands);
            let now = values::Now {
                at: span.until,
                since: run.since,
                phase: run.phase,
                trouble,
                planned_steps: self.schedule.planned_steps(),
            };
            readings.push((
                Arc::clone(resource),
                values::points((&self.cast, *seat), totals, &now, self.noise),
            ));
            told.steps.push((Arc::clone(&resource.id), records));
        }
        run.ranks = ranks;
        self.run = Some(run);
        readings
    }

    /// The seconds of the span in which nobody steps, by phase, and which phase it ends in; tells of
    /// checkpoints that were saved or gone back to in it.
    fn stands_still(
        &self,
        run: &mut Run,
        span: Span,
        trouble: Trouble,
        told: &mut Told,
    ) -> values::Stands {
        let mut stands = values::Stands::default();
        let mut phase = run.phase;
        let seconds = span.until.since(span.from) / NANOS_PER_SECOND;
        for second in 0..seconds {
            let at = span.from.shifted(second * NANOS_PER_SECOND);
            let doing = self.schedule.doing(at);
            let next = self.schedule.doing(at.shifted(NANOS_PER_SECOND));
            let has_ended = next != doing;
            let end = at.shifted(NANOS_PER_SECOND);
            let done = self.schedule.done(&run.attempt, end);
            let step = run.attempt.after_step + done.saturating_sub(run.lag);
            let now = phase_of(doing, trouble, step);
            if now != phase.0 {
                phase = (now, at);
            }
            stands.second(now);
            let is_saved = doing == Doing::Saving && has_ended && trouble != Trouble::Stuck;
            let is_restored = doing == Doing::Restoring && has_ended && step > 0;
            if is_saved {
                stands.saved = Some((step, end));
            }
            stands.restored |= is_restored;
            let first = run.ranks.first().filter(|(seat, ..)| seat.rank == 0);
            if let (Some((_, resource, _)), true) = (first, is_saved || is_restored) {
                told.events
                    .push(story::checkpoint(resource, end, step, is_saved));
            }
        }
        run.phase = phase;
        stands
    }
}

/// The phase that the ranks are in; `step` is how far they are.
fn phase_of(doing: Doing, trouble: Trouble, step: u64) -> Option<Phase> {
    match (doing, trouble) {
        (_, Trouble::Stuck) => Some(Phase::Communication),
        (Doing::Starting, _) => Some(Phase::Startup),
        (Doing::Restoring, _) if step == 0 => Some(Phase::Startup),
        (Doing::Restoring, _) => Some(Phase::CheckpointRestore),
        (Doing::Saving, _) => Some(Phase::CheckpointSave),
        (Doing::Training { .. }, _) => Some(Phase::Backward),
        (Doing::Evaluating, _) => Some(Phase::Evaluation),
        (Doing::Down, _) => None,
    }
}

#[cfg(test)]
mod tests;

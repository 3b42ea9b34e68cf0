//! Steps: the totals, and the records of the ring since the last snapshot.

use std::hint::spin_loop;
use std::sync::atomic::{Ordering, fence};

use crate::cell::{get, get_double, get_signed};
use crate::layout::{Region, StepRecord, Word};
use crate::records::Step;

use super::ReadError;
use super::check::{Check, Reason};
use super::ring::{self, MOST_RECORDS, Record};

/// How often the totals are copied until no step is being written: writing one takes 0.1 µs.
const TRIES: usize = 64;

/// Totals over every step since the region was made.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Totals {
    /// Steps.
    pub steps: u64,
    /// Wall time.
    pub wall_ns: u64,
    /// Time in which the GPU was given work.
    pub busy_ns: u64,
    /// Time spent waiting for data.
    pub data_wait_ns: u64,
    /// Time spent waiting for other ranks.
    pub comm_wait_ns: u64,
    /// Time spent saving or restoring a checkpoint.
    pub checkpoint_ns: u64,
    /// Time spent in evaluation.
    pub evaluation_ns: u64,
    /// Tokens.
    pub tokens: u64,
    /// Samples.
    pub samples: u64,
    /// Model FLOPs.
    pub model_flops: f64,
    /// Number of the newest step.
    pub last_step: u64,
    /// When it ended, Unix nanoseconds; 0 before the first.
    pub last_ended_at: i64,
    /// Whether they all belong together. Not so when a step was being written all the while, or its
    /// writer died in the middle of it: then some may count one step more than others.
    pub is_whole: bool,
}

/// The totals.
pub(super) fn totals(region: &Region, check: &mut Check) -> Totals {
    let section = &region.totals;
    let mut totals = Totals::default();
    for _ in 0..TRIES {
        let done = section.done.load(Ordering::Acquire);
        totals = Totals {
            steps: done,
            wall_ns: get(&section.wall_ns),
            busy_ns: get(&section.busy_ns),
            data_wait_ns: get(&section.data_wait_ns),
            comm_wait_ns: get(&section.comm_wait_ns),
            checkpoint_ns: get(&section.checkpoint_ns),
            evaluation_ns: get(&section.evaluation_ns),
            tokens: get(&section.tokens),
            samples: get(&section.samples),
            model_flops: get_double(&section.model_flops),
            last_step: get(&section.last_step),
            last_ended_at: get_signed(&section.last_ended_at),
            is_whole: false,
        };
        // A step of which any word was copied was begun before this is looked at.
        fence(Ordering::Acquire);
        if get(&section.started) == done {
            totals.is_whole = true;
            break;
        }
        spin_loop();
    }
    if totals.last_ended_at != 0 {
        totals.last_ended_at = check
            .time("totals", totals.last_ended_at)
            .unwrap_or_default();
    }
    totals.model_flops = check
        .flops_in_all("totals", totals.model_flops)
        .unwrap_or_default();
    totals
}

/// Steps, each with the number of its record.
type Steps = Vec<(u64, Step)>;

/// The steps after record `read`, how many of them are gone, and the last record looked at.
pub(super) fn since(
    region: &Region,
    read: u64,
    check: &mut Check,
) -> Result<(Steps, u64, u64), ReadError> {
    let found = ring::since(&region.steps, &region.totals.started, read)?;
    let records = found.records.into_iter();
    let steps = records.filter_map(|(number, step)| Some((number, good(step, check)?)));
    Ok((steps.collect(), found.missed, found.upto))
}

impl Record for StepRecord {
    type Copied = Step;

    fn state(&self) -> &Word {
        &self.state
    }

    fn copied(&self) -> Step {
        Step {
            step: get(&self.step),
            ended_at: get_signed(&self.ended_at),
            wall_ns: get(&self.wall_ns),
            busy_ns: get(&self.busy_ns),
            data_wait_ns: get(&self.data_wait_ns),
            comm_wait_ns: get(&self.comm_wait_ns),
            checkpoint_ns: get(&self.checkpoint_ns),
            evaluation_ns: get(&self.evaluation_ns),
            tokens: get(&self.tokens),
            samples: get(&self.samples),
            model_flops: get_double(&self.model_flops),
        }
    }
}

/// The step, unless it cannot be.
fn good(step: Step, check: &mut Check) -> Option<Step> {
    check.time("steps", step.ended_at)?;
    check.duration("steps", step.wall_ns)?;
    check.flops("steps", step.model_flops)?;
    check.only_if(step.step <= MOST_RECORDS, "steps", Reason::Number, ())?;
    let longest = [
        step.busy_ns,
        step.data_wait_ns,
        step.comm_wait_ns,
        step.checkpoint_ns,
        step.evaluation_ns,
    ];
    let is_good = longest.into_iter().all(|part| part <= step.wall_ns);
    check.only_if(is_good, "steps", Reason::Parts, step)
}

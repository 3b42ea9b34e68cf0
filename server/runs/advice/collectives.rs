//! How long a step is in collectives, by the times that NCCL's profiler plugin measures on the GPU.
//!
//! Of each communicator and function the rank whose calls take least on average came last: what they take it is to send. So
//! much is reckoned for a call on every rank; what others take above it they wait for that rank. Means over the life of
//! the processes, as their steps are: what ranks wait for one another by turns is in them, and so are the collectives
//! of evaluations.
//!
//! Limits: functions that end together on all ranks (no broadcasts, no sends between stages, no all-to-all), of
//! communicators of which two ranks are known; after [`LEAST_STEPS`] steps. How much of it computing hides no rank tells.

use std::collections::BTreeMap;

use gpufleet_analysis::robust::median;
use gpufleet_analysis::straggler::collectives::Function;
use gpufleet_telemetry::catalog::training;
use gpufleet_telemetry::training::collective_of;

use super::RANKS;
use crate::fleet::{Fleet, Live, LiveValue};
use crate::runs::{Run, RunKey};

/// Steps from which those in which ranks compile and fill their caches, and wait for one another, are few.
const LEAST_STEPS: f64 = 100.0;

/// Collectives of one function on one communicator.
type Name = (u64, Function);

/// How many of them a rank has made, and what one took on average, seconds.
struct Took {
    name: Name,
    calls: f64,
    mean_s: f64,
}

/// Seconds of a step that the median rank is in collectives; none where no times are measured.
pub(super) fn of_a_step(key: &RunKey, run: &Run, fleet: &Fleet) -> Option<f64> {
    let of_rank = |(number, rank): (&u32, &crate::runs::Rank)| {
        let steps = rank.facts.reading(training::STEPS.id)?;
        let took = fleet.look(&key.rank(*number), Took::all)?;
        (steps >= LEAST_STEPS).then_some((steps, took))
    };
    let ranks: Vec<(f64, Vec<Took>)> = run.living().take(RANKS).filter_map(of_rank).collect();
    per_step(&ranks)
}

/// The same of ranks with their steps.
fn per_step(ranks: &[(f64, Vec<Took>)]) -> Option<f64> {
    let mut least: BTreeMap<Name, (f64, usize)> = BTreeMap::new();
    for took in ranks.iter().flat_map(|it| &it.1) {
        let (mean_s, known) = least.entry(took.name).or_insert((f64::INFINITY, 0));
        *mean_s = mean_s.min(took.mean_s);
        *known += 1;
    }
    least.retain(|_, (_, known)| *known > 1);
    let of_rank = |(steps, took): &(f64, Vec<Took>)| {
        let sent = |it: &Took| Some(least.get(&it.name)?.0 * it.calls);
        let sent = took.iter().filter_map(sent).reduce(|sum, it| sum + it);
        Some(sent? / steps)
    };
    median(&mut ranks.iter().filter_map(of_rank).collect::<Vec<f64>>())
}

impl Took {
    fn all(live: &Live) -> Vec<Self> {
        let timed = live.parts(training::COLLECTIVE_DURATION.id);
        timed.filter_map(|it| Self::of(live, it)).collect()
    }

    /// None where no time is measured.
    fn of(live: &Live, timed: &LiveValue) -> Option<Self> {
        let part = timed.part.as_deref()?;
        let (communicator, function) = collective_of(&part.id)?;
        let function = Function::of(function);
        let seconds = timed.reading.ok().filter(|it| *it > 0.0)?;
        let measured = live.timed_collectives(Some(part)).filter(|it| *it >= 1.0)?;
        let mut counted = live.parts(training::COLLECTIVE_CALLS.id);
        let counted = counted.find(|it| it.part.as_deref() == Some(part));
        let calls = counted.and_then(|it| it.reading.ok()).unwrap_or(measured);
        function.synchronises().then_some(Self {
            name: (communicator, function),
            calls: calls.max(measured),
            mean_s: seconds / measured,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_last_to_come_takes_is_sent_and_the_rest_is_waited() {
        let took = |communicator, mean_s| Took {
            name: (communicator, Function::AllReduce),
            calls: 400.0,
            mean_s,
        };
        let rank = |all: Vec<Took>| (200.0, all);
        // Twice a step: the first rank waits a tenth of a second for the second.
        let pair = [
            rank(vec![took(1, 0.15), took(2, 0.3)]),
            rank(vec![took(1, 0.05)]),
        ];
        let found = per_step(&pair).expect("two ranks are known");
        assert!((found - 0.1).abs() < 1e-9, "{found}");
        // Of whom alone nobody knows what it waits.
        assert_eq!(per_step(&pair[..1]), None);
        assert_eq!(per_step(&[]), None);
    }
}

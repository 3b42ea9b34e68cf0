//! Runs that were preempted in a range of days, with what that lost: what a saving by Spot is held against.
//!
//! Lost are the steps since the last checkpoint at the run's mean pace, on all of its GPUs; the way back is what
//! the next attempt of the same job took until its first step. Either is none where nobody told it.
//!
//! Limits: [`MAX_RUNS`] runs, the last started first; how many ranks a run has it says itself, the
//! first [`FIRST_RANKS`] are read.

use std::collections::HashMap;
use std::ops::Range;

use gpufleet_analysis::chargeback::spot::Preempted;
use gpufleet_analysis::ending::Cause;
use gpufleet_telemetry::catalog::training;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;

use crate::runs::{KnownRun, Run, RunKey};
use crate::store::{RunFilter, Store, StoreError};

/// Most runs that are looked at: twenty preemptions an hour for a month.
pub(super) const MAX_RUNS: usize = 15_000;

/// Ranks that are read of a run: the one that stands for it is the lowest that did steps.
const FIRST_RANKS: u32 = 16;

/// Runs whose ranks are read at a time.
const AT_A_TIME: usize = 64;

/// Runs that ended so in that time, of one cluster or of all live ones; and whether these are all.
///
/// # Errors
/// When the store does not answer.
pub(super) async fn read(
    store: &Store,
    time: &Range<Timestamp>,
    cluster: Option<&str>,
) -> Result<(Vec<Preempted>, bool), StoreError> {
    let filter = RunFilter {
        cluster: cluster.map(Into::into),
        cause: Some(Cause::Preempted),
        heard_since: Some(time.start),
        ..RunFilter::default()
    };
    let is_in = |it: &KnownRun| {
        let is_asked = cluster.is_some() || it.facts.origin == Origin::Live;
        is_asked && it.facts.ended.is_some_and(|at| time.contains(&at))
    };
    let after = Some((time.end.millis(), i64::MIN));
    let (keys, are_all) = store.run_keys(&filter, after, MAX_RUNS, is_in).await?;
    let mut found = Vec::with_capacity(keys.len());
    for keys in keys.chunks(AT_A_TIME) {
        let next: Vec<RunKey> = keys.iter().filter_map(next_attempt).collect();
        let runs = store.with_first_ranks(keys, FIRST_RANKS).await?;
        let next = store
            .with_first_ranks(&next, FIRST_RANKS)
            .await?
            .into_iter();
        let next: HashMap<RunKey, Run> =
            next.map(|it| (it.key.clone(), Run::of_store(it))).collect();
        let of = |it: KnownRun| {
            let next = next_attempt(&it.key).and_then(|key| next.get(&key));
            preempted(it.key.cluster.to_string(), &Run::of_store(it), next)
        };
        found.extend(runs.into_iter().map(of));
    }
    Ok((found, are_all))
}

fn next_attempt(key: &RunKey) -> Option<RunKey> {
    let mut next = key.clone();
    next.run.attempt = key.run.attempt.checked_add(1)?;
    Some(next)
}

fn preempted(cluster: String, run: &Run, next: Option<&Run>) -> Preempted {
    let ending = run.facts.ending.as_ref();
    let lost = ending.and_then(|it| it.steps_lost);
    let lost = lost.zip(run.step_seconds());
    let startup = |next: &Run| {
        let told = next
            .speaker()?
            .1
            .facts
            .reading(training::PHASE_STARTUP.id)?;
        Some(gpu_millis(told, next))
    };
    let told = ending.map_or(&[][..], |it| &it.taken_back);
    let nodes = match told.is_empty() {
        true => node(run, ending.and_then(|it| it.first_rank))
            .into_iter()
            .collect(),
        false => told.to_vec(),
    };
    Preempted {
        cluster,
        nodes,
        ended_ms: run.facts.ended.map_or(0, |it| it.millis()),
        lost_gpu_millis: lost.map(|(steps, each)| gpu_millis(steps as f64 * each, run)),
        recovery_gpu_millis: next.and_then(startup),
    }
}

/// The node of this rank, else of the lowest that names one; of runs of before their ending had it.
fn node(run: &Run, rank: Option<u32>) -> Option<String> {
    let first = rank.and_then(|it| run.ranks.get(&it));
    let named = first.into_iter().chain(run.members().map(|it| it.1));
    let mut named = named.map(|it| &it.facts.node).filter(|it| !it.is_empty());
    named.next().map(|it| (**it).to_owned())
}

/// Seconds of a run on all of its GPUs. Only its first ranks were read, so it is as large as it says.
fn gpu_millis(seconds: f64, run: &Run) -> i64 {
    let gpus = run.gpu_count().max(run.facts.world as usize);
    (seconds * 1_000.0 * gpus as f64).round() as i64
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::catalog::Metric;

    use super::*;
    use crate::runs::facts::EndingFacts;
    use crate::runs::{Rank, RankFacts};

    /// Sixteen ranks of which two were read, on two nodes, at two seconds a step.
    fn run(steps_lost: Option<u64>, more: &[(Metric, f64)]) -> Run {
        let mut run = Run::default();
        run.facts.world = 16;
        run.facts.ended = Some(Timestamp::from_seconds(7));
        run.facts.ending = Some(EndingFacts {
            cause: Cause::Preempted.name().to_owned(),
            first_rank: Some(1),
            steps_lost,
            ..EndingFacts::default()
        });
        for number in 0..2 {
            let told = [(training::STEPS, 10.0), (training::STEP_WALL, 20.0)];
            let told = told.iter().chain(more).map(|(metric, it)| (metric.id, *it));
            let mut readings: Vec<_> = told.collect();
            readings.sort_by_key(|it| it.0);
            let facts = RankFacts {
                node: format!("node-{number}").into(),
                gpu: format!("GPU-{number}").into(),
                readings,
                ..RankFacts::default()
            };
            let mut rank = Rank::default();
            rank.facts = facts;
            run.ranks.insert(number, rank);
        }
        run
    }

    #[test]
    fn a_preempted_run_lost_its_steps_since_the_checkpoint_and_the_next_ones_way_to_its_first() {
        let next = run(None, &[(training::PHASE_STARTUP, 90.0)]);
        let found = preempted("c".to_owned(), &run(Some(30), &[]), Some(&next));
        assert_eq!(found.nodes, ["node-1"], "of the rank that went first");
        assert_eq!(found.ended_ms, 7_000);
        let mut told = run(Some(30), &[]);
        let taken_back = || vec!["node-0".to_owned(), "node-7".to_owned()];
        told.facts.ending.as_mut().expect("it ended").taken_back = taken_back();
        let found = preempted("c".to_owned(), &told, None);
        assert_eq!(found.nodes, taken_back());
        let found = preempted("c".to_owned(), &run(Some(30), &[]), Some(&next));
        assert_eq!(found.lost_gpu_millis, Some(30 * 2_000 * 16));
        assert_eq!(found.recovery_gpu_millis, Some(90_000 * 16));
    }

    #[test]
    fn what_nobody_told_of_a_preemption_is_not_known_and_not_nothing() {
        let found = preempted("c".to_owned(), &run(None, &[]), None);
        assert_eq!(
            (found.lost_gpu_millis, found.recovery_gpu_millis),
            (None, None)
        );
        let untold = run(None, &[]);
        let found = preempted("c".to_owned(), &run(Some(0), &[]), Some(&untold));
        assert_eq!(
            (found.lost_gpu_millis, found.recovery_gpu_millis),
            (Some(0), None)
        );
    }
}

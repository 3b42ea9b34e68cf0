//! Where the time of a job went, over its attempts: the input of `analysis::goodput` from the store.
//!
//! The steps are those of the rank that stands for each attempt. Limits: [`MAX_ATTEMPTS`] attempts,
//! [`MAX_STEPS`] steps, and steps that are still kept: what is beyond is a reason, not a smaller sum.

use gpufleet_analysis::goodput::{self, Attempt, Goodput, Step};
use gpufleet_telemetry::catalog::{Metric, training};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::{Rank, Run, RunKey, State, history};
use crate::store::{RunFilter, Store, StoreError};

/// Most attempts that are added up.
pub const MAX_ATTEMPTS: usize = 16;

/// Most steps: a week of one a second. About 24 bytes each.
pub const MAX_STEPS: usize = 600_000;

/// The partition of the time of a job up to this attempt, or why there is none.
///
/// # Errors
/// When the database refuses.
pub async fn of(
    store: &Store,
    (key, run): (&RunKey, &Run),
    kept_from: Timestamp,
    now: Timestamp,
) -> Result<Result<Goodput, &'static str>, StoreError> {
    let filter = RunFilter {
        cluster: Some(key.cluster.clone()),
        job: Some(key.run.job.clone()),
        ..RunFilter::default()
    };
    let (found, next) = store.runs(&filter, None, MAX_ATTEMPTS).await?;
    if next.is_some() {
        return Ok(Err(
            "not added up: the job has more attempts than are looked at",
        ));
    }
    let mut keys: Vec<RunKey> = found.into_iter().map(|it| it.key).collect();
    keys.retain(|it| it.run.attempt < key.run.attempt);
    let before = store.with_ranks(&keys).await?;
    let mut before: Vec<_> = before
        .into_iter()
        .map(|it| (it.key.clone(), Run::of_store(it)))
        .collect();
    before.sort_by_key(|(key, _)| key.run.attempt);
    let mut attempts = Vec::new();
    let all = before
        .iter()
        .map(|(key, run)| (key, run))
        .chain([(key, run)]);
    for (key, run) in all {
        let Some(started_at) = run.facts.started else {
            return Ok(Err("not known: nobody said when an attempt began"));
        };
        if started_at < kept_from {
            return Ok(Err("not added up: the first steps are no longer kept"));
        }
        let ended_at = match run.state(now) {
            State::Running => now,
            State::Silent { since } => since,
            State::Ended { at } => at,
        };
        attempts.push(attempt(store, (key, run), (started_at, ended_at)).await?);
        if attempts
            .iter()
            .map(|it: &Attempt| it.steps.len())
            .sum::<usize>()
            > MAX_STEPS
        {
            return Ok(Err("not added up: there are more steps than are looked at"));
        }
    }
    if attempts.iter().all(|it| it.steps.is_empty()) {
        return Ok(Err("not known: no step was told"));
    }
    Ok(Ok(goodput::goodput(&attempts)))
}

async fn attempt(
    store: &Store,
    (key, run): (&RunKey, &Run),
    (started_at, ended_at): (Timestamp, Timestamp),
) -> Result<Attempt, StoreError> {
    let mut attempt = Attempt {
        started_at,
        ended_at,
        was_disrupted: run
            .facts
            .ending
            .as_ref()
            .is_some_and(|it| it.is_interruption()),
        ..Attempt::default()
    };
    let Some((speaker, rank)) = run.speaker() else {
        return Ok(attempt);
    };
    let range = started_at..ended_at.shifted(1);
    let steps = history::steps(store, (key, run), Some(&[speaker]), &range).await?;
    let blocks = steps.get(&speaker).map_or(&[][..], Vec::as_slice);
    attempt.first_step_at = blocks.first().map(|it| it.started_at);
    attempt.last_step_at = blocks.last().map(|it| it.ended_at);
    for block in blocks {
        let per_entry = block.steps_per_entry();
        let numbered = block.times.iter().zip(0_u64..);
        attempt.steps.extend(numbered.map(|(times, place)| Step {
            step: block.first_step + place * per_entry,
            wall_ns: times.wall_ns,
            data_wait_ns: times.data_wait_ns,
        }));
    }
    attempt.checkpoint_save_ns = spent(rank, training::PHASE_CHECKPOINT_SAVE);
    attempt.checkpoint_restore_ns = spent(rank, training::PHASE_CHECKPOINT_RESTORE);
    attempt.custom_ns =
        spent(rank, training::PHASE_EVALUATION) + spent(rank, training::PHASE_OTHER);
    Ok(attempt)
}

/// What a phase took of a rank, nanoseconds.
fn spent(rank: &Rank, phase: Metric) -> u64 {
    let seconds = rank.facts.reading(phase.id).unwrap_or(0.0);
    (seconds * NANOS_PER_SECOND as f64) as u64
}

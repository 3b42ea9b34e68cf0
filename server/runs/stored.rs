//! What the store knows of runs when a server starts.
//!
//! Limits: [`MAX_RUNS`](super::MAX_RUNS) runs that were heard within a day; of those that have not
//! ended the steps of [`STEPS_BACK`], at most [`MAX_STEP_BYTES`](super::MAX_STEP_BYTES).

use gpufleet_telemetry::steps;
use gpufleet_telemetry::time::{Minute, Timestamp};

use super::{KnownRun, MAX_RUNS, MAX_STEP_BYTES, RUN_KEPT, StepDelta};
use crate::store::{RunFilter, Store, StoreError};

/// How far back steps are read, in buckets of ten minutes: the one that runs and the one before it.
const STEPS_BACK: i64 = 2;

/// Runs whose ranks are read at a time.
const AT_A_TIME: usize = 64;

/// Runs that were heard of lately, with their ranks.
///
/// # Errors
/// When the database refuses.
pub async fn stored(store: &Store, now: Timestamp) -> Result<Vec<KnownRun>, StoreError> {
    let filter = RunFilter {
        heard_since: Some(now.shifted(-RUN_KEPT)),
        ..RunFilter::default()
    };
    let (mut keys, _) = store.run_keys(&filter, None, MAX_RUNS, |_| true).await?;
    keys.truncate(MAX_RUNS);
    let mut found = Vec::with_capacity(keys.len());
    for keys in keys.chunks(AT_A_TIME) {
        found.extend(store.with_ranks(keys).await?);
    }
    Ok(found)
}

/// The last steps of those that have not ended. What detectors know is made of them again.
///
/// # Errors
/// When the database refuses.
pub async fn stored_steps(
    store: &Store,
    runs: &[KnownRun],
    now: Timestamp,
) -> Result<Vec<StepDelta>, StoreError> {
    let Minute(minute) = now.minute();
    let last = minute.div_euclid(10);
    let buckets = last + 1 - STEPS_BACK..last + 1;
    let (mut found, mut bytes) = (Vec::new(), 0);
    for run in runs.iter().filter(|it| it.facts.ended.is_none()) {
        if bytes > MAX_STEP_BYTES {
            break;
        }
        let steps = store.steps(&run.key, None, buckets.clone()).await?;
        bytes += steps
            .iter()
            .map(|it| steps::encode(&it.blocks).len())
            .sum::<usize>();
        found.extend(steps);
    }
    Ok(found)
}

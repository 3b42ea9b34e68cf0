//! The steps of a run in a stretch of time: from the store, and what is not committed yet from memory.

use std::collections::BTreeMap;
use std::ops::Range;

use gpufleet_telemetry::steps::StepBlock;
use gpufleet_telemetry::time::Timestamp;

use super::{Run, RunKey};
use crate::store::{Store, StoreError};

/// Most ranks whose steps are read from the store at once; of a larger run what is in memory is shown.
pub const MAX_RANKS_READ: usize = 256;

/// Steps by rank, of each in the order of time.
pub type Steps = BTreeMap<u32, Vec<StepBlock>>;

/// The blocks that have a part in the range, of these ranks or of all.
///
/// # Errors
/// When the database refuses.
pub async fn steps(
    store: &Store,
    (key, run): (&RunKey, &Run),
    ranks: Option<&[u32]>,
    range: &Range<Timestamp>,
) -> Result<Steps, StoreError> {
    let wanted = |rank: &u32| ranks.is_none_or(|it| it.contains(rank));
    let many = ranks.map_or(run.ranks.len(), <[u32]>::len) > MAX_RANKS_READ;
    let mut found = Steps::new();
    if !many {
        // A row begins with the blocks that began in its ten minutes, and the last may reach over.
        let first = range.start.minute().0.div_euclid(10) - 1;
        let last = range.end.minute().0.div_euclid(10) + 1;
        for delta in store.steps(key, ranks, first..last).await? {
            found.entry(delta.rank).or_default().extend(delta.blocks);
        }
    }
    for (number, rank) in run.ranks.iter().filter(|(number, _)| wanted(number)) {
        let blocks = found.entry(*number).or_default();
        let stored = blocks.last().map(|it| it.ended_at);
        let is_newer = |it: &StepBlock| stored.is_none_or(|stored| it.ended_at > stored);
        blocks.extend(rank.ring.blocks().filter(is_newer));
    }
    let inside = |it: &StepBlock| it.ended_at > range.start && it.started_at < range.end;
    for blocks in found.values_mut() {
        blocks.retain(inside);
    }
    found.retain(|_, blocks| !blocks.is_empty());
    Ok(found)
}

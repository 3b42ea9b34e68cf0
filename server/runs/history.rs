//! The steps of a run in a stretch of time: from the store, and what is not committed yet from memory.
//!
//! They are handed out block by block, so that who needs sums of them holds sums and not steps.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use gpufleet_telemetry::steps::StepBlock;
use gpufleet_telemetry::time::{Minute, NANOS_PER_SECOND, Timestamp};

use super::{Run, RunKey, StepDelta};
use crate::store::{Store, StoreError};

/// Most ranks whose steps are read from the store at once; of a larger run what is in memory is shown.
pub const MAX_RANKS_READ: usize = 256;

/// Steps by rank, of each in the order of time.
pub type Steps = BTreeMap<u32, Vec<StepBlock>>;

/// Why the steps of a stretch of time do not begin with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The run has more than [`MAX_RANKS_READ`] ranks: only what is in memory was looked at.
    ManyRanks {
        /// When the oldest of that began.
        from: Timestamp,
    },
    /// There are more than are read at once.
    ManySteps {
        /// From when on all are there.
        from: Timestamp,
    },
}

/// Whether a run has so many ranks that of all of them at once only what is in memory is looked at.
pub fn is_in_memory_alone(run: &Run) -> bool {
    run.ranks.len() > MAX_RANKS_READ
}

/// From when on steps of a run are in memory; none where none is.
pub fn in_memory_from(run: &Run) -> Option<Timestamp> {
    let rings = run.members().map(|(_, it)| &it.ring);
    rings.filter_map(|it| it.began_at()).min()
}

/// Hands out the blocks that have a part in the range, of these ranks or of all; of each rank those in
/// memory last, else in no order. Says from when on they are all there, if not from the beginning.
///
/// # Errors
/// When the database refuses.
pub async fn each(
    store: &Store,
    (key, run): (&RunKey, &Run),
    ranks: Option<&[u32]>,
    range: &Range<Timestamp>,
    mut take: impl FnMut(u32, StepBlock) -> ControlFlow<()> + Send,
) -> Result<Option<Cut>, StoreError> {
    let inside = |it: &StepBlock| it.ended_at > range.start && it.started_at < range.end;
    let wanted = |rank: &u32| ranks.is_none_or(|it| it.contains(rank));
    let many = ranks.map_or(is_in_memory_alone(run), |it| it.len() > MAX_RANKS_READ);
    let mut stored: BTreeMap<u32, Timestamp> = BTreeMap::new();
    let cut;
    let mut broke_off = ControlFlow::Continue(());
    if many {
        let from = in_memory_from(run).unwrap_or(range.end);
        cut = (from > range.start).then_some(Cut::ManyRanks { from });
    } else {
        // A row begins with the blocks that began in its ten minutes, and the last may reach over.
        let first = range.start.minute().0.div_euclid(10) - 1;
        let last = range.end.minute().0.div_euclid(10) + 1;
        let each = |delta: StepDelta| {
            let newest = delta.blocks.iter().map(|it| it.ended_at).max();
            let known = stored.entry(delta.rank).or_default();
            *known = newest.unwrap_or_default().max(*known);
            let mut blocks = delta.blocks.into_iter().filter(inside);
            broke_off = blocks.try_for_each(|it| take(delta.rank, it));
            broke_off
        };
        let asked = (ranks, run.ranks.len());
        let oldest = store.each_steps(key, asked, first..last, each).await?;
        cut = oldest.map(|bucket| Cut::ManySteps {
            from: Minute(bucket * 10).start(),
        });
    }
    for (number, rank) in run.ranks.iter().filter(|(number, _)| wanted(number)) {
        let stored = stored.get(number);
        let is_newer = |it: &StepBlock| stored.is_none_or(|stored| it.ended_at > *stored);
        let mut blocks = rank.ring.blocks().filter(is_newer).filter(inside);
        if broke_off.is_continue() {
            broke_off = blocks.try_for_each(|it| take(*number, it));
        }
    }
    Ok(cut)
}

/// The blocks themselves.
///
/// # Errors
/// When the database refuses.
pub async fn steps(
    store: &Store,
    run: (&RunKey, &Run),
    ranks: Option<&[u32]>,
    range: &Range<Timestamp>,
) -> Result<Steps, StoreError> {
    let mut found = Steps::new();
    let keep = |rank: u32, block| {
        found.entry(rank).or_default().push(block);
        ControlFlow::Continue(())
    };
    each(store, run, ranks, range, keep).await?;
    for blocks in found.values_mut() {
        blocks.sort_by_key(|it| it.started_at);
    }
    Ok(found)
}

impl Cut {
    /// The same for people.
    pub fn sentence(self) -> String {
        let (why, from) = match self {
            Self::ManyRanks { from } => (
                format!(
                    "Of a run of more than {MAX_RANKS_READ} ranks only the last minutes are shown"
                ),
                from,
            ),
            Self::ManySteps { from } => (
                "There are more steps than are read at once: only the newest are shown".to_owned(),
                from,
            ),
        };
        let from = Timestamp(from.0 - from.0.rem_euclid(NANOS_PER_SECOND));
        format!("{why}, from {} UTC on.", crate::words::text::moment(from))
    }
}

//! From the records of a training process to blocks: what the agent does before it ships them.
//!
//! Up to [`MAX_ENTRIES_PER_SECOND`] each step is an entry of its own. Above, entries are sums of 2^k
//! steps whose numbers begin at a multiple of 2^k, so that all ranks of a run sum the same steps;
//! the steps of a sum that is not full yet wait for the next shipment. No step is lost: what stands
//! before the first full sum of a block or behind its last goes out one by one.

use super::{MAX_PAUSE_NS, MAX_STEPS_LOG2, StepBlock, StepRecord, StepTimes};

/// Most entries a second of one rank on the wire.
pub const MAX_ENTRIES_PER_SECOND: f64 = 10.0;

/// Most records that wait for a shipment: 10 s of 1,600 steps a second. The oldest are given up.
pub const MAX_PENDING: usize = 16_384;

/// Gathers the records of one rank.
#[derive(Debug, Clone, Default)]
pub struct Packer {
    pending: Vec<StepRecord>,
    dropped: u64,
}

impl Packer {
    /// Takes a record and says so; one that repeats the newest step of those that wait is not taken.
    pub fn push(&mut self, record: StepRecord) -> bool {
        let newest = self.pending.last().map(|it| (it.step, it.ended_at));
        if newest == Some((record.step, record.ended_at)) {
            return false;
        }
        if self.pending.len() >= MAX_PENDING {
            self.pending.remove(0);
            self.dropped += 1;
        }
        self.pending.push(record);
        true
    }

    /// How many records wait: the newest that were taken.
    pub const fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// How many records were given up.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The blocks of everything that came. Steps of a sum that is not full stay for the next time,
    /// but not of a rank that has ended.
    pub fn take(&mut self, has_ended: bool) -> Vec<StepBlock> {
        let pending = std::mem::take(&mut self.pending);
        let log2 = log2_for(&pending);
        let mut blocks = Vec::new();
        let mut runs = pending.chunk_by(follows).peekable();
        while let Some(run) = runs.next() {
            let may_wait = runs.peek().is_none() && !has_ended;
            let per_entry = 1_u64 << log2;
            let lead = (run[0].step.next_multiple_of(per_entry) - run[0].step) as usize;
            let (lead, rest) = run.split_at(lead.min(run.len()));
            let full = rest.len() - rest.len() % (per_entry as usize);
            let (full, tail) = rest.split_at(full);
            blocks.extend(block(lead, 0));
            blocks.extend(block(full, log2));
            match may_wait {
                true => self.pending.extend(tail),
                false => blocks.extend(block(tail, 0)),
            }
        }
        blocks
    }
}

/// Whether one record comes right behind another.
fn follows(earlier: &StepRecord, later: &StepRecord) -> bool {
    let wall = i64::try_from(later.times.wall_ns).unwrap_or(i64::MAX);
    let pause = later.ended_at.since(earlier.ended_at).saturating_sub(wall);
    earlier.step.checked_add(1) == Some(later.step) && pause.abs() <= MAX_PAUSE_NS
}

/// How many steps an entry sums, as a power of two.
fn log2_for(pending: &[StepRecord]) -> u8 {
    let wall: u64 = pending.iter().map(|it| it.times.wall_ns).sum();
    let per_second = pending.len() as f64 / (wall.max(1) as f64 / 1e9);
    (0..MAX_STEPS_LOG2)
        .find(|log2| per_second / f64::from(1_u32 << log2) <= MAX_ENTRIES_PER_SECOND)
        .unwrap_or(MAX_STEPS_LOG2)
}

fn block(records: &[StepRecord], log2: u8) -> Option<StepBlock> {
    let (first, last) = (records.first()?, records.last()?);
    let entry = |records: &[StepRecord]| StepTimes {
        wall_ns: sum(records, |it| it.times.wall_ns),
        busy_ns: sum(records, |it| it.times.busy_ns),
        data_wait_ns: sum(records, |it| it.times.data_wait_ns),
        comm_wait_ns: sum(records, |it| it.times.comm_wait_ns),
    };
    let wall = i64::try_from(first.times.wall_ns).unwrap_or(i64::MAX);
    Some(StepBlock {
        first_step: first.step,
        steps_log2: log2,
        started_at: first.ended_at.shifted(-wall),
        ended_at: last.ended_at,
        tokens: sum(records, |it| it.tokens),
        samples: sum(records, |it| it.samples),
        times: records.chunks(1 << log2).map(entry).collect(),
    })
}

/// The sum of numbers that a training process says, which may be any.
fn sum(records: &[StepRecord], of: fn(&StepRecord) -> u64) -> u64 {
    records
        .iter()
        .fold(0, |sum, it| u64::saturating_add(sum, of(it)))
}

//! The last steps of a rank in memory, packed as they travelled.
//!
//! Limits: [`MAX_BLOCKS`] blocks a rank; what all of them take together is the registry's to bound.

use std::collections::VecDeque;
use std::sync::Arc;

use gpufleet_telemetry::steps::{self, StepBlock, StepTimes};
use gpufleet_telemetry::time::Timestamp;

/// Most blocks of one rank: ten minutes at one a shipment of 10 s.
pub const MAX_BLOCKS: usize = 64;

/// For how many more there is room once a rank's is full: each takes some hundred bytes, and a fleet has thousands of ranks.
const GROWS_BY: usize = 8;

/// What a block takes beside its packed steps, bytes.
const BLOCK_BYTES: usize = 96;

const _: () = assert!(size_of::<Held>() + 2 * size_of::<usize>() <= BLOCK_BYTES);

/// A rank's last steps. Cheap to clone: blocks are shared.
#[derive(Debug, Clone, Default)]
pub struct Ring {
    blocks: VecDeque<Held>,
    /// How many of them, from the newest back, are since the numbers last went back.
    since_back: usize,
    bytes: usize,
}

/// A block with what must be known without unpacking it.
#[derive(Debug, Clone)]
struct Held {
    first_step: u64,
    next_step: u64,
    steps_log2: u8,
    started_at: Timestamp,
    ended_at: Timestamp,
    tokens: u64,
    samples: u64,
    /// How long all its steps took. What else they did is asked of few ranks, and unpacked for them.
    wall_ns: u64,
    packed: Arc<[u8]>,
}

/// What the newest blocks of a rank were together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lately {
    /// Tokens; 0 not said.
    pub tokens: u64,
    /// Samples; 0 not said.
    pub samples: u64,
    /// Steps.
    pub steps: u64,
    /// How long these took, nanoseconds.
    pub wall_ns: u64,
}

impl Ring {
    /// Takes a block. One that does not end after the newest is late or came twice: it is in the
    /// store, and not here. Blocks that are too many go, the oldest first.
    pub(super) fn push(&mut self, block: &StepBlock) {
        let is_old = |last: &Held| block.ended_at <= last.ended_at;
        if block.times.is_empty() || self.blocks.back().is_some_and(is_old) {
            return;
        }
        let held = Held {
            first_step: block.first_step,
            next_step: block.next_step(),
            steps_log2: block.steps_log2,
            started_at: block.started_at,
            ended_at: block.ended_at,
            tokens: block.tokens,
            samples: block.samples,
            wall_ns: sum(&block.times).wall_ns,
            packed: steps::encode(std::slice::from_ref(block)).into(),
        };
        let follows = |last: &Held| last.next_step <= held.first_step;
        let before = match self.blocks.back().is_some_and(follows) {
            true => self.since_back,
            false => 0,
        };
        // Before it is put in: one more than the most would double the room for all of them.
        if self.blocks.len() >= MAX_BLOCKS {
            self.shorten();
        }
        if self.blocks.len() == self.blocks.capacity() {
            self.blocks.reserve_exact(GROWS_BY);
        }
        self.since_back = before.min(self.blocks.len()) + 1;
        self.bytes += held.bytes();
        self.blocks.push_back(held);
    }

    /// Lets the oldest block go, but never the newest.
    pub(super) fn shorten(&mut self) {
        if self.blocks.len() > 1
            && let Some(gone) = self.blocks.pop_front()
        {
            self.bytes -= gone.bytes();
            self.since_back = self.since_back.min(self.blocks.len());
        }
    }

    /// What it takes, bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// When its newest step ended.
    pub fn ended_at(&self) -> Option<Timestamp> {
        self.blocks.back().map(|it| it.ended_at)
    }

    /// So many of its newest blocks together.
    pub fn lately(&self, blocks: usize) -> Lately {
        let newest = self.blocks.iter().rev().take(blocks);
        newest.fold(Lately::default(), |sum, it| Lately {
            tokens: sum.tokens.saturating_add(it.tokens),
            samples: sum.samples.saturating_add(it.samples),
            steps: sum.steps.saturating_add(it.next_step - it.first_step),
            wall_ns: sum.wall_ns.saturating_add(it.wall_ns),
        })
    }

    /// What its newest blocks took together that have at least so many steps, and how many they have; of a ring with
    /// fewer all of them.
    pub fn last_steps(&self, least: u64) -> (StepTimes, u64) {
        let (mut times, mut steps) = (StepTimes::default(), 0);
        for block in self.blocks.iter().rev() {
            if steps >= least {
                break;
            }
            for unpacked in block.unpack() {
                times = times.and(sum(&unpacked.times));
            }
            steps += block.next_step - block.first_step;
        }
        (times, steps)
    }

    /// A ring of the blocks alone that have steps from this one on.
    pub(super) fn from(&self, step: u64) -> Self {
        let kept = self
            .blocks
            .iter()
            .rev()
            .take_while(|it| it.next_step > step);
        let mut blocks: VecDeque<Held> = VecDeque::new();
        kept.for_each(|it| blocks.push_front(it.clone()));
        Self {
            since_back: self.since_back.min(blocks.len()),
            bytes: blocks.iter().map(Held::bytes).sum(),
            blocks,
        }
    }

    /// When its oldest step began.
    pub fn began_at(&self) -> Option<Timestamp> {
        self.blocks.front().map(|it| it.started_at)
    }

    /// The steps since the numbers last went back, as first and one past the last: a run that went
    /// back to a checkpoint does the same numbers again.
    pub fn span(&self) -> Option<(u64, u64)> {
        let first = self.blocks.len() - self.since_back;
        Some((
            self.blocks.get(first)?.first_step,
            self.blocks.back()?.next_step,
        ))
    }

    /// The coarsest sum among the blocks since then that end behind a step, as a power of two.
    pub(super) fn coarsest(&self, from: u64) -> u8 {
        let behind = self.segment().filter(|it| it.next_step > from);
        behind.map(|it| it.steps_log2).max().unwrap_or(0)
    }

    /// The blocks since then that have steps in a range, oldest first.
    pub(super) fn blocks_in(&self, from: u64, until: u64) -> Vec<StepBlock> {
        let inside = |it: &&Held| it.next_step > from && it.first_step < until;
        let mut found: Vec<&Held> = self.segment().filter(inside).collect();
        found.reverse();
        found.into_iter().flat_map(Held::unpack).collect()
    }

    /// Every block, oldest first; each is unpacked when it is come to, so that who looks at the newest takes them
    /// from the end.
    pub fn blocks(&self) -> impl DoubleEndedIterator<Item = StepBlock> + '_ {
        self.blocks.iter().flat_map(Held::unpack)
    }

    /// From the newest back to where the numbers last went back.
    fn segment(&self) -> impl Iterator<Item = &Held> {
        self.blocks.iter().rev().take(self.since_back)
    }
}

fn sum(times: &[StepTimes]) -> StepTimes {
    let times = times.iter().copied();
    times.fold(StepTimes::default(), StepTimes::and)
}

impl Held {
    fn bytes(&self) -> usize {
        BLOCK_BYTES + self.packed.len()
    }

    fn unpack(&self) -> Vec<StepBlock> {
        steps::decode(&self.packed).expect("it was packed here")
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::steps::StepTimes;

    use super::*;

    /// Ten steps, of which the last ended at this second.
    fn block(first_step: u64, ended_s: i64) -> StepBlock {
        StepBlock {
            first_step,
            steps_log2: 0,
            started_at: Timestamp::from_seconds(ended_s - 10),
            ended_at: Timestamp::from_seconds(ended_s),
            tokens: 0,
            samples: 0,
            times: vec![StepTimes::default(); 10],
        }
    }

    #[test]
    fn the_span_begins_where_the_numbers_last_went_back_or_the_oldest_block_left_does() {
        let mut ring = Ring::default();
        assert_eq!(ring.span(), None);
        let pushed = [
            (0, (0, 10)),
            (10, (0, 20)),
            (5, (5, 15)),
            (20, (5, 30)),
            (30, (5, 40)),
        ];
        for ((first, span), at) in pushed.into_iter().zip(1..) {
            ring.push(&block(first, at * 10));
            assert_eq!(ring.span(), Some(span), "after {first}");
        }
        assert_eq!(ring.from(25).span(), Some((20, 40)));
        for span in [(5, 40), (5, 40), (20, 40), (30, 40), (30, 40)] {
            ring.shorten();
            assert_eq!(ring.span(), Some(span));
        }
    }

    #[test]
    fn there_is_never_room_for_more_blocks_than_are_kept_and_hardly_for_more_than_there_are() {
        let mut ring = Ring::default();
        for number in 1..=3 * MAX_BLOCKS {
            ring.push(&block(number as u64 * 10, number as i64 * 10));
            assert_eq!(ring.blocks.len(), number.min(MAX_BLOCKS));
            assert!(ring.blocks.capacity() < ring.blocks.len() + GROWS_BY);
            assert!(ring.blocks.capacity() <= MAX_BLOCKS);
            assert_eq!(ring.since_back, ring.blocks.len());
        }
        let bytes: usize = ring.blocks.iter().map(Held::bytes).sum();
        assert_eq!(ring.bytes(), bytes);
    }

    #[test]
    fn the_last_steps_are_those_of_whole_blocks_from_the_newest_back_until_they_are_enough() {
        let mut ring = Ring::default();
        assert_eq!(ring.last_steps(1), (StepTimes::default(), 0));
        for number in 1..=3 {
            let mut block = block(number * 10, number as i64 * 10);
            let wall_ns = number * steps::RESOLUTION_NS;
            block.times.iter_mut().for_each(|it| it.wall_ns = wall_ns);
            ring.push(&block);
        }
        for (least, wall_us, steps) in [(1, 30, 10), (10, 30, 10), (11, 50, 20), (99, 60, 30)] {
            let (times, found) = ring.last_steps(least);
            let found_us = times.wall_ns / steps::RESOLUTION_NS;
            assert_eq!((found_us, found), (wall_us, steps), "of {least}");
        }
    }
}

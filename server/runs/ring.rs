//! The last steps of a rank in memory, packed as they travelled.
//!
//! Limits: [`MAX_BLOCKS`] blocks a rank; what all of them take together is the registry's to bound.

use std::collections::VecDeque;
use std::sync::Arc;

use gpufleet_telemetry::steps::{self, StepBlock};
use gpufleet_telemetry::time::Timestamp;

/// Most blocks of one rank: ten minutes at one a shipment of 10 s.
pub const MAX_BLOCKS: usize = 64;

/// What a block takes beside its packed steps, bytes.
const BLOCK_BYTES: usize = 104;

/// A rank's last steps. Cheap to clone: blocks are shared.
#[derive(Debug, Clone, Default)]
pub struct Ring {
    blocks: VecDeque<Held>,
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
    wall_ns: u64,
    packed: Arc<[u8]>,
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
            wall_ns: block
                .times
                .iter()
                .map(|it| it.wall_ns)
                .fold(0, u64::saturating_add),
            packed: steps::encode(std::slice::from_ref(block)).into(),
        };
        self.bytes += held.bytes();
        self.blocks.push_back(held);
        if self.blocks.len() > MAX_BLOCKS {
            self.shorten();
        }
    }

    /// Lets the oldest block go, but never the newest.
    pub(super) fn shorten(&mut self) {
        if self.blocks.len() > 1
            && let Some(gone) = self.blocks.pop_front()
        {
            self.bytes -= gone.bytes();
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

    /// Tokens of its newest blocks, and how long their steps took, nanoseconds.
    pub fn lately(&self, blocks: usize) -> (f64, f64) {
        let newest = self.blocks.iter().rev().take(blocks);
        let sums = newest.map(|it| (it.tokens as f64, it.wall_ns as f64));
        sums.fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1))
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
        let bytes = blocks.iter().map(Held::bytes).sum();
        Self { blocks, bytes }
    }

    /// When its oldest step began.
    pub fn began_at(&self) -> Option<Timestamp> {
        self.blocks.front().map(|it| it.started_at)
    }

    /// The steps since the numbers last went back, as first and one past the last: a run that went
    /// back to a checkpoint does the same numbers again.
    pub fn span(&self) -> Option<(u64, u64)> {
        let first = self.segment().last()?;
        Some((first.first_step, self.blocks.back()?.next_step))
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
        let mut next = u64::MAX;
        self.blocks.iter().rev().take_while(move |it| {
            let follows = it.next_step <= next;
            next = it.first_step;
            follows
        })
    }
}

impl Held {
    fn bytes(&self) -> usize {
        BLOCK_BYTES + self.packed.len()
    }

    fn unpack(&self) -> Vec<StepBlock> {
        steps::decode(&self.packed).expect("it was packed here")
    }
}

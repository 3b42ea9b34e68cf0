//! The steps of a rank as blocks: four times a step, packed for the wire and for the store.
//!
//! Limits: [`MAX_ENTRIES_PER_SECOND`] on the wire (the packer sums aligned blocks of 2^k steps above
//! it), [`MAX_ENTRIES`] and [`MAX_BLOCKS`] in one packed text, 3 bytes a step and array and no more.
//!
//! Format, version 1; numbers are LEB128 varints of at most 10 bytes, signed ones zigzag:
//! ```text
//! magic "GS", version byte (1)
//! how many blocks
//! per block:
//!   first step, k (one entry is 2^k steps), start (signed ns), end − start (ns)
//!   tokens, samples            of the whole block, 0 not said
//!   how many entries, q        the unit of the times is 1000 · 2^q ns
//!   wall, busy, data wait, communication wait: the first in units, then the differences, signed
//! ```
//! q is the smallest with which every time is below 2^20 units, so that a difference never takes
//! more than 3 bytes: times are kept to the microsecond where the block's longest is below 1.04 s,
//! else to a millionth of it.

use crate::time::Timestamp;
use crate::varint::{self, put, unzigzag, zigzag};

mod pack;

pub use pack::{MAX_ENTRIES_PER_SECOND, MAX_PENDING, Packer};

/// The first bytes of packed steps.
pub const MAGIC: [u8; 2] = *b"GS";

/// The version this code writes, and the newest it reads.
pub const VERSION: u8 = 1;

/// Most entries of one packed text: 10 minutes of 10 a second take 6,000, the ring that an agent
/// finds after it was away 2,048.
pub const MAX_ENTRIES: usize = 16_384;

/// Most blocks of one packed text: a new one begins where steps are missing or were repeated.
pub const MAX_BLOCKS: usize = 1_024;

/// Longest packed text: every part at its longest.
pub const MAX_BYTES: usize = 3 + 10 + MAX_BLOCKS * 8 * 10 + MAX_ENTRIES * 4 * 3;

/// Most steps that one entry sums up, as a power of two.
pub const MAX_STEPS_LOG2: u8 = 16;

/// The finest unit of the times, nanoseconds.
pub const RESOLUTION_NS: u64 = 1_000;

/// Times are kept in fewer units than this: differences then fit 21 bits, which is 3 bytes.
const MAX_UNITS: u64 = 1 << 20;

/// Coarsest unit as a power of two of the finest: a time of 36 years fits into it.
const MAX_UNIT_LOG2: u64 = 30;

/// Longest pause between two entries of one block. Evaluation or a checkpoint outside of steps
/// begins a new one, so that the times of its steps stay right.
pub const MAX_PAUSE_NS: i64 = 1_000_000_000;

/// One step as the training process records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepRecord {
    /// The run's number of it.
    pub step: u64,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How long it took and where the time went.
    pub times: StepTimes,
    /// Tokens of this rank; 0 not said.
    pub tokens: u64,
    /// Samples of this rank; 0 not said.
    pub samples: u64,
}

/// How long a step, or 2^k of them together, took and where the time went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepTimes {
    /// All of it, nanoseconds.
    pub wall_ns: u64,
    /// In which this rank computed.
    pub busy_ns: u64,
    /// In which it waited for data.
    pub data_wait_ns: u64,
    /// In which it waited for other ranks.
    pub comm_wait_ns: u64,
}

impl StepTimes {
    /// What of it was this rank's own, whatever the others did: computing and waiting for its data.
    pub const fn own_ns(&self) -> u64 {
        self.busy_ns.saturating_add(self.data_wait_ns)
    }

    /// What of it was neither computing nor waiting: training stood still for a checkpoint or an evaluation. 0 where
    /// nobody says how long it computed.
    pub const fn stood_ns(&self) -> u64 {
        if self.busy_ns == 0 {
            return 0;
        }
        let known = self.own_ns().saturating_add(self.comm_wait_ns);
        self.wall_ns.saturating_sub(known)
    }

    /// Both together.
    pub const fn and(self, other: Self) -> Self {
        Self {
            wall_ns: self.wall_ns.saturating_add(other.wall_ns),
            busy_ns: self.busy_ns.saturating_add(other.busy_ns),
            data_wait_ns: self.data_wait_ns.saturating_add(other.data_wait_ns),
            comm_wait_ns: self.comm_wait_ns.saturating_add(other.comm_wait_ns),
        }
    }

    /// What one of so many steps took on average that took this together; `steps` is above 0.
    pub const fn of_one(self, steps: u64) -> Self {
        Self {
            wall_ns: self.wall_ns / steps,
            busy_ns: self.busy_ns / steps,
            data_wait_ns: self.data_wait_ns / steps,
            comm_wait_ns: self.comm_wait_ns / steps,
        }
    }
}

/// Steps of one rank without a gap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepBlock {
    /// The number of the first step.
    pub first_step: u64,
    /// One entry is 2^this steps.
    pub steps_log2: u8,
    /// When the first step began.
    pub started_at: Timestamp,
    /// When the last one ended.
    pub ended_at: Timestamp,
    /// Tokens of all of them; 0 not said.
    pub tokens: u64,
    /// Samples of all of them; 0 not said.
    pub samples: u64,
    /// The entries, oldest first.
    pub times: Vec<StepTimes>,
}

/// Why bytes are not blocks of steps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepsError {
    /// They do not begin as packed steps do.
    #[error("these bytes are not packed steps: they do not begin with `GS`")]
    Magic,
    /// Written by a newer program.
    #[error(
        "packed steps have version {found}, this program reads up to {VERSION}: run a newer one"
    )]
    Version {
        /// The version found.
        found: u8,
    },
    /// They end too early.
    #[error("packed steps end inside their {what}")]
    Truncated {
        /// Which part was cut.
        what: &'static str,
    },
    /// A number has no place where it stands.
    #[error("packed steps have a {what} that is out of range")]
    OutOfRange {
        /// Which part.
        what: &'static str,
    },
    /// There is more than the steps.
    #[error("packed steps are followed by {left} bytes that do not belong to them")]
    Trailing {
        /// How many bytes.
        left: usize,
    },
}

impl StepTimes {
    /// The four times, in the order in which they are packed.
    const fn all(&self) -> [u64; 4] {
        [
            self.wall_ns,
            self.busy_ns,
            self.data_wait_ns,
            self.comm_wait_ns,
        ]
    }

    const fn of([wall_ns, busy_ns, data_wait_ns, comm_wait_ns]: [u64; 4]) -> Self {
        Self {
            wall_ns,
            busy_ns,
            data_wait_ns,
            comm_wait_ns,
        }
    }
}

impl StepBlock {
    /// How many steps one entry is.
    pub const fn steps_per_entry(&self) -> u64 {
        1 << self.steps_log2
    }

    /// The number of the step behind the last one.
    pub const fn next_step(&self) -> u64 {
        self.first_step + self.times.len() as u64 * self.steps_per_entry()
    }

    /// When each entry ended, from the times of all and the block's own start and end.
    pub fn ends(&self) -> impl Iterator<Item = Timestamp> + '_ {
        let sum =
            |times: &[StepTimes]| -> u128 { times.iter().map(|it| u128::from(it.wall_ns)).sum() };
        let all = sum(&self.times).max(1);
        let span = u128::from(self.ended_at.since(self.started_at).max(0).cast_unsigned());
        let mut passed = 0_u128;
        self.times.iter().map(move |it| {
            passed += u128::from(it.wall_ns);
            self.started_at
                .shifted(i64::try_from(passed * span / all).unwrap_or(i64::MAX))
        })
    }

    /// Puts the entries of the block that follows behind this one's; gives it back when it does not
    /// follow, or when one packed text would not hold both.
    ///
    /// # Errors
    /// The block that was not taken.
    pub fn join(&mut self, next: Self) -> Result<(), Self> {
        let pause = next.started_at.since(self.ended_at);
        let follows = next.first_step == self.next_step()
            && next.steps_log2 == self.steps_log2
            && pause.abs() <= MAX_PAUSE_NS
            && self.times.len() + next.times.len() <= MAX_ENTRIES;
        if !follows {
            return Err(next);
        }
        self.ended_at = next.ended_at;
        self.tokens = self.tokens.saturating_add(next.tokens);
        self.samples = self.samples.saturating_add(next.samples);
        self.times.extend(next.times);
        Ok(())
    }
}

/// Puts blocks that follow each other together, in the order in which they came.
pub fn joined(blocks: impl IntoIterator<Item = StepBlock>) -> Vec<StepBlock> {
    let mut all: Vec<StepBlock> = Vec::new();
    for block in blocks {
        let left = match all.last_mut() {
            Some(last) => last.join(block).err(),
            None => Some(block),
        };
        all.extend(left);
    }
    all
}

/// The first of these blocks that are within the limits together.
pub fn within_limits(blocks: &[StepBlock]) -> &[StepBlock] {
    let mut entries = 0;
    let kept = blocks.iter().take(MAX_BLOCKS).take_while(|block| {
        entries += block.times.len();
        entries <= MAX_ENTRIES
    });
    &blocks[..kept.count()]
}

/// Blocks in their packed form. What is beyond the limits is left out, newest first: who packs more
/// than [`MAX_ENTRIES`] packs twice.
pub fn encode(blocks: &[StepBlock]) -> Vec<u8> {
    let kept = within_limits(blocks);
    let entries: usize = kept.iter().map(|it| it.times.len()).sum();
    let mut out = Vec::with_capacity(16 + entries * 8 + kept.len() * 40);
    out.extend(MAGIC);
    out.push(VERSION);
    put(kept.len() as u64, &mut out);
    for block in kept {
        encode_block(block, &mut out);
    }
    out
}

fn encode_block(block: &StepBlock, out: &mut Vec<u8>) {
    let longest = block.times.iter().flat_map(StepTimes::all).max();
    let longest = longest.unwrap_or(0);
    let fits = |log2: &u64| units(longest, *log2) < MAX_UNITS;
    let unit_log2 = (0..MAX_UNIT_LOG2).find(fits).unwrap_or(MAX_UNIT_LOG2);
    put(block.first_step, out);
    put(u64::from(block.steps_log2), out);
    put(zigzag(block.started_at.0), out);
    put(
        block
            .ended_at
            .since(block.started_at)
            .max(0)
            .cast_unsigned(),
        out,
    );
    put(block.tokens, out);
    put(block.samples, out);
    put(block.times.len() as u64, out);
    put(unit_log2, out);
    for array in 0..4 {
        let mut before = None;
        for times in &block.times {
            let value = units(times.all()[array], unit_log2).min(MAX_UNITS - 1);
            match before {
                None => put(value, out),
                Some(before) => put(zigzag(value.cast_signed() - before), out),
            }
            before = Some(value.cast_signed());
        }
    }
}

/// A time in units, rounded to the nearest.
const fn units(ns: u64, log2: u64) -> u64 {
    let unit = RESOLUTION_NS << log2;
    ns.saturating_add(unit / 2) / unit
}

/// The blocks that [`encode`] packed.
///
/// # Errors
/// Every byte string that is not packed steps gives the error that names what is wrong.
pub fn decode(bytes: &[u8]) -> Result<Vec<StepBlock>, StepsError> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(StepsError::Magic)?;
    let (version, rest) = rest
        .split_first()
        .ok_or(StepsError::Truncated { what: "version" })?;
    if *version != VERSION {
        return Err(StepsError::Version { found: *version });
    }
    let mut input = Input { rest };
    let count = input.number("number of blocks", MAX_BLOCKS as u64)?;
    let mut entries_left = MAX_ENTRIES as u64;
    let mut blocks = Vec::new();
    for _ in 0..count {
        let block = decode_block(&mut input, entries_left)?;
        entries_left -= block.times.len() as u64;
        blocks.push(block);
    }
    match input.rest.len() {
        0 => Ok(blocks),
        left => Err(StepsError::Trailing { left }),
    }
}

fn decode_block(input: &mut Input<'_>, entries_left: u64) -> Result<StepBlock, StepsError> {
    let first_step = input.number("first step", u64::MAX)?;
    let steps_log2 = input.number("steps of an entry", u64::from(MAX_STEPS_LOG2))?;
    let started_at = unzigzag(input.number("start", u64::MAX)?);
    let span = input.number("duration", i64::MAX.cast_unsigned())?;
    let ended_at = started_at.checked_add(span.cast_signed());
    let tokens = input.number("tokens", u64::MAX)?;
    let samples = input.number("samples", u64::MAX)?;
    let count = input.number("number of entries", entries_left)?;
    let steps = count << steps_log2;
    if first_step.checked_add(steps).is_none() {
        return Err(StepsError::OutOfRange { what: "first step" });
    }
    let unit_log2 = input.number("unit", MAX_UNIT_LOG2)?;
    // Each entry takes four bytes at least: a count that promises more reserves nothing.
    let count = count as usize;
    if input.rest.len() < count * 4 {
        return Err(StepsError::Truncated { what: "times" });
    }
    let mut times = vec![[0_u64; 4]; count];
    for array in 0..4 {
        let mut value = 0_i64;
        for (place, entry) in times.iter_mut().enumerate() {
            let number = input.number("time", MAX_UNITS * 2)?;
            value = match place {
                0 => number.cast_signed(),
                _ => value + unzigzag(number),
            };
            if !(0..MAX_UNITS.cast_signed()).contains(&value) {
                return Err(StepsError::OutOfRange { what: "time" });
            }
            entry[array] = value.cast_unsigned() * (RESOLUTION_NS << unit_log2);
        }
    }
    Ok(StepBlock {
        first_step,
        steps_log2: steps_log2 as u8,
        started_at: Timestamp(started_at),
        ended_at: Timestamp(ended_at.ok_or(StepsError::OutOfRange { what: "duration" })?),
        tokens,
        samples,
        times: times.into_iter().map(StepTimes::of).collect(),
    })
}

/// What is left to unpack.
struct Input<'a> {
    rest: &'a [u8],
}

impl Input<'_> {
    fn number(&mut self, what: &'static str, most: u64) -> Result<u64, StepsError> {
        match varint::take(&mut self.rest) {
            Ok(number) if number <= most => Ok(number),
            Err(varint::Bad::Truncated) => Err(StepsError::Truncated { what }),
            Ok(_) | Err(varint::Bad::OutOfRange) => Err(StepsError::OutOfRange { what }),
        }
    }
}

#[cfg(test)]
mod tests;

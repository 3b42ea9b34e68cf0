//! The packed form of a minute row, as the store keeps it: lossless, versioned, total to unpack.
//!
//! Limits: [`MAX_METRICS`] gauges and as many counters, [`MAX_PACKED_BYTES`] bytes. A typical row of a
//! GPU (23 metrics, 12 of them varying) takes less than 300 bytes, 0.4 MB a GPU-day.
//!
//! Format, version 3. Every number is a LEB128 varint of at most 10 bytes:
//! ```text
//! version byte (2 of a row without holders, else 3)
//! bitmap codes      2 bits per bitmap, observed lowest: 0 none, 1 all 60 seconds,
//!                   2 the same as observed, 3 written out
//! bitmap            for each with code 3, in order
//! common count      the count of gauges and counters that do not say their own
//! how many gauges
//! per gauge, by rising number:
//!   header          (number − number before) << 3 | own count << 2 | shape
//!   count           only when the header says so
//!   values          shape 0: v, with min = max = v and sum = v × count
//!                   shape 1: v, with min = max = v and sum = v + v + … (count times)
//!                   shape 2: sum, v, with min = max = v
//!                   shape 3: sum, min, max
//! counters          see [`counters`]
//! how many holders  from version 3 on
//! per holder, by rising number:
//!   number          the step from the one before
//!   seconds         0: the same as held, else the bitmap
//! ```
//! A value is an f64 with its 64 bits in reverse order: short values have trailing zeros, so they
//! become small numbers (0.0 takes 1 byte, 0.5 takes 2, a gauge of 24 significant bits 5).
//!
//! Version 1 had counters among the gauges, with a growth that held the step from the row before. Its
//! rows are read without their counters.

mod counters;

mod number;

use number::Input;

use super::{ALL_SECONDS, Aggregate, Bitmaps, ByMetric, MAX_HOLDERS, MinuteRow};
use crate::catalog::{self, Kind, MetricId};
use crate::varint::put;

/// The version this code writes, and the newest it reads.
pub const VERSION: u8 = 3;

/// The version of a row without holders.
const WITHOUT_HOLDERS: u8 = 2;

/// The oldest it reads.
const OLDEST_VERSION: u8 = 1;

/// Most gauges in one row, and most counters: twice what the catalog has room for today; a bound for
/// hostile input.
pub const MAX_METRICS: usize = 512;

/// Longest packed row: every part at its longest.
pub const MAX_PACKED_BYTES: usize = 1
    + 2
    + 5 * 9
    + 5
    + 2
    + MAX_METRICS * (3 + 5 + 3 * 10)
    + counters::MAX_BYTES
    + 1
    + MAX_HOLDERS * (9 + 9);

/// Longest run of additions that shape 1 stands for: a minute of one-second points.
const MAX_ADDITIONS: u32 = 60;

/// Why bytes are not a minute row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError {
    /// There is nothing.
    #[error("a packed minute row is empty")]
    Empty,
    /// Written by a newer program, or not a row at all.
    #[error(
        "a packed minute row has version {found}, this program reads {OLDEST_VERSION} to {VERSION}: run a newer one"
    )]
    Version {
        /// The version found.
        found: u8,
    },
    /// It ends too early.
    #[error("a packed minute row ends at byte {at}, inside its {what}")]
    Truncated {
        /// Which part was cut.
        what: &'static str,
        /// How long the row is.
        at: usize,
    },
    /// A number has more bits than its place.
    #[error("a packed minute row has at byte {at} a {what} that is out of range")]
    OutOfRange {
        /// Which part.
        what: &'static str,
        /// Where the part ends.
        at: usize,
    },
    /// A value is NaN or infinite.
    #[error("a packed minute row has for metric {metric} a value that is not finite")]
    NotFinite {
        /// Of which metric.
        metric: u16,
    },
    /// There is more than the row.
    #[error("a packed minute row is followed by {left} bytes that do not belong to it")]
    Trailing {
        /// How many bytes.
        left: usize,
    },
}

impl MinuteRow {
    /// The row in its packed form. Aggregates without a point or with a value that is not finite
    /// (no function of this crate makes any) and metrics beyond [`MAX_METRICS`] are left out.
    pub fn pack(&self) -> Vec<u8> {
        let metrics: Vec<_> = self
            .metrics
            .iter()
            .filter(|(_, it)| {
                it.count > 0 && [it.sum, it.min, it.max].iter().all(|v| v.is_finite())
            })
            .take(MAX_METRICS)
            .collect();
        let mut out = Vec::with_capacity(64 + metrics.len() * 12 + self.counters.len() * 8);
        out.push(match self.holders.is_empty() {
            true => WITHOUT_HOLDERS,
            false => VERSION,
        });
        pack_bitmaps(&self.bitmaps, &mut out);
        let counts = metrics.iter().map(|(_, it)| it.count);
        let common = most_common(counts.chain(self.counters.values().map(|it| it.count)));
        let common = common.unwrap_or(0);
        put(u64::from(common), &mut out);
        put(metrics.len() as u64, &mut out);
        let mut before = 0;
        for (metric, aggregate) in metrics {
            pack_aggregate(step(&mut before, *metric), common, aggregate, &mut out);
        }
        counters::pack(&self.counters, common, &mut out);
        if !self.holders.is_empty() {
            pack_holders(self, &mut out);
        }
        out
    }

    /// The row that [`MinuteRow::pack`] packed.
    ///
    /// # Errors
    /// Every byte string that is not a packed row gives the error that names what is wrong.
    pub fn unpack(bytes: &[u8]) -> Result<Self, UnpackError> {
        let (version, rest) = bytes.split_first().ok_or(UnpackError::Empty)?;
        if !(OLDEST_VERSION..=VERSION).contains(version) {
            return Err(UnpackError::Version { found: *version });
        }
        let mut input = Input {
            rest,
            length: bytes.len(),
        };
        let bitmaps = unpack_bitmaps(&mut input)?;
        let common = input.count("common count", 0)?;
        let metrics = input.number("number of metrics", MAX_METRICS as u64)?;
        let mut row = Self {
            bitmaps,
            metrics: ByMetric::with_capacity(metrics as usize),
            ..Self::default()
        };
        let mut next = 0;
        for _ in 0..metrics {
            let (metric, aggregate) = unpack_aggregate(&mut input, &mut next, common)?;
            row.metrics.insert(metric, aggregate);
        }
        if *version == OLDEST_VERSION {
            let is_counter = |id| catalog::by_id(id).is_some_and(|it| it.kind == Kind::Counter);
            row.metrics.retain(|id, _| !is_counter(*id));
        } else {
            row.counters = counters::unpack(&mut input, common)?;
        }
        if *version > WITHOUT_HOLDERS {
            unpack_holders(&mut input, &mut row)?;
        }
        match input.rest.len() {
            0 => Ok(row),
            left => Err(UnpackError::Trailing { left }),
        }
    }
}

fn pack_bitmaps(bitmaps: &Bitmaps, out: &mut Vec<u8>) {
    let mut codes = 0;
    let mut literal = Vec::new();
    for (place, bits) in bitmaps.all().into_iter().enumerate() {
        let bits = bits & ALL_SECONDS;
        let code = match bits {
            0 => 0,
            ALL_SECONDS => 1,
            bits if place > 0 && bits == bitmaps.observed & ALL_SECONDS => 2,
            bits => {
                put(bits, &mut literal);
                3
            }
        };
        codes |= code << (2 * place);
    }
    put(codes, out);
    out.extend(literal);
}

fn unpack_bitmaps(input: &mut Input<'_>) -> Result<Bitmaps, UnpackError> {
    let codes = input.number("bitmap codes", (1 << 10) - 1)?;
    let mut bits = [0; 5];
    for place in 0..bits.len() {
        bits[place] = match codes >> (2 * place) & 3 {
            0 => 0,
            1 => ALL_SECONDS,
            2 if place > 0 => bits[0],
            2 => return Err(input.out_of_range("bitmap code of observed")),
            _ => input.number("bitmap", ALL_SECONDS)?,
        };
    }
    let [observed, active, stalled, held, holder_known] = bits;
    Ok(Bitmaps {
        observed,
        active,
        stalled,
        held,
        holder_known,
    })
}

/// A whole minute in one pair of hands, which most are, says that it is held and not when.
fn pack_holders(row: &MinuteRow, out: &mut Vec<u8>) {
    put(row.holders.len() as u64, out);
    let mut before = 0;
    for (holder, seconds) in &row.holders {
        put((holder - before).unsigned_abs(), out);
        before = *holder;
        let is_held = *seconds == row.bitmaps.held & ALL_SECONDS;
        put(if is_held { 0 } else { *seconds }, out);
    }
}

fn unpack_holders(input: &mut Input<'_>, row: &mut MinuteRow) -> Result<(), UnpackError> {
    let mut before: i64 = 0;
    for _ in 0..input.number("number of holders", MAX_HOLDERS as u64)? {
        let what = "step between holders";
        let step = i64::try_from(input.number(what, i64::MAX.unsigned_abs())?).unwrap_or(0);
        let holder = before.checked_add(step).filter(|_| step > 0);
        before = holder.ok_or_else(|| input.out_of_range(what))?;
        let seconds = match input.number("seconds of a holder", ALL_SECONDS)? {
            0 => row.bitmaps.held,
            seconds => seconds,
        };
        if seconds == 0 {
            return Err(input.out_of_range("seconds of a holder"));
        }
        row.holders.insert(before, seconds);
    }
    match row.holders.is_empty() {
        true => Err(input.out_of_range("number of holders")),
        false => Ok(()),
    }
}

fn pack_aggregate(step: u64, common: u32, aggregate: &Aggregate, out: &mut Vec<u8>) {
    let Aggregate {
        count,
        sum,
        min,
        max,
    } = *aggregate;
    let is_flat = min.to_bits() == max.to_bits();
    let shape = if !is_flat {
        3
    } else if (min * f64::from(count)).to_bits() == sum.to_bits() {
        0
    } else if count <= MAX_ADDITIONS && added(min, count).to_bits() == sum.to_bits() {
        1
    } else {
        2
    };
    let own_count = count != common;
    put(step << 3 | u64::from(own_count) << 2 | shape, out);
    if own_count {
        put(u64::from(count), out);
    }
    if shape >= 2 {
        put(sum.to_bits().reverse_bits(), out);
    }
    put(min.to_bits().reverse_bits(), out);
    if shape == 3 {
        put(max.to_bits().reverse_bits(), out);
    }
}

fn unpack_aggregate(
    input: &mut Input<'_>,
    next: &mut u64,
    common: u32,
) -> Result<(MetricId, Aggregate), UnpackError> {
    let header = input.number("metric header", u64::MAX)?;
    let number = stepped(input, next, header >> 3)?;
    let count = own_or_common(input, header, common)?;
    let first = input.value(number)?;
    let (sum, min, max) = match header & 3 {
        0 => (first * f64::from(count), first, first),
        1 if count > MAX_ADDITIONS => return Err(input.out_of_range("count of added values")),
        1 => (added(first, count), first, first),
        2 => {
            let flat = input.value(number)?;
            (first, flat, flat)
        }
        _ => (first, input.value(number)?, input.value(number)?),
    };
    if !sum.is_finite() {
        return Err(UnpackError::NotFinite { metric: number });
    }
    let aggregate = Aggregate {
        count,
        sum,
        min,
        max,
    };
    Ok((MetricId(number), aggregate))
}

/// The sum of `count` equal values in the order in which points arrive.
fn added(value: f64, count: u32) -> f64 {
    (1..count).fold(value, |sum, _| sum + value)
}

/// The value most of them have: they need not say it.
fn most_common<T: Ord + Copy>(values: impl Iterator<Item = T>) -> Option<T> {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    let longest = values.chunk_by(|a, b| a == b).max_by_key(|run| run.len());
    longest.map(|run| run[0])
}

/// How far a metric's number lies after the one before it. The first one may be 0: the step is counted
/// from one before it.
fn step(before: &mut u64, metric: MetricId) -> u64 {
    let step = u64::from(metric.0) + 1 - *before;
    *before += step;
    step
}

/// The metric number that lies a step after the one before it.
fn stepped(input: &Input<'_>, next: &mut u64, step: u64) -> Result<u16, UnpackError> {
    if step == 0 {
        return Err(input.out_of_range("step between metric numbers"));
    }
    let number = u16::try_from(next.saturating_add(step - 1));
    let number = number.map_err(|_| input.out_of_range("metric number"))?;
    *next = u64::from(number) + 1;
    Ok(number)
}

/// The count that follows the header, if it says so.
fn own_or_common(input: &mut Input<'_>, header: u64, common: u32) -> Result<u32, UnpackError> {
    match header >> 2 & 1 {
        1 => input.count("count", 1),
        _ if common == 0 => Err(input.out_of_range("common count")),
        _ => Ok(common),
    }
}

#[cfg(test)]
mod tests;

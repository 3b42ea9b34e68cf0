//! The packed form of a minute row, as the store keeps it: lossless, versioned, total to unpack.
//!
//! Limits: [`MAX_METRICS`] metrics, [`MAX_PACKED_BYTES`] bytes. A typical row of a GPU (23 metrics,
//! 12 of them varying) takes less than 300 bytes, 0.4 MB a GPU-day.
//!
//! Format, version 1. Every number is a LEB128 varint of at most 10 bytes:
//! ```text
//! version byte (1)
//! bitmap codes      2 bits per bitmap, observed lowest: 0 none, 1 all 60 seconds,
//!                   2 the same as observed, 3 written out
//! bitmap            for each with code 3, in order
//! common count      the count of metrics that do not say their own
//! how many metrics
//! per metric, by rising number:
//!   header          (number − number before) << 3 | own count << 2 | shape
//!   count           only when the header says so
//!   values          shape 0: v, with min = max = v and sum = v × count
//!                   shape 1: v, with min = max = v and sum = v + v + … (count times)
//!                   shape 2: sum, v, with min = max = v
//!                   shape 3: sum, min, max
//! ```
//! A value is an f64 with its 64 bits in reverse order: short values have trailing zeros, so they
//! become small numbers (0.0 takes 1 byte, 0.5 takes 2, a gauge of 24 significant bits 5).

use super::{ALL_SECONDS, Aggregate, Bitmaps, MinuteRow};
use crate::catalog::MetricId;
use crate::varint::{self, put};

/// The version this code writes, and the newest it reads.
pub const VERSION: u8 = 1;

/// Most metrics in one row: twice what the catalog has room for today; a bound for hostile input.
pub const MAX_METRICS: usize = 512;

/// Longest packed row: every part at its longest.
pub const MAX_PACKED_BYTES: usize = 1 + 2 + 5 * 9 + 5 + 2 + MAX_METRICS * (3 + 5 + 3 * 10);

/// Longest run of additions that shape 1 stands for: a minute of one-second points.
const MAX_ADDITIONS: u32 = 60;

/// Why bytes are not a minute row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError {
    /// There is nothing.
    #[error("a packed minute row is empty")]
    Empty,
    /// Written by a newer program.
    #[error(
        "a packed minute row has version {found}, this program reads up to {VERSION}: run a newer one"
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
        let mut out = Vec::with_capacity(64 + metrics.len() * 12);
        out.push(VERSION);
        pack_bitmaps(&self.bitmaps, &mut out);
        let common = common_count(metrics.iter().map(|(_, it)| it.count));
        put(u64::from(common), &mut out);
        put(metrics.len() as u64, &mut out);
        let mut before = 0;
        for (metric, aggregate) in metrics {
            // The first metric may have number 0: the step is counted from one before it.
            let step = u64::from(metric.0) + 1 - before;
            before = u64::from(metric.0) + 1;
            pack_aggregate(step, common, aggregate, &mut out);
        }
        out
    }

    /// The row that [`MinuteRow::pack`] packed.
    ///
    /// # Errors
    /// Every byte string that is not a packed row gives the error that names what is wrong.
    pub fn unpack(bytes: &[u8]) -> Result<Self, UnpackError> {
        let (version, rest) = bytes.split_first().ok_or(UnpackError::Empty)?;
        if *version != VERSION {
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
            ..Self::default()
        };
        let mut next = 0;
        for _ in 0..metrics {
            let (metric, aggregate) = unpack_aggregate(&mut input, &mut next, common)?;
            row.metrics.insert(metric, aggregate);
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
    let number = match header >> 3 {
        0 => return Err(input.out_of_range("step between metric numbers")),
        step => next.saturating_add(step - 1),
    };
    let Ok(number) = u16::try_from(number) else {
        return Err(input.out_of_range("metric number"));
    };
    *next = u64::from(number) + 1;
    let count = match header >> 2 & 1 {
        1 => input.count("count", 1)?,
        _ if common == 0 => return Err(input.out_of_range("common count")),
        _ => common,
    };
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

/// The count most metrics have: they need not say it.
fn common_count(counts: impl Iterator<Item = u32>) -> u32 {
    let mut counts: Vec<_> = counts.collect();
    counts.sort_unstable();
    counts
        .chunk_by(|a, b| a == b)
        .max_by_key(|run| run.len())
        .map_or(0, |run| run[0])
}

/// What is left to unpack.
struct Input<'a> {
    rest: &'a [u8],
    length: usize,
}

impl Input<'_> {
    fn number(&mut self, what: &'static str, most: u64) -> Result<u64, UnpackError> {
        match varint::take(&mut self.rest) {
            Ok(number) if number <= most => Ok(number),
            Err(varint::Bad::Truncated) => Err(UnpackError::Truncated {
                what,
                at: self.length,
            }),
            Ok(_) | Err(varint::Bad::OutOfRange) => Err(self.out_of_range(what)),
        }
    }

    fn count(&mut self, what: &'static str, least: u32) -> Result<u32, UnpackError> {
        let count = self.number(what, u64::from(u32::MAX))? as u32;
        if count < least {
            return Err(self.out_of_range(what));
        }
        Ok(count)
    }

    fn value(&mut self, metric: u16) -> Result<f64, UnpackError> {
        let value = f64::from_bits(self.number("value", u64::MAX)?.reverse_bits());
        if value.is_finite() {
            Ok(value)
        } else {
            Err(UnpackError::NotFinite { metric })
        }
    }

    fn out_of_range(&self, what: &'static str) -> UnpackError {
        UnpackError::OutOfRange {
            what,
            at: self.length - self.rest.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::row;
    use super::*;

    /// Any finite numbers, also those that no point leads to.
    fn any_row() -> impl Strategy<Value = MinuteRow> {
        let finite = || any::<f64>().prop_filter("finite", |value| value.is_finite());
        let flat = (1_u32..200, finite()).prop_map(|(count, value)| (count, value, value, value));
        let spread = (1_u32.., finite(), finite(), finite());
        let aggregate = prop_oneof![flat, spread].prop_map(|(count, sum, min, max)| Aggregate {
            count,
            sum,
            min,
            max,
        });
        let metrics = proptest::collection::btree_map(any::<u16>(), aggregate, 0..40);
        (row(), metrics).prop_map(|(mut row, metrics)| {
            row.metrics
                .extend(metrics.into_iter().map(|(id, it)| (MetricId(id), it)));
            row
        })
    }

    proptest! {
        #[test]
        fn a_packed_row_unpacks_to_itself(row in any_row()) {
            let bytes = row.pack();
            prop_assert!(bytes.len() <= MAX_PACKED_BYTES);
            prop_assert_eq!(MinuteRow::unpack(&bytes), Ok(row));
        }

        #[test]
        fn any_bytes_unpack_to_a_row_or_an_error(mut bytes: Vec<u8>, with_version: bool) {
            if let (true, Some(first)) = (with_version, bytes.first_mut()) {
                *first = VERSION;
            }
            if let Ok(row) = MinuteRow::unpack(&bytes) {
                prop_assert_eq!(MinuteRow::unpack(&row.pack()), Ok(row));
            }
        }

        #[test]
        fn a_cut_row_is_an_error(row in row(), cut in 1_usize..30) {
            let bytes = row.pack();
            let kept = bytes.len().saturating_sub(cut);
            prop_assert!(MinuteRow::unpack(&bytes[..kept]).is_err());
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        use UnpackError::{Empty, NotFinite, OutOfRange, Trailing, Truncated, Version};
        let check = |bytes: &[u8], expected: UnpackError| {
            assert_eq!(MinuteRow::unpack(bytes), Err(expected), "{bytes:?}");
        };
        check(&[], Empty);
        check(&[9], Version { found: 9 });
        let what = "bitmap codes";
        check(&[1], Truncated { what, at: 1 });
        check(&[1, 0x80, 0x40], OutOfRange { what, at: 3 });
        let what = "bitmap code of observed";
        check(&[1, 2, 0, 0], OutOfRange { what, at: 2 });
        let what = "number of metrics";
        check(&[1, 0, 6, 0x81, 0x04], OutOfRange { what, at: 5 });
        let what = "step between metric numbers";
        check(&[1, 0, 6, 1, 0, 0], OutOfRange { what, at: 5 });
        let what = "metric number";
        check(
            &[1, 0, 6, 1, 0xff, 0xff, 0xff, 1, 0],
            OutOfRange { what, at: 8 },
        );
        let what = "common count";
        check(&[1, 0, 0, 1, 8, 0], OutOfRange { what, at: 5 });
        let what = "count";
        check(&[1, 0, 6, 1, 12, 0, 0], OutOfRange { what, at: 6 });
        let what = "count of added values";
        check(&[1, 0, 61, 1, 9, 0], OutOfRange { what, at: 6 });
        let what = "value";
        check(&[1, 0, 6, 1, 8, 0x80], Truncated { what, at: 6 });
        // Eleven bytes of a number, and a number that is longer than it needs to be.
        check(
            &[[1, 0, 6, 1, 8].as_slice(), &[0xff; 11]].concat(),
            OutOfRange { what, at: 15 },
        );
        check(&[1, 0, 6, 1, 8, 0x80, 0], OutOfRange { what, at: 7 });
        check(&[1, 0, 6, 1, 8, 0xfe, 0x1f], NotFinite { metric: 0 });
        check(&[1, 0, 0, 0, 7, 7], Trailing { left: 2 });
    }

    /// One H200 in training: what the catalog keeps of it, as six ticks of a minute tell it.
    fn typical_row() -> MinuteRow {
        use crate::catalog::{Kind, Unit, gpu};
        let mut row = MinuteRow::default();
        for (metric, bits) in [(1, ALL_SECONDS), (2, ALL_SECONDS >> 3), (4, ALL_SECONDS)] {
            row.bitmaps.set(MetricId(metric), bits);
        }
        row.bitmaps.set(gpu::HOLDER_KNOWN.id, ALL_SECONDS);
        let kept = gpu::ALL
            .iter()
            .filter(|it| it.in_minutes && it.kind != Kind::SecondBits);
        let mut varying = 0;
        for metric in kept {
            let varies = varying < 12 && metric.kind == Kind::Gauge || metric.id == gpu::ENERGY.id;
            varying += u32::from(varies);
            for tick in 0..6 {
                // Ten one-second samples in the unit the driver gives (mW, percent, °C, MiB).
                let step = if metric.unit == Unit::Ratio {
                    0.01
                } else {
                    0.001
                };
                let sample = |second: i32| {
                    f64::from(57_000 + (tick * 7_919 + second * 104_729) % 3_001) * step
                };
                let mean = (0..10).map(sample).sum::<f64>() / 10.0;
                let point = match (metric.kind, varies) {
                    (Kind::Counter, true) => {
                        Aggregate::of_counter(8.1e9 + f64::from(tick) * 6_987.123, 6_987.123)
                    }
                    (Kind::Counter, false) => Aggregate::of_counter(0.0, 0.0),
                    (_, true) => {
                        Aggregate::of_gauge(mean, metric.with_max.then(|| sample(9).max(mean)))
                    }
                    (_, false) => Aggregate::of_gauge(700.0, None),
                };
                row.add(metric.id, point.expect("finite"));
            }
        }
        assert_eq!(varying, 12);
        row
    }

    #[test]
    fn every_metric_that_is_kept_with_12_varying_fits_300_bytes() {
        let bytes = typical_row().pack().len();
        assert!(bytes <= 300, "{bytes} bytes, {} a GPU-day", bytes * 1440);
    }
}

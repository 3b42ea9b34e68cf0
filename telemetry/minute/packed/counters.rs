//! The counters of a packed row.
//!
//! ```text
//! how many
//! common cover      only when there is one: the moments from and to of those that do not say their own
//! per counter, by rising number:
//!   header          (number − number before) << 4 | own cover << 3 | own count << 2 | shape
//!   count           only when the header says so
//!   from, to        only when the header says so
//!   values          shape 0: v, with first = last = v and lost = 0
//!                   shape 1: first, bits of last − bits of first, with lost = 0
//!                   shape 2: first, last, with lost = 0
//!                   shape 3: first, last, lost, how many runs more, and of each of them
//!                            from, to, first, last, lost
//! ```
//! A moment is its seconds × 2 where it is a whole second, else its milliseconds × 2 + 1. Bits of a
//! number that grew by little are a small number more.

use super::number::{Input, length};
use super::{MAX_METRICS, UnpackError, most_common, own_or_common, step, stepped};
use crate::catalog::MetricId;
use crate::minute::ByMetric;
use crate::minute::counter::{Counter, MAX_MOMENT, MAX_RUNS, Run};
use crate::varint::put;

/// Longest this part can be.
pub(super) const MAX_BYTES: usize = 2 + 6 + MAX_METRICS * (3 + 5 + 2 + MAX_RUNS * (6 + 3 * 10));

pub(super) fn pack(counters: &ByMetric<Counter>, common: u32, out: &mut Vec<u8>) {
    let many = counters.len().min(MAX_METRICS);
    put(many as u64, out);
    let covers = counters.values().map(|it| (it.runs[0].from, it.runs[0].to));
    let Some(cover) = most_common(covers) else {
        return;
    };
    put_moment(cover.0, out);
    put_moment(cover.1, out);
    let mut before = 0;
    for (metric, counter) in counters.iter().take(many) {
        let step = step(&mut before, *metric);
        pack_counter(step, common, cover, counter, out);
    }
}

fn pack_counter(step: u64, common: u32, cover: (u32, u32), counter: &Counter, out: &mut Vec<u8>) {
    let run = counter.runs[0];
    let (first, last) = (run.first.to_bits(), run.last.to_bits());
    let grown = last.checked_sub(first);
    let is_short = |grown| length(grown) <= length(last.reverse_bits());
    let shape = match grown {
        _ if run.lost != 0.0 || counter.runs.len() > 1 => 3,
        Some(0) => 0,
        Some(grown) if is_short(grown) => 1,
        _ => 2,
    };
    let own_cover = (run.from, run.to) != cover;
    let own_count = counter.count != common;
    let flags = u64::from(own_cover) << 3 | u64::from(own_count) << 2;
    put(step << 4 | flags | shape, out);
    if own_count {
        put(u64::from(counter.count), out);
    }
    if own_cover {
        put_moment(run.from, out);
        put_moment(run.to, out);
    }
    put(first.reverse_bits(), out);
    match shape {
        0 => {}
        1 => put(grown.unwrap_or(0), out),
        2 => put(last.reverse_bits(), out),
        _ => {
            put(last.reverse_bits(), out);
            put(run.lost.to_bits().reverse_bits(), out);
            put(counter.runs.len() as u64 - 1, out);
            for run in &counter.runs[1..] {
                put_moment(run.from, out);
                put_moment(run.to, out);
                for value in [run.first, run.last, run.lost] {
                    put(value.to_bits().reverse_bits(), out);
                }
            }
        }
    }
}

pub(super) fn unpack(input: &mut Input<'_>, common: u32) -> Result<ByMetric<Counter>, UnpackError> {
    let many = input.number("number of counters", MAX_METRICS as u64)?;
    let mut counters = ByMetric::with_capacity(many as usize);
    if many == 0 {
        return Ok(counters);
    }
    let cover = cover(input)?;
    let mut next = 0;
    for _ in 0..many {
        let (metric, counter) = unpack_counter(input, &mut next, common, cover)?;
        counters.insert(metric, counter);
    }
    Ok(counters)
}

fn unpack_counter(
    input: &mut Input<'_>,
    next: &mut u64,
    common: u32,
    common_cover: (u32, u32),
) -> Result<(MetricId, Counter), UnpackError> {
    let header = input.number("counter header", u64::MAX)?;
    let metric = stepped(input, next, header >> 4)?;
    let count = own_or_common(input, header, common)?;
    let cover_of_first = match header >> 3 & 1 {
        1 => cover(input)?,
        _ => common_cover,
    };
    let first = total(input, metric)?;
    let (last, lost) = match header & 3 {
        0 => (first, 0.0),
        1 => {
            let grown = input.number("growth of a counter", u64::MAX)?;
            let last = f64::from_bits(first.to_bits().saturating_add(grown));
            if !last.is_finite() {
                return Err(UnpackError::NotFinite { metric });
            }
            (last, 0.0)
        }
        2 => (total(input, metric)?, 0.0),
        _ => (total(input, metric)?, total(input, metric)?),
    };
    let mut runs = vec![run(cover_of_first, first, last, lost)];
    if header & 3 == 3 {
        let more = input.number("number of runs", MAX_RUNS as u64 - 1)?;
        let mut end = cover_of_first.1;
        for _ in 0..more {
            let cover = cover(input)?;
            if cover.0 <= end {
                return Err(input.out_of_range("order of runs"));
            }
            end = cover.1;
            let first = total(input, metric)?;
            let last = total(input, metric)?;
            runs.push(run(cover, first, last, total(input, metric)?));
        }
    }
    Ok((MetricId(metric), Counter { count, runs }))
}

fn run((from, to): (u32, u32), first: f64, last: f64, lost: f64) -> Run {
    Run {
        from,
        to,
        first,
        last,
        lost,
    }
}

/// A value that is not negative; −0 is.
fn total(input: &mut Input<'_>, metric: u16) -> Result<f64, UnpackError> {
    let value = input.value(metric)?;
    if value.is_sign_negative() {
        return Err(input.out_of_range("value of a counter"));
    }
    Ok(value)
}

fn put_moment(millis: u32, out: &mut Vec<u8>) {
    let seconds = millis / 1_000;
    let is_whole = seconds * 1_000 == millis;
    put(
        u64::from(if is_whole {
            seconds << 1
        } else {
            millis << 1 | 1
        }),
        out,
    );
}

/// From and to of a run.
fn cover(input: &mut Input<'_>) -> Result<(u32, u32), UnpackError> {
    let mut moment = || {
        let what = "moment of a counter";
        let raw = input.number(what, u64::from(MAX_MOMENT) << 1)?;
        let is_millis = raw & 1 == 1;
        let millis = if is_millis {
            raw >> 1
        } else {
            (raw >> 1) * 1_000
        };
        if millis > u64::from(MAX_MOMENT) || is_millis && millis % 1_000 == 0 {
            return Err(input.out_of_range(what));
        }
        Ok(millis as u32)
    };
    let (from, to) = (moment()?, moment()?);
    if from > to {
        return Err(input.out_of_range("moment of a counter"));
    }
    Ok((from, to))
}

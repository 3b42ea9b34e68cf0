//! What a GPU drew in each second of an hour, by its energy counter.
//!
//! Method. The counter's points, those of the minutes and the last one that the hour before handed over, are a
//! line: from point to point energy follows time, and a second has what the line grew by in it. So the seconds
//! of neighbouring hours add up to the counter's growth exactly. After a reset it counts from zero.
//!
//! Numbers. Millijoules, as the driver counts. Pauses of up to [`MAX_PAUSE_MS`] (5 minutes, as far as an hour
//! looks ahead) have what the counter grew by in them.
//!
//! Limits. Over a longer pause, and where it grew by more than any card draws ([`MAX_WATTS`]), what was drawn is not
//! told. Within a minute only how much was drawn is known: a change of holder in it divides that by time.

use std::collections::BTreeMap;

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::minute::{MinuteRow, Stretch};
use gpufleet_telemetry::time::Minute;
use serde::{Deserialize, Serialize};

use super::{HOUR_S, LOOKAHEAD_MINUTES};
use crate::ledger::{Energy, MILLIS_PER_HOUR};

/// Longest time between two points of which it is said what was drawn, ms.
const MAX_PAUSE_MS: i64 = LOOKAHEAD_MINUTES * 60_000;

/// More than any card draws, watts: a counter that grew faster was not one counter.
const MAX_WATTS: i64 = 20_000;

/// What the counter said at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Point {
    /// Unix milliseconds.
    at_ms: i64,
    /// Its raw value, millijoules.
    millijoules: i64,
}

/// A straight line of the counter: two points, and what it grew by between them.
#[derive(Debug, Clone, Copy)]
struct Line {
    from_ms: i64,
    until_ms: i64,
    growth: i64,
}

/// What was drawn in an hour.
#[derive(Debug)]
pub(super) struct Meter {
    start_ms: i64,
    points: Vec<Point>,
    seconds: Vec<Energy>,
}

impl Meter {
    /// Reads the hour's counter.
    pub(super) fn read(
        hour: i64,
        minutes: &BTreeMap<Minute, MinuteRow>,
        before: Option<Point>,
    ) -> Self {
        let mut meter = Self {
            start_ms: hour * MILLIS_PER_HOUR,
            points: before.into_iter().collect(),
            seconds: Vec::new(),
        };
        let range = Minute(hour * 60)..Minute((hour + 1) * 60 + LOOKAHEAD_MINUTES);
        for (minute, row) in minutes.range(range) {
            let Some(counter) = row.counters.get(&gpu::ENERGY.id) else {
                continue;
            };
            for stretch in counter.stretches() {
                meter.take(minute.start().millis(), stretch);
            }
        }
        meter
    }

    fn take(&mut self, minute_ms: i64, stretch: Stretch) {
        let point = |at: u32, joules: f64| Point {
            at_ms: minute_ms + i64::from(at),
            // Beyond what a number holds it stays at that: then it does not grow.
            millijoules: (joules * 1_000.0).round() as i64,
        };
        let first = point(stretch.from, stretch.first);
        if let Some(before) = self.points.last().copied() {
            let grown = first.millijoules - before.millijoules;
            let growth = if grown < 0 { first.millijoules } else { grown };
            self.draw(before, first, growth);
        }
        let last = point(stretch.to, stretch.last);
        let straight = last.millijoules - first.millijoules;
        let growth = match straight {
            0.. => straight,
            _ => (stretch.growth * 1_000.0).round() as i64,
        };
        self.draw(first, last, growth);
        self.points.push(last);
    }

    /// Gives the seconds from one point to another what the counter grew by.
    fn draw(&mut self, from: Point, until: Point, growth: i64) {
        let line = Line {
            from_ms: from.at_ms,
            until_ms: until.at_ms,
            growth,
        };
        let length = line.until_ms - line.from_ms;
        let is_plain = (1..=MAX_PAUSE_MS).contains(&length) && growth / length <= MAX_WATTS;
        if !is_plain {
            return;
        }
        self.seconds.resize(HOUR_S, Energy::default());
        let first = (line.from_ms - self.start_ms).div_euclid(1_000).max(0);
        let end = (line.until_ms - self.start_ms + 999).div_euclid(1_000);
        for second in first..end.min(HOUR_S as i64) {
            let begin = self.start_ms + second * 1_000;
            let (from, until) = (begin.max(line.from_ms), (begin + 1_000).min(line.until_ms));
            let energy = Energy {
                millijoules: line.until(until) - line.until(from),
                metered_millis: until - from,
            };
            self.seconds[second as usize].add(energy);
        }
    }

    /// What was drawn in a second of the hour.
    pub(super) fn of_second(&self, second: usize) -> Energy {
        self.seconds.get(second).copied().unwrap_or_default()
    }

    /// The last point up to the end of this second of the hour, if the next hour can go on from it.
    pub(super) fn last(&self, second: usize) -> Option<Point> {
        let end_ms = self.start_ms + (second as i64 + 1) * 1_000;
        let mut points = self.points.iter().rev();
        let last = points.find(|it| it.at_ms <= end_ms)?;
        (end_ms - last.at_ms <= MAX_PAUSE_MS).then_some(*last)
    }
}

impl Line {
    /// What was drawn on it up to a moment, rounded so that it is the same in whichever hour it is asked for.
    fn until(&self, moment_ms: i64) -> i64 {
        let (part, whole) = (moment_ms - self.from_ms, self.until_ms - self.from_ms);
        let drawn = i128::from(self.growth) * i128::from(part) / i128::from(whole);
        i64::try_from(drawn).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests;

//! One metric of one resource or part: which reader it is taken from, and what a tick makes of it.

use std::time::Duration;

use gpufleet_telemetry::catalog::{Cadence, Kind, Metric};
use gpufleet_telemetry::identity::Part;
use gpufleet_telemetry::sample::{Missing, Reading};
use gpufleet_telemetry::tick::PointValue;
use gpufleet_telemetry::time::Timestamp;

use super::nanos;

/// How long a reading stands after it was taken, at least: three samples.
const FRESH_AT_LEAST: Duration = Duration::from_secs(3);

/// How long a reading stands whose rhythm is slow, or not known yet: the slowest are read every
/// 60 s, and may be missed once.
const FRESH_SLOW: Duration = Duration::from_secs(150);

/// A reading stands for so many of the gaps between the last two: some are taken in turns, every
/// 7 s or every 45 s, though their reader works every second.
const FRESH_GAPS: i64 = 3;

/// One reader's word about a metric.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word {
    /// Which reader.
    pub(super) reader: usize,
    /// Its rank: lower is believed before higher.
    pub(super) rank: u8,
    /// How often it reads.
    pub(super) period: Duration,
    /// The moment of the reading.
    pub(super) at: Timestamp,
    /// The reading, already checked by [`checked`].
    pub(super) reading: Reading,
}

#[derive(Debug)]
pub(super) struct Series {
    pub(super) metric: &'static Metric,
    pub(super) part: Option<Part>,
    /// The reader it is taken from.
    pub(super) producer: usize,
    rank: u8,
    fresh: i64,
    pub(super) last: Reading,
    pub(super) at: Timestamp,
    valid_at: Timestamp,
    /// When a counter began, as far as is known.
    since: Timestamp,
    sum: f64,
    count: u32,
    max: f64,
    touched: bool,
}

/// A reading that its metric can have: a number, and no negative total.
pub(super) fn checked(metric: &Metric, reading: Reading) -> Reading {
    match reading {
        Ok(value) if !value.is_finite() || (metric.kind == Kind::Counter && value < 0.0) => {
            Err(Missing::Invalid)
        }
        other => other,
    }
}

impl Series {
    pub(super) fn new(metric: &'static Metric, part: Option<Part>, word: Word) -> Self {
        let mut series = Self {
            metric,
            part,
            producer: word.reader,
            rank: word.rank,
            fresh: 0,
            last: word.reading,
            at: word.at,
            valid_at: Timestamp(i64::MIN),
            since: word.at,
            sum: 0.0,
            count: 0,
            max: f64::NEG_INFINITY,
            touched: false,
        };
        series.take(word);
        series
    }

    /// Hears a reader; takes its word if it is the producer or has become it.
    pub(super) fn hear(&mut self, word: Word) {
        if word.reader != self.producer {
            let silent = word.at.since(self.valid_at) > self.fresh;
            let better = word.reading.is_ok() && (word.rank < self.rank || silent);
            if !better {
                return;
            }
            // Two sources in one mean, or in one total, would be a number of neither.
            self.producer = word.reader;
            self.rank = word.rank;
            self.since = word.at;
            self.clear();
        }
        self.take(word);
    }

    fn take(&mut self, word: Word) {
        let slow = nanos(FRESH_SLOW.max(word.period * 3));
        let least = nanos(FRESH_AT_LEAST.max(word.period * 3));
        let gap = word.at.since(self.at);
        self.fresh = match self.metric.cadence {
            Cadence::Slow => slow,
            Cadence::Sample if gap <= 0 => self.fresh.max(slow),
            Cadence::Sample => gap.saturating_mul(FRESH_GAPS).clamp(least, slow),
        };
        if let Ok(value) = word.reading {
            if self.metric.kind == Kind::Counter && self.last.is_ok_and(|previous| value < previous)
            {
                // It went back: what counts begins here again.
                self.since = word.at;
            }
            self.sum += value;
            self.count += 1;
            self.max = self.max.max(value);
            self.valid_at = word.at;
        }
        if word.reading.is_ok() || self.count == 0 || self.metric.kind == Kind::Gauge {
            self.last = word.reading;
        }
        self.at = word.at;
        self.touched = true;
    }

    /// Nothing of it is from later than this moment: the clock went back.
    pub(super) fn turn_back(&mut self, now: Timestamp) {
        for moment in [&mut self.at, &mut self.valid_at, &mut self.since] {
            *moment = now.min(*moment);
        }
    }

    /// Whether the newest reading still stands at this moment.
    pub(super) fn is_fresh(&self, now: Timestamp) -> bool {
        now.since(self.at) <= self.fresh
    }

    /// What the tick says, if anything was read in it; the next tick begins.
    pub(super) fn close(&mut self) -> Option<PointValue> {
        let value = self.touched.then(|| self.point());
        self.clear();
        value
    }

    fn point(&self) -> PointValue {
        if self.count == 0 {
            return PointValue::Missing(self.last.err().unwrap_or(Missing::Unknown));
        }
        let last = self.last.unwrap_or(self.sum / f64::from(self.count));
        match self.metric.kind {
            Kind::Gauge => PointValue::Gauge {
                value: self.sum / f64::from(self.count),
                max: self.metric.with_max.then_some(self.max),
            },
            Kind::Last | Kind::SecondBits => PointValue::Gauge {
                value: last,
                max: None,
            },
            Kind::Counter => PointValue::Counter {
                value: last,
                since: self.since,
            },
        }
    }

    fn clear(&mut self) {
        self.sum = 0.0;
        self.count = 0;
        self.max = f64::NEG_INFINITY;
        self.touched = false;
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::catalog::gpu;

    use super::*;

    fn word(reader: usize, second: i64, reading: Reading) -> Word {
        Word {
            reader,
            rank: u8::try_from(reader).expect("small"),
            period: Duration::from_secs(1),
            at: Timestamp::from_seconds(second),
            reading,
        }
    }

    fn tick(metric: &'static Metric, words: &[(usize, i64, Reading)]) -> PointValue {
        let mut words = words
            .iter()
            .map(|(reader, second, reading)| word(*reader, *second, *reading));
        let mut series = Series::new(metric, None, words.next().expect("a word"));
        words.for_each(|word| series.hear(word));
        series.close().expect("something was read")
    }

    #[test]
    fn a_gauge_is_the_mean_of_its_valid_samples_and_a_total_its_last() {
        let gauge = tick(
            &gpu::POWER,
            &[
                (0, 1, Ok(100.0)),
                (0, 2, Err(Missing::Timeout)),
                (0, 3, Ok(300.0)),
            ],
        );
        let expected = PointValue::Gauge {
            value: 200.0,
            max: Some(300.0),
        };
        assert_eq!(gauge, expected);
        let counter = tick(
            &gpu::ENERGY,
            &[
                (0, 1, Ok(5.0)),
                (0, 2, Ok(9.0)),
                (0, 3, Err(Missing::Timeout)),
            ],
        );
        let expected = PointValue::Counter {
            value: 9.0,
            since: Timestamp::from_seconds(1),
        };
        assert_eq!(counter, expected);
    }

    #[test]
    fn a_tick_without_a_valid_sample_says_why() {
        let lost = tick(&gpu::POWER, &[(0, 1, Err(Missing::GpuLost))]);
        assert_eq!(lost, PointValue::Missing(Missing::GpuLost));
        let mut series = Series::new(&gpu::POWER, None, word(0, 1, Ok(1.0)));
        series.close();
        assert_eq!(series.close(), None, "nothing was read, so nothing is said");
    }

    #[test]
    fn a_total_that_went_back_counts_from_there() {
        let reset = tick(&gpu::ENERGY, &[(0, 1, Ok(50.0)), (0, 7, Ok(2.0))]);
        let expected = PointValue::Counter {
            value: 2.0,
            since: Timestamp::from_seconds(7),
        };
        assert_eq!(reset, expected);
    }

    #[test]
    fn the_better_source_is_believed_and_the_other_steps_in_where_it_has_nothing() {
        let value = |words: &[_]| match tick(&gpu::POWER, words) {
            PointValue::Gauge { value, .. } => value,
            other => panic!("{other:?}"),
        };
        assert_eq!(value(&[(0, 1, Ok(1.0)), (1, 1, Ok(9.0))]), 1.0);
        assert_eq!(value(&[(1, 1, Ok(9.0)), (0, 1, Ok(1.0))]), 1.0);
        assert_eq!(
            value(&[(0, 1, Err(Missing::NotSupported)), (1, 1, Ok(9.0))]),
            9.0
        );
        // A short failure of the better one is a gap, not a change of source.
        let held = [
            (0, 1, Ok(1.0)),
            (0, 2, Err(Missing::Timeout)),
            (1, 2, Ok(9.0)),
        ];
        assert_eq!(value(&held), 1.0);
        let gone = [(0, 1, Ok(1.0)), (0, 2, Ok(1.0)), (1, 6, Ok(9.0))];
        assert_eq!(value(&gone), 9.0);
    }

    #[test]
    fn a_reading_stands_as_long_as_its_rhythm_lets_the_next_one_come() {
        for (gap, stands, gone) in [(1, 3, 4), (7, 21, 22), (45, 135, 136), (900, 150, 151)] {
            let mut series = Series::new(&gpu::POWER, None, word(0, 0, Ok(1.0)));
            assert!(
                series.is_fresh(Timestamp::from_seconds(140)),
                "rhythm unknown"
            );
            series.hear(word(0, gap, Ok(1.0)));
            let fresh = |after| series.is_fresh(Timestamp::from_seconds(gap + after));
            assert!(fresh(stands) && !fresh(gone), "every {gap} s");
        }
    }

    #[test]
    fn what_no_metric_can_be_is_invalid() {
        for (metric, reading, expected) in [
            (&gpu::POWER, f64::NAN, Err(Missing::Invalid)),
            (&gpu::POWER, f64::INFINITY, Err(Missing::Invalid)),
            (&gpu::ENERGY, -1.0, Err(Missing::Invalid)),
            (&gpu::TEMPERATURE, -1.0, Ok(-1.0)),
        ] {
            assert_eq!(checked(metric, Ok(reading)), expected, "{reading}");
        }
    }
}

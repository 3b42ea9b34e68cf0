//! A minute row: what is kept of one GPU, share or node for one minute. Rows merge in any order.
//!
//! Five bitmaps with one bit a second, and one for each holder, merged by OR; per gauge count, sum, min and max, merged by
//! addition and comparison; per counter its runs, see [`counter`]: late, doubled (bitmaps) and
//! reordered data are harmless. Double counting of the sums is prevented by the cursors, not here.
//!
//! Gauges are rounded to 24 significant bits (1 part in 16 million) when they enter a row. So the
//! sum of a minute is exact in any order of addition, and a row packs into less than 300 bytes.
//! Counters keep all their bits. Packed form: see [`packed`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::catalog::{MetricId, gpu};
use crate::sorted::Sorted;
use crate::tick::MAX_TICK_SECONDS;
use crate::time::{Minute, SECONDS_PER_MINUTE, Timestamp};

pub mod counter;

pub mod packed;

pub use counter::{Counter, Meter, Stretch};
pub use packed::UnpackError;

/// What is kept of several metrics, by their numbers.
pub type ByMetric<T> = Sorted<MetricId, T>;

/// Most holders of one minute that are told apart: one each second. Who comes beyond that holds it as
/// somebody who is not known.
pub const MAX_HOLDERS: usize = SECONDS_PER_MINUTE as usize;

/// The bits of a bitmap that stand for the 60 seconds of a minute.
pub const ALL_SECONDS: u64 = (1 << SECONDS_PER_MINUTE) - 1;

/// One bit for each second of the minute, second 0 in bit 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bitmaps {
    /// A valid sample was taken.
    pub observed: u64,
    /// The engine was active.
    pub active: u64,
    /// Busy without work.
    pub stalled: u64,
    /// Someone held it.
    pub held: u64,
    /// It was known whether someone held it.
    pub holder_known: u64,
}

/// What is kept of one gauge, code or flag in one minute. All numbers are finite and `count` is at
/// least 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Aggregate {
    /// How many points went in.
    pub count: u32,
    /// Their sum.
    pub sum: f64,
    /// The least of them.
    pub min: f64,
    /// The greatest of them.
    pub max: f64,
}

/// One minute of one resource.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MinuteRow {
    /// Evidence by second.
    pub bitmaps: Bitmaps,
    /// Gauges by metric number; only metrics that the catalog keeps in minutes.
    pub metrics: ByMetric<Aggregate>,
    /// Counters by metric number; only metrics that the catalog keeps in minutes.
    pub counters: ByMetric<Counter>,
    /// In which seconds who held it, by the number of the holder, above 0; at most [`MAX_HOLDERS`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub holders: BTreeMap<i64, u64>,
}

impl MinuteRow {
    /// Takes in what another part of the same minute says.
    pub fn merge(&mut self, other: &Self) {
        self.bitmaps.merge(&other.bitmaps);
        for (holder, seconds) in &other.holders {
            self.hold(*holder, *seconds);
        }
        for (metric, aggregate) in &other.metrics {
            self.add(*metric, *aggregate);
        }
        for (metric, counter) in &other.counters {
            self.add_counter(*metric, counter);
        }
    }

    /// Takes in one gauge's aggregate.
    pub fn add(&mut self, metric: MetricId, aggregate: Aggregate) {
        self.metrics.add(metric, aggregate, Aggregate::merge);
    }

    /// Takes in points of one counter.
    pub fn add_counter(&mut self, metric: MetricId, counter: &Counter) {
        match self.counters.get_mut(&metric) {
            Some(known) => known.merge(counter),
            None => _ = self.counters.insert(metric, counter.clone()),
        }
    }

    /// Takes in the seconds in which somebody held it; bits beyond second 59 are left out.
    pub fn hold(&mut self, holder: i64, seconds: u64) {
        let seconds = seconds & ALL_SECONDS;
        let is_full = self.holders.len() >= MAX_HOLDERS && !self.holders.contains_key(&holder);
        if holder > 0 && seconds != 0 && !is_full {
            *self.holders.entry(holder).or_default() |= seconds;
        }
    }

    /// The number of who held it for most of its seconds, of several with as many the lowest; none where nobody is
    /// known to have held it.
    pub fn held_most_by(&self) -> Option<i64> {
        let holders = self.holders.iter();
        let longest = holders
            .max_by_key(|(number, seconds)| (seconds.count_ones(), std::cmp::Reverse(**number)));
        longest.map(|it| *it.0)
    }

    /// Whether nothing is known of this minute.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Bitmaps {
    /// Takes in the seconds that another part of the same minute knows.
    pub fn merge(&mut self, other: &Self) {
        for (known, more) in self.all_mut().into_iter().zip(other.all()) {
            *known |= more;
        }
    }

    /// Sets seconds of the bitmap that this evidence metric stands for; bits beyond second 59 are
    /// left out. False when the metric is not evidence.
    pub fn set(&mut self, metric: MetricId, bits: u64) -> bool {
        let known = match metric {
            id if id == gpu::OBSERVED.id => &mut self.observed,
            id if id == gpu::ACTIVE.id => &mut self.active,
            id if id == gpu::STALLED.id => &mut self.stalled,
            id if id == gpu::HELD.id => &mut self.held,
            id if id == gpu::HOLDER_KNOWN.id => &mut self.holder_known,
            _ => return false,
        };
        *known |= bits & ALL_SECONDS;
        true
    }

    /// The five bitmaps in the order of their metric numbers.
    pub const fn all(&self) -> [u64; 5] {
        [
            self.observed,
            self.active,
            self.stalled,
            self.held,
            self.holder_known,
        ]
    }

    fn all_mut(&mut self) -> [&mut u64; 5] {
        [
            &mut self.observed,
            &mut self.active,
            &mut self.stalled,
            &mut self.held,
            &mut self.holder_known,
        ]
    }
}

impl Aggregate {
    /// One point of a gauge, code or flag; with the greatest sample behind it where the tick
    /// carries one. None when a number is not finite.
    pub fn of_gauge(value: f64, max: Option<f64>) -> Option<Self> {
        let value = rounded(value);
        let max = max.map_or(value, rounded);
        (value.is_finite() && max.is_finite()).then_some(Self {
            count: 1,
            sum: value,
            min: value,
            max: if max.total_cmp(&value).is_lt() {
                value
            } else {
                max
            },
        })
    }

    /// The mean of a gauge's points.
    pub fn mean(&self) -> f64 {
        self.sum / f64::from(self.count.max(1))
    }

    /// Takes in more points of the same metric and minute.
    pub fn merge(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.sum = (self.sum + other.sum).clamp(f64::MIN, f64::MAX);
        // total_cmp and not f64::min, so that the order of merging cannot show in a zero's sign.
        if other.min.total_cmp(&self.min).is_lt() {
            self.min = other.min;
        }
        if other.max.total_cmp(&self.max).is_gt() {
            self.max = other.max;
        }
    }
}

/// To 24 significant bits; as it is where f32 has no room for it.
fn rounded(value: f64) -> f64 {
    let short = f64::from(value as f32);
    if short.is_finite() { short } else { value }
}

/// The second bits of a tick, laid out on the minutes it touches: bit 0 is the second in which
/// `start` lies. A tick of up to 60 s touches at most two minutes; seconds beyond
/// [`MAX_TICK_SECONDS`] and minutes without a set bit are left out.
pub fn seconds_by_minute(
    start: Timestamp,
    seconds: u32,
    bits: u64,
) -> impl Iterator<Item = (Minute, u64)> {
    let seconds = seconds.min(MAX_TICK_SECONDS);
    let bits = bits & ALL_SECONDS & !(u64::MAX << seconds);
    let first = start.second_of_minute();
    let minute = start.minute();
    let here = (bits << first) & ALL_SECONDS;
    let next = bits >> (SECONDS_PER_MINUTE - first);
    [(minute, here), (Minute(minute.0 + 1), next)]
        .into_iter()
        .filter(|(_, bits)| *bits != 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Rows as the server makes them: points of a few metrics, and any bitmaps. Counters lie in this
    /// third of the minute: a point of a counter never comes twice.
    pub(super) fn row(third: u32) -> impl Strategy<Value = MinuteRow> {
        let point = (
            1_u16..700,
            -1e9_f64..1e9,
            proptest::option::of(0.0_f64..1e9),
        );
        let bits = proptest::array::uniform5(0..=ALL_SECONDS);
        let holders = proptest::collection::vec((1_i64.., 0..=ALL_SECONDS), 0..3);
        let points = proptest::collection::vec(point, 0..40);
        (bits, points, holders).prop_map(move |(bits, points, holders)| {
            let mut row = MinuteRow::default();
            for (holder, seconds) in holders {
                row.hold(holder, seconds);
            }
            for (metric, bits) in (1..=5).zip(bits) {
                row.bitmaps.set(MetricId(metric), bits);
            }
            for (place, (metric, value, max)) in (0..).zip(points) {
                let point = Aggregate::of_gauge(value, max).expect("finite");
                row.add(MetricId(metric), point);
                let at = third * 20_000 + place * 7_000;
                let counter = Counter::point(value.abs(), at, at + 7_000).expect("finite");
                if place < 2 {
                    row.add_counter(MetricId(metric % 3), &counter);
                }
            }
            row
        })
    }

    #[test]
    fn a_minute_is_of_whoever_held_it_for_most_of_its_seconds() {
        let mut row = MinuteRow::default();
        assert_eq!(row.held_most_by(), None);
        row.hold(9, 0b1);
        assert_eq!(row.held_most_by(), Some(9));
        row.hold(4, 0b110);
        row.hold(7, 0b11_0000);
        assert_eq!(
            row.held_most_by(),
            Some(4),
            "of two with as many the lowest"
        );
    }

    fn merged(rows: &[&MinuteRow]) -> MinuteRow {
        let mut all = MinuteRow::default();
        rows.iter().for_each(|row| all.merge(row));
        all
    }

    proptest! {
        #[test]
        fn rows_merge_in_any_order(a in row(0), b in row(1), c in row(2)) {
            let forwards = merged(&[&a, &b, &c]);
            prop_assert_eq!(&forwards, &merged(&[&c, &a, &b]));
            prop_assert_eq!(&forwards, &merged(&[&a, &merged(&[&b, &c])]));
        }

        #[test]
        fn the_seconds_of_a_tick_land_on_their_own_seconds(
            start in 0_i64..10_000, nanos in 0_i64..1_000_000_000, length in 1_u32..=60, bits: u64,
        ) {
            let begin = Timestamp(Timestamp::from_seconds(start).0 + nanos);
            let found: Vec<_> = seconds_by_minute(begin, length, bits).collect();
            prop_assert!(found.len() <= 2);
            for second in 0..120_u32 {
                let at = Timestamp::from_seconds(start + i64::from(second));
                let is_set = found.iter().any(|(minute, bits)| {
                    *minute == at.minute() && bits >> at.second_of_minute() & 1 == 1
                });
                prop_assert_eq!(is_set, second < length && bits >> second & 1 == 1, "{}", second);
            }
        }
    }

    #[test]
    fn a_row_merged_twice_keeps_its_bitmaps_and_counts_its_points_twice() {
        let mut row = MinuteRow::default();
        assert!(row.bitmaps.set(gpu::HELD.id, u64::MAX));
        assert!(!row.bitmaps.set(gpu::POWER.id, 1));
        row.add(
            gpu::POWER.id,
            Aggregate::of_gauge(300.0, Some(310.0)).expect("finite"),
        );
        let again = row.clone();
        row.merge(&again);
        assert_eq!(row.bitmaps, again.bitmaps);
        assert_eq!(row.bitmaps.held, ALL_SECONDS);
        let power = row.metrics[&gpu::POWER.id];
        assert_eq!(
            (power.count, power.sum, power.min, power.max),
            (2, 600.0, 300.0, 310.0)
        );
        assert_eq!(power.mean(), 300.0);
    }

    #[test]
    fn what_is_not_finite_never_enters_a_row() {
        for (value, max) in [
            (f64::NAN, None),
            (f64::INFINITY, None),
            (1.0, Some(f64::NAN)),
        ] {
            assert_eq!(Aggregate::of_gauge(value, max), None, "{value} {max:?}");
        }
        let mut most = Aggregate::of_gauge(f64::MAX, None).expect("finite");
        most.merge(&most.clone());
        assert_eq!(most.sum, f64::MAX);
    }

    #[test]
    fn counters_keep_every_bit_and_gauges_seven_digits() {
        let raw = 9_007_199_254_740_991.0;
        assert_eq!(Counter::point(raw, 0, 1).expect("finite").last(), raw);
        let gauge = Aggregate::of_gauge(698.123_456_789, None).expect("finite");
        assert!((gauge.sum - 698.123_456_789).abs() < 698.0 * 6e-8);
        let huge = Aggregate::of_gauge(1e300, None).expect("finite");
        assert_eq!(huge.sum, 1e300);
    }
}

//! What the counters of one GPU did lately: parts of the last minutes that it was slowed down, and
//! memory errors of the last hour.
//!
//! Method: a part is a rate that forgets, with time constant [`MEMORY_S`], moved on by each reading of
//! a counter. What did not grow for [`OVER_S`] is over, however large its rate still is: it ended, it
//! did not fade. Errors are counted, in twelve buckets of five minutes, because a burst of six is six
//! and not seventy an hour. A counter that went back was reset and says nothing that once; of errors it
//! also says that the card was made whole.
//!
//! Nothing is known of a counter before two readings that follow each other, and when the newest is
//! older than [`GAP_S`]: a reading that is gone is not a 0.
//!
//! Limits: 32 bytes a GPU for each part and [`ERRORS_BYTES`] for each kind of error; of errors 65,535 in five
//! minutes at most. Errors before the server started are not counted.

use gpufleet_analysis::health::MEMORY_S;
use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::seconds_since;
use crate::fleet::{Live, LiveValue};

/// Over how long a part is meant that is to explain what is slow now, seconds.
const NOW_S: f64 = 30.0;

/// A counter that did not grow for this long is at rest, seconds.
const OVER_S: f64 = 60.0;

/// Two readings further apart than this are not joined, seconds: what lies between is not known.
pub(super) const GAP_S: f64 = 120.0;

/// Buckets of an hour.
const BUCKETS: usize = 12;

/// How long a bucket is, seconds.
const BUCKET_S: u32 = 3_600 / BUCKETS as u32;

/// One counter.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    last: f64,
    /// When that was; the beginning of 1970 before the first reading.
    at: Timestamp,
    /// Growth a second over the last minutes.
    rate: f32,
    /// The same over the last seconds.
    now: f32,
    /// Seconds since 1970, rounded up.
    grew_at_s: u32,
    /// Whether the newest reading followed one before it.
    is_joined: bool,
}

/// What a reading of a counter said.
#[derive(Debug, Clone, Copy, PartialEq)]
enum CounterStep {
    /// Nothing: there was none, or none before it.
    Nothing,
    /// It grew by so much, which may be 0.
    Grew(f64),
    /// It began anew.
    Reset,
}

/// Errors of the last hour.
#[derive(Debug, Clone, Copy, Default)]
struct Hour {
    buckets: [u16; BUCKETS],
    /// The number of the newest bucket, since 1970.
    newest: u32,
}

/// Errors of one kind.
#[derive(Debug, Clone, Copy, Default)]
struct Errors {
    counted: Counted,
    hour: Hour,
}

/// Most bytes that are kept of a GPU's errors of one kind.
const ERRORS_BYTES: usize = 64;
const _: () = assert!(size_of::<Errors>() <= ERRORS_BYTES && size_of::<Counted>() <= 32);

/// What is counted of a GPU, in the catalog's order.
const COUNTED: [&Metric; 6] = [
    &gpu::THROTTLE_POWER,
    &gpu::THROTTLE_THERMAL,
    &gpu::THROTTLE_BOARD_LIMIT,
    &gpu::HARDWARE_SLOWDOWNS,
    &gpu::ECC_CORRECTED_VOLATILE,
    &gpu::ECC_UNCORRECTED_VOLATILE,
];

/// What is kept of one GPU.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Watch {
    heat: Counted,
    brake: Counted,
    cap: Counted,
    slowdowns: Counted,
    corrected: Errors,
    uncorrected: Errors,
    /// What was ever readable.
    had: Readable,
}

/// What the counters say now. None is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) heat_part: Option<f64>,
    pub(super) brake_part: Option<f64>,
    pub(super) cap_part: Option<f64>,
    /// How often the hardware begins to slow it down.
    pub(super) slowdowns_per_minute: Option<f64>,
    /// The same three over the last seconds.
    pub(super) heat_now: Option<f64>,
    pub(super) brake_now: Option<f64>,
    pub(super) cap_now: Option<f64>,
    /// Errors of the last hour.
    pub(super) corrected: Option<u64>,
    pub(super) uncorrected: Option<u64>,
}

/// A set of readings that say whether a GPU is well, one bit each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Readable(u16);

impl Readable {
    pub(super) const HEAT_PART: Self = Self(1);
    pub(super) const TEMPERATURE: Self = Self(1 << 1);
    pub(super) const BRAKE_PART: Self = Self(1 << 2);
    pub(super) const CAP_PART: Self = Self(1 << 3);
    pub(super) const POWER: Self = Self(1 << 4);
    pub(super) const CORRECTED: Self = Self(1 << 5);
    pub(super) const UNCORRECTED: Self = Self(1 << 6);
    pub(super) const REMAP: Self = Self(1 << 7);
    pub(super) const PCIE: Self = Self(1 << 8);
    pub(super) const NVLINK: Self = Self(1 << 9);
    pub(super) const MEMORY: Self = Self(1 << 10);
    pub(super) const SLOWDOWNS: Self = Self(1 << 11);

    pub(super) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those of it that are also in the other.
    pub(super) const fn within(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// This one, if it is so.
    pub(super) const fn when(self, is_so: bool) -> Self {
        if is_so { self } else { Self(0) }
    }
}

impl Counted {
    /// Takes in a reading with its time; none while it is gone.
    fn read(&mut self, read: Option<(f64, Timestamp)>) -> CounterStep {
        let Some((value, at)) = read else {
            self.is_joined = false;
            return CounterStep::Nothing;
        };
        let (before, then) = (self.last, self.at);
        if then == Timestamp::default() {
            (self.last, self.at) = (value, at);
            return CounterStep::Nothing;
        }
        let seconds = seconds_since(at, then);
        if seconds <= 0.0 {
            return CounterStep::Nothing;
        }
        (self.last, self.at) = (value, at);
        let growth = value - before;
        self.is_joined = growth >= 0.0 && seconds <= GAP_S;
        if !self.is_joined {
            (self.rate, self.now) = (0.0, 0.0);
            return if growth < 0.0 {
                CounterStep::Reset
            } else {
                CounterStep::Nothing
            };
        }
        let moved = |rate: f32, memory_s: f64| {
            let weight = 1.0 - (-seconds / memory_s).exp();
            (f64::from(rate) + weight * (growth / seconds - f64::from(rate))) as f32
        };
        self.rate = moved(self.rate, MEMORY_S);
        self.now = moved(self.now, NOW_S);
        if growth > 0.0 {
            self.grew_at_s = in_seconds(at);
        }
        CounterStep::Grew(growth)
    }

    /// Whether it is known how much it grew.
    fn is_known(&self, now: Timestamp) -> bool {
        self.is_joined && seconds_since(now, self.at) <= GAP_S
    }

    /// Growth a second over the last minutes, 0 at rest; none where it is not known.
    fn rate(&self, now: Timestamp) -> Option<f64> {
        let grew_at = Timestamp::from_seconds(self.grew_at_s.into());
        let is_over = seconds_since(now, grew_at) > OVER_S;
        let rate = if is_over { 0.0 } else { self.rate.into() };
        self.is_known(now).then_some(rate)
    }

    /// Growth a second over the last seconds; none where it is not known.
    fn now(&self, now: Timestamp) -> Option<f64> {
        self.is_known(now).then_some(self.now.into())
    }
}

impl Hour {
    /// Takes in what a counter of errors said at `now`.
    fn take(&mut self, said: CounterStep, now: Timestamp) {
        self.move_on(now);
        match said {
            CounterStep::Nothing => {}
            CounterStep::Grew(growth) => {
                let bucket = &mut self.buckets[place(self.newest)];
                *bucket = bucket.saturating_add(growth as u16);
            }
            CounterStep::Reset => *self = Self::default(),
        }
    }

    fn move_on(&mut self, now: Timestamp) {
        let newest = in_seconds(now) / BUCKET_S;
        let passed = newest.saturating_sub(self.newest);
        for step in 0..passed.min(BUCKETS as u32) {
            self.buckets[place(newest - step)] = 0;
        }
        self.newest = self.newest.max(newest);
    }

    fn count(&self) -> u64 {
        self.buckets.iter().copied().map(u64::from).sum()
    }
}

/// Where the bucket of this number is.
const fn place(bucket: u32) -> usize {
    bucket as usize % BUCKETS
}

/// Whole seconds since 1970, rounded up; 0 before that.
fn in_seconds(at: Timestamp) -> u32 {
    let seconds = at.shifted(NANOS_PER_SECOND - 1).seconds().max(0);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

impl Errors {
    fn read(&mut self, read: Option<(f64, Timestamp)>, now: Timestamp) {
        let said = self.counted.read(read);
        self.hour.take(said, now);
    }

    /// Errors of the last hour; none where they are not known.
    fn count(&self, now: Timestamp) -> Option<u64> {
        self.counted.is_known(now).then(|| self.hour.count())
    }
}

/// The newest reading of a metric, unless it is gone or too old to say anything of now.
pub(super) fn fresh(live: &Live, metric: &Metric, now: Timestamp) -> Option<f64> {
    let (value, at) = reading(live, metric)?;
    (seconds_since(now, at) <= GAP_S).then_some(value)
}

/// The newest reading of a metric and its time; none while it is gone.
pub(super) fn reading(live: &Live, metric: &Metric) -> Option<(f64, Timestamp)> {
    of_value(live.value(metric.id)?)
}

fn of_value(known: &LiveValue) -> Option<(f64, Timestamp)> {
    let value = known.reading.ok().filter(|it| it.is_finite())?;
    Some((value, known.at))
}

/// The same of metrics that stand near each other in the catalog, in its order: looked for once, for every GPU at
/// every tick.
fn readings<const COUNT: usize>(
    live: &Live,
    metrics: [&Metric; COUNT],
) -> [Option<(f64, Timestamp)>; COUNT] {
    let mut found = [None; COUNT];
    let first = metrics[0].id;
    let mut from = live.values.partition_point(|it| it.metric < first);
    for (metric, found) in metrics.iter().zip(&mut found) {
        let rest = &live.values[from..];
        from += rest.iter().take_while(|it| it.metric < metric.id).count();
        let known = live.values.get(from);
        *found = known
            .filter(|it| it.metric == metric.id && it.part.is_none())
            .and_then(of_value);
    }
    found
}

impl Watch {
    /// Takes in what is live and says what it means. Errors before the GPU was `healed` are over.
    pub(super) fn read(&mut self, live: &Live, healed: Option<Timestamp>, now: Timestamp) -> Rates {
        let [cap, heat, brake, slowdowns, corrected, uncorrected] = readings(live, COUNTED);
        self.heat.read(heat);
        self.brake.read(brake);
        self.cap.read(cap);
        self.slowdowns.read(slowdowns);
        self.corrected.read(corrected, now);
        let worse = &mut self.uncorrected;
        worse.read(uncorrected, now);
        if healed.is_some_and(|at| at.seconds() >= worse.counted.grew_at_s.into()) {
            worse.hour = Hour::default();
        }
        let part = |counted: &Counted| counted.rate(now).map(|it| it.min(1.0));
        Rates {
            heat_part: part(&self.heat),
            brake_part: part(&self.brake),
            cap_part: part(&self.cap),
            slowdowns_per_minute: self.slowdowns.rate(now).map(|it| it * 60.0),
            heat_now: self.heat.now(now),
            brake_now: self.brake.now(now),
            cap_now: self.cap.now(now),
            corrected: self.corrected.count(now),
            uncorrected: self.uncorrected.count(now),
        }
    }

    /// Notes what is readable now; what was before and no longer is.
    pub(super) fn gone(&mut self, now: Readable) -> Readable {
        self.had = self.had.and(now);
        Readable(self.had.0 & !now.0)
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::Origin;
    use gpufleet_telemetry::sample::{Missing, Reading};
    use gpufleet_telemetry::time::NANOS_PER_SECOND;

    use super::*;
    use crate::view::fixture::{self, Does, NOW};

    fn at(seconds: i64) -> Timestamp {
        NOW.shifted(seconds * NANOS_PER_SECOND)
    }

    /// A GPU with one reading of one counter.
    fn live(metric: &Metric, reading: Reading, seconds: i64) -> Live {
        let mut live = fixture::gpu("prod", "node-1", 0, Does::Work, Origin::Live);
        live.values = vec![LiveValue {
            metric: metric.id,
            part: None,
            reading,
            max: None,
            at: at(seconds),
        }];
        live
    }

    fn read(watch: &mut Watch, metric: &Metric, value: f64, seconds: i64) -> Rates {
        watch.read(&live(metric, Ok(value), seconds), None, at(seconds))
    }

    #[test]
    fn a_counter_that_was_read_once_is_not_known_and_one_that_is_gone_is_not_0() {
        let mut watch = Watch::default();
        let metric = &gpu::THROTTLE_POWER;
        assert_eq!(read(&mut watch, metric, 5.0, 0).cap_part, None);
        assert_eq!(read(&mut watch, metric, 5.0, 10).cap_part, Some(0.0));
        let gone = live(metric, Err(Missing::NotSupported), 20);
        assert_eq!(watch.read(&gone, None, at(140)).cap_part, None);
        assert_eq!(
            read(&mut watch, metric, 9.0, 150).cap_part,
            None,
            "what lies between is not known"
        );
        assert_eq!(read(&mut watch, metric, 9.0, 160).cap_part, Some(0.0));
    }

    #[test]
    fn counters_are_found_among_all_readings_of_a_gpu() {
        assert!(COUNTED.is_sorted_by_key(|it| it.id));
        let mut whole = live(&gpu::POWER, Ok(0.0), 0);
        let of = |metric: &Metric| LiveValue {
            metric: metric.id,
            ..whole.values[0].clone()
        };
        let mut values: Vec<LiveValue> = gpu::ALL.iter().map(of).collect();
        values.sort_by_key(|it| it.metric);
        for (place, value) in values.iter_mut().enumerate() {
            value.reading = Ok(place as f64);
        }
        values.retain(|it| it.metric != gpu::THROTTLE_BOARD_LIMIT.id);
        whole.values = values;
        let expected = COUNTED.map(|it| reading(&whole, it));
        assert_eq!(expected.iter().flatten().count(), 5);
        assert_eq!(readings(&whole, COUNTED), expected);
    }

    #[test]
    fn slowdowns_that_come_again_and_again_are_a_rate_and_one_that_is_over_is_none() {
        let mut watch = Watch::default();
        let metric = &gpu::HARDWARE_SLOWDOWNS;
        let at = |watch: &mut Watch, seconds: i64, every: i64| {
            let count = (seconds / every) as f64;
            read(watch, metric, count, seconds).slowdowns_per_minute
        };
        let mut last = None;
        for seconds in (0..1_200).step_by(10) {
            last = at(&mut watch, seconds, 40);
        }
        let often = last.expect("it is known");
        assert!((1.2..1.8).contains(&often), "one each 40 s: {often}");
        let one = read(&mut Watch::default(), metric, 1.0, 0);
        assert_eq!(one.slowdowns_per_minute, None, "nobody knows when that was");
        for seconds in (1_200..1_270).step_by(10) {
            last = read(&mut watch, metric, 29.0, seconds).slowdowns_per_minute;
        }
        assert_eq!(last, Some(0.0));
    }

    #[test]
    fn errors_are_counted_over_an_hour_and_no_burst_is_a_rate() {
        let mut watch = Watch::default();
        let metric = &gpu::ECC_CORRECTED_VOLATILE;
        read(&mut watch, metric, 0.0, 0);
        assert_eq!(read(&mut watch, metric, 6.0, 10).corrected, Some(6));
        // Two each 90 s are 80 an hour, and never rest for long enough to be forgotten.
        let mut watch = Watch::default();
        let mut last = Rates::default();
        for seconds in (0..7_200).step_by(10) {
            let errors = f64::from(seconds / 90 * 2);
            last = read(&mut watch, metric, errors, i64::from(seconds));
        }
        let count = last.corrected.expect("it is known");
        assert!((72..=80).contains(&count), "{count}");
        let mut later = last;
        for seconds in (7_200..10_900).step_by(10) {
            later = read(&mut watch, metric, 158.0, seconds);
        }
        assert_eq!(later.corrected, Some(0), "an hour without any");
    }

    #[test]
    fn uncorrected_errors_are_over_when_the_card_was_healed_or_its_counter_began_anew() {
        let metric = &gpu::ECC_UNCORRECTED_VOLATILE;
        let mut watch = Watch::default();
        read(&mut watch, metric, 0.0, 0);
        assert_eq!(read(&mut watch, metric, 2.0, 10).uncorrected, Some(2));
        let healed = watch.read(&live(metric, Ok(2.0), 20), Some(at(15)), at(20));
        assert_eq!(healed.uncorrected, Some(0));
        assert_eq!(read(&mut watch, metric, 3.0, 30).uncorrected, Some(1));
        read(&mut watch, metric, 0.0, 40);
        assert_eq!(read(&mut watch, metric, 0.0, 50).uncorrected, Some(0));
    }

    #[test]
    fn errors_far_apart_are_not_added_up() {
        let mut watch = Watch::default();
        let metric = &gpu::ECC_UNCORRECTED_VOLATILE;
        for seconds in (0..20_000).step_by(10) {
            let errors = f64::from(seconds / 3_300);
            let known = read(&mut watch, metric, errors, i64::from(seconds));
            let most = known.uncorrected.unwrap_or(0);
            assert!(most <= 2, "{most} of the last hour at {seconds}");
        }
    }
}

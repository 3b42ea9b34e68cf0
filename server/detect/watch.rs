//! What the counters of one GPU did lately: parts of the last minutes that it was slowed down, corrected memory errors
//! of the last hour, and uncorrected ones since the card was last made whole.
//!
//! Method: a part is a rate that forgets, moved on by each reading of a counter ([`Counted`]). What did not grow for a
//! minute is over, however large its rate still is: it ended, it did not fade. Errors are counted, in twelve buckets of
//! five minutes, because a burst of six is six and not seventy an hour. Slowdowns of the hardware are counted by the
//! ticks in which they came, of the last five minutes, because a flurry of four in one tick is one trouble and not four
//! a minute. A counter that went back was reset and says nothing that once. Errors that could not be corrected stand
//! until that, or until the card was made whole, because until then a reset is owed: their counter begins anew
//! with the card and its driver, so what it reads when it is first read counts too.
//!
//! Nothing is known of the others before two readings that follow each other, and of none when the newest is
//! older than [`GAP_S`]: a reading that is gone is not a 0.
//!
//! Limits: [`WATCH_BYTES`] a GPU, and [`ERRORS_BYTES`] for each kind of error of one that has made some: of corrected ones
//! in the last hour, of others since its counter began; of corrected errors 65,535 in five minutes at most. Times are kept
//! to the millisecond. Errors before the server started are counted where an incident that was open then tells of them, as
//! of when it was last signalled.

use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::before::Said;
use super::gpus::say::AN_HOUR;
use super::{TICK, seconds_since};
use crate::fleet::{Live, LiveValue};

mod counter;

use counter::{Counted, Counter, CounterStep, Moment};

/// A slot of [`Times`], seconds: a tick.
const SLOT_S: u32 = TICK.as_secs() as u32;

/// Slots that are looked back on: five minutes.
const SLOTS: u32 = 30;

/// What did not come again for this long is over, seconds: slower than the least rate that counts by far.
const TIMES_OVER_S: f64 = 150.0;

/// Two readings further apart than this are not joined, seconds: what lies between is not known.
pub(super) const GAP_S: f64 = 120.0;

/// An hour, seconds.
const HOUR_S: f64 = 3_600.0;

/// Buckets of an hour.
const BUCKETS: usize = 12;

/// How long a bucket is, seconds.
const BUCKET_S: u32 = 3_600 / BUCKETS as u32;

/// Errors of the last hour.
#[derive(Debug, Default)]
struct Hour {
    buckets: [u16; BUCKETS],
    /// The number of the newest bucket, since 1970.
    newest: u32,
}

/// A counter, and in which of the last ticks it grew.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    counter: Counter,
    /// One bit a slot, the newest lowest.
    grew: u32,
    /// The number of the newest slot, since 1970.
    newest: u32,
}

/// Corrected errors.
#[derive(Debug, Default)]
struct Errors {
    counter: Counter,
    /// Where there were some.
    hour: Option<Box<Hour>>,
}

/// Errors that could not be corrected.
#[derive(Debug, Default)]
struct Owed {
    /// Where there are some.
    some: Option<Box<Uncorrected>>,
    at: Moment,
    is_there: bool,
}

/// Those of a card whose counter is not 0.
#[derive(Debug, Default)]
struct Uncorrected {
    last: f64,
    /// How many of them were over when the card was made whole and its counter went on.
    over: f64,
    /// When there were last more than before.
    grew_at: Timestamp,
    /// The same of what was seen to grow: what was there at the first reading may be old.
    seen_at: Timestamp,
}

/// Most bytes that are kept beside them of a GPU's errors of one kind, where it has made some.
const ERRORS_BYTES: usize = 32;
const _: () =
    assert!(size_of::<Hour>() <= ERRORS_BYTES && size_of::<Uncorrected>() <= ERRORS_BYTES);
const _: () = assert!(size_of::<Times>() <= 24 && SLOTS <= u32::BITS);
const _: () = assert!(size_of::<Errors>() <= 24 && size_of::<Owed>() <= 16);

/// What is counted of a GPU, in the catalog's order.
const COUNTED: [&Metric; 6] = [
    &gpu::THROTTLE_POWER,
    &gpu::THROTTLE_THERMAL,
    &gpu::THROTTLE_BOARD_LIMIT,
    &gpu::HARDWARE_SLOWDOWNS,
    &gpu::ECC_CORRECTED_VOLATILE,
    &gpu::ECC_UNCORRECTED_VOLATILE,
];

/// Most bytes that are kept of a GPU's counters: more than the 64 of other detectors, because health judges six of
/// them. The last reading and its time are 14 of each, so that how much it grew is known to the digit, also of counters
/// that are read at times of their own; two means of each part are 24, and the ticks of slowdowns 8.
const WATCH_BYTES: usize = 144;
const _: () = assert!(size_of::<Watch>() <= WATCH_BYTES);

/// What is kept of one GPU.
#[derive(Debug, Default)]
pub(super) struct Watch {
    heat: Counted,
    brake: Counted,
    cap: Counted,
    slowdowns: Times,
    corrected: Errors,
    uncorrected: Owed,
    /// What was ever readable.
    had: Readable,
}

/// What the counters say now. None is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) heat_part: Option<f64>,
    pub(super) brake_part: Option<f64>,
    pub(super) cap_part: Option<f64>,
    /// In how many ticks a minute the hardware began to slow it down.
    pub(super) slowdowns_per_minute: Option<f64>,
    /// The same three over the last seconds.
    pub(super) heat_now: Option<f64>,
    pub(super) brake_now: Option<f64>,
    pub(super) cap_now: Option<f64>,
    /// Errors of the last hour.
    pub(super) corrected: Option<u64>,
    /// Errors since the card was made whole, and the same where some came in the last hour, else 0.
    pub(super) uncorrected: Option<u64>,
    pub(super) uncorrected_lately: Option<u64>,
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

impl Times {
    /// Takes in a reading with its time.
    fn read(&mut self, read: Option<(f64, Timestamp)>, now: Timestamp) {
        let said = self.counter.read(read);
        let newest = in_seconds(now) / SLOT_S;
        let passed = newest.saturating_sub(self.newest);
        self.grew = self.grew.checked_shl(passed).unwrap_or(0);
        self.newest = self.newest.max(newest);
        if matches!(said, CounterStep::Grew(growth) if growth > 0.0) {
            self.grew |= 1;
        }
    }

    /// In how many slots a minute it grew, over the last [`SLOTS`], 0 when it is over; none where it is not known.
    fn per_minute(&self, now: Timestamp) -> Option<f64> {
        let lately = self.grew & (u32::MAX >> (u32::BITS - SLOTS));
        let per_minute = f64::from(lately.count_ones() * 60) / f64::from(SLOTS * SLOT_S);
        let is_over = self.counter.rested_s(now) > TIMES_OVER_S;
        let told = if is_over { 0.0 } else { per_minute };
        self.counter.is_known(now).then_some(told)
    }
}

impl Hour {
    /// Takes in how many more there are at `now`.
    fn take(&mut self, grew: u16, now: Timestamp) {
        self.move_on(now);
        let bucket = &mut self.buckets[place(self.newest)];
        *bucket = bucket.saturating_add(grew);
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
    /// So many of which the last came at this moment at the latest.
    fn told(count: f64, at: Timestamp) -> Self {
        let mut hour = Hour {
            newest: in_seconds(at) / BUCKET_S,
            ..Hour::default()
        };
        hour.buckets[place(hour.newest)] = count as u16;
        Self {
            hour: Some(hour.into()),
            ..Self::default()
        }
    }

    fn read(&mut self, read: Option<(f64, Timestamp)>, now: Timestamp) {
        let grew = match self.counter.read(read) {
            CounterStep::Nothing => 0,
            CounterStep::Grew(growth) => growth as u16,
            CounterStep::Reset => {
                self.hour = None;
                0
            }
        };
        if grew > 0 {
            self.hour.get_or_insert_with(Box::default);
        }
        let Some(hour) = &mut self.hour else {
            return;
        };
        hour.take(grew, now);
        if hour.count() == 0 {
            self.hour = None;
        }
    }

    /// Errors of the last hour; none where they are not known.
    fn count(&self, now: Timestamp) -> Option<u64> {
        let count = || self.hour.as_deref().map_or(0, Hour::count);
        self.counter.is_known(now).then(count)
    }
}

impl Owed {
    /// Takes in a reading with its time, and when the card was last made whole.
    fn read(&mut self, read: Option<(f64, Timestamp)>, whole: Option<Timestamp>) {
        self.is_there = read.is_some();
        if let Some((value, at)) = read.filter(|it| Moment::of(it.1) > self.at) {
            let is_first = self.at.is_none();
            self.at = Moment::of(at);
            if value > 0.0 {
                let some = self.some.get_or_insert_with(Box::default);
                some.take(value, at, is_first);
            } else {
                self.some = None;
            }
        }
        if let Some(some) = &mut self.some
            && whole.is_some_and(|whole| whole > some.grew_at)
        {
            some.over = some.last;
        }
    }

    /// How many there are; none where it is not known.
    fn count(&self, now: Timestamp) -> Option<u64> {
        let is_known = self.is_there && seconds_since(now, self.at.timestamp()) <= GAP_S;
        let count = |it: &Uncorrected| (it.last - it.over).max(0.0) as u64;
        is_known.then(|| self.some.as_deref().map_or(0, count))
    }

    /// The same where some came in the last hour, else 0.
    fn lately(&self, now: Timestamp) -> Option<u64> {
        let is_late = |it: &Uncorrected| seconds_since(now, it.seen_at) <= HOUR_S;
        let is_late = self.some.as_deref().is_some_and(is_late);
        self.count(now).map(|it| if is_late { it } else { 0 })
    }
}

impl Uncorrected {
    /// Takes in a newer reading.
    fn take(&mut self, value: f64, at: Timestamp, is_first: bool) {
        if value < self.last {
            (self.last, self.over) = (0.0, 0.0);
        }
        if value > self.last {
            self.grew_at = at;
            self.seen_at = if is_first { self.seen_at } else { at };
        }
        self.last = value;
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
    /// Of a GPU of which this was said before the server started.
    pub(super) fn resumed(said: &[&Said]) -> Self {
        let corrected = said
            .iter()
            .find_map(|it| Some((it.reading(AN_HOUR)?.value, it.seen_at)));
        Self {
            corrected: corrected
                .map_or_else(Errors::default, |(count, at)| Errors::told(count, at)),
            ..Self::default()
        }
    }

    /// Takes in what is live and says what it means. Errors before the GPU was made `whole` are over.
    pub(super) fn read(&mut self, live: &Live, whole: Option<Timestamp>, now: Timestamp) -> Rates {
        let [cap, heat, brake, slowdowns, corrected, uncorrected] = readings(live, COUNTED);
        self.heat.read(heat);
        self.brake.read(brake);
        self.cap.read(cap);
        self.slowdowns.read(slowdowns, now);
        self.corrected.read(corrected, now);
        self.uncorrected.read(uncorrected, whole);
        let part = |counted: &Counted| counted.rate(now).map(|it| it.min(1.0));
        Rates {
            heat_part: part(&self.heat),
            brake_part: part(&self.brake),
            cap_part: part(&self.cap),
            slowdowns_per_minute: self.slowdowns.per_minute(now),
            heat_now: self.heat.now(now),
            brake_now: self.brake.now(now),
            cap_now: self.cap.now(now),
            corrected: self.corrected.count(now),
            uncorrected: self.uncorrected.count(now),
            uncorrected_lately: self.uncorrected.lately(now),
        }
    }

    /// Notes what is readable now; what was before and no longer is.
    pub(super) fn gone(&mut self, now: Readable) -> Readable {
        self.had = self.had.and(now);
        Readable(self.had.0 & !now.0)
    }
}

#[cfg(test)]
mod tests;

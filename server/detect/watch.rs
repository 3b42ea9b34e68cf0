//! What the counters of one GPU did lately: parts of the last minutes that it was slowed down, corrected memory errors
//! of the last hour, and uncorrected ones since the card was last made whole.
//!
//! Method: a part is a mean that forgets, moved on by each reading of a counter ([`Means`]). What did not grow for a
//! minute is over, however large its mean still is: it ended, it did not fade. Errors are counted, in twelve buckets of
//! five minutes, because a burst of six is six and not seventy an hour. Slowdowns of the hardware are counted by the
//! ticks in which they came, of the last five minutes, because a flurry of four in one tick is one trouble and not four
//! a minute. A counter that went back was reset and says nothing that once. Errors that could not be corrected stand
//! until that, or until the card was made whole, because until then a reset is owed: their counter begins anew
//! with the card and its driver, so what it reads when it is first read counts too.
//!
//! Nothing is known of the others before two readings that follow each other, and of none when the newest is
//! older than [`GAP_S`]: a reading that is gone is not a 0.
//!
//! Of a GPU that is well each counter's last reading and its time are kept, and what part of the time it is at its power
//! cap, as working cards are. All else about it is 0, and kept of those alone that are in trouble ([`Troubled`]).
//!
//! Limits: [`WATCH_BYTES`] a GPU, and [`TROUBLED_BYTES`] of one that was slowed down in the last hour or has made errors;
//! of corrected errors 65,535 in five minutes at most. Times are kept to the millisecond, counters of time to 100 µs, a
//! hundred-thousandth of a tick. Errors before the server started are counted where an incident that was open then tells
//! of them, as of when it was last signalled.

use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::before::Said;
use super::gpus::say::AN_HOUR;
use super::seconds_since;
use crate::fleet::{Live, LiveValue};

mod at;
mod counter;
mod errors;
mod last;
mod means;
mod times;

use at::{At, Known};
use counter::Counter;
use errors::{Hour, Uncorrected};
use last::{IN_A_SECOND, IN_ONE};
use means::{Means, SmallMeans};
use times::Times;

/// Two readings further apart than this are not joined, seconds: what lies between is not known.
pub(super) const GAP_S: f64 = 120.0;

/// What is counted of a GPU, in the catalog's order.
const COUNTED: [&Metric; 6] = [
    &gpu::THROTTLE_POWER,
    &gpu::THROTTLE_THERMAL,
    &gpu::THROTTLE_BOARD_LIMIT,
    &gpu::HARDWARE_SLOWDOWNS,
    &gpu::ECC_CORRECTED_VOLATILE,
    &gpu::ECC_UNCORRECTED_VOLATILE,
];

/// Most bytes that are kept of a GPU's counters.
const WATCH_BYTES: usize = 64;

/// Most bytes that are kept beside them of a GPU in trouble.
const TROUBLED_BYTES: usize = 96;

const _: () = assert!(size_of::<Watch>() <= WATCH_BYTES);
const _: () = assert!(size_of::<Troubled>() <= TROUBLED_BYTES);

/// What is kept of one GPU.
#[derive(Debug, Default)]
pub(super) struct Watch {
    heat: Counter,
    brake: Counter,
    cap: Counter,
    slowdowns: Counter,
    corrected: Counter,
    /// Of those that could not be corrected: how many is 0, or with the GPUs in trouble.
    uncorrected: At,
    capped: SmallMeans,
    /// What was ever readable.
    had: Readable,
    /// None where all of it would be 0.
    troubled: Option<Box<Troubled>>,
}

/// What is kept of a GPU that is slowed down, or has made errors.
#[derive(Debug, Default)]
struct Troubled {
    heat: Means,
    brake: Means,
    slowdowns: Times,
    corrected: Hour,
    uncorrected: Uncorrected,
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

/// Whole seconds since 1970, rounded up; 0 before that.
fn in_seconds(at: Timestamp) -> u32 {
    let seconds = at.shifted(NANOS_PER_SECOND - 1).seconds().max(0);
    u32::try_from(seconds).unwrap_or(u32::MAX)
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
        let troubled = corrected.map(|(count, at)| Troubled {
            corrected: Hour::told(count, at),
            ..Troubled::default()
        });
        Self {
            troubled: troubled.map(Box::new),
            ..Self::default()
        }
    }

    /// Takes in what is live and says what it means. Errors before the GPU was made `whole` are over.
    pub(super) fn read(&mut self, live: &Live, whole: Option<Timestamp>, now: Timestamp) -> Rates {
        let [cap, heat, brake, slowdowns, corrected, uncorrected] = readings(live, COUNTED);
        let heat = self.heat.read(heat, IN_A_SECOND, now);
        let brake = self.brake.read(brake, IN_A_SECOND, now);
        let slowdowns = self.slowdowns.read(slowdowns, IN_ONE, now);
        let corrected = self.corrected.read(corrected, IN_ONE, now);
        self.capped.take(self.cap.read(cap, IN_A_SECOND, now));
        let mut steps = [heat, brake, slowdowns, corrected].into_iter().flatten();
        if steps.any(|it| it.grew() > 0.0) {
            self.trouble();
        }
        if let Some(troubled) = &mut self.troubled {
            troubled.heat.take(heat);
            troubled.brake.take(brake);
            troubled.slowdowns.take(slowdowns, now);
            troubled.corrected.take(corrected, now);
        }
        self.read_uncorrected(uncorrected, whole, now);
        if self.troubled.as_ref().is_some_and(|it| it.is_over()) {
            self.troubled = None;
        }
        let is_fresh = |it: (f64, Timestamp)| seconds_since(now, it.1) <= GAP_S;
        self.rates(uncorrected.is_some_and(is_fresh), now)
    }

    /// Takes in a reading of the errors that could not be corrected, and when the card was last made whole.
    fn read_uncorrected(
        &mut self,
        read: Option<(f64, Timestamp)>,
        whole: Option<Timestamp>,
        now: Timestamp,
    ) {
        let before = self.uncorrected.aged(now);
        self.uncorrected = before;
        if let Some((value, at)) = read.filter(|it| before.is_before(it.1, now)) {
            self.uncorrected = At::of(at, Known::Read, now);
            if value > 0.0 {
                self.trouble();
            }
            if let Some(troubled) = &mut self.troubled {
                let is_first = before.known() == Known::Never;
                troubled.uncorrected.take(value, at, is_first);
            }
        }
        if let Some((troubled, whole)) = self.troubled.as_mut().zip(whole) {
            troubled.uncorrected.healed(whole);
        }
    }

    /// From now on it is in trouble.
    fn trouble(&mut self) {
        self.troubled.get_or_insert_with(Box::default);
    }

    /// What there is to say now.
    fn rates(&self, is_uncorrected_known: bool, now: Timestamp) -> Rates {
        let well = Troubled::default();
        let of = self.troubled.as_deref().unwrap_or(&well);
        let capped = self.capped.means();
        let (heat, brake, cap) = (&self.heat, &self.brake, &self.cap);
        let [heat, brake, cap] = [heat, brake, cap].map(|it| it.age_s(now));
        let slowdowns = self.slowdowns.age_s(now);
        Rates {
            heat_part: heat.map(|age_s| of.heat.part(age_s)),
            brake_part: brake.map(|age_s| of.brake.part(age_s)),
            cap_part: cap.map(|age_s| capped.part(age_s)),
            slowdowns_per_minute: slowdowns.map(|age_s| of.slowdowns.per_minute(age_s)),
            heat_now: heat.map(|_| of.heat.now()),
            brake_now: brake.map(|_| of.brake.now()),
            cap_now: cap.map(|_| capped.now()),
            corrected: self.corrected.age_s(now).map(|_| of.corrected.count()),
            uncorrected: is_uncorrected_known.then(|| of.uncorrected.count()),
            uncorrected_lately: is_uncorrected_known.then(|| of.uncorrected.lately(now)),
        }
    }

    /// Notes what is readable now; what was before and no longer is.
    pub(super) fn gone(&mut self, now: Readable) -> Readable {
        self.had = self.had.and(now);
        Readable(self.had.0 & !now.0)
    }
}

impl Troubled {
    /// Whether nothing is left of it.
    fn is_over(&self) -> bool {
        self.heat.is_over()
            && self.brake.is_over()
            && self.slowdowns.is_over()
            && self.corrected.count() == 0
            && self.uncorrected.is_none()
    }
}

#[cfg(test)]
mod tests;

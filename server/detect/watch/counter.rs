//! One counter: what it last read and when, to the millisecond, and what it grew by. A mean of that forgets with time
//! constant [`MEMORY_S`].

use gpufleet_analysis::health::MEMORY_S;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::GAP_S;
use crate::detect::seconds_since;

/// Over how long a part is meant that is to explain what is slow now, seconds.
const NOW_S: f64 = 30.0;

/// A counter that did not grow for this long is at rest, seconds.
const OVER_S: f64 = 60.0;

/// Nanoseconds of a millisecond.
const NANOS_PER_MILLISECOND: i64 = NANOS_PER_SECOND / 1_000;

/// A time to the millisecond, since 1970, the highest part first; 0 before the first reading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment([u16; 3]);

/// One counter.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counter {
    last: f64,
    at: Moment,
    /// Whether the newest reading followed one before it.
    is_joined: bool,
    /// How long it had not grown at the newest reading, seconds, 255 at most.
    rested_s: u8,
}

/// A counter of the time that something slows it down.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counted {
    counter: Counter,
    /// Growth a second over the last minutes.
    rate: f32,
    /// The same over the last seconds.
    now: f32,
}

/// What a reading of a counter said.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum CounterStep {
    /// Nothing: there was none, or none before it.
    Nothing,
    /// It grew by so much, which may be 0.
    Grew(f64),
    /// It began anew, or is 0 when it is first read.
    Reset,
}

const _: () = assert!(size_of::<Counter>() <= 16 && size_of::<Counted>() <= 24);

impl Moment {
    pub(super) fn of(at: Timestamp) -> Self {
        let millis = at.millis().max(0);
        Self([(millis >> 32) as u16, (millis >> 16) as u16, millis as u16])
    }

    fn millis(self) -> i64 {
        self.0
            .iter()
            .fold(0, |sum, it| (sum << 16) | i64::from(*it))
    }

    pub(super) fn timestamp(self) -> Timestamp {
        Timestamp(self.millis() * NANOS_PER_MILLISECOND)
    }

    pub(super) fn is_none(self) -> bool {
        self == Self::default()
    }
}

impl Counter {
    /// Takes in a reading with its time; none while it is gone.
    pub(super) fn read(&mut self, read: Option<(f64, Timestamp)>) -> CounterStep {
        let Some((value, at)) = read else {
            self.is_joined = false;
            return CounterStep::Nothing;
        };
        let (before, then, at) = (self.last, self.at, Moment::of(at));
        if then.is_none() {
            (self.last, self.at) = (value, at);
            // Whatever was known of it before, it has begun anew.
            return match value == 0.0 {
                true => CounterStep::Reset,
                false => CounterStep::Nothing,
            };
        }
        if at <= then {
            return CounterStep::Nothing;
        }
        (self.last, self.at) = (value, at);
        let growth = value - before;
        let seconds = seconds_since(at.timestamp(), then.timestamp());
        self.is_joined = growth >= 0.0 && seconds <= GAP_S;
        self.rested_s = match self.is_joined && growth > 0.0 {
            true => 0,
            false => {
                // Of whole seconds, so that what is left of each tick is not lost.
                let passed = at.timestamp().seconds() - then.timestamp().seconds();
                let passed = u8::try_from(passed).unwrap_or(u8::MAX);
                self.rested_s.saturating_add(passed)
            }
        };
        match self.is_joined {
            true => CounterStep::Grew(growth),
            false if growth < 0.0 => CounterStep::Reset,
            false => CounterStep::Nothing,
        }
    }

    /// Whether it is known how much it grew.
    pub(super) fn is_known(&self, now: Timestamp) -> bool {
        self.is_joined && seconds_since(now, self.at.timestamp()) <= GAP_S
    }

    /// How long it did not grow, seconds, if it ever did.
    pub(super) fn rested_s(&self, now: Timestamp) -> f64 {
        f64::from(self.rested_s) + seconds_since(now, self.at.timestamp())
    }
}

impl Counted {
    /// Takes in a reading with its time; none while it is gone.
    pub(super) fn read(&mut self, read: Option<(f64, Timestamp)>) {
        let then = self.counter.at;
        let said = self.counter.read(read);
        let at = self.counter.at;
        if let CounterStep::Grew(growth) = said {
            let seconds = seconds_since(at.timestamp(), then.timestamp());
            let moved = |rate: f32, memory_s: f64| {
                let weight = 1.0 - (-seconds / memory_s).exp();
                (f64::from(rate) + weight * (growth / seconds - f64::from(rate))) as f32
            };
            self.rate = moved(self.rate, MEMORY_S);
            self.now = moved(self.now, NOW_S);
        } else if at != then {
            (self.rate, self.now) = (0.0, 0.0);
        }
    }

    /// Growth a second over the last minutes, 0 at rest; none where it is not known.
    pub(super) fn rate(&self, now: Timestamp) -> Option<f64> {
        let is_over = self.counter.rested_s(now) > OVER_S;
        let rate = if is_over { 0.0 } else { self.rate.into() };
        self.counter.is_known(now).then_some(rate)
    }

    /// Growth a second over the last seconds; none where it is not known.
    pub(super) fn now(&self, now: Timestamp) -> Option<f64> {
        self.counter.is_known(now).then_some(self.now.into())
    }
}

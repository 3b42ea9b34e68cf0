//! One counter: what it last read and when, and what it grew by.

use gpufleet_telemetry::time::Timestamp;

use super::GAP_S;
use super::at::{At, Known};
use super::last::Last40;
use crate::detect::seconds_since;

/// One counter.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counter {
    last: Last40,
    at: At,
}

/// A newer reading of a counter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Step {
    pub(super) growth: Growth,
    /// Between the whole seconds in which it and the one before were taken, 255 at most.
    passed_s: u8,
}

/// How much a counter grew from one reading to the next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Growth {
    /// It is not known: there was none before, or one too far from it.
    Unknown,
    /// By so much, which may be 0, in so many seconds.
    Known { by: f64, seconds: f64 },
    /// It began anew, or is 0 when it is first read.
    Reset,
}

/// How long a counter had not grown at its newest reading, whole seconds, 255 at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Rest(u8);

const _: () = assert!(size_of::<Counter>() <= 9 && size_of::<Rest>() <= 1);

impl Counter {
    /// Takes in a reading with its time, none while it is gone; hands it out if it is newer.
    pub(super) fn read(
        &mut self,
        read: Option<(f64, Timestamp)>,
        units: f64,
        now: Timestamp,
    ) -> Option<Step> {
        self.at = self.at.aged(now);
        let Some((value, at)) = read else {
            self.at = self.at.parted();
            return None;
        };
        if !self.at.is_before(at, now) {
            return None;
        }
        let (before, was) = (self.last, self.at);
        let at = Timestamp::from_millis(at.millis());
        let then = was.timestamp(now);
        self.last = Last40::of(value, units);
        // Whatever was known of one that is first read at 0, it has begun anew.
        let is_new = was.known() == Known::Never && self.last == Last40::default();
        let growth = match then.map(|then| seconds_since(at, then)) {
            _ if is_new || self.last < before => Growth::Reset,
            Some(seconds) if seconds <= GAP_S => Growth::Known {
                by: self.last.since(before) / units,
                seconds,
            },
            _ => Growth::Unknown,
        };
        let known = match growth {
            Growth::Known { .. } => Known::Joined,
            Growth::Unknown | Growth::Reset => Known::Read,
        };
        self.at = At::of(at, known, now);
        let passed = then.and_then(|then| u8::try_from(at.seconds() - then.seconds()).ok());
        Some(Step {
            growth,
            passed_s: passed.unwrap_or(u8::MAX),
        })
    }

    /// How long ago it was read, seconds; none where it is not known how much it grew lately.
    pub(super) fn age_s(&self, now: Timestamp) -> Option<f64> {
        let is_joined = self.at.known() == Known::Joined;
        let at = self.at.timestamp(now).filter(|_| is_joined)?;
        Some(seconds_since(now, at)).filter(|it| *it <= GAP_S)
    }
}

impl Step {
    /// By how much it is known to have grown.
    pub(super) const fn grew(&self) -> f64 {
        match self.growth {
            Growth::Known { by, .. } => by,
            Growth::Unknown | Growth::Reset => 0.0,
        }
    }
}

impl Rest {
    /// Takes in a newer reading. Whole seconds are added up, so that what is left of each tick is not lost.
    pub(super) fn take(&mut self, step: &Step) {
        self.0 = match step.grew() > 0.0 {
            true => 0,
            false => self.0.saturating_add(step.passed_s),
        };
    }

    /// How long it has not grown, seconds, if the newest reading is so old.
    pub(super) fn seconds(self, age_s: f64) -> f64 {
        f64::from(self.0) + age_s
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::time::NANOS_PER_SECOND;

    use super::*;
    use crate::detect::watch::last::IN_ONE;
    use crate::view::fixture::NOW;

    const DAY_S: i64 = 86_400;

    fn growth(counter: &mut Counter, value: f64, seconds: i64) -> Option<Growth> {
        let at = NOW.shifted(seconds * NANOS_PER_SECOND);
        counter
            .read(Some((value, at)), IN_ONE, at)
            .map(|it| it.growth)
    }

    #[test]
    fn a_counter_grows_begins_anew_and_is_not_known_after_a_while_without_it() {
        let mut counter = Counter::default();
        let grew = |by: f64, seconds: f64| Some(Growth::Known { by, seconds });
        let mut read = |value: f64, seconds: i64| growth(&mut counter, value, seconds);
        assert_eq!(read(5.0, 0), Some(Growth::Unknown), "none before it");
        assert_eq!(read(7.0, 10), grew(2.0, 10.0));
        assert_eq!(read(7.0, 10), None, "the same reading again");
        assert_eq!(read(9.0, 5), None, "an older one");
        assert_eq!(read(7.0, 130), grew(0.0, 120.0));
        assert_eq!(read(9.0, 251), Some(Growth::Unknown), "too far from it");
        assert_eq!(read(8.0, 261), Some(Growth::Reset));
        assert_eq!(read(0.0, 271), Some(Growth::Reset));
        assert_eq!(read(0.0, 281), grew(0.0, 10.0));
    }

    #[test]
    fn a_counter_first_read_at_0_began_anew_and_one_that_was_away_for_days_did_not() {
        let mut counter = Counter::default();
        assert_eq!(growth(&mut counter, 0.0, 0), Some(Growth::Reset));
        let away = NOW.shifted(2 * DAY_S * NANOS_PER_SECOND);
        assert_eq!(counter.read(None, IN_ONE, away), None);
        assert_eq!(counter.at.known(), Known::Stale);
        let told = growth(&mut counter, 0.0, 3 * DAY_S);
        assert_eq!(told, Some(Growth::Unknown));
    }

    #[test]
    fn rest_is_added_up_in_whole_seconds_and_is_over_when_it_grows() {
        let mut rest = Rest::default();
        let step = |by: f64, passed_s: u8| Step {
            growth: Growth::Known { by, seconds: 10.0 },
            passed_s,
        };
        rest.take(&step(0.0, 200));
        rest.take(&step(0.0, 100));
        assert_eq!(rest.seconds(1.5), 256.5, "255 at most and what came since");
        rest.take(&step(0.1, 10));
        rest.take(&step(0.0, 10));
        assert_eq!(rest.seconds(0.0), 10.0);
    }
}

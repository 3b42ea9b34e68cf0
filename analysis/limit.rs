//! Whether one reading is over its limit, for long enough: what needs no peers and no history to be wrong.
//!
//! Method, by what is read:
//!
//! - *Level*: a gauge at or beyond its limit for as long as the limit asks, in every reading; it is well
//!   again only past [`CLEAR_PART`] of the limit, so that what sits at the limit is one finding.
//! - *Growth*: a counter of what must not happen grew within the time that the limit names. What it was
//!   before it was first read is not known and is no growth; one that goes back was reset.
//! - *Rate*: a counter of what happens now and then grows by more than so many a second over the last
//!   minutes ([`MEMORY_S`]).
//! - *Link*: a flag that was up is down for as long as the limit asks.
//! - *Still*: a counter that has to grow does not, for as long as the limit asks.
//! - *Flaps*: it went down for [`FLAP_NS`] and came back [`FLAPS`] times within [`FLAPS_WITHIN_NS`]; told for as
//!   long after the last of them.
//!
//! A reading that is missing says nothing: what was over stays over, as not known ([`State::is_over`] with
//! [`State::is_fresh`]). So does what was over before anybody watched ([`State::resumed`]), for [`GIVEN_UP_NS`] at most
//! where nothing is read of it.
//!
//! Limits: ≤40 bytes a reading; readings further apart than [`GAP_NS`] are not joined.

use std::num::NonZeroI64;

use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

/// A level below this part of its limit (or above it by as much, where low is bad) is well again.
pub const CLEAR_PART: f64 = 0.8;
/// Over how long a rate is meant, seconds.
pub const MEMORY_S: f64 = 300.0;
/// Readings further apart are not joined, nanoseconds: three of the slow ones.
pub const GAP_NS: i64 = 190 * NANOS_PER_SECOND;
/// Of what was over before, and of which nothing is read for this long, nothing is known, nanoseconds.
pub const GIVEN_UP_NS: i64 = 600 * NANOS_PER_SECOND;
/// A link that was down for this long and came back has flapped, nanoseconds.
pub const FLAP_NS: i64 = 25 * NANOS_PER_SECOND;
/// Flaps that are a fault …
pub const FLAPS: usize = 3;
/// … within this time, nanoseconds.
pub const FLAPS_WITHIN_NS: i64 = 3_600 * NANOS_PER_SECOND;

/// What makes a reading bad.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Test {
    /// A gauge at this or above.
    Above(f64),
    /// A gauge at this or below.
    Below(f64),
    /// A counter that grew, told for so many nanoseconds.
    Grew(i64),
    /// A counter that grows by more than this a second.
    Rate(f64),
    /// A flag that was up and is down.
    Down,
    /// A flag that goes and comes.
    Flaps,
    /// A counter that has to grow and does not.
    Still,
}

/// What is kept of one reading.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct State {
    value: f64,
    at: Timestamp,
    /// Since when it is bad, or first was, nanoseconds of Unix time; of a flag that goes and comes since when it is down.
    since: Option<NonZeroI64>,
    rate: f32,
    /// When it came back the last times, seconds of Unix time, the newest last; 0 is none.
    flaps: [u32; FLAPS],
}

const _: () = assert!(size_of::<State>() <= 40);

impl Test {
    /// The reading that is well, of those of which one is: what reads so need not be kept.
    pub const fn well(self) -> Option<f64> {
        match self {
            Self::Above(_) | Self::Below(_) | Self::Still => None,
            Self::Grew(_) | Self::Rate(_) => Some(0.0),
            Self::Down | Self::Flaps => Some(1.0),
        }
    }

    /// The same with another limit, where it has one.
    #[must_use]
    pub const fn with(self, limit: f64) -> Self {
        match self {
            Self::Above(_) => Self::Above(limit),
            Self::Below(_) => Self::Below(limit),
            Self::Rate(_) => Self::Rate(limit),
            Self::Grew(_) | Self::Down | Self::Flaps | Self::Still => self,
        }
    }

    /// Whether it has a limit that can be another.
    pub const fn has_limit(self) -> bool {
        matches!(self, Self::Above(_) | Self::Below(_) | Self::Rate(_))
    }

    /// What it is held against.
    pub const fn limit(self) -> f64 {
        match self {
            Self::Above(limit) | Self::Below(limit) | Self::Rate(limit) => limit,
            Self::Grew(_) | Self::Still => 0.0,
            Self::Down => 1.0,
            Self::Flaps => FLAPS as f64,
        }
    }

    fn is_bad(self, value: f64) -> bool {
        match self {
            Self::Above(limit) => value >= limit,
            Self::Below(limit) => value <= limit,
            _ => false,
        }
    }

    fn is_well(self, value: f64) -> bool {
        match self {
            Self::Above(limit) => value < CLEAR_PART * limit,
            Self::Below(limit) => value * CLEAR_PART > limit,
            _ => false,
        }
    }
}

impl State {
    /// What read `value` when it was first read.
    pub fn first(test: Test, value: f64, at: Timestamp) -> Self {
        Self {
            value,
            at,
            since: test.is_bad(value).then_some(at).and_then(kept),
            ..Self::default()
        }
    }

    /// What was over its limit `since` then, and `seen` so last, before it is watched from `now` on; `reading` stood
    /// beside the limit.
    pub fn resumed(
        test: Test,
        (since, seen): (Timestamp, Timestamp),
        reading: f64,
        now: Timestamp,
    ) -> Self {
        let (since, rate, flaps) = match test {
            // It may have come again until it was last seen.
            Test::Grew(_) => (kept(seen), 0.0, [0; FLAPS]),
            Test::Flaps => (None, 0.0, [in_seconds(seen); FLAPS]),
            Test::Rate(_) => (kept(since), reading as f32, [0; FLAPS]),
            Test::Above(_) | Test::Below(_) | Test::Down | Test::Still => {
                (kept(since), 0.0, [0; FLAPS])
            }
        };
        Self {
            // What it reads is not known: the first reading is neither more nor less.
            value: f64::NAN,
            at: now,
            since,
            rate,
            flaps,
        }
    }

    /// Whether it was over before, and so long nothing was read of it that nothing is known.
    pub fn is_given_up(&self, now: Timestamp) -> bool {
        self.value.is_nan() && now.since(self.at) > GIVEN_UP_NS
    }

    /// Takes in a reading; one that was taken in already changes nothing.
    pub fn observe(&mut self, test: Test, value: f64, at: Timestamp) {
        let passed = at.since(self.at);
        if passed <= 0 {
            return;
        }
        let before = std::mem::replace(&mut self.value, value);
        let then = std::mem::replace(&mut self.at, at);
        let mut since = self.since();
        match test {
            Test::Above(_) | Test::Below(_) => {
                // What lies between is not known to have been so.
                if test.is_well(value) || passed > GAP_NS {
                    since = None;
                }
                if test.is_bad(value) {
                    since.get_or_insert(at);
                }
            }
            Test::Grew(_) => {
                if value > before {
                    since = Some(at);
                }
            }
            // By how much it grew since it was last seen is not known.
            Test::Rate(_) if before.is_nan() => {}
            Test::Rate(limit) => {
                let seconds = passed as f64 / NANOS_PER_SECOND as f64;
                let growth = (value - before).max(0.0);
                let weight = 1.0 - (-seconds / MEMORY_S).exp();
                let rate =
                    f64::from(self.rate) + weight * (growth / seconds - f64::from(self.rate));
                self.rate = if passed > GAP_NS { 0.0 } else { rate as f32 };
                match f64::from(self.rate) > limit {
                    true => _ = since.get_or_insert(then),
                    false => since = None,
                }
            }
            Test::Down => match value > 0.0 {
                true => since = None,
                // What was never up is no news.
                false if before > 0.0 => since = Some(at),
                false => {}
            },
            Test::Still => match value > before {
                true => since = None,
                false => _ = since.get_or_insert(then),
            },
            Test::Flaps => since = self.flap((before > 0.0, value > 0.0), since, at),
        }
        self.since = since.and_then(kept);
    }

    /// Takes in whether a flag that goes and comes was up and is; it is down since the moment that is handed out.
    fn flap(
        &mut self,
        (was_up, is_up): (bool, bool),
        since: Option<Timestamp>,
        at: Timestamp,
    ) -> Option<Timestamp> {
        let is_lately = |it: &Timestamp| at.since(*it) <= FLAPS_WITHIN_NS;
        if self.last_flap().is_none_or(|it| !is_lately(&it)) {
            self.flaps = [0; FLAPS];
        }
        match (was_up, is_up) {
            (true, false) => Some(at),
            (false, false) => since,
            (false, true) => {
                let went = since.filter(is_lately);
                if went.is_some_and(|went| at.since(went) >= FLAP_NS) {
                    self.flaps.rotate_left(1);
                    self.flaps[FLAPS - 1] = in_seconds(at);
                }
                None
            }
            (true, true) => None,
        }
    }

    /// When it last came back; none where it did not.
    fn last_flap(&self) -> Option<Timestamp> {
        let last = self.flaps[FLAPS - 1];
        (last > 0).then(|| Timestamp::from_seconds(last.into()))
    }

    /// The last times that it came back, so near to the newest that they count together, the oldest first.
    fn flaps(&self) -> impl Iterator<Item = Timestamp> {
        let known = self.flaps.into_iter().filter(|it| *it > 0);
        let known = known.map(|it| Timestamp::from_seconds(it.into()));
        let newest = self.last_flap().unwrap_or_default();
        known.filter(move |it| newest.since(*it) <= FLAPS_WITHIN_NS)
    }

    fn since(&self) -> Option<Timestamp> {
        self.since.map(|it| Timestamp(it.get()))
    }

    /// When it was last read.
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// Whether it was read lately: else what it says may be over.
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        !self.value.is_nan() && now.since(self.at) <= GAP_NS
    }

    /// Since when it is over its limit, if that is for as long as the limit asks.
    pub fn is_over(&self, test: Test, for_ns: i64, now: Timestamp) -> Option<Timestamp> {
        match test {
            Test::Grew(told) => self.since().filter(|since| now.since(*since) < told),
            Test::Flaps => self
                .flaps()
                .next()
                .filter(|_| self.flaps().count() >= FLAPS),
            Test::Above(_) | Test::Below(_) | Test::Rate(_) | Test::Down | Test::Still => {
                let is_long = |since: &Timestamp| self.at.since(*since) >= for_ns;
                self.since().filter(is_long)
            }
        }
    }

    /// The reading beside the limit: the level, the rate, or how often, of flaps [`FLAPS`] at most.
    pub fn reading(&self, test: Test) -> f64 {
        match test {
            Test::Rate(_) => f64::from(self.rate),
            Test::Flaps => self.flaps().count() as f64,
            Test::Above(_) | Test::Below(_) | Test::Grew(_) | Test::Down | Test::Still => {
                self.value
            }
        }
    }

    /// Whether nothing of it need be kept: it reads as it should, and nothing is remembered of it.
    pub fn is_nothing(&self, test: Test) -> bool {
        let is_well = match test {
            Test::Above(_) | Test::Below(_) => true,
            _ => test.well() == Some(self.value),
        };
        is_well && self.since.is_none() && self.flaps == [0; FLAPS]
    }
}

/// Seconds of Unix time; 0 where they do not fit.
fn in_seconds(at: Timestamp) -> u32 {
    u32::try_from(at.seconds()).unwrap_or(0)
}

/// A moment as a state keeps it; the beginning of 1970 is none.
const fn kept(at: Timestamp) -> Option<NonZeroI64> {
    NonZeroI64::new(at.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60 * NANOS_PER_SECOND;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_790_000_000 + seconds)
    }

    /// Feeds readings ten seconds apart; whether it is over its limit after each.
    fn told(test: Test, for_ns: i64, readings: &[f64]) -> Vec<bool> {
        let mut state = State::first(test, readings[0], at(0));
        let over = |state: &State, seconds| state.is_over(test, for_ns, at(seconds)).is_some();
        let mut told = vec![over(&state, 0)];
        for (reading, seconds) in readings[1..].iter().zip((10..).step_by(10)) {
            state.observe(test, *reading, at(seconds));
            told.push(over(&state, seconds));
        }
        told
    }

    #[test]
    fn a_level_is_told_after_its_time_and_until_it_is_well_past_its_limit() {
        let readings = [0.05, 0.2, 0.2, 0.2, 0.2, 0.09, 0.2, 0.05, 0.2];
        let expected = [false, false, false, false, true, true, true, false, false];
        assert_eq!(
            told(Test::Above(0.1), 30 * NANOS_PER_SECOND, &readings),
            expected
        );
        let readings = [0.5, 0.04, 0.04, 0.06, 0.5];
        let expected = [false, true, true, true, false];
        assert_eq!(told(Test::Below(0.05), 0, &readings), expected);
    }

    #[test]
    fn a_counter_is_told_when_it_grew_and_not_for_what_it_was_at_first_or_for_a_reset() {
        let mut state = State::first(Test::Grew(MINUTE), 7.0, at(0));
        let mut read = |value: f64, seconds| {
            state.observe(Test::Grew(MINUTE), value, at(seconds));
            state.is_over(Test::Grew(MINUTE), 0, at(seconds)).is_some()
        };
        assert!(!read(7.0, 10) && !read(2.0, 20));
        assert!(read(3.0, 30) && read(3.0, 80));
        assert!(!read(3.0, 90), "a minute after it grew");
    }

    #[test]
    fn a_rate_is_told_while_it_lasts_and_one_burst_is_none() {
        let errors = |each: f64| -> Vec<f64> { (0..100).map(|it| f64::from(it) * each).collect() };
        let last = |readings: &[f64]| *told(Test::Rate(1.0), 0, readings).last().expect("some");
        assert!(last(&errors(20.0)));
        assert!(!last(&errors(5.0)));
        let burst = [[0.0; 10], [200.0; 10]].concat();
        assert_eq!(told(Test::Rate(1.0), 0, &burst), [false; 20]);
    }

    #[test]
    fn a_link_that_was_never_up_is_not_down_and_three_flaps_of_half_a_minute_are_a_fault() {
        let minute = |value: f64| [value; 6];
        let down = [minute(1.0), minute(0.0), minute(1.0)].concat();
        let told_down = told(Test::Down, 30 * NANOS_PER_SECOND, &down);
        assert_eq!(told_down.iter().filter(|it| **it).count(), 3);
        assert!(!told_down[17]);
        let flaps = |count: usize| [minute(0.0), minute(1.0)].concat().repeat(count);
        let last = |readings: &[f64]| *told(Test::Flaps, 0, readings).last().expect("some");
        let up = minute(1.0).to_vec();
        assert!(!last(&[up.clone(), flaps(2)].concat()));
        assert!(last(&[up.clone(), flaps(3)].concat()));
        let quick = [up, [0.0, 1.0].repeat(12)].concat();
        assert!(!last(&quick), "what comes back at once has not flapped");
    }

    #[test]
    fn flaps_are_a_fault_where_three_are_within_an_hour_and_until_an_hour_after_the_last() {
        let flapping = |every_minutes: &[i64]| {
            let mut state = State::first(Test::Flaps, 1.0, at(0));
            let mut seconds = 0;
            for minutes in every_minutes {
                seconds += minutes * 60;
                state.observe(Test::Flaps, 0.0, at(seconds - 30));
                state.observe(Test::Flaps, 1.0, at(seconds));
            }
            (state, seconds)
        };
        for (every_minutes, is_told) in [
            (&[50; 20][..], false),
            (&[31; 20][..], false),
            (&[29; 3][..], true),
            (&[600, 1, 1][..], true),
            (&[1, 1, 600, 1][..], false),
        ] {
            let (mut state, seconds) = flapping(every_minutes);
            let over = |state: &State| state.is_over(Test::Flaps, 0, state.at());
            assert_eq!(over(&state).is_some(), is_told, "{every_minutes:?}");
            if is_told {
                let first = seconds - every_minutes[1..].iter().sum::<i64>() * 60;
                assert_eq!(over(&state), Some(at(first)), "since the first of them");
                assert_eq!(state.reading(Test::Flaps), 3.0);
                state.observe(Test::Flaps, 1.0, at(seconds + 3_600));
                assert!(over(&state).is_some());
                state.observe(Test::Flaps, 1.0, at(seconds + 3_601));
                assert_eq!(over(&state), None);
                assert!(state.is_nothing(Test::Flaps), "it need not be kept");
            }
        }
    }

    #[test]
    fn a_reading_that_is_missing_is_not_well_and_what_lies_in_a_gap_was_not_bad() {
        let test = Test::Above(0.1);
        let mut state = State::first(test, 0.2, at(0));
        assert!(!state.is_fresh(at(200)));
        state.observe(test, 0.2, at(3_600));
        assert_eq!(state.is_over(test, MINUTE, at(3_600)), None);
    }

    /// Over its limit for an hour when the server that watched it went; read again twenty and thirty seconds after
    /// the next came.
    #[test]
    fn what_was_over_before_anybody_watched_is_over_until_a_reading_says_otherwise() {
        let told = [at(-3_600), at(-30)];
        for (test, reading, bad, well) in [
            (Test::Above(0.4), 0.5, [0.5, 0.5], [0.1, 0.1]),
            (Test::Below(0.05), 0.01, [0.01, 0.01], [0.5, 0.5]),
            (Test::Rate(1.0), 20.0, [900.0, 1_100.0], [900.0, 900.0]),
            (Test::Down, 0.0, [0.0, 0.0], [1.0, 1.0]),
            (Test::Still, 7.0, [7.0, 7.0], [7.0, 8.0]),
        ] {
            for (readings, is_over) in [(bad, true), (well, false)] {
                let now = at(0);
                let mut state = State::resumed(test, (told[0], told[1]), reading, now);
                assert!(state.is_over(test, MINUTE, now).is_some(), "{test:?}");
                assert!(!state.is_fresh(now), "{test:?}: nothing is read yet");
                for (value, seconds) in readings.into_iter().zip([20, 30]) {
                    state.observe(test, value, at(seconds));
                }
                // A rate fades over minutes.
                for seconds in (40..1_200).step_by(10) {
                    let value = match test {
                        Test::Rate(_) if is_over => readings[1] + f64::from(seconds - 30) * 20.0,
                        Test::Still if !is_over => readings[1] + f64::from(seconds),
                        _ => readings[1],
                    };
                    state.observe(test, value, at(seconds.into()));
                }
                let found = state.is_over(test, MINUTE, at(1_190));
                assert_eq!(found.is_some(), is_over, "{test:?} {readings:?}");
                assert!(state.is_fresh(at(1_190)) && !state.is_given_up(at(9_000)));
            }
        }
        let grew = Test::Grew(60 * MINUTE);
        let mut state = State::resumed(grew, (told[0], told[1]), 9.0, at(0));
        state.observe(grew, 9.0, at(20));
        assert_eq!(state.is_over(grew, 0, at(3_000)), Some(told[1]));
        assert_eq!(state.is_over(grew, 0, at(3_600)), None, "an hour later");
        let unread = State::resumed(Test::Down, (told[0], told[1]), 0.0, at(0));
        assert!(!unread.is_given_up(at(600)) && unread.is_given_up(at(601)));
    }

    #[test]
    fn a_state_is_small_and_one_that_says_nothing_is_known_as_such() {
        assert!(size_of::<State>() <= 40, "{}", size_of::<State>());
        assert!(State::first(Test::Rate(1.0), 0.0, at(0)).is_nothing(Test::Rate(1.0)));
        assert!(State::first(Test::Down, 1.0, at(0)).is_nothing(Test::Down));
        assert!(State::first(Test::Above(1.0), 0.0, at(0)).is_nothing(Test::Above(1.0)));
        assert!(!State::first(Test::Above(1.0), 2.0, at(0)).is_nothing(Test::Above(1.0)));
        assert!(
            !State::first(Test::Still, 0.0, at(0)).is_nothing(Test::Still),
            "it has to be compared"
        );
    }
}

//! Time as the product keeps it: UTC, i64 Unix nanoseconds, half-open intervals, aligned ticks.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Nanoseconds in one second.
pub const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// Seconds in one minute row.
pub const SECONDS_PER_MINUTE: u32 = 60;

/// A moment in UTC, nanoseconds since the Unix epoch. Valid from 1970 to 2262.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

/// A minute of UTC, minutes since the Unix epoch: the key of a minute row.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Minute(pub i64);

/// Where the time comes from. Only `main` makes the real one; tests and the simulator make theirs.
pub trait Clock: Send + Sync {
    /// The wall clock. It can jump: use it to label data, never to measure how long a thing took.
    fn now(&self) -> Timestamp;
    /// Time since some fixed moment, never going back: for durations and deadlines.
    fn monotonic(&self) -> Duration;
}

impl Timestamp {
    /// From whole seconds since the Unix epoch.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self(seconds * NANOS_PER_SECOND)
    }

    /// From milliseconds since the Unix epoch, the unit of every time column in SQL.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis * 1_000_000)
    }

    /// Whole seconds since the Unix epoch, rounded towards the past.
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(NANOS_PER_SECOND)
    }

    /// Milliseconds since the Unix epoch, rounded towards the past.
    pub const fn millis(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }

    /// The minute this moment lies in.
    pub const fn minute(self) -> Minute {
        Minute(self.seconds().div_euclid(SECONDS_PER_MINUTE as i64))
    }

    /// Which second of its minute this moment lies in, 0 to 59: the bit in a minute row's bitmaps.
    pub const fn second_of_minute(self) -> u32 {
        self.seconds().rem_euclid(SECONDS_PER_MINUTE as i64) as u32
    }

    /// The latest multiple of `period` not after this moment. A period of zero returns `self`.
    pub fn aligned_to(self, period: Duration) -> Self {
        match i64::try_from(period.as_nanos()) {
            Ok(0) | Err(_) => self,
            Ok(period) => Self(self.0 - self.0.rem_euclid(period)),
        }
    }

    /// This moment moved by `nanos`, stopping at the ends of the range instead of wrapping.
    pub const fn shifted(self, nanos: i64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Nanoseconds from `earlier` to `self`; negative when `earlier` is later.
    pub const fn since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Minute {
    /// The first moment of this minute.
    pub const fn start(self) -> Timestamp {
        Timestamp::from_seconds(self.0 * SECONDS_PER_MINUTE as i64)
    }

    /// Hours since the Unix epoch: the key of a ledger hour.
    pub const fn hour(self) -> i64 {
        self.0.div_euclid(60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_before_the_epoch_still_has_a_minute_and_a_second() {
        let moment = Timestamp::from_seconds(-1);
        assert_eq!(
            (moment.minute(), moment.second_of_minute()),
            (Minute(-1), 59)
        );
    }

    #[test]
    fn ticks_align_to_wall_clock_multiples() {
        let moment = Timestamp(Timestamp::from_seconds(1_000_007).0 + 5);
        let tick = moment.aligned_to(Duration::from_secs(10));
        assert_eq!(tick, Timestamp::from_seconds(1_000_000));
        assert_eq!(tick.aligned_to(Duration::from_secs(10)), tick);
    }
}

//! The clock of the unit tests: it stands where it is put.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use gpufleet_telemetry::time::{Clock, Timestamp};

/// The wall clock, and the time since some fixed moment. Each is put by itself, because the wall clock can jump.
#[derive(Debug, Default)]
pub(crate) struct Hand(Mutex<(Timestamp, Duration)>);

impl Hand {
    /// It stands at this moment, which is also the one that durations count from.
    pub(crate) fn at(now: Timestamp) -> Self {
        Self(Mutex::new((now, Duration::ZERO)))
    }

    /// Puts the wall clock, and nothing else.
    pub(crate) fn put(&self, now: Timestamp) {
        self.both().0 = now;
    }

    /// Puts what durations and deadlines are reckoned by, and nothing else.
    pub(crate) fn put_monotonic(&self, since: Duration) {
        self.both().1 = since;
    }

    /// Lets time pass on both.
    pub(crate) fn pass(&self, time: Duration) {
        let nanos = i64::try_from(time.as_nanos()).expect("a test is shorter than 292 years");
        let mut both = self.both();
        *both = (both.0.shifted(nanos), both.1 + time);
    }

    fn both(&self) -> MutexGuard<'_, (Timestamp, Duration)> {
        self.0.lock().expect("who holds it does not panic")
    }
}

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        self.both().0
    }

    fn monotonic(&self) -> Duration {
        self.both().1
    }
}

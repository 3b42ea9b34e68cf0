//! The one real clock. Everything else is handed a [`Clock`].

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gpufleet_telemetry::time::{Clock, Timestamp};

/// The machine's clocks.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    started: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time counts from now.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the clock that is passed in"
    )]
    pub fn start() -> Self {
        Self {
            started: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the clock that is passed in"
    )]
    fn now(&self) -> Timestamp {
        // A clock before 1970 or after 2262 reads as the nearest end of what a timestamp can say.
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp(i64::try_from(since_epoch.as_nanos()).unwrap_or(i64::MAX))
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }
}

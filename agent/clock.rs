//! The one real clock of the agent; everything else is handed a [`Clock`].

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gpufleet_telemetry::time::{Clock, Timestamp};

/// The machine's clocks.
#[derive(Debug, Clone, Copy)]
pub struct RealClock {
    started: Instant,
}

impl RealClock {
    /// A clock whose monotonic side begins now.
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

impl Clock for RealClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the clock that is passed in"
    )]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }
}

//! The one place of the stand-in that reads the machine's time and waits.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::scenario::{CallCost, Scenario};

#[expect(
    clippy::disallowed_methods,
    reason = "the library is called through a C interface that passes no clock"
)]
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}

/// Seconds since the Unix epoch, or the scenario's fixed time.
#[expect(
    clippy::disallowed_methods,
    reason = "the library is called through a C interface that passes no clock"
)]
pub(crate) fn seconds(scenario: &Scenario) -> f64 {
    scenario.time_s.unwrap_or_else(|| {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0.0, |since| since.as_secs_f64())
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "a driver call that takes its time is the thing imitated here"
)]
pub(crate) fn wait(time: Duration) {
    std::thread::sleep(time);
}

/// Takes as long as the scenario says one call takes, counted from `start`.
pub(crate) fn spend(scenario: &Scenario, start: Instant) {
    let cost = Duration::from_micros(scenario.call_cost_us);
    match scenario.call_cost {
        CallCost::None => {}
        CallCost::Sleep => wait(cost.saturating_sub(start.elapsed())),
        CallCost::Spin => {
            while start.elapsed() < cost {
                std::hint::spin_loop();
            }
        }
    }
}

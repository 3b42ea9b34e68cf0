//! What agents still have that this server has not.
//!
//! While no server took anything agents kept what they read. They come back within half a minute and ship the newest
//! first, so the minutes of the outage are whole when their spools are empty. What is pushed waits for that, because what
//! comes later is not pushed: no longer than [`HELD_FOR`], and for agents that do not come back [`COME_BACK_WITHIN`].

use std::time::Duration;

use gpufleet_telemetry::catalog::own;
use gpufleet_telemetry::identity::{Origin, ResourceKind};
use gpufleet_telemetry::time::{Minute, NANOS_PER_SECOND};

use crate::App;
use crate::fleet::live::Live;

/// The longest wait from when this server began to lead: one agent that does not get rid of its spool holds up what all
/// others tell.
pub(super) const HELD_FOR: Duration = Duration::from_secs(15 * 60);

/// An agent tries at least each half minute, and says with its first samples how much it has.
const COME_BACK_WITHIN: Duration = Duration::from_secs(60);

/// The first minute of which an agent may have something that this server, which leads for so long, has not; the first of
/// all while one is not heard. None where there is none, or it was waited for long enough.
pub(super) fn first(app: &App, led: Duration) -> Option<Minute> {
    if led >= HELD_FOR {
        return None;
    }
    let mut first = None;
    app.fleet.visit(|live| {
        first = first.into_iter().chain(first_of(live, led)).min();
    });
    first
}

fn first_of(live: &Live, led: Duration) -> Option<Minute> {
    let is_agents = live.key.kind == ResourceKind::Node && live.agent.is_some();
    // What is simulated or recorded has no spool.
    if !is_agents || live.origin != Origin::Live {
        return None;
    }
    let ages = live.parts(own::SPOOL_AGE.id);
    match ages.filter_map(|it| it.reading.ok()).reduce(f64::max) {
        Some(age) => {
            let nanos = (age * NANOS_PER_SECOND as f64) as i64;
            Some(live.last_point.shifted(-nanos).minute())
        }
        None => (led < COME_BACK_WITHIN).then_some(Minute(i64::MIN)),
    }
}

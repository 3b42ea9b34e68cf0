//! What a GPU does now, from what the fleet knows live.

use std::time::Duration;

use gpufleet_analysis::ledger::{Reason, State};
use gpufleet_analysis::states::Status;
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::sample::Missing;
use gpufleet_telemetry::time::Timestamp;

use super::gather::DEFAULT_TICK;
use crate::fleet::live::Live;

/// The state of a GPU or share at `now`, why, and since when. A recording is judged at its own last
/// moment: it ended, it did not fall silent.
pub fn judge(live: &Live, now: Timestamp) -> Status {
    let (state, reason) = state(live, now);
    Status {
        state,
        reason,
        since: None,
    }
}

fn state(live: &Live, now: Timestamp) -> (State, Reason) {
    let now = if live.origin == Origin::Recorded {
        live.last_point
    } else {
        now
    };
    let age = Duration::from_nanos(now.since(live.last_point).max(0).unsigned_abs());
    if age > live.interval.max(DEFAULT_TICK) * 2 + Duration::from_secs(5) {
        return (State::Unobserved, Reason::NoSample);
    }
    let missing = [gpu::UTILIZATION, gpu::TEMPERATURE, gpu::MEMORY_USED]
        .iter()
        .filter_map(|metric| live.value(metric.id)?.reading.err())
        .find(|it| {
            matches!(
                it,
                Missing::GpuLost | Missing::ResetRequired | Missing::DriverHang
            )
        });
    match missing {
        Some(Missing::DriverHang) => return (State::Unhealthy, Reason::DriverHang),
        Some(_) => return (State::Unhealthy, Reason::DeviceLost),
        None => {}
    }
    let bits = &live.bits;
    let Some(newest) = bits.observed.checked_ilog2() else {
        return (State::Unobserved, Reason::NoSample);
    };
    let second = 1_u64 << newest;
    if bits.holder_known & second == 0 {
        (State::Unobserved, Reason::HolderUnknown)
    } else if bits.held & second == 0 {
        (State::Unallocated, Reason::Unknown)
    } else if bits.active & second != 0 {
        (State::ActiveUnrated, Reason::Unknown)
    } else {
        (State::Gap, Reason::Unknown)
    }
}

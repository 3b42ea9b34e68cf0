//! Whether GPUs of runs compute; broken ones: whether one still does, and whether it may be why its run stands.
//!
//! What the driver wants reset (field 230) may work on for days until somebody resets it. A run that made steps with such
//! a GPU does not stand because of it, unless something else says that it waits for its rank. Nor does one whose GPU broke
//! once it had stood for long.
//!
//! Limits: when the driver began to ask is known by events; of a GPU of which only readings say it, it began before.

use gpufleet_analysis::hang::Hang;
use gpufleet_analysis::ledger::{Reason, State};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use crate::detect::gather::GpuSnapshot;

/// A GPU that broke so long before the last step that is known, nanoseconds, may be why there is no other: steps are
/// told by agents a tick or two later than events are dated.
const BROKE_WITHIN_NS: i64 = 60 * NANOS_PER_SECOND;

/// Whether it is broken, or the driver wants it reset.
pub(in crate::detect) fn is_broken(seen: &GpuSnapshot) -> bool {
    seen.status.state == State::Unhealthy
}

/// How busy the tensor cores of ranks' GPUs are at most, of each with whether the rank is heard; none where one of those
/// that are may compute unseen. The machine of one that is not heard may be gone, and is asked for nothing.
pub(super) fn activity<'a>(
    gpus: impl Iterator<Item = (bool, Option<&'a GpuSnapshot>)>,
) -> Option<f64> {
    let of = |seen: Option<&GpuSnapshot>| {
        let seen = seen?;
        match seen.status.state {
            // Busy without work, idle or broken: none computes, but what only asks for a reset may, where that is read.
            State::Stalled | State::Gap | State::Parked | State::HeldEmpty => Some(0.0),
            _ if is_out(seen) => Some(0.0),
            _ => seen.tensor.or_else(|| is_broken(seen).then_some(0.0)),
        }
    };
    let all = gpus.map(|(is_heard, seen)| (is_heard, of(seen)));
    let known = all.filter(|(is_heard, read)| *is_heard || read.is_some());
    let all: Option<Vec<f64>> = known.map(|it| it.1).collect();
    all?.into_iter().reduce(f64::max)
}

/// Whether it is broken so that it computes nothing, whatever is read of it: not one that has worked since the driver
/// asked for something.
fn is_out(seen: &GpuSnapshot) -> bool {
    let may_work = seen.status.reason == Reason::RecoveryAction && seen.broken.is_none();
    is_broken(seen) && !may_work
}

/// Whether it is broken, and the run that stands has made steps with it as it is.
pub(super) fn is_stepped_with(seen: &GpuSnapshot, hang: &Hang) -> bool {
    let stepped = hang.since.shifted(-BROKE_WITHIN_NS);
    let broke_before = seen.health_at.is_none_or(|at| at < stepped);
    let is_asked = is_broken(seen) && seen.status.reason == Reason::RecoveryAction;
    is_asked && !hang.is_first && broke_before
}

/// Whether it broke after this moment, by an event that says when.
pub(super) fn is_broken_since(seen: &GpuSnapshot, moment: Timestamp) -> bool {
    seen.broken.is_some_and(|(_, at)| at > moment)
}

//! When a GPU is broken: from a fatal event to the one that ends it, or until it works again.
//!
//! Which XIDs are fatal is NVIDIA's catalogue of actions: those that ask for a reset of the GPU, a
//! reboot of the node or a restart of the VM. Application errors (13, 31, …) are not.

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::event::{Event, EventKind};
use gpufleet_telemetry::time::{Minute, Timestamp};

use super::second::Class;
use super::{Hour, Policy};
use crate::ledger::Reason;

/// XIDs after which the GPU is of no use until it is reset (46 … 158), its node rebooted (79) or
/// its VM restarted (151).
pub const FATAL_XIDS: [u32; 17] = [
    46, 48, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158,
];

/// The kinds of events that break or heal, as [`edge`] reads them.
pub const HEALTH_KINDS: [EventKind; 8] = [
    EventKind::GpuLost,
    EventKind::DriverHang,
    EventKind::Xid,
    EventKind::RecoveryAction,
    EventKind::GpuRecovered,
    EventKind::GpuReset,
    EventKind::GpuAdded,
    EventKind::DriverRecovered,
];

/// What an event means for health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// Broken from now on.
    Broken(Reason),
    /// Whole from now on.
    Whole,
}

/// An event that breaks or heals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthEvent {
    /// When it happened.
    pub at: Timestamp,
    /// What it means.
    pub edge: Edge,
}

/// What an event means for the health of the GPU it is about; none when nothing.
pub fn edge(event: &Event) -> Option<HealthEvent> {
    if !HEALTH_KINDS.contains(&event.kind) {
        return None;
    }
    let attribute = |name: &str| event.attributes.get(name).map(String::as_str);
    let edge = match event.kind {
        EventKind::GpuLost => Edge::Broken(Reason::DeviceLost),
        EventKind::DriverHang => Edge::Broken(Reason::DriverHang),
        EventKind::Xid => {
            let code: u32 = attribute("xid")?.parse().ok()?;
            FATAL_XIDS
                .contains(&code)
                .then_some(Edge::Broken(Reason::FatalXid))?
        }
        EventKind::RecoveryAction => match attribute("action")? {
            "0" | "none" => Edge::Whole,
            _ => Edge::Broken(Reason::RecoveryAction),
        },
        EventKind::GpuRecovered
        | EventKind::GpuReset
        | EventKind::GpuAdded
        | EventKind::DriverRecovered => Edge::Whole,
        _ => return None,
    };
    Some(HealthEvent { at: event.at, edge })
}

/// Per second why it is broken and when the newest fatal event was, in seconds of Unix time.
pub(super) fn broken(
    asked: &Hour<'_>,
    start_s: i64,
    classes: &[Class],
    policy: &Policy,
) -> Vec<Option<(Reason, i64)>> {
    let mut events: Vec<&HealthEvent> = asked.health.iter().collect();
    // Of two events in one moment the healing one goes first: broken is the safe reading.
    events.sort_by_key(|it| (it.at, matches!(it.edge, Edge::Broken(_))));
    let mut events = events
        .into_iter()
        .skip_while(|it| it.at.seconds() < start_s)
        .peekable();
    let mut broken = asked.carry.unhealthy;
    let seconds = std::iter::zip(start_s.., classes);
    seconds
        .map(|(second, class)| {
            while let Some(event) = events.next_if(|it| it.at.seconds() <= second) {
                broken = match event.edge {
                    Edge::Broken(reason) => Some((reason, second)),
                    Edge::Whole => None,
                };
            }
            let healed = |since: i64| second - since >= i64::from(policy.healed_after_s);
            // The driver asks for nothing any more: no event says so, its reading does.
            let asks_nothing = || {
                let row = asked.minutes.get(&Minute(second.div_euclid(60)));
                let asked_for = row.and_then(|it| it.metrics.get(&gpu::RECOVERY_ACTION.id));
                asked_for.is_some_and(|it| it.max == 0.0)
            };
            if broken.is_some_and(|(reason, since)| {
                reason == Reason::RecoveryAction && healed(since) && asks_nothing()
            }) {
                broken = None;
            }
            if *class == Class::Active && broken.is_some_and(|(_, since)| healed(since)) {
                broken = None;
            }
            broken
        })
        .collect()
}

//! When a GPU is broken: from a fatal event to the one that ends it, or until it works again.
//!
//! Which XIDs are fatal is said by what they ask for ([`Asks`]): a reset of the GPU, a reboot of the node or a restart
//! of the VM. Application errors (13, 31, …) are not.

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::event::{Event, EventKind};
use gpufleet_telemetry::time::{Minute, Timestamp};

use super::second::Class;
use super::{Hour, Policy};
use crate::health::Asks;
use crate::ledger::Reason;

/// XIDs after which the GPU is of no use until it is reset (46 … 158), its node rebooted (79) or
/// its VM restarted (151): NVIDIA's catalogue, for those of which nobody says what they ask for.
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

/// What the driver asks for (field 230) of a GPU that goes on: what it sends to others is to be drained.
const DRAIN_PEER_TO_PEER: f64 = 3.0;

/// Whether a GPU is of no use until what the driver asks for by this code (field 230) is done.
pub fn recovery_breaks(code: f64) -> bool {
    code > 0.0 && code != DRAIN_PEER_TO_PEER
}

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
            let action = attribute("action").unwrap_or_default();
            let asks = Asks::of(code, action, event.severity);
            asks.is_broken().then_some(Edge::Broken(Reason::FatalXid))?
        }
        EventKind::RecoveryAction => match attribute("action")? {
            "0" | "none" => Edge::Whole,
            "drain_peer_to_peer" => return None,
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
            // The driver asks for nothing any more that breaks it: no event says so, its reading does.
            let asks_nothing = || {
                let row = asked.minutes.get(&Minute(second.div_euclid(60)));
                let asked_for = row.and_then(|it| it.metrics.get(&gpu::RECOVERY_ACTION.id));
                asked_for.is_some_and(|it| !recovery_breaks(it.max))
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

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::event::Severity;
    use gpufleet_telemetry::identity::ResourceKind;

    use super::*;

    fn told(kind: EventKind, severity: Severity, texts: &[(&str, &str)]) -> Option<Edge> {
        let texts = texts.iter();
        let event = Event {
            at: Timestamp::from_seconds(5),
            kind,
            severity,
            resource_kind: ResourceKind::Gpu,
            resource_id: "GPU-1".into(),
            message: String::new(),
            attributes: texts
                .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
                .collect(),
        };
        edge(&event).map(|it| it.edge)
    }

    #[test]
    fn what_an_xid_asks_for_says_whether_it_breaks_the_gpu_and_its_code_where_nobody_says_it() {
        let fatal = Some(Edge::Broken(Reason::FatalXid));
        for (code, action, severity, expected) in [
            ("79", "reboot_node", Severity::Error, fatal),
            ("43", "reset_gpu", Severity::Error, fatal),
            ("48", "observe", Severity::Info, None),
            ("48", "our_own", Severity::Info, None),
            ("48", "our_own", Severity::Error, fatal),
            ("48", "", Severity::Error, fatal),
            ("74", "nvlink", Severity::Error, None),
        ] {
            let texts = [("xid", code), ("action", action)];
            let told = told(EventKind::Xid, severity, &texts);
            assert_eq!(told, expected, "{code} {action}");
        }
    }

    #[test]
    fn a_gpu_of_which_only_peer_to_peer_traffic_is_to_be_drained_goes_on() {
        let broken = Some(Edge::Broken(Reason::RecoveryAction));
        for (action, code, expected) in [
            ("none", 0.0, Some(Edge::Whole)),
            ("reset_gpu", 1.0, broken),
            ("reboot_node", 2.0, broken),
            ("drain_peer_to_peer", 3.0, None),
            ("drain_and_reset", 4.0, broken),
        ] {
            let texts = [("action", action)];
            let told = told(EventKind::RecoveryAction, Severity::Error, &texts);
            assert_eq!(told, expected, "{action}");
            assert_eq!(recovery_breaks(code), expected == broken, "{action}");
        }
    }
}

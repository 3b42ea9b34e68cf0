//! Incidents, what detectors say of them, and settings, for tests.

use gpufleet_analysis::cause::Cause;
use gpufleet_analysis::incident::{Family, Incident, Place, Remedy, Signal, State};
use gpufleet_analysis::lost::{Losing, Lost};
use gpufleet_analysis::price::{Basis, Price, Stake};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use super::settings::{ChannelConfig, Kind, NotifyConfig, Settings};

/// When everything in these tests begins.
pub(crate) const START: Timestamp = Timestamp(1_790_000_000_000_000_000);

/// So many seconds later.
pub(crate) fn after(seconds: i64) -> Timestamp {
    START.shifted(seconds * 1_000_000_000)
}

/// An open incident of a GPU that is broken.
pub(crate) fn incident(number: u128) -> Incident {
    Incident {
        id: Uuid::from_u128(number),
        family: Family::GpuFault,
        place: Place::gpu("prod", "node-1", &format!("GPU-{number}")),
        severity: Severity::Error,
        what: "XID 79".to_owned(),
        action: "Reboot it.".to_owned(),
        remedy: Some(Remedy::Reboot),
        cause: Cause::GpuFault,
        confidence: None,
        places: 1,
        state: State::Open,
        since: START,
        opened_at: Some(START),
        seen_at: START,
        clear_from: START,
        unheard_since: None,
        resolved_at: None,
        ticks: 1,
        losing: Losing::gpus(1, Some(3_000_000_000)),
        lost: Lost::default(),
        basis: Basis::BrokenGpu,
        is_least: false,
        stake: Stake::default(),
        counted_to: START,
        evidence: Vec::new(),
        more_evidence: 0,
        owner: None,
        standing: std::collections::BTreeMap::new(),
        acknowledged_by: None,
        silenced_until: None,
        silenced_alone_until: None,
        log: Vec::new(),
    }
}

/// A detector's word of a broken GPU at this place.
pub(crate) fn broken(place: Place) -> Signal {
    Signal {
        family: Family::GpuFault,
        place,
        severity: Severity::Error,
        what: "XID 79".to_owned(),
        action: String::new(),
        remedy: Remedy::Look,
        cause: Cause::GpuFault,
        since: None,
        readings: Vec::new(),
        price: Price::none(Basis::GoesOn),
        confidence: None,
        booted_at: None,
    }
}

/// The same in a cluster of its own, so that no other is the same trouble.
pub(crate) fn trouble(number: usize) -> Signal {
    broken(Place::gpu(&format!("cluster-{number}"), "node-1", "GPU-1"))
}

/// Channels with these names and kinds, and no routes.
pub(crate) fn settings(channels: &[(&str, Kind)]) -> Settings {
    let mut config = NotifyConfig::default();
    for (name, kind) in channels {
        let mut channel = ChannelConfig::new(name, *kind);
        if matches!(kind, Kind::Webhook | Kind::Alertmanager) {
            channel.urls = vec!["http://127.0.0.1:1".to_owned()];
        }
        config.channels.push(channel);
    }
    Settings::read(&config).expect("they can be used")
}

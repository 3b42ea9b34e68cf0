//! Whether nodes are there, and when those went that are not.

use gpufleet_analysis::price_book::Basis;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::known::HOUR_NS;
use super::{CHANGES_FOR_NS, Inventory};

/// That a node went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone {
    /// It was there until then …
    pub from: Timestamp,
    /// … and was not any more then.
    pub until: Timestamp,
    /// Whether it was paid at Spot, so that the provider may have taken it back.
    pub is_spot: bool,
}

/// For how many nanoseconds a node that is gone is remembered, where the fleet forgets what was silent for so many seconds
/// (`fleet.forget_after_s`): until it has forgotten the node's GPUs, which would be silent again without it, and at least
/// as long as changes are. The store keeps it for longer.
pub fn gone_for_ns(forget_after_s: u64) -> i64 {
    let seconds = i64::try_from(forget_after_s).unwrap_or(i64::MAX);
    let forget_after = seconds.saturating_mul(NANOS_PER_SECOND);
    // Its agent may tell for a while after the cluster said that it is gone.
    forget_after.max(CHANGES_FOR_NS).saturating_add(HOUR_NS)
}

impl Inventory {
    /// Whether a node was there and is gone; not of one that is there without its GPUs.
    pub fn is_gone(&self, cluster: &str, node: &str) -> bool {
        *cluster == *self.cluster && self.known().is_gone(node)
    }

    /// Whether a cluster has this node, or any where none is named, as far as somebody tells its nodes.
    pub fn is_listed(&self, cluster: &str, node: Option<&str>) -> bool {
        if *cluster != *self.cluster {
            return false;
        }
        let known = self.known();
        match node {
            Some(node) => known.record(node).is_some_and(|it| !it.is_gone()),
            None => known.records().any(|it| !it.is_gone()),
        }
    }

    /// That a node that was heard at `heard` went, or another machine came under its name; none where it is there
    /// with its GPUs or without them, or nothing is known of it.
    pub fn gone(&self, cluster: &str, node: &str, heard: Timestamp) -> Option<Gone> {
        if *cluster != *self.cluster {
            return None;
        }
        let known = self.known();
        if known.is_without_gpus(node) {
            return None;
        }
        let record = known.record(node)?;
        let (from, until) = match (record.gone_at, record.node.created) {
            (Some(at), _) => (record.unwatched_from.unwrap_or(at), at),
            (None, Some(created)) if created > heard => (heard, created),
            (None, _) => return None,
        };
        Some(Gone {
            from,
            until,
            is_spot: record.node.provisioning == Basis::Spot.name(),
        })
    }
}

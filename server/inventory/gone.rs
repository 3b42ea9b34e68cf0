//! Whether nodes are there, and when those went that are not.

use gpufleet_analysis::inventory::Record;
use gpufleet_analysis::price_book::Basis;
use gpufleet_telemetry::time::Timestamp;

use super::Inventory;

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

impl Inventory {
    /// Whether a node was there and is gone.
    pub fn is_gone(&self, cluster: &str, node: &str) -> bool {
        *cluster == *self.cluster && self.known().record(node).is_some_and(Record::is_gone)
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
    /// or nothing is known of it.
    pub fn gone(&self, cluster: &str, node: &str, heard: Timestamp) -> Option<Gone> {
        if *cluster != *self.cluster {
            return None;
        }
        let known = self.known();
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

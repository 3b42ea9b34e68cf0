//! Nodes that are there and have no GPUs any more: one that was imaged anew, or whose driver does not load.
//!
//! There is nothing on them to give out, so their records are over. But they did not go: GPUs that were heard on them are
//! missing, and nobody may take that for a machine that was given back.

use std::collections::BTreeSet;

use gpufleet_analysis::inventory::Record;
use gpufleet_telemetry::time::Timestamp;

use super::ClusterState;

impl ClusterState {
    /// Whether a node was there and is gone; not of one that is there without its GPUs.
    pub fn is_gone(&self, node: &str) -> bool {
        let is_over = self.record(node).is_some_and(Record::is_gone);
        is_over && !self.without_gpus.contains(node)
    }

    /// Whether a node that had GPUs is there without them.
    pub fn is_without_gpus(&self, node: &str) -> bool {
        self.without_gpus.contains(node)
    }

    /// A node is there and has no GPUs. Of one that never had any nothing is kept.
    pub fn node_without_gpus(&mut self, name: &str, now: Timestamp) {
        let mut found = self.ends(name, now);
        for it in &mut found {
            "has no GPUs any more".clone_into(&mut it.what);
        }
        self.note(found);
        if self.record(name).is_some() {
            self.without_gpus.insert(name.to_owned());
        }
    }

    /// All that are there and have none, to be told before those of the same list that have some
    /// ([`ClusterState::all_nodes`]).
    pub fn all_without_gpus(&mut self, names: &BTreeSet<String>, now: Timestamp) {
        self.without_gpus.retain(|it| names.contains(it));
        for name in names {
            self.node_without_gpus(name, now);
        }
    }
}

//! Which nodes are cordoned or about to go, and since when, by the names that agents tell: what nobody holds on one
//! drains now, as it does in the ledger.
//!
//! A name is the node's as in the ledger (`store::phases`): the one that is written the same, else the only one that
//! is the same without its domain, where no two domains are named.

use std::collections::HashMap;
use std::sync::Arc;

use gpufleet_analysis::inventory::{Phase, Record};
use gpufleet_telemetry::time::Timestamp;

use super::Inventory;
use super::known::{ClusterState, Moment};
use super::names::short;

/// The nodes of a cluster that are cordoned.
#[derive(Debug, Default)]
pub struct Cordoned {
    cluster: Arc<str>,
    /// By the name without its domain, where one of that name is cordoned: each node of it, and since when it is.
    alike: HashMap<String, Vec<(String, Option<Timestamp>)>>,
}

impl Inventory {
    /// The nodes that are cordoned, as far as nodes are seen now.
    pub fn cordoned(&self, now: Moment) -> Cordoned {
        match self.sees_nodes(now) {
            true => Cordoned::of(self.cluster(), &self.known()),
            false => Cordoned::default(),
        }
    }
}

impl Cordoned {
    /// Those of a cluster of which this is known.
    pub fn of(cluster: &Arc<str>, known: &ClusterState) -> Self {
        let since = |it: &Record| {
            let is_it = it.told_phase() == Phase::Cordoned;
            is_it.then(|| it.phase_since.max(it.first_seen))
        };
        let cordoned = known.records().filter(|it| since(it).is_some());
        let mut alike: HashMap<String, Vec<_>> = cordoned
            .map(|it| (short(&it.node.name).to_owned(), Vec::new()))
            .collect();
        if !alike.is_empty() {
            for it in known.records().filter(|it| !it.is_gone()) {
                if let Some(those) = alike.get_mut(short(&it.node.name)) {
                    those.push((it.node.name.clone(), since(it)));
                }
            }
        }
        Self {
            cluster: Arc::clone(cluster),
            alike,
        }
    }

    /// Since when the node that an agent tells of is cordoned; none where it is not, or nobody says.
    pub fn since(&self, cluster: &str, node: &str) -> Option<Timestamp> {
        if self.alike.is_empty() || *cluster != *self.cluster {
            return None;
        }
        let those = self.alike.get(short(node))?;
        if let Some(same) = those.iter().find(|it| it.0 == node) {
            return same.1;
        }
        let [(name, since)] = those.as_slice() else {
            return None;
        };
        let is_one = node == short(node) || *name == short(name);
        since.filter(|_| is_one)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gpufleet_analysis::inventory::{Node, Ready};

    use super::*;

    #[test]
    fn a_cordoned_node_is_found_by_every_name_that_can_mean_no_other() {
        let now = |seconds: i64| Moment {
            at: Timestamp::from_seconds(seconds),
            monotonic: Duration::from_secs(seconds.unsigned_abs()),
        };
        let node = |name: &str, cordoned| Node {
            name: name.to_owned(),
            allocatable: 8,
            ready: Ready::Yes,
            cordoned,
            ..Node::default()
        };
        let nodes = |cordoned| {
            let names = ["a", "b.lab", "c.one", "c.two"];
            let mut all: Vec<Node> = names.map(|it| node(it, cordoned)).into();
            all.push(node("d", false));
            all
        };
        let mut known = ClusterState::default();
        known.all_nodes(nodes(false), now(0));
        let found = Cordoned::of(&"prod".into(), &known);
        assert_eq!(found.since("prod", "a"), None);
        known.all_nodes(nodes(true), now(60));
        let found = Cordoned::of(&"prod".into(), &known);
        let since = Some(Timestamp::from_seconds(60));
        for (told, expected) in [
            ("a", since),
            ("a.lab", since),
            ("b.lab", since),
            ("b", since),
            ("b.elsewhere", None),
            ("c", None),
            ("c.one", since),
            ("d", None),
            ("e", None),
        ] {
            assert_eq!(found.since("prod", told), expected, "{told}");
        }
        assert_eq!(found.since("lab", "a"), None);
        // One that is gone drains nothing.
        known.all_nodes(Vec::new(), now(120));
        let found = Cordoned::of(&"prod".into(), &known);
        assert_eq!(found.since("prod", "a"), None);
    }
}

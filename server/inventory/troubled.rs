//! Which nodes are not ready any more, cordoned or about to go, and since when, by the names that agents tell: what is on
//! one is unhealthy now, or drains, as it does in the ledger.
//!
//! A name is the node's as in the ledger (`store::phases`): the one that is written the same, else the only one that
//! is the same without its domain, where no two domains are named.

use std::collections::HashMap;
use std::sync::Arc;

use gpufleet_analysis::inventory::{Phase, Record};
use gpufleet_analysis::states::AtNode;

use super::Inventory;
use super::known::{ClusterState, Moment};
use super::names::short;

/// The nodes of a cluster that are not ready any more or cordoned.
#[derive(Debug, Default)]
pub struct Troubled {
    cluster: Arc<str>,
    /// By the name without its domain, where one of that name is in trouble: each node of it, and what is said of it.
    alike: HashMap<String, Vec<(String, AtNode)>>,
}

impl Inventory {
    /// The nodes that are in trouble, as far as nodes are seen now.
    pub fn troubled(&self, now: Moment) -> Troubled {
        match self.sees_nodes(now) {
            true => Troubled::of(self.cluster(), &self.known()),
            false => Troubled::default(),
        }
    }
}

/// What is said of one.
fn said(record: &Record) -> AtNode {
    let since = Some(record.phase_since.max(record.first_seen));
    match record.told_phase() {
        Phase::NotReady => AtNode {
            lost_since: since,
            ..AtNode::default()
        },
        Phase::Cordoned => AtNode {
            draining_since: since,
            ..AtNode::default()
        },
        Phase::Starting | Phase::Ready | Phase::Gone => AtNode::default(),
    }
}

impl Troubled {
    /// Those of a cluster of which this is known.
    pub fn of(cluster: &Arc<str>, known: &ClusterState) -> Self {
        let troubled = known.records().filter(|it| said(it) != AtNode::default());
        let mut alike: HashMap<String, Vec<_>> = troubled
            .map(|it| (short(&it.node.name).to_owned(), Vec::new()))
            .collect();
        if !alike.is_empty() {
            for it in known.records().filter(|it| !it.is_gone()) {
                if let Some(those) = alike.get_mut(short(&it.node.name)) {
                    those.push((it.node.name.clone(), said(it)));
                }
            }
        }
        Self {
            cluster: Arc::clone(cluster),
            alike,
        }
    }

    /// What is said of the node that an agent tells of; nothing of one that is well, or of which nobody says.
    pub fn at(&self, cluster: &str, node: &str) -> AtNode {
        if self.alike.is_empty() || *cluster != *self.cluster {
            return AtNode::default();
        }
        let those = self.alike.get(short(node)).map_or(&[][..], Vec::as_slice);
        if let Some(same) = those.iter().find(|it| it.0 == node) {
            return same.1;
        }
        match those {
            [(name, said)] if node == short(node) || *name == short(name) => *said,
            _ => AtNode::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gpufleet_analysis::inventory::{Node, Ready};
    use gpufleet_telemetry::time::Timestamp;

    use super::*;

    #[test]
    fn a_node_in_trouble_is_found_by_every_name_that_can_mean_no_other() {
        let now = |seconds: i64| Moment {
            at: Timestamp::from_seconds(seconds),
            monotonic: Duration::from_secs(seconds.unsigned_abs()),
        };
        let node = |name: &str, (cordoned, ready)| Node {
            name: name.to_owned(),
            allocatable: 8,
            ready,
            cordoned,
            ..Node::default()
        };
        let well = (false, Ready::Yes);
        let nodes = |trouble| {
            let names = ["a", "b.lab", "c.one", "c.two"];
            let mut all: Vec<Node> = names.map(|it| node(it, trouble)).into();
            all.push(node("d", well));
            all
        };
        let mut known = ClusterState::default();
        let found = |known: &ClusterState, node: &str| {
            let said = Troubled::of(&"prod".into(), known).at("prod", node);
            (said.draining_since, said.lost_since)
        };
        known.all_nodes(nodes(well), now(0));
        assert_eq!(found(&known, "a"), (None, None));
        known.all_nodes(nodes((true, Ready::Yes)), now(60));
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
            assert_eq!(found(&known, told), (expected, None), "{told}");
        }
        let elsewhere = Troubled::of(&"prod".into(), &known).at("lab", "a");
        assert_eq!(elsewhere, AtNode::default());
        // One that is not ready is that, cordoned or not.
        known.all_nodes(nodes((true, Ready::No)), now(90));
        let lost = Some(Timestamp::from_seconds(90));
        assert_eq!(found(&known, "a.lab"), (None, lost));
        // One that is gone is in no trouble.
        known.all_nodes(Vec::new(), now(120));
        assert_eq!(found(&known, "a"), (None, None));
    }
}

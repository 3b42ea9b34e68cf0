//! How many nodes are paid for whether they run or not: as many of a machine type in a region as somebody committed to.
//!
//! A commitment is of no node in particular, of those of the cluster that it names or of all of them, and only of live ones
//! that are paid on demand, as the month books it: never of one on Spot or at an own rate. One whose machine type has no
//! rate is on demand too while a commitment may cover it; what of it none covers costs what its cards do by themselves.
//! As long as more run than are committed to, one that is given back saves its price.

use std::collections::HashMap;

use gpufleet_analysis::price_book::{Basis, Commitment};
use gpufleet_telemetry::identity::{Origin, attribute};
use gpufleet_telemetry::time::Timestamp;

use super::{by_node, node};
use crate::App;
use crate::money::now::MoneySnapshot;
use crate::money::{Machine, Terms};

/// Nodes of a machine type in a region.
#[derive(Debug, Default)]
struct Count {
    /// By their cluster.
    of: HashMap<String, OfCluster>,
    /// That are committed to in whatever cluster.
    shared: usize,
}

/// Nodes of a machine type in a region and a cluster.
#[derive(Debug, Default)]
struct OfCluster {
    /// That are there, live and paid on demand.
    nodes: usize,
    /// That are committed to in this one alone.
    committed: usize,
}

/// How many nodes like one somebody committed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Like {
    /// Of its cluster alone.
    pub(super) own: usize,
    /// Of whatever cluster.
    pub(super) shared: usize,
}

/// What somebody committed to, beside what there is, by machine type and region.
#[derive(Debug, Default)]
pub(super) struct Committed(HashMap<(String, String), Count>);

/// A cluster, a machine type in a region, and on what terms its node is paid.
pub(super) type Paid = (String, String, String, Basis);

impl OfCluster {
    /// Nodes that what is committed to in their cluster leaves to others.
    const fn left(&self) -> usize {
        self.nodes.saturating_sub(self.committed)
    }
}

impl Committed {
    /// As it is at a time.
    pub(super) fn of(app: &App, terms: &Terms, found: &MoneySnapshot, at: Timestamp) -> Self {
        let (commitments, at_ms) = (terms.book.commitments(), at.millis());
        if commitments.is_empty() {
            return Self::default();
        }
        let nodes = by_node(found)
            .into_iter()
            .filter_map(|((cluster, name), gpus)| {
                let first = &gpus.first()?.1.resource;
                if first.origin() != Origin::Live {
                    return None;
                }
                let model = first.attribute(attribute::GPU_MODEL);
                let resource = node(app, cluster, name);
                let machine =
                    Machine::told(cluster, resource.as_deref(), model.unwrap_or_default(), 1);
                let (_, basis, _) = terms.machine(&machine, at_ms);
                Some((
                    cluster.to_string(),
                    machine.machine_type.to_owned(),
                    machine.region.to_owned(),
                    basis,
                ))
            });
        Self::counted(commitments, nodes, at_ms)
    }

    /// The same of these nodes.
    pub(super) fn counted(
        commitments: &[Commitment],
        nodes: impl Iterator<Item = Paid>,
        at_ms: i64,
    ) -> Self {
        let mut counts: HashMap<(String, String), Count> = HashMap::new();
        for it in commitments {
            if (it.from_ms..it.until_ms).contains(&at_ms) {
                let key = (it.machine_type.clone(), it.region.clone());
                let (count, nodes) = (counts.entry(key).or_default(), it.nodes as usize);
                match it.cluster.as_str() {
                    "" => count.shared += nodes,
                    cluster => count.of.entry(cluster.to_owned()).or_default().committed += nodes,
                }
            }
        }
        for (cluster, machine_type, region, basis) in nodes {
            let count = counts.get_mut(&(machine_type, region));
            if let Some(count) = count.filter(|_| basis == Basis::OnDemand) {
                count.of.entry(cluster).or_default().nodes += 1;
            }
        }
        Self(counts)
    }

    /// How many nodes like this one are committed to; 0 where it is not paid on demand or not live.
    pub(super) fn nodes(&self, machine: &Machine<'_>, paid: (Origin, Basis)) -> Like {
        let like = self.like(machine, paid);
        like.map_or(Like::default(), |it| Like {
            own: it.of.get(machine.cluster).map_or(0, |it| it.committed),
            shared: it.shared,
        })
    }

    /// Whether all nodes like this one are: then none of them saves anything.
    pub(super) fn covers(&self, machine: &Machine<'_>, paid: (Origin, Basis)) -> bool {
        let Some(like) = self.like(machine, paid) else {
            return false;
        };
        let own = like.of.get(machine.cluster);
        if own.is_some_and(|it| it.committed >= it.nodes.max(1)) {
            return true;
        }
        let left: usize = like.of.values().map(OfCluster::left).sum();
        like.shared >= left.max(1)
    }

    fn like(&self, machine: &Machine<'_>, paid: (Origin, Basis)) -> Option<&Count> {
        let key = (machine.machine_type.to_owned(), machine.region.to_owned());
        let is_coverable = paid == (Origin::Live, Basis::OnDemand);
        self.0.get(&key).filter(|_| is_coverable)
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::price_book::Place;

    use super::*;

    #[test]
    fn a_commitment_covers_as_many_nodes_as_it_is_of_and_none_that_is_not_paid_on_demand() {
        let commitment = |nodes| Commitment {
            id: "c-1".to_owned(),
            machine_type: "a3".to_owned(),
            region: "us".to_owned(),
            nodes,
            basis: Basis::Commitment1Year,
            hour: 60,
            from_ms: 10,
            until_ms: 20,
            owner: String::new(),
            cluster: String::new(),
            place: Place {
                table: String::new(),
                line: 0,
            },
        };
        let on = |basis| ("prod".to_owned(), "a3".to_owned(), "us".to_owned(), basis);
        let nodes = [
            Basis::OnDemand,
            Basis::OnDemand,
            Basis::OnDemand,
            Basis::Spot,
            Basis::Own,
        ]
        .map(on);
        let machine = Machine {
            machine_type: "a3",
            region: "us",
            ..Machine::told("prod", None, "H100", 1)
        };
        for (committed, at_ms, covers) in [(1, 10, false), (3, 10, true), (3, 20, false)] {
            let found = Committed::counted(&[commitment(committed)], nodes.iter().cloned(), at_ms);
            assert_eq!(
                found.covers(&machine, (Origin::Live, Basis::OnDemand)),
                covers,
                "{committed} at {at_ms}"
            );
            assert!(!found.covers(&machine, (Origin::Live, Basis::Spot)));
            assert!(!found.covers(&machine, (Origin::Live, Basis::Own)));
            assert!(!found.covers(&machine, (Origin::Simulated, Basis::OnDemand)));
            let elsewhere = Machine {
                region: "eu",
                ..machine
            };
            let live = (Origin::Live, Basis::OnDemand);
            assert_eq!(found.nodes(&elsewhere, live), Like::default());
        }
        // Those of another cluster are none of this one, and what they leave is for both.
        let of = |cluster: &str, nodes| Commitment {
            cluster: cluster.to_owned(),
            ..commitment(nodes)
        };
        let lab = (
            "lab".to_owned(),
            "a3".to_owned(),
            "us".to_owned(),
            Basis::OnDemand,
        );
        let nodes = nodes.into_iter().chain([lab]);
        for (commitments, own, covers) in [
            (vec![of("lab", 9)], 0, false),
            (vec![of("prod", 3)], 3, true),
            (vec![of("prod", 2), of("", 1)], 2, false),
            (vec![of("prod", 2), of("", 2)], 2, true),
            (vec![of("lab", 1), of("", 3)], 0, true),
        ] {
            let found = Committed::counted(&commitments, nodes.clone(), 10);
            let live = (Origin::Live, Basis::OnDemand);
            assert_eq!(found.nodes(&machine, live).own, own, "{commitments:?}");
            assert_eq!(found.covers(&machine, live), covers, "{commitments:?}");
        }
    }
}

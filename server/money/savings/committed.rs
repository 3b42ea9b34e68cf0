//! How many nodes are paid for whether they run or not: as many of a machine type in a region as somebody committed to.
//!
//! A commitment is of no node in particular, and never of one on Spot or of one that is simulated: as long as more run
//! than are committed to, one that is given back saves its price.

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
    /// That are there, live and not on Spot.
    nodes: usize,
    /// That are committed to.
    committed: usize,
}

/// What somebody committed to, beside what there is.
#[derive(Debug, Default)]
pub(super) struct Committed(HashMap<(String, String), Count>);

/// A machine type in a region, and on what terms its node is paid.
pub(super) type Paid = (String, String, Basis);

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
                counts.entry(key).or_default().committed += it.nodes as usize;
            }
        }
        for (machine_type, region, basis) in nodes {
            let count = counts.get_mut(&(machine_type, region));
            if let Some(count) = count.filter(|_| basis != Basis::Spot) {
                count.nodes += 1;
            }
        }
        Self(counts)
    }

    /// How many nodes like this one are committed to; 0 where it is on Spot or not live.
    pub(super) fn nodes(&self, machine: &Machine<'_>, paid: (Origin, Basis)) -> usize {
        self.like(machine, paid).map_or(0, |it| it.committed)
    }

    /// Whether all nodes like this one are: then none of them saves anything.
    pub(super) fn covers(&self, machine: &Machine<'_>, paid: (Origin, Basis)) -> bool {
        let like = self.like(machine, paid);
        like.is_some_and(|it| it.committed >= it.nodes.max(1))
    }

    fn like(&self, machine: &Machine<'_>, paid: (Origin, Basis)) -> Option<&Count> {
        let key = (machine.machine_type.to_owned(), machine.region.to_owned());
        let is_live = paid.0 == Origin::Live && paid.1 != Basis::Spot;
        self.0.get(&key).filter(|_| is_live)
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::price_book::Place;

    use super::*;

    #[test]
    fn a_commitment_covers_as_many_nodes_as_it_is_of_and_none_on_spot() {
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
            place: Place {
                table: String::new(),
                line: 0,
            },
        };
        let on = |basis| ("a3".to_owned(), "us".to_owned(), basis);
        let nodes = [
            Basis::OnDemand,
            Basis::OnDemand,
            Basis::OnDemand,
            Basis::Spot,
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
            assert!(!found.covers(&machine, (Origin::Simulated, Basis::OnDemand)));
            let elsewhere = Machine {
                region: "eu",
                ..machine
            };
            assert_eq!(found.nodes(&elsewhere, (Origin::Live, Basis::OnDemand)), 0);
        }
    }
}

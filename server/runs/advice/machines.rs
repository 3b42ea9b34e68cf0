//! What machines a run is on: how many nodes, how many of their CPUs a rank may use, whether its cards have NVLink, how busy
//! their PCIe links are.
//!
//! Of the CPUs of a rank its process tells how many it may use (`cpus` in its fingerprint, of all ranks that `cpus.ranks`
//! counts); of one that does not, only the node's are known.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::gpu_specs::Spec;
use gpufleet_telemetry::pcie;

use super::value;
use crate::fleet::Live;
use crate::runs::Run;

/// How many nodes a run is on; none where that may be one and not all of its ranks are known to be on it.
pub(super) fn nodes(run: &Run) -> Option<u32> {
    let (mut names, mut named) = (BTreeSet::new(), 0_u32);
    let nodes = run.living().map(|(_, rank)| &*rank.facts.node);
    for name in nodes.filter(|it| !it.is_empty()) {
        names.insert(name);
        named += 1;
    }
    let is_all = run.facts.world > 0 && named >= run.facts.world;
    let count = u32::try_from(names.len()).ok()?;
    (count > 1 || (count == 1 && is_all)).then_some(count)
}

/// CPUs for each rank, and whether a process told what it may use: what its affinity and its container allow, with how
/// many ranks share that. The node's, shared out among its ranks, are never fewer.
pub(super) fn cpus_per_rank(
    told: &BTreeMap<String, String>,
    of_node: Option<f64>,
    is_alone: bool,
) -> (Option<f64>, bool) {
    let number = |name: &str| {
        let number = told.get(name)?.parse::<f64>().ok();
        number.filter(|it| it.is_finite() && *it >= 1.0)
    };
    let Some(allowed) = number("cpus") else {
        return (of_node, false);
    };
    let ranks = number("cpus.ranks").or_else(|| is_alone.then_some(1.0));
    let own = allowed / ranks.unwrap_or(1.0);
    let least = of_node.map_or(own, |it| it.min(own));
    (Some(least), ranks.is_some())
}

/// Whether cards have NVLink, by how many links of each are up, else by the table of cards. Of one that may have it the
/// table says nothing: whether a bridge was bought only the card tells.
pub(super) fn has_nvlink(up: impl Iterator<Item = f64>, spec: Option<&Spec>) -> Option<bool> {
    let most = up.reduce(f64::max).map(|it| it >= 1.0);
    let has_none = spec.filter(|it| it.nvlink_bytes_per_second.is_none());
    most.or_else(|| has_none.map(|_| false))
}

/// What a card receives over PCIe ÷ what its link, as it is now, could move one way.
pub(super) fn pcie_received(card: &Live) -> Option<f64> {
    let generation = value(card, &gpu::PCIE_GENERATION)? as u32;
    let lanes = value(card, &gpu::PCIE_WIDTH)? as u32;
    let link = pcie::bytes_per_second(generation, lanes).filter(|it| *it > 0.0)?;
    Some(value(card, &gpu::PCIE_RECEIVED)? / link)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpufleet_telemetry::catalog::Metric;
    use gpufleet_telemetry::gpu_specs::Specs;
    use gpufleet_telemetry::identity::{Origin, Resource, ResourceKind, attribute};
    use gpufleet_telemetry::training::Trust;

    use super::super::set_up::tests::told;
    use super::*;
    use crate::fleet::LiveValue;
    use crate::view::fixture;

    #[test]
    fn cpus_of_a_rank_are_what_its_process_may_use_and_no_more_than_the_nodes() {
        let node = Some(16.0);
        for (pairs, of_node, is_alone, expected) in [
            // A container with a quota, and all ranks of the node in it.
            (
                &[("cpus", "32"), ("cpus.ranks", "8")][..],
                node,
                false,
                (Some(4.0), true),
            ),
            // One rank a container.
            (
                &[("cpus", "4"), ("cpus.ranks", "1")][..],
                node,
                false,
                (Some(4.0), true),
            ),
            (&[("cpus", "4")][..], node, true, (Some(4.0), true)),
            // How many share them is not known.
            (&[("cpus", "128")][..], node, false, (Some(16.0), false)),
            (&[("cpus", "4")][..], node, false, (Some(4.0), false)),
            (
                &[("cpus", "128"), ("cpus.ranks", "1")][..],
                node,
                false,
                (Some(16.0), true),
            ),
            (
                &[("cpus", "32"), ("cpus.ranks", "8")][..],
                None,
                false,
                (Some(4.0), true),
            ),
            (
                &[("cpus", "many"), ("cpus.ranks", "8")][..],
                node,
                false,
                (node, false),
            ),
            (&[("cpus", "0")][..], node, true, (node, false)),
            (&[][..], node, true, (node, false)),
            (&[][..], None, false, (None, false)),
        ] {
            let found = cpus_per_rank(&told(pairs), of_node, is_alone);
            assert_eq!(found, expected, "{pairs:?} {of_node:?} {is_alone}");
        }
    }

    #[test]
    fn a_run_is_on_one_node_only_where_all_its_ranks_are_known_to_be() {
        for (names, world, expected) in [
            (&["a", "a"][..], 2, Some(1)),
            (&["a", "a"][..], 4, None),
            (&["a", "a"][..], 0, None),
            (&["a", ""][..], 2, None),
            (&["a", "b"][..], 4, Some(2)),
            (&["a", "b", "a", "b"][..], 4, Some(2)),
            (&[""][..], 1, None),
            (&[][..], 0, None),
        ] {
            let mut run = Run::default();
            for (number, name) in (0..).zip(names) {
                let id = format!("team/llama/u1/0/{number}");
                let resource = Resource::new(ResourceKind::Rank, id);
                let resource = resource.with(attribute::TRUST, Trust::Proved.name());
                run.introduce(number, &Arc::new(resource));
                let rank = run.ranks.get_mut(&number).expect("it was introduced");
                rank.facts.node = Arc::from(*name);
            }
            run.facts.world = world;
            assert_eq!(nodes(&run), expected, "{names:?} of {world}");
        }
    }

    #[test]
    fn whether_cards_have_nvlink_they_say_themselves_and_else_the_table_where_it_has_none() {
        let specs = Specs::default();
        for (up, card, expected) in [
            (&[0.0, 4.0][..], "NVIDIA RTX A6000", Some(true)),
            (&[0.0, 0.0][..], "NVIDIA RTX A6000", Some(false)),
            (&[][..], "NVIDIA RTX A6000", None),
            (&[][..], "NVIDIA GeForce RTX 4090", Some(false)),
            (&[][..], "a card that nobody knows", None),
            (&[18.0][..], "a card that nobody knows", Some(true)),
        ] {
            let found = has_nvlink(up.iter().copied(), specs.lookup(card));
            assert_eq!(found, expected, "{up:?} {card}");
        }
    }

    #[test]
    fn a_link_is_as_busy_as_what_it_receives_is_of_what_it_could() {
        let busy = |readings: &[(Metric, f64)]| {
            let mut card = fixture::live("prod", "a", ResourceKind::Gpu, "GPU-1", Origin::Live);
            let at = card.last_point;
            let readings = readings.iter().map(|(metric, it)| LiveValue {
                metric: metric.id,
                part: None,
                reading: Ok(*it),
                max: None,
                at,
            });
            card.values = readings.collect();
            card.values.sort_by_key(|it| it.metric);
            pcie_received(&card)
        };
        let link = [(gpu::PCIE_GENERATION, 5.0), (gpu::PCIE_WIDTH, 16.0)];
        let received = (gpu::PCIE_RECEIVED, 6.3008e9);
        let found = busy(&[link[0], link[1], received]).expect("all is read");
        assert!((found - 0.1).abs() < 1e-9, "{found}");
        assert_eq!(busy(&link), None);
        assert_eq!(busy(&[link[0], received]), None);
        let none = [link[0], (gpu::PCIE_WIDTH, 0.0), received];
        assert_eq!(busy(&none), None, "no link");
    }
}

//! How near a run's collectives come to what its machines could carry, by the bus bandwidth that its ranks measure.
//!
//! Of a communicator's function the rank with the greatest bus bandwidth counts, because it waits for nobody, and each
//! counts for as long as it takes. On one node the line is the NVLinks of a GPU, one way. Between nodes it is the RDMA
//! ports that are up: a rank has an equal share of those of its node, at most one, and a communicator as many shares as
//! it has ranks on a node, up to the NVLinks.
//!
//! Limits: messages below [`LEAST_BYTES`] take as long as their latency, whatever the line; a communicator of which one
//! rank alone is looked at may go anywhere and says nothing; without RDMA ports, or the speed of one, nothing is known
//! between nodes.

use std::collections::BTreeMap;

use gpufleet_analysis::straggler::collectives::Function;
use gpufleet_telemetry::catalog::{Metric, gpu, node, training};
use gpufleet_telemetry::identity::Part;
use gpufleet_telemetry::time::NANOS_PER_SECOND;
use gpufleet_telemetry::training::collective_of;

use crate::fleet::{Live, LiveValue};

/// Smaller messages do not fill a line, bytes.
const LEAST_BYTES: f64 = 16.0 * 1024.0 * 1024.0;

/// A bandwidth that is so much older than the rank's newest reading says nothing of now, nanoseconds.
const FRESH_NS: i64 = 90 * NANOS_PER_SECOND;

/// A rank that is looked at.
pub(super) struct Looked<'a> {
    /// What is live of it.
    pub(super) live: Live,
    /// Its node.
    pub(super) node: &'a str,
    /// What its GPU's NVLinks carry one way, bytes a second; none where it has none, or does not say.
    pub(super) nvlink: Option<f64>,
}

/// What a rank has of its node's ports, bytes a second, by the node's name.
pub(super) type Shares<'a> = BTreeMap<&'a str, Option<f64>>;

/// A function of a communicator, as the ranks that are looked at measured it.
#[derive(Default)]
struct Measured<'a> {
    /// How many of them are on each node.
    nodes: BTreeMap<&'a str, u32>,
    /// The least NVLinks of one; none where one is not known.
    nvlink: Option<f64>,
    /// The greatest bandwidth, and how long its rank was in it.
    bytes_per_second: f64,
    seconds: f64,
}

/// Part of their line that collectives reach, mean over the time that they take; none where none is known.
pub(super) fn line_part(ranks: &[Looked<'_>], shares: &Shares<'_>) -> Option<f64> {
    let mut all: BTreeMap<&str, Measured<'_>> = BTreeMap::new();
    for rank in ranks {
        for (part, bytes_per_second, seconds) in measured(&rank.live) {
            let is_first = !all.contains_key(&*part.id);
            let it = all.entry(&part.id).or_default();
            *it.nodes.entry(rank.node).or_default() += 1;
            it.nvlink = match is_first {
                true => rank.nvlink,
                false => it
                    .nvlink
                    .zip(rank.nvlink)
                    .map(|(one, other)| one.min(other)),
            };
            if bytes_per_second > it.bytes_per_second {
                (it.bytes_per_second, it.seconds) = (bytes_per_second, seconds);
            }
        }
    }
    let (mut reached, mut seconds) = (0.0, 0.0);
    for it in all.values() {
        if let Some(line) = it.line(shares) {
            reached += (it.bytes_per_second / line).min(1.0) * it.seconds;
            seconds += it.seconds;
        }
    }
    (seconds > 0.0).then(|| reached / seconds)
}

/// What the NVLinks of a GPU carry one way, bytes a second; none where it has none, or does not say.
pub(super) fn nvlink(gpu: &Live) -> Option<f64> {
    let links = gpu.parts(gpu::NVLINK_SPEED.id);
    let speeds: Option<Vec<f64>> = links.map(|it| it.reading.ok()).collect();
    let all = speeds.map(|it| it.iter().sum::<f64>());
    all.filter(|it| *it > 0.0)
}

/// What each of so many ranks has of a node's RDMA ports that are up, bytes a second; none without such, or without
/// the speed of one.
pub(super) fn share(node: &Live, ranks: u32) -> Option<f64> {
    let of = |metric: &Metric, part: &Part| {
        let mut all = node.parts(metric.id);
        all.find(|it| it.part.as_deref() == Some(part))?
            .reading
            .ok()
    };
    let rdma = node.parts(node::RDMA_RETRIES.id);
    let rdma = rdma.filter_map(|it| it.part.as_deref());
    let up = rdma.filter(|it| of(&node::NIC_UP, it).is_some_and(|it| it > 0.0));
    let speeds: Option<Vec<f64>> = up.map(|it| of(&node::NIC_SPEED, it)).collect();
    let speeds = speeds.filter(|it| !it.is_empty())?;
    let shares = f64::from(ranks).max(speeds.len() as f64);
    Some(speeds.iter().sum::<f64>() / shares).filter(|it| *it > 0.0)
}

impl Measured<'_> {
    /// What it could reach, bytes a second.
    fn line(&self, shares: &Shares<'_>) -> Option<f64> {
        let most = *self.nodes.values().max()?;
        if self.nodes.len() == 1 {
            return self.nvlink.filter(|_| most > 1);
        }
        let of_node =
            |(name, ranks): (&&str, &u32)| Some((*shares.get(*name)?)? * f64::from(*ranks));
        let lines: Option<Vec<f64>> = self.nodes.iter().map(of_node).collect();
        let network = lines?.into_iter().reduce(f64::min)?;
        match most {
            1 => Some(network),
            _ => self.nvlink.map(|it| it.min(network)),
        }
    }
}

/// What a rank measured of collectives that end together and fill a line: which, their bandwidth, how long it was in
/// them.
fn measured(live: &Live) -> impl Iterator<Item = (&Part, f64, f64)> {
    let is_fresh = move |it: &&LiveValue| live.last_point.since(it.at) <= FRESH_NS;
    let bandwidths = live.parts(training::COLLECTIVE_BUS_BANDWIDTH.id);
    bandwidths.filter(is_fresh).filter_map(move |it| {
        let part = it.part.as_deref()?;
        let total = |metric: Metric| {
            let mut all = live.parts(metric.id);
            let found = all.find(|it| it.part.as_deref() == Some(part));
            found?.reading.ok().filter(|it| *it > 0.0)
        };
        let (_, function) = collective_of(&part.id)?;
        let calls = total(training::COLLECTIVE_CALLS)?;
        let is_large = total(training::COLLECTIVE_TRAFFIC)? / calls >= LEAST_BYTES;
        let counts = is_large && Function::of(function).synchronises();
        let seconds = total(training::COLLECTIVE_DURATION)?;
        counts.then_some((part, it.reading.ok()?, seconds))
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use gpufleet_telemetry::identity::{Origin, PartKind, ResourceKind};
    use gpufleet_telemetry::sample::Missing;

    use super::*;
    use crate::view::fixture;

    fn put(live: &mut Live, metric: &Metric, part: &Part, value: f64) {
        live.values.push(LiveValue {
            metric: metric.id,
            part: Some(Arc::new(part.clone())),
            reading: Ok(value),
            max: None,
            at: live.last_point,
        });
        live.values
            .sort_by(|one, other| (one.metric, &one.part).cmp(&(other.metric, &other.part)));
    }

    fn live(kind: ResourceKind) -> Live {
        fixture::live("lab", "node-1", kind, "it", Origin::Live)
    }

    /// A rank whose AllReduces of this size reach this bandwidth.
    pub(in crate::runs::advice) fn reducing(bytes_per_call: f64, bytes_per_second: f64) -> Live {
        let mut live = live(ResourceKind::Rank);
        let part = Part::new(PartKind::Collective, format!("{:016x}/AllReduce", 7));
        put(&mut live, &training::COLLECTIVE_CALLS, &part, 10.0);
        let traffic = 10.0 * bytes_per_call;
        put(&mut live, &training::COLLECTIVE_TRAFFIC, &part, traffic);
        put(&mut live, &training::COLLECTIVE_DURATION, &part, 2.0);
        let bandwidth = &training::COLLECTIVE_BUS_BANDWIDTH;
        put(&mut live, bandwidth, &part, bytes_per_second);
        live
    }

    /// A GPU with 18 NVLinks of 25 GB/s.
    pub(in crate::runs::advice) fn card() -> Live {
        let mut card = live(ResourceKind::Gpu);
        for link in 0..18 {
            let part = Part::new(PartKind::NvLink, link.to_string());
            put(&mut card, &gpu::NVLINK_SPEED, &part, 25e9);
        }
        card
    }

    fn rank(node: &'static str, bytes_per_call: f64, bytes_per_second: f64) -> Looked<'static> {
        Looked {
            live: reducing(bytes_per_call, bytes_per_second),
            node,
            nvlink: nvlink(&card()),
        }
    }

    #[test]
    fn collectives_are_held_against_nvlink_on_a_node_and_against_its_ports_between_nodes() {
        let shares = Shares::from([("a", Some(50e9)), ("b", Some(50e9)), ("c", None)]);
        let reached = |ranks: &[Looked<'_>]| line_part(ranks, &shares);
        let rank = |node, bandwidth| rank(node, 1e9, bandwidth);
        // Who waits for the other has less bandwidth, and says nothing of the line.
        assert_eq!(reached(&[rank("a", 225e9), rank("a", 9e9)]), Some(0.5));
        assert_eq!(reached(&[rank("a", 10e9), rank("b", 20e9)]), Some(0.4));
        let two_each = ["a", "a", "b", "b"].map(|it| rank(it, 20e9));
        assert_eq!(reached(&two_each), Some(0.2));
        assert_eq!(reached(&[rank("a", 60e9), rank("b", 60e9)]), Some(1.0));
        assert_eq!(reached(&[rank("a", 10e9), rank("c", 10e9)]), None);
        assert_eq!(reached(&[rank("a", 10e9)]), None, "it may go anywhere");
        let mut unlinked = [rank("a", 10e9), rank("a", 10e9)];
        unlinked[1].nvlink = None;
        assert_eq!(reached(&unlinked), None);
    }

    #[test]
    fn small_messages_and_old_readings_say_nothing_of_the_line() {
        let shares = Shares::from([("a", Some(50e9)), ("b", Some(50e9))]);
        let small = ["a", "b"].map(|it| rank(it, 1e6, 1e9));
        assert_eq!(line_part(&small, &shares), None);
        let mut old = ["a", "b"].map(|it| rank(it, 1e9, 1e9));
        assert!(line_part(&old, &shares).is_some());
        for rank in &mut old {
            rank.live.last_point = rank.live.last_point.shifted(FRESH_NS + 1);
        }
        assert_eq!(line_part(&old, &shares), None);
    }

    #[test]
    fn a_rank_has_its_share_of_the_rdma_ports_that_are_up_and_at_most_one() {
        let mut machine = live(ResourceKind::Node);
        assert_eq!(share(&machine, 4), None);
        for (name, is_up, is_rdma) in [
            ("eth0", 1.0, false),
            ("mlx5_0", 1.0, true),
            ("mlx5_1", 1.0, true),
            ("mlx5_2", 0.0, true),
        ] {
            let part = Part::new(PartKind::Nic, name.to_owned());
            put(&mut machine, &node::NIC_UP, &part, is_up);
            put(&mut machine, &node::NIC_SPEED, &part, 50e9);
            if is_rdma {
                put(&mut machine, &node::RDMA_RETRIES, &part, 0.0);
            }
        }
        assert_eq!(share(&machine, 4), Some(25e9));
        assert_eq!(share(&machine, 1), Some(50e9));
        let is_speed = |it: &LiveValue| it.metric == node::NIC_SPEED.id;
        machine.values.retain(|it| !is_speed(it));
        assert_eq!(share(&machine, 4), None, "no speed is read");
    }

    #[test]
    fn a_gpu_has_the_sum_of_its_nvlinks_where_each_tells_its_speed() {
        assert_eq!(nvlink(&live(ResourceKind::Gpu)), None);
        assert_eq!(nvlink(&card()), Some(450e9));
        let mut unread = card();
        unread.values[0].reading = Err(Missing::NotSupported);
        assert_eq!(nvlink(&unread), None);
    }
}

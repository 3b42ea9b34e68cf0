//! What the detectors are told of each GPU: readings, rates and what events said, put together in one
//! walk over what is live.
//!
//! A shard is locked while it is walked over, so only what is needed is copied, about 300 bytes a GPU.

use std::collections::HashMap;
use std::sync::Arc;

use gpufleet_analysis::ledger::Reason;
use gpufleet_analysis::states::{Edge, Status};
use gpufleet_telemetry::catalog::{Metric, gpu, node};
use gpufleet_telemetry::identity::{Origin, ResourceKind, attribute};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::prices::Prices;
use super::watch::{Rates, Watch};
use crate::fleet::{Fleet, Live, LiveXid};
use crate::store::model::ResourceKey;
use crate::view::judge::judge;

/// Counters of the GPUs.
#[derive(Default)]
pub struct Watches(HashMap<ResourceKey, (Watch, Timestamp)>);

/// A GPU that was not seen for this long is forgotten, nanoseconds.
const FORGET_NS: i64 = 3_600 * NANOS_PER_SECOND;

/// One GPU as the detectors see it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub(super) cluster: Arc<str>,
    pub(super) node: Arc<str>,
    pub(super) id: Arc<str>,
    pub(super) model: Arc<str>,
    /// The job that holds it; none when nobody does or it is not known.
    pub(super) job: Option<Arc<str>>,
    pub(super) status: Status,
    pub(super) last_point: Timestamp,
    pub(super) is_removed: bool,
    /// Since when it is broken, and why, if an event says so.
    pub(super) broken: Option<(Reason, Timestamp)>,
    /// When it was last whole again.
    pub(super) healed_at: Option<Timestamp>,
    pub(super) xids: Vec<LiveXid>,
    pub(super) rates: Rates,
    pub(super) temperature: Option<f64>,
    pub(super) power: Option<f64>,
    pub(super) clock: Option<f64>,
    pub(super) has_remap_failure: Option<bool>,
    pub(super) has_remap_pending: Option<bool>,
    /// When its node came up.
    pub(super) booted_at: Option<Timestamp>,
    /// When anything last came from its agent.
    pub(super) node_heard: Timestamp,
    /// The newest point of anything on its node.
    pub(super) node_point: Timestamp,
    /// What a second of it costs, nano-USD.
    pub(super) price: Option<i64>,
}

/// What all resources of a node say together.
#[derive(Default)]
struct OfNode {
    heard: Timestamp,
    point: Timestamp,
    booted: Option<Timestamp>,
}

/// What is live of every GPU that is judged.
pub fn gather(fleet: &Fleet, watches: &mut Watches, prices: &Prices, now: Timestamp) -> Vec<Seen> {
    let mut all = Vec::new();
    let mut nodes: HashMap<(Arc<str>, Arc<str>), OfNode> = HashMap::new();
    fleet.visit(|live| {
        if live.origin == Origin::Recorded {
            return;
        }
        let name = (Arc::clone(&live.key.cluster), Arc::clone(&live.node));
        let of_node = nodes.entry(name).or_default();
        of_node.heard = live.received.max(of_node.heard);
        of_node.point = live.last_point.max(of_node.point);
        match live.key.kind {
            ResourceKind::Node => of_node.booted = booted_at(live),
            ResourceKind::Gpu => {
                let (watch, seen) = watches.0.entry(live.key.clone()).or_default();
                *seen = now;
                all.push(seen_of(live, watch, prices, now));
            }
            ResourceKind::Share | ResourceKind::Endpoint | ResourceKind::Rank => {}
        }
    });
    for seen in &mut all {
        let name = (Arc::clone(&seen.cluster), Arc::clone(&seen.node));
        if let Some(of_node) = nodes.get(&name) {
            (seen.node_heard, seen.node_point) = (of_node.heard, of_node.point);
            seen.booted_at = of_node.booted;
        }
    }
    watches
        .0
        .retain(|_, (_, seen)| now.since(*seen) < FORGET_NS);
    all
}

fn booted_at(live: &Live) -> Option<Timestamp> {
    let uptime = live.value(node::UPTIME.id)?;
    let seconds = uptime.reading.ok()?;
    Some(uptime.at.shifted(-((seconds * 1e9) as i64)))
}

fn seen_of(live: &Live, watch: &mut Watch, prices: &Prices, now: Timestamp) -> Seen {
    let text = |name| live.resource.attribute(name).filter(|it| !it.is_empty());
    let value = |metric: &Metric| live.value(metric.id)?.reading.ok();
    let flag = |metric: &Metric| value(metric).map(|it| it > 0.0);
    let model: Arc<str> = text(attribute::GPU_MODEL).unwrap_or_default().into();
    let (mut broken, mut healed_at) = (None, None);
    match live.health.map(|it| (it.edge, it.at)) {
        Some((Edge::Broken(reason), at)) => broken = Some((reason, at)),
        Some((Edge::Whole, at)) => healed_at = Some(at),
        None => {}
    }
    let job = text(attribute::JOB).map(str::to_owned);
    Seen {
        cluster: Arc::clone(&live.key.cluster),
        node: Arc::clone(&live.node),
        id: Arc::clone(&live.key.id),
        price: prices.of(&model),
        model,
        job: job
            .or_else(|| text(attribute::HOLDER).map(job_of))
            .map(Into::into),
        status: judge(live, now),
        last_point: live.last_point,
        is_removed: live.told.is_removed,
        broken,
        healed_at,
        xids: live.told.xids.clone(),
        rates: watch.read(live, now),
        temperature: value(&gpu::TEMPERATURE),
        power: value(&gpu::POWER),
        clock: value(&gpu::SM_CLOCK),
        has_remap_failure: flag(&gpu::REMAP_FAILURE),
        has_remap_pending: flag(&gpu::REMAP_PENDING),
        booted_at: None,
        node_heard: Timestamp::default(),
        node_point: Timestamp::default(),
    }
}

/// The job of a holder: a pod's name up to the first part that is only a number, because the pods of
/// a job differ by their index.
fn job_of(holder: &str) -> String {
    let mut parts = holder.split('-');
    let first = parts.next().unwrap_or_default();
    let is_index = |part: &&str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
    let rest = parts.take_while(|part| !is_index(part));
    rest.fold(first.to_owned(), |job, part| format!("{job}-{part}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_one_job_have_one_name() {
        for (holder, job) in [
            (
                "pod:research/llama-70b-pretrain-0",
                "pod:research/llama-70b-pretrain",
            ),
            ("pod:ml/train-workers-0-3-x7k2p", "pod:ml/train-workers"),
            ("pod:ml/chat", "pod:ml/chat"),
            ("process:ada/python3", "process:ada/python3"),
        ] {
            assert_eq!(job_of(holder), job);
        }
    }
}

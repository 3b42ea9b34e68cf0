//! Makes a picture of the fleet: one walk over what is live, grouped by origin, cluster and node.

use std::collections::BTreeMap;
use std::sync::Arc;

pub use gpufleet_analysis::silent::is_silent;
use gpufleet_telemetry::catalog::{Metric, gpu, own};
use gpufleet_telemetry::identity::{Origin, ResourceKind, attribute};
use gpufleet_telemetry::time::Timestamp;

use super::contact::Contact;
use super::judge::{NodesNow, is_holder_known, judge_on};
use super::{ClusterView, Counts, FleetView, GpuView, NodeView, Shown, Told};
use crate::App;
use crate::fleet::ServerClock;
use crate::fleet::live::Live;
use crate::inventory;

/// The picture at this moment.
pub fn gather(app: &App) -> FleetView {
    let moment = inventory::now(app);
    let at = moment.at;
    let mut grouping = Grouping {
        said: NodesNow::of(&app.fleet, &app.inventory, moment),
        ..Grouping::default()
    };
    app.fleet.visit(|live| grouping.add(live, at));
    let is_gone = |cluster: &str, node: &str| app.inventory.is_gone(cluster, node);
    FleetView {
        server_clock: app.fleet.server_clock(),
        ..grouping.finish(at, &is_gone)
    }
}

/// Whether a recording holds just one sample of a resource: it says so, or only one has come.
pub fn is_one_sample(live: &Live) -> bool {
    let told = live.resource.attribute(attribute::RECORDING_SAMPLES);
    live.origin == Origin::Recorded
        && told.map_or(live.first_seen == live.last_point, |samples| samples == "1")
}

/// The picture of the given resources, of which nobody says that their nodes went.
pub(crate) fn of<'a>(lives: impl Iterator<Item = &'a Live>, at: Timestamp) -> FleetView {
    let mut grouping = Grouping::default();
    lives.for_each(|live| grouping.add(live, at));
    grouping.finish(at, &|_, _| false)
}

/// Clusters in the order they are shown in: by origin, then by name.
#[derive(Default)]
struct Grouping {
    said: NodesNow,
    clusters: BTreeMap<(Origin, Arc<str>), BTreeMap<Arc<str>, NodeParts>>,
}

/// What is known of a node before its GPUs are in order.
#[derive(Default)]
struct NodeParts {
    node: NodeView,
    contact: Contact,
    shares: Vec<(Arc<str>, GpuView)>,
}

impl Grouping {
    fn add(&mut self, live: &Live, now: Timestamp) {
        let cluster = (live.origin, Arc::clone(&live.key.cluster));
        let nodes = self.clusters.entry(cluster).or_default();
        let parts = nodes.entry(Arc::clone(&live.node)).or_default();
        parts.node.name = Arc::clone(&live.node);
        parts.node.agent = parts.node.agent.or(live.agent);
        parts.node.last_point = parts.node.last_point.max(live.last_point);
        parts.contact.note(live);
        match live.key.kind {
            ResourceKind::Gpu => parts.node.gpus.push(gpu_view(live, now, &self.said)),
            ResourceKind::Share => {
                let parent = live
                    .resource
                    .attribute(attribute::PARENT)
                    .unwrap_or_default();
                let share = gpu_view(live, now, &self.said);
                parts.shares.push((parent.into(), share));
            }
            ResourceKind::Node => add_own_health(&mut parts.node, live),
            ResourceKind::Endpoint | ResourceKind::Rank => {}
        }
    }

    /// With what says of a node of a cluster whether it went.
    fn finish(self, at: Timestamp, is_gone: &dyn Fn(&str, &str) -> bool) -> FleetView {
        let clusters = self.clusters.into_iter().map(|((origin, name), nodes)| {
            let is_gone = |node: &str| is_gone(&name, node);
            let has_ended = |parts: &NodeParts| parts.has_ended(origin, at, is_gone);
            let (ended, nodes): (Vec<_>, Vec<_>) = nodes.into_values().partition(has_ended);
            let [ended, nodes] = [ended, nodes].map(|all| {
                let finished = all.into_iter().map(|parts| parts.finish(origin, at));
                finished.collect::<Vec<NodeView>>()
            });
            let mut counts = Counts::default();
            for gpu in nodes.iter().flat_map(|node| &node.gpus) {
                counts.add(gpu.state, gpu.reason);
            }
            Arc::new(ClusterView {
                name,
                origin,
                nodes,
                ended,
                counts,
            })
        });
        FleetView {
            at,
            clusters: clusters.collect(),
            server_clock: ServerClock::Unknown,
        }
    }
}

impl NodeParts {
    /// Whether nothing of it is heard any more, and only processes told of it or it went, so that nothing will be. A
    /// recording that has ended stays.
    fn has_ended(&self, origin: Origin, at: Timestamp, is_gone: impl Fn(&str) -> bool) -> bool {
        let is_silent = origin != Origin::Recorded && self.contact.is_silent(at);
        is_silent && (!self.contact.is_of_machine() || is_gone(&self.node.name))
    }

    fn finish(mut self, origin: Origin, at: Timestamp) -> NodeView {
        for (parent, share) in self.shares {
            let gpus = &mut self.node.gpus;
            match gpus.iter_mut().find(|gpu| gpu.key.id == parent) {
                Some(gpu) => gpu.shares.push(share),
                // A share whose card nobody reports stands for itself.
                None => gpus.push(share),
            }
        }
        let order = |gpu: &GpuView| (gpu.index.unwrap_or(u32::MAX), Arc::clone(&gpu.key.id));
        self.node.gpus.sort_by_cached_key(order);
        for gpu in &mut self.node.gpus {
            gpu.shares.sort_by_cached_key(order);
        }
        self.node.failing_readers.sort();
        let contact = &self.contact;
        let is_silent = contact.is_of_machine() && contact.is_silent(at);
        // A recording that has ended is not a silent agent.
        self.node.silent_since = (is_silent && origin != Origin::Recorded).then_some(contact.heard);
        self.node
    }
}

/// When something last arrived; for what was only read from the store, its newest point.
pub fn heard(live: &Live) -> Timestamp {
    if live.received == Timestamp::default() {
        live.last_point
    } else {
        live.received
    }
}

/// One GPU or share, as rows and tiles show it.
pub fn gpu_view(live: &Live, now: Timestamp, nodes: &NodesNow) -> GpuView {
    let text = |name| live.resource.attribute(name).unwrap_or_default().into();
    let judged = judge_on(live, now, nodes);
    GpuView {
        key: live.key.clone(),
        index: live
            .resource
            .attribute(attribute::GPU_INDEX)
            .and_then(|index| index.parse().ok()),
        model: text(attribute::GPU_MODEL),
        origin: live.origin,
        node: Arc::clone(&live.node),
        state: judged.state,
        reason: judged.reason,
        is_silent: judged.is_silent,
        first_seen: live.first_seen,
        is_one_sample: is_one_sample(live),
        last_point: live.last_point,
        holder: live.resource.attribute(attribute::HOLDER).map(Arc::from),
        holder_known: is_holder_known(live, judged.reason),
        held: live.bits.held != 0,
        source: text(attribute::SOURCE),
        readings: shown(live),
        shares: Vec::new(),
    }
}

fn shown(live: &Live) -> Shown {
    let told = |metric: Metric| -> Told { live.value(metric.id).map(|it| it.reading) };
    Shown {
        utilization: told(gpu::UTILIZATION),
        tensor_active: told(gpu::TENSOR_ACTIVE),
        memory_used: told(gpu::MEMORY_USED),
        memory_total: told(gpu::MEMORY_TOTAL),
        power: told(gpu::POWER),
        temperature: told(gpu::TEMPERATURE),
    }
}

/// The agent's own health, told as readings of its node.
fn add_own_health(node: &mut NodeView, live: &Live) {
    for reader in live.parts(own::READER_SUCCESS.id) {
        if let (Some(part), Ok(0.0)) = (&reader.part, reader.reading) {
            node.failing_readers.push(Arc::clone(&part.id));
        }
    }
    let ages = live
        .parts(own::SPOOL_AGE.id)
        .filter_map(|it| it.reading.ok());
    node.spool_age_seconds = ages.reduce(f64::max);
}

//! What the detectors are told of each GPU: readings, rates and what events said, put together in one
//! walk over what is live.
//!
//! A shard is locked while it is walked over, so only what is needed is copied, about 300 bytes a GPU, 150 a share, 100
//! a port of a machine and 60 a communicator of a rank that times its collectives.

use std::collections::HashMap;
use std::sync::Arc;

use gpufleet_analysis::health::Probed;
use gpufleet_analysis::leak::Thresholds;
use gpufleet_analysis::leak::watch::{self, LeakWatch, Leaks, Owner};
use gpufleet_analysis::ledger::{Reason, State};
use gpufleet_analysis::port::Port;
use gpufleet_analysis::silent::is_silent;
use gpufleet_analysis::states::{Edge, Status};
use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::identity::{Origin, Resource, ResourceKind};
use gpufleet_telemetry::time::Timestamp;

use super::before::Before;
use super::limits::{self, Limits};
use super::links::{Boards, LinkReadings, LinkWatch};
use super::network::{Network, PortsWatch, RankNames};
use super::prices::Prices;
use super::readers::{self, Readers};
use super::watch::{Rates, Readable, Watch, fresh};
use super::whole::Whole;
use crate::fleet::{Fleet, Live, LiveXid};
use crate::store::model::ResourceKey;
use crate::view::contact::Contact;
use crate::view::judge::judge;

mod alike;
mod holder;
mod host;
mod lanes;
mod probed;
mod share;
mod table;

pub(super) use alike::Alike;
use alike::Groups;
pub(super) use holder::is_unknown;
pub use host::Host;
pub(super) use share::{ShareSnapshot, part_of};
use table::Table;

/// What is kept of the resources from tick to tick.
#[derive(Default)]
pub struct Watches {
    kept: Table<Kept>,
    groups: Groups,
    /// Room for the GPUs of a tick, some 60 MB for 100,000: not asked of the system anew each time.
    room: Vec<GpuSnapshot>,
    /// How many GPUs and shares were ever numbered.
    numbered: u32,
    boards: Boards,
    /// From when memory that grows leaks.
    pub(super) leak: Thresholds,
    pub(super) limits: Limits,
    pub(super) readers: Readers,
    pub(super) network: Network,
}

/// What is kept of one resource.
struct Kept {
    /// Where its node was in [`Nodes`] at the last tick.
    node: usize,
    limits: limits::Kept,
    kind: KeptOf,
}

/// What is kept of a resource of its kind.
enum KeptOf {
    Gpu(Box<Watched>),
    Share(Box<share::Kept>),
    Machine(Box<Machine>),
    Rank(Box<RankNames>),
    Other,
}

/// What is kept of a GPU.
#[derive(Default)]
struct Watched {
    number: u32,
    counters: Watch,
    whole: Whole,
    links: LinkWatch,
    memory: LeakWatch,
    /// As it was told last: most say the same at each tick, and are not read again.
    told: Option<(Arc<Resource>, Arc<Alike>)>,
    /// Whose memory it is, by the job and the GPU.
    owner: Option<u32>,
}

impl Watched {
    /// Takes in what the resource says; hands out which GPUs are like it.
    fn tell(&mut self, live: &Live, groups: &mut Groups) -> Arc<Alike> {
        if let Some((told, alike)) = &self.told
            && Arc::ptr_eq(told, &live.resource)
        {
            return Arc::clone(alike);
        }
        if let Some((before, _)) = &self.told {
            self.whole.described(before, live);
        }
        let alike = Alike::told_by(live);
        let job = alike.job.as_deref();
        self.owner = job.map(|it| watch::owner(it, &live.key.id));
        let alike = groups.of(alike);
        self.told = Some((Arc::clone(&live.resource), Arc::clone(&alike)));
        alike
    }
}

/// What is kept of a node.
#[derive(Default)]
struct Machine {
    memory: LeakWatch,
    ports: PortsWatch,
}

/// One GPU as the detectors see it.
#[derive(Debug, Clone)]
pub struct GpuSnapshot {
    /// A number of its own among GPUs and shares, from 1, for as long as it is remembered.
    pub(super) number: u32,
    pub(super) cluster: Arc<str>,
    pub(super) node: Arc<str>,
    pub(super) id: Arc<str>,
    /// Its model and the job that holds it, with all GPUs of both.
    pub(super) alike: Arc<Alike>,
    pub(super) status: Status,
    /// Whether it was active in its newest tick, whoever holds it.
    pub(super) is_active: bool,
    pub(super) first_seen: Timestamp,
    pub(super) last_point: Timestamp,
    pub(super) is_removed: bool,
    /// Since when it is broken, and why, if an event says so.
    pub(super) broken: Option<(Reason, Timestamp)>,
    /// When an event last said that it is broken, or that it is not.
    pub(super) health_at: Option<Timestamp>,
    /// When it was last made whole.
    pub(super) healed_at: Option<Timestamp>,
    /// When it last answered again after it could not be reached.
    pub(super) back_at: Option<Timestamp>,
    pub(super) xids: Vec<LiveXid>,
    pub(super) rates: Rates,
    pub(super) temperature: Option<f64>,
    pub(super) power: Option<f64>,
    pub(super) clock: Option<f64>,
    /// How busy the tensor cores are.
    pub(super) tensor: Option<f64>,
    pub(super) links: LinkReadings,
    /// Whether the memory of its job grows until it is used up.
    pub(super) leaks: Option<Leaks>,
    /// Readings that there were and are no more: of what they would show nothing is known.
    pub(super) gone: Readable,
    /// How pressed its node is.
    pub(super) host: Host,
    /// Whether it is known how much of its memory is used.
    pub(super) has_memory: bool,
    /// What its last probe found wrong.
    pub(super) probe: Option<Probed>,
    /// What the driver asks for (field 230), by its code; 0 is nothing.
    pub(super) asked: Option<u64>,
    pub(super) has_remap_failure: Option<bool>,
    pub(super) has_remap_pending: Option<bool>,
    /// When its node came up.
    pub(super) booted_at: Option<Timestamp>,
    /// Whether nothing came of it for longer than its ticks take.
    pub(super) is_late: bool,
    /// Whether its node is heard: by its agent, or by who tells of its machine.
    pub(super) is_node_heard: bool,
    /// The newest point of that.
    pub(super) node_point: Timestamp,
    /// What a second of it costs, nano-USD.
    pub(super) price: Option<i64>,
    /// Whether it is cut into shares, one of which at least tells what it does: then they say whether it is used.
    pub(super) is_cut: bool,
    /// Where its node is in [`Nodes`].
    at_node: usize,
}

/// What all resources of a node say together.
#[derive(Debug, Default)]
pub struct NodeSnapshot {
    pub(super) gpus: u32,
    /// The shares of its GPUs.
    pub(super) shares: Vec<ShareSnapshot>,
    pub(super) contact: Contact,
    pub(super) booted: Option<Timestamp>,
    /// Whether its memory grows until it is used up.
    pub(super) leaks: Option<Leaks>,
    /// Whether it is known how much of that is used.
    pub(super) has_memory: bool,
    /// NVLinks that are up on one of its GPUs, at most.
    nvlinks: u8,
    /// Its network and RDMA ports.
    pub(super) ports: Vec<Port>,
    /// The type of its GPUs; empty where it has none.
    pub(super) model: Arc<str>,
    resource: Option<Arc<Resource>>,
    pub(super) host: Host,
    /// What a second of a rank costs, nano-USD, on a machine without a GPU.
    pub(super) rank_price: Option<i64>,
    /// What a second of one of its GPUs costs, once that was looked up.
    price: Option<Option<i64>>,
}

/// GPUs by cluster and id.
pub(super) type Gpus<'a> = HashMap<(&'a str, &'a str), &'a GpuSnapshot>;

/// Shares by cluster and id.
pub(super) type Shares<'a> = HashMap<(&'a str, &'a str), &'a ShareSnapshot>;

/// Cluster and name of a node.
pub(super) type NodeName = (Arc<str>, Arc<str>);

/// Every node that is judged, by cluster and name.
pub type NodeSnapshots = HashMap<NodeName, NodeSnapshot>;

impl NodeSnapshot {
    /// What a second of one of its GPUs costs, nano-USD.
    pub(super) const fn gpu_price(&self) -> Option<i64> {
        self.price.flatten()
    }

    /// Whether nothing is heard from it.
    pub(super) fn is_silent(&self, now: Timestamp) -> bool {
        self.contact.is_silent(now)
    }
}

/// What is live of every GPU that is judged, and of their nodes. What is met for the first time is judged on from what
/// was said of it `before`.
pub(super) fn gather(
    fleet: &Fleet,
    (watches, before): (&mut Watches, &Before),
    prices: &mut Prices,
    now: Timestamp,
) -> (Vec<GpuSnapshot>, NodeSnapshots) {
    let mut nodes = Nodes::default();
    let Watches {
        kept,
        groups,
        room,
        numbered,
        boards,
        leak: by,
        limits,
        readers,
        network,
    } = watches;
    let mut all = std::mem::take(room);
    kept.begin();
    limits.begin();
    readers.begin();
    network.begin();
    fleet.visit(|live| {
        if live.origin == Origin::Recorded {
            return;
        }
        // All readings once from first to last, before the others jump about in them: memory is slow to jump in.
        let refused = readers::refused(live, now);
        let new = || Kept::new(&live.key, numbered, before, now);
        let kept = kept.meet(&live.key, now, new);
        let of_node = nodes.of(live, &mut kept.node);
        of_node.contact.note(live);
        limits.look(live, &mut kept.limits, now);
        readers.look(live, refused, now);
        match &mut kept.kind {
            KeptOf::Machine(machine) => {
                of_node.booted = host::booted_at(live);
                of_node.ports = machine.ports.read(live, now);
                of_node.host = host::of(live, &of_node.ports, now);
                let id = watch::owner(&live.key.cluster, &live.key.id);
                let used = host::memory_used(live, now);
                of_node.has_memory = used.is_some();
                of_node.leaks = machine.memory.read(used, Owner::Is(id), now, by);
                of_node.resource = Some(Arc::clone(&live.resource));
            }
            KeptOf::Gpu(watched) => {
                of_node.gpus += 1;
                let mut seen = seen_of(live, watched, groups, kept.node, now, by);
                of_node.nvlinks = seen.links.nvlinks_up().max(of_node.nvlinks);
                seen.status.reason = prices.reason_of(live, &seen.status);
                all.push(seen);
            }
            KeptOf::Share(share) => {
                let mut status = judge(live, now);
                status.reason = prices.reason_of(live, &status);
                of_node.shares.extend(share.read(live, status, groups));
            }
            KeptOf::Rank(names) => network.rank(live, names, now),
            KeptOf::Other => {}
        }
    });
    for (_, of_node) in &mut nodes.all {
        share::count(&mut of_node.shares);
    }
    for seen in &mut all {
        let ((name, of_node), model) = (&mut nodes.all[seen.at_node], &seen.alike.model);
        boards.hold(name, of_node.nvlinks, model, &mut seen.links);
        if of_node.model.is_empty() {
            of_node.model = Arc::clone(model);
        }
        (seen.is_node_heard, seen.node_point) = (!of_node.is_silent(now), of_node.contact.point);
        (seen.booted_at, seen.host) = (of_node.booted, of_node.host);
        let mut shares = of_node.shares.iter().filter(|it| it.card == seen.id);
        seen.is_cut = shares.any(|it| it.status.state != State::Unobserved);
        let node = of_node.resource.as_deref();
        let of = |prices: &mut Prices| prices.of(&seen.cluster, node, model, of_node.gpus);
        seen.price = match is_same(&of_node.model, model) {
            true => *of_node.price.get_or_insert_with(|| of(prices)),
            false => of(prices),
        };
    }
    lanes::hold(&mut all, &nodes.all);
    let has_none = |it: &NodeSnapshot| it.gpus == 0 && it.shares.is_empty();
    let without = nodes.all.iter_mut().filter(|it| has_none(&it.1));
    for ((cluster, _), of_node) in without {
        of_node.rank_price = prices.of_rank(cluster);
    }
    kept.forget(now);
    groups.forget();
    boards.forget(|it| nodes.places.contains_key(it));
    (all, nodes.all.into_iter().collect())
}

impl Watches {
    /// Takes back the room of a tick that is over.
    pub(super) fn keep(&mut self, mut room: Vec<GpuSnapshot>) {
        room.clear();
        self.room = room;
    }
}

impl Kept {
    fn new(key: &ResourceKey, numbered: &mut u32, before: &Before, now: Timestamp) -> Self {
        let said = before.about(key, now);
        let mut number = || {
            *numbered = numbered.wrapping_add(1).max(1);
            *numbered
        };
        Self {
            node: 0,
            limits: limits::Kept::resumed(key.kind, &said, now),
            kind: match key.kind {
                ResourceKind::Gpu => KeptOf::Gpu(Box::new(Watched {
                    number: number(),
                    counters: Watch::resumed(&said),
                    links: LinkWatch::resumed(&said),
                    ..Watched::default()
                })),
                ResourceKind::Node => KeptOf::Machine(Box::default()),
                ResourceKind::Rank => KeptOf::Rank(Box::default()),
                ResourceKind::Share => KeptOf::Share(Box::new(share::Kept::new(number()))),
                ResourceKind::Endpoint => KeptOf::Other,
            },
        }
    }
}

/// The nodes of one tick, in the order in which they are met: mostly that of the tick before.
#[derive(Default)]
struct Nodes {
    all: Vec<(NodeName, NodeSnapshot)>,
    places: HashMap<NodeName, usize>,
}

impl Nodes {
    /// The node that a resource is on. Tried first is `place`, where it was at the last tick.
    fn of(&mut self, live: &Live, place: &mut usize) -> &mut NodeSnapshot {
        let (cluster, node) = (&live.key.cluster, &live.node);
        let is_it =
            |it: &(NodeName, NodeSnapshot)| is_same(&it.0.1, node) && is_same(&it.0.0, cluster);
        if !self.all.get(*place).is_some_and(is_it) {
            let name = (Arc::clone(cluster), Arc::clone(node));
            *place = *self.places.entry(name.clone()).or_insert_with(|| {
                self.all.push((name, NodeSnapshot::default()));
                self.all.len() - 1
            });
        }
        &mut self.all[*place].1
    }
}

/// Whether two names are the same: what an agent tells has one address, so that most are not read for it.
pub(super) fn is_same(one: &Arc<str>, other: &Arc<str>) -> bool {
    Arc::ptr_eq(one, other) || one == other
}

/// What part of a GPU's memory is used.
fn gpu_used(live: &Live, now: Timestamp) -> Option<f64> {
    let used = fresh(live, &gpu::MEMORY_USED, now)?;
    let all = live.value(gpu::MEMORY_TOTAL.id)?.reading.ok()?;
    (all > 0.0).then(|| used / all)
}

fn seen_of(
    live: &Live,
    watched: &mut Watched,
    groups: &mut Groups,
    at_node: usize,
    now: Timestamp,
    by: &Thresholds,
) -> GpuSnapshot {
    let alike = watched.tell(live, groups);
    let value = |metric: &Metric| fresh(live, metric, now);
    let flag = |metric: &Metric| value(metric).map(|it| it > 0.0);
    let broken = live.health.and_then(|it| match it.edge {
        Edge::Broken(reason) => Some((reason, it.at)),
        Edge::Whole => None,
    });
    let healed_at = watched.whole.read(live);
    let status = judge(live, now);
    let used = gpu_used(live, now);
    let owner = holder::of_memory(live, &status, watched.owner);
    let mut seen = GpuSnapshot {
        number: watched.number,
        cluster: Arc::clone(&live.key.cluster),
        node: Arc::clone(&live.node),
        id: Arc::clone(&live.key.id),
        alike,
        price: None,
        is_cut: false,
        status,
        is_active: live.bits.active != 0,
        first_seen: live.first_seen,
        last_point: live.last_point,
        is_removed: live.told.is_removed(live.last_point),
        broken,
        health_at: live.health.map(|it| it.at),
        healed_at,
        back_at: live.told.back_at,
        xids: live.told.xids.clone(),
        rates: watched.counters.read(live, healed_at, now),
        temperature: value(&gpu::TEMPERATURE),
        power: value(&gpu::POWER),
        clock: value(&gpu::SM_CLOCK),
        tensor: value(&gpu::TENSOR_ACTIVE),
        links: watched.links.read(live, is_at_work(status.state), now),
        leaks: watched.memory.read(used, owner, now, by),
        gone: Readable::default(),
        host: Host::default(),
        has_memory: used.is_some(),
        probe: probed::of(live, now),
        asked: value(&gpu::RECOVERY_ACTION).map(|it| it as u64),
        has_remap_failure: flag(&gpu::REMAP_FAILURE),
        has_remap_pending: flag(&gpu::REMAP_PENDING),
        booted_at: None,
        is_late: is_silent(live.interval, live.last_point, now),
        is_node_heard: false,
        node_point: Timestamp::default(),
        at_node,
    };
    seen.gone = watched.counters.gone(seen.readable());
    seen
}

/// Whether a GPU computes.
pub(super) const fn is_at_work(state: State) -> bool {
    matches!(
        state,
        State::ActiveEfficient | State::ActiveInefficient | State::ActiveUnrated
    )
}

impl GpuSnapshot {
    /// The readings that are there.
    fn readable(&self) -> Readable {
        let rates = &self.rates;
        [
            Readable::HEAT_PART.when(rates.heat_part.is_some()),
            Readable::TEMPERATURE.when(self.temperature.is_some()),
            Readable::BRAKE_PART.when(rates.brake_part.is_some()),
            Readable::CAP_PART.when(rates.cap_part.is_some()),
            Readable::POWER.when(self.power.is_some()),
            Readable::CORRECTED.when(rates.corrected.is_some()),
            Readable::UNCORRECTED.when(rates.uncorrected.is_some()),
            Readable::REMAP.when(self.has_remap_failure.is_some()),
            Readable::PCIE.when(self.links.has_pcie()),
            Readable::NVLINK.when(self.links.has_nvlinks()),
            Readable::MEMORY.when(self.has_memory),
            Readable::SLOWDOWNS.when(rates.slowdowns_per_minute.is_some()),
        ]
        .into_iter()
        .fold(Readable::default(), Readable::and)
    }
}

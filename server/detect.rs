//! The judgement over what is live: every tick the detectors speak, and the book of incidents listens.
//!
//! Each tick (10 s): what is known of every GPU is put together ([`gather`]) with what each one's
//! counters, links and memory did lately ([`watch`], [`links`], [`leak`]), the detectors of `analysis` judge
//! it ([`gpus`], [`limits`], [`readers`], [`fleet`], [`runs`], [`network`]), and their signals move the book on ([`crate::incidents`]). What changed is
//! written at once, what only goes on once a minute, because the money it lost is worth keeping and not
//! worth a write a tick. A tick computes and waits for nothing, on a thread of its own beside those that
//! answer requests.
//!
//! Limits: GPUs and runs of live and simulated clusters; recordings are judged by replaying them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::incident::{Family, Incident, Place, Signal, Tick};
use gpufleet_program::section;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::App;
use crate::fleet::Fleet;
use crate::inventory::Inventory;
use crate::inventory::known::Now;
use crate::money::{Terms, payer};
use crate::notify::own;
use crate::store::StoreError;

mod fleet;
pub mod gather;
mod gpus;
mod leak;
pub mod limits;
mod links;
pub(crate) mod needs;
mod network;
mod offenders;
pub mod prices;
mod readers;
mod runs;
pub mod thresholds;
mod watch;

#[cfg(test)]
mod tests;

use gather::{NodesSeen, Seen, Watches};
use offenders::Offenders;
use prices::Prices;
use runs::{Gpus, RunWatches};
use thresholds::Thresholds;

/// The time between two ticks: the agents'.
const TICK: Duration = Duration::from_secs(10);

/// Incidents that only go on are written this often.
const WRITE_EVERY_TICKS: u32 = 6;

/// What broke in the past is looked at this often: once an hour.
const LOOK_BACK_EVERY_TICKS: u32 = 360;

/// How long a store that does not answer is waited for.
const AFTER_ERROR: Duration = Duration::from_secs(2);

section! {
    /// What is judged, and what a GPU costs.
    pub struct DetectConfig {
        /// Held and idle for this long is an incident, seconds.
        pub idle_after_s: i64 = 3_600,
        /// Limits of readings other than the built-in ones, by the kind of trouble in docs/alerts.md:
        /// "node_cpu_stolen" = 0.2. These and idle_after_s are read again while the server runs.
        pub limits: BTreeMap<String, f64> = BTreeMap::new(),
        /// What an hour of one GPU costs where its node tells no machine type of which a price is known:
        /// by the card's name as NVML spells it, or by cluster and name, in the currency of cost.currency:
        /// "NVIDIA H100 80GB HBM3" = "11.06", "lab/NVIDIA H100 80GB HBM3" = "2.10". What has no price is
        /// unpriced, never free.
        pub gpu_hour_usd: BTreeMap<String, String> = BTreeMap::new(),
    }
}

/// What is kept from tick to tick.
pub struct Detectors {
    watches: Watches,
    runs: RunWatches,
    offenders: Offenders,
    idle_after_nanos: i64,
}

/// What a tick looks at, beside what the detectors remember.
pub struct Around<'a> {
    /// The moment of the tick.
    pub now: Timestamp,
    /// What is live, or was then.
    pub fleet: &'a Fleet,
    /// What GPU time costs.
    pub terms: Arc<Terms>,
    /// What the cluster tells, and the moment by which that is seen.
    pub inventory: (&'a Inventory, Now),
    /// Whether a node of a cluster was there and is gone.
    pub is_gone: &'a dyn Fn(&str, &str) -> bool,
    /// What is wrong with gpufleet itself.
    pub own: Vec<Signal>,
}

/// How much a tick looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// GPUs that were judged.
    pub gpus: usize,
    /// Nodes that were known.
    pub nodes: usize,
}

/// Judges from when this server leads until it is told to stop, by thresholds that may change; after the last tick what is not written
/// yet is written.
pub async fn run(app: App, mut thresholds: Option<Thresholds>, stop: CancellationToken) {
    if !app.lead.wait(&stop).await {
        return;
    }
    let (job, clock) = (app.jobs.of("the detectors"), app.clock.as_ref());
    while job.round(clock, restore(&app)).await.is_none() {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(AFTER_ERROR) => {}
        }
    }
    let mut detectors = Detectors::new(&app.config.detect);
    let mut ticks: u32 = 0;
    while !stop.is_cancelled() {
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(TICK) => {
                if ticks.is_multiple_of(LOOK_BACK_EVERY_TICKS) {
                    job.round(clock, detectors.offenders.look(&app)).await;
                }
                if let Some(thresholds) = &mut thresholds {
                    job.round(clock, thresholds.take(&app, &mut detectors)).await;
                }
                detectors = judged(detectors, &app).await;
                ticks = ticks.wrapping_add(1);
                if ticks.is_multiple_of(WRITE_EVERY_TICKS) {
                    app.incidents.write_all_open();
                }
                job.round(clock, app.incidents.write(&app.store)).await;
                app.news.send_replace(());
            }
        }
    }
    app.incidents.write_all_open();
    job.round(clock, app.incidents.write(&app.store)).await;
}

/// One tick, where it keeps nobody waiting.
async fn judged(detectors: Detectors, app: &App) -> Detectors {
    let (mut detectors, app) = (detectors, app.clone());
    let tick = move || {
        detectors.tick(&app);
        detectors
    };
    match tokio::task::spawn_blocking(tick).await {
        Ok(detectors) => detectors,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

async fn restore(app: &App) -> Result<(), StoreError> {
    let now = app.clock.now();
    let since = now.shifted(-gpufleet_analysis::incident::REOPEN_NS);
    let (standing, unread) = app.store.standing_incidents(since).await?;
    let groups = app.store.standing_groups().await?;
    let silences = app.store.silences(now).await?;
    tracing::info!(
        incidents = standing.len(),
        messages = groups.len(),
        "took in the incidents"
    );
    app.incidents
        .restore((standing, &unread), groups, silences, now);
    Ok(())
}

impl Detectors {
    /// As the configuration says.
    pub fn new(config: &DetectConfig) -> Self {
        let mut detectors = Self {
            watches: Watches::default(),
            runs: RunWatches::default(),
            offenders: Offenders::default(),
            idle_after_nanos: 0,
        };
        detectors.set(config);
        detectors
    }

    /// From now on with these thresholds.
    pub fn set(&mut self, config: &DetectConfig) {
        self.idle_after_nanos = config.idle_after_s.saturating_mul(NANOS_PER_SECOND);
        self.watches.limits.set(&config.limits);
    }

    /// One tick over what is live.
    pub fn tick(&mut self, app: &App) {
        let began = app.clock.monotonic();
        let now = app.clock.now();
        let is_gone = |cluster: &str, node: &str| app.inventory.is_gone(cluster, node);
        let terms = app.money.terms();
        let around = Around {
            now,
            fleet: &app.fleet,
            terms: Arc::clone(&terms),
            inventory: (&app.inventory, crate::inventory::now(app)),
            is_gone: &is_gone,
            own: own::signals(app, now),
        };
        let owner_of = |it: &Incident| payer::of_place(&app.fleet, &terms.owners, &it.place, now);
        let tell = |tick: Tick<'_>| app.incidents.tick_owned(tick, &mut Uuid::now_v7, &owner_of);
        let gpus = self.judge(around, tell).gpus;
        let ended = app.clock.monotonic();
        let took = ended.saturating_sub(began);
        app.incidents.health.note((now, ended), took, gpus);
    }

    /// One tick over what is known `around`, whether it is live or replayed; what is said of it goes to `tell`.
    pub fn judge(&mut self, around: Around<'_>, tell: impl FnOnce(Tick<'_>)) -> Counted {
        let Around {
            now,
            fleet,
            inventory: (inventory, seen_at),
            is_gone,
            ..
        } = around;
        let mut prices = Prices::at(around.terms, now);
        let (seen, of_nodes) = gather::gather(fleet, &mut self.watches, &mut prices, now);
        let gpus: Gpus<'_> = seen
            .iter()
            .map(|it| ((&*it.cluster, &*it.id), it))
            .collect();
        let mut of_runs = runs::said(fleet.runs(), &gpus, &mut self.runs, now);
        let network = &mut self.watches.network;
        let of_network = network.said(fleet.runs(), &of_nodes, &gpus, now);
        of_network.explain(&mut of_runs.signals);
        of_runs.signals.extend(of_network.signals);
        of_runs.unjudged.extend(of_network.unjudged);
        let mut signals = gpus::signals(&seen, now);
        let waiting = fleet::waiting(&seen, now, self.idle_after_nanos);
        let holders = runs::holders(fleet.runs(), &waiting, now);
        signals.extend(fleet::idle(&waiting, &holders, now));
        signals.extend(fleet::silent(&of_nodes, is_gone, now));
        // Whatever its agent calls the cluster: two names for one are no reason to call all nodes blind.
        let told = inventory.told(of_nodes.keys().map(|it| &*it.1));
        let is_told = |node: &str| told.has(node);
        let blind = inventory.without_agent(&told, seen_at);
        signals.extend(fleet::without_agent(inventory.cluster(), &blind, now));
        signals.extend(leak::signals(&seen, &of_nodes));
        signals.extend(self.offenders.signals(|place| {
            let gpu = place.gpu.as_deref();
            gpu.is_none_or(|gpu| gpus.contains_key(&(place.cluster.as_str(), gpu)))
        }));
        let (limits, network) = (&mut self.watches.limits, &self.watches.network);
        signals.extend(limits.signals(&of_nodes, &gpus, now));
        let readers = &mut self.watches.readers;
        signals.extend(readers.signals(now));
        signals.extend(of_runs.signals);
        signals.extend(around.own);
        let is_over = |place: &Place| {
            let node = place.node.as_deref();
            node.is_some_and(|it| is_gone(&place.cluster, it))
        };
        let nodes = Nodes::of(&of_nodes, now);
        let unreadable = Unreadable::of(&seen);
        let unjudged = &of_runs.unjudged;
        tell(Tick {
            now,
            signals,
            is_heard: &|family, place| match &place.run {
                Some(run) if family.is_of_run() => {
                    !unjudged.contains(&(family, place.cluster.clone(), run.clone()))
                }
                _ if own::is_own(place) => true,
                // What is gone says nothing any more, and nothing is wrong with it.
                _ if is_over(place) => true,
                // An agent that calls the cluster, or its node, otherwise has come.
                _ if family == Family::Blind && nodes.calls_otherwise(place, is_told) => true,
                _ => nodes.is_heard(place) && unreadable.is_readable(family, place),
            } && limits.is_read(family, place)
                && readers.is_read(family, place, now)
                && network.is_read(family, place),
            quiet_runs: &of_runs.quiet,
            nodes: &nodes.gpus,
        });
        Counted {
            gpus: seen.len(),
            nodes: of_nodes.len(),
        }
    }
}

/// The nodes that are judged.
struct Nodes {
    gpus: gpufleet_analysis::incident::Nodes,
    silent: BTreeSet<(String, String)>,
}

impl Nodes {
    /// Whether an agent tells of this node, but not by the name and cluster of this place.
    fn calls_otherwise(&self, place: &Place, is_told: impl Fn(&str) -> bool) -> bool {
        let Some(node) = place.node.as_deref().filter(|_| place.gpu.is_none()) else {
            return false;
        };
        let key = (place.cluster.clone(), node.to_owned());
        !self.gpus.contains_key(&key) && is_told(node)
    }

    fn of(seen: &NodesSeen, now: Timestamp) -> Self {
        let mut nodes = Self {
            gpus: BTreeMap::new(),
            silent: BTreeSet::new(),
        };
        for ((cluster, name), node) in seen {
            let key = (cluster.to_string(), name.to_string());
            if node.is_silent(now) {
                nodes.silent.insert(key.clone());
            }
            nodes.gpus.insert(key, node.gpus as usize);
        }
        nodes
    }

    /// Whether a node is heard from, or of a cluster any node.
    fn is_heard(&self, place: &Place) -> bool {
        let Some(node) = &place.node else {
            let in_cluster = |key: &&(String, String)| key.0 == place.cluster;
            let mut nodes = self.gpus.keys().filter(in_cluster);
            return nodes.any(|key| !self.silent.contains(key));
        };
        let key = (place.cluster.clone(), node.clone());
        self.gpus.contains_key(&key) && !self.silent.contains(&key)
    }
}

/// Families that a GPU's readings show.
const READ: [Family; 6] = [
    Family::GpuFault,
    Family::Memory,
    Family::Heat,
    Family::Power,
    Family::Link,
    Family::Leak,
];

/// Where readings are gone that would show trouble: how many GPUs of each node, and each of them.
#[derive(Default)]
struct Unreadable<'a> {
    gpus: HashMap<(&'a str, &'a str), &'a Seen>,
    of_node: HashMap<(&'a str, &'a str), Vec<&'a Seen>>,
}

impl<'a> Unreadable<'a> {
    fn of(all: &'a [Seen]) -> Self {
        let mut found = Self::default();
        for seen in all {
            if READ.into_iter().all(|it| gpus::is_readable(it, seen)) {
                continue;
            }
            found.gpus.insert((&seen.cluster, &seen.id), seen);
            let of_node = found.of_node.entry((&seen.cluster, &seen.node));
            of_node.or_default().push(seen);
        }
        found
    }

    /// Whether trouble of this kind at the place would be seen: at a wider place than a GPU, unless
    /// it would not be on two GPUs of a node in it.
    fn is_readable(&self, family: Family, place: &Place) -> bool {
        let is_gone = |it: &&&Seen| !gpus::is_readable(family, it);
        if let Some(gpu) = &place.gpu {
            let known = self.gpus.get(&(place.cluster.as_str(), gpu.as_str()));
            return known.is_none_or(|it| gpus::is_readable(family, it));
        }
        let in_place = |(cluster, node): &(&str, &str)| {
            *cluster == place.cluster && place.node.as_deref().is_none_or(|it| it == *node)
        };
        let mut of_nodes = self.of_node.iter().filter(|(key, _)| in_place(key));
        !of_nodes.any(|(_, gpus)| gpus.iter().filter(is_gone).count() > 1)
    }
}

/// Seconds between two moments, 0 when the second is not later.
fn seconds_since(now: Timestamp, then: Timestamp) -> f64 {
    now.since(then).max(0) as f64 / NANOS_PER_SECOND as f64
}

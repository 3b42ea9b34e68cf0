//! The judgement over what is live: every tick the detectors speak, and the book of incidents listens.
//!
//! Each tick (10 s): what is known of every GPU is put together ([`gather`]) with what each one's
//! counters did lately ([`watch`]), the detectors of `analysis` judge it ([`gpus`], [`fleet`]), and
//! their signals move the book on ([`crate::incidents`]). What changed is written at once, what only
//! goes on once a minute, because the money it lost is worth keeping and not worth a write a tick.
//!
//! Limits: GPUs of live and simulated clusters; recordings are judged by replaying them. Links (PCIe,
//! NVLink) and memory that leaks are not judged yet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpufleet_analysis::incident::{Place, Tick};
use gpufleet_program::section;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::App;
use crate::store::StoreError;
use crate::view::{FleetView, gather as view};

mod fleet;
pub mod gather;
mod gpus;
pub mod prices;
mod watch;

#[cfg(test)]
mod tests;

use gather::Watches;
use prices::Prices;

/// The time between two ticks: the agents'.
const TICK: Duration = Duration::from_secs(10);

/// Incidents that only go on are written this often.
const WRITE_EVERY_TICKS: u32 = 6;

/// How long a store that does not answer is waited for.
const AFTER_ERROR: Duration = Duration::from_secs(2);

section! {
    /// What is judged, and what a GPU costs.
    pub struct DetectConfig {
        /// Held and idle for this long is an incident, seconds.
        pub idle_after_s: i64 = 3_600,
        /// What an hour of one GPU costs, by the card's name as NVML spells it, in US dollars:
        /// "NVIDIA H100 80GB HBM3" = "11.06". A card without a price is unpriced, never free.
        pub gpu_hour_usd: BTreeMap<String, String> = BTreeMap::new(),
    }
}

/// What is kept from tick to tick.
pub struct Detectors {
    watches: Watches,
    prices: Prices,
    idle_after_nanos: i64,
}

/// Judges from when this server leads until it is told to stop; after the last tick what is not written
/// yet is written.
pub async fn run(app: App, stop: CancellationToken) {
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
                detectors.tick(&app);
                ticks = ticks.wrapping_add(1);
                if ticks.is_multiple_of(WRITE_EVERY_TICKS) {
                    app.incidents.write_all_open();
                }
                job.round(clock, app.incidents.write(&app.store)).await;
            }
        }
    }
    app.incidents.write_all_open();
    job.round(clock, app.incidents.write(&app.store)).await;
}

async fn restore(app: &App) -> Result<(), StoreError> {
    let now = app.clock.now();
    let since = now.shifted(-gpufleet_analysis::incident::REOPEN_NS);
    let standing = app.store.standing_incidents(since).await?;
    tracing::info!(incidents = standing.len(), "took in the incidents");
    app.incidents.restore(standing, now);
    Ok(())
}

impl Detectors {
    /// As the configuration says.
    pub fn new(config: &DetectConfig) -> Self {
        Self {
            watches: Watches::default(),
            prices: Prices::read(&config.gpu_hour_usd).unwrap_or_default(),
            idle_after_nanos: config.idle_after_s.saturating_mul(NANOS_PER_SECOND),
        }
    }

    /// One tick over what is live.
    pub fn tick(&mut self, app: &App) {
        let began = app.clock.monotonic();
        let now = app.clock.now();
        let picture = view::gather(app);
        let seen = gather::gather(&app.fleet, &mut self.watches, &self.prices, now);
        let mut signals = gpus::signals(&seen, now);
        signals.extend(fleet::idle(&seen, now, self.idle_after_nanos));
        signals.extend(fleet::silent(&picture));
        let nodes = Nodes::of(&picture);
        let tick = Tick {
            now,
            signals,
            is_heard: &|place| nodes.is_heard(place),
            quiet_runs: &BTreeSet::new(),
            nodes: &nodes.gpus,
        };
        app.incidents.tick(tick, &mut Uuid::now_v7);
        let took = app.clock.monotonic().saturating_sub(began);
        app.incidents.note(now, took, seen.len());
    }
}

/// The nodes that are judged.
struct Nodes {
    gpus: gpufleet_analysis::incident::Nodes,
    silent: BTreeSet<(String, String)>,
}

impl Nodes {
    fn of(picture: &FleetView) -> Self {
        let mut nodes = Self {
            gpus: BTreeMap::new(),
            silent: BTreeSet::new(),
        };
        let judged = picture
            .clusters
            .iter()
            .filter(|it| it.origin != Origin::Recorded);
        for cluster in judged {
            for node in &cluster.nodes {
                let key = (cluster.name.to_string(), node.name.to_string());
                if node.silent_since.is_some() {
                    nodes.silent.insert(key.clone());
                }
                nodes.gpus.insert(key, node.gpus.len());
            }
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

/// Seconds between two moments, 0 when the second is not later.
fn seconds_since(now: Timestamp, then: Timestamp) -> f64 {
    now.since(then).max(0) as f64 / NANOS_PER_SECOND as f64
}

//! The judgement over what is live: every tick the detectors speak, and the book of incidents listens.
//!
//! Each tick (10 s): what is known of every GPU is put together ([`gather`]) with what each one's
//! counters, links and memory did lately ([`watch`], [`links`], [`leak`]), each [`detector`] judges it with
//! those of `analysis`, and their signals move the book on ([`crate::incidents`]). What changed is
//! written at once, what only goes on once a minute, because the money it lost is worth keeping and not
//! worth a write a tick. A tick computes and waits for nothing, on a thread of its own beside those that
//! answer requests.
//!
//! Limits: GPUs and runs of live and simulated clusters; recordings are judged by replaying them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::incident::{Family, Incident, Signal, Tick};
use gpufleet_analysis::unused::IDLE_AFTER_S;
use gpufleet_analysis::{
    hang, health, leak as grows, loss, offender, port, regression, slow_link, straggler,
    wrong_network,
};
use gpufleet_program::section;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::App;
use crate::auth::Grant;
use crate::fleet::Fleet;
use crate::inventory::Inventory;
use crate::inventory::known::Moment;
use crate::money::{CoveredNow, Terms, payer};
use crate::notify::own;
use crate::store::StoreError;

mod before;
mod budgets;
mod clocks;
pub(crate) mod detector;
mod fleet;
pub mod gather;
mod gpus;
mod heard;
mod leak;
pub mod limits;
mod links;
mod network;
mod offenders;
pub mod prices;
mod readers;
mod runs;
mod stake;
pub mod thresholds;
pub mod tuned;
mod watch;
mod whole;

#[cfg(test)]
mod quality;
#[cfg(test)]
mod tests;

use before::Before;
use budgets::Budgets;
use clocks::Clocks;
use detector::{Detector, Findings, Finds, TickSnapshot};
use fleet::{Idle, Silent, WithoutAgent};
use gather::{Gpus, Shares, Watches};
use gpus::Faults;
use heard::Heard;
use leak::Leaking;
use offenders::Offenders;
use prices::Prices;
use runs::RunWatches;
use thresholds::Thresholds;
use tuned::Tuned;

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
        pub idle_after_s: i64 = IDLE_AFTER_S,
        /// Limits of readings other than the built-in ones, by the kind of trouble in docs/alerts.md:
        /// "node_cpu_stolen" = 0.2. Of this section all but gpu_hour_usd is read again while the server runs.
        pub limits: BTreeMap<String, f64> = BTreeMap::new(),
        /// Ticks of 10 s in a row, 1 to 360, that open an incident, by its kind: { "link" = 12, "heat" = 6 }.
        /// Without a word 5 for link, 3 for blind, heat and power, 1 for all others.
        pub open_after_ticks: BTreeMap<String, u32> = BTreeMap::new(),
        /// A rank makes the others wait when its own time of a step is this many times its peers', 1.01 to 3;
        /// it is over below half of what is above 1.
        pub straggler_ratio: f64 = straggler::FIRE_RATIO,
        /// … and this many standard errors above them, 2 to 50.
        pub straggler_z: f64 = straggler::FIRE_Z,
        /// A run without a step for this long stands still, seconds, 30 to 86400, …
        pub hang_after_s: f64 = hang::Thresholds::default().after_s,
        /// … and for this many times the median time between its steps, 3 to 1000.
        pub hang_gaps: f64 = hang::GAPS,
        /// A run whose ranks are up, make no first step and compute nothing for this long stands too, seconds,
        /// 300 to 86400: images, data, compilers and checkpoints take their time.
        pub first_step_after_s: f64 = hang::Thresholds::default().first_step_s,
        /// A run is slower when its steps take this part longer than they did, 0.005 to 1.
        pub slower_by: f64 = regression::LEAST_CHANGE,
        /// A loss or a gradient's norm is too high this many standard deviations above its trend, 3 to 100.
        pub loss_sigmas: f64 = loss::FIRE_SIGMAS,
        /// A loss has left its trend when it is too high in this many readings in a row, of which there is one each 10 s at
        /// most, 1 to 199.
        pub loss_steps: f64 = f64::from(loss::DIVERGED_STEPS),
        /// Loss or gradient are not finite for this many steps in a row, 1 to 200.
        pub loss_not_finite_steps: f64 = f64::from(loss::NON_FINITE_STEPS),
        /// A loss does not change when it is the same to the bit in this many readings in a row, 10 to 10000.
        pub loss_stuck_steps: f64 = f64::from(loss::STUCK_STEPS),
        /// Memory leaks when it rises with at least this z by Mann-Kendall, 1.65 to 10, …
        pub leak_z: f64 = grows::FIRE_Z,
        /// … this tau, 0.2 to 0.95, …
        pub leak_tau: f64 = grows::FIRE_TAU,
        /// … by this part of the capacity in the window, 0.005 to 0.5, …
        pub leak_growth: f64 = grows::LEAST_GROWTH,
        /// … each third of the window by more than this part of the whole's slope, 0 to 0.9, …
        pub leak_third: f64 = grows::THIRD_PART,
        /// … and with no jump larger than this part of the growth, 0.05 to 1.
        pub leak_jump: f64 = grows::JUMP_PART,
        /// Heat or the power brake slows a GPU down for more than this part of the time, 0.005 to 1.
        pub throttled_part: f64 = health::THROTTLED_PART,
        /// The power cap slows a GPU down for more than this part, 0.02 to 1, and like GPUs for less than a quarter
        /// of it.
        pub capped_part: f64 = health::CAPPED_PART,
        /// The hardware begins to slow a GPU down more than this many times a minute, over five minutes, 0.4 to 5;
        /// what comes within one tick of 10 s is one time. Of what comes more seldom one time is over before the next.
        pub slowdowns_per_minute: f64 = health::SLOWDOWNS_PER_MINUTE,
        /// More corrected memory errors of a GPU in an hour than this, 1 to 100000.
        pub ecc_corrected_per_hour: f64 = health::CORRECTABLE_PER_HOUR,
        /// A GPU is hotter than like ones by this much at least, °C, 1 to 60.
        pub hotter_by_celsius: f64 = health::OUTLIER_CELSIUS,
        /// A GPU draws less power than like ones by this part at least, 0.05 to 0.9.
        pub weaker_by: f64 = health::OUTLIER_POWER_PART,
        /// A link is slow when its collectives have less than this part of the bandwidth of like ones, 0.3 to 0.95.
        pub slow_link_part: f64 = slow_link::SLOW_RATIO,
        /// A port is slow that came up with less than this part of the speed of like ones, 0.3 to 0.99.
        pub slow_port_part: f64 = port::SLOW_PART,
        /// Errors a second of a port that are why a link is slow, 0.01 to 10000.
        pub port_errors_per_second: f64 = port::ERRORS,
        /// A run is on the wrong network when its nodes move this many bytes a second each way over their hosts' port,
        /// 1000000 to 10000000000, …
        pub wrong_network_bytes: f64 = wrong_network::LEAST_BYTES,
        /// … less than this part of it over those that are there for the GPUs, 0.001 to 0.5, …
        pub wrong_network_silent_part: f64 = wrong_network::SILENT_PART,
        /// … and this part of its nodes do, 0.25 to 1.
        pub wrong_network_nodes_part: f64 = wrong_network::WRONG_PART,
        /// A card breaks again and again that had this many faults in 30 days, 2 to 100; looked at once an hour.
        pub offender_card_faults: f64 = offender::Thresholds::default().card_faults,
        /// A machine does with this many faults, of three cards at least or its own, 2 to 100.
        pub offender_node_faults: f64 = offender::Thresholds::default().node_faults,
        /// A rack, block or zone does whose share of machines with a fault is this many times that of the rest, 1.5 to 20.
        pub offender_part_times: f64 = offender::PART_TIMES,
        /// What an hour of one GPU costs where its node tells no machine type of which a price is known:
        /// by the card's name as NVML spells it, or by cluster and name, in the currency of cost.currency:
        /// "NVIDIA H100 80GB HBM3" = "11.06", "lab/NVIDIA H100 80GB HBM3" = "2.10". What has no price is
        /// unpriced, never free. "CPU" is what a rank costs on a machine without a GPU: "lab/CPU" = "0.05".
        pub gpu_hour_usd: BTreeMap<String, String> = BTreeMap::new(),
    }
}

/// The detectors, with what they keep from tick to tick.
#[derive(Default)]
pub struct Detectors {
    watches: Watches,
    faults: Faults,
    idle: Idle,
    silent: Silent,
    without_agent: WithoutAgent,
    leaking: Leaking,
    offenders: Offenders,
    runs: RunWatches,
    tuned: Tuned,
    clocks: Clocks,
    budgets: Budgets,
    /// What was wrong when the server took over.
    before: Before,
    /// Which of them judges nothing, by its place in [`Detectors::all`]: with it a test shows what would be missed.
    off: Option<usize>,
}

/// What a tick looks at, beside what the detectors remember.
pub struct TickInput<'a> {
    /// The moment of the tick.
    pub now: Timestamp,
    /// What is live, or was then.
    pub fleet: &'a Fleet,
    /// What GPU time costs.
    pub terms: Arc<Terms>,
    /// What the cluster tells, and the moment by which that is seen.
    pub inventory: (&'a Inventory, Moment),
    /// Whether a node of a cluster was there and is gone.
    pub is_gone: &'a dyn Fn(&str, &str) -> bool,
    /// What is wrong with gpufleet itself.
    pub own: Vec<Signal>,
}

/// How much a tick looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Coverage {
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
    detectors.resume(&app.incidents.open(&Grant::default()), clock.now());
    app.incidents
        .open_after(tuned::open_after(&app.config.detect));
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
    let lately = now.shifted(-gpufleet_analysis::health::REPEAT_NS);
    let told = app.store.told_before(lately, &standing).await?;
    let groups = app.store.standing_groups().await?;
    let silences = app.store.silences(now).await?;
    tracing::info!(
        incidents = standing.len(),
        messages = groups.len(),
        "took in the incidents"
    );
    app.fleet.tell_again(told);
    app.incidents
        .restore((standing, &unread), groups, silences, now);
    Ok(())
}

impl Detectors {
    /// As the configuration says.
    pub fn new(config: &DetectConfig) -> Self {
        let mut detectors = Self::default();
        detectors.set(config);
        detectors
    }

    /// Judges on from what is open when this server takes over, now.
    pub fn resume(&mut self, open: &[Incident], now: Timestamp) {
        self.before = Before::of(open, &self.finds(), now);
    }

    /// From now on with these thresholds.
    pub fn set(&mut self, config: &DetectConfig) {
        self.idle.after_s = config.idle_after_s;
        self.watches.limits.set(&config.limits);
        self.tuned = Tuned::of(config);
        self.watches.leak = self.tuned.leak;
        self.offenders.by = self.tuned.offender;
    }

    /// One tick over what is live.
    pub fn tick(&mut self, app: &App) {
        let began = app.clock.monotonic();
        let now = app.clock.now();
        let is_gone = |cluster: &str, node: &str| app.inventory.is_gone(cluster, node);
        let terms = app.money.terms();
        let around = TickInput {
            now,
            fleet: &app.fleet,
            terms: Arc::clone(&terms),
            inventory: (&app.inventory, crate::inventory::now(app)),
            is_gone: &is_gone,
            own: own::signals(app, now),
        };
        self.budgets.take(app.money.standings());
        let owner_of = |it: &Incident| match it.family {
            // There a team has a node's place.
            Family::Budget => it.place.node.clone(),
            _ => payer::of_place(&app.fleet, &terms.owners, &it.place, now),
        };
        let tell = |tick: Tick<'_>| app.incidents.tick_owned(tick, &mut Uuid::now_v7, &owner_of);
        let gpus = self.judge(around, tell).gpus;
        let ended = app.clock.monotonic();
        let took = ended.saturating_sub(began);
        app.incidents.health.note((now, ended), took, gpus);
    }

    /// One tick over what is known `around`, whether it is live or replayed; what is said of it goes to `tell`.
    pub fn judge(&mut self, around: TickInput<'_>, tell: impl FnOnce(Tick<'_>)) -> Coverage {
        let now = around.now;
        let there = (around.fleet, around.inventory.0);
        let covered = CoveredNow::of(there, &around.terms, now);
        let mut prices = Prices::at(around.terms, Arc::new(covered), now);
        let mut before = std::mem::take(&mut self.before);
        let kept = (&mut self.watches, &before);
        let (seen, nodes) = gather::gather(around.fleet, kept, &mut prices, now);
        let gpus: Gpus<'_> = seen
            .iter()
            .map(|it| ((&*it.cluster, &*it.id), it))
            .collect();
        let shares = nodes.values().flat_map(|it| &it.shares);
        let shares: Shares<'_> = shares.map(|it| ((&*it.cluster, &*it.id), it)).collect();
        let (inventory, seen_at) = around.inventory;
        let told = inventory.told(nodes.keys().map(|it| &*it.1));
        let without_agent = inventory.without_agent(&told, seen_at).into_iter();
        let without_agent = without_agent.map(|it| {
            let price = fleet::listed_price(inventory.cluster(), &it.node, &mut prices);
            (it, price)
        });
        let without_agent: Vec<_> = without_agent.collect();
        let by = self.tuned;
        let snapshot = TickSnapshot {
            now,
            by: &by,
            seen: &seen,
            gpus: &gpus,
            shares: &shares,
            nodes: &nodes,
            fleet: around.fleet,
            is_gone: around.is_gone,
            is_listed: &|cluster, node| inventory.is_listed(cluster, node),
            is_told: &|node| told.has(node),
            blind: (inventory.cluster(), &without_agent),
            before: &before,
        };
        let mut found = Findings::default();
        let off = self.off;
        let judging = self.all().into_iter().enumerate();
        for (_, detector) in judging.filter(|it| Some(it.0) != off) {
            detector.judge(&snapshot, &mut found);
        }
        let mut signals = std::mem::take(&mut found.signals);
        debug_assert_eq!(self.unpriced(&signals), [""; 0], "a word on its price");
        signals.extend(around.own);
        let awaited = before.awaited(&signals, now);
        let heard = Heard::of(&snapshot);
        tell(Tick {
            now,
            signals,
            is_heard: &|family, place| heard.is_heard(family, place, &found),
            in_its_place: &|gpu, since| heard.in_its_place(gpu, since),
            is_forgotten: &|family, place| heard.is_forgotten(family, place),
            quiet_runs: &found.quiet,
            nodes: &heard.nodes,
            runs: &heard.runs,
        });
        let judged = Coverage {
            gpus: seen.len(),
            nodes: nodes.len(),
        };
        before.keep(awaited, now);
        self.before = before;
        self.watches.keep(seen);
        judged
    }

    /// Signals that say of their price what no finding of their family does.
    fn unpriced(&mut self, signals: &[Signal]) -> Vec<String> {
        let finds = self.finds();
        let is_said = |it: &&Signal| finds.iter().any(|finds| finds.may_be(it));
        let unsaid = signals.iter().filter(|it| !is_said(it));
        unsaid
            .map(|it| format!("{}: {:?}", it.what, it.price.basis))
            .collect()
    }

    /// What all of them find.
    pub(crate) fn finds(&mut self) -> Vec<Finds> {
        self.all().iter().flat_map(|it| it.finds()).collect()
    }

    /// Every detector. That of the network comes before that of runs, which it tells why one became slower, and
    /// that before idleness, which is not that of a run that saves, and before clocks, which are asked of jobs alone whose
    /// runs tell nothing.
    fn all(&mut self) -> [&mut dyn Detector; 12] {
        [
            &mut self.faults,
            &mut self.silent,
            &mut self.without_agent,
            &mut self.leaking,
            &mut self.offenders,
            &mut self.watches.limits,
            &mut self.watches.readers,
            &mut self.watches.network,
            &mut self.runs,
            &mut self.idle,
            &mut self.clocks,
            &mut self.budgets,
        ]
    }
}

/// Seconds between two moments, 0 when the second is not later.
fn seconds_since(now: Timestamp, then: Timestamp) -> f64 {
    now.since(then).max(0) as f64 / NANOS_PER_SECOND as f64
}

//! The server: takes what the agents send, keeps it, says what it means, and shows it.
//!
//! Read in the order of the data: [`ingest`] (OTLP in), [`fleet`] (exactly once, live state), [`runs`]
//! (training), [`store`] (SQL), [`inventory`] (what the cluster tells beside), [`detect`] and [`incidents`] (what is wrong), [`notify`] (who is told), [`ledger`] and [`retention`]
//! (its jobs), [`money`] (what it costs), [`words`] (how it is said), then the API and the pages. [`App`] is what every request handler is given.

use std::sync::Arc;

use gpufleet_telemetry::time::Clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub mod config;

pub mod auth;

pub mod ingest;

pub mod fleet;

pub mod runs;

pub mod store;

pub mod commit;

pub mod lead;

pub mod files;

pub mod refusals;

pub mod jobs;

pub mod disk;

pub mod health;

pub mod incidents;

pub mod notify;

pub mod inventory;

pub mod detect;

pub mod replay;

pub mod handoff;

pub mod ledger;

pub mod money;

pub mod retention;

pub mod view;

pub mod words;

mod fnv;

pub mod threads;

pub mod answers;

pub mod find;

pub mod today;

pub mod doctor;

pub mod settings;

pub mod export;

pub mod pages;

pub mod api;

pub mod metrics;

pub mod web;

/// What every request handler is given. Cheap to clone.
#[derive(Clone)]
pub struct App {
    /// What is known of the fleet now, and how far each agent's data has been folded.
    pub fleet: Arc<fleet::Fleet>,
    /// The record of what was.
    pub store: store::Store,
    /// The configuration the server started with.
    pub config: Arc<config::Config>,
    /// Where each value of it comes from; none when that is not known.
    pub origins: Option<Arc<gpufleet_program::config::Origins>>,
    /// Who may do what.
    pub access: Arc<auth::Access>,
    /// What was left out of requests while decoding.
    pub rejections: Arc<ingest::Rejections>,
    /// Whether this server has the right to write.
    pub lead: Arc<lead::Lead>,
    /// What the doors refused.
    pub refusals: Arc<refusals::Refusals>,
    /// How the background jobs go.
    pub jobs: Arc<jobs::Jobs>,
    /// What is wrong, and what people said to it.
    pub incidents: Arc<incidents::Incidents>,
    /// How the thresholds were last read.
    pub thresholds: Arc<detect::thresholds::ThresholdHealth>,
    /// The cluster's nodes, and who waits for GPUs.
    pub inventory: Arc<inventory::Inventory>,
    /// What GPU time costs, and who pays.
    pub money: Arc<money::Money>,
    /// The newest answers to what could be saved.
    pub savings: Arc<money::savings::Kept>,
    /// How pushing by remote write goes.
    pub pushed: Arc<export::Pushed>,
    /// How pushing to Cloud Monitoring goes.
    pub cloud_monitoring: Arc<export::cloud_monitoring::Told>,
    /// How commits go.
    pub commits: Arc<commit::CommitHealth>,
    /// Whether the threads that take data in and judge go on.
    pub pulse: Arc<health::Pulse>,
    /// Told when what open pages show may have changed.
    pub news: watch::Sender<()>,
    /// Cancelled when the server is to end.
    pub stop: CancellationToken,
    /// What says how much room a disk has.
    pub room: disk::Room,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
}

impl App {
    /// A server that starts: it knows nothing of the fleet, and does not lead.
    pub fn new(
        config: config::Config,
        store: store::Store,
        access: auth::Access,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let fleet = fleet::Fleet::new(config.fleet.clone());
        fleet
            .runs()
            .judge_by(&detect::tuned::Tuned::of(&config.detect));
        Self {
            inventory: Arc::new(inventory::Inventory::new(
                &config.inventory,
                &config.ingest.default_cluster,
            )),
            money: Arc::new(money::Money::new(&config)),
            fleet: Arc::new(fleet),
            store,
            config: Arc::new(config),
            origins: None,
            access: Arc::new(access),
            rejections: Arc::default(),
            lead: Arc::default(),
            refusals: Arc::default(),
            jobs: Arc::default(),
            incidents: Arc::default(),
            thresholds: Arc::default(),
            pushed: Arc::default(),
            cloud_monitoring: Arc::default(),
            savings: Arc::default(),
            commits: Arc::default(),
            pulse: Arc::default(),
            news: watch::Sender::default(),
            stop: CancellationToken::new(),
            room: disk::free,
            clock,
        }
    }

    /// From now on this server leads: what it knows is restored, and its detectors are to judge.
    pub fn begins_to_lead(&self) {
        self.incidents.health.waits(self.clock.monotonic());
        self.lead.begin();
    }

    /// What all of its money is in, as ISO 4217 has it.
    pub fn currency(&self) -> &str {
        &self.config.cost.currency
    }
}

#[cfg(test)]
mod hand;

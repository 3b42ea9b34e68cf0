//! What the cluster has beside what agents tell: nodes from the moment they are made to the moment they
//! are gone, who waits for GPUs and why, and what is free.
//!
//! One source tells it ([`kubernetes`], [`slurm`]; [`fixed`] where the config names the nodes), [`known`] keeps it,
//! [`look`] is what pages, API and detectors are given of it. What is not seen is not known: without the
//! right to watch there is a sentence that says so, and never a count of nothing.
//!
//! Nodes and changes are written every [`WRITE_EVERY`], so that a server that starts anew knows since when
//! a node is ready; pods are asked for anew.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpufleet_analysis::inventory::Record;
use gpufleet_program::kubernetes as client;
use gpufleet_program::section;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::App;
use crate::auth::Grant;
use crate::store::model::FencingToken;
use crate::store::{CommitError, Store, StoreError};
use crate::threads::apart;

mod demand;
pub mod fixed;
mod gone;
pub mod known;
pub mod kubernetes;
pub mod look;
pub mod names;
pub mod pools;
pub mod slurm;
pub mod troubled;
mod unheld;

use demand::Tally;
pub use gone::{Gone, gone_for_ns};
use known::{ClusterState, Moment};
use look::{Look, Sight};
use names::{Names, Told};
use pools::NodePools;
use unheld::Minutes;

/// How often what changed is written.
const WRITE_EVERY: Duration = Duration::from_secs(5);

/// How long a store that does not answer is waited for.
const AFTER_ERROR: Duration = Duration::from_secs(2);

/// Changes that a server that starts takes in: as far back as the page shows.
pub const CHANGES_FOR_NS: i64 = 24 * 3_600 * NANOS_PER_SECOND;

section! {
    /// What the cluster has beside what agents tell: its nodes, and who waits for GPUs.
    pub struct InventoryConfig {
        /// Who tells it: `kubernetes`, `slurm`, `static` (the nodes named below), `off`, or `auto`: Kubernetes
        /// where the server runs in a pod that has a token, else the nodes named below, if there are any.
        pub source: String = "auto".to_owned(),
        /// The cluster that this is, as its agents name it; empty means ingest.default_cluster.
        pub cluster: String = String::new(),
        /// The address of the Kubernetes API; empty means as a pod finds it.
        pub kubernetes_url: String = String::new(),
        /// The file with the token for it, read again when it changes.
        pub kubernetes_token_file: PathBuf =
            PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount/token"),
        /// The certificates (PEM) that its own must come from.
        pub kubernetes_ca_file: PathBuf =
            PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"),
        /// Slurm: the folder in which a cron job writes what `sinfo -a -N --json` and `squeue -a --json` print, as
        /// sinfo.json and squeue.json; empty means that the server runs these commands.
        pub slurm_folder: PathBuf = PathBuf::new(),
        /// Nodes where nobody else tells them, one line for each: how many GPUs, of which type, and the zone
        /// behind an @ where there is one: "node-1" = "8 NVIDIA H100 80GB HBM3 @rack-7".
        pub nodes: BTreeMap<String, String> = BTreeMap::new(),
        /// A node with GPUs that is ready for so long and of which no agent tells is an incident, seconds.
        /// Read again while the server runs.
        pub agent_within_s: i64 = 600,
    }
}

/// Who tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Nobody.
    Off,
    /// The Kubernetes API at this address.
    Kubernetes(String),
    /// Slurm's commands, or files with what they print.
    Slurm,
    /// The config.
    Fixed,
}

/// What every part of the server shares of it.
#[derive(Debug)]
pub struct Inventory {
    source: Source,
    cluster: Arc<str>,
    /// Nanoseconds.
    within: AtomicI64,
    held: Mutex<ClusterState>,
    demand: Mutex<Tally>,
    free: Mutex<Minutes>,
    token: Mutex<Option<FencingToken>>,
}

impl InventoryConfig {
    /// The cluster that this is.
    pub fn cluster<'a>(&'a self, default: &'a str) -> &'a str {
        match self.cluster.as_str() {
            "" => default,
            named => named,
        }
    }

    /// Refuses what cannot be meant.
    ///
    /// # Errors
    /// Names the key.
    pub fn check(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.source()?;
        fixed::nodes(&self.nodes)?;
        if !self.kubernetes_url.is_empty() {
            client::is_secure(&self.kubernetes_url, kubernetes::URL_KEY)?;
        }
        match self.agent_within_s {
            10.. => Ok(()),
            other => Err(format!(
                "inventory.agent_within_s = {other}: must be at least 10, agents need a while to come up"
            )
            .into()),
        }
    }

    /// Who tells it.
    ///
    /// # Errors
    /// Names the key, where nobody is called so, or who is named cannot be found.
    fn source(&self) -> Result<Source, String> {
        let base = || client::base(&self.kubernetes_url, &self.kubernetes_token_file);
        match self.source.as_str() {
            "off" => Ok(Source::Off),
            "slurm" => Ok(Source::Slurm),
            "static" => Ok(Source::Fixed),
            "kubernetes" => base().map(Source::Kubernetes).ok_or_else(|| {
                "inventory.source = \"kubernetes\": the server is in no pod with a token; set inventory.kubernetes_url and inventory.kubernetes_token_file".to_owned()
            }),
            "auto" => Ok(match (base(), self.nodes.is_empty()) {
                (Some(base), _) => Source::Kubernetes(base),
                (None, false) => Source::Fixed,
                (None, true) => Source::Off,
            }),
            other => Err(format!(
                "inventory.source = \"{other}\": it may be auto, kubernetes, slurm, static or off"
            )),
        }
    }
}

impl Inventory {
    /// As the configuration says, which was checked.
    pub fn new(config: &InventoryConfig, default_cluster: &str) -> Self {
        let inventory = Self {
            source: config.source().unwrap_or(Source::Off),
            cluster: config.cluster(default_cluster).into(),
            within: AtomicI64::default(),
            held: Mutex::default(),
            demand: Mutex::default(),
            free: Mutex::default(),
            token: Mutex::default(),
        };
        inventory.set_within(config);
        inventory
    }

    /// How long a node may be without an agent, from now on.
    pub fn set_within(&self, config: &InventoryConfig) {
        let within = config.agent_within_s.saturating_mul(NANOS_PER_SECOND);
        self.within.store(within, Ordering::Relaxed);
    }

    /// The cluster that this is.
    pub fn cluster(&self) -> &Arc<str> {
        &self.cluster
    }

    /// Who tells it.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// This server has the right to write.
    pub fn leads(&self, token: FencingToken) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token);
    }

    /// What is known, for whoever changes it.
    pub fn known(&self) -> MutexGuard<'_, ClusterState> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of it now, for a reader; none where the reader may not see this cluster.
    pub fn look(&self, grant: &Grant, now: Moment) -> Option<Look> {
        let may_see = grant.may_see(&self.cluster);
        may_see.then(|| look::look(self, &self.known(), now))
    }

    /// Whether the nodes are seen now.
    pub fn sees_nodes(&self, now: Moment) -> bool {
        self.source != Source::Off && self.known().nodes.sight(now) == Sight::Seen
    }

    /// Whether somebody tells the nodes of a cluster, so that one that went would be known.
    pub fn has_nodes(&self, cluster: &str) -> bool {
        let is_told = *cluster == *self.cluster && self.source != Source::Off;
        is_told && self.known().nodes.whole_since.is_some()
    }

    /// The node pools of the nodes that are told, or were.
    pub fn node_pools(&self) -> NodePools {
        NodePools::of(&self.cluster, self.known().records())
    }

    /// The names of nodes that agents tell. Kubernetes tells agents the names of their nodes; whoever else
    /// lists nodes may leave out the domain, as agents may.
    pub fn told<'a>(&self, told: impl Iterator<Item = &'a str>) -> Told<'a> {
        if matches!(self.source, Source::Kubernetes(_)) {
            return Told::Same(told.collect());
        }
        let mut names = Names::default();
        told.for_each(|it| names.tell(it));
        let known = self.known();
        // One that went is not the machine that an agent tells of now.
        let there = known.records().filter(|it| !it.is_gone());
        there.for_each(|it| names.list(&it.node.name));
        Told::Alike(names)
    }

    /// Nodes with GPUs of which no agent tells, as far as nodes are seen now.
    pub fn without_agent(&self, told: &Told<'_>, now: Moment) -> Vec<Record> {
        let within = self.within.load(Ordering::Relaxed);
        match self.sees_nodes(now) {
            true => self
                .known()
                .without_agent(|it| told.has(it), within, now.at),
            false => Vec::new(),
        }
    }

    /// Writes what changed, and now and then up to when nodes were seen.
    async fn write(&self, store: &Store, now: Moment) -> Result<(), CommitError> {
        let token = *self.token.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(token) = token else {
            return Ok(());
        };
        let (records, changes) = self.known().unwritten();
        let written = store
            .write_inventory(&self.cluster, (&records, &changes), token)
            .await;
        if written.is_err() {
            self.known().not_written(&records, changes);
            return written;
        }
        // After them: nobody may take a node for seen that is gone.
        let seen = self.known().seen_unwritten(now, !records.is_empty());
        if let Some(seen) = seen {
            store
                .write_inventory_seen(&self.cluster, seen, token)
                .await?;
        }
        let sample = look::sample(self, &self.known(), now);
        let (waited_for, why) = match sample {
            Some(sample) => {
                let sees_nodes = sample.sees_nodes;
                let (gpus, why) = apart(move || sample.judged()).await;
                (Some((gpus, sees_nodes)), why)
            }
            None => (None, None),
        };
        let (due, free) = {
            let (mut demand, mut free) = (self.demand(), self.free());
            demand.sample(waited_for, now);
            free.sample(why, now);
            (demand.due(now), free.due(now))
        };
        if !due.is_empty() {
            store.write_demand(&self.cluster, &due, token).await?;
            self.demand().written(&due, now);
        }
        if !free.is_empty() {
            store.write_free(&self.cluster, &free, token).await?;
            self.free().written(now);
        }
        Ok(())
    }

    fn demand(&self) -> MutexGuard<'_, Tally> {
        self.demand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self) -> MutexGuard<'_, Minutes> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks, keeps and writes from when this server leads until it is told to stop.
pub async fn run(app: App, stop: CancellationToken) {
    if !app.lead.wait(&stop).await {
        return;
    }
    let inventory = &app.inventory;
    if inventory.source == Source::Off {
        return stop.cancelled().await;
    }
    let (job, clock) = (app.jobs.of("the inventory"), app.clock.as_ref());
    while job.round(clock, restore(&app)).await.is_none() {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(AFTER_ERROR) => {}
        }
    }
    let told = async {
        match &inventory.source {
            Source::Kubernetes(base) => kubernetes::run(&app, base).await,
            Source::Slurm => slurm::run(&app).await,
            Source::Fixed => fixed::run(&app).await,
            Source::Off => std::future::pending().await,
        }
    };
    let gone_for = gone_for_ns(app.config.fleet.forget_after_s);
    let written = async {
        loop {
            // Never in the middle of a write: what was taken for it would be lost.
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(WRITE_EVERY) => {}
            }
            inventory.known().forget(clock.now(), gone_for);
            tell_taken_back(&app);
            job.round(clock, inventory.write(&app.store, now(&app)))
                .await;
        }
    };
    tokio::select! {
        () = told => {}
        () = written => {}
    }
    tell_taken_back(&app);
    job.round(clock, inventory.write(&app.store, now(&app)))
        .await;
}

/// Tells the fleet which nodes were seen to be taken back, before they are written as such: their agents may not hear of
/// it, and one that is written is not told again.
fn tell_taken_back(app: &App) {
    let inventory = &app.inventory;
    let news = inventory.known().news_of_taken_back();
    for (node, at) in news {
        app.fleet.saw_taken_back(&inventory.cluster, &node, at);
    }
}

/// Takes in what the store knows.
async fn restore(app: &App) -> Result<(), StoreError> {
    let now = app.clock.now();
    let gone_for = gone_for_ns(app.config.fleet.forget_after_s);
    let cluster = &app.inventory.cluster;
    let records = app.store.inventory(cluster, now.shifted(-gone_for)).await?;
    let since = now.shifted(-CHANGES_FOR_NS);
    let changes = app.store.inventory_changes(cluster, since, None).await?;
    let seen = app.store.inventory_seen(cluster).await?;
    app.inventory.known().restore(records, changes, seen);
    let hour = now.minute().hour();
    let demand = app.store.demand_hour(cluster, hour).await?;
    app.inventory.demand().restore(demand);
    let free = app.store.free_hour(cluster, hour).await?;
    app.inventory.free().restore(free);
    Ok(())
}

/// A moment as both clocks have it.
pub fn now(app: &App) -> Moment {
    Moment {
        at: app.clock.now(),
        monotonic: app.clock.monotonic(),
    }
}

/// When a text says that something was, RFC 3339; none where it says nothing.
pub(crate) fn moment(text: &str) -> Option<Timestamp> {
    let format = &time::format_description::well_known::Rfc3339;
    let at = time::OffsetDateTime::parse(text, format).ok()?;
    i64::try_from(at.unix_timestamp_nanos()).ok().map(Timestamp)
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::inventory::Node;

    use super::*;

    #[test]
    fn a_node_went_when_the_cluster_misses_it_or_has_another_machine_of_its_name() {
        let config = InventoryConfig {
            source: "static".to_owned(),
            ..InventoryConfig::default()
        };
        let inventory = Inventory::new(&config, "prod");
        let at = Timestamp::from_seconds;
        let now = |seconds: i64| Moment {
            at: at(seconds),
            monotonic: Duration::from_secs(seconds.unsigned_abs()),
        };
        let node = |name: &str, provisioning: &str, made: i64| Node {
            name: name.to_owned(),
            uid: made.to_string(),
            provisioning: provisioning.to_owned(),
            created: Some(at(made)),
            ..Node::default()
        };
        assert!(!inventory.has_nodes("prod"));
        let all = vec![node("a", "spot", 10), node("b", "on_demand", 10)];
        inventory.known().all_nodes(all, now(100));
        assert!(inventory.has_nodes("prod"));
        assert!(
            !inventory.has_nodes("lab"),
            "another cluster, of which nobody tells nodes"
        );
        assert_eq!(inventory.gone("prod", "a", at(90)), None, "it is there");
        // `a` is missed, and `b` is another machine than the one that was heard.
        let all = vec![node("b", "on_demand", 150)];
        inventory.known().all_nodes(all, now(160));
        let gone = |from: i64, until: i64, is_spot| {
            Some(Gone {
                from: at(from),
                until: at(until),
                is_spot,
            })
        };
        assert_eq!(inventory.gone("prod", "a", at(120)), gone(160, 160, true));
        assert_eq!(inventory.gone("prod", "b", at(120)), gone(120, 150, false));
        assert_eq!(inventory.gone("prod", "b", at(155)), None);
        assert_eq!(inventory.gone("other", "a", at(120)), None);
        assert_eq!(inventory.gone("prod", "c", at(120)), None);
    }

    #[test]
    fn a_node_that_went_keeps_no_agent_from_the_one_that_came_with_its_short_name() {
        let config = InventoryConfig {
            source: "static".to_owned(),
            ..InventoryConfig::default()
        };
        let inventory = Inventory::new(&config, "prod");
        let node = |name: &str| Node {
            name: name.to_owned(),
            ..Node::default()
        };
        let now = |seconds: i64| Moment {
            at: Timestamp::from_seconds(seconds),
            monotonic: Duration::from_secs(seconds.unsigned_abs()),
        };
        let is_told = |node: &str| inventory.told(["a"].into_iter()).has(node);
        let both = vec![node("a.old"), node("a.new")];
        inventory.known().all_nodes(both, now(0));
        assert!(!is_told("a.new"), "which of the two it is nobody knows");
        inventory.known().all_nodes(vec![node("a.new")], now(60));
        assert!(is_told("a.new"));
    }
}

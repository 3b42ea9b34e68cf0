//! The fleet as pages, API and /metrics show it: one compact picture, made at most once a second.
//!
//! A picture holds per GPU what a tile and a table row need; a GPU's own page asks the fleet for the
//! rest. It is grouped by origin and cluster, so that what is recorded or simulated cannot slip into
//! a live total: there is no sum over origins anywhere.
//!
//! Nobody waits for a picture while the last one is younger than [`STANDS_FOR`]; each says when it was made.
//!
//! Limits: one picture of 10,000 GPUs is about 5 MB; at most three exist (the current one, the next one, and the one
//! that slow readers still hold).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::ledger::{Reason, State};
use gpufleet_telemetry::identity::{AgentId, Origin};
use gpufleet_telemetry::sample::Reading;
use gpufleet_telemetry::time::Timestamp;

use crate::App;
use crate::answers::Answers;
use crate::auth::Grant;
use crate::fleet::ServerClock;
use crate::store::model::ResourceKey;
use crate::threads::apart;

pub mod gather;

pub mod contact;

pub mod judge;

pub mod past;

pub mod forgotten;

pub mod changed;

#[cfg(test)]
pub(crate) mod fixture;

/// How old a picture may be before it is made anew: agents ship every 10 s, so a second shows
/// nothing stale, and fifty readers a second cost one walk of the fleet.
pub const FRESH_FOR: Duration = Duration::from_secs(1);

/// How old a picture may be that is given while the next one is made, which of 10,000 GPUs takes up to a tenth of a second
/// where data comes in: a third of a tick.
pub const STANDS_FOR: Duration = Duration::from_secs(3);

/// The whole fleet at one moment.
#[derive(Debug, Clone, Default)]
pub struct FleetView {
    /// When the picture was made.
    pub at: Timestamp,
    /// How the server's clock compares with those of its agents.
    pub server_clock: ServerClock,
    /// Live clusters first, then recorded, then simulated; by name within each.
    pub clusters: Vec<Arc<ClusterView>>,
}

/// The resources of one cluster that come from one origin.
#[derive(Debug, Clone, Default)]
pub struct ClusterView {
    /// The cluster's name.
    pub name: Arc<str>,
    /// Where its data comes from.
    pub origin: Origin,
    /// Its nodes by name.
    pub nodes: Vec<NodeView>,
    /// Places that are not heard any more and will not be, by name: those of which only processes told, as pods whose job
    /// is over, and machines of which the cluster says that they went. Each has its page until it is forgotten, and is in
    /// no list and in no count.
    pub ended: Vec<NodeView>,
    /// Its GPUs counted.
    pub counts: Counts,
}

/// GPUs counted by state. Shares of a GPU are not counted beside it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// All GPUs.
    pub all: usize,
    /// By state.
    pub by_state: BTreeMap<State, usize>,
    /// Of those that are unobserved: measured, and nobody can say who holds them.
    pub holder_unknown: usize,
}

/// One node.
#[derive(Debug, Clone, Default)]
pub struct NodeView {
    /// Its name.
    pub name: Arc<str>,
    /// The agent on it; none when its data comes as foreign OTLP.
    pub agent: Option<AgentId>,
    /// The newest point of the node or of any GPU on it.
    pub last_point: Timestamp,
    /// Since when nothing has come from it, there or gone; none while it reports, and of a node of which only processes
    /// tell that end with their job.
    pub silent_since: Option<Timestamp>,
    /// Readers that failed in their last round.
    pub failing_readers: Vec<Arc<str>>,
    /// The greatest age of what waits in the agent's spool, seconds.
    pub spool_age_seconds: Option<f64>,
    /// Its GPUs, by index.
    pub gpus: Vec<GpuView>,
}

/// One GPU, or a share of one.
#[derive(Debug, Clone)]
pub struct GpuView {
    /// Its name in the installation.
    pub key: ResourceKey,
    /// Its index on its node, where known.
    pub index: Option<u32>,
    /// The card's name as the driver spells it; empty when not told.
    pub model: Arc<str>,
    /// Where its data comes from.
    pub origin: Origin,
    /// The node it is on.
    pub node: Arc<str>,
    /// What it does now.
    pub state: State,
    /// Why it is in that state, as far as it is known.
    pub reason: Reason,
    /// Whether nothing came from it for a while: its readings are the last that were told.
    pub is_silent: bool,
    /// The first point ever.
    pub first_seen: Timestamp,
    /// Whether a recording holds just one sample of it, however often it is played.
    pub is_one_sample: bool,
    /// The newest point.
    pub last_point: Timestamp,
    /// Who holds it; none when nobody does or when it is not known.
    pub holder: Option<Arc<str>>,
    /// Whether it is known if someone holds it.
    pub holder_known: bool,
    /// Whether someone holds it, where that is known.
    pub held: bool,
    /// The reader that told its state.
    pub source: Arc<str>,
    /// The readings a tile and a table row need.
    pub readings: Shown,
    /// Its shares (MIG instances, time slices), by id.
    pub shares: Vec<GpuView>,
}

/// A reading, or none when no point of it was ever received.
pub type Told = Option<Reading>;

/// The readings that a table row shows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Shown {
    /// Utilisation, ratio.
    pub utilization: Told,
    /// Tensor cores active, ratio.
    pub tensor_active: Told,
    /// Memory used, bytes.
    pub memory_used: Told,
    /// Memory installed, bytes.
    pub memory_total: Told,
    /// Power, watts.
    pub power: Told,
    /// Temperature, °C.
    pub temperature: Told,
}

impl GpuView {
    /// Whether what it does is known: it is not silent, and its holder and activity are told.
    pub fn is_observed(&self) -> bool {
        !self.is_silent && self.state != State::Unobserved
    }

    /// What people call it: by its place, which they know.
    pub fn called(&self) -> String {
        match self.index {
            Some(index) => format!("GPU {index} of {}", self.node),
            None => format!("a GPU of {}", self.node),
        }
    }

    /// It, and its shares where it is divided.
    pub fn with_shares(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.shares)
    }

    /// Whether the driver says that it cannot be reached.
    pub fn is_lost(&self) -> bool {
        matches!(self.reason, Reason::DeviceLost | Reason::DriverHang)
    }
}

impl Counts {
    /// How many are in `state`.
    pub fn of(&self, state: State) -> usize {
        self.by_state.get(&state).copied().unwrap_or(0)
    }

    /// How many are in a state for which this holds.
    pub fn sum(&self, is_in: fn(State) -> bool) -> usize {
        let states = self.by_state.iter().filter(|it| is_in(*it.0));
        states.map(|it| it.1).sum()
    }

    /// Of those that are unobserved: not measured, or not so that it shows whether they work.
    pub fn unmeasured(&self) -> usize {
        self.of(State::Unobserved) - self.holder_unknown
    }

    /// One GPU more, in a state for this reason.
    pub fn add(&mut self, state: State, reason: Reason) {
        self.all += 1;
        *self.by_state.entry(state).or_default() += 1;
        let is_measured = state == State::Unobserved && reason == Reason::HolderUnknown;
        self.holder_unknown += usize::from(is_measured);
    }

    /// Those of another count more.
    pub fn join(&mut self, other: &Self) {
        self.all += other.all;
        self.holder_unknown += other.holder_unknown;
        for (state, count) in &other.by_state {
            *self.by_state.entry(*state).or_default() += count;
        }
    }

    /// GPUs that are measured now and answer: not unobserved, not lost.
    pub fn measured(&self) -> usize {
        self.all - self.of(State::Unobserved) - self.of(State::Unhealthy)
    }
}

impl ClusterView {
    /// Whether the cluster says that this node of it went, and nothing is heard of it.
    pub fn has_gone(&self, node: &NodeView) -> bool {
        // A place of which only processes told is never silent.
        let place = self.ended.binary_search_by(|it| it.name.cmp(&node.name));
        place.is_ok() && node.silent_since.is_some()
    }

    /// Its nodes with GPUs of which it says that they went.
    pub fn gone(&self) -> impl Iterator<Item = &NodeView> {
        // Processes tell of no GPU.
        self.ended.iter().filter(|it| !it.gpus.is_empty())
    }
}

impl FleetView {
    /// The GPUs of one origin counted. There is no count over all origins on purpose.
    pub fn counts(&self, origin: Origin) -> Counts {
        let mut counts = Counts::default();
        for cluster in self.of(origin) {
            counts.join(&cluster.counts);
        }
        counts
    }

    /// The clusters of one origin.
    pub fn of(&self, origin: Origin) -> impl Iterator<Item = &Arc<ClusterView>> {
        self.clusters.iter().filter(move |it| it.origin == origin)
    }

    /// A cluster by name; where it has several origins, all of them.
    pub fn cluster(&self, name: &str) -> impl Iterator<Item = &Arc<ClusterView>> {
        self.clusters.iter().filter(move |it| &*it.name == name)
    }

    /// A node by cluster and name, with the part of the cluster it is in.
    pub fn node(&self, cluster: &str, node: &str) -> Option<(&Arc<ClusterView>, &NodeView)> {
        self.cluster(cluster).find_map(|part| {
            let found = [&part.nodes, &part.ended].into_iter().find_map(|all| {
                let place = all.binary_search_by(|it| (*it.name).cmp(node)).ok()?;
                all.get(place)
            })?;
            Some((part, found))
        })
    }

    /// A GPU by its name, also one of a place that has ended.
    pub fn gpu(&self, key: &ResourceKey) -> Option<&GpuView> {
        let parts = self.cluster(&key.cluster);
        let nodes = parts.flat_map(|it| it.nodes.iter().chain(&it.ended));
        let mut gpus = nodes.flat_map(|it| &it.gpus);
        gpus.find(|it| it.key == *key)
    }

    /// Every GPU that is in a count, in the order of clusters and nodes.
    pub fn gpus(&self) -> impl Iterator<Item = &GpuView> {
        self.clusters
            .iter()
            .flat_map(|cluster| &cluster.nodes)
            .flat_map(|node| &node.gpus)
    }

    /// Only what a token bound to a cluster may see.
    #[must_use]
    pub fn seen_with(self: &Arc<Self>, grant: &Grant) -> Arc<Self> {
        match &grant.cluster {
            None => Arc::clone(self),
            Some(cluster) => Arc::new(Self {
                at: self.at,
                server_clock: self.server_clock,
                clusters: self.cluster(cluster).cloned().collect(),
            }),
        }
    }
}

/// Keeps the newest picture, by whether this server leads: one of before, when it knew nothing of the fleet, is none.
pub struct Views(Answers<bool, FleetView, Infallible>);

impl Default for Views {
    fn default() -> Self {
        Self(Answers::new(FRESH_FOR, 1, 1))
    }
}

impl Views {
    /// A picture no older than [`FRESH_FOR`], or than [`STANDS_FOR`] while the next one is made. Those who ask where
    /// there is none wait for one that is made for all of them.
    pub async fn get(&self, app: &App) -> Arc<FleetView> {
        let (views, walk) = (&self.0, walked(app.clone()));
        let made = views.get_standing(leads(app), &app.clock, STANDS_FOR, walk);
        let Ok(view) = made.await;
        view
    }

    /// A picture no older than [`FRESH_FOR`], for what is made where nobody waits for it.
    pub async fn fresh(&self, app: &App) -> Arc<FleetView> {
        let made = self.0.get(leads(app), &app.clock, walked(app.clone()));
        let Ok(view) = made.await;
        view
    }
}

fn leads(app: &App) -> bool {
    app.lead.waits().is_none()
}

/// The walk over the fleet, beside the threads that answer.
async fn walked(app: App) -> Result<FleetView, Infallible> {
    Ok(apart(move || gather::gather(&app)).await)
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::ResourceKind;

    use super::*;

    #[test]
    fn what_is_recorded_or_simulated_is_in_no_live_count() {
        let view = gather::of(fixture::fleet().iter(), fixture::NOW);
        let live = view.counts(Origin::Live);
        assert_eq!(live.all, 73);
        assert_eq!(
            live.of(State::Unobserved),
            11,
            "8 silent, 3 without a known holder"
        );
        assert_eq!(live.of(State::Unhealthy), 1);
        assert_eq!(live.measured(), 61);
        assert_eq!(view.counts(Origin::Simulated).all, 64);
        assert_eq!(view.counts(Origin::Recorded).all, 1);
        let order: Vec<_> = view.clusters.iter().map(|it| it.origin).collect();
        assert!(order.is_sorted(), "live first: {order:?}");
    }

    #[test]
    fn a_recording_that_has_ended_is_no_silent_agent() {
        let view = gather::of(fixture::fleet().iter(), fixture::NOW);
        let (_, node) = view
            .node("h200-recorded", "captured-node")
            .expect("it is there");
        assert_eq!(node.silent_since, None);
        assert!(node.gpus[0].is_one_sample);
        assert_eq!(node.gpus[0].state, State::ActiveUnrated);
    }

    #[test]
    fn a_node_is_silent_since_it_was_last_heard() {
        let view = gather::of(fixture::fleet().iter(), fixture::NOW);
        let (_, node) = view.node("prod", "h100-08").expect("it is there");
        assert_eq!(
            node.silent_since,
            Some(fixture::NOW.shifted(-754_000_000_000))
        );
        let (_, node) = view.node("prod", "h100-07").expect("it is there");
        assert_eq!(node.silent_since, None);
    }

    #[test]
    fn the_pod_of_a_rank_that_ended_is_no_silent_node_and_a_rank_that_goes_on_hides_none() {
        let mut fleet = fixture::fleet();
        const LONG_NS: i64 = 754_000_000_000;
        const SECOND_NS: i64 = 1_000_000_000;
        for (node, ago) in [
            ("train-0", LONG_NS),
            ("train-1", SECOND_NS),
            ("h100-08", SECOND_NS),
        ] {
            let kind = ResourceKind::Rank;
            let mut rank = fixture::live("prod", node, kind, "a/b/c/0/0", Origin::Live);
            rank.agent = None;
            rank.last_point = fixture::NOW.shifted(-ago);
            rank.received = rank.last_point;
            fleet.push(rank);
        }
        let view = gather::of(fleet.iter(), fixture::NOW);
        let silent = ["train-0", "h100-08"].map(|name| {
            let (_, node) = view.node("prod", name).expect("it is there");
            node.silent_since.is_some()
        });
        assert_eq!(silent, [false, true]);
        // Nor is it a node that reports: it has ended.
        let cluster = view.cluster("prod").find(|it| it.origin == Origin::Live);
        let nodes = &cluster.expect("it is there").nodes;
        let is_listed = |name: &str| nodes.iter().any(|it| *it.name == *name);
        assert!(!is_listed("train-0") && is_listed("train-1") && is_listed("h100-08"));
        assert!(nodes.is_sorted_by_key(|it| &it.name));
    }

    #[test]
    fn a_token_of_one_cluster_sees_only_that() {
        let view = Arc::new(gather::of(fixture::fleet().iter(), fixture::NOW));
        let grant = Grant {
            cluster: Some("demo".into()),
        };
        let seen = view.seen_with(&grant);
        assert_eq!(seen.counts(Origin::Live).all, 0);
        assert_eq!(seen.counts(Origin::Simulated).all, 64);
    }
}

//! What pages, API and detectors are given of the inventory: whether it is seen, who waits, what is free,
//! nodes that are not well, what changed.
//!
//! Limits: [`MAX_ROWS`] rows of each list; how many more there are is said.

use std::collections::BTreeMap;

use gpufleet_analysis::inventory::change::Change;
use gpufleet_analysis::inventory::place::{Free, Pool, pools};
use gpufleet_analysis::inventory::unheld::{self, WhyFree};
use gpufleet_analysis::inventory::{Claim, Phase, Record, Waiting, queue};
use gpufleet_program::kubernetes::Refusal;
use gpufleet_telemetry::time::Timestamp;

use super::known::{ClusterState, DeviceKind, HOUR_NS, Maker, Moment};
use super::kubernetes::RIGHTS;
use super::{Inventory, Source};
use crate::words::text;

/// Most rows of a list: those that wait longest, and the newest changes.
pub const MAX_ROWS: usize = 200;

/// Why nothing is known where nobody is asked.
const OFF: &str = "nobody is asked (inventory.source)";

/// What turns it on.
const TURN_ON: &str = "In the server's config set inventory.source = \"kubernetes\", and give its account the right to watch (ClusterRole gpufleet-server in deploy/base/accounts.yaml); or \"slurm\"; or name the nodes in inventory.nodes.";

/// What mends a token that nobody knows.
const UNKNOWN_TOKEN: &str = "The credentials are invalid: the token of inventory.kubernetes_token_file is over, of another cluster, or of an account that is gone. In a pod the kubelet writes it anew; elsewhere make one with `kubectl create token gpufleet-server -n gpufleet`. The file is read again by itself.";

/// Whether something is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sight {
    /// It is asked, and has not said all of it yet.
    Starting,
    /// It is seen as it is.
    Seen,
    /// It was seen, up to a moment.
    Stale {
        /// When it was heard last.
        since: Timestamp,
        /// What is wrong.
        why: String,
        /// How who asks was refused.
        refusal: Option<Refusal>,
    },
    /// It was never seen.
    Never {
        /// What is wrong.
        why: String,
        /// How who asks was refused.
        refusal: Option<Refusal>,
    },
    /// Nobody tells it here: why.
    Absent(&'static str),
}

/// A picture of the inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// The cluster.
    pub cluster: String,
    /// Who tells it: `kubernetes`, `slurm`, `static`, `off`.
    pub source: &'static str,
    /// Whether nodes are seen.
    pub nodes: Sight,
    /// Whether it is seen who holds GPUs and who waits.
    pub claims: Sight,
    /// What else is not seen although it is asked for: what waits before it has pods, the autoscaler.
    pub besides: Vec<Told>,
    /// Those that wait, the oldest first; none where it is not known.
    pub waiting: Option<Vec<Waiting>>,
    /// How many places of each would fit now by GPUs, type, taints and partitions; none of shares, and where what is free
    /// is not known.
    pub places: Vec<Option<u64>>,
    /// Rows beyond those, and pods that have no place in memory.
    pub more_waiting: usize,
    /// GPUs that all of them wait for, without what owners hold back; none where it is not known.
    pub gpus_waited_for: Option<u64>,
    /// GPUs of what owners hold back, which is no demand; none where it is not known.
    pub gpus_held_by_owners: Option<u64>,
    /// How many of all that wait, also beyond those rows, owners hold back.
    pub held_by_owners: usize,
    /// Nodes by type of GPU and zone; none where nodes are not known.
    pub pools: Option<Vec<Pool>>,
    /// Whether what is free is known.
    pub is_free_known: bool,
    /// Nodes that do not take work, or went in the last hour.
    pub unwell: Vec<Record>,
    /// Nodes beyond those.
    pub more_unwell: usize,
    /// Nodes that had no place in memory: in no count.
    pub nodes_left_out: usize,
    /// What changed in the last hour, the newest first.
    pub changes: Vec<Change>,
    /// Changes beyond those.
    pub more_changes: usize,
}

impl Sight {
    /// The word for programs.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Seen => "seen",
            Self::Stale { .. } => "stale",
            Self::Never { .. } => "never_seen",
            Self::Absent(_) => "nobody_tells",
        }
    }

    /// Whether something is known, of now or of before.
    pub const fn is_known(&self) -> bool {
        matches!(self, Self::Seen | Self::Stale { .. })
    }

    /// How who asks was refused.
    pub const fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Stale { refusal, .. } | Self::Never { refusal, .. } => *refusal,
            Self::Starting | Self::Seen | Self::Absent(_) => None,
        }
    }
}

/// What is the case with what is not seen, and what mends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// What is the case, in sentences.
    pub what: String,
    /// What mends it; may be empty.
    pub fix: String,
}

impl Sight {
    /// What is the case, for a person; none where it is seen. `what` is `nodes`, `claims` (who holds GPUs and
    /// who waits), or the subject of a sentence.
    pub fn told(&self, what: &str, now: Timestamp) -> Option<Told> {
        let subject = match what {
            "nodes" => "Which nodes the cluster has",
            "claims" => "Who waits for GPUs and what is free",
            other => other,
        };
        let log = "The server asks again by itself; its log has the error.";
        let fix = |refusal: &Option<Refusal>| match refusal {
            Some(Refusal::NoRight) => format!("Apply {RIGHTS}."),
            Some(Refusal::UnknownToken) => UNKNOWN_TOKEN.to_owned(),
            None => log.to_owned(),
        };
        let (what, fix) = match self {
            Self::Seen => return None,
            Self::Starting => (format!("{subject} is being read."), String::new()),
            Self::Absent(OFF) => (
                format!("{subject} is not known: {OFF}."),
                TURN_ON.to_owned(),
            ),
            Self::Absent(why) => (
                format!("{subject} is not known: {why}."),
                "Sources that tell it are inventory.source = \"kubernetes\" and \"slurm\"."
                    .to_owned(),
            ),
            Self::Never { why, refusal } => {
                (format!("{subject} was never seen: {why}."), fix(refusal))
            }
            Self::Stale {
                since,
                why,
                refusal,
            } => (
                format!(
                    "{subject} was last seen {}, at {} UTC: {why}. What stands here is of then.",
                    text::ago(now, *since),
                    text::moment(*since)
                ),
                fix(refusal),
            ),
        };
        Some(Told { what, fix })
    }
}

impl Source {
    /// The word for programs.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Kubernetes(_) => "kubernetes",
            Self::Slurm => "slurm",
            Self::Fixed => "static",
        }
    }
}

/// What is copied of what is known, to be judged while others go on.
pub(super) struct Sample {
    /// Whether all nodes are seen.
    pub(super) sees_nodes: bool,
    waiting: Vec<Claim>,
    /// Nodes with what is asked for on each; none where they, or who holds their GPUs, are not seen.
    nodes: Option<(Vec<Record>, BTreeMap<String, u32>)>,
}

/// A sample of this moment; none where it is not seen what waits.
pub(super) fn sample(inventory: &Inventory, known: &ClusterState, now: Moment) -> Option<Sample> {
    let is_seen = match inventory.source {
        Source::Off => false,
        Source::Kubernetes(_) => known.sees_who_waits(now),
        Source::Slurm | Source::Fixed => {
            known.waiting_left_out() == 0 && known.claims.sight(now) == Sight::Seen
        }
    };
    let sees_nodes = known.nodes.sight(now) == Sight::Seen && known.nodes_left_out() == 0;
    let held = known.held().filter(|_| sees_nodes);
    is_seen.then(|| Sample {
        sees_nodes,
        waiting: known.waiting(),
        nodes: held.map(|held| (known.records().cloned().collect(), held)),
    })
}

impl Sample {
    /// How many GPUs are waited for, without what owners hold back, and why others are free; none where nodes were not
    /// seen. Long where thousands wait.
    pub(super) fn judged(&self) -> (u64, Option<WhyFree>) {
        let whole = self.waiting.iter().filter(|it| !it.is_shares);
        let wanted = whole.filter(|it| it.reason.is_demand());
        let gpus = wanted.map(Claim::gpus).sum();
        let nodes = self.nodes.as_ref();
        let why = |(records, held): &(Vec<Record>, _)| {
            unheld::why_free(records.iter(), held, &self.waiting)
        };
        let why = nodes.map(why);
        (gpus, why)
    }
}

/// What is known now.
pub(super) fn look(inventory: &Inventory, known: &ClusterState, now: Moment) -> Look {
    let sight = |standing: &super::known::Standing| match &inventory.source {
        Source::Off => Sight::Absent(OFF),
        _ => standing.sight(now),
    };
    let (nodes, claims) = (sight(&known.nodes), sight(&known.claims));
    let mut waiting = claims.is_known().then(|| queue(known.waiting().iter()));
    let gpus = |is_demand: bool| -> Option<u64> {
        let all = waiting.as_ref()?.iter();
        let whole = all.filter(|it| !it.first.is_shares);
        let these = whole.filter(|it| it.first.reason.is_demand() == is_demand);
        Some(these.map(|it| it.gpus).sum())
    };
    let (gpus_waited_for, gpus_held_by_owners) = (gpus(true), gpus(false));
    let by_owner = |it: &&Waiting| !it.first.reason.is_demand();
    let held_by_owners = waiting.iter().flatten().filter(by_owner).count();
    let mut more_waiting = known.waiting_left_out();
    if let Some(rows) = &mut waiting {
        more_waiting += cut(rows);
    }
    let held = known.held().filter(|_| claims.is_known());
    let all = || known.records();
    let free = held.as_ref().filter(|_| nodes.is_known());
    let free = free.map(|held| Free::of(all(), held));
    let places = waiting.iter().flatten().map(|it| {
        let free = free.as_ref()?;
        free.places(&it.first)
    });
    let places = places.collect();
    let pools = nodes
        .is_known()
        .then(|| pools(all(), held.as_ref().unwrap_or(&BTreeMap::new())));
    let is_recent = |at: Timestamp| now.at.since(at) <= HOUR_NS;
    let is_unwell = |it: &&Record| match it.phase() {
        Phase::Ready => false,
        Phase::Gone => it.gone_at.is_some_and(is_recent),
        _ => true,
    };
    let mut unwell: Vec<Record> = match nodes.is_known() {
        true => all().filter(is_unwell).cloned().collect(),
        false => Vec::new(),
    };
    unwell.sort_by_key(|it| std::cmp::Reverse(it.phase_since));
    let recent = known.changes().filter(|it| is_recent(it.at));
    let mut changes: Vec<Change> = recent.cloned().collect();
    Look {
        cluster: inventory.cluster.to_string(),
        source: inventory.source.name(),
        besides: besides(inventory, known, now),
        places,
        is_free_known: held.is_some() && nodes.is_known(),
        waiting,
        more_waiting,
        gpus_waited_for,
        gpus_held_by_owners,
        held_by_owners,
        pools,
        more_unwell: cut(&mut unwell),
        unwell,
        nodes_left_out: known.nodes_left_out(),
        more_changes: cut(&mut changes),
        changes,
        nodes,
        claims,
    }
}

/// What else is not seen although it could be.
fn besides(inventory: &Inventory, known: &ClusterState, now: Moment) -> Vec<Told> {
    if !matches!(inventory.source, Source::Kubernetes(_)) {
        return Vec::new();
    }
    let makers = Maker::ALL.iter().zip(&known.held_back);
    let held_back = makers.map(|(maker, it)| {
        let what = format!("What waits for GPUs as {} before it has pods", maker.what());
        (what, &it.standing)
    });
    let scaler = (
        "What the autoscaler does".to_owned(),
        &known.scaler.standing,
    );
    let devices = DeviceKind::ALL.iter().zip(&known.claimed.standings);
    let devices = devices.map(|(kind, standing)| (kind.what().to_owned(), standing));
    let all = held_back.chain([scaler]).chain(devices);
    let unseen = all.filter_map(|(what, standing)| {
        let sight = standing.sight(now);
        let is_wrong = matches!(sight, Sight::Stale { .. } | Sight::Never { .. });
        sight.told(&what, now.at).filter(|_| is_wrong)
    });
    unseen.collect()
}

/// Keeps so many, and says how many there were beyond.
fn cut<T>(all: &mut Vec<T>) -> usize {
    let more = all.len().saturating_sub(MAX_ROWS);
    all.truncate(MAX_ROWS);
    more
}

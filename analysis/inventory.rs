//! What a cluster has beside what agents tell: nodes with GPUs from the moment they are there to the
//! moment they are gone, and who waits for GPUs.
//!
//! The words are the same whoever tells: the Kubernetes API, Slurm, or a list in the config. [`place`]
//! says what is free and the largest gang that fits, [`unheld`] why it is free, [`why`] puts a scheduler's words
//! plainly, [`change`] says what became different.
//!
//! Limits: [`MAX_WORDS_BYTES`] of a scheduler's words; how many nodes and claims there are is whose
//! source it is to bound.

use std::collections::BTreeMap;

use gpufleet_telemetry::time::Timestamp;
use serde::{Deserialize, Serialize};

pub mod change;
pub mod place;
pub mod unheld;
pub mod why;

/// As much of a scheduler's words as is kept: a line of each reason in a cluster with a dozen of them.
pub const MAX_WORDS_BYTES: usize = 1_024;

/// A node that came up is not called one without an agent for so long after it is ready, nanoseconds,
/// unless the config says otherwise: the image is pulled, the driver may come after the agent.
pub const AGENT_WITHIN_NS: i64 = 600 * 1_000_000_000;

/// Whether a node can run anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ready {
    /// It says so.
    Yes,
    /// It says that it cannot.
    No,
    /// Nobody says.
    #[default]
    Unknown,
}

/// A node that has GPUs, or is to have them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its name, the one that its agent tells.
    pub name: String,
    /// Tells it from an earlier node of the same name; empty where nobody does.
    pub uid: String,
    /// The type of its GPUs as the cluster names it; empty where it does not.
    pub model: String,
    /// The zone it is in; empty where not told.
    pub zone: String,
    /// The region; empty where not told.
    pub region: String,
    /// The machine type; empty where not told.
    pub machine: String,
    /// How it is paid for, `on_demand`, `spot`, `flex_start` or `reserved`; empty where not told.
    pub provisioning: String,
    /// Who provides it: `gcp`, `aws`, `azure`; empty where not told.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub provider: String,
    /// The account that it is paid by; empty where not told.
    pub account: String,
    /// The provider's name of it; empty where not told.
    pub instance: String,
    /// The node pool, or the partition; empty where not told.
    pub pool: String,
    /// What it shares fast links with: the block of the provider's topology; empty where not told.
    pub block: String,
    /// The part of the block that it is in, usually a rack; empty where not told.
    pub subblock: String,
    /// GPUs that it has; where it gives out whole ones and shares of others, the whole ones.
    pub gpus: u32,
    /// Of these, GPUs that can be given out.
    pub allocatable: u32,
    /// Whether these are shares of GPUs and not whole ones: it gives out no whole one.
    pub is_shared: bool,
    /// Whether it is ready.
    pub ready: Ready,
    /// Since when it is, or is not.
    pub ready_since: Option<Timestamp>,
    /// Why it is not; empty where it is or nobody says.
    pub trouble: String,
    /// Whether nothing new may be put on it.
    pub cordoned: bool,
    /// Whether its provider was seen to take it back, a Spot machine.
    pub is_taken_back: bool,
    /// For whom it is kept: taints that a claim must tolerate, other than those of GPUs themselves.
    pub kept_for: Vec<String>,
    /// Slurm's partitions that it is in, by name; empty where nobody tells any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<String>,
    /// The driver's version; empty where not told.
    pub driver: String,
    /// The system's image; empty where not told.
    pub image: String,
    /// When it was made; none where not told.
    pub created: Option<Timestamp>,
}

/// Where a node is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It is there and billed, and was not ready yet, or its GPUs cannot be given out yet.
    Starting,
    /// It takes work.
    Ready,
    /// It was ready and is not any more.
    NotReady,
    /// It is ready, and takes nothing new.
    Cordoned,
    /// It is gone.
    Gone,
}

/// A node from its first moment to its last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// What is known of it, or was last.
    pub node: Node,
    /// When it was first seen here.
    pub first_seen: Timestamp,
    /// When it was first ready with GPUs to give out; none before.
    pub ready_at: Option<Timestamp>,
    /// Since when it is in its phase.
    pub phase_since: Timestamp,
    /// When it was seen to be gone.
    pub gone_at: Option<Timestamp>,
    /// Of one that was missed when somebody looked again after a while: up to when it had been seen. It went
    /// then or at any moment until [`Self::gone_at`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwatched_from: Option<Timestamp>,
}

/// Why a claim waits, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The scheduler has looked and found no place.
    NoPlace,
    /// Something holds it back before the scheduler looks: a gate, a queue, an administrator.
    HeldBack,
    /// Its owner does: more GPUs would not let it begin.
    ByOwner,
    /// The scheduler has said nothing yet.
    NotTried,
}

/// One pod or job that waits for GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Its namespace, or account.
    pub namespace: String,
    /// What it belongs to: `jobset:namespace/name`, `slurm:4711`.
    pub workload: String,
    /// Its queue, or partition; empty where it has none.
    pub queue: String,
    /// The type of GPU that it insists on; empty where it does not.
    pub model: String,
    /// How many places of `gpus_each` it needs: 1 of a pod.
    pub places: u32,
    /// GPUs that it needs in each place.
    pub gpus_each: u32,
    /// How many places begin together or not at all; none: all of its workload.
    pub together: Option<u32>,
    /// Whether these are shares of GPUs.
    pub is_shares: bool,
    /// Since when it waits.
    pub since: Timestamp,
    /// Why, in one word.
    pub reason: Reason,
    /// Why, in the scheduler's words; may be empty.
    pub words: String,
    /// Taints that it tolerates.
    pub tolerates: Vec<Toleration>,
    /// Slurm's partitions of which it may go to one; empty where nobody tells any.
    pub partitions: Vec<String>,
    /// What the autoscaler said of it last; none where it said nothing.
    pub scaler: Option<Scaled>,
}

/// Taints that something tolerates. Empty is any.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Toleration {
    /// The taint's key.
    pub key: String,
    /// Its value; none: whatever it is.
    pub value: Option<String>,
    /// Its effect.
    pub effect: String,
}

/// What an autoscaler does for something that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scaling {
    /// It is adding nodes.
    Adds,
    /// It adds none, because none of those that it could add would help.
    Refuses,
    /// It tried to, and failed: the provider has none, or a quota is used up.
    Failed,
}

/// What an autoscaler said.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scaled {
    /// When.
    pub at: Timestamp,
    /// What it does.
    pub what: Scaling,
    /// In its words.
    pub words: String,
}

/// All that waits of one workload for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The oldest claim of it, with its words.
    pub first: Claim,
    /// Claims of it: pods.
    pub claims: usize,
    /// GPUs, or shares, of all of them.
    pub gpus: u64,
    /// What the autoscaler said last of any of them.
    pub scaler: Option<Scaled>,
}

impl Reason {
    /// The word for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoPlace => "no_place",
            Self::HeldBack => "held_back",
            Self::ByOwner => "held_by_owner",
            Self::NotTried => "not_tried",
        }
    }

    /// Whether what waits so is demand. What its owner holds back nobody wants now, and it may stand so for ever.
    pub const fn is_demand(self) -> bool {
        !matches!(self, Self::ByOwner)
    }
}

impl Scaling {
    /// The word for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adds => "adds_nodes",
            Self::Refuses => "adds_none",
            Self::Failed => "failed",
        }
    }

    /// What the scaler does, in a sentence.
    pub const fn plain(self) -> &'static str {
        match self {
            Self::Adds => "The autoscaler is adding nodes for it.",
            Self::Refuses => "The autoscaler adds no node for it.",
            Self::Failed => "The autoscaler tried to add a node for it and failed.",
        }
    }
}

impl Claim {
    /// GPUs, or shares, of all its places.
    pub fn gpus(&self) -> u64 {
        self.gpus_in(self.places)
    }

    /// Those of so many of its places.
    fn gpus_in(&self, places: u32) -> u64 {
        u64::from(places) * u64::from(self.gpus_each)
    }
}

/// Whether what may go to these partitions may go on a node that is in those; what is not told is in no way.
fn shares_one(of_claim: &[String], of_node: &[String]) -> bool {
    let may_enter = |it: &String| of_node.contains(it);
    of_claim.is_empty() || of_node.is_empty() || of_claim.iter().any(may_enter)
}

impl Toleration {
    /// Whether it covers a taint, written `key=value:Effect` as [`Node::kept_for`] has it.
    pub fn covers(&self, taint: &str) -> bool {
        let (key, rest) = taint.split_once('=').unwrap_or((taint, ""));
        let (value, effect) = rest.rsplit_once(':').unwrap_or((rest, ""));
        (self.key.is_empty() || self.key == key)
            && self.value.as_ref().is_none_or(|it| it == value)
            && (self.effect.is_empty() || self.effect == effect)
    }
}

/// Whether these tolerations cover all of these taints.
fn tolerated(taints: &[String], by: &[Toleration]) -> bool {
    let is_covered = |taint: &String| by.iter().any(|it| it.covers(taint));
    taints.iter().all(is_covered)
}

impl Phase {
    /// The word for programs and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::NotReady => "not_ready",
            Self::Cordoned => "cordoned",
            Self::Gone => "gone",
        }
    }

    /// The one with this word; none of one that a newer version knows.
    pub fn named(word: &str) -> Option<Self> {
        let all = [
            Self::Starting,
            Self::Ready,
            Self::NotReady,
            Self::Cordoned,
            Self::Gone,
        ];
        all.into_iter().find(|it| it.name() == word)
    }
}

impl Node {
    /// Whether it is ready and has GPUs to give out.
    pub fn is_ready(&self) -> bool {
        self.ready == Ready::Yes && self.allocatable > 0
    }
}

impl Record {
    /// Whether it was there and is gone.
    pub const fn is_gone(&self) -> bool {
        self.gone_at.is_some()
    }

    /// One that is seen for the first time.
    pub fn new(node: Node, now: Timestamp) -> Self {
        let is_ready = node.is_ready();
        let since = node.ready_since.unwrap_or(now).min(now);
        Self {
            first_seen: now,
            ready_at: is_ready.then_some(since),
            phase_since: match is_ready {
                true => since,
                false => node.created.unwrap_or(now).min(now),
            },
            gone_at: None,
            unwatched_from: None,
            node,
        }
    }

    /// Where it is in its life.
    pub fn phase(&self) -> Phase {
        if self.gone_at.is_some() {
            return Phase::Gone;
        }
        match (self.node.is_ready(), self.node.cordoned) {
            (true, false) => Phase::Ready,
            (true, true) => Phase::Cordoned,
            (false, _) if self.ready_at.is_some() => Phase::NotReady,
            (false, _) => Phase::Starting,
        }
    }

    /// Where it is in its life as the time of its GPUs is told by it: one that is ready and has nothing to give out
    /// now, because its device plugin begins anew, is not unhealthy for that.
    pub fn told_phase(&self) -> Phase {
        match self.phase() {
            Phase::NotReady if self.node.ready == Ready::Yes => match self.node.cordoned {
                true => Phase::Cordoned,
                false => Phase::Ready,
            },
            phase => phase,
        }
    }

    /// From when it is billed: from when it was made, else from when it was first seen.
    pub fn billed_from(&self) -> Timestamp {
        let made = self.node.created.unwrap_or(self.first_seen);
        made.min(self.first_seen)
    }

    /// Takes in what is known now; says whether anything is different. One that was made anew under its
    /// name begins anew, and so does one that was gone and is there again where nobody tells the two apart.
    pub fn take(&mut self, node: Node, now: Timestamp) -> bool {
        if self.node == node && self.gone_at.is_none() {
            return false;
        }
        let is_other = self.node.uid != node.uid && !self.node.uid.is_empty();
        let is_back = self.gone_at.is_some() && node.uid.is_empty();
        if is_other || is_back {
            *self = Self::new(node, now);
            return true;
        }
        let before = (self.phase(), self.told_phase());
        let was_up = self.node.ready == Ready::Yes;
        (self.gone_at, self.unwatched_from) = (None, None);
        self.node = node;
        if self.node.is_ready() && self.ready_at.is_none() {
            // Of one that was up before, what came now are its GPUs.
            let since = self.node.ready_since.filter(|_| !was_up).unwrap_or(now);
            self.ready_at = Some(since.min(now));
        }
        if (self.phase(), self.told_phase()) != before {
            self.phase_since = now;
        }
        true
    }

    /// It is gone.
    pub fn ends(&mut self, now: Timestamp) {
        if self.gone_at.is_none() {
            (self.gone_at, self.phase_since) = (Some(now), now);
        }
    }
}

/// All that waits, by workload, those that have waited longest first.
pub fn queue<'a>(claims: impl Iterator<Item = &'a Claim>) -> Vec<Waiting> {
    let mut all: BTreeMap<(&str, &str, Reason, bool), Waiting> = BTreeMap::new();
    for claim in claims {
        let key = (
            &*claim.namespace,
            &*claim.workload,
            claim.reason,
            claim.is_shares,
        );
        let gpus = claim.gpus();
        match all.get_mut(&key) {
            None => {
                let first = Waiting {
                    first: claim.clone(),
                    claims: 1,
                    gpus,
                    scaler: claim.scaler.clone(),
                };
                all.insert(key, first);
            }
            Some(known) => {
                known.claims += 1;
                known.gpus += gpus;
                known.scaler = known.scaler.take().max(claim.scaler.clone());
                // The oldest says it, and of those of one age the same whatever the order.
                let age = |it: &Claim| (it.since, it.words.is_empty(), it.words.clone());
                if age(claim) < age(&known.first) {
                    known.first = claim.clone();
                }
            }
        }
    }
    let mut all: Vec<Waiting> = all.into_values().collect();
    all.sort_by(|one, other| {
        let order = |it: &Waiting| (it.first.since, std::cmp::Reverse(it.gpus));
        order(one)
            .cmp(&order(other))
            .then_with(|| one.first.workload.cmp(&other.first.workload))
    });
    all
}

/// Nodes that take work, or did until they were cordoned, and of which no agent tells: ready for `within`
/// nanoseconds, and watched for as long, so that neither a node that just came up nor a server that just
/// started calls one so.
pub fn without_agent<'a>(
    records: impl Iterator<Item = &'a Record>,
    is_heard: impl Fn(&str) -> bool,
    (watched_from, now): (Timestamp, Timestamp),
    within: i64,
) -> Vec<&'a Record> {
    let is_blind = |it: &&Record| {
        let takes_work = matches!(it.phase(), Phase::Ready | Phase::Cordoned);
        let ready = it.node.ready_since.max(it.ready_at);
        let ready = ready.unwrap_or(it.first_seen).max(watched_from);
        takes_work && now.since(ready) >= within && !is_heard(&it.node.name)
    };
    records.filter(is_blind).collect()
}

/// As much of a scheduler's words as is kept.
pub fn cut(words: &str) -> String {
    words[..words.floor_char_boundary(MAX_WORDS_BYTES)].to_owned()
}

#[cfg(test)]
mod tests;

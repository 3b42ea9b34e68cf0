//! What is known of nodes and of who waits, in memory, and what of it still has to be written.
//!
//! Limits: [`MAX_NODES`], [`MAX_BOUND`], [`MAX_WAITING`], [`MAX_CHANGES`]; what has no place is counted and
//! told, and what would be wrong without it is then not told at all.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::inventory::change::{Change, changes};
use gpufleet_analysis::inventory::{self, Claim, Node, Phase, Record};
use gpufleet_program::kubernetes::Refusal;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::CHANGES_FOR_NS;
use super::look::Sight;

mod besides;

mod claimed;

mod without;

pub use besides::{HeldBack, Maker, ScalerSaid};
pub use claimed::{
    Asking, Asks, ByClaim, Claimed, Count, Device, DeviceClaim, DeviceKind, Gives, Slice,
};

/// Most nodes with GPUs: 100,000 GPUs, eight a node, with room for nodes of four.
pub const MAX_NODES: usize = 25_000;

/// Most pods that hold GPUs: as many as there may be GPUs in a large fleet, twice.
pub const MAX_BOUND: usize = 200_000;

/// Most pods that wait: some 20 MB with the scheduler's words.
pub const MAX_WAITING: usize = 20_000;

/// Most changes that are kept: a roll-out over 5,000 nodes has some of each.
pub const MAX_CHANGES: usize = 2_000;

/// How often it is written up to when nodes were seen, nanoseconds.
const SEEN_EVERY_NS: i64 = 60 * NANOS_PER_SECOND;

/// Nodes that are missed after they were not seen for longer went at a moment that nobody knows. What stands
/// in the store is behind by [`SEEN_EVERY_NS`], and a watch that is quiet is still one for [`TOLD_FOR`].
pub const UNWATCHED_NS: i64 = 300 * NANOS_PER_SECOND;

/// A source that said nothing for so long is not believed any more. A watch ends or fails within it.
pub const TOLD_FOR: Duration = gpufleet_program::kubernetes::follow::TOLD_FOR;

/// What an autoscaler said counts for so long: the API server keeps events for an hour.
const SAID_FOR_NS: i64 = 3_600 * NANOS_PER_SECOND;

/// A moment as both clocks have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Of the wall, for people.
    pub at: Timestamp,
    /// Of the clock that nobody sets back, for ages.
    pub monotonic: Duration,
}

/// How one who tells is doing.
#[derive(Debug, Clone, Default)]
pub struct Standing {
    /// When all of it was told first.
    pub whole_since: Option<Timestamp>,
    heard: Option<Moment>,
    trouble: Option<String>,
    /// How who asks was refused.
    refusal: Option<Refusal>,
    /// Whether nobody tells this at all, and why.
    absent: Option<&'static str>,
}

/// Something that has GPUs and is bound to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// The node.
    pub node: Arc<str>,
    /// Whole GPUs that it asks for.
    pub gpus: u32,
}

/// What a pod is to us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pod {
    /// It has its place.
    Bound(Bound),
    /// It waits.
    Waits(Box<Claim>),
    /// It waits, and asks for what these resource claims ask for as well.
    WaitsByClaims(Box<Claim>, Vec<ByClaim>),
    /// It is over, or asks for no GPU.
    Neither,
}

/// All pods of a list.
#[derive(Debug, Clone, Default)]
pub struct Pods {
    bound: HashMap<String, Bound>,
    waiting: BTreeMap<String, Claim>,
    /// Resource claims of those that wait.
    by_claims: BTreeMap<String, Vec<ByClaim>>,
    held: BTreeMap<String, u32>,
    /// Pods that hold GPUs and have no place here, and those that wait.
    left_out: (BTreeSet<String>, BTreeSet<String>),
}

/// Everything that is known.
#[derive(Debug, Default)]
pub struct ClusterState {
    /// Who tells of nodes.
    pub nodes: Standing,
    /// Who tells of who holds GPUs and who waits.
    pub claims: Standing,
    /// What waits before it has pods, by [`Maker`].
    pub held_back: [HeldBack; 3],
    /// What the autoscaler said.
    pub scaler: ScalerSaid,
    /// GPUs that are given out by resource claims.
    pub claimed: Claimed,
    records: BTreeMap<String, Record>,
    /// Those that are there without the GPUs that they had.
    without_gpus: BTreeSet<String>,
    /// Nodes that have no place here.
    left_out: BTreeSet<String>,
    pods: Pods,
    changes: VecDeque<Change>,
    unwritten: BTreeSet<String>,
    unwritten_changes: VecDeque<Change>,
    /// Up to when it is written that nodes were seen.
    seen_written: Option<Timestamp>,
    /// Nodes that were seen to be taken back, and when, which nobody was told yet: once in a life of each.
    taken_back: Vec<(String, Timestamp)>,
}

impl Standing {
    /// Whether it has told all of it, or that it never will: what fails for a moment says neither.
    pub fn is_decided(&self) -> bool {
        self.whole_since.is_some() || self.refusal.is_some() || self.absent.is_some()
    }

    /// It said something that fits.
    pub fn heard(&mut self, now: Moment) {
        self.heard = Some(now);
        self.trouble = None;
        self.absent = None;
        self.refusal = None;
    }

    /// It has told all of it.
    pub fn whole(&mut self, now: Moment) {
        self.heard(now);
        self.whole_since.get_or_insert(now.at);
    }

    /// It failed; says whether that is news.
    pub fn failed(&mut self, why: String, refusal: Option<Refusal>) -> bool {
        let is_news = self.trouble.is_none();
        self.trouble = Some(why);
        self.refusal = refusal;
        is_news
    }

    /// Nobody tells this.
    pub fn is_absent(&mut self, why: &'static str) {
        self.absent = Some(why);
    }

    /// Whether it can be believed.
    pub fn sight(&self, now: Moment) -> Sight {
        if let Some(why) = self.absent {
            return Sight::Absent(why);
        }
        let Some(heard) = self.heard.filter(|_| self.whole_since.is_some()) else {
            return match &self.trouble {
                None => Sight::Starting,
                Some(why) => Sight::Never {
                    why: why.clone(),
                    refusal: self.refusal,
                },
            };
        };
        let is_old = now.monotonic.saturating_sub(heard.monotonic) > TOLD_FOR;
        match (&self.trouble, is_old) {
            (None, false) => Sight::Seen,
            (trouble, _) => Sight::Stale {
                since: heard.at,
                why: trouble
                    .clone()
                    .unwrap_or_else(|| "nothing was heard since".to_owned()),
                refusal: self.refusal,
            },
        }
    }
}

impl Pods {
    /// A pod as it is now.
    pub fn put(&mut self, uid: &str, pod: Pod) {
        self.remove(uid);
        match pod {
            Pod::Neither => {}
            Pod::Bound(_) if self.bound.len() >= MAX_BOUND => {
                self.left_out.0.insert(uid.to_owned());
            }
            Pod::Waits(_) | Pod::WaitsByClaims(..) if self.waiting.len() >= MAX_WAITING => {
                self.left_out.1.insert(uid.to_owned());
            }
            Pod::Bound(bound) => {
                let held = self.held.entry(bound.node.to_string()).or_default();
                *held = held.saturating_add(bound.gpus);
                self.bound.insert(uid.to_owned(), bound);
            }
            Pod::Waits(claim) => {
                self.waiting.insert(uid.to_owned(), *claim);
            }
            Pod::WaitsByClaims(claim, names) => {
                self.waiting.insert(uid.to_owned(), *claim);
                self.by_claims.insert(uid.to_owned(), names);
            }
        }
        // So many more that their names alone would be dear: the count then says "at least".
        for left_out in [&mut self.left_out.0, &mut self.left_out.1] {
            if left_out.len() > MAX_BOUND {
                left_out.pop_last();
            }
        }
    }

    /// It is not known how many GPUs this one holds: so it is not what is free.
    pub fn is_not_told(&mut self, uid: &str) {
        self.remove(uid);
        self.left_out.0.insert(uid.to_owned());
    }

    /// A pod is gone.
    pub fn remove(&mut self, uid: &str) {
        self.waiting.remove(uid);
        self.by_claims.remove(uid);
        self.left_out.0.remove(uid);
        self.left_out.1.remove(uid);
        let Some(bound) = self.bound.remove(uid) else {
            return;
        };
        if let Some(held) = self.held.get_mut(&*bound.node) {
            *held = held.saturating_sub(bound.gpus);
            if *held == 0 {
                self.held.remove(&*bound.node);
            }
        }
    }
}

impl ClusterState {
    /// Takes in what the store knows: nodes, what happened to them, and up to when they were seen.
    pub fn restore(&mut self, records: Vec<Record>, changes: Vec<Change>, seen: Option<Timestamp>) {
        self.seen_written = seen;
        let records = records.into_iter().take(MAX_NODES);
        self.records = records.map(|it| (it.node.name.clone(), it)).collect();
        self.changes = changes.into_iter().take(MAX_CHANGES).collect();
    }

    /// How many nodes there are.
    pub fn count(&self) -> usize {
        let records = self.records.values();
        records.filter(|it| !it.is_gone()).count()
    }

    /// All nodes as they are now: those that are not among them are gone.
    pub fn all_nodes(&mut self, nodes: Vec<Node>, now: Moment) {
        let there: BTreeSet<String> = nodes.iter().map(|it| it.name.clone()).collect();
        self.left_out.retain(|it| there.contains(it));
        let gone = self.records.iter();
        let gone = gone.filter(|(name, it)| !it.is_gone() && !there.contains(*name));
        let gone: Vec<String> = gone.map(|(name, _)| name.clone()).collect();
        let seen = self.nodes.heard.map(|it| it.at).max(self.seen_written);
        let unwatched = seen.filter(|it| now.at.since(*it) > UNWATCHED_NS);
        for name in gone {
            self.node_gone(&name, now.at);
            if let (Some(record), Some(seen)) = (self.records.get_mut(&name), unwatched) {
                record.unwatched_from = Some(seen.max(record.first_seen));
            }
        }
        let is_first = self.records.is_empty();
        for node in nodes {
            self.node(node, now.at);
        }
        if is_first {
            // That they are there is no news on the first day.
            self.changes.clear();
            self.unwritten_changes.clear();
        }
        self.nodes.whole(now);
    }

    /// A node as it is now.
    pub fn node(&mut self, node: Node, now: Timestamp) {
        let node = self.claimed.over(node);
        self.take(node, now);
    }

    fn take(&mut self, mut node: Node, now: Timestamp) {
        let name = node.name.clone();
        self.without_gpus.remove(&name);
        let room = self.records.len() < MAX_NODES;
        let Some(record) = self.records.get_mut(&name) else {
            if !room {
                self.left_out.insert(name);
                return;
            }
            let record = Record::new(node, now);
            self.note(changes(None, &record, now));
            self.unwritten.insert(name.clone());
            self.records.insert(name, record);
            return;
        };
        let (before, phase) = (record.node.clone(), record.phase());
        let is_same = phase != Phase::Gone && before.uid == node.uid;
        // Of one that came so nobody saw it: its pool may be made so.
        if is_same && node.is_taken_back && !before.is_taken_back {
            self.taken_back.push((name.clone(), now));
        }
        node.is_taken_back |= is_same && before.is_taken_back;
        if record.take(node, now) {
            let found = changes(Some((&before, phase)), record, now);
            self.note(found);
            self.unwritten.insert(name);
        }
    }

    /// Takes the nodes that were seen to be taken back since this was asked, and when.
    pub fn news_of_taken_back(&mut self) -> Vec<(String, Timestamp)> {
        std::mem::take(&mut self.taken_back)
    }

    /// A node is gone.
    pub fn node_gone(&mut self, name: &str, now: Timestamp) {
        self.without_gpus.remove(name);
        let found = self.ends(name, now);
        self.note(found);
    }

    /// What is different when a node's record is over.
    fn ends(&mut self, name: &str, now: Timestamp) -> Vec<Change> {
        self.left_out.remove(name);
        let Some(record) = self.records.get_mut(name) else {
            return Vec::new();
        };
        let (before, phase) = (record.node.clone(), record.phase());
        if phase == Phase::Gone {
            return Vec::new();
        }
        record.ends(now);
        self.unwritten.insert(name.to_owned());
        changes(Some((&before, phase)), record, now)
    }

    /// All pods as they are now.
    pub fn all_pods(&mut self, pods: Pods, now: Moment) {
        self.pods = pods;
        self.claims.whole(now);
    }

    /// A pod as it is now.
    pub fn pod(&mut self, uid: &str, pod: Pod) {
        self.pods.put(uid, pod);
    }

    /// A pod is gone.
    pub fn pod_gone(&mut self, uid: &str) {
        self.pods.remove(uid);
    }

    /// Every node, also those that went lately.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// How many nodes have no place here.
    pub fn nodes_left_out(&self) -> usize {
        self.left_out.len()
    }

    /// How many that wait have no place here.
    pub fn waiting_left_out(&self) -> usize {
        let held_back = self.held_back.iter().map(|it| it.left_out.len());
        self.pods.left_out.1.len() + held_back.sum::<usize>()
    }

    /// What waits before it has pods, of a kind.
    pub fn held_back(&mut self, maker: Maker) -> &mut HeldBack {
        &mut self.held_back[maker as usize]
    }

    /// Whole GPUs that are asked for on each node; none where not all that ask are known.
    pub fn held(&self) -> Option<BTreeMap<String, u32>> {
        let is_whole = self.pods.left_out.0.is_empty();
        is_whole.then(|| self.claimed.held(&self.pods.held))?
    }

    /// What changed, the newest first.
    pub fn changes(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter()
    }

    /// A node of this name, also one that went lately.
    pub fn record(&self, node: &str) -> Option<&Record> {
        self.records.get(node)
    }

    /// Nodes with GPUs of which no agent tells.
    pub fn without_agent(
        &self,
        is_heard: impl Fn(&str) -> bool,
        within: i64,
        now: Timestamp,
    ) -> Vec<Record> {
        let Some(from) = self.nodes.whole_since else {
            return Vec::new();
        };
        let all = self.records.values();
        let found = inventory::without_agent(all, is_heard, (from, now), within);
        found.into_iter().cloned().collect()
    }

    /// Takes what is to be written.
    pub fn unwritten(&mut self) -> (Vec<Record>, Vec<Change>) {
        let names = std::mem::take(&mut self.unwritten);
        let records = names.iter().filter_map(|it| self.records.get(it)).cloned();
        let records = records.collect();
        (records, std::mem::take(&mut self.unwritten_changes).into())
    }

    /// Up to when nodes were seen, where that is to be written: seldom, because it is a write of its own, and
    /// with what changed, which nobody takes for seen without it.
    pub fn seen_unwritten(&mut self, now: Moment, is_changed: bool) -> Option<Timestamp> {
        if self.nodes.sight(now) != Sight::Seen {
            return None;
        }
        let heard = self.nodes.heard?.at;
        let is_due = |written: Timestamp| is_changed || heard.since(written) >= SEEN_EVERY_NS;
        if !self.seen_written.is_none_or(is_due) {
            return None;
        }
        self.seen_written = Some(heard);
        Some(heard)
    }

    /// It was not written: what changed since is newer.
    pub fn not_written(&mut self, records: &[Record], changes: Vec<Change>) {
        let names = records.iter().map(|it| it.node.name.clone());
        self.unwritten.extend(names);
        for change in changes.into_iter().rev() {
            self.unwritten_changes.push_front(change);
        }
        self.unwritten_changes.truncate(MAX_CHANGES);
    }

    /// Forgets what is long gone: nodes that went longer ago than these nanoseconds ([`super::gone_for_ns`]).
    pub fn forget(&mut self, now: Timestamp, gone_for: i64) {
        let unwritten = &self.unwritten;
        self.records.retain(|name, it| {
            let is_old = it.gone_at.is_some_and(|at| now.since(at) > gone_for);
            !is_old || unwritten.contains(name)
        });
        self.claimed.forget(|name| self.records.contains_key(name));
        self.without_gpus.retain(|it| self.records.contains_key(it));
        self.changes.retain(|it| now.since(it.at) <= CHANGES_FOR_NS);
        let said = &mut self.scaler.of_pod;
        said.retain(|_, it| now.since(it.at) <= SAID_FOR_NS);
    }

    fn note(&mut self, found: Vec<Change>) {
        for change in found {
            self.changes.push_front(change.clone());
            self.unwritten_changes.push_back(change);
        }
        self.changes.truncate(MAX_CHANGES);
        // The oldest go: nobody has read them from the store yet.
        let many = self.unwritten_changes.len().saturating_sub(MAX_CHANGES);
        self.unwritten_changes.drain(..many);
    }
}

/// So long ago that it is not in the log of the last hour.
pub const HOUR_NS: i64 = 3_600 * NANOS_PER_SECOND;

#[cfg(test)]
#[path = "known_tests.rs"]
mod tests;

//! Of which places anything is known at a tick: what is not heard of is not over.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gpufleet_analysis::incident::{Family, Nodes, Place};
use gpufleet_telemetry::time::Timestamp;

use super::detector::{Findings, TickSnapshot};
use super::gather::GpuSnapshot;
use super::gpus;
use crate::notify::own;
use crate::runs::{RunKey, State};

/// Families that a GPU's readings show.
const READ: [Family; 6] = [
    Family::GpuFault,
    Family::Memory,
    Family::Heat,
    Family::Power,
    Family::Link,
    Family::Leak,
];

/// What is known at a tick.
pub(super) struct Heard<'a> {
    tick: &'a TickSnapshot<'a>,
    /// How many GPUs the nodes have that are judged.
    pub(super) nodes: Nodes,
    /// How many runs of each cluster go on.
    pub(super) runs: BTreeMap<String, usize>,
    silent: BTreeSet<(String, String)>,
    unreadable: Unreadable<'a>,
}

/// Where readings are gone that would show trouble: how many GPUs of each node, and each of them.
#[derive(Default)]
struct Unreadable<'a> {
    gpus: HashMap<(&'a str, &'a str), &'a GpuSnapshot>,
    of_node: HashMap<(&'a str, &'a str), Vec<&'a GpuSnapshot>>,
}

impl<'a> Heard<'a> {
    /// What is known at this tick.
    pub(super) fn of(tick: &'a TickSnapshot<'a>) -> Self {
        let (mut nodes, mut silent) = (BTreeMap::new(), BTreeSet::new());
        for ((cluster, name), node) in tick.nodes {
            let key = (cluster.to_string(), name.to_string());
            if node.is_silent(tick.now) {
                silent.insert(key.clone());
            }
            nodes.insert(key, node.gpus as usize);
        }
        Self {
            tick,
            nodes,
            runs: watched(tick),
            silent,
            unreadable: Unreadable::of(tick.seen),
        }
    }

    /// Whether trouble of this family at a place would be found, were it still there.
    pub(super) fn is_heard(&self, family: Family, place: &Place, found: &Findings) -> bool {
        let is_heard = match &place.run {
            Some(run) if family.is_of_run() => {
                let key = (family, place.cluster.clone(), run.clone());
                let is_unjudged = found.unjudged.contains(&key)
                    || family == Family::Straggler && self.is_of_unjudged_model(place, run, found);
                !is_unjudged && !self.is_awaited(family, place)
            }
            // Of money all is told, or it says itself of what not.
            _ if own::is_own(place) || family == Family::Budget => true,
            // What is gone says nothing any more, and nothing is wrong with it.
            _ if self.is_gone(place) => true,
            // An agent that calls the cluster, or its node, otherwise has come.
            _ if family == Family::Blind && self.calls_otherwise(place) => true,
            // Nobody will ever say that it is over.
            _ if self.is_forgotten(family, place) => true,
            _ => {
                let is_readable = self.unreadable.is_readable(family, place);
                self.hears(place) && is_readable && !self.is_awaited(family, place)
            }
        };
        // What is not known of a run on a node says nothing of the node's own trouble.
        let is_one_run = |it: &Place| !family.is_of_run() || it.run == place.run;
        let is_it =
            |it: &(Family, Place)| it.0 == family && is_one_run(&it.1) && it.1.overlaps(place);
        is_heard && !found.unknown.contains(&family) && !found.unread.iter().any(is_it)
    }

    /// Whether nothing can be said of it so soon after the start, and what it is about is there.
    fn is_awaited(&self, family: Family, place: &Place) -> bool {
        self.tick.before.awaits(family, place, self.tick.now) && self.is_there(place)
    }

    /// Whether the run of a place goes on, or the job holds a GPU; of what is about none there is nothing to go.
    fn is_there(&self, place: &Place) -> bool {
        let Some(run) = &place.run else {
            return true;
        };
        let holds = |it: &GpuSnapshot| {
            *it.cluster == *place.cluster && it.alike.job.as_deref() == Some(run.as_str())
        };
        let goes_on = |it: &RunKey| {
            let is_it = *it.cluster == *place.cluster && it.run.to_string() == *run;
            is_it && is_on(self.tick, it)
        };
        self.tick.seen.iter().any(holds) || self.tick.runs().keys().iter().any(goes_on)
    }

    /// Of a GPU that is not known any more how many others of its node were seen first after this moment; none of one
    /// that is known, or whose node is gone or forgotten.
    pub(super) fn in_its_place(&self, place: &Place, since: Timestamp) -> Option<usize> {
        let (node, gpu) = (place.node.as_deref()?, place.gpu.as_deref()?);
        let is_known = self.tick.gpus.contains_key(&(place.cluster.as_str(), gpu));
        if is_known || self.is_gone(place) || self.is_forgotten(Family::GpuFault, place) {
            return None;
        }
        // Until its first point comes one is not seen.
        let is_later = |at: Timestamp| at > since && at < Timestamp(i64::MAX);
        let all = self.tick.seen.iter();
        let of_node = all.filter(|it| *it.node == *node && *it.cluster == *place.cluster);
        Some(of_node.filter(|it| is_later(it.first_seen)).count())
    }

    /// Whether a GPU's clock is not judged beside those of the same model in its job.
    fn is_of_unjudged_model(&self, place: &Place, job: &str, found: &Findings) -> bool {
        let of_job = (place.cluster.clone(), job.to_owned());
        let Some(models) = found.unjudged_models.get(&of_job) else {
            return false;
        };
        let gpu = place.gpu.as_deref();
        let seen = gpu.and_then(|gpu| self.tick.gpus.get(&(place.cluster.as_str(), gpu)));
        // What a GPU is that is not seen any more is not known.
        seen.is_none_or(|it| models.contains(&*it.alike.model))
    }

    fn is_gone(&self, place: &Place) -> bool {
        let node = place.node.as_deref();
        node.is_some_and(|it| (self.tick.is_gone)(&place.cluster, it))
    }

    /// Whether nothing tells of a place any more: its node was silent until it was forgotten, or each of its cluster, and
    /// who tells the cluster's nodes has it no more or never had.
    pub(super) fn is_forgotten(&self, family: Family, place: &Place) -> bool {
        let is_of_run = family.is_of_run() && place.run.is_some();
        if is_of_run || own::is_own(place) || family == Family::Budget || self.is_gone(place) {
            return false;
        }
        let node = place.node.as_deref();
        let mut known = self.nodes.keys();
        let is_known = match node {
            Some(node) => {
                let key = (place.cluster.clone(), node.to_owned());
                self.nodes.contains_key(&key)
            }
            None => known.any(|it| it.0 == place.cluster),
        };
        !is_known && !(self.tick.is_listed)(&place.cluster, node)
    }

    /// Whether an agent tells of this node, but not by the name and cluster of this place.
    fn calls_otherwise(&self, place: &Place) -> bool {
        let Some(node) = place.node.as_deref().filter(|_| place.gpu.is_none()) else {
            return false;
        };
        let key = (place.cluster.clone(), node.to_owned());
        !self.nodes.contains_key(&key) && (self.tick.is_told)(node)
    }

    /// Whether a node is heard from, or of a cluster any node.
    fn hears(&self, place: &Place) -> bool {
        let Some(node) = &place.node else {
            let in_cluster = |key: &&(String, String)| key.0 == place.cluster;
            let mut nodes = self.nodes.keys().filter(in_cluster);
            return nodes.any(|key| !self.silent.contains(key));
        };
        let key = (place.cluster.clone(), node.clone());
        self.nodes.contains_key(&key) && !self.silent.contains(&key)
    }
}

/// How many runs of each cluster go on: of so many as have the same trouble it may be said that many have.
fn watched(tick: &TickSnapshot<'_>) -> BTreeMap<String, usize> {
    let mut runs = BTreeMap::new();
    for key in tick.runs().keys() {
        if is_on(tick, &key) {
            *runs.entry(key.cluster.to_string()).or_default() += 1;
        }
    }
    runs
}

/// Whether a run goes on, as far as is known.
fn is_on(tick: &TickSnapshot<'_>, key: &RunKey) -> bool {
    let state = tick.runs().look(key, |run| run.state(tick.now));
    matches!(state, Some(State::Running | State::Silent { .. }))
}

impl<'a> Unreadable<'a> {
    fn of(all: &'a [GpuSnapshot]) -> Self {
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
        let is_gone = |it: &&&GpuSnapshot| !gpus::is_readable(family, it);
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

//! The circuit breaker of nodes: the same trouble of many nodes of a cluster within minutes has one cause, as a power
//! feed, a switch or a roll-out is, and is one incident of the cluster where there would be hundreds.
//!
//! Method: more than [`BREAKER_NODES`] nodes, and more than one in [`BREAKER_PART`] of the cluster's, have trouble of one
//! family and cause that began within [`BREAKER_WITHIN_NS`], and none of them an incident of it that opened longer than
//! that ago: six cards that broke a day apart wait each for its own replacement, and are handed off each with its own
//! node. Younger incidents are taken in. Each node is in it until its own trouble is over; one that is in trouble later
//! comes in where with it so many began within these minutes, and else has an incident of its own. The cluster's is over
//! with the last.
//!
//! Limits: trouble whose signals do not say since when it is began when it is first told. Who is in it is kept in memory,
//! as many as there are nodes: a server that begins anew takes in what is in trouble while nothing resolves yet.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_telemetry::time::Timestamp;

use super::book::Book;
use super::breaker::BREAKER_WITHIN_NS;
use super::group::{ByTrouble, Key, Nodes, widened};
use super::trouble::{Trouble, is_a_runs};
use super::{BREAKER_NODES, BREAKER_PART, Family, Incident, Place, Signal, State};
use crate::cause::Cause;

/// Nodes of a cluster that have trouble of one cause.
#[derive(Debug, Clone)]
pub(super) struct Outage {
    family: Family,
    cluster: Place,
    cause: Cause,
    nodes: BTreeMap<String, Member>,
}

/// Nodes in trouble, each with when it began.
type Troubled = BTreeMap<String, Timestamp>;

/// A node that is in it.
#[derive(Debug, Clone, Copy)]
struct Member {
    /// When its trouble began.
    began: Timestamp,
    /// When it was last in trouble, or not heard.
    last: Timestamp,
}

impl Book {
    /// Puts together the trouble of nodes that has one cause.
    pub(super) fn of_clusters(
        &mut self,
        all: ByTrouble,
        nodes: &Nodes,
        now: Timestamp,
    ) -> ByTrouble {
        let mut outages = std::mem::take(&mut self.outages);
        outages.retain(|it| self.goes_on(it));
        let fresh = self.fresh(&all, now);
        let restored = self.restored_ones(now);
        for ((family, cluster, cause), troubled) in by_cluster(&fresh) {
            let cluster = whole(&cluster);
            let of = Trouble::of(family, &cluster, cause);
            let is_restored = restored.iter().any(|it| it.is_same(of));
            let known = outages.iter().position(|it| it.trouble().is_same(of));
            if known.is_none() && !is_restored && troubled.len() <= BREAKER_NODES {
                continue;
            }
            let at = known.unwrap_or_else(|| {
                outages.push(Outage {
                    family,
                    cluster: cluster.clone(),
                    cause,
                    nodes: BTreeMap::new(),
                });
                outages.len() - 1
            });
            let of_cluster = nodes.keys().filter(|it| it.0 == cluster.cluster).count();
            outages[at].take(troubled, of_cluster, is_restored, now);
        }
        outages.retain(|it| !it.nodes.is_empty());
        let wide = widened(all, |key| {
            let (family, place, cause) = key;
            let node = place.node.as_ref().filter(|_| fresh.contains_key(key))?;
            let whole = whole(&place.cluster);
            let of = Trouble::of(*family, &whole, *cause);
            let has_it = |it: &Outage| it.nodes.contains_key(node) && it.trouble().is_same(of);
            let is_in = outages.iter().any(has_it);
            is_in.then_some((*family, whole, *cause))
        });
        self.outages = outages;
        wide
    }

    /// Lets go the nodes whose trouble is over as far as they are `heard`.
    pub(super) fn clear_outages(&mut self, heard: &dyn Fn(Family, &Place) -> bool, now: Timestamp) {
        for outage in &mut self.outages {
            let (family, cluster) = (outage.family, &outage.cluster.cluster);
            outage.nodes.retain(|node, it| {
                it.last = it.last.min(now);
                if it.last < now && !heard(family, &Place::node(cluster, node)) {
                    it.last = now;
                }
                now.since(it.last) < family.clear_ns()
            });
        }
    }

    /// Whether a node that is in this incident of a cluster is not heard.
    pub(super) fn has_unheard_node(&self, incident: &Incident, now: Timestamp) -> bool {
        let own = incident.trouble();
        let mut its = self.outages.iter().filter(|it| it.trouble().is_same(own));
        its.any(|it| it.nodes.values().any(|it| it.last == now))
    }

    /// Whether its incident is not over.
    fn goes_on(&self, outage: &Outage) -> bool {
        let own = outage.trouble();
        let mut all = self.incidents.iter();
        all.any(|it| it.state != State::Resolved && it.trouble().is_same(own))
    }

    /// What is in trouble at nodes and has no incident that opened long ago, with when it began.
    fn fresh(&self, all: &ByTrouble, now: Timestamp) -> BTreeMap<Key, Timestamp> {
        let before = now.shifted(-BREAKER_WITHIN_NS);
        let is_old = |it: &&Incident| {
            let is_nodes = it.state == State::Open && it.place.node.is_some();
            is_nodes && it.opened_at.is_some_and(|at| at < before)
        };
        let old: Vec<&Incident> = self.incidents.iter().filter(is_old).collect();
        let is_known = |signals: &[Signal]| {
            let mut its = old.iter();
            its.any(|it| signals.iter().any(|signal| it.is_of(signal)))
        };
        let is_fresh = |(key, signals): &(&Key, &Vec<Signal>)| {
            key.1.node.is_some() && !is_apart(key.0, &key.1) && !is_known(signals)
        };
        let fresh = all.iter().filter(is_fresh);
        fresh
            .map(|(key, signals)| (key.clone(), began(key.0, signals, now)))
            .collect()
    }

    /// The incidents of clusters that were read from the store a moment ago: who is in them is not known any more.
    fn restored_ones(&self, now: Timestamp) -> Vec<Trouble<'_>> {
        let all = self.incidents.iter();
        let restored = all.filter(|it| it.state != State::Resolved && it.clear_from > now);
        let of_clusters = restored.filter(|it| it.place.is_cluster());
        of_clusters.map(Incident::trouble).collect()
    }
}

impl Outage {
    fn trouble(&self) -> Trouble<'_> {
        Trouble::of(self.family, &self.cluster, self.cause)
    }

    /// Nodes are in trouble since these moments, of a cluster of so many: those come in that belong together, or all.
    fn take(&mut self, troubled: Troubled, of_cluster: usize, takes_all: bool, now: Timestamp) {
        let together = self.together(&troubled, of_cluster);
        for (node, began) in troubled {
            let is_in = takes_all || together.contains(&node);
            match self.nodes.get_mut(&node) {
                Some(known) => known.last = now,
                None if is_in => _ = self.nodes.insert(node, Member { began, last: now }),
                None => {}
            }
        }
    }

    /// Nodes of which so many began within minutes, with those that are in it already.
    fn together(&self, troubled: &Troubled, of_cluster: usize) -> BTreeSet<String> {
        let new = troubled.iter();
        let new = new.filter(|(node, _)| !self.nodes.contains_key(*node));
        let new = new.map(|(node, began)| (*began, node));
        let known = self.nodes.iter().map(|(node, it)| (it.began, node));
        let mut all: Vec<(Timestamp, &String)> = known.chain(new).collect();
        all.sort_unstable();
        let mut together = BTreeSet::new();
        let (mut first, mut done) = (0, 0);
        for (last, (began, _)) in all.iter().enumerate() {
            while began.since(all[first].0) > BREAKER_WITHIN_NS {
                first += 1;
            }
            let count = last + 1 - first;
            if count > BREAKER_NODES && count * BREAKER_PART > of_cluster {
                let new = all[first.max(done)..=last].iter();
                together.extend(new.map(|it| it.1.clone()));
                done = last + 1;
            }
        }
        together
    }
}

/// By family, cluster and cause the nodes in trouble, each with when its first began.
fn by_cluster(fresh: &BTreeMap<Key, Timestamp>) -> BTreeMap<(Family, String, Cause), Troubled> {
    let mut found: BTreeMap<(Family, String, Cause), Troubled> = BTreeMap::new();
    for ((family, place, cause), began) in fresh {
        let key = (*family, place.cluster.clone(), *cause);
        let nodes = found.entry(key).or_default();
        if let Some(node) = &place.node {
            let first = nodes.entry(node.clone()).or_insert(*began);
            *first = (*first).min(*began);
        }
    }
    found
}

/// When trouble began. A node without an agent says since when it is ready, and a silent one when it was last heard:
/// neither is when it was missed.
fn began(family: Family, signals: &[Signal], now: Timestamp) -> Timestamp {
    let told = signals.iter().filter_map(|it| it.since).min();
    let told = told.filter(|_| family != Family::Blind);
    told.map_or(now, |it| it.min(now))
}

/// Whether however many of them have causes of their own: runs, and teams with a budget each.
fn is_apart(family: Family, place: &Place) -> bool {
    family == Family::Budget || is_a_runs(family, place)
}

fn whole(cluster: &str) -> Place {
    Place {
        cluster: cluster.to_owned(),
        ..Place::default()
    }
}

//! One cause, one group: the signals of a tick put together until each group is one thing to mend.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::{BREAKER_NODES, BREAKER_PART, Family, Incident, Place, Signal};
use crate::cause::Cause;
use crate::lost::Lost;
use crate::price::Price;

/// Signals of one cause.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// What kind of trouble.
    pub family: Family,
    /// Where, wide enough for all of its own signals.
    pub place: Place,
    /// Its own signals, what says most first. There is one at least.
    pub signals: Vec<Signal>,
    /// Signals of other kinds that it explains.
    pub explained: Vec<Signal>,
    /// What was lost to it before anybody told it, where its incident is not to count that from its own beginning.
    pub(super) before: Lost,
}

impl Signal {
    /// Whether it is about a reader of an agent that is heard.
    pub(crate) fn is_of_a_reader(&self) -> bool {
        (self.family, self.cause) == (Family::Blind, Cause::Reader)
    }
}

impl Incident {
    /// Whether it is about readers of agents that are heard.
    pub fn is_of_readers(&self) -> bool {
        (self.family, self.cause) == (Family::Blind, Cause::Reader)
    }
}

impl Group {
    /// Whether it is about readers of agents that are heard: another trouble than a silent node, although it
    /// blinds too.
    pub(super) fn is_of_readers(&self) -> bool {
        self.signals[0].is_of_a_reader()
    }

    /// How many different places it is about; of what is about runs, how many runs.
    pub fn places(&self) -> usize {
        let places: BTreeSet<Place> = self.signals.iter().map(payer).collect();
        places.len()
    }

    /// What it costs now. Signals about one place cost it once; of what it explains counts what loses more,
    /// because a run that waits loses more than the GPU it waits for.
    pub fn price(&self) -> Price {
        let own = sum(&self.signals).expect("a group has a signal");
        let other = sum(&self.explained);
        let loses_more = |it: &Price| it.lost().milli_gpus > own.lost().milli_gpus;
        other.filter(loses_more).unwrap_or(own)
    }
}

/// What a signal costs once: a run that waits for two of its ranks waits once.
fn payer(signal: &Signal) -> Place {
    match is_a_runs(signal.family, &signal.place) {
        true => Place {
            cluster: signal.place.cluster.clone(),
            run: signal.place.run.clone(),
            ..Place::default()
        },
        false => signal.place.clone(),
    }
}

fn sum(signals: &[Signal]) -> Option<Price> {
    let mut by_place: BTreeMap<Place, Price> = BTreeMap::new();
    for signal in signals {
        let most = by_place.entry(payer(signal)).or_insert(signal.price);
        *most = most.or(signal.price);
    }
    by_place.into_values().reduce(Price::and)
}

/// How many GPUs the nodes of a cluster have, by (cluster, node).
pub type Nodes = BTreeMap<(String, String), usize>;

/// The groups of a tick, what explains others first. That an agent cannot read something explains nothing of
/// what it tells, and is never one with nodes that are silent.
pub(super) fn groups(signals: Vec<Signal>, nodes: &Nodes) -> Vec<Group> {
    let (of_readers, others) = signals.into_iter().partition(Signal::is_of_a_reader);
    let mut groups = of_one_kind(others, nodes);
    groups.extend(of_one_kind(of_readers, nodes));
    groups
}

fn of_one_kind(signals: Vec<Signal>, nodes: &Nodes) -> Vec<Group> {
    let mut by_place: BTreeMap<(Family, Place), Vec<Signal>> = BTreeMap::new();
    for signal in signals {
        let key = (signal.family, signal.place.clone());
        by_place.entry(key).or_default().push(signal);
    }
    let by_place = of_nodes(by_place, nodes);
    let by_place = of_clusters(by_place, nodes);
    let mut groups: Vec<Group> = Vec::new();
    for ((family, place), mut signals) in by_place {
        signals.sort_by_key(|it| (Reverse(it.severity), it.cause == Cause::Unknown));
        let explains = |it: &&mut Group| it.family.explains(family) && it.place.contains(&place);
        match groups.iter_mut().find(explains) {
            Some(group) => group.explained.extend(signals),
            None => groups.push(Group {
                family,
                place,
                signals,
                explained: Vec::new(),
                before: Lost::default(),
            }),
        }
    }
    groups
}

type ByPlace = BTreeMap<(Family, Place), Vec<Signal>>;

/// Half of a node's GPUs, and two at least, with the same trouble: the node's.
fn of_nodes(by_place: ByPlace, nodes: &Nodes) -> ByPlace {
    let node_of = |(family, place): &(Family, Place)| match (&place.node, &place.gpu) {
        (Some(node), Some(_)) if !is_a_runs(*family, place) => {
            Some((*family, Place::node(&place.cluster, node)))
        }
        _ => None,
    };
    let mut counts: BTreeMap<(Family, Place), usize> = BTreeMap::new();
    for node in by_place.keys().filter_map(node_of) {
        *counts.entry(node).or_default() += 1;
    }
    let is_the_nodes = |key: &(Family, Place)| {
        let place = &key.1;
        let name = (
            place.cluster.clone(),
            place.node.clone().unwrap_or_default(),
        );
        let gpus = nodes.get(&name).copied().unwrap_or(0);
        let count = counts.get(key).copied().unwrap_or(0);
        by_place.contains_key(key) || (count >= 2 && 2 * count >= gpus)
    };
    let wide: BTreeSet<(Family, Place)> = counts
        .keys()
        .filter(|it| is_the_nodes(it))
        .cloned()
        .collect();
    widened(by_place, |key| node_of(key).filter(|it| wide.contains(it)))
}

/// The circuit breaker: so many nodes of a cluster with the same trouble have one cause.
fn of_clusters(by_place: ByPlace, nodes: &Nodes) -> ByPlace {
    let mut troubled: BTreeMap<(Family, &str), BTreeSet<&str>> = BTreeMap::new();
    let all = by_place.keys();
    for (family, place) in all.filter(|(family, place)| !is_apart(*family, place)) {
        let nodes = troubled.entry((*family, &place.cluster)).or_default();
        nodes.extend(place.node.as_deref());
    }
    let of_cluster = |cluster: &str| nodes.keys().filter(|it| it.0 == cluster).count();
    let wide: BTreeSet<(Family, String)> = troubled
        .into_iter()
        .filter(|((_, cluster), nodes)| {
            nodes.len() > BREAKER_NODES && nodes.len() * BREAKER_PART > of_cluster(cluster)
        })
        .map(|((family, cluster), _)| (family, cluster.to_owned()))
        .collect();
    widened(by_place, |(family, place)| {
        let key = (*family, place.cluster.clone());
        let whole = Place {
            cluster: place.cluster.clone(),
            ..Place::default()
        };
        let is_wide = wide.contains(&key) && !is_apart(*family, place);
        is_wide.then_some((*family, whole))
    })
}

/// Whether it is about a run: these have each their own cause, unless many have it at once (`breaker`).
fn is_a_runs(family: Family, place: &Place) -> bool {
    family.is_of_run() && place.run.is_some()
}

/// Whether however many of them have causes of their own: runs, and teams with a budget each.
fn is_apart(family: Family, place: &Place) -> bool {
    family == Family::Budget || is_a_runs(family, place)
}

fn widened(
    by_place: ByPlace,
    wider: impl Fn(&(Family, Place)) -> Option<(Family, Place)>,
) -> ByPlace {
    let mut all = ByPlace::new();
    for (key, signals) in by_place {
        let key = wider(&key).unwrap_or(key);
        all.entry(key).or_default().extend(signals);
    }
    all
}

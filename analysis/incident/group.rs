//! One cause, one group: the signals of a tick put together until each group is one thing to mend.
//!
//! What explains another kind of trouble does so at its place. GPUs that do no work in a run that stands wait with it on
//! whatever node, each in its own job's place: they belong to the group that has the run's hang, as its own or explained.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::trouble::{is_a_runs, stands};
use super::{Family, Incident, Place, Signal};
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

    /// Whether it is of GPUs that do no work in one of these runs.
    fn waits_in(&self, runs: &BTreeSet<Place>) -> bool {
        self.family.is_without_work() && runs.contains(&run_of(&self.place))
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

    /// Whether it is of a link of a run of which no end is known, and that place is of one of its nodes or ranks:
    /// communicators with a rank that is slow are left out where links are judged, so that neither is why the other is.
    fn lies_elsewhere(&self, place: &Place) -> bool {
        let is_the_runs = self.place.run.is_some() && self.place.node.is_none();
        let is_narrower = place.node.is_some() || place.rank.is_some();
        self.family == Family::Link && is_the_runs && is_narrower
    }

    /// How many different places it is about; of what is about runs, how many runs.
    pub fn places(&self) -> usize {
        let places: BTreeSet<Place> = self.signals.iter().map(payer).collect();
        places.len()
    }

    /// What it costs now. Signals about one place cost it once; of what it explains counts what loses more,
    /// because a run that waits loses more than the GPU it waits for. What all GPUs of a run lose that stands has in it
    /// what those lose that do no work.
    pub fn price(&self) -> Price {
        let own = sum(&self.signals).expect("a group has a signal");
        let standing = standing(self.signals.iter().chain(&self.explained));
        let others = self.explained.iter();
        let other = sum(others.filter(|it| !it.waits_in(&standing)));
        let loses_more = |it: &Price| it.lost().milli_gpus > own.lost().milli_gpus;
        other.filter(loses_more).unwrap_or(own)
    }
}

/// What a signal costs once: a run that waits for two of its ranks waits once.
fn payer(signal: &Signal) -> Place {
    match is_a_runs(signal.family, &signal.place) {
        true => run_of(&signal.place),
        false => signal.place.clone(),
    }
}

/// The run that a place is about, wherever it is; its cluster where it is about none.
pub(super) fn run_of(place: &Place) -> Place {
    Place {
        cluster: place.cluster.clone(),
        run: place.run.clone(),
        ..Place::default()
    }
}

/// The runs that stand by these signals.
pub(super) fn standing<'a>(signals: impl Iterator<Item = &'a Signal>) -> BTreeSet<Place> {
    let hangs = signals.filter(|it| stands(it.family, &it.place));
    hangs.map(|it| run_of(&it.place)).collect()
}

fn sum<'a>(signals: impl IntoIterator<Item = &'a Signal>) -> Option<Price> {
    let mut by_place: BTreeMap<Place, Price> = BTreeMap::new();
    for signal in signals {
        let most = by_place.entry(payer(signal)).or_insert(signal.price);
        *most = most.or(signal.price);
    }
    by_place.into_values().reduce(Price::and)
}

/// How many GPUs the nodes of a cluster have, by (cluster, node).
pub type Nodes = BTreeMap<(String, String), usize>;

/// Signals by what they are of: family, place, and the cause that tells them from others.
pub(super) type ByTrouble = BTreeMap<Key, Vec<Signal>>;

pub(super) type Key = (Family, Place, Cause);

/// The signals of a tick without those of GPUs that do no work in a run that stands, and these.
pub(super) fn waiting(signals: Vec<Signal>) -> (Vec<Signal>, Vec<Signal>) {
    let standing = standing(signals.iter());
    signals.into_iter().partition(|it| !it.waits_in(&standing))
}

/// The groups of a tick, what explains others first; what waits in a run that stands comes to where that is. That an
/// agent cannot read something explains nothing of what it tells, and a slow link somewhere in a run nothing of one of
/// its ranks.
pub(super) fn groups(all: ByTrouble, waiting: Vec<Signal>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for ((family, place, _), mut signals) in all {
        signals.sort_by_key(|it| (Reverse(it.severity), it.cause == Cause::Unknown));
        let explains = |it: &&mut Group| {
            let is_cause = it.family.explains(family) && !it.is_of_readers();
            is_cause && it.place.contains(&place) && !it.lies_elsewhere(&place)
        };
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
    let mut stands_in: BTreeMap<Place, usize> = BTreeMap::new();
    for (at, group) in groups.iter().enumerate() {
        for run in standing(group.signals.iter().chain(&group.explained)) {
            stands_in.entry(run).or_insert(at);
        }
    }
    for signal in waiting {
        if let Some(at) = stands_in.get(&run_of(&signal.place)) {
            groups[*at].explained.push(signal);
        }
    }
    groups
}

/// The signals of a tick put together, of a node where half of its GPUs have the same.
pub(super) fn by_trouble(signals: Vec<Signal>, nodes: &Nodes) -> ByTrouble {
    let told = Told::of(&signals);
    let mut all = ByTrouble::new();
    for signal in signals {
        let key = (signal.family, signal.place.clone(), told.cause(&signal));
        all.entry(key).or_default().push(signal);
    }
    of_nodes(all, nodes)
}

/// The known causes that are told at a tick, by family and node, each with where.
struct Told(BTreeMap<(Family, Place), BTreeSet<(Cause, Place)>>);

impl Told {
    fn of(signals: &[Signal]) -> Self {
        let mut told = Self(BTreeMap::new());
        for signal in signals {
            let cause = signal.trouble().cause();
            if cause.is_known() {
                let of_node = told.0.entry((signal.family, node_of(&signal.place)));
                of_node.or_default().insert((cause, signal.place.clone()));
            }
        }
        told
    }

    /// The cause that a signal is told apart by. What has none that is known is told with what has, on its node: with
    /// what lies nearest.
    fn cause(&self, signal: &Signal) -> Cause {
        let own = signal.trouble().cause();
        let is_open = !own.is_known() && !is_a_runs(signal.family, &signal.place);
        // A node that is silent has nothing of what its agent could not read before.
        let others = match is_open && signal.family != Family::Blind {
            true => self.0.get(&(signal.family, node_of(&signal.place))),
            false => None,
        };
        let Some(others) = others else {
            return own;
        };
        let mut near = others.iter().filter(|it| it.1.overlaps(&signal.place));
        near.next()
            .or_else(|| others.first())
            .map_or(own, |it| it.0)
    }
}

/// The node that a place is on, or its cluster.
fn node_of(place: &Place) -> Place {
    Place {
        cluster: place.cluster.clone(),
        node: place.node.clone(),
        ..Place::default()
    }
}

/// Half of a node's GPUs, and two at least, with the same trouble: the node's.
fn of_nodes(all: ByTrouble, nodes: &Nodes) -> ByTrouble {
    let whole = |(family, place, cause): &Key| {
        let is_gpus = place.node.is_some() && place.gpu.is_some() && !is_a_runs(*family, place);
        is_gpus.then(|| (*family, node_of(place), *cause))
    };
    let mut counts: BTreeMap<Key, usize> = BTreeMap::new();
    for node in all.keys().filter_map(whole) {
        *counts.entry(node).or_default() += 1;
    }
    let is_the_nodes = |key: &Key| {
        let place = &key.1;
        let name = (
            place.cluster.clone(),
            place.node.clone().unwrap_or_default(),
        );
        let gpus = nodes.get(&name).copied().unwrap_or(0);
        let count = counts.get(key).copied().unwrap_or(0);
        all.contains_key(key) || (count >= 2 && 2 * count >= gpus)
    };
    let wide: BTreeSet<Key> = counts
        .keys()
        .filter(|it| is_the_nodes(it))
        .cloned()
        .collect();
    widened(all, |key| whole(key).filter(|it| wide.contains(it)))
}

/// Some of it told at wider places.
pub(super) fn widened(all: ByTrouble, wider: impl Fn(&Key) -> Option<Key>) -> ByTrouble {
    let mut wide = ByTrouble::new();
    for (key, signals) in all {
        let key = wider(&key).unwrap_or(key);
        wide.entry(key).or_default().extend(signals);
    }
    wide
}

//! What the ranks measured of their collectives since the last reading, put together by run and
//! communicator.
//!
//! Limits: as many communicators and functions of a rank as its agent tells; a reading older than
//! [`FRESH_S`] says nothing of now.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gpufleet_analysis::slow_link::{End, Group};
use gpufleet_analysis::straggler::collectives::Function;
use gpufleet_telemetry::catalog::{Metric, training};
use gpufleet_telemetry::identity::{Part, Resource, attribute};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::collective_of;

use crate::detect::gather::is_same;
use crate::detect::seconds_since;
use crate::fleet::{Live, LiveValue};

/// A step may take minutes; what is older is not of the step that goes on, seconds.
const FRESH_S: f64 = 90.0;

/// The ranks of each run that measure collectives, in the order in which runs were met.
#[derive(Debug, Default)]
pub(in crate::detect) struct Measured {
    runs: Vec<RunMeasured>,
    /// Where each is, by cluster and run.
    places: HashMap<(Arc<str>, Arc<str>), usize>,
}

/// Those of one run.
#[derive(Debug)]
struct RunMeasured {
    cluster: Arc<str>,
    run: Arc<str>,
    ranks: Vec<RankMeasured>,
}

/// One of them.
#[derive(Debug, Clone)]
pub(super) struct RankMeasured {
    pub(super) rank: u32,
    pub(super) node: Arc<str>,
    pub(super) gpu: Arc<str>,
    collectives: Vec<Collective>,
}

/// What is kept of a rank from tick to tick: what its names say. They are the same at nearly every tick, and to read
/// them anew costs more than all that is measured.
#[derive(Debug, Default)]
pub(in crate::detect) struct RankNames {
    told: Option<Arc<Resource>>,
    /// Which rank it is of which run; no run of what is no rank.
    run: Option<Arc<str>>,
    rank: u32,
    /// Where its run was in [`Measured`].
    place: u32,
    gpu: Arc<str>,
    /// What the names of its collectives say, in the order of their readings.
    collectives: Box<[Named]>,
}

const _: () = assert!(size_of::<RankNames>() <= 64 && size_of::<Named>() <= 32);

/// What the name of a collective says.
#[derive(Debug)]
struct Named {
    part: Arc<Part>,
    /// None where it says nothing.
    said: Option<(u64, Function)>,
}

#[derive(Debug, Clone)]
struct Collective {
    communicator: u64,
    function: Function,
    bytes_per_call: f64,
    bytes_per_second: f64,
    at: Timestamp,
}

impl Measured {
    /// A new tick. A run of which nothing was measured at the last one is forgotten.
    pub(super) fn begin(&mut self) {
        if self.runs.iter().any(|it| it.ranks.is_empty()) {
            self.runs.retain(|it| !it.ranks.is_empty());
            let names = self.runs.iter().enumerate();
            self.places = names.map(|(place, it)| (it.name(), place)).collect();
        }
        self.runs.iter_mut().for_each(|it| it.ranks.clear());
    }

    /// Takes in what is live of a rank.
    pub(super) fn look(&mut self, live: &Live, names: &mut RankNames, now: Timestamp) {
        names.tell(live);
        let measured = live.parts(training::COLLECTIVE_BUS_BANDWIDTH.id);
        let each = measured.enumerate().filter_map(|(place, it)| {
            let is_fresh = seconds_since(now, it.at) <= FRESH_S;
            is_fresh.then(|| collective(live, names, (place, it)))?
        });
        let collectives: Vec<Collective> = each.collect();
        let (Some(run), false) = (&mut names.run, collectives.is_empty()) else {
            return;
        };
        let measured = RankMeasured {
            rank: names.rank,
            node: Arc::clone(&live.node),
            gpu: Arc::clone(&names.gpu),
            collectives,
        };
        let place = self.place(&live.key.cluster, run, names.place as usize);
        names.place = place as u32;
        let of_run = &mut self.runs[place];
        // One address for all its ranks: then the next tick does not read the name.
        run.clone_from(&of_run.run);
        of_run.ranks.push(measured);
    }

    /// Where a run is. Tried first is `place`, where it was for this rank at the last tick.
    fn place(&mut self, cluster: &Arc<str>, run: &Arc<str>, place: usize) -> usize {
        let is_it = |it: &RunMeasured| is_same(&it.run, run) && is_same(&it.cluster, cluster);
        if self.runs.get(place).is_some_and(is_it) {
            return place;
        }
        let (runs, name) = (&mut self.runs, (Arc::clone(cluster), Arc::clone(run)));
        *self.places.entry(name).or_insert_with(|| {
            runs.push(RunMeasured {
                cluster: Arc::clone(cluster),
                run: Arc::clone(run),
                ranks: Vec::new(),
            });
            runs.len() - 1
        })
    }

    /// What the ranks of a run measured.
    pub(super) fn of(&self, cluster: &Arc<str>, run: &str) -> &[RankMeasured] {
        let place = self.places.get(&(Arc::clone(cluster), run.into()));
        place.map_or(&[], |it| &self.runs[*it].ranks)
    }
}

impl RunMeasured {
    fn name(&self) -> (Arc<str>, Arc<str>) {
        (Arc::clone(&self.cluster), Arc::clone(&self.run))
    }
}

impl RankNames {
    /// Takes in what the resource says.
    fn tell(&mut self, live: &Live) {
        let known = self.told.as_ref();
        if known.is_some_and(|it| Arc::ptr_eq(it, &live.resource)) {
            return;
        }
        let named = live.key.id.rsplit_once('/');
        let named: Option<(Arc<str>, u32)> =
            named.and_then(|(run, rank)| Some((run.into(), rank.parse().ok()?)));
        (self.run, self.rank) = named.map_or((None, 0), |(run, rank)| (Some(run), rank));
        let gpu = live.resource.attribute(attribute::GPU_ID);
        self.gpu = gpu.unwrap_or_default().into();
        self.told = Some(Arc::clone(&live.resource));
    }

    /// What the name of the collective at this place says.
    fn collective(&mut self, place: usize, part: &Arc<Part>) -> Option<(u64, Function)> {
        let known = self.collectives.get(place);
        if let Some(known) = known.filter(|it| it.part == *part) {
            return known.said;
        }
        let said = collective_of(&part.id);
        let said = said.map(|(communicator, function)| (communicator, Function::of(function)));
        let mut named = std::mem::take(&mut self.collectives).into_vec();
        named.truncate(place);
        // One that is too old to count has no place of its own: it is read again.
        if named.len() == place {
            let part = Arc::clone(part);
            named.push(Named { part, said });
        }
        self.collectives = named.into_boxed_slice();
        said
    }
}

/// The communicators of these ranks, other than those with one that is left out.
pub(super) fn groups<'a>(ranks: impl Iterator<Item = (&'a RankMeasured, bool)>) -> Vec<Group> {
    let mut groups: BTreeMap<(u64, Function), Option<Group>> = BTreeMap::new();
    for (rank, is_left_out) in ranks {
        for it in &rank.collectives {
            let group = groups.entry((it.communicator, it.function));
            let group = group.or_insert_with(|| {
                Some(Group {
                    communicator: it.communicator,
                    function: it.function,
                    bytes_per_call: it.bytes_per_call,
                    at: it.at,
                    ends: Vec::new(),
                })
            });
            if is_left_out {
                *group = None;
            }
            if let Some(group) = group {
                group.at = group.at.max(it.at);
                group.ends.push(End {
                    node: Arc::clone(&rank.node),
                    gpu: Arc::clone(&rank.gpu),
                    bytes_per_second: it.bytes_per_second,
                });
            }
        }
    }
    groups.into_values().flatten().collect()
}

/// Whether one of their communicators has ranks on two nodes.
pub(super) fn is_across(ranks: &[RankMeasured]) -> bool {
    let mut nodes: HashMap<u64, &Arc<str>> = HashMap::new();
    let mut all = ranks.iter().flat_map(|rank| {
        let each = rank.collectives.iter();
        each.map(move |it| (it.communicator, &rank.node))
    });
    all.any(|(communicator, node)| *nodes.entry(communicator).or_insert(node) != node)
}

fn collective(
    live: &Live,
    names: &mut RankNames,
    (place, measured): (usize, &LiveValue),
) -> Option<Collective> {
    let part = measured.part.as_ref()?;
    let bytes_per_second = measured.reading.ok()?;
    let (communicator, function) = names.collective(place, part)?;
    let total = |metric: &Metric| {
        let is_its = |it: &&LiveValue| it.part.as_ref() == Some(part);
        // Parts are in the order of their names, whatever the metric.
        let like = live.parts(metric.id).nth(place).filter(is_its);
        let found = like.or_else(|| live.parts(metric.id).find(is_its));
        found?.reading.ok()
    };
    let calls = total(&training::COLLECTIVE_CALLS).filter(|it| *it > 0.0)?;
    Some(Collective {
        communicator,
        function,
        bytes_per_call: total(&training::COLLECTIVE_TRAFFIC)? / calls,
        bytes_per_second,
        at: measured.at,
    })
}

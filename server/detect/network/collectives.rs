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
use gpufleet_telemetry::identity::attribute;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::collective_of;

use crate::detect::seconds_since;
use crate::fleet::{Live, LiveValue};

/// A step may take minutes; what is older is not of the step that goes on, seconds.
const FRESH_S: f64 = 90.0;

/// The ranks of each run that measure collectives, by cluster and run.
#[derive(Debug, Default)]
pub(in crate::detect) struct Measured(HashMap<(Arc<str>, String), Vec<RankMeasured>>);

/// One of them.
#[derive(Debug, Clone)]
pub(super) struct RankMeasured {
    pub(super) rank: u32,
    pub(super) node: Arc<str>,
    pub(super) gpu: Arc<str>,
    collectives: Vec<Collective>,
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
    /// A new tick.
    pub(super) fn begin(&mut self) {
        self.0.clear();
    }

    /// Takes in what is live of a rank.
    pub(super) fn look(&mut self, live: &Live, now: Timestamp) {
        let measured = live.parts(training::COLLECTIVE_BUS_BANDWIDTH.id);
        let is_fresh = |it: &&LiveValue| seconds_since(now, it.at) <= FRESH_S;
        let collectives = measured
            .filter(is_fresh)
            .filter_map(|it| collective(live, it));
        let collectives: Vec<Collective> = collectives.collect();
        let Some((run, rank)) = live.key.id.rsplit_once('/') else {
            return;
        };
        let (Ok(rank), false) = (rank.parse(), collectives.is_empty()) else {
            return;
        };
        let gpu = live
            .resource
            .attribute(attribute::GPU_ID)
            .unwrap_or_default();
        let key = (Arc::clone(&live.key.cluster), run.to_owned());
        self.0.entry(key).or_default().push(RankMeasured {
            rank,
            node: Arc::clone(&live.node),
            gpu: gpu.into(),
            collectives,
        });
    }

    /// What the ranks of a run measured.
    pub(super) fn of(&self, cluster: &Arc<str>, run: &str) -> &[RankMeasured] {
        let key = (Arc::clone(cluster), run.to_owned());
        self.0.get(&key).map_or(&[], Vec::as_slice)
    }
}

/// The communicators of these ranks, other than those with a rank that is `left_out`.
pub(super) fn groups(
    ranks: &[RankMeasured],
    left_out: impl Fn(&RankMeasured) -> bool,
) -> Vec<Group> {
    let mut groups: BTreeMap<(u64, Function), Option<Group>> = BTreeMap::new();
    for rank in ranks {
        let is_left_out = left_out(rank);
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

fn collective(live: &Live, measured: &LiveValue) -> Option<Collective> {
    let part = measured.part.as_ref()?;
    let bytes_per_second = measured.reading.ok()?;
    let (communicator, function) = collective_of(&part.id)?;
    let total = |metric: &Metric| {
        let mut of_part = live
            .parts(metric.id)
            .filter(|it| it.part.as_ref() == Some(part));
        of_part.next()?.reading.ok()
    };
    let calls = total(&training::COLLECTIVE_CALLS).filter(|it| *it > 0.0)?;
    Some(Collective {
        communicator,
        function: Function::of(function),
        bytes_per_call: total(&training::COLLECTIVE_TRAFFIC)? / calls,
        bytes_per_second,
        at: measured.at,
    })
}

//! Which runs a broken GPU or a lost node stopped.

use std::ops::Range;

use gpufleet_analysis::ending::Cause;
use gpufleet_analysis::incident::Place;
use gpufleet_telemetry::time::Timestamp;

use super::{RunKey, Runs};

/// A run that was stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// Which.
    pub key: RunKey,
    /// How many ranks it had.
    pub ranks: usize,
    /// The steps that it lost, where that is known.
    pub steps_lost: Option<u64>,
}

impl Runs {
    /// Runs in memory that ended in a stretch of time because a GPU failed or a node was lost, and failed first at a
    /// place.
    pub fn stopped_at(&self, place: &Place, within: &Range<Timestamp>) -> Vec<Stopped> {
        let known = self.lock();
        let runs = known.runs.iter();
        let runs = runs.filter(|(key, _)| *key.cluster == *place.cluster);
        let stopped = runs.filter_map(|(key, run)| {
            run.facts.ended.filter(|it| within.contains(it))?;
            let ending = run.facts.ending.as_ref()?;
            let is_hardware = matches!(ending.cause(), Some(Cause::GpuFault | Cause::NodeLost));
            let first = &run.ranks.get(&ending.first_rank?)?.facts;
            let is_there = match (&place.gpu, &place.node) {
                (Some(gpu), _) => *first.gpu == **gpu,
                (None, Some(node)) => *first.node == **node,
                (None, None) => false,
            };
            (is_hardware && is_there).then(|| Stopped {
                key: key.clone(),
                ranks: run.ranks.len(),
                steps_lost: ending.steps_lost,
            })
        });
        stopped.collect()
    }
}

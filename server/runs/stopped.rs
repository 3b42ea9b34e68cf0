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

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::training::{JobId, RunId};

    use super::*;
    use crate::runs::facts::{EndingFacts, RankFacts, RunFacts};
    use crate::runs::{KnownRun, Runs};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_seconds(1_700_000_000 + second)
    }

    /// A run of two ranks on a node, of which the second failed first.
    fn broke(job: &str, cause: Cause, ended: i64) -> KnownRun {
        let rank = |number: u32| {
            let facts = RankFacts {
                node: "node-1".into(),
                gpu: format!("GPU-{number}").into(),
                ..RankFacts::default()
            };
            (number, facts)
        };
        KnownRun {
            key: RunKey {
                cluster: "prod".into(),
                run: RunId {
                    job: JobId::parse(&format!("team/{job}/u1")).expect("an id"),
                    attempt: 0,
                },
            },
            facts: RunFacts {
                started: Some(at(0)),
                heard: at(ended),
                ended: Some(at(ended)),
                ending: Some(EndingFacts {
                    cause: cause.name().to_owned(),
                    first_rank: Some(1),
                    steps_lost: Some(25),
                    ..EndingFacts::default()
                }),
                ..RunFacts::default()
            },
            ranks: vec![rank(0), rank(1)],
            is_part: false,
        }
    }

    #[test]
    fn a_broken_gpu_stopped_what_failed_first_on_it_about_then_and_nothing_else() {
        let runs = Runs::default();
        runs.restore(
            vec![
                broke("hit", Cause::GpuFault, 600),
                broke("script", Cause::Exception, 600),
                broke("before", Cause::GpuFault, 60),
            ],
            Vec::new(),
        );
        let around = at(500)..at(700);
        let on = |gpu: Option<&str>, node: Option<&str>| {
            let place = Place {
                cluster: "prod".to_owned(),
                node: node.map(str::to_owned),
                gpu: gpu.map(str::to_owned),
                ..Place::default()
            };
            let found = runs.stopped_at(&place, &around).into_iter();
            let told = found.map(|it| (it.key.run.job.name, it.ranks, it.steps_lost));
            told.collect::<Vec<_>>()
        };
        let hit = vec![("hit".to_owned(), 2, Some(25))];
        assert_eq!(on(Some("GPU-1"), Some("node-1")), hit);
        assert_eq!(on(None, Some("node-1")), hit);
        for (gpu, node) in [
            (Some("GPU-0"), Some("node-1")),
            (None, Some("node-2")),
            (None, None),
        ] {
            assert_eq!(on(gpu, node), []);
        }
    }
}

//! What MFU runs reached, by what they are: what a run that is like them is held against where no table says a target.
//!
//! Two runs are alike that say the same model, type of arithmetic and number of ranks, on the same card. Counted are those
//! that ended in the last [`FOR_DAYS`] after [`LEAST_STEPS`] steps; of fewer than [`LEAST_RUNS`] nothing is said. A run is its
//! first [`FIRST_RANKS`] ranks here, and its card is known as long as the fleet has its GPU.
//!
//! Limits: [`MAX_RUNS`] runs are looked at, the last started first.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_telemetry::catalog::training;
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use crate::money::now::MoneySnapshot;
use crate::runs::card::Card;
use crate::runs::{KnownRun, Run};
use crate::store::{RunFilter, Store, StoreError};

/// How far back runs count, days: what a fleet reaches changes with its software.
const FOR_DAYS: i64 = 90;

/// Steps of a run from which on its pace is that of its work and not of its start.
const LEAST_STEPS: f64 = 200.0;

/// Runs from which on they say what can be reached.
const LEAST_RUNS: usize = 5;

/// Most runs that are looked at: a new one every hour.
const MAX_RUNS: usize = 2_160;

/// Ranks that are read of a run.
const FIRST_RANKS: u32 = 8;

/// Runs whose ranks are read at a time.
const AT_A_TIME: usize = 64;

/// The pair of the fingerprint that says what a run trains: the model's class.
const MODEL: &str = "model";

/// What runs have in common that are held against one another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Like {
    /// Where their data comes from.
    pub origin: Origin,
    /// Their card.
    pub card: String,
    /// Their model.
    pub model: String,
    /// The type of their arithmetic.
    pub data_type: String,
    /// How many ranks they have.
    pub world: u32,
}

/// What runs reached that are alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usual {
    /// The 75th percentile of their MFU: one of four reached as much.
    pub mfu: f64,
    /// How many they are.
    pub runs: usize,
}

/// What runs reached, by what they are.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reached(BTreeMap<Like, Usual>);

impl Like {
    /// What a run is; none where it does not say so much that another could be like it.
    pub fn of(run: &Run, card: impl Fn(&str) -> Option<Card>) -> Option<Self> {
        let facts = &run.facts;
        let model = facts.fingerprint.get(MODEL)?;
        let gpu = run.gpus().into_iter().next()?;
        let is_told = !model.is_empty() && facts.world > 0;
        is_told.then_some(Self {
            origin: facts.origin,
            card: card(gpu)?.model,
            model: model.clone(),
            data_type: facts.data_type.clone(),
            world: facts.world,
        })
    }
}

impl Reached {
    /// From what each of these runs is and reached.
    pub fn of(runs: impl IntoIterator<Item = (Like, f64)>) -> Self {
        let mut all: BTreeMap<Like, Vec<f64>> = BTreeMap::new();
        for (like, mfu) in runs {
            all.entry(like).or_default().push(mfu);
        }
        let usual = |(like, mut mfu): (Like, Vec<f64>)| {
            mfu.sort_by(f64::total_cmp);
            let runs = mfu.len();
            let place = (3 * runs).div_ceil(4).checked_sub(1)?;
            let mfu = *mfu.get(place)?;
            (runs >= LEAST_RUNS).then_some((like, Usual { mfu, runs }))
        };
        Self(all.into_iter().filter_map(usual).collect())
    }

    /// What runs reached that are like this; none where they are too few.
    pub fn usual(&self, like: &Like) -> Option<Usual> {
        self.0.get(like).copied()
    }
}

/// What runs reached, of one cluster or of all.
///
/// # Errors
/// When the store does not answer.
pub(super) async fn read(
    store: &Store,
    found: &MoneySnapshot,
    specs: &Specs,
    cluster: Option<&Arc<str>>,
    at: Timestamp,
) -> Result<Reached, StoreError> {
    let since = at.shifted(-FOR_DAYS * 86_400 * NANOS_PER_SECOND);
    let filter = RunFilter {
        cluster: cluster.cloned(),
        heard_since: Some(since),
        ..RunFilter::default()
    };
    let says = |it: &KnownRun| it.facts.ended.is_some() && it.facts.fingerprint.contains_key(MODEL);
    let (keys, _) = store.run_keys(&filter, None, MAX_RUNS, says).await?;
    let mut reached = Vec::new();
    for keys in keys.chunks(AT_A_TIME) {
        let runs = store.with_first_ranks(keys, FIRST_RANKS).await?;
        reached.extend(runs.into_iter().filter_map(|it| of_run(it, found, specs)));
    }
    Ok(Reached::of(reached))
}

fn of_run(known: KnownRun, found: &MoneySnapshot, specs: &Specs) -> Option<(Like, f64)> {
    let cluster = Arc::clone(&known.key.cluster);
    let run = Run::of_store(known);
    let card = |gpu: &str| {
        let known = found.gpu(&cluster, gpu)?;
        Card::of(&known.resource)
    };
    let steps = run.speaker()?.1.facts.reading(training::STEPS.id)?;
    let mfu = run.mfu(card, specs).ok()?;
    let like = Like::of(&run, card)?;
    (steps >= LEAST_STEPS).then_some((like, mfu.ratio))
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::ledger::State;
    use gpufleet_analysis::owner::Payer;
    use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};
    use gpufleet_telemetry::training::RunId;

    use super::*;
    use crate::money::now::PricedGpu;
    use crate::runs::{RankFacts, RunFacts, RunKey};

    fn like(card: &str, model: &str) -> Like {
        Like {
            origin: Origin::Live,
            card: card.to_owned(),
            model: model.to_owned(),
            data_type: "bf16".to_owned(),
            world: 8,
        }
    }

    #[test]
    fn five_runs_that_are_alike_say_what_one_of_four_of_them_reached() {
        let runs = |mfu: &[f64]| -> Vec<_> {
            let all = mfu.iter().map(|it| (like("a", "m"), *it));
            // Of another card and of another model.
            let others = [(like("b", "m"), 0.9), (like("a", "n"), 0.9)];
            all.chain(others).collect()
        };
        let usual = |mfu: &[f64]| Reached::of(runs(mfu)).usual(&like("a", "m"));
        assert_eq!(usual(&[0.1, 0.2, 0.3, 0.4]), None);
        let five = usual(&[0.5, 0.1, 0.4, 0.2, 0.3]);
        assert_eq!(five, Some(Usual { mfu: 0.4, runs: 5 }));
        let eight = usual(&[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]);
        assert_eq!(eight, Some(Usual { mfu: 0.6, runs: 8 }));
        assert_eq!(Reached::default().usual(&like("a", "m")), None);
    }

    #[test]
    fn a_run_counts_when_it_says_its_model_its_ranks_and_enough_steps_and_its_card_is_known() {
        const CARD: &str = "NVIDIA H100 80GB HBM3";
        let cluster: Arc<str> = "c".into();
        let gpu = PricedGpu {
            resource: Arc::new(
                Resource::new(ResourceKind::Gpu, "GPU-a").with(attribute::GPU_MODEL, CARD),
            ),
            part: (1, 1),
            second: None,
            last: None,
            payer: Payer::Nobody,
            state: State::ActiveUnrated,
        };
        let mut found = MoneySnapshot::default();
        let gpus = found.all.entry(Arc::clone(&cluster)).or_default();
        gpus.insert("GPU-a".into(), gpu);
        let run = |gpu: &str, model: &str, world: u32, steps: f64| {
            let told = [
                (training::STEPS.id, steps),
                (training::STEP_WALL.id, steps),
                (training::MODEL_FLOPS.id, steps * 0.25 * 989.4e12),
            ];
            let mut readings = told.to_vec();
            readings.sort_by_key(|it| it.0);
            let rank = RankFacts {
                gpu: gpu.into(),
                readings,
                ..RankFacts::default()
            };
            let known = KnownRun {
                key: RunKey {
                    cluster: Arc::clone(&cluster),
                    run: RunId::parse("n/job/u/0").expect("an id"),
                },
                facts: RunFacts {
                    world,
                    data_type: "bf16".to_owned(),
                    fingerprint: BTreeMap::from([(MODEL.to_owned(), model.to_owned())]),
                    ..RunFacts::default()
                },
                ranks: vec![(0, rank)],
                is_part: false,
            };
            of_run(known, &found, &Specs::default())
        };
        let (is, mfu) = run("GPU-a", "m", 8, 200.0).expect("it counts");
        assert_eq!(is, like(CARD, "m"));
        assert!((mfu - 0.25).abs() < 0.001, "{mfu}");
        for (gpu, model, world, steps) in [
            ("GPU-b", "m", 8, 200.0),
            ("GPU-a", "", 8, 200.0),
            ("GPU-a", "m", 0, 200.0),
            ("GPU-a", "m", 8, 199.0),
        ] {
            assert_eq!(
                run(gpu, model, world, steps),
                None,
                "{gpu} {model} {world} {steps}"
            );
        }
    }
}

//! The training runs of a month with their goodput and MFU, and who pays for each.
//!
//! A run is its first [`FIRST_RANKS`] ranks here: the one that stands for it is among them, and its MFU is theirs.
//! Goodput is by what the processes said of their whole life (`analysis::goodput::totals`), because their steps are
//! kept for days and reports are of months; of an attempt of several processes, one after the other, it is not known.
//! Who pays is who held its GPUs on the days of the run for most of the time, of holders of the run's name where there
//! are any.
//!
//! Limits: [`MAX_RUNS`] runs, the last started ones. A run without a start, of which no rank names a GPU, or
//! that no day of the ledger knows, is left out: it is not covered.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use gpufleet_analysis::chargeback::MILLIS_PER_DAY;
use gpufleet_analysis::goodput::totals::{Totals, of_totals};
use gpufleet_analysis::owner::{Holder, Payer};
use gpufleet_analysis::report::efficiency::RunTime;
use gpufleet_telemetry::catalog::{Metric, training};
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::steps::StepTimes;
use gpufleet_telemetry::time::Timestamp;

use super::gather::is_held;
use super::{Days, Terms};
use crate::runs::card::Card;
use crate::runs::goodput::spent;
use crate::runs::{KnownRun, Run};
use crate::store::model::{DayFacts, LedgerDay};
use crate::store::{RunFilter, Store, StoreError};

/// Most runs of a report: a new one every two minutes for a month.
pub const MAX_RUNS: usize = 20_000;

/// Ranks that are read of a run.
const FIRST_RANKS: u32 = 8;

/// Runs whose ranks are read at a time.
const AT_A_TIME: usize = 64;

/// A run as far as a month's report needs it.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    pub(super) cluster: String,
    job: String,
    /// GPUs that its first ranks name.
    gpus: Vec<String>,
    /// From when to when it held its GPUs, Unix milliseconds.
    held_ms: Range<i64>,
    /// How many it has, thousandths: a share is the part of its card that it is.
    milli_gpus: i64,
    goodput: Option<i64>,
    mfu: Option<i64>,
}

/// Runs that held GPUs in the time of these days, of one cluster or of all live ones; and whether these are all.
///
/// # Errors
/// When the store does not answer.
pub async fn read(
    store: &Store,
    days: &Days,
    time: &Range<Timestamp>,
    cluster: Option<&str>,
    specs: &Specs,
) -> Result<(Vec<Trained>, bool), StoreError> {
    let filter = RunFilter {
        cluster: cluster.map(Into::into),
        heard_since: Some(time.start),
        ..RunFilter::default()
    };
    let cards = Cards::of(days);
    let is_in = |it: &KnownRun| cluster.is_some() || it.facts.origin == Origin::Live;
    let after = Some((time.end.millis(), i64::MIN));
    let (keys, are_all) = store.run_keys(&filter, after, MAX_RUNS, is_in).await?;
    let mut found = Vec::with_capacity(keys.len());
    for keys in keys.chunks(AT_A_TIME) {
        let runs = store.with_first_ranks(keys, FIRST_RANKS).await?;
        found.extend(runs.into_iter().filter_map(|it| cards.trained(it, specs)));
    }
    Ok((found, are_all))
}

/// The cards of GPUs by cluster and id, as the days have them.
struct Cards<'a>(HashMap<(&'a str, &'a str), &'a DayFacts>);

impl<'a> Cards<'a> {
    fn of(days: &'a Days) -> Self {
        let of = |it: &'a LedgerDay| {
            let key = (it.of.cluster.as_str(), it.of.id.as_str());
            (key, &it.of.facts)
        };
        Self(days.days.iter().map(of).collect())
    }

    fn trained(&self, known: KnownRun, specs: &Specs) -> Option<Trained> {
        let cluster = known.key.cluster.to_string();
        let job = known.key.run.job.name.clone();
        let run = Run::of_store(known);
        let from = run.facts.started?;
        let until = run.facts.ended.unwrap_or(run.facts.heard).max(from);
        let gpus: Vec<String> = run.gpus().into_iter().map(str::to_owned).collect();
        let card = |gpu: &str| {
            let facts = self.0.get(&(cluster.as_str(), gpu))?;
            Some(Card {
                part: Some((facts.slices, facts.of)),
                ..Card::whole(facts.gpu_model.as_str())
            })
        };
        let mfu = run.mfu(card, specs).ok();
        let goodput = goodput(&run, until.since(from));
        let count = run.gpu_count().max(run.facts.world as usize);
        let parts = gpus.iter().filter_map(|it| card(it)?.part);
        let parts: Vec<f64> = parts
            .map(|it| f64::from(it.0) / f64::from(it.1.max(1)))
            .collect();
        // Of ranks whose GPUs are not known nobody says that they are parts.
        let part = match parts.is_empty() {
            true => 1.0,
            false => parts.iter().sum::<f64>() / parts.len() as f64,
        };
        (!gpus.is_empty()).then(|| Trained {
            job,
            gpus,
            held_ms: from.millis()..until.millis(),
            milli_gpus: (count as f64 * part * 1e3).round() as i64,
            goodput: goodput.map(millionths),
            mfu: mfu.map(|it| millionths(it.ratio)),
            cluster,
        })
    }
}

fn millionths(ratio: f64) -> i64 {
    (ratio * 1e6).round() as i64
}

/// The goodput of an attempt; none where nobody told its steps, or what its end lost, and where there was a process before
/// the one whose totals are known.
fn goodput(run: &Run, held_ns: i64) -> Option<f64> {
    let (_, rank) = run.speaker()?;
    if rank.facts.came_up_again() {
        return None;
    }
    let told = |metric: Metric| rank.facts.reading(metric.id);
    let nanos = |metric: Metric| spent(rank, metric);
    let ending = run.facts.ending.as_ref();
    let broke_off = ending.filter(|it| it.is_interruption());
    let steps_lost = match broke_off {
        Some(ending) => ending.steps_lost?,
        None => 0,
    };
    let times = StepTimes {
        wall_ns: (told(training::STEP_WALL)? * 1e9) as u64,
        busy_ns: nanos(training::STEP_BUSY),
        data_wait_ns: nanos(training::STEP_DATA_WAIT),
        comm_wait_ns: nanos(training::STEP_COMMUNICATION_WAIT),
    };
    let totals = Totals {
        held_ns: held_ns.max(0).unsigned_abs(),
        steps: told(training::STEPS)? as u64,
        wall_ns: times.wall_ns,
        data_wait_ns: times.data_wait_ns,
        stood_ns: times.stood_ns(),
        steps_lost,
        startup_ns: nanos(training::PHASE_STARTUP),
        checkpoint_save_ns: nanos(training::PHASE_CHECKPOINT_SAVE),
        checkpoint_restore_ns: nanos(training::PHASE_CHECKPOINT_RESTORE),
        custom_ns: nanos(training::PHASE_EVALUATION).saturating_add(nanos(training::PHASE_OTHER)),
    };
    of_totals(&totals)?.ratio()
}

/// The runs of a range of days with who pays for each.
pub(super) fn times(days: &Days, range: &Range<i64>, terms: &Terms) -> Vec<RunTime> {
    let of_runs = days.trained.iter();
    let named: HashSet<(&str, &str)> = of_runs
        .flat_map(|it| {
            it.gpus
                .iter()
                .map(|gpu| (it.cluster.as_str(), gpu.as_str()))
        })
        .collect();
    let mut by_gpu: HashMap<(&str, &str), Vec<&LedgerDay>> = HashMap::new();
    for day in &days.days {
        let key = (day.of.cluster.as_str(), day.of.id.as_str());
        if named.contains(&key) {
            by_gpu.entry(key).or_default().push(day);
        }
    }
    let (from_ms, until_ms) = (range.start * MILLIS_PER_DAY, range.end * MILLIS_PER_DAY);
    let time = |it: &Trained| {
        let held = it.held_ms.end.min(until_ms) - it.held_ms.start.max(from_ms);
        let payer = payer(it, &by_gpu, &days.holders, terms)?;
        (held > 0).then(|| RunTime {
            payer: payer.name().to_owned(),
            gpu_millis: held.saturating_mul(it.milli_gpus) / 1_000,
            goodput: it.goodput,
            mfu: it.mfu,
        })
    };
    days.trained.iter().filter_map(time).collect()
}

fn payer(
    run: &Trained,
    by_gpu: &HashMap<(&str, &str), Vec<&LedgerDay>>,
    holders: &HashMap<i64, Holder>,
    terms: &Terms,
) -> Option<Payer> {
    let days =
        run.held_ms.start.div_euclid(MILLIS_PER_DAY)..=run.held_ms.end.div_euclid(MILLIS_PER_DAY);
    let mut held: BTreeMap<i64, i64> = BTreeMap::new();
    let all = run
        .gpus
        .iter()
        .map(|gpu| (run.cluster.as_str(), gpu.as_str()));
    let theirs = all.filter_map(|it| by_gpu.get(&it)).flatten();
    for day in theirs.filter(|it| days.contains(&it.day)) {
        for time in day
            .times
            .iter()
            .filter(|it| it.holder != 0 || is_held(it.state))
        {
            *held.entry(time.holder).or_default() += time.millis;
        }
    }
    let is_named = |number: &i64| holders.get(number).is_some_and(|it| it.is_called(&run.job));
    let has_name = held.keys().any(is_named);
    let fit = held.iter().filter(|it| !has_name || is_named(it.0));
    let (number, _) = fit.max_by_key(|it| (it.1, std::cmp::Reverse(it.0)))?;
    let unknown = Holder::default();
    let holder = holders.get(number).unwrap_or(&unknown);
    let owners = &terms.owners;
    Some(owners.payer(&run.cluster, holder, run.held_ms.start))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpufleet_telemetry::training::RunId;

    use super::super::fixture::day_of_card;
    use super::*;
    use crate::runs::{RankFacts, RunFacts, RunKey};

    #[test]
    fn a_run_on_shares_has_the_time_of_as_much_of_a_card_as_they_are() {
        let share = |id: &str| {
            let mut day = day_of_card(id, DayFacts::default(), (0, (0, 1)), Vec::new());
            let facts = &mut Arc::make_mut(&mut day.of).facts;
            (facts.slices, facts.of) = (3, 7);
            day
        };
        let days = Days {
            days: vec![share("MIG-0"), share("MIG-1")],
            ..Days::default()
        };
        let milli_gpus = |gpus: [&str; 2]| {
            let rank = |gpu: &str| RankFacts {
                gpu: gpu.into(),
                ..RankFacts::default()
            };
            let known = KnownRun {
                key: RunKey {
                    cluster: "lab".into(),
                    run: RunId::parse("n/job/u/0").expect("an id"),
                },
                facts: RunFacts {
                    started: Some(Timestamp(0)),
                    world: 4,
                    ..RunFacts::default()
                },
                ranks: vec![(0, rank(gpus[0])), (1, rank(gpus[1]))],
                is_part: false,
            };
            let trained = Cards::of(&days).trained(known, &Specs::default());
            trained.map(|it| it.milli_gpus)
        };
        assert_eq!(milli_gpus(["MIG-0", "MIG-1"]), Some(1_714), "4 × 3/7");
        assert_eq!(milli_gpus(["GPU-0", "GPU-1"]), Some(4_000));
    }

    #[test]
    fn goodput_is_of_training_alone_and_not_known_of_an_attempt_of_several_processes() {
        let told = [
            (training::STEPS, 100.0),
            (training::STEP_WALL, 900.0),
            (training::STEP_BUSY, 600.0),
            (training::STEP_DATA_WAIT, 50.0),
            (training::STEP_COMMUNICATION_WAIT, 100.0),
            (training::PHASE_CHECKPOINT_SAVE, 150.0),
        ];
        let mut readings: Vec<_> = told.iter().map(|(metric, it)| (metric.id, *it)).collect();
        readings.sort_by_key(|it| it.0);
        let began = |seconds: i64| Some(Timestamp::from_seconds(1_790_000_000 + seconds));
        let mut facts = RankFacts {
            began: began(0),
            began_last: began(0),
            readings,
            ..RankFacts::default()
        };
        let found = |facts: &RankFacts| {
            let known = KnownRun {
                key: RunKey {
                    cluster: "lab".into(),
                    run: RunId::parse("n/job/u/0").expect("an id"),
                },
                facts: RunFacts::default(),
                ranks: vec![(0, facts.clone())],
                is_part: false,
            };
            goodput(&Run::of_store(known), 1_000_000_000_000)
        };
        assert_eq!(found(&facts), Some(0.7));
        facts.began_last = began(600);
        assert_eq!(found(&facts), None);
    }

    #[test]
    fn what_is_of_one_cluster_has_the_runs_of_that_cluster() {
        let run = |cluster: &str| Trained {
            cluster: cluster.to_owned(),
            job: "train".to_owned(),
            gpus: vec!["GPU-0".to_owned()],
            held_ms: 0..1,
            milli_gpus: 1_000,
            goodput: Some(900_000),
            mfu: None,
        };
        let days = Days {
            trained: vec![run("lab"), run("prod")],
            ..Days::default()
        };
        assert_eq!(days.of_cluster("prod").trained, [run("prod")]);
    }
}

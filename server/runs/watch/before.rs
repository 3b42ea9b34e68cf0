//! Whether a run is slower than the runs before it: those of jobs of its name that ended, were made of the same as far
//! as both could tell it, and had as many ranks.
//!
//! Method: after [`FIRST_STEPS`] steps, and again after each [`AGAIN_STEPS`], its steps are held against those of the
//! last [`COMPARED`] such runs by [`between`]: by medians of runs, never by pooled steps. Fewer than three are no
//! baseline, and a run that has not told what it is made of is compared with none: then nothing is said.
//!
//! Limits: steps of the rank that stands for a run, of its last [`READ_BACK`], as long as they are kept; one run is
//! looked up at a round. A replay does not look at other runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::incident::Evidence;
use gpufleet_analysis::regression::between::{self, Pace, Verdict};
use gpufleet_telemetry::steps::StepBlock;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::pace::step_told;
use crate::runs::{KnownRun, Run, RunKey, compare, history};
use crate::store::{RunFilter, Store, StoreError};

/// Steps after which a run is held against those before it: more than a start and its first checkpoint.
pub(crate) const FIRST_STEPS: u64 = 200;

/// And after so many more again: what was slow then may be mended, and steps cost time to read.
pub(super) const AGAIN_STEPS: u64 = 2_000;

/// Most runs of its name that are looked at for such that are like it.
const LOOKED_AT: usize = 40;

/// Most runs it is compared with, the last ones.
const COMPARED: usize = 8;

/// The rank that stands for a run is looked for among these.
const SPEAKERS: u32 = 64;

/// How far back from the end of a run its steps are read, nanoseconds.
const READ_BACK: i64 = 3_600 * NANOS_PER_SECOND;

/// So long the runs before a run may take to read: it is over before the next round.
const WITHIN: Duration = Duration::from_secs(5);

/// What hooks find by themselves only of late: that one of two runs does not say it is nothing that its user changed.
const FOUND_OF_LATE: [&str; 4] = [
    "loader.storage",
    "cpus",
    "cpus.ranks",
    "megatron.virtual_stages",
];

/// That a run is slower than the runs before it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowerThanBefore {
    /// How many runs those are.
    pub runs: usize,
    /// How long its steps take, median, nanoseconds.
    pub step_ns: f64,
    /// How long theirs took, the median of their medians.
    pub usual_ns: f64,
    /// When the first of its steps began that were held against theirs.
    pub since: Timestamp,
}

impl SlowerThanBefore {
    /// What is said of such a run.
    pub const WHAT: &'static str = "its steps take longer than those of the runs before it";
    /// What the number of those runs is called.
    pub const RUNS: &'static str = "runs before it";

    /// As it was told before this server watched; none where it was not.
    pub(super) fn told(evidence: &Evidence) -> Option<Self> {
        let (step_ns, usual_ns) = step_told(evidence, Self::WHAT)?;
        let runs = evidence.readings.iter().find(|it| it.name == Self::RUNS)?;
        Some(Self {
            runs: runs.value as usize,
            step_ns,
            usual_ns,
            since: evidence.at,
        })
    }
}

/// Whether it is slower than those before it by this part at least; none where it is not, or nothing can be said.
///
/// # Errors
/// When the database refuses.
pub(super) async fn slower(
    store: &Store,
    (key, run): (&RunKey, &Run),
    least_change: f64,
) -> Result<Option<SlowerThanBefore>, StoreError> {
    if run.facts.fingerprint.is_empty() {
        return Ok(None);
    }
    let filter = RunFilter {
        cluster: Some(Arc::clone(&key.cluster)),
        name_of: Some(key.run.job.clone()),
        ..RunFilter::default()
    };
    let (known, _) = store.runs(&filter, None, LOOKED_AT).await?;
    let like = known.into_iter().filter(|it| is_like(it, (key, run)));
    let like: Vec<RunKey> = like.map(|it| it.key).take(COMPARED).collect();
    if like.len() < between::LEAST_BASELINES {
        return Ok(None);
    }
    let Some(own) = pace(store, (key, run)).await? else {
        return Ok(None);
    };
    let mut before = Vec::with_capacity(like.len());
    for known in store.with_first_ranks(&like, SPEAKERS).await? {
        let key = known.key.clone();
        let known = pace(store, (&key, &Run::of_store(known))).await?;
        before.extend(known.map(|it| it.0));
    }
    Ok(judged(&before, &own, least_change))
}

/// What was read of a run; where that fails or takes too long, what was known of it last.
pub(super) async fn in_time(
    reading: impl Future<Output = Result<Option<SlowerThanBefore>, StoreError>>,
    key: &RunKey,
    last: Option<SlowerThanBefore>,
) -> Option<SlowerThanBefore> {
    match tokio::time::timeout(WITHIN, reading).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => {
            tracing::error!(%error, "the runs before a run cannot be read: it is not compared with them");
            last
        }
        Err(_) => {
            tracing::warn!(run = %key.run, "reading the runs before a run takes too long: it is not compared with them");
            last
        }
    }
}

/// Whether a run is one that this is to be held against.
fn is_like(before: &KnownRun, (key, run): (&RunKey, &Run)) -> bool {
    let (facts, own) = (&before.facts, &run.facts);
    before.key != *key
        && facts.ended.is_some()
        && facts.started < own.started
        && facts.world == own.world
        && is_made_of_the_same(&facts.fingerprint, &own.fingerprint)
}

/// Whether two fingerprints say the same; one that says nothing is like none.
fn is_made_of_the_same(one: &BTreeMap<String, String>, other: &BTreeMap<String, String>) -> bool {
    let is_told = !one.is_empty() && !other.is_empty();
    is_told && settings(one, other).eq(settings(other, one))
}

/// The settings of one by which it may be held against another.
fn settings<'a>(
    one: &'a BTreeMap<String, String>,
    other: &'a BTreeMap<String, String>,
) -> impl Iterator<Item = (&'a String, &'a String)> {
    let counts =
        move |key: &String| other.contains_key(key) || !FOUND_OF_LATE.contains(&key.as_str());
    one.iter().filter(move |(key, _)| counts(key))
}

fn judged(
    before: &[Pace],
    (own, since): &(Pace, Timestamp),
    least_change: f64,
) -> Option<SlowerThanBefore> {
    let compared = between::compare(before, own)?;
    let is_slower = compared.verdict == Verdict::Slower && compared.ratio >= 1.0 + least_change;
    is_slower.then(|| SlowerThanBefore {
        runs: before.len(),
        step_ns: own.median(),
        usual_ns: own.median() / compared.ratio,
        since: *since,
    })
}

/// How fast a run is, by how many nanoseconds its steps took but for the first, and since when.
async fn pace(
    store: &Store,
    (key, run): (&RunKey, &Run),
) -> Result<Option<(Pace, Timestamp)>, StoreError> {
    let Some((speaker, _)) = run.speaker() else {
        return Ok(None);
    };
    let end = run.facts.heard.shifted(NANOS_PER_SECOND);
    let range = end.shifted(-READ_BACK)..end;
    let steps = history::steps(store, (key, run), Some(&[speaker]), &range).await?;
    let of = |blocks: &Vec<StepBlock>| {
        let since = blocks.first()?.started_at.max(range.start);
        Some((Pace::of(&compare::walls(blocks))?, since))
    };
    Ok(steps.get(&speaker).and_then(of))
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use gpufleet_telemetry::catalog::training;
    use gpufleet_telemetry::steps::StepTimes;
    use gpufleet_telemetry::training::{JobId, RunId};

    use super::super::{EVERY, Slower, Watch, Watched};
    use super::*;
    use crate::runs::{RankFacts, RunFacts, Runs, StepDelta};
    use crate::store::StoreConfig;
    use crate::store::model::Commit;

    /// 60 steps of about so many milliseconds.
    fn steps(millis: f64) -> Vec<f64> {
        let times = (0..60).map(|it| (millis + f64::from(it % 5) * 0.1) * 1e6);
        times.collect()
    }

    #[test]
    fn a_run_is_slower_than_three_like_it_and_than_two_nothing_is_said() {
        let pace = |millis| Pace::of(&steps(millis)).expect("enough steps");
        let before = [pace(100.0), pace(100.5), pace(99.5)];
        let pace = |millis| (pace(millis), at(0, 0));
        let found = judged(&before, &pace(110.0), 0.02).expect("it is slower");
        assert_eq!(found.runs, 3);
        assert!((found.step_ns - 110.2e6).abs() < 1e4, "{found:?}");
        assert!((found.usual_ns - 100.2e6).abs() < 1e4, "{found:?}");
        assert_eq!(judged(&before, &pace(110.0), 0.2), None, "by what is set");
        assert_eq!(judged(&before, &pace(100.2), 0.02), None);
        assert_eq!(judged(&before, &pace(80.0), 0.02), None, "faster is well");
        assert_eq!(judged(&before[..2], &pace(110.0), 0.02), None);
    }

    fn at(attempt: u32, seconds: i64) -> Timestamp {
        let start = 1_790_000_000 + i64::from(attempt) * 3_600;
        Timestamp::from_seconds(start + seconds)
    }

    fn key(attempt: u32) -> RunKey {
        let job = JobId::parse("team/llama/u1").expect("an id");
        RunKey {
            cluster: "prod".into(),
            run: RunId { job, attempt },
        }
    }

    /// A run of a minute that ended, made of this torch.
    fn known(attempt: u32, torch: &str) -> KnownRun {
        let rank = RankFacts {
            readings: vec![(training::STEPS.id, 60.0)],
            ..RankFacts::default()
        };
        KnownRun {
            key: key(attempt),
            facts: RunFacts {
                started: Some(at(attempt, 0)),
                heard: at(attempt, 60),
                ended: Some(at(attempt, 60)),
                world: 1,
                fingerprint: BTreeMap::from([("torch".to_owned(), torch.to_owned())]),
                ..RunFacts::default()
            },
            ranks: vec![(0, rank)],
            is_part: false,
        }
    }

    #[test]
    fn what_hooks_find_only_of_late_makes_no_run_unlike_and_one_that_says_nothing_is_like_none() {
        let storage = |kind: &str| ("loader.storage".to_owned(), kind.to_owned());
        let is_like_one_of = |own: Vec<(String, String)>, before: Vec<(String, String)>| {
            let of = |attempt: u32, pairs: Vec<(String, String)>| {
                let mut run = known(attempt, "2.9");
                run.facts.fingerprint = pairs.into_iter().collect();
                run
            };
            let own = Run::of_store(of(2, own));
            is_like(&of(1, before), (&key(2), &own))
        };
        let torch = || ("torch".to_owned(), "2.9".to_owned());
        let tuned = ("NCCL_ALGO".to_owned(), "Ring".to_owned());
        let cpus = ("cpus".to_owned(), "32".to_owned());
        for (own, before, expected) in [
            (vec![torch(), storage("nfs4")], vec![torch()], true),
            (vec![torch()], vec![torch(), storage("nfs4")], true),
            (vec![torch(), cpus], vec![torch()], true),
            (
                vec![torch(), storage("nfs4")],
                vec![torch(), storage("ext4")],
                false,
            ),
            (vec![torch()], vec![torch(), tuned], false),
            (vec![storage("nfs4")], vec![], false),
            (vec![], vec![], false),
        ] {
            let said = format!("{own:?} after {before:?}");
            assert_eq!(is_like_one_of(own, before), expected, "{said}");
        }
    }

    fn told(attempt: u32, millis: f64) -> StepDelta {
        let times = steps(millis).into_iter().map(|wall_ns| StepTimes {
            wall_ns: wall_ns as u64,
            ..StepTimes::default()
        });
        StepDelta {
            key: key(attempt),
            rank: 0,
            bucket: at(attempt, 0).minute().0.div_euclid(10),
            blocks: vec![StepBlock {
                first_step: 0,
                steps_log2: 0,
                started_at: at(attempt, 0),
                ended_at: at(attempt, 60),
                tokens: 0,
                samples: 0,
                times: times.collect(),
            }],
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_read_before_the_next_round_leaves_what_was_known() {
        let slower = |runs| SlowerThanBefore {
            runs,
            step_ns: 110e6,
            usual_ns: 100e6,
            since: at(0, 0),
        };
        let last = Some(slower(3));
        let its = key(1);
        let hangs = tokio::time::timeout(EVERY, in_time(pending(), &its, last));
        assert_eq!(hangs.await.expect("it is given up before"), last);
        let gone = StoreError::Corrupt {
            what: "a run".to_owned(),
            why: "cut".to_owned(),
        };
        assert_eq!(in_time(ready(Err(gone)), &key(1), last).await, last);
        for found in [Some(slower(4)), None] {
            assert_eq!(in_time(ready(Ok(found)), &key(1), last).await, found);
        }
    }

    #[tokio::test]
    async fn the_runs_before_it_are_those_of_its_name_that_are_made_of_the_same() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
        let store = store.expect("a new database opens");
        let lease = store.acquire_lease("s", at(0, 0), Duration::from_secs(15));
        let token = lease.await.expect("nobody has it").token;
        let all = [
            (1, "2.9", 100.0),
            (2, "2.9", 100.5),
            (3, "2.8", 50.0),
            (4, "2.9", 99.5),
            (5, "2.9", 110.0),
            (6, "2.8", 110.0),
            (7, "2.9", 70.0),
        ];
        for (attempt, torch, millis) in all {
            let commit = Commit {
                number: u64::from(attempt),
                runs: vec![known(attempt, torch)],
                steps: vec![told(attempt, millis)],
                ..Commit::default()
            };
            store
                .commit(&commit, token)
                .await
                .expect("it is the holder");
        }
        let of = async |attempt: u32, torch: &str| {
            let run = Run::of_store(known(attempt, torch));
            let found = slower(&store, (&key(attempt), &run), 0.02).await;
            found.expect("it answers")
        };
        let found = of(5, "2.9").await.expect("it is slower than those before");
        assert_eq!(found.runs, 3, "neither another torch nor a later one");
        assert!((found.usual_ns - 100.2e6).abs() < 1e5, "{found:?}");
        assert_eq!(found.since, at(5, 0), "its first step");
        assert_eq!(of(6, "2.8").await, None, "one is no baseline");
        assert_eq!(of(7, "2.9").await, None, "it is faster");

        // A watch asks when a run is due, and again after as many steps more.
        let runs = Runs::default();
        let mut own = known(5, "2.9");
        own.facts.ended = None;
        runs.restore(vec![own], Vec::new());
        let mut watch = Watch::default();
        let new = Watched::new(Slower::default());
        watch.runs.insert(key(5), new);
        for (seen, is_asked) in [
            (FIRST_STEPS - 1, false),
            (FIRST_STEPS, true),
            (FIRST_STEPS + AGAIN_STEPS - 1, false),
            (FIRST_STEPS + AGAIN_STEPS, true),
        ] {
            let watched = watch.runs.get_mut(&key(5)).expect("it is watched");
            (watched.seen, watched.before) = (seen, None);
            watch.compare(&runs, &store).await;
            let told = watch.runs[&key(5)].before;
            assert_eq!(told, is_asked.then_some(found), "after {seen} steps");
        }
    }
}

//! Replay of two real jobs (ByteDance's StragglerAnalysis, Apache-2.0), where they are there.
//!
//! AR has one rank that was slowed on purpose, SE a sequence-length imbalance and no culprit. The
//! data are beside the repository and never in it.

use std::collections::BTreeSet;
use std::io::Read;

use super::*;

const FOLDER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../shared/data/real/bytedance_stragglers"
);

/// Per step the ranks' busy seconds: dp · [`STAGES`] + stage.
pub(crate) type Job = BTreeMap<u64, (f64, BTreeMap<u32, f64>)>;

pub(crate) const STAGES: u32 = 4;

pub(crate) fn job(name: &str) -> Option<Job> {
    let Ok(packed) = std::fs::read(format!("{FOLDER}/ops-{name}.csv.gz")) else {
        eprintln!("NOT RUN: the real job {name} is not there");
        return None;
    };
    let mut text = String::new();
    let mut unpacked = flate2::read::GzDecoder::new(packed.as_slice());
    unpacked.read_to_string(&mut text).expect("it is text");
    let mut job = Job::new();
    for line in text.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let number = |at: usize| cells[at].parse::<f64>().expect("a number");
        let (wall, busy) = job.entry(number(0) as u64).or_default();
        *wall = wall.max(number(6));
        if cells[4].ends_with("-compute") {
            let rank = number(1) as u32 * STAGES + number(2) as u32;
            *busy.entry(rank).or_default() += number(7);
        }
    }
    Some(job)
}

/// What is named of a job, without the rank `left_out`, with a rank slower by a part.
pub(crate) fn replay(
    job: &Job,
    left_out: Option<u32>,
    slower: Option<(u32, f64)>,
) -> (BTreeSet<u32>, Verdict) {
    let mut run = Run::new(Source::Hooks);
    let mut named = BTreeSet::new();
    let mut verdict = Verdict::default();
    for (step, (wall, busy)) in job {
        let there = busy.iter().filter(|(rank, _)| Some(**rank) != left_out);
        let readings: Vec<Reading> = there
            .map(|(rank, busy)| {
                let part = slower.filter(|it| it.0 == *rank).map_or(0.0, |it| it.1);
                let busy_ns = (busy * (1.0 + part) * 1e9) as u64;
                Reading {
                    rank: *rank,
                    seat: seat(*rank, STAGES),
                    busy_ns,
                }
            })
            .collect();
        let wall_ns = (wall * 1e9) as u64;
        run.observe(&Step {
            step: *step,
            wall_ns,
            readings: &readings,
        });
        if step % 4 == 0 || Some(step) == job.keys().last() {
            verdict = run.judge();
            named.extend(names(&verdict));
        }
    }
    (named, verdict)
}

#[test]
fn the_slowed_rank_of_a_real_job_is_named_and_nobody_else_and_its_price_is_near_the_papers() {
    let Some(job) = job("AR") else { return };
    let (named, verdict) = replay(&job, None, None);
    assert_eq!(named, BTreeSet::from([0]));
    assert_eq!(verdict.stragglers[0].confidence, Confidence::High);
    let price = verdict.stragglers[0].price.expect("walls are known");
    // The paper's simulation: 46.34 s as it was, 23.45 s without that worker.
    let without = price.without_ns as f64 / 1e9;
    assert!((without / 23.45 - 1.0).abs() < 0.1, "{without}");
}

#[test]
fn a_real_job_whose_sequences_differ_names_nobody_and_says_that_the_last_stage_has_more_work() {
    let Some(job) = job("SE") else { return };
    let (named, verdict) = replay(&job, None, None);
    assert_eq!(named, BTreeSet::new());
    assert!(verdict.moving.is_some(), "{verdict:?}");
    assert_eq!(verdict.stages.len(), 1, "{verdict:?}");
    assert_eq!(verdict.stages[0].stage, 1);
}

//! The real data beside the repository, where it is there: two jobs with and without a culprit
//! (ByteDance's StragglerAnalysis) and step times of 149 runs (MLPerf).

use std::collections::BTreeSet;
use std::fmt::Write;

use super::REAL;
use crate::regression::tests::real::{repeats, runs, slower};
use crate::straggler::tests::real::{Job, STAGES, job, replay};

/// Who is named, with one rank left out and one made slower.
fn named(job: &Job, left_out: Option<u32>, slower: Option<(u32, f64)>) -> BTreeSet<u32> {
    replay(job, left_out, slower).0
}

fn places(ranks: &BTreeSet<u32>) -> String {
    let place = |rank: &u32| format!("dp {} stage {}", rank / STAGES, rank % STAGES);
    let places: Vec<String> = ranks.iter().map(place).collect();
    if places.is_empty() {
        "nobody".to_owned()
    } else {
        places.join(", ")
    }
}

/// The part of the report; none where any of the data is missing.
pub(super) fn section() -> Option<String> {
    let (quiet, noisy) = (job("AR")?, job("SE")?);
    let runs = runs()?;
    let mut text = format!(
        "{REAL}\n\nNot in this repository; this part is written where the data is there and kept as it is elsewhere.\n\n\
         | detector | data | result |\n|---|---|---|\n"
    );
    let mut row = |detector: &str, data: &str, result: &str| {
        writeln!(text, "| {detector} | {data} | {result} |").expect("a string takes all");
    };
    let culprit = named(&quiet, None, None);
    let nobody = named(&noisy, None, None);
    row(
        "straggler",
        "ByteDance AR, whose dp 0 stage 0 was slowed on purpose",
        &format!("names {}", places(&culprit)),
    );
    row(
        "straggler",
        "ByteDance SE, uneven sequences, no culprit",
        &format!("names {}", places(&nobody)),
    );
    for part in [0.06, 0.1, 0.2, 0.3] {
        let (mut found, mut of, mut others) = (0, 0, 0);
        for (job, left_out, every) in [(&quiet, Some(0), 1), (&noisy, None, 4)] {
            let ranks = job.values().next().expect("a step").1.keys();
            let tried = ranks.copied().filter(|it| Some(*it) != left_out);
            for rank in tried.step_by(every) {
                let told = named(job, left_out, Some((rank, part)));
                of += 1;
                found += u32::from(told.contains(&rank));
                others += told.iter().filter(|it| **it != rank).count();
            }
        }
        row(
            "straggler",
            &format!(
                "another rank of AR or SE made slower by {:.0} %",
                part * 100.0
            ),
            &format!("{found} of {of} named, {others} others"),
        );
    }
    let steps: usize = runs.iter().map(|it| it.steps.len()).sum();
    let alarms = runs.iter().map(|it| slower(&it.steps).len());
    let alarms: usize = alarms.sum();
    let rate = 1_000.0 * alarms as f64 / steps as f64;
    row(
        "regression",
        "MLPerf, 149 runs as they are",
        &format!("{alarms} alarms in {steps} steps, {rate:.2} per 1,000"),
    );
    let (compared, different) = repeats(&runs);
    row(
        "regression between runs",
        "MLPerf, each run against its repeats",
        &format!("{different} of {compared} called slower or faster"),
    );
    Some(text)
}

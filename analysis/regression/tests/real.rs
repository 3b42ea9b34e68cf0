//! Replay of real step times (MLPerf training logs, Apache-2.0), where they are there.

use std::collections::BTreeMap;
use std::io::Read;

use serde_json::Value;

use super::*;

const PATH: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../shared/data/real/mlperf_step_times.jsonl.gz"
);

/// One run: what it repeats (round, who, machine, benchmark), and its step times in nanoseconds.
pub(crate) struct RealRun {
    kind: String,
    pub(crate) steps: Vec<f64>,
}

pub(crate) fn runs() -> Option<Vec<RealRun>> {
    let Ok(packed) = std::fs::read(PATH) else {
        eprintln!("NOT RUN: the real step times are not there");
        return None;
    };
    let mut text = String::new();
    let mut unpacked = flate2::read::GzDecoder::new(packed.as_slice());
    unpacked.read_to_string(&mut text).expect("it is text");
    let run = |line: &str| {
        let run: Value = serde_json::from_str(line).expect("a JSON object");
        let words = ["round", "org", "system", "bench", "gbs"];
        let kind = words.map(|word| run[word].to_string()).join(" ");
        let steps = run["step_s"].as_array().expect("step times");
        let steps = steps.iter().filter_map(Value::as_f64).map(|it| it * 1e9);
        RealRun {
            kind,
            steps: steps.collect(),
        }
    };
    Some(text.lines().map(run).collect())
}

pub(crate) fn slower(times: &[f64]) -> Vec<Change> {
    let slower = |it: &Change| it.direction == Direction::Slower;
    watched(times).into_iter().filter(slower).collect()
}

#[test]
fn real_runs_as_they_are_give_at_most_one_finding_in_10_000_steps() {
    let Some(runs) = runs() else { return };
    let steps: usize = runs.iter().map(|it| it.steps.len()).sum();
    let mut findings = 0;
    for run in &runs {
        let found = slower(&run.steps);
        findings += found.len();
        if !found.is_empty() {
            eprintln!("{}: {found:?}", run.kind);
        }
    }
    let rate = 1_000.0 * findings as f64 / steps as f64;
    eprintln!(
        "{findings} findings in {} runs, {rate:.3} per 1,000 steps",
        runs.len()
    );
    assert!(rate <= 0.10, "{rate}");
}

#[test]
fn real_runs_made_slower_are_found_by_size_with_a_median_delay_below_20_steps() {
    let Some(runs) = runs() else { return };
    for (part, least) in [(0.02, 0.868), (0.05, 0.990), (0.1, 0.993)] {
        let (mut tried, mut delays) = (0_u32, Vec::new());
        for run in runs.iter().filter(|it| slower(&it.steps).is_empty()) {
            let from = run.steps.len() * 6 / 10;
            let mut times = run.steps.clone();
            times[from..].iter_mut().for_each(|it| *it *= 1.0 + part);
            tried += 1;
            let found = slower(&times);
            let found = found.iter().find(|it| it.at_step as usize > from);
            delays.extend(found.map(|it| (it.at_step as usize - from) as f64));
        }
        let recall = delays.len() as f64 / f64::from(tried);
        let delay = median(&mut delays).unwrap_or(f64::MAX);
        eprintln!(
            "+{:.0} %: {recall:.3} of {tried}, delay {delay}",
            part * 100.0
        );
        assert!(recall >= least, "+{:.0} %: {recall:.3}", part * 100.0);
        assert!(delay <= 19.0, "+{:.0} %: {delay}", part * 100.0);
    }
}

/// Each run held against its repeats: how many were judged, and how many of them called slower or faster.
pub(crate) fn repeats(runs: &[RealRun]) -> (u32, u32) {
    let mut kinds: BTreeMap<&str, Vec<Pace>> = BTreeMap::new();
    for run in runs {
        let settled = &run.steps[(WARM_UP_STEPS as usize).min(run.steps.len())..];
        let repeats = kinds.entry(&run.kind).or_default();
        repeats.extend(Pace::of(settled));
    }
    let (mut compared, mut different) = (0, 0);
    for (kind, repeats) in &kinds {
        for left in 0..repeats.len() {
            let mut others = repeats.clone();
            let own = others.remove(left);
            let Some(told) = compare(&others, &own) else {
                continue;
            };
            compared += u32::from(told.verdict != Verdict::TooFewRuns);
            if matches!(told.verdict, Verdict::Slower | Verdict::Faster) {
                eprintln!("{kind}: {told:?}");
                different += 1;
            }
        }
    }
    (compared, different)
}

#[test]
fn real_repeats_are_alike() {
    let Some(runs) = runs() else { return };
    let (compared, different) = repeats(&runs);
    eprintln!("{different} of {compared} repeats are called different");
    assert!(compared >= 40, "{compared}");
    let part = f64::from(different) / f64::from(compared);
    assert!(part <= 0.0022, "{different} of {compared}");
}

//! The report is held against the committed one, and the detectors against what they promise.

use super::*;
use crate::adviser::tests::table;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/detection.md");

/// Detectors of which both kinds of rows are wanted.
const DETECTORS: [&str; 18] = [
    "straggler",
    "straggler by collectives",
    "straggler by clocks",
    "hang",
    "regression",
    "regression between runs",
    "regression A/B",
    "loss",
    "leak",
    "health",
    "slow link",
    "wrong network",
    "offender",
    "port",
    "limit",
    "idle",
    "blind",
    "ending",
];

/// What is below its least or above its most; a detector without rows that promise something too.
fn wrong(faults: &[Faults], well: &[Well]) -> Vec<String> {
    let below = faults.iter().filter(|it| it.found < it.least);
    let below = below.map(|it| format!("{} {}: {} of {}", it.detector, it.fault, it.found, it.of));
    let above = well.iter().filter(|it| it.alarms > it.most);
    let above = above.map(|it| format!("{} {}: {} alarms", it.detector, it.world, it.alarms));
    let promises = |detector: &str| {
        faults
            .iter()
            .any(|it| it.detector == detector && it.least > 0)
    };
    let is_quiet = |detector: &str| well.iter().any(|it| it.detector == detector);
    let missing = DETECTORS
        .into_iter()
        .filter(|it| !promises(it) || !is_quiet(it));
    let missing = missing.map(|it| format!("{it}: no rows"));
    let beyond = faults.iter().filter(|it| it.least == 0 && it.found > 0);
    let beyond = beyond.map(|it| {
        let (detector, fault) = (it.detector, &it.fault);
        format!(
            "{detector} {fault}: {} found, and none is promised",
            it.found
        )
    });
    let wrong = below.chain(above).chain(missing).chain(beyond);
    wrong.chain(kinds::missing(faults)).collect()
}

/// Detectors, and kinds of what they say, whose rows no longer fail when it finds nothing.
fn unheld(faults: &[Faults], well: &[Well]) -> Vec<String> {
    let fails_without = |is_off: &dyn Fn(&Faults) -> bool| {
        let mut left = faults.to_vec();
        for row in left.iter_mut().filter(|it| is_off(it)) {
            row.found = 0;
        }
        !wrong(&left, well).is_empty()
    };
    let named: BTreeSet<&str> = faults.iter().map(|it| it.detector).collect();
    let detectors = named
        .into_iter()
        .filter(|it| !fails_without(&|row| row.detector == *it));
    let kinds = kinds::all().filter(|it| !fails_without(&|row| kinds::is_of(row, *it)));
    let detectors: Vec<String> = detectors.map(str::to_owned).collect();
    let kinds = kinds.map(|(detector, begins)| format!("{detector} {begins}"));
    detectors.into_iter().chain(kinds).collect()
}

/// One test, because the worlds take a while to make.
#[test]
fn every_detector_finds_what_it_found_alarms_no_more_than_it_did_and_the_report_says_so() {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|it| it == "1");
    let (faults, well) = (faults(), well());
    let written = std::fs::read_to_string(PATH).unwrap_or_default();
    let first = healthy::first();
    let healthy = match is_set("GPUFLEET_HEALTHY") {
        true => healthy::measured(),
        false => healthy::kept(&written, &first).expect(
            "docs/detection.md has 10,000 GPU-days of other detectors or worlds: make detection-healthy",
        ),
    };
    let mut wrong = wrong(&faults, &well);
    wrong.extend(healthy::wrong(&healthy));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(
        unheld(&faults, &well),
        [""; 0],
        "disabled, and nothing fails"
    );
    let by_server = written.find(SERVER).unwrap_or(written.len());
    let kept = written[..by_server].find(REAL);
    let kept = kept.map_or("", |at| &written[at..by_server]);
    let real = real::section().unwrap_or_else(|| kept.to_owned());
    let real = match &written[by_server..] {
        "" => real,
        by_server => format!("{}\n\n{by_server}", real.trim_end()),
    };
    let report = report(
        &faults,
        &well,
        &(healthy::section(&healthy, &first) + &table::section() + &real),
    );
    if is_set("GPUFLEET_BLESS") {
        std::fs::write(PATH, &report).expect("docs is there");
        return;
    }
    assert!(
        written == report,
        "docs/detection.md is stale: make detection-report"
    );
}

#[test]
fn a_detector_that_is_disabled_fails_its_rows() {
    let row = |found: u32| Faults {
        detector: "hang",
        fault: "a run that stands".to_owned(),
        of: 20,
        found,
        delay: None,
        least: 20,
    };
    let of_hang = |found: u32| {
        let wrong = wrong(&[row(found)], &[]);
        wrong
            .into_iter()
            .filter(|it| it.starts_with("hang a run"))
            .count()
    };
    assert_eq!((of_hang(20), of_hang(0)), (0, 1));
    let gone = DETECTORS.len() + kinds::all().count();
    assert_eq!(wrong(&[], &[]).len(), gone, "rows that are gone");
}

#[test]
fn what_is_not_promised_and_is_found_is_to_be_promised() {
    let row = |found: u32| Faults {
        detector: "hang",
        fault: "a run that is a little late".to_owned(),
        of: 20,
        found,
        delay: None,
        least: 0,
    };
    let wrong = |found: u32| {
        let wrong = wrong(&[row(found)], &[]);
        wrong.into_iter().any(|it| it.starts_with("hang a run"))
    };
    assert!(!wrong(0) && wrong(1));
}

#[test]
fn intervals_are_those_of_the_tables() {
    let (low, high) = interval(18, 20);
    assert!((low - 0.699).abs() < 0.001 && (high - 0.972).abs() < 0.001);
    assert_eq!(interval(0, 20).0, 0.0);
    // One-sided 95 % of Poisson: 0 → 3.00, 3 → 7.75.
    assert_eq!(most_likely(0), 3.0);
    assert!((most_likely(3) - 7.75).abs() < 0.05);
}

//! How good the detectors are: seeded worlds with faults of several sizes, seeded worlds that are well,
//! and real data where it is there. docs/detection.md is the report; the test that finds it stale says
//! how to write it anew.
//!
//! Each row of what is to be found has a least number, and fails below it: a detector that is disabled
//! finds nothing and fails its rows. A least of 0 is of what is too small to be found, and fails when it is found: then
//! it is to be promised. Each row of what is well has a greatest number. Each kind of thing that is said has a row
//! ([`kinds`]).
//!
//! What takes minutes to make is measured on request and kept otherwise ([`healthy`]). What the adviser reckons with is a
//! table beside it ([`crate::adviser`]'s tests).
//!
//! Limits: made worlds are kinder than real ones in what they leave out, which is why the real data is
//! beside them; an interval is of the seeds, not of what was left out.

mod endings;
mod fleet;
mod gpus;
mod healthy;
mod kinds;
mod network;
mod nobody;
mod offenders;
mod real;
mod repeats;
mod stands;
mod tests;
mod together;
mod training;

use std::collections::BTreeSet;
use std::fmt::Write;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// Where the part begins that is of real data: kept as it is where that data is not there. Before it stands what the
/// adviser says, and before that what [`healthy`] measures.
const REAL: &str = "## Real data";
/// Where the part begins that the server's tests write, which is the last: kept as it is here.
const SERVER: &str = "## Found by the server";
/// Ranks of a machine of made jobs, in their order.
const NODE_RANKS: u32 = 8;

/// What is said of faults of one kind and size.
#[derive(Clone)]
pub(crate) struct Faults {
    detector: &'static str,
    fault: String,
    of: u32,
    found: u32,
    /// How long it took, median, with its unit; nothing where the question makes no sense.
    delay: Option<String>,
    /// Fewest that have to be found; 0 where it is not to be found.
    least: u32,
}

/// What is said of a world that is well.
pub(crate) struct Well {
    detector: &'static str,
    world: &'static str,
    alarms: u32,
    /// How much of it there was, in the unit.
    exposure: f64,
    unit: &'static str,
    /// Most alarms that are allowed.
    most: u32,
}

/// Nearly normal, mean 0, σ 1.
fn normal(random: &mut ChaCha8Rng) -> f64 {
    (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0
}

/// The 95 % interval of a share (Wilson), as parts.
fn interval(found: u32, of: u32) -> (f64, f64) {
    const Z: f64 = 1.96;
    let (n, p) = (f64::from(of), f64::from(found) / f64::from(of));
    let scale = 1.0 + Z * Z / n;
    let middle = (p + Z * Z / (2.0 * n)) / scale;
    let half = Z / scale * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    ((middle - half).max(0.0), (middle + half).min(1.0))
}

/// The upper end of the 95 % interval of a count: Byar's approximation of Poisson's.
fn most_likely(alarms: u32) -> f64 {
    if alarms == 0 {
        return 3.0;
    }
    let n = f64::from(alarms) + 1.0;
    n * (1.0 - 1.0 / (9.0 * n) + 1.645 / (3.0 * n.sqrt())).powi(3)
}

/// The middle of delays with its unit.
fn middle(delays: &mut [f64], unit: &str) -> Option<String> {
    let middle = crate::robust::median(delays)?;
    Some(format!("{middle:.0} {unit}"))
}

/// Who is named as slow in a made job, and how long after the culprit became so it was.
struct Named {
    all: BTreeSet<u32>,
    delay: Option<f64>,
}

/// In how many of so many jobs the culprit is named, which `job` tells beside who is, and the middle of the delays.
fn alone(seeds: u32, unit: &str, job: impl Fn(u64) -> (Named, u32)) -> (u32, Option<String>) {
    let (mut found, mut delays) = (0, Vec::new());
    for seed in 0..seeds {
        let (named, culprit) = job(seed.into());
        // Named with somebody else is not found.
        if named.all == BTreeSet::from([culprit]) {
            found += 1;
            delays.extend(named.delay);
        }
    }
    (found, middle(&mut delays, unit))
}

fn faults() -> Vec<Faults> {
    let mut rows = training::faults();
    rows.extend(stands::faults());
    rows.extend(nobody::faults());
    rows.extend(repeats::faults());
    rows.extend(together::faults());
    rows.extend(gpus::faults());
    rows.extend(gpus::events::faults());
    rows.extend(network::faults());
    rows.extend(offenders::faults());
    rows.extend(fleet::faults());
    rows.extend(endings::faults());
    rows
}

fn well() -> Vec<Well> {
    let mut rows = training::well();
    rows.extend(stands::well());
    rows.extend(nobody::well());
    rows.extend(repeats::well());
    rows.extend(together::well());
    rows.extend(gpus::well());
    rows.extend(gpus::events::well());
    rows.extend(network::well());
    rows.extend(offenders::well());
    rows.extend(fleet::well());
    rows.extend(endings::well());
    rows
}

fn report(faults: &[Faults], well: &[Well], kept: &str) -> String {
    let mut text = String::from(
        "# How good the detectors are\n\n\
         Generated by the tests of `analysis/quality/` (`make detection-report`); CI fails when a figure\n\
         differs from this page or falls below its least. Seeds are fixed: the same code gives the same\n\
         page on every machine.\n\n\
         ## Found\n\n\
         Faults of several sizes put into made worlds. The interval is of 95 % (Wilson). Where the least is a dash, the\n\
         fault is too small for the detector's threshold: not one is found, and CI fails when one is, until it is promised.\n\n\
         Who makes a run wait is to be named within 60 s. By the times of collectives and by clocks a tick of 10 s stands for a\n\
         step, and six slow ones on end name a rank; who becomes slow late in a tick is named up to 5 s after that. What holds a\n\
         rank up for less comes and goes. Nobody is named before the run was at work for 25 steps, or such ticks: some four minutes.\n\n\
         | detector | fault | found | interval | least | delay |\n|---|---|---|---|---|---|\n",
    );
    for row in faults {
        let (low, high) = interval(row.found, row.of);
        let delay = row.delay.as_deref().unwrap_or("");
        let (found, of) = (row.found, row.of);
        let least = match row.least {
            0 => "–".to_owned(),
            least => least.to_string(),
        };
        let (detector, fault) = (row.detector, &row.fault);
        writeln!(
            text,
            "| {detector} | {fault} | {found} of {of} | {:.0}-{:.0} % | {least} | {delay} |",
            100.0 * low,
            100.0 * high
        )
        .expect("a string takes all");
    }
    text.push_str(
        "\n## Wrongly\n\n\
         Made worlds in which nothing is wrong. The last column is what the rate is below with 95 %.\n\n\
         | detector | world | alarms | in | below |\n|---|---|---|---|---|\n",
    );
    for row in well {
        let rate = most_likely(row.alarms) / row.exposure;
        writeln!(
            text,
            "| {} | {} | {} | {:.0} × {} | {rate:.3} per {} |",
            row.detector, row.world, row.alarms, row.exposure, row.unit, row.unit
        )
        .expect("a string takes all");
    }
    text.push('\n');
    text.push_str(kept);
    text
}

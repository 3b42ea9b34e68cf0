//! Made runs of one program, of which each is a little faster or slower than the others, as repeats are: one that is
//! slower than those before it, and two ways of doing the same with several runs of each.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::training::walls;
use super::{Faults, Well, normal};
use crate::regression::between::{self, Comparison, Pace, Verdict};

/// How much repeats differ (σ): real ones by 0.27 % in the middle, one in ten by 1 %.
const SPREADS: [(&str, f64); 2] = [("0.3 %", 0.003), ("1 %", 0.01)];
/// Steps of each.
const STEPS: u64 = 200;
/// Runs before the one that is judged.
const BEFORE: usize = 8;
/// Runs of each of two ways.
const OF_EACH: usize = 3;
const SEEDS: u32 = 50;
const WELL_SEEDS: u32 = 200;

const BETWEEN: &str = "regression between runs";
const A_B: &str = "regression A/B";

/// So many repeats, the times of their steps in nanoseconds.
fn repeats(seed: u32, count: usize, spread: f64) -> Vec<Vec<f64>> {
    let mut random = ChaCha8Rng::seed_from_u64(u64::from(seed) << 32);
    let run = |number: usize| -> Vec<f64> {
        let pace = 1.0 + spread * normal(&mut random);
        let own_noise = (u64::from(seed) << 8) + number as u64;
        let walls = walls(own_noise, STEPS, None).into_iter();
        walls.map(|it| it as f64 * pace).collect()
    };
    (0..count).map(run).collect()
}

/// A way to hold runs against each other.
type Compare = fn(&[Pace], &[Pace]) -> Option<Comparison>;

/// What is said of the last `judged` of these repeats by `compare`, when each of them takes so much longer.
fn told(mut runs: Vec<Vec<f64>>, judged: usize, longer: f64, compare: Compare) -> Option<Verdict> {
    let before = runs.len() - judged;
    let slowed = runs[before..].iter_mut().flatten();
    slowed.for_each(|it| *it *= 1.0 + longer);
    let runs: Option<Vec<Pace>> = runs.iter().map(|it| Pace::of(it)).collect();
    let runs = runs?;
    let (a, b) = runs.split_at(before);
    compare(a, b).map(|it| it.verdict)
}

/// Of a run that is longer by this part than those before it.
fn after(seed: u32, spread: f64, longer: f64) -> Option<Verdict> {
    let runs = repeats(seed, BEFORE + 1, spread);
    told(runs, 1, longer, |before, run| {
        between::compare(before, &run[0])
    })
}

/// Of B, whose runs are longer by this part than those of A.
fn a_b(seed: u32, spread: f64, longer: f64) -> Option<Verdict> {
    let runs = repeats(seed, 2 * OF_EACH, spread);
    told(runs, OF_EACH, longer, between::a_b)
}

fn found(
    detector: &'static str,
    fault: String,
    least: u32,
    verdict: impl Fn(u32) -> Option<Verdict>,
) -> Faults {
    let is_found = |seed: &u32| verdict(*seed) == Some(Verdict::Slower);
    Faults {
        detector,
        fault,
        of: SEEDS,
        found: (0..SEEDS).filter(is_found).count() as u32,
        delay: None,
        least,
    }
}

pub(super) fn faults() -> Vec<Faults> {
    let sizes = [0.03, 0.05, 0.1];
    // Fewest found of each size at each spread: what the seeds gave when this was written.
    let least_after = [[50, 50, 50], [15, 40, 50]];
    let least_a_b = [[50, 50, 50], [31, 46, 50]];
    let mut rows = Vec::new();
    for (place, (differ, spread)) in SPREADS.into_iter().enumerate() {
        for (size, longer) in sizes.into_iter().enumerate() {
            let percent = longer * 100.0;
            let fault =
                format!("a run {percent:.0} % slower than {BEFORE} that differ by {differ}");
            let least = least_after[place][size];
            rows.push(found(BETWEEN, fault, least, |seed| {
                after(seed, spread, longer)
            }));
            let fault = format!(
                "{OF_EACH} runs {percent:.0} % slower than {OF_EACH} others, which differ by {differ}"
            );
            let least = least_a_b[place][size];
            rows.push(found(A_B, fault, least, |seed| a_b(seed, spread, longer)));
        }
    }
    rows
}

pub(super) fn well() -> Vec<Well> {
    type Judge = fn(u32, f64, f64) -> Option<Verdict>;
    // With each of the spreads.
    let worlds: [(_, Judge, _); 2] = [
        (
            BETWEEN,
            after,
            [
                ("8 runs and one more, which differ by 0.3 %", 0),
                ("8 runs and one more, which differ by 1 %", 2),
            ],
        ),
        (
            A_B,
            a_b,
            [
                ("3 runs and 3 more, which differ by 0.3 %", 0),
                ("3 runs and 3 more, which differ by 1 %", 1),
            ],
        ),
    ];
    let mut rows = Vec::new();
    for (detector, judge, worlds) in worlds {
        for ((_, spread), (world, most)) in SPREADS.into_iter().zip(worlds) {
            let seeds = 1_000..1_000 + WELL_SEEDS;
            let told = seeds.filter_map(|seed| judge(seed, spread, 0.0));
            let alarms = told.filter(|it| matches!(it, Verdict::Slower | Verdict::Faster));
            rows.push(Well {
                detector,
                world,
                alarms: alarms.count() as u32,
                exposure: f64::from(WELL_SEEDS),
                unit: "comparison",
                most,
            });
        }
    }
    rows
}

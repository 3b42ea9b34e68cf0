//! Made training runs: ranks that are slow, runs that stand, become slower, or learn nothing.

use std::collections::BTreeSet;

use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::Held;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Faults, NODE_RANKS, Named, Well, alone, middle, normal};
use crate::hang::tests::NOTHING;
use crate::hang::{self, Tick, Verdict};
use crate::loss::{self, Trouble};
use crate::regression::{self, Direction};
use crate::straggler::{Reading, Run, Seat, Source, Step};

const SECOND: i64 = 1_000_000_000;

/// A job of 32 ranks, 8 columns of 4 stages.
const COLUMNS: u32 = 8;
const STAGES: u32 = 4;
/// Steps before and after a rank becomes slow; it is judged each ten, as each ten seconds.
const BEFORE: u64 = 60;
const AFTER: u64 = 60;
const SEEDS: u32 = 20;

/// Noise of each rank, and of what a column shares: fixed sequence lengths, and such that vary.
const NOISES: [(&str, f64, f64); 2] = [("quiet", 0.01, 0.0), ("long sequences", 0.02, 0.14)];

/// Who is named in a job, its delay in steps, and the culprit.
fn job(seed: u64, own: f64, shared: f64, slower: f64, steps: u64) -> (Named, u32) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let culprit = random.random_range(0..COLUMNS * STAGES);
    let mut run = Run::new(Source::Hooks);
    let mut named = Named {
        all: BTreeSet::new(),
        delay: None,
    };
    for step in 0..steps {
        let load: Vec<f64> = (0..COLUMNS).map(|_| shared * normal(&mut random)).collect();
        let readings: Vec<Reading> = (0..COLUMNS * STAGES)
            .map(|rank| {
                let column = rank / STAGES;
                let x = load[column as usize] + own * normal(&mut random);
                let is_slow = rank == culprit && step >= BEFORE;
                let part = if is_slow { 1.0 + slower } else { 1.0 };
                Reading {
                    rank,
                    seat: Seat {
                        stage: Some(rank % STAGES),
                        column: Some(column),
                        host: Some(rank / NODE_RANKS),
                        replica: None,
                        context: None,
                    },
                    busy_ns: (1e9 * x.exp() * part) as u64,
                }
            })
            .collect();
        run.observe(&Step {
            step,
            wall_ns: 0,
            readings: &readings,
        });
        if step % 10 == 9 {
            let told = run.judge().stragglers;
            named.all.extend(told.iter().map(|it| it.rank));
            if named.all.contains(&culprit) && named.delay.is_none() {
                named.delay = Some((step + 1 - BEFORE.min(step + 1)) as f64);
            }
        }
    }
    (named, culprit)
}

fn straggler(name: &str, own: f64, shared: f64, slower: f64, least: u32) -> Faults {
    let made = |seed| job(seed, own, shared, slower, BEFORE + AFTER);
    let (found, delay) = alone(SEEDS, "steps", made);
    Faults {
        detector: "straggler",
        fault: format!("one rank of 32 slower by {:.0} %, {name}", slower * 100.0),
        of: SEEDS,
        found,
        delay,
        least,
    }
}

/// When a run is told to stand that reads so at each tick of ten seconds, seconds.
fn stands_at(until: i64, tick: impl Fn(i64) -> Tick<'static>) -> impl Iterator<Item = i64> {
    let mut watch = hang::Watch::new();
    let stands = move |at: &i64| matches!(watch.observe(&tick(*at)), Verdict::Hung(_));
    (0..until).step_by(10).filter(stands)
}

/// A run that makes a step each so many seconds, and then none: how long after that it is told.
fn stands(gap_s: i64, seed: u64) -> Option<i64> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let stops_at = 30 * gap_s.max(10) + random.random_range(0..gap_s.max(10));
    let mut told = stands_at(stops_at + 100 * gap_s.max(30), move |at| Tick {
        now: Timestamp(at * SECOND),
        step: Some(u64::try_from(at.min(stops_at) / gap_s).unwrap_or(0)),
        activity: Some(if at > stops_at { 0.0 } else { 0.5 }),
        ..NOTHING
    });
    told.next().map(|at| at - stops_at)
}

/// A run that comes up, computes for up to 20 minutes of its start, and then no more: how long after that it is told.
fn never_begins(seed: u64) -> Option<i64> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let stops_at: i64 = random.random_range(0..1_200);
    let mut told = stands_at(7_200, move |at| Tick {
        now: Timestamp((1_000 + at) * SECOND),
        up_since: Some(Timestamp(1_000 * SECOND)),
        activity: Some(if at < stops_at { 0.4 } else { 0.0 }),
        ..NOTHING
    });
    told.next().map(|at| at - stops_at)
}

fn hang(fault: String, run: impl Fn(u64) -> Option<i64>) -> Faults {
    let told = (0..SEEDS).filter_map(|seed| run(seed.into()));
    // What is told before it stands is wrong.
    let mut delays: Vec<f64> = told.filter(|it| *it >= 0).map(|it| it as f64).collect();
    Faults {
        detector: "hang",
        fault,
        of: SEEDS,
        found: u32::try_from(delays.len()).unwrap_or(0),
        delay: middle(&mut delays, "s"),
        least: SEEDS,
    }
}

/// Hangs told of a hundred runs, an hour of each.
fn hangs<T: Fn(i64) -> Tick<'static>>(run: impl Fn(u64) -> T) -> u32 {
    let alarms = (0..100).map(|seed| stands_at(3_600, run(seed)).count());
    u32::try_from(alarms.sum::<usize>()).unwrap_or(u32::MAX)
}

/// A run that starts for up to 29 minutes in which nothing computes, and then steps.
fn starts(seed: u64) -> impl Fn(i64) -> Tick<'static> {
    let mut random = ChaCha8Rng::seed_from_u64(2_000 + seed);
    let begins_at: i64 = random.random_range(60..1_740);
    move |at: i64| {
        let steps = at - begins_at;
        Tick {
            now: Timestamp((1_000 + at) * SECOND),
            step: (steps >= 0).then_some(steps.unsigned_abs()),
            up_since: (steps < 0).then_some(Timestamp(1_000 * SECOND)),
            activity: Some(0.0),
            ..NOTHING
        }
    }
}

/// A run that saves unheard: 100 s each 10 minutes.
fn pauses(seed: u64) -> impl Fn(i64) -> Tick<'static> {
    move |at: i64| {
        let moved = (at / 600) * 500 + (at % 600).min(500);
        Tick {
            now: Timestamp(at * SECOND),
            step: Some(seed + moved.unsigned_abs()),
            activity: Some(0.0),
            ..NOTHING
        }
    }
}

/// Steps of about a second: noise of 1 %, one in fifty up to half as long again.
pub(super) fn walls(seed: u64, steps: u64, slower_from: Option<(u64, f64)>) -> Vec<u64> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..steps)
        .map(|step| {
            let spike = if random.random_bool(0.02) {
                1.0 + 0.5 * random.random::<f64>()
            } else {
                1.0
            };
            let part = slower_from.filter(|it| step >= it.0).map_or(0.0, |it| it.1);
            (1e9 * (1.0 + 0.01 * normal(&mut random)) * spike * (1.0 + part)) as u64
        })
        .collect()
}

/// The steps at which a run is called slower.
fn slower(walls: &[u64]) -> Vec<u64> {
    let mut watch = regression::Watch::default();
    let told = walls.iter().zip(0..).filter_map(|(wall, step)| {
        let change = watch.observe(step, *wall, false)?;
        (change.direction == Direction::Slower).then_some(step)
    });
    told.collect()
}

fn regression(part: f64, least: u32) -> Faults {
    const FROM: u64 = 300;
    let (mut found, mut delays) = (0, Vec::new());
    for seed in 0..50 {
        let told = slower(&walls(seed, FROM + 200, Some((FROM, part))));
        if let [at] = told[..]
            && at >= FROM
        {
            found += 1;
            delays.push((at - FROM) as f64);
        }
    }
    Faults {
        detector: "regression",
        fault: format!("steps longer by {:.0} %", part * 100.0),
        of: 50,
        found,
        delay: middle(&mut delays, "steps"),
        least,
    }
}

/// The loss that a made curve has at a step but for noise.
fn falls(step: u64) -> f64 {
    2.0 + 9.0 / (1.0 + step as f64 / 300.0)
}

/// Troubles of a made curve: falling, with noise of 2 % and now and then a spike.
fn troubles(seed: u64, steps: u64, change: &dyn Fn(&mut loss::Step)) -> Vec<(Trouble, u64)> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut watch = loss::Watch::new();
    let mut found: Vec<(Trouble, u64)> = Vec::new();
    for number in 1..=steps {
        let spike = if random.random_bool(0.002) { 1.5 } else { 1.0 };
        let mut step = loss::Step {
            step: number,
            loss: Some(falls(number) * (1.0 + 0.02 * normal(&mut random)) * spike),
            gradient_norm: Some(0.5 + 0.2 * random.random::<f64>()),
            is_skipped: random.random_bool(0.01),
            ..loss::Step::default()
        };
        change(&mut step);
        for finding in watch.observe(&step) {
            if found.iter().all(|it| it.0 != finding.trouble) {
                found.push((finding.trouble, number));
            }
        }
    }
    found
}

/// The step from which a curve is wrong.
const FROM: u64 = 1_000;

fn learning(fault: &str, trouble: Trouble, least: u32, change: impl Fn(&mut loss::Step)) -> Faults {
    let broken = |step: &mut loss::Step| {
        if step.step >= FROM {
            change(step);
        }
    };
    let (mut found, mut delays) = (0, Vec::new());
    for seed in 0..SEEDS {
        let told = troubles(seed.into(), FROM + 400, &broken);
        if let Some((_, at)) = told.iter().find(|it| it.0 == trouble && it.1 >= FROM) {
            found += 1;
            delays.push((at - FROM) as f64);
        }
    }
    Faults {
        detector: "loss",
        fault: fault.to_owned(),
        of: SEEDS,
        found,
        delay: middle(&mut delays, "steps"),
        least,
    }
}

pub(super) fn faults() -> Vec<Faults> {
    let mut rows = Vec::new();
    let leasts = [
        [0.06, 20.0, 20.0],
        [0.1, 20.0, 20.0],
        [0.2, 20.0, 20.0],
        [0.3, 20.0, 20.0],
    ];
    for (place, (name, own, shared)) in NOISES.into_iter().enumerate() {
        for [slower, quiet, noisy] in leasts {
            let least = [quiet, noisy][place] as u32;
            rows.push(straggler(name, own, shared, slower, least));
        }
    }
    rows.extend([1, 10, 60].map(|gap_s| {
        let fault = format!("a step each {gap_s} s, then none");
        hang(fault, |seed| stands(gap_s, seed))
    }));
    let fault = "no first step, and nothing computes any more".to_owned();
    rows.push(hang(fault, never_begins));
    rows.extend([(0.02, 50), (0.05, 50), (0.1, 50)].map(|(part, least)| regression(part, least)));
    rows.push(learning(
        "a loss that is not finite",
        Trouble::NotFinite,
        SEEDS,
        |it| {
            it.loss = Some(f64::NAN);
        },
    ));
    rows.push(learning(
        "a loss 20 % above its trend",
        Trouble::Diverged,
        0,
        |it| {
            it.loss = it.loss.map(|loss| loss * 1.2);
        },
    ));
    rows.push(learning(
        "a loss 60 % above its trend",
        Trouble::Diverged,
        SEEDS,
        |it| {
            it.loss = it.loss.map(|loss| loss * 1.6);
        },
    ));
    for (times, least) in [(1.15, 0), (1.6, SEEDS)] {
        let part = 100.0 * (times - 1.0);
        let fault =
            format!("a loss held {part:.0} % above its trend for ten steps that are not told");
        let burst = |it: &mut loss::Step| match it.step - FROM {
            0..10 => it.loss = None,
            10 => {
                it.loss_held = Some(Held {
                    value: falls(FROM) * times,
                    step: FROM,
                });
            }
            _ => {}
        };
        rows.push(learning(&fault, Trouble::LossBurst, least, burst));
    }
    // Three times what is usual is the least that is told.
    for (times, least) in [(2.0, 0), (4.0, SEEDS), (10.0, SEEDS)] {
        let fault = format!("gradients {times} times as large for ten steps");
        let burst = |it: &mut loss::Step| {
            if it.step < FROM + 10 {
                it.gradient_norm = it.gradient_norm.map(|norm| norm * times);
            }
        };
        rows.push(learning(&fault, Trouble::GradientBurst, least, burst));
    }
    rows.push(learning(
        "one step in eight skipped",
        Trouble::Skipping,
        SEEDS,
        |it| {
            it.is_skipped = it.step % 8 == 0;
        },
    ));
    rows.push(learning(
        "a loss that is the same to the bit",
        Trouble::Stuck,
        SEEDS,
        |it| {
            it.loss = Some(2.5);
        },
    ));
    rows
}

pub(super) fn well() -> Vec<Well> {
    const STEPS: u64 = 500;
    let named = |own: f64, shared: f64| -> u32 {
        let jobs = (100..110).map(|seed| job(seed, own, shared, 0.0, STEPS).0.all.len());
        u32::try_from(jobs.sum::<usize>()).unwrap_or(u32::MAX)
    };
    let well = |detector, world, alarms, exposure, unit, most| Well {
        detector,
        world,
        alarms,
        exposure,
        unit,
        most,
    };
    let slower: usize = (100..120)
        .map(|seed| slower(&walls(seed, 2_000, None)).len())
        .sum();
    let wrong: usize = (100..110)
        .map(|seed| troubles(seed, 10_000, &|_| {}).len())
        .sum();
    let count = |it: usize| u32::try_from(it).unwrap_or(u32::MAX);
    let thousand = "1,000 steps";
    vec![
        well(
            "straggler",
            "32 ranks, quiet",
            named(0.01, 0.0),
            5.0,
            thousand,
            0,
        ),
        well(
            "straggler",
            "32 ranks, long sequences",
            named(0.02, 0.14),
            5.0,
            thousand,
            0,
        ),
        well(
            "hang",
            "runs that pause for 100 s each 10 minutes",
            hangs(pauses),
            100.0,
            "run-hour",
            0,
        ),
        well(
            "hang",
            "runs that start for up to 29 minutes",
            hangs(starts),
            100.0,
            "start",
            0,
        ),
        well(
            "regression",
            "1 % of noise, one step in fifty a spike",
            count(slower),
            40.0,
            thousand,
            4,
        ),
        well(
            "loss",
            "a curve that falls, with noise and spikes",
            count(wrong),
            100.0,
            thousand,
            0,
        ),
    ]
}

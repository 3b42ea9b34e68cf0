//! Made jobs that tell no steps: who makes the others wait by the times of collectives, and by clocks alone.
//!
//! A tick is ten seconds, judged as it comes.

use std::collections::{BTreeMap, BTreeSet};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Faults, NODE_RANKS, Named, Well, alone, normal};
use crate::straggler::clocks::LEAST_RATIO;
use crate::straggler::collectives::{Function, Operation, readings};
use crate::straggler::{Reading, Run, Seat, Source, Step, Thresholds, busy_of_clock};

const SEEDS: u32 = 20;
const TICK_S: f64 = 10.0;
const TICK_NS: u64 = 10_000_000_000;
/// Ticks before and after a rank becomes slow.
const BEFORE: u64 = 40;
const AFTER: u64 = 40;

/// 32 ranks: eight tensor-parallel groups of four, and four data-parallel ones of eight over them.
const RANKS: usize = 32;
const TENSOR: usize = 4;
/// Collectives of a group in a tick, and how long one takes that nobody waits in, nanoseconds.
const TENSOR_CALLS: (u64, u64) = (2_000, 400_000);
const DATA_CALLS: (u64, u64) = (70, 12_000_000);
/// How much ranks differ in what they compute in a tick.
const NOISE: f64 = 0.01;

/// Cards of one model at their power cap differ by this in their clocks, and each by that from tick to tick.
const CARDS: f64 = 0.02;
const FLICKERS: f64 = 0.004;
const CLOCK: f64 = 1.7e9;

/// From when a rank is told.
#[derive(Clone, Copy)]
pub(super) struct Told {
    pub(super) by: Thresholds,
    /// Least busy time ÷ its peers' of those that are blamed.
    pub(super) least: f64,
}

/// How a tick of a job reads when this one of its ranks takes so much longer.
type Ticks<'a> = &'a mut dyn FnMut(Option<(u32, f64)>, &mut ChaCha8Rng) -> Vec<Reading>;

fn watched(
    source: Source,
    told: Told,
    slow: Option<(u32, f64)>,
    ticks: u64,
    random: &mut ChaCha8Rng,
    tick: Ticks<'_>,
) -> Named {
    let mut run = Run::new(source);
    let mut named = Named {
        all: BTreeSet::new(),
        delay: None,
    };
    for number in 0..ticks {
        let now = slow.filter(|_| number >= BEFORE);
        let readings = tick(now, random);
        run.observe(&Step {
            step: number,
            wall_ns: TICK_NS,
            readings: &readings,
        });
        let verdict = run.judge_by(&told.by);
        let blamed = verdict.stragglers.iter();
        let blamed = blamed.filter(|it| it.ratio >= told.least);
        named.all.extend(blamed.map(|it| it.rank));
        if let (Some((culprit, _)), None) = (now, named.delay) {
            let seconds = (number + 1 - BEFORE) as f64 * TICK_S;
            named.delay = named.all.contains(&culprit).then_some(seconds);
        }
    }
    named
}

/// Ranks with how long a collective took on them, nanoseconds.
type Durations = Vec<(u32, u64)>;

/// Durations as ranks measure them that come to each collective when they have computed their part.
fn collectives(slow: Option<(u32, f64)>, random: &mut ChaCha8Rng) -> Vec<Reading> {
    let part = |rank: usize| {
        let slower = slow.filter(|it| it.0 as usize == rank);
        1.0 + slower.map_or(0.0, |it| it.1)
    };
    // What each computes in a tick, beside the one that takes longest of all.
    let own: Vec<f64> = (0..RANKS)
        .map(|rank| part(rank) * (1.0 + NOISE * normal(random)))
        .collect();
    let latest = |ranks: &mut dyn Iterator<Item = usize>| -> f64 {
        ranks.map(|it| own[it]).fold(0.0, f64::max)
    };
    let last = latest(&mut (0..RANKS));
    let of_group = |group: usize| latest(&mut (group * TENSOR..(group + 1) * TENSOR));
    let waits = |wait: f64, (calls, alone): (u64, u64)| {
        alone + (wait / last * TICK_NS as f64 / calls as f64) as u64
    };
    let mut all: Vec<(Function, u64, Durations)> = Vec::new();
    for group in 0..RANKS / TENSOR {
        let until = of_group(group);
        let ranks = group * TENSOR..(group + 1) * TENSOR;
        let durations = ranks.map(|it| (it as u32, waits(until - own[it], TENSOR_CALLS)));
        all.push((Function::AllReduce, TENSOR_CALLS.0, durations.collect()));
    }
    for place in 0..TENSOR {
        let groups = 0..RANKS / TENSOR;
        let until = groups.clone().map(of_group).fold(0.0, f64::max);
        let durations = groups.map(|group| {
            let rank = (group * TENSOR + place) as u32;
            (rank, waits(until - of_group(group), DATA_CALLS))
        });
        all.push((Function::ReduceScatter, DATA_CALLS.0, durations.collect()));
    }
    let operations = all.iter().map(|(function, calls, durations)| Operation {
        function: *function,
        calls: *calls,
        durations,
    });
    let operations: Vec<Operation<'_>> = operations.collect();
    let seat = |rank: u32| Seat {
        stage: Some(0),
        column: None,
        host: Some(rank / NODE_RANKS),
        replica: None,
        context: None,
    };
    let seats: BTreeMap<u32, Seat> = (0..RANKS as u32).map(|rank| (rank, seat(rank))).collect();
    readings(TICK_NS, &operations, &seats)
}

/// As documented.
fn documented(least: f64) -> Told {
    Told {
        by: Thresholds::default(),
        least,
    }
}

fn by_collectives(seed: u64, slower: Option<f64>, ticks: u64, told: Told) -> (Named, u32) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let culprit = random.random_range(0..RANKS as u32);
    let slow = slower.map(|it| (culprit, it));
    let named = watched(
        Source::Collectives,
        told,
        slow,
        ticks,
        &mut random,
        &mut collectives,
    );
    (named, culprit)
}

fn by_clocks(seed: u64, gpus: u32, lower: Option<f64>, ticks: u64, told: Told) -> (Named, u32) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let culprit = random.random_range(0..gpus);
    let cards: Vec<f64> = (0..gpus)
        .map(|_| CLOCK * (1.0 + CARDS * normal(&mut random)))
        .collect();
    let slow = lower.map(|it| (culprit, it));
    let mut tick = |slow: Option<(u32, f64)>, random: &mut ChaCha8Rng| {
        let all = (0_u32..).zip(&cards);
        let all = all.filter_map(|(rank, card)| {
            let lower = slow.filter(|it| it.0 == rank).map_or(0.0, |it| it.1);
            let clock = card * (1.0 - lower) * (1.0 + FLICKERS * normal(random));
            Some(Reading {
                rank,
                seat: Seat::default(),
                busy_ns: busy_of_clock(clock)?,
            })
        });
        all.collect()
    };
    let named = watched(Source::Telemetry, told, slow, ticks, &mut random, &mut tick);
    (named, culprit)
}

/// How many are named in a job of 32 in which nobody is late.
pub(super) fn wrongly_by_collectives(seed: u64, ticks: u64, told: Told) -> usize {
    by_collectives(seed, None, ticks, told).0.all.len()
}

/// The same by clocks.
pub(super) fn wrongly_by_clocks(seed: u64, ticks: u64, told: Told) -> usize {
    by_clocks(seed, 32, None, ticks, told).0.all.len()
}

fn row(
    detector: &'static str,
    fault: String,
    least: u32,
    job: impl Fn(u64) -> (Named, u32),
) -> Faults {
    let (found, delay) = alone(SEEDS, "s", job);
    Faults {
        detector,
        fault,
        of: SEEDS,
        found,
        delay,
        least,
    }
}

pub(super) fn faults() -> Vec<Faults> {
    let ticks = BEFORE + AFTER;
    let mut rows = Vec::new();
    for (slower, least) in [(0.06, 20), (0.1, 20), (0.2, 20)] {
        let fault = format!("one rank of {RANKS} late by {:.0} %", slower * 100.0);
        let job = |seed| by_collectives(seed, Some(slower), ticks, documented(1.0));
        rows.push(row("straggler by collectives", fault, least, job));
    }
    for (gpus, lower, least) in [(32, 0.1, 12), (32, 0.15, 20), (32, 0.2, 20), (8, 0.2, 18)] {
        let fault = format!(
            "one GPU of {gpus} with a clock {:.0} % lower",
            lower * 100.0
        );
        let job = |seed| by_clocks(seed, gpus, Some(lower), ticks, documented(LEAST_RATIO));
        rows.push(row("straggler by clocks", fault, least, job));
    }
    rows
}

pub(super) fn well() -> Vec<Well> {
    const TICKS: u64 = 360;
    let alarms = |named: &dyn Fn(u64) -> usize| -> u32 {
        let alarms: usize = (1_000..1_000 + u64::from(SEEDS)).map(named).sum();
        u32::try_from(alarms).unwrap_or(u32::MAX)
    };
    vec![
        Well {
            detector: "straggler by collectives",
            world: "32 ranks that differ by 1 % in what they compute",
            alarms: alarms(&|seed| wrongly_by_collectives(seed, TICKS, documented(1.0))),
            exposure: f64::from(SEEDS),
            unit: "run-hour",
            most: 0,
        },
        Well {
            detector: "straggler by clocks",
            world: "32 cards whose clocks differ by 2 %",
            alarms: alarms(&|seed| wrongly_by_clocks(seed, TICKS, documented(LEAST_RATIO))),
            exposure: 32.0 * f64::from(SEEDS) / 1_000.0,
            unit: "1,000 GPU-hours",
            most: 0,
        },
    ]
}

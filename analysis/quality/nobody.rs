//! Made jobs in which something is slow that no rank is to blame for: a stage with more work, data that are long on one
//! rank after the other, a part of a stage that is slow alike; and machines of a stage that are slow together, which
//! are named.

use std::collections::BTreeSet;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Faults, Well, middle, normal};
use crate::straggler::{Reading, Run, Seat, Source, Step, Unnamed, Verdict};

/// A job of 32 ranks, 8 columns of 4 stages.
const COLUMNS: u32 = 8;
const STAGES: u32 = 4;
const RANKS: u32 = COLUMNS * STAGES;
/// Parts of each sequence, where it is cut.
const PARTS: u32 = 4;
/// Steps of a job, judged each ten.
const STEPS: u64 = 40;
const SEEDS: u32 = 20;
/// Noise of each rank.
const NOISE: f64 = 0.01;

/// A rank of a made job.
#[derive(Clone, Copy)]
struct Place {
    rank: u32,
    stage: u32,
    column: u32,
}

/// Where a rank sits: its machine, and what else is told of it.
type Sits = fn(Place) -> Seat;

impl Place {
    const fn on(self, host: Option<u32>) -> Seat {
        Seat {
            stage: Some(self.stage),
            column: Some(self.column),
            host,
            replica: None,
            context: None,
        }
    }
}

/// How much longer a rank computes at each step: the one whose turn it is in the step, and the place.
type Longer<'a> = &'a dyn Fn(u32, Place) -> f64;

/// Which ranks of the job of a seed are named.
type Named<'a> = &'a dyn Fn(u32) -> BTreeSet<u32>;

/// Whether what is said of the job of a seed is what is promised.
type Told<'a> = &'a dyn Fn(u32, &Verdict) -> bool;

/// What is said of a job at each look, with how many steps it had.
fn said(seed: u64, steps: u64, sits: Sits, longer: Longer<'_>) -> Vec<(u64, Verdict)> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut run = Run::new(Source::Hooks);
    let mut all = Vec::new();
    for step in 0..steps {
        let turn = random.random_range(0..RANKS);
        let readings: Vec<Reading> = (0..RANKS)
            .map(|rank| {
                let (stage, column) = (rank % STAGES, rank / STAGES);
                let place = Place {
                    rank,
                    stage,
                    column,
                };
                let part = 1.0 + longer(turn, place);
                Reading {
                    rank,
                    seat: sits(place),
                    busy_ns: (1e9 * (NOISE * normal(&mut random)).exp() * part) as u64,
                }
            })
            .collect();
        run.observe(&Step {
            step,
            wall_ns: 0,
            readings: &readings,
        });
        if step % 10 == 9 {
            all.push((step + 1, run.judge()));
        }
    }
    all
}

/// A job is told right where these ranks and no others are ever named, and a look says `is_it`.
fn row(
    fault: String,
    least: u32,
    sits: Sits,
    job: impl Fn(u32) -> Box<dyn Fn(u32, Place) -> f64>,
    (named, is_it): (Named<'_>, Told<'_>),
) -> Faults {
    let mut delays = Vec::new();
    for seed in 0..SEEDS {
        let said = said(seed.into(), STEPS, sits, &*job(seed));
        let blamed = said.iter().flat_map(|it| &it.1.stragglers);
        let blamed: BTreeSet<u32> = blamed.map(|it| it.rank).collect();
        let first = said.iter().find(|it| is_it(seed, &it.1));
        if let Some((steps, _)) = first.filter(|_| blamed == named(seed)) {
            delays.push(*steps as f64);
        }
    }
    Faults {
        detector: "straggler",
        fault,
        of: SEEDS,
        found: u32::try_from(delays.len()).unwrap_or(0),
        delay: middle(&mut delays, "steps"),
        least,
    }
}

/// Eight ranks each, in their order: whole columns.
const fn of_columns(place: Place) -> Seat {
    place.on(Some(place.rank / super::NODE_RANKS))
}

/// Two ranks of one stage each.
const fn of_stages(place: Place) -> Seat {
    place.on(Some(place.stage * COLUMNS / 2 + place.column / 2))
}

/// The same as of columns, each of which holds a part of its sequences.
const fn of_parts(place: Place) -> Seat {
    Seat {
        context: Some(place.column % PARTS),
        ..of_columns(place)
    }
}

fn nobody(_: u32) -> BTreeSet<u32> {
    BTreeSet::new()
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

fn stage(more: f64, least: u32) -> Faults {
    row(
        format!(
            "a stage of {STAGES} with {} more work: the stage is told and no rank",
            percent(more)
        ),
        least,
        of_columns,
        |seed| {
            Box::new(move |_, place| match place.stage == seed % STAGES {
                true => more,
                false => 0.0,
            })
        },
        (
            &nobody,
            &|seed, verdict| matches!(&verdict.stages[..], [only] if only.stage == seed % STAGES),
        ),
    )
}

fn moving(longer: f64, least: u32) -> Faults {
    row(
        format!(
            "another rank slower by {} each step: that it moves, and no rank",
            percent(longer)
        ),
        least,
        of_columns,
        |_| {
            Box::new(move |turn, place| match place.rank == turn {
                true => longer,
                false => 0.0,
            })
        },
        (&nobody, &|_, verdict| verdict.moving.is_some()),
    )
}

/// A part of a stage's ranks is slower, and why none of them is named.
fn parted(why: Unnamed, longer: f64, least: u32) -> Faults {
    let (words, sits): (&str, Sits) = match why {
        Unnamed::SameData => ("half the columns are", of_columns),
        Unnamed::HostsUnknown => ("half of a stage is, machines unknown,", |place| {
            place.on(None)
        }),
        Unnamed::BesideFast => ("every other rank of a stage is", of_columns),
        Unnamed::Alone => ("half of a stage is, one rank a machine,", |place| {
            place.on(Some(place.stage * COLUMNS + place.column))
        }),
        Unnamed::SamePart => (
            "of a stage all that hold the last quarter of each sequence are",
            of_parts,
        ),
    };
    let is_slow = move |seed: u32, place: Place| match why {
        Unnamed::SameData => place.column < COLUMNS / 2,
        Unnamed::BesideFast => place.stage == seed % STAGES && place.column.is_multiple_of(2),
        Unnamed::SamePart => place.stage == seed % STAGES && place.column % PARTS + 1 == PARTS,
        Unnamed::HostsUnknown | Unnamed::Alone => {
            place.stage == seed % STAGES && place.column < COLUMNS / 2
        }
    };
    row(
        format!(
            "{words} slower by {}: that they parted, and no rank",
            percent(longer)
        ),
        least,
        sits,
        |seed| {
            Box::new(move |_, place| match is_slow(seed, place) {
                true => longer,
                false => 0.0,
            })
        },
        (&nobody, &|_, verdict| {
            verdict.parted.iter().any(|it| it.unnamed == why)
        }),
    )
}

/// Two of the four machines of a stage are slower, and their four ranks are named.
fn machines(longer: f64, least: u32) -> Faults {
    let is_slow =
        |seed: u32, place: Place| place.stage == seed % STAGES && place.column < COLUMNS / 2;
    let all = |seed: u32| -> BTreeSet<u32> {
        let columns = 0..COLUMNS / 2;
        columns
            .map(|column| column * STAGES + seed % STAGES)
            .collect()
    };
    row(
        format!(
            "two of the four machines of a stage slower by {}",
            percent(longer)
        ),
        least,
        of_stages,
        |seed| {
            Box::new(move |_, place| match is_slow(seed, place) {
                true => longer,
                false => 0.0,
            })
        },
        (&all, &|seed, verdict| {
            verdict.stragglers.len() == all(seed).len()
        }),
    )
}

pub(super) fn faults() -> Vec<Faults> {
    let mut rows = vec![
        stage(0.1, 0),
        stage(0.25, SEEDS),
        stage(0.5, SEEDS),
        moving(0.05, 0),
        moving(0.2, SEEDS),
        moving(0.5, SEEDS),
    ];
    for why in [
        Unnamed::SameData,
        Unnamed::HostsUnknown,
        Unnamed::BesideFast,
        Unnamed::Alone,
        Unnamed::SamePart,
    ] {
        rows.extend([(0.1, SEEDS), (0.3, SEEDS)].map(|(longer, least)| parted(why, longer, least)));
    }
    rows.extend([(0.1, SEEDS), (0.3, SEEDS)].map(|(longer, least)| machines(longer, least)));
    rows
}

/// Jobs whose ranks differ by noise alone: nothing is said of stages, turns and parts.
pub(super) fn well() -> Vec<Well> {
    const JOBS: u64 = 3;
    const LONG: u64 = 400;
    let is_wrong = |verdict: &Verdict| {
        !verdict.stages.is_empty() || !verdict.parted.is_empty() || verdict.moving.is_some()
    };
    let looks = (200..200 + JOBS).flat_map(|seed| said(seed, LONG, of_columns, &|_, _| 0.0));
    let alarms = looks.filter(|it| is_wrong(&it.1)).count();
    vec![Well {
        detector: "straggler",
        world: "32 ranks, quiet: a stage, a part or a rank that moves",
        alarms: u32::try_from(alarms).unwrap_or(u32::MAX),
        exposure: (JOBS * LONG) as f64 / 1_000.0,
        unit: "1,000 steps",
        most: 0,
    }]
}

//! Made runs that stand in a collective: whom the others wait for, by how far each rank is.

use gpufleet_telemetry::time::Timestamp;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Faults, NODE_RANKS, Well, middle};
use crate::hang::tests::NOTHING;
use crate::hang::{Evidence, Hang, Position, Tick, Verdict, Watch};

const SECOND: i64 = 1_000_000_000;
const SEEDS: u32 = 20;
const TICK_S: i64 = 10;
/// Collectives of a step.
const OF_STEP: u64 = 40;
/// The communicator of all ranks; those of a machine's ranks come behind it.
const ALL: u64 = 0;

/// How a run stands.
#[derive(Clone, Copy)]
enum Stands {
    /// One rank never comes.
    Waits,
    /// All of them are in it.
    All,
    /// All of them, and nobody counts collectives.
    Uncounted,
}

/// Where each rank of a run is at this second, that stops at `stops_at` with a step a second.
fn positions(
    second: i64,
    stops_at: i64,
    (ranks, culprit): (u32, u32),
    stands: Stands,
    random: &mut ChaCha8Rng,
) -> Vec<Position> {
    let moved = second.min(stops_at);
    let sequence = OF_STEP * moved.unsigned_abs();
    let at = |seconds: i64| Timestamp(seconds * SECOND);
    let mut all = Vec::new();
    for rank in 0..ranks {
        let is_late = matches!(stands, Stands::Waits) && rank == culprit;
        let (sequence, in_since) = if second < stops_at {
            // Between two looks some are in one, for less than a second.
            let is_in = random.random_bool(0.3);
            (sequence + u64::from(is_in), is_in.then_some(at(second)))
        } else if is_late {
            (sequence, None)
        } else {
            (sequence + 1, Some(at(stops_at)))
        };
        let of_node = Position {
            communicator: 1 + u64::from(rank / NODE_RANKS),
            rank,
            sequence: 2 * OF_STEP * moved.unsigned_abs(),
            in_since: None,
        };
        all.extend([
            Position {
                communicator: ALL,
                rank,
                sequence,
                in_since,
            },
            of_node,
        ]);
    }
    all
}

/// When a run is told to stand after it did, seconds, and how; GPUs that wait in a collective read as at work.
fn told(seed: u64, (ranks, culprit): (u32, u32), stands: Stands) -> Option<(i64, Hang)> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let stops_at = 300 + random.random_range(0..60);
    let mut watch = Watch::new();
    (0..stops_at + 600)
        .step_by(TICK_S as usize)
        .find_map(|second| {
            let known = match stands {
                Stands::Uncounted => Vec::new(),
                _ => positions(second, stops_at, (ranks, culprit), stands, &mut random),
            };
            let verdict = watch.observe(&Tick {
                now: Timestamp(second * SECOND),
                step: Some(second.min(stops_at).unsigned_abs()),
                activity: Some(0.4),
                positions: &known,
                ..NOTHING
            });
            match verdict {
                Verdict::Hung(hang) => Some((second - stops_at, hang)),
                _ => None,
            }
        })
}

fn row(fault: String, ranks: u32, stands: Stands, least: u32) -> Faults {
    let mut delays = Vec::new();
    for seed in 0..SEEDS {
        let culprit = seed * 7 % ranks;
        let expected = match stands {
            Stands::Waits => (Evidence::SequencesDiffer, vec![culprit]),
            Stands::All | Stands::Uncounted => (Evidence::CollectiveStands, Vec::new()),
        };
        let told = told(seed.into(), (ranks, culprit), stands);
        let right = told.filter(|(delay, it)| {
            *delay >= 0 && (it.evidence, &it.suspects) == (expected.0, &expected.1)
        });
        delays.extend(right.map(|it| it.0 as f64));
    }
    Faults {
        detector: "hang",
        fault,
        of: SEEDS,
        found: u32::try_from(delays.len()).unwrap_or(0),
        delay: middle(&mut delays, "s"),
        least,
    }
}

pub(super) fn faults() -> Vec<Faults> {
    let mut rows = Vec::new();
    for ranks in [16, 128] {
        let fault = format!("one rank of {ranks} that does not come to a collective");
        rows.push(row(fault, ranks, Stands::Waits, SEEDS));
    }
    let fault = "a collective that all of 16 ranks are in".to_owned();
    rows.push(row(fault, 16, Stands::All, SEEDS));
    let fault = "GPUs that spin in a collective, and nothing counts it".to_owned();
    rows.push(row(fault, 16, Stands::Uncounted, 0));
    rows
}

/// Runs whose ranks are in other collectives for up to 100 s, each ten minutes: late data, a save that nobody tells.
pub(super) fn well() -> Vec<Well> {
    const RUNS: u64 = 20;
    let alarms = (100..100 + RUNS).map(|seed| {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut watch = Watch::new();
        let culprit = random.random_range(0..16);
        let looks = (0..3_600_i64).step_by(TICK_S as usize);
        let stood = looks.filter(|second| {
            let moved = second / 600 * 500 + (second % 600).min(500);
            let begins = second / 600 * 600 + 500;
            let known: Vec<Position> = (0..16)
                .map(|rank| {
                    let waits = second % 600 > 500 && rank != culprit;
                    Position {
                        communicator: ALL,
                        rank,
                        sequence: OF_STEP * moved.unsigned_abs() + u64::from(waits),
                        in_since: waits.then_some(Timestamp(begins * SECOND)),
                    }
                })
                .collect();
            let verdict = watch.observe(&Tick {
                now: Timestamp(second * SECOND),
                step: Some(moved.unsigned_abs()),
                activity: Some(0.4),
                positions: &known,
                ..NOTHING
            });
            matches!(verdict, Verdict::Hung(_))
        });
        stood.count()
    });
    vec![Well {
        detector: "hang",
        world: "runs that wait for one rank for 100 s each 10 minutes",
        alarms: u32::try_from(alarms.sum::<usize>()).unwrap_or(u32::MAX),
        exposure: RUNS as f64,
        unit: "run-hour",
        most: 0,
    }]
}

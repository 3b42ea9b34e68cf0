//! What one run of 20,000 ranks costs: to fold what its ranks tell in ten seconds, to judge it, to copy it
//! for a page, to map it.
//!
//! `make bench-runs`, or `cargo bench -p gpufleet-server --bench runs`. Prints each figure for 5,000,
//! 10,000 and 20,000 ranks, and exits with 1 where twice the ranks cost more than [`MOST_GROWTH`] times
//! as much, or a round of the judgement takes longer than [`MOST_ROUND`].
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures with the real clock"
)]

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use gpufleet_server::runs::watch::Watch;
use gpufleet_server::runs::{Heard, RunKey, Runs, heat, history, words};
use gpufleet_server::store::{Store, StoreConfig};
use gpufleet_telemetry::identity::AgentId;
use gpufleet_telemetry::steps::{StepBlock, StepTimes};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::RankId;
use gpufleet_telemetry::wire::Lane;
use uuid::Uuid;

const SIZES: [u32; 3] = [5_000, 10_000, 20_000];
/// Shipments of ten seconds: as many as a rank keeps.
const SHIPMENTS: i64 = 64;
/// Steps of a shipment.
const STEPS: u64 = 10;
const START: Timestamp = Timestamp::from_seconds(1_790_000_000);

/// Most that twice the ranks may cost: linear, and what a cache does not hold.
const MOST_GROWTH: f64 = 3.0;
/// Longest round of the judgement: it comes every ten seconds and shares two cores.
const MOST_ROUND: Duration = Duration::from_secs(1);

/// What was measured of a size.
struct Measured {
    fold: Duration,
    round: Duration,
    sentence: Duration,
    copy: Duration,
    map: Duration,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let folder = tempfile::tempdir().expect("the folder for scratch can be written");
    let config = StoreConfig {
        url: format!("sqlite:{}", folder.path().join("runs.db").display()),
        ..StoreConfig::default()
    };
    let store = Store::open(&config).await.expect("a new database opens");
    println!("ranks    fold 10 s    judge 10 s    sentence    copy    map of 10 min");
    let mut before: Option<Measured> = None;
    let mut is_good = true;
    for ranks in SIZES {
        let found = measure(ranks, &store).await;
        let millis = |it: Duration| it.as_secs_f64() * 1e3;
        println!(
            "{ranks:>6} {:>9.1} ms {:>10.1} ms {:>8.2} ms {:>6.1} ms {:>9.1} ms",
            millis(found.fold),
            millis(found.round),
            millis(found.sentence),
            millis(found.copy),
            millis(found.map)
        );
        is_good &= found.round <= MOST_ROUND;
        if let Some(before) = &before {
            is_good &= is_linear(before, &found);
        }
        before = Some(found);
    }
    drop(store);
    if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn is_linear(before: &Measured, found: &Measured) -> bool {
    let pairs = [
        ("fold", before.fold, found.fold),
        ("judge", before.round, found.round),
        ("copy", before.copy, found.copy),
        ("map", before.map, found.map),
    ];
    let mut is_linear = true;
    for (name, half, whole) in pairs {
        let growth = whole.as_secs_f64() / half.as_secs_f64().max(1e-9);
        if growth > MOST_GROWTH {
            println!("{name} grew ×{growth:.1} with twice the ranks");
            is_linear = false;
        }
    }
    is_linear
}

async fn measure(ranks: u32, store: &Store) -> Measured {
    let runs = Runs::default();
    let key = RunKey::of(&"bench".into(), &rank_id(0));
    let mut watch = Watch::default();
    let (mut fold, mut round) = (Duration::MAX, Duration::MAX);
    let mut now = START;
    for shipment in 0..SHIPMENTS {
        now = START.shifted((shipment + 1) * 10_000_000_000);
        let heard = Heard {
            agent: AgentId(Uuid::from_u128(1)),
            lane: Lane::Live,
            received: now,
        };
        let blocks: Vec<StepBlock> = (0..ranks).map(|rank| block(rank, shipment)).collect();
        let began = Instant::now();
        for (rank, block) in (0..ranks).zip(&blocks) {
            runs.steps(&key, rank, block, heard).expect("there is room");
        }
        fold = fold.min(began.elapsed());
        let began = Instant::now();
        watch.round(&runs, store, now).await;
        // The first have less to look at.
        if shipment > SHIPMENTS / 2 {
            round = round.min(began.elapsed());
        }
    }
    let began = Instant::now();
    let said = runs.look(&key, |run| words::sentence(run, &[], now, "USD"));
    let sentence = began.elapsed();
    assert!(said.is_some_and(|it| it.contains("Runs: 1.00 s a step")));
    let began = Instant::now();
    let run = runs.get(&key).expect("it is known");
    let copy = began.elapsed();
    let range = now.shifted(-600_000_000_000)..now;
    let began = Instant::now();
    let mut map = heat::Map::new(range.clone());
    let add = |rank, block: StepBlock| {
        map.add(rank, &block);
        ControlFlow::Continue(())
    };
    let cut = history::each(store, (&key, &run), None, &range, add).await;
    assert!(matches!(cut, Ok(None)), "it is in memory: {cut:?}");
    assert_eq!(map.rows(&heat::stages(&run)).len(), heat::ROWS);
    let map = began.elapsed();
    Measured {
        fold,
        round,
        sentence,
        copy,
        map,
    }
}

fn rank_id(rank: u32) -> RankId {
    RankId::parse(&format!("team/llama/u1/0/{rank}")).expect("an id")
}

/// Ten steps of a second; no rank computes as long as another.
fn block(rank: u32, shipment: i64) -> StepBlock {
    let times = |step: u64| StepTimes {
        wall_ns: 1_000_000_000,
        busy_ns: 700_000_000 + (u64::from(rank) * 7_919 + step * 104_729) % 20_000_000,
        data_wait_ns: 1_000_000,
        comm_wait_ns: 100_000_000,
    };
    StepBlock {
        first_step: shipment.unsigned_abs() * STEPS,
        steps_log2: 0,
        started_at: START.shifted(shipment * 10_000_000_000),
        ended_at: START.shifted((shipment + 1) * 10_000_000_000),
        tokens: 40_960,
        samples: 0,
        times: (0..STEPS).map(times).collect(),
    }
}

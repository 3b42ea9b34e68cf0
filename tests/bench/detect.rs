//! What a tick of the detectors takes: everything that judges GPUs, machines, ranks and runs, over a fleet
//! of simulated nodes, on one core. First while all train at full speed, then while one GPU in 64 throttles
//! and makes the others of its run wait: a worse day than any fleet has. Jobs tell their steps, or nothing of
//! themselves.

use std::time::Duration;

use gpufleet_program::clock::SystemClock;
use gpufleet_telemetry::time::{Clock as _, NANOS_PER_SECOND};
use gpufleet_tests::simulation::judged::{Judged, attempt};
use gpufleet_tests::simulator::node::Plan;

use crate::figures::{Spread, line, told};

const GPUS_PER_NODE: usize = 8;
/// What a tick of 100,000 GPUs may take on one core, seconds.
const TICK_LIMIT_S: f64 = 1.5;
/// When the large jobs throttle after their start, seconds, and how long a tick is.
const THROTTLES_AFTER_S: i64 = 21 * 60;
const TICK_S: i64 = 10;
const TICKS: usize = 10;
const SHORT_TICKS: usize = 4;
/// Ticks after which a job that tells nothing is judged.
const LEARNT_TICKS: usize = 25;

/// What the fleet does, and the ticks before the first that counts.
struct Stage {
    name: &'static str,
    warm_up: usize,
}

/// Detectors have nothing to compare at first; a straggler is told after a minute.
const STAGES: [Stage; 2] = [
    Stage {
        name: "all well",
        warm_up: 3,
    },
    Stage {
        name: "one GPU in 64 slow",
        warm_up: 7,
    },
];

pub(crate) fn run(short: bool, gpus: usize, untold: bool) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime can be made");
    let plan = Plan {
        nodes: gpus / GPUS_PER_NODE,
        gpus_per_node: GPUS_PER_NODE,
        training: !untold,
        workloads: untold,
        ..Plan::demo()
    };
    let ticks = if short { SHORT_TICKS } else { TICKS };
    runtime.block_on(measured(&plan, ticks))
}

async fn measured(plan: &Plan, ticks: usize) -> bool {
    let clock = SystemClock::start();
    let mut learnt = if plan.training { 0 } else { LEARNT_TICKS };
    let first = (learnt + STAGES[0].warm_up + ticks) as i64;
    let ahead = (THROTTLES_AFTER_S - first * TICK_S) * NANOS_PER_SECOND;
    let mut world = Judged::new(plan, attempt(plan.seed).began.shifted(ahead)).await;
    let mut are_kept = true;
    for stage in &STAGES {
        let (mut all, mut of_runs, mut feeding) =
            (Spread::default(), Spread::default(), Spread::default());
        let warm_up = stage.warm_up + std::mem::take(&mut learnt);
        for tick in 0..warm_up + ticks {
            let began = clock.monotonic();
            world.goes_on().await;
            let fed = clock.monotonic();
            world.judge_runs().await;
            let runs = clock.monotonic();
            world.judge();
            let ended = clock.monotonic();
            if tick >= warm_up {
                let seconds = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64();
                feeding.add(seconds(began, fed));
                of_runs.add(seconds(fed, runs));
                all.add(seconds(fed, ended));
            }
        }
        let gpus = plan.nodes * GPUS_PER_NODE;
        let name = format!("a tick of the detectors, {gpus} GPUs, {}", stage.name);
        let figure = format!("{} s", all.told());
        are_kept &= line(&name, &figure, all.max(), TICK_LIMIT_S);
        told(&format!(
            "  of it the steps of runs {} s; making and folding the readings, not counted, {} s",
            of_runs.told(),
            feeding.told()
        ));
    }
    are_kept
}

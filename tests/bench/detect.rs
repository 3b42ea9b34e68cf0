//! What a tick of the detectors takes: everything that judges GPUs, machines, ranks and runs, over a fleet
//! of simulated nodes, on one core.

use gpufleet_program::clock::SystemClock;
use gpufleet_telemetry::time::Clock as _;
use gpufleet_tests::simulation::judged::{Judged, attempt};
use gpufleet_tests::simulator::node::Plan;

use crate::figures::{Spread, line};

const GPUS_PER_NODE: usize = 8;
/// What a tick of 100,000 GPUs may take on one core, seconds.
const TICK_LIMIT_S: f64 = 1.5;
/// Ticks before the first that counts: detectors have nothing to compare at first.
const WARM_UP: usize = 3;
const TICKS: usize = 10;
const SHORT_TICKS: usize = 4;

pub(crate) fn run(short: bool, gpus: usize) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime can be made");
    let clock = SystemClock::start();
    let plan = Plan {
        nodes: gpus / GPUS_PER_NODE,
        gpus_per_node: GPUS_PER_NODE,
        ..Plan::demo()
    };
    let mut spread = Spread::default();
    runtime.block_on(async {
        let mut world = Judged::new(&plan, attempt(plan.seed).began).await;
        for tick in 0..WARM_UP + if short { SHORT_TICKS } else { TICKS } {
            world.goes_on().await;
            let before = clock.monotonic();
            world.judge();
            let took = clock.monotonic().saturating_sub(before);
            if tick >= WARM_UP {
                spread.add(took.as_secs_f64());
            }
        }
    });
    let name = format!(
        "a tick of the detectors, {} GPUs",
        plan.nodes * GPUS_PER_NODE
    );
    line(
        &name,
        &format!("{} s", spread.told()),
        spread.max(),
        TICK_LIMIT_S,
    )
}

//! How long a stored day takes to be replayed, and the memory that it takes, by the command that people type:
//! from some minutes of simulated nodes that train, on SQLite, and on PostgreSQL where one runs for tests. A day
//! is as many times as long: what a minute costs does not depend on how many there are.

use std::process::Stdio;
use std::time::Duration;

use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_tests::harness::{World, postgres, server, wait};
use gpufleet_tests::simulation::judged::{Judged, attempt};
use gpufleet_tests::simulator::node::Plan;

use crate::figures::{line, told};
use crate::report;

const GPUS_PER_NODE: usize = 8;
/// What a day of 20,000 GPUs may take: half an hour of replay for an hour of data, and its memory, MiB.
const HOURS_LIMIT: f64 = 12.0;
const MEMORY_LIMIT_MIB: f64 = 4_096.0;
/// Jobs train at full speed after their first two minutes.
const TRAINS_AFTER_NS: i64 = 180 * NANOS_PER_SECOND;
const DAY_NS: i64 = 86_400 * NANOS_PER_SECOND;
const MINUTES_OF_A_DAY: f64 = 25.0 * 60.0;
/// How long one replay is waited for.
const PATIENCE: Duration = Duration::from_secs(3_600);

pub(crate) fn run(gpus: usize, minutes: u64) -> bool {
    let world = World::new();
    let place = server::Place::sqlite(&world);
    let mut reached = on("SQLite", &place, &world, gpus, minutes);
    match std::env::var(postgres::VARIABLE) {
        Ok(_) => {
            let database = postgres::Database::new();
            let place = place.on(&database.url());
            reached &= on("PostgreSQL", &place, &world, gpus, minutes);
        }
        Err(_) => told("PostgreSQL: NOT RUN, eval \"$(scripts/postgres.sh start)\" before"),
    }
    reached
}

fn on(kind: &str, place: &server::Place, world: &World, gpus: usize, minutes: u64) -> bool {
    let plan = Plan {
        nodes: gpus / GPUS_PER_NODE,
        gpus_per_node: GPUS_PER_NODE,
        ..Plan::demo()
    };
    let began = attempt(plan.seed).began.shifted(TRAINS_AFTER_NS);
    let stored = wait::now();
    stores(&plan, began, place, minutes);
    told(&format!(
        "{kind}: {minutes} minutes of {gpus} GPUs made and stored in {:.0} s",
        (wait::now() - stored).as_secs_f64()
    ));
    let mut command = place.command();
    command.args(["replay", &day(began)]);
    let before = wait::now();
    let (_, kib) = report::printed(command.stderr(Stdio::null()), world, "the replay", PATIENCE);
    let seconds = (wait::now() - before).as_secs_f64();
    let hours = seconds / minutes as f64 * MINUTES_OF_A_DAY / 3_600.0;
    let name = format!("{kind}: a day of {gpus} GPUs replayed, hours");
    let figure = format!("{hours:.2} ({minutes} minutes in {seconds:.1} s)");
    let in_time = line(&name, &figure, hours, HOURS_LIMIT);
    let name = format!("{kind}: most resident memory of it, MiB");
    let mib = kib / 1_024.0;
    in_time & line(&name, &format!("{mib:.0}"), mib, MEMORY_LIMIT_MIB)
}

fn stores(plan: &Plan, began: Timestamp, place: &server::Place, minutes: u64) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime can be made");
    runtime.block_on(async {
        let mut world = Judged::stored(plan, began, Some(&place.database)).await;
        world.minutes(minutes).await;
        world.written().await;
    });
}

/// The day of a moment, as people type it.
fn day(at: Timestamp) -> String {
    let midnight = Timestamp(at.0.div_euclid(DAY_NS) * DAY_NS);
    let text = gpufleet_server::words::text::rfc3339(midnight);
    text.chars().take(10).collect()
}

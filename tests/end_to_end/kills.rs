//! kill -9 of server and sender at seeded moments under load: nothing that was acknowledged is
//! lost, and nothing counts twice.
//!
//! The sender is the simulator with the agent's own spool and shipping: it replays an hour of ticks
//! quickly and keeps a journal of what it made. Once the killing has ended it catches up, waits
//! until everything is durable, and the database is compared with the journal, minute by minute and
//! metric by metric, and step by step of every rank.

use std::time::Duration;

use gpufleet_spool::sim::Random;
use gpufleet_tests::harness::simulator::Simulator;
use gpufleet_tests::harness::{World, checker, server, wait};
use gpufleet_tests::on_both_databases;
use gpufleet_tests::simulator::journal;
use gpufleet_tests::simulator::node::Plan;

/// Real kills on each database.
const KILLS: u64 = 20;
/// Of the moments of the kills.
const SEED: u64 = 1;
const NODES: usize = 4;
const GPUS: usize = 2;
/// How long the last catching up may take.
const DRAIN_LIMIT: Duration = Duration::from_secs(150);

fn plan() -> Plan {
    Plan {
        nodes: NODES,
        gpus_per_node: GPUS,
        ..Plan::demo()
    }
}

fn start_sender(world: &World, endpoint: &str) -> Simulator {
    let (nodes, gpus) = (NODES.to_string(), GPUS.to_string());
    let arguments = [
        "--nodes",
        &nodes,
        "--gpus",
        &gpus,
        "--replay-minutes",
        "60",
        "--every-ms",
        "100",
    ];
    Simulator::start(world, endpoint, &arguments)
}

on_both_databases!(twenty_kills_lose_nothing_and_double_nothing);

/// Kills under load, then lets everything become durable and compares.
fn twenty_kills_lose_nothing_and_double_nothing(world: World) {
    let mut random = Random::new(SEED);
    // Commits each second, so that kills fall into commits as well.
    let place = server::Place::new(&world).with("fleet.commit_interval_s=1");
    let endpoint = format!("http://{}", place.grpc);
    let mut server = place.start();
    let mut sender = start_sender(&world, &endpoint);
    let (mut server_kills, mut sender_kills) = (0, 0);
    for _ in 0..KILLS {
        wait::pause(Duration::from_millis(300 + random.below(1_500)));
        if random.one_in(2) {
            server = server.kill().start();
            server_kills += 1;
        } else {
            sender.kill();
            sender = start_sender(&world, &endpoint);
            sender_kills += 1;
        }
    }
    sender.ends(DRAIN_LIMIT);
    server.stop();
    let text = std::fs::read_to_string(world.path("simulator/journal"))
        .expect("the sender keeps a journal");
    let expected = journal::expected(&plan(), &text);
    assert!(expected.ticks.0 > 360 * NODES - 200, "{:?}", expected.ticks);
    assert!(
        server_kills > 3 && sender_kills > 3,
        "{server_kills} {sender_kills}"
    );
    let mut wrong = checker::differences(&place.database, "demo", &expected);
    assert!(expected.steps.len() > 1_000, "{}", expected.steps.len());
    wrong.extend(checker::step_differences(
        &place.database,
        "demo",
        &expected,
    ));
    assert!(
        wrong.is_empty(),
        "seed {SEED}, {server_kills} server kills, {sender_kills} sender kills, {} differences:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(10)].join("\n")
    );
}

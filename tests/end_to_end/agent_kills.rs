//! kill -9 of real agents and of the server at seeded moments under load: nothing that an agent has
//! spooled is lost, and nothing counts twice.
//!
//! The agents read the stand-in driver and ship a request a second. A relay between them and the
//! server keeps each request by its seq. Once the killing has ended and everything is durable, the
//! database is compared with that, and what the relay has seen with what the spools say they sent.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use gpufleet_spool::disk::RealDisk;
use gpufleet_spool::sim::Random;
use gpufleet_spool::{Limits, Spool};
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::identity::{Epoch, ResourceKind};
use gpufleet_telemetry::minute::Counter;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::Stream;
use gpufleet_tests::harness::agent::{self, Agent};
use gpufleet_tests::harness::relay::Relay;
use gpufleet_tests::harness::{World, checker, server, wait};
use gpufleet_tests::on_both_databases;

/// Real kills on each database.
const KILLS: u64 = 20;
/// Of the moments of the kills.
const SEED: u64 = 3;
const AGENTS: usize = 4;
const GPUS: u8 = 2;
/// Four samples and one request a second: the most that an agent can be made to do.
const FAST: &str =
    "[sample]\nperiod_ms = 250\nship_interval_seconds = 1\n[exporter]\nauto = false\n";
/// How long agents may take until they ship, with everything starting at once.
const START_LIMIT: Duration = Duration::from_secs(120);

fn place(world: &World, relay: &Relay, number: usize) -> agent::Place {
    let place = agent::Place::new(world, &format!("node-{number}"), &relay.endpoint(), FAST);
    let mut scenario = agent::gpus(number as u8, GPUS);
    scenario.time_s = None;
    place.show(&scenario);
    place
}

/// The highest seq that each stream of a stopped agent's spool has given out, by epoch.
fn given_out(spool: &Path) -> BTreeMap<(String, &'static str), u64> {
    let disk = RealDisk::open(spool).expect("the agent has stopped");
    let (now, new) = (
        Timestamp::from_seconds(wait::unix_seconds()),
        Epoch(uuid::Uuid::new_v4()),
    );
    let (spool, _) = Spool::open(disk, Limits::default(), new, now).expect("a sound spool");
    let mut ends = BTreeMap::new();
    for epoch in spool.epochs() {
        for stream in Stream::ALL {
            let next = spool.next_seq(epoch, stream);
            ends.insert((epoch.to_string(), stream.name()), next - 1);
        }
    }
    ends
}

on_both_databases!(twenty_kills_of_agents_and_server_lose_nothing_and_double_nothing);

/// Kills under load, then lets everything become durable and compares.
fn twenty_kills_of_agents_and_server_lose_nothing_and_double_nothing(world: World) {
    let mut random = Random::new(SEED);
    // Commits each second, so that kills fall into commits as well.
    let place_of_server = server::Place::new(&world).with("fleet.commit_interval_s=1");
    let relay = Relay::start(&format!("http://{}", place_of_server.grpc));
    let mut server = place_of_server.start();
    let places: Vec<_> = (0..AGENTS).map(|it| place(&world, &relay, it)).collect();
    let mut agents: Vec<Agent> = places.iter().map(agent::Place::start).collect();
    wait::until("every agent ships metrics", START_LIMIT, || {
        let ends = relay.ends();
        let metrics = ends.keys().filter(|line| line.2 == Stream::Metrics.name());
        (metrics.count() == AGENTS).then_some(())
    });
    let (mut server_kills, mut agent_kills) = (0, 0);
    for _ in 0..KILLS {
        wait::pause(Duration::from_millis(200 + random.below(1_200)));
        if random.one_in(2) {
            server = server.kill().start();
            server_kills += 1;
        } else {
            let victim = random.below(AGENTS as u64) as usize;
            let killed = agents.swap_remove(victim).kill();
            agents.push(killed.start());
            agent_kills += 1;
        }
    }
    assert!(
        server_kills > 3 && agent_kills > 3,
        "{server_kills} {agent_kills}"
    );
    agents.iter().for_each(Agent::catches_up);
    agents.into_iter().for_each(|agent| drop(agent.stop()));
    server.stop();
    assert_eq!(relay.wrong(), Vec::<String>::new(), "seed {SEED}");
    let mut passed: BTreeMap<_, _> = relay
        .ends()
        .into_iter()
        .map(|((_, epoch, stream), seq)| ((epoch, stream), seq))
        .collect();
    let spooled: BTreeMap<_, _> = places
        .iter()
        .flat_map(|it| given_out(&it.state.join("spool")))
        .collect();
    // Every process begins its own epoch, and one that is drained is deleted once all of it is
    // durable: what it sent is compared with the database below.
    assert!(spooled.len() >= AGENTS, "each has its own: {spooled:?}");
    passed.retain(|place, _| spooled.contains_key(place));
    assert_eq!(passed, spooled, "seed {SEED}: spooled, but never sent");
    let (expected, events) = relay.expected();
    assert!(expected.sure.len() > AGENTS, "{}", expected.sure.len());
    assert!(events.len() > AGENTS, "each start is told: {events:?}");
    let mut wrong = checker::differences(&place_of_server.database, "test", &expected);
    wrong.extend(checker::event_differences(
        &place_of_server.database,
        "test",
        &events,
    ));
    assert!(
        wrong.is_empty(),
        "seed {SEED}, {server_kills} server kills, {agent_kills} agent kills, {} differences:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(10)].join("\n")
    );
}

on_both_databases!(
    what_an_agent_had_read_of_its_tick_when_it_was_killed_arrives_without_it_reading_again
);

fn what_an_agent_had_read_of_its_tick_when_it_was_killed_arrives_without_it_reading_again(
    world: World,
) {
    let place_of_server = server::Place::new(&world).with("fleet.commit_interval_s=1");
    let server = place_of_server.start();
    let endpoint = format!("http://{}", server.place.grpc);
    // Longer than the test, unless it falls on the end of a minute, and then it has been shipped.
    let slow = "[sample]\nship_interval_seconds = 60\n[exporter]\nauto = false\n";
    let place = agent::Place::new(&world, "node-1", &endpoint, slow);
    let mut scenario = agent::gpus(0, 1);
    scenario.time_s = None;
    place.show(&scenario);
    let began = Timestamp::from_seconds(wait::unix_seconds());
    let agent = place.start();
    let energy = || {
        agent
            .values("gpufleet_gpu_energy_joules_total")
            .first()
            .copied()
    };
    let seen = wait::until("the GPU is read", START_LIMIT, energy);
    wait::until("and read again a second later", START_LIMIT, || {
        energy().filter(|now| *now > seen)
    });
    let place = agent.kill();
    // Its successor has no driver: all that it ships of the GPU is what was read before.
    place.replace_in_config(&agent::library(), "/nowhere/libnvidia-ml.so.1");
    let agent = place.start();
    wait::until("the GPU is on the server", START_LIMIT, || {
        let list = server.get("/api/v1/gpus?cluster=test").text();
        list.contains("GPU-5eed0000").then_some(())
    });
    agent.catches_up();
    agent.stop();
    server.stop();
    let ended = Timestamp::from_seconds(wait::unix_seconds() + 120);
    let uuid = "GPU-5eed0000-0000-4000-8000-000000000000";
    let minutes = began.minute()..ended.minute();
    let rows = checker::rows(
        &place_of_server.database,
        "test",
        ResourceKind::Gpu,
        uuid,
        minutes,
    );
    let last = rows
        .values()
        .filter_map(|row| row.counters.get(&gpu::ENERGY.id))
        .map(Counter::last)
        .fold(0.0, f64::max);
    assert!(
        last >= seen,
        "{last} J, and {seen} J was on /metrics before"
    );
    let seconds: u32 = rows
        .values()
        .map(|row| row.bitmaps.observed.count_ones())
        .sum();
    assert!(seconds >= 1, "{rows:?}");
}

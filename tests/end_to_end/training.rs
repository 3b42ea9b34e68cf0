//! Real training processes, read by a real agent that ships to a real server.

use gpufleet_tests::harness::relay::Relay;
use gpufleet_tests::harness::training::{self, Pace};
use gpufleet_tests::harness::{World, agent, server};
use gpufleet_tests::on_both_databases;

/// Kills of the agent; `make bench-training` does a hundred.
const KILLS: u64 = 12;

/// One rank whose steps are entries of their own, one whose steps are summed up by sixteens.
const RANKS: [Pace; 2] = [
    Pace {
        per_second: 5,
        steps: 100,
    },
    Pace {
        per_second: 100,
        steps: 2_000,
    },
];

on_both_databases!(an_agent_that_is_killed_again_and_again_loses_no_step_and_doubles_none);

fn an_agent_that_is_killed_again_and_again_loses_no_step_and_doubles_none(world: World) {
    let server = server::Place::new(&world).start();
    let relay = Relay::start(&format!("http://{}", server.place.grpc));
    let fast = "[sample]\nperiod_ms = 250\nship_interval_seconds = 1\n[exporter]\nauto = false\n";
    let config = format!("{fast}{}", training::config(&world));
    let place = agent::Place::new(&world, "node-0", &relay.endpoint(), &config);
    place.show(&agent::gpus(0, 1));
    let seen = training::under_kills(&world, &place, &relay, &RANKS, (KILLS, 5));
    server.stop();
    assert_eq!(seen.wrong, Vec::<String>::new());
}

//! The agent under training processes: 64 of a node at 100 steps a second, and a hundred kills of it
//! while two train. The processes are real ones, and so is each one's region.

use std::time::Duration;

use gpufleet_tests::harness::relay::Relay;
use gpufleet_tests::harness::training::{self, Pace};
use gpufleet_tests::harness::{World, agent, server, usage, wait};

use crate::figures::{Spread, line, told};

const PROCESSES: usize = 64;
const STEPS_PER_SECOND: u64 = 100;
/// What the agent must stay within.
const MAX_CPU_PERCENT: f64 = 2.0;
const WINDOW: Duration = Duration::from_secs(20);
/// How long the processes may take until they are all read.
const START_LIMIT: Duration = Duration::from_secs(60);
const MIB: f64 = 1_048_576.0;

pub(crate) fn run(short: bool) -> bool {
    let (windows, kills) = if short { (2, 10) } else { (8, 100) };
    let within = steady(windows);
    let exact = killed(kills);
    within && exact
}

/// The bench's processes are all of one cgroup, which no node's are.
const OF_ONE_CONTAINER: &str = "max_clients_per_container = 128\n";

/// No GPU is read, so that what is measured is what training processes cost.
const WITHOUT_GPUS: &str = "[exporter]\nauto = false\n";

fn steady(windows: usize) -> bool {
    told(&format!(
        "agent, {PROCESSES} training processes at {STEPS_PER_SECOND} steps a second, no GPU, 10 s shipping"
    ));
    let world = World::new();
    let server = server::Place::sqlite(&world).start();
    let hooks = training::config(&world);
    let config = format!("{WITHOUT_GPUS}{hooks}{OF_ONE_CONTAINER}");
    let endpoint = format!("http://{}", server.place.grpc);
    let place = agent::Place::new(&world, "bench", &endpoint, &config);
    place.replace_in_config("[nvml]\n", "[nvml]\nenabled = false\n");
    let agent = place.start();
    let pace = Pace {
        per_second: STEPS_PER_SECOND,
        steps: u64::MAX,
    };
    let trainers = training::start(&world, &[pace; PROCESSES]);
    wait::until("every process is read", START_LIMIT, || {
        let ranks = agent.values("gpufleet_training_steps_total").len();
        (ranks == PROCESSES).then_some(())
    });
    wait::pause(WINDOW);
    let (mut cpu, mut pss, mut steps) = (Spread::default(), Spread::default(), Spread::default());
    for _ in 0..windows {
        let (before, done, began) = (usage::of_group(agent.id()), total(&agent), wait::now());
        wait::pause(WINDOW);
        let (after, ended) = (usage::of_group(agent.id()), wait::now());
        let seconds = (ended - began).as_secs_f64();
        cpu.add((after.cpu_seconds - before.cpu_seconds) / seconds * 100.0);
        pss.add(after.pss_bytes / MIB);
        steps.add((total(&agent) - done) / seconds);
    }
    drop(trainers);
    agent.stop();
    server.stop();
    told(&format!("steps a second of all: {}", steps.told()));
    told(&format!("PSS, MiB: {}", pss.told()));
    let name = "CPU, parent and children, % of a core";
    line(name, &cpu.told(), cpu.mean(), MAX_CPU_PERCENT)
}

fn total(agent: &agent::Agent) -> f64 {
    agent.values("gpufleet_training_steps_total").iter().sum()
}

fn killed(kills: u64) -> bool {
    told(&format!(
        "agent, killed {kills} times while two processes train"
    ));
    let world = World::new();
    let server = server::Place::sqlite(&world).start();
    let relay = Relay::start(&format!("http://{}", server.place.grpc));
    let fast = "[sample]\nperiod_ms = 250\nship_interval_seconds = 1\n";
    let config = format!("{fast}{WITHOUT_GPUS}{}", training::config(&world));
    let place = agent::Place::new(&world, "bench", &relay.endpoint(), &config);
    place.show(&agent::gpus(0, 1));
    // They train for as long as it is killed: 0.9 s on average, and a moment to start.
    let seconds = kills * 6 / 5;
    let ranks = [5, 100].map(|per_second| Pace {
        per_second,
        steps: seconds * per_second,
    });
    let seen = training::under_kills(&world, &place, &relay, &ranks, (kills, 5));
    server.stop();
    seen.wrong.iter().for_each(|it| told(it));
    let name = format!("steps lost or doubled, of {}", seen.steps);
    line(
        &name,
        &format!("{}", seen.wrong.len()),
        seen.wrong.len() as f64,
        0.0,
    )
}

//! Training processes for an agent to read, and what must come of them when it is killed again and
//! again: every step in the totals, and every step once in the blocks.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use gpufleet_hooks_shm::wire::SOCKET_VARIABLE;
use gpufleet_spool::sim::Random;
use gpufleet_telemetry::event::EventKind;

use super::agent::{self, Agent};
use super::process::Process;
use super::relay::Relay;
use super::{World, built, wait};

/// How long everything may take to arrive once the killing has ended.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(180);

/// A rank that does this many steps a second, and so many in all.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Steps a second.
    pub per_second: u64,
    /// Steps in all.
    pub steps: u64,
}

/// What was seen of a run whose agent was killed.
#[derive(Debug)]
pub struct Seen {
    /// What is wrong; nothing in a correct agent.
    pub wrong: Vec<String>,
    /// Steps of all ranks in blocks.
    pub steps: u64,
}

/// Where the training processes of a test find their agent.
pub fn socket(world: &World) -> PathBuf {
    world.path("hooks.sock")
}

/// The part of an agent's config that reads them.
pub fn config(world: &World) -> String {
    format!("[hooks]\nsocket_path = \"{}\"\n", socket(world).display())
}

/// Starts one process a rank; they are killed when they are dropped.
pub fn start(world: &World, ranks: &[Pace]) -> Vec<Process> {
    let start = |(rank, pace): (usize, &Pace)| {
        let mut command = Command::new(built("gpufleet-trainer"));
        command
            .args(["--rank", &rank.to_string()])
            .args(["--world", &ranks.len().to_string()])
            .args(["--per-second", &pace.per_second.to_string()])
            .args(["--steps", &pace.steps.to_string()])
            .env(SOCKET_VARIABLE, socket(world));
        Process::start("gpufleet-trainer", command, &world.path("trainers.log"))
    };
    ranks.iter().enumerate().map(start).collect()
}

/// Kills the agent `kills` times at seeded moments while the ranks train, and looks what arrives at
/// the relay in the end.
pub fn under_kills(
    world: &World,
    place: &agent::Place,
    relay: &Relay,
    ranks: &[Pace],
    (kills, seed): (u64, u64),
) -> Seen {
    let mut random = Random::new(seed);
    let trainers = start(world, ranks);
    let mut agent = place.start();
    for _ in 0..kills {
        wait::pause(Duration::from_millis(300 + random.below(1_200)));
        agent = agent.kill().start();
    }
    let total: u64 = ranks.iter().map(|it| it.steps).sum();
    let longest = ranks.iter().map(|it| it.steps / it.per_second).max();
    let limit = ARRIVAL_LIMIT + Duration::from_secs(longest.unwrap_or(0));
    wait::until("every step arrives in a block", limit, || {
        (in_blocks(relay) >= total).then_some(())
    });
    agent.catches_up();
    let mut wrong = totals(&agent, ranks);
    wrong.extend(blocks(relay, ranks));
    wrong.extend(relay.wrong());
    let (_, events) = relay.expected();
    let missed = events.iter().filter(|it| it.kind == EventKind::StepsMissed);
    wrong.extend(missed.map(|it| it.message.clone()));
    agent.stop();
    drop(trainers);
    Seen {
        wrong,
        steps: in_blocks(relay),
    }
}

fn in_blocks(relay: &Relay) -> u64 {
    let steps = relay.steps();
    let blocks = steps.values().flatten();
    blocks.map(|it| it.next_step() - it.first_step).sum()
}

/// Totals that are not what the ranks have done.
fn totals(agent: &Agent, ranks: &[Pace]) -> Vec<String> {
    let mut expected: Vec<f64> = ranks.iter().map(|it| it.steps as f64).collect();
    expected.sort_by(f64::total_cmp);
    let names = [
        "gpufleet_training_steps_total",
        "gpufleet_training_tokens_total",
    ];
    let mut wrong = Vec::new();
    for name in names {
        let mut found = agent.values(name);
        found.sort_by(f64::total_cmp);
        if found != expected {
            wrong.push(format!("{name} is {found:?} instead of {expected:?}"));
        }
    }
    wrong
}

/// Steps that are in no block, or in two.
fn blocks(relay: &Relay, ranks: &[Pace]) -> Vec<String> {
    let mut wrong = Vec::new();
    let steps = relay.steps();
    for (rank, pace) in ranks.iter().enumerate() {
        let mut times: BTreeMap<u64, u64> = (1..=pace.steps).map(|it| (it, 0)).collect();
        let of_rank = steps.get(&format!("/trainer//0/{rank}"));
        for block in of_rank.into_iter().flatten() {
            for step in block.first_step..block.next_step() {
                *times.entry(step).or_default() += 1;
            }
        }
        let odd: Vec<_> = times.into_iter().filter(|(_, times)| *times != 1).collect();
        if !odd.is_empty() {
            let some = &odd[..odd.len().min(10)];
            wrong.push(format!(
                "rank {rank}: {} steps are not in one block; (step, blocks): {some:?}",
                odd.len()
            ));
        }
    }
    wrong
}

//! `gpufleet-trainer`: a training process without the training. What it shares with the agent is real:
//! a process of its own with a region of its own, which is handed to whichever agent listens.
//!
//! It does its steps at even times, then stands still until it is killed.

use std::time::Duration;

use clap::Parser;
use gpufleet_hooks_shm::client::{Client, Options};
use gpufleet_hooks_shm::process::{monotonic_ns, unix_ns};
use gpufleet_hooks_shm::records::{Identity, Step};
use gpufleet_hooks_shm::words::WriterKind;
use gpufleet_tests::harness::wait;

const SECOND_NS: u64 = 1_000_000_000;

/// A training process without the training.
#[derive(Debug, Parser)]
#[command(name = "gpufleet-trainer", version)]
struct Arguments {
    /// The name of its job.
    #[arg(long, default_value = "trainer")]
    job: String,
    /// Which rank it is.
    #[arg(long)]
    rank: i64,
    /// How many ranks there are.
    #[arg(long)]
    world: i64,
    /// Steps a second.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    per_second: u64,
    /// How many steps it does.
    #[arg(long, default_value_t = u64::MAX)]
    steps: u64,
}

fn main() {
    let arguments = Arguments::parse();
    let client = Client::start(Options::new(WriterKind::Python));
    let writer = client.writer();
    writer.identity(&Identity {
        job_name: arguments.job,
        attempt: 0,
        rank: arguments.rank,
        world: arguments.world,
        ..Identity::default()
    });
    let wall_ns = SECOND_NS / arguments.per_second;
    let begun = monotonic_ns();
    for step in 1..=arguments.steps {
        let due = begun.saturating_add(step.saturating_mul(wall_ns));
        wait::pause(Duration::from_nanos(due.saturating_sub(monotonic_ns())));
        writer.step(&Step {
            step,
            ended_at: unix_ns(),
            wall_ns,
            busy_ns: wall_ns / 2,
            tokens: 1,
            ..Step::default()
        });
    }
    loop {
        std::thread::park();
    }
}

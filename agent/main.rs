//! `gpufleet-agent`: one per node.

mod memory;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::{Parser, Subcommand};
use gpufleet_agent::config::Config;
use gpufleet_agent::run::Ended;
use gpufleet_agent::{bundle, doctor, probe, read, record, run};
use gpufleet_program::clock::SystemClock;
use gpufleet_program::config::{ConfigFlags, Sources};
use gpufleet_program::log;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Threads for what may block: two lanes, the way into the spool (the tick under way goes the same, one
/// after the other), the readers of the machine and of its processes, which may hang in the kernel for good,
/// names of servers that are looked up, two to spare.
const BLOCKING_THREADS: usize = 8;

/// Their stacks: encoding and file calls need a few KiB.
const STACK_BYTES: usize = 512 << 10;

/// Reads what every GPU of this node does and ships it.
#[derive(Debug, Parser)]
#[command(name = "gpufleet-agent", version)]
struct Arguments {
    #[command(flatten)]
    config: ConfigFlags,
    #[command(flatten)]
    playback: read::recorded::Flags,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Reads and ships until it is stopped (the default).
    Run,
    /// Writes what the readers return to a file that can be played back.
    Record(record::Arguments),
    /// One screen that says what works, what does not, why, and the fix.
    Doctor(doctor::Arguments),
    /// Puts what the vendor's repair form asks for into one file: serial numbers, VBIOS, driver, XIDs, ECC,
    /// readings, the last probe, the doctor's screen.
    Bundle(bundle::Arguments),
    /// Computes on a GPU what has a known answer; exits 0 pass, 10 slow, 20 fail, 30 could not measure.
    Probe(probe::command::Arguments),
    /// Goes to the GPU for one probe.
    #[command(hide = true)]
    ProbeChild(probe::child::ChildArguments),
    /// Talks to the driver for a running agent.
    #[command(hide = true)]
    NvmlChild(read::nvml::ChildArguments),
}

fn main() -> anyhow::Result<ExitCode> {
    memory::one_heap();
    let arguments = Arguments::parse();
    // The child comes first: it must not carry a runtime, a config or a log of its own.
    if let Some(Command::NvmlChild(child)) = &arguments.command {
        return read::nvml::child(child).map(|()| ExitCode::SUCCESS);
    }
    if let Some(Command::ProbeChild(child)) = &arguments.command {
        return probe::child::run(child).map(|()| ExitCode::SUCCESS);
    }
    let playback = arguments.playback.settings();
    let Some((sources, config)) = arguments.config.load(playback)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_stack_size(STACK_BYTES)
        .build()
        .context("cannot start the runtime")?;
    let done = match &arguments.command {
        Some(Command::Record(record)) => runtime.block_on(record::run(&config, record)),
        Some(Command::Doctor(doctor)) => runtime.block_on(doctor::run(&config, doctor)),
        Some(Command::Bundle(bundle)) => runtime.block_on(bundle::run(&config, bundle)),
        Some(Command::Probe(probe)) => {
            let probed = runtime.block_on(probe::command::run(&config, probe));
            runtime.shutdown_background();
            return probed;
        }
        _ => runtime.block_on(agent(&sources, config)),
    };
    // What still blocks (a slow disk after a stop) is not waited for.
    runtime.shutdown_background();
    done.map(|()| ExitCode::SUCCESS)
}

/// Runs the agent until SIGTERM or SIGINT, beginning again where it must.
async fn agent(sources: &Sources, mut config: Config) -> anyhow::Result<()> {
    let traces = log::start("gpufleet-agent", &config.trace)?;
    let stop = CancellationToken::new();
    stop_on_signals(stop.clone())?;
    let clock = Arc::new(SystemClock::start());
    tokio::spawn(memory::give_back(clock.clone()));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "gpufleet-agent starts");
    loop {
        match run::run(&config, sources, clock.clone(), stop.clone()).await? {
            Ended::Stopped => break,
            Ended::Again(next) => config = *next,
        }
    }
    tracing::info!("gpufleet-agent has stopped; what it read is in the spool");
    traces.finish().await;
    Ok(())
}

fn stop_on_signals(stop: CancellationToken) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    });
    Ok(())
}

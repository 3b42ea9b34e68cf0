//! `gpufleet-agent`: one per node.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::{Parser, Subcommand};
use gpufleet_agent::clock::RealClock;
use gpufleet_agent::config::{DEFAULT_FILE, Sources};
use gpufleet_agent::run::Ended;
use gpufleet_agent::{doctor, log, read, record, run};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Threads for what may block (the spool, files); two lanes, the spool's way in, one to spare.
const BLOCKING_THREADS: usize = 4;

/// Their stacks: encoding and file calls need a few KiB.
const STACK_BYTES: usize = 512 << 10;

/// Reads what every GPU of this node does and ships it.
#[derive(Debug, Parser)]
#[command(name = "gpufleet-agent", version)]
struct Arguments {
    /// The config file; without it /etc/gpufleet/agent.toml if it is there, else the defaults.
    #[arg(long, global = true, env = "GPUFLEET_CONFIG")]
    config: Option<PathBuf>,
    /// One key of the config, `section.key=value`; beats environment and file.
    #[arg(long, global = true, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    playback: read::recorded::Flags,
    /// Says whether the config can be used, and goes.
    #[arg(long)]
    check_config: bool,
    /// Prints the documented default config, and goes.
    #[arg(long)]
    print_default_config: bool,
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
    /// Talks to the driver for a running agent.
    #[command(hide = true)]
    NvmlChild(read::nvml::ChildArguments),
}

#[expect(clippy::print_stdout, reason = "a program asked to print prints")]
fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    // The child comes first: it must not carry a runtime, a config or a log of its own.
    if let Some(Command::NvmlChild(child)) = &arguments.command {
        return read::nvml::child(child);
    }
    if arguments.print_default_config {
        print!("{DEFAULT_FILE}");
        return Ok(());
    }
    let mut set = arguments.playback.settings();
    set.extend(arguments.set);
    let sources = Sources::new(arguments.config, std::env::vars().collect(), set);
    let config = sources.load()?;
    if arguments.check_config {
        println!("the config can be used");
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_stack_size(STACK_BYTES)
        .build()
        .context("cannot start the runtime")?;
    let done = match &arguments.command {
        Some(Command::Record(record)) => runtime.block_on(record::run(&config, record)),
        Some(Command::Doctor(doctor)) => runtime.block_on(doctor::run(&config, doctor)),
        _ => runtime.block_on(agent(&sources)),
    };
    // What still blocks (a slow disk after a stop) is not waited for.
    runtime.shutdown_background();
    done
}

/// Runs the agent until SIGTERM or SIGINT, beginning again where it must.
async fn agent(sources: &Sources) -> anyhow::Result<()> {
    let mut config = sources.load()?;
    let traces = log::start(&config.trace)?;
    let stop = CancellationToken::new();
    stop_on_signals(stop.clone())?;
    let clock = Arc::new(RealClock::start());
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "gpufleet-agent starts");
    loop {
        match run::run(&config, sources, clock.clone(), stop.clone()).await? {
            Ended::Stopped => break,
            Ended::Again(next) => config = *next,
        }
    }
    tracing::info!("gpufleet-agent has stopped; what it read is in the spool");
    traces.finish();
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

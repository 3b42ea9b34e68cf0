//! `gpufleet-agent`: one per node.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};
use gpufleet_agent::config::Config;
use gpufleet_agent::{doctor, read, record};

/// Reads what every GPU of this node does and ships it.
#[derive(Debug, Parser)]
#[command(name = "gpufleet-agent", version)]
struct Arguments {
    /// The config file; without it /etc/gpufleet/agent.toml if it is there, else the defaults.
    #[arg(long, global = true, env = "GPUFLEET_CONFIG")]
    config: Option<PathBuf>,
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
    Doctor,
    /// Talks to the driver for a running agent.
    #[command(hide = true)]
    NvmlChild(read::nvml::ChildArguments),
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    // The child comes first: it must not carry a runtime, a config or a log of its own.
    if let Some(Command::NvmlChild(child)) = &arguments.command {
        return read::nvml::child(child);
    }
    let config = match &arguments.config {
        Some(path) => Config::load(path)?,
        None => Config::default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    match &arguments.command {
        Some(Command::Record(record)) => runtime.block_on(record::run(&config, record)),
        Some(Command::Doctor) => runtime.block_on(doctor::run(&config)),
        Some(Command::NvmlChild(_)) | Some(Command::Run) | None => Ok(()),
    }
}

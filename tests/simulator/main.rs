//! `gpufleet-simulator`: a simulated fleet that ships to a real server, in the cluster `demo` and
//! marked simulated.
//!
//! It fills in history first (in the lane for old data), then ships live ticks of 10 s until it is
//! stopped. With a state folder it goes on where it was stopped, and nothing counts twice. A replay
//! makes ticks faster than time goes; an outage makes the agents of a server that was away. Faults
//! are taken on the control address: `POST /fault/xid79`.

mod control;

mod history;

mod run;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use gpufleet_tests::simulator::node::Plan;

/// A simulated GPU fleet that ships to a real server.
#[derive(Debug, Parser)]
#[command(name = "gpufleet-simulator", version)]
pub(crate) struct Arguments {
    /// The server's OTLP/gRPC address.
    #[arg(long, default_value = "http://127.0.0.1:4317")]
    endpoint: String,
    /// The cluster's name; the server adds what marks it as simulated where it is missing.
    #[arg(long, default_value = "demo")]
    cluster: String,
    /// The same seed makes the same fleet doing the same things.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many nodes.
    #[arg(long, default_value_t = 8)]
    nodes: usize,
    /// How many GPUs each has.
    #[arg(long, default_value_t = 8)]
    gpus: usize,
    /// How many metrics each GPU has at most.
    #[arg(long, default_value_t = usize::MAX)]
    metrics: usize,
    /// Leaves out what the processes of training jobs tell.
    #[arg(long)]
    no_training: bool,
    /// Hours of history to fill in first; none where an earlier run left off later than that.
    #[arg(long, default_value_t = 0)]
    history_hours: u32,
    /// Begins so many minutes ago with live ticks of 10 s, makes one every `--every-ms` until they
    /// have caught up, waits until everything is durable, and ends.
    #[arg(long, requires = "every_ms", conflicts_with = "history_hours")]
    replay_minutes: Option<i64>,
    /// Milliseconds between two ticks of a replay.
    #[arg(long, requires = "replay_minutes")]
    every_ms: Option<u64>,
    /// Begins with this many minutes of ticks of 10 s in the spools, as agents have whose server was
    /// away; goes on live until the server has them, waits until everything is durable, and ends.
    #[arg(long, conflicts_with_all = ["history_hours", "replay_minutes"])]
    outage_minutes: Option<i64>,
    /// Folder of the spools and of how far the fleet has been simulated.
    #[arg(long, required_unless_present = "in_memory")]
    state: Option<PathBuf>,
    /// Keeps the spools in memory: for measuring the server without this side's disk. The journal
    /// of what was made is still written to the state folder, if there is one.
    #[arg(long)]
    in_memory: bool,
    /// Where faults are taken; loopback only.
    #[arg(long)]
    control: Option<SocketAddr>,
}

impl Arguments {
    fn plan(&self) -> Plan {
        Plan {
            seed: self.seed,
            cluster: self.cluster.clone(),
            nodes: self.nodes,
            gpus_per_node: self.gpus,
            metrics: self.metrics,
            training: !self.no_training,
            workloads: false,
        }
    }
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(control) = arguments.control {
        anyhow::ensure!(
            control.ip().is_loopback(),
            "--control {control}: faults are taken on loopback only, for example 127.0.0.1:9430"
        );
    }
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::INFO)
        .init();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(run::run(arguments))
}

//! Measures agent and server, each beside what it must reach. Figures and commands that were last
//! measured are in docs/performance.md.

mod agent;

mod server;

mod outage;

mod detect;

mod report;

mod replay;

mod training;

mod notify;

mod pages;

mod around;

mod remote_write;

mod exposition;

mod figures;

use clap::{Parser, Subcommand};

/// The server's: what is measured in this process allocates as it does there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures gpufleet.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The agent: 8 GPUs of the stand-in driver at 30 µs a call, 1 s sampling, 10 s shipping.
    Agent {
        /// A quick look: half a minute each instead of minutes.
        #[arg(long)]
        short: bool,
    },
    /// The agent under training processes: 64 at 100 steps a second, and a hundred kills of it.
    Training {
        /// A quick look: two windows and ten kills.
        #[arg(long)]
        short: bool,
    },
    /// The server: 10,000 simulated GPUs, 60 metrics at 10 s; Prometheus and VictoriaMetrics with
    /// the same samples.
    Server {
        /// A quick look: two minutes instead of ten.
        #[arg(long)]
        short: bool,
    },
    /// The server after an outage of 2 h of 1,000 agents, whose live data goes on.
    Outage {
        /// A quick look: 100 agents, 20 minutes.
        #[arg(long)]
        short: bool,
        /// GPUs of each agent; 8 take 14 GB for the spools.
        #[arg(long, default_value_t = 2)]
        gpus: usize,
    },
    /// How soon people are told, and how many messages a minute of trouble makes.
    Notify {
        /// A quick look: six incidents instead of thirty.
        #[arg(long)]
        short: bool,
    },
    /// A tick of the detectors over simulated GPUs, their machines and the runs on them.
    Detect {
        /// A quick look: four ticks instead of ten.
        #[arg(long)]
        short: bool,
        /// How many GPUs.
        #[arg(long, default_value_t = 100_000)]
        gpus: usize,
        /// Jobs tell nothing of themselves, so that their GPUs are judged by their clocks.
        #[arg(long)]
        untold: bool,
    },
    /// A stored day, replayed: SQLite, and PostgreSQL where one runs for tests.
    Replay {
        /// How many GPUs.
        #[arg(long, default_value_t = 2_000)]
        gpus: usize,
        /// How many minutes are stored and replayed.
        #[arg(long, default_value_t = 30)]
        minutes: u64,
    },
    /// A month of 10,000 GPUs as a report, from the store: SQLite, and PostgreSQL where one runs for tests.
    Report {
        /// A quick look: 800 GPUs.
        #[arg(long)]
        short: bool,
    },
}

fn main() {
    let reached = match Arguments::parse().what {
        What::Agent { short } => agent::run(short),
        What::Training { short } => training::run(short),
        What::Server { short } => server::run(short),
        What::Outage { short, gpus } => outage::run(short, gpus),
        What::Notify { short } => notify::run(short),
        What::Detect {
            short,
            gpus,
            untold,
        } => detect::run(short, gpus, untold),
        What::Replay { gpus, minutes } => replay::run(gpus, minutes),
        What::Report { short } => report::run(short),
    };
    std::process::exit(i32::from(!reached));
}

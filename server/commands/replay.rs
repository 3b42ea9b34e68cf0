//! `gpufleet-server replay`: what would have fired, to standard output; how far it is, to standard error.

use std::io::Write as _;

use clap::{Args, ValueEnum};
use gpufleet_server::config::Config;
use gpufleet_server::replay::{self, What, told};
use gpufleet_server::words::text;
use gpufleet_telemetry::time::Timestamp;

/// How far it is is told in steps of this part.
const STEP: f64 = 0.05;

/// What is replayed.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// A day (UTC) of the configured store, 2026-11-21, or a recording as gpufleet-agent record writes it.
    #[arg(value_name = "RECORDING|DAY")]
    what: String,
    /// Of a day: only this cluster.
    #[arg(long)]
    cluster: Option<String>,
    /// In which form.
    #[arg(long, default_value = "text")]
    format: Form,
}

/// A form of the answer.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Form {
    /// For people.
    Text,
    /// For programs, in the words of the API.
    Json,
}

/// Replays it.
pub(crate) async fn run(flags: Flags, config: &Config) -> anyhow::Result<()> {
    let what = What::parse(&flags.what)?;
    let mut told = 0.0;
    let mut progress = |done: f64, at: Timestamp| {
        if done - told >= STEP {
            told = done;
            let percent = done * 100.0;
            let mut out = std::io::stderr().lock();
            // Whoever watches may have gone.
            let _ = writeln!(out, "{percent:3.0} %, {}", text::moment(at));
        }
    };
    let cluster = flags.cluster.as_deref();
    let replayed = replay::replay(&what, config, cluster, &mut progress).await?;
    let text = match flags.format {
        Form::Text => told::text(&replayed),
        Form::Json => told::json(&replayed),
    };
    super::print(&text)
}

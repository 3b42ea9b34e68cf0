//! `gpufleet-agent record`: what the readers return, written to a file that can be played back.

use std::path::PathBuf;

use crate::config::Config;

/// What to record.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// The file to write.
    #[arg(long)]
    pub output: PathBuf,
    /// How many seconds to record; at least 60.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
}

/// Records until the time is over.
///
/// # Errors
/// When no reader has anything to record or the file cannot be written.
pub async fn run(config: &Config, arguments: &Arguments) -> anyhow::Result<()> {
    let _ = config;
    anyhow::bail!(
        "nothing to record to {}: no reader is built in",
        arguments.output.display()
    )
}

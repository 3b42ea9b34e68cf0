//! NVIDIA GPUs through NVML, in a child process that may be lost without harm.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// How NVIDIA GPUs are read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NvmlConfig {
    /// Whether NVML is read at all. Where no driver is installed the reader says so and waits for
    /// one.
    pub enabled: bool,
    /// The library to load; empty means libnvidia-ml.so.1 from where the loader looks.
    pub library_path: PathBuf,
}

/// Arguments of the child process; only the agent itself starts it.
#[derive(Debug, Clone, clap::Args)]
pub struct ChildArguments {
    /// The library to load.
    #[arg(long, default_value = "")]
    pub library_path: PathBuf,
}

impl Default for NvmlConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            library_path: PathBuf::new(),
        }
    }
}

/// What the child process does until its parent is gone.
///
/// # Errors
/// When it was not started by an agent.
pub fn child(arguments: &ChildArguments) -> anyhow::Result<()> {
    anyhow::bail!("nvml-child is started by the agent, not by hand ({arguments:?})")
}

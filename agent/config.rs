//! The agent's config: one section per module, each owned by its module.
//!
//! A flag beats the environment (`GPUFLEET_<SECTION>__<KEY>`), which beats the file. A key nobody
//! knows is refused with its name.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::admin::ListenConfig;
use crate::prometheus::PrometheusConfig;
use crate::read::exporter::ExporterConfig;
use crate::read::host::HostConfig;
use crate::read::nvml::NvmlConfig;
use crate::read::recorded::RecordedConfig;
use crate::sample::SampleConfig;
use crate::ship::ShipConfig;

/// Everything the agent can be told.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Who and where this agent is.
    pub node: NodeConfig,
    /// How often is sampled and shipped.
    pub sample: SampleConfig,
    /// Where and how readings are sent.
    pub ship: ShipConfig,
    /// Where the agent listens.
    pub listen: ListenConfig,
    /// How /metrics is written.
    pub prometheus: PrometheusConfig,
    /// How NVIDIA GPUs are read.
    pub nvml: NvmlConfig,
    /// Which endpoints are scraped.
    pub exporter: ExporterConfig,
    /// How the machine is read.
    pub host: HostConfig,
    /// What is played back.
    pub recorded: RecordedConfig,
}

/// Who and where this agent is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// The cluster this node belongs to.
    pub cluster: String,
    /// The node's name; empty means the host's name.
    pub name: String,
    /// The folder with the agent's id and its spool; it must survive a restart.
    pub state_folder: PathBuf,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            cluster: "default".to_owned(),
            name: String::new(),
            state_folder: PathBuf::from("/var/lib/gpufleet"),
        }
    }
}

impl Config {
    /// From a file.
    ///
    /// # Errors
    /// When it cannot be read, is not TOML, or has a key that nobody knows.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the config file {}", path.display()))?;
        toml::from_str(&text)
            .with_context(|| format!("the config file {} cannot be used", path.display()))
    }

    /// A config for tests: everything off that touches the machine.
    pub fn for_tests() -> Self {
        let mut config = Self::default();
        config.nvml.enabled = false;
        config.host.enabled = false;
        config.exporter.auto = false;
        config.listen.address = "127.0.0.1:0".to_owned();
        config
    }
}

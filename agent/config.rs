//! The agent's config: one section per module, each owned by its module.
//!
//! A flag (`--set section.key=value`) beats the environment (`GPUFLEET_<SECTION>__<KEY>`), which
//! beats the file. A key nobody knows is refused with its name. The documented default file is made
//! from the structs by a test.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::admin::ListenConfig;
use crate::log::TraceConfig;
use crate::prometheus::PrometheusConfig;
use crate::read::exporter::ExporterConfig;
use crate::read::host::HostConfig;
use crate::read::nvml::NvmlConfig;
use crate::read::recorded::RecordedConfig;
use crate::sample::SampleConfig;
use crate::ship::ShipConfig;
use crate::spool::SpoolConfig;

/// The documented default file.
pub const DEFAULT_FILE: &str = include_str!("../docs/agent.toml");

/// Where the file is looked for when none is named.
const DEFAULT_PATH: &str = "/etc/gpufleet/agent.toml";

/// Prefix of environment variables that are configuration, when they have `__` in them.
const ENVIRONMENT_PREFIX: &str = "GPUFLEET_";

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
    /// When the spool is full.
    pub spool: SpoolConfig,
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
    /// Where the agent's own traces go.
    pub trace: TraceConfig,
}

/// Who and where this agent is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// The cluster this node belongs to.
    pub cluster: String,
    /// The node's name; empty means the host's name. In a container give it (`spec.nodeName`),
    /// because the host's name is then the pod's.
    pub name: String,
    /// The folder with the agent's id and its spool; it must survive a restart.
    pub state_folder: PathBuf,
}

/// Where a config comes from, so that it can be read again.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    file: Option<PathBuf>,
    environment: Vec<(String, String)>,
    set: Vec<String>,
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

impl NodeConfig {
    /// The name as given, or the host's.
    pub fn resolved_name(&self) -> String {
        if self.name.is_empty() {
            let host = rustix::system::uname();
            host.nodename().to_string_lossy().into_owned()
        } else {
            self.name.clone()
        }
    }
}

impl Sources {
    /// A file (the one at its usual place, if none is named and it is there), the environment, and
    /// `section.key=value` settings.
    pub fn new(
        file: Option<PathBuf>,
        environment: Vec<(String, String)>,
        set: Vec<String>,
    ) -> Self {
        let usual = PathBuf::from(DEFAULT_PATH);
        Self {
            file: file.or_else(|| usual.exists().then_some(usual)),
            environment,
            set,
        }
    }

    /// Reads the config from all of them.
    ///
    /// # Errors
    /// Names the file, variable or flag, the key, and the way out.
    pub fn load(&self) -> anyhow::Result<Config> {
        let mut table = match &self.file {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read the config file {}", path.display()))?;
                // Parsed on its own first: its errors then name line and column of the file.
                parse(&text)
                    .with_context(|| format!("the config file {} cannot be used", path.display()))?
            }
            None => Table::new(),
        };
        for (name, value) in &self.environment {
            if let Some((section, key)) = name
                .strip_prefix(ENVIRONMENT_PREFIX)
                .and_then(|rest| rest.split_once("__"))
            {
                let (section, key) = (section.to_lowercase(), key.to_lowercase());
                put(&mut table, &section, &key, value)
                    .with_context(|| format!("the environment variable {name}"))?;
            }
        }
        for setting in &self.set {
            let (key, value) = setting
                .split_once('=')
                .with_context(|| format!("--set {setting}: it must be section.key=value"))?;
            let (section, key) = key
                .split_once('.')
                .with_context(|| format!("--set {setting}: it must be section.key=value"))?;
            put(&mut table, section, key, value).with_context(|| format!("--set {setting}"))?;
        }
        let config: Config = table.try_into().context("the config cannot be used")?;
        config.check()?;
        Ok(config)
    }
}

/// A config file's table, if every key in it is known.
fn parse(text: &str) -> anyhow::Result<Table> {
    toml::from_str::<Config>(text)?;
    Ok(toml::from_str(text)?)
}

/// Puts a value in its place: as TOML reads it, if the config then can be used, else as text.
fn put(table: &mut Table, section: &str, key: &str, value: &str) -> anyhow::Result<()> {
    let read: Option<Value> = toml::from_str::<Table>(&format!("value = {value}"))
        .ok()
        .and_then(|mut table| table.remove("value"));
    let text = Value::String(value.to_owned());
    let mut refused = None;
    for value in read.into_iter().chain([text]) {
        let mut tried = table.clone();
        let entry = tried
            .entry(section)
            .or_insert_with(|| Value::Table(Table::new()));
        let Value::Table(keys) = entry else {
            bail!("`{section}` is not a section");
        };
        keys.insert(key.to_owned(), value);
        match Config::deserialize(tried.clone()) {
            Ok(_) => {
                *table = tried;
                return Ok(());
            }
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    let why = refused.expect("the text was tried");
    bail!("{section}.{key} cannot be {value}: {}", why.message())
}

impl Config {
    /// From a file alone.
    ///
    /// # Errors
    /// When it cannot be read, is not TOML, has a key that nobody knows, or a value that cannot be.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        Sources::new(Some(path.to_owned()), Vec::new(), Vec::new()).load()
    }

    /// Whether the values can work together.
    ///
    /// # Errors
    /// Names the key and says what it may be.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            !self.node.cluster.is_empty(),
            "node.cluster is empty: give the cluster's name"
        );
        self.sample.check()?;
        self.spool.check()?;
        self.listen.checked_address().map(|_| ())
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

/// The machine's id; empty where it has none (a container without /etc/machine-id), and then the
/// node's name alone tells machines apart.
pub fn machine_id() -> String {
    first_line("/etc/machine-id")
}

/// The kernel's boot id; empty where the kernel gives none.
pub fn boot_id() -> String {
    first_line("/proc/sys/kernel/random/boot_id")
}

fn first_line(path: &str) -> String {
    std::fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;

//! The agent's config: its sections, each owned by its module.

use std::error::Error;
use std::path::PathBuf;

use gpufleet_program::config::ProgramConfig;
use gpufleet_program::traces::TraceConfig;
use gpufleet_program::{section, sections};
use gpufleet_telemetry::identity::attribute;

use crate::admin::ListenConfig;
use crate::attribute::AttributeConfig;
use crate::probe::ProbeConfig;
use crate::prometheus::PrometheusConfig;
use crate::read::exporter::ExporterConfig;
use crate::read::hooks::HooksConfig;
use crate::read::host::HostConfig;
use crate::read::nvml::NvmlConfig;
use crate::read::recorded::RecordedConfig;
use crate::run;
use crate::sample::SampleConfig;
use crate::ship::ShipConfig;
use crate::spool::SpoolConfig;

sections! {
    /// Everything the agent can be told.
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
        /// Who holds which GPU.
        pub attribute: AttributeConfig,
        /// How training processes are read.
        pub hooks: HooksConfig,
        /// How GPUs are probed.
        pub probe: ProbeConfig,
        /// What is played back.
        pub recorded: RecordedConfig,
        /// Where the agent's own traces go.
        pub trace: TraceConfig,
    }
}

section! {
    /// Who and where this agent is.
    pub struct NodeConfig {
        /// The cluster this node belongs to.
        pub cluster: String = "default".to_owned(),
        /// The node's name; empty means the host's name. In a container give it (`spec.nodeName`),
        /// because the host's name is then the pod's.
        pub name: String = String::new(),
        /// The folder with the agent's id and its spool; it must survive a restart.
        pub state_folder: PathBuf = PathBuf::from("/var/lib/gpufleet"),
        /// The machine's type, by which it is priced. Empty: as Kubernetes or the cloud says; the same
        /// for the four keys below.
        pub machine_type: String = String::new(),
        /// The region it is in.
        pub region: String = String::new(),
        /// The zone it is in.
        pub zone: String = String::new(),
        /// Who provides it: `gcp`, or a name of your own for machines of your own.
        pub provider: String = String::new(),
        /// How it is paid for: `on_demand`, `spot`, `flex_start` or `reserved`.
        pub provisioning: String = String::new(),
        /// The metadata server that is asked what this machine is. `auto`: Google Compute Engine's,
        /// on its machines only; else an address; empty: nobody.
        pub metadata_server: String = "auto".to_owned(),
    }
}

/// What [`NodeConfig::provisioning`] may be.
const PROVISIONINGS: [&str; 5] = ["", "on_demand", "spot", "flex_start", "reserved"];

impl NodeConfig {
    /// What it says of the machine, as attributes of the node.
    pub(crate) fn facts(&self) -> Vec<(String, String)> {
        let said = [
            (attribute::MACHINE_TYPE, &self.machine_type),
            (attribute::REGION, &self.region),
            (attribute::ZONE, &self.zone),
            (attribute::CLOUD_PROVIDER, &self.provider),
            (attribute::PROVISIONING, &self.provisioning),
        ];
        let said = said.into_iter().filter(|(_, value)| !value.is_empty());
        said.map(|(name, value)| (name.to_owned(), value.clone()))
            .collect()
    }

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

impl ProgramConfig for Config {
    const PROGRAM: &'static str = "agent";

    fn check(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        if self.node.cluster.is_empty() {
            return Err("node.cluster is empty: give the cluster's name".into());
        }
        let paid = self.node.provisioning.as_str();
        if !PROVISIONINGS.contains(&paid) {
            let may = "it may be on_demand, spot, flex_start, reserved or empty";
            return Err(format!("node.provisioning = \"{paid}\": {may}").into());
        }
        self.attribute.check()?;
        self.probe.check()?;
        self.sample.check()?;
        self.spool.check()?;
        self.listen.checked_address()?;
        Ok(())
    }

    fn rehearse(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(run::rehearse(self, None)?)
    }
}

impl Config {
    /// A config for tests: everything off that touches the machine.
    pub fn for_tests() -> Self {
        let mut config = Self::default();
        config.nvml.enabled = false;
        config.host.enabled = false;
        config.hooks.enabled = false;
        config.exporter.auto = false;
        config.attribute.enabled = false;
        config.probe.enabled = false;
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
mod tests {
    use gpufleet_program::config::assert_refused;

    use super::*;

    #[test]
    fn values_that_cannot_work_are_refused_with_their_key_and_what_it_may_be() {
        let check = assert_refused::<Config>;
        check("node.cluster=", &["node.cluster", "empty"]);
        check("sample.period_ms=700", &["sample.period_ms", "divide"]);
        check(
            "sample.ship_interval_seconds=61",
            &["ship_interval", "1 to 60"],
        );
        check("spool.limit_mib=1", &["spool.limit_mib", "16"]);
        check(
            "node.provisioning=cheap",
            &["node.provisioning", "spot, flex_start, reserved"],
        );
        check(
            "attribute.period_seconds=0",
            &["attribute.period", "1 to 30"],
        );
        check("probe.region_mib=8", &["probe.region_mib", "64 to 4096"]);
        let labels: Vec<String> = (0..17).map(|it| format!("\"k{it}\"")).collect();
        let labels = format!("attribute.labels=[{}]", labels.join(","));
        check(&labels, &["attribute.labels", "18", "16"]);
        let beyond = "listen.address=0.0.0.0:9410";
        check(beyond, &["listen.address", "allow_insecure"]);
    }
}

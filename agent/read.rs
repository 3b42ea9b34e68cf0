//! Where readings come from: the trait every source implements, and the one list of sources.
//!
//! A reader only reads. When it gets its turn, how long it may take, how its failures are counted
//! and what becomes of its readings is decided once, in [`crate::sample`].

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_telemetry::identity::{AgentId, Origin, Resource, ResourceKind, attribute};
use gpufleet_telemetry::sample::Readings;
use gpufleet_telemetry::time::Timestamp;
use tokio::sync::mpsc;

use crate::attribute::Attribution;
use crate::commands::{MAX_NVML_ORDERS, NvmlOrder, NvmlOrders};
use crate::config::Config;
use crate::probe::inside::Inside;
use crate::probe::reader::{ProbeOrder, Probing};
use crate::steps;

pub mod nvml;

pub mod gpm;

pub mod xid;

pub mod exporter;

pub mod users;

pub mod cgroup;

pub mod host;

pub mod hooks;

pub mod recorded;

pub mod nccl_inspector;

pub mod nccl_ras;

/// One source of readings. The sample loop gives it its turn, its deadline and its clock; it only
/// reads.
pub trait Read: Send {
    /// Its name in metrics, events and the page: "nvml", "host", "exporter:dcgm".
    fn name(&self) -> &str;

    /// Longest time one round may take; the loop gives up on the round after it.
    fn deadline(&self) -> Duration;

    /// How often it wants a turn (a multiple of the sampling period).
    fn period(&self) -> Duration;

    /// One round. The future is dropped when the deadline passes, and the reader gets its next turn
    /// all the same: what it holds must survive being dropped at any await.
    fn read<'a>(&'a mut self, turn: Turn) -> ReadFuture<'a>;
}

/// What one round returns.
pub type ReadFuture<'a> = Pin<Box<dyn Future<Output = Result<Readings, ReadError>> + Send + 'a>>;

/// One turn of a reader.
#[derive(Debug, Clone)]
pub struct Turn {
    /// The moment this round is for, aligned to a multiple of the reader's period.
    pub at: Timestamp,
    /// The monotonic clock at the start of the round: what rates are computed over.
    pub monotonic: Duration,
    /// Who and where this agent is.
    pub node: Arc<NodeFacts>,
}

/// Who and where this agent is; the same for every reader, fixed while the process lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// The cluster this node belongs to.
    pub cluster: String,
    /// The node's name.
    pub node: String,
    /// The kernel's boot id; empty where the kernel gives none.
    pub boot_id: String,
    /// This agent's id.
    pub agent_id: AgentId,
    /// This agent's version.
    pub version: String,
}

/// Why a whole round failed. A failure of one GPU is not one: that is a sample with a reason.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The source is not there or does not answer.
    #[error("{why}")]
    Unavailable {
        /// What is not there, and what a person can do about it.
        why: String,
    },
    /// There is nothing here that it could read: that is no failure.
    #[error("{why}")]
    Nothing {
        /// What this machine does not have.
        why: String,
    },
    /// The round did not end before its deadline.
    #[error("no answer within {} ms; it is tried again at its next turn", .after.as_millis())]
    Timeout {
        /// The deadline that passed.
        after: Duration,
    },
    /// The source answered with something this reader cannot understand.
    #[error("{what} answered with something unreadable: {why}")]
    Malformed {
        /// What was asked.
        what: String,
        /// What is wrong with the answer.
        why: String,
    },
    /// The agent lacks a right.
    #[error("{what} is not permitted: {fix}")]
    NotPermitted {
        /// What was refused.
        what: String,
        /// What grants it.
        fix: String,
    },
}

/// What readers are connected to beside their config.
#[derive(Debug)]
pub struct Wiring {
    /// Who and where this agent is.
    pub node: Arc<NodeFacts>,
    /// Orders to let go of NVML and to take it again.
    pub nvml_orders: NvmlOrders,
    /// Orders to probe a GPU; none where nothing is to be probed, as by a command that only looks.
    pub probe_orders: Option<mpsc::Receiver<ProbeOrder>>,
    /// The way of steps into the spool; none where nothing is shipped.
    pub steps: Option<steps::Way>,
}

impl Wiring {
    /// Of a command that only looks: nothing is ordered, probed or shipped. What comes with it is held until
    /// the last round is over, because an NVML reader whose orders end takes it for the end of the agent.
    pub fn to_look(node: Arc<NodeFacts>) -> (Self, mpsc::Sender<NvmlOrder>) {
        let (held, nvml_orders) = mpsc::channel(MAX_NVML_ORDERS);
        let wiring = Self {
            node,
            nvml_orders,
            probe_orders: None,
            steps: None,
        };
        (wiring, held)
    }
}

/// Every source that the config asks for. Adding one is a file in `read/` and an entry here.
///
/// # Errors
/// When a source's config cannot be used (a mapping table or a recording that does not parse).
pub fn readers(config: &Config, wiring: Wiring) -> anyhow::Result<Vec<Box<dyn Read>>> {
    let node = &wiring.node;
    let period = Duration::from_millis(config.sample.period_ms);
    let users: Arc<users::Users> = Arc::default();
    let mut readers: Vec<Box<dyn Read>> = Vec::new();
    if config.nvml.enabled {
        let orders = wiring.nvml_orders;
        let reader = nvml::Nvml::new(&config.nvml, period, Arc::clone(node), orders)?;
        let users = Arc::clone(&users);
        readers.push(Box::new(users::Noting { reader, users }));
    }
    if let Some(reader) = host::HostReader::new(&config.host)? {
        readers.push(Box::new(reader));
    }
    if let Some(reader) = Attribution::new(config, Arc::clone(&users)) {
        readers.push(Box::new(reader));
    }
    // Who is idle, and which GPUs there are, only NVML knows.
    let orders = wiring
        .probe_orders
        .filter(|_| config.probe.enabled && config.nvml.enabled);
    let mut probed: Option<Arc<Inside>> = None;
    if let Some(orders) = orders {
        let library = config.nvml.library_path.display().to_string();
        let inside = Arc::clone(probed.insert(Arc::default()));
        let reader = Probing::new(&config.probe, library, Arc::clone(&users), inside, orders);
        readers.push(Box::new(reader));
    }
    if let Some(reader) = hooks::Hooks::new(&config.hooks, period, users, wiring.steps) {
        readers.push(Box::new(reader.with_probes(config.probe.enabled, probed)));
    }
    for reader in exporter::readers(&config.exporter, node)? {
        readers.push(Box::new(reader));
    }
    for reader in recorded::readers(&config.recorded, &config.exporter.tables_folder)? {
        readers.push(Box::new(reader));
    }
    Ok(readers)
}

impl NodeFacts {
    /// A resource of this node with everything that the server needs to place it.
    ///
    /// `source` is the reader's name.
    pub fn resource(
        &self,
        kind: ResourceKind,
        id: impl Into<Arc<str>>,
        origin: Origin,
        source: &str,
    ) -> Resource {
        Resource::new(kind, id)
            .with(attribute::KIND, kind.name())
            .with(attribute::CLUSTER, &self.cluster)
            .with(attribute::NODE, &self.node)
            .with(attribute::BOOT_ID, &self.boot_id)
            .with(attribute::AGENT_ID, self.agent_id.to_string())
            .with(attribute::AGENT_VERSION, &self.version)
            .with(attribute::ORIGIN, origin.name())
            .with(attribute::SOURCE, source)
    }

    /// Facts for tests.
    pub fn for_tests() -> Self {
        Self {
            cluster: "test".to_owned(),
            node: "node-1".to_owned(),
            boot_id: "boot-1".to_owned(),
            agent_id: AgentId(uuid::Uuid::from_u128(1)),
            version: "0.0.0-test".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_says_where_it_is_and_who_read_it() {
        let resource = NodeFacts::for_tests().resource(
            ResourceKind::Gpu,
            "GPU-1",
            Origin::Recorded,
            "exporter:dcgm",
        );
        let expected = [
            (attribute::CLUSTER, "test"),
            (attribute::NODE, "node-1"),
            (attribute::BOOT_ID, "boot-1"),
            (attribute::ORIGIN, "recorded"),
            (attribute::SOURCE, "exporter:dcgm"),
            (attribute::KIND, "gpu"),
        ];
        for (name, value) in expected {
            assert_eq!(resource.attribute(name), Some(value), "{name}");
        }
    }
}

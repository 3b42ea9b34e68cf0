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

use crate::attribute::exported::Exported;
use crate::attribute::users::Users;
use crate::commands::NvmlOrders;
use crate::config::Config;
use crate::probe::inside::Inside;
use crate::probe::reader::ProbeOrder;
use crate::read::hooks::profiles::ProfileOrder;
use crate::steps;

pub mod nvml;

pub mod exporter;

pub mod host;

pub mod hooks;

pub mod recorded;

/// Every source. Adding one is a file in `read/` that has such a function, and a line here.
const SOURCES: [Source; 7] = [
    nvml::readers,
    host::readers,
    crate::attribute::readers,
    crate::probe::readers,
    hooks::readers,
    exporter::readers,
    recorded::readers,
];

/// The readers that a source has by this config: none where it is off, several where it reads several
/// things. It takes what is its own out of the wiring, and fails where its config cannot be used.
type Source = fn(&Config, &mut Wiring) -> anyhow::Result<Readers>;

/// Readers of any kind.
pub type Readers = Vec<Box<dyn Read>>;

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
    /// Orders to let go of NVML and to take it again; none where nobody gives any.
    pub nvml_orders: Option<NvmlOrders>,
    /// Orders to probe a GPU; none where nothing is to be probed, as by a command that only looks.
    pub probe_orders: Option<mpsc::Receiver<ProbeOrder>>,
    /// Requests for profiles of training processes; none of a command that only looks.
    pub profile_orders: Option<mpsc::Receiver<ProfileOrder>>,
    /// The way of steps into the spool; none where nothing is shipped.
    pub steps: Option<steps::Way>,
    /// Which process is on which GPU, from the reader that asks the driver to those that want to know.
    pub users: Arc<Users>,
    /// Which pod holds which GPU by the labels of exporters, from their readers to the one that knows holders.
    pub exported: Arc<Exported>,
    /// What training processes found with the probe, from the reader of them to that of probes.
    pub inside: Arc<Inside>,
}

impl Wiring {
    /// Of a command that only looks: nothing is ordered, probed or shipped.
    pub fn to_look(node: Arc<NodeFacts>) -> Self {
        Self {
            node,
            nvml_orders: None,
            probe_orders: None,
            profile_orders: None,
            steps: None,
            users: Arc::default(),
            exported: Arc::default(),
            inside: Arc::default(),
        }
    }
}

/// The readers of every source that the config asks for.
///
/// # Errors
/// When a source's config cannot be used (a mapping table or a recording that does not parse).
pub fn readers(config: &Config, mut wiring: Wiring) -> anyhow::Result<Readers> {
    let mut readers = Readers::new();
    for source in SOURCES {
        readers.extend(source(config, &mut wiring)?);
    }
    Ok(readers)
}

/// Readers of one source as those of any.
pub(crate) fn boxed<R: Read + 'static>(readers: impl IntoIterator<Item = R>) -> Readers {
    let readers = readers.into_iter();
    readers.map(|it| Box::new(it) as Box<dyn Read>).collect()
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

//! Who a sample is about and who sent it.
//!
//! Agent = random UUID in its state folder. Node = (cluster, node name, boot id). GPU = NVML UUID;
//! a null UUID is never an identity, node + PCI address stands in. Share = MIG UUID or `uuid::n`.
//! Job = (cluster, namespace, name, uid); run = (job, attempt); rank = (run, global rank): these
//! have a file of their own, [`crate::training`].

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::sorted::Sorted;

/// One installed agent: random, kept in its state folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AgentId(pub Uuid);

/// One life of a spool: random 128 bits. A lost or corrupt spool gets a new one, so that sequence
/// numbers are never reused with other content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub Uuid);

/// What kind of thing a resource is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResourceKind {
    /// The machine an agent runs on; its id is the node name.
    Node,
    /// A whole accelerator; its id is the GPU UUID (`GPU-…`) or what stands in for it.
    Gpu,
    /// A part of a GPU that can be held on its own: a MIG instance (`MIG-…`) or a time-slice
    /// replica (`GPU-…::n`).
    Share,
    /// A model server's endpoint (vLLM, Triton); its id is `<scrape target>/<model>`.
    Endpoint,
    /// One process of a training run; its id is `<namespace>/<job>/<uid>/<attempt>/<rank>`
    /// ([`crate::training::RankId`]).
    Rank,
}

/// What kind of part of a resource a sample is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// A link of a GPU's NVLink, by number.
    NvLink,
    /// A process with a context on a GPU, by host pid.
    Process,
    /// An XID code, counted per GPU.
    Xid,
    /// A block device of a node.
    Disk,
    /// A network or RDMA device of a node.
    Nic,
    /// A reader of the agent.
    Reader,
    /// A stream of the agent's spool.
    Stream,
    /// The collectives of one function on one communicator of a rank, `<communicator>/<function>`.
    Collective,
    /// A reason for which something is refused.
    Reason,
}

/// A resource and what is known about it beside its readings. Cheap to clone: hold it in an `Arc`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    /// What it is.
    pub kind: ResourceKind,
    /// Its id, unique within its kind and cluster.
    pub id: Arc<str>,
    /// Facts that change rarely, by the names in [`attribute`]: model, PCI address, driver, node.
    pub attributes: Sorted<String, String>,
}

/// What one reading is about: a resource, or one part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Part {
    /// What it is.
    pub kind: PartKind,
    /// Its id, unique within its resource.
    pub id: Arc<str>,
}

/// Where the data came from, shown wherever the data is shown.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Read from hardware now.
    #[default]
    Live,
    /// Played back from a recording of real hardware.
    Recorded,
    /// Made by the simulator.
    Simulated,
}

/// Names of the resource attributes. OpenTelemetry's own where it has one.
pub mod attribute {
    /// The cluster; recorded and simulated data live in clusters of their own.
    pub const CLUSTER: &str = "k8s.cluster.name";
    /// The node's name.
    pub const NODE: &str = "host.name";
    /// The boot id of the node: a new one after every reboot.
    pub const BOOT_ID: &str = "gpufleet.boot.id";
    /// The agent's id.
    pub const AGENT_ID: &str = "gpufleet.agent.id";
    /// The agent's version.
    pub const AGENT_VERSION: &str = "service.version";
    /// `live`, `recorded` or `simulated` ([`super::Origin`]).
    pub const ORIGIN: &str = "gpufleet.origin";
    /// The kind of the resource ([`super::ResourceKind`]).
    pub const KIND: &str = "gpufleet.resource.kind";
    /// The id of the GPU a share belongs to.
    pub const PARENT: &str = "hw.parent";
    /// The reader that produced the data (`nvml`, `exporter:dcgm`, …).
    pub const SOURCE: &str = "gpufleet.source";
    /// Which of several readers each metric is taken from ([`crate::catalog::producers`]).
    pub const METRIC_SOURCES: &str = "gpufleet.metric_sources";
    /// The card's product name as NVML spells it.
    pub const GPU_MODEL: &str = "hw.model";
    /// The card's index on its node.
    pub const GPU_INDEX: &str = "gpufleet.gpu.index";
    /// The minor number of the card's device file.
    pub const GPU_MINOR: &str = "gpufleet.gpu.minor";
    /// The card's PCI address, `00000000:53:00.0`.
    pub const PCI_ADDRESS: &str = "gpufleet.gpu.pci_address";
    /// The card's serial number.
    pub const SERIAL: &str = "hw.serial_number";
    /// The CUDA compute capability, `9.0`.
    pub const COMPUTE_CAPABILITY: &str = "gpufleet.gpu.compute_capability";
    /// The driver's version.
    pub const DRIVER_VERSION: &str = "hw.driver_version";
    /// The NVML library's version.
    pub const NVML_VERSION: &str = "gpufleet.nvml.version";
    /// The highest CUDA version the driver supports.
    pub const CUDA_VERSION: &str = "gpufleet.cuda.version";
    /// The VBIOS's version.
    pub const VBIOS_VERSION: &str = "hw.firmware_version";
    /// A MIG instance's profile, `1g.10gb`.
    pub const MIG_PROFILE: &str = "gpufleet.mig.profile";
    /// A MIG instance's GPU instance id.
    pub const MIG_GPU_INSTANCE: &str = "gpufleet.mig.gpu_instance";
    /// Where a MIG instance lies on its card: the number of its profile and its first memory slice, `19:4`.
    pub const MIG_PLACEMENT: &str = "gpufleet.mig.placement";
    /// A MIG instance's compute slices, of the card's total.
    pub const MIG_SLICES: &str = "gpufleet.mig.slices";
    /// Of a replica of a time-sliced GPU or MIG instance: the device that it is a replica of.
    pub const REPLICA_OF: &str = "gpufleet.gpu.replica_of";
    /// How many replicas there are of that device: each counts as one of so many.
    pub const REPLICAS: &str = "gpufleet.gpu.replicas";
    /// The UUID of the NVLink fabric's cluster a GPU has joined.
    pub const FABRIC_CLUSTER: &str = "gpufleet.fabric.cluster";
    /// The clique of the NVLink fabric a GPU belongs to: GPUs of one clique reach each other.
    pub const FABRIC_CLIQUE: &str = "gpufleet.fabric.clique";
    /// Who holds the resource: `pod:<namespace>/<name>`, `slurm:<job id>`, `process:<user>/<name>`.
    /// At most [`crate::otlp::limits::MAX_LABEL_BYTES`] long, cut where a name is longer.
    pub const HOLDER: &str = "gpufleet.holder";
    /// Why there is no [`HOLDER`] though it was asked for: `<reason>: <words>`
    /// ([`crate::holder::Unknown`]).
    pub const HOLDER_UNKNOWN: &str = "gpufleet.holder.unknown";
    /// `true` of a GPU or share that was given to a container which does not run, as the cluster says of its pod: its
    /// image is pulled, what has to run before it runs, or it failed and is begun anew. Absent where it runs, and where
    /// nobody says.
    pub const HOLDER_STARTING: &str = "gpufleet.holder.starting";
    /// Of a GPU or share that a pod holds: the pod's namespace.
    pub const NAMESPACE: &str = "k8s.namespace.name";
    /// Of a GPU or share that a pod holds: the pod's name.
    pub const POD: &str = "k8s.pod.name";
    /// Of a GPU or share that a pod holds: the pod's uid.
    pub const POD_UID: &str = "k8s.pod.uid";
    /// Of a GPU or share that a pod holds: the container that it was given to.
    pub const CONTAINER: &str = "k8s.container.name";
    /// The topmost owner of the pod that holds it, by which the pods of one job are known:
    /// `jobset:<namespace>/<name>`, `job:…`, `deployment:…`.
    pub const WORKLOAD: &str = "gpufleet.workload";
    /// What the holding pod is in its workload: the name of a JobSet's replicated job, `Worker`.
    pub const WORKLOAD_ROLE: &str = "gpufleet.workload.role";
    /// Which of its role's pods the holding pod is, counted from 0; in a JobSet `3/0`: the number of its job among
    /// all jobs of the set, and its own in that job; in a LeaderWorkerSet that of its group and its own there.
    pub const WORKLOAD_INDEX: &str = "gpufleet.workload.index";
    /// The queue the holder came through: Kueue's, or Volcano's.
    pub const QUEUE: &str = "gpufleet.queue";
    /// The account of the Slurm job that holds it.
    pub const SLURM_ACCOUNT: &str = "slurm.account";
    /// The user of the Slurm job that holds it.
    pub const SLURM_USER: &str = "slurm.user";
    /// The partition of the Slurm job that holds it.
    pub const SLURM_PARTITION: &str = "slurm.partition";
    /// A label of the holding pod that the agent's config lets through is an attribute with this
    /// before the label's key; at most [`MAX_HOLDER_LABELS`] with those of the namespace.
    pub const LABEL_PREFIX: &str = "gpufleet.label.";
    /// The same of a label of the holding pod's namespace.
    pub const NAMESPACE_LABEL_PREFIX: &str = "gpufleet.namespace_label.";
    /// Most labels of one holder: with everything else that is known of a GPU they stay below the
    /// attributes that a resource may have on the wire.
    pub const MAX_HOLDER_LABELS: usize = 16;
    /// All that says who holds a resource, or whose that holder is, but for the labels.
    pub const OF_HOLDER: [&str; 16] = [
        HOLDER,
        HOLDER_UNKNOWN,
        HOLDER_STARTING,
        NAMESPACE,
        POD,
        POD_UID,
        CONTAINER,
        WORKLOAD,
        WORKLOAD_ROLE,
        WORKLOAD_INDEX,
        QUEUE,
        SLURM_ACCOUNT,
        SLURM_USER,
        SLURM_PARTITION,
        OWNER,
        JOB,
    ];
    /// Of a node: its machine type, `a3-highgpu-8g`.
    pub const MACHINE_TYPE: &str = "host.type";
    /// Of a node: its instance id at the provider.
    pub const HOST_ID: &str = "host.id";
    /// Of a node: the region it is in.
    pub const REGION: &str = "cloud.region";
    /// Of a node: the zone it is in.
    pub const ZONE: &str = "cloud.availability_zone";
    /// Of a node: who provides it, `gcp`, `aws`, `azure`.
    pub const CLOUD_PROVIDER: &str = "cloud.provider";
    /// Of a node: the project or account it belongs to.
    pub const CLOUD_ACCOUNT: &str = "cloud.account.id";
    /// Of a node: how it is paid for: `on_demand`, `spot`, `flex_start` or `reserved`.
    pub const PROVISIONING: &str = "gpufleet.provisioning";
    /// The owner that the owner rules found for the holder.
    pub const OWNER: &str = "gpufleet.owner";
    /// The job the holder belongs to.
    pub const JOB: &str = "gpufleet.job";
    /// How many samples the recording has that is played back; 1 is a single capture.
    pub const RECORDING_SAMPLES: &str = "gpufleet.recording.samples";
    /// When the recording was taken, Unix seconds; absent where nobody knows.
    pub const RECORDING_TAKEN_AT: &str = "gpufleet.recording.taken_at_seconds";
    /// The reader that the recording was taken from (`nvml`, `exporter:dcgm`, `nvidia-smi`).
    pub const RECORDING_READER: &str = "gpufleet.recording.reader";
    /// What a model server serves.
    pub const MODEL_NAME: &str = "gen_ai.request.model";
    /// Of a rank: which attempt of its job it belongs to, counted from 0.
    pub const ATTEMPT: &str = "gpufleet.run.attempt";
    /// Of a rank: its number among all of its run.
    pub const RANK: &str = "gpufleet.rank";
    /// Of a rank: how many ranks its run has.
    pub const WORLD: &str = "gpufleet.rank.world";
    /// Of a rank: its number on its node.
    pub const LOCAL_RANK: &str = "gpufleet.rank.local";
    /// Of a rank: where it stands in the mesh, `dp=3/8 tp=1/2` ([`crate::training::Mesh`]).
    pub const MESH: &str = "gpufleet.rank.mesh";
    /// Of a rank: who said where it stands ([`crate::training::MeshSource`]).
    pub const MESH_SOURCE: &str = "gpufleet.rank.mesh_source";
    /// Of a rank: whether its identity is `proved` or `claimed` ([`crate::training::Trust`]).
    pub const TRUST: &str = "gpufleet.rank.trust";
    /// Of a rank: the id of the GPU or share it computes on.
    pub const GPU_ID: &str = "gpufleet.gpu.id";
    /// Of a rank: whether that is `proved`, by the driver's list of processes, or `claimed`
    /// ([`crate::training::Trust`]).
    pub const GPU_SOURCE: &str = "gpufleet.rank.gpu_source";
    /// Of a rank: its process on the host.
    pub const PID: &str = "process.pid";
    /// Of a rank: the framework and its version, `pytorch 2.9.1`.
    pub const FRAMEWORK: &str = "gpufleet.framework";
    /// Of a rank: what told it rank and world: `torchrun`, `slurm`, `jobset`, `mpi`, `ray`, `given`.
    pub const LAUNCHER: &str = "gpufleet.launcher";
    /// Of a rank: the type of its matrix arithmetic, as in the table of peaks: `bf16`, `fp8`.
    pub const DATA_TYPE: &str = "gpufleet.data_type";
    /// Of a rank: how its FLOPs were got: `explicit`, `model_shape` or `measured`.
    pub const FLOPS_SOURCE: &str = "gpufleet.flops_source";
    /// Of a rank: the tags its user gave the run are attributes with this before the tag's name.
    pub const TAG_PREFIX: &str = "gpufleet.tag.";
}

/// Whether a UUID identifies nothing: empty or all zeros (`GPU-00000000-…`), as some drivers,
/// virtual cards and scrubbed captures have it.
pub fn is_null_uuid(uuid: &str) -> bool {
    let digits = uuid.trim_start_matches("GPU-").trim_start_matches("MIG-");
    digits.chars().all(|digit| matches!(digit, '0' | '-'))
}

/// The id of a GPU: its UUID or, where that is null, `<node>/<place>` with the PCI address as the
/// place (`node-1/00000000:53:00.0`) or, without one, the index.
pub fn gpu_id(uuid: &str, node: &str, place: &str) -> String {
    if is_null_uuid(uuid) {
        format!("{node}/{}", place.to_ascii_lowercase())
    } else {
        uuid.to_owned()
    }
}

impl Resource {
    /// A resource without attributes.
    pub fn new(kind: ResourceKind, id: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            id: id.into(),
            attributes: Sorted::default(),
        }
    }

    /// The same with one attribute more; an empty value is left out, because absent is absent.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        let value = value.into();
        if !value.is_empty() {
            self.attributes.insert(name.to_owned(), value);
        }
        self
    }

    /// An attribute's value, if it is known.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(String::as_str)
    }

    /// Where the data came from; live unless it says otherwise.
    pub fn origin(&self) -> Origin {
        self.attribute(attribute::ORIGIN)
            .and_then(Origin::parse)
            .unwrap_or_default()
    }
}

impl Part {
    /// A part by kind and id.
    pub fn new(kind: PartKind, id: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            id: id.into(),
        }
    }
}

impl ResourceKind {
    /// Every kind, in the order of the way of the data.
    pub const ALL: [Self; 5] = [
        Self::Node,
        Self::Gpu,
        Self::Share,
        Self::Endpoint,
        Self::Rank,
    ];

    /// The name on the wire and in SQL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Gpu => "gpu",
            Self::Share => "share",
            Self::Endpoint => "endpoint",
            Self::Rank => "rank",
        }
    }

    /// The kind with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl PartKind {
    /// Every kind of part.
    pub const ALL: [Self; 9] = [
        Self::NvLink,
        Self::Process,
        Self::Xid,
        Self::Disk,
        Self::Nic,
        Self::Reader,
        Self::Stream,
        Self::Collective,
        Self::Reason,
    ];

    /// The attribute that carries the part's id on an OTLP point.
    pub const fn attribute(self) -> &'static str {
        match self {
            Self::NvLink => "gpufleet.nvlink",
            Self::Process => "process.pid",
            Self::Xid => "gpufleet.xid",
            Self::Disk => "system.device",
            Self::Nic => "network.interface.name",
            Self::Reader => "gpufleet.reader",
            Self::Stream => "gpufleet.stream",
            Self::Collective => "gpufleet.collective",
            Self::Reason => "gpufleet.reason",
        }
    }

    /// The label that carries the part's id in Prometheus text.
    pub const fn label(self) -> &'static str {
        match self {
            Self::NvLink => "link",
            Self::Process => "pid",
            Self::Xid => "xid",
            Self::Disk | Self::Nic => "device",
            Self::Reader => "reader",
            Self::Stream => "stream",
            Self::Collective => "collective",
            Self::Reason => "reason",
        }
    }
}

impl Origin {
    /// Every origin, the one that counts first.
    pub const ALL: [Self; 3] = [Self::Live, Self::Recorded, Self::Simulated];

    /// The name on the wire, in SQL and on the page.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Recorded => "recorded",
            Self::Simulated => "simulated",
        }
    }

    /// The origin with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}

impl fmt::Display for AgentId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_null_uuid_is_never_an_identity() {
        let cases = [
            (
                "GPU-5f2c0001-0000-0000-0000-000000000000",
                "GPU-5f2c0001-0000-0000-0000-000000000000",
            ),
            (
                "GPU-00000000-0000-0000-0000-000000000000",
                "n/00000000:5a:00.0",
            ),
            ("00000000-0000-0000-0000-000000000000", "n/00000000:5a:00.0"),
            ("GPU-", "n/00000000:5a:00.0"),
            ("", "n/00000000:5a:00.0"),
        ];
        for (uuid, expected) in cases {
            assert_eq!(gpu_id(uuid, "n", "00000000:5A:00.0"), expected, "{uuid}");
        }
    }
}

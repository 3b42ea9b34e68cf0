//! Every reading that is wrong over a limit, in one list: what is read, the limit, for how long, and what
//! it means. A limit is the same here as in its rule in `alerts/rules/`, which fires when no server does.

use gpufleet_analysis::cause::Cause;
use gpufleet_analysis::incident::{Family, Remedy};
use gpufleet_analysis::limit::Test;
use gpufleet_analysis::price::Basis;
use gpufleet_telemetry::catalog::{Metric, Unit, gpu, node, serving, training};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::identity::{Part, ResourceKind};
use gpufleet_telemetry::time::NANOS_PER_SECOND;

/// A minute.
const MINUTE: i64 = 60 * NANOS_PER_SECOND;

/// What is said of a device that repeats packets, for which a busy network is enough.
pub(in crate::detect) const REPEATS: &str = "an RDMA device repeats packets";

/// One of them.
#[derive(Debug)]
pub(in crate::detect) struct Limit {
    /// Its row in `alerts/kinds.toml`.
    pub(in crate::detect) kind: &'static str,
    pub(in crate::detect) read: Read,
    pub(in crate::detect) test: Test,
    /// For how long it has to be so.
    pub(in crate::detect) for_ns: i64,
    pub(in crate::detect) family: Family,
    pub(in crate::detect) severity: Severity,
    pub(in crate::detect) cause: Cause,
    pub(in crate::detect) what: &'static str,
    /// Why it has no price, unless a run that fails of it, or the GPU, says more.
    pub(in crate::detect) price: Basis,
    pub(in crate::detect) action: &'static str,
    /// What the action asks for.
    pub(in crate::detect) remedy: Remedy,
    /// What the reading is called beside its limit, and its unit.
    pub(in crate::detect) reading: (&'static str, Unit),
}

/// What is read.
#[derive(Debug, Clone, Copy)]
pub(in crate::detect) enum Read {
    /// The metric itself, of each of its parts where it has some.
    Plain(&'static Metric),
    /// A part of a whole.
    Share(&'static Metric, &'static Metric),
    /// What is left up to another reading.
    Margin(&'static Metric, &'static Metric),
    /// 1 where the fabric's mask says that something is wrong.
    Fabric(&'static Metric),
    /// The seconds since the one, as of the other.
    Behind(&'static Metric, &'static Metric),
    /// Of a GPU that somebody holds and that works.
    Held(&'static Metric),
    /// 1 while requests wait and none is finished since the last reading.
    Stuck(&'static Metric, &'static Metric),
}

impl Read {
    /// Every metric that it is made of.
    pub(in crate::detect) fn metrics(self) -> Vec<&'static Metric> {
        match self {
            Self::Plain(metric) | Self::Fabric(metric) | Self::Held(metric) => vec![metric],
            Self::Share(one, other)
            | Self::Margin(one, other)
            | Self::Behind(one, other)
            | Self::Stuck(one, other) => vec![one, other],
        }
    }

    /// What kind of resource it is read of.
    pub(in crate::detect) const fn of(self) -> ResourceKind {
        match self {
            Self::Plain(metric)
            | Self::Share(metric, _)
            | Self::Margin(metric, _)
            | Self::Fabric(metric)
            | Self::Behind(metric, _)
            | Self::Held(metric)
            | Self::Stuck(metric, _) => metric.resource,
        }
    }
}

impl Limit {
    /// What its reading is called, of this part.
    pub(in crate::detect) fn name_of(&self, part: Option<&Part>) -> String {
        let name = self.reading.0;
        match part {
            Some(part) => format!("{name}, {}", part.id),
            None => name.to_owned(),
        }
    }

    /// The part whose reading is called so; none where it is the resource's.
    pub(in crate::detect) fn part_of(&self, name: &str) -> Option<Part> {
        let Read::Plain(metric) = self.read else {
            return None;
        };
        let id = name.strip_prefix(self.reading.0)?.strip_prefix(", ")?;
        Some(Part::new(metric.part?, id))
    }

    /// What a reading over it may say of its price.
    pub(in crate::detect) const fn prices(&self) -> &'static [Basis] {
        use Basis::*;
        match self.price {
            NoRunKnown => &[NoRunKnown, SinceCheckpoint, SinceStart],
            GpuUnknown => &[GpuUnknown, PartUnused],
            NoRunWaits => &[NoRunWaits],
            NotYet => &[NotYet],
            NotToBeTrusted => &[NotToBeTrusted],
            EndsProcess => &[EndsProcess],
            HostWaits => &[HostWaits],
            NoGpusTold => &[NoGpusTold],
            RequestsWait => &[RequestsWait],
            // What no limit says: its row is then without a word.
            _ => &[],
        }
    }
}

/// A limit with what most of them have.
const fn limit(
    kind: &'static str,
    read: Read,
    test: Test,
    family: Family,
    what: &'static str,
    price: Basis,
) -> Limit {
    Limit {
        kind,
        read,
        test,
        for_ns: 0,
        family,
        severity: Severity::Warning,
        cause: Cause::Unknown,
        what,
        price,
        action: "",
        remedy: Remedy::Look,
        reading: ("reading", Unit::Count),
    }
}

/// How many there are.
pub(in crate::detect) const COUNT: usize = 24;

/// All of them. At most 32 a kind of resource: what reads as it should is one bit each.
pub(in crate::detect) static LIMITS: [Limit; COUNT] = [
    Limit {
        cause: Cause::HostMemory,
        action: "Look which process it was, and what the pods on the node may take.",
        reading: ("processes killed since boot", Unit::Count),
        ..limit(
            "node_oom_kill",
            Read::Plain(&node::OOM_KILLS),
            Test::Grew(15 * MINUTE),
            Family::Leak,
            "a process was killed for want of memory",
            Basis::EndsProcess,
        )
    },
    Limit {
        for_ns: 5 * MINUTE,
        cause: Cause::HostMemory,
        action: "Look what takes the node's memory: data loaders keep copies, page caches do not count.",
        reading: ("of its memory available", Unit::Ratio),
        ..limit(
            "node_memory_short",
            Read::Share(&node::MEMORY_AVAILABLE, &node::MEMORY_TOTAL),
            Test::Below(0.05),
            Family::Leak,
            "nearly out of memory",
            Basis::NoRunKnown,
        )
    },
    Limit {
        for_ns: 15 * MINUTE,
        cause: Cause::HostCpu,
        action: "Move the node: another machine on the same host takes its CPU time.",
        reading: ("CPU time stolen", Unit::Ratio),
        ..limit(
            "node_cpu_stolen",
            Read::Plain(&node::CPU_STEAL),
            Test::Above(0.1),
            Family::Slower,
            "the hypervisor takes its CPU time",
            Basis::HostWaits,
        )
    },
    Limit {
        for_ns: 15 * MINUTE,
        cause: Cause::Storage,
        action: "Look which disk or network storage is slow, and what else uses it.",
        reading: ("all tasks waiting for I/O", Unit::Ratio),
        ..limit(
            "node_io_pressure",
            Read::Plain(&node::PSI_IO),
            Test::Above(0.4),
            Family::Slower,
            "it waits for its storage",
            Basis::HostWaits,
        )
    },
    Limit {
        for_ns: MINUTE,
        severity: Severity::Error,
        cause: Cause::Network,
        action: "Look at the cable, the optic and the switch's port; collectives over it hang until their time-out.",
        reading: ("up", Unit::Flag),
        ..limit(
            "nic_down",
            Read::Plain(&node::NIC_UP),
            Test::Down,
            Family::Link,
            "a network device is down",
            Basis::NoRunWaits,
        )
    },
    Limit {
        cause: Cause::Network,
        action: "Look at the cable, the optic and the switch's port.",
        reading: ("times down and back within the hour", Unit::Count),
        ..limit(
            "link_flaps",
            Read::Plain(&node::NIC_UP),
            Test::Flaps,
            Family::Link,
            "a network device goes and comes",
            Basis::NoRunWaits,
        )
    },
    Limit {
        for_ns: 5 * MINUTE,
        cause: Cause::Network,
        action: "Look at the cable, the optic and the switch's port.",
        reading: ("errors a second", Unit::Count),
        ..limit(
            "nic_errors",
            Read::Plain(&node::NIC_ERRORS),
            Test::Rate(1.0),
            Family::Link,
            "a network device makes errors",
            Basis::NoRunWaits,
        )
    },
    Limit {
        for_ns: 5 * MINUTE,
        cause: Cause::Network,
        action: "Look at the cable and the switch's port, and for congestion.",
        reading: ("packets repeated a second", Unit::Count),
        ..limit(
            "nic_errors",
            Read::Plain(&node::RDMA_RETRIES),
            Test::Rate(10.0),
            Family::Link,
            REPEATS,
            Basis::NoRunWaits,
        )
    },
    Limit {
        cause: Cause::Nvlink,
        action: "Drain its jobs and reset the GPU; a link that goes and comes again is for the vendor.",
        remedy: Remedy::Reset,
        reading: ("times down and back within the hour", Unit::Count),
        ..limit(
            "link_flaps",
            Read::Plain(&gpu::NVLINK_UP),
            Test::Flaps,
            Family::Link,
            "an NVLink goes and comes",
            Basis::NoRunWaits,
        )
    },
    Limit {
        cause: Cause::Nvlink,
        action: "Drain its jobs and reset the GPU.",
        remedy: Remedy::Reset,
        reading: ("recoveries that failed", Unit::Count),
        ..limit(
            "nvlink_errors",
            Read::Plain(&gpu::NVLINK_NOT_RECOVERED),
            Test::Grew(60 * MINUTE),
            Family::Link,
            "an NVLink did not recover by itself",
            Basis::NoRunWaits,
        )
    },
    Limit {
        for_ns: 5 * MINUTE,
        cause: Cause::Nvlink,
        action: "Drain its jobs and reset the GPU.",
        remedy: Remedy::Reset,
        reading: ("errors a second", Unit::Count),
        ..limit(
            "nvlink_errors",
            Read::Plain(&gpu::NVLINK_LINK_ERRORS),
            Test::Rate(0.1),
            Family::Link,
            "an NVLink repeats packets all the time",
            Basis::NoRunWaits,
        )
    },
    Limit {
        for_ns: 5 * MINUTE,
        cause: Cause::Nvlink,
        action: "Look at the fabric manager's log; reset the GPU when its jobs are drained.",
        remedy: Remedy::Reset,
        reading: ("degraded", Unit::Flag),
        ..limit(
            "fabric_degraded",
            Read::Fabric(&gpu::FABRIC_HEALTH),
            Test::Above(1.0),
            Family::Link,
            "its place in the NVLink fabric is bad",
            Basis::NoRunWaits,
        )
    },
    Limit {
        severity: Severity::Error,
        cause: Cause::Pcie,
        action: "Drain the node: the GPU often falls off the bus next.",
        remedy: Remedy::Drain,
        reading: ("fatal errors", Unit::Count),
        ..limit(
            "pcie_fatal_errors",
            Read::Plain(&gpu::PCIE_FATAL_ERRORS),
            Test::Grew(60 * MINUTE),
            Family::Link,
            "a PCIe error made its link unreliable",
            Basis::NoRunWaits,
        )
    },
    Limit {
        severity: Severity::Error,
        cause: Cause::GpuFault,
        action: "Drain its jobs and reset the GPU: what it computed is not to be trusted.",
        remedy: Remedy::Reset,
        reading: ("errors not corrected", Unit::Count),
        ..limit(
            "sram_uncorrected",
            Read::Plain(&gpu::SRAM_UNCORRECTED_VOLATILE),
            Test::Grew(60 * MINUTE),
            Family::GpuFault,
            "on-chip memory errors that could not be corrected",
            Basis::NotToBeTrusted,
        )
    },
    Limit {
        for_ns: MINUTE,
        severity: Severity::Error,
        cause: Cause::GpuFault,
        action: "Have the card replaced.",
        remedy: Remedy::Replace,
        reading: ("over the vendor's limit", Unit::Flag),
        ..limit(
            "sram_threshold_exceeded",
            Read::Plain(&gpu::SRAM_THRESHOLD_EXCEEDED),
            Test::Above(1.0),
            Family::GpuFault,
            "more on-chip memory errors than the vendor tolerates",
            Basis::NotYet,
        )
    },
    Limit {
        for_ns: 5 * MINUTE,
        cause: Cause::Heat,
        action: "Look at the node's cooling.",
        reading: ("degrees left until it slows itself down", Unit::Celsius),
        ..limit(
            "too_hot",
            Read::Margin(&gpu::TEMPERATURE, &gpu::TEMPERATURE_SLOWDOWN),
            Test::Below(3.0),
            Family::Heat,
            "about to slow itself down",
            Basis::NotYet,
        )
    },
    // By utilisation, which any kernel counts for: 0.60, which fits the activity of SMs, would tell of most of what serves
    // or is tried out. Work below its target is `active_inefficient`, with its money.
    Limit {
        for_ns: 60 * MINUTE,
        severity: Severity::Info,
        cause: Cause::NoWork,
        action: "Ask the job's owner whether it needs so much of a GPU: a share may do.",
        reading: ("in use", Unit::Ratio),
        ..limit(
            "low_use",
            Read::Held(&gpu::UTILIZATION),
            Test::Below(0.1),
            Family::Idle,
            "held and hardly used",
            Basis::GpuUnknown,
        )
    },
    Limit {
        cause: Cause::Program,
        action: "Use a smaller micro batch, or recompute activations.",
        reading: ("allocations that failed", Unit::Count),
        ..limit(
            "training_out_of_memory",
            Read::Plain(&training::OUT_OF_MEMORY),
            Test::Grew(15 * MINUTE),
            Family::Training,
            "an allocation of device memory failed",
            Basis::EndsProcess,
        )
    },
    Limit {
        for_ns: 10 * MINUTE,
        severity: Severity::Info,
        cause: Cause::Program,
        action: "Leave it some more memory: each retry stands the GPU still.",
        reading: ("retries a second", Unit::Count),
        ..limit(
            "training_memory_retries",
            Read::Plain(&training::MEMORY_RETRIES),
            Test::Rate(0.02),
            Family::Slower,
            "its allocator frees its cache again and again",
            Basis::HostWaits,
        )
    },
    Limit {
        severity: Severity::Error,
        action: "Look at the storage and its room; every step since the last good checkpoint is at stake.",
        reading: ("saves that failed", Unit::Count),
        ..limit(
            "checkpoint_fails",
            Read::Plain(&training::CHECKPOINT_SAVE_FAILURES),
            Test::Grew(60 * MINUTE),
            Family::Training,
            "a checkpoint could not be saved",
            Basis::NoRunKnown,
        )
    },
    Limit {
        for_ns: 5 * MINUTE,
        action: "Look why it saves none: what was done since is lost if it fails now.",
        reading: ("since its last checkpoint", Unit::Seconds),
        ..limit(
            "checkpoint_old",
            Read::Behind(&training::CHECKPOINT_AT, &training::LAST_STEP_AT),
            Test::Above(6.0 * 3_600.0),
            Family::Training,
            "its last checkpoint is old",
            Basis::NoRunKnown,
        )
    },
    Limit {
        for_ns: 10 * MINUTE,
        severity: Severity::Error,
        action: "Look at the server's log and at its GPUs; restart it if it does not go on.",
        reading: ("requests finished", Unit::Count),
        ..limit(
            "serving_stuck",
            Read::Stuck(&serving::REQUESTS, &serving::QUEUED),
            Test::Still,
            Family::Hang,
            "requests wait and none is finished",
            Basis::NoGpusTold,
        )
    },
    Limit {
        for_ns: 10 * MINUTE,
        action: "Give it another replica or a larger cache: requests wait or are computed twice.",
        reading: ("of the cache in use", Unit::Ratio),
        ..limit(
            "serving_cache_full",
            Read::Plain(&serving::CACHE_USED),
            Test::Above(0.95),
            Family::Slower,
            "its KV cache is full",
            Basis::RequestsWait,
        )
    },
    Limit {
        for_ns: 10 * MINUTE,
        action: "Look at its queue and its batch; give it another replica.",
        reading: ("until the first token, 99th percentile", Unit::Seconds),
        ..limit(
            "serving_slow_first_token",
            Read::Plain(&serving::TTFT_P99),
            Test::Above(10.0),
            Family::Slower,
            "its first token comes late",
            Basis::RequestsWait,
        )
    },
];

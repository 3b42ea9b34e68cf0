//! Where each metric is read, and what the driver is called for beside metrics.
//!
//! [`of`] answers for every metric; a test holds this table, [`super::not_read`] and the list of
//! what NVIDIA's driver and exporter offer against each other, so that nothing is forgotten.

use super::{Metric, MetricId, gpu, node, own, server, serving, training};

/// One place a metric is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A field of nvmlDeviceGetFieldValues.
    Field(u32),
    /// A metric of NVML's GPM.
    Gpm(u32),
    /// A function of NVML.
    Function(&'static str),
    /// An event of NVML, by its bit.
    Event(u32),
    /// A file of the kernel, `*` standing for the device.
    File(&'static str),
    /// An exporter's or model server's endpoint, through a mapping table.
    Exporter,
    /// The agent's sample loop, from the metrics named.
    Derived(&'static str),
    /// The agent counts it itself.
    Agent,
    /// The server counts it itself.
    Server,
    /// The memory that a training process shares with the agent.
    Hooks,
}

use Source::{Agent, Derived, Event, Exporter, Field, File, Function, Gpm, Hooks, Server};

/// What the driver is called for beside metrics, and why.
pub const CALLED: &[(&str, &str)] = &[
    ("nvmlInit_v2", "Opens the library."),
    (
        "nvmlSystemGetDriverVersion",
        "An attribute of the GPU; a change is an event.",
    ),
    ("nvmlSystemGetNVMLVersion", "An attribute of the GPU."),
    (
        "nvmlSystemGetCudaDriverVersion_v2",
        "An attribute of the GPU.",
    ),
    ("nvmlDeviceGetCount_v2", "Finds GPUs added and removed."),
    ("nvmlDeviceGetHandleByIndex_v2", "Finds the GPUs."),
    (
        "nvmlDeviceGetName",
        "An attribute of the GPU, and the key of its peak rates.",
    ),
    (
        "nvmlDeviceGetUUID",
        "The identity of GPUs and MIG instances.",
    ),
    ("nvmlDeviceGetSerial", "An attribute of the GPU."),
    ("nvmlDeviceGetMinorNumber", "An attribute of the GPU."),
    (
        "nvmlDeviceGetPciInfo_v3",
        "An attribute of the GPU, and its identity where there is no UUID.",
    ),
    (
        "nvmlDeviceGetCudaComputeCapability",
        "An attribute of the GPU.",
    ),
    ("nvmlDeviceGetVbiosVersion", "An attribute of the GPU."),
    (
        "nvmlDeviceGetVirtualizationMode",
        "A slice of a vGPU answers GPM without data: its samples are tried first.",
    ),
    ("nvmlDeviceGetMaxMigDeviceCount", "Finds the MIG instances."),
    (
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "Finds the MIG instances.",
    ),
    (
        "nvmlDeviceGetGpuInstanceId",
        "An attribute of the MIG instance, and the key of its GPM sample.",
    ),
    (
        "nvmlDeviceGetGpuInstanceById",
        "Finds the GPU instance, to ask where it lies.",
    ),
    (
        "nvmlGpuInstanceGetInfo",
        "Where a MIG instance lies, by which NVIDIA's driver for dynamic resource allocation names it.",
    ),
    (
        "nvmlDeviceGetAttributes_v2",
        "The slices and the profile of a MIG instance.",
    ),
    (
        "nvmlDeviceGetSupportedEventTypes",
        "Registers only for events the GPU has.",
    ),
    (
        "nvmlDeviceRegisterEvents",
        "Registers for XIDs and MIG, availability and recovery changes.",
    ),
    ("nvmlEventSetCreate", "Holds the registered events."),
    (
        "nvmlEventSetWait_v2",
        "Waits for XIDs in a thread of its own.",
    ),
    (
        "nvmlEventSetFree",
        "Lets go of a set that may not be waited on any more.",
    ),
    ("nvmlGpmQueryDeviceSupport", "Whether the GPU has GPM."),
    (
        "nvmlGpmSampleAlloc",
        "The two samples that a GPM metric is the difference of.",
    ),
    (
        "nvmlGpmSampleFree",
        "Lets go of them where the GPU is opened anew or a MIG instance is gone.",
    ),
    ("nvmlGpmSampleGet", "Takes a GPU's sample."),
    ("nvmlGpmMigSampleGet", "Takes a MIG instance's sample."),
    ("nvmlGpmMetricsGet", "Works the metrics out of two samples."),
];

/// The events of NVML that become events here and no metric: bit and what for.
pub const EVENTS: &[(u32, &str)] = &[
    (0x100, "The MIG layout changed."),
    (0x4000, "The GPU is no longer available."),
    (0x8000, "The recovery action changed."),
];

/// Where a metric is read. Every metric of the catalog has at least one source.
pub fn of(metric: MetricId) -> &'static [Source] {
    let in_room = |room: &[Metric]| room.iter().any(|it| it.id == metric);
    if let Some((_, sources)) = TABLE.iter().find(|(it, _)| it.id == metric) {
        return sources;
    }
    match () {
        () if in_room(serving::ALL) => &[Exporter],
        () if in_room(own::ALL) => &[Agent],
        () if in_room(server::ALL) => &[Server],
        () if in_room(training::ALL) => &[Hooks],
        () => &[],
    }
}

const MEMORY_INFO: Source = Function("nvmlDeviceGetMemoryInfo_v2");
const UTILIZATION_RATES: Source = Function("nvmlDeviceGetUtilizationRates");
const CLOCK_INFO: Source = Function("nvmlDeviceGetClockInfo");
const SRAM: Source = Function("nvmlDeviceGetSramEccErrorStatus");
const FABRIC: Source = Function("nvmlDeviceGetGpuFabricInfoV");
const PROCESSES: Source = Function("nvmlDeviceGetComputeRunningProcesses_v3");

/// GPU and node metrics; the other rooms have one source each.
const TABLE: &[(Metric, &[Source])] = &[
    (gpu::OBSERVED, &[Derived("any valid sample")]),
    (gpu::ACTIVE, &[Derived("graphics engine, else utilisation")]),
    (
        gpu::STALLED,
        &[Derived("engine, tensor, DRAM and link activity")],
    ),
    (gpu::HELD, &[Derived("processes, kubelet, Slurm")]),
    (gpu::HOLDER_KNOWN, &[Derived("processes, kubelet, Slurm")]),
    (gpu::UTILIZATION, &[UTILIZATION_RATES]),
    (gpu::MEMORY_UTILIZATION, &[UTILIZATION_RATES]),
    (
        gpu::ENCODER_UTILIZATION,
        &[Function("nvmlDeviceGetEncoderUtilization")],
    ),
    (
        gpu::DECODER_UTILIZATION,
        &[Function("nvmlDeviceGetDecoderUtilization")],
    ),
    (gpu::MEMORY_TOTAL, &[MEMORY_INFO]),
    (gpu::MEMORY_USED, &[MEMORY_INFO]),
    (gpu::MEMORY_FREE, &[MEMORY_INFO]),
    (gpu::MEMORY_RESERVED, &[MEMORY_INFO]),
    (gpu::POWER, &[Function("nvmlDeviceGetPowerUsage")]),
    (gpu::POWER_INSTANT, &[Field(186)]),
    (
        gpu::POWER_LIMIT,
        &[Function("nvmlDeviceGetEnforcedPowerLimit")],
    ),
    (gpu::ENERGY, &[Field(83)]),
    (gpu::POWER_AVERAGE, &[Field(185)]),
    (gpu::TEMPERATURE, &[Function("nvmlDeviceGetTemperature")]),
    (gpu::MEMORY_TEMPERATURE, &[Field(82)]),
    (
        gpu::TEMPERATURE_MARGIN,
        &[Function("nvmlDeviceGetMarginTemperature")],
    ),
    (
        gpu::TEMPERATURE_SLOWDOWN,
        &[Function("nvmlDeviceGetTemperatureThreshold")],
    ),
    (gpu::TEMPERATURE_MARGIN_SHUTDOWN, &[Field(193)]),
    (gpu::TEMPERATURE_MARGIN_SLOWDOWN, &[Field(194)]),
    (gpu::TEMPERATURE_MARGIN_MEMORY, &[Field(195)]),
    (gpu::TEMPERATURE_MARGIN_MAX, &[Field(196)]),
    (gpu::SM_CLOCK, &[CLOCK_INFO]),
    (gpu::MEMORY_CLOCK, &[CLOCK_INFO]),
    (gpu::SM_CLOCK_MAX, &[Function("nvmlDeviceGetMaxClockInfo")]),
    (
        gpu::PERFORMANCE_STATE,
        &[Function("nvmlDeviceGetPerformanceState")],
    ),
    (
        gpu::THROTTLE_REASONS,
        &[Function("nvmlDeviceGetCurrentClocksThrottleReasons")],
    ),
    (gpu::HARDWARE_SLOWDOWNS, &[Derived("throttle reasons")]),
    (gpu::THROTTLE_POWER, &[Field(74)]),
    (gpu::THROTTLE_THERMAL, &[Field(75)]),
    (gpu::THROTTLE_SYNC_BOOST, &[Field(76)]),
    (gpu::THROTTLE_BOARD_LIMIT, &[Field(77)]),
    (gpu::THROTTLE_LOW_UTILIZATION, &[Field(78)]),
    (gpu::THROTTLE_RELIABILITY, &[Field(79)]),
    (gpu::THROTTLE_APPLICATION_CLOCKS, &[Field(80)]),
    (gpu::THROTTLE_BASE_CLOCKS, &[Field(81)]),
    (gpu::ECC_MODE, &[Field(1)]),
    (gpu::MIG_MODE, &[Function("nvmlDeviceGetMigMode")]),
    (gpu::ECC_CORRECTED_VOLATILE, &[Field(3)]),
    (gpu::ECC_UNCORRECTED_VOLATILE, &[Field(4)]),
    (gpu::ECC_CORRECTED_AGGREGATE, &[Field(5)]),
    (gpu::ECC_UNCORRECTED_AGGREGATE, &[Field(6)]),
    (gpu::RETIRED_PAGES_SINGLE, &[Field(29)]),
    (gpu::RETIRED_PAGES_DOUBLE, &[Field(30)]),
    (gpu::RETIRED_PAGES_PENDING, &[Field(31)]),
    (gpu::REMAPPED_CORRECTABLE, &[Field(142)]),
    (gpu::REMAPPED_UNCORRECTABLE, &[Field(143)]),
    (gpu::REMAP_PENDING, &[Field(144)]),
    (gpu::REMAP_FAILURE, &[Field(145)]),
    (gpu::RECOVERY_ACTION, &[Field(230)]),
    (gpu::XID, &[Event(0x8)]),
    (gpu::LAST_XID, &[Event(0x8)]),
    (gpu::VGPU_LICENSE, &[Exporter, Derived("0 on bare metal")]),
    (gpu::SRAM_CORRECTED_VOLATILE, &[SRAM]),
    (gpu::SRAM_UNCORRECTED_VOLATILE, &[SRAM]),
    (gpu::SRAM_CORRECTED_AGGREGATE, &[SRAM]),
    (gpu::SRAM_UNCORRECTED_AGGREGATE, &[SRAM]),
    (gpu::SRAM_THRESHOLD_EXCEEDED, &[SRAM]),
    (gpu::PCIE_REPLAYS, &[Field(94)]),
    (
        gpu::PCIE_GENERATION,
        &[Function("nvmlDeviceGetCurrPcieLinkGeneration")],
    ),
    (
        gpu::PCIE_WIDTH,
        &[Function("nvmlDeviceGetCurrPcieLinkWidth")],
    ),
    (gpu::PCIE_SENT, &[Gpm(20), Field(197)]),
    (gpu::PCIE_RECEIVED, &[Gpm(21), Field(198)]),
    (gpu::PCIE_CORRECTABLE_ERRORS, &[Field(173)]),
    (gpu::PCIE_NON_FATAL_ERRORS, &[Field(179)]),
    (gpu::PCIE_FATAL_ERRORS, &[Field(180)]),
    (gpu::NVLINK_SENT, &[Gpm(61), Field(138)]),
    (gpu::NVLINK_RECEIVED, &[Gpm(60), Field(139)]),
    (
        gpu::NVLINK_BANDWIDTH,
        &[Derived("NVLink sent and received")],
    ),
    (gpu::NVLINK_REPLAYS, &[Field(161)]),
    (gpu::NVLINK_RECOVERIES, &[Field(162)]),
    (gpu::NVLINK_CRC_ERRORS, &[Field(163)]),
    (gpu::NVLINKS_ACTIVE, &[Field(165)]),
    (gpu::FABRIC_STATE, &[FABRIC]),
    (gpu::FABRIC_HEALTH, &[FABRIC]),
    (gpu::GRAPHICS_ACTIVE, &[Gpm(1)]),
    (gpu::SM_ACTIVE, &[Gpm(2)]),
    (gpu::SM_OCCUPANCY, &[Gpm(3)]),
    (gpu::TENSOR_ACTIVE, &[Gpm(5)]),
    (gpu::DRAM_ACTIVE, &[Gpm(10)]),
    (gpu::FP64_ACTIVE, &[Gpm(11)]),
    (gpu::FP32_ACTIVE, &[Gpm(12)]),
    (gpu::FP16_ACTIVE, &[Gpm(13)]),
    (gpu::INTEGER_ACTIVE, &[Gpm(4)]),
    (gpu::HMMA_ACTIVE, &[Gpm(7)]),
    (gpu::IMMA_ACTIVE, &[Gpm(9)]),
    (gpu::DFMA_ACTIVE, &[Gpm(6)]),
    (gpu::DMMA_ACTIVE, &[Gpm(8)]),
    (gpu::PROCESSES, &[PROCESSES]),
    (gpu::NVLINK_UP, &[Field(165)]),
    (gpu::NVLINK_SPEED, &[Field(164)]),
    (
        gpu::NVLINK_LINK_ERRORS,
        &[Field(161), Field(162), Field(163)],
    ),
    (gpu::NVLINK_RECEIVE_ERRORS, &[Field(208)]),
    (gpu::NVLINK_RECOVERED, &[Field(213)]),
    (gpu::NVLINK_NOT_RECOVERED, &[Field(214)]),
    (gpu::NVLINK_EFFECTIVE_ERRORS, &[Field(219)]),
    (gpu::NVLINK_EFFECTIVE_BER, &[Field(220)]),
    (gpu::NVLINK_SYMBOL_ERRORS, &[Field(221)]),
    (gpu::PROCESS_MEMORY, &[PROCESSES]),
    (
        gpu::PROCESS_SM_UTILIZATION,
        &[Function("nvmlDeviceGetProcessUtilization")],
    ),
    (node::CPU_BUSY, &[File("/proc/stat")]),
    (node::CPU_STEAL, &[File("/proc/stat")]),
    (node::CPU_IOWAIT, &[File("/proc/stat")]),
    (node::CPU_COUNT, &[File("/proc/stat")]),
    (node::LOAD_1M, &[File("/proc/loadavg")]),
    (node::MEMORY_TOTAL, &[File("/proc/meminfo")]),
    (node::MEMORY_AVAILABLE, &[File("/proc/meminfo")]),
    (node::OOM_KILLS, &[File("/proc/vmstat")]),
    (node::PSI_CPU, &[File("/proc/pressure/cpu")]),
    (node::PSI_MEMORY, &[File("/proc/pressure/memory")]),
    (node::PSI_IO, &[File("/proc/pressure/io")]),
    (node::PSI_MEMORY_SOME, &[File("/proc/pressure/memory")]),
    (node::PSI_IO_SOME, &[File("/proc/pressure/io")]),
    (node::UPTIME, &[File("/proc/uptime")]),
    (node::DISK_READ, &[File("/proc/diskstats")]),
    (node::DISK_WRITTEN, &[File("/proc/diskstats")]),
    (node::DISK_BUSY, &[File("/proc/diskstats")]),
    (
        node::NIC_RECEIVED,
        &[File("/proc/net/dev"), File("/sys/class/infiniband/*")],
    ),
    (
        node::NIC_SENT,
        &[File("/proc/net/dev"), File("/sys/class/infiniband/*")],
    ),
    (
        node::NIC_ERRORS,
        &[File("/proc/net/dev"), File("/sys/class/infiniband/*")],
    ),
    (node::NIC_DROPS, &[File("/proc/net/dev")]),
    (
        node::NIC_UP,
        &[File("/sys/class/net/*"), File("/sys/class/infiniband/*")],
    ),
    (
        node::NIC_SPEED,
        &[File("/sys/class/net/*"), File("/sys/class/infiniband/*")],
    ),
    (node::RDMA_RETRIES, &[File("/sys/class/infiniband/*")]),
];

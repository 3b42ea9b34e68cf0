//! What NVIDIA's driver and exporter offer and gpufleet does not read, and why.

/// Something that could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Offer {
    /// Fields of nvmlDeviceGetFieldValues, first and last.
    Fields(u32, u32),
    /// Metrics of NVML's GPM, first and last.
    Gpm(u32, u32),
    /// A function of NVML.
    Function(&'static str),
    /// An event of NVML, by its bit.
    Event(u32),
    /// A metric or label of dcgm-exporter.
    Dcgm(&'static str),
}

use Offer::{Dcgm, Event, Fields, Function, Gpm};

/// Each with the reason, a whole sentence.
pub const NOT_READ: &[(Offer, &str)] = &[
    (
        Fields(140, 141),
        "NVLink traffic with the protocol's own bytes; 138 and 139 count the data.",
    ),
    (
        Fields(174, 178),
        "Kinds of errors that field 173 counts together; the kernel's AER log names the kind.",
    ),
    (
        Fields(181, 183),
        "Kinds of errors that fields 173 and 179 count together; the kernel's AER log names the kind.",
    ),
    (
        Fields(201, 204),
        "NVLink 5 packets and bytes; GPM 60 and 61 give the rates.",
    ),
    (
        Fields(205, 207),
        "NVLink 5 drops, malformed packets and overruns: kinds of what field 208 counts.",
    ),
    (
        Fields(209, 212),
        "NVLink 5 remote, general and integrity errors and discards: the far end's view of what 208 and 219 count.",
    ),
    (Fields(215, 215), "The sum of fields 213 and 214."),
    (
        Fields(216, 218),
        "NVLink 5 bit errors before correction, which are normal.",
    ),
    (Fields(222, 222), "The rate of what field 221 counts."),
    (
        Gpm(62, 97),
        "NVLink traffic by link, 36 values a GPU; 60 and 61 give the sum, and errors by link find a bad one.",
    ),
    (
        Function("nvmlInitWithFlags"),
        "nvmlInit_v2 does all that is needed.",
    ),
    (
        Function("nvmlShutdown"),
        "The process that holds the library ends, which lets go of the driver whatever state it is in.",
    ),
    (
        Function("nvmlErrorString"),
        "Every code that matters has a reason of its own, in words that name the way out.",
    ),
    (
        Function("nvmlDeviceGetHandleByUUID"),
        "Handles come by index, so that a GPU without a UUID is found too.",
    ),
    (
        Function("nvmlDeviceGetHandleByPciBusId_v2"),
        "Handles come by index.",
    ),
    (
        Function("nvmlDeviceGetIndex"),
        "The index is what the handle was asked for with.",
    ),
    (
        Function("nvmlDeviceGetBrand"),
        "The product's name says it.",
    ),
    (
        Function("nvmlDeviceGetArchitecture"),
        "The compute capability says it.",
    ),
    (
        Function("nvmlDeviceGetSamples"),
        "A driver's buffer of past samples; we sample each second ourselves.",
    ),
    (
        Function("nvmlDeviceGetPowerManagementLimit"),
        "The limit that an administrator set; the one in force (GetEnforcedPowerLimit) slows the card.",
    ),
    (
        Function("nvmlDeviceGetEccMode"),
        "Field 1 comes with the other fields in one call.",
    ),
    (
        Function("nvmlDeviceGetTotalEnergyConsumption"),
        "Field 83 comes with the other fields in one call.",
    ),
    (
        Function("nvmlDeviceGetTotalEccErrors"),
        "Fields 3 to 6 come with the other fields in one call.",
    ),
    (
        Function("nvmlDeviceGetMemoryErrorCounter"),
        "Errors by place in the chip; fields 3 to 6 and the SRAM status say what to act on.",
    ),
    (
        Function("nvmlDeviceGetRetiredPages_v2"),
        "A list of addresses; fields 29 to 31 count them.",
    ),
    (
        Function("nvmlDeviceGetRemappedRows"),
        "Fields 142 to 145 come with the other fields in one call.",
    ),
    (
        Function("nvmlDeviceGetPcieReplayCounter"),
        "Field 94 comes with the other fields in one call.",
    ),
    (
        Function("nvmlDeviceGetPcieThroughput"),
        "It blocks for 20 ms in each direction; GPM or fields 197 and 198 do not.",
    ),
    (
        Function("nvmlDeviceGetGraphicsRunningProcesses_v3"),
        "A desktop's windows hold no GPU; compute contexts do.",
    ),
    (
        Function("nvmlDeviceGetProcessesUtilizationInfo"),
        "GetProcessUtilization gives the same on every driver in use.",
    ),
    (
        Function("nvmlDeviceGetDeviceHandleFromMigDeviceHandle"),
        "MIG instances are found from their GPU, so it is known.",
    ),
    (
        Function("nvmlDeviceIsMigDeviceHandle"),
        "MIG instances are found from their GPU, so it is known.",
    ),
    (
        Function("nvmlDeviceGetComputeInstanceId"),
        "Shares are GPU instances; compute instances cut them further and share their memory.",
    ),
    (
        Function("nvmlDeviceGetNvLinkState"),
        "Field 165 comes with the other links' in one call.",
    ),
    (
        Function("nvmlDeviceGetNvLinkVersion"),
        "The product's name says it.",
    ),
    (
        Function("nvmlDeviceGetNvLinkErrorCounter"),
        "Fields 161 to 163 come with the other links' in one call.",
    ),
    (
        Function("nvmlDeviceGetCurrentClocksEventReasons"),
        "The new name of GetCurrentClocksThrottleReasons, with the same bits; old drivers lack it.",
    ),
    (
        Function("nvmlDeviceGetTemperatureV"),
        "The new form of GetTemperature, with the same value; old drivers lack it.",
    ),
    (Event(0x1), "Fields 3 and 5 count corrected errors."),
    (
        Event(0x2),
        "Fields 4 and 6 count uncorrected errors, and an XID comes with each.",
    ),
    (Event(0x4), "The performance state is read each second."),
    (Event(0x10), "The clocks are read each second."),
    (
        Dcgm("DCGM_EXP_CLOCK_EVENTS_COUNT"),
        "A count over a window; throttle reasons and throttled seconds say more.",
    ),
    (
        Dcgm("DCGM_EXP_XID_ERRORS_COUNT"),
        "A count over a window; XIDs are counted by code here, repeats too.",
    ),
    (
        Dcgm("DCGM_EXP_GPU_HEALTH_STATUS"),
        "DCGM's judgement; ours comes from the readings behind it.",
    ),
    (
        Dcgm("DCGM_EXP_P2P_STATUS"),
        "DCGM's view of peer access; link states and the fabric's health are read.",
    ),
    (
        Dcgm("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL"),
        "Cards before Hopper only; field 163 counts CRC errors.",
    ),
    (
        Dcgm("DCGM_FI_DEV_NVLINK_BANDWIDTH_L0"),
        "One link's share of the rate over all links.",
    ),
    (
        Dcgm("DCGM_FI_DEV_BRAND"),
        "A label: the product's name says it.",
    ),
    (
        Dcgm("DCGM_FI_DEV_OEM_INFOROM_VER"),
        "A label: the board's OEM record, of no use in operation.",
    ),
    (
        Dcgm("DCGM_FI_DEV_ECC_INFOROM_VER"),
        "A label: the version of a record, of no use in operation.",
    ),
    (
        Dcgm("DCGM_FI_DEV_POWER_INFOROM_VER"),
        "A label: the version of a record, of no use in operation.",
    ),
    (
        Dcgm("DCGM_FI_DEV_INFOROM_IMAGE_VER"),
        "A label: the version of a record, of no use in operation.",
    ),
];

/// dcgm-exporter's labels that are attributes of the GPU here, by the attribute's name.
pub const LABELS: &[(&str, &str)] = &[
    (
        "DCGM_FI_DRIVER_VERSION",
        crate::identity::attribute::DRIVER_VERSION,
    ),
    (
        "DCGM_FI_NVML_VERSION",
        crate::identity::attribute::NVML_VERSION,
    ),
    ("DCGM_FI_DEV_SERIAL", crate::identity::attribute::SERIAL),
    (
        "DCGM_FI_DEV_VBIOS_VERSION",
        crate::identity::attribute::VBIOS_VERSION,
    ),
];

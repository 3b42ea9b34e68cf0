//! What NVIDIA's driver and exporter offer, as far as the product's authors know it, held against
//! what is read: fails on anything that is neither read nor explained.
//!
//! From the headers of NVML 13.0 and the counters of dcgm-exporter 4.8.

use std::collections::BTreeSet;

use crate::catalog::not_read::{LABELS, NOT_READ, Offer};
use crate::catalog::sources::{self, Source};
use crate::catalog::{MetricId, all, gpu};

/// Fields of nvmlDeviceGetFieldValues, first and last.
const FIELDS: &[(u32, u32)] = &[
    (1, 1),
    (3, 6),
    (29, 31),
    (74, 83),
    (94, 94),
    (138, 145),
    (161, 165),
    (173, 183),
    (185, 186),
    (193, 198),
    (201, 222),
    (230, 230),
];

/// Metrics of GPM, first and last.
const GPM: &[(u32, u32)] = &[(1, 13), (20, 21), (60, 61), (62, 97)];

/// Events, by their bits.
const EVENTS: &[u32] = &[0x1, 0x2, 0x4, 0x8, 0x10, 0x100, 0x4000, 0x8000];

/// Functions whose names begin with `nvmlDevice`.
const DEVICE_FUNCTIONS: &str = "GetCount_v2 GetHandleByIndex_v2 GetHandleByUUID \
    GetHandleByPciBusId_v2 GetName GetUUID GetSerial GetIndex GetMinorNumber GetPciInfo_v3 GetBrand \
    GetArchitecture GetCudaComputeCapability GetVirtualizationMode GetMemoryInfo_v2 \
    GetUtilizationRates GetEncoderUtilization GetDecoderUtilization GetSamples GetFieldValues \
    GetClockInfo GetMaxClockInfo GetTemperature GetTemperatureThreshold GetPowerUsage \
    GetEnforcedPowerLimit GetPowerManagementLimit GetTotalEnergyConsumption GetPerformanceState \
    GetCurrentClocksThrottleReasons GetTotalEccErrors GetMemoryErrorCounter GetEccMode \
    GetRetiredPages_v2 GetRemappedRows GetPcieReplayCounter GetCurrPcieLinkGeneration \
    GetCurrPcieLinkWidth GetComputeRunningProcesses_v3 GetGraphicsRunningProcesses_v3 \
    GetProcessUtilization GetMigMode GetMaxMigDeviceCount GetMigDeviceHandleByIndex \
    GetDeviceHandleFromMigDeviceHandle IsMigDeviceHandle GetAttributes_v2 GetNvLinkState \
    GetNvLinkVersion GetNvLinkErrorCounter GetSupportedEventTypes RegisterEvents \
    GetCurrentClocksEventReasons GetGpuInstanceId GetComputeInstanceId GetGpuFabricInfoV \
    GetSramEccErrorStatus GetProcessesUtilizationInfo GetTemperatureV GetPcieThroughput \
    GetMarginTemperature";

/// The other functions.
const FUNCTIONS: &str = "nvmlInit_v2 nvmlInitWithFlags nvmlShutdown nvmlErrorString \
    nvmlSystemGetDriverVersion nvmlSystemGetNVMLVersion nvmlSystemGetCudaDriverVersion_v2 \
    nvmlEventSetCreate nvmlEventSetWait_v2 nvmlEventSetFree nvmlGpmQueryDeviceSupport \
    nvmlGpmSampleAlloc nvmlGpmSampleFree nvmlGpmSampleGet nvmlGpmMigSampleGet nvmlGpmMetricsGet";

/// dcgm-exporter's counters and labels, without `DCGM_FI_`.
const DCGM: &str = "DEV_SM_CLOCK DEV_MEM_CLOCK DEV_MEMORY_TEMP DEV_GPU_TEMP DEV_POWER_USAGE \
    DEV_TOTAL_ENERGY_CONSUMPTION PROF_PCIE_TX_BYTES PROF_PCIE_RX_BYTES DEV_PCIE_REPLAY_COUNTER \
    DEV_GPU_UTIL DEV_MEM_COPY_UTIL DEV_ENC_UTIL DEV_DEC_UTIL DEV_XID_ERRORS DEV_POWER_VIOLATION \
    DEV_THERMAL_VIOLATION DEV_SYNC_BOOST_VIOLATION DEV_BOARD_LIMIT_VIOLATION DEV_LOW_UTIL_VIOLATION \
    DEV_RELIABILITY_VIOLATION DEV_FB_TOTAL DEV_FB_FREE DEV_FB_USED DEV_FB_RESERVED \
    DEV_ECC_SBE_VOL_TOTAL DEV_ECC_DBE_VOL_TOTAL DEV_ECC_SBE_AGG_TOTAL DEV_ECC_DBE_AGG_TOTAL \
    DEV_RETIRED_SBE DEV_RETIRED_DBE DEV_RETIRED_PENDING DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL \
    DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL \
    DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL DEV_NVLINK_BANDWIDTH_TOTAL DEV_NVLINK_BANDWIDTH_L0 \
    DEV_VGPU_LICENSE_STATUS DEV_UNCORRECTABLE_REMAPPED_ROWS DEV_CORRECTABLE_REMAPPED_ROWS \
    DEV_ROW_REMAP_FAILURE DRIVER_VERSION NVML_VERSION DEV_BRAND DEV_SERIAL DEV_OEM_INFOROM_VER \
    DEV_ECC_INFOROM_VER DEV_POWER_INFOROM_VER DEV_INFOROM_IMAGE_VER DEV_VBIOS_VERSION \
    PROF_GR_ENGINE_ACTIVE PROF_SM_ACTIVE PROF_SM_OCCUPANCY PROF_PIPE_TENSOR_ACTIVE PROF_DRAM_ACTIVE \
    PROF_PIPE_FP64_ACTIVE PROF_PIPE_FP32_ACTIVE PROF_PIPE_FP16_ACTIVE PROF_NVLINK_TX_BYTES \
    PROF_NVLINK_RX_BYTES";

/// dcgm-exporter's own counters.
const DCGM_EXPORTER: &str = "DCGM_EXP_CLOCK_EVENTS_COUNT DCGM_EXP_XID_ERRORS_COUNT \
    DCGM_EXP_GPU_HEALTH_STATUS DCGM_EXP_P2P_STATUS";

/// The line that says that a check had nothing to check.
const NOT_RUN: &str = "NOT RUN: no shared facts beside the repository";

fn ids(ranges: &[(u32, u32)], kind: &str) -> impl Iterator<Item = String> {
    ranges
        .iter()
        .flat_map(|(first, last)| *first..=*last)
        .map(move |id| format!("{kind} {id}"))
}

/// Everything offered, each by kind and id.
fn offered() -> BTreeSet<String> {
    let mut offered: BTreeSet<String> = ids(FIELDS, "field").chain(ids(GPM, "gpm")).collect();
    offered.extend(EVENTS.iter().map(|bit| format!("event {bit:#x}")));
    offered.extend(
        DEVICE_FUNCTIONS
            .split(' ')
            .map(|it| format!("nvmlDevice{it}")),
    );
    offered.extend(FUNCTIONS.split(' ').map(str::to_owned));
    offered.extend(DCGM.split(' ').map(|it| format!("DCGM_FI_{it}")));
    offered.extend(DCGM_EXPORTER.split(' ').map(str::to_owned));
    offered
}

/// Everything that is read for a metric, called for something else, or a label.
fn read() -> BTreeSet<String> {
    let mut read = BTreeSet::new();
    for metric in all() {
        for source in sources::of(metric.id) {
            read.extend(match source {
                Source::Field(id) => Some(format!("field {id}")),
                Source::Gpm(id) => Some(format!("gpm {id}")),
                Source::Event(bit) => Some(format!("event {bit:#x}")),
                Source::Function(name) => Some((*name).to_owned()),
                _ => None,
            });
        }
        read.extend(metric.dcgm.map(|it| it.name.to_owned()));
    }
    read.insert("nvmlDeviceGetFieldValues".to_owned());
    read.extend(sources::CALLED.iter().map(|(name, _)| (*name).to_owned()));
    read.extend(
        sources::EVENTS
            .iter()
            .map(|(bit, _)| format!("event {bit:#x}")),
    );
    read.extend(LABELS.iter().map(|(name, _)| (*name).to_owned()));
    read
}

/// Everything that is explained; each at most once.
fn explained() -> BTreeSet<String> {
    let mut explained = BTreeSet::new();
    for (offer, why) in NOT_READ {
        assert!(why.ends_with('.') && why.len() > 20, "{offer:?}: {why}");
        let these: Vec<String> = match offer {
            Offer::Fields(first, last) => ids(&[(*first, *last)], "field").collect(),
            Offer::Gpm(first, last) => ids(&[(*first, *last)], "gpm").collect(),
            Offer::Event(bit) => vec![format!("event {bit:#x}")],
            Offer::Function(name) | Offer::Dcgm(name) => vec![(*name).to_owned()],
        };
        for this in these {
            assert!(explained.insert(this.clone()), "{this} is explained twice");
        }
    }
    explained
}

#[test]
fn everything_offered_is_read_or_explained_and_never_both() {
    let (offered, read, explained) = (offered(), read(), explained());
    let forgotten: Vec<_> = offered
        .iter()
        .filter(|it| !read.contains(*it) && !explained.contains(*it))
        .collect();
    assert!(
        forgotten.is_empty(),
        "neither read nor in the not-read table: {forgotten:?}"
    );
    let both: Vec<_> = read.intersection(&explained).collect();
    assert!(both.is_empty(), "read and in the not-read table: {both:?}");
    let unheard: Vec<_> = read
        .union(&explained)
        .filter(|it| !offered.contains(*it))
        .collect();
    assert!(
        unheard.is_empty(),
        "not in the list of what is offered: {unheard:?}"
    );
}

#[test]
fn every_metric_has_a_source() {
    for metric in all() {
        assert!(
            !sources::of(metric.id).is_empty(),
            "{} is read nowhere",
            metric.name
        );
    }
    assert_eq!(sources::of(MetricId(0)), []);
    assert_eq!(sources::of(gpu::POWER_INSTANT.id), [Source::Field(186)]);
}

/// Every id and symbol that a text about NVML, GPM and DCGM names: what the lines about field ids
/// and GPM ids count up, and every word that is a function's or a counter's name.
fn named_in(text: &str) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    let numbers_of = |line: &str, kind: &str| -> Vec<String> {
        let mut ids = Vec::new();
        let words = line
            .split([' ', ',', ';', '/'])
            .map(|it| it.trim_end_matches([':', '.']));
        for word in words {
            let ends = word.split_once('-').unwrap_or((word, word));
            if let (Ok(first), Ok(last)) = (ends.0.parse::<u32>(), ends.1.parse::<u32>()) {
                ids.extend((first..=last.min(first + 100)).map(|id| format!("{kind} {id}")));
            }
        }
        ids
    };
    for line in text.lines() {
        if let Some(list) = line.strip_prefix("- Field ids") {
            // What stands in brackets explains a value.
            let list = list.split_once("):").map_or(list, |(_, list)| list);
            let outside = list
                .split('(')
                .map(|it| it.split_once(')').map_or(it, |(_, it)| it));
            named.extend(numbers_of(&outside.collect::<String>(), "field"));
        }
        if let Some((_, list)) = line.split_once("Metric ids, percent 0-100: ") {
            named.extend(numbers_of(list, "gpm"));
        }
        if let Some(list) = line.strip_prefix("- Events: ") {
            let bits = list
                .split([' ', ','])
                .filter_map(|it| it.strip_prefix("0x"));
            let bits = bits.filter_map(|it| u32::from_str_radix(it, 16).ok());
            named.extend(bits.map(|bit| format!("event {bit:#x}")));
        }
        let words = line.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        for word in words {
            let is_device = word.starts_with("Get") || word.starts_with("IsMig");
            let is_function = word.starts_with("nvml") && word.chars().any(char::is_uppercase);
            let is_counter = word.starts_with("DCGM_FI_") || word.starts_with("DCGM_EXP_");
            if is_device && word.len() > 4 || word == "RegisterEvents" {
                named.insert(format!("nvmlDevice{word}"));
            } else if is_function || (is_counter && word.len() > 12) {
                named.insert(word.to_owned());
            }
        }
    }
    named
}

#[test]
fn the_shared_facts_name_nothing_that_this_list_lacks() {
    let facts = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../shared/facts/nvml-dcgm.md"
    );
    let counters = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../shared/data/dcgm_counters.csv"
    );
    let (Ok(facts), Ok(counters)) = (
        std::fs::read_to_string(facts),
        std::fs::read_to_string(counters),
    ) else {
        return eprintln!("{NOT_RUN}");
    };
    let mut named = named_in(&facts);
    let first_column = counters
        .lines()
        .skip(1)
        .filter_map(|it| it.split(',').next());
    named.extend(first_column.map(str::to_owned));
    assert!(
        named.len() > 150,
        "only {} found: the text has changed",
        named.len()
    );
    let offered = offered();
    // Words of the text's own: the beginning of every name, and a function without its ending.
    for word in ["nvmlDevice", "nvmlDeviceGetHandle"] {
        named.remove(word);
    }
    let missing: Vec<_> = named.difference(&offered).collect();
    assert!(
        missing.is_empty(),
        "in the facts and not in this list: {missing:?}"
    );
}

#[test]
fn ids_and_symbols_are_found_in_a_text() {
    let text = "- Field ids (each with a code): 3-6 ECC; 197/198 PCIe (wraps 9); 230 action (0 none, 1 reset).\n\
                - Metric ids, percent 0-100: 1 graphics, 20/21 PCIe.\n\
                - Events: 0x8 XID, 0x4000 gone.\n\
                nvmlGpmSampleGet and GetName of DCGM_FI_DEV_SM_CLOCK";
    let named: Vec<_> = named_in(text).into_iter().collect();
    let expected = "DCGM_FI_DEV_SM_CLOCK,event 0x4000,event 0x8,field 197,field 198,field 230,\
                    field 3,field 4,field 5,field 6,gpm 1,gpm 20,gpm 21,nvmlDeviceGetName,\
                    nvmlGpmSampleGet";
    assert_eq!(named.join(","), expected);
}

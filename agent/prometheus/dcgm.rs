//! dcgm-exporter's dialect A, as every release up to 4.8 serves it and dashboards expect it.
//!
//! One line per GPU and metric, the labels in this order; what is not known is left out:
//!
//! ```text
//! NAME{gpu,UUID,pci_bus_id,device,modelName[,GPU_I_PROFILE,GPU_I_ID],Hostname[,DCGM_FI_DRIVER_VERSION]
//!     [,container,namespace,pod]} value
//! ```
//!
//! A value that could not be read is omitted, never 0. `device` is `nvidia<index>`, as there, not
//! the minor number. Metrics stand in the order of DCGM's field ids. Whole numbers and fractions are
//! printed as Go prints DCGM's int64 and double (`%d`, `%f`). The help texts are ours.
//! Recorded and simulated GPUs are never served under these names: they would join live totals.

use std::fmt::Write;

use gpufleet_telemetry::catalog::{self, Metric};
use gpufleet_telemetry::identity::{Origin, Resource, ResourceKind, attribute};

use super::text::escape_label;
use crate::sample::{Latest, LatestResource};

/// What dcgm-exporter says a metric is, right or wrong: NVLINK_BANDWIDTH_TOTAL is a rate it calls a
/// counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Gauge,
    Counter,
}

/// How DCGM's value is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Print {
    Integer,
    Float,
}

use Print::{Float, Integer};
use Type::{Counter, Gauge};

/// Field id, name, type, print and help of everything that is served, in the order of the ids.
const DIALECT: &[(u16, &str, Type, Print, &str)] = &[
    (
        100,
        "DCGM_FI_DEV_SM_CLOCK",
        Gauge,
        Integer,
        "SM clock (in MHz).",
    ),
    (
        101,
        "DCGM_FI_DEV_MEM_CLOCK",
        Gauge,
        Integer,
        "Memory clock (in MHz).",
    ),
    (
        140,
        "DCGM_FI_DEV_MEMORY_TEMP",
        Gauge,
        Integer,
        "Memory temperature (in C).",
    ),
    (
        150,
        "DCGM_FI_DEV_GPU_TEMP",
        Gauge,
        Integer,
        "GPU temperature (in C).",
    ),
    (
        155,
        "DCGM_FI_DEV_POWER_USAGE",
        Gauge,
        Float,
        "Power draw (in W).",
    ),
    (
        156,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        Counter,
        Integer,
        "Energy since the driver was loaded (in mJ).",
    ),
    (
        202,
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        Counter,
        Integer,
        "PCIe retries.",
    ),
    (
        203,
        "DCGM_FI_DEV_GPU_UTIL",
        Gauge,
        Integer,
        "GPU utilization (in %).",
    ),
    (
        204,
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        Gauge,
        Integer,
        "Memory utilization (in %).",
    ),
    (
        206,
        "DCGM_FI_DEV_ENC_UTIL",
        Gauge,
        Integer,
        "Encoder utilization (in %).",
    ),
    (
        207,
        "DCGM_FI_DEV_DEC_UTIL",
        Gauge,
        Integer,
        "Decoder utilization (in %).",
    ),
    (
        230,
        "DCGM_FI_DEV_XID_ERRORS",
        Gauge,
        Integer,
        "The last XID.",
    ),
    (
        240,
        "DCGM_FI_DEV_POWER_VIOLATION",
        Counter,
        Integer,
        "Time throttled by the power cap (in ns).",
    ),
    (
        241,
        "DCGM_FI_DEV_THERMAL_VIOLATION",
        Counter,
        Integer,
        "Time throttled by heat (in ns).",
    ),
    (
        242,
        "DCGM_FI_DEV_SYNC_BOOST_VIOLATION",
        Counter,
        Integer,
        "Time throttled by sync boost (in ns).",
    ),
    (
        243,
        "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION",
        Counter,
        Integer,
        "Time throttled by the board limit (in ns).",
    ),
    (
        244,
        "DCGM_FI_DEV_LOW_UTIL_VIOLATION",
        Counter,
        Integer,
        "Time throttled by low utilization (in ns).",
    ),
    (
        245,
        "DCGM_FI_DEV_RELIABILITY_VIOLATION",
        Counter,
        Integer,
        "Time throttled for reliability (in ns).",
    ),
    (
        250,
        "DCGM_FI_DEV_FB_TOTAL",
        Gauge,
        Integer,
        "Framebuffer memory (in MiB).",
    ),
    (
        251,
        "DCGM_FI_DEV_FB_FREE",
        Gauge,
        Integer,
        "Framebuffer memory free (in MiB).",
    ),
    (
        252,
        "DCGM_FI_DEV_FB_USED",
        Gauge,
        Integer,
        "Framebuffer memory used (in MiB).",
    ),
    (
        253,
        "DCGM_FI_DEV_FB_RESERVED",
        Gauge,
        Integer,
        "Framebuffer memory reserved (in MiB).",
    ),
    (
        310,
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        Counter,
        Integer,
        "Single-bit ECC errors since the driver was loaded.",
    ),
    (
        311,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        Counter,
        Integer,
        "Double-bit ECC errors since the driver was loaded.",
    ),
    (
        312,
        "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",
        Counter,
        Integer,
        "Single-bit ECC errors in the life of the card.",
    ),
    (
        313,
        "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
        Counter,
        Integer,
        "Double-bit ECC errors in the life of the card.",
    ),
    (
        390,
        "DCGM_FI_DEV_RETIRED_SBE",
        Counter,
        Integer,
        "Pages retired for single-bit errors.",
    ),
    (
        391,
        "DCGM_FI_DEV_RETIRED_DBE",
        Counter,
        Integer,
        "Pages retired for double-bit errors.",
    ),
    (
        392,
        "DCGM_FI_DEV_RETIRED_PENDING",
        Counter,
        Integer,
        "Pages that wait to be retired.",
    ),
    (
        393,
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        Counter,
        Integer,
        "Rows remapped for uncorrectable errors.",
    ),
    (
        394,
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        Counter,
        Integer,
        "Rows remapped for correctable errors.",
    ),
    (
        395,
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        Gauge,
        Integer,
        "Whether remapping of rows has failed.",
    ),
    (
        409,
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        Counter,
        Integer,
        "NVLink CRC errors.",
    ),
    (
        429,
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        Counter,
        Integer,
        "NVLink retries.",
    ),
    (
        439,
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        Counter,
        Integer,
        "NVLink recoveries.",
    ),
    (
        449,
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        Counter,
        Integer,
        "NVLink bandwidth over all lanes (in MB/s).",
    ),
    (
        526,
        "DCGM_FI_DEV_VGPU_LICENSE_STATUS",
        Gauge,
        Integer,
        "vGPU license status.",
    ),
    (
        1001,
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        Gauge,
        Float,
        "Ratio of time the graphics engine is active.",
    ),
    (
        1002,
        "DCGM_FI_PROF_SM_ACTIVE",
        Gauge,
        Float,
        "Ratio of time an SM has a warp.",
    ),
    (
        1003,
        "DCGM_FI_PROF_SM_OCCUPANCY",
        Gauge,
        Float,
        "Ratio of resident warps to the maximum.",
    ),
    (
        1004,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        Gauge,
        Float,
        "Ratio of time the tensor pipe is active.",
    ),
    (
        1005,
        "DCGM_FI_PROF_DRAM_ACTIVE",
        Gauge,
        Float,
        "Ratio of memory bandwidth in use.",
    ),
    (
        1006,
        "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
        Gauge,
        Float,
        "Ratio of time the fp64 pipe is active.",
    ),
    (
        1007,
        "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
        Gauge,
        Float,
        "Ratio of time the fp32 pipe is active.",
    ),
    (
        1008,
        "DCGM_FI_PROF_PIPE_FP16_ACTIVE",
        Gauge,
        Float,
        "Ratio of time the fp16 pipe is active.",
    ),
    (
        1009,
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        Gauge,
        Integer,
        "PCIe bytes sent per second.",
    ),
    (
        1010,
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        Gauge,
        Integer,
        "PCIe bytes received per second.",
    ),
    (
        1011,
        "DCGM_FI_PROF_NVLINK_TX_BYTES",
        Gauge,
        Integer,
        "NVLink bytes sent per second.",
    ),
    (
        1012,
        "DCGM_FI_PROF_NVLINK_RX_BYTES",
        Gauge,
        Integer,
        "NVLink bytes received per second.",
    ),
];

/// Writes every metric of every live GPU.
pub(super) fn encode(latest: &Latest, out: &mut String) {
    let gpus: Vec<(&LatestResource, String)> = latest
        .resources
        .iter()
        .filter(|it| it.resource.origin() == Origin::Live)
        .filter_map(|it| Some((it, labels(&it.resource, latest)?)))
        .collect();
    for (_, name, kind, print, help) in DIALECT {
        let Some(metric) = by_alias(name) else {
            continue;
        };
        let mut headed = false;
        for (gpu, labels) in &gpus {
            let Some(value) = value(gpu, metric) else {
                continue;
            };
            if !headed {
                headed = true;
                let kind = if *kind == Gauge { "gauge" } else { "counter" };
                let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            }
            let _ = match print {
                Integer => writeln!(out, "{name}{{{labels}}} {value:.0}"),
                Float => writeln!(out, "{name}{{{labels}}} {value:.6}"),
            };
        }
    }
}

fn by_alias(name: &str) -> Option<&'static Metric> {
    catalog::gpu::ALL
        .iter()
        .find(|metric| metric.dcgm.is_some_and(|dcgm| dcgm.name == name))
}

/// The value in DCGM's unit.
fn value(gpu: &LatestResource, metric: &Metric) -> Option<f64> {
    let found = gpu
        .values
        .iter()
        .find(|value| value.metric == metric.id && value.part.is_none())?;
    let value = found.reading.ok()? * metric.dcgm?.scale;
    // `-0` is a number Go does not print.
    Some(if value == 0.0 { 0.0 } else { value })
}

/// The labels of a GPU or of a MIG instance; none of anything else.
fn labels(resource: &Resource, latest: &Latest) -> Option<String> {
    let gpu = match resource.kind {
        ResourceKind::Gpu => resource,
        ResourceKind::Share => {
            let parent = resource.attribute(attribute::PARENT)?;
            let found = latest.resources.iter().find(|it| {
                it.resource.kind == ResourceKind::Gpu && it.resource.id.as_ref() == parent
            });
            found.map_or(resource, |it| &it.resource)
        }
        ResourceKind::Node | ResourceKind::Endpoint | ResourceKind::Rank => return None,
    };
    let of_gpu = |name| gpu.attribute(name).unwrap_or_default();
    let of_share = |name| resource.attribute(name).unwrap_or_default();
    let index = of_gpu(attribute::GPU_INDEX);
    let uuid = match resource.kind {
        ResourceKind::Share => of_share(attribute::PARENT),
        _ => gpu.id.as_ref(),
    };
    let mut labels = String::with_capacity(256);
    let mut push = |name: &str, value: &str| {
        let comma = if labels.is_empty() { "" } else { "," };
        let _ = write!(labels, "{comma}{name}=\"{}\"", escape_label(value));
    };
    push("gpu", index);
    push("UUID", uuid);
    push("pci_bus_id", of_gpu(attribute::PCI_ADDRESS));
    push("device", &format!("nvidia{index}"));
    push("modelName", of_gpu(attribute::GPU_MODEL));
    if resource.kind == ResourceKind::Share {
        push("GPU_I_PROFILE", of_share(attribute::MIG_PROFILE));
        push("GPU_I_ID", of_share(attribute::MIG_GPU_INSTANCE));
    }
    push("Hostname", of_gpu(attribute::NODE));
    if let Some(version) = gpu.attribute(attribute::DRIVER_VERSION) {
        push("DCGM_FI_DRIVER_VERSION", version);
    }
    if let Some((namespace, pod, container)) = pod(resource) {
        push("container", container);
        push("namespace", namespace);
        push("pod", pod);
    }
    Some(labels)
}

/// Namespace, name and container of the pod that holds it.
fn pod(resource: &Resource) -> Option<(&str, &str, &str)> {
    let namespace = resource.attribute(attribute::NAMESPACE)?;
    let pod = resource.attribute(attribute::POD)?;
    let container = resource.attribute(attribute::CONTAINER).unwrap_or_default();
    Some((namespace, pod, container))
}

#[cfg(test)]
#[path = "dcgm_tests.rs"]
mod tests;

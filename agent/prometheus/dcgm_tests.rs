//! Dialect A, byte by byte. Where each part of golden_dialect_a.prom comes from:
//!
//! - order and spelling of the labels, `device="nvidia0"`, the PCI address with eight digits:
//!   the sample line of the facts on the dialect
//!   (`NAME{gpu,UUID,pci_bus_id,device,modelName[,GPU_I_PROFILE,GPU_I_ID],Hostname[,container,namespace,pod]}`),
//!   with the label DCGM_FI_DRIVER_VERSION that it serves by default after the fixed ones;
//! - `# TYPE`: dcgm-exporter's counters file, NVLINK_BANDWIDTH_TOTAL wrongly a counter as there;
//! - whole numbers without decimals, doubles with six: DCGM's value type of each field (power and
//!   PROF ratios are doubles, the rest int64) printed by Go's `%d` and `%f`;
//! - order of the metrics: DCGM's field ids (100, 150, 155, 156, 203, 230, 252, 449, 1004, 1009);
//! - units: MHz, C, W, mJ, %, MiB, MB/s, ratio, B/s, as the facts say;
//! - a GPU without a value has no line; a GPU that no pod holds has no pod labels.

use std::sync::Arc;

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::sample::{Missing, Reading};

use super::super::tests::{gpu_resource, latest, reading};
use super::*;

const FIRST: &str = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52";
const SECOND: &str = "GPU-11111111-d9cf-fef3-62e9-d92044ab6e52";

fn scenario() -> Latest {
    let mib = 1_048_576.0;
    let first = gpu_resource(FIRST, "0", "00000000:04:00.0")
        .with(attribute::HOLDER, "pod:team-a/llm-0/train");
    let second = gpu_resource(SECOND, "1", "00000000:0A:00.0");
    let share = Resource::new(ResourceKind::Share, "MIG-1")
        .with(attribute::ORIGIN, "live")
        .with(attribute::PARENT, SECOND)
        .with(attribute::MIG_PROFILE, "1g.10gb")
        .with(attribute::MIG_GPU_INSTANCE, "7")
        .with(attribute::HOLDER, "pod:team-b/api-1/serve");
    let node = Resource::new(ResourceKind::Node, "node-1");
    let recorded = gpu_resource("GPU-recorded", "0", "x").with(attribute::ORIGIN, "recorded");
    let missing = |metric: &Metric| (metric.id, Err(Missing::NotSupported) as Reading);
    latest(vec![
        (
            first,
            vec![
                reading(&gpu::UTILIZATION, 0.97),
                reading(&gpu::MEMORY_USED, 32_362.0 * mib),
                reading(&gpu::POWER, 627.4),
                reading(&gpu::ENERGY, 7_015_662_857.123),
                reading(&gpu::TEMPERATURE, 52.0),
                missing(&gpu::MEMORY_TEMPERATURE),
                reading(&gpu::SM_CLOCK, 1.98e9),
                reading(&gpu::LAST_XID, -0.0),
                reading(&gpu::PCIE_SENT, 514_048.0),
                reading(&gpu::NVLINK_BANDWIDTH, 1.2e11),
                reading(&gpu::TENSOR_ACTIVE, 0.4321),
            ],
        ),
        (
            second,
            vec![
                missing(&gpu::UTILIZATION),
                reading(&gpu::POWER, 70.0),
                reading(&gpu::TEMPERATURE, 31.0),
            ],
        ),
        (
            share,
            vec![
                reading(&gpu::MEMORY_USED, 512.0 * mib),
                reading(&gpu::TENSOR_ACTIVE, 0.0),
            ],
        ),
        (node, vec![]),
        (recorded, vec![reading(&gpu::POWER, 1.0)]),
    ])
}

#[test]
fn the_output_is_the_golden_file_byte_by_byte() {
    let mut out = String::new();
    encode(&scenario(), &mut out);
    for (number, (got, wanted)) in out
        .lines()
        .zip(include_str!("golden_dialect_a.prom").lines())
        .enumerate()
    {
        assert_eq!(got, wanted, "line {}", number + 1);
    }
    assert_eq!(out, include_str!("golden_dialect_a.prom"));
}

#[test]
fn every_metric_with_a_dcgm_name_is_in_the_dialect_once_and_in_the_order_of_the_ids() {
    for metric in catalog::gpu::ALL {
        let Some(dcgm) = metric.dcgm else { continue };
        let rows = DIALECT.iter().filter(|row| row.1 == dcgm.name).count();
        assert_eq!(rows, 1, "{}", dcgm.name);
    }
    for (_, name, ..) in DIALECT {
        assert!(by_alias(name).is_some(), "{name}");
    }
    assert!(DIALECT.windows(2).all(|pair| pair[0].0 < pair[1].0));
}

#[test]
fn every_query_of_dashboard_12239_has_one_series_per_gpu() {
    let queried = [
        (&gpu::TEMPERATURE, "DCGM_FI_DEV_GPU_TEMP"),
        (&gpu::POWER, "DCGM_FI_DEV_POWER_USAGE"),
        (&gpu::SM_CLOCK, "DCGM_FI_DEV_SM_CLOCK"),
        (&gpu::UTILIZATION, "DCGM_FI_DEV_GPU_UTIL"),
        (&gpu::MEMORY_USED, "DCGM_FI_DEV_FB_USED"),
        (&gpu::TENSOR_ACTIVE, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
    ];
    let gpus = (0..8).map(|index| {
        let resource = gpu_resource(&format!("GPU-{index}"), &index.to_string(), "a");
        let readings = queried.iter().map(|(metric, _)| reading(metric, 0.5));
        (resource, readings.collect())
    });
    let mut out = String::new();
    encode(&latest(gpus.collect()), &mut out);
    for (_, name) in queried {
        for index in 0..8 {
            let start = format!("{name}{{gpu=\"{index}\",");
            assert_eq!(
                out.lines().filter(|it| it.starts_with(&start)).count(),
                1,
                "{start}"
            );
        }
    }
}

#[test]
fn a_holder_that_is_no_pod_gives_no_pod_labels() {
    for holder in ["process:root/python3", "pod:", "slurm:17", ""] {
        let resource = gpu_resource(FIRST, "0", "a").with(attribute::HOLDER, holder);
        let labels = labels(&resource, &latest(Vec::new())).expect("a GPU");
        assert!(!labels.contains("pod="), "{holder}: {labels}");
    }
    let share = Resource::new(ResourceKind::Share, "MIG-1");
    assert_eq!(
        labels(&share, &latest(Vec::new())),
        None,
        "a share without a parent"
    );
    let _ = Arc::new(share);
}

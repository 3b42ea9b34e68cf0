//! Dialect A, byte by byte. Where each part of golden_dialect_a.prom comes from:
//!
//! - order and spelling of the labels, `device="nvidia0"`, the PCI address with eight digits:
//!   the sample line of the facts on the dialect
//!   (`NAME{gpu,UUID,pci_bus_id,device,modelName[,GPU_I_PROFILE,GPU_I_ID],Hostname[,container,namespace,pod]}`),
//!   with the label DCGM_FI_DRIVER_VERSION that it serves by default after the fixed ones;
//! - `# TYPE`: dcgm-exporter's counters file, NVLINK_BANDWIDTH_TOTAL wrongly a counter as there;
//! - whole numbers without decimals, doubles with six: DCGM's value type of each field (power and
//!   PROF ratios are doubles, the rest int64) printed by Go's `%d` and `%f`;
//! - order of the metrics: DCGM's field ids (100 SM_CLOCK to 1012 NVLINK_RX_BYTES);
//! - GPU 0 has every name that is served, among them the 25 that dcgm-exporter serves by default and the
//!   8 that dashboards ask for beside them;
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
    let pod = |resource: Resource, [namespace, pod, container]: [&str; 3]| {
        resource
            .with(attribute::HOLDER, format!("pod:{namespace}/{pod}"))
            .with(attribute::NAMESPACE, namespace)
            .with(attribute::POD, pod)
            .with(attribute::CONTAINER, container)
    };
    let first = gpu_resource(FIRST, "0", "00000000:04:00.0");
    let first = pod(first, ["team-a", "llm-0", "train"]);
    let second = gpu_resource(SECOND, "1", "00000000:0A:00.0");
    let share = Resource::new(ResourceKind::Share, "MIG-1")
        .with(attribute::ORIGIN, "live")
        .with(attribute::PARENT, SECOND)
        .with(attribute::MIG_PROFILE, "1g.10gb")
        .with(attribute::MIG_GPU_INSTANCE, "7");
    let share = pod(share, ["team-b", "api-1", "serve"]);
    let node = Resource::new(ResourceKind::Node, "node-1");
    let recorded = gpu_resource("GPU-recorded", "0", "x").with(attribute::ORIGIN, "recorded");
    let missing = |metric: &Metric| (metric.id, Err(Missing::NotSupported) as Reading);
    latest(vec![
        (
            first,
            vec![
                reading(&gpu::UTILIZATION, 0.97),
                reading(&gpu::MEMORY_UTILIZATION, 0.41),
                reading(&gpu::ENCODER_UTILIZATION, 0.03),
                reading(&gpu::DECODER_UTILIZATION, 0.04),
                reading(&gpu::MEMORY_TOTAL, 81_559.0 * mib),
                reading(&gpu::MEMORY_USED, 32_362.0 * mib),
                reading(&gpu::MEMORY_FREE, 48_717.0 * mib),
                reading(&gpu::MEMORY_RESERVED, 480.0 * mib),
                reading(&gpu::POWER, 627.4),
                reading(&gpu::ENERGY, 7_015_662_857.123),
                reading(&gpu::TEMPERATURE, 52.0),
                reading(&gpu::MEMORY_TEMPERATURE, 61.0),
                reading(&gpu::SM_CLOCK, 1.98e9),
                reading(&gpu::MEMORY_CLOCK, 2.619e9),
                reading(&gpu::THROTTLE_POWER, 1.5),
                reading(&gpu::THROTTLE_THERMAL, 2.5),
                reading(&gpu::THROTTLE_SYNC_BOOST, 0.003),
                reading(&gpu::THROTTLE_BOARD_LIMIT, 0.004),
                reading(&gpu::THROTTLE_LOW_UTILIZATION, 0.005),
                reading(&gpu::THROTTLE_RELIABILITY, 0.006),
                reading(&gpu::ECC_CORRECTED_VOLATILE, 11.0),
                reading(&gpu::ECC_UNCORRECTED_VOLATILE, 12.0),
                reading(&gpu::ECC_CORRECTED_AGGREGATE, 13.0),
                reading(&gpu::ECC_UNCORRECTED_AGGREGATE, 14.0),
                reading(&gpu::RETIRED_PAGES_SINGLE, 15.0),
                reading(&gpu::RETIRED_PAGES_DOUBLE, 16.0),
                reading(&gpu::RETIRED_PAGES_PENDING, 1.0),
                reading(&gpu::REMAPPED_UNCORRECTABLE, 17.0),
                reading(&gpu::REMAPPED_CORRECTABLE, 18.0),
                reading(&gpu::REMAP_FAILURE, 0.0),
                reading(&gpu::LAST_XID, -0.0),
                reading(&gpu::VGPU_LICENSE, 0.0),
                reading(&gpu::PCIE_REPLAYS, 7.0),
                reading(&gpu::PCIE_SENT, 514_048.0),
                reading(&gpu::PCIE_RECEIVED, 717_824.0),
                reading(&gpu::NVLINK_SENT, 5.7e10),
                reading(&gpu::NVLINK_RECEIVED, 6.3e10),
                reading(&gpu::NVLINK_BANDWIDTH, 1.2e11),
                reading(&gpu::NVLINK_CRC_ERRORS, 19.0),
                reading(&gpu::NVLINK_REPLAYS, 20.0),
                reading(&gpu::NVLINK_RECOVERIES, 21.0),
                reading(&gpu::GRAPHICS_ACTIVE, 0.987_65),
                reading(&gpu::SM_ACTIVE, 0.87),
                reading(&gpu::SM_OCCUPANCY, 0.35),
                reading(&gpu::TENSOR_ACTIVE, 0.4321),
                reading(&gpu::DRAM_ACTIVE, 0.55),
                reading(&gpu::FP64_ACTIVE, 0.01),
                reading(&gpu::FP32_ACTIVE, 0.123_456_7),
                reading(&gpu::FP16_ACTIVE, 0.02),
            ],
        ),
        (
            second,
            vec![
                missing(&gpu::UTILIZATION),
                missing(&gpu::MEMORY_TEMPERATURE),
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
fn the_golden_file_has_every_name_that_is_served_and_all_that_dashboards_ask_for() {
    let golden = include_str!("golden_dialect_a.prom");
    let has = |name: &str| golden.contains(&format!("\n{name}{{gpu=\"0\","));
    let facts = include_str!("../../telemetry/catalog/driver_facts.txt");
    let lines = facts.lines().filter_map(|it| it.strip_prefix("served "));
    let served: Vec<_> = lines.flat_map(str::split_whitespace).collect();
    assert_eq!(served.len(), 33);
    for name in served {
        assert!(has(name), "{name}");
    }
    for (_, name, ..) in DIALECT {
        assert!(has(name), "{name}");
    }
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

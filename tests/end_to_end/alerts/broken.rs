//! Everything that can be wrong with a node, its cards and what runs on them, as an agent tells it at once.

use std::sync::Arc;

use gpufleet_agent::sample::{Latest, LatestResource, LatestValue};
use gpufleet_telemetry::catalog;
use gpufleet_telemetry::identity::{Part, Resource, ResourceKind, attribute};
use gpufleet_telemetry::sample::{Missing, Reading};

use super::{MODEL, SCRAPE_EVERY_S};

/// A scrape of the made nodes, from 1 on since they broke.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) scrape: u64,
    pub(super) now: f64,
}

/// What is told at a moment: of which metric, of which part of it, and the reading.
type Told = (&'static str, &'static str, fn(Moment) -> Reading);

const GROWS: fn(Moment) -> Reading = |it| Ok(100.0 * it.scrape as f64);
const WAS_UP: fn(Moment) -> Reading = |it| Ok(if it.scrape <= 2 { 1.0 } else { 0.0 });
const ZERO: fn(Moment) -> Reading = |_| Ok(0.0);
const ONE: fn(Moment) -> Reading = |_| Ok(1.0);

const NODE: &[Told] = &[
    ("gpufleet_agent_cpu_seconds_total", "", GROWS),
    ("gpufleet_agent_reader_success_flag", "kubelet", ZERO),
    ("gpufleet_agent_nvml_child_restarts_total", "", GROWS),
    ("gpufleet_agent_spool_oldest_age_seconds", "live", |_| {
        Ok(1e3)
    }),
    ("gpufleet_agent_spool_dropped_total", "live", GROWS),
    ("gpufleet_agent_spool_writable_flag", "", ZERO),
    ("gpufleet_agent_hooks_refused_total", "not_a_region", GROWS),
    ("gpufleet_node_oom_kills_total", "", GROWS),
    ("gpufleet_node_memory_available_bytes", "", |_| Ok(1e9)),
    ("gpufleet_node_memory_total_bytes", "", |_| Ok(1e12)),
    ("gpufleet_node_cpu_steal_ratio", "", |_| Ok(0.5)),
    ("gpufleet_node_pressure_io_full_ratio", "", |_| Ok(0.9)),
    ("gpufleet_node_nic_up_flag", "eth0", WAS_UP),
    ("gpufleet_node_nic_errors_total", "eth0", GROWS),
    ("gpufleet_node_uptime_seconds", "", |_| Ok(1e6)),
];

const LOST: &[Told] = &[("gpufleet_gpu_utilization_ratio", "", |_| {
    Err(Missing::GpuLost)
})];

const HANGS: &[Told] = &[
    ("gpufleet_gpu_utilization_ratio", "", |_| {
        Err(Missing::DriverHang)
    }),
    ("gpufleet_gpu_temperature_celsius", "", |_| {
        Err(Missing::NoPermission)
    }),
];

const BROKEN: &[Told] = &[
    ("gpufleet_gpu_recovery_action_code", "", ONE),
    ("gpufleet_gpu_ecc_uncorrected_volatile_total", "", GROWS),
    ("gpufleet_gpu_ecc_corrected_volatile_total", "", GROWS),
    ("gpufleet_gpu_sram_uncorrected_volatile_total", "", GROWS),
    ("gpufleet_gpu_sram_threshold_exceeded_flag", "", ONE),
    ("gpufleet_gpu_row_remap_failure_flag", "", ONE),
    ("gpufleet_gpu_row_remap_pending_flag", "", ONE),
    ("gpufleet_gpu_throttle_thermal_seconds_total", "", GROWS),
    ("gpufleet_gpu_throttle_reasons_code", "", |_| Ok(8.0)),
    ("gpufleet_gpu_temperature_celsius", "", |_| Ok(89.0)),
    ("gpufleet_gpu_temperature_slowdown_celsius", "", |_| {
        Ok(90.0)
    }),
    ("gpufleet_gpu_pcie_link_lanes", "", |_| Ok(8.0)),
    ("gpufleet_gpu_pcie_fatal_errors_total", "", GROWS),
    ("gpufleet_gpu_nvlink_up_flag", "3", WAS_UP),
    ("gpufleet_gpu_nvlink_link_errors_total", "3", GROWS),
    ("gpufleet_gpu_fabric_health_code", "", ONE),
    ("gpufleet_gpu_xid_total", "79", GROWS),
    ("gpufleet_gpu_xid_total", "151", GROWS),
    ("gpufleet_gpu_xid_total", "95", GROWS),
    ("gpufleet_gpu_xid_total", "74", GROWS),
    ("gpufleet_gpu_xid_total", "54", GROWS),
    ("gpufleet_gpu_xid_total", "78", GROWS),
    ("gpufleet_gpu_xid_total", "13", GROWS),
];

const STALLED: &[Told] = &[
    ("gpufleet_gpu_utilization_ratio", "", ONE),
    ("gpufleet_gpu_tensor_active_ratio", "", ZERO),
    ("gpufleet_gpu_dram_active_ratio", "", ZERO),
];

const IDLE: &[Told] = &[
    ("gpufleet_gpu_utilization_ratio", "", ZERO),
    ("gpufleet_gpu_processes", "", ONE),
    ("gpufleet_gpu_pcie_link_lanes", "", |_| Ok(16.0)),
];

/// A card that is there for half a minute, and then gone as long: the rule looks half a minute back here.
const COMES_AND_GOES: &[Told] = &[("gpufleet_gpu_memory_total_bytes", "", |_| Ok(8e10))];
const THERE_FOR: u64 = 30 / SCRAPE_EVERY_S as u64;

const RANK: &[Told] = &[
    ("gpufleet_training_last_step_timestamp_seconds", "", |it| {
        Ok(it.now - 1e3)
    }),
    ("gpufleet_training_heartbeat_timestamp_seconds", "", |it| {
        Ok(it.now)
    }),
    ("gpufleet_training_checkpoint_timestamp_seconds", "", |it| {
        Ok(it.now - 1e5)
    }),
    ("gpufleet_training_steps_total", "", GROWS),
    ("gpufleet_training_step_wall_seconds_total", "", GROWS),
    ("gpufleet_training_step_data_wait_seconds_total", "", GROWS),
    ("gpufleet_training_non_finite_losses_total", "", GROWS),
    ("gpufleet_training_scaler_skips_total", "", GROWS),
    ("gpufleet_training_out_of_memory_total", "", GROWS),
    ("gpufleet_training_memory_retries_total", "", GROWS),
    (
        "gpufleet_training_checkpoint_save_failures_total",
        "",
        GROWS,
    ),
];

const ENDPOINT: &[Told] = &[
    ("gpufleet_serving_requests_queued", "", ONE),
    ("gpufleet_serving_requests_total", "", ONE),
    ("gpufleet_serving_kv_cache_used_ratio", "", ONE),
    (
        "gpufleet_serving_time_to_first_token_p99_seconds",
        "",
        |_| Ok(20.0),
    ),
];

fn resource(of: Resource, told: &[Told], moment: Moment) -> LatestResource {
    let value = |(name, part, reading): &Told| {
        let metric = catalog::all().find(|it| it.name == *name);
        let metric = metric.unwrap_or_else(|| panic!("no metric is called {name}"));
        assert_eq!(metric.resource, of.kind, "{name}");
        LatestValue {
            metric: metric.id,
            part: metric.part.map(|kind| Part::new(kind, *part)),
            reading: reading(moment),
            at: Default::default(),
        }
    };
    LatestResource {
        values: told.iter().map(value).collect(),
        resource: Arc::new(of),
    }
}

/// Everything that can be wrong with a node, its cards and what runs on them.
pub(super) fn broken(cluster: &str, moment: Moment) -> Latest {
    let on_node = |kind, id: &str| {
        Resource::new(kind, id)
            .with(attribute::CLUSTER, cluster)
            .with(attribute::NODE, "made-1")
    };
    let cards = [
        ("lost", LOST),
        ("hangs", HANGS),
        ("broken", BROKEN),
        ("stalled", STALLED),
        ("idle", IDLE),
        ("comes-and-goes", COMES_AND_GOES),
    ];
    let mut resources = vec![
        resource(on_node(ResourceKind::Node, "made-1"), NODE, moment),
        resource(
            on_node(ResourceKind::Rank, "a/llm/u/0/5")
                .with(attribute::JOB, "llm")
                .with(attribute::ATTEMPT, "0")
                .with(attribute::RANK, "5"),
            RANK,
            moment,
        ),
        resource(
            on_node(ResourceKind::Endpoint, "http://127.0.0.1:8000/metrics")
                .with(attribute::MODEL_NAME, "llama"),
            ENDPOINT,
            moment,
        ),
    ];
    for (index, (name, told)) in (0..).zip(cards) {
        if name == "comes-and-goes" && moment.scrape / THERE_FOR % 2 == 1 {
            continue;
        }
        let card = on_node(ResourceKind::Gpu, &format!("GPU-{cluster}-{name}"))
            .with(attribute::GPU_INDEX, index.to_string())
            .with(attribute::GPU_MODEL, MODEL);
        resources.push(resource(card, told, moment));
    }
    Latest {
        resources,
        ..Latest::default()
    }
}

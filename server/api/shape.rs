//! The shapes of the API's answers. Base units, RFC 3339 in UTC, and never a 0 for what is missing.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_telemetry::catalog::{Kind, MetricId, Unit, by_id};
use gpufleet_telemetry::sample::Reading;
use serde::Serialize;
use utoipa::ToSchema;

use crate::fleet::live::{Live, LiveValue};
use crate::view::{Counts, GpuView, NodeView, Told};
use crate::words::text;

/// The reason of a value of which no point was ever received.
pub const NOT_REPORTED: &str = "not_reported";

/// A value or the reason why there is none: exactly one of the two is there.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Value {
    /// The value in the base unit that the field's name ends with.
    pub value: Option<f64>,
    /// Why there is none: `not_reported` when no reader reports it, else a reason such as
    /// `not_supported`, `no_permission`, `gpu_lost`, `driver_hang`, `timeout`.
    #[schema(example = "not_supported")]
    pub missing: Option<&'static str>,
}

/// GPUs counted by state.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct StateCounts {
    /// All GPUs.
    pub gpus: usize,
    /// GPUs that are measured and answer now: neither unobserved nor unhealthy.
    pub measured: usize,
    /// GPUs by state; a state without GPUs is left out.
    pub by_state: BTreeMap<&'static str, usize>,
    /// Of those that are unobserved: measured, and nobody can say who holds them.
    pub holder_unknown: usize,
}

/// Who holds a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Holder {
    /// Whether it is known if someone holds it.
    pub known: bool,
    /// Who: `pod:namespace/name`, `slurm:job`, `process:user/name`.
    pub name: Option<Arc<str>>,
}

/// The readings that a list carries.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct KeyReadings {
    /// Share of time with a kernel running, 0 to 1.
    pub utilization_ratio: Value,
    /// Share of time with tensor cores active, 0 to 1.
    pub tensor_active_ratio: Value,
    /// Device memory in use, bytes.
    pub memory_used_bytes: Value,
    /// Device memory installed, bytes.
    pub memory_total_bytes: Value,
    /// Board power, watts.
    pub power_watts: Value,
    /// Temperature of the die, °C.
    pub temperature_celsius: Value,
}

/// A GPU, or a share of one (a MIG instance, a time slice).
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Gpu {
    /// The cluster it lives in.
    pub cluster: Arc<str>,
    /// The NVML UUID, or what stands in for it.
    pub id: Arc<str>,
    /// `gpu` or `share`.
    pub kind: &'static str,
    /// The node it is on.
    pub node: Arc<str>,
    /// Its index on the node.
    pub index: Option<u32>,
    /// The card's name as the driver spells it.
    pub model: Option<Arc<str>>,
    /// `live`, `recorded` or `simulated`. Only live ones count in live totals.
    pub origin: &'static str,
    /// What it does now.
    #[schema(example = "active_unrated")]
    pub state: &'static str,
    /// Why it is in that state; `unknown` where the state says it all.
    pub reason: &'static str,
    /// Who holds it.
    pub holder: Holder,
    /// The reader that told it.
    pub source: Option<Arc<str>>,
    /// The first sample ever.
    #[schema(format = DateTime)]
    pub first_seen: String,
    /// The newest sample.
    #[schema(format = DateTime)]
    pub last_sample: String,
    /// The readings that matter most.
    pub readings: KeyReadings,
    /// Its shares, if it is divided.
    #[schema(no_recursion)]
    pub shares: Vec<Gpu>,
}

/// One reading.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ReadingNow {
    /// The metric's name; the reference in the documentation says what it means.
    #[schema(example = "gpufleet_gpu_power_watts")]
    pub metric: &'static str,
    /// The base unit.
    pub unit: &'static str,
    /// `gauge`, `last`, `counter` or `second_bits`.
    pub kind: &'static str,
    /// The part it is about, if not the resource itself: kind and id.
    pub part: Option<PartName>,
    /// The value, or none.
    pub value: Option<f64>,
    /// Why there is none.
    pub missing: Option<&'static str>,
    /// The greatest sample of the tick, where the catalog asks for it.
    pub max: Option<f64>,
    /// The time of the point.
    #[schema(format = DateTime)]
    pub at: String,
    /// The reader it is taken from: `nvml`, `exporter:dcgm`, …; all of them where it is not told which.
    pub source: String,
}

/// The part of a resource that a reading is about.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct PartName {
    /// What it is: `nvlink`, `process`, `xid`, `disk`, `nic`, `reader`, `stream`.
    pub kind: String,
    /// Its id in its resource.
    pub id: Arc<str>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Node {
    /// The cluster it lives in.
    pub cluster: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// `live`, `recorded` or `simulated`.
    pub origin: &'static str,
    /// The agent on it; none when its data comes from another OTLP sender.
    pub agent: Option<String>,
    /// The newest sample of it or of a GPU on it.
    #[schema(format = DateTime)]
    pub last_sample: String,
    /// Since when nothing has come from it; none while it reports.
    #[schema(format = DateTime)]
    pub silent_since: Option<String>,
    /// Readers that failed in their last round.
    pub failing_readers: Vec<Arc<str>>,
    /// Age of the oldest data waiting in the agent's spool, seconds.
    pub spool_age_seconds: Option<f64>,
    /// Its GPUs counted.
    pub counts: StateCounts,
}

impl Value {
    /// From a reading; one that was never told says so.
    pub fn of(told: Told) -> Self {
        match told {
            Some(Ok(value)) => Self {
                value: Some(value),
                missing: None,
            },
            Some(Err(reason)) => Self {
                value: None,
                missing: Some(reason.name()),
            },
            None => Self {
                value: None,
                missing: Some(NOT_REPORTED),
            },
        }
    }
}

impl From<&Counts> for StateCounts {
    fn from(counts: &Counts) -> Self {
        Self {
            gpus: counts.all,
            measured: counts.measured(),
            by_state: counts
                .by_state
                .iter()
                .map(|(state, count)| (state.name(), *count))
                .collect(),
            holder_unknown: counts.holder_unknown,
        }
    }
}

impl From<&GpuView> for Gpu {
    fn from(gpu: &GpuView) -> Self {
        let told = |text: &Arc<str>| (!text.is_empty()).then(|| Arc::clone(text));
        let readings = &gpu.readings;
        Self {
            cluster: Arc::clone(&gpu.key.cluster),
            id: Arc::clone(&gpu.key.id),
            kind: gpu.key.kind.name(),
            node: Arc::clone(&gpu.node),
            index: gpu.index,
            model: told(&gpu.model),
            origin: gpu.origin.name(),
            state: gpu.state.name(),
            reason: gpu.reason.name(),
            holder: Holder {
                known: gpu.holder_known,
                name: gpu.holder.clone(),
            },
            source: told(&gpu.source),
            first_seen: text::rfc3339(gpu.first_seen),
            last_sample: text::rfc3339(gpu.last_point),
            readings: KeyReadings {
                utilization_ratio: Value::of(readings.utilization),
                tensor_active_ratio: Value::of(readings.tensor_active),
                memory_used_bytes: Value::of(readings.memory_used),
                memory_total_bytes: Value::of(readings.memory_total),
                power_watts: Value::of(readings.power),
                temperature_celsius: Value::of(readings.temperature),
            },
            shares: gpu.shares.iter().map(Self::from).collect(),
        }
    }
}

impl Node {
    /// A node of a cluster with this origin.
    pub fn of(cluster: &Arc<str>, origin: &'static str, node: &NodeView) -> Self {
        let mut counts = Counts::default();
        for gpu in &node.gpus {
            counts.add(gpu.state, gpu.reason);
        }
        Self {
            cluster: Arc::clone(cluster),
            name: Arc::clone(&node.name),
            origin,
            agent: node.agent.map(|agent| agent.to_string()),
            last_sample: text::rfc3339(node.last_point),
            silent_since: node.silent_since.map(text::rfc3339),
            failing_readers: node.failing_readers.clone(),
            spool_age_seconds: node.spool_age_seconds,
            counts: StateCounts::from(&counts),
        }
    }
}

/// Every reading of a resource, in the order of the catalog's numbers.
pub fn readings(live: &Live) -> Vec<ReadingNow> {
    live.values
        .iter()
        .filter_map(|it| reading(live, it))
        .collect()
}

fn reading(live: &Live, value: &LiveValue) -> Option<ReadingNow> {
    let metric = by_id(value.metric)?;
    let told: Reading = value.reading;
    Some(ReadingNow {
        metric: metric.name,
        unit: unit(metric.unit),
        kind: match metric.kind {
            Kind::Gauge => "gauge",
            Kind::Last => "last",
            Kind::Counter => "counter",
            Kind::SecondBits => "second_bits",
        },
        part: value.part.as_ref().map(|part| PartName {
            kind: part.kind.label().to_owned(),
            id: Arc::clone(&part.id),
        }),
        value: told.ok(),
        missing: told.err().map(|reason| reason.name()),
        max: value.max.as_deref().copied(),
        at: text::rfc3339(value.at),
        source: live.source(value.metric).to_owned(),
    })
}

/// The name of a metric, or its number when this version does not know it.
pub fn metric_name(id: MetricId) -> String {
    by_id(id).map_or_else(
        || format!("metric {}", id.0),
        |metric| metric.name.to_owned(),
    )
}

const fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Watts => "watts",
        Unit::Joules => "joules",
        Unit::Celsius => "celsius",
        Unit::Hertz => "hertz",
        Unit::Bytes => "bytes",
        Unit::BytesPerSecond => "bytes_per_second",
        Unit::Seconds => "seconds",
        Unit::Ratio => "ratio",
        Unit::Count => "count",
        Unit::Flag => "flag",
        Unit::Code => "code",
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::sample::Missing;

    use super::*;

    #[test]
    fn what_is_missing_has_a_reason_and_no_number() {
        for reason in Missing::ALL {
            let value = serde_json::to_value(Value::of(Some(Err(reason)))).expect("plain JSON");
            assert_eq!(
                value,
                serde_json::json!({"value": null, "missing": reason.name()})
            );
        }
        let never = serde_json::to_value(Value::of(None)).expect("plain JSON");
        assert_eq!(
            never,
            serde_json::json!({"value": null, "missing": "not_reported"})
        );
        let zero = serde_json::to_value(Value::of(Some(Ok(0.0)))).expect("plain JSON");
        assert_eq!(zero, serde_json::json!({"value": 0.0, "missing": null}));
    }
}

//! From ticks and events to OTLP requests.

use std::collections::HashMap;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, DataPointFlags, Gauge, Metric as OtlpMetric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource as OtlpResource;

use super::{
    EVENT_PREFIX, HW_ID_KEY, HW_TYPE_GPU, HW_TYPE_KEY, INSTANCE_ID_KEY, MISSING_REASON,
    RESOURCE_ID, SERVICE_NAME, SERVICE_NAME_KEY, STEPS_EVENT, names,
};
use crate::catalog::{self, Kind, Metric};
use crate::event::{Event, Severity};
use crate::identity::{Resource, ResourceKind, attribute};
use crate::steps::{self, StepBlock};
use crate::tick::{Point, PointValue, ResourceTick};
use crate::time::Timestamp;

/// One request with everything in these ticks. Points whose metric the catalog does not have are
/// left out; there are none, because ids come from the catalog.
pub fn encode_metrics(ticks: &[ResourceTick]) -> ExportMetricsServiceRequest {
    let resource_metrics = ticks
        .iter()
        .map(|tick| ResourceMetrics {
            resource: Some(encode_resource(&tick.resource)),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope()),
                metrics: encode_points(tick),
                schema_url: String::new(),
            }],
            schema_url: String::new(),
        })
        .collect();
    ExportMetricsServiceRequest { resource_metrics }
}

/// One request with these events. `sender` is the node of the agent that tells them; each record
/// says itself which resource it is about.
pub fn encode_events(events: &[Event], sender: &Resource) -> ExportLogsServiceRequest {
    logs(events.iter().map(encode_event).collect(), sender)
}

/// One request with the steps of these ranks, by id. `sender` is the node of their agent. Ranks
/// without a block are left out.
pub fn encode_steps<'a>(
    ranks: impl IntoIterator<Item = (&'a str, &'a [StepBlock])>,
    sender: &Resource,
) -> ExportLogsServiceRequest {
    let record = |(id, blocks): (&str, &[StepBlock])| {
        let ended_at = blocks.last()?.ended_at;
        Some(LogRecord {
            time_unix_nano: nanos(ended_at),
            observed_time_unix_nano: nanos(ended_at),
            severity_number: SeverityNumber::Info as i32,
            body: Some(AnyValue {
                value: Some(Value::BytesValue(steps::encode(blocks))),
            }),
            attributes: vec![
                text(attribute::KIND, ResourceKind::Rank.name()),
                text(RESOURCE_ID, id),
            ],
            event_name: STEPS_EVENT.to_owned(),
            ..LogRecord::default()
        })
    };
    logs(ranks.into_iter().filter_map(record).collect(), sender)
}

fn logs(log_records: Vec<LogRecord>, sender: &Resource) -> ExportLogsServiceRequest {
    ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs {
            resource: Some(encode_resource(sender)),
            scope_logs: vec![ScopeLogs {
                scope: Some(scope()),
                log_records,
                schema_url: String::new(),
            }],
            schema_url: String::new(),
        }],
    }
}

fn encode_event(event: &Event) -> LogRecord {
    let severity = match event.severity {
        Severity::Info => SeverityNumber::Info,
        Severity::Warning => SeverityNumber::Warn,
        Severity::Error => SeverityNumber::Error,
    };
    let mut attributes = vec![
        text(attribute::KIND, event.resource_kind.name()),
        text(RESOURCE_ID, &event.resource_id),
    ];
    let own = event
        .attributes
        .iter()
        .filter(|(key, _)| ![attribute::KIND, RESOURCE_ID].contains(&key.as_str()));
    attributes.extend(own.map(|(key, value)| text(key, value)));
    LogRecord {
        time_unix_nano: nanos(event.at),
        observed_time_unix_nano: nanos(event.at),
        severity_number: severity as i32,
        severity_text: event.severity.name().to_owned(),
        body: Some(AnyValue {
            value: Some(Value::StringValue(event.message.clone())),
        }),
        attributes,
        event_name: format!("{EVENT_PREFIX}{}", event.kind.name()),
        ..LogRecord::default()
    }
}

fn encode_resource(resource: &Resource) -> OtlpResource {
    let identity = [
        (SERVICE_NAME_KEY, SERVICE_NAME),
        (INSTANCE_ID_KEY, &resource.id),
        (attribute::KIND, resource.kind.name()),
    ];
    let rest = resource
        .attributes
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .filter(|(key, _)| identity.iter().all(|(taken, _)| taken != key));
    OtlpResource {
        attributes: identity
            .into_iter()
            .chain(rest)
            .map(|(key, value)| text(key, value))
            .collect(),
        ..OtlpResource::default()
    }
}

/// The metrics of one resource; points of one name gathered under it.
fn encode_points(tick: &ResourceTick) -> Vec<OtlpMetric> {
    let mut metrics: Vec<OtlpMetric> = Vec::with_capacity(tick.points.len());
    let mut places: HashMap<&'static str, usize> = HashMap::with_capacity(tick.points.len());
    let mut put = |name: &'static str, metric: &Metric, is_sum: bool, point: NumberDataPoint| {
        let place = *places.entry(name).or_insert_with(|| {
            metrics.push(empty(name, names::unit(metric), is_sum));
            metrics.len() - 1
        });
        match &mut metrics[place].data {
            Some(Data::Gauge(gauge)) => gauge.data_points.push(point),
            Some(Data::Sum(sum)) => sum.data_points.push(point),
            _ => unreachable!("empty() makes gauges and sums only"),
        }
    };
    for point in &tick.points {
        let Some(metric) = catalog::by_id(point.metric) else {
            continue;
        };
        let name = names::name(metric);
        let encoded = encode_point(tick, metric, name, point);
        if let PointValue::Gauge { max: Some(max), .. } = point.value {
            let mut of_max = encoded.clone();
            of_max.value = Some(Number::AsDouble(max));
            put(names::max_name(metric), metric, false, of_max);
        }
        put(name, metric, metric.kind == Kind::Counter, encoded);
    }
    metrics
}

fn encode_point(
    tick: &ResourceTick,
    metric: &Metric,
    name: &str,
    point: &Point,
) -> NumberDataPoint {
    let mut attributes = Vec::new();
    if let Some(otlp) = metric.otlp {
        attributes.extend(otlp.attributes.iter().map(|(key, value)| text(key, value)));
    }
    if let Some(part) = &point.part {
        attributes.push(text(part.kind.attribute(), &part.id));
    }
    let is_gpu = matches!(tick.resource.kind, ResourceKind::Gpu | ResourceKind::Share);
    if name.starts_with("hw.") && is_gpu {
        attributes.push(text(HW_ID_KEY, &tick.resource.id));
        attributes.push(text(HW_TYPE_KEY, HW_TYPE_GPU));
    }
    let mut start = tick.start;
    let mut flags = 0;
    let value = match point.value {
        PointValue::Gauge { value, .. } => Some(Number::AsDouble(value)),
        PointValue::Counter { value, since } => {
            start = since;
            Some(Number::AsDouble(value))
        }
        PointValue::SecondBits(bits) => Some(Number::AsInt(bits.cast_signed())),
        PointValue::Missing(reason) => {
            attributes.push(text(MISSING_REASON, reason.name()));
            flags = DataPointFlags::NoRecordedValueMask as u32;
            None
        }
    };
    NumberDataPoint {
        attributes,
        start_time_unix_nano: nanos(start),
        time_unix_nano: nanos(tick.end),
        exemplars: Vec::new(),
        flags,
        value,
    }
}

fn empty(name: &str, unit: &str, is_sum: bool) -> OtlpMetric {
    let data = if is_sum {
        Data::Sum(Sum {
            data_points: Vec::new(),
            aggregation_temporality: AggregationTemporality::Cumulative as i32,
            is_monotonic: true,
        })
    } else {
        Data::Gauge(Gauge::default())
    };
    OtlpMetric {
        name: name.to_owned(),
        unit: unit.to_owned(),
        data: Some(data),
        ..OtlpMetric::default()
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: SERVICE_NAME.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

fn text(key: &str, value: &str) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(Value::StringValue(value.to_owned())),
        }),
        ..KeyValue::default()
    }
}

/// OTLP's unsigned nanoseconds; 0, which means none, for what was before 1970.
fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.0).unwrap_or(0)
}

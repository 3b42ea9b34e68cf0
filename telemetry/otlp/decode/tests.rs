//! Requests that are wrong, foreign or hostile: each gets its reason, and the rest goes on.

mod events;

mod strange;

mod unprintable;

use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, ExponentialHistogram, ExponentialHistogramDataPoint, Gauge, Histogram,
    HistogramDataPoint, ScopeMetrics, Sum, Summary, SummaryDataPoint,
};
use opentelemetry_proto::tonic::resource::v1::Resource as OtlpResource;

use super::*;
use crate::catalog::{gpu, node};
use crate::identity::attribute as names_of;
use crate::sample::Missing;

const AT: u64 = 1_700_000_010_000_000_000;
const TICK: u64 = 10_000_000_000;
const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;
const DELTA: i32 = AggregationTemporality::Delta as i32;

fn pairs(pairs: &[(&str, &str)]) -> Vec<KeyValue> {
    let pair = |(key, value): &(&str, &str)| KeyValue {
        key: (*key).to_owned(),
        value: any(Value::StringValue((*value).to_owned())),
        ..KeyValue::default()
    };
    pairs.iter().map(pair).collect()
}

fn any(value: Value) -> Option<AnyValue> {
    Some(AnyValue { value: Some(value) })
}

fn point(attributes: &[(&str, &str)], value: f64) -> NumberDataPoint {
    NumberDataPoint {
        attributes: pairs(attributes),
        start_time_unix_nano: AT - TICK,
        time_unix_nano: AT,
        value: Some(Number::AsDouble(value)),
        ..NumberDataPoint::default()
    }
}

fn gauge(points: Vec<NumberDataPoint>) -> Data {
    Data::Gauge(Gauge {
        data_points: points,
    })
}

fn sum(is_monotonic: bool, aggregation_temporality: i32, points: Vec<NumberDataPoint>) -> Data {
    Data::Sum(Sum {
        data_points: points,
        aggregation_temporality,
        is_monotonic,
    })
}

fn metric(name: &str, data: Data) -> OtlpMetric {
    OtlpMetric {
        name: name.to_owned(),
        data: Some(data),
        ..OtlpMetric::default()
    }
}

fn request(resource: Vec<KeyValue>, metrics: Vec<OtlpMetric>) -> ExportMetricsServiceRequest {
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(OtlpResource {
                attributes: resource,
                ..OtlpResource::default()
            }),
            scope_metrics: vec![ScopeMetrics {
                metrics,
                ..ScopeMetrics::default()
            }],
            ..ResourceMetrics::default()
        }],
    }
}

fn ours() -> Vec<KeyValue> {
    pairs(&[
        ("service.name", "gpufleet-agent"),
        ("service.instance.id", "GPU-1"),
        (names_of::KIND, "gpu"),
        (names_of::NODE, "node-1"),
    ])
}

fn theirs() -> Vec<KeyValue> {
    pairs(&[("service.name", "shop"), ("host.name", "node-1")])
}

/// Decodes one metric beside a good one of the same resource, which must survive.
fn decode_beside_a_good_one(resource: Vec<KeyValue>, wrong: OtlpMetric) -> DecodedMetrics {
    let good = metric("hw.power", gauge(vec![point(&[("hw.id", "GPU-1")], 700.0)]));
    let decoded = decode_metrics(request(resource, vec![wrong, good]), &Limits::default());
    let powers = decoded
        .resources
        .iter()
        .flat_map(|it| &it.points)
        .filter(|it| it.metric.id == gpu::POWER.id);
    let values: Vec<_> = powers.map(|it| it.value).collect();
    let (value, max) = (700.0, None);
    assert_eq!(
        values,
        [PointValue::Gauge { value, max }],
        "{}",
        decoded.rejected
    );
    decoded
}

#[test]
fn every_kind_of_wrong_point_gets_its_reason_and_the_rest_goes_on() {
    let gpu = [("hw.id", "GPU-1")];
    let wrong_time = |time: u64, start: u64| {
        let mut wrong = point(&gpu, 1.0);
        (wrong.time_unix_nano, wrong.start_time_unix_nano) = (time, start);
        gauge(vec![wrong])
    };
    let bits = |value: Number, length: u64| {
        let mut bits = point(&gpu, 0.0);
        (bits.value, bits.start_time_unix_nano) = (Some(value), AT - length);
        gauge(vec![bits])
    };
    let empty = NumberDataPoint {
        value: None,
        ..point(&gpu, 0.0)
    };
    let counter = |value| sum(true, CUMULATIVE, vec![point(&gpu, value)]);
    let long = "x".repeat(257);
    let long_link = gauge(vec![point(&[("gpufleet.nvlink", &long)], 1.0)]);
    let cases: Vec<(Reject, &str, Data)> = vec![
        (
            Reject::NotANumber,
            "hw.temperature",
            gauge(vec![point(&gpu, f64::NAN)]),
        ),
        (
            Reject::Infinite,
            "hw.temperature",
            gauge(vec![point(&gpu, f64::INFINITY)]),
        ),
        (Reject::Infinite, "hw.energy", counter(f64::NEG_INFINITY)),
        (Reject::NegativeCounter, "hw.energy", counter(-1.0)),
        (
            Reject::WrongType,
            "hw.energy",
            gauge(vec![point(&gpu, 1.0)]),
        ),
        (
            Reject::WrongType,
            "hw.energy",
            sum(false, CUMULATIVE, vec![point(&gpu, 1.0)]),
        ),
        (Reject::WrongType, "hw.temperature", counter(1.0)),
        (Reject::WrongType, "hw.temperature", gauge(vec![empty])),
        (
            Reject::WrongType,
            "gpufleet.gpu.active",
            bits(Number::AsDouble(1.0), TICK),
        ),
        (
            Reject::DeltaCounter,
            "hw.energy",
            sum(true, DELTA, vec![point(&gpu, 1.0)]),
        ),
        (
            Reject::DeltaCounter,
            "hw.energy",
            sum(true, 0, vec![point(&gpu, 1.0)]),
        ),
        (
            Reject::UnknownMetric,
            "http.server.duration",
            gauge(vec![point(&gpu, 1.0)]),
        ),
        (Reject::UnknownSeries, "hw.errors", counter(1.0)),
        (
            Reject::OtherHardware,
            "hw.power.limit",
            gauge(vec![point(&[("hw.type", "fan")], 1.0)]),
        ),
        (
            Reject::NoPart,
            "gpufleet.gpu.nvlink_up",
            gauge(vec![point(&gpu, 1.0)]),
        ),
        (Reject::LongId, "gpufleet.gpu.nvlink_up", long_link),
        (
            Reject::WrongResource,
            "gpufleet.node.cpu_busy",
            gauge(vec![point(&gpu, 1.0)]),
        ),
        (Reject::TimeOutOfRange, "hw.temperature", wrong_time(0, 0)),
        (
            Reject::TimeOutOfRange,
            "hw.temperature",
            wrong_time(u64::MAX, 0),
        ),
        (
            Reject::TimeOutOfRange,
            "hw.temperature",
            wrong_time(AT, AT + 1),
        ),
        (
            Reject::TimeOutOfRange,
            "gpufleet.gpu.active",
            bits(Number::AsInt(1), 0),
        ),
        (
            Reject::TimeOutOfRange,
            "gpufleet.gpu.active",
            bits(Number::AsInt(1), 60_000_000_001),
        ),
        (
            Reject::BadBits,
            "gpufleet.gpu.active",
            bits(Number::AsInt(1 << 60), TICK),
        ),
        (
            Reject::BadBits,
            "gpufleet.gpu.active",
            bits(Number::AsInt(-1), TICK),
        ),
        (
            Reject::MaxAlone,
            "hw.temperature.max",
            gauge(vec![point(&gpu, 1.0)]),
        ),
    ];
    for (reason, name, data) in cases {
        let decoded = decode_beside_a_good_one(ours(), metric(name, data));
        let found: Vec<_> = decoded.rejected.iter().collect();
        assert_eq!(found, [(reason, 1)], "{name}: {}", decoded.rejected);
        assert!(
            decoded.rejected.to_string().contains(name),
            "{}",
            decoded.rejected
        );
    }
    let wrong_unit = OtlpMetric {
        unit: "furlong".to_owned(),
        ..metric("hw.temperature", gauge(vec![point(&gpu, 1.0)]))
    };
    let decoded = decode_beside_a_good_one(ours(), wrong_unit);
    assert_eq!(decoded.rejected.count(Reject::WrongUnit), 1);
}

#[test]
fn histograms_and_metrics_without_data_are_counted() {
    for (data, reason, count) in [
        (
            Some(Data::Histogram(Histogram {
                data_points: vec![HistogramDataPoint::default(); 3],
                ..Histogram::default()
            })),
            Reject::Histogram,
            3,
        ),
        (
            Some(Data::ExponentialHistogram(ExponentialHistogram {
                data_points: vec![ExponentialHistogramDataPoint::default(); 2],
                ..ExponentialHistogram::default()
            })),
            Reject::Histogram,
            2,
        ),
        (
            Some(Data::Summary(Summary {
                data_points: vec![SummaryDataPoint::default()],
            })),
            Reject::Histogram,
            1,
        ),
        (None, Reject::WrongType, 1),
    ] {
        let wrong = OtlpMetric {
            data,
            ..metric("hw.power", gauge(Vec::new()))
        };
        let decoded = decode_beside_a_good_one(ours(), wrong);
        assert_eq!(decoded.rejected.count(reason), count);
    }
}

#[test]
fn a_missing_value_is_never_a_number_and_keeps_its_reason() {
    for (reason, expected) in [
        ("gpu_lost", Missing::GpuLost),
        ("no such", Missing::Unknown),
    ] {
        let mut missing = point(&[("gpufleet.missing_reason", reason)], 0.0);
        missing.flags = 1;
        let sent = request(ours(), vec![metric("hw.temperature", gauge(vec![missing]))]);
        let decoded = decode_metrics(sent, &Limits::default());
        let values: Vec<_> = decoded.resources[0]
            .points
            .iter()
            .map(|it| it.value)
            .collect();
        assert_eq!(values, [PointValue::Missing(expected)]);
    }
}

/// What was found: kind, id, metric, value.
fn found(decoded: &DecodedMetrics) -> Vec<(&str, &str, &str, f64)> {
    let mut found = Vec::new();
    for resource in &decoded.resources {
        for point in &resource.points {
            let (PointValue::Gauge { value, .. } | PointValue::Counter { value, .. }) = point.value
            else {
                panic!("no missing values here");
            };
            let id = &*resource.resource.id;
            found.push((resource.resource.kind.name(), id, point.metric.name, value));
        }
    }
    found
}

#[test]
fn foreign_points_go_to_the_resource_that_they_name_in_our_units() {
    let percent = OtlpMetric {
        unit: "%".to_owned(),
        ..metric(
            "hw.gpu.utilization",
            gauge(vec![point(&[("hw.id", "GPU-1")], 50.0)]),
        )
    };
    let memory = metric(
        "hw.gpu.memory.usage",
        sum(
            false,
            CUMULATIVE,
            vec![point(&[("hw.id", "GPU-2"), ("hw.type", "gpu")], 5.0)],
        ),
    );
    let dcgm = [
        ("UUID", "GPU-3"),
        ("gpu", "3"),
        ("modelName", "NVIDIA L4"),
        ("Hostname", "h"),
    ];
    let instance = [
        dcgm.as_slice(),
        &[("GPU_I_ID", "7"), ("GPU_I_PROFILE", "1g.5gb")],
    ]
    .concat();
    let sent = request(
        theirs(),
        vec![
            percent,
            memory,
            metric("DCGM_FI_DEV_FB_USED", gauge(vec![point(&dcgm, 2.0)])),
            metric(
                "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
                gauge(vec![point(&dcgm, 3e3)]),
            ),
            metric("DCGM_FI_DEV_FB_USED", gauge(vec![point(&instance, 1.0)])),
            metric("DCGM_FI_DEV_GPU_TEMP", gauge(vec![point(&instance, 40.0)])),
            metric("gpufleet.node.cpu_busy", gauge(vec![point(&[], 0.5)])),
        ],
    );
    let decoded = decode_metrics(sent, &Limits::default());
    assert_eq!(decoded.rejected.to_string(), "");
    let expected = [
        ("gpu", "GPU-1", gpu::UTILIZATION.name, 0.5),
        ("gpu", "GPU-2", gpu::MEMORY_USED.name, 5.0),
        ("gpu", "GPU-3", gpu::MEMORY_USED.name, 2_097_152.0),
        ("gpu", "GPU-3", gpu::ENERGY.name, 3.0),
        ("gpu", "GPU-3", gpu::TEMPERATURE.name, 40.0),
        ("share", "GPU-3/gi7", gpu::MEMORY_USED.name, 1_048_576.0),
        ("node", "node-1", node::CPU_BUSY.name, 0.5),
    ];
    assert_eq!(found(&decoded), expected);
    let card = &decoded.resources[2].resource;
    for (name, value) in [
        (names_of::SOURCE, "otlp"),
        (names_of::GPU_MODEL, "NVIDIA L4"),
        (names_of::GPU_INDEX, "3"),
        // What the Resource says stands over what a label says.
        (names_of::NODE, "node-1"),
    ] {
        assert_eq!(card.attribute(name), Some(value), "{name}");
    }
    assert_eq!(
        decoded.resources[3].resource.attribute(names_of::PARENT),
        Some("GPU-3")
    );
}

#[test]
fn a_foreign_gpu_is_never_guessed_from_its_host() {
    let power = || metric("hw.power", gauge(vec![point(&[], 1.0)]));
    let with_id = |id| [theirs(), pairs(&[("service.instance.id", id)])].concat();
    let by_hardware_id = [theirs(), pairs(&[("hw.id", "0")])].concat();
    for (resource, expected) in [
        (theirs(), None),
        (with_id("b7e0c1f2"), None),
        (with_id("GPU-9"), Some(("gpu", "GPU-9"))),
        (with_id("MIG-9"), Some(("share", "MIG-9"))),
        (by_hardware_id, Some(("gpu", "0"))),
        // An agent from the future with a kind of resource that is unknown here.
        (
            pairs(&[("service.name", "gpufleet-agent"), (names_of::KIND, "rack")]),
            None,
        ),
    ] {
        let decoded = decode_metrics(request(resource, vec![power()]), &Limits::default());
        let target = found(&decoded).first().map(|(kind, id, ..)| (*kind, *id));
        assert_eq!(target, expected);
        let unidentified = decoded.rejected.count(Reject::UnidentifiedResource);
        assert_eq!(unidentified, u64::from(expected.is_none()));
    }
}

#[test]
fn ten_thousand_label_values_are_survived_and_counted() {
    let links: Vec<_> = (0..10_000)
        .map(|link| point(&[("gpufleet.nvlink", &link.to_string())], 1.0))
        .collect();
    let decoded = decode_beside_a_good_one(ours(), metric("gpufleet.gpu.nvlink_up", gauge(links)));
    let limit = Limits::default().parts;
    assert_eq!(decoded.resources[0].points.len(), limit + 1);
    let over = 10_000 - limit as u64;
    assert_eq!(decoded.rejected.count(Reject::TooManyParts), over);
}

#[test]
fn what_is_beyond_a_limit_is_counted() {
    let limits = Limits {
        points: 3,
        resources: 2,
        attributes: 4,
        label_bytes: 20,
        ..Limits::default()
    };
    let powers = |ids: &[&str]| {
        let points = ids.iter().map(|id| point(&[("hw.id", id)], 1.0)).collect();
        vec![metric("hw.power", gauge(points))]
    };
    let count = |sent, reason| decode_metrics(sent, &limits).rejected.count(reason);
    let five = request(theirs(), powers(&["a", "a", "a", "a", "a"]));
    assert_eq!(count(five, Reject::TooManyPoints), 2);
    let three = request(theirs(), powers(&["a", "b", "c"]));
    assert_eq!(count(three, Reject::TooManyResources), 1);
    let long = "x".repeat(21);
    let long_id = request(theirs(), powers(&[&long]));
    assert_eq!(count(long_id, Reject::LongId), 1);
    let many = [ours(), pairs(&[("a", "b"), ("c", "d")])].concat();
    assert_eq!(
        count(request(many, powers(&["a"])), Reject::TooManyAttributes),
        2
    );
    let long_label = [theirs(), pairs(&[("a", &long)])].concat();
    let decoded = decode_metrics(request(long_label, powers(&["a"])), &limits);
    assert_eq!(decoded.rejected.count(Reject::TooLong), 1);
    assert_eq!(decoded.resources[0].resource.attribute("a"), None);
    let crowded = Limits {
        attribute_bytes: 100,
        ..Limits::default()
    };
    // Each GPU takes a copy of service.name, host.name and gpufleet.source: 50 bytes.
    let decoded = decode_metrics(request(theirs(), powers(&["a", "b", "c"])), &crowded);
    assert_eq!(decoded.resources.len(), 2);
    assert_eq!(decoded.rejected.count(Reject::TooManyResources), 1);
    let late = Limits {
        latest: Timestamp(AT as i64 - 1),
        ..Limits::default()
    };
    let decoded = decode_metrics(request(theirs(), powers(&["a"])), &late);
    assert_eq!(decoded.rejected.count(Reject::TimeOutOfRange), 1);
}

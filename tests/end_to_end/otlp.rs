//! OTLP requests made by hand, for what no well-behaved sender would send.

use std::io::Write as _;

use gpufleet_tests::harness::http::{self, Answer};
use gpufleet_tests::harness::server::Server;
use gpufleet_tests::harness::wait;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum,
    metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;

pub(crate) const PROTOBUF: &str = "application/x-protobuf";

/// Now, Unix nanoseconds.
pub(crate) fn now_nanos() -> u64 {
    wait::unix_seconds().cast_unsigned() * 1_000_000_000
}

fn attribute(key: &str, value: &str) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(any_value::Value::StringValue(value.to_owned())),
        }),
        ..KeyValue::default()
    }
}

/// A request of a foreign sender: `hw.power` of these GPUs, each with a value and a time.
pub(crate) fn power(points: &[(&str, f64, u64)]) -> ExportMetricsServiceRequest {
    request("hw.power", points, |data_points| {
        metric::Data::Gauge(Gauge { data_points })
    })
}

/// The same for the running total `hw.energy`.
pub(crate) fn energy(points: &[(&str, f64, u64)]) -> ExportMetricsServiceRequest {
    request("hw.energy", points, |data_points| {
        metric::Data::Sum(Sum {
            data_points,
            aggregation_temporality: AggregationTemporality::Cumulative.into(),
            is_monotonic: true,
        })
    })
}

fn request(
    name: &str,
    points: &[(&str, f64, u64)],
    data: fn(Vec<NumberDataPoint>) -> metric::Data,
) -> ExportMetricsServiceRequest {
    let point = |(gpu, value, at): &(&str, f64, u64)| NumberDataPoint {
        attributes: vec![attribute("hw.id", gpu), attribute("hw.type", "gpu")],
        time_unix_nano: *at,
        value: Some(number_data_point::Value::AsDouble(*value)),
        ..NumberDataPoint::default()
    };
    let metric = Metric {
        name: name.to_owned(),
        data: Some(data(points.iter().map(point).collect())),
        ..Metric::default()
    };
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource {
                attributes: vec![
                    attribute("service.name", "somebody"),
                    attribute("host.name", "foreign-node"),
                ],
                ..Resource::default()
            }),
            scope_metrics: vec![ScopeMetrics {
                metrics: vec![metric],
                ..ScopeMetrics::default()
            }],
            ..ResourceMetrics::default()
        }],
    }
}

/// Sends a body to the server's OTLP/HTTP port.
pub(crate) fn post(server: &Server, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    post_to(server, "/v1/metrics", headers, body)
}

/// The same to another of its paths.
pub(crate) fn post_to(
    server: &Server,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    http::post(&server.place.http, path, headers, body)
        .unwrap_or_else(|error| panic!("the server answers: {error}\n{}", server.output()))
}

/// Sends a request as protobuf.
pub(crate) fn send(server: &Server, request: &ExportMetricsServiceRequest) -> Answer {
    post(
        server,
        &[("content-type", PROTOBUF)],
        &request.encode_to_vec(),
    )
}

/// How many points of an accepted request were rejected.
pub(crate) fn rejected(answer: &Answer) -> i64 {
    ExportMetricsServiceResponse::decode(answer.body.as_slice())
        .expect("the answer to protobuf is protobuf")
        .partial_success
        .map_or(0, |partial| partial.rejected_data_points)
}

pub(crate) fn zstd(plain: &[u8]) -> Vec<u8> {
    zstd::encode_all(plain, 3).expect("memory takes bytes")
}

pub(crate) fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(plain).expect("memory takes bytes");
    encoder.finish().expect("memory takes bytes")
}

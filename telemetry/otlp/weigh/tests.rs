//! Bombs are refused, what is normal is not, and the counts are those of the parser.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue, KeyValueList};
use opentelemetry_proto::tonic::metrics::v1::exponential_histogram_data_point::Buckets;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::summary_data_point::ValueAtQuantile;
use opentelemetry_proto::tonic::metrics::v1::{
    Exemplar, ExponentialHistogram, ExponentialHistogramDataPoint, Gauge, Histogram,
    HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Summary,
    SummaryDataPoint,
};
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::otlp::parse::{Encoding, ParseError, parse};

/// A field with something in it.
fn within(number: u8, inside: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encoding::encode_varint(inside.len() as u64, &mut bytes);
    bytes.extend(inside);
    bytes
}

/// `inside` in field after field, the outermost first.
fn nested(path: &[u8], inside: &[u8]) -> Vec<u8> {
    path.iter()
        .rev()
        .fold(inside.to_vec(), |bytes, number| within(*number, &bytes))
}

/// Six million empty messages in 12 MiB, at each place that has room for many.
#[test]
fn empty_messages_without_end_are_refused_and_named() {
    let many = |number: u8| [number << 3 | 2, 0].repeat(6 << 20);
    for (path, number, kind) in [
        (&[][..], 1, Kind::Resource),
        (&[1], 2, Kind::Scope),
        (&[1, 1], 1, Kind::Attribute),
        (&[1, 1], 3, Kind::Entity),
        (&[1, 1, 3], 3, Kind::Entity),
        (&[1, 2], 2, Kind::Metric),
        (&[1, 2, 1], 3, Kind::Attribute),
        (&[1, 2, 2], 12, Kind::Attribute),
        (&[1, 2, 2, 5], 1, Kind::Point),
        (&[1, 2, 2, 7], 1, Kind::Point),
        (&[1, 2, 2, 9], 1, Kind::Point),
        (&[1, 2, 2, 10], 1, Kind::Point),
        (&[1, 2, 2, 11], 1, Kind::Point),
        (&[1, 2, 2, 5, 1], 5, Kind::Exemplar),
        (&[1, 2, 2, 5, 1], 7, Kind::Attribute),
        (&[1, 2, 2, 5, 1, 5], 7, Kind::Attribute),
        (&[1, 2, 2, 9, 1], 9, Kind::Attribute),
        (&[1, 2, 2, 10, 1], 1, Kind::Attribute),
        (&[1, 2, 2, 11, 1], 6, Kind::Quantile),
        (&[1, 2, 2, 5, 1, 7, 2, 5], 1, Kind::Value),
        (&[1, 2, 2, 5, 1, 7, 2, 6], 1, Kind::Attribute),
    ] {
        let refused = metrics(&nested(path, &many(number))).expect_err(kind.name());
        let text = refused.to_string();
        assert!(text.contains("167772160 bytes in memory"), "{text}");
        assert!(text.contains(kind.name()), "{path:?} {number}: {text}");
    }
    for (path, number, kind) in [
        (&[][..], 1, Kind::Resource),
        (&[1, 2], 2, Kind::Record),
        (&[1, 2, 2], 6, Kind::Attribute),
        (&[1, 2, 2, 5, 5], 1, Kind::Value),
    ] {
        let text = logs(&nested(path, &many(number)))
            .expect_err(kind.name())
            .to_string();
        assert!(text.contains(kind.name()), "{path:?} {number}: {text}");
    }
}

#[test]
fn buckets_are_counted_packed_and_one_by_one() {
    let packed = nested(&[1, 2, 2, 10, 1, 8, 2], &vec![1; 16 << 20]);
    let single = nested(&[1, 2, 2, 10, 1, 9], &[2 << 3, 1].repeat(8 << 20));
    let doubles = nested(&[1, 2, 2, 9, 1, 7], &[0; 800]);
    let text = metrics(&packed).expect_err("a bomb").to_string();
    assert!(text.contains("histogram buckets"), "{text}");
    assert_eq!(metrics(&single).unwrap().count(Kind::Bucket), 8 << 20);
    assert_eq!(metrics(&doubles).unwrap().count(Kind::Bucket), 100);
}

#[test]
fn values_within_values_end_at_the_depth_and_what_is_no_protobuf_is_refused() {
    let deep = |lists: usize| nested(&[&[1, 1, 1, 2][..], &[5, 1].repeat(lists)].concat(), &[]);
    assert_eq!(metrics(&deep(500)), Err(TooHeavy::Deep));
    assert!(metrics(&deep(20)).is_ok());
    for bad in [
        &b"\x0a"[..],
        b"\x0a\x05\x0a",
        b"\xff\xff\xff",
        b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x0b",
        b"\x09\x01",
        b"\x0d\x01",
    ] {
        let refused = metrics(bad).expect_err("no protobuf").to_string();
        assert!(refused.contains("protobuf"), "{refused}");
        assert!(ExportMetricsServiceRequest::decode(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn json_is_refused_by_what_its_objects_and_members_may_become() {
    let bombs = [
        format!("{{\"resourceMetrics\":[{}{{}}]}}", "{},".repeat(2 << 20)),
        format!("{{\"resourceMetrics\":[{}[]]}}", "[],".repeat(2 << 20)),
        format!("[{}1]", "1,".repeat(4 << 20)),
    ];
    for bomb in bombs {
        let refused = parse::<ExportMetricsServiceRequest>(Encoding::Json, bomb.as_bytes());
        assert!(refused.expect_err("a bomb").is_too_large());
    }
    let quoted = format!("{{\"schemaUrl\":\"\\\"{}\"}}", "{,[".repeat(100_000));
    let read = parse::<ExportLogsServiceRequest>(Encoding::Json, quoted.as_bytes());
    assert!(matches!(read, Ok(_) | Err(ParseError::Json(_))), "{read:?}");
}

fn values() -> impl Strategy<Value = AnyValue> {
    let leaf = any::<i64>().prop_map(Value::IntValue).boxed();
    let leaf = leaf.prop_union("[a-z]{0,20}".prop_map(Value::StringValue).boxed());
    let tree = leaf.prop_map(|value| AnyValue { value: Some(value) });
    tree.prop_recursive(4, 16, 4, |inner| {
        let list =
            vec(inner.clone(), 0..4).prop_map(|values| Value::ArrayValue(ArrayValue { values }));
        let map = vec(inner, 0..4).prop_map(|values| {
            let values = values.into_iter().map(attribute).collect();
            Value::KvlistValue(KeyValueList { values })
        });
        prop_oneof![list, map].prop_map(|value| AnyValue { value: Some(value) })
    })
}

fn attribute(value: AnyValue) -> KeyValue {
    KeyValue {
        key: "key".to_owned(),
        value: Some(value),
        ..KeyValue::default()
    }
}

fn attributes() -> impl Strategy<Value = Vec<KeyValue>> {
    vec(values().prop_map(attribute), 0..3)
}

fn data() -> impl Strategy<Value = Data> {
    let numbers = vec((attributes(), attributes(), 0_usize..3), 0..4).prop_map(|points| {
        let point = |(attributes, filtered_attributes, exemplars)| NumberDataPoint {
            attributes,
            exemplars: vec![
                Exemplar {
                    filtered_attributes,
                    ..Exemplar::default()
                };
                exemplars
            ],
            time_unix_nano: 1,
            ..NumberDataPoint::default()
        };
        Data::Gauge(Gauge {
            data_points: points.into_iter().map(point).collect(),
        })
    });
    let histograms = vec((attributes(), vec(any::<u64>(), 0..9)), 0..4).prop_map(|points| {
        let point = |(attributes, bucket_counts): (_, Vec<u64>)| HistogramDataPoint {
            attributes,
            explicit_bounds: bucket_counts.iter().map(|it| *it as f64).collect(),
            bucket_counts,
            ..HistogramDataPoint::default()
        };
        let data_points = points.into_iter().map(point).collect();
        Data::Histogram(Histogram {
            data_points,
            ..Histogram::default()
        })
    });
    let exponential = vec(vec(any::<u64>(), 0..9), 0..4).prop_map(|points| {
        let point = |bucket_counts| ExponentialHistogramDataPoint {
            positive: Some(Buckets {
                offset: 3,
                bucket_counts,
            }),
            ..ExponentialHistogramDataPoint::default()
        };
        let data_points = points.into_iter().map(point).collect();
        Data::ExponentialHistogram(ExponentialHistogram {
            data_points,
            ..Default::default()
        })
    });
    let summaries = vec(0_usize..5, 0..4).prop_map(|points| {
        let point = |quantiles| SummaryDataPoint {
            quantile_values: vec![
                ValueAtQuantile {
                    quantile: 0.5,
                    value: 1.0
                };
                quantiles
            ],
            ..SummaryDataPoint::default()
        };
        Data::Summary(Summary {
            data_points: points.into_iter().map(point).collect(),
        })
    });
    prop_oneof![numbers, histograms, exponential, summaries]
}

fn requests() -> impl Strategy<Value = ExportMetricsServiceRequest> {
    let metric = (attributes(), data()).prop_map(|(metadata, data)| Metric {
        name: "hw.power".to_owned(),
        metadata,
        data: Some(data),
        ..Metric::default()
    });
    let scope = vec(metric, 0..3).prop_map(|metrics| ScopeMetrics {
        metrics,
        ..ScopeMetrics::default()
    });
    let resource = (attributes(), vec(scope, 0..3)).prop_map(|(attributes, scope_metrics)| {
        let mut sent = ResourceMetrics {
            scope_metrics,
            ..ResourceMetrics::default()
        };
        sent.resource.get_or_insert_default().attributes = attributes;
        sent
    });
    vec(resource, 0..3)
        .prop_map(|resource_metrics| ExportMetricsServiceRequest { resource_metrics })
}

/// The same counts, from what the parser made of it.
#[derive(Default)]
struct Counted([u64; Kind::ALL.len()]);

impl Counted {
    fn of(request: &ExportMetricsServiceRequest) -> Self {
        let mut counted = Self::default();
        for sent in &request.resource_metrics {
            counted.add(Kind::Resource, 1);
            counted.attributes(sent.resource.iter().flat_map(|it| &it.attributes));
            for scope in &sent.scope_metrics {
                counted.add(Kind::Scope, 1);
                counted.attributes(scope.scope.iter().flat_map(|it| &it.attributes));
                scope
                    .metrics
                    .iter()
                    .for_each(|metric| counted.metric(metric));
            }
        }
        counted
    }

    fn add(&mut self, kind: Kind, count: usize) {
        self.0[kind as usize] += count as u64;
    }

    fn metric(&mut self, metric: &Metric) {
        self.add(Kind::Metric, 1);
        self.attributes(&metric.metadata);
        let numbers = match metric.data.as_ref() {
            Some(Data::Gauge(it)) => &it.data_points,
            Some(Data::Sum(it)) => &it.data_points,
            Some(Data::Histogram(it)) => {
                for point in &it.data_points {
                    self.add(Kind::Point, 1);
                    self.add(
                        Kind::Bucket,
                        point.bucket_counts.len() + point.explicit_bounds.len(),
                    );
                    self.attributes(&point.attributes);
                    self.exemplars(&point.exemplars);
                }
                return;
            }
            Some(Data::ExponentialHistogram(it)) => {
                for point in &it.data_points {
                    self.add(Kind::Point, 1);
                    for buckets in point.positive.iter().chain(&point.negative) {
                        self.add(Kind::Bucket, buckets.bucket_counts.len());
                    }
                    self.attributes(&point.attributes);
                    self.exemplars(&point.exemplars);
                }
                return;
            }
            Some(Data::Summary(it)) => {
                for point in &it.data_points {
                    self.add(Kind::Point, 1);
                    self.add(Kind::Quantile, point.quantile_values.len());
                    self.attributes(&point.attributes);
                }
                return;
            }
            None => return,
        };
        for point in numbers {
            self.add(Kind::Point, 1);
            self.attributes(&point.attributes);
            self.exemplars(&point.exemplars);
        }
    }

    fn exemplars(&mut self, exemplars: &[Exemplar]) {
        self.add(Kind::Exemplar, exemplars.len());
        for exemplar in exemplars {
            self.attributes(&exemplar.filtered_attributes);
        }
    }

    fn attributes<'a>(&mut self, attributes: impl IntoIterator<Item = &'a KeyValue>) {
        for attribute in attributes {
            self.add(Kind::Attribute, 1);
            attribute.value.iter().for_each(|value| self.value(value));
        }
    }

    fn value(&mut self, value: &AnyValue) {
        match &value.value {
            Some(Value::ArrayValue(list)) => {
                self.add(Kind::Value, list.values.len());
                list.values.iter().for_each(|value| self.value(value));
            }
            Some(Value::KvlistValue(map)) => self.attributes(&map.values),
            _ => {}
        }
    }
}

proptest! {
    #[test]
    fn what_is_encoded_is_weighed_with_the_counts_of_the_parser(request in requests()) {
        let weight = metrics(&request.encode_to_vec()).expect("our own bytes");
        prop_assert_eq!(weight.counts, Counted::of(&request).0);
        prop_assert!(weight.bytes >= request.encoded_len() as u64);
    }

    #[test]
    fn what_a_parser_takes_is_weighed_with_at_least_its_counts(
        request in requests(),
        edits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = request.encode_to_vec();
        for (place, byte) in edits {
            if !bytes.is_empty() {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
        }
        if let Ok(parsed) = ExportMetricsServiceRequest::decode(bytes.as_slice()) {
            match metrics(&bytes) {
                Ok(weight) => {
                    let counted = Counted::of(&parsed).0;
                    prop_assert!(weight.counts.iter().zip(counted).all(|(most, it)| *most >= it));
                }
                // Groups are no part of OTLP; a parser passes over those it does not know.
                Err(refused) => prop_assert!(refused.to_string().contains("type"), "{}", refused),
            }
        }
    }
}

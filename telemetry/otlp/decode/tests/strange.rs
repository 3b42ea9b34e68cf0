//! Random requests: nothing panics, and what is kept can be sent on.

use opentelemetry_proto::tonic::common::v1::{ArrayValue, KeyValueList};
use proptest::prelude::*;

use super::events::{logs, record};
use super::*;
use crate::catalog;
use crate::otlp::encode_metrics;
use crate::tick::{Point, ResourceTick};

/// Names that mean something, so that random requests reach deep.
fn any_text() -> impl Strategy<Value = String> {
    let known: Vec<String> = catalog::all()
        .map(|it| names::name(it).to_owned())
        .chain(catalog::all().filter_map(|it| Some(it.dcgm?.name.to_owned())))
        .chain(PartKind::ALL.map(|it| it.attribute().to_owned()))
        .chain(ResourceKind::ALL.map(|it| it.name().to_owned()))
        .chain(
            [
                "hw.power.max",
                "hw.id",
                "hw.type",
                "UUID",
                "GPU_I_ID",
                "service.name",
            ]
            .map(String::from),
        )
        .chain(
            [
                "service.instance.id",
                "gpufleet-agent",
                names_of::KIND,
                names_of::NODE,
            ]
            .map(String::from),
        )
        .chain(
            [
                "gpufleet.xid",
                "gpufleet.resource.id",
                "gpufleet.missing_reason",
            ]
            .map(String::from),
        )
        .collect();
    prop_oneof![3 => proptest::sample::select(known), 1 => ".{0,300}"]
}

fn any_pairs() -> impl Strategy<Value = Vec<KeyValue>> {
    let value = prop_oneof![
        any_text().prop_map(Value::StringValue),
        proptest::arbitrary::any::<i64>().prop_map(Value::IntValue),
        proptest::arbitrary::any::<f64>().prop_map(Value::DoubleValue),
        Just(Value::ArrayValue(ArrayValue::default())),
        Just(Value::KvlistValue(KeyValueList::default())),
        Just(Value::BytesValue(vec![0xff])),
    ];
    let pair = (any_text(), proptest::option::of(value)).prop_map(|(key, value)| KeyValue {
        key,
        value: Some(AnyValue { value }),
        ..KeyValue::default()
    });
    proptest::collection::vec(pair, 0..8)
}

fn any_point() -> impl Strategy<Value = NumberDataPoint> {
    let time = || prop_oneof![Just(0), Just(AT), Just(AT - TICK), proptest::num::u64::ANY];
    let number = prop_oneof![
        proptest::num::f64::ANY.prop_map(Number::AsDouble),
        proptest::num::i64::ANY.prop_map(Number::AsInt),
    ];
    let parts = (
        any_pairs(),
        time(),
        time(),
        0_u32..3,
        proptest::option::of(number),
    );
    parts.prop_map(|(attributes, start, time, flags, value)| NumberDataPoint {
        attributes,
        start_time_unix_nano: start,
        time_unix_nano: time,
        flags,
        value,
        ..NumberDataPoint::default()
    })
}

proptest! {
    #[test]
    fn no_request_is_too_strange_and_what_is_kept_can_be_sent_on(
        resource in any_pairs(),
        sent in proptest::collection::vec(
            (any_text(), any_text(), proptest::collection::vec(any_point(), 0..6), 0..5_u8), 0..10,
        ),
    ) {
        let points = |of: &dyn Fn(&str) -> bool| -> usize {
            sent.iter().filter(|it| of(&it.0)).map(|it| it.2.len()).sum()
        };
        let (all, maxima) = (points(&|_| true), points(&|name| name.ends_with(".max")));
        let metrics = sent.into_iter().map(|(name, unit, points, form)| OtlpMetric {
            unit,
            ..metric(&name, match form {
                0 => sum(true, CUMULATIVE, points),
                1 => sum(false, CUMULATIVE, points),
                2 => sum(true, DELTA, points),
                _ => gauge(points),
            })
        });
        let decoded = decode_metrics(request(resource, metrics.collect()), &Limits::default());
        // Every point is kept, or counted as lost; a maximum may have gone into its mean.
        let kept: usize = decoded.resources.iter().map(|it| it.points.len()).sum();
        let lost: u64 = decoded
            .rejected
            .iter()
            .filter(|(reason, _)| !reason.is_partial())
            .map(|(_, count)| count)
            .sum();
        let known = kept + lost as usize;
        prop_assert!(known <= all && known + maxima >= all, "{known} of {all}");
        for kept in decoded.resources {
            for point in kept.points {
                let tick = ResourceTick {
                    resource: Arc::clone(&kept.resource),
                    start: point.start,
                    end: point.at,
                    points: vec![Point {
                        metric: point.metric.id,
                        part: point.part.clone(),
                        value: point.value,
                    }],
                };
                let again = decode_metrics(encode_metrics(&[tick]), &Limits::default());
                let values: Vec<_> = again.resources.iter().flat_map(|it| &it.points).collect();
                prop_assert_eq!(values.len(), 1, "{}", again.rejected);
                prop_assert_eq!(values[0].value, point.value);
                prop_assert_eq!(&values[0].part, &point.part);
            }
        }
    }

    #[test]
    fn no_log_record_is_too_strange(name in any_text(), attributes in any_pairs(), time: u64) {
        let mut strange = record(&name, attributes);
        strange.time_unix_nano = time;
        let decoded = decode_events(logs(vec![strange]), &Limits::default());
        prop_assert!(decoded.events.len() <= 1);
        prop_assert!(decoded.events.len() == 1 || decoded.rejected.total() > 0);
    }
}

//! OTLP, to and from: a resource per GPU, a point per metric and tick, events as log records.
//!
//! Ours: a Resource per GPU, share, node or endpoint with `service.name=gpufleet-agent`,
//! `service.instance.id=<its id>` and all its attributes. A gauge is a Gauge, a counter a
//! cumulative monotonic Sum since its start, second bits an integer Gauge whose start is the
//! tick's; a missing value is a point with NO_RECORDED_VALUE and `gpufleet.missing_reason`; a
//! maximum is a metric of its own, `<name>.max`. The part of a resource is a point attribute
//! ([`crate::identity::PartKind::attribute`]), and `hw.*` points carry `hw.id` and `hw.type=gpu`.
//!
//! The steps of a rank are one log record a shipment, `gpufleet.steps`, whose body is the bytes of
//! [`crate::steps`].
//!
//! Others': known `hw.*` and `DCGM_FI_*` names map through the catalog, each point to the GPU it
//! names; the rest is counted as not kept. What a request may take in memory is told before it is
//! parsed: [`weigh`]. Limits and reasons: [`limits`]. Without the feature `otlp` only the names are here.

mod names;

pub use names::{max_name, name, unit};

#[cfg(feature = "otlp")]
mod meaning;

#[cfg(feature = "otlp")]
mod encode;

#[cfg(feature = "otlp")]
pub mod weigh;

#[cfg(feature = "otlp")]
mod parse;

#[cfg(feature = "otlp")]
mod decode;

pub mod limits;

#[cfg(feature = "otlp")]
pub use decode::{
    DecodedEvent, DecodedEvents, DecodedMetrics, DecodedPoint, DecodedResource, DecodedSteps,
    decode_events, decode_metrics,
};
#[cfg(feature = "otlp")]
pub use encode::{encode_events, encode_metrics, encode_steps};
pub use limits::{Limits, Reject, Rejected};
#[cfg(feature = "otlp")]
pub use parse::{Encoding, ParseError, Request, parse};

/// `service.name` of everything an agent sends.
pub const SERVICE_NAME: &str = "gpufleet-agent";

/// The attribute with the reason of a missing value, [`crate::sample::Missing::name`].
pub const MISSING_REASON: &str = "gpufleet.missing_reason";

/// The attribute of a log record with the id of the resource it is about.
pub const RESOURCE_ID: &str = "gpufleet.resource.id";

/// What comes before an event's kind in a log record's event name.
pub const EVENT_PREFIX: &str = "gpufleet.";

/// The event name of a log record with the steps of a rank.
pub const STEPS_EVENT: &str = "gpufleet.steps";

/// OpenTelemetry's attribute for the name of what sends.
pub const SERVICE_NAME_KEY: &str = "service.name";

/// OpenTelemetry's attribute for which of them it is.
pub const INSTANCE_ID_KEY: &str = "service.instance.id";

/// OpenTelemetry's attribute for which piece of hardware a `hw.*` point is about.
#[cfg(feature = "otlp")]
const HW_ID_KEY: &str = "hw.id";

/// OpenTelemetry's attribute for what kind of hardware that is.
#[cfg(feature = "otlp")]
const HW_TYPE_KEY: &str = "hw.type";

/// Its value for GPUs.
#[cfg(feature = "otlp")]
const HW_TYPE_GPU: &str = "gpu";

#[cfg(all(test, feature = "otlp"))]
mod tests {
    mod versions;

    use std::sync::Arc;

    use prost::Message;

    use super::*;
    use crate::catalog::{self, Kind, MetricId};
    use crate::event::{Event, EventKind, Severity};
    use crate::identity::{Part, Resource, ResourceKind, attribute};
    use crate::sample::Missing;
    use crate::steps::{StepBlock, StepTimes};
    use crate::tick::{Point, PointValue, ResourceTick};
    use crate::time::Timestamp;

    const START: Timestamp = Timestamp::from_seconds(1_700_000_000);
    const END: Timestamp = Timestamp::from_seconds(1_700_000_010);

    fn resource(kind: ResourceKind) -> Resource {
        Resource::new(kind, format!("the {}", kind.name()))
            .with(attribute::NODE, "node-1")
            .with(attribute::AGENT_VERSION, "0.1.0")
            .with(attribute::ORIGIN, "simulated")
    }

    fn tick(resource: Resource, points: Vec<Point>) -> ResourceTick {
        ResourceTick {
            resource: Arc::new(resource),
            start: START,
            end: END,
            points,
        }
    }

    /// Over the wire and back.
    fn through_the_wire(ticks: &[ResourceTick]) -> DecodedMetrics {
        let bytes = encode_metrics(ticks).encode_to_vec();
        let request = Message::decode(bytes.as_slice()).expect("what we encode decodes");
        decode_metrics(request, &Limits::default())
    }

    fn as_points(decoded: &DecodedResource) -> Vec<Point> {
        let as_point = |point: &DecodedPoint| Point {
            metric: point.metric.id,
            part: point.part.clone(),
            value: point.value,
        };
        decoded.points.iter().map(as_point).collect()
    }

    /// A value, a missing value, and of parts two of each.
    fn points_of(metric: &catalog::Metric, salt: f64) -> Vec<Point> {
        let value = match metric.kind {
            Kind::Counter => PointValue::Counter {
                value: 1e15 + salt,
                since: Timestamp::from_seconds(1_600_000_000),
            },
            Kind::SecondBits => PointValue::SecondBits(0b11_0101_0001),
            Kind::Gauge | Kind::Last => PointValue::Gauge {
                value: 0.1 + salt,
                max: metric.with_max.then_some(0.3 + salt),
            },
        };
        let missing = PointValue::Missing(Missing::GpuLost);
        let point = |id: &str, value| Point {
            metric: metric.id,
            part: metric.part.map(|kind| Part::new(kind, id)),
            value,
        };
        match metric.part {
            Some(_) => vec![point("a", value), point("b", missing), point("7", value)],
            None if metric.id.0.is_multiple_of(7) => vec![point("", missing)],
            None => vec![point("", value)],
        }
    }

    #[test]
    fn every_metric_of_the_catalog_travels_there_and_back_as_it_is() {
        for kind in ResourceKind::ALL {
            let subject = match kind {
                ResourceKind::Share => ResourceKind::Gpu,
                other => other,
            };
            let sent: Vec<_> = catalog::all()
                .filter(|metric| metric.resource == subject)
                .flat_map(|metric| points_of(metric, f64::from(metric.id.0)))
                .collect();
            let decoded = through_the_wire(&[tick(resource(kind), sent.clone())]);
            assert_eq!(decoded.rejected.to_string(), "");
            assert_eq!(*decoded.resources[0].resource, resource(kind));
            let mut found = as_points(&decoded.resources[0]);
            let order = |point: &Point| (point.metric, point.part.clone());
            found.sort_by_key(order);
            let mut sent = sent;
            sent.sort_by_key(order);
            assert_eq!(found, sent, "{}", kind.name());
            for point in &decoded.resources[0].points {
                assert_eq!(point.at, END);
                if point.metric.kind != Kind::Counter {
                    assert_eq!(point.start, START, "{}", point.metric.name);
                }
            }
        }
    }

    #[test]
    fn metrics_sent_alone_are_told_from_those_that_share_their_name() {
        for metric in catalog::all() {
            let sent = points_of(metric, 1.0);
            let decoded = through_the_wire(&[tick(resource(metric.resource), sent.clone())]);
            assert_eq!(as_points(&decoded.resources[0]), sent, "{}", metric.name);
        }
    }

    #[test]
    fn a_request_may_hold_several_ticks_and_resources() {
        let point = |value| Point {
            metric: catalog::gpu::POWER.id,
            part: None,
            value: PointValue::Gauge { value, max: None },
        };
        let unknown = Point {
            metric: MetricId(9_999),
            ..point(0.0)
        };
        let gpu = || resource(ResourceKind::Gpu);
        let ticks = [
            tick(gpu(), vec![point(1.0), unknown]),
            tick(gpu(), vec![point(2.0)]),
            tick(resource(ResourceKind::Share), vec![point(3.0)]),
        ];
        let decoded = through_the_wire(&ticks);
        let values: Vec<_> = decoded.resources.iter().map(as_points).collect();
        assert_eq!(values, [[point(1.0)], [point(2.0)], [point(3.0)]]);
    }

    #[test]
    fn a_rank_that_no_agent_stands_behind_is_claimed_whatever_it_says() {
        let decoded = |id: &str| {
            let rank = Resource::new(ResourceKind::Rank, id).with(attribute::TRUST, "proved");
            let point = Point {
                metric: catalog::training::STEPS.id,
                part: None,
                value: PointValue::Counter {
                    value: 3.0,
                    since: START,
                },
            };
            let mut request = encode_metrics(&[tick(rank, vec![point])]);
            let resource = request.resource_metrics[0].resource.as_mut();
            let attributes = &mut resource.expect("it has one").attributes;
            attributes.retain(|it| it.key != SERVICE_NAME_KEY);
            decode_metrics(request, &Limits::default())
        };
        let found = decoded("team/llama/u/0/3");
        let rank = &found.resources[0].resource;
        assert_eq!(rank.attribute(attribute::TRUST), Some("claimed"));
        assert_eq!(
            (rank.kind, &*rank.id),
            (ResourceKind::Rank, "team/llama/u/0/3")
        );
        let refused = decoded("team/llama").rejected;
        assert_eq!(refused.count(Reject::UnidentifiedResource), 1);
    }

    /// Two steps of a rank.
    fn block() -> StepBlock {
        let times = |wall_ns| StepTimes {
            wall_ns,
            busy_ns: wall_ns / 2,
            data_wait_ns: 80_000,
            comm_wait_ns: 160_000,
        };
        StepBlock {
            first_step: 7,
            steps_log2: 0,
            started_at: START,
            ended_at: END,
            tokens: 4_096,
            samples: 2,
            times: vec![times(4_000_000_000), times(6_000_000_000)],
        }
    }

    #[test]
    fn steps_travel_beside_events_and_what_is_no_block_of_a_rank_is_refused() {
        let block = block();
        let sent = |id: &str| {
            encode_steps(
                [(id, [block.clone()].as_slice())],
                &resource(ResourceKind::Node),
            )
        };
        let mut request = sent("team/llama/u/0/3");
        let records = &mut request.resource_logs[0].scope_logs[0].log_records;
        let mut torn = records[0].clone();
        torn.body = None;
        let wrong = sent("team/llama").resource_logs[0].scope_logs[0].log_records[0].clone();
        let mut early = records[0].clone();
        early.time_unix_nano = 1;
        records.extend([torn, wrong, early]);
        let decoded = decode_events(
            request,
            &Limits {
                earliest: START,
                ..Limits::default()
            },
        );
        assert_eq!(decoded.steps.len(), 1);
        assert_eq!(decoded.steps[0].rank.to_string(), "team/llama/u/0/3");
        assert_eq!(*decoded.steps[0].sender, resource(ResourceKind::Node));
        assert_eq!(decoded.steps[0].blocks, [block]);
        assert_eq!(decoded.rejected.count(Reject::BadSteps), 2);
        assert_eq!(decoded.rejected.count(Reject::TimeOutOfRange), 1);
    }

    /// One of every kind.
    fn every_event() -> Vec<Event> {
        let severities = [Severity::Info, Severity::Warning, Severity::Error];
        EventKind::ALL
            .into_iter()
            .zip(severities.into_iter().cycle())
            .map(|(kind, severity)| Event {
                at: START,
                kind,
                severity,
                resource_kind: ResourceKind::Gpu,
                resource_id: "GPU-1".into(),
                message: format!("It is {}.", kind.name()),
                attributes: [("xid".to_owned(), "79".to_owned())].into(),
            })
            .collect()
    }

    #[test]
    fn events_of_every_kind_travel_there_and_back() {
        let events = every_event();
        let sender = resource(ResourceKind::Node);
        let bytes = encode_events(&events, &sender).encode_to_vec();
        let request = Message::decode(bytes.as_slice()).expect("what we encode decodes");
        let decoded = decode_events(request, &Limits::default());
        assert_eq!(decoded.rejected, Rejected::default());
        for (found, sent) in decoded.events.iter().zip(&events) {
            assert_eq!((&found.event, &*found.sender), (sent, &sender));
        }
        assert_eq!(decoded.events.len(), events.len());
    }
}

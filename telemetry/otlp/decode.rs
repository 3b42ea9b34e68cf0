//! From OTLP requests, ours and others', to points and events in the words of the catalog.
//!
//! A point costs about 0.1 µs beyond prost's own work: names are looked up once per metric, units
//! and types checked there, and no text is copied per point.

mod events;

mod point;

mod sender;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    Metric as OtlpMetric, NumberDataPoint, ResourceMetrics,
};

use self::point::Shape;
use self::sender::Sender;
use super::limits::{Limits, Reject, Rejected, has_control};
use super::meaning::{self, Dialect};
use super::names;
use crate::catalog::{self, Kind, Metric, MetricId};
use crate::event::Event;
use crate::identity::{Part, PartKind, Resource, ResourceKind};
use crate::steps::StepBlock;
use crate::tick::{Point, PointValue, ResourceTick};
use crate::time::Timestamp;
use crate::training::RankId;

pub use self::events::decode_events;

/// A metrics request in the words of the catalog.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DecodedMetrics {
    /// What was kept, by resource. One resource may occur more than once: a request may hold
    /// several ticks.
    pub resources: Vec<DecodedResource>,
    /// What was left out, by reason.
    pub rejected: Rejected,
}

/// The points of one resource.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodedResource {
    /// Who they are about.
    pub resource: Arc<Resource>,
    /// The points, in the order of the request.
    pub points: Vec<DecodedPoint>,
}

/// One point.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodedPoint {
    /// Which metric.
    pub metric: &'static Metric,
    /// The part of the resource it is about; none when about the resource itself.
    pub part: Option<Part>,
    /// What it says: finite, counters not negative, second bits within the tick.
    pub value: PointValue,
    /// When the tick began that it sums up; of a counter and where the sender does not say: `at`.
    pub start: Timestamp,
    /// Its time: when the tick ended.
    pub at: Timestamp,
}

/// A logs request in the words of the catalog.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DecodedEvents {
    /// What was kept, in the order of the request.
    pub events: Vec<DecodedEvent>,
    /// The steps of ranks, in the order of the request.
    pub steps: Vec<DecodedSteps>,
    /// What was left out, by reason.
    pub rejected: Rejected,
}

/// An event with its sender.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodedEvent {
    /// The resource that the request names as its sender: the agent's node.
    pub sender: Arc<Resource>,
    /// What happened.
    pub event: Event,
}

/// What one record tells of a rank's steps.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodedSteps {
    /// The resource that the request names as its sender: the agent's node, or the process itself.
    pub sender: Arc<Resource>,
    /// Whose steps they are.
    pub rank: RankId,
    /// The steps.
    pub blocks: Vec<StepBlock>,
}

/// A tick as it is when it came over the wire, for who has it without one: replays, simulations and benches.
impl From<ResourceTick> for DecodedResource {
    fn from(tick: ResourceTick) -> Self {
        let point = |it: Point| {
            let metric = catalog::by_id(it.metric)?;
            let is_counter = metric.kind == Kind::Counter;
            Some(DecodedPoint {
                metric,
                part: it.part,
                value: it.value,
                start: if is_counter { tick.end } else { tick.start },
                at: tick.end,
            })
        };
        Self {
            resource: tick.resource,
            points: tick.points.into_iter().filter_map(point).collect(),
        }
    }
}

/// Reads a request, ours or someone else's. What is wrong or unknown is counted under its reason
/// and the rest goes on.
pub fn decode_metrics(request: ExportMetricsServiceRequest, limits: &Limits) -> DecodedMetrics {
    let mut decoder = Decoder {
        limits,
        points_left: limits.points,
        attribute_bytes_left: limits.attribute_bytes,
        places: HashMap::new(),
        resources: Vec::with_capacity(request.resource_metrics.len().min(limits.resources)),
        rejected: Rejected::default(),
    };
    for sent in request.resource_metrics {
        decoder.read_resource(sent);
    }
    DecodedMetrics {
        resources: decoder
            .resources
            .into_iter()
            .map(|built| built.finish(&mut decoder.rejected))
            .collect(),
        rejected: decoder.rejected,
    }
}

struct Decoder<'a> {
    limits: &'a Limits,
    points_left: usize,
    attribute_bytes_left: usize,
    /// Where the resources of the present sender stand in `resources`.
    places: HashMap<(ResourceKind, String), usize>,
    resources: Vec<Built>,
    rejected: Rejected,
}

/// A resource in the making.
struct Built {
    resource: Resource,
    points: Vec<DecodedPoint>,
    parts: HashMap<PartKind, HashSet<Arc<str>>>,
    maxima: Vec<DecodedPoint>,
}

/// What is the same for all points of one OTLP metric.
struct Series<'a> {
    meaning: &'static meaning::Meaning,
    name: &'a str,
    unit: &'a str,
}

impl Decoder<'_> {
    fn read_resource(&mut self, sent: ResourceMetrics) {
        self.places.clear();
        let attributes = sent.resource.unwrap_or_default().attributes;
        let sender = Sender::read(attributes, self.limits, &mut self.rejected);
        let mut last = None;
        for metric in sent.scope_metrics.into_iter().flat_map(|it| it.metrics) {
            self.read_metric(metric, &sender, &mut last);
        }
    }

    fn read_metric(&mut self, metric: OtlpMetric, sender: &Sender, last: &mut Option<usize>) {
        let name = metric.name.as_str();
        let (mut points, shape) = match metric.data {
            Some(Data::Gauge(gauge)) => (gauge.data_points, Shape::Gauge),
            Some(Data::Sum(sum)) => {
                let shape = Shape::of_sum(&sum);
                (sum.data_points, shape)
            }
            Some(Data::Histogram(it)) => return self.histogram(it.data_points.len(), name),
            Some(Data::ExponentialHistogram(it)) => {
                return self.histogram(it.data_points.len(), name);
            }
            Some(Data::Summary(it)) => return self.histogram(it.data_points.len(), name),
            None => return self.rejected.add(Reject::WrongType, 1, || name.to_owned()),
        };
        let count = points.len() as u64;
        let Some(meaning) = meaning::meaning(name) else {
            return self
                .rejected
                .add(Reject::UnknownMetric, count, || name.to_owned());
        };
        if let Err(reason) = shape.check(meaning) {
            return self.rejected.add(reason, count, || name.to_owned());
        }
        let over = points.len().saturating_sub(self.points_left);
        self.rejected
            .add(Reject::TooManyPoints, over as u64, || name.to_owned());
        points.truncate(self.points_left);
        self.points_left -= points.len();
        let series = Series {
            meaning,
            name,
            unit: &metric.unit,
        };
        for point in points {
            if let Err(reason) = self.read_point(&series, point, sender, last) {
                self.rejected
                    .add(reason, 1, || format!("{name} of {}", sender.name()));
            }
        }
    }

    fn histogram(&mut self, points: usize, name: &str) {
        self.rejected
            .add(Reject::Histogram, points as u64, || name.to_owned());
    }

    fn read_point(
        &mut self,
        series: &Series<'_>,
        mut point: NumberDataPoint,
        sender: &Sender,
        last: &mut Option<usize>,
    ) -> Result<(), Reject> {
        if point.attributes.len() > self.limits.attributes {
            point.attributes.truncate(self.limits.attributes);
            self.rejected
                .add(Reject::TooManyAttributes, 1, || series.name.to_owned());
        }
        let metric = series.metric(&point.attributes)?;
        let (start, at) = point::times(metric, &point, self.limits)?;
        let value = point::value(metric, &point, &series.conversion(metric)?)?;
        let place = self.place(metric, &point.attributes, sender, last)?;
        let built = &mut self.resources[place];
        let part = match metric.part {
            Some(kind) => Some(built.part(kind, &point.attributes, self.limits)?),
            None => None,
        };
        let decoded = DecodedPoint {
            metric,
            part,
            value,
            start,
            at,
        };
        match series.meaning.dialect {
            Dialect::Max => built.maxima.push(decoded),
            Dialect::Otlp | Dialect::Dcgm { .. } => built.points.push(decoded),
        }
        Ok(())
    }

    /// Where the resource stands that a point is about; a new one is put at the end.
    fn place(
        &mut self,
        metric: &Metric,
        attributes: &[KeyValue],
        sender: &Sender,
        last: &mut Option<usize>,
    ) -> Result<usize, Reject> {
        let target = sender.target(metric, attributes, self.limits)?;
        // Nearly every request keeps to one resource per sender: no look-up for those.
        if let Some(place) = *last
            && target.is(&self.resources[place].resource)
        {
            return Ok(place);
        }
        let key = (target.kind, target.id.clone().into_owned());
        let place = match self.places.get(&key) {
            Some(place) => *place,
            None if self.resources.len() >= self.limits.resources => {
                return Err(Reject::TooManyResources);
            }
            None => {
                let resource = sender.resource(&target, attributes, self.limits);
                let bytes = resource
                    .attributes
                    .iter()
                    .map(|(key, value)| key.len() + value.len());
                self.attribute_bytes_left = self
                    .attribute_bytes_left
                    .checked_sub(bytes.sum())
                    .ok_or(Reject::TooManyResources)?;
                self.resources.push(Built {
                    resource,
                    points: Vec::new(),
                    parts: HashMap::new(),
                    maxima: Vec::new(),
                });
                self.places.insert(key, self.resources.len() - 1);
                self.resources.len() - 1
            }
        };
        *last = Some(place);
        Ok(place)
    }
}

impl Built {
    fn part(
        &mut self,
        kind: PartKind,
        attributes: &[KeyValue],
        limits: &Limits,
    ) -> Result<Part, Reject> {
        let number;
        let id = match attribute(attributes, kind.attribute()) {
            Some(Value::StringValue(id)) => id.as_str(),
            Some(Value::IntValue(id)) => {
                number = id.to_string();
                &number
            }
            _ => return Err(Reject::NoPart),
        };
        if id.is_empty() {
            return Err(Reject::NoPart);
        }
        if id.len() > limits.label_bytes {
            return Err(Reject::LongId);
        }
        let known = self.parts.entry(kind).or_default();
        if let Some(id) = known.get(id) {
            return Ok(Part::new(kind, Arc::clone(id)));
        }
        if has_control(id) {
            return Err(Reject::UnprintableId);
        }
        if known.len() >= limits.parts {
            return Err(Reject::TooManyParts);
        }
        let id: Arc<str> = id.into();
        known.insert(Arc::clone(&id));
        Ok(Part::new(kind, id))
    }

    /// Joins the maxima with their means.
    fn finish(mut self, rejected: &mut Rejected) -> DecodedResource {
        let mut means: HashMap<(MetricId, Timestamp, Option<Part>), usize> = HashMap::new();
        if !self.maxima.is_empty() {
            for (place, point) in self.points.iter().enumerate() {
                if point.metric.with_max {
                    means.insert((point.metric.id, point.at, point.part.clone()), place);
                }
            }
        }
        for maximum in self.maxima {
            let key = (maximum.metric.id, maximum.at, maximum.part);
            let mean = means.get(&key).map(|place| &mut self.points[*place].value);
            match (mean, maximum.value) {
                (Some(PointValue::Gauge { max, .. }), PointValue::Gauge { value, .. }) => {
                    *max = Some(value);
                }
                _ => rejected.add(Reject::MaxAlone, 1, || {
                    format!(
                        "{} of {}",
                        names::max_name(maximum.metric),
                        self.resource.id
                    )
                }),
            }
        }
        DecodedResource {
            resource: Arc::new(self.resource),
            points: self.points,
        }
    }
}

/// The value of an attribute.
fn attribute<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Value> {
    attributes
        .iter()
        .find(|it| it.key == key)
        .and_then(|it| it.value.as_ref())
        .and_then(|it| it.value.as_ref())
}

/// An attribute that is a text.
fn text<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a str> {
    match attribute(attributes, key)? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

/// An attribute's value as a text; none for lists, maps and bytes, which name nothing.
fn as_text(value: Option<AnyValue>) -> Option<String> {
    match value?.value? {
        Value::StringValue(text) => Some(text),
        Value::BoolValue(flag) => Some(flag.to_string()),
        Value::IntValue(number) => Some(number.to_string()),
        Value::DoubleValue(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;

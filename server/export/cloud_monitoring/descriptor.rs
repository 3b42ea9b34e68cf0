//! What Cloud Monitoring is told of a metric, made from the catalog: its kind, type, unit and labels, and a
//! point in these words.
//!
//! A descriptor cannot be changed where a metric has data, so everything in it follows from the catalog
//! alone. A counter is CUMULATIVE, all else GAUGE; flags and codes are INT64, all else DOUBLE.

use google_cloud_api::model::label_descriptor::ValueType as LabelType;
use google_cloud_api::model::metric_descriptor::{MetricKind, ValueType};
use google_cloud_api::model::{
    LabelDescriptor, Metric as Named, MetricDescriptor, MonitoredResource,
};
use google_cloud_monitoring_v3::model::{self, TimeInterval, TimeSeries, TypedValue};
use gpufleet_telemetry::catalog::{Kind, Metric, Unit};
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::time::Timestamp;

use super::Point;

/// The label that keeps two writers' series apart: of one series only one may write.
pub const WRITER: &str = "writer";

/// The prefixes that metrics of one's own may have.
const PREFIXES: [&str; 2] = ["custom.googleapis.com", "workload.googleapis.com"];

/// The longest description, bytes; it is told on one line of the console.
const DESCRIPTION_BYTES: usize = 1_000;

/// Refuses a prefix that Cloud Monitoring would refuse.
///
/// # Errors
/// Says which there are.
pub fn check_prefix(prefix: &str) -> Result<(), String> {
    match PREFIXES.contains(&prefix) {
        true => Ok(()),
        false => Err(format!(" = {prefix:?}: {} or {}", PREFIXES[0], PREFIXES[1])),
    }
}

/// The name of a metric's type.
pub fn type_name(metric: &Metric, prefix: &str) -> String {
    format!("{prefix}/{}", metric.name)
}

/// The labels that series of a metric may have, beside those of what they are of.
pub fn labels(metric: &Metric) -> Vec<&'static str> {
    let of_kind: &[&str] = match metric.resource {
        ResourceKind::Node => &[],
        ResourceKind::Gpu | ResourceKind::Share => &["gpu", "share"],
        ResourceKind::Endpoint => &["endpoint"],
        ResourceKind::Rank => &["rank"],
    };
    let all = ["cluster", "index", "model", "node", "origin", WRITER];
    all.into_iter().chain(of_kind.iter().copied()).collect()
}

/// Whether a metric is one of such a resource: then all labels of the resource are labels of the metric.
pub fn fits(metric: &Metric, kind: ResourceKind) -> bool {
    metric.resource == kind
        || matches!(
            (metric.resource, kind),
            (ResourceKind::Gpu, ResourceKind::Share)
        )
}

/// The unit in UCUM's words.
pub const fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Watts => "W",
        Unit::Joules => "J",
        Unit::Celsius => "Cel",
        Unit::Hertz => "Hz",
        Unit::Bytes => "By",
        Unit::BytesPerSecond => "By/s",
        Unit::Seconds => "s",
        Unit::Ratio | Unit::Count | Unit::Flag | Unit::Code => "1",
    }
}

fn kind(metric: &Metric) -> MetricKind {
    match metric.kind {
        Kind::Counter => MetricKind::Cumulative,
        Kind::Gauge | Kind::Last | Kind::SecondBits => MetricKind::Gauge,
    }
}

fn is_whole(metric: &Metric) -> bool {
    matches!(metric.kind, Kind::Last) && matches!(metric.unit, Unit::Flag | Unit::Code)
}

fn value_type(metric: &Metric) -> ValueType {
    match is_whole(metric) {
        true => ValueType::Int64,
        false => ValueType::Double,
    }
}

/// The descriptor of a metric.
pub fn descriptor(metric: &Metric, prefix: &str) -> MetricDescriptor {
    let label = |name: &'static str| {
        let about = match name {
            "cluster" => "The cluster it is in.",
            "index" => "The card's index on its node.",
            "model" => "The card's name as NVML spells it.",
            "node" => "The node it is on.",
            "origin" => "live, recorded or simulated.",
            WRITER => "The gpufleet server that writes the series.",
            "gpu" => "The card's UUID.",
            "share" => "The id of a part of a card.",
            "endpoint" => "The model server's endpoint.",
            "rank" => "The process of a training run.",
            _ => "",
        };
        LabelDescriptor::new()
            .set_key(name)
            .set_value_type(LabelType::String)
            .set_description(about)
    };
    let end = metric.help.floor_char_boundary(DESCRIPTION_BYTES);
    MetricDescriptor::new()
        .set_type(type_name(metric, prefix))
        .set_metric_kind(kind(metric))
        .set_value_type(value_type(metric))
        .set_unit(unit(metric.unit))
        .set_description(&metric.help[..end])
        .set_display_name(metric.name)
        .set_labels(labels(metric).into_iter().map(label))
}

/// A point as the one point of its series.
pub fn series(point: &Point, prefix: &str) -> TimeSeries {
    let metric = point.metric;
    let labels = point.labels.iter();
    let labels = labels.map(|(name, value)| (name.clone(), value.clone()));
    let named = Named::new()
        .set_type(type_name(metric, prefix))
        .set_labels(labels);
    let place = point.place.labels.iter();
    let place = place.map(|(name, value)| ((*name).to_owned(), value.clone()));
    let resource = MonitoredResource::new()
        .set_type(point.place.kind)
        .set_labels(place);
    let value = match is_whole(metric) {
        true => TypedValue::new().set_int64_value(point.value.round() as i64),
        false => TypedValue::new().set_double_value(point.value),
    };
    let mut interval = TimeInterval::new().set_end_time(time(point.end));
    if let Some(start) = point.start {
        interval = interval.set_start_time(time(start));
    }
    let point = model::Point::new().set_interval(interval).set_value(value);
    TimeSeries::new()
        .set_metric(named)
        .set_resource(resource)
        .set_metric_kind(kind(metric))
        .set_value_type(value_type(metric))
        .set_points([point])
}

fn time(at: Timestamp) -> google_cloud_wkt::Timestamp {
    let nanos = at.0.rem_euclid(1_000_000_000);
    let nanos = i32::try_from(nanos).expect("less than a second of nanoseconds");
    google_cloud_wkt::Timestamp::clamp(at.seconds(), nanos)
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::catalog::{self, gpu, node};

    use super::*;

    /// What Cloud Monitoring says of names, lengths and numbers of labels.
    #[test]
    fn the_descriptor_of_every_metric_that_may_be_chosen_is_legal() {
        let is_word = |it: &str| {
            let mut bytes = it.bytes();
            bytes.next().is_some_and(|it| it.is_ascii_lowercase())
                && bytes.all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'_')
        };
        let all = catalog::all().filter(|it| it.in_minutes && it.kind != Kind::SecondBits);
        let mut seen = 0;
        for metric in all {
            for prefix in PREFIXES {
                let made = descriptor(metric, prefix);
                let name = made.r#type.strip_prefix(prefix).expect("the prefix");
                assert!(is_word(&name[1..]) && made.r#type.len() <= 200, "{name}");
                let keys: Vec<&str> = made.labels.iter().map(|it| it.key.as_str()).collect();
                assert!(keys.len() <= 10, "{name}: {keys:?}");
                assert!(keys.iter().all(|it| is_word(it) && it.len() <= 100));
                assert!(keys.contains(&WRITER), "{name}: {keys:?}");
                assert!(
                    !made.description.is_empty() && made.description.len() <= DESCRIPTION_BYTES,
                    "{name}"
                );
                let is_number = matches!(made.value_type, ValueType::Int64 | ValueType::Double);
                assert!(is_number, "{name}");
                let is_kind =
                    matches!(made.metric_kind, MetricKind::Gauge | MetricKind::Cumulative);
                assert!(is_kind, "{name}");
                seen += 1;
            }
        }
        assert!(seen > 100, "{seen}");
    }

    #[test]
    fn kind_type_and_unit_are_those_of_the_catalog() {
        let of = |metric| {
            let made = descriptor(metric, PREFIXES[0]);
            (made.metric_kind, made.value_type, made.unit)
        };
        let double = ValueType::Double;
        assert_eq!(
            of(&gpu::POWER),
            (MetricKind::Gauge, double.clone(), "W".to_owned())
        );
        assert_eq!(
            of(&gpu::ENERGY),
            (MetricKind::Cumulative, double.clone(), "J".to_owned())
        );
        assert_eq!(
            of(&gpu::THROTTLE_REASONS),
            (MetricKind::Gauge, ValueType::Int64, "1".to_owned())
        );
        assert_eq!(
            of(&node::MEMORY_AVAILABLE),
            (MetricKind::Gauge, double, "By".to_owned())
        );
    }

    #[test]
    fn every_label_of_a_resource_is_one_of_the_metrics_that_fit_it() {
        use std::sync::Arc;

        use gpufleet_telemetry::identity::{Resource, attribute};

        use crate::export::samples;
        use crate::store::model::{KnownResource, ResourceKey};

        for kind in ResourceKind::ALL {
            let resource = [
                attribute::NODE,
                attribute::GPU_INDEX,
                attribute::GPU_MODEL,
                attribute::ORIGIN,
            ]
            .iter()
            .fold(Resource::new(kind, "id"), |it, name| it.with(name, "x"));
            let known = KnownResource {
                key: ResourceKey {
                    cluster: "prod".into(),
                    kind,
                    id: "id".into(),
                },
                resource: Arc::new(resource),
                agent: None,
                first_seen: Timestamp(0),
                last_seen: Timestamp(0),
            };
            let told = samples::labels(&known).expect("short names");
            for metric in catalog::all().filter(|it| it.in_minutes && fits(it, kind)) {
                let allowed = labels(metric);
                let is_allowed = told.iter().all(|it| allowed.contains(&it.0));
                assert!(is_allowed, "{}: {told:?}", metric.name);
            }
        }
    }
}

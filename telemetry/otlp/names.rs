//! How each metric is called in OTLP, and which metric a name means.
//!
//! A name is OpenTelemetry's own where the catalog has one, else the catalog name with dots after
//! `gpufleet` and the subject and without `_total` and the unit: `gpufleet_gpu_sm_clock_hertz` is
//! `gpufleet.gpu.sm_clock`. The unit travels beside it in UCUM.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::catalog::{self, Kind, Metric, MetricId, Unit, gpu};

/// What a metric's maximum is called: its name and this.
const MAX_SUFFIX: &str = ".max";

/// What a name in a request means.
pub(super) struct Meaning {
    /// The metrics that share the name; their attributes tell them apart.
    pub(super) metrics: Vec<&'static Metric>,
    /// Whose name it is.
    pub(super) dialect: Dialect,
    /// The one meant by a point that has none of the attributes.
    pub(super) default: Option<&'static Metric>,
}

/// Whose name a name is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Dialect {
    /// OpenTelemetry's or ours: our base unit.
    Otlp,
    /// The maximum beside a mean of ours.
    Max,
    /// dcgm-exporter's: its value = ours × scale, and its types are not to be trusted.
    Dcgm {
        /// What ours is multiplied with.
        scale: f64,
    },
}

/// A metric's name in OTLP.
pub fn name(metric: &Metric) -> &'static str {
    match metric.otlp {
        Some(otlp) => otlp.name,
        None => &written(metric).name,
    }
}

/// The name of a metric's maximum in OTLP.
pub fn max_name(metric: &Metric) -> &'static str {
    &written(metric).max
}

/// A metric's unit in UCUM. Counts, flags and codes are annotations and not `1`: translators to
/// Prometheus call a gauge of `1` a ratio.
pub fn unit(metric: &Metric) -> &'static str {
    match metric.unit {
        Unit::Watts => "W",
        Unit::Joules => "J",
        Unit::Celsius => "Cel",
        Unit::Hertz => "Hz",
        Unit::Bytes => "By",
        Unit::BytesPerSecond => "By/s",
        Unit::Seconds => "s",
        Unit::Ratio => "1",
        Unit::Count if name(metric) == "hw.errors" => "{error}",
        Unit::Count => "{count}",
        Unit::Flag => "{flag}",
        Unit::Code => "{code}",
    }
}

/// What a value in this unit must be multiplied with to be in the metric's base unit; none when it
/// cannot be converted. No unit is taken for the metric's own.
pub(super) fn unit_scale(metric: &Metric, sent: &str) -> Option<f64> {
    if sent.is_empty() || sent == unit(metric) {
        return Some(1.0);
    }
    let known: &[(&str, f64)] = match metric.unit {
        Unit::Watts => &[("mW", 1e-3), ("kW", 1e3)],
        Unit::Joules => &[("mJ", 1e-3), ("kJ", 1e3), ("kWh", 3.6e6), ("kW.h", 3.6e6)],
        Unit::Celsius => &[("C", 1.0), ("°C", 1.0)],
        Unit::Hertz => &[("kHz", 1e3), ("MHz", 1e6), ("GHz", 1e9)],
        Unit::Bytes => &[
            ("KiBy", 1_024.0),
            ("MiBy", 1_048_576.0),
            ("GiBy", 1_073_741_824.0),
            ("kBy", 1e3),
            ("MBy", 1e6),
            ("GBy", 1e9),
        ],
        Unit::BytesPerSecond => &[("KiBy/s", 1_024.0), ("MiBy/s", 1_048_576.0), ("MBy/s", 1e6)],
        Unit::Seconds => &[
            ("ms", 1e-3),
            ("us", 1e-6),
            ("ns", 1e-9),
            ("min", 60.0),
            ("h", 3_600.0),
        ],
        Unit::Ratio => &[("%", 1e-2)],
        Unit::Count | Unit::Flag | Unit::Code => {
            let is_annotation = sent.starts_with('{') && sent.ends_with('}');
            return (sent == "1" || is_annotation).then_some(1.0);
        }
    };
    known
        .iter()
        .find(|(unit, _)| *unit == sent)
        .map(|(_, scale)| *scale)
}

/// What a metric's name in a request means; none when the catalog has no such metric.
pub(super) fn meaning(name: &str) -> Option<&'static Meaning> {
    static MEANINGS: LazyLock<HashMap<&'static str, Meaning>> = LazyLock::new(meanings);
    MEANINGS.get(name)
}

fn meanings() -> HashMap<&'static str, Meaning> {
    let mut meanings: HashMap<&'static str, Meaning> = HashMap::new();
    let mut add = |name: &'static str, dialect: Dialect, metric: &'static Metric| {
        let meaning = meanings.entry(name).or_insert_with(|| Meaning {
            metrics: Vec::new(),
            dialect,
            default: None,
        });
        meaning.metrics.push(metric);
        // The convention only recommends the attributes; without them these are meant.
        if [gpu::UTILIZATION.id, gpu::TEMPERATURE.id].contains(&metric.id) {
            meaning.default = Some(metric);
        }
    };
    for metric in catalog::all() {
        add(name(metric), Dialect::Otlp, metric);
        if metric.with_max {
            add(max_name(metric), Dialect::Max, metric);
        }
        if let Some(dcgm) = metric.dcgm {
            add(dcgm.name, Dialect::Dcgm { scale: dcgm.scale }, metric);
        }
    }
    meanings
}

struct Written {
    name: String,
    max: String,
}

fn written(metric: &Metric) -> &'static Written {
    static WRITTEN: LazyLock<HashMap<MetricId, Written>> = LazyLock::new(|| {
        catalog::all()
            .map(|metric| {
                let name = metric
                    .otlp
                    .map_or_else(|| dotted(metric), |otlp| otlp.name.to_owned());
                let max = format!("{name}{MAX_SUFFIX}");
                (metric.id, Written { name, max })
            })
            .collect()
    });
    WRITTEN
        .get(&metric.id)
        .expect("every metric comes from the catalog")
}

fn dotted(metric: &Metric) -> String {
    let bare = metric.name.strip_prefix("gpufleet_").unwrap_or(metric.name);
    let (subject, thing) = bare.split_once('_').unwrap_or((bare, ""));
    let thing = thing.strip_suffix("_total").unwrap_or(thing);
    let thing = match (metric.kind, metric.unit.suffix()) {
        (Kind::SecondBits, _) => thing.strip_suffix("_mask"),
        (_, Some(unit)) => thing.strip_suffix(unit).and_then(|it| it.strip_suffix('_')),
        (_, None) => None,
    }
    .unwrap_or(thing);
    format!("gpufleet.{subject}.{thing}")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_name_is_the_catalog_name_with_dots_and_without_its_unit() {
        for (metric, expected, expected_unit) in [
            (&gpu::SM_CLOCK, "gpufleet.gpu.sm_clock", "Hz"),
            (&gpu::SM_CLOCK_MAX, "gpufleet.gpu.sm_clock_max", "Hz"),
            (&gpu::OBSERVED, "gpufleet.gpu.observed", "{code}"),
            (&gpu::PCIE_REPLAYS, "gpufleet.gpu.pcie_replays", "{count}"),
            (&gpu::PCIE_SENT, "gpufleet.gpu.pcie_sent", "By/s"),
            (&gpu::THROTTLE_POWER, "gpufleet.gpu.throttle_power", "s"),
            (&gpu::ECC_CORRECTED_VOLATILE, "hw.errors", "{error}"),
            (&gpu::POWER, "hw.power", "W"),
        ] {
            assert_eq!((name(metric), unit(metric)), (expected, expected_unit));
        }
        assert_eq!(max_name(&gpu::POWER), "hw.power.max");
    }

    #[test]
    fn a_name_with_its_attributes_and_part_means_one_metric() {
        let mut seen = HashMap::new();
        for metric in catalog::all() {
            let attributes = metric.otlp.map_or(&[][..], |otlp| otlp.attributes);
            let mut names = vec![name(metric)];
            names.extend(metric.with_max.then(|| max_name(metric)));
            for name in names {
                let before = seen.insert((name, attributes, metric.part), metric.name);
                assert_eq!(before, None, "{name} of {}", metric.name);
            }
        }
    }

    #[test]
    fn metrics_that_share_a_name_share_kind_and_unit_and_have_the_same_attribute_keys() {
        let keys = |metric: &Metric| -> Vec<&str> {
            let attributes = metric.otlp.map_or(&[][..], |otlp| otlp.attributes);
            attributes.iter().map(|(key, _)| *key).collect()
        };
        for metric in catalog::all() {
            let meaning = meaning(name(metric)).expect("every name has a meaning");
            for other in &meaning.metrics {
                let is_counter = |it: &Metric| it.kind == Kind::Counter;
                assert_eq!(is_counter(metric), is_counter(other), "{}", metric.name);
                assert_eq!(metric.unit, other.unit, "{}", metric.name);
                assert_eq!(metric.part, other.part, "{}", metric.name);
                assert_eq!(keys(metric), keys(other), "{}", metric.name);
            }
        }
    }

    #[test]
    fn others_units_are_converted_or_refused() {
        for (metric, sent, expected) in [
            (&gpu::UTILIZATION, "%", Some(0.01)),
            (&gpu::UTILIZATION, "1", Some(1.0)),
            (&gpu::UTILIZATION, "By", None),
            (&gpu::MEMORY_USED, "MiBy", Some(1_048_576.0)),
            (&gpu::POWER, "", Some(1.0)),
            (&gpu::ECC_CORRECTED_VOLATILE, "{errors}", Some(1.0)),
            (&gpu::ECC_CORRECTED_VOLATILE, "s", None),
        ] {
            assert_eq!(unit_scale(metric, sent), expected, "{} {sent}", metric.name);
        }
    }
}

//! Which metric a name in a request means, and what its unit is in ours.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::names::{max_name, name, unit};
use crate::catalog::{self, Metric, Unit, gpu};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Kind;

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

//! How each metric is called in OTLP.
//!
//! A name is OpenTelemetry's own where the catalog has one, else the catalog name with dots after
//! `gpufleet` and the subject and without `_total` and the unit: `gpufleet_gpu_sm_clock_hertz` is
//! `gpufleet.gpu.sm_clock`. The unit travels beside it in UCUM.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::catalog::{self, Kind, Metric, MetricId, Unit};

/// What a metric's maximum is called: its name and this.
const MAX_SUFFIX: &str = ".max";

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
    use crate::catalog::gpu;

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
}

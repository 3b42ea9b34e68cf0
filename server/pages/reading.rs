//! One reading on a page: its value in the units people say, or why there is none.

use gpufleet_telemetry::catalog::{Metric, Unit, gpu, own};

use crate::fleet::live::Live;
use crate::view::Told;
use crate::words::text::quantity;
use crate::words::{self, Why, plain_name};

/// A reading ready for a template: a value, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// The value with its unit, or the reason in a few words.
    pub text: String,
    /// Why there is no value; none when there is one.
    pub missing: Option<Why>,
}

/// A reading with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// What it is, from the catalog's name.
    pub name: String,
    /// The catalog's name, as Prometheus has it.
    pub metric: &'static str,
    /// What it means.
    pub help: &'static str,
    /// The value or the reason.
    pub cell: Cell,
    /// The greatest sample of the tick, where the catalog asks for it.
    pub max: Option<String>,
    /// The reader it is taken from.
    pub source: String,
}

/// Readings that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// What they are about.
    pub name: &'static str,
    /// Those that were told, with or without a value.
    pub lines: Vec<Line>,
}

impl Cell {
    /// From a reading; a reading that was never told says so.
    pub fn of(unit: Unit, told: Told) -> Self {
        let missing = match told {
            Some(Ok(value)) => {
                return Self {
                    text: quantity(unit, value),
                    missing: None,
                };
            }
            Some(Err(reason)) => words::missing(reason),
            None => words::NEVER_SENT,
        };
        Self {
            text: missing.short.to_owned(),
            missing: Some(missing),
        }
    }

    /// From a metric of a resource: codes and flags in words.
    pub fn of_metric(metric: &Metric, told: Told) -> Self {
        let in_words = |code: f64| -> Option<String> {
            match metric.id {
                id if id == gpu::THROTTLE_REASONS.id => Some(words::throttle(code as u64)),
                id if id == gpu::RECOVERY_ACTION.id => {
                    Some(words::recovery_action(code as u64).to_owned())
                }
                id if id == own::PROBE_VERDICT.id => {
                    Some(words::probe_verdict(code as u64).to_owned())
                }
                id if id == own::PROBE_TENSOR_RATE.id => Some(format!("{:.1} T/s", code / 1e12)),
                id if id == gpu::PERFORMANCE_STATE.id => Some(format!("P{code:.0}")),
                id if id == gpu::LAST_XID.id && code == 0.0 => Some("none lately".to_owned()),
                _ => None,
            }
        };
        match told.and_then(Result::ok).and_then(in_words) {
            Some(text) => Self {
                text,
                missing: None,
            },
            None => Self::of(metric.unit, told),
        }
    }
}

/// Splits the metrics into readings that were told and names of those that never were.
pub fn lines(live: &Live, metrics: &[Metric]) -> (Vec<Line>, Vec<String>) {
    let mut told = Vec::new();
    let mut never = Vec::new();
    for metric in metrics {
        let Some(metric) = gpufleet_telemetry::catalog::by_id(metric.id) else {
            continue;
        };
        match live.value(metric.id) {
            Some(value) => told.push(Line {
                name: plain_name(metric),
                metric: metric.name,
                help: metric.help,
                cell: Cell::of_metric(metric, Some(value.reading)),
                max: value.max.as_deref().map(|max| quantity(metric.unit, *max)),
                source: live.source(metric.id).to_owned(),
            }),
            None => never.push(plain_name(metric)),
        }
    }
    (told, never)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use gpufleet_telemetry::catalog;
    use gpufleet_telemetry::identity::{Origin, Resource, ResourceKind, attribute};
    use gpufleet_telemetry::sample::Missing;

    #[test]
    fn a_missing_reading_is_never_shown_as_a_number() {
        for reason in Missing::ALL {
            let cell = Cell::of(Unit::Watts, Some(Err(reason)));
            assert!(cell.missing.is_some(), "{reason}");
            assert!(
                !cell.text.contains(|it: char| it.is_ascii_digit()),
                "{}",
                cell.text
            );
        }
        assert_eq!(Cell::of(Unit::Watts, None).text, "not reported");
        assert_eq!(Cell::of(Unit::Watts, Some(Ok(0.0))).text, "0 W");
    }

    #[test]
    fn each_reading_says_which_reader_it_is_taken_from() {
        use crate::view::fixture;
        let mut live = fixture::live("c", "n", ResourceKind::Gpu, "GPU-1", Origin::Live);
        assert_eq!(live.source(gpu::POWER.id), "nvml");
        let several = Resource::clone(&live.resource)
            .with(attribute::SOURCE, "nvml,exporter:dcgm")
            .with(attribute::METRIC_SOURCES, "nvml=30;exporter:dcgm=123");
        live.resource = Arc::new(several);
        assert_eq!(live.source(gpu::POWER.id), "nvml");
        assert_eq!(live.source(gpu::TENSOR_ACTIVE.id), "exporter:dcgm");
        let not_told = live.source(gpu::XID.id);
        assert_eq!(not_told, "nvml,exporter:dcgm", "nobody says which");
    }

    #[test]
    fn codes_are_shown_in_words() {
        for (metric, code, shown) in [
            (gpu::THROTTLE_REASONS, 4.0, "power cap"),
            (gpu::RECOVERY_ACTION, 1.0, "reset the GPU"),
            (gpu::PERFORMANCE_STATE, 0.0, "P0"),
            (gpu::LAST_XID, 0.0, "none lately"),
            (gpu::LAST_XID, 79.0, "79"),
        ] {
            assert_eq!(Cell::of_metric(&metric, Some(Ok(code))).text, shown);
        }
    }

    #[test]
    fn a_name_from_the_catalog_reads_as_words() {
        assert_eq!(plain_name(&gpu::GRAPHICS_ACTIVE), "graphics engine active");
        assert_eq!(plain_name(&gpu::ENERGY), "energy");
        assert_eq!(plain_name(&catalog::node::CPU_BUSY), "cpu busy");
    }
}

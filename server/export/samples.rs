//! A minute of the record as samples: which metrics, under which labels, with which value.
//!
//! A gauge is its mean over the minute; of a flag or a code the greatest, because a mean of codes says
//! nothing and what was set at any time of the minute is set. A counter is its last raw value, so that a reset is
//! a reset for whoever reads it. Masks of seconds are left out: their bits are no numbers.

use std::collections::BTreeSet;

use gpufleet_telemetry::catalog::{self, Kind, Metric, MetricId};
use gpufleet_telemetry::identity::{Origin, ResourceKind, attribute};
use gpufleet_telemetry::minute::MinuteRow;

use crate::store::model::KnownResource;

/// Longest label value, bytes: what /metrics gives too. A resource with a longer name is left out whole,
/// because two cut names could be one series twice.
pub const LABEL_BYTES: usize = crate::metrics::LABEL_BYTES;

/// Metrics that are exported.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection(BTreeSet<MetricId>);

/// What a minute says of one metric.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Which metric.
    pub metric: &'static Metric,
    /// Its value, in its base unit.
    pub value: f64,
}

impl Selection {
    /// The metrics that minutes keep and that one of these patterns names: a name, or the beginning of
    /// names followed by `*`.
    ///
    /// # Errors
    /// Names the pattern that names none.
    pub fn read(patterns: &[String]) -> Result<Self, String> {
        let mut found = BTreeSet::new();
        for pattern in patterns {
            let fits = |it: &&Metric| match pattern.strip_suffix('*') {
                Some(beginning) => it.name.starts_with(beginning),
                None => it.name == pattern,
            };
            let all = catalog::all().filter(|it| it.in_minutes && it.kind != Kind::SecondBits);
            let named: Vec<MetricId> = all.filter(fits).map(|it| it.id).collect();
            if named.is_empty() {
                return Err(format!(
                    "`{pattern}` names no metric that minutes keep; docs/metrics.md lists all, and `gpufleet_gpu_*` names all of a GPU"
                ));
            }
            found.extend(named);
        }
        Ok(Self(found))
    }

    /// Whether a metric is exported.
    pub fn has(&self, metric: MetricId) -> bool {
        self.0.contains(&metric)
    }

    /// The metrics, in the order of their numbers.
    pub fn metrics(&self) -> impl Iterator<Item = &'static Metric> {
        self.0.iter().filter_map(|id| catalog::by_id(*id))
    }
}

/// What a minute says of the selected metrics.
pub fn samples(row: &MinuteRow, selection: &Selection) -> Vec<Sample> {
    let one = |id: MetricId, value: &dyn Fn(&Metric) -> f64| {
        let metric = catalog::by_id(id).filter(|_| selection.has(id))?;
        let value = value(metric);
        value.is_finite().then_some(Sample { metric, value })
    };
    let gauges = row.metrics.iter().filter_map(|(id, it)| {
        one(*id, &|metric| match metric.kind {
            Kind::Last => it.max,
            Kind::Gauge | Kind::Counter | Kind::SecondBits => it.mean(),
        })
    });
    let counters = row
        .counters
        .iter()
        .filter_map(|(id, it)| one(*id, &|_| it.last()));
    gauges.chain(counters).collect()
}

/// The labels of a resource, sorted by name; none where one of them is too long.
pub fn labels(known: &KnownResource) -> Option<Vec<(&'static str, String)>> {
    let resource = &known.resource;
    let text = |name| resource.attribute(name).unwrap_or_default();
    let origin = text(attribute::ORIGIN);
    let origin = if origin.is_empty() {
        Origin::Live.name()
    } else {
        origin
    };
    let of_kind = match known.key.kind {
        ResourceKind::Gpu => ("gpu", &*known.key.id),
        ResourceKind::Share => ("share", &*known.key.id),
        ResourceKind::Rank => ("rank", &*known.key.id),
        ResourceKind::Endpoint => ("endpoint", &*known.key.id),
        ResourceKind::Node => ("node", &*known.key.id),
    };
    let mut all = vec![
        ("cluster", &*known.key.cluster),
        ("index", text(attribute::GPU_INDEX)),
        ("model", text(attribute::GPU_MODEL)),
        ("origin", origin),
        of_kind,
    ];
    if known.key.kind != ResourceKind::Node {
        all.push(("node", text(attribute::NODE)));
    }
    all.retain(|(_, value)| !value.is_empty());
    all.sort_unstable();
    if all.iter().any(|(_, value)| value.len() > LABEL_BYTES) {
        return None;
    }
    let owned = all.into_iter();
    Some(
        owned
            .map(|(name, value)| (name, value.to_owned()))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpufleet_telemetry::catalog::gpu;
    use gpufleet_telemetry::identity::Resource;
    use gpufleet_telemetry::minute::{Aggregate, Counter};
    use gpufleet_telemetry::time::Timestamp;

    use super::*;
    use crate::store::model::ResourceKey;

    fn aggregate(values: &[f64]) -> Aggregate {
        let mut all = values
            .iter()
            .map(|it| Aggregate::of_gauge(*it, None).unwrap());
        let first = all.next().unwrap();
        all.fold(first, |mut sum, it| {
            sum.merge(&it);
            sum
        })
    }

    #[test]
    fn a_gauge_is_its_mean_a_code_its_greatest_a_counter_its_last() {
        let mut row = MinuteRow::default();
        row.add(gpu::POWER.id, aggregate(&[100.0, 300.0]));
        row.add(gpu::THROTTLE_REASONS.id, aggregate(&[0.0, 4.0]));
        row.add_counter(gpu::ENERGY.id, &Counter::point(7e6, 0, 10_000).unwrap());
        let all = Selection::read(&["gpufleet_gpu_*".to_owned()]).unwrap();
        let of = |metric: &Metric| {
            let found = samples(&row, &all);
            let found = found.into_iter().find(|it| it.metric.id == metric.id);
            found.map(|it| it.value)
        };
        assert_eq!(of(&gpu::POWER), Some(200.0));
        assert_eq!(of(&gpu::THROTTLE_REASONS), Some(4.0));
        assert_eq!(of(&gpu::ENERGY), Some(7e6));
        assert_eq!(of(&gpu::TEMPERATURE), None, "what is not known is not 0");
        let power = Selection::read(&[gpu::POWER.name.to_owned()]).unwrap();
        assert_eq!(samples(&row, &power).len(), 1);
    }

    #[test]
    fn a_pattern_that_names_nothing_is_refused_by_name() {
        let error = Selection::read(&["gpufleet_gpu_wattage".to_owned()]).unwrap_err();
        assert!(error.contains("gpufleet_gpu_wattage"), "{error}");
    }

    #[test]
    fn a_name_that_is_too_long_leaves_the_resource_out() {
        let known = |node: &str| {
            let resource = Resource::new(ResourceKind::Gpu, "GPU-1").with(attribute::NODE, node);
            KnownResource {
                key: ResourceKey {
                    cluster: "prod".into(),
                    kind: ResourceKind::Gpu,
                    id: "GPU-1".into(),
                },
                resource: Arc::new(resource),
                agent: None,
                first_seen: Timestamp(0),
                last_seen: Timestamp(0),
            }
        };
        let told = labels(&known("node-1")).unwrap();
        let names: Vec<_> = told.iter().map(|it| it.0).collect();
        assert_eq!(names, ["cluster", "gpu", "node", "origin"]);
        assert_eq!(labels(&known(&"n".repeat(LABEL_BYTES + 1))), None);
    }
}

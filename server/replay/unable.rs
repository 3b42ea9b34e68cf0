//! Which detectors the data is not enough for, and why: what a detector reads stands in
//! [`crate::detect::detector`], what there was is counted while it is replayed.
//!
//! A reading that the data cannot hold is told from one that nobody took: minutes keep some metrics and none of
//! parts, a recording has what its readers read.

use std::collections::HashMap;

use gpufleet_telemetry::catalog::{Kind, Metric, MetricId};
use gpufleet_telemetry::identity::attribute;
use gpufleet_telemetry::otlp::{DecodedEvents, DecodedResource};
use gpufleet_telemetry::tick::PointValue;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use crate::detect::Detectors;
use crate::detect::detector::{MOST_SPACING_S, Need};

/// A detector that did not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unable {
    /// What kind of trouble it finds: an incident's family.
    pub family: &'static str,
    /// What it finds.
    pub detector: &'static str,
    /// Why not.
    pub why: String,
}

/// What kind of data it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Minutes, events and steps of the store.
    Day,
    /// What an agent's readers returned.
    Recording,
}

/// What there was.
#[derive(Debug)]
pub struct Data {
    source: Source,
    read: HashMap<MetricId, Times>,
    has_steps: bool,
    has_holders: bool,
    span: Option<(Timestamp, Timestamp)>,
}

/// When a metric was read of anything.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    first: Timestamp,
    last: Timestamp,
    count: u64,
}

impl Data {
    /// Nothing yet.
    pub(super) fn new(source: Source) -> Self {
        Self {
            source,
            read: HashMap::new(),
            has_steps: false,
            has_holders: false,
            span: None,
        }
    }

    /// Takes in what was told of a resource in a tick.
    pub(super) fn note(&mut self, told: &DecodedResource) {
        let held_by = [attribute::HOLDER, attribute::WORKLOAD, attribute::JOB];
        let is_named = |it: &&str| told.resource.attribute(it).is_some();
        self.has_holders |= held_by.iter().any(is_named);
        for point in &told.points {
            let span = self.span.get_or_insert((point.at, point.at));
            span.1 = span.1.max(point.at);
            // Evidence is told in every tick; it says something where a bit is set.
            let is_read = match point.value {
                PointValue::Missing(_) => false,
                PointValue::SecondBits(bits) => bits != 0,
                PointValue::Gauge { .. } | PointValue::Counter { .. } => true,
            };
            if is_read {
                self.read.entry(point.metric.id).or_default().note(point.at);
            }
        }
    }

    /// Takes in what was told of events and steps.
    pub(super) fn note_events(&mut self, told: &DecodedEvents) {
        self.has_steps |= !told.steps.is_empty();
    }

    /// The detectors that this was not enough for.
    pub(super) fn unable(&self) -> Vec<Unable> {
        let mut found: Vec<Unable> = Vec::new();
        for finding in Detectors::default().finds() {
            let mut why = finding.needs.iter().filter_map(|it| self.lacks(it));
            if let Some(why) = why.next() {
                found.push(Unable {
                    family: finding.family.name(),
                    detector: finding.name,
                    why,
                });
            }
        }
        found.dedup();
        found
    }

    fn lacks(&self, need: &Need) -> Option<String> {
        match need {
            Need::Reading(metric) => self.lacks_reading(metric),
            Need::OneOf(metrics) => {
                let each = metrics.iter().map(|it| self.lacks_reading(it));
                let each: Option<Vec<String>> = each.collect();
                // One of them is enough.
                each.and_then(|it| it.into_iter().next())
            }
            Need::Steps if self.has_steps => None,
            Need::Steps => Some(match self.source {
                Source::Day => "no steps of ranks are in the store for it".to_owned(),
                Source::Recording => "a recording has no steps of ranks".to_owned(),
            }),
            Need::Holders if self.has_holders => None,
            Need::Holders => Some(match self.source {
                Source::Day => "of no GPU it is known who held it".to_owned(),
                Source::Recording => "a recording does not say which jobs hold the GPUs".to_owned(),
            }),
            Need::Length(seconds) => {
                let (first, last) = self.span.unwrap_or_default();
                let long = last.since(first) / NANOS_PER_SECOND;
                (long < *seconds)
                    .then(|| format!("it needs {} min and there are {}", seconds / 60, long / 60))
            }
            Need::Events => None,
            Need::Cluster => Some("what the cluster told is not replayed".to_owned()),
            Need::Past => Some("it looks at the incidents of a month".to_owned()),
            Need::RunsBefore => Some("it looks at the runs before this one".to_owned()),
            Need::Money => Some("it looks at what a month has cost so far".to_owned()),
        }
    }

    /// Why a metric is no reading of this data; none where it is one.
    fn lacks_reading(&self, metric: &Metric) -> Option<String> {
        let name = metric.name;
        if let Some(times) = self.read.get(&metric.id) {
            let is_evidence = metric.kind == Kind::SecondBits;
            let spacing = times.spacing().filter(|_| !is_evidence);
            return match spacing {
                Some(spacing) if spacing > MOST_SPACING_S => Some(format!(
                    "{name} was read every {spacing:.0} s, and it needs it every {MOST_SPACING_S:.0} s"
                )),
                None if !is_evidence => Some(format!("{name} was read once")),
                _ => None,
            };
        }
        let is_kept = metric.in_minutes && metric.part.is_none();
        Some(match self.source {
            Source::Day if !is_kept => format!("minutes do not keep {name}"),
            Source::Day | Source::Recording => format!("nobody read {name}"),
        })
    }
}

impl Times {
    fn note(&mut self, at: Timestamp) {
        if self.count == 0 {
            self.first = at;
        } else if at <= self.last {
            return;
        }
        (self.last, self.count) = (at, self.count + 1);
    }

    /// Seconds from one reading to the next; none of a single one.
    fn spacing(&self) -> Option<f64> {
        let span = self.last.since(self.first) as f64 / NANOS_PER_SECOND as f64;
        (self.count > 1).then(|| span / (self.count - 1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpufleet_telemetry::catalog::{gpu, node, training};
    use gpufleet_telemetry::identity::{Resource, ResourceKind};
    use gpufleet_telemetry::otlp::DecodedPoint;

    use super::*;

    const START: i64 = 1_795_000_000;

    fn told(metric: &'static Metric, second: i64, value: PointValue) -> DecodedResource {
        let at = Timestamp::from_seconds(START + second);
        DecodedResource {
            resource: Arc::new(Resource::new(ResourceKind::Gpu, "GPU-1")),
            points: vec![DecodedPoint {
                metric,
                part: None,
                value,
                start: at,
                at,
            }],
        }
    }

    fn why(data: &Data, detector: &str) -> Option<String> {
        let found = data.unable().into_iter();
        let mut found = found.filter(|it| it.detector == detector);
        found.next().map(|it| it.why)
    }

    #[test]
    fn a_reading_that_minutes_do_not_keep_is_told_from_one_that_nobody_took_or_took_too_seldom() {
        let heat = "slowed down by heat";
        let counter = |value: f64| PointValue::Counter {
            value,
            since: Timestamp::default(),
        };
        for (seconds, expected) in [
            (
                &[][..],
                Some("nobody read gpufleet_gpu_throttle_thermal_seconds_total"),
            ),
            (
                &[0],
                Some("gpufleet_gpu_throttle_thermal_seconds_total was read once"),
            ),
            (
                &[0, 300, 600],
                Some(
                    "gpufleet_gpu_throttle_thermal_seconds_total was read every 300 s, and it needs it every 120 s",
                ),
            ),
            (&[0, 60, 120], None),
        ] {
            let mut data = Data::new(Source::Day);
            for second in seconds {
                data.note(&told(&gpu::THROTTLE_THERMAL, *second, counter(1.0)));
            }
            assert_eq!(why(&data, heat).as_deref(), expected, "{seconds:?}");
        }
        let flaps = why(&Data::new(Source::Day), "link_flaps");
        assert!(
            flaps.is_some_and(|it| it.starts_with("minutes do not keep")),
            "parts are in no minute"
        );
        let recorded = why(&Data::new(Source::Recording), "link_flaps");
        assert!(recorded.is_some_and(|it| it.starts_with("nobody read")));
    }

    #[test]
    fn a_run_that_stands_with_busy_gpus_needs_tensor_activity_or_collectives_beside_its_steps() {
        let stands = |metric: Option<&'static Metric>| {
            let mut data = Data::new(Source::Day);
            data.has_steps = true;
            for second in [0, 60, 120] {
                data.note(&told(&gpu::OBSERVED, second, PointValue::SecondBits(1)));
                let value = PointValue::Counter {
                    value: 1.0,
                    since: Timestamp::default(),
                };
                if let Some(metric) = metric {
                    data.note(&told(metric, second, value));
                }
            }
            let idle = why(&data, "a run that stands still and leaves its GPUs idle");
            assert_eq!(idle, None);
            why(&data, "a run that stands still").is_none()
        };
        assert!(!stands(None));
        let each = [
            &gpu::TENSOR_ACTIVE,
            &training::COLLECTIVES_IN_FLIGHT,
            &training::COLLECTIVE_CALLS,
        ];
        for metric in each {
            assert!(stands(Some(metric)), "{}", metric.name);
        }
    }

    #[test]
    fn a_wrong_network_needs_something_that_shows_whether_ranks_talk() {
        let mut data = Data::new(Source::Recording);
        let wrong_network = "a run on the wrong network";
        let note = |data: &mut Data, metric: &'static Metric| {
            for second in [0, 60, 120] {
                let since = Timestamp::default();
                let value = PointValue::Counter { value: 1.0, since };
                data.note(&told(metric, second, value));
            }
        };
        for metric in [&node::NIC_SENT, &node::NIC_RECEIVED, &node::NIC_UP] {
            note(&mut data, metric);
        }
        let lacks = why(&data, wrong_network);
        assert!(lacks.is_some_and(|it| it.starts_with("nobody read gpufleet_training_")));
        note(&mut data, &training::STEP_COMMUNICATION_WAIT);
        assert_eq!(why(&data, wrong_network), None);
    }

    #[test]
    fn evidence_without_a_set_bit_and_a_missing_reading_are_no_readings() {
        let mut data = Data::new(Source::Recording);
        for second in [0, 10, 20] {
            data.note(&told(&gpu::OBSERVED, second, PointValue::SecondBits(0)));
        }
        assert!(why(&data, "readings of a GPU that stop").is_some());
        data.note(&told(&gpu::OBSERVED, 30, PointValue::SecondBits(1)));
        assert_eq!(why(&data, "readings of a GPU that stop"), None);
    }

    #[test]
    fn steps_holders_and_length_are_needed_where_they_are() {
        let data = Data::new(Source::Recording);
        for (detector, word) in [
            ("a rank that makes the others wait", "no steps"),
            ("GPU memory that grows", "nobody read"),
            (
                "cards, machines and parts of a cluster that break again and again",
                "a month",
            ),
            ("a node without an agent", "the cluster"),
        ] {
            let why = why(&data, detector).unwrap_or_default();
            assert!(why.contains(word), "{detector}: {why}");
        }
        assert_eq!(why(&data, "XIDs and what the driver tells"), None);
    }
}

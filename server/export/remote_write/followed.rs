//! Which series were pushed lately: of one that has ended the target hears a marker, as the protocol asks, or it would
//! show the last value for minutes more (Prometheus: five).
//!
//! A series has ended when two minutes in a row are without it: one may be late. Its marker stands at the end of the
//! first of them, behind its last sample and before any that may come; that minute is whole and is never pushed again,
//! so no sample will be at that time. What is followed lies in memory: a server that starts knows no series before its
//! first minute.
//!
//! Limit: [`MOST`]; series beyond them end without a marker.

use std::collections::HashMap;
use std::sync::Arc;

use gpufleet_telemetry::catalog::{self, MetricId};
use gpufleet_telemetry::time::Timestamp;

use crate::export::message::{Labels, Point, STALE};
use crate::export::samples::Sample;

/// Most series that are followed, at 16 bytes each and half a kB for the labels of each resource: all metrics of 20,000
/// GPUs.
pub const MOST: usize = 2_000_000;

/// Every series that is followed.
#[derive(Debug, Default)]
pub struct Followed {
    of: HashMap<Labels, Vec<Series>>,
    count: usize,
    /// The end of the newest minute that was pushed whole, Unix milliseconds; none before the first.
    whole_ms: Option<i64>,
}

#[derive(Debug)]
struct Series {
    metric: MetricId,
    /// The time of its last sample, Unix milliseconds.
    last_ms: i64,
}

impl Followed {
    /// Takes in what the resource with these labels has in the minute that ends at `end`.
    pub fn saw(&mut self, labels: &Labels, samples: &[Sample], end: Timestamp) {
        let last_ms = end.millis();
        let known = self.of.entry(Arc::clone(labels)).or_default();
        for sample in samples {
            let metric = sample.metric.id;
            match known.iter_mut().find(|it| it.metric == metric) {
                Some(series) => series.last_ms = last_ms,
                None if self.count < MOST => {
                    self.count += 1;
                    known.push(Series { metric, last_ms });
                }
                None => {}
            }
        }
    }

    /// The markers of series that are neither in the minute that ends at `end`, of which all was seen, nor in the one
    /// before it.
    pub fn ended(&self, end: Timestamp) -> Vec<Point> {
        let Some(before_ms) = self.before(end) else {
            return Vec::new();
        };
        let mut markers = Vec::new();
        for (labels, all) in &self.of {
            let ended = all.iter().filter(|it| it.last_ms < before_ms);
            let metrics = ended.filter_map(|it| catalog::by_id(it.metric));
            markers.extend(metrics.map(|metric| Point {
                name: metric.name,
                labels: Arc::clone(labels),
                value: STALE,
                at_ms: before_ms,
            }));
        }
        markers
    }

    /// Hears that the minute that ends at `end` was pushed whole, and forgets what had ended.
    pub fn went_whole(&mut self, end: Timestamp) {
        let oldest = self.before(end).unwrap_or(i64::MIN);
        // What is newer was pushed under a clock that was ahead.
        let kept = oldest..=end.millis();
        self.of.retain(|_, all| {
            all.retain(|it| kept.contains(&it.last_ms));
            !all.is_empty()
        });
        self.count = self.of.values().map(Vec::len).sum();
        self.whole_ms = Some(end.millis());
    }

    /// The end of the minute that was pushed before the one that ends at `end`; none where none was, or a later one.
    fn before(&self, end: Timestamp) -> Option<i64> {
        self.whole_ms.filter(|it| *it < end.millis())
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::catalog::gpu;
    use gpufleet_telemetry::time::Minute;

    use super::*;

    fn end(minute: i64) -> Timestamp {
        Minute(minute).start()
    }

    fn labels(gpu: &str) -> Labels {
        Arc::new(vec![("gpu", gpu.to_owned())])
    }

    const POWER: Sample = Sample {
        metric: &gpu::POWER,
        value: 1.0,
    };

    /// The markers of each minute in which these GPUs are there, as GPU and the minute at whose start they stand.
    fn markers(minutes: &[(i64, &[&str])]) -> Vec<Vec<(String, i64)>> {
        let mut followed = Followed::default();
        let minutes = minutes.iter().map(|(minute, gpus)| {
            for gpu in *gpus {
                followed.saw(&labels(gpu), &[POWER], end(*minute));
            }
            let ended = followed.ended(end(*minute));
            followed.went_whole(end(*minute));
            // Its cursor could not be kept.
            followed.went_whole(end(*minute));
            let ended = ended.into_iter().map(|it| {
                assert_eq!(it.value.to_bits(), 0x7ff0_0000_0000_0002);
                assert_eq!(it.name, gpu::POWER.name);
                (it.labels[0].1.clone(), it.at_ms / 60_000)
            });
            ended.collect()
        });
        minutes.collect()
    }

    #[test]
    fn a_series_has_ended_when_two_minutes_are_without_it_and_is_marked_once_at_the_first() {
        let none = Vec::new;
        let a_at = |minute| vec![("a".to_owned(), minute)];
        assert_eq!(
            markers(&[(1, &["a", "b"]), (2, &["b"]), (3, &["b"]), (4, &["b"])]),
            [none(), none(), a_at(2), none()]
        );
        // It was late, came back in time, and came back afterwards.
        assert_eq!(
            markers(&[(1, &["a"]), (2, &[]), (3, &["a"]), (4, &[]), (5, &[])]),
            [none(), none(), none(), none(), a_at(4)]
        );
        assert_eq!(
            markers(&[
                (1, &["a"]),
                (2, &[]),
                (3, &[]),
                (4, &["a"]),
                (5, &[]),
                (6, &[])
            ]),
            [none(), none(), a_at(2), none(), none(), a_at(5)]
        );
        // Minutes in between were too old to be pushed.
        assert_eq!(
            markers(&[(1, &["a"]), (900, &[]), (901, &[])]),
            [none(), none(), a_at(900)]
        );
    }

    #[test]
    fn a_clock_that_is_set_back_ends_no_series_that_is_there() {
        let none = Vec::new;
        assert_eq!(
            markers(&[(900, &["a"]), (1, &["a"]), (2, &["a"]), (3, &["a"])]),
            [none(), none(), none(), none()]
        );
    }

    #[test]
    fn a_metric_that_ends_alone_is_marked_alone_and_what_has_ended_makes_room() {
        let mut followed = Followed::default();
        let other = Sample {
            metric: &gpu::TEMPERATURE,
            value: 1.0,
        };
        followed.saw(&labels("a"), &[POWER, other], end(1));
        followed.went_whole(end(1));
        for minute in [2, 3] {
            followed.saw(&labels("a"), &[POWER], end(minute));
            let ended = followed.ended(end(minute));
            assert_eq!(ended.len(), usize::from(minute == 3));
            assert!(ended.iter().all(|it| it.name == gpu::TEMPERATURE.name));
            followed.went_whole(end(minute));
        }
        assert_eq!(followed.count, 1);
        followed.count = MOST;
        followed.saw(&labels("b"), &[POWER], end(4));
        assert_eq!(followed.count, MOST);
        followed.went_whole(end(4));
        assert_eq!(followed.count, 1, "b was not followed");
    }
}

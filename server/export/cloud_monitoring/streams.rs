//! Counters as Cloud Monitoring takes them: with a start that stays until the counter is reset, and values
//! that count from there.
//!
//! When a counter really began is known to nobody, so what counts is how much it grew since it was first
//! followed: its first minute is where it begins and is not sent. A reset begins anew a millisecond after
//! the end of the last point. What is followed lies in memory: a server that starts, or takes over, begins
//! each counter at the end of the first minute that it sees of it. That is behind everything that was
//! written before, also by a server that died within that minute, so no two starts overlap; the growth of that
//! one minute is in no point.
//!
//! Limits: [`MAX_STREAMS`], and what was not there for [`FORGET_MS`] is forgotten.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use gpufleet_telemetry::catalog::MetricId;
use gpufleet_telemetry::time::Timestamp;

use super::place::Place;
use crate::store::model::ResourceKey;

/// Most counters that are followed, at 48 bytes each about 50 MB: ten of each of 100,000 GPUs.
pub const MAX_STREAMS: usize = 1_000_000;

/// A counter that was not there for this long begins anew, milliseconds: two of the longest intervals.
const FORGET_MS: i64 = 2 * 3_600_000;

/// How far a new start lies behind the last end, milliseconds.
const APART_MS: i64 = 1;

/// As many are followed as may be.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

/// Every counter that is followed.
#[derive(Debug, Default)]
pub struct Streams {
    of: HashMap<ResourceKey, Vec<Stream>>,
    count: usize,
}

#[derive(Debug)]
struct Stream {
    metric: MetricId,
    /// Which of its places it was in.
    place: u64,
    start_ms: i64,
    end_ms: i64,
    /// The raw value from which it counts.
    base: f64,
    /// The last raw value.
    last: f64,
}

impl Streams {
    /// Start and value of the next point of a series whose counter stands at `raw`; none where this is where
    /// it begins.
    ///
    /// # Errors
    /// When too many are followed to follow another.
    pub fn next(
        &mut self,
        (key, metric, place): (&ResourceKey, MetricId, &Place),
        raw: f64,
        end: Timestamp,
    ) -> Result<Option<(Timestamp, f64)>, Full> {
        let end_ms = end.millis();
        let mut hasher = DefaultHasher::new();
        place.hash(&mut hasher);
        let place = hasher.finish();
        let begun = Stream {
            metric,
            place,
            start_ms: end_ms + APART_MS,
            end_ms,
            base: raw,
            last: raw,
        };
        let known = self.of.get_mut(key);
        let Some(stream) = known.and_then(|all| all.iter_mut().find(|it| it.metric == metric))
        else {
            if self.count >= MAX_STREAMS {
                return Err(Full);
            }
            self.count += 1;
            self.of.entry(key.clone()).or_default().push(begun);
            return Ok(None);
        };
        // Another place is another series; there it may have been before.
        if stream.place != place || end_ms <= stream.start_ms {
            *stream = begun;
            return Ok(None);
        }
        if raw < stream.last {
            stream.start_ms = stream.end_ms + APART_MS;
            stream.base = 0.0;
        }
        stream.end_ms = end_ms;
        stream.last = raw;
        Ok(Some((
            Timestamp::from_millis(stream.start_ms),
            raw - stream.base,
        )))
    }

    /// Forgets what was not there for long.
    pub fn forget_before(&mut self, end: Timestamp) {
        let oldest = end.millis() - FORGET_MS;
        self.of.retain(|_, all| {
            all.retain(|it| it.end_ms >= oldest);
            !all.is_empty()
        });
        self.count = self.of.values().map(Vec::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::catalog::gpu;
    use gpufleet_telemetry::identity::ResourceKind;
    use gpufleet_telemetry::time::Minute;

    use super::*;

    fn key(id: &str) -> ResourceKey {
        ResourceKey {
            cluster: "prod".into(),
            kind: ResourceKind::Gpu,
            id: id.into(),
        }
    }

    fn place(node: &str) -> Place {
        Place {
            kind: "generic_node",
            labels: vec![("node_id", node.to_owned())],
        }
    }

    fn end(minute: i64) -> Timestamp {
        Minute(minute).start()
    }

    /// What is sent of a counter that stands at these values at the end of these minutes: start and end in
    /// milliseconds since minute 0, and value.
    fn sent(values: &[(i64, f64)]) -> Vec<(i64, i64, f64)> {
        let mut streams = Streams::default();
        let points = values.iter().filter_map(|(minute, raw)| {
            let series = (&key("GPU-1"), gpu::ENERGY.id, &place("a"));
            let next = streams.next(series, *raw, end(*minute)).expect("room");
            next.map(|(start, value)| (start.millis(), end(*minute).millis(), value))
        });
        points.collect()
    }

    #[test]
    fn a_counter_keeps_its_start_and_counts_from_there() {
        assert_eq!(
            sent(&[(1, 700.0), (2, 750.0), (4, 900.0)]),
            [(60_001, 120_000, 50.0), (60_001, 240_000, 200.0)],
            "what it had counted before nobody followed it is no growth"
        );
    }

    #[test]
    fn a_reset_begins_a_millisecond_after_the_last_end() {
        assert_eq!(
            sent(&[(1, 700.0), (2, 750.0), (3, 20.0), (4, 30.0)]),
            [
                (60_001, 120_000, 50.0),
                (120_001, 180_000, 20.0),
                (120_001, 240_000, 30.0)
            ]
        );
        // Right after the beginning too: nothing is written yet, and the start still moves on.
        assert_eq!(sent(&[(1, 700.0), (2, 5.0)]), [(60_001, 120_000, 5.0)]);
    }

    #[test]
    fn another_server_begins_behind_all_that_was_written() {
        // The first wrote the minute that ends at 2 and died; the second sends that minute again.
        assert_eq!(sent(&[(2, 750.0), (3, 800.0)]), [(120_001, 180_000, 50.0)]);
    }

    #[test]
    fn another_place_is_another_series() {
        let mut streams = Streams::default();
        let mut next = |node: &str, raw, minute| {
            let place = place(node);
            let series = (&key("GPU-1"), gpu::ENERGY.id, &place);
            streams.next(series, raw, end(minute)).expect("room")
        };
        assert_eq!(next("a", 1.0, 1), None);
        assert_eq!(next("b", 2.0, 2), None);
        assert_eq!(next("a", 3.0, 3), None);
        let (start, value) = next("a", 4.0, 4).expect("it has begun");
        assert_eq!((start.millis(), value), (180_001, 1.0));
    }

    #[test]
    fn what_is_not_there_for_long_is_forgotten_and_makes_room() {
        let mut streams = Streams::default();
        let place = place("a");
        for id in ["GPU-1", "GPU-2"] {
            let next = streams.next((&key(id), gpu::ENERGY.id, &place), 1.0, end(1));
            assert_eq!(next, Ok(None));
        }
        let next = streams.next((&key("GPU-2"), gpu::ENERGY.id, &place), 2.0, end(100));
        assert!(next.expect("room").is_some());
        assert_eq!(streams.count, 2);
        streams.forget_before(end(1 + FORGET_MS / 60_000 + 1));
        assert_eq!(streams.count, 1);
        streams.count = MAX_STREAMS;
        let next = streams.next((&key("GPU-3"), gpu::ENERGY.id, &place), 1.0, end(101));
        assert_eq!(next, Err(Full));
    }
}

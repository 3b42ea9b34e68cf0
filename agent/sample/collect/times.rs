//! What the passing of time does to what was read: it grows old, and a clock may go back.

use gpufleet_telemetry::time::Timestamp;

use super::{Collector, FORGET_AFTER, nanos};

impl Collector {
    /// The clock went back to `now`: what was taken by the old clock is not of a time to come, else
    /// it would be the newest until the clock is there again.
    pub fn turn_back(&mut self, now: Timestamp) {
        self.newest = self.newest.min(now);
        for reader in &mut self.readers {
            reader.health.last_success = reader.health.last_success.map(|at| at.min(now));
        }
        for entry in self.resources.values_mut() {
            entry.seconds.clear();
            entry.witnessed = entry.witnessed.min(now);
            entry.seen = entry.seen.min(now);
            for source in &mut entry.sources {
                source.seen = source.seen.min(now);
            }
            for series in &mut entry.series {
                series.turn_back(now);
            }
        }
    }

    /// Forgets what was not read for long.
    pub(super) fn forget(&mut self, now: Timestamp) {
        let old = |at: Timestamp| now.since(at) > nanos(FORGET_AFTER);
        for entry in self.resources.values_mut() {
            if entry.series.iter().any(|series| old(series.at)) {
                entry.series.retain(|series| !old(series.at));
                let places = entry.series.iter().enumerate();
                entry.places = places
                    .map(|(index, series)| ((series.metric.id, series.part.clone()), index))
                    .collect();
            }
            if entry.sources.iter().any(|source| old(source.seen)) {
                entry.sources.retain(|source| !old(source.seen));
                entry.merge();
            }
        }
        self.resources.retain(|_, entry| !old(entry.seen));
        self.series = self.resources.values().map(|it| it.series.len()).sum();
    }
}

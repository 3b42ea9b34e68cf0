//! What of a resource waits for its commit: by minute, as the row that the store merges into its own.
//!
//! Rows are handed out as they are, because what is copied here is copied for the whole fleet at once: the commit of a full
//! server had in memory again all that had waited for it.

use std::mem;

use gpufleet_telemetry::catalog::MetricId;
use gpufleet_telemetry::minute::{Aggregate, ByMetric, Counter, MinuteRow};
use gpufleet_telemetry::time::Minute;

use crate::store::model::{MinuteDelta, ResourceKey};

/// What a minute that waits for its commit takes, without its metrics, in bytes: the row with its key, and its holders.
const MINUTE_BYTES: usize = size_of::<MinuteDelta>() + 192;

/// What one gauge of such a minute takes.
const AGGREGATE_BYTES: usize = size_of::<(MetricId, Aggregate)>();

/// The same of a counter: it has its runs on the heap.
const COUNTER_BYTES: usize = size_of::<(MetricId, Counter)>() + 32;

/// What waits of one resource.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// By minute, ascending.
    minutes: Vec<(Minute, MinuteRow)>,
    /// How many gauges and counters the fullest row had that was handed out last: the next has as many.
    room: (u16, u16),
}

/// What waited of one resource.
#[derive(Debug)]
pub(super) struct Waited {
    key: ResourceKey,
    minutes: Vec<(Minute, MinuteRow)>,
}

impl Pending {
    /// Sets second bits, which are a holder's where one is named; returns by how many bytes it grew.
    pub(super) fn bits(
        &mut self,
        minute: Minute,
        (metric, holder): (MetricId, Option<i64>),
        bits: u64,
    ) -> usize {
        let (row, grown) = self.of(minute);
        row.bitmaps.set(metric, bits);
        if let Some(holder) = holder {
            row.hold(holder, bits);
        }
        grown
    }

    /// Adds what a metric was in a part of a minute; returns by how many bytes it grew.
    pub(super) fn aggregate(
        &mut self,
        minute: Minute,
        metric: MetricId,
        aggregate: Aggregate,
    ) -> usize {
        let (row, grown) = self.of(minute);
        let is_new = row.metrics.add(metric, aggregate, Aggregate::merge);
        grown + if is_new { AGGREGATE_BYTES } else { 0 }
    }

    /// Adds what a counter told in a part of a minute; returns by how many bytes it grew.
    pub(super) fn count(&mut self, minute: Minute, metric: MetricId, counter: Counter) -> usize {
        let (row, grown) = self.of(minute);
        let is_new = row.counters.add(metric, counter, Counter::merge);
        grown + if is_new { COUNTER_BYTES } else { 0 }
    }

    /// Hands out all of it; none where nothing waits.
    pub(super) fn take(&mut self, key: &ResourceKey) -> Option<Waited> {
        if self.minutes.is_empty() {
            return None;
        }
        let minutes = mem::take(&mut self.minutes);
        let most = |many: fn(&MinuteRow) -> usize| {
            let most = minutes.iter().map(|(_, row)| many(row)).max();
            most.and_then(|it| u16::try_from(it).ok()).unwrap_or(0)
        };
        self.room = (most(|it| it.metrics.len()), most(|it| it.counters.len()));
        Some(Waited {
            key: key.clone(),
            minutes,
        })
    }

    fn of(&mut self, minute: Minute) -> (&mut MinuteRow, usize) {
        let place = self.minutes.partition_point(|it| it.0 < minute);
        let is_known = self.minutes.get(place).is_some_and(|it| it.0 == minute);
        if !is_known {
            let (gauges, counters) = self.room;
            let row = MinuteRow {
                metrics: ByMetric::with_capacity(gauges.into()),
                counters: ByMetric::with_capacity(counters.into()),
                ..MinuteRow::default()
            };
            // Of fresh data it is one minute, or two: four would be the least that there is room for.
            if self.minutes.len() < 2 {
                self.minutes.reserve_exact(1);
            }
            self.minutes.insert(place, (minute, row));
        }
        let grown = if is_known { 0 } else { MINUTE_BYTES };
        (&mut self.minutes[place].1, grown)
    }
}

impl Waited {
    /// It as rows for the store.
    pub(super) fn rows(self) -> impl Iterator<Item = MinuteDelta> {
        let Self { key, minutes } = self;
        minutes.into_iter().map(move |(minute, row)| MinuteDelta {
            key: key.clone(),
            minute,
            row,
        })
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::catalog::gpu;
    use gpufleet_telemetry::identity::ResourceKind;

    use super::*;

    #[test]
    fn what_waits_is_what_the_store_is_given_and_counts_as_much_as_it_takes() {
        const { assert!(MINUTE_BYTES <= 360 && AGGREGATE_BYTES <= 40 && COUNTER_BYTES <= 72) };
        let key = ResourceKey {
            cluster: "c".into(),
            kind: ResourceKind::Gpu,
            id: "GPU-1".into(),
        };
        let mut pending = Pending::default();
        assert!(pending.take(&key).is_none());
        for _ in 0..2 {
            let mut expected = [Minute(1), Minute(2)].map(|it| (it, MinuteRow::default()));
            // The later one first: old data may come after fresh.
            for place in [1, 0, 1] {
                let (minute, row) = &mut expected[place];
                let grown = pending.bits(*minute, (gpu::HELD.id, Some(7)), 0b11);
                let is_new = row.holders.is_empty();
                assert_eq!(grown, if is_new { MINUTE_BYTES } else { 0 });
                row.bitmaps.set(gpu::HELD.id, 0b11);
                row.hold(7, 0b11);
                let point = Aggregate::of_gauge(300.0, None).expect("finite");
                let grown = pending.aggregate(*minute, gpu::POWER.id, point);
                assert_eq!(grown, if is_new { AGGREGATE_BYTES } else { 0 });
                row.add(gpu::POWER.id, point);
                let total = Counter::point(9e6, 0, 10_000).expect("finite");
                let grown = pending.count(*minute, gpu::ENERGY.id, total.clone());
                assert_eq!(grown, if is_new { COUNTER_BYTES } else { 0 });
                row.add_counter(gpu::ENERGY.id, &total);
            }
            let waited = pending.take(&key).expect("two minutes wait");
            let found: Vec<_> = waited.rows().map(|it| (it.minute, it.row)).collect();
            assert_eq!(found, expected);
            assert_eq!(pending.room, (1, 1), "of each one, as the next is to have");
        }
    }
}

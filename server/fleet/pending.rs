//! What of a resource waits for its commit: by minute, as it was folded.
//!
//! Rows are made of it when it is committed, not under the lock of its shard, for which data that comes in waits.

use gpufleet_telemetry::catalog::MetricId;
use gpufleet_telemetry::minute::{Aggregate, Bitmaps, Counter, MinuteRow};
use gpufleet_telemetry::time::Minute;

use crate::store::model::{MinuteDelta, ResourceKey};

/// What a minute that waits for its commit takes, without its metrics, in bytes.
const MINUTE_BYTES: usize = 192;

/// What one metric of such a minute takes: in the delta and in the row it becomes.
const AGGREGATE_BYTES: usize = 80;

/// The same of a counter: it has its runs on the heap.
const COUNTER_BYTES: usize = 112;

/// What waits of one resource, by minute, ascending.
#[derive(Debug, Default)]
pub(super) struct Pending(Vec<OfMinute>);

#[derive(Debug)]
struct OfMinute {
    minute: Minute,
    bitmaps: Bitmaps,
    /// The seconds of each holder.
    holders: Vec<(i64, u64)>,
    /// By metric number, ascending.
    metrics: Vec<(MetricId, Aggregate)>,
    /// By metric number, ascending.
    counters: Vec<(MetricId, Counter)>,
}

/// What waited of one resource.
#[derive(Debug)]
pub(super) struct Waited {
    key: ResourceKey,
    minutes: Vec<OfMinute>,
}

impl Pending {
    /// Sets second bits, which are a holder's where one is named; returns by how many bytes it grew.
    pub(super) fn bits(
        &mut self,
        minute: Minute,
        (metric, holder): (MetricId, Option<i64>),
        bits: u64,
    ) -> usize {
        let (pending, grown) = self.of(minute);
        pending.bitmaps.set(metric, bits);
        pending.holders.extend(holder.map(|it| (it, bits)));
        grown
    }

    /// Adds what a metric was in a part of a minute; returns by how many bytes it grew.
    pub(super) fn aggregate(
        &mut self,
        minute: Minute,
        metric: MetricId,
        aggregate: Aggregate,
    ) -> usize {
        let (pending, mut grown) = self.of(minute);
        let place = pending.metrics.partition_point(|(id, _)| *id < metric);
        match pending.metrics.get_mut(place) {
            Some((id, known)) if *id == metric => known.merge(&aggregate),
            _ => {
                pending.metrics.insert(place, (metric, aggregate));
                grown += AGGREGATE_BYTES;
            }
        }
        grown
    }

    /// Adds what a counter told in a part of a minute; returns by how many bytes it grew.
    pub(super) fn count(&mut self, minute: Minute, metric: MetricId, counter: Counter) -> usize {
        let (pending, mut grown) = self.of(minute);
        let known = pending.counters.binary_search_by_key(&metric, |it| it.0);
        match known {
            Ok(place) => pending.counters[place].1.merge(&counter),
            Err(place) => {
                pending.counters.insert(place, (metric, counter));
                grown += COUNTER_BYTES;
            }
        }
        grown
    }

    /// Hands out all of it; none where nothing waits.
    pub(super) fn take(&mut self, key: &ResourceKey) -> Option<Waited> {
        let minutes = std::mem::take(&mut self.0);
        (!minutes.is_empty()).then(|| Waited {
            key: key.clone(),
            minutes,
        })
    }

    fn of(&mut self, minute: Minute) -> (&mut OfMinute, usize) {
        let all = &mut self.0;
        let place = all.partition_point(|it| it.minute < minute);
        let is_known = all.get(place).is_some_and(|it| it.minute == minute);
        if !is_known {
            let pending = OfMinute {
                minute,
                bitmaps: Bitmaps::default(),
                holders: Vec::new(),
                metrics: Vec::new(),
                counters: Vec::new(),
            };
            all.insert(place, pending);
        }
        let grown = if is_known { 0 } else { MINUTE_BYTES };
        (&mut all[place], grown)
    }
}

impl Waited {
    /// It as rows for the store.
    pub(super) fn rows(self) -> impl Iterator<Item = MinuteDelta> {
        let Self { key, minutes } = self;
        minutes.into_iter().map(move |it| it.row(key.clone()))
    }
}

impl OfMinute {
    fn row(self, key: ResourceKey) -> MinuteDelta {
        let mut row = MinuteRow {
            bitmaps: self.bitmaps,
            metrics: self.metrics.into_iter().collect(),
            counters: self.counters.into_iter().collect(),
            ..MinuteRow::default()
        };
        for (holder, seconds) in self.holders {
            row.hold(holder, seconds);
        }
        MinuteDelta {
            key,
            minute: self.minute,
            row,
        }
    }
}

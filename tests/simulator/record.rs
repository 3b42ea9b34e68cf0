//! What a simulated fleet has made: the minute rows that must come out of the store at the end.
//!
//! The checkers' truth. It folds nothing twice because it sees every tick once, when it is made.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_analysis::owner::Holder;
use gpufleet_telemetry::catalog::{self, Kind, MetricId, gpu};
use gpufleet_telemetry::identity::{Resource, ResourceKind};
use gpufleet_telemetry::minute::{Aggregate, Counter, MinuteRow, seconds_by_minute};
use gpufleet_telemetry::otlp::{DecodedPoint, DecodedResource};
use gpufleet_telemetry::tick::{PointValue, ResourceTick};
use gpufleet_telemetry::time::{Minute, NANOS_PER_SECOND, Timestamp};

/// How far two sums of the same numbers may differ for their order alone, as a ratio: far above
/// what 60 additions lose, far below what one number more or less would make.
const SUM_ERROR: f64 = 1e-12;

/// A minute of a resource.
pub type Key = (ResourceKind, String, Minute);

/// Everything that was made.
#[derive(Debug, Clone, Default)]
pub struct Record {
    rows: BTreeMap<Key, MinuteRow>,
}

impl Record {
    /// Takes in one resource's tick.
    pub fn add(&mut self, tick: &ResourceTick) {
        for point in tick.points.iter().filter(|point| point.part.is_none()) {
            let span = (tick.start, tick.end);
            self.point(&tick.resource, span, point.metric, point.value);
        }
    }

    /// Takes in what was sent of one resource.
    pub fn add_sent(&mut self, sent: &DecodedResource) {
        // A counter does not say how long its tick was, what was sent with it does.
        let is_tick = |it: &&DecodedPoint| it.start < it.at && it.metric.kind != Kind::Counter;
        let tick = sent.points.iter().find(is_tick);
        let tick = tick.map_or(0, |it| it.at.since(it.start));
        for point in sent.points.iter().filter(|point| point.part.is_none()) {
            let start = match point.metric.kind {
                Kind::Counter => point.at.shifted(-tick),
                _ => point.start,
            };
            let span = (start, point.at);
            self.point(&sent.resource, span, point.metric.id, point.value);
        }
    }

    fn point(
        &mut self,
        resource: &Resource,
        (start, end): (Timestamp, Timestamp),
        metric: MetricId,
        value: PointValue,
    ) {
        if !catalog::by_id(metric).is_some_and(|metric| metric.in_minutes) {
            return;
        }
        let key = |minute| (resource.kind, resource.id.to_string(), minute);
        let aggregate = match value {
            PointValue::SecondBits(bits) => {
                let seconds = u32::try_from(end.since(start) / NANOS_PER_SECOND).unwrap_or(0);
                for (minute, bits) in seconds_by_minute(start, seconds, bits) {
                    let row = self.rows.entry(key(minute)).or_default();
                    row.bitmaps.set(metric, bits);
                    if metric == gpu::HELD.id && bits != 0 {
                        let holder = Holder::told_by(resource);
                        row.hold(holder.as_ref().map_or(0, Holder::number), bits);
                    }
                }
                return;
            }
            PointValue::Gauge { value, max } => Aggregate::of_gauge(value, max),
            PointValue::Counter { value, .. } => {
                let minute = end.shifted(-1).minute();
                let millis = |at: Timestamp| {
                    u32::try_from(at.millis() - minute.start().millis()).unwrap_or(0)
                };
                if let Some(counter) = Counter::point(value, millis(start), millis(end)) {
                    let row = self.rows.entry(key(minute)).or_default();
                    row.add_counter(metric, &counter);
                }
                return;
            }
            PointValue::Missing(_) => return,
        };
        if let Some(aggregate) = aggregate {
            // A point's time is its tick's end: the minute is that of the moment before.
            let minute = end.shifted(-1).minute();
            let row = self.rows.entry(key(minute)).or_default();
            row.add(metric, aggregate);
        }
    }

    /// One minute row.
    pub fn row(&self, key: &Key) -> Option<&MinuteRow> {
        self.rows.get(key)
    }

    /// Takes one minute row out.
    pub fn remove(&mut self, key: &Key) -> Option<MinuteRow> {
        self.rows.remove(key)
    }

    /// How many minute rows there must be.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether nothing was made.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Every minute of every resource.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.rows.keys()
    }

    /// The resources it is about.
    pub fn resources(&self) -> BTreeSet<(ResourceKind, String)> {
        self.rows
            .keys()
            .map(|(kind, id, _)| (*kind, id.clone()))
            .collect()
    }

    /// The minutes of one resource.
    pub fn minutes(&self, kind: ResourceKind, id: &str) -> BTreeMap<Minute, &MinuteRow> {
        let id = id.to_owned();
        self.rows
            .range((kind, id.clone(), Minute(i64::MIN))..=(kind, id, Minute(i64::MAX)))
            .map(|((_, _, minute), row)| (*minute, row))
            .collect()
    }

    /// What is wrong with what the store has of one resource: one line for each minute and metric
    /// that was lost, came twice, or has another value.
    pub fn differences(
        &self,
        kind: ResourceKind,
        id: &str,
        found: &BTreeMap<Minute, MinuteRow>,
    ) -> Vec<String> {
        let expected = self.minutes(kind, id);
        let mut wrong = Vec::new();
        let place = |minute: &Minute| format!("{} {id} minute {}", kind.name(), minute.0);
        for (minute, row) in &expected {
            match found.get(minute) {
                None => wrong.push(format!("{}: lost", place(minute))),
                Some(have) => row_differences(row, have, &place(minute), &mut wrong),
            }
        }
        for minute in found.keys().filter(|minute| !expected.contains_key(minute)) {
            wrong.push(format!("{}: nobody made it", place(minute)));
        }
        wrong
    }
}

/// Whether two rows say the same.
pub fn agree(expected: &MinuteRow, found: &MinuteRow) -> bool {
    let mut wrong = Vec::new();
    row_differences(expected, found, "", &mut wrong);
    wrong.is_empty()
        && expected.metrics.len() == found.metrics.len()
        && expected.counters.len() == found.counters.len()
}

fn row_differences(expected: &MinuteRow, found: &MinuteRow, place: &str, wrong: &mut Vec<String>) {
    if expected.bitmaps != found.bitmaps {
        wrong.push(format!(
            "{place}: seconds {:?}, must be {:?}",
            found.bitmaps, expected.bitmaps
        ));
    }
    if expected.holders != found.holders {
        wrong.push(format!(
            "{place}: holders {:?}, must be {:?}",
            found.holders, expected.holders
        ));
    }
    for (metric, want) in &expected.metrics {
        let name = catalog::by_id(*metric).map_or("?", |metric| metric.name);
        let Some(have) = found.metrics.get(metric) else {
            wrong.push(format!("{place}: {name} lost"));
            continue;
        };
        let sums_agree = (have.sum - want.sum).abs() <= SUM_ERROR * want.sum.abs();
        if have.count != want.count || !sums_agree || (have.min, have.max) != (want.min, want.max) {
            wrong.push(format!("{place}: {name} is {have:?}, must be {want:?}"));
        }
    }
    for (metric, want) in &expected.counters {
        let have = found.counters.get(metric);
        if have != Some(want) {
            let name = catalog::by_id(*metric).map_or("?", |metric| metric.name);
            wrong.push(format!("{place}: {name} is {have:?}, must be {want:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulator::faults::Faults;
    use crate::simulator::node::{Plan, SimulatedNode};

    #[test]
    fn what_is_lost_or_doubled_or_made_up_is_named() {
        let mut node = SimulatedNode::new(&Plan::demo(), 0);
        let (mut made, mut less, mut twice) =
            (Record::default(), Record::default(), Record::default());
        for turn in 0..6 {
            let start = Timestamp::from_seconds(1_800_000_000 + turn * 10);
            for tick in node.tick(start, 10, &Faults::default()) {
                made.add(&tick);
                twice.add(&tick);
                if turn != 3 {
                    less.add(&tick);
                } else {
                    twice.add(&tick);
                }
            }
        }
        let id = node.gpu_ids()[2].clone();
        let rows = |record: &Record| -> BTreeMap<Minute, MinuteRow> {
            record
                .minutes(ResourceKind::Gpu, &id)
                .into_iter()
                .map(|(minute, row)| (minute, row.clone()))
                .collect()
        };
        let wrong = |found: BTreeMap<_, _>| made.differences(ResourceKind::Gpu, &id, &found);
        assert_eq!(wrong(rows(&made)), Vec::<String>::new());
        assert!(!wrong(rows(&less)).is_empty());
        assert!(!wrong(rows(&twice)).is_empty());
        assert_eq!(wrong(BTreeMap::new()).len(), 1);
        let mut more = rows(&made);
        more.insert(Minute(1), MinuteRow::default());
        assert_eq!(wrong(more).len(), 1);
    }
}

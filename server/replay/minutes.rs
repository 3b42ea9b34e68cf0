//! A minute row as the six ticks that it was made of, as far as it says.
//!
//! Evidence is by the second, as it was. A counter goes straight from point to point. Of a gauge only the mean is
//! known: each tick has it, and what is read once a minute the last one alone. A step's number and the age of a
//! collective go evenly from the least to the greatest; a code or flag that changed is the greater one. Who held a
//! GPU is as it was in the tick.
//!
//! Limits: parts are in no minute, nor are metrics that the catalog does not keep there; a resource whose row has
//! neither evidence nor counters counts as heard all through its minute.

use std::sync::Arc;

use gpufleet_telemetry::catalog::{self, Cadence, Kind, Metric, Unit, gpu, training};
use gpufleet_telemetry::identity::{Resource, ResourceKind};
use gpufleet_telemetry::minute::{Aggregate, MinuteRow};
use gpufleet_telemetry::otlp::{DecodedPoint, DecodedResource};
use gpufleet_telemetry::tick::PointValue;
use gpufleet_telemetry::time::{Minute, NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::training::Phase;

/// Ticks of a minute.
pub(super) const TICKS: u32 = 6;

/// Seconds of a tick.
pub(super) const TICK_SECONDS: u32 = 10;

/// The bits of a tick's seconds.
const TICK_BITS: u64 = (1 << TICK_SECONDS) - 1;

/// A minute of which a rank spent more than this in a phase that is no training is of that phase, seconds: half.
const IN_PHASE_S: f64 = 30.0;

/// A rank whose oldest collective is in flight for this long is in one, seconds: between two it is shorter.
const IN_COLLECTIVE_S: f64 = 1.0;

/// The evidence, in the order of the bitmaps.
const EVIDENCE: [&Metric; 5] = [
    &gpu::OBSERVED,
    &gpu::ACTIVE,
    &gpu::STALLED,
    &gpu::HELD,
    &gpu::HOLDER_KNOWN,
];

/// When a tick of a minute begins and ends; `tick` from 0.
pub(super) fn bounds(minute: Minute, tick: u32) -> (Timestamp, Timestamp) {
    let length = i64::from(TICK_SECONDS) * NANOS_PER_SECOND;
    let start = minute.start().shifted(i64::from(tick) * length);
    (start, start.shifted(length))
}

/// Who held it in a tick, by the number of the holder: 0 nobody, none where the row does not say.
pub(super) fn holder(row: &MinuteRow, tick: u32) -> Option<i64> {
    let seconds = TICK_BITS << (tick * TICK_SECONDS);
    if row.bitmaps.held & seconds == 0 {
        return (row.bitmaps.holder_known & seconds != 0).then_some(0);
    }
    let mut holders = row.holders.iter();
    holders
        .find(|(_, held)| *held & seconds != 0)
        .map(|(number, _)| *number)
}

/// What is told of a resource in a tick; nothing where it was not heard in it.
pub(super) fn tick(
    resource: &Arc<Resource>,
    row: &MinuteRow,
    minute: Minute,
    tick: u32,
) -> Option<DecodedResource> {
    if !is_heard(resource.kind, row, tick) {
        return None;
    }
    let (start, at) = bounds(minute, tick);
    let point = |metric: &'static Metric, value: PointValue| DecodedPoint {
        metric,
        part: None,
        value,
        start: if metric.kind == Kind::Counter {
            at
        } else {
            start
        },
        at,
    };
    let mut points = Vec::with_capacity(row.metrics.len() + row.counters.len() + EVIDENCE.len());
    if is_card(resource.kind) {
        for (metric, bits) in EVIDENCE.into_iter().zip(row.bitmaps.all()) {
            let bits = bits >> (tick * TICK_SECONDS) & TICK_BITS;
            points.push(point(metric, PointValue::SecondBits(bits)));
        }
    }
    for (id, aggregate) in &row.metrics {
        let Some(metric) = catalog::by_id(*id) else {
            continue;
        };
        if metric.cadence == Cadence::Slow && tick + 1 != TICKS {
            continue;
        }
        let max = metric.with_max.then_some(aggregate.max);
        let value = value(metric, aggregate, tick);
        points.push(point(metric, PointValue::Gauge { value, max }));
    }
    for (id, counter) in &row.counters {
        let value = counter.at((tick + 1) * TICK_SECONDS * 1_000);
        if let (Some(metric), Some(value)) = (catalog::by_id(*id), value) {
            let since = start;
            points.push(point(metric, PointValue::Counter { value, since }));
        }
    }
    if let Some(age) = row.metrics.get(&training::COLLECTIVE_OLDEST_AGE.id) {
        // How many are in flight is not kept, but that one is shows in how long it is.
        let is_in = value(&training::COLLECTIVE_OLDEST_AGE, age, tick) >= IN_COLLECTIVE_S;
        let value = f64::from(u8::from(is_in));
        let in_flight = PointValue::Gauge { value, max: None };
        points.push(point(&training::COLLECTIVES_IN_FLIGHT, in_flight));
    }
    if resource.kind == ResourceKind::Rank {
        // What the agent tells: 0 is none. Also in none, or what was told before would stand.
        let value = phase(row).map_or(0.0, Phase::code);
        let now = PointValue::Gauge { value, max: None };
        points.push(point(&training::PHASE_NOW, now));
    }
    Some(DecodedResource {
        resource: Arc::clone(resource),
        points,
    })
}

const fn is_card(kind: ResourceKind) -> bool {
    matches!(kind, ResourceKind::Gpu | ResourceKind::Share)
}

/// Whether anything was heard of it in a tick.
fn is_heard(kind: ResourceKind, row: &MinuteRow, tick: u32) -> bool {
    let bits = &row.bitmaps;
    if is_card(kind) && bits.observed | bits.holder_known != 0 {
        let seconds = TICK_BITS << (tick * TICK_SECONDS);
        return (bits.observed | bits.holder_known) & seconds != 0;
    }
    let moment = (tick + 1) * TICK_SECONDS * 1_000;
    let mut counters = row.counters.values().peekable();
    counters.peek().is_none() || counters.any(|it| it.at(moment).is_some())
}

/// A gauge's value in a tick.
fn value(metric: &Metric, aggregate: &Aggregate, tick: u32) -> f64 {
    let part = f64::from(tick + 1) / f64::from(TICKS);
    let evenly = aggregate.min + (aggregate.max - aggregate.min) * part;
    if metric.id == training::LAST_STEP.id {
        return evenly.round();
    }
    if metric.id == training::COLLECTIVE_OLDEST_AGE.id {
        return evenly;
    }
    match metric.unit {
        Unit::Code | Unit::Flag => aggregate.max,
        _ => aggregate.mean(),
    }
}

/// The phase that a rank was in for most of the minute, where it is one in which it is let alone.
fn phase(row: &MinuteRow) -> Option<Phase> {
    Phase::QUIET.into_iter().find(|phase| {
        let counter = row.counters.get(&phase.seconds().id);
        counter.is_some_and(|it| it.growth() > IN_PHASE_S)
    })
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::catalog::node;
    use gpufleet_telemetry::minute::Counter;

    use super::*;

    const MINUTE: Minute = Minute(29_916_000);

    /// A GPU that was heard in the first 35 s and whose counter grows by one a second.
    fn row() -> MinuteRow {
        let mut row = MinuteRow::default();
        row.bitmaps.observed = (1 << 35) - 1;
        row.bitmaps.held = TICK_BITS << 10;
        row.bitmaps.holder_known = row.bitmaps.observed;
        row.hold(7, row.bitmaps.held);
        for (watts, at) in [(300.0, 10), (320.0, 20), (340.0, 30), (340.0, 40)] {
            let gauge = Aggregate::of_gauge(watts, Some(watts + 10.0)).expect("finite");
            row.add(gpu::POWER.id, gauge);
            let at_ms = at * 1_000;
            let point = Counter::point(f64::from(at), at_ms - 10_000, at_ms).expect("finite");
            row.add_counter(gpu::THROTTLE_THERMAL.id, &point);
        }
        let limit = Aggregate::of_gauge(700.0, None).expect("finite");
        row.add(gpu::POWER_LIMIT.id, limit);
        row
    }

    fn told(row: &MinuteRow, kind: ResourceKind, number: u32) -> Option<DecodedResource> {
        tick(&Arc::new(Resource::new(kind, "it")), row, MINUTE, number)
    }

    fn of(told: &DecodedResource, metric: &Metric) -> Option<PointValue> {
        let mut points = told.points.iter();
        points
            .find(|it| it.metric.id == metric.id)
            .map(|it| it.value)
    }

    #[test]
    fn a_tick_has_its_own_seconds_and_the_counter_of_its_moment() {
        let row = row();
        let third = told(&row, ResourceKind::Gpu, 2).expect("it was heard");
        assert_eq!(
            of(&third, &gpu::OBSERVED),
            Some(PointValue::SecondBits(TICK_BITS))
        );
        assert_eq!(of(&third, &gpu::HELD), Some(PointValue::SecondBits(0)));
        let (value, max) = (325.0, Some(350.0));
        assert_eq!(
            of(&third, &gpu::POWER),
            Some(PointValue::Gauge { value, max })
        );
        let Some(PointValue::Counter { value, .. }) = of(&third, &gpu::THROTTLE_THERMAL) else {
            panic!("it is a counter: {third:?}");
        };
        assert!((value - 30.0).abs() < 1e-9, "{value}");
        assert_eq!(
            of(&third, &gpu::POWER_LIMIT),
            None,
            "it is read once a minute"
        );
        let fourth = told(&row, ResourceKind::Gpu, 3).expect("it was heard");
        assert_eq!(
            of(&fourth, &gpu::OBSERVED),
            Some(PointValue::SecondBits(0b1_1111))
        );
        assert_eq!(
            told(&row, ResourceKind::Gpu, 4),
            None,
            "nothing was heard of it"
        );
        let (start, end) = bounds(MINUTE, 3);
        assert_eq!((start.second_of_minute(), end.second_of_minute()), (30, 40));
        assert!(fourth.points.iter().all(|it| it.at == end));
    }

    #[test]
    fn who_held_it_is_as_it_was_in_the_tick() {
        let row = row();
        let all: Vec<Option<i64>> = (0..TICKS).map(|it| holder(&row, it)).collect();
        assert_eq!(all, [Some(0), Some(7), Some(0), Some(0), None, None]);
    }

    #[test]
    fn a_machine_is_heard_where_its_counters_are_and_a_rank_that_saves_is_let_alone() {
        let mut row = MinuteRow::default();
        let point = Counter::point(3.0, 0, 20_000).expect("finite");
        row.add_counter(node::OOM_KILLS.id, &point);
        let heard = |number| told(&row, ResourceKind::Node, number).is_some();
        let heard: Vec<bool> = (0..TICKS).map(heard).collect();
        assert_eq!(heard, [true, true, false, false, false, false]);

        let mut row = MinuteRow::default();
        let saving = Phase::CheckpointSave.seconds().id;
        for (second, value) in [(10, 0.0), (60, 45.0)] {
            let at = second * 1_000;
            let point = Counter::point(value, at - 10_000, at).expect("finite");
            row.add_counter(saving, &point);
        }
        for age in [3.0, 53.0] {
            let point = Aggregate::of_gauge(age, None).expect("finite");
            row.add(training::COLLECTIVE_OLDEST_AGE.id, point);
        }
        let rank = told(&row, ResourceKind::Rank, 5).expect("it was heard");
        let in_flight = PointValue::Gauge {
            value: 1.0,
            max: None,
        };
        assert_eq!(of(&rank, &training::COLLECTIVES_IN_FLIGHT), Some(in_flight));
        let age = PointValue::Gauge {
            value: 53.0,
            max: Some(53.0),
        };
        assert_eq!(of(&rank, &training::COLLECTIVE_OLDEST_AGE), Some(age));
        let value = f64::from(Phase::CheckpointSave as u8) + 1.0;
        let phase = PointValue::Gauge { value, max: None };
        assert_eq!(of(&rank, &training::PHASE_NOW), Some(phase));
        let trains = told(&MinuteRow::default(), ResourceKind::Rank, 0).expect("it was heard");
        let none = PointValue::Gauge {
            value: 0.0,
            max: None,
        };
        assert_eq!(of(&trains, &training::PHASE_NOW), Some(none));
    }
}

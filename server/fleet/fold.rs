//! One resource in the fleet: takes in its points, as live values and as deltas of its minutes.
//!
//! A point costs about 0.1 µs: values are found by a hint (points come in the same order every
//! tick), and no text is copied unless something is new.

use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::states::{Edge, HealthEvent, Policy, Recent};
use gpufleet_telemetry::catalog::{Kind, MetricId, gpu};
use gpufleet_telemetry::identity::{AgentId, Origin, Part, Resource, attribute};
use gpufleet_telemetry::minute::{Aggregate, Bitmaps, Counter, seconds_by_minute};
use gpufleet_telemetry::otlp::{DecodedPoint, DecodedResource};
use gpufleet_telemetry::sample::Reading;
use gpufleet_telemetry::tick::PointValue;
use gpufleet_telemetry::time::{Minute, NANOS_PER_SECOND, SECONDS_PER_MINUTE, Timestamp};
use gpufleet_telemetry::wire::Lane;

use super::drops::{Drop, Drops};
use super::holding::Holding;
use super::live::{Live, LiveValue, Told};
use super::pending::{Pending, Waited};
use crate::runs::Heard;
use crate::store::model::ResourceKey;

/// Most readings kept live of one resource: the catalog's GPU metrics and 1,024 parts of two kinds.
pub const MAX_VALUES: usize = 2_304;

/// For how many more readings there is room once a resource's is full, and of many for this part of them more: most tell the
/// same at each tick, and doubling would leave half of it empty.
pub(super) const GROWS_BY: usize = 8;

/// Readings of parts (processes, links) that were not told for this long are forgotten: the part is
/// gone. Slow readings come every 60 s.
const PART_FORGOTTEN: i64 = 300 * NANOS_PER_SECOND;

/// Points later than the server's clock by more than this are not believed.
const MAX_FUTURE: i64 = 300 * NANOS_PER_SECOND;

/// Points older than this are left out: PostgreSQL keeps minutes for 7 days, and a spool 24 h.
const MAX_AGE: i64 = 7 * 86_400 * NANOS_PER_SECOND;

/// How often foreign senders are taken to send that do not say it, nanoseconds, until their points do: as OTLP's exporters
/// and most scrapes do by themselves.
const FOREIGN_TICK: i64 = 60 * NANOS_PER_SECOND;

/// What is believed of how often they send, nanoseconds: one that comes more often is not missed sooner than an agent, and
/// one that comes more seldom is silent in between.
const FOREIGN_TICKS: (i64, i64) = (10 * NANOS_PER_SECOND, 300 * NANOS_PER_SECOND);

/// What is the same for all points of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fold {
    pub(super) lane: Lane,
    /// Added to the sender's times, nanoseconds.
    pub(super) offset: i64,
    pub(super) received: Timestamp,
}

impl Fold {
    /// Whether a moment is so far ahead that no clock of this request's says it.
    pub(super) fn is_ahead(&self, at: Timestamp) -> bool {
        at.since(self.received) > MAX_FUTURE
    }

    /// Whether a moment of the server's clock is too far off to be believed or kept.
    pub(super) fn out_of_range(&self, at: Timestamp) -> Option<Drop> {
        if self.is_ahead(at) {
            Some(Drop::InFuture)
        } else if self.received.since(at) > MAX_AGE {
            Some(Drop::TooOld)
        } else {
            None
        }
    }

    /// The same for the runs.
    pub(super) const fn heard(&self, agent: AgentId) -> Heard {
        Heard {
            agent,
            lane: self.lane,
            received: self.received,
        }
    }
}

/// A resource with what waits to be committed of it.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) live: Live,
    /// False while only old data has come, and after another agent has taken the resource over.
    pub(super) visible: bool,
    /// Whether the store does not know the resource as it is now.
    pub(super) changed: bool,
    /// What the store knows as the time of its newest point.
    pub(super) told: Timestamp,
    /// The time of the oldest fresh point that waits for its commit.
    pub(super) oldest_live: Option<Timestamp>,
    /// The length of the newest tick of any lane, nanoseconds.
    interval_nanos: i64,
    /// How far apart the last points of a sender were that does not say how long its ticks are, nanoseconds.
    spacings: [i64; 2],
    pending: Pending,
    /// Who holds it, as it was last told.
    pub(super) holding: Holding,
    /// When parts were last forgotten.
    pruned: Minute,
}

impl Tracked {
    pub(super) fn new(
        key: ResourceKey,
        resource: Arc<Resource>,
        agent: Option<AgentId>,
        origin: Origin,
    ) -> Self {
        let node = resource.attribute(attribute::NODE).unwrap_or_default();
        Self {
            live: Live {
                node: node.into(),
                key,
                resource,
                agent,
                origin,
                first_seen: Timestamp(i64::MAX),
                last_point: Timestamp::default(),
                received: Timestamp::default(),
                interval: Duration::ZERO,
                values: Vec::new(),
                bits: Bitmaps::default(),
                bits_start: Timestamp::default(),
                recent: Recent::default(),
                health: None,
                told: Told::default(),
            },
            visible: false,
            changed: true,
            told: Timestamp::default(),
            oldest_live: None,
            interval_nanos: 0,
            spacings: [FOREIGN_TICK; 2],
            pending: Pending::default(),
            holding: Holding::default(),
            pruned: Minute::default(),
        }
    }

    /// A resource as the store knows it, or a test made it: visible, and known to the store.
    pub(super) fn restored(live: Live) -> Self {
        let mut tracked = Self::new(
            live.key.clone(),
            Arc::clone(&live.resource),
            live.agent,
            live.origin,
        );
        tracked.visible = true;
        tracked.changed = false;
        tracked.told = live.last_point;
        tracked.live = live;
        tracked
    }

    /// Takes in the points of one resource; returns by how many bytes the pending data grew.
    /// `keep` may refuse a point for a reason of its own, and says where it is known since when the
    /// point's series had no other point; else that is its tick.
    pub(super) fn fold(
        &mut self,
        fold: &Fold,
        decoded: &DecodedResource,
        drops: &mut Drops,
        mut keep: impl FnMut(&DecodedPoint) -> Result<Option<Timestamp>, Drop>,
    ) -> usize {
        let mut grown = 0;
        let mut hint = 0;
        let mut newest = None;
        if fold.lane == Lane::Live && fold.is_ahead(self.live.last_point) {
            self.set_back(fold);
        }
        let is_foreign = self.live.agent.is_none();
        let tick = match is_foreign {
            // Since when a stranger measures is not how often it sends.
            true => tick_of_bits(decoded),
            false => tick_of(decoded),
        };
        if let Some(tick) = tick {
            self.interval_nanos = tick;
        }
        let mut spacing: Option<i64> = None;
        let (resource, holder) = self.holding.described(fold, decoded);
        for point in &decoded.points {
            let at = point.at.shifted(fold.offset);
            let kept = match fold.out_of_range(at) {
                Some(reason) => Err(reason),
                None => keep(point).and_then(|since| {
                    if let Some(before) = since.filter(|before| *before < at) {
                        let apart = at.since(before);
                        spacing = Some(spacing.map_or(apart, |it| it.min(apart)));
                    }
                    let since = since.unwrap_or(at.shifted(-self.interval_nanos));
                    self.point(fold, point, (since, at, holder), &mut grown, &mut hint)
                }),
            };
            match kept {
                Ok(()) => newest = newest.max(Some(at)),
                Err(reason) => drops.add(reason, 1),
            }
        }
        match spacing.filter(|_| tick.is_none()) {
            Some(apart) => self.spaced(apart),
            None if is_foreign && self.interval_nanos == 0 => self.interval_nanos = FOREIGN_TICK,
            None => {}
        }
        if let Some(newest) = newest {
            self.heard(fold, decoded, &resource, newest);
        }
        grown
    }

    /// Learns how often a sender sends that does not say it: the middle one of the last three distances of points, since a
    /// pause makes one of them longer, and a start one shorter.
    fn spaced(&mut self, apart: i64) {
        let [first, second] = self.spacings;
        self.spacings = [second, apart];
        let mut three = [first, second, apart];
        three.sort_unstable();
        let (shortest, longest) = FOREIGN_TICKS;
        self.interval_nanos = three[1].clamp(shortest, longest);
    }

    /// Forgets what is shown of a time that has not come: sender and server were ahead together, and both
    /// clocks were set back. What was folded by then stays in its minutes; what comes now is newer.
    fn set_back(&mut self, fold: &Fold) {
        let live = &mut self.live;
        live.values.retain(|it| !fold.is_ahead(it.at));
        (live.bits, live.bits_start) = (Bitmaps::default(), Timestamp::default());
        live.last_point = fold.received;
        if let Some(health) = &mut live.health {
            health.at = health.at.min(fold.received);
        }
        live.told.set_back(fold.received);
        self.told = Timestamp::default();
        self.pruned = Minute::default();
    }

    fn point(
        &mut self,
        fold: &Fold,
        point: &DecodedPoint,
        (since, at, holder): (Timestamp, Timestamp, i64),
        grown: &mut usize,
        hint: &mut usize,
    ) -> Result<(), Drop> {
        let metric = point.metric;
        let start = point.start.shifted(fold.offset);
        let keeps_minute = metric.in_minutes && point.part.is_none();
        let (reading, max): (Reading, Option<f64>) = match point.value {
            PointValue::SecondBits(bits) => {
                *grown += self.bits(fold, (metric.id, holder), start, at, bits);
                return Ok(());
            }
            PointValue::Missing(why) => (Err(why), None),
            PointValue::Gauge { value, max } => {
                let aggregate = Aggregate::of_gauge(value, max).ok_or(Drop::BadNumber)?;
                if keeps_minute {
                    *grown += self.pending.aggregate(minute_of(at), metric.id, aggregate);
                }
                (Ok(value), max)
            }
            PointValue::Counter { value, .. } => {
                let begins = minute_of(at).start();
                let counter = Counter::point(value, millis(begins, since), millis(begins, at))
                    .ok_or(Drop::BadNumber)?;
                if keeps_minute {
                    *grown += self.pending.count(minute_of(at), metric.id, counter);
                }
                (Ok(value), None)
            }
        };
        match fold.lane {
            Lane::Backfill => Ok(()),
            Lane::Live => self.value(metric.id, point.part.as_ref(), reading, max, at, hint),
        }
    }

    /// Sets second bits in their minutes, and in the live view when they are the newest.
    fn bits(
        &mut self,
        fold: &Fold,
        (metric, holder): (MetricId, i64),
        start: Timestamp,
        end: Timestamp,
        bits: u64,
    ) -> usize {
        let seconds = end.since(start).div_euclid(NANOS_PER_SECOND);
        let seconds = u32::try_from(seconds).unwrap_or(0).min(SECONDS_PER_MINUTE);
        let holder = (metric == gpu::HELD.id && holder > 0).then_some(holder);
        let mut grown = 0;
        for (minute, bits) in seconds_by_minute(start, seconds, bits) {
            grown += self.pending.bits(minute, (metric, holder), bits);
        }
        if fold.lane == Lane::Live && start >= self.live.bits_start {
            if start > self.live.bits_start {
                self.live.bits = Bitmaps::default();
                self.live.bits_start = start;
            }
            self.live.bits.set(metric, bits);
        }
        grown
    }

    /// Sets a live value. `hint` is where the one after the last one stands.
    fn value(
        &mut self,
        metric: MetricId,
        part: Option<&Part>,
        reading: Reading,
        max: Option<f64>,
        at: Timestamp,
        hint: &mut usize,
    ) -> Result<(), Drop> {
        let values = &mut self.live.values;
        let is_at_hint = values
            .get(*hint)
            .is_some_and(|it| it.metric == metric && it.part.as_deref() == part);
        let place = if is_at_hint {
            Ok(*hint)
        } else {
            values.binary_search_by(|it| (it.metric, it.part.as_deref()).cmp(&(metric, part)))
        };
        match place {
            Ok(place) => {
                let known = &mut values[place];
                if at >= known.at {
                    known.set(reading, max, at);
                }
                *hint = place + 1;
            }
            Err(_) if values.len() >= MAX_VALUES => return Err(Drop::TooManyValues),
            Err(place) => {
                // One address for the readings of a part: who looks for them compares no names.
                let before = values[..place].iter().rev();
                let mut parts = before.filter_map(|it| it.part.as_ref());
                let known = part.and_then(|part| parts.find(|it| ***it == *part).cloned());
                let value = LiveValue {
                    metric,
                    part: known.or_else(|| part.cloned().map(Arc::new)),
                    reading,
                    max: max.map(Box::new),
                    at,
                };
                if values.len() == values.capacity() {
                    values.reserve_exact(GROWS_BY.max(values.len() / GROWS_BY));
                }
                values.insert(place, value);
                *hint = place + 1;
            }
        }
        Ok(())
    }

    /// What a request says about the resource as a whole.
    fn heard(
        &mut self,
        fold: &Fold,
        decoded: &DecodedResource,
        resource: &Arc<Resource>,
        newest: Timestamp,
    ) {
        let live = &mut self.live;
        live.first_seen = live.first_seen.min(newest);
        if fold.lane == Lane::Backfill {
            live.last_point = live.last_point.max(newest);
            return;
        }
        self.visible = true;
        self.oldest_live.get_or_insert(newest);
        if newest >= live.last_point && !Arc::ptr_eq(&live.resource, resource) {
            self.changed |= *live.resource != **resource;
            live.resource = Arc::clone(resource);
            let node = live.resource.attribute(attribute::NODE).unwrap_or_default();
            if *live.node != *node {
                live.node = node.into();
            }
        }
        live.interval = Duration::from_nanos(self.interval_nanos.unsigned_abs());
        live.last_point = live.last_point.max(newest);
        live.received = fold.received;
        let mut values = decoded.points.iter();
        if decoded
            .points
            .iter()
            .any(|it| it.metric.id == gpu::OBSERVED.id)
        {
            // Of a replica only seconds come of which its agent knows it.
            let is_replica = live.resource.attribute(attribute::REPLICA_OF).is_some();
            let activity_known = is_replica
                || values.any(|it| {
                    let is_activity =
                        [gpu::GRAPHICS_ACTIVE.id, gpu::UTILIZATION.id].contains(&it.metric.id);
                    is_activity && !matches!(it.value, PointValue::Missing(_))
                });
            let seconds = u32::try_from(self.interval_nanos / NANOS_PER_SECOND).unwrap_or(0);
            let starting = live.resource.attribute(attribute::HOLDER_STARTING);
            live.recent.starts(starting == Some("true"));
            live.recent
                .tick(live.bits_start, seconds, &live.bits, activity_known);
            // The ledger's rule: what works for a while after the event is whole again.
            let healed_after_s = Policy::default().healed_after_s;
            if let Some(health) = &mut live.health
                && live.recent.works_after(health.at, healed_after_s)
            {
                health.edge = Edge::Whole;
            }
        }
        if newest.minute() != self.pruned {
            self.pruned = newest.minute();
            live.values
                .retain(|it| it.part.is_none() || newest.since(it.at) <= PART_FORGOTTEN);
        }
    }

    /// Notes what an event says of its health; one that is older than the last one says nothing.
    pub(super) fn note(&mut self, event: HealthEvent) {
        if self.live.health.is_none_or(|known| known.at <= event.at) {
            self.live.health = Some(event);
        }
    }

    /// Hands out what waits to be committed; none where nothing does.
    pub(super) fn take(&mut self) -> Option<Waited> {
        self.pending.take(&self.live.key)
    }
}

/// The minute that a point belongs to: the one in which its tick ended, half-open, so that a tick
/// that ends with the minute still belongs to it.
fn minute_of(at: Timestamp) -> Minute {
    at.shifted(-1).minute()
}

/// Milliseconds from one moment to another; 0 when that is before it.
fn millis(from: Timestamp, to: Timestamp) -> u32 {
    u32::try_from(to.millis() - from.millis()).unwrap_or(0)
}

/// The length of the tick of which bits are told, one a second, nanoseconds.
fn tick_of_bits(decoded: &DecodedResource) -> Option<i64> {
    let mut points = decoded.points.iter();
    let bits = points.find(|it| it.metric.kind == Kind::SecondBits)?;
    Some(bits.at.since(bits.start))
}

/// The length of the tick that these points sum up, nanoseconds; a counter does not say it.
pub(super) fn tick_of(decoded: &DecodedResource) -> Option<i64> {
    let tick = decoded
        .points
        .iter()
        .find(|it| it.start < it.at && it.metric.kind != Kind::Counter)?;
    Some(tick.at.since(tick.start))
}

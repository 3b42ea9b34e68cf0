//! The rules of the fleet, one by one, through its front door.

mod health;

mod twice;

mod clocks;

mod one_name;

mod renamed;

mod foreign;

mod room;

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_telemetry::catalog::{self, Metric, gpu};
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::identity::{
    AgentId, Epoch, Part, PartKind, Resource, ResourceKind, attribute,
};
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::otlp::{DecodedMetrics, DecodedPoint, DecodedResource, Rejected};
use gpufleet_telemetry::sample::Missing;
use gpufleet_telemetry::tick::PointValue;
use gpufleet_telemetry::time::{Minute, Timestamp};
use gpufleet_telemetry::wire::{Lane, Stream};
use uuid::Uuid;

use super::{
    Body, Drop, FOREIGN_AGENT, Fleet, FleetConfig, MAX_RESOURCES_PER_AGENT, MAX_VALUES, Offer,
    Outcome, ServerClock,
};
use crate::store::model::{CursorKey, ResourceKey};

/// The beginning of a minute.
const T: i64 = 1_790_000_040;

/// A request in the making: one tick of one GPU, sent by agent 1 when the tick ends.
struct Sent {
    agent: u128,
    session: u64,
    seq: u64,
    lane: Lane,
    /// What the sender's clock is behind ours by, seconds.
    behind: i64,
    /// When it is sent by a clock that is right since, seconds.
    mended_at: Option<i64>,
    bound: Option<&'static str>,
    end: i64,
    resource: Resource,
    points: Vec<(Metric, Option<Part>, PointValue)>,
}

/// A live request of agent 1 that comes at the moment at which it is sent.
fn request(seq: u64, at: Timestamp, stream: Stream, body: Body<'_>) -> Offer<'_> {
    Offer {
        key: CursorKey {
            agent: AgentId(Uuid::from_u128(1)),
            epoch: Epoch(Uuid::from_u128(1_001)),
            stream,
        },
        seq,
        session: 1,
        lane: Lane::Live,
        dropped: None,
        sent_at: at,
        received: at,
        bound_cluster: None,
        default_cluster: "default".into(),
        body,
    }
}

fn gpu_resource() -> Resource {
    Resource::new(ResourceKind::Gpu, "GPU-1")
        .with(attribute::CLUSTER, "c")
        .with(attribute::NODE, "n")
}

fn sent(seq: u64, end: i64) -> Sent {
    Sent {
        agent: 1,
        session: 1,
        seq,
        lane: Lane::Live,
        behind: 0,
        mended_at: None,
        bound: None,
        end,
        resource: gpu_resource(),
        points: vec![(gpu::POWER, None, watts(300.0))],
    }
}

fn watts(value: f64) -> PointValue {
    PointValue::Gauge { value, max: None }
}

fn total(value: f64) -> PointValue {
    let since = Timestamp::default();
    PointValue::Counter { value, since }
}

fn fleet() -> Fleet {
    Fleet::new(FleetConfig::default())
}

fn key() -> ResourceKey {
    ResourceKey {
        cluster: "c".into(),
        kind: ResourceKind::Gpu,
        id: "GPU-1".into(),
    }
}

impl Sent {
    fn offer(self, fleet: &Fleet) -> Outcome {
        let at = Timestamp::from_seconds(self.end - self.behind);
        let points = self
            .points
            .into_iter()
            .map(|(metric, part, value)| DecodedPoint {
                metric: catalog::by_id(metric.id).expect("in the catalog"),
                part,
                start: match value {
                    PointValue::Counter { .. } => at,
                    _ => at.shifted(-10_000_000_000),
                },
                value,
                at,
            });
        let decoded = DecodedMetrics {
            resources: vec![DecodedResource {
                resource: Arc::new(self.resource),
                points: points.collect(),
            }],
            rejected: Rejected::default(),
        };
        let answer = fleet.offer(&Offer {
            key: CursorKey {
                agent: AgentId(Uuid::from_u128(self.agent)),
                epoch: Epoch(Uuid::from_u128(self.agent + 1_000)),
                stream: Stream::Metrics,
            },
            seq: self.seq,
            session: self.session,
            lane: self.lane,
            dropped: None,
            sent_at: self.mended_at.map_or(at, Timestamp::from_seconds),
            received: Timestamp::from_seconds(self.mended_at.unwrap_or(self.end)),
            bound_cluster: self.bound.map(Arc::from),
            default_cluster: "default".into(),
            body: Body::Metrics(&decoded),
        });
        answer.outcome
    }
}

fn folded(outcome: Outcome) -> super::Drops {
    match outcome {
        Outcome::Folded(drops) => drops,
        other => panic!("not folded: {other:?}"),
    }
}

/// Commits and returns the minutes of a GPU.
fn minutes(fleet: &Fleet) -> BTreeMap<Minute, MinuteRow> {
    let Some(commit) = fleet.take_commit(Timestamp::from_seconds(T)) else {
        return BTreeMap::new();
    };
    fleet.committed(commit.number);
    let minutes = commit.minutes.iter();
    minutes.map(|it| (it.minute, it.row.clone())).collect()
}

#[test]
fn a_tick_goes_into_the_minute_and_seconds_that_it_covers() {
    let minute = |second: i64| Timestamp::from_seconds(T + second).minute();
    for (end, behind, power_in, bits) in [
        (T + 10, 0, minute(0), vec![(minute(0), 0x3ff)]),
        (T + 60, 0, minute(0), vec![(minute(0), 0x3ff << 50)]),
        (
            T + 65,
            0,
            minute(60),
            vec![(minute(0), 0x1f << 55), (minute(60), 0x1f)],
        ),
        // Up to 5 s a clock is left alone; beyond, the times are shifted to ours.
        (
            T + 10,
            4,
            minute(0),
            vec![(minute(-60), 0xf << 56), (minute(0), 0x3f)],
        ),
        (T + 10, 600, minute(0), vec![(minute(0), 0x3ff)]),
    ] {
        let fleet = fleet();
        let mut tick = sent(1, end);
        tick.behind = behind;
        tick.points = vec![
            (gpu::OBSERVED, None, PointValue::SecondBits(0x3ff)),
            (gpu::POWER, None, watts(300.0)),
        ];
        folded(tick.offer(&fleet));
        let minutes = minutes(&fleet);
        let found: Vec<_> = minutes
            .iter()
            .filter(|(_, row)| row.bitmaps.observed != 0)
            .map(|(minute, row)| (*minute, row.bitmaps.observed))
            .collect();
        assert_eq!(found, bits, "{end} {behind}");
        assert_eq!(minutes[&power_in].metrics[&gpu::POWER.id].count, 1);
    }
}

#[test]
fn only_what_the_catalog_keeps_in_minutes_is_kept_and_missing_is_no_zero() {
    let fleet = fleet();
    let mut tick = sent(1, T + 10);
    tick.points = vec![
        (gpu::POWER, None, PointValue::Missing(Missing::NotSupported)),
        (gpu::MEMORY_FREE, None, watts(5.0)),
        (gpu::ENERGY, None, total(1_000.0)),
    ];
    folded(tick.offer(&fleet));
    let live = fleet.get(&key()).expect("live");
    assert_eq!(
        live.value(gpu::POWER.id).map(|it| it.reading),
        Some(Err(Missing::NotSupported))
    );
    assert_eq!(
        live.value(gpu::MEMORY_FREE.id).map(|it| it.reading),
        Some(Ok(5.0))
    );
    let mut tick = sent(2, T + 20);
    tick.points = vec![(gpu::ENERGY, None, total(1_250.0))];
    folded(tick.offer(&fleet));
    let rows = minutes(&fleet);
    let row = &rows[&Timestamp::from_seconds(T).minute()];
    assert!(row.metrics.is_empty());
    assert_eq!(row.counters.keys().collect::<Vec<_>>(), [&gpu::ENERGY.id]);
    let energy = &row.counters[&gpu::ENERGY.id];
    assert_eq!(
        (energy.count(), energy.growth(), energy.last()),
        (2, 250.0, 1_250.0)
    );
}

#[test]
fn old_data_goes_to_minutes_and_never_to_the_live_view() {
    let fleet = fleet();
    let mut old = sent(1, T + 10);
    old.lane = Lane::Backfill;
    folded(old.offer(&fleet));
    assert_eq!(fleet.get(&key()), None);
    folded(sent(2, T + 20).offer(&fleet));
    let mut old = sent(3, T + 30);
    old.lane = Lane::Backfill;
    old.points = vec![(gpu::POWER, None, watts(1.0))];
    folded(old.offer(&fleet));
    let live = fleet.get(&key()).expect("live");
    assert_eq!(
        live.value(gpu::POWER.id).map(|it| it.reading),
        Some(Ok(300.0))
    );
    let rows = minutes(&fleet);
    assert_eq!(
        rows[&Timestamp::from_seconds(T).minute()].metrics[&gpu::POWER.id].count,
        3
    );
}

#[test]
fn points_that_cannot_be_are_left_out_and_counted() {
    let day = 86_400;
    for (points, end_offset, reason) in [
        (vec![(gpu::POWER, None, watts(1.0))], -8 * day, Drop::TooOld),
        (vec![(gpu::POWER, None, watts(1.0))], 400, Drop::InFuture),
        (
            vec![(gpu::POWER, None, watts(f64::NAN))],
            0,
            Drop::BadNumber,
        ),
        (vec![(gpu::ENERGY, None, total(-1.0))], 0, Drop::BadNumber),
    ] {
        let fleet = fleet();
        // An epoch whose offset is known to be none, so that the time itself is wrong.
        folded(sent(1, T).offer(&fleet));
        minutes(&fleet);
        let at = Timestamp::from_seconds(T + end_offset);
        let (metric, part, value) = points[0].clone();
        let decoded = DecodedMetrics {
            resources: vec![DecodedResource {
                resource: Arc::new(gpu_resource()),
                points: vec![DecodedPoint {
                    metric: catalog::by_id(metric.id).expect("in the catalog"),
                    part,
                    value,
                    start: at,
                    at,
                }],
            }],
            rejected: Rejected::default(),
        };
        let at = Timestamp::from_seconds(T);
        let answer = fleet.offer(&request(2, at, Stream::Metrics, Body::Metrics(&decoded)));
        let drops = folded(answer.outcome);
        assert_eq!(
            (drops.count(reason), drops.total()),
            (1, 1),
            "{}",
            reason.name()
        );
        assert!(minutes(&fleet).is_empty(), "{}", reason.name());
        assert_eq!(fleet.health().drops.count(reason), 1);
    }
}

#[test]
fn ten_thousand_processes_or_resources_of_one_agent_meet_their_limits() {
    let fleet = fleet();
    let mut tick = sent(1, T + 10);
    let process = |pid: usize| Part::new(PartKind::Process, pid.to_string());
    tick.points = (0..10_000)
        .map(|pid| (gpu::PROCESS_MEMORY, Some(process(pid)), watts(1.0)))
        .collect();
    let drops = folded(tick.offer(&fleet));
    assert_eq!(drops.count(Drop::TooManyValues), 10_000 - MAX_VALUES as u64);
    assert_eq!(fleet.get(&key()).expect("live").values.len(), MAX_VALUES);
    let mut refused = 0;
    for number in 0..MAX_RESOURCES_PER_AGENT as u64 + 5 {
        let mut tick = sent(number + 2, T + 10);
        tick.resource = Resource::new(ResourceKind::Gpu, format!("GPU-x{number}"));
        refused += folded(tick.offer(&fleet)).count(Drop::TooManyResources);
    }
    assert_eq!(refused, 6, "one resource was there before");
}

#[test]
fn a_part_that_is_gone_is_forgotten_and_a_changed_attribute_is_told_to_the_store() {
    let fleet = fleet();
    let mut tick = sent(1, T + 10);
    let part = Some(Part::new(PartKind::Process, "42"));
    tick.points.push((gpu::PROCESS_MEMORY, part, watts(1.0)));
    folded(tick.offer(&fleet));
    let resources = |fleet: &Fleet| {
        let commit = fleet
            .take_commit(Timestamp::from_seconds(T))
            .expect("something");
        fleet.committed(commit.number);
        commit.resources.len()
    };
    assert_eq!(resources(&fleet), 1);
    folded(sent(2, T + 20).offer(&fleet));
    assert_eq!(resources(&fleet), 0, "nothing new");
    let mut tick = sent(3, T + 30);
    tick.resource = gpu_resource().with(attribute::DRIVER_VERSION, "590");
    folded(tick.offer(&fleet));
    assert_eq!(resources(&fleet), 1, "the driver changed");
    assert_eq!(fleet.get(&key()).expect("live").values.len(), 2);
    folded(sent(4, T + 400).offer(&fleet));
    assert_eq!(fleet.get(&key()).expect("live").values.len(), 1);
    assert_eq!(resources(&fleet), 1, "it is told again that it is there");
}

#[test]
fn a_clone_and_a_wrong_clock_are_refused_and_told_once() {
    let fleet = fleet();
    folded(sent(1, T + 10).offer(&fleet));
    let mut newer = sent(2, T + 20);
    newer.session = 2;
    folded(newer.offer(&fleet));
    assert_eq!(sent(3, T + 30).offer(&fleet), Outcome::Conflict);
    assert_eq!(sent(3, T + 40).offer(&fleet), Outcome::Conflict);
    let mut wrong = sent(1, T + 50);
    (wrong.agent, wrong.behind) = (2, 4_000);
    let off_nanos = 4_000_000_000_000;
    assert_eq!(wrong.offer(&fleet), Outcome::Quarantined { off_nanos });
    let commit = fleet
        .take_commit(Timestamp::from_seconds(T))
        .expect("something");
    let mut events: Vec<_> = commit.events.iter().map(|it| it.event.kind).collect();
    events.sort_unstable();
    assert_eq!(events, [EventKind::AgentIdConflict, EventKind::ClockOffset]);
    assert_eq!(commit.minutes[0].row.metrics[&gpu::POWER.id].count, 2);
}

#[test]
fn a_token_of_another_cluster_neither_speaks_for_an_agent_nor_silences_it() {
    for first in [None, Some("c")] {
        let fleet = fleet();
        let say = |seq, session, bound| {
            let mut tick = sent(seq, T + 10 * seq as i64);
            (tick.session, tick.bound) = (session, bound);
            tick.offer(&fleet)
        };
        folded(say(1, 1, first));
        assert_eq!(say(2, 2, Some("d")), Outcome::OtherCluster);
        folded(say(2, 1, Some("c")));
        folded(say(3, 1, None));
        let mut recorded = sent(4, T + 40);
        recorded.resource = gpu_resource().with(attribute::ORIGIN, "recorded");
        recorded.bound = Some("c");
        folded(recorded.offer(&fleet));
        let commit = fleet
            .take_commit(Timestamp::from_seconds(T))
            .expect("something");
        assert!(commit.events.is_empty(), "nothing is told of a conflict");
    }
}

#[test]
fn an_agent_is_where_its_live_node_is_whatever_else_it_carries() {
    let fleet = fleet();
    let node = |name: &str, origin: &str, version: &str| {
        Resource::new(ResourceKind::Node, name)
            .with(attribute::CLUSTER, "c")
            .with(attribute::NODE, name)
            .with(attribute::AGENT_VERSION, version)
            .with(attribute::ORIGIN, origin)
    };
    let played_gpu = Resource::new(ResourceKind::Gpu, "GPU-p")
        .with(attribute::CLUSTER, "c")
        .with(attribute::NODE, "played")
        .with(attribute::ORIGIN, "recorded");
    for (place, (resource, expected)) in [
        (played_gpu.clone(), ("played", "c-recorded", "")),
        (node("other", "recorded", "1"), ("other", "c-recorded", "1")),
        (
            node("played", "recorded", "1"),
            ("other", "c-recorded", "1"),
        ),
        (gpu_resource(), ("other", "c-recorded", "1")),
        (node("n", "live", "1"), ("n", "c", "1")),
        (node("other", "recorded", "1"), ("n", "c", "1")),
        (played_gpu, ("n", "c", "1")),
        (node("n", "live", "2"), ("n", "c", "2")),
    ]
    .into_iter()
    .enumerate()
    {
        let mut tick = sent(place as u64 + 1, T + 10 * (place as i64 + 1));
        (tick.resource, tick.points) = (resource, Vec::new());
        folded(tick.offer(&fleet));
        let agents = fleet.agents();
        let found = (&*agents[0].node, &*agents[0].cluster, &*agents[0].version);
        assert_eq!(found, expected, "{place}");
    }
}

#[test]
fn full_memory_for_old_data_does_not_stop_fresh_data() {
    let fleet = Fleet::new(FleetConfig {
        backfill_bytes: 1,
        ..FleetConfig::default()
    });
    let old = |seq| {
        let mut old = sent(seq, T + 10);
        old.lane = Lane::Backfill;
        old
    };
    folded(old(1).offer(&fleet));
    assert_eq!(old(2).offer(&fleet), Outcome::Full);
    folded(sent(2, T + 20).offer(&fleet));
    assert!(fleet.pending_bytes() > 0);
    minutes(&fleet);
    assert_eq!(fleet.pending_bytes(), 0);
    folded(old(3).offer(&fleet));
}

#[test]
fn the_cluster_of_the_token_wins_and_made_up_data_is_kept_apart() {
    for (bound, told, origin, expected) in [
        (None, "", "live", "default"),
        (None, "told", "live", "told"),
        (Some("bound"), "told", "live", "bound"),
        (Some("bound"), "told", "recorded", "bound-recorded"),
        (None, "demo", "simulated", "demo"),
    ] {
        let fleet = fleet();
        let mut tick = sent(1, T + 10);
        tick.bound = bound;
        tick.resource = Resource::new(ResourceKind::Gpu, "GPU-1")
            .with(attribute::CLUSTER, told)
            .with(attribute::ORIGIN, origin);
        folded(tick.offer(&fleet));
        let mut clusters = Vec::new();
        fleet.visit(|live| clusters.push(live.key.cluster.to_string()));
        assert_eq!(clusters, [expected]);
    }
}

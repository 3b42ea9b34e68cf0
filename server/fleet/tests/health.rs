//! What events say of a GPU's health is seen live.

use std::collections::BTreeSet;

use gpufleet_analysis::ledger::{Reason, State};
use gpufleet_analysis::states::{Edge, HealthEvent};
use gpufleet_telemetry::event::{Event, Severity};
use gpufleet_telemetry::otlp::{DecodedEvent, DecodedEvents};

use super::*;
use crate::fleet::Restored;
use crate::inventory::known::Moment;
use crate::inventory::{Inventory, InventoryConfig};
use crate::store::model::KnownResource;
use crate::view::judge::{NodesNow, judge, judge_on};

/// Sends these events.
fn logs(fleet: &Fleet, seq: u64, decoded: &DecodedEvents) -> Outcome {
    let at = decoded.events[0].event.at;
    let answer = fleet.offer(&request(seq, at, Stream::Logs, Body::Events(decoded)));
    answer.outcome
}

#[test]
fn a_fatal_event_is_seen_at_once_and_ends_with_a_healing_one_or_with_work() {
    let fleet = fleet();
    let tell = |seq: u64, at: i64, kind: EventKind, xid: &str| {
        let sender = Arc::new(gpu_resource());
        let event = Event {
            at: Timestamp::from_seconds(at),
            kind,
            severity: Severity::Error,
            resource_kind: ResourceKind::Gpu,
            resource_id: "GPU-1".into(),
            message: String::new(),
            attributes: [("xid".to_owned(), xid.to_owned())].into(),
        };
        let decoded = DecodedEvents {
            events: vec![DecodedEvent { sender, event }],
            ..DecodedEvents::default()
        };
        folded(logs(&fleet, seq, &decoded));
    };
    let works = |seq, end| {
        let mut tick = sent(seq, end);
        for metric in [gpu::OBSERVED, gpu::ACTIVE, gpu::HELD, gpu::HOLDER_KNOWN] {
            tick.points
                .push((metric, None, PointValue::SecondBits(0x3ff)));
        }
        tick.points.push((gpu::UTILIZATION, None, watts(1.0)));
        folded(tick.offer(&fleet));
    };
    let reason = |now| {
        let live = fleet.get(&key()).expect("live");
        let status = judge(&live, Timestamp::from_seconds(now));
        (status.state == State::Unhealthy).then_some(status.reason)
    };
    works(1, T + 10);
    tell(1, T + 11, EventKind::Xid, "13");
    assert_eq!(reason(T + 11), None, "the application's error");
    tell(2, T + 12, EventKind::Xid, "79");
    assert_eq!(reason(T + 12), Some(Reason::FatalXid));
    works(2, T + 20);
    assert_eq!(reason(T + 20), Some(Reason::FatalXid), "too early");
    tell(3, T + 21, EventKind::GpuRecovered, "");
    assert_eq!(reason(T + 21), None);
    tell(4, T + 22, EventKind::GpuLost, "");
    assert_eq!(reason(T + 22), Some(Reason::DeviceLost));
    works(3, T + 90);
    assert_eq!(reason(T + 90), None, "it works again");
}

#[test]
fn a_free_gpu_drains_while_its_machine_is_taken_back_as_in_the_ledger() {
    let fleet = fleet();
    let config = InventoryConfig {
        source: "off".to_owned(),
        ..InventoryConfig::default()
    };
    let inventory = Inventory::new(&config, "c");
    let free = |seq, end| {
        let mut tick = sent(seq, end);
        for metric in [gpu::OBSERVED, gpu::HOLDER_KNOWN] {
            tick.points
                .push((metric, None, PointValue::SecondBits(0x3ff)));
        }
        tick.points.push((gpu::UTILIZATION, None, watts(0.0)));
        folded(tick.offer(&fleet));
    };
    let taken_back = |seq, at: i64, node: &str| {
        let event = Event {
            at: Timestamp::from_seconds(at),
            kind: EventKind::PreemptionNoticed,
            severity: Severity::Warning,
            resource_kind: ResourceKind::Node,
            resource_id: node.into(),
            message: String::new(),
            attributes: BTreeMap::new(),
        };
        let decoded = DecodedEvents {
            events: vec![DecodedEvent {
                sender: Arc::new(gpu_resource()),
                event,
            }],
            ..DecodedEvents::default()
        };
        folded(logs(&fleet, seq, &decoded));
    };
    let status = |now: i64| {
        let moment = Moment {
            at: Timestamp::from_seconds(now),
            monotonic: std::time::Duration::ZERO,
        };
        let nodes = NodesNow::of(&fleet, &inventory, moment);
        let live = fleet.get(&key()).expect("live");
        let status = judge_on(&live, moment.at, &nodes);
        (status.state, status.since.map(|it| it.seconds() - T))
    };
    free(1, T + 10);
    taken_back(1, T + 11, "other");
    assert_eq!(status(T + 12), (State::Unallocated, Some(0)));
    taken_back(2, T + 13, "n");
    assert_eq!(status(T + 13), (State::Draining, Some(13)));
    // The inventory sees it as well: that is no other notice.
    fleet.saw_taken_back(&"c".into(), "n", Timestamp::from_seconds(T + 14));
    fleet.saw_taken_back(&"c".into(), "m", Timestamp::from_seconds(T + 14));
    let commit = fleet.take_commit(Timestamp::from_seconds(T + 20));
    let commit = commit.expect("there is something to write");
    let noticed = commit.events.iter().map(|it| &*it.event.resource_id);
    let noticed: BTreeSet<&str> = noticed.collect();
    assert_eq!(noticed, BTreeSet::from(["m", "n", "other"]));
    assert_eq!(commit.events.len(), 3, "{:?}", commit.events);
    free(2, T + 60);
    assert_eq!(status(T + 72).0, State::Draining);
    free(3, T + 73);
    assert_eq!(status(T + 73).0, State::Unallocated, "it stayed");
}

#[test]
fn who_held_a_gpu_when_its_xids_came_is_stored_with_them_and_known_again_after_a_start() {
    let fleet = fleet();
    let sender = Arc::new(gpu_resource());
    for (seq, holder) in (1..).zip(["pod:team/a-0", "pod:team/b-0"]) {
        let mut tick = sent(seq, T + 10 * seq.cast_signed());
        tick.resource = tick.resource.clone().with(attribute::HOLDER, holder);
        folded(tick.offer(&fleet));
        let event = Event {
            at: Timestamp::from_seconds(T + 10 * seq.cast_signed()),
            kind: EventKind::Xid,
            severity: Severity::Warning,
            resource_kind: ResourceKind::Gpu,
            resource_id: "GPU-1".into(),
            message: String::new(),
            attributes: [("xid", "13"), ("action", "application_error")]
                .map(|(name, text)| (name.to_owned(), text.to_owned()))
                .into(),
        };
        let decoded = DecodedEvents {
            events: vec![DecodedEvent {
                sender: Arc::clone(&sender),
                event,
            }],
            ..DecodedEvents::default()
        };
        folded(logs(&fleet, seq, &decoded));
    }
    let before = fleet.get(&key()).expect("live");
    let holders: Vec<&str> = before.told.xids.iter().map(|it| &*it.holder).collect();
    assert_eq!(holders, ["pod:team/a-0", "pod:team/b-0"]);
    let stored = fleet.take_commit(Timestamp::from_seconds(T + 30));
    let again = self::fleet();
    let restored = Restored {
        resources: vec![KnownResource {
            key: key(),
            resource: Arc::clone(&before.resource),
            agent: before.agent,
            first_seen: before.first_seen,
            last_seen: before.last_point,
        }],
        told: stored.expect("there are events").events.clone(),
        ..Restored::default()
    };
    again.restore(restored, Timestamp::from_seconds(T + 60));
    let after = again.get(&key()).expect("it is known");
    assert_eq!(after.told.xids, before.told.xids);
}

#[test]
fn a_gpu_that_broke_is_broken_after_a_start_and_so_are_its_shares() {
    let fleet = fleet();
    let share = Resource::new(ResourceKind::Share, "MIG-1")
        .with(attribute::CLUSTER, "c")
        .with(attribute::PARENT, "GPU-1");
    let known = |kind, id: &str, resource: &Resource| KnownResource {
        key: ResourceKey {
            kind,
            id: id.into(),
            ..key()
        },
        resource: Arc::new(resource.clone()),
        agent: Some(AgentId(Uuid::from_u128(1))),
        first_seen: Timestamp::from_seconds(T),
        last_seen: Timestamp::from_seconds(T),
    };
    let health = HealthEvent {
        at: Timestamp::from_seconds(T),
        edge: Edge::Broken(Reason::FatalXid),
    };
    let restored = Restored {
        resources: vec![
            known(ResourceKind::Gpu, "GPU-1", &gpu_resource()),
            known(ResourceKind::Share, "MIG-1", &share),
        ],
        health: vec![(key(), health)],
        ..Restored::default()
    };
    fleet.restore(restored, Timestamp::from_seconds(T + 5));
    let mut tick = sent(1, T + 10);
    tick.resource = share.clone();
    tick.resource.id = "MIG-2".into();
    folded(tick.offer(&fleet));
    for (kind, id) in [
        (ResourceKind::Gpu, "GPU-1"),
        (ResourceKind::Share, "MIG-1"),
        (ResourceKind::Share, "MIG-2"),
    ] {
        let place = ResourceKey {
            kind,
            id: id.into(),
            ..key()
        };
        let live = fleet.get(&place).expect("it is known");
        assert_eq!(live.health, Some(health), "{id}");
    }
}

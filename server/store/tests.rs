//! The store's suite, run as it is against SQLite and against PostgreSQL.
//!
//! PostgreSQL comes from `GPUFLEET_TEST_POSTGRES`, a server on which databases may be made: each test
//! makes its own and drops it. `make test` starts one; by hand:
//! `eval "$(scripts/postgres.sh start)"`. Without it those tests fail and say so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{AgentId, Epoch, Resource, ResourceKind, attribute};
use gpufleet_telemetry::minute::{ALL_SECONDS, Aggregate, MinuteRow};
use gpufleet_telemetry::time::{Minute, Timestamp};
use gpufleet_telemetry::wire::Stream;
use uuid::Uuid;

use super::model::*;
use super::*;

mod harness;

mod commits;

mod leases;

mod hours;

mod family;

mod reading;

mod troubles;

mod unreadable;

mod forgetting;

mod restatements;

mod runs;

mod standing;

mod blocks;

mod incidents;

mod inventory;

mod phases;

mod training;

mod money;

mod daily;

mod lived;

mod energy;

mod advice;

mod terms;

mod habit;

mod exports;

mod digests;

use forgetting::keep_all;
use harness::{Bench, both};

/// The agent of every commit here.
pub(crate) const AGENT: AgentId = AgentId(Uuid::from_u128(7));

/// A Saturday in 2026, at a full hour.
pub(crate) const START: Minute = Minute(29_600_000 / 60 * 60);

pub(crate) fn key(id: &str) -> ResourceKey {
    ResourceKey {
        cluster: "live".into(),
        kind: ResourceKind::Gpu,
        id: id.into(),
    }
}

pub(crate) fn known(key: &ResourceKey, at: Minute) -> KnownResource {
    KnownResource {
        key: key.clone(),
        resource: Arc::new(
            Resource::new(key.kind, Arc::clone(&key.id)).with(attribute::NODE, "node-1"),
        ),
        agent: Some(AGENT),
        first_seen: at.start(),
        last_seen: at.start(),
    }
}

/// A minute that was observed and held throughout, at 300 W; active or not.
pub(crate) fn row(active: bool) -> MinuteRow {
    let mut row = MinuteRow::default();
    for metric in [gpu::OBSERVED, gpu::HELD, gpu::HOLDER_KNOWN] {
        row.bitmaps.set(metric.id, ALL_SECONDS);
    }
    if active {
        row.bitmaps.set(gpu::ACTIVE.id, ALL_SECONDS);
    }
    for (metric, value) in [
        (gpu::POWER, 300.0),
        (gpu::GRAPHICS_ACTIVE, f64::from(u8::from(active))),
        (gpu::MEMORY_USED, 8e9),
    ] {
        row.add(metric.id, Aggregate::of_gauge(value, None).expect("finite"));
    }
    row
}

/// A commit that folds one active minute of `gpus` resources.
pub(crate) fn commit(number: u64, gpus: usize, minute: Minute) -> Commit {
    let keys: Vec<ResourceKey> = (0..gpus).map(|it| key(&format!("GPU-{it}"))).collect();
    Commit {
        number,
        cursors: vec![cursor(number)],
        resources: keys.iter().map(|it| known(it, minute)).collect(),
        minutes: keys
            .into_iter()
            .map(|key| MinuteDelta {
                key,
                minute,
                row: row(true),
            })
            .collect(),
        ..Commit::default()
    }
}

pub(crate) fn cursor(seq: u64) -> Cursor {
    Cursor {
        key: CursorKey {
            agent: AGENT,
            epoch: Epoch(Uuid::from_u128(8)),
            stream: Stream::Metrics,
        },
        seq,
        clock_offset_nanos: -1_234_567_891,
        seen: START.start(),
    }
}

pub(crate) fn event(kind: EventKind, id: &str, at: Timestamp) -> StoredEvent {
    StoredEvent {
        cluster: "live".into(),
        agent: Some(AGENT),
        event: Event {
            at,
            kind,
            severity: Severity::Warning,
            resource_kind: ResourceKind::Gpu,
            resource_id: id.into(),
            message: format!("{} of {id}", kind.name()),
            attributes: BTreeMap::from([("xid".to_owned(), "79".to_owned())]),
        },
    }
}

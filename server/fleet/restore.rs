//! After a start: the fleet as the store knows it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gpufleet_telemetry::catalog::{self, Kind};
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::{Minute, Timestamp};

use super::agent::{AgentState, StreamState};
use super::commit::AGENT_FORGOTTEN;
use super::fold::Tracked;
use super::{FOREIGN_AGENT, Fleet, lock, lock_commit};
use crate::store::model::{Cursor, ForeignMark, KnownResource, ResourceKey};

/// What the store knows at a start.
#[derive(Debug, Clone, Default)]
pub struct Restored {
    /// The number of the last commit; 0 before the first.
    pub last_commit: u64,
    /// How far streams are folded.
    pub cursors: Vec<Cursor>,
    /// Resources that were heard of lately.
    pub resources: Vec<KnownResource>,
    /// The newest minute of each of them: counters grow on from there.
    pub minutes: Vec<(ResourceKey, Minute, MinuteRow)>,
    /// How far foreign series have been seen.
    pub foreign: Vec<ForeignMark>,
}

impl Fleet {
    /// Takes in what the store knows. Only before the first offer.
    pub fn restore(&self, restored: Restored, now: Timestamp) {
        lock_commit(&self.commit).done = restored.last_commit;
        for cursor in restored.cursors {
            self.restore_cursor(cursor, now);
        }
        let mut minutes: HashMap<ResourceKey, (Minute, MinuteRow)> = HashMap::new();
        for (key, minute, row) in restored.minutes {
            let newest = minutes.entry(key).or_insert_with(|| (minute, row.clone()));
            if minute > newest.0 {
                *newest = (minute, row);
            }
        }
        for known in restored.resources {
            let minute = minutes.remove(&known.key);
            self.restore_resource(known, minute);
        }
        let mut shard = lock(self.shard_of(FOREIGN_AGENT));
        for mark in restored.foreign {
            shard.marks.restore(mark);
        }
    }

    fn restore_cursor(&self, cursor: Cursor, now: Timestamp) {
        let id = cursor.key.agent;
        if id != FOREIGN_AGENT && now.since(cursor.seen) >= AGENT_FORGOTTEN {
            return;
        }
        let mut shard = lock(self.shard_of(id));
        let agent = shard.agents.entry(id).or_insert_with(|| {
            self.agents.fetch_add(1, Ordering::Relaxed);
            AgentState::new(id, "".into(), cursor.seen)
        });
        agent.live.heard = agent.live.heard.max(cursor.seen);
        let mut stream = StreamState::new(cursor.key, cursor.clock_offset_nanos, cursor.seen);
        stream.durable = cursor.seq;
        stream.cursor = cursor;
        agent.streams.push(stream);
    }

    fn restore_resource(&self, known: KnownResource, minute: Option<(Minute, MinuteRow)>) {
        let reporter = known.agent.unwrap_or(FOREIGN_AGENT);
        let origin = known.resource.origin();
        let key = known.key.clone();
        let resource = Arc::clone(&known.resource);
        let mut live = Tracked::new(key.clone(), resource, known.agent, origin).live;
        live.first_seen = known.first_seen;
        live.last_point = known.last_seen;
        let mut tracked = Tracked::restored(live);
        if let Some((minute, row)) = minute {
            seed(&mut tracked, minute, &row);
        }
        if known.agent.is_some() {
            self.owners
                .write()
                .expect("nothing panics while it holds the owners")
                .insert(key.clone(), reporter);
        }
        let mut shard = lock(self.shard_of(reporter));
        if let Some(agent) = shard.agents.get_mut(&reporter) {
            agent.resources += 1;
            if agent.home.is_none() || origin == Origin::Live {
                agent.home = Some(Arc::clone(&key.cluster));
            }
            if agent.live.cluster.is_empty() {
                agent.live.cluster = Arc::clone(&key.cluster);
                agent.live.node = Arc::clone(&tracked.live.node);
            }
        }
        shard.resources.insert(key, tracked);
    }
}

/// Lets counters grow on from the newest minute that the store has. A counter that was reset within
/// that minute goes on from its greatest value, so at most the growth since the reset comes twice.
fn seed(tracked: &mut Tracked, minute: Minute, row: &MinuteRow) {
    let observed = row.bitmaps.observed;
    let seconds = i64::from(u64::BITS - observed.leading_zeros());
    let at = Timestamp::from_seconds(minute.start().seconds() + seconds);
    for (metric, aggregate) in &row.metrics {
        let is_counter = catalog::by_id(*metric).is_some_and(|metric| metric.kind == Kind::Counter);
        if is_counter {
            tracked.counters.seed(*metric, aggregate.max, at);
        }
    }
}

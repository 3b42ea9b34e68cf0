//! After a start: the fleet as the store knows it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gpufleet_analysis::states::HealthEvent;
use gpufleet_telemetry::identity::{AgentId, Origin};
use gpufleet_telemetry::time::Timestamp;

use super::agent::{AgentState, StreamState};
use super::commit::AGENT_FORGOTTEN;
use super::fold::Tracked;
use super::live::Live;
use super::sender_clock::QUARANTINED;
use super::{FOREIGN_AGENT, Fleet, MAX_FOREIGN_SERIES, MAX_RESOURCES, Name, lock, lock_commit};
use crate::runs::{KnownRun, StepDelta};
use crate::store::model::{Cursor, ForeignMark, KnownResource, ResourceKey, StoredEvent};

/// What the store knows at a start.
#[derive(Debug, Clone, Default)]
pub struct Restored {
    /// The number of the last commit; 0 before the first.
    pub last_commit: u64,
    /// How far streams are folded.
    pub cursors: Vec<Cursor>,
    /// Resources that were heard of lately.
    pub resources: Vec<KnownResource>,
    /// What last broke or healed resources, where nothing shows that they worked since.
    pub health: Vec<(ResourceKey, HealthEvent)>,
    /// XIDs of the last days and what made GPUs whole, the oldest first, and then which were taken out.
    pub told: Vec<StoredEvent>,
    /// How far foreign series have been seen.
    pub foreign: Vec<ForeignMark>,
    /// Runs that were heard of lately, with their ranks.
    pub runs: Vec<KnownRun>,
    /// The last steps of those that have not ended, oldest first.
    pub steps: Vec<StepDelta>,
}

impl Live {
    /// As the store knows it: without readings, last heard when it was last seen.
    pub fn stored(known: &KnownResource) -> Self {
        let (key, resource) = (known.key.clone(), Arc::clone(&known.resource));
        let origin = resource.origin();
        Self {
            first_seen: known.first_seen,
            last_point: known.last_seen,
            ..Tracked::new(key, resource, known.agent, origin).live
        }
    }
}

impl Fleet {
    /// Takes in what the store knows. Only before the first offer.
    pub fn restore(&self, restored: Restored, now: Timestamp) {
        lock_commit(&self.commit).done = restored.last_commit;
        for cursor in restored.cursors {
            self.restore_cursor(cursor, now);
        }
        // The newest first, should there be more than are taken.
        let mut resources = restored.resources;
        resources.sort_by_key(|it| std::cmp::Reverse(it.last_seen));
        let mut called = HashMap::new();
        for known in resources.into_iter().take(MAX_RESOURCES) {
            self.restore_resource(known, &mut called, now);
        }
        for (key, health) in restored.health {
            let reporter = self.owners.agent(&key).unwrap_or(FOREIGN_AGENT);
            lock(self.shard_of(reporter)).note(&key, health);
        }
        self.tell_again(restored.told);
        self.runs.restore(restored.runs, restored.steps);
        let mut foreign = restored.foreign;
        foreign.sort_by_key(|it| std::cmp::Reverse(it.newest));
        let mut shard = lock(self.shard_of(FOREIGN_AGENT));
        for mark in foreign.into_iter().take(MAX_FOREIGN_SERIES) {
            shard.marks.restore(mark);
        }
    }

    /// Takes in what events said before this server started.
    pub fn tell_again(&self, told: Vec<StoredEvent>) {
        for stored in told {
            let key = ResourceKey {
                cluster: stored.cluster,
                kind: stored.event.resource_kind,
                id: Arc::clone(&stored.event.resource_id),
            };
            let reporter = self.owners.agent(&key).unwrap_or(FOREIGN_AGENT);
            lock(self.shard_of(reporter)).tell(&key, &stored.event);
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
        if cursor.clock_offset_nanos.saturating_abs() > QUARANTINED {
            let epoch = cursor.key.epoch;
            agent.clocks.quarantine(epoch, cursor.clock_offset_nanos);
        }
        let mut stream = StreamState::new(cursor.key, cursor.clock_offset_nanos, cursor.seen);
        stream.durable = cursor.seq;
        stream.cursor = cursor;
        agent.streams.push(stream);
    }

    /// The newest of an agent comes first, and says how it calls its cluster and node by now.
    fn restore_resource(
        &self,
        known: KnownResource,
        called: &mut HashMap<AgentId, (Name, Name)>,
        now: Timestamp,
    ) {
        let reporter = known.agent.unwrap_or(FOREIGN_AGENT);
        let (key, origin) = (known.key.clone(), known.resource.origin());
        let mut tracked = Tracked::restored(Live::stored(&known));
        let agent = known.agent.filter(|_| origin == Origin::Live);
        if let Some(agent) = agent.filter(|_| !tracked.live.node.is_empty()) {
            let own = || (Arc::clone(&key.cluster), Arc::clone(&tracked.live.node));
            let (cluster, node) = called.entry(agent).or_insert_with(own);
            tracked.visible = tracked.live.is_at(cluster, node);
        }
        if known.agent.is_some() {
            let seen = (known.last_seen, now);
            self.owners
                .restore(key.clone(), reporter, &known.resource, seen);
        }
        self.resources.fetch_add(1, Ordering::Relaxed);
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

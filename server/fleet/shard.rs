//! What one lock guards: the cursors, live state and deltas of a shard's agents.

use std::collections::HashMap;
use std::sync::Arc;

use gpufleet_analysis::states::{HealthEvent, Span};
use gpufleet_telemetry::event::Event;
use gpufleet_telemetry::identity::{AgentId, Origin, ResourceKind, attribute};
use gpufleet_telemetry::time::Timestamp;
use indexmap::IndexMap;

use super::agent::AgentState;
use super::commit::LaneBytes;
use super::fold::Tracked;
use super::foreign::Marks;
use super::live::Live;
use super::{Name, TakenBack};
use crate::runs::StepDelta;
use crate::store::model::{Gap, ResourceKey, StoredEvent};

/// Most machines of a shard that are taken back at once: more than its part of 100,000.
const MAX_TAKEN_BACK: usize = 8_192;

/// One shard.
#[derive(Default)]
pub(super) struct Shard {
    pub(super) agents: HashMap<AgentId, AgentState>,
    /// In the order in which they came, those of a node together: who walks over all of them goes through memory
    /// from one to the next, and does not jump in it.
    pub(super) resources: IndexMap<ResourceKey, Tracked>,
    /// Events that wait for their commit.
    pub(super) events: Vec<StoredEvent>,
    /// Gaps that wait for their commit.
    pub(super) gaps: Vec<Gap>,
    /// Steps that wait for their commit.
    pub(super) steps: Vec<StepDelta>,
    /// How far foreign series have been seen; only in the shard of the foreign agent.
    pub(super) marks: Marks,
    /// Bytes that wait for their commit.
    pub(super) bytes: LaneBytes,
    /// The nodes that their provider takes back.
    pub(super) taken_back: TakenBack,
}

impl Shard {
    /// Notes what an event says of the resource it is about, if that is known.
    pub(super) fn tell(&mut self, key: &ResourceKey, event: &Event) {
        if let Some(tracked) = self.resources.get_mut(key) {
            tracked.live.told.take(event);
        }
    }

    /// Notes that a node is taken back, if that is so at this moment, and forgets those of which it is not so any more.
    pub(super) fn take_back(&mut self, node: (Name, Name), said: Timestamp, now: Timestamp) {
        let holds = |said: Timestamp| now.seconds() < Span::taken_back(said.seconds()).until_s;
        self.taken_back.retain(|_, said| holds(*said));
        if holds(said) && self.taken_back.len() < MAX_TAKEN_BACK {
            self.taken_back.insert(node, said);
        }
    }

    /// Hides what an agent told of before this moment and by another name of its cluster or node: it tells of that no more.
    pub(super) fn hide_former(&mut self, agent_id: AgentId, before: Timestamp) {
        let Some(agent) = self.agents.get_mut(&agent_id) else {
            return;
        };
        agent.is_renamed = false;
        let [cluster, node] = [&agent.live.cluster, &agent.live.node].map(Arc::clone);
        for tracked in self.resources.values_mut() {
            let live = &tracked.live;
            let is_its = live.agent == Some(agent_id) && live.origin == Origin::Live;
            if is_its && live.last_point < before && !live.is_at(&cluster, &node) {
                (tracked.visible, tracked.changed) = (false, false);
            }
        }
    }

    /// Who holds a resource now, if somebody does.
    pub(super) fn holder(&self, key: &ResourceKey) -> Option<&str> {
        let live = &self.resources.get(key)?.live;
        let holder = live.resource.attribute(attribute::HOLDER);
        holder.filter(|it| !it.is_empty())
    }

    /// Notes what an event says of the health of a GPU, and of all its shares.
    pub(super) fn note(&mut self, key: &ResourceKey, health: HealthEvent) {
        if let Some(tracked) = self.resources.get_mut(key) {
            tracked.note(health);
        }
        if key.kind == ResourceKind::Gpu {
            let is_share = |live: &Live| {
                live.key.kind == ResourceKind::Share
                    && live.key.cluster == key.cluster
                    && live.resource.attribute(attribute::PARENT) == Some(&*key.id)
            };
            let shares = self.resources.values_mut();
            for share in shares.filter(|it| is_share(&it.live)) {
                share.note(health);
            }
        }
    }

    /// What is known of the health of the GPU that a new share is a part of.
    pub(super) fn health_of_parent(&self, share: &Live) -> Option<HealthEvent> {
        let parent = ResourceKey {
            cluster: share.key.cluster.clone(),
            kind: ResourceKind::Gpu,
            id: share.resource.attribute(attribute::PARENT)?.into(),
        };
        self.resources.get(&parent)?.live.health
    }
}

//! One resource of a request: whether there is room for it, whose it is, and then its fold.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gpufleet_telemetry::identity::{AgentId, ResourceKind};
use gpufleet_telemetry::otlp::{DecodedPoint, DecodedResource};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::Lane;

use super::drops::{Drop, Drops};
use super::events;
use super::fold::{Fold, Tracked, tick_of};
use super::introduce::cluster;
use super::offer::Offer;
use super::owners::{Claim, Claimed};
use super::shard::Shard;
use super::{FOREIGN_AGENT, Fleet, MAX_FOREIGN_RESOURCES, MAX_RESOURCES, MAX_RESOURCES_PER_AGENT};
use crate::runs::Full;
use crate::store::model::ResourceKey;

/// What folding one resource needs beside the shard.
pub(super) struct Folding<'a, 'b> {
    pub(super) fleet: &'a Fleet,
    pub(super) offer: &'a Offer<'b>,
    pub(super) fold: &'a Fold,
    pub(super) drops: &'a mut Drops,
    /// Resources that an agent of another shard reported until now: to be hidden there once this shard's
    /// lock is released.
    pub(super) taken_over: &'a mut Vec<(ResourceKey, AgentId)>,
}

impl Folding<'_, '_> {
    /// Folds it; returns by how many bytes the data that waits for its commit grew.
    pub(super) fn resource(self, shard: &mut Shard, decoded: &DecodedResource) -> usize {
        let agent_id = self.offer.key.agent;
        let is_foreign = self.is_foreign();
        let points = decoded.points.len() as u64;
        let Some(agent) = shard.agents.get_mut(&agent_id) else {
            return 0;
        };
        let origin = decoded.resource.origin();
        let key = ResourceKey {
            cluster: cluster(agent, self.offer, &decoded.resource, origin),
            kind: decoded.resource.kind,
            id: Arc::clone(&decoded.resource.id),
        };
        let agent_node = Arc::clone(&agent.live.node);
        let is_renamed = agent.is_renamed && !is_foreign && self.fold.lane == Lane::Live;
        let is_new = !shard.resources.contains_key(&key);
        if let Err(reason) = self.room(&key, is_new, agent.resources) {
            self.drops.add(reason, points);
            return 0;
        }
        let claimed = self.claim(&key, decoded);
        if let Claimed::Anothers {
            owner,
            node,
            is_news,
        } = &claimed
        {
            self.drops.add(Drop::ReportedTwice, points);
            let event =
                is_news.then(|| events::reported_twice(agent, self.offer, &key, *owner, node));
            shard.events.extend(event);
            return 0;
        }
        if is_new {
            agent.resources += 1;
            self.fleet.resources.fetch_add(1, Ordering::Relaxed);
            let sender = (!is_foreign).then_some(agent_id);
            let resource = Arc::clone(&decoded.resource);
            let mut tracked = Tracked::new(key.clone(), resource, sender, origin);
            tracked.live.health = shard.health_of_parent(&tracked.live);
            shard.resources.insert(key.clone(), tracked);
        }
        let Some(tracked) = shard.resources.get_mut(&key) else {
            return 0;
        };
        if let Claimed::TakenOver(former) = claimed {
            tracked.changed = true;
            let former = former.unwrap_or(FOREIGN_AGENT);
            // In one shard it is the same one.
            if !std::ptr::eq(self.fleet.shard_of(former), self.fleet.shard_of(agent_id)) {
                self.taken_over.push((key.clone(), former));
            }
        }
        tracked.live.agent = (!is_foreign).then_some(agent_id);
        let marks = &mut shard.marks;
        let offset = self.fold.offset;
        let keep = |point: &DecodedPoint| {
            if !is_foreign {
                return Ok(None);
            }
            let at = point.at.shifted(offset);
            let series = (&key, point.metric.id, point.part.as_ref());
            let before = marks.advance(series, at, |it| self.fold.is_ahead(it))?;
            Ok(Some(before.unwrap_or(at)))
        };
        let grown = tracked.fold(self.fold, decoded, self.drops, keep);
        // One address for all that is on a node: who puts it together compares no names.
        let node = &mut tracked.live.node;
        if !Arc::ptr_eq(node, &agent_node) && *node == agent_node {
            *node = agent_node;
        }
        if key.kind == ResourceKind::Rank {
            let heard = self.fold.heard(agent_id);
            let taken = self.fleet.runs.rank(&tracked.live, heard);
            self.drops.add_one(taken.err().map(|Full| Drop::FleetFull));
        }
        if let Some(at) = newest(decoded).filter(|_| is_renamed) {
            shard.hide_former(agent_id, at.shifted(offset));
        }
        grown
    }

    fn is_foreign(&self) -> bool {
        self.offer.key.agent == FOREIGN_AGENT
    }

    /// Whether it may be here at all: an agent knows better than others, and there are limits.
    fn room(&self, key: &ResourceKey, is_new: bool, held: usize) -> Result<(), Drop> {
        let most = if self.is_foreign() {
            MAX_FOREIGN_RESOURCES
        } else {
            MAX_RESOURCES_PER_AGENT
        };
        if self.is_foreign() && self.fleet.owners.agent(key).is_some() {
            Err(Drop::ReportedByAgent)
        } else if is_new && held >= most {
            Err(Drop::TooManyResources)
        } else if is_new && self.fleet.resources.load(Ordering::Relaxed) >= MAX_RESOURCES {
            Err(Drop::FleetFull)
        } else {
            Ok(())
        }
    }

    fn claim(&self, key: &ResourceKey, decoded: &DecodedResource) -> Claimed {
        let Some(at) = newest(decoded).filter(|_| !self.is_foreign()) else {
            return Claimed::Taken;
        };
        let claim = Claim {
            agent: self.offer.key.agent,
            resource: &decoded.resource,
            lane: self.fold.lane,
            at: at.shifted(self.fold.offset),
            received: self.fold.received,
            interval_nanos: tick_of(decoded).unwrap_or(0),
        };
        self.fleet.owners.claim(key, &claim)
    }
}

/// The time of the newest point, by the sender's clock.
pub(super) fn newest(decoded: &DecodedResource) -> Option<Timestamp> {
    decoded.points.iter().map(|it| it.at).max()
}

//! The steps and events of ranks: into the runs as they are now, and into the deltas of the commit.
//!
//! Who reports a rank tells its steps and its end: what another sends of it is left out, so that
//! nobody ends a run that is not theirs.

use gpufleet_telemetry::identity::{AgentId, ResourceKind};
use gpufleet_telemetry::otlp::DecodedSteps;
use gpufleet_telemetry::steps::StepBlock;

use super::drops::{Drop, Drops};
use super::fold::Fold;
use super::introduce::cluster;
use super::offer::Offer;
use super::shard::Shard;
use super::{FOREIGN_AGENT, Fleet};
use crate::runs::{Full, RunKey, StepDelta};
use crate::store::model::{ResourceKey, StoredEvent};

/// What a block that waits for its commit takes beside its entries, bytes: the run's name among them.
const BLOCK_BYTES: usize = 256;

/// What an entry takes, bytes.
const ENTRY_BYTES: usize = 32;

/// Minutes of one row of steps.
const BUCKET_MINUTES: i64 = 10;

/// Keeps the steps of a rank; returns by how many bytes the data that waits for its commit grew.
pub(super) fn keep(
    fleet: &Fleet,
    shard: &mut Shard,
    (offer, fold): (&Offer<'_>, &Fold),
    decoded: &DecodedSteps,
    drops: &mut Drops,
) -> usize {
    let agent_id = offer.key.agent;
    let Some(agent) = shard.agents.get_mut(&agent_id) else {
        return 0;
    };
    let cluster = cluster(agent, offer, &decoded.sender, decoded.sender.origin());
    let key = RunKey::of(&cluster, &decoded.rank);
    let rank = decoded.rank.rank;
    let blocks = decoded.blocks.len() as u64;
    if let Err(reason) = may_tell(fleet, agent_id, &key.rank(rank)) {
        drops.add(reason, blocks);
        return 0;
    }
    let mut grown = 0;
    for block in &decoded.blocks {
        let block = StepBlock {
            started_at: block.started_at.shifted(fold.offset),
            ended_at: block.ended_at.shifted(fold.offset),
            ..block.clone()
        };
        let wrong = [block.started_at, block.ended_at].map(|at| fold.out_of_range(at));
        if let Some(reason) = wrong.into_iter().flatten().next() {
            drops.add(reason, 1);
            continue;
        }
        let heard = fold.heard(agent_id);
        if let Err(Full) = fleet.runs.steps(&key, rank, &block, heard) {
            drops.add(Drop::FleetFull, 1);
            continue;
        }
        grown += BLOCK_BYTES + block.times.len() * ENTRY_BYTES;
        shard.steps.push(StepDelta {
            key: key.clone(),
            rank,
            bucket: block.started_at.minute().0.div_euclid(BUCKET_MINUTES),
            blocks: vec![block],
        });
    }
    grown
}

/// Notes what an event says of a run.
pub(super) fn happened(fleet: &Fleet, kept: &StoredEvent, fold: &Fold) -> Result<(), Drop> {
    let event = &kept.event;
    if event.resource_kind != ResourceKind::Rank {
        return Ok(());
    }
    let key = ResourceKey {
        cluster: kept.cluster.clone(),
        kind: ResourceKind::Rank,
        id: event.resource_id.clone(),
    };
    // It stays in the list of events all the same: that someone says so happened.
    let agent = kept.agent.unwrap_or(FOREIGN_AGENT);
    if may_tell(fleet, agent, &key).is_err() {
        return Ok(());
    }
    let taken = fleet.runs.event(&kept.cluster, event, fold.heard(agent));
    taken.map_err(|Full| Drop::FleetFull)
}

/// Whether this agent may speak for a rank: nobody else reports it.
fn may_tell(fleet: &Fleet, agent: AgentId, rank: &ResourceKey) -> Result<(), Drop> {
    match fleet.owners.agent(rank) {
        Some(owner) if owner != agent && agent == FOREIGN_AGENT => Err(Drop::ReportedByAgent),
        Some(owner) if owner != agent => Err(Drop::ReportedTwice),
        _ => Ok(()),
    }
}

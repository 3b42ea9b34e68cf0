//! What a GPU does now: hands what the fleet knows live to the one judgement of [`states::now`].

use std::sync::Arc;

use gpufleet_analysis::ledger::Reason;
use gpufleet_analysis::states::{self, AtNode, Edge, Now, Policy, Status};
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::sample::Missing;
use gpufleet_telemetry::time::Timestamp;

use crate::fleet::live::Live;
use crate::fleet::{Fleet, TakenBack};
use crate::inventory::Inventory;
use crate::inventory::known::Moment;
use crate::inventory::troubled::Troubled;

/// What is said of nodes now, by the cluster and by who provides them.
#[derive(Debug, Default)]
pub struct NodesNow {
    troubled: Troubled,
    taken_back: TakenBack,
}

impl NodesNow {
    /// As it is known at this moment.
    pub fn of(fleet: &Fleet, inventory: &Inventory, now: Moment) -> Self {
        Self {
            troubled: inventory.troubled(now),
            taken_back: fleet.taken_back(now.at),
        }
    }

    /// Whether what nobody holds on the node of a GPU or share drains.
    pub fn is_draining(&self, live: &Live) -> bool {
        self.at(live).draining_since.is_some()
    }

    /// Of the node of a GPU or share; of a recorded one nobody says anything.
    fn at(&self, live: &Live) -> AtNode {
        if live.origin == Origin::Recorded {
            return AtNode::default();
        }
        let (cluster, node) = (&live.key.cluster, &live.node);
        let mut said = self.troubled.at(cluster, node);
        if !self.taken_back.is_empty() {
            let since = self
                .taken_back
                .get(&(Arc::clone(cluster), Arc::clone(node)));
            said.draining_since = said.draining_since.or(since.copied());
        }
        said
    }
}

/// The state of a GPU or share at `now`, why, and since when, with what is said of its node: on one that is not ready
/// only what works is healthy, and what nobody holds on one that is cordoned or taken back drains, as in the ledger.
pub fn judge_on(live: &Live, now: Timestamp, nodes: &NodesNow) -> Status {
    at_node(live, now, nodes.at(live))
}

/// The same by its own evidence alone: what nobody holds is free, wherever it is.
pub fn judge(live: &Live, now: Timestamp) -> Status {
    at_node(live, now, AtNode::default())
}

/// A recording is judged at its own last moment: it ended, it did not fall silent.
fn at_node(live: &Live, now: Timestamp, at_node: AtNode) -> Status {
    let now = if live.origin == Origin::Recorded {
        live.last_point
    } else {
        now
    };
    let memory = live.value(gpu::MEMORY_USED.id);
    let known = Now {
        now,
        last_point: live.last_point,
        interval: live.interval,
        recent: live.recent,
        missing: missing(live),
        memory_bytes: memory.and_then(|it| it.reading.ok()).map(|it| it as u64),
        unhealthy: broken(live).or_else(|| asked_for(live)),
        at_node,
    };
    states::now(&known, &Policy::default())
}

/// Whether it is known who holds it, or that nobody does, when it is in its state for this reason.
pub fn is_holder_known(live: &Live, reason: Reason) -> bool {
    live.bits.holder_known != 0 && reason != Reason::HolderUnknown
}

/// Why the card as a whole cannot be read, if its key readings say so.
fn missing(live: &Live) -> Option<Missing> {
    [gpu::UTILIZATION, gpu::TEMPERATURE, gpu::MEMORY_USED]
        .iter()
        .filter_map(|metric| live.value(metric.id)?.reading.err())
        .find(|it| {
            matches!(
                it,
                Missing::GpuLost | Missing::ResetRequired | Missing::DriverHang
            )
        })
}

/// Why it is broken, if its newest event of health says so. What the driver asks for it also says
/// itself: when it asks for nothing any more that breaks it, the event is over.
fn broken(live: &Live) -> Option<Reason> {
    let Edge::Broken(reason) = live.health?.edge else {
        return None;
    };
    let asks = live.value(gpu::RECOVERY_ACTION.id);
    let breaks = asks.and_then(|it| it.reading.ok().map(states::recovery_breaks));
    let is_over = reason == Reason::RecoveryAction && breaks == Some(false);
    (!is_over).then_some(reason)
}

/// Whether the driver asks for a reset or a reboot.
fn asked_for(live: &Live) -> Option<Reason> {
    let action = live.value(gpu::RECOVERY_ACTION.id)?.reading.ok()?;
    states::recovery_breaks(action).then_some(Reason::RecoveryAction)
}

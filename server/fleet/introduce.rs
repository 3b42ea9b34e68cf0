//! Who an agent is: which cluster's tokens may speak for it, and on which node it runs.

use std::sync::Arc;

use gpufleet_telemetry::identity::{Origin, Resource, ResourceKind, attribute};
use gpufleet_telemetry::wire::Lane;

use super::Name;
use super::agent::AgentState;
use super::naming::cluster_for;
use super::offer::{Body, Offer};

/// Which resource said on which node an agent runs. One agent may carry live and recorded data:
/// it runs where its live data comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Introduced {
    Never,
    ByPart,
    ByNode,
    ByLiveNode,
}

/// The cluster of a resource, kept once per agent as long as it stays the same.
pub(super) fn cluster(
    agent: &mut AgentState,
    offer: &Offer<'_>,
    resource: &Resource,
    origin: Origin,
) -> Name {
    let told = resource.attribute(attribute::CLUSTER);
    let name = offer
        .bound_cluster
        .as_deref()
        .or(told)
        .unwrap_or(&offer.default_cluster);
    let cluster = match &agent.cluster {
        Some((known_origin, known, cluster)) if *known_origin == origin && **known == *name => {
            Arc::clone(cluster)
        }
        _ => {
            let cluster: Name = cluster_for(origin, name).into();
            agent.cluster = Some((origin, name.into(), Arc::clone(&cluster)));
            cluster
        }
    };
    // Where it was when old data was made says nothing of where it is.
    if offer.lane == Lane::Live || agent.introduced < Introduced::ByLiveNode {
        agent.introduce(resource, &cluster);
    }
    if agent.home.is_none() {
        agent.home = Some(Arc::clone(&cluster));
    }
    cluster
}

/// Learns from a request that is refused who sends it, where nothing of the agent was taken yet: what
/// is told of it stands under its node and cluster.
pub(super) fn stranger(agent: &mut AgentState, offer: &Offer<'_>) {
    if agent.introduced != Introduced::Never {
        return;
    }
    let mut learn = |resource: &Resource| _ = cluster(agent, offer, resource, resource.origin());
    match offer.body {
        Body::Metrics(metrics) => metrics.resources.iter().for_each(|it| learn(&it.resource)),
        Body::Events(sent) => sent.events.iter().for_each(|it| learn(&it.sender)),
    }
}

impl AgentState {
    /// Whether a token that is bound to this cluster may speak for the agent.
    pub(super) fn is_of(&self, bound: Option<&str>) -> bool {
        let (Some(bound), Some(home)) = (bound, &self.home) else {
            return true;
        };
        // The home may be that of recorded or simulated data, which has a name of its own.
        [Origin::Live, Origin::Recorded, Origin::Simulated]
            .into_iter()
            .any(|origin| cluster_for(origin, bound) == **home)
    }

    /// Learns from a resource on which node, in which cluster and of which version the agent is.
    pub(super) fn introduce(&mut self, resource: &Resource, cluster: &Arc<str>) {
        let is_live = resource.origin() == Origin::Live;
        let by = match resource.kind {
            ResourceKind::Node if is_live => Introduced::ByLiveNode,
            ResourceKind::Node => Introduced::ByNode,
            _ => Introduced::ByPart,
        };
        let text = |name| resource.attribute(name).unwrap_or_default();
        let node = text(attribute::NODE);
        let is_same = *self.live.node == *node && self.live.cluster == *cluster;
        let is_better = by > self.introduced || by == Introduced::ByLiveNode;
        if !(is_better || is_same && by == self.introduced) {
            return;
        }
        self.introduced = by;
        if !is_same {
            self.is_renamed |= is_live && !self.live.node.is_empty();
            self.live.node = node.into();
            self.live.cluster = Arc::clone(cluster);
        }
        let version = text(attribute::AGENT_VERSION);
        if *self.live.version != *version {
            self.live.version = version.into();
        }
    }
}

//! Events: those that agents send, and those that the server tells about an agent itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_analysis::states;
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{AgentId, Resource, ResourceKind};
use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use super::agent::AgentState;
use super::introduce::cluster;
use super::live::XID_HOLDER;
use super::offer::Offer;
use super::sender_clock;
use super::shard::Shard;
use super::{FOREIGN_AGENT, Fleet, lock, place};
use crate::store::model::{ResourceKey, StoredEvent};

/// What an event that waits for its commit takes beside its texts, in bytes.
const EVENT_BYTES: usize = 512;

/// The attribute of a command's result with the command's id.
const COMMAND_ID: &str = "command";

impl Fleet {
    /// The cluster's inventory saw that a node's provider takes it back: as if its agent had told so, unless one just did.
    pub fn saw_taken_back(&self, cluster: &Arc<str>, node: &str, at: Timestamp) {
        let of: (Arc<str>, Arc<str>) = (Arc::clone(cluster), node.into());
        if self.taken_back(at).contains_key(&of) {
            return;
        }
        let mut shard = lock(&self.shards[place(FOREIGN_AGENT)]);
        shard.take_back(of.clone(), at, at);
        let (cluster, node) = of;
        shard.events.push(StoredEvent {
            cluster,
            agent: None,
            event: Event {
                at,
                kind: EventKind::PreemptionNoticed,
                severity: Severity::Warning,
                resource_kind: ResourceKind::Node,
                resource_id: node,
                message: "the cluster says that the provider takes this Spot machine back"
                    .to_owned(),
                attributes: BTreeMap::new(),
            },
        });
    }
}

/// Keeps an event; returns the bytes it takes.
pub(super) fn keep(
    shard: &mut Shard,
    offer: &Offer<'_>,
    offset: i64,
    sender: &Resource,
    event: &Event,
) -> usize {
    let agent_id = offer.key.agent;
    let Some(agent) = shard.agents.get_mut(&agent_id) else {
        return 0;
    };
    if event.kind == EventKind::CommandResult {
        let id = event.attributes.get(COMMAND_ID);
        if let Some(id) = id.and_then(|it| Uuid::parse_str(it).ok()) {
            agent.commands.answered(id);
        }
    }
    let cluster = cluster(agent, offer, sender, sender.origin());
    let mut event = event.clone();
    event.at = event.at.shifted(offset);
    let key = ResourceKey {
        cluster: Arc::clone(&cluster),
        kind: event.resource_kind,
        id: Arc::clone(&event.resource_id),
    };
    if event.kind == EventKind::Xid {
        // Who held it is known here, and nobody else's to say.
        event.attributes.remove(XID_HOLDER);
        let holder = shard.holder(&key);
        let holder = holder.map(|it| (XID_HOLDER.to_owned(), it.to_owned()));
        event.attributes.extend(holder);
    }
    if event.kind == EventKind::PreemptionNoticed && event.resource_kind == ResourceKind::Node {
        let node = (Arc::clone(&cluster), Arc::clone(&event.resource_id));
        shard.take_back(node, event.at, offer.received);
    }
    shard.tell(&key, &event);
    if let Some(health) = states::edge(&event) {
        shard.note(&key, health);
    }
    let texts = event.attributes.iter();
    let texts = texts.map(|(name, text)| name.len() + text.len());
    let bytes = EVENT_BYTES + event.message.len() + texts.sum::<usize>();
    shard.events.push(StoredEvent {
        cluster,
        agent: (agent_id != FOREIGN_AGENT).then_some(agent_id),
        event,
    });
    bytes
}

pub(super) fn conflict(agent: &AgentState, offer: &Offer<'_>) -> StoredEvent {
    let message = format!(
        "Two processes send under the agent id {}: a cloned disk or a second agent. The newer one was kept; the other must take a new id.",
        agent.live.agent
    );
    server_event(
        agent,
        offer,
        EventKind::AgentIdConflict,
        Severity::Error,
        message,
    )
}

pub(super) fn clock(agent: &AgentState, offer: &Offer<'_>, off_nanos: i64) -> StoredEvent {
    let seconds = off_nanos as f64 / 1e9;
    let message = if off_nanos.saturating_abs() > sender_clock::QUARANTINED {
        format!(
            "The clock of {} is {seconds:.0} s off. Its data waits in its spool until the clock is right: check NTP.",
            agent.live.node
        )
    } else {
        format!(
            "The clock of {} was set; its times are now shifted by {seconds:.1} s.",
            agent.live.node
        )
    };
    let mut stored = server_event(
        agent,
        offer,
        EventKind::ClockOffset,
        Severity::Warning,
        message,
    );
    let offset = ("offset".to_owned(), format!("{seconds:.3}"));
    stored.event.attributes.extend([offset]);
    stored
}

/// Two agents report one resource.
pub(super) fn reported_twice(
    agent: &AgentState,
    offer: &Offer<'_>,
    key: &ResourceKey,
    owner: AgentId,
    owners_node: &str,
) -> StoredEvent {
    let (second, node) = (agent.live.agent, &agent.live.node);
    let message = format!(
        "Two agents report {} {}: {owner} on node {owners_node}, and {second} on node {node}, whose points are left out. Stop one of them, for example the systemd unit beside a DaemonSet.",
        key.kind.name(),
        key.id
    );
    let kind = EventKind::GpuReportedTwice;
    let mut stored = server_event(agent, offer, kind, Severity::Warning, message);
    stored.cluster = Arc::clone(&key.cluster);
    stored.event.resource_kind = key.kind;
    stored.event.resource_id = Arc::clone(&key.id);
    let attributes = [
        ("owner", owner.to_string()),
        ("owner_node", owners_node.to_owned()),
        ("second", second.to_string()),
        ("second_node", node.to_string()),
    ];
    stored.event.attributes = attributes
        .map(|(name, text)| (name.to_owned(), text))
        .into();
    stored
}

/// An event that the server itself tells about an agent's node.
fn server_event(
    agent: &AgentState,
    offer: &Offer<'_>,
    kind: EventKind,
    severity: Severity,
    message: String,
) -> StoredEvent {
    // Before its first data an agent's node is not known, but its id is.
    let node = if agent.live.node.is_empty() {
        agent.live.agent.to_string().into()
    } else {
        Arc::clone(&agent.live.node)
    };
    StoredEvent {
        cluster: Arc::clone(&agent.live.cluster),
        agent: Some(agent.live.agent),
        event: Event {
            at: offer.received,
            kind,
            severity,
            resource_kind: ResourceKind::Node,
            resource_id: node,
            message,
            attributes: BTreeMap::new(),
        },
    }
}

//! Who reports a resource: one agent at a time, and of old data the one whose time it was.
//!
//! Two agents may report one GPU, a systemd unit beside a DaemonSet: the points of one are taken, the
//! other's are left out and counted, or all that adds up would be added twice. While the owner was
//! heard within [`FRESH_TICKS`] ticks another takes over only with a better source; once it is silent,
//! whoever comes. Time belongs to the agent that was taken in it: old data of another is left out, and
//! old data of time that is nobody's makes it its sender's. So an agent that rightly had the GPU before
//! may drain its spool, and two that drain the same outage do not add up.
//!
//! Who owned what is not stored: after a start the last owner is the owner, and the time before is
//! nobody's. What an agent sends then of that time had not been taken from another, or the server had
//! not been up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use gpufleet_telemetry::identity::{AgentId, Resource, ResourceKind, attribute};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::training::Trust;
use gpufleet_telemetry::wire::Lane;

use super::FOREIGN_AGENT;
use crate::store::model::ResourceKey;

/// For how many ticks after it was last heard the owner stays the owner.
const FRESH_TICKS: i64 = 2;

/// The tick of an agent that has not said how long it is, nanoseconds: the agents' default.
const DEFAULT_TICK: i64 = 10 * NANOS_PER_SECOND;

/// Longest tick that is believed, nanoseconds.
const LONGEST_TICK: i64 = 60 * NANOS_PER_SECOND;

/// Most stretches of time remembered per resource, the oldest out: each stands for a change of owner
/// or a silence of more than two ticks, and a spool keeps 24 h.
const MAX_SPANS: usize = 16;

/// Another agent that also reports the resource is told again after it was quiet for so long,
/// nanoseconds.
const TOLD_AGAIN: i64 = 86_400 * NANOS_PER_SECOND;

/// The owner of every resource: what all shards share. Taken after a shard's lock, never before one.
#[derive(Debug, Default)]
pub(super) struct Owners(RwLock<HashMap<ResourceKey, Arc<Mutex<Owner>>>>);

/// An agent that reports a resource which another one owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Second {
    /// Which agent.
    pub agent: AgentId,
    /// The node it says it is on.
    pub node: Arc<str>,
    /// When its points were last left out.
    pub last: Timestamp,
}

/// Points of a resource that an agent wants to be taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim<'a> {
    pub(super) agent: AgentId,
    pub(super) resource: &'a Resource,
    pub(super) lane: Lane,
    /// The time of the newest point.
    pub(super) at: Timestamp,
    pub(super) received: Timestamp,
    /// The length of the tick, nanoseconds; 0 when not known.
    pub(super) interval_nanos: i64,
}

/// Whether points are taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Claimed {
    /// They are.
    Taken,
    /// They are, and this agent reports the resource from now on instead of that one, if any.
    TakenOver(Option<AgentId>),
    /// They are not: it is, or was then, another's.
    Anothers {
        owner: AgentId,
        node: Arc<str>,
        /// Whether that is worth an event.
        is_news: bool,
    },
}

#[derive(Debug, Default)]
struct Owner {
    /// Who reports it live.
    live: Option<Reporter>,
    /// By end, ascending.
    spans: Vec<Span>,
    second: Option<Second>,
}

#[derive(Debug)]
struct Reporter {
    agent: AgentId,
    node: Arc<str>,
    rank: u8,
    heard: Timestamp,
    interval_nanos: i64,
}

/// Time in which an agent's points were taken, both ends included.
#[derive(Debug, Clone, Copy)]
struct Span {
    agent: AgentId,
    from: Timestamp,
    to: Timestamp,
}

impl Owners {
    /// Asks for points to be taken.
    pub(super) fn claim(&self, key: &ResourceKey, claim: &Claim<'_>) -> Claimed {
        let known = self.read().get(key).cloned();
        let owner = known.unwrap_or_else(|| {
            let mut owners = self.0.write().expect("nothing panics while it holds them");
            Arc::clone(owners.entry(key.clone()).or_default())
        });
        lock(&owner).claim(claim)
    }

    /// Who reports it live.
    pub(super) fn agent(&self, key: &ResourceKey) -> Option<AgentId> {
        let owner = self.read().get(key).cloned()?;
        let owner = lock(&owner);
        owner.live.as_ref().map(|it| it.agent)
    }

    /// The agent whose points of it were left out last.
    pub(super) fn second(&self, key: &ResourceKey) -> Option<Second> {
        let owner = self.read().get(key).cloned()?;
        lock(&owner).second.clone()
    }

    /// Remembers who reported it last, as the store knows it; it gets the time of two ticks to come
    /// back.
    pub(super) fn restore(
        &self,
        key: ResourceKey,
        agent: AgentId,
        resource: &Resource,
        (last_seen, now): (Timestamp, Timestamp),
    ) {
        let owner = Owner {
            live: Some(Reporter {
                agent,
                node: node(resource),
                rank: rank(agent, resource),
                heard: now,
                interval_nanos: DEFAULT_TICK,
            }),
            spans: vec![Span {
                agent,
                from: last_seen,
                to: last_seen,
            }],
            second: None,
        };
        let mut owners = self.0.write().expect("nothing panics while it holds them");
        owners.insert(key, Arc::new(Mutex::new(owner)));
    }

    /// Forgets a resource that its owner does not report any more.
    pub(super) fn forget(&self, key: &ResourceKey, agent: AgentId) {
        if self.agent(key).is_none_or(|owner| owner == agent) {
            let mut owners = self.0.write().expect("nothing panics while it holds them");
            owners.remove(key);
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<ResourceKey, Arc<Mutex<Owner>>>> {
        self.0.read().expect("nothing panics while it holds them")
    }
}

impl Owner {
    fn claim(&mut self, claim: &Claim<'_>) -> Claimed {
        let interval_nanos = match claim.interval_nanos {
            0 => DEFAULT_TICK,
            nanos => nanos.clamp(0, LONGEST_TICK),
        };
        let mut claimed = Claimed::Taken;
        if claim.lane == Lane::Live {
            let rank = rank(claim.agent, claim.resource);
            if let Some(live) = &self.live
                && live.agent != claim.agent
                && live.rank <= rank
                && claim.received.since(live.heard).saturating_abs()
                    <= FRESH_TICKS * live.interval_nanos
            {
                let (owner, node) = (live.agent, Arc::clone(&live.node));
                return self.anothers(claim, owner, node);
            }
            let former = self.live.as_ref().map(|it| it.agent);
            if former != Some(claim.agent) {
                claimed = Claimed::TakenOver(former);
            }
            match &mut self.live {
                Some(live) if live.agent == claim.agent => {
                    (live.heard, live.rank) = (claim.received, rank);
                    live.interval_nanos = interval_nanos;
                }
                live => {
                    *live = Some(Reporter {
                        agent: claim.agent,
                        node: node(claim.resource),
                        rank,
                        heard: claim.received,
                        interval_nanos,
                    });
                }
            }
        }
        let is_anothers =
            |it: &&Span| it.agent != claim.agent && it.from <= claim.at && claim.at <= it.to;
        // A tick that both have sent when one takes over is harmless: its counters are equal.
        if let (Claimed::Taken, Some(span)) = (&claimed, self.spans.iter().find(is_anothers)) {
            let owner = span.agent;
            return self.anothers(claim, owner, "".into());
        }
        if !self.spans.iter().any(|it| is_anothers(&it)) {
            self.extend(claim.agent, claim.at, FRESH_TICKS * interval_nanos);
        }
        claimed
    }

    /// Makes a moment an agent's, with the time up to its nearest one within `reach`.
    fn extend(&mut self, agent: AgentId, at: Timestamp, reach: i64) {
        let near = |it: &&mut Span| {
            it.agent == agent && at.since(it.to) <= reach && it.from.since(at) <= reach
        };
        match self.spans.iter_mut().rev().find(near) {
            Some(span) => {
                span.from = span.from.min(at);
                span.to = span.to.max(at);
            }
            None => self.spans.push(Span {
                agent,
                from: at,
                to: at,
            }),
        }
        self.spans.sort_by_key(|it| it.to);
        if self.spans.len() > MAX_SPANS {
            self.spans.remove(0);
        }
    }

    fn anothers(&mut self, claim: &Claim<'_>, owner: AgentId, node_of: Arc<str>) -> Claimed {
        let known = self.second.replace(Second {
            agent: claim.agent,
            node: node(claim.resource),
            last: claim.received,
        });
        let is_known = known.is_some_and(|known| {
            known.agent == claim.agent
                && (0..TOLD_AGAIN).contains(&claim.received.since(known.last))
        });
        Claimed::Anothers {
            owner,
            node: node_of,
            is_news: !is_known && claim.lane == Lane::Live,
        }
    }
}

/// How good its sources are, 0 the best: the driver itself, then an exporter that read it. Of a rank of a
/// run: whom the kernel proves, then whom an agent only hears say so, then who says so from outside.
fn rank(agent: AgentId, resource: &Resource) -> u8 {
    if resource.kind == ResourceKind::Rank {
        let is_proved = resource.attribute(attribute::TRUST) == Some(Trust::Proved.name());
        return match agent == FOREIGN_AGENT {
            true => 2,
            false => u8::from(!is_proved),
        };
    }
    let sources = resource.attribute(attribute::SOURCE).unwrap_or_default();
    let mut sources = sources.split(',');
    let is_read = sources.clone().any(|it| it == "nvml");
    u8::from(!is_read && sources.any(|it| it.starts_with("exporter")))
}

fn node(resource: &Resource) -> Arc<str> {
    resource
        .attribute(attribute::NODE)
        .unwrap_or_default()
        .into()
}

fn lock(owner: &Mutex<Owner>) -> MutexGuard<'_, Owner> {
    owner
        .lock()
        .expect("nothing panics while it holds an owner")
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const AT: Timestamp = Timestamp::from_seconds(1_700_000_000);

    /// Whether the second of these takes a rank over from the first, both heard at one moment.
    fn takes_over(first: (AgentId, Trust), second: (AgentId, Trust)) -> bool {
        let mut owner = Owner::default();
        let mut claim = |(agent, trust): (AgentId, Trust)| {
            let resource = Resource::new(ResourceKind::Rank, "/job//0/0");
            let resource = resource.with(attribute::TRUST, trust.name());
            owner.claim(&Claim {
                agent,
                resource: &resource,
                lane: Lane::Live,
                at: AT,
                received: AT,
                interval_nanos: 0,
            })
        };
        assert_eq!(claim(first), Claimed::TakenOver(None));
        claim(second) == Claimed::TakenOver(Some(first.0))
    }

    #[test]
    fn who_only_claims_a_rank_never_keeps_it_from_who_proves_it() {
        let [one, other] = [1, 2].map(|it| AgentId(Uuid::from_u128(it)));
        let (proved, claimed) = (Trust::Proved, Trust::Claimed);
        assert!(takes_over((FOREIGN_AGENT, claimed), (one, proved)));
        assert!(takes_over((FOREIGN_AGENT, claimed), (one, claimed)));
        assert!(takes_over((one, claimed), (other, proved)));
        assert!(!takes_over((one, proved), (FOREIGN_AGENT, proved)));
        assert!(!takes_over((one, proved), (other, claimed)));
        assert!(!takes_over((one, proved), (other, proved)));
    }
}

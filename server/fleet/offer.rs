//! A request is offered to the fleet: folded, or refused for a reason that the sender can act on.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpufleet_telemetry::command::Command;
use gpufleet_telemetry::identity::AgentId;
use gpufleet_telemetry::otlp::{DecodedEvents, DecodedMetrics};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::Lane;

use super::agent::{AgentState, Place, Session};
use super::drops::{Drop, Drops};
use super::events;
use super::fold::{Fold, tick_of};
use super::resource::{self, Folding};
use super::sender_clock::{self, Verdict};
use super::shard::Shard;
use super::steps;
use super::{FOREIGN_AGENT, Fleet, MAX_AGENTS, Name, introduce, lock};
use crate::store::model::{CursorKey, ResourceKey};

/// A request with its place in its stream.
#[derive(Debug, Clone)]
pub struct Offer<'a> {
    /// Whose stream.
    pub key: CursorKey,
    /// Its place in the stream, from 1.
    pub seq: u64,
    /// A random number per process of the agent.
    pub session: u64,
    /// Fresh or old.
    pub lane: Lane,
    /// Seqs that the sender gave up, both ends included.
    pub dropped: Option<(u64, u64)>,
    /// When it was sent, by the sender's clock.
    pub sent_at: Timestamp,
    /// When it arrived, by ours.
    pub received: Timestamp,
    /// The cluster that the token is bound to; wins over what the data says.
    pub bound_cluster: Option<Name>,
    /// The cluster of data that names none.
    pub default_cluster: Name,
    /// What it carries.
    pub body: Body<'a>,
}

/// What a request carries.
#[derive(Debug, Clone, Copy)]
pub enum Body<'a> {
    /// Points.
    Metrics(&'a DecodedMetrics),
    /// Events.
    Events(&'a DecodedEvents),
}

/// What became of a request, and what the reply says beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What became of it.
    pub outcome: Outcome,
    /// The highest seq of the stream that is on the server's disk.
    pub durable_seq: u64,
    /// The highest seq of the stream that is folded, with this request; what is not durable of it is
    /// forgotten when the server dies.
    pub folded_seq: u64,
    /// A command for the agent, if one waits.
    pub command: Option<Command>,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Folded; what was left out of it is counted here.
    Folded(Drops),
    /// Folded before, and not again.
    Already,
    /// Not the next one.
    WrongSeq {
        /// The seq that would be.
        wanted: u64,
    },
    /// A newer process sends under this agent's id.
    Conflict,
    /// Another process of the agent has sent something later: this one is gone, or is to try again.
    Late,
    /// The token is bound to another cluster than the agent's.
    OtherCluster,
    /// The sender's clock is too wrong.
    Quarantined {
        /// Our time of arrival minus its time of sending, nanoseconds.
        off_nanos: i64,
    },
    /// The memory for data that waits for its commit is full.
    Full,
    /// More agents than one server takes.
    TooManyAgents,
    /// More streams of one agent wait for a commit than are remembered.
    TooManyStreams,
}

/// What became of requests since the server started.
#[derive(Debug, Default)]
pub(super) struct OfferTotals {
    outcomes: [AtomicU64; Outcome::NAMES.len()],
    /// When the last one was, Unix milliseconds; 0 before the first.
    last_ms: [AtomicI64; Outcome::NAMES.len()],
    points: AtomicU64,
}

impl Outcome {
    /// The names of the outcomes in metrics.
    pub const NAMES: [&'static str; 10] = [
        "folded",
        "already",
        "wrong_seq",
        "conflict",
        "quarantined",
        "full",
        "too_many_agents",
        "late",
        "other_cluster",
        "too_many_streams",
    ];

    /// Its place in [`Self::NAMES`].
    const fn index(&self) -> usize {
        match self {
            Self::Folded(_) => 0,
            Self::Already => 1,
            Self::WrongSeq { .. } => 2,
            Self::Conflict => 3,
            Self::Quarantined { .. } => 4,
            Self::Full => 5,
            Self::TooManyAgents => 6,
            Self::Late => 7,
            Self::OtherCluster => 8,
            Self::TooManyStreams => 9,
        }
    }
}

impl OfferTotals {
    pub(super) fn outcomes(&self) -> [(&'static str, u64); Outcome::NAMES.len()] {
        std::array::from_fn(|index| {
            let count = self.outcomes[index].load(Ordering::Relaxed);
            (Outcome::NAMES[index], count)
        })
    }

    pub(super) fn points(&self) -> u64 {
        self.points.load(Ordering::Relaxed)
    }
}

impl Fleet {
    /// When a request last ended in the way of this name ([`Outcome::NAMES`]); none when none did.
    pub fn last_outcome(&self, name: &str) -> Option<Timestamp> {
        let place = Outcome::NAMES.iter().position(|it| *it == name)?;
        let last = self.offers.last_ms[place].load(Ordering::Relaxed);
        (last > 0).then(|| Timestamp::from_millis(last))
    }

    /// When something of an accepted request was last left out for this reason.
    pub fn last_drop(&self, reason: Drop) -> Option<Timestamp> {
        self.drops.last(reason)
    }
}

impl Fleet {
    /// Offers a request. Folding it and moving its cursor happen under one lock.
    #[tracing::instrument(level = "debug", name = "fold", skip_all, fields(seq = offer.seq))]
    pub fn offer(&self, offer: &Offer<'_>) -> Answer {
        let mut taken_over = Vec::new();
        let answer = self.offer_locked(offer, &mut taken_over);
        for (key, former) in taken_over {
            hide(self.shard_of(former), &key);
        }
        let place = answer.outcome.index();
        self.offers.outcomes[place].fetch_add(1, Ordering::Relaxed);
        self.offers.last_ms[place].store(offer.received.millis(), Ordering::Relaxed);
        if let Outcome::Folded(drops) = &answer.outcome {
            self.drops.add(drops, offer.received);
        }
        answer
    }

    fn offer_locked(
        &self,
        offer: &Offer<'_>,
        taken_over: &mut Vec<(ResourceKey, AgentId)>,
    ) -> Answer {
        let shard = &mut *lock(self.shard_of(offer.key.agent));
        let refused = |outcome, (durable_seq, folded_seq)| Answer {
            outcome,
            durable_seq,
            folded_seq,
            command: None,
        };
        let Some(agent) = self.agent(&mut shard.agents, offer) else {
            return refused(Outcome::TooManyAgents, (0, 0));
        };
        // Before the session: someone of another cluster must not silence the agent.
        if !agent.is_of(offer.bound_cluster.as_deref()) {
            return refused(Outcome::OtherCluster, (0, 0));
        }
        let known = agent.streams.iter().find(|it| it.cursor.key == offer.key);
        let seqs = known.map_or((0, 0), |it| (it.durable, it.cursor.seq));
        match agent.session(offer.session, offer.sent_at, offer.received) {
            Session::Current => {}
            Session::Late => return refused(Outcome::Late, seqs),
            Session::Retired => {
                let told = agent.tell_conflict(offer.received);
                let event = told.then(|| events::conflict(agent, offer));
                shard.events.extend(event);
                return refused(Outcome::Conflict, seqs);
            }
        }
        if offer.key.agent != FOREIGN_AGENT {
            agent.clocks.note(offer.sent_at, offer.received);
        }
        let known_offset = agent.offset(offer.key.epoch);
        let offset = match sender_clock::judge(offer.sent_at, offer.received, known_offset) {
            Verdict::Shift(offset) => offset,
            Verdict::Stepped(offset) => {
                agent.set_offset(offer.key.epoch, offset);
                let told = agent.tell_clock(offer.received);
                let event = told.then(|| events::clock(agent, offer, offset));
                shard.events.extend(event);
                offset
            }
            Verdict::Quarantine(off_nanos) => {
                introduce::stranger(agent, offer);
                agent.quarantine(offer.key, off_nanos, offer.received);
                let told = agent.tell_clock(offer.received);
                let event = told.then(|| events::clock(agent, offer, off_nanos));
                shard.events.extend(event);
                return refused(Outcome::Quarantined { off_nanos }, seqs);
            }
        };
        agent.live.heard = offer.received;
        agent.live.clock_offset_nanos = offset;
        let Some(stream) = agent.stream(offer.key, offset, offer.received) else {
            return refused(Outcome::TooManyStreams, seqs);
        };
        let gap = match stream.place(offer.seq, offer.dropped) {
            Place::Next { gap } => gap,
            Place::Already => {
                stream.cursor.seen = offer.received;
                return Answer {
                    outcome: Outcome::Already,
                    durable_seq: seqs.0,
                    folded_seq: seqs.1,
                    command: agent.commands.next(offer.received),
                };
            }
            Place::Wrong { wanted } => return refused(Outcome::WrongSeq { wanted }, seqs),
        };
        if self.is_full(offer.lane) {
            return refused(Outcome::Full, seqs);
        }
        let newest = offer.body.newest();
        let gap = gap.map(|gap| stream.gap(gap, offer.received));
        stream.advance(offer.seq, offer.received);
        shard.gaps.extend(gap);
        let offset = agent
            .clocks
            .mended(offer.key.epoch, offset, newest, offer.received);
        let (drops, grown) = self.fold(shard, offer, offset, taken_over);
        match offer.lane {
            Lane::Live => shard.bytes.live += grown,
            Lane::Backfill => shard.bytes.backfill += grown,
        }
        self.pending
            .of(offer.lane)
            .fetch_add(grown, Ordering::Relaxed);
        let agent = shard.agents.get_mut(&offer.key.agent);
        Answer {
            outcome: Outcome::Folded(drops),
            durable_seq: seqs.0,
            folded_seq: offer.seq,
            command: agent.and_then(|agent| agent.commands.next(offer.received)),
        }
    }

    /// The agent of a request, made if it is new; none when there are too many.
    fn agent<'a>(
        &self,
        agents: &'a mut HashMap<AgentId, AgentState>,
        offer: &Offer<'_>,
    ) -> Option<&'a mut AgentState> {
        match agents.entry(offer.key.agent) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(_) if self.agents.load(Ordering::Relaxed) >= MAX_AGENTS => None,
            Entry::Vacant(new) => {
                self.agents.fetch_add(1, Ordering::Relaxed);
                let cluster = offer.bound_cluster.as_ref();
                let cluster = cluster.unwrap_or(&offer.default_cluster);
                let mut agent =
                    AgentState::new(offer.key.agent, Arc::clone(cluster), offer.received);
                agent.home = offer.bound_cluster.clone();
                Some(new.insert(agent))
            }
        }
    }

    fn is_full(&self, lane: Lane) -> bool {
        let limit = match lane {
            Lane::Live => self.config.live_bytes,
            Lane::Backfill => self.config.backfill_bytes,
        };
        self.pending.of(lane).load(Ordering::Relaxed) >= limit
    }

    /// Folds a request that is the next one; returns what was left out and by how many bytes the
    /// data that waits for its commit grew.
    fn fold(
        &self,
        shard: &mut Shard,
        offer: &Offer<'_>,
        offset: i64,
        taken_over: &mut Vec<(ResourceKey, AgentId)>,
    ) -> (Drops, usize) {
        let mut drops = Drops::default();
        let mut grown = 0;
        let fold = Fold {
            lane: offer.lane,
            offset,
            received: offer.received,
        };
        match offer.body {
            Body::Metrics(metrics) => {
                let mut newest = None;
                let mut tick = 0;
                for decoded in &metrics.resources {
                    let points = decoded.points.len() as u64;
                    self.offers.points.fetch_add(points, Ordering::Relaxed);
                    let resource = Folding {
                        fleet: self,
                        offer,
                        fold: &fold,
                        drops: &mut drops,
                        taken_over,
                    };
                    grown += resource.resource(shard, decoded);
                    newest = newest.max(resource::newest(decoded));
                    tick = tick.max(tick_of(decoded).unwrap_or(0));
                }
                note_lag(shard, offer, newest.map(|it| it.shifted(offset)));
                note_tick(shard, offer, tick);
            }
            Body::Events(sent) => {
                for decoded in &sent.steps {
                    grown += steps::keep(self, shard, (offer, &fold), decoded, &mut drops);
                }
                for decoded in &sent.events {
                    grown += events::keep(shard, offer, offset, &decoded.sender, &decoded.event);
                    let kept = shard.events.last();
                    drops.add_one(kept.and_then(|kept| steps::happened(self, kept, &fold).err()));
                }
            }
        }
        (drops, grown)
    }
}

impl Body<'_> {
    /// The newest time in it, by the sender's clock.
    fn newest(&self) -> Option<Timestamp> {
        match self {
            Self::Metrics(metrics) => {
                let newest = metrics.resources.iter().map(resource::newest);
                newest.max().flatten()
            }
            Self::Events(sent) => sent.events.iter().map(|it| it.event.at).max(),
        }
    }
}

/// Takes a resource that another agent reports now out of the live view of its former one.
fn hide(shard: &Mutex<Shard>, key: &ResourceKey) {
    if let Some(tracked) = lock(shard).resources.get_mut(key) {
        tracked.visible = false;
        tracked.changed = false;
    }
}

/// Notes how often an agent sends, where the request says it.
fn note_tick(shard: &mut Shard, offer: &Offer<'_>, nanos: i64) {
    if let Some(agent) = shard.agents.get_mut(&offer.key.agent)
        && nanos > 0
    {
        agent.live.interval = Duration::from_nanos(nanos.unsigned_abs());
    }
}

/// Notes how old an agent's newest live point was when it arrived.
fn note_lag(shard: &mut Shard, offer: &Offer<'_>, newest: Option<Timestamp>) {
    let (Some(agent), Some(newest)) = (shard.agents.get_mut(&offer.key.agent), newest) else {
        return;
    };
    agent.live.backfilling = offer.lane == Lane::Backfill;
    if offer.lane == Lane::Live {
        let lag = u64::try_from(offer.received.since(newest)).unwrap_or(0);
        agent.live.lag = Duration::from_nanos(lag);
    }
}

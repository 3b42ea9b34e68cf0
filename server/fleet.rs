//! The fleet as it is now, and how far each agent's data has been folded: exactly once.
//!
//! A shard holds the cursors, the live state and the uncommitted deltas of its agents under one
//! lock, so that a fold and its cursor move together. No I/O and no clock in here: time comes in
//! with every call, so that the simulation drives the same code as the server.
//!
//! Read in this order: [`offer`] (what comes in and what becomes of it), [`agent`] (cursors),
//! [`sender_clock`], [`naming`], [`resource`], [`owners`], [`fold`], [`holding`], [`live`],
//! [`pending`], [`steps`], [`commit`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpufleet_analysis::states::Span;
use gpufleet_program::section;
use gpufleet_telemetry::command::Command;
use gpufleet_telemetry::identity::AgentId;
use gpufleet_telemetry::time::{Clock, Timestamp};
use gpufleet_telemetry::wire::Lane;
use uuid::Uuid;

use crate::runs::Runs;
use crate::store::model::{CursorKey, ResourceKey};

mod agent;

mod commands;

mod commit;

mod drops;

mod events;

mod fold;

mod holding;

mod foreign;

mod introduce;

pub mod live;

pub mod naming;

mod offer;

mod owners;

mod pending;

mod resource;

mod restore;

pub mod sender_clock;

mod server_clock;

mod shard;

mod steps;

#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests;

pub use agent::MAX_STREAMS;
pub use commands::{CommandRefused, MAX_COMMANDS};
pub use commit::Progress;
pub use drops::{Drop, Drops};
pub use fold::MAX_VALUES;
pub use live::{Live, LiveAgent, LiveValue, LiveXid};
pub use offer::{Answer, Body, Offer, Outcome};
pub use owners::Second;
pub use restore::Restored;
pub use server_clock::ServerClock;
use shard::Shard;

/// Shards of the fleet. More than the cores of any server we run on; a walk over 10,000 GPUs holds each for less than a
/// millisecond, in which data for it waits.
pub const SHARDS: usize = 64;

/// Most agents. Designed for 100,000; each takes about 1 KiB beside its resources.
pub const MAX_AGENTS: usize = 120_000;

/// Most resources of one agent: 16 GPUs of 56 instances, the node and its model servers.
pub const MAX_RESOURCES_PER_AGENT: usize = 1_024;

/// Most resources of all agents and of foreign OTLP together: 100,000 GPUs with their nodes and as many
/// shares and model servers again. Each takes about 5 KiB with 60 readings, so all of them 1.2 GiB.
pub const MAX_RESOURCES: usize = 250_000;

/// Most resources of foreign OTLP together: it names them freely.
pub const MAX_FOREIGN_RESOURCES: usize = 20_000;

/// Most series of foreign OTLP that are remembered, about 60 bytes each; those whose newest point is
/// oldest are forgotten first.
pub const MAX_FOREIGN_SERIES: usize = 500_000;

/// Under which agent the server's own spool, where foreign OTLP goes, has its cursor.
pub const FOREIGN_AGENT: AgentId = AgentId(Uuid::nil());

section! {
    /// Live state and commits.
    pub struct FleetConfig {
        /// Time between two commits, seconds. Data younger than this is lost with the server and
        /// sent again by the agents.
        pub commit_interval_s: u64 = 20,
        /// A commit is made early when this many bytes wait for it.
        pub commit_bytes: usize = 64 * 1024 * 1024,
        /// Most bytes of fresh data that may wait for a commit; then agents are told to wait.
        pub live_bytes: usize = 192 * 1024 * 1024,
        /// Most bytes of old data (backfill) that may wait for a commit; then agents are told to wait.
        pub backfill_bytes: usize = 64 * 1024 * 1024,
        /// A resource that was silent for this long is no longer shown as live, seconds.
        pub forget_after_s: u64 = 86_400,
    }
}

/// Every agent's live state, cursors and deltas.
pub struct Fleet {
    config: FleetConfig,
    shards: Vec<Mutex<Shard>>,
    /// Which agent reports a resource: a place that the shards share, and so are the runs.
    owners: owners::Owners,
    runs: Runs,
    agents: AtomicUsize,
    resources: AtomicUsize,
    pending: PendingBytes,
    drops: drops::DropTotals,
    offers: offer::OfferTotals,
    commit: Mutex<commit::InFlight>,
    server_clock: Mutex<server_clock::Known>,
}

/// Bytes that wait for a commit or are in one, by lane.
#[derive(Debug, Default)]
struct PendingBytes {
    live: AtomicUsize,
    backfill: AtomicUsize,
}

/// Sizes and counts for the server's own metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FleetHealth {
    /// Agents in memory.
    pub agents: usize,
    /// Resources in memory.
    pub resources: usize,
    /// Bytes of fresh data that wait for a commit or are in one.
    pub live_bytes: usize,
    /// Bytes of old data that wait for a commit or are in one.
    pub backfill_bytes: usize,
    /// What was left out of accepted requests since the start.
    pub drops: Drops,
    /// What became of requests since the start, [`Outcome::NAMES`] with counts.
    pub outcomes: [(&'static str, u64); Outcome::NAMES.len()],
    /// Points folded since the start.
    pub points: u64,
}

impl Fleet {
    /// A fleet that has heard of nobody.
    pub fn new(config: FleetConfig) -> Self {
        Self {
            config,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            owners: owners::Owners::default(),
            runs: Runs::default(),
            agents: AtomicUsize::new(0),
            resources: AtomicUsize::new(0),
            pending: PendingBytes::default(),
            drops: drops::DropTotals::default(),
            offers: offer::OfferTotals::default(),
            commit: Mutex::default(),
            server_clock: Mutex::default(),
        }
    }

    /// Shows every resource to `look`, in no order. A shard is locked meanwhile: copy what is
    /// needed and format later.
    pub fn visit(&self, mut look: impl FnMut(&Live)) {
        for shard in &self.shards {
            for tracked in lock(shard).resources.values().filter(|it| it.visible) {
                look(&tracked.live);
            }
        }
    }

    /// One resource as it is now.
    pub fn get(&self, key: &ResourceKey) -> Option<Live> {
        self.look(key, Live::clone)
    }

    /// Shows one resource to `look`. A shard is locked meanwhile: copy what is needed.
    pub fn look<T>(&self, key: &ResourceKey, look: impl FnOnce(&Live) -> T) -> Option<T> {
        // What an agent reports is in its shard; of anything else any shard may know.
        let own = self.owners.agent(key).map(place);
        let others = (0..SHARDS).filter(|it| Some(*it) != own);
        for number in own.into_iter().chain(others) {
            let shard = lock(&self.shards[number]);
            if let Some(tracked) = shard.resources.get(key).filter(|it| it.visible) {
                return Some(look(&tracked.live));
            }
        }
        None
    }

    /// The nodes that their provider takes back now. Those of which it was said before this server started are not known.
    pub fn taken_back(&self, now: Timestamp) -> TakenBack {
        let mut all = TakenBack::new();
        for shard in &self.shards {
            let shard = lock(shard);
            let known = shard.taken_back.iter();
            let those = known.filter(|it| Span::taken_back(it.1.seconds()).has(now.seconds()));
            all.extend(those.map(|(node, said)| (node.clone(), *said)));
        }
        all
    }

    /// The runs of training jobs as they are now.
    pub const fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Every agent that has sent something since the server started, in no order.
    pub fn agents(&self) -> Vec<LiveAgent> {
        let mut agents = Vec::new();
        for shard in &self.shards {
            let shard = lock(shard);
            let known = shard.agents.values().map(|it| it.live.clone());
            agents.extend(known.filter(|it| it.agent != FOREIGN_AGENT));
        }
        agents
    }

    /// Queues a command that rides in the next reply to the agent.
    ///
    /// # Errors
    /// When the agent is not known, too many commands wait, or one about the same GPU or rank does.
    pub fn enqueue_command(
        &self,
        agent: AgentId,
        command: Command,
        now: Timestamp,
    ) -> Result<(), CommandRefused> {
        let mut shard = lock(self.shard_of(agent));
        match shard.agents.get_mut(&agent) {
            Some(state) if agent != FOREIGN_AGENT => state.commands.enqueue(command, now),
            _ => Err(CommandRefused::UnknownAgent),
        }
    }

    /// The highest seq of a stream that is folded; 0 before the first.
    pub fn folded_seq(&self, key: &CursorKey) -> u64 {
        self.seqs(key).0
    }

    /// The highest seq of a stream that is in the store; 0 before the first.
    pub fn durable_seq(&self, key: &CursorKey) -> u64 {
        self.seqs(key).1
    }

    fn seqs(&self, key: &CursorKey) -> (u64, u64) {
        let shard = lock(self.shard_of(key.agent));
        let streams = shard.agents.get(&key.agent).map(|it| &it.streams);
        let stream = streams.and_then(|it| it.iter().find(|it| it.cursor.key == *key));
        stream.map_or((0, 0), |it| (it.cursor.seq, it.durable))
    }

    /// Looks whether this server's clock was set since the last look.
    pub fn look_at_clock(&self, clock: &dyn Clock) {
        let known = self.server_clock.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        known.look(clock.now(), clock.monotonic());
    }

    /// How this server's clock compares with those of its agents, as of the last commit.
    pub fn server_clock(&self) -> ServerClock {
        let known = self.server_clock.lock();
        known.unwrap_or_else(PoisonError::into_inner).clock
    }

    /// Whether most agents that were heard lately have a clock within an hour of this server's, however few they are;
    /// none where none was heard.
    pub fn agents_agree(&self, now: Timestamp) -> Option<bool> {
        let (mut like, mut all) = (0, 0);
        for shard in &self.shards {
            for vote in lock(shard).agents.values().filter_map(|it| it.vote(now)) {
                all += 1;
                like += usize::from(vote.difference.saturating_abs() <= sender_clock::QUARANTINED);
            }
        }
        (all > 0).then_some(like * 2 >= all)
    }

    /// Sizes and counts for the server's own metrics.
    pub fn health(&self) -> FleetHealth {
        FleetHealth {
            agents: self.agents.load(Ordering::Relaxed),
            resources: self.resources.load(Ordering::Relaxed),
            live_bytes: self.pending.of(Lane::Live).load(Ordering::Relaxed),
            backfill_bytes: self.pending.of(Lane::Backfill).load(Ordering::Relaxed),
            drops: self.drops.read(),
            outcomes: self.offers.outcomes(),
            points: self.offers.points(),
        }
    }

    /// Puts a resource into the live view as it is, for tests of what shows it.
    #[doc(hidden)]
    pub fn put_for_tests(&self, live: Live) {
        let agent = live.agent.unwrap_or(FOREIGN_AGENT);
        let tracked = fold::Tracked::restored(live);
        let mut shard = lock(self.shard_of(agent));
        self.resources.fetch_add(1, Ordering::Relaxed);
        shard.resources.insert(tracked.live.key.clone(), tracked);
    }

    fn shard_of(&self, agent: AgentId) -> &Mutex<Shard> {
        &self.shards[place(agent)]
    }

    /// Another agent that reports the same resource and whose points are left out, the last one.
    pub fn second(&self, key: &ResourceKey) -> Option<Second> {
        self.owners.second(key)
    }
}

impl PendingBytes {
    fn of(&self, lane: Lane) -> &AtomicUsize {
        match lane {
            Lane::Live => &self.live,
            Lane::Backfill => &self.backfill,
        }
    }
}

/// Which shard is an agent's. The last byte of a random UUID is random; nil, the foreign agent, gets the first.
fn place(agent: AgentId) -> usize {
    usize::from(agent.0.as_bytes()[15]) % SHARDS
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard
        .lock()
        .expect("a fold does not panic: it holds the only lock and takes checked data")
}

/// The same for the commit in flight.
fn lock_commit(commit: &Mutex<commit::InFlight>) -> MutexGuard<'_, commit::InFlight> {
    commit
        .lock()
        .expect("nothing panics while it holds the commit in flight")
}

/// The nodes that are taken back, by cluster and name, and when that was said.
pub type TakenBack = HashMap<(Arc<str>, Arc<str>), Timestamp>;

/// A shared name: the same text is kept once per agent.
type Name = Arc<str>;

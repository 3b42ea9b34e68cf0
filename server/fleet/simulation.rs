//! Agents, a bad network and a server that crashes at any moment, by seed: nothing is lost, nothing
//! counts twice.
//!
//! The network loses, doubles and reorders requests and replies. Commits fail before they happen,
//! or happen and their reply gets lost. Agents fall behind, open new epochs and drain the old ones,
//! drop what does not fit, restart. At the end everything is drained and the store is compared with
//! what was made: every record that is not in a declared gap is there exactly once.
//!
//! Longer than 500 lines because agents, network, store and check are one story and need each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_telemetry::catalog::{self, Metric, MetricId, gpu};
use gpufleet_telemetry::identity::{AgentId, Epoch, Resource, ResourceKind, attribute};
use gpufleet_telemetry::minute::{Meter, MinuteRow};
use gpufleet_telemetry::otlp::{DecodedMetrics, DecodedPoint, DecodedResource, Rejected};
use gpufleet_telemetry::tick::PointValue;
use gpufleet_telemetry::time::{Minute, Timestamp};
use gpufleet_telemetry::wire::{Lane, Stream};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use uuid::Uuid;

use super::{Body, Fleet, FleetConfig, Offer, Outcome, Progress, Restored};
use crate::store::model::{Commit, Cursor, CursorKey, Gap, KnownResource, ResourceKey};

/// Seeds that every test run goes through.
const SEEDS: u64 = 1_000;

/// Steps of one seed before everything is drained.
const STEPS: usize = 800;

const AGENTS: usize = 3;
const START: i64 = 1_790_000_000;
const TICK: i64 = 10;

/// Records an agent keeps; beyond it the oldest are dropped.
const SPOOL: usize = 12;

/// Longest time that a request is on its way, seconds.
const LONGEST: i64 = 5;

/// Joules that a GPU draws in a tick.
const JOULES: f64 = 7.0;

/// A store in memory with the semantics of the real one.
#[derive(Default)]
struct MemoryStore {
    last: u64,
    cursors: BTreeMap<CursorKey, Cursor>,
    resources: BTreeMap<ResourceKey, KnownResource>,
    minutes: BTreeMap<(ResourceKey, Minute), MinuteRow>,
    gaps: Vec<Gap>,
}

impl MemoryStore {
    fn commit(&mut self, commit: &Commit) {
        if commit.number <= self.last {
            return;
        }
        assert_eq!(commit.number, self.last + 1, "commits follow each other");
        self.last = commit.number;
        for cursor in &commit.cursors {
            let known = self.cursors.insert(cursor.key, cursor.clone());
            assert!(
                known.is_none_or(|it| it.seq <= cursor.seq),
                "a cursor never goes back"
            );
        }
        for known in &commit.resources {
            self.resources.insert(known.key.clone(), known.clone());
        }
        let mut met = BTreeSet::new();
        for delta in &commit.minutes {
            let place = (delta.key.clone(), delta.minute);
            assert!(
                met.insert(place.clone()),
                "each row at most once in a commit"
            );
            self.minutes.entry(place).or_default().merge(&delta.row);
        }
        self.gaps.extend(&commit.gaps);
    }

    fn restored(&self) -> Restored {
        Restored {
            last_commit: self.last,
            cursors: self.cursors.values().cloned().collect(),
            resources: self.resources.values().cloned().collect(),
            health: Vec::new(),
            foreign: Vec::new(),
            ..Restored::default()
        }
    }
}

/// A record of a spool: its tick.
#[derive(Clone, Copy)]
struct Record {
    end: i64,
}

/// One epoch of an agent's spool.
struct Spool {
    epoch: Epoch,
    /// Every record ever made, for the check.
    made: BTreeMap<u64, Record>,
    /// Those that are still kept.
    kept: BTreeSet<u64>,
    /// The next one to be sent.
    next: u64,
    /// Those that were dropped.
    dropped: BTreeSet<u64>,
}

struct Agent {
    id: AgentId,
    session: u64,
    /// The last one is live.
    spools: Vec<Spool>,
    joules: f64,
}

/// A request on its way, or the reply to one.
#[derive(Clone)]
enum Packet {
    Request(Request),
    Reply(Request, Outcome, u64),
}

#[derive(Clone)]
struct Request {
    agent: usize,
    key: CursorKey,
    seq: u64,
    session: u64,
    lane: Lane,
    dropped: Option<(u64, u64)>,
    end: i64,
    /// When it was sent; no two at the same nanosecond.
    sent: Timestamp,
}

struct World {
    random: StdRng,
    now: i64,
    fleet: Fleet,
    store: MemoryStore,
    agents: Vec<Agent>,
    network: Vec<Packet>,
    crashes: u32,
    /// Requests sent, which makes each time of sending its own.
    sends: i64,
}

fn spool(random: &mut StdRng) -> Spool {
    Spool {
        epoch: Epoch(Uuid::from_u128(random.random())),
        made: BTreeMap::new(),
        kept: BTreeSet::new(),
        next: 1,
        dropped: BTreeSet::new(),
    }
}

fn fleet() -> Fleet {
    Fleet::new(FleetConfig {
        backfill_bytes: 4_096,
        live_bytes: 16_384,
        ..FleetConfig::default()
    })
}

fn known(metric: Metric) -> &'static Metric {
    catalog::by_id(metric.id).expect("it is in the catalog")
}

/// What a record holds: one tick of one GPU. The energy counter runs with the time.
fn decoded(agent: usize, end: i64) -> DecodedMetrics {
    let end_at = Timestamp::from_seconds(end);
    let start = Timestamp::from_seconds(end - TICK);
    let point = |metric, value, start| DecodedPoint {
        metric: known(metric),
        part: None,
        value,
        start,
        at: end_at,
    };
    let watts = PointValue::Gauge {
        value: 100.0,
        max: None,
    };
    let energy = PointValue::Counter {
        value: (end - START) as f64 / TICK as f64 * JOULES,
        since: Timestamp::default(),
    };
    let resource = Resource::new(ResourceKind::Gpu, format!("GPU-{agent}"))
        .with(attribute::CLUSTER, "c")
        .with(attribute::NODE, format!("n{agent}"));
    DecodedMetrics {
        resources: vec![DecodedResource {
            resource: Arc::new(resource),
            points: vec![
                point(gpu::OBSERVED, PointValue::SecondBits(0x3ff), start),
                point(gpu::POWER, watts, start),
                point(gpu::ENERGY, energy, end_at),
            ],
        }],
        rejected: Rejected::default(),
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let agents = (0..AGENTS)
            .map(|_| Agent {
                id: AgentId(Uuid::from_u128(random.random())),
                session: random.random(),
                spools: vec![spool(&mut random)],
                joules: 0.0,
            })
            .collect();
        Self {
            random,
            now: START,
            fleet: fleet(),
            store: MemoryStore::default(),
            agents,
            network: Vec::new(),
            crashes: 0,
            sends: 0,
        }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_ratio(percent, 100)
    }

    fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..25 => self.pass(),
            25..55 => self.send(),
            55..88 => self.deliver(),
            88..96 => self.commit(),
            96..98 => self.crash(),
            _ => self.restart_agent(),
        }
    }

    /// A second passes. At the end of a tick every agent appends a record, unless it is down.
    fn pass(&mut self) {
        self.now += 1;
        if self.now % TICK != 0 {
            return;
        }
        for index in 0..AGENTS {
            if self.chance(5) {
                continue;
            }
            let behind = self.agents[index].behind(self.now);
            let agent = &mut self.agents[index];
            if behind > 60 {
                agent.spools.push(spool(&mut self.random));
            }
            let live = agent.spools.last_mut().expect("there is a live epoch");
            let seq = live.made.len() as u64 + 1;
            live.made.insert(seq, Record { end: self.now });
            live.kept.insert(seq);
            agent.joules += JOULES;
            agent.drop_oldest();
        }
    }

    /// An agent sends the next record of its live epoch, or of one that it drains.
    fn send(&mut self) {
        self.sends += 1;
        let sent = Timestamp::from_seconds(self.now).shifted(self.sends);
        let index = self.random.random_range(0..AGENTS);
        let agent = &self.agents[index];
        let count = agent.spools.len();
        let which = if self.random.random_ratio(60, 100) {
            count - 1
        } else {
            self.random.random_range(0..count)
        };
        let spool = &agent.spools[which];
        let Some(seq) = spool.kept.range(spool.next..).next().copied() else {
            return;
        };
        let request = Request {
            agent: index,
            key: CursorKey {
                agent: agent.id,
                epoch: spool.epoch,
                stream: Stream::Metrics,
            },
            seq,
            session: agent.session,
            lane: if which + 1 == count {
                Lane::Live
            } else {
                Lane::Backfill
            },
            dropped: (seq > spool.next).then(|| (spool.next, seq - 1)),
            end: spool.made[&seq].end,
            sent,
        };
        self.put(Packet::Request(request));
    }

    /// Puts a packet on the network, sometimes twice, sometimes not at all.
    fn put(&mut self, packet: Packet) {
        if self.chance(10) {
            return;
        }
        if self.chance(10) {
            self.network.push(packet.clone());
        }
        self.network.push(packet);
    }

    /// Any packet on the network arrives.
    fn deliver(&mut self) {
        if self.network.is_empty() {
            return;
        }
        let place = self.random.random_range(0..self.network.len());
        match self.network.swap_remove(place) {
            // Nothing is on its way for longer than a request may take.
            Packet::Request(request) if self.now - request.sent.seconds() > LONGEST => {}
            Packet::Request(request) => {
                let (outcome, durable) = self.offer(&request);
                self.put(Packet::Reply(request, outcome, durable));
            }
            Packet::Reply(request, outcome, durable) => {
                let in_store = self.store.cursors.get(&request.key);
                let in_store = in_store.map_or(0, |it| it.seq);
                assert!(durable <= in_store, "told durable before the store had it");
                self.agents[request.agent].on_reply(&request, outcome, durable);
            }
        }
    }

    fn offer(&self, request: &Request) -> (Outcome, u64) {
        let decoded = decoded(request.agent, request.end);
        let now = Timestamp::from_seconds(self.now);
        let answer = self.fleet.offer(&Offer {
            key: request.key,
            seq: request.seq,
            session: request.session,
            lane: request.lane,
            dropped: request.dropped,
            sent_at: request.sent,
            received: now,
            bound_cluster: None,
            default_cluster: "default".into(),
            body: Body::Metrics(&decoded),
        });
        (answer.outcome, answer.durable_seq)
    }

    /// A commit happens, fails, or happens and nobody hears of it.
    fn commit(&mut self) {
        let Some(commit) = self.fleet.take_commit(Timestamp::from_seconds(self.now)) else {
            return;
        };
        if self.chance(70) {
            self.store.commit(&commit);
            self.fleet.committed(commit.number);
            return;
        }
        let happened = self.chance(50);
        if happened {
            self.store.commit(&commit);
        }
        if self.chance(20) {
            return self.crash();
        }
        if self.chance(30) {
            return; // The store does not answer the question either: the same one again later.
        }
        let progress = self.fleet.commit_failed(commit.number, self.store.last);
        // It may also have happened at an earlier try that nobody heard of.
        let expected = if self.store.last == commit.number {
            Progress::Done
        } else {
            Progress::Retry
        };
        assert_eq!(progress, expected);
    }

    /// The server dies and comes back with what the store has.
    fn crash(&mut self) {
        self.crashes += 1;
        // Requests on their way die with their connection; replies may have left already.
        self.network.retain(|it| matches!(it, Packet::Reply(..)));
        self.fleet = fleet();
        let now = Timestamp::from_seconds(self.now);
        self.fleet.restore(self.store.restored(), now);
    }

    fn restart_agent(&mut self) {
        let index = self.random.random_range(0..AGENTS);
        self.agents[index].session = self.random.random();
    }

    /// The network gets well and everything is drained and committed.
    fn drain(&mut self) {
        self.network.clear();
        for _ in 0..3 {
            for index in 0..AGENTS {
                self.drain_agent(index);
            }
            self.settle();
        }
    }

    fn drain_agent(&mut self, index: usize) {
        for which in 0..self.agents[index].spools.len() {
            // What was folded but is not durable may be gone with a server that died: again.
            let spool = &mut self.agents[index].spools[which];
            if let Some(oldest) = spool.kept.first() {
                spool.next = spool.next.min(*oldest);
            }
            loop {
                let agent = &self.agents[index];
                let spool = &agent.spools[which];
                let Some(seq) = spool.kept.range(spool.next..).next().copied() else {
                    break;
                };
                let is_live = which + 1 == agent.spools.len();
                let request = Request {
                    agent: index,
                    key: CursorKey {
                        agent: agent.id,
                        epoch: spool.epoch,
                        stream: Stream::Metrics,
                    },
                    seq,
                    session: agent.session,
                    lane: if is_live { Lane::Live } else { Lane::Backfill },
                    dropped: (seq > spool.next).then(|| (spool.next, seq - 1)),
                    end: spool.made[&seq].end,
                    sent: Timestamp::from_seconds(self.now + 1),
                };
                let (outcome, durable) = self.offer(&request);
                if outcome == Outcome::Full {
                    self.settle();
                }
                self.agents[index].on_reply(&request, outcome, durable);
            }
        }
    }

    fn settle(&mut self) {
        while let Some(commit) = self.fleet.take_commit(Timestamp::from_seconds(self.now)) {
            self.store.commit(&commit);
            self.fleet.committed(commit.number);
        }
    }

    fn check(&self) {
        for (index, agent) in self.agents.iter().enumerate() {
            let mut expected: BTreeMap<Minute, (u32, u64)> = BTreeMap::new();
            let mut ends = Vec::new();
            for spool in &agent.spools {
                let gaps = self.lost(agent, spool);
                for seq in &gaps {
                    assert!(spool.dropped.contains(seq), "a gap that nobody declared");
                }
                for (_, record) in spool.made.iter().filter(|(seq, _)| !gaps.contains(seq)) {
                    ends.push(record.end);
                    let start = Timestamp::from_seconds(record.end - TICK);
                    let bits = 0x3ff << start.second_of_minute();
                    let minute = expected.entry(start.minute()).or_default();
                    minute.0 += 1;
                    minute.1 |= bits;
                }
            }
            let mut found = BTreeMap::new();
            let mut meter = Meter::default();
            let mut joules = 0.0;
            for ((key, minute), row) in &self.store.minutes {
                if *key.id != *format!("GPU-{index}") {
                    continue;
                }
                let count = |id: MetricId| row.metrics.get(&id).map_or(0, |it| it.count);
                let energy = &row.counters[&gpu::ENERGY.id];
                assert_eq!(count(gpu::POWER.id), energy.count());
                found.insert(*minute, (count(gpu::POWER.id), row.bitmaps.observed));
                joules += meter.read(gpu::ENERGY.id, energy);
            }
            assert_eq!(found, expected, "agent {index}");
            let grown = ends.iter().max().zip(ends.iter().min());
            let grown = grown.map_or(0, |(last, first)| last - first) as f64 / TICK as f64 * JOULES;
            assert_eq!(joules, grown, "agent {index}");
        }
    }

    /// The seqs of an epoch that the server was told are lost, and those at its end that were
    /// dropped with nothing after them to tell it with.
    fn lost(&self, agent: &Agent, spool: &Spool) -> BTreeSet<u64> {
        let key = CursorKey {
            agent: agent.id,
            epoch: spool.epoch,
            stream: Stream::Metrics,
        };
        let folded = self.store.cursors.get(&key).map_or(0, |it| it.seq);
        let gaps = self.store.gaps.iter().filter(|it| it.key == key);
        let never_sent = spool.dropped.range(folded + 1..).copied();
        gaps.flat_map(|it| it.first..=it.last)
            .chain(never_sent)
            .collect()
    }
}

impl Agent {
    /// How old the oldest record of the live epoch is that has not been answered.
    fn behind(&self, now: i64) -> i64 {
        let live = self.spools.last().expect("there is a live epoch");
        let oldest = live.kept.range(live.next..).next();
        oldest.map_or(0, |seq| now - live.made[seq].end)
    }

    /// Drops the oldest records beyond what the spool holds.
    fn drop_oldest(&mut self) {
        let mut kept: usize = self.spools.iter().map(|it| it.kept.len()).sum();
        for spool in &mut self.spools {
            while kept > SPOOL {
                let Some(seq) = spool.kept.pop_first() else {
                    break;
                };
                spool.dropped.insert(seq);
                kept -= 1;
            }
        }
    }

    fn on_reply(&mut self, request: &Request, outcome: Outcome, durable: u64) {
        let spools = &mut self.spools;
        let Some(spool) = spools.iter_mut().find(|it| it.epoch == request.key.epoch) else {
            return;
        };
        spool.kept.retain(|seq| *seq > durable);
        match outcome {
            Outcome::Folded(_) | Outcome::Already => {
                spool.next = spool.next.max(request.seq + 1);
            }
            Outcome::WrongSeq { wanted } => spool.next = wanted,
            Outcome::Conflict if request.session == self.session => {
                panic!("the newest session is never refused");
            }
            Outcome::Conflict | Outcome::Full | Outcome::Late => {}
            Outcome::Quarantined { .. }
            | Outcome::TooManyAgents
            | Outcome::TooManyStreams
            | Outcome::OtherCluster => {
                panic!("clocks are right, agents and epochs few and tokens unbound")
            }
        }
    }
}

fn run(seed: u64) -> World {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        world.step();
    }
    world.drain();
    world.check();
    world
}

#[test]
fn nothing_is_lost_and_nothing_counts_twice_whatever_the_network_and_the_store_do() {
    let (mut crashes, mut gaps, mut epochs) = (0, 0, 0);
    for seed in 0..SEEDS {
        let outcome = std::panic::catch_unwind(|| run(seed));
        let Ok(world) = outcome else {
            panic!("seed {seed} fails: run({seed}) shows it again");
        };
        crashes += world.crashes;
        gaps += world.store.gaps.len();
        epochs += world.agents.iter().map(|it| it.spools.len()).sum::<usize>();
    }
    // A simulation in which nothing happens proves nothing.
    assert!(
        crashes > 10_000 && gaps > 100 && epochs > 4_000,
        "{crashes} crashes, {gaps} gaps, {epochs} epochs"
    );
}

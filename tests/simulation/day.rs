//! One bad day: everything that can go wrong does, by seed; then it stops, and what was made must
//! be in the store, once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpufleet_agent::ship::state::{Failure, Reply, Request};
use gpufleet_server::fleet::FleetConfig;
use gpufleet_server::store::model::ResourceKey;
use gpufleet_spool::sim::Random;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::{Minute, Timestamp};

use super::receiver::{CommitFate, Receiver};
use super::sender::{POINTS, Sender, Truth};
use super::wire::{Weather, Wire};
use crate::simulator::faults::Faults;
use crate::simulator::node::Plan;
use crate::simulator::record::{Record, agree};

const AGENTS: usize = 3;
/// Trouble lasts this long, seconds.
const TROUBLE_SECONDS: u64 = 900;
/// Within this time after the end of trouble everything must be durable, seconds.
const DRAIN_SECONDS: u64 = 1_800;
const TICK_SECONDS: i64 = 10;
const COMMIT_SECONDS: u64 = 20;
/// The day begins here: a whole minute.
const BEGIN: Timestamp = Timestamp::from_seconds(1_800_000_000);

/// A message between an agent and the server.
#[derive(Debug, Clone)]
enum Message {
    Request(usize, Request, Timestamp),
    Answer(usize, Request, Result<Reply, Failure>),
}

/// What goes wrong how often: once in so many seconds, per thing; 0 means never.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Trouble {
    agent_killed: u64,
    agent_loses_power: u64,
    disk_dies_in_a_call: u64,
    server_killed: u64,
    partition: u64,
    bit_flips: u64,
}

/// One day under way.
pub struct Day {
    random: Random,
    pub(super) second: u64,
    senders: Vec<Sender>,
    restart_at: Vec<u64>,
    cut_until: Vec<u64>,
    pub(super) server: Receiver,
    pub(super) server_restart_at: u64,
    wire: Wire<Message>,
    weather: Weather,
    trouble: Trouble,
    faults: Faults,
}

/// What a day came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Ticks that were made for sure.
    pub ticks: u64,
    /// Times an agent or the server died.
    pub deaths: u64,
    /// Requests that spools gave up, and said so.
    pub told_dropped: u64,
}

impl Day {
    /// The day of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan {
            seed,
            nodes: AGENTS,
            gpus_per_node: 1,
            metrics: POINTS,
            training: false,
            ..Plan::demo()
        };
        let often = |random: &mut Random, least: u64| least + random.below(least * 4);
        let trouble = Trouble {
            agent_killed: often(&mut random, 60),
            agent_loses_power: often(&mut random, 200),
            disk_dies_in_a_call: often(&mut random, 200),
            server_killed: often(&mut random, 60),
            partition: often(&mut random, 60),
            // Corruption loses data, and must say so: in one day of eight, to keep the check of
            // the other days exact.
            bit_flips: if seed.is_multiple_of(8) { 120 } else { 0 },
        };
        let weather = Weather::bad(&mut random);
        Self::of(&plan, FleetConfig::default(), weather, trouble, random)
    }

    /// The day of this fleet, before anything has begun.
    pub(super) fn of(
        plan: &Plan,
        config: FleetConfig,
        weather: Weather,
        trouble: Trouble,
        mut random: Random,
    ) -> Self {
        Self {
            senders: (0..plan.nodes)
                .map(|index| Sender::new(plan, index, random.next()))
                .collect(),
            restart_at: vec![0; plan.nodes],
            cut_until: vec![0; plan.nodes],
            server: Receiver::new(config),
            server_restart_at: 0,
            second: 0,
            wire: Wire::default(),
            weather,
            trouble,
            faults: Faults::default(),
            random,
        }
    }

    /// Lives through it.
    ///
    /// # Errors
    /// Everything that is wrong in the end, one line each.
    pub fn run(mut self) -> Result<Outcome, Vec<String>> {
        let mut deaths = 0;
        while self.second < TROUBLE_SECONDS {
            deaths += self.trouble();
            self.step(true, true);
        }
        self.weather = Weather::FAIR;
        self.cut_until.fill(0);
        let end = self.second + DRAIN_SECONDS;
        loop {
            self.step(false, false);
            if self.is_drained() {
                break;
            }
            if self.second >= end {
                return Err(vec![format!(
                    "{DRAIN_SECONDS} s after the end of all trouble something is not durable: {} bytes spooled",
                    self.senders.iter().map(Sender::spooled_bytes).sum::<u64>()
                )]);
            }
        }
        let wrong = self.differences();
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let truths = || self.senders.iter().map(|sender| &sender.truth);
        Ok(Outcome {
            ticks: truths().map(|truth| truth.ticks.0).sum(),
            deaths,
            told_dropped: truths().map(|truth| truth.told_dropped).sum(),
        })
    }

    /// Whether all run, and everything that was made is durable.
    pub(super) fn is_drained(&mut self) -> bool {
        let all_run = self.server.runs() && self.senders.iter().all(Sender::runs);
        all_run && self.senders.iter_mut().all(Sender::is_drained)
    }

    /// Whether everything that was made until this second is durable.
    pub(super) fn is_drained_until(&self, second: u64) -> bool {
        let until = BEGIN.shifted(second.cast_signed() * 1_000_000_000);
        let waits = |sender: &Sender| sender.oldest_spooled().is_some_and(|at| at <= until);
        !self.senders.iter().any(waits)
    }

    /// What is wrong with what the store has.
    pub(super) fn differences(&mut self) -> Vec<String> {
        let may_drop = self.trouble.bit_flips > 0;
        let differences = |sender: &mut Sender| {
            sender.take_drops();
            differences(sender, &self.server, may_drop)
        };
        self.senders.iter_mut().flat_map(differences).collect()
    }

    pub(super) fn now(&self) -> Timestamp {
        BEGIN.shifted(self.second.cast_signed() * 1_000_000_000)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_secs(self.second)
    }

    fn happens(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.random.one_in(one_in)
    }

    /// Lets this second's misfortunes happen; returns how many processes died.
    fn trouble(&mut self) -> u64 {
        let mut deaths = 0;
        for index in 0..self.senders.len() {
            if !self.senders[index].runs() {
                continue;
            }
            let killed = self.happens(self.trouble.agent_killed);
            let power = self.happens(self.trouble.agent_loses_power);
            if killed || power {
                self.agent_dies(index, power);
                deaths += 1;
                continue;
            }
            if self.happens(self.trouble.disk_dies_in_a_call) {
                let calls = self.random.below(30);
                self.senders[index].disk.crash_after(calls);
            }
            if self.happens(self.trouble.partition) {
                self.cut_until[index] = self.second + self.random.below(200);
            }
            if self.happens(self.trouble.bit_flips) {
                self.senders[index].disk.flip_bit();
            }
        }
        if self.server.runs() && self.happens(self.trouble.server_killed) {
            self.server_dies();
            deaths += 1;
        }
        deaths
    }

    fn agent_dies(&mut self, index: usize, power_loss: bool) {
        self.senders[index].die(power_loss);
        self.restart_at[index] = self.second + 1 + self.random.below(40);
        // Its connections die with it.
        self.wire.cut(|message| match message {
            Message::Request(from, ..) | Message::Answer(from, ..) => *from == index,
        });
    }

    fn server_dies(&mut self) {
        self.server.die();
        self.server_restart_at = self.second + 1 + self.random.below(90);
        self.wire.cut(|_| true);
    }

    /// One second: starts what is due, makes ticks where that is asked, sends, delivers, commits.
    pub(super) fn step(&mut self, makes_ticks: bool, commits_may_fail: bool) {
        self.second += 1;
        let (now, monotonic) = (self.now(), self.monotonic());
        if !self.server.runs() && self.second >= self.server_restart_at {
            self.server.start(now);
        }
        for index in 0..self.senders.len() {
            if !self.senders[index].runs() && self.second >= self.restart_at[index] {
                self.senders[index].start(now, &mut self.random);
            }
            let is_tick = now.seconds() % TICK_SECONDS == 0;
            let start = now.shifted(-TICK_SECONDS * 1_000_000_000);
            if makes_ticks && is_tick && !self.senders[index].tick(start, now, &self.faults) {
                self.agent_dies(index, true);
            }
        }
        self.send(now, monotonic);
        self.deliver(now, monotonic);
        if self.second.is_multiple_of(COMMIT_SECONDS) && self.server.runs() {
            let fate = if commits_may_fail {
                CommitFate::by_chance(&mut self.random)
            } else {
                CommitFate::Done
            };
            self.server.commit(now, fate);
            if !self.server.runs() {
                self.server_dies();
            }
        }
    }

    fn send(&mut self, now: Timestamp, monotonic: Duration) {
        for index in 0..self.senders.len() {
            let mut requests = Vec::new();
            if !self.senders[index].poll(now, monotonic, &mut requests) {
                self.agent_dies(index, true);
                continue;
            }
            if self.second < self.cut_until[index] {
                continue;
            }
            for request in requests {
                let message = Message::Request(index, request, now);
                self.wire
                    .send(message, monotonic, self.weather, &mut self.random);
            }
        }
    }

    fn deliver(&mut self, now: Timestamp, monotonic: Duration) {
        // Twice, so that a request and its answer can pass within one second.
        for _ in 0..2 {
            for message in self.wire.arrived(monotonic) {
                match message {
                    Message::Request(index, request, sent_at) => {
                        if let Some(answer) = self.server.take(&request, sent_at, now) {
                            let message = Message::Answer(index, request, answer);
                            self.wire
                                .send(message, monotonic, self.weather, &mut self.random);
                        }
                    }
                    Message::Answer(index, request, answer) => {
                        let cut = self.second < self.cut_until[index];
                        let sender = &mut self.senders[index];
                        if !cut && !sender.answered(&request, &answer, now, monotonic) {
                            self.agent_dies(index, true);
                        }
                    }
                }
            }
        }
    }
}

/// What is wrong with what the store has of one agent.
fn differences(sender: &Sender, server: &Receiver, may_drop: bool) -> Vec<String> {
    let truth = &sender.truth;
    let mut wrong = event_differences(truth, server, may_drop);
    let mut resources: BTreeSet<(ResourceKind, String)> = truth.sure.resources();
    resources.extend(
        truth
            .unsure
            .iter()
            .map(|tick| (tick.resource.kind, tick.resource.id.to_string())),
    );
    for (kind, id) in resources {
        let key = ResourceKey {
            cluster: "demo".into(),
            kind,
            id: id.as_str().into(),
        };
        let found = server.store.minutes(&key);
        if may_drop {
            wrong.extend(count_differences(truth, kind, &id, &found));
        } else {
            wrong.extend(row_differences(truth, kind, &id, &found));
        }
    }
    wrong
}

/// Exact: every minute is what was made, give or take ticks that a crash cut short.
fn row_differences(
    truth: &Truth,
    kind: ResourceKind,
    id: &str,
    found: &BTreeMap<Minute, MinuteRow>,
) -> Vec<String> {
    let (mut certain, mut plain, mut wrong) = (truth.sure.clone(), found.clone(), Vec::new());
    let mut unsure: BTreeMap<Minute, Vec<MinuteRow>> = BTreeMap::new();
    for tick in truth
        .unsure
        .iter()
        .filter(|it| (it.resource.kind, &*it.resource.id) == (kind, id))
    {
        let mut alone = Record::default();
        alone.add(tick);
        let minute = tick.start.minute();
        let row = alone
            .row(&(kind, id.to_owned(), minute))
            .cloned()
            .unwrap_or_default();
        unsure.entry(minute).or_default().push(row);
    }
    for (minute, maybe) in unsure {
        let base = certain
            .remove(&(kind, id.to_owned(), minute))
            .unwrap_or_default();
        let have = plain.remove(&minute).unwrap_or_default();
        let is_right = (0_u32..1 << maybe.len()).any(|choice| {
            let mut row = base.clone();
            for (index, more) in maybe.iter().enumerate() {
                if choice >> index & 1 == 1 {
                    row.merge(more);
                }
            }
            agree(&row, &have)
        });
        if !is_right {
            wrong.push(format!(
                "{} {id} minute {}: {have:?} is not right with any of its {} cut ticks",
                kind.name(),
                minute.0,
                maybe.len()
            ));
        }
    }
    wrong.extend(certain.differences(kind, id, &plain));
    wrong
}

/// After corruption: never more than was made, and never less than was made and not told as lost.
fn count_differences(
    truth: &Truth,
    kind: ResourceKind,
    id: &str,
    found: &BTreeMap<Minute, MinuteRow>,
) -> Vec<String> {
    let ticks: u64 = found
        .values()
        .map(|row| u64::from(row.metrics.values().map(|it| it.count).max().unwrap_or(0)))
        .sum();
    let least = truth.ticks.0.saturating_sub(truth.told_dropped);
    let most = truth.ticks.0 + truth.ticks.1;
    if (least..=most).contains(&ticks) {
        return Vec::new();
    }
    vec![format!(
        "{} {id}: {ticks} ticks in the store, {} were made, {} perhaps, {} told as dropped",
        kind.name(),
        truth.ticks.0,
        truth.ticks.1,
        truth.told_dropped
    )]
}

fn event_differences(truth: &Truth, server: &Receiver, may_drop: bool) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for stored in &server.store.events {
        *counts.entry(stored.event.message.as_str()).or_default() += 1;
    }
    let count = |message: &String| counts.get(message.as_str()).copied().unwrap_or(0);
    let (sure, unsure) = &truth.events;
    let sure = sure
        .iter()
        .filter(|message| count(message) != 1 && !(may_drop && count(message) == 0));
    let unsure = unsure.iter().filter(|message| count(message) > 1);
    sure.chain(unsure)
        .map(|message| format!("event {message:?} is {} times in the store", count(message)))
        .collect()
}

//! The network under training runs: links that are slower than their like ([`slow`]), ports that came up
//! slower ([`gpufleet_analysis::port`]), runs whose traffic takes the wrong way ([`wrong`]).
//!
//! What ranks measure of their collectives ([`collectives`]) and machines count on their ports ([`ports`]) is
//! taken in while the fleet is walked over, and put together run by run. A run that starts, saves, evaluates
//! or stands is not looked at; communicators with a rank that is blamed for being slow, or with a GPU that is
//! broken, hot, braked or at a low clock, are left out: their collectives are slow because of it.
//!
//! Limits: runs over two nodes and more, for what goes between nodes; the speeds of ports are compared once a
//! minute, as often as they are read; waits are those of the last [`STEPS`] steps of at most [`RANKS`] ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_analysis::cause::{Cause, Reading};
use gpufleet_analysis::incident::{Family, Place, Remedy, Signal};
use gpufleet_analysis::port::{self, Port};
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_analysis::robust::median;
use gpufleet_analysis::{slow_link, wrong_network};
use gpufleet_telemetry::catalog::{Unit, node, training};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;

use super::detector::Need::{OneOf, Reading as Read};
use super::detector::{Detector, Findings, Finds, TickSnapshot};
use super::gather::{GpuSnapshot, NodeSnapshots};
use super::runs;
use crate::fleet::Live;
use crate::runs::{Run, RunKey, State};

mod collectives;
mod ports;
mod slow;
#[cfg(test)]
mod tests;
mod wrong;

pub(super) use collectives::RankNames;
use collectives::{Measured, RankMeasured};
pub(super) use ports::PortsWatch;

/// The speeds of ports are compared this often, in ticks: they are read once a minute.
const SPEEDS_EVERY_TICKS: u32 = 6;
/// A way that is wrong is found again in this time after a start, seconds: rates of ports, and a minute of looks.
const WAY_LEARNS_S: i64 = 300;
/// Steps of which waits are a mean: the straggler's longest window.
const STEPS: u64 = 40;
/// Ranks whose waits are looked at: the least of more is not much less.
const RANKS: usize = 64;
/// Part of the steps' time in collectives from which a run's ranks talk.
const TALKS: f64 = 0.05;
/// A clock below this part of the run's is low.
const LOW_CLOCK: f64 = 0.95;
/// Parts of the last seconds slowed down by heat or the brake that count.
const SLOWED: f64 = 0.05;

/// What is kept from tick to tick.
#[derive(Default)]
pub(super) struct Network {
    measured: Measured,
    runs: BTreeMap<RunKey, Watched>,
    slow_ports: Vec<SlowPort>,
    ticks: u32,
}

/// What is kept of one run.
#[derive(Default)]
struct Watched {
    links: slow_link::Watch,
    way: wrong_network::Watch,
    /// Where a link was told to be slow, and whether the way is told to be wrong.
    told: Vec<Place>,
    is_wrong: bool,
}

/// A port that came up slower than its like.
struct SlowPort {
    place: Place,
    name: String,
    speed: f64,
    usual: f64,
    is_read: bool,
}

/// What a run waits in collectives, by the rank that waits least.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Waits {
    step_ns: u64,
    wait_ns: u64,
}

impl Waits {
    /// How long a step would take without this part of the waits.
    fn without(self, part: f64) -> u64 {
        let saved = self.wait_ns as f64 * part.clamp(0.0, 1.0);
        self.step_ns.saturating_sub(saved as u64)
    }
}

/// What is needed of every run.
struct Brief {
    /// Whether it is as it is when it trains.
    trains: bool,
    nodes: BTreeSet<Arc<str>>,
    /// Ranks that count.
    members: BTreeSet<u32>,
    blamed: BTreeSet<u32>,
    /// Part of its steps' time spent in collectives, since its processes began, of the rank that waits most; none where
    /// no rank tells it.
    waits: Option<f64>,
    /// Whether it was said at the tick before that its traffic may take the wrong way.
    may_be_astray: bool,
    /// What its fingerprint says of NCCL.
    settings: BTreeMap<String, String>,
}

impl Network {
    /// A new tick.
    pub(super) fn begin(&mut self) {
        self.measured.begin();
    }

    /// Takes in what a rank measured.
    pub(super) fn rank(&mut self, live: &Live, names: &mut RankNames, now: Timestamp) {
        self.measured.look(live, names, now);
    }

    /// Compares the speeds of ports, cluster by cluster.
    fn speeds(&mut self, nodes: &NodeSnapshots, by: &port::Thresholds, now: Timestamp) {
        self.ticks = self.ticks.wrapping_add(1);
        if !self.ticks.is_multiple_of(SPEEDS_EVERY_TICKS) {
            return;
        }
        let mut clusters: BTreeMap<&str, Vec<port::Machine<'_>>> = BTreeMap::new();
        // Machines without GPUs, or of which nobody knows theirs, are like nobody.
        let is_like = |it: &super::gather::NodeSnapshot| !it.is_silent(now) && !it.model.is_empty();
        for ((cluster, node), seen) in nodes.iter().filter(|(_, it)| is_like(it)) {
            clusters.entry(cluster).or_default().push(port::Machine {
                node,
                model: &seen.model,
                ports: &seen.ports,
            });
        }
        let mut found: Vec<SlowPort> = Vec::new();
        for (cluster, machines) in &clusters {
            found.extend(port::slow_by(machines, by).into_iter().map(|it| SlowPort {
                place: Place::node(cluster, it.node),
                name: it.port.to_owned(),
                speed: it.bytes_per_second,
                usual: it.usual_bytes_per_second,
                is_read: true,
            }));
        }
        let is_unread = |before: &SlowPort| {
            let is_it = |it: &SlowPort| it.place == before.place && it.name == before.name;
            !found.iter().any(is_it) && !before.speed_is_read(nodes, now)
        };
        let mut unread: Vec<SlowPort> = std::mem::take(&mut self.slow_ports);
        unread.retain(is_unread);
        unread.iter_mut().for_each(|it| it.is_read = false);
        found.extend(unread);
        self.slow_ports = found;
    }
}

impl Detector for Network {
    fn finds(&self) -> Vec<Finds> {
        let link = &[
            Read(&training::COLLECTIVE_BUS_BANDWIDTH),
            Read(&training::COLLECTIVE_TRAFFIC),
            Read(&training::COLLECTIVE_CALLS),
        ];
        let port = &[Read(&node::NIC_SPEED)];
        let waits = &[Basis::LongerCollectives, Basis::NoSteps];
        let way = &[
            Read(&node::NIC_SENT),
            Read(&node::NIC_RECEIVED),
            Read(&node::NIC_UP),
            OneOf(&[
                &training::COLLECTIVE_BUS_BANDWIDTH,
                &training::STEP_COMMUNICATION_WAIT,
            ]),
        ];
        vec![
            Finds::of("a link slower than its like", Family::Link, link, waits),
            Finds::of(
                "a port that came up slower than its like",
                Family::Link,
                port,
                &[Basis::NoRunWaits],
            ),
            Finds::of("a run on the wrong network", Family::Slower, way, waits)
                .learns(&[wrong::WHAT], WAY_LEARNS_S),
        ]
    }

    fn judge(&mut self, tick: &TickSnapshot<'_>, found: &mut Findings) {
        let now = tick.now;
        let keys = tick.runs().keys();
        self.runs.retain(|key, _| keys.binary_search(key).is_ok());
        for key in keys {
            let look = |run: &Run| (run.state(now), runs::is_judged(run));
            match tick.runs().look(&key, look) {
                Some((State::Running, true)) => {
                    let brief = tick.runs().look(&key, |run| Brief::of(run, now));
                    let watched = self.runs.entry(key.clone()).or_default();
                    if let Some(brief) = brief {
                        let of_run = OfRun {
                            tick,
                            key: &key,
                            brief: &brief,
                            measured: self.measured.of(&key.cluster, &key.run.to_string()),
                        };
                        watched.links(&of_run, found);
                        watched.way(&of_run, found);
                    }
                }
                Some((State::Silent { .. }, true)) => {
                    if let Some(watched) = self.runs.get(&key) {
                        watched.is_unread(&key, found);
                    }
                }
                _ => {
                    self.runs.remove(&key);
                }
            }
        }
        self.speeds(tick.nodes, &tick.by.port, now);
        for port in &self.slow_ports {
            match port.is_read {
                true => found.signals.push(port.signal(tick.nodes)),
                false => found.unread.push((Family::Link, port.place.clone())),
            }
        }
    }
}

/// A run at a tick, with what surrounds it.
struct OfRun<'a> {
    tick: &'a TickSnapshot<'a>,
    key: &'a RunKey,
    brief: &'a Brief,
    measured: &'a [RankMeasured],
}

impl OfRun<'_> {
    /// What its ranks are and wait, of a run of which something is to be told.
    fn seen(&self) -> (runs::RunSnapshot, Option<Waits>) {
        let seen = |run: &Run| runs::seen((self.key, run), &[], self.tick);
        let look = |run: &Run| (seen(run), waits(run));
        self.tick.runs().look(self.key, look).unwrap_or_default()
    }

    /// Its communicators, other than those that are slow because of a rank or its GPU.
    fn groups(&self) -> Vec<slow_link::Group> {
        let seen = |it: &RankMeasured| self.tick.card(&self.key.cluster, &it.gpu);
        let seen: Vec<Option<&GpuSnapshot>> = self.measured.iter().map(seen).collect();
        let clocks = seen.iter().filter_map(|it| (*it)?.clock);
        let usual = median(&mut clocks.collect::<Vec<_>>());
        let is_ill = |gpu: &GpuSnapshot| {
            let is_slowed = |part: Option<f64>| part.is_some_and(|it| it > SLOWED);
            let is_low = gpu
                .clock
                .zip(usual)
                .is_some_and(|(own, usual)| own < LOW_CLOCK * usual);
            let (heat, brake) = (gpu.rates.heat_now, gpu.rates.brake_now);
            runs::is_broken(gpu) || is_slowed(heat) || is_slowed(brake) || is_low
        };
        let ranks = std::iter::zip(self.measured, seen);
        let members = ranks.filter(|(it, _)| self.brief.members.contains(&it.rank));
        collectives::groups(members.map(|(it, gpu)| {
            let is_blamed = self.brief.blamed.contains(&it.rank);
            (it, is_blamed || gpu.is_some_and(is_ill))
        }))
    }

    /// Whether its ranks talk between nodes.
    fn talks(&self) -> Option<bool> {
        let waits = self.brief.waits.map(|it| it >= TALKS);
        match collectives::is_across(self.measured) {
            true => Some(true),
            false => waits,
        }
    }
}

impl Watched {
    /// Nothing is known of it at this tick.
    fn is_unread(&self, key: &RunKey, found: &mut Findings) {
        self.links_are_unread(found);
        if self.is_wrong {
            found.unjudged.insert(runs::unjudged(Family::Slower, key));
        }
    }

    fn links_are_unread(&self, found: &mut Findings) {
        let unread = self.told.iter().map(|it| (Family::Link, it.clone()));
        found.unread.extend(unread);
    }

    /// Links that are slower than their like.
    fn links(&mut self, run: &OfRun<'_>, found: &mut Findings) {
        let groups = match run.brief.trains && !run.measured.is_empty() {
            true => run.groups(),
            false => Vec::new(),
        };
        let Ok(findings) = self.links.observe_by(&groups, &run.tick.by.link) else {
            self.links_are_unread(found);
            return;
        };
        self.told.clear();
        if findings.is_empty() {
            return;
        }
        let (seen, waits) = run.seen();
        let around = slow::LinkContext {
            run: &seen,
            cluster: &run.key.cluster,
            nodes: run.tick.nodes,
            gpus: run.tick.gpus,
            by: &run.tick.by.port,
            waits,
        };
        for signal in findings.iter().map(|it| slow::signal(it, &around)) {
            self.told.push(signal.place.clone());
            let key = (seen.cluster.clone(), seen.name.clone());
            found
                .slow_links
                .entry(key)
                .or_insert_with(|| signal.place.clone());
            found.signals.push(signal);
        }
    }

    /// Whether its traffic takes the wrong way.
    fn way(&mut self, run: &OfRun<'_>, found: &mut Findings) {
        let key = |node: &Arc<str>| (Arc::clone(&run.key.cluster), Arc::clone(node));
        let mut nodes: Vec<(&str, &[Port])> = Vec::new();
        for node in &run.brief.nodes {
            let seen = run.tick.nodes.get(&key(node));
            let seen = seen.filter(|it| !it.is_silent(run.tick.now));
            nodes.push((node, seen.map_or(&[], |it| &it.ports)));
        }
        let look = wrong_network::Look {
            nodes: &nodes,
            talks: run.talks(),
            settings: &run.brief.settings,
        };
        let judged = match run.brief.trains {
            true => self.way.observe_by(&look, &run.tick.by.way),
            false => Err(wrong_network::Silent::NotKnownToTalk),
        };
        let may_be_astray = judged == Err(wrong_network::Silent::NotKnownWhose);
        if run.brief.trains && may_be_astray != run.brief.may_be_astray {
            run.tick.runs().may_be_astray(run.key, may_be_astray);
        }
        match judged {
            Ok(None) => self.is_wrong = false,
            Ok(Some(finding)) => {
                self.is_wrong = true;
                let (seen, waits) = run.seen();
                let signal = wrong::signal(&finding, &seen, run.tick.gpus, waits);
                found.signals.push(signal);
            }
            Err(_) if self.is_wrong => {
                found
                    .unjudged
                    .insert(runs::unjudged(Family::Slower, run.key));
            }
            Err(_) => {}
        }
    }
}

impl Brief {
    fn of(run: &Run, now: Timestamp) -> Self {
        let living = || run.living();
        let is_quiet = living().any(|(_, it)| {
            runs::is_heard(it.facts.heard, now) && runs::is_quiet(it, runs::QUIET_S)
        });
        let blamed = run.who_waits().into_iter();
        let blamed = blamed.flat_map(|it| &it.verdict.stragglers);
        let nodes: BTreeSet<&Arc<str>> = living().map(|(_, it)| &it.facts.node).collect();
        let nodes = nodes.into_iter().filter(|it| !it.is_empty());
        let waits = living().filter_map(|(_, it)| it.waits_of());
        let waits = waits.reduce(f64::max);
        let settings = run.facts.fingerprint.iter();
        let settings = settings.filter(|(key, _)| key.starts_with("NCCL_"));
        Self {
            trains: !is_quiet && run.stands_since(now).is_none(),
            nodes: nodes.cloned().collect(),
            members: living().map(|(number, _)| *number).collect(),
            blamed: blamed.map(|it| it.rank).collect(),
            waits: waits.filter(|_| run.tells_waits()),
            may_be_astray: run.may_be_astray,
            settings: settings
                .map(|(key, it)| (key.clone(), it.clone()))
                .collect(),
        }
    }
}

impl SlowPort {
    /// Whether its speed is known now, or it is there no more.
    fn speed_is_read(&self, nodes: &NodeSnapshots, now: Timestamp) -> bool {
        let node = self.place.node.as_deref().unwrap_or_default();
        let key = (Arc::from(&*self.place.cluster), Arc::from(node));
        let is_own = |it: &Port| *it.name == *self.name && it.speed.is_some();
        // What a silent node said last is older than what was compared.
        let seen = nodes.get(&key);
        seen.is_none_or(|it| !it.is_silent(now) && it.ports.iter().any(is_own))
    }

    fn signal(&self, nodes: &NodeSnapshots) -> Signal {
        let node = self.place.node.as_deref().unwrap_or_default();
        let key = (Arc::from(&*self.place.cluster), Arc::from(node));
        let name = format!("speed, {}", self.name);
        let (speed, usual) = (self.speed, Some(self.usual));
        Signal {
            family: Family::Link,
            place: self.place.clone(),
            severity: Severity::Warning,
            what: "a network device came up slower than its like".to_owned(),
            action: "Look at the cable, the optic and the switch's port; have the scheduler avoid the node meanwhile."
                .to_owned(),
            remedy: Remedy::Look,
            cause: Cause::Network,
            since: None,
            readings: vec![Reading::new(&name, speed, usual, Unit::BytesPerSecond)],
            price: Price::none(Basis::NoRunWaits),
            confidence: None,
            booted_at: nodes.get(&key).and_then(|it| it.booted),
        }
    }
}

/// What a step waits in collectives on the rank that waits least, of those that tell it; none where none does. What a
/// rank does not tell it has in the time of its own: a 0 of it was not measured.
fn waits(run: &Run) -> Option<Waits> {
    if !run.tells_waits() {
        return None;
    }
    let of = |rank: &crate::runs::Rank| {
        let (times, steps) = rank.ring.last_steps(STEPS);
        let waits = (steps > 0).then(|| Waits {
            step_ns: times.wall_ns / steps,
            wait_ns: times.comm_wait_ns / steps,
        });
        waits.filter(|it| it.wait_ns > 0)
    };
    let all = run.living().take(RANKS).filter_map(|(_, it)| of(it));
    all.min_by_key(|it| it.wait_ns)
}

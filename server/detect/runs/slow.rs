//! Ranks that make the others wait, and a run that became slower: cause and price.
//!
//! The ranks of one node that are slow together are the node's. A run that became slower because a rank
//! makes it wait is told at that rank's place, so that both are one incident; and where no rank can be named,
//! because the stages are not told and many ranks are slow, at the one node or GPU of it whose clocks are below the
//! others'. Where that does not say why, what [`changed`] with it does.
//!
//! Limits: why a place is slow is what most of its last looks say, one a tick ([`Looks`]); those of places that are slow
//! now are kept.

use std::collections::BTreeMap;

use gpufleet_analysis::cause::before::History;
use gpufleet_analysis::cause::{self, Cause, Looks, Pair, Reading};
use gpufleet_analysis::health::xid::{Asks, is_of_nvlink};
use gpufleet_analysis::incident::{Family, Place, Remedy, Signal};
use gpufleet_analysis::ledger::Reason;
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_analysis::robust::median;
use gpufleet_analysis::straggler::{Confidence, Straggler};
use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::NANOS_PER_SECOND;

use super::snapshot::host_of;
use super::{Gpus, RankSnapshot, RunSnapshot, all_of, changed, gpu_of, is_broken, place, seconds};
use crate::detect::gather::{GpuSnapshot, Host};
use crate::fleet::LiveXid;
use crate::runs::ring::Ring;
use crate::runs::{Judged, Slowdown, SlowerThanBefore};

/// Steps that waiting for data is a mean of: the straggler's longest window.
const STEPS: u64 = 40;

/// An hour: an error of an NVLink that did not come again for so long is not why a rank is slow now, if its links are up.
const XID_NS: i64 = 3_600 * NANOS_PER_SECOND;

/// A clock below this part of the run's is low: less is noise and temperature.
const LOW_CLOCK: f64 = 0.95;

/// A run whose pace is judged, with what surrounds it.
pub(super) struct Around<'a> {
    pub(super) run: &'a RunSnapshot,
    pub(super) judged: &'a Judged,
    pub(super) history: &'a History,
    pub(super) gpus: &'a Gpus<'a>,
}

/// A rank that makes the others wait.
type Blamed<'a> = (&'a Straggler, &'a RankSnapshot);

/// The last looks at why places of a run are slow or stand, of those that do.
#[derive(Default)]
pub(super) struct Causes {
    known: BTreeMap<Place, Looks>,
    /// Those of this tick.
    now: BTreeMap<Place, Looks>,
}

impl Causes {
    /// Takes in a look at a place; says what holds over the last ones.
    pub(super) fn take(&mut self, place: &Place, look: cause::Verdict) -> cause::Verdict {
        let mut looks = self.known.remove(place).unwrap_or_default();
        let told = looks.take(look);
        self.now.insert(place.clone(), looks);
        told
    }

    /// The tick is over: what was not looked at in it is slow no more, or goes on.
    pub(super) fn turn(&mut self) {
        self.known = std::mem::take(&mut self.now);
    }
}

/// What is wrong with the pace of the run.
pub(super) fn signals(around: &Around<'_>, causes: &mut Causes) -> Vec<Signal> {
    let (run, judged) = (around.run, around.judged);
    let mut signals = Vec::new();
    for (node, blamed) in &by_node(around) {
        let on_node = run.ranks.iter().filter(|it| *it.node == **node).count();
        let is_the_nodes = !node.is_empty() && blamed.len() > 1 && blamed.len() * 2 >= on_node;
        if is_the_nodes {
            signals.extend(of_node(around, blamed, causes));
        } else {
            signals.extend(blamed.iter().map(|it| {
                let place = place(run, Some(it.1));
                of_straggler(around, *it, place, causes)
            }));
        }
    }
    if let Some(slowdown) = &judged.slower {
        // Who makes it wait says itself by what. Of several it waits for the slowest: without another it would
        // take as long.
        let milli_gpus = |it: &&Signal| it.price.lost().milli_gpus;
        let most = signals.iter().rev().max_by_key(milli_gpus);
        let at = most.map(|it| changed::At {
            place: it.place.clone(),
            cause: it.cause,
            readings: Vec::new(),
        });
        let at = at.or_else(|| held_back(around, slowdown, causes));
        let slower = changed::slower(run, slowdown, at, around.history, around.gpus);
        signals.push(slower);
    }
    let before = judged.before.as_ref();
    signals.extend(before.map(|it| slower_than_before(run, it, around.gpus)));
    signals
}

/// Who makes the others wait, by node.
fn by_node<'a>(around: &Around<'a>) -> BTreeMap<&'a str, Vec<Blamed<'a>>> {
    let mut by_node: BTreeMap<&str, Vec<Blamed<'_>>> = BTreeMap::new();
    for straggler in &around.judged.verdict.stragglers {
        let mut ranks = around.run.ranks.iter();
        if let Some(rank) = ranks.find(|it| it.rank == straggler.rank) {
            let of_node = by_node.entry(&rank.node).or_default();
            of_node.push((straggler, rank));
        }
    }
    by_node
}

/// The ranks of one node that are slow together.
fn of_node(around: &Around<'_>, blamed: &[Blamed<'_>], causes: &mut Causes) -> Option<Signal> {
    let slowest = |one: &&Blamed<'_>, other: &&Blamed<'_>| one.0.ratio.total_cmp(&other.0.ratio);
    let worst = blamed.iter().max_by(slowest)?;
    let surest = blamed.iter().map(|it| it.0.confidence).max();
    let place = Place {
        gpu: None,
        rank: None,
        ..place(around.run, Some(worst.1))
    };
    Some(Signal {
        confidence: surest,
        what: match surest == Some(Confidence::Low) {
            true => "the ranks of this node probably make the others wait",
            false => "the ranks of this node make the others wait",
        }
        .to_owned(),
        ..of_straggler(around, *worst, place, causes)
    })
}

/// What is wrong with the pace of a run by its steps and by its collectives: who is slow by what names somebody, and that
/// it became slower by its steps. None where nothing is.
pub(super) fn together(
    by_steps: Option<&Judged>,
    by_collectives: Option<Judged>,
) -> Option<Judged> {
    let slower = by_steps.and_then(|it| it.slower);
    let before = by_steps.and_then(|it| it.before);
    let names = |it: &Judged| !it.verdict.stragglers.is_empty();
    let judged = by_collectives.filter(names).or(by_steps.cloned())?;
    let judged = Judged {
        slower,
        before,
        ..judged
    };
    let is_slower = slower.is_some() || before.is_some();
    (names(&judged) || is_slower).then_some(judged)
}

/// Puts a run that became slower where its slow link is, unless a node or GPU or something else is known to be why.
pub(super) fn explain(signals: &mut [Signal], link: &Place) {
    let is_open = |it: &&mut Signal| {
        let is_of_link = matches!(it.cause, Cause::Unknown | Cause::Network);
        it.family == Family::Slower && it.place.node.is_none() && is_of_link
    };
    for signal in signals.iter_mut().filter(is_open) {
        let run = signal.place.run.take();
        signal.place = Place {
            run,
            ..link.clone()
        };
        signal.cause = Cause::Network;
    }
}

fn of_straggler(
    around: &Around<'_>,
    (straggler, rank): Blamed<'_>,
    place: Place,
    causes: &mut Causes,
) -> Signal {
    let (run, judged, gpus) = (around.run, around.judged, around.gpus);
    let is_blamed = |it: &RankSnapshot| {
        let mut stragglers = judged.verdict.stragglers.iter();
        stragglers.any(|slow| slow.rank == it.rank)
    };
    let read = read(run, &is_blamed, rank, straggler.ratio, gpus);
    let why = causes.take(&place, cause::judge(&read));
    let losing = straggler
        .price
        .map(|it| all_of(run, gpus).by_step(it.step_ns, it.without_ns));
    let name = "its own time of a step, beside its peers'";
    let mut readings = vec![Reading::new(name, straggler.ratio, Some(1.0), Unit::Count)];
    // What is judged by collectives alone has no step that could be told.
    if let Some(price) = straggler.price.filter(|_| judged.step_ns > 0) {
        let without = Some(price.without_ns as f64);
        readings.push(seconds(
            "a step, and without it",
            price.step_ns as f64,
            without,
        ));
    }
    readings.extend(why.0.iter().flat_map(|it| it.readings.iter().cloned()));
    readings.extend(read.beside());
    let (action, remedy) = action(why.cause());
    Signal {
        family: Family::Straggler,
        place,
        severity: Severity::Warning,
        what: match straggler.confidence {
            Confidence::Low => "probably makes the other ranks wait",
            Confidence::Medium | Confidence::High => "makes the other ranks wait",
        }
        .to_owned(),
        action: action.to_owned(),
        remedy,
        cause: why.cause(),
        since: judged.since.get(&straggler.rank).copied(),
        readings,
        price: Price::measured(losing, Basis::LongerForRank, Basis::NoSteps),
        confidence: Some(straggler.confidence),
        booted_at: None,
    }
}

/// What to do about a slow rank, in words and as a value.
pub(in crate::detect) const fn action(cause: Cause) -> (&'static str, Remedy) {
    let action = match cause {
        Cause::GpuFault | Cause::GpuMemory | Cause::Pcie | Cause::Nvlink => {
            let action = "Drain the node and run a diagnosis of this GPU.";
            return (action, Remedy::Drain);
        }
        Cause::Heat | Cause::PowerBrake | Cause::PowerCap => {
            "Look at the node's cooling and power; have the scheduler avoid it meanwhile."
        }
        Cause::Clocks => "Look who set the clocks: nvidia-smi -q -d CLOCK; -rgc resets them.",
        Cause::HostCpu | Cause::HostMemory => {
            "Look what else runs on the node, and whether the pod has the CPUs and the memory it asks for."
        }
        Cause::Storage | Cause::Data => {
            "Look at this rank's input: its storage, its number of workers, its share of the data."
        }
        _ => "Look at its GPU and node; have the scheduler avoid them if it stays so.",
    };
    (action, Remedy::Look)
}

/// A run whose steps take longer than those of the runs before it.
fn slower_than_before(run: &RunSnapshot, before: &SlowerThanBefore, gpus: &Gpus<'_>) -> Signal {
    let (now_ns, usual_ns) = (before.step_ns, before.usual_ns);
    let losing = all_of(run, gpus).by_step(now_ns as u64, usual_ns as u64);
    Signal {
        family: Family::Slower,
        place: place(run, None),
        severity: Severity::Warning,
        what: SlowerThanBefore::WHAT.to_owned(),
        action: "It is made of the same as they were: compare it with one of them, and look at its machines, its data and the network.".to_owned(),
        remedy: Remedy::Look,
        cause: Cause::Unknown,
        since: Some(before.since),
        readings: vec![
            seconds(Slowdown::STEP, now_ns, Some(usual_ns)),
            Reading::new(SlowerThanBefore::RUNS, before.runs as f64, None, Unit::Count),
        ],
        price: Price::of(Basis::LongerThanRuns, losing),
        confidence: None,
        booted_at: None,
    }
}

/// The one node of the run, or the one GPU, whose clocks are below those of the others, and why.
fn held_back(around: &Around<'_>, slowdown: &Slowdown, causes: &mut Causes) -> Option<changed::At> {
    let (run, gpus) = (around.run, around.gpus);
    let clock = |it: &RankSnapshot| gpu_of(run, it, gpus)?.clock;
    let usual = median(&mut run.ranks.iter().filter_map(clock).collect::<Vec<_>>())?;
    let is_low = |it: &RankSnapshot| clock(it).is_some_and(|own| own < LOW_CLOCK * usual);
    let mut low = run.ranks.iter().filter(|it| is_low(it));
    let first = low.next()?;
    let (mut count, mut is_one_node) = (1, !first.node.is_empty());
    for other in low {
        (count, is_one_node) = (count + 1, is_one_node && other.node == first.node);
    }
    if !is_one_node {
        return None;
    }
    let own = place(run, Some(first));
    let place = Place {
        gpu: own.gpu.filter(|_| count == 1),
        rank: own.rank.filter(|_| count == 1),
        ..own
    };
    let ratio = slowdown.change.ratio;
    let why = causes.take(
        &place,
        cause::judge(&read(run, &is_low, first, ratio, gpus)),
    );
    Some(changed::At {
        place,
        cause: why.cause(),
        readings: why.0.into_iter().flat_map(|it| it.readings).collect(),
    })
}

/// What the readings of its GPU and node say beside those of its peers: the ranks of its stage that are
/// not slow themselves.
pub(super) fn read(
    run: &RunSnapshot,
    is_blamed: &dyn Fn(&RankSnapshot) -> bool,
    rank: &RankSnapshot,
    ratio: f64,
    gpus: &Gpus<'_>,
) -> cause::Rank {
    let others = run
        .ranks
        .iter()
        .filter(|it| !is_blamed(it) && it.stage == rank.stage);
    let others: Vec<&RankSnapshot> = others.collect();
    let (data_wait, collective_wait) = waits(rank, &others);
    let machines = match gpu_of(run, rank, gpus) {
        Some(own) => {
            let peers = others.iter().filter_map(|it| gpu_of(run, it, gpus));
            read_of_gpu(own, &peers.collect::<Vec<_>>())
        }
        None => {
            let own = host_of(run, rank, gpus).unwrap_or_default();
            let peers = others.iter().filter_map(|it| host_of(run, it, gpus));
            read_of_host(&own, &peers.collect::<Vec<_>>())
        }
    };
    let is_beside = |it: &&RankSnapshot| !it.node.is_empty() && it.node == rank.node;
    let are_beside = !others.is_empty() && others.iter().all(is_beside);
    cause::Rank {
        slowness: ratio,
        data_wait,
        collective_wait,
        ..match are_beside {
            true => on_one_machine(machines),
            false => machines,
        }
    }
}

/// What presses a machine presses all ranks on it: of those, what is not read of it is no difference.
fn on_one_machine(mut read: cause::Rank) -> cause::Rank {
    let pressures = [
        &mut read.steal,
        &mut read.cpu_pressure,
        &mut read.memory_pressure,
        &mut read.io_pressure,
    ];
    for pressure in pressures.into_iter().filter(|it| it.own.is_none()) {
        *pressure = Pair::new(0.0, 0.0);
    }
    read
}

/// What the readings of a GPU and its node say beside those of its peers.
pub(in crate::detect) fn read_of_gpu(own: &GpuSnapshot, peers: &[&GpuSnapshot]) -> cause::Rank {
    let pair = |of: fn(&GpuSnapshot) -> Option<f64>| Pair {
        own: of(own),
        like: median(&mut peers.iter().filter_map(|it| of(it)).collect::<Vec<_>>()),
    };
    let known = [own.has_remap_failure, own.has_remap_pending];
    let has_remap_trouble = known.iter().any(Option::is_some);
    let hosts: Vec<Host> = peers.iter().map(|it| it.host).collect();
    cause::Rank {
        sm_clock: pair(|it| it.clock),
        heat_part: pair(|it| it.rates.heat_now),
        brake_part: pair(|it| it.rates.brake_now),
        cap_part: pair(|it| it.rates.cap_now),
        temperature: pair(|it| it.temperature),
        is_broken: Some(is_broken(own)),
        ecc_uncorrectable: own.rates.uncorrected_lately,
        ecc_corrected_per_hour: own.rates.corrected.map(|it| it as f64),
        has_remap_trouble: has_remap_trouble.then(|| known.contains(&Some(true))),
        pcie: own.links.pcie(),
        nvlinks_up: own.links.nvlinks(),
        xid: xid_of(own),
        ..read_of_host(&own.host, &hosts)
    }
}

/// The XID that broke a GPU, where one did; of one that works the newest of its NVLinks in the last hour. One that was
/// mended since is none.
fn xid_of(own: &GpuSnapshot) -> Option<u32> {
    let says_why = |it: &&LiveXid| match (is_broken(own), own.broken) {
        (true, Some((Reason::FatalXid, since))) => it.asks().is_broken() && it.at >= since,
        // It fell off the bus, and then was not there.
        (true, Some((Reason::DeviceLost, _))) => it.asks() == Asks::Reboot,
        // Hung, or the driver asks for something: an XID of before is another trouble.
        (true, _) => false,
        (false, _) => {
            let is_late = own.last_point.since(it.at) <= XID_NS;
            is_of_nvlink(it.code) && it.asks().is_owed() && is_late
        }
    };
    let is_over = |it: &LiveXid| {
        let done = it.asks().done_at(own.healed_at, own.booted_at, own.back_at);
        done.is_some_and(|at| at >= it.at)
    };
    let all = own.xids.iter().filter(|it| !is_over(it));
    let newest = all.filter(says_why).max_by_key(|it| it.at);
    newest.map(|it| it.code)
}

/// What the readings of a machine say beside those of its peers' machines.
fn read_of_host(own: &Host, peers: &[Host]) -> cause::Rank {
    let pair = |of: fn(&Host) -> Option<f64>| Pair {
        own: of(own),
        like: median(&mut peers.iter().filter_map(of).collect::<Vec<_>>()),
    };
    let down = pair(|it| it.nics_down.map(f64::from));
    let down = down.own.zip(down.like);
    cause::Rank {
        steal: pair(|it| it.steal),
        cpu_pressure: pair(|it| it.cpu_pressure),
        memory_pressure: pair(|it| it.memory_pressure),
        io_pressure: pair(|it| it.io_pressure),
        nic_errors: pair(|it| it.nic_errors),
        nics_down: down.map(|(own, like)| (own - like).max(0.0) as u32),
        ..cause::Rank::default()
    }
}

/// What a rank's last steps are on average.
#[derive(Debug, Clone, Copy)]
pub(super) struct Means {
    /// Nanoseconds a step that it waits for data.
    data: f64,
    /// Nanoseconds a step of its own.
    own: f64,
    /// Part of a step that it waits in collectives.
    collectives: f64,
}

/// How long a rank waits for data in a step, and its peers do, as parts of what the peers need for one; and what part
/// of a step each waits in collectives.
fn waits(rank: &RankSnapshot, others: &[&RankSnapshot]) -> (Pair, Pair) {
    let peers: Vec<Means> = others.iter().filter_map(|it| it.means).collect();
    let of = |part: fn(&Means) -> f64| median(&mut peers.iter().map(part).collect::<Vec<_>>());
    let own = rank.means;
    let collectives = Pair {
        own: own.map(|it| it.collectives),
        like: of(|it| it.collectives),
    };
    let (Some(waits), Some(own_time)) = (of(|it| it.data), of(|it| it.own)) else {
        return (Pair::default(), collectives);
    };
    let part = |waits: f64| (own_time > 0.0).then_some(waits / own_time);
    let data = Pair {
        own: own.and_then(|it| part(it.data)),
        like: part(waits),
    };
    (data, collectives)
}

impl Means {
    /// Of the last [`STEPS`] steps at least; none where there are none.
    pub(super) fn of(ring: &Ring) -> Option<Self> {
        let (times, steps) = ring.last_steps(STEPS);
        (steps > 0).then(|| Self {
            data: times.data_wait_ns as f64 / steps as f64,
            own: times.own_ns() as f64 / steps as f64,
            collectives: times.comm_wait_ns as f64 / times.wall_ns.max(1) as f64,
        })
    }
}

#[cfg(test)]
mod tests;

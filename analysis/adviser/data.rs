//! Data-bound: the loader is slower than the GPUs, for want of workers, CPU, disk or network.
//!
//! The loader makes a batch in a step's time; to make none wait it has to be step ÷ (step − wait) as
//! fast. With CPU to spare that many more workers do it. What stays is [`LEFT`] of the step. Where there are CPUs for
//! fewer of them the loader sets the pace still, and w workers of n today remove no more than 1 − n ÷ w. Where a rank has as
//! many workers as CPUs, more CPUs for it are advised, whatever the node has to spare; of batches that are not pinned first
//! that they be (`pinning.rs`).
//!
//! What it waits for the host says: the part of the time in which some task waits for I/O, and how busy its CPUs are. A
//! host that does not tell the first (a kernel with `psi=0`) leaves disk and workers alike: more workers are advised
//! for they are what can be tried at once, and that it may be the disk is said.
//!
//! How busy the node is says nothing of a container that has used up its quota on a node that is half idle, so more
//! workers are advised for sure only where the process itself tells how many CPUs its rank may use. Where it does not,
//! the node's are shared out among the ranks, and that no limit is known is said. As many workers as these while the node has
//! CPU to spare are no want of CPU, unless there is such a limit: what more of it gains is then said to be unknown.

use gpufleet_telemetry::catalog::Unit;

use super::{
    Advice, Bottleneck, Confidence, Host, Knob, LEAST_SHARE, Part, Profile, SetUp, pinning,
};
use crate::cause::Reading;

/// The CPUs that its workers have.
const CPUS: &str = "CPUs that a rank may use";
/// What a good loader still makes wait.
pub(super) const LEFT: f64 = 0.02;
/// CPU from which more workers only take from each other.
pub(super) const CPU_FULL: f64 = 0.85;
/// Pressure, of some task, from which I/O is what the loader waits for.
pub(super) const IO_PRESSED: f64 = 0.1;

/// Why nobody knows what more CPUs gain.
const SPARE: &str =
    "the node has CPU to spare, and whether the container may use less of it is not told";

/// What makes the wait shorter.
struct Way {
    bottleneck: Bottleneck,
    knob: Knob,
    /// What is changed with it.
    also: Vec<Knob>,
    /// The share of a step that it removes at most.
    most: Result<f64, &'static str>,
    confidence: Confidence,
}

pub(super) fn look(run: &Profile) -> Option<Advice> {
    let share = run.share(run.data_wait_s)?;
    let host = &run.host;
    let faster = times(share);
    let is_pressed = host.io_pressure.map(|it| it >= IO_PRESSED);
    let is_full = host.cpu_busy.map(|it| it >= CPU_FULL);
    let is_loaders = is_pressed != Some(true) && is_full != Some(true);
    let way = match (is_pressed, is_full) {
        (Some(true), _) => {
            let (bottleneck, knob) = storage(host.is_network_storage);
            Way::of(bottleneck, knob, Confidence::Medium)
        }
        (_, Some(true)) => {
            let knob = Knob {
                name: "CPUs of the node",
                today: host.cpus_per_rank.map(|it| format!("{it:.0} a rank")),
                proposed: format!("{faster:.1} times as many, or transforms that cost less"),
            };
            Way::of(Bottleneck::DataCpu, knob, Confidence::Medium)
        }
        _ => {
            let is_told = is_pressed.is_some() && is_full.is_some();
            let more = workers(run, share, faster).map(|it| more_workers(host, it, is_told));
            more.or_else(|| more_cpus(run, faster))?
        }
    };
    let read =
        |name: &str, value: Option<f64>| value.map(|it| Reading::new(name, it, None, Unit::Ratio));
    let io = read("some task waiting for I/O", host.io_pressure);
    let cpu = read("CPU busy", host.cpu_busy);
    let also = of_loader(&run.set_up).chain(pinning::knob(&run.set_up));
    let also = way.also.into_iter().chain(also.filter(|_| is_loaders));
    Some(Advice {
        bottleneck: way.bottleneck,
        part: Part::Data,
        measured: [waiting(share)]
            .into_iter()
            .chain(io)
            .chain(cpu)
            .chain(cpus(host).filter(|_| is_loaders))
            .collect(),
        knob: way.knob,
        also: also.collect(),
        share,
        removed: way.most.map(|it| (share - LEFT).min(it).max(0.0)),
        confidence: way.confidence,
    })
}

impl Way {
    /// One that removes all of the wait that can be.
    fn of(bottleneck: Bottleneck, knob: Knob, confidence: Confidence) -> Self {
        Self {
            bottleneck,
            knob,
            also: Vec::new(),
            most: Ok(1.0),
            confidence,
        }
    }
}

/// More workers, which remove so much at most, of a host that tells whether disk and CPUs are full, or not.
fn more_workers(host: &Host, (knob, most): (Knob, f64), is_told: bool) -> Way {
    let (bottleneck, confidence) = match (is_told, host.is_limit_known) {
        (true, true) => (Bottleneck::DataWorkers, Confidence::High),
        (true, false) => (Bottleneck::DataWorkers, Confidence::Medium),
        (false, _) => (Bottleneck::DataUnknown, Confidence::Low),
    };
    Way {
        most: Ok(most),
        ..Way::of(bottleneck, knob, confidence)
    }
}

/// More CPUs for a rank that has as many workers as it may use CPUs; none where batches are not pinned, which costs nothing
/// to change.
fn more_cpus(run: &Profile, faster: f64) -> Option<Way> {
    if pinning::knob(&run.set_up).is_some() {
        return None;
    }
    let host = &run.host;
    let workers = (host.cpus_per_rank? * faster).ceil();
    let is_told = host.io_pressure.is_some() && host.cpu_busy.is_some();
    let confidence = match host.is_limit_known && is_told {
        true => Confidence::Medium,
        false => Confidence::Low,
    };
    // Here the node's CPUs are not full where they are read.
    let has_spare = host.cpu_busy.is_some() && !host.is_limit_known;
    let today = run.set_up.num_workers.map(f64::from);
    let is_more = today.is_some_and(|it| it < workers) && !has_spare;
    let more = is_more.then(|| Knob::of(&run.set_up, "num_workers", workers.to_string()));
    Some(Way {
        also: more.into_iter().collect(),
        most: if has_spare { Err(SPARE) } else { Ok(1.0) },
        ..Way::of(Bottleneck::DataCpu, cpus_knob(host, faster), confidence)
    })
}

/// That a rank may use so many times as many CPUs.
fn cpus_knob(host: &Host, faster: f64) -> Knob {
    let known = host.cpus_per_rank.filter(|_| host.is_limit_known);
    Knob {
        name: CPUS,
        today: known.map(|it| ((it * 10.0).round() / 10.0).to_string()),
        proposed: format!("{faster:.1} times as many, or transforms that cost less"),
    }
}

/// The same of a run that waits for so much of a step with as many workers as CPUs, where its process tells how many.
pub(super) fn cpus_beside(run: &Profile, share: f64) -> Option<Knob> {
    let is_known = run.host.is_limit_known && run.host.cpus_per_rank.is_some();
    is_known.then(|| cpus_knob(&run.host, times(share)))
}

/// How many times as fast a loader has to be of which so much of a step is waited for.
fn times(share: f64) -> f64 {
    1.0 / (1.0 - share.min(0.95))
}

/// The part of a step that is waited for data.
pub(super) fn waiting(share: f64) -> Reading {
    Reading::new("waiting for data", share, Some(LEFT), Unit::Ratio)
}

/// CPUs for the workers of a rank.
pub(super) fn cpus(host: &Host) -> Option<Reading> {
    let name = match host.is_limit_known {
        true => CPUS,
        false => "CPUs for each rank at most (whether it may use fewer is not known)",
    };
    let cpus = host.cpus_per_rank?;
    Some(Reading::new(name, cpus, None, Unit::Count))
}

fn storage(is_network: Option<bool>) -> (Bottleneck, Knob) {
    let cache = "a cache of the data on the node's disk";
    let files = "fewer, larger files, or a faster disk";
    let either = "fewer, larger files, or a cache of them that is nearer";
    let (bottleneck, today, proposed) = match is_network {
        Some(true) => (Bottleneck::DataNetwork, Some("network"), cache),
        Some(false) => (Bottleneck::DataDisk, Some("disk"), files),
        None => (Bottleneck::DataStorage, None, either),
    };
    let knob = Knob {
        name: "storage",
        today: today.map(str::to_owned),
        proposed: proposed.to_owned(),
    };
    (bottleneck, knob)
}

/// So many times as many workers, no more than there are CPUs, and the share of a step that they remove at most; none
/// where there are as many already, or nearly: more of them help nobody.
fn workers(run: &Profile, share: f64, faster: f64) -> Option<(Knob, f64)> {
    let today = run.set_up.num_workers;
    let cpus = run.host.cpus_per_rank;
    let most = cpus.map_or(u32::MAX, |it| it.max(1.0) as u32);
    let wanted = today.map(|it| ((f64::from(it.max(1)) * faster).ceil() as u32).min(most));
    // Without workers the process loads by itself, for that share of a step, and computes nothing meanwhile.
    let at_work = today.map(|it| if it == 0 { share } else { f64::from(it) });
    let removed = at_work.zip(wanted);
    let removed = removed.map_or(1.0, |(today, wanted)| 1.0 - today / f64::from(wanted));
    if removed < LEAST_SHARE / 2.0 {
        return None;
    }
    let proposed = wanted.map_or_else(|| format!("{faster:.1} times as many"), |it| it.to_string());
    Some((Knob::of(&run.set_up, "num_workers", proposed), removed))
}

/// What else of the loader makes a batch come sooner, where the run tells that it is not so.
pub(super) fn of_loader(set_up: &SetUp) -> impl Iterator<Item = Knob> {
    let ahead = set_up.prefetch_factor.and_then(|it| it.checked_mul(2));
    let ahead = ahead.map(|it| Knob::of(set_up, "prefetch_factor", it.to_string()));
    let goes = set_up.persistent_workers == Some(false);
    let stays = goes.then(|| Knob::of(set_up, "persistent_workers", "on"));
    ahead.into_iter().chain(stays)
}

//! Data-bound: the loader is slower than the GPUs, for want of workers, CPU, disk or network.
//!
//! The loader makes a batch in a step's time; to make none wait it has to be step ÷ (step − wait) as
//! fast. With CPU to spare that many more workers do it. What stays is [`LEFT`] of the step. Where there are CPUs for
//! fewer of them the loader sets the pace still, and w workers of n today remove no more than 1 − n ÷ w.
//!
//! What it waits for the host says: the part of the time in which some task waits for I/O, and how busy its CPUs are. A
//! host that does not tell the first (a kernel with `psi=0`) leaves disk and workers alike: more workers are advised
//! for they are what can be tried at once, and that it may be the disk is said.
//!
//! How busy the node is says nothing of a container that has used up its quota on a node that is half idle, so more
//! workers are advised for sure only where the process itself tells how many CPUs its rank may use. Where it does not,
//! the node's are shared out among the ranks, and that no limit is known is said.

use gpufleet_telemetry::catalog::Unit;

use super::{
    Advice, Bottleneck, Confidence, Host, Knob, LEAST_SHARE, Part, Profile, SetUp, pinning,
};
use crate::cause::Reading;

/// What a good loader still makes wait.
pub(super) const LEFT: f64 = 0.02;
/// CPU from which more workers only take from each other.
pub(super) const CPU_FULL: f64 = 0.85;
/// Pressure, of some task, from which I/O is what the loader waits for.
pub(super) const IO_PRESSED: f64 = 0.1;

pub(super) fn look(run: &Profile) -> Option<Advice> {
    let share = run.share(run.data_wait_s)?;
    let host = &run.host;
    let faster = 1.0 / (1.0 - share.min(0.95));
    let is_pressed = host.io_pressure.map(|it| it >= IO_PRESSED);
    let is_full = host.cpu_busy.map(|it| it >= CPU_FULL);
    let (bottleneck, (knob, most), confidence) = match (is_pressed, is_full) {
        (Some(true), _) => {
            let (bottleneck, knob) = storage(host.is_network_storage);
            (bottleneck, (knob, 1.0), Confidence::Medium)
        }
        (_, Some(true)) => {
            let knob = Knob {
                name: "CPUs of the node",
                today: host.cpus_per_rank.map(|it| format!("{it:.0} a rank")),
                proposed: format!("{faster:.1} times as many, or transforms that cost less"),
            };
            (Bottleneck::DataCpu, (knob, 1.0), Confidence::Medium)
        }
        (Some(false), Some(false)) => {
            let more = workers(run, share, faster)?;
            let sure = match host.is_limit_known {
                true => Confidence::High,
                false => Confidence::Medium,
            };
            (Bottleneck::DataWorkers, more, sure)
        }
        _ => {
            let more = workers(run, share, faster)?;
            (Bottleneck::DataUnknown, more, Confidence::Low)
        }
    };
    let waits = matches!(
        bottleneck,
        Bottleneck::DataWorkers | Bottleneck::DataUnknown
    );
    let read =
        |name: &str, value: Option<f64>| value.map(|it| Reading::new(name, it, None, Unit::Ratio));
    let io = read("some task waiting for I/O", host.io_pressure);
    let cpu = read("CPU busy", host.cpu_busy);
    let also = of_loader(&run.set_up).chain(pinning::knob(&run.set_up));
    Some(Advice {
        bottleneck,
        part: Part::Data,
        measured: [waiting(share)]
            .into_iter()
            .chain(io)
            .chain(cpu)
            .chain(cpus(host).filter(|_| waits))
            .collect(),
        knob,
        also: also.filter(|_| waits).collect(),
        share,
        removed: Ok((share - LEFT).min(most).max(0.0)),
        confidence,
    })
}

/// The part of a step that is waited for data.
pub(super) fn waiting(share: f64) -> Reading {
    Reading::new("waiting for data", share, Some(LEFT), Unit::Ratio)
}

/// CPUs for the workers of a rank.
pub(super) fn cpus(host: &Host) -> Option<Reading> {
    let name = match host.is_limit_known {
        true => "CPUs that a rank may use",
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

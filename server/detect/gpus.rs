//! What is wrong with each GPU: hands what is known to `analysis::health` beside like GPUs, and puts
//! its findings into the words of incidents.
//!
//! Like GPUs: the same model and the same job, both at work. A part of the clock that is lost to heat
//! or power is lost of the GPU: like clock − own clock. Heat and power are held against theirs only where the GPUs of
//! the job go together, or are seen to do the same work ([`Together::compares`]): replicas that serve have each their
//! own load.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use gpufleet_analysis::cause::{Cause, Reading};
use gpufleet_analysis::health::{self, Finding, Gpu, Kind, Thresholds, Usual, Xid, findings};
use gpufleet_analysis::incident::{Family, Place, Signal};
use gpufleet_analysis::ledger::{Reason, State};
use gpufleet_analysis::lost::Losing;
use gpufleet_analysis::owner::job_of;
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_analysis::robust::median;
use gpufleet_analysis::states::{Status, recovery_breaks};
use gpufleet_analysis::straggler::clocks::{Pace, Together};
use gpufleet_telemetry::catalog::{Unit, gpu, own};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;

use super::detector::Need::{Events, Holders, Reading as Read};
use super::detector::{Detector, Findings, Finds, TickSnapshot};
use super::gather::{Alike, GpuSnapshot, is_at_work, is_unknown};
use super::watch::Readable;
use crate::fleet::LiveXid;

pub(super) mod say;

use say::{BESIDE, CAPPED, HOTTER, WEAKER, action, newest, readings, what, words};

/// Parts that forget over some minutes, and five readings of NVLinks in as many, say late after a start what is, seconds.
const LEARNS_S: i64 = 600;

/// What a GPU that is slowed down says of its price.
const SLOWED: [Basis; 2] = [Basis::LowerClock, Basis::NoLikeClock];

/// What like GPUs read.
#[derive(Default)]
struct Like {
    celsius: Option<Usual>,
    watts: Option<Usual>,
    clock: Option<f64>,
    tensor: Option<f64>,
    cap_part: Option<f64>,
    together: Together,
}

/// Jobs of which several GPUs raised a program's XID, each with the cluster and the code.
type OfPrograms<'a> = HashSet<(&'a str, &'a str, u32)>;

/// What is wrong with each GPU.
#[derive(Default)]
pub(super) struct Faults {
    /// What was told of GPUs beside like ones, when that could be said last.
    beside: BTreeSet<(Family, Place)>,
}

impl Detector for Faults {
    fn finds(&self) -> Vec<Finds> {
        use Family::{GpuFault, Heat, Link, Memory, Power};
        let uncorrected = "memory errors that could not be corrected";
        let probe = &[Read(&own::PROBE_VERDICT), Read(&own::PROBE_AT)];
        let pcie = &[Read(&gpu::PCIE_WIDTH), Read(&gpu::PCIE_GENERATION)];
        let broken = |otherwise: Basis| [Basis::BrokenGpu, otherwise];
        let read = |name, family, metric, prices: &[Basis]| {
            Finds::of(name, family, &[Read(metric)], prices)
        };
        let alike =
            |name, family, metric| Finds::of(name, family, &[Read(metric), Holders], &SLOWED);
        let events = broken(Basis::GoesOn);
        let gone = &[Basis::BrokenGpu];
        let probed = broken(Basis::NoProbeTime);
        let uncorrected_costs = broken(Basis::NotToBeTrusted);
        let (remap_costs, not_yet) = (broken(Basis::NotYet), &[Basis::NotYet]);
        let link = &[Basis::NoRunWaits];
        let slowed = |it: Finds| it.learns(&["slowed down by"], LEARNS_S);
        vec![
            Finds::of(
                "XIDs and what the driver tells",
                GpuFault,
                &[Events],
                &events,
            ),
            read(
                "readings of a GPU that stop",
                GpuFault,
                &gpu::OBSERVED,
                gone,
            ),
            read(
                "what the driver asks for",
                GpuFault,
                &gpu::RECOVERY_ACTION,
                &events,
            ),
            read(
                uncorrected,
                GpuFault,
                &gpu::ECC_UNCORRECTED_VOLATILE,
                &uncorrected_costs,
            ),
            read(
                "remapping that failed",
                GpuFault,
                &gpu::REMAP_FAILURE,
                &remap_costs,
            ),
            Finds::of("what the probe found", GpuFault, probe, &probed),
            read(
                "many corrected memory errors",
                Memory,
                &gpu::ECC_CORRECTED_VOLATILE,
                not_yet,
            ),
            read(
                "a memory row that waits for a reset",
                Memory,
                &gpu::REMAP_PENDING,
                not_yet,
            ),
            slowed(read(
                "slowed down by heat",
                Heat,
                &gpu::THROTTLE_THERMAL,
                &SLOWED,
            )),
            alike(HOTTER, Heat, &gpu::TEMPERATURE),
            slowed(read(
                "slowed down by the power brake",
                Power,
                &gpu::THROTTLE_BOARD_LIMIT,
                &SLOWED,
            )),
            slowed(alike(CAPPED, Power, &gpu::THROTTLE_POWER)),
            slowed(read(
                "slowed down by the hardware again and again",
                Power,
                &gpu::HARDWARE_SLOWDOWNS,
                &SLOWED,
            )),
            alike(WEAKER, Power, &gpu::POWER),
            Finds::of("PCIe below what it was", Link, pcie, link),
            read("NVLinks down", Link, &gpu::NVLINKS_ACTIVE, link)
                .learns(&["NVLinks down"], LEARNS_S),
        ]
    }

    fn judge(&mut self, tick: &TickSnapshot<'_>, found: &mut Findings) {
        let signals = signals(tick.seen, &tick.by.health, tick.now);
        found.unread.extend(self.unheld(&signals, tick));
        found.signals.extend(signals);
    }
}

impl Faults {
    /// What was told of GPUs beside like ones, where it is not known now who holds them: which are like them nobody knows
    /// then, nor whether it is over.
    fn unheld(&mut self, signals: &[Signal], tick: &TickSnapshot<'_>) -> Vec<(Family, Place)> {
        let status = |place: &Place| {
            let seen = tick.card(&place.cluster, place.gpu.as_deref()?)?;
            Some(seen.status)
        };
        let is = |place: &Place, so: fn(&Status) -> bool| status(place).is_some_and(|it| so(&it));
        // One that fell silent may come back without a holder at first.
        let is_open = |it: &Status| it.state == State::Unobserved;
        self.beside.retain(|(_, place)| is(place, is_open));
        let unread = self.beside.iter().filter(|it| is(&it.1, is_unknown));
        let unread = unread.cloned().collect();
        let told = signals.iter().filter(|it| BESIDE.contains(&&*it.what));
        self.beside
            .extend(told.map(|it| (it.family, it.place.clone())));
        unread
    }
}

/// Everything that is wrong with any GPU.
fn signals(all: &[GpuSnapshot], by: &Thresholds, now: Timestamp) -> Vec<Signal> {
    let mut groups: HashMap<*const Alike, Vec<&GpuSnapshot>> = HashMap::new();
    for seen in all {
        if let Some(group) = group(seen) {
            groups.entry(group).or_default().push(seen);
        }
    }
    let like = groups.into_iter().map(|(group, it)| (group, Like::of(&it)));
    let like: HashMap<*const Alike, Like> = like.collect();
    let none = Like::default();
    let of_programs = of_programs(all);
    let mut signals = Vec::new();
    for seen in all {
        let peers = group(seen).and_then(|it| like.get(&it));
        let like = peers.unwrap_or(&none);
        signals.extend(of_gpu(seen, like, &of_programs, by, now));
    }
    signals
}

/// What several GPUs of a job raise is its program's, and says of none of them that it is the GPU's.
fn of_programs(all: &[GpuSnapshot]) -> OfPrograms<'_> {
    let mut first: HashMap<(&str, &str, u32), u32> = HashMap::new();
    let mut several = HashSet::new();
    for seen in all {
        for xid in &seen.xids {
            if health::PROGRAM_XIDS.contains(&xid.code) {
                let of_job = (&*seen.cluster, job_of(&xid.holder), xid.code);
                if *first.entry(of_job).or_insert(seen.number) != seen.number {
                    several.insert(of_job);
                }
            }
        }
    }
    several
}

impl Like {
    fn of(peers: &[&GpuSnapshot]) -> Self {
        let values = |of: fn(&GpuSnapshot) -> Option<f64>| -> Vec<f64> {
            peers.iter().filter_map(|it| of(it)).collect()
        };
        Self {
            celsius: Usual::of(&mut values(|it| it.temperature)),
            watts: Usual::of(&mut values(|it| it.power)),
            clock: median(&mut values(|it| it.clock)),
            tensor: median(&mut values(|it| it.tensor)),
            cap_part: median(&mut values(|it| it.rates.cap_part)),
            together: peers
                .first()
                .and_then(|it| it.alike.job.as_deref())
                .map_or(Together::No, Together::of),
        }
    }

    /// Whether what a GPU of them reads may be held against what the others do.
    fn compares(&self, seen: &GpuSnapshot) -> bool {
        let clocks = seen.clock.zip(self.clock).filter(|(_, like)| *like > 0.0);
        let (own, like) = clocks.unwrap_or((1.0, 1.0));
        let pace = |clock, tensor| Pace { clock, tensor };
        let own = pace(own, seen.tensor);
        self.together.compares(own, pace(like, self.tensor))
    }
}

/// Whether what would show trouble of this kind on a GPU was readable and no longer is: then nobody
/// knows whether it is over.
pub(super) fn is_readable(family: Family, seen: &GpuSnapshot) -> bool {
    let needed = match family {
        Family::GpuFault => Readable::UNCORRECTED.and(Readable::REMAP),
        Family::Memory => Readable::CORRECTED.and(Readable::REMAP),
        Family::Heat => Readable::HEAT_PART.and(Readable::TEMPERATURE),
        Family::Power => Readable::BRAKE_PART
            .and(Readable::CAP_PART)
            .and(Readable::SLOWDOWNS)
            .and(Readable::POWER),
        Family::Link => Readable::PCIE.and(Readable::NVLINK),
        Family::Leak => Readable::MEMORY,
        _ => Readable::default(),
    };
    seen.gone.within(needed) == Readable::default()
}

/// Which GPUs are like it; none while it does not work for a known job.
fn group(seen: &GpuSnapshot) -> Option<*const Alike> {
    let is_one = seen.alike.job.is_some() && is_at_work(seen.status.state);
    is_one.then_some(Arc::as_ptr(&seen.alike))
}

fn of_gpu(
    seen: &GpuSnapshot,
    like: &Like,
    of_programs: &OfPrograms<'_>,
    by: &Thresholds,
    now: Timestamp,
) -> Vec<Signal> {
    let xids = xids(seen, of_programs);
    let links = seen.links.as_facts();
    let gpu = Gpu {
        by: *by,
        now,
        hours: 1.0,
        booted_at: seen.booted_at,
        xids: &xids,
        healed_at: seen.healed_at,
        back_at: seen.back_at,
        links: links.as_health(),
        probe: seen.probe,
        ..Gpu::default()
    };
    let gpu = absent(seen, slowed(seen, like, memory(seen, gpu)));
    let found = findings(&gpu);
    let mut signals: Vec<Signal> = found.iter().map(|it| signal(seen, like, it)).collect();
    signals.extend(asked(seen));
    let is_said = signals.iter().any(|it| it.family == Family::GpuFault);
    if is_broken(seen) && !is_said {
        signals.push(broken(seen));
    }
    signals
}

fn is_broken(seen: &GpuSnapshot) -> bool {
    seen.status.state == State::Unhealthy
}

fn xids<'a>(seen: &'a GpuSnapshot, of_programs: &OfPrograms<'_>) -> Vec<Xid<'a>> {
    let of = |it: &'a LiveXid| {
        let job = job_of(&it.holder);
        let is_programs = of_programs.contains(&(&*seen.cluster, job, it.code));
        Xid {
            first: it.first,
            at: it.at,
            count: it.count,
            code: it.code,
            asks: it.asks(),
            job: if is_programs { "" } else { job },
        }
    };
    seen.xids.iter().map(of).collect()
}

/// With what its memory reads.
fn memory<'a>(seen: &GpuSnapshot, gpu: Gpu<'a>) -> Gpu<'a> {
    Gpu {
        ecc_uncorrectable: seen.rates.uncorrected,
        ecc_correctable: seen.rates.corrected,
        has_remap_failure: seen.has_remap_failure,
        has_remap_pending: seen.has_remap_pending,
        ..gpu
    }
}

/// With what slows it down, beside like GPUs.
fn slowed<'a>(seen: &GpuSnapshot, like: &Like, gpu: Gpu<'a>) -> Gpu<'a> {
    let is_compared = like.compares(seen);
    Gpu {
        slowdowns_per_minute: seen.rates.slowdowns_per_minute,
        heat_part: seen.rates.heat_part,
        brake_part: seen.rates.brake_part,
        cap_part: seen.rates.cap_part.filter(|_| is_compared),
        like_cap_part: like.cap_part,
        temperature_celsius: seen.temperature.filter(|_| is_compared),
        like_celsius: like.celsius,
        power_watts: seen.power.filter(|_| is_compared),
        like_watts: like.watts,
        ..gpu
    }
}

/// With since when it is not there, and whether it should be.
fn absent<'a>(seen: &GpuSnapshot, gpu: Gpu<'a>) -> Gpu<'a> {
    let since = |reason: Reason| {
        let is_so = is_broken(seen) && seen.status.reason == reason;
        let told = seen.broken.map(|(_, at)| at);
        is_so.then(|| told.unwrap_or(seen.last_point))
    };
    Gpu {
        lost_since: since(Reason::DeviceLost),
        hung_since: since(Reason::DriverHang),
        last_seen: Some(seen.last_point),
        is_expected: seen.is_node_heard
            && !seen.is_removed
            && seen.is_late
            // Of an agent that catches up everything is late.
            && seen.node_point.since(seen.last_point) > health::VANISHED_NS,
        ..gpu
    }
}

/// What the driver itself asks for.
fn asked(seen: &GpuSnapshot) -> Option<Signal> {
    let code = seen.asked.filter(|it| *it > 0)?;
    let (severity, price) = match recovery_breaks(code as f64) {
        true => (Severity::Error, broken_price(seen)),
        false => (Severity::Warning, Price::none(Basis::GoesOn)),
    };
    let (what, (action, remedy)) = say::recovery(code);
    let read = Reading::new("recovery action", code as f64, None, Unit::Code);
    Some(Signal {
        severity,
        what,
        action,
        remedy,
        readings: vec![read],
        price,
        ..broken(seen)
    })
}

/// A GPU that is broken for a reason that is all that is known of it: after a restart of the server,
/// or by what the driver was heard to ask for.
fn broken(seen: &GpuSnapshot) -> Signal {
    let what = match seen.status.reason {
        Reason::FatalXid => "a fatal XID",
        Reason::RecoveryAction => "the driver asks for a recovery action",
        _ => "unhealthy",
    };
    let (action, remedy) = say::BROKEN;
    Signal {
        family: Family::GpuFault,
        severity: Severity::Error,
        what: what.to_owned(),
        action: action.to_owned(),
        remedy,
        cause: Cause::GpuFault,
        since: seen.broken.map(|(_, at)| at),
        readings: Vec::new(),
        price: broken_price(seen),
        place: Place::gpu(&seen.cluster, &seen.node, &seen.id),
        confidence: None,
        booted_at: seen.booted_at,
    }
}

fn signal(seen: &GpuSnapshot, like: &Like, finding: &Finding) -> Signal {
    let (family, cause) = words(finding.kind);
    let severity = match finding.kind {
        Kind::Xid(code) => newest(seen, code).map_or(Severity::Error, |it| it.severity),
        Kind::ProbeSlow => Severity::Warning,
        _ if family == Family::GpuFault => Severity::Error,
        _ => Severity::Warning,
    };
    let (action, remedy) = action(seen, finding);
    Signal {
        family,
        place: Place::gpu(&seen.cluster, &seen.node, &seen.id),
        severity,
        what: what(seen, finding),
        action,
        remedy,
        cause,
        since: finding.since,
        readings: readings(seen, like, finding),
        price: price(seen, like, finding.kind),
        confidence: None,
        booted_at: seen.booted_at,
    }
}

/// What a finding costs: a GPU that does nothing that counts all of itself, one that is slowed down the part of
/// its clock that like GPUs have and it does not.
fn price(seen: &GpuSnapshot, like: &Like, kind: Kind) -> Price {
    let none = Price::none;
    match kind {
        Kind::Lost | Kind::DriverHung | Kind::Vanished | Kind::ProbeFailed(_) => broken_price(seen),
        _ if words(kind).0 == Family::GpuFault && is_broken(seen) => broken_price(seen),
        Kind::Xid(_) | Kind::RepeatedXid(_) => none(Basis::GoesOn),
        Kind::EccUncorrectable => none(Basis::NotToBeTrusted),
        Kind::RemapFailed | Kind::RemapPending | Kind::EccRate => none(Basis::NotYet),
        Kind::ProbeSlow => none(Basis::NoProbeTime),
        Kind::Throttled(_) | Kind::Hot | Kind::Underpowered => {
            let clocks = seen.clock.zip(like.clock).filter(|(_, like)| *like > 0.0);
            let losing = clocks.map(|(own, like)| Losing::part(1, 1.0 - own / like, seen.price));
            Price::measured(losing, Basis::LowerClock, Basis::NoLikeClock)
        }
        Kind::PcieDegraded | Kind::NvlinkDown => none(Basis::NoRunWaits),
    }
}

fn broken_price(seen: &GpuSnapshot) -> Price {
    Price::of(Basis::BrokenGpu, Losing::gpus(1, seen.price))
}

#[cfg(test)]
mod tests;

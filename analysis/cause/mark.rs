//! Marks: readings that show that a GPU, a link of it or a network device is at fault, and not how much that costs.

use gpufleet_telemetry::catalog::Unit;

use super::{Cause, Rank, Reading, held_down};
use crate::health::Pcie;
use crate::health::xid::is_of_nvlink;

/// What the two parts of a PCIe link's rate are called; what is usual for them is the best of the link.
pub const PCIE_LANES: &str = "PCIe lanes";
/// See [`PCIE_LANES`].
pub const PCIE_GENERATION: &str = "PCIe generation";
/// What the NVLinks that are up are called; what is usual are those that should be.
pub const NVLINKS_UP: &str = "NVLinks up";

/// Errors of a network device a second, and times its peers', that are a fault: retries are usual.
const NIC_ERRORS: f64 = 1.0;
const NIC_TIMES: f64 = 10.0;
/// Corrected memory errors an hour from which they are a mark.
const CORRECTED_PER_HOUR: f64 = 60.0;

/// A cause with the readings that show it.
type Mark = (Cause, Vec<Reading>);

/// The first mark that there is.
pub(super) fn mark(rank: &Rank) -> Option<Mark> {
    let nics = rank.nics_down.filter(|it| *it > 0);
    let errors = rank.nic_errors.is_apart(NIC_ERRORS, NIC_TIMES);
    let often = rank
        .ecc_corrected_per_hour
        .filter(|it| *it > CORRECTED_PER_HOUR);
    let marks = [
        of_gpu(rank),
        held(rank),
        (rank.has_remap_trouble == Some(true))
            .then(|| (Cause::GpuMemory, count("rows to be remapped", 1.0))),
        of_links(rank),
        nics.map(|it| (Cause::Network, count("network devices down", f64::from(it)))),
        errors.then(|| {
            let reading = rank
                .nic_errors
                .reading("network errors a second", Unit::Count);
            (Cause::Network, reading.into_iter().collect())
        }),
        often.map(|it| (Cause::GpuMemory, count("corrected errors an hour", it))),
    ];
    marks.into_iter().flatten().next()
}

/// That the GPU is broken, with the XID that broke it where one did.
fn of_gpu(rank: &Rank) -> Option<Mark> {
    if rank.is_broken == Some(true) {
        let why = rank.xid.map_or_else(|| count("broken", 1.0), xid);
        return Some((Cause::GpuFault, why));
    }
    let bad = rank.ecc_uncorrectable.filter(|it| *it > 0)?;
    Some((Cause::GpuFault, count("errors not corrected", bad as f64)))
}

/// What slowed it down beyond its peers, where its clock is not known.
fn held(rank: &Rank) -> Option<Mark> {
    let held = held_down(rank).into_iter();
    let held = held.filter(|_| rank.sm_clock.own.is_none());
    let (cause, _, reading) = held.max_by(|one, other| one.1.total_cmp(&other.1))?;
    Some((cause, reading.into_iter().collect()))
}

/// NVLinks that are down, PCIe below what it was, and errors of an NVLink that is up again.
pub fn of_links(rank: &Rank) -> Option<(Cause, Vec<Reading>)> {
    let of_nvlink = rank.xid.filter(|it| is_of_nvlink(*it));
    let of_nvlink = of_nvlink.map(xid).unwrap_or_default();
    if rank.nvlinks_up.beyond().is_some_and(|it| it < 0.0) {
        let up = rank.nvlinks_up.reading(NVLINKS_UP, Unit::Count);
        return Some((Cause::Nvlink, up.into_iter().chain(of_nvlink).collect()));
    }
    if let Some(link) = rank.pcie.filter(Pcie::is_below) {
        return Some((Cause::Pcie, pcie_readings(&link).into()));
    }
    (!of_nvlink.is_empty()).then_some((Cause::Nvlink, of_nvlink))
}

/// Lanes and generation of a PCIe link, each beside the best of it.
pub fn pcie_readings(link: &Pcie) -> [Reading; 2] {
    let of = |name: &str, now: u32, best: u32| {
        Reading::new(name, now.into(), Some(best.into()), Unit::Count)
    };
    [
        of(PCIE_LANES, link.width, link.best_width),
        of(PCIE_GENERATION, link.counts(), link.best_generation),
    ]
}

fn count(name: &str, value: f64) -> Vec<Reading> {
    vec![Reading::new(name, value, None, Unit::Count)]
}

fn xid(code: u32) -> Vec<Reading> {
    vec![Reading::new("XID", code.into(), None, Unit::Code)]
}

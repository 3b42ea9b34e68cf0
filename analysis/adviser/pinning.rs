//! Batches in memory that is not pinned: the driver copies them to a buffer of its own before they go to the GPU, the host
//! waits for that, and nothing is computed beside.
//!
//! That it costs time is measured in either of two ways: data is waited for though a rank has as many workers as CPUs, so
//! that more of them help nobody (more CPUs may, and stand beside it); or the PCIe link is busy receiving, where what comes
//! over it are the host's copies: on a node alone whose cards have NVLink between them, or on one card alone. Elsewhere
//! collectives come the same way.
//!
//! What pinning gains nobody can work out: a wait for data does not tell how much of it is copying, and a busy link not how
//! much of that computing hides already. So no gain is told.

use gpufleet_telemetry::catalog::Unit;

use super::{Advice, Bottleneck, Confidence, Knob, Part, Profile, SetUp, data, worth};
use crate::cause::Reading;

/// Why there is no gain.
const UNKNOWN: &str = "no reading tells how much of it pinned memory would hide";

pub(super) fn look(run: &Profile) -> Option<Advice> {
    let knob = knob(&run.set_up)?;
    let loader = data::look(run);
    let names_it = |it: &Advice| it.is_worth_it() && it.also.contains(&knob);
    if loader.as_ref().is_some_and(names_it) {
        return None;
    }
    let waits = run.share(run.data_wait_s).filter(|_| loader.is_none());
    let copies = copies(run);
    let share = waits.or(copies)?;
    let name = "PCIe busy receiving, at least";
    let copying = copies.map(|it| Reading::new(name, it, None, Unit::Ratio));
    let workers = run.set_up.num_workers.map(f64::from);
    let workers = workers.map(|it| Reading::new("workers", it, None, Unit::Count));
    let suffices = workers.into_iter().chain(data::cpus(&run.host));
    let cpus = waits.and_then(|it| data::cpus_beside(run, it));
    let also = data::of_loader(&run.set_up).chain(cpus);
    Some(Advice {
        bottleneck: Bottleneck::DataNotPinned,
        part: Part::Data,
        measured: waits
            .map(data::waiting)
            .into_iter()
            .chain(copying)
            .chain(suffices.filter(|_| waits.is_some()))
            .collect(),
        knob,
        also: also.filter(|_| waits.is_some()).collect(),
        share,
        removed: Err(UNKNOWN),
        confidence: Confidence::Low,
    })
}

/// That batches be pinned, where the run tells that they are not.
pub(super) fn knob(set_up: &SetUp) -> Option<Knob> {
    let proposed = "on, with copies that are non_blocking=True";
    (set_up.pin_memory == Some(false)).then(|| Knob::of(set_up, "pin_memory", proposed))
}

/// The part of the time in which the host's copies come to the GPU, at least; none where they cannot be told from other
/// traffic.
fn copies(run: &Profile) -> Option<f64> {
    let is_alone = run.nodes == Some(1) && (run.gpus == 1 || run.gpu.has_nvlink == Some(true));
    worth(run.gpu.pcie_received.filter(|_| is_alone)?)
}

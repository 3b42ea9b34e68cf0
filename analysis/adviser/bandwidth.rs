//! Memory-bandwidth-bound: FLOPs ÷ bytes lie below the ridge (peak FLOP/s ÷ peak bytes/s), and the
//! memory interface is busy.
//!
//! Fusing element-wise work (compilation, fused optimizer, flash attention) moves fewer bytes; half of
//! them is what is reckoned with, and no more than brings the run to the ridge.

use gpufleet_telemetry::catalog::Unit;

use super::{Advice, Bottleneck, Confidence, Knob, Part, Profile, launch};
use crate::cause::Reading;

/// A memory interface that is busy for this part of the time is the limit.
pub(super) const BUSY: f64 = 0.6;
/// Factor by which computing becomes faster with half of the bytes, at most.
pub(super) const FUSED: f64 = 2.0;

pub(super) fn look(run: &Profile) -> Option<Advice> {
    let gpu = &run.gpu;
    let intensity = gpu.flops_per_byte?;
    let ridge = gpu.peak_flops? / gpu.peak_bytes?;
    let dram = gpu.dram.filter(|it| *it >= BUSY)?;
    if intensity.is_nan() || intensity <= 0.0 || intensity >= ridge {
        return None;
    }
    let share = run.computing();
    let factor = (ridge / intensity).min(FUSED);
    Some(Advice {
        bottleneck: Bottleneck::MemoryBandwidth,
        part: Part::Compute,
        measured: vec![
            Reading::new("FLOPs a byte", intensity, Some(ridge), Unit::Count),
            Reading::new("memory interface busy", dram, None, Unit::Ratio),
        ],
        knob: Knob::of(
            &run.set_up,
            "compile",
            "on, with fused optimizer and attention",
        ),
        also: launch::graph_breaks(&run.set_up).into_iter().collect(),
        share,
        removed: Ok(share * (1.0 - 1.0 / factor)),
        confidence: Confidence::Low,
    })
}

//! Recomputation with memory to spare: recomputing every activation is a fourth of the computing
//! (HFU ÷ MFU = 4/3); where memory is free it can be done for some layers only.
//!
//! Selective recomputation keeps what is dear to compute and cheap to keep: half of it is reckoned with.

use gpufleet_telemetry::catalog::Unit;

use super::communication::sharding;
use super::{Advice, Bottleneck, Confidence, Knob, Part, Profile};
use crate::cause::Reading;

/// Memory in use above which there is none to spare: fragments and peaks need the rest.
pub(super) const SPARE: f64 = 0.75;
/// The recomputed forward pass, of all computing.
pub(super) const RECOMPUTED: f64 = 0.25;
/// Part of that which selective recomputation leaves out.
pub(super) const SELECTIVE: f64 = 0.5;

pub(super) fn look(run: &Profile) -> Option<Advice> {
    let used = run.gpu.memory_part.filter(|it| *it < SPARE)?;
    if run.set_up.recomputes_all != Some(true) {
        return None;
    }
    let share = run.computing() * RECOMPUTED;
    Some(Advice {
        bottleneck: Bottleneck::Recomputation,
        part: Part::Compute,
        measured: vec![Reading::new(
            "memory in use",
            used,
            Some(SPARE),
            Unit::Ratio,
        )],
        knob: Knob::of(&run.set_up, "activation checkpointing", "selective"),
        also: sharding(run).into_iter().collect(),
        share,
        removed: Ok(share * SELECTIVE),
        confidence: Confidence::Medium,
    })
}

//! The pipeline's bubble: p stages with m micro-batches stand for (p − 1) ÷ (m + p − 1) of a step.
//!
//! Twice as many micro-batches of half the size do the same work with a smaller bubble.

use gpufleet_telemetry::catalog::Unit;

use super::{Advice, Bottleneck, Confidence, Knob, Part, Profile};
use crate::cause::Reading;

/// The bubble of so many stages and micro-batches.
pub(super) fn bubble(stages: u32, micro_batches: u32) -> f64 {
    let idle = f64::from(stages.max(1) - 1);
    idle / (f64::from(micro_batches.max(1)) + idle)
}

/// The bubble of a run; none when it is not known to be a pipeline.
pub(super) fn share(run: &Profile) -> Option<f64> {
    Some(bubble(run.set_up.stages?, run.set_up.micro_batches?))
}

pub(super) fn look(run: &Profile) -> Option<Advice> {
    let (stages, today) = (run.set_up.stages?, run.set_up.micro_batches?);
    let share = run.share(Some(bubble(stages, today) * run.step_s))?;
    let proposed = today.max(1).checked_mul(2)?;
    // The work is (1 − bubble) of the step today, and of the new step.
    let after = (1.0 - share) / (1.0 - bubble(stages, proposed));
    Some(Advice {
        bottleneck: Bottleneck::PipelineBubble,
        part: Part::Bubble,
        measured: vec![
            Reading::new("bubble", share, None, Unit::Ratio),
            Reading::new("stages", f64::from(stages), None, Unit::Count),
        ],
        knob: Knob::of(&run.set_up, "micro_batches", proposed.to_string()),
        also: Vec::new(),
        share,
        removed: 1.0 - after,
        confidence: Confidence::Medium,
    })
}

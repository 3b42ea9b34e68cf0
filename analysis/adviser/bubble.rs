//! The pipeline's bubble: p stages with m micro-batches stand for (p − 1) ÷ (m + p − 1) of a step.
//!
//! Where each stage holds v pieces of the model by turns (an interleaved schedule, Megatron's virtual pipeline) m counts v
//! times. Twice as many micro-batches of half the size do the same work with a smaller bubble.
//!
//! Limits: a run that tells no v is taken to have 1, and its bubble is told too large where it interleaves. Schedules that
//! fill the bubble with a part of the backward pass (zero bubble) are not known.

use gpufleet_telemetry::catalog::Unit;

use super::{Advice, Bottleneck, Confidence, Knob, Part, Profile, worth};
use crate::cause::Reading;

/// The bubble of so many stages and micro-batches.
pub(super) fn bubble(stages: u32, micro_batches: u32) -> f64 {
    let idle = f64::from(stages.max(1) - 1);
    idle / (f64::from(micro_batches.max(1)) + idle)
}

/// How often a micro-batch comes through each stage.
fn turns(run: &Profile) -> u32 {
    run.set_up.virtual_stages.unwrap_or(1).max(1)
}

/// The bubble of a run; none when it is not known to be a pipeline.
pub(super) fn share(run: &Profile) -> Option<f64> {
    let (stages, today) = (run.set_up.stages?, run.set_up.micro_batches?);
    Some(bubble(stages, today.saturating_mul(turns(run))))
}

pub(super) fn look(run: &Profile) -> Option<Advice> {
    let (stages, today) = (run.set_up.stages?, run.set_up.micro_batches?);
    let share = worth(share(run)?)?;
    let proposed = today.max(1).checked_mul(2)?;
    // The work is (1 − bubble) of the step today, and of the new step.
    let after = (1.0 - share) / (1.0 - bubble(stages, proposed.saturating_mul(turns(run))));
    let mut measured = vec![
        Reading::new("bubble", share, None, Unit::Ratio),
        Reading::new("stages", f64::from(stages), None, Unit::Count),
    ];
    let pieces = run.set_up.virtual_stages.filter(|it| *it > 1);
    measured.extend(pieces.map(|it| {
        let name = "pieces of the model on each";
        Reading::new(name, f64::from(it), None, Unit::Count)
    }));
    Some(Advice {
        bottleneck: Bottleneck::PipelineBubble,
        part: Part::Bubble,
        measured,
        knob: Knob::of(&run.set_up, "micro_batches", proposed.to_string()),
        also: Vec::new(),
        share,
        removed: Ok(1.0 - after),
        confidence: Confidence::Medium,
    })
}

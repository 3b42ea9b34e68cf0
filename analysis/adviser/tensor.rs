//! Tensor cores unused: the SMs work, the tensor cores do not, and the type is one that they do not take.

use gpufleet_telemetry::catalog::Unit;

use super::{Advice, Bottleneck, Confidence, Knob, Part, Profile};
use crate::cause::Reading;

/// Tensor cores that are active for less than this are not used.
pub(super) const UNUSED: f64 = 0.05;
/// SMs that are active for less than this have no work that tensor cores could take.
pub(super) const AT_WORK: f64 = 0.5;
/// Part of the computing that is matrix products in a transformer; the rest gains nothing.
pub(super) const PRODUCTS: f64 = 0.7;
/// Part of what the peaks promise that real kernels reach, about.
pub(super) const REACHED: f64 = 0.5;
/// Types that run on ordinary cores, as torch, Trainers and Lightning (`32-true`) name them.
const PLAIN: [&str; 4] = ["fp32", "float32", "32-true", "32"];

pub(super) fn look(run: &Profile) -> Option<Advice> {
    let gpu = &run.gpu;
    let tensor = gpu.tensor.filter(|it| *it < UNUSED)?;
    let sm = gpu.sm.filter(|it| *it >= AT_WORK)?;
    let today = run.set_up.data_type.as_deref()?;
    if !PLAIN.contains(&today) {
        return None;
    }
    let faster = gpu.peak_tensor_flops? / gpu.peak_plain_flops?;
    let share = run.computing() * PRODUCTS;
    if faster.is_nan() || faster <= 1.0 {
        return None;
    }
    Some(Advice {
        bottleneck: Bottleneck::TensorCoresUnused,
        part: Part::Compute,
        measured: vec![
            Reading::new("tensor cores active", tensor, None, Unit::Ratio),
            Reading::new("SMs active", sm, None, Unit::Ratio),
        ],
        knob: Knob::of(
            &run.set_up,
            "autocast",
            "bf16, or TF32 where fp32 has to stay",
        ),
        also: (run.set_up.uses_tf32 == Some(false))
            .then(|| {
                let proposed = "on: torch.set_float32_matmul_precision(\"high\")";
                Knob::of(&run.set_up, "TF32", proposed)
            })
            .into_iter()
            .collect(),
        share,
        removed: Ok(share * (1.0 - 1.0 / (faster * REACHED).max(1.0))),
        confidence: Confidence::Low,
    })
}

//! Launch-bound: the GPU has gaps that nothing explains but a host that launches kernels too slowly.

use gpufleet_telemetry::catalog::Unit;

use super::{Advice, Bottleneck, Confidence, Knob, Part, Profile, SetUp, worth};
use crate::cause::Reading;

/// Part of the gaps between kernels that CUDA graphs remove.
pub(super) const OF_LAUNCHES: f64 = 0.75;

pub(super) fn look(run: &Profile) -> Option<Advice> {
    let gaps = run.gaps.as_ref()?;
    let share = worth(run.gaps_of(|it| it.launch))?;
    let name = format!("{} gaps between kernels", gaps.measured());
    let mut measured = vec![
        Reading::new(&name, share, Some(0.0), Unit::Ratio),
        Reading::new("kernels a step", gaps.kernels, None, Unit::Count),
    ];
    let kernel = gaps.kernel_s;
    measured.extend(kernel.map(|it| Reading::new("median kernel", it, None, Unit::Seconds)));
    let proposed = match run.set_up.uses_graphs {
        Some(true) => "as it is, with a larger micro batch",
        _ => "mode=reduce-overhead (CUDA graphs), or a larger micro batch",
    };
    Some(Advice {
        bottleneck: Bottleneck::Launch,
        part: Part::Host,
        measured,
        knob: Knob::of(&run.set_up, "compile", proposed),
        also: graph_breaks(&run.set_up).into_iter().collect(),
        share,
        removed: Ok(share * OF_LAUNCHES),
        confidence: Confidence::Medium,
    })
}

/// Breaks of a compiled graph: each is launched by Python, and nothing is fused across it.
pub(super) fn graph_breaks(set_up: &SetUp) -> Option<Knob> {
    set_up.graph_breaks.filter(|it| *it > 0)?;
    let proposed = "0: TORCH_LOGS=graph_breaks names them";
    Some(Knob::of(set_up, "graph breaks", proposed))
}

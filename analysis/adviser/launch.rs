//! Launch-bound: the GPU has gaps that nothing explains but a host that launches kernels too slowly.

use gpufleet_telemetry::catalog::Unit;

use super::{Advice, Bottleneck, Confidence, Knob, Part, Profile, worth};
use crate::cause::Reading;

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
    let is_compiled = run.set_up.is_compiled;
    Some(Advice {
        bottleneck: Bottleneck::Launch,
        part: Part::Host,
        measured,
        knob: Knob {
            name: "compile",
            today: is_compiled
                .map(|it| if it { "on" } else { "off" })
                .map(str::to_owned),
            proposed: "mode=reduce-overhead (CUDA graphs), or a larger micro batch".to_owned(),
        },
        share,
        removed: share * 0.75,
        confidence: Confidence::Medium,
    })
}

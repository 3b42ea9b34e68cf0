//! Host-sync-bound: the host waits for the GPU (`.item()`, `.cpu()`, prints of losses), and the GPU for what it launches next.

use gpufleet_telemetry::catalog::Unit;

use super::{Advice, Bottleneck, Confidence, Knob, Part, Profile, worth};
use crate::cause::Reading;

pub(super) fn look(run: &Profile) -> Option<Advice> {
    let gaps = run.gaps.as_ref()?;
    let share = worth(run.gaps_of(|it| it.synchronisation))?;
    let each = gaps.synchronisations;
    let name = format!("{} gaps after synchronisations", gaps.measured());
    Some(Advice {
        bottleneck: Bottleneck::HostSync,
        part: Part::Host,
        measured: vec![
            Reading::new(&name, share, Some(0.0), Unit::Ratio),
            Reading::new("synchronisations a step", each, None, Unit::Count),
        ],
        knob: Knob {
            name: "synchronisations",
            today: Some(format!("{each:.0} a step")),
            proposed: "every 100 steps: read losses and norms with non_blocking=True".to_owned(),
        },
        share,
        removed: share * 0.99,
        confidence: Confidence::High,
    })
}

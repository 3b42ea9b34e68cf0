//! The host waits for the GPU (`.item()`, `.cpu()`, prints of losses), and the GPU for what it launches next: for the wait's
//! return and a launch, which go with the wait, and for what else the host does before it launches, which does not.

use gpufleet_telemetry::catalog::Unit;

use super::{Advice, Bottleneck, Confidence, Knob, Part, Profile, pinning, worth};
use crate::cause::Reading;

/// Part of the gaps after synchronisations that rarer ones remove: some waits training needs, and a host that waits no
/// more may still be late.
pub(super) const OF_WAITS: f64 = 0.75;
/// Part of the gaps while the host works: what it is, and how much of it can be done beside, nobody measured.
pub(super) const OF_WORK: f64 = 0.5;

pub(super) fn synchronisations(run: &Profile) -> Option<Advice> {
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
        // Each copy out of memory that is not pinned is one of them.
        also: pinning::knob(&run.set_up).into_iter().collect(),
        share,
        removed: Ok(share * OF_WAITS),
        confidence: Confidence::Medium,
    })
}

pub(super) fn work(run: &Profile) -> Option<Advice> {
    let gaps = run.gaps.as_ref()?;
    let share = worth(run.gaps_of(|it| it.host))?;
    let name = format!("{} gaps while the host works", gaps.measured());
    Some(Advice {
        bottleneck: Bottleneck::HostWork,
        part: Part::Host,
        measured: vec![Reading::new(&name, share, Some(0.0), Unit::Ratio)],
        knob: Knob {
            name: "what the host does after a synchronisation",
            today: None,
            proposed: "beside the GPU: launch the next kernels first, or do it in a thread"
                .to_owned(),
        },
        also: Vec::new(),
        share,
        removed: Ok(share * OF_WORK),
        confidence: Confidence::Low,
    })
}

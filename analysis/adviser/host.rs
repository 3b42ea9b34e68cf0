//! Host-sync-bound: the GPU waits while the host waits for it: `.item()`, `.cpu()`, prints of losses.

use gpufleet_telemetry::catalog::Unit;

use super::{Advice, Bottleneck, Confidence, Knob, Part, Profile};
use crate::cause::Reading;

pub(super) fn look(run: &Profile) -> Option<Advice> {
    let share = run.share(run.host_wait_s)?;
    Some(Advice {
        bottleneck: Bottleneck::HostSync,
        part: Part::Host,
        measured: vec![Reading::new(
            "waiting for the host",
            share,
            Some(0.0),
            Unit::Ratio,
        )],
        knob: Knob {
            name: "synchronisations",
            today: Some("every step".to_owned()),
            proposed: "every 100 steps: read losses and norms with non_blocking=True".to_owned(),
        },
        share,
        removed: share * 0.99,
        confidence: Confidence::High,
    })
}

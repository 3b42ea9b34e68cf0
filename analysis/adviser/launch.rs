//! Launch-bound: the GPU has gaps that nothing explains but a host that launches kernels too slowly:
//! its main thread runs all the time.

use gpufleet_telemetry::catalog::Unit;

use super::{Advice, Bottleneck, Confidence, Knob, Part, Profile};
use crate::cause::Reading;

/// A main thread that runs for this part of the time launches as fast as it can.
const FULL: f64 = 0.9;

pub(super) fn look(run: &Profile) -> Option<Advice> {
    let thread = run.host.main_thread_busy.filter(|it| *it >= FULL)?;
    let engine = run.gpu.engine?;
    // What it is known to wait for is not the launching.
    let waits = [run.data_wait_s?, run.host_wait_s.unwrap_or(0.0)];
    let gaps = 1.0 - engine - waits.iter().sum::<f64>() / run.step_s;
    let share = run.share(Some(gaps * run.step_s))?;
    if run.set_up.is_compiled == Some(true) {
        return None;
    }
    Some(Advice {
        bottleneck: Bottleneck::Launch,
        part: Part::Host,
        measured: vec![
            Reading::new("gaps between kernels", share, Some(0.0), Unit::Ratio),
            Reading::new("main thread busy", thread, None, Unit::Ratio),
        ],
        knob: Knob {
            name: "compile",
            today: run.set_up.is_compiled.map(|_| "off".to_owned()),
            proposed: "mode=reduce-overhead (CUDA graphs), or a larger micro batch".to_owned(),
        },
        share,
        removed: share * 0.75,
        confidence: Confidence::Medium,
    })
}

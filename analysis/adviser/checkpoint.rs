//! Checkpoint-bound: saving takes time, and not saving loses what a failure throws away.
//!
//! With δ seconds a save, t between two and M between failures, δ ÷ t + t ÷ 2M of the time is wasted,
//! least at t = √(2·δ·M). Without a known M only saving itself is asked about.

use gpufleet_telemetry::catalog::Unit;

use super::{Advice, Bottleneck, Confidence, Knob, LEAST_SHARE, Part, Profile};
use crate::cause::Reading;

/// The interval that wastes least, seconds.
pub fn best_interval(save_s: f64, mtbf_s: f64) -> f64 {
    (2.0 * save_s * mtbf_s).sqrt()
}

/// The share of time that an interval wastes.
pub fn wasted(interval_s: f64, save_s: f64, mtbf_s: f64) -> f64 {
    save_s / interval_s + interval_s / (2.0 * mtbf_s)
}

pub(super) fn look(run: &Profile) -> Option<Advice> {
    let is_time = |it: &f64| it.is_finite() && *it > 0.0;
    let save = run.saving.save_s.filter(is_time)?;
    let today = run.saving.interval_s.filter(is_time)?;
    let mut measured = vec![
        Reading::new("a save", save, None, Unit::Seconds),
        Reading::new("between two", today, None, Unit::Seconds),
    ];
    let (share, removed, proposed, confidence) = match run.saving.mtbf_s.filter(is_time) {
        Some(mtbf) => {
            let best = best_interval(save, mtbf).max(save);
            let now = wasted(today, save, mtbf).min(1.0);
            measured.push(Reading::new("between failures", mtbf, None, Unit::Seconds));
            let removed = now - wasted(best, save, mtbf);
            (now, removed, format!("{best:.0} s"), Confidence::High)
        }
        None => {
            let share = save / (save + today);
            let proposed = "asynchronous saves".to_owned();
            (share, share * 0.9, proposed, Confidence::Medium)
        }
    };
    (share >= LEAST_SHARE).then_some(Advice {
        bottleneck: Bottleneck::Checkpoint,
        part: Part::Checkpoint,
        measured,
        knob: Knob {
            name: "checkpoint interval",
            today: Some(format!("{today:.0} s")),
            proposed,
        },
        also: Vec::new(),
        share,
        removed,
        confidence,
    })
}

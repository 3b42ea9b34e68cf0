//! Checkpoint-bound: saving takes time, and not saving loses what a failure throws away.
//!
//! With δ seconds a save, t from the begin of one to that of the next and M between failures, δ ÷ t + t ÷ 2M of the time is wasted,
//! least at t = √(2·δ·M). Saving beside training does away with δ, whatever M is; without a known M that alone is asked
//! about. What removes more comes first, the other beside it: they are of one part, and do not add up.

use gpufleet_telemetry::catalog::Unit;

use super::{Advice, Bottleneck, Confidence, Knob, LEAST_SHARE, Part, Profile};
use crate::cause::Reading;

/// What saving beside training leaves of the time that training stands for a save: the copy out of the GPU's memory.
pub(super) const LEFT: f64 = 0.1;

/// The interval that wastes least, seconds.
pub fn best_interval(save_s: f64, mtbf_s: f64) -> f64 {
    (2.0 * save_s * mtbf_s).sqrt()
}

/// The share of time that an interval wastes.
pub fn wasted(interval_s: f64, save_s: f64, mtbf_s: f64) -> f64 {
    save_s / interval_s + interval_s / (2.0 * mtbf_s)
}

/// One way to lose less to checkpoints.
struct Way {
    knob: Knob,
    /// The share of the time that it is about, and what it removes of all time.
    share: f64,
    removed: f64,
    confidence: Confidence,
}

pub(super) fn look(run: &Profile) -> Option<Advice> {
    let is_time = |it: &f64| it.is_finite() && *it > 0.0;
    let save = run.saving.save_s.filter(is_time)?;
    let today = run.saving.interval_s.filter(is_time)?;
    let mtbf = run.saving.mtbf_s.filter(is_time);
    let mut measured = vec![
        Reading::new("a save", save, None, Unit::Seconds),
        Reading::new("between two", today, None, Unit::Seconds),
    ];
    measured.extend(mtbf.map(|it| Reading::new("between failures", it, None, Unit::Seconds)));
    let rarer = mtbf.map(|it| interval(save, today, it));
    let ways = [rarer, Some(beside(save, today))].into_iter().flatten();
    let is_worth = |it: &Way| it.share >= LEAST_SHARE && it.removed >= LEAST_SHARE / 2.0;
    let mut ways: Vec<Way> = ways.filter(is_worth).collect();
    ways.sort_by(|one, other| other.removed.total_cmp(&one.removed));
    let mut ways = ways.into_iter();
    let first = ways.next()?;
    Some(Advice {
        bottleneck: Bottleneck::Checkpoint,
        part: Part::Checkpoint,
        measured,
        knob: first.knob,
        also: ways.map(|it| it.knob).collect(),
        share: first.share,
        removed: Ok(first.removed),
        confidence: first.confidence,
    })
}

/// As far apart as wastes least.
fn interval(save: f64, today: f64, mtbf: f64) -> Way {
    let best = best_interval(save, mtbf).max(save);
    let now = wasted(today, save, mtbf).min(1.0);
    Way {
        knob: Knob {
            name: "checkpoint interval",
            today: Some(format!("{today:.0} s")),
            proposed: format!("{best:.0} s"),
        },
        share: now,
        removed: now - wasted(best, save, mtbf),
        confidence: Confidence::High,
    }
}

/// Saves that training does not stand for.
fn beside(save: f64, today: f64) -> Way {
    let share = (save / today).min(1.0);
    Way {
        knob: Knob {
            name: "checkpoint saves",
            today: Some(format!("{save:.0} s each")),
            proposed: "asynchronous saves".to_owned(),
        },
        share,
        removed: share * (1.0 - LEFT),
        confidence: Confidence::Medium,
    }
}

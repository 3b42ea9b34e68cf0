//! Ranks that do what takes long while the others wait for them, as it should be, and how long they are let alone.
//!
//! Method: a save, a restore or an evaluation may take [`TIMES`] times what they take of this rank on average,
//! [`LEAST_S`] at least and [`QUIET_S`] at most. The first save or restore, of which nobody knows what is usual, may
//! take [`LEAST_S`], which is how long PyTorch lets the others wait in a collective if nobody says else; the first
//! evaluation [`FIRST_EVALUATION_S`]. How long a start may take is a threshold of `analysis::hang`.
//!
//! A run whose ranks have all made the steps that it planned ([`crate::runs::Run::has_made_its_steps`]) is let alone:
//! its processes save, merge, push or wait for a person, and how long that takes nobody knows. It hangs where all of its
//! ranks are in a collective for as long as a run may stand, because then none of them does anything else; or where some
//! are for [`QUIET_S`] and wait for one that is in none, whatever that does. GPUs of it that are busy without work, or idle,
//! are told as those of any other.
//!
//! Limits: for how long it has been in its phase is the rank's own word; of one that does not say, nothing is late. After
//! the last step a run hangs unseen where no collectives are told, or it stands in something else, as when its
//! communicators are taken down.

use gpufleet_telemetry::catalog::{Metric, training};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::Phase;

use super::is_heard;
use crate::runs::{Rank, Run};

/// Longest time for which a run that saves, restores or evaluates is let alone, seconds: then it is late, whatever it
/// did before.
pub(in crate::detect) const QUIET_S: f64 = 3_600.0;

/// Shortest such time, seconds.
const LEAST_S: f64 = 600.0;

/// A first evaluation may take this long, seconds: some go over all of what is held out.
const FIRST_EVALUATION_S: f64 = 1_800.0;

/// As many times as long as on average is late.
const TIMES: f64 = 10.0;

/// Whether a rank does what takes long: the others wait for it, and that is as it should be; a start-up may take so
/// many seconds.
pub(in crate::detect) fn is_quiet(rank: &Rank, startup_s: f64) -> bool {
    let reading = |metric: &Metric| rank.facts.reading(metric.id);
    let now = reading(&training::PHASE_NOW);
    let mut quiet = Phase::QUIET.into_iter();
    let Some(phase) = quiet.find(|it| now == Some(it.code())) else {
        return false;
    };
    let (count, first_s) = match phase {
        Phase::Startup => return age_s(rank) < startup_s,
        Phase::Evaluation => (reading(&training::EVALUATIONS), FIRST_EVALUATION_S),
        Phase::CheckpointRestore => (reading(&training::CHECKPOINT_RESTORES), LEAST_S),
        _ => (reading(&training::CHECKPOINT_SAVES), LEAST_S),
    };
    let times = count.filter(|it| *it >= 1.0);
    let mean_s = times
        .zip(reading(phase.seconds()))
        .map(|(times, all)| all / times);
    let most_s = mean_s.map_or(first_s, |it| (TIMES * it).clamp(LEAST_S, QUIET_S));
    age_s(rank) < most_s
}

/// Whether the ranks of a run that has made its steps wait in collectives for nobody who may do something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// They do since then.
    Since(Timestamp),
    /// They do not, or not for long.
    No,
    /// Some are not heard, and those that are do: nobody knows what the others do.
    Unknown,
}

/// Whether they do: all of them for so long, nanoseconds, or some for [`QUIET_S`].
pub(super) fn waiting(run: &Run, limit_ns: i64, now: Timestamp) -> Waiting {
    let mut entered = Vec::new();
    let (mut are_all_in, mut is_one_out, mut is_one_unheard) = (true, false, false);
    for (_, rank) in run.living() {
        let since = entered_at(rank, now);
        let hears = is_heard(rank.facts.heard, now);
        are_all_in &= since.is_some();
        is_one_out |= hears && since.is_none();
        is_one_unheard |= !hears;
        entered.extend(since);
    }
    let last = entered.iter().copied().max();
    let last = last.filter(|at| are_all_in && now.since(*at) >= limit_ns);
    let late_ns = limit_ns.max((QUIET_S * 1e9) as i64);
    let late = entered.into_iter().filter(|at| now.since(*at) >= late_ns);
    match last.or_else(|| late.max()) {
        Some(since) => Waiting::Since(since),
        None if is_one_unheard && !is_one_out => Waiting::Unknown,
        None => Waiting::No,
    }
}

/// When a rank entered the oldest collective that it is in; none of one that is in none, or is not heard.
fn entered_at(rank: &Rank, now: Timestamp) -> Option<Timestamp> {
    let reading = |metric: &Metric| rank.facts.reading(metric.id);
    let count = reading(&training::COLLECTIVES_IN_FLIGHT)?;
    let age_s = reading(&training::COLLECTIVE_OLDEST_AGE)?;
    let is_in = count > 0.0 && is_heard(rank.facts.heard, now);
    is_in.then(|| now.shifted(((age_s * 1e9) as i64).saturating_neg()))
}

/// How long it has been in its phase, seconds; 0 where it does not say.
fn age_s(rank: &Rank) -> f64 {
    rank.facts.reading(training::PHASE_AGE.id).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Until when a rank in this phase is let alone that says this, seconds.
    fn let_alone(phase: Phase, says: &[(Metric, f64)]) -> f64 {
        let is_so = |age: u32| {
            let mut rank = Rank::default();
            let now = [
                (training::PHASE_NOW, phase.code()),
                (training::PHASE_AGE, f64::from(age)),
            ];
            let said = now.iter().chain(says);
            rank.facts.readings = said.map(|(metric, it)| (metric.id, *it)).collect();
            rank.facts.readings.sort_by_key(|it| it.0);
            is_quiet(&rank, 1_200.0)
        };
        let until = (0..10_000).step_by(100).find(|age| !is_so(*age));
        f64::from(until.expect("nobody is let alone for ever"))
    }

    #[test]
    fn what_takes_long_is_let_alone_for_ten_times_as_long_as_it_takes_and_for_an_hour_at_most() {
        let saved = |times: f64, all_s: f64| {
            [
                (training::CHECKPOINT_SAVES, times),
                (training::PHASE_CHECKPOINT_SAVE, all_s),
            ]
        };
        for (phase, says, expected) in [
            (Phase::Forward, &[] as &[(Metric, f64)], 0.0),
            (Phase::Startup, &[], 1_200.0),
            (Phase::CheckpointSave, &[], LEAST_S),
            (Phase::CheckpointSave, &saved(0.0, 0.0), LEAST_S),
            (Phase::CheckpointSave, &saved(4.0, 40.0), LEAST_S),
            (Phase::CheckpointSave, &saved(4.0, 800.0), 2_000.0),
            (Phase::CheckpointSave, &saved(1.0, 900.0), QUIET_S),
            (Phase::CheckpointRestore, &saved(4.0, 800.0), LEAST_S),
            (Phase::Evaluation, &[], FIRST_EVALUATION_S),
            (
                Phase::Evaluation,
                &[
                    (training::EVALUATIONS, 2.0),
                    (training::PHASE_EVALUATION, 200.0),
                ],
                1_000.0,
            ),
        ] {
            let until = let_alone(phase, says);
            assert!((until - expected).abs() < 1e-9, "{phase:?} {until}");
        }
    }
}

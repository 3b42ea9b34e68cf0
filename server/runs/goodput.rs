//! Where the time of a job went, over its attempts: the input of `analysis::goodput` from the store.
//!
//! The steps are those of the rank that stands for each attempt. Time whose steps are not kept is told as
//! such. Limits: those of [`Attempts::before`], and [`MAX_STEPS`] steps: what is beyond is a reason, not a
//! smaller sum. Checkpoints, evaluations and named phases are those of the rank's newest process: what one before it in
//! the same attempt stood still for is in no category.

use std::ops::{ControlFlow, Range};

use gpufleet_analysis::goodput::{self, Attempt, Goodput, Step};
use gpufleet_telemetry::catalog::{Metric, training};
use gpufleet_telemetry::steps::StepBlock;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::attempts::Attempts;
use super::{Rank, Run, RunKey, State, history};
use crate::store::{Store, StoreError};

/// Ranks of the attempts before among which is the one that stands for each: the lowest that did steps.
const FIRST_RANKS: u32 = 16;

/// Most steps: a week of one a second. About 32 bytes each.
pub const MAX_STEPS: usize = 600_000;

/// The partition of the time of a job up to this attempt, or why there is none.
///
/// # Errors
/// When the database refuses.
pub async fn of(
    store: &Store,
    (key, run): (&RunKey, &Run),
    attempts: &Attempts,
    (kept_from, now): (Timestamp, Timestamp),
) -> Result<Result<Goodput, &'static str>, StoreError> {
    let before = match attempts.before(key.run.attempt) {
        Ok(before) => before.map(|it| it.key.clone()).collect::<Vec<_>>(),
        Err(why) => return Ok(Err(why)),
    };
    let before = match before.is_empty() {
        true => Vec::new(),
        false => store.with_first_ranks(&before, FIRST_RANKS).await?,
    };
    let mut before: Vec<_> = before
        .into_iter()
        .map(|it| (it.key.clone(), Run::of_store(it)))
        .collect();
    before.sort_by_key(|(key, _)| key.run.attempt);
    let mut attempts = Vec::new();
    let all = before
        .iter()
        .map(|(key, run)| (key, run))
        .chain([(key, run)]);
    for (key, run) in all {
        let Some(started_at) = run.facts.started else {
            return Ok(Err("not known: nobody said when an attempt began"));
        };
        let ended_at = match (run.facts.ended, run.state(now)) {
            (Some(at), _) | (None, State::Ended { at }) => at,
            (None, State::Running) => now,
            (None, State::Silent { since }) => since,
        };
        let kept = kept_from.max(started_at)..ended_at.shifted(1);
        let steps: usize = attempts.iter().map(|it: &Attempt| it.steps.len()).sum();
        let room = MAX_STEPS.saturating_sub(steps);
        let Some(attempt) = attempt(store, (key, run), started_at, &kept, room).await? else {
            return Ok(Err("not added up: there are more steps than are looked at"));
        };
        attempts.push(attempt);
    }
    if attempts.iter().all(|it| it.steps.is_empty()) {
        return Ok(Err("not known: no step was told"));
    }
    Ok(Ok(goodput::goodput(&attempts)))
}

/// One attempt, of which steps are kept in a range; none where they are more than there is room for.
async fn attempt(
    store: &Store,
    (key, run): (&RunKey, &Run),
    started_at: Timestamp,
    kept: &Range<Timestamp>,
    room: usize,
) -> Result<Option<Attempt>, StoreError> {
    let ending = run.facts.ending.as_ref();
    let broke_off = ending.filter(|it| it.is_interruption());
    let mut attempt = Attempt {
        started_at,
        ended_at: kept.end.shifted(-1),
        was_disrupted: broke_off.is_some(),
        steps_lost: broke_off.and_then(|it| it.steps_lost),
        // Until steps of it are found.
        began_unseen: did_steps(run),
        ..Attempt::default()
    };
    let Some((speaker, rank)) = run.speaker() else {
        return Ok(Some(attempt));
    };
    let (mut blocks, mut steps) = (Vec::new(), 0);
    let keep = |_, block: StepBlock| {
        steps += block.times.len();
        blocks.push(block);
        match steps > room {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    history::each(store, (key, run), Some(&[speaker]), kept, keep).await?;
    if steps > room {
        return Ok(None);
    }
    blocks.sort_by_key(|it| it.started_at);
    for block in &blocks {
        let per_entry = block.steps_per_entry();
        let numbered = block.times.iter().zip(0_u64..);
        attempt.steps.extend(numbered.map(|(times, place)| Step {
            step: block.first_step + place * per_entry,
            wall_ns: times.wall_ns,
            data_wait_ns: times.data_wait_ns,
            stood_ns: times.stood_ns(),
        }));
    }
    let first = blocks.first();
    attempt.goes_back = first.is_some_and(|it| goes_back(run, rank, it.started_at));
    attempt.checkpoint_save_ns = spent(rank, training::PHASE_CHECKPOINT_SAVE);
    attempt.checkpoint_restore_ns = spent(rank, training::PHASE_CHECKPOINT_RESTORE);
    attempt.custom_ns =
        spent(rank, training::PHASE_EVALUATION) + spent(rank, training::PHASE_OTHER);
    notice_gaps(&mut attempt, &blocks, run, rank);
    Ok(Some(attempt))
}

/// Notes where steps were done that are not kept; `blocks` are in the order of time.
fn notice_gaps(attempt: &mut Attempt, blocks: &[StepBlock], run: &Run, rank: &Rank) {
    let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else {
        return;
    };
    attempt.first_step_at = Some(first.started_at);
    attempt.last_step_at = Some(last.ended_at);
    let told = |metric: Metric| rank.facts.reading(metric.id);
    attempt.began_unseen = match (told(training::STEPS), told(training::LAST_STEP)) {
        // The process has done more steps than those from the first that is kept on.
        (Some(steps), Some(last)) => steps > last - first.first_step as f64 + 1.0,
        _ => first.first_step > run.facts.restored.map_or(0, |it| it.step + 1),
    };
    let between = blocks
        .windows(2)
        .filter(|it| it[1].first_step > it[0].next_step());
    let between = between.map(|it| it[1].started_at.since(it[0].ended_at).max(0));
    let mut unseen: i64 = between.sum();
    let end = rank.facts.end.as_ref().and_then(|it| it.step);
    if end.is_some_and(|it| it >= last.next_step()) {
        unseen += attempt.ended_at.since(last.ended_at).max(0);
        attempt.last_step_at = None;
    }
    attempt.unseen_ns = unseen.cast_unsigned();
}

/// Whether steps of a rank whose numbers went back were done again: its process began anew, or the run went back to a
/// checkpoint after its first step. Else the same process trained something else.
fn goes_back(run: &Run, rank: &Rank, first_step_at: Timestamp) -> bool {
    let restored = run.facts.restored.is_some_and(|it| it.at > first_step_at);
    restored || rank.facts.came_up_again()
}

/// Whether anybody says that steps were done, of an attempt of which none is kept.
fn did_steps(run: &Run) -> bool {
    let from = run.facts.restored.map_or(0, |it| it.step);
    run.members().any(|(_, rank)| {
        let end = rank.facts.end.as_ref().and_then(|it| it.step);
        let done = rank.facts.reading(training::STEPS.id);
        end.is_some_and(|it| it > from) || done.is_some_and(|it| it > 0.0)
    })
}

/// What a phase took of a rank, nanoseconds.
pub(crate) fn spent(rank: &Rank, phase: Metric) -> u64 {
    let seconds = rank.facts.reading(phase.id).unwrap_or(0.0);
    (seconds * NANOS_PER_SECOND as f64) as u64
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::steps::StepTimes;
    use gpufleet_telemetry::training::Ended;

    use super::*;
    use crate::runs::facts::{Occasion, RankEnd};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_790_000_000 + seconds)
    }

    /// Ten steps of a second.
    fn block(first_step: u64, started: i64) -> StepBlock {
        StepBlock {
            first_step,
            steps_log2: 0,
            started_at: at(started),
            ended_at: at(started + 10),
            tokens: 0,
            samples: 0,
            times: vec![StepTimes::default(); 10],
        }
    }

    fn noticed(blocks: &[StepBlock], told: &[(Metric, f64)], resumed: Option<u64>) -> (bool, u64) {
        let mut attempt = Attempt {
            ended_at: at(200),
            ..Attempt::default()
        };
        let mut rank = Rank::default();
        rank.facts.readings = told.iter().map(|(metric, it)| (metric.id, *it)).collect();
        rank.facts.readings.sort_by_key(|it| it.0);
        let mut run = Run::default();
        run.facts.restored = resumed.map(|step| Occasion {
            at: at(0),
            step,
            rank: None,
        });
        notice_gaps(&mut attempt, blocks, &run, &rank);
        (attempt.began_unseen, attempt.unseen_ns / 1_000_000_000)
    }

    #[test]
    fn a_first_kept_step_with_others_before_it_is_no_beginning() {
        let all = |steps| [(training::STEPS, steps), (training::LAST_STEP, 109.0)];
        let blocks = [block(100, 0)];
        assert!(noticed(&blocks, &all(110.0), None).0, "110 were done");
        assert!(
            !noticed(&blocks, &all(10.0), None).0,
            "ten, from a checkpoint on"
        );
        assert!(noticed(&blocks, &[], None).0, "nobody says from where");
        assert!(!noticed(&blocks, &[], Some(99)).0);
        assert!(!noticed(&[block(0, 0)], &[], None).0);
    }

    #[test]
    fn only_missing_numbers_make_a_pause_a_gap() {
        assert_eq!(
            noticed(&[block(0, 0), block(10, 60)], &[], None),
            (false, 0)
        );
        assert_eq!(
            noticed(&[block(0, 0), block(40, 60)], &[], None),
            (false, 50)
        );
        assert_eq!(
            noticed(&[block(0, 0), block(5, 60)], &[], None),
            (false, 0),
            "went back"
        );
    }

    #[test]
    fn numbers_that_went_back_are_steps_done_again_where_a_process_began_anew_or_went_back_to_a_checkpoint()
     {
        let found = |processes: (i64, i64), restored: Option<i64>| {
            let mut rank = Rank::default();
            rank.facts.began = Some(at(processes.0));
            rank.facts.began_last = Some(at(processes.1));
            let mut run = Run::default();
            run.facts.restored = restored.map(|seconds| Occasion {
                at: at(seconds),
                step: 600,
                rank: None,
            });
            goes_back(&run, &rank, at(20))
        };
        assert!(!found((0, 0), None), "another training in the same process");
        assert!(found((0, 900), None));
        assert!(found((0, 0), Some(500)));
        assert!(!found((0, 0), Some(10)), "it began from there");
    }

    #[test]
    fn an_attempt_whose_steps_are_gone_did_not_only_begin() {
        let began_unseen = |end: Option<u64>, steps: Option<f64>, restored: Option<u64>| {
            let mut rank = Rank::default();
            rank.facts.end = end.map(|step| RankEnd {
                at: at(100),
                ended: Ended::Exception,
                exit_status: None,
                signal: None,
                oom_kills: None,
                step: Some(step),
                checkpoint_step: None,
                phase: None,
            });
            let steps = steps.map(|it| (training::STEPS.id, it));
            rank.facts.readings = steps.into_iter().collect();
            let mut run = Run::default();
            run.facts.restored = restored.map(|step| Occasion {
                at: at(0),
                step,
                rank: None,
            });
            run.ranks.insert(0, rank);
            did_steps(&run)
        };
        assert!(began_unseen(Some(500), None, None));
        assert!(began_unseen(None, Some(3.0), None), "it still runs");
        assert!(began_unseen(Some(500), None, Some(400)));
        assert!(
            !began_unseen(Some(400), None, Some(400)),
            "it died before its first step"
        );
        assert!(!began_unseen(None, None, None));
        assert!(!began_unseen(None, Some(0.0), None));
    }
}

//! Each nanosecond in one category, and each category by its own evidence.

use proptest::prelude::*;

use super::Category::{
    CheckpointRestore, CheckpointSave, Custom, DataLoading, InfrastructureRecovery, Initialisation,
    NotObserved, Other, Productive, ProgramStartup, WastedProgress,
};
use super::*;

const SECOND: u64 = 1_000_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_seconds(1_700_000_000 + seconds)
}

fn steps(range: std::ops::Range<u64>, wall: u64, data_wait: u64) -> Vec<Step> {
    range
        .map(|step| Step {
            step,
            wall_ns: wall * SECOND,
            data_wait_ns: data_wait * SECOND,
            stood_ns: 0,
        })
        .collect()
}

/// An attempt from `start` on: 20 s until the first step, then the steps, then `tail`.
fn attempt(start: i64, steps: Vec<Step>, tail: i64) -> Attempt {
    let wall: u64 = steps.iter().map(|it| it.wall_ns).sum::<u64>() / SECOND;
    let last = start + 20 + wall as i64;
    Attempt {
        started_at: at(start),
        first_step_at: Some(at(start + 20)),
        last_step_at: Some(at(last)),
        ended_at: at(last + tail),
        steps,
        ..Attempt::default()
    }
}

fn seconds(goodput: &Goodput) -> Vec<(Category, u64)> {
    let of = |it: &Category| (*it, goodput.of(*it) / SECOND);
    Category::ALL.iter().map(of).filter(|it| it.1 > 0).collect()
}

#[test]
fn a_quiet_run_is_productive_but_for_its_start_its_data_and_its_checkpoints() {
    let mut all = steps(0..100, 3, 1);
    all[0].wall_ns = 33 * SECOND;
    let mut run = attempt(0, all, 50);
    run.checkpoint_save_ns = 30 * SECOND;
    run.custom_ns = 15 * SECOND;
    let found = goodput(&[run]);
    let expected = [
        (Productive, 200),
        (Initialisation, 20),
        (ProgramStartup, 30),
        (DataLoading, 100),
        (CheckpointSave, 30),
        (Custom, 15),
        (Other, 5),
    ];
    assert_eq!(seconds(&found), expected);
    assert_eq!((found.steps, found.ideal_step_ns), (100, 2 * SECOND));
    assert_eq!(found.ratio(), Some(0.5));
}

#[test]
fn a_checkpoint_and_an_evaluation_inside_of_steps_are_not_productive() {
    let mut all = steps(0..100, 3, 0);
    // As hooks tell them: the step after them has their time.
    (all[50].wall_ns, all[50].stood_ns) = (63 * SECOND, 60 * SECOND);
    (all[80].wall_ns, all[80].stood_ns) = (43 * SECOND, 40 * SECOND);
    let mut run = attempt(0, all, 0);
    run.checkpoint_save_ns = 60 * SECOND;
    run.custom_ns = 30 * SECOND;
    let expected = [
        (Productive, 300),
        (Initialisation, 20),
        (CheckpointSave, 60),
        (Custom, 30),
        // Training stood still and nobody says for what.
        (Other, 10),
    ];
    let found = goodput(std::slice::from_ref(&run));
    assert_eq!(seconds(&found), expected);
    assert_eq!((found.ideal_step_ns, found.above_ideal_ns), (3 * SECOND, 0));
    // In steps that were lost they are no progress that was wasted.
    run.was_disrupted = true;
    run.steps_lost = Some(60);
    let lost = goodput(&[run]);
    let expected = [
        (Productive, 120),
        (Initialisation, 20),
        (CheckpointSave, 60),
        (WastedProgress, 180),
        (Custom, 30),
        (Other, 10),
    ];
    assert_eq!(seconds(&lost), expected);
}

#[test]
fn steps_that_the_same_attempt_did_again_are_wasted_unless_they_are_of_another_training() {
    let mut all = steps(0..10, 1, 0);
    all.extend(steps(6..12, 1, 0));
    let mut run = attempt(0, all, 0);
    run.goes_back = true;
    let found = goodput(std::slice::from_ref(&run));
    assert_eq!((found.steps, found.steps_wasted), (12, 4));
    let expected = [(Productive, 12), (Initialisation, 20), (WastedProgress, 4)];
    assert_eq!(seconds(&found), expected);
    // Its end lost the last three of those that it came to, and the others stay wasted.
    run.was_disrupted = true;
    run.steps_lost = Some(3);
    let found = goodput(std::slice::from_ref(&run));
    assert_eq!((found.steps, found.steps_wasted), (9, 3 + 4));
    run.steps_lost = None;
    run.goes_back = false;
    let found = goodput(&[run]);
    assert_eq!((found.steps, found.steps_wasted), (16, 0));
    // What the end of the second training lost is none of the first one's.
    let mut all = steps(0..20, 1, 0);
    all.extend(steps(0..5, 1, 0));
    let mut run = attempt(0, all, 0);
    (run.was_disrupted, run.steps_lost) = (true, Some(2));
    let found = goodput(&[run]);
    assert_eq!((found.steps, found.steps_wasted), (23, 2));
}

#[test]
fn a_disruption_costs_the_steps_done_again_the_wait_and_the_way_back() {
    let mut first = attempt(0, steps(0..60, 1, 0), 40);
    first.was_disrupted = true;
    let mut second = attempt(220, steps(50..100, 1, 0), 0);
    second.checkpoint_restore_ns = 8 * SECOND;
    let found = goodput(&[first, second]);
    let expected = [
        (Productive, 100),
        (Initialisation, 32),
        (CheckpointRestore, 8),
        // Ten steps done again, and 40 s in which nothing came any more.
        (WastedProgress, 50),
        (InfrastructureRecovery, 100),
    ];
    assert_eq!(seconds(&found), expected);
    assert_eq!((found.steps, found.steps_wasted), (100, 10));
}

#[test]
fn steps_that_any_later_attempt_did_again_are_wasted_and_not_only_the_next_ones() {
    let attempts = [
        attempt(0, steps(0..10, 1, 0), 0),
        attempt(30, steps(8..12, 1, 0), 0),
        attempt(54, steps(4..20, 1, 0), 0),
    ];
    let found = goodput(&attempts);
    assert_eq!((found.steps, found.steps_wasted), (4 + 16, 6 + 4));
    assert_eq!(found.of(InfrastructureRecovery), 0);
}

#[test]
fn what_the_end_of_the_last_attempt_lost_is_wasted_before_another_does_it_again() {
    let broken = Attempt {
        was_disrupted: true,
        steps_lost: Some(25),
        ..attempt(0, steps(0..100, 2, 0), 10)
    };
    let alone = goodput(std::slice::from_ref(&broken));
    assert_eq!(alone.of(Productive), 150 * SECOND);
    assert_eq!(alone.of(WastedProgress), 60 * SECOND);
    assert_eq!((alone.steps, alone.steps_wasted), (75, 25));
    let totals = totals::of_totals(&totals::Totals {
        held_ns: 230 * SECOND,
        steps: 100,
        wall_ns: 200 * SECOND,
        steps_lost: 25,
        startup_ns: 20 * SECOND,
        ..totals::Totals::default()
    });
    let totals = totals.expect("it has steps");
    assert_eq!(alone.ratio(), totals.ratio());
    // A later one did less of it again: its word goes before what was thought to be lost.
    let again = attempt(300, steps(90..95, 2, 0), 0);
    let found = goodput(&[broken, again]);
    assert_eq!((found.steps, found.steps_wasted), (95, 10));
}

#[test]
fn an_attempt_without_a_step_is_initialisation() {
    let run = Attempt {
        started_at: at(0),
        ended_at: at(90),
        was_disrupted: true,
        ..Attempt::default()
    };
    assert_eq!(seconds(&goodput(&[run])), [(Initialisation, 90)]);
    assert_eq!(goodput(&[]).ratio(), None);
}

#[test]
fn time_whose_steps_are_not_kept_is_not_initialisation_and_not_in_the_ratio() {
    let mut all = steps(900..1_000, 3, 0);
    all[0].wall_ns = 9 * SECOND;
    let mut run = attempt(0, all, 0);
    // 900 steps came before; nine tenths of the checkpoints were saved while they were done.
    run.started_at = at(-2_734);
    run.began_unseen = true;
    run.checkpoint_save_ns = 60 * SECOND;
    let found = goodput(&[run.clone()]);
    let expected = [
        (Productive, 306),
        (CheckpointSave, 54),
        (NotObserved, 2_700),
    ];
    assert_eq!(seconds(&found), expected);
    assert_eq!(
        found.of(ProgramStartup),
        0,
        "the first kept is not the first"
    );
    assert_eq!(found.ratio(), Some(306.0 / 360.0));
    assert_eq!(found.observed().map(|it| (it * 100.0).round()), Some(12.0));
    run.began_unseen = false;
    assert!(goodput(&[run]).of(Initialisation) > 0);
}

#[test]
fn an_attempt_of_which_no_step_is_kept_was_not_observed_where_it_did_steps() {
    let gone = |began_unseen| Attempt {
        started_at: at(0),
        ended_at: at(1_000),
        was_disrupted: true,
        began_unseen,
        ..Attempt::default()
    };
    let next = attempt(1_100, steps(500..510, 2, 0), 0);
    let rest = [
        (Productive, 20),
        (Initialisation, 20),
        (InfrastructureRecovery, 100),
    ];
    let found = goodput(&[gone(true), next.clone()]);
    let mut expected = rest.to_vec();
    expected.push((NotObserved, 1_000));
    assert_eq!(seconds(&found), expected);
    assert_eq!(
        found.ratio().map(|it| (it * 7.0).round()),
        Some(1.0),
        "20 of 140 s"
    );
    let found = goodput(&[gone(false), next]);
    assert_eq!(
        found.of(Initialisation),
        1_020 * SECOND,
        "it never came so far"
    );
}

#[test]
fn a_gap_between_kept_steps_is_not_observed_and_a_pause_is_other() {
    let run = Attempt {
        ended_at: at(20 + 100 + 50),
        unseen_ns: 30 * SECOND,
        ..attempt(0, steps(0..100, 1, 0), 0)
    };
    let expected = [
        (Productive, 100),
        (Initialisation, 20),
        (NotObserved, 30),
        (Other, 20),
    ];
    assert_eq!(seconds(&goodput(&[run])), expected);
    assert_eq!(goodput(&[]).observed(), None);
}

#[test]
fn the_ideal_step_leaves_slow_ones_out_and_they_are_named() {
    let mut all = steps(1..100, 2, 0);
    all[50].wall_ns = 62 * SECOND;
    all[7].wall_ns = 2 * SECOND + 1;
    let found = goodput(&[attempt(0, all, 0)]);
    assert_eq!(found.ideal_step_ns, 2 * SECOND);
    assert_eq!(found.above_ideal_ns, 60 * SECOND + 1);
}

proptest! {
    #[test]
    fn every_nanosecond_is_in_exactly_one_category(
        raw in proptest::collection::vec(
            (0_i64..500, 0_i64..500, 0_i64..400, 0_i64..400, any::<bool>(), [0_u64..300, 0..300, 0..300, 0..300],
             proptest::collection::vec((0_u64..50, 0_u64..9, 0_u64..9, 0_u64..9), 0..30)),
            0..5,
        ),
    ) {
        let mut attempts: Vec<Attempt> = raw
            .into_iter()
            .map(|(start, length, first, last, was_disrupted, [save, restore, custom, unseen], raw)| Attempt {
                started_at: at(start),
                ended_at: at(start + length),
                first_step_at: (first > 50).then(|| at(first)),
                last_step_at: (last > 50).then(|| at(last)),
                was_disrupted,
                steps_lost: was_disrupted.then_some(unseen),
                steps: raw
                    .into_iter()
                    .map(|(step, wall, wait, stood)| Step {
                        step,
                        wall_ns: wall * SECOND + 7,
                        data_wait_ns: wait * SECOND,
                        stood_ns: stood * SECOND,
                    })
                    .collect(),
                goes_back: unseen % 3 == 0,
                checkpoint_save_ns: save * SECOND,
                checkpoint_restore_ns: restore * SECOND,
                custom_ns: custom * SECOND,
                began_unseen: unseen % 2 == 0,
                unseen_ns: unseen * SECOND,
            })
            .collect();
        attempts.sort_by_key(|it| it.started_at);
        let start = attempts.first().map_or(at(0), |it| it.started_at);
        let end = attempts.iter().map(|it| it.ended_at).max().unwrap_or(start);
        prop_assert_eq!(goodput(&attempts).total(), between(start, end));
    }
}

//! Runs that save or have made all their steps: what may take long, and what seems to work meanwhile.

use super::lost::{STILL, said};
use super::*;

/// Rank 0 saves; the others spin in a barrier.
fn saves(rank: u32) -> Does {
    Does {
        busy_ms: None,
        phase: if rank == 0 { 6.0 } else { 5.0 },
        ..WELL
    }
}

/// What the GPUs of nodes show whose ranks wait, and of the others that they work.
pub(super) fn spins(nodes: &'static [&'static str]) -> impl Fn(&mut Live) + Copy {
    move |live| {
        if live.key.kind == ResourceKind::Gpu {
            let waits = nodes.contains(&&*live.node);
            let all = live.bits.observed;
            (live.bits.active, live.bits.stalled) = if waits { (0, all) } else { (all, 0) };
        }
    }
}

pub(super) const BOTH: &[&str] = &["node-1", "node-2"];

#[tokio::test]
async fn the_wait_for_a_rank_that_saves_is_no_stall_and_what_goes_on_for_as_long_after_it_is() {
    let mut training = Training::new().await;
    training.ticks(42, saves, spins(BOTH)).await;
    assert_eq!(training.world.open(), [], "seven minutes of saving");
    // The other node tells of its last second a tick later.
    training.ticks(1, |_| WELL, spins(&["node-2"])).await;
    training.ticks(6, |_| WELL, spins(&[])).await;
    assert_eq!(training.world.open(), [], "it is saved");

    training.ticks(42, saves, spins(BOTH)).await;
    let saved = training.world.hand.now();
    training.ticks(29, |_| WELL, spins(BOTH)).await;
    assert_eq!(training.world.open(), [], "not yet for five minutes");
    training.ticks(2, |_| WELL, spins(BOTH)).await;
    let told = training.one();
    assert_eq!((told.family, told.since), (Family::Stalled, saved));
    assert_eq!(told.place.run.as_deref(), Some(RUN));
}

#[tokio::test]
async fn a_run_that_hangs_as_it_saves_is_told_once_that_takes_far_longer_than_it_does() {
    for (mean_s, is_told) in [(None, true), (Some(20.0), true), (Some(100.0), false)] {
        let mut training = Training::new().await;
        let began = training.world.hand.now();
        training.says = Some(Box::new(move |_, live| {
            let age = live.last_point.since(began) / NANOS_PER_SECOND;
            set(live, &training::PHASE_AGE, age as f64);
            if let Some(mean_s) = mean_s {
                set(live, &training::CHECKPOINT_SAVES, 4.0);
                set(live, &training::PHASE_CHECKPOINT_SAVE, 4.0 * mean_s);
            }
        }));
        let saves = |_| Does {
            busy_ms: None,
            phase: 6.0,
            ..WELL
        };
        training.ticks(65, saves, set_idle).await;
        assert_eq!(training.world.open(), [], "it may take ten minutes");
        training.ticks(15, saves, set_idle).await;
        let told: Vec<Family> = training.world.open().iter().map(|it| it.family).collect();
        let expected: &[Family] = if is_told { &[Family::Hang] } else { &[] };
        assert_eq!(told, expected, "{mean_s:?}");
    }
}

#[tokio::test]
async fn a_run_that_made_the_steps_that_it_planned_does_not_stand_and_one_that_lacks_one_does() {
    // What is planned, how many steps each process made, the last step of rank 5: that of the others is 159.
    for (planned, made, last, is_told) in [
        (Some(159.0), 60.0, 159.0, false),
        (Some(160.0), 160.0, 159.0, false),
        (Some(159.0), 60.0, 158.0, true),
        (Some(160.0), 60.0, 159.0, true),
        (Some(100.0), 60.0, 159.0, true),
        (None, 60.0, 159.0, true),
    ] {
        let mut training = Training::new().await;
        training.says = Some(Box::new(move |rank, live| {
            let last = if rank == 5 { last } else { 159.0 };
            set(live, &training::LAST_STEP, last);
            set(live, &training::STEPS, made);
            if let Some(planned) = planned {
                set(live, &training::PLANNED_STEPS, planned);
            }
        }));
        let waits = |_| Does {
            busy_ms: None,
            ..WELL
        };
        training.ticks(60, waits, set_idle).await;
        let told: Vec<Family> = training.world.open().iter().map(|it| it.family).collect();
        let expected: &[Family] = if is_told { &[Family::Hang] } else { &[] };
        assert_eq!(told, expected, "{planned:?} {made} {last}");
        let said = said(&training);
        let begins = "Has made the steps that it planned: its ranks are heard";
        assert_eq!(said.starts_with(begins), !is_told, "{said}");
    }
}

/// Ranks of which these are in a collective, for ten seconds a tick of these.
async fn waits(training: &mut Training, ticks: std::ops::Range<u32>, is_in: fn(u32) -> bool) {
    for tick in ticks {
        let waits = |rank: u32| Does {
            busy_ms: None,
            collective_s: is_in(rank).then_some(f64::from(tick) * 10.0),
            ..WELL
        };
        training.ticks(1, waits, |_| {}).await;
    }
}

/// A run that has made the steps that it planned.
async fn done() -> Training {
    let mut training = Training::new().await;
    training.says = Some(Box::new(|_, live| {
        set(live, &training::LAST_STEP, 159.0);
        set(live, &training::STEPS, 60.0);
        set(live, &training::PLANNED_STEPS, 159.0);
    }));
    training
}

#[tokio::test]
async fn a_run_that_made_its_steps_stands_where_all_its_ranks_are_in_a_collective_for_long() {
    let mut training = done().await;
    // The clock is the collective's, whatever lies between the last step and it.
    training.ticks(30, |_| STILL, |_| {}).await;
    waits(&mut training, 0..12, |_| true).await;
    assert_eq!(training.world.open(), [], "not yet for long");
    waits(&mut training, 12..15, |_| true).await;
    let told = training.one();
    assert_eq!((told.family, told.place.rank), (Family::Hang, None));
    let expected =
        "the run has made its steps and stands still in a collective that all its ranks are in";
    assert_eq!(told.what, expected);
    assert_eq!(told.losing.milli_gpus, 16_000, "all of it stands");
    let lost = told.lost.gpu_seconds();
    assert!((lost - 16.0 * 140.0).abs() < 1.0, "{lost} since they wait");
    training.ticks(4, |_| STILL, |_| {}).await;
    assert_eq!(training.world.open(), [], "they came out of it");
}

#[tokio::test]
async fn a_run_that_made_its_steps_may_wait_for_a_rank_that_saves_for_an_hour() {
    let mut training = done().await;
    waits(&mut training, 300..360, |rank| rank != 3).await;
    assert_eq!(training.world.open(), [], "it may save, merge or push");
    waits(&mut training, 360..362, |rank| rank != 3).await;
    let told = training.one();
    assert_eq!((told.family, told.place.rank), (Family::Hang, Some(3)));
    let expected = "the run has made its steps and stands still and waits for this rank";
    assert_eq!(told.what, expected);
}

#[tokio::test]
async fn a_run_that_made_its_steps_and_stands_is_not_over_while_an_agent_is_not_heard() {
    let mut training = done().await;
    waits(&mut training, 0..20, |_| true).await;
    let id = training.one().id;
    // Of one node, and of both.
    type Away = (std::ops::Range<u32>, fn(u32) -> bool);
    let away: [Away; 2] = [(20..28, |rank| rank >= 8), (30..35, |_| false)];
    for (ticks, is_heard) in away {
        let back = ticks.end;
        for tick in ticks {
            let waits = |rank: u32| Does {
                busy_ms: None,
                collective_s: Some(f64::from(tick) * 10.0),
                is_heard: is_heard(rank),
                ..WELL
            };
            training.ticks(1, waits, |_| {}).await;
        }
        let told = training.one();
        assert_eq!((told.id, told.family), (id, Family::Hang));
        assert!(told.unheard_since.is_some(), "it may be over");
        waits(&mut training, back..back + 2, |_| true).await;
        let told = training.one();
        assert_eq!((told.id, told.unheard_since), (id, None));
    }
    training.ticks(4, |_| STILL, |_| {}).await;
    assert_eq!(training.world.open(), [], "they came out of it");
}

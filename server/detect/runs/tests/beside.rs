//! What is told of a run by its limits, beside what is judged of its steps and numbers.

use super::*;

/// Ticks since the world began, at which something is said.
fn ticks(live: &Live) -> f64 {
    live.last_point.since(fixture::NOW) as f64 / 1e10
}

fn families(training: &Training) -> Vec<Family> {
    training.world.open().iter().map(|it| it.family).collect()
}

#[tokio::test]
async fn what_a_limit_told_of_a_run_is_over_with_it_also_where_neither_steps_nor_losses_are_told() {
    let mut training = Training::without_steps().await;
    training.says = Some(Box::new(|rank, live| {
        if rank == 3 {
            let ticks = ticks(live);
            // A retry each tick for some minutes; then, once, no memory at all.
            set(live, &training::MEMORY_RETRIES, ticks.min(75.0));
            let failed = if ticks >= 70.0 { 1.0 } else { 0.0 };
            set(live, &training::OUT_OF_MEMORY, failed);
        }
    }));
    let without = |_: u32| Does {
        busy_ms: None,
        ..WELL
    };
    training.ticks(75, without, |_| {}).await;
    let told = families(&training);
    assert_eq!(told.len(), 2, "{:#?}", training.world.open());
    assert!(told.contains(&Family::Training) && told.contains(&Family::Slower));
    training.ticks(100, without, |_| {}).await;
    assert_eq!(training.world.open(), []);
}

#[tokio::test]
async fn numbers_that_went_wrong_are_not_over_where_no_loss_is_told_any_more() {
    let mut training = Training::new().await;
    training.says = Some(Box::new(|_, live| {
        let steps = ticks(live) * 10.0;
        set(live, &training::LAST_STEP, steps);
        set(live, &training::NON_FINITE_LOSSES, steps);
    }));
    training.ticks(3, |_| WELL, |_| {}).await;
    let told = training.one();
    assert_eq!(
        (told.family, &*told.what),
        (Family::Training, "its loss is not finite")
    );
    training.says = Some(Box::new(|_, live| {
        set(live, &training::LAST_STEP, ticks(live) * 10.0);
    }));
    training.ticks(20, |_| WELL, |_| {}).await;
    let known = training.one();
    assert_eq!(known.id, told.id);
    assert!(known.unheard_since.is_some(), "nobody knows whether it is");
}

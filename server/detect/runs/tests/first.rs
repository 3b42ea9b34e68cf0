//! Runs that have made no step: one that never will, and those that start, work without steps or are not known.

use super::*;
use crate::runs::words::sentence;

/// Ticks until a run that makes no first step is told: half an hour of them.
const LIMIT: usize = 180;

/// Ranks that say how many steps they have made, and that they are in their phase since they came up.
fn steps(count: f64) -> Option<Says> {
    Some(Box::new(move |_, live| {
        set(live, &training::STEPS, count);
        let age = live.last_point.since(fixture::NOW) / NANOS_PER_SECOND;
        set(live, &training::PHASE_AGE, age as f64);
    }))
}

/// A rank that makes no step, in this phase; in a collective for so many seconds, or in none.
fn starts(phase: f64, seconds: impl Fn(u32) -> Option<f64>) -> impl Fn(u32) -> Does {
    move |rank| Does {
        busy_ms: None,
        phase,
        collective_s: seconds(rank),
        ..WELL
    }
}

/// A run that has just come up and says that it has made no step.
async fn up() -> Training {
    let mut training = Training::without_steps().await;
    training.says = steps(0.0);
    for rank in 0..RANKS {
        training.hears((EventKind::RunStarted, Severity::Info), rank, &[]);
    }
    training
}

fn unreadable(live: &mut Live) {
    live.values.retain(|it| it.metric != gpu::TENSOR_ACTIVE.id);
}

#[tokio::test]
async fn a_run_that_never_makes_its_first_step_is_told_with_its_price_until_it_makes_one() {
    let mut training = up().await;
    let startup = gpufleet_telemetry::training::Phase::Startup.code();
    training
        .ticks(LIMIT, starts(startup, |_| None), set_idle)
        .await;
    assert_eq!(training.world.open(), [], "a start may take half an hour");
    training.ticks(2, starts(startup, |_| None), set_idle).await;
    let told = training.one();
    assert_eq!((told.family, told.place.rank), (Family::Hang, None));
    assert_eq!(told.severity, Severity::Warning, "it may compile");
    let expected = "the run has not made its first step and stands still and computes nothing";
    assert_eq!(told.what, expected);
    assert_eq!(told.losing.milli_gpus, 16_000);
    assert_eq!(told.losing.nano_usd_per_hour(), Some(16 * 36_000_000_000));
    let up = told.evidence[0].readings.iter();
    let mut up = up.filter(|it| it.name == "ranks that came up");
    let up = up.next().map(|it| (it.value, it.usual));
    assert_eq!(up, Some((16.0, Some(16.0))));
    let key = RunKey::of(
        &"prod".into(),
        &RankId::parse(&format!("{RUN}/0")).expect("an id"),
    );
    let (open, now) = (training.world.open(), training.world.hand.now());
    let runs = training.world.app.fleet.runs();
    let said = runs.look(&key, |run| sentence(run, &open, now, "USD"));
    let said = said.expect("it is known");
    let starts_with = "Runs, and has told no step since it came up at ";
    assert!(
        said.starts_with(starts_with) && said.contains("that costs $576.00/h"),
        "{said}"
    );
    training.says = steps(10.0);
    training.ticks(4, |_| WELL, |_| {}).await;
    assert_eq!(training.world.open(), []);
}

#[tokio::test]
async fn a_run_whose_script_tells_no_steps_and_that_computed_before_is_not_said_to_start() {
    let mut training = up().await;
    let computes = |live: &mut Live| {
        if live.key.kind == ResourceKind::Gpu {
            set(live, &gpu::TENSOR_ACTIVE, 0.4);
        }
    };
    training.ticks(30, starts(0.0, |_| None), computes).await;
    training
        .ticks(LIMIT - 1, starts(0.0, |_| None), set_idle)
        .await;
    assert_eq!(training.world.open(), [], "it may prepare something");
    training.ticks(10, starts(0.0, |_| None), set_idle).await;
    let told = training.one();
    assert_eq!((told.family, told.place.rank), (Family::Hang, None));
    let expected = "the run computed without telling a step and stands still and computes nothing";
    assert_eq!(told.what, expected);
    let name = "without a step told, and not busy, for";
    let mut readings = told.evidence[0].readings.iter();
    assert!(readings.any(|it| it.name == name));
    // Nor by a server that began anew since.
    let config = training.world.app.config.detect.clone();
    training.restarts(false, &config);
    training.ticks(4, starts(0.0, |_| None), set_idle).await;
    let again = training.one();
    assert_eq!((again.id, &*again.what), (told.id, expected));
    let said: Vec<&str> = again.evidence.iter().map(|it| &*it.what).collect();
    assert_eq!(said, [expected]);
    assert_eq!(again.losing.milli_gpus, 16_000, "all of it stands");
}

#[tokio::test]
async fn a_collective_that_stands_since_the_start_names_the_rank_that_never_came() {
    let mut training = up().await;
    let stands = |rank| (rank != 9).then_some(1_900.0);
    training.ticks(LIMIT, starts(0.0, stands), unreadable).await;
    assert_eq!(training.world.open(), []);
    training.ticks(2, starts(0.0, stands), unreadable).await;
    let told = training.one();
    assert_eq!((told.family, told.place.rank), (Family::Hang, Some(9)));
    assert_eq!(told.severity, Severity::Error);
    assert!(told.what.starts_with("the run has not made its first step"));
}

#[tokio::test]
async fn a_run_that_computes_restores_or_says_nothing_of_steps_is_let_alone() {
    let idle: fn(&mut Live) = set_idle;
    for (what, says, phase, change) in [
        (
            "it computes, and its script tells no steps",
            true,
            0.0,
            (|_| {}) as fn(&mut Live),
        ),
        ("it restores a checkpoint", true, 7.0, idle),
        ("nobody says that it makes no steps", false, 0.0, idle),
        ("whether it computes cannot be read", true, 0.0, unreadable),
    ] {
        let mut training = up().await;
        training.says = steps(0.0).filter(|_| says);
        let does = starts(phase, |_| None);
        training.ticks(LIMIT + 10, does, change).await;
        assert_eq!(training.world.open(), [], "{what}");
    }
}

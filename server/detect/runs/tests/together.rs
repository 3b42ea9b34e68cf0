//! What ranks do together: in which collective a run stands, and whom the others wait for where steps do not say it.

use gpufleet_telemetry::identity::{Part, PartKind};
use gpufleet_telemetry::training::{CollectivesFrom, attribute as about};

use super::*;
use crate::fleet::LiveValue;
use crate::runs::words::sentence;

fn put(live: &mut Live, metric: &Metric, name: &str, value: f64) {
    let part = Part::new(PartKind::Collective, name);
    let is_it = |it: &LiveValue| it.metric == metric.id && it.part.as_deref() == Some(&part);
    live.values.retain(|it| !is_it(it));
    live.values.push(LiveValue {
        metric: metric.id,
        part: Some(part.clone().into()),
        reading: Ok(value),
        max: None,
        at: live.last_point,
    });
    live.values
        .sort_by(|one, other| (one.metric, &one.part).cmp(&(other.metric, &other.part)));
}

/// The communicator of a rank's tensor-parallel group of four, with its collectives there.
fn tensor(rank: u32) -> String {
    format!("{:016x}/AllReduce", rank / 4)
}

/// The one of its data-parallel group, over the nodes.
fn data(rank: u32) -> String {
    format!("{:016x}/ReduceScatter", 0x100 + rank % 4)
}

/// Ranks that count their collectives, as `counts` says: tensor-parallel ones, and data-parallel ones.
fn counting(from: CollectivesFrom, counts: impl Fn(u32) -> (f64, f64) + 'static) -> Option<Says> {
    Some(Box::new(move |rank, live| {
        let (in_pairs, over_nodes) = counts(rank);
        set(live, &training::COLLECTIVES_FROM, from.number() as f64);
        put(live, &training::COLLECTIVE_CALLS, &tensor(rank), in_pairs);
        put(live, &training::COLLECTIVE_CALLS, &data(rank), over_nodes);
    }))
}

/// Nobody steps; each rank is in a collective for so many seconds, or in none.
fn stand(seconds: impl Fn(u32) -> Option<f64>) -> impl Fn(u32) -> Does {
    move |rank| Does {
        busy_ms: None,
        phase: 5.0,
        collective_s: seconds(rank),
        ..WELL
    }
}

/// A reading and what it is with the others.
type Beside = (f64, Option<f64>);

/// The rank that the run waits for, what is said, and what it entered of the others'.
fn hung(training: &Training) -> (Option<u32>, String, Option<Beside>) {
    let told = training.one();
    assert_eq!(told.family, Family::Hang);
    let readings = told.evidence[0].readings.iter();
    let mut entered = readings.filter(|it| it.name == "such collectives that it entered");
    let entered = entered.next().map(|it| (it.value, it.usual));
    (told.place.rank, told.what, entered)
}

#[tokio::test]
async fn a_run_that_stands_names_the_collective_that_its_neighbours_were_the_first_to_wait_in() {
    let mut training = Training::new().await;
    training.says = counting(CollectivesFrom::Plugin, |_| (3_200.0, 10.0));
    // Rank 9 never came; its group of four waits in the next AllReduce, all others somewhat later over the nodes.
    let seconds = |rank| match rank {
        9 => None,
        8..12 => Some(150.0),
        _ => Some(149.0),
    };
    training.ticks(14, stand(seconds), |_| {}).await;
    let (rank, what, entered) = hung(&training);
    assert_eq!(rank, Some(9));
    let expected = "the run stands still in AllReduce on communicator 2 and waits for this rank";
    assert_eq!(what, expected);
    assert_eq!(entered, Some((3_200.0, Some(3_201.0))));
    training.ticks(4, |_| WELL, |_| {}).await;
    assert_eq!(training.world.open(), []);
}

#[tokio::test]
async fn of_ranks_that_are_all_in_a_collective_the_one_that_is_least_far_is_waited_for() {
    let mut training = Training::new().await;
    let counts = |rank| (3_200.0, if rank == 9 { 7.0 } else { 10.0 });
    training.says = counting(CollectivesFrom::Plugin, counts);
    training.ticks(14, stand(|_| Some(150.0)), |_| {}).await;
    let (rank, what, entered) = hung(&training);
    assert_eq!(rank, Some(9));
    let expected =
        "the run stands still in ReduceScatter on communicator 101 and waits for this rank";
    assert_eq!(what, expected);
    assert_eq!(entered, Some((8.0, Some(11.0))));
}

#[tokio::test]
async fn all_ranks_in_one_collective_name_it_and_nobody() {
    let mut training = Training::new().await;
    training.says = counting(CollectivesFrom::Plugin, |_| (3_200.0, 10.0));
    training.ticks(14, stand(|_| Some(150.0)), |_| {}).await;
    let (rank, what, entered) = hung(&training);
    assert_eq!((rank, entered), (None, None));
    let expected =
        "the run stands still in AllReduce on communicator 0, which all its ranks are in";
    assert_eq!(what, expected);
}

#[tokio::test]
async fn counts_of_nccls_own_service_count_when_every_rank_was_asked_again() {
    let mut training = Training::new().await;
    let counts = |rank| (if rank == 9 { 98.0 } else { 99.0 }, 10.0);
    training.says = counting(CollectivesFrom::Ras, counts);
    let nobody = stand(|_| None);
    training.ticks(22, &nobody, |_| {}).await;
    assert_eq!(training.world.open(), [], "some counts may be of before");
    training.ticks(5, &nobody, |_| {}).await;
    let (rank, what, entered) = hung(&training);
    assert_eq!(rank, Some(9));
    let expected = "the run stands still in AllReduce on communicator 2 and waits for this rank";
    assert_eq!(what, expected);
    assert_eq!(entered, Some((98.0, Some(99.0))));
}

#[tokio::test]
async fn a_rank_that_is_found_after_its_run_was_told_to_stand_is_where_the_incident_is() {
    let mut training = Training::new().await;
    let counts = |rank| (if rank == 9 { 98.0 } else { 99.0 }, 10.0);
    training.says = counting(CollectivesFrom::Ras, counts);
    let nobody = stand(|_| None);
    training.ticks(22, &nobody, set_idle).await;
    let before = training.one();
    assert_eq!(before.what, "the run stands still and computes nothing");
    assert_eq!(before.place_and_run().rank, None);
    training.ticks(5, &nobody, set_idle).await;
    let (rank, what, _) = hung(&training);
    assert_eq!(rank, Some(9));
    assert!(what.ends_with("and waits for this rank"), "{what}");
    let told = training.one();
    assert_eq!(told.id, before.id);
    let place = told.place_and_run();
    assert_eq!(place.rank, Some(9));
    assert_eq!(place.node.as_deref(), Some("node-2"));
    assert_eq!(place.gpu.as_deref(), Some("GPU-prod-node-2-0001"));
}

#[tokio::test]
async fn what_an_agent_says_is_stuck_is_named_where_nothing_is_counted() {
    let mut training = Training::new().await;
    let seconds = |rank| (rank != 9).then_some(150.0);
    training.ticks(8, stand(seconds), |_| {}).await;
    let told = [
        (about::COMMUNICATOR, "00000000000000ab"),
        (about::FUNCTION, "AllGather"),
    ];
    training.hears((EventKind::CollectiveStuck, Severity::Error), 3, &told);
    training.ticks(6, stand(seconds), |_| {}).await;
    let (rank, what, _) = hung(&training);
    assert_eq!(rank, Some(9));
    let expected = "the run stands still in AllGather on communicator ab and waits for this rank";
    assert_eq!(what, expected);
}

/// Ranks that tell nothing of waits in their steps, and how long their collectives took in all: ten a second on
/// one communicator, of 2 ms each and what they wait for rank 5 when it is late.
fn timed(late: bool) -> Option<Says> {
    timed_where(if late { &[5] } else { &[] })
}

/// The same where they wait for these ranks.
fn timed_where(late: &'static [u32]) -> Option<Says> {
    Some(Box::new(move |rank, live| {
        set(live, &training::STEP_WALL, 1_000.0);
        set(live, &training::STEP_COMMUNICATION_WAIT, 0.0);
        let plugin = CollectivesFrom::Plugin.number() as f64;
        set(live, &training::COLLECTIVES_FROM, plugin);
        let seconds = live.last_point.seconds() as f64 - 1_700_000_000.0;
        let comes_first = !late.is_empty() && !late.contains(&rank);
        let waits = if comes_first { 0.02 } else { 0.0 };
        let name = "00000000000000c7/AllReduce";
        put(live, &training::COLLECTIVE_CALLS, name, seconds * 10.0);
        let took = 2e6 + seconds * 10.0 * (0.002 + waits);
        put(live, &training::COLLECTIVE_DURATION, name, took);
    }))
}

/// What a rank does whose script times no waits: its own time is all of the step.
fn blind(_: u32) -> Does {
    Does {
        busy_ms: Some(970),
        ..WELL
    }
}

#[tokio::test]
async fn whom_all_wait_for_in_collectives_is_named_where_steps_tell_no_waits() {
    let mut training = Training::new().await;
    training.says = timed(false);
    training.ticks(35, blind, |_| {}).await;
    assert_eq!(training.world.open(), [], "nobody waits for long");
    training.says = timed(true);
    // What they took in all jumps by what they would have waited before: one tick that says nothing.
    training.ticks(14, blind, |_| {}).await;
    let told = training.one();
    assert_eq!((told.family, told.place.rank), (Family::Straggler, Some(5)));
    assert_eq!(told.what, "makes the other ranks wait");
    let lost = told.losing.milli_gpus;
    assert!((3_000..3_400).contains(&lost), "a fifth of 16 GPUs: {lost}");
    let key = RunKey::of(
        &"prod".into(),
        &RankId::parse(&format!("{RUN}/5")).expect("an id"),
    );
    let runs = training.world.app.fleet.runs();
    let named = runs.look(&key, |run| {
        let judged = run.who_waits().expect("it is judged");
        judged
            .verdict
            .stragglers
            .iter()
            .map(|it| it.rank)
            .collect::<Vec<_>>()
    });
    assert_eq!(named, Some(vec![5]));
    let open = training.world.open();
    let now = training.world.hand.now();
    let sentence = runs.look(&key, |run| sentence(run, &open, now, "USD"));
    let sentence = sentence.expect("it is known");
    let starts = "Rank 5 on node-1 takes 1.2";
    assert!(
        sentence.starts_with(starts),
        "its page says so too: {sentence}"
    );
    // Nobody measures any more: nobody knows whether it is over.
    training.says = Some(Box::new(|_, live| {
        set(live, &training::STEP_WALL, 1_000.0);
        set(live, &training::STEP_COMMUNICATION_WAIT, 0.0);
        let plugin = CollectivesFrom::Plugin.number() as f64;
        set(live, &training::COLLECTIVES_FROM, plugin);
    }));
    training.ticks(30, blind, |_| {}).await;
    assert_eq!(training.one().id, told.id);
    assert!(training.one().unheard_since.is_some());
    training.says = timed(false);
    training.ticks(60, blind, |_| {}).await;
    assert_eq!(training.world.open(), []);
}

#[tokio::test]
async fn a_run_without_steps_is_judged_by_its_collectives_and_one_whose_steps_tell_waits_by_them() {
    let without = |_: u32| Does {
        busy_ms: None,
        ..WELL
    };
    let mut training = Training::without_steps().await;
    training.says = timed(true);
    training.ticks(35, without, |_| {}).await;
    assert_eq!(training.one().place.rank, Some(5));

    let mut training = Training::new().await;
    let waits = timed(true).expect("it says something");
    training.says = Some(Box::new(move |rank, live| {
        waits(rank, live);
        set(live, &training::STEP_COMMUNICATION_WAIT, 280.0);
    }));
    training.ticks(45, |_| WELL, |_| {}).await;
    assert_eq!(
        training.world.open(),
        [],
        "its steps say that nobody is slow"
    );
}

#[tokio::test]
async fn a_second_rank_that_all_wait_for_does_not_end_what_was_said_of_the_first() {
    let without_mesh = |late: &'static [u32]| -> Option<Says> {
        let says = timed_where(late).expect("it says something");
        Some(Box::new(move |rank, live| {
            says(rank, live);
            let resource = (*live.resource).clone();
            live.resource = resource.with(attribute::MESH, "").into();
        }))
    };
    let mut training = Training::new().await;
    training.says = without_mesh(&[]);
    training.ticks(35, blind, |_| {}).await;
    training.says = without_mesh(&[5]);
    training.ticks(14, blind, |_| {}).await;
    let told = training.one();
    assert_eq!((told.family, told.place.rank), (Family::Straggler, Some(5)));
    // Without stages two of 16 may be a stage: where both are seen nobody is blamed, and the first is not well again.
    training.says = without_mesh(&[5, 9]);
    training.ticks(30, blind, |_| {}).await;
    let is_open = |training: &Training| training.world.open().iter().any(|it| it.id == told.id);
    assert!(is_open(&training), "it waits as long as before");
    training.says = without_mesh(&[5]);
    training.ticks(50, blind, |_| {}).await;
    assert!(is_open(&training), "and now");
    training.says = without_mesh(&[]);
    training.ticks(60, blind, |_| {}).await;
    assert_eq!(training.world.open(), []);
}

//! A run that is slower than the runs before it.

use gpufleet_analysis::price::Basis;

use super::*;
use crate::runs::SlowerThanBefore;

#[tokio::test]
async fn a_run_slower_than_those_before_it_is_one_incident_with_what_that_takes() {
    let mut training = Training::new().await;
    training.ticks(1, |_| WELL, |_| {}).await;
    let id = RankId::parse(&format!("{RUN}/0")).expect("an id");
    let key = RunKey::of(&"prod".into(), &id);
    let runs = training.world.app.fleet.runs();
    let judged = runs.look(&key, |run| run.judged.clone()).flatten();
    let mut judged = judged.expect("it was judged");
    let since = training.world.hand.now().shifted(-200 * NANOS_PER_SECOND);
    judged.before = Some(SlowerThanBefore {
        runs: 4,
        step_ns: 1e9,
        usual_ns: 0.75e9,
        since,
    });
    runs.judge(&key, Some(judged));
    training.world.ticks(1, |_| {});
    let told = training.one();
    assert_eq!((told.family, told.cause), (Family::Slower, Cause::Unknown));
    assert_eq!(told.place.run.as_deref(), Some(RUN));
    assert_eq!(told.place.rank, None, "it names nobody");
    // A quarter of each step of 16 GPUs.
    assert_eq!(told.losing.milli_gpus, 4_000);
    assert_eq!(told.basis, Basis::LongerThanRuns);
    // Of the steps too by which it was found.
    assert_eq!((told.since, told.lost.gpu_seconds()), (since, 4.0 * 210.0));
}

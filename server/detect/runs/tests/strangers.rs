//! Ranks that are not believed: who only claims to be one of a proved run, and who is beyond the world that it says.

use gpufleet_telemetry::training::Trust;

use super::*;

/// So many ranks the run says it has: one more than are there.
const WORLD: u32 = RANKS + 1;

/// A rank whose identity its node proved, or which only claims it, and how many it says there are.
fn says(live: &mut Live, trust: Trust, world: u32) {
    let resource = (*live.resource).clone();
    live.resource = resource
        .with(attribute::TRUST, trust.name())
        .with(attribute::WORLD, world.to_string())
        .into();
}

/// Others say now that they are ranks of the run, on a node that nobody knows, one of them inside of its world; both
/// compute on this GPU.
fn come(training: &Training, gpu: &str) {
    let app = &training.world.app;
    let ranks = [(RANKS, Trust::Claimed, WORLD), (70, Trust::Proved, 100)];
    for (rank, trust, world) in ranks {
        let id = format!("{RUN}/{rank}");
        let mut live = fixture::live("prod", "elsewhere", ResourceKind::Rank, &id, Origin::Live);
        let resource = (*live.resource).clone();
        live.resource = resource.with(attribute::GPU_ID, gpu).into();
        says(&mut live, trust, world);
        let heard = Heard {
            agent: AgentId(uuid::Uuid::from_u128(99)),
            lane: Lane::Live,
            received: training.world.hand.now(),
        };
        let runs = app.fleet.runs();
        runs.rank(&live, heard).expect("there is room");
    }
}

async fn proved() -> Training {
    let mut training = Training::without_steps().await;
    training.says = Some(Box::new(|_, live| says(live, Trust::Proved, WORLD)));
    training.ticks(6, |_| WELL, |_| {}).await;
    assert_eq!(training.world.open(), []);
    training
}

#[tokio::test]
async fn ranks_that_are_not_believed_change_no_price_and_are_not_waited_for() {
    let mut training = proved().await;
    come(&training, "GPU-unknown");
    training.ticks(8, slow(5), |_| {}).await;
    let told = training.one();
    assert_eq!((told.family, told.place.rank), (Family::Straggler, Some(5)));
    let lost = told.losing.milli_gpus;
    assert!((3_000..3_600).contains(&lost), "of 16 GPUs: {lost}");
    assert!(told.losing.nano_usd_per_hour().is_some());

    let mut training = proved().await;
    // They fall silent as the run stops.
    come(&training, "GPU-unknown");
    let stands = |rank: u32| Does {
        busy_ms: None,
        phase: 5.0,
        collective_s: (rank != 9).then_some(150.0),
        ..WELL
    };
    training.ticks(15, stands, |_| {}).await;
    let told = training.one();
    assert_eq!((told.family, told.place.rank), (Family::Hang, Some(9)));
    assert_eq!(told.losing.milli_gpus, 16_000);
    assert!(told.losing.nano_usd_per_hour().is_some());
}

#[tokio::test]
async fn idle_gpus_that_ranks_name_which_are_not_believed_are_their_own_jobs() {
    let mut training = Training::without_steps().await;
    training.says = Some(Box::new(|_, live| says(live, Trust::Proved, WORLD)));
    training.world.detectors.idle.after_s = 60;
    // The run is on the first node alone.
    let does = |rank: u32| Does {
        is_heard: rank < 8,
        ..WELL
    };
    let idle = |live: &mut Live| {
        if &*live.node == "node-2" && live.key.kind == ResourceKind::Gpu {
            live.bits.active = 0;
        }
    };
    training.ticks(1, does, idle).await;
    come(&training, "GPU-prod-node-2-0000");
    training.ticks(45, does, idle).await;
    let told = training.one();
    assert_eq!(told.family, Family::Idle);
    assert_eq!(told.place.run.as_deref(), Some("pod:research/train-7b"));
    assert_eq!(told.losing.milli_gpus, 8_000);
}

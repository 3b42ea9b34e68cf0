//! A job that tells nothing of itself, on 16 GPUs of two nodes: whose clock is low, and what comes of it.

use std::sync::Arc;

use gpufleet_analysis::cause::Cause;
use gpufleet_analysis::incident::{Incident, State};
use gpufleet_telemetry::catalog::{Metric, training};
use gpufleet_telemetry::identity::{Origin, Resource, ResourceKind, attribute};
use gpufleet_telemetry::sample::Missing;
use gpufleet_telemetry::time::Clock as _;

use super::*;
use crate::detect::runs::tests::{Training, WELL};
use crate::detect::tests::{World, is_gpu, set};
use crate::fleet::Live;
use crate::view::fixture::{self, Does};

const GANG: &str = "jobset:research/train-7b";
const USUAL: f64 = 1.98e9;
/// Ticks at work before anybody is judged, and some more.
const LEARNT: usize = 30;
/// Ticks in which a GPU has to be named whose clock fell: two minutes.
const NAMED: usize = 12;

/// Says of every GPU what started the pod that holds it.
fn held_by(world: &mut World, workload: &str) {
    let gpus = world.lives.iter_mut();
    for live in gpus.filter(|it| it.key.kind == ResourceKind::Gpu) {
        let resource = Resource::clone(&live.resource);
        live.resource = Arc::new(resource.with(attribute::WORKLOAD, workload));
    }
}

async fn world(workload: &str) -> World {
    let mut world = World::new().await;
    held_by(&mut world, workload);
    world.ticks(LEARNT, |_| {});
    assert_eq!(world.open(), [], "a job that is well");
    world
}

/// One GPU's clock, and how busy its tensor cores are beside 0.4 of the others; none is not read.
fn clock(part: f64, tensor: Option<f64>) -> impl Fn(&mut Live) + Copy {
    move |live| {
        if live.key.kind != ResourceKind::Gpu {
            return;
        }
        let is_low = is_gpu(live, "node-2", 3);
        set(
            live,
            &gpu::SM_CLOCK,
            if is_low { part } else { 1.0 } * USUAL,
        );
        if let Some(tensor) = tensor {
            let own = if is_low { tensor } else { 0.4 };
            set(live, &gpu::TENSOR_ACTIVE, own);
        }
    }
}

fn grow(live: &mut Live, metric: &Metric, by: f64) {
    let before = live.value(metric.id).and_then(|it| it.reading.ok());
    set(live, metric, before.unwrap_or(0.0) + by);
}

fn one(world: &World) -> Incident {
    let open = world.open();
    assert_eq!(open.len(), 1, "{open:#?}");
    open[0].clone()
}

#[tokio::test]
async fn a_gpu_with_a_low_clock_is_probably_why_its_job_waits_with_what_that_costs_until_it_is_as_fast()
 {
    let mut world = world(GANG).await;
    let fell = world.hand.now();
    world.ticks(NAMED, clock(0.8, None));
    let told = one(&world);
    assert_eq!(
        (told.family, told.cause),
        (Family::Straggler, Cause::Unknown)
    );
    assert_eq!(told.what, "probably makes the other GPUs of its job wait");
    let place = &told.place;
    assert_eq!(place.gpu.as_deref(), Some("GPU-prod-node-2-0003"));
    assert_eq!((place.run.as_deref(), place.rank), (Some(GANG), None));
    let late = told.opened_at.expect("it opened").since(fell) / NANOS_PER_SECOND;
    assert!((60..=120).contains(&late), "{late} s");
    assert!(told.since.since(fell).abs() <= 20 * NANOS_PER_SECOND);
    // 16 GPUs could be a fifth faster.
    assert!(told.losing.milli_gpus.abs_diff(3_200) < 5);
    assert!(told.losing.nano_usd_per_hour() > Some(0));
    let clock_read = told.evidence[0].readings.iter();
    let clock_read: Vec<_> = clock_read.filter(|it| it.name == CLOCK).collect();
    assert_eq!(clock_read.len(), 1, "{:?}", told.evidence[0].readings);
    assert_eq!(
        (clock_read[0].value, clock_read[0].usual),
        (0.8 * USUAL, Some(USUAL))
    );
    world.ticks(NAMED + 10, clock(1.0, None));
    assert_eq!(world.open(), []);
    let over = world.app.incidents.get(told.id).expect("it was lately");
    assert_eq!(over.state, State::Resolved);
}

#[tokio::test]
async fn nobody_waits_for_a_replica_that_serves_nor_for_what_nobody_knows() {
    for workload in [
        "deployment:inference/chat",
        "leaderworkerset:inference/chat",
        "statefulset:inference/chat",
        "",
    ] {
        let mut world = world(workload).await;
        world.ticks(2 * NAMED, clock(0.8, Some(0.5)));
        assert_eq!(world.open(), [], "{workload}");
    }
}

#[tokio::test]
async fn of_a_job_that_may_work_off_a_queue_its_work_says_whether_the_others_wait() {
    for (tensor, is_named) in [(None, false), (Some(0.4), false), (Some(0.5), true)] {
        let mut world = world("job:research/sweep").await;
        world.ticks(NAMED, clock(0.8, tensor));
        assert_eq!(!world.open().is_empty(), is_named, "{tensor:?}");
    }
}

#[tokio::test]
async fn clocks_that_differ_by_some_percent_and_many_that_are_low_name_nobody() {
    let mut world = world(GANG).await;
    world.ticks(3 * NAMED, clock(0.93, Some(0.43)));
    assert_eq!(world.open(), []);
    world.ticks(3 * NAMED, |live| {
        let is_low = live.key.kind == ResourceKind::Gpu && &*live.node == "node-2";
        if is_low {
            set(live, &gpu::SM_CLOCK, 0.8 * USUAL);
        }
    });
    assert_eq!(world.open(), []);
}

#[tokio::test]
async fn two_slow_gpus_bear_together_what_their_job_loses_and_no_more() {
    let mut world = World::new().await;
    for node in ["node-3", "node-4"] {
        world.lives.push(fixture::without_readers("prod", node));
        let gpus = (0..8).map(|it| fixture::gpu("prod", node, it, Does::Work, Origin::Live));
        world.lives.extend(gpus);
    }
    held_by(&mut world, GANG);
    world.ticks(LEARNT, |_| {});
    world.ticks(2 * NAMED, |live| {
        clock(0.8, None)(live);
        if is_gpu(live, "node-3", 1) {
            set(live, &gpu::SM_CLOCK, 0.75 * USUAL);
        }
    });
    let open = world.open();
    let mut lost: Vec<u64> = open.iter().map(|it| it.losing.milli_gpus).collect();
    lost.sort_unstable();
    let [less, more] = lost[..] else {
        panic!("both are slow: {open:#?}");
    };
    // A quarter of 32 GPUs. With the slower mended alone the other would hold them up by a fifth.
    assert!((less + more).abs_diff(8_000) < 20, "{lost:?}");
    assert!((more - less).abs_diff(2_000) < 20, "{lost:?}");
    let equal = shares(&[1.0 / 0.77, 1.0 / 0.77]);
    let is_half = |it: &f64| (it - 0.115).abs() < 1e-9;
    assert!(equal.iter().all(is_half), "{equal:?}");
}

#[tokio::test]
async fn a_second_slow_gpu_does_not_end_what_was_said_of_the_first() {
    let mut world = world(GANG).await;
    world.ticks(2 * NAMED, clock(0.8, None));
    let told = one(&world);
    // Two of 16 are more than can be named.
    world.ticks(2 * NAMED, |live| {
        clock(0.8, None)(live);
        if is_gpu(live, "node-1", 1) {
            set(live, &gpu::SM_CLOCK, 0.8 * USUAL);
        }
    });
    let both = one(&world);
    assert_eq!(both.id, told.id, "its job is as slow as before");
    assert!(both.unheard_since.is_some());
    world.ticks(4 * NAMED, clock(0.8, None));
    assert_eq!(one(&world).id, told.id);
    world.ticks(4 * NAMED, clock(1.0, None));
    assert_eq!(world.open(), []);
}

#[tokio::test]
async fn a_hot_gpu_is_the_heats_incident_which_says_what_it_does_to_its_job() {
    let mut world = world(GANG).await;
    let heat = |live: &mut Live| {
        if live.key.kind == ResourceKind::Gpu {
            let is_hot = is_gpu(live, "node-2", 3);
            grow(
                live,
                &gpu::THROTTLE_THERMAL,
                if is_hot { 10.0 } else { 0.0 },
            );
        }
        clock(0.8, None)(live);
    };
    world.ticks(2 * NAMED, heat);
    let told = one(&world);
    assert_eq!((told.family, told.cause), (Family::Heat, Cause::Heat));
    let probably = told
        .evidence
        .iter()
        .find(|it| it.what.starts_with("probably"));
    let probably = probably.expect("that the others wait");
    assert_eq!(probably.place.run.as_deref(), Some(GANG));
    let lost = told.losing.milli_gpus;
    assert!(lost.abs_diff(3_200) < 5, "what all lose that wait: {lost}");
}

#[tokio::test]
async fn a_job_that_rests_and_clocks_that_are_not_read_accuse_nobody_and_end_nothing() {
    let unread = |live: &mut Live| {
        let values = live.values.iter_mut();
        for value in values.filter(|it| it.metric == gpu::SM_CLOCK.id) {
            value.reading = Err(Missing::NotSupported);
        }
    };
    let rests = |live: &mut Live| live.bits.active = 0;
    let mut world = world(GANG).await;
    world.ticks(2 * NAMED, unread);
    assert_eq!(world.open(), [], "nobody is accused by what is missing");
    for change in [&unread as &dyn Fn(&mut Live), &rests] {
        world.ticks(LEARNT, clock(0.8, None));
        let id = one(&world).id;
        world.ticks(2 * NAMED, change);
        let told = one(&world);
        assert_eq!(told.id, id);
        assert!(told.unheard_since.is_some());
        world.ticks(1, |live| live.bits.active = live.bits.observed);
    }
}

#[tokio::test]
async fn a_job_whose_run_tells_its_steps_is_judged_by_them_alone() {
    for (waits, is_named) in [(280.0, false), (0.0, true)] {
        let mut training = Training::new().await;
        held_by(&mut training.world, GANG);
        training.says = Some(Box::new(move |_, live| {
            set(live, &training::STEP_WALL, 1_000.0);
            set(live, &training::STEP_COMMUNICATION_WAIT, waits);
        }));
        let tick = |part: f64| clock(part, None);
        training.ticks(LEARNT, |_| WELL, tick(1.0)).await;
        training.ticks(NAMED, |_| WELL, tick(0.8)).await;
        let open = training.world.open();
        // Where nobody tells waits all ranks look alike, and their clocks are what is left.
        assert_eq!(open.len(), usize::from(is_named), "{open:#?}");
    }
}

#[test]
fn the_state_of_a_gpu_takes_no_more_than_is_said() {
    let mut run = straggler::Run::new(Source::Telemetry);
    for step in 0..100 {
        let reading = |rank| straggler::Reading {
            rank,
            seat: straggler::Seat::default(),
            busy_ns: 1_000,
        };
        run.observe(&straggler::Step {
            step,
            wall_ns: 0,
            readings: &(0..64).map(reading).collect::<Vec<_>>(),
        });
    }
    let (bytes, gpus) = run.bytes();
    assert_eq!(gpus, 64);
    assert!(bytes <= straggler::RANK_BYTES * gpus, "{bytes}");
}

#[tokio::test]
async fn what_is_not_read_of_one_model_of_a_job_keeps_nothing_open_of_another() {
    let mut world = World::new().await;
    held_by(&mut world, GANG);
    let of_node_2 = |it: &&mut Live| it.key.kind == ResourceKind::Gpu && &*it.node == "node-2";
    for live in world.lives.iter_mut().filter(of_node_2) {
        let resource = Resource::clone(&live.resource);
        live.resource = Arc::new(resource.with(attribute::GPU_MODEL, "NVIDIA H200"));
    }
    // One of each model is slow, as far as its node's clocks are read.
    let clocks = |first: Option<f64>, second: f64| {
        move |live: &mut Live| {
            if live.key.kind != ResourceKind::Gpu {
                return;
            }
            let is_first = &*live.node == "node-1";
            let is_low = is_gpu(live, &live.node, 3);
            let part = if is_first { first } else { Some(second) };
            set(live, &gpu::SM_CLOCK, USUAL);
            let values = live.values.iter_mut();
            for value in values.filter(|it| it.metric == gpu::SM_CLOCK.id) {
                let read = |part: f64| if is_low { part * USUAL } else { USUAL };
                value.reading = part.map(read).ok_or(Missing::NotSupported);
            }
        }
    };
    let open = |world: &World| {
        let open = world.open();
        let gpus = open.iter().filter_map(|it| it.place.gpu.clone());
        let mut gpus: Vec<String> = gpus.collect();
        gpus.sort_unstable();
        gpus
    };
    world.ticks(LEARNT, clocks(Some(1.0), 1.0));
    world.ticks(2 * NAMED, clocks(Some(0.8), 0.8));
    let both = ["GPU-prod-node-1-0003", "GPU-prod-node-2-0003"];
    assert_eq!(open(&world), both);
    world.ticks(LEARNT, clocks(None, 1.0));
    assert_eq!(
        open(&world),
        both[..1],
        "of it nobody knows whether it is over"
    );
}

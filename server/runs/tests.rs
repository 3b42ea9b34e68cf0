//! Runs through the fleet's front door: exactly once, what is complete, who is slow, why it ended.
//!
//! Longer than 500 lines because one made world serves all, from blocks of steps to a second server.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_analysis::ending::Cause;
use gpufleet_telemetry::catalog::{self, training};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{AgentId, Epoch, Resource, ResourceKind, attribute as named};
use gpufleet_telemetry::otlp::{
    DecodedEvent, DecodedEvents, DecodedMetrics, DecodedPoint, DecodedResource, DecodedSteps,
};
use gpufleet_telemetry::steps::{StepBlock, StepTimes};
use gpufleet_telemetry::tick::PointValue;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::training::{RankId, attribute};
use gpufleet_telemetry::wire::{Lane, Stream};
use uuid::Uuid;

use super::*;
use crate::fleet::{Body, Fleet, FleetConfig, Offer, Outcome, Restored};
use crate::store::model::{Commit, CursorKey, FencingToken};
use crate::store::{Store, StoreConfig};

/// The beginning of ten minutes.
const T: i64 = 1_790_000_400;

/// A block of a step a second: 10 steps.
const STEPS: u64 = 10;

/// A fleet and what its agents have sent. Each rank has an agent of its own.
struct World {
    fleet: Fleet,
    seqs: BTreeMap<(u128, Stream), u64>,
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_seconds(T + seconds)
}

fn rank_id(rank: u32) -> RankId {
    RankId::parse(&format!("team/llama/u1/0/{rank}")).expect("an id")
}

fn run_key() -> RunKey {
    RunKey::of(&"c".into(), &rank_id(0))
}

fn node() -> Arc<Resource> {
    let node = Resource::new(ResourceKind::Node, "n");
    Arc::new(node.with(named::CLUSTER, "c").with(named::NODE, "n"))
}

/// Ten steps of a second that begin at this step; the rank computes for so many of 1,000 ms of each.
fn block(first_step: u64, busy_ms: u64) -> StepBlock {
    let times = StepTimes {
        wall_ns: 1_000_000_000,
        busy_ns: busy_ms * 1_000_000,
        data_wait_ns: 0,
        comm_wait_ns: 0,
    };
    let begun = i64::try_from(first_step).expect("small");
    StepBlock {
        first_step,
        steps_log2: 0,
        started_at: at(begun),
        ended_at: at(begun + 10),
        tokens: 4_096,
        samples: 0,
        times: vec![times; 10],
    }
}

fn happened(rank: u32, seconds: i64, kind: EventKind, about: &[(&str, &str)]) -> Event {
    let about = about
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    Event {
        at: at(seconds),
        kind,
        severity: Severity::Info,
        resource_kind: ResourceKind::Rank,
        resource_id: rank_id(rank).to_string().into(),
        message: String::new(),
        attributes: about.collect(),
    }
}

impl World {
    fn new() -> Self {
        Self {
            fleet: Fleet::new(FleetConfig::default()),
            seqs: BTreeMap::new(),
        }
    }

    fn offer(&mut self, agent: u128, stream: Stream, seconds: i64, body: Body<'_>) -> Outcome {
        let seq = self.seqs.entry((agent, stream)).or_default();
        *seq += 1;
        let offer = Offer {
            key: CursorKey {
                agent: AgentId(Uuid::from_u128(agent)),
                epoch: Epoch(Uuid::from_u128(agent + 1_000)),
                stream,
            },
            seq: *seq,
            session: 1,
            lane: Lane::Live,
            dropped: None,
            sent_at: at(seconds),
            received: at(seconds),
            bound_cluster: None,
            default_cluster: "c".into(),
            body,
        };
        self.fleet.offer(&offer).outcome
    }

    fn send(&mut self, rank: u32, seconds: i64, blocks: Vec<StepBlock>, events: Vec<Event>) -> u64 {
        let event = |event| DecodedEvent {
            sender: node(),
            event,
        };
        let steps = DecodedSteps {
            sender: node(),
            rank: rank_id(rank),
            blocks,
        };
        let body = DecodedEvents {
            events: events.into_iter().map(event).collect(),
            steps: vec![steps],
            ..DecodedEvents::default()
        };
        let agent = u128::from(rank) + 1;
        match self.offer(agent, Stream::Logs, seconds, Body::Events(&body)) {
            Outcome::Folded(drops) => drops.total(),
            refused => panic!("{refused:?}"),
        }
    }

    /// A tick of a rank's metrics.
    fn introduce(&mut self, agent: u128, rank: u32, seconds: i64, world: u32) {
        let resource = Resource::new(ResourceKind::Rank, rank_id(rank).to_string())
            .with(named::CLUSTER, "c")
            .with(named::NODE, format!("n{rank}"))
            .with(named::WORLD, world.to_string())
            .with(named::MESH, format!("dp={rank}/{world}"))
            .with(named::GPU_ID, format!("GPU-{rank}"));
        let point = DecodedPoint {
            metric: catalog::by_id(training::LOSS.id).expect("in the catalog"),
            part: None,
            value: PointValue::Gauge {
                value: 2.5,
                max: None,
            },
            start: at(seconds - 10),
            at: at(seconds),
        };
        let body = DecodedMetrics {
            resources: vec![DecodedResource {
                resource: Arc::new(resource),
                points: vec![point],
            }],
            ..DecodedMetrics::default()
        };
        self.offer(agent, Stream::Metrics, seconds, Body::Metrics(&body));
    }

    fn complete(&self, place: &mut Place) -> Vec<CompleteStep> {
        self.fleet.runs().complete_steps(&run_key(), place, 1_000)
    }
}

#[test]
fn a_step_is_complete_when_every_rank_has_it_and_is_handed_out_once() {
    let mut world = World::new();
    let mut place = Place::default();
    for rank in 0..3 {
        world.introduce(u128::from(rank) + 1, rank, 1, 3);
    }
    world.send(0, 10, vec![block(0, 900)], Vec::new());
    world.send(1, 10, vec![block(0, 800)], Vec::new());
    assert_eq!(world.complete(&mut place), [], "rank 2 is still to come");
    world.send(2, 11, vec![block(0, 700)], Vec::new());
    let steps = world.complete(&mut place);
    assert_eq!(steps.len(), 10);
    assert_eq!((steps[0].step, steps[9].step, steps[9].missing), (0, 9, 0));
    assert_eq!(steps[3].wall_ns, 1_000_000_000);
    let busy: Vec<u64> = steps[3]
        .readings
        .iter()
        .map(|it| it.times.busy_ns)
        .collect();
    assert_eq!(busy, [900_000_000, 800_000_000, 700_000_000]);
    let seat = steps[0].readings[2].seat;
    assert_eq!((seat.stage, seat.column), (None, Some(2)));
    assert_eq!(world.complete(&mut place), [], "handed out already");
}

#[test]
fn a_rank_that_fell_silent_holds_the_others_back_for_a_minute_and_no_longer() {
    let mut world = World::new();
    let mut place = Place::default();
    world.send(0, 10, vec![block(0, 900)], Vec::new());
    world.send(1, 10, vec![block(0, 900)], Vec::new());
    assert_eq!(world.complete(&mut place).len(), 10);
    for first in (10..80).step_by(10) {
        let seconds = i64::try_from(first).expect("small") + 10;
        world.send(0, seconds, vec![block(first, 900)], Vec::new());
    }
    let steps = world.complete(&mut place);
    let last = steps.last().map(|it| (it.step, it.missing));
    assert_eq!(last, Some((19, 1)), "60 s before the newest");
}

#[test]
fn steps_that_one_rank_sums_are_summed_of_all() {
    let mut world = World::new();
    let mut place = Place::default();
    let summed = StepBlock {
        steps_log2: 1,
        times: vec![
            StepTimes {
                wall_ns: 2_000_000_000,
                busy_ns: 600_000_000,
                ..StepTimes::default()
            };
            5
        ],
        ..block(0, 0)
    };
    world.send(0, 10, vec![block(0, 900)], Vec::new());
    world.send(1, 10, vec![summed], Vec::new());
    let steps = world.complete(&mut place);
    assert_eq!(steps.len(), 5);
    assert_eq!((steps[1].step, steps[1].steps), (2, 2));
    let times: Vec<(u64, u64)> = steps[1]
        .readings
        .iter()
        .map(|it| (it.times.wall_ns, it.times.busy_ns))
        .collect();
    assert_eq!(
        times,
        [(1_000_000_000, 900_000_000), (1_000_000_000, 300_000_000)]
    );
}

#[test]
fn a_run_that_goes_back_to_a_checkpoint_is_followed_there() {
    let mut world = World::new();
    let mut place = Place::default();
    for rank in 0..2 {
        world.send(rank, 30, vec![block(0, 900), block(10, 900)], Vec::new());
    }
    assert_eq!(world.complete(&mut place).len(), 20);
    let again = |seconds| StepBlock {
        started_at: at(seconds),
        ended_at: at(seconds + 10),
        ..block(5, 900)
    };
    for rank in 0..2 {
        world.send(rank, 60, vec![again(40)], Vec::new());
    }
    let steps: Vec<u64> = world
        .complete(&mut place)
        .iter()
        .map(|it| it.step)
        .collect();
    assert_eq!(steps, (5..15).collect::<Vec<_>>());
}

#[test]
fn what_another_agent_tells_of_a_rank_is_left_out() {
    let mut world = World::new();
    world.introduce(99, 0, 1, 1);
    let ended = happened(
        0,
        9,
        EventKind::RunEnded,
        &[(attribute::ENDED, "exception")],
    );
    let dropped = world.send(0, 10, vec![block(0, 900)], vec![ended]);
    assert_eq!(dropped, 1, "the block");
    let run = world
        .fleet
        .runs()
        .get(&run_key())
        .expect("it was introduced");
    assert!(run.ranks[&0].ring.is_empty());
    assert_eq!(run.ranks[&0].facts.end, None);
    assert_eq!(run.state(at(10)), State::Running);
}

#[test]
fn a_rank_keeps_its_last_64_blocks_and_no_repeated_one() {
    let mut ring = Ring::default();
    for first in 0..100 {
        ring.push(&block(first * STEPS, 900));
        ring.push(&block(first * STEPS, 900));
    }
    let kept: Vec<u64> = ring.blocks().map(|it| it.first_step).collect();
    assert_eq!(kept.len(), ring::MAX_BLOCKS);
    assert_eq!((kept[0], kept[63]), (360, 990));
    let own = kept.len() * 96
        + ring
            .blocks()
            .map(|it| gpufleet_telemetry::steps::encode(&[it]).len())
            .sum::<usize>();
    assert_eq!(ring.bytes(), own, "what left is no longer counted");
}

async fn store(folder: &tempfile::TempDir) -> (Store, FencingToken) {
    let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
    let store = store.expect("a new database opens");
    let lease = store.acquire_lease("s", at(0), std::time::Duration::from_secs(15));
    let token = lease.await.expect("nobody has it").token;
    (store, token)
}

async fn commit(
    world: &World,
    (store, token): &(Store, FencingToken),
    seconds: i64,
) -> Arc<Commit> {
    let commit = world
        .fleet
        .take_commit(at(seconds))
        .expect("something waits");
    store
        .commit(&commit, *token)
        .await
        .expect("the present holder");
    world.fleet.committed(commit.number);
    commit
}

#[tokio::test]
async fn a_run_is_known_after_a_restart_with_its_ranks_its_steps_and_what_happened() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(&folder).await;
    let mut world = World::new();
    for rank in 0..2 {
        world.introduce(u128::from(rank) + 1, rank, 5, 2);
        let begun = happened(
            rank,
            0,
            EventKind::RunStarted,
            &[(attribute::FINGERPRINT, "torch=2.9.1\n")],
        );
        world.send(rank, 10, vec![block(0, 900)], vec![begun]);
    }
    let first = commit(&world, &store, 20).await;
    assert_eq!((first.runs.len(), first.steps.len()), (1, 2));
    let saved = happened(
        0,
        15,
        EventKind::CheckpointSaved,
        &[(attribute::STEP, "15")],
    );
    world.send(0, 20, vec![block(10, 900)], vec![saved]);
    commit(&world, &store, 21).await;
    // A commit whose reply was lost comes again and adds nothing.
    assert!(
        store
            .0
            .commit(&first, store.1)
            .await
            .expect("the holder")
            .already
    );

    let another = World::new();
    let runs = stored(&store.0, at(60))
        .await
        .expect("the database answers");
    let steps = stored_steps(&store.0, &runs, at(60))
        .await
        .expect("the database answers");
    let restored = Restored {
        runs,
        steps,
        ..Restored::default()
    };
    another.fleet.restore(restored, at(60));
    let run = another.fleet.runs().get(&run_key()).expect("it was stored");
    assert_eq!((run.facts.world, run.facts.started), (2, Some(at(0))));
    assert_eq!(run.facts.fingerprint["torch"], "2.9.1");
    assert_eq!(run.facts.checkpoint.map(|it| it.step), Some(15));
    assert_eq!(&*run.ranks[&1].facts.gpu, "GPU-1");
    assert_eq!(run.ranks[&0].facts.reading(training::LOSS.id), Some(2.5));
    assert_eq!(run.ranks[&0].ring.span(), Some((0, 20)));
    assert_eq!(run.ranks[&1].ring.span(), Some((0, 10)));
    assert_eq!(another.complete(&mut Place::default()).len(), 10);
    let again = another.fleet.take_commit(at(61));
    assert_eq!(
        again.map(|it| it.runs.len()),
        None,
        "the store knows it all"
    );
}

#[tokio::test]
async fn the_slow_rank_is_named_with_the_moment_it_became_slow() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = store(&folder).await;
    let mut world = World::new();
    let mut watch = watch::Watch::default();
    for first in (0..120).step_by(10) {
        let seconds = i64::try_from(first).expect("small") + 10;
        for rank in 0..8 {
            world.introduce(u128::from(rank) + 1, rank, seconds, 8);
            let slow = rank == 3 && first >= 60;
            world.send(
                rank,
                seconds,
                vec![block(first, if slow { 900 } else { 700 })],
                Vec::new(),
            );
        }
        watch.round(world.fleet.runs(), &store, at(seconds)).await;
    }
    let run = world.fleet.runs().get(&run_key()).expect("it runs");
    let judged = run.judged.expect("there are complete steps");
    let named: Vec<u32> = judged.verdict.stragglers.iter().map(|it| it.rank).collect();
    assert_eq!(named, [3]);
    let since = judged.since[&3].since(at(60)) / NANOS_PER_SECOND;
    assert!((0..15).contains(&since), "{since} s after it began");
    assert_eq!((judged.step, judged.step_ns), (119, 1_000_000_000));
}

#[tokio::test]
async fn a_run_has_ended_when_its_last_rank_has_and_the_first_that_failed_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(&folder).await;
    let mut world = World::new();
    let mut watch = watch::Watch::default();
    for rank in 0..2 {
        world.introduce(u128::from(rank) + 1, rank, 5, 2);
    }
    let died = [
        happened(
            1,
            20,
            EventKind::RankException,
            &[
                (attribute::EXCEPTION, "ValueError"),
                (attribute::EXCEPTION_MESSAGE, "bad batch"),
            ],
        ),
        happened(
            1,
            20,
            EventKind::RunEnded,
            &[(attribute::ENDED, "exception")],
        ),
    ];
    world.send(1, 21, Vec::new(), died.to_vec());
    watch.round(world.fleet.runs(), &store.0, at(22)).await;
    let state = |world: &World, seconds| {
        let run = world.fleet.runs().get(&run_key()).expect("it is known");
        (run.state(at(seconds)), run.facts.ending)
    };
    assert_eq!(
        state(&world, 22),
        (State::Running, None),
        "rank 0 still lives"
    );
    let killed = happened(
        0,
        30,
        EventKind::RunEnded,
        &[(attribute::ENDED, "vanished"), (attribute::SIGNAL, "15")],
    );
    world.send(0, 31, Vec::new(), vec![killed]);
    watch.round(world.fleet.runs(), &store.0, at(32)).await;
    let (now, ending) = state(&world, 32);
    assert_eq!(now, State::Ended { at: at(30) });
    let ending = ending.expect("it was judged");
    assert_eq!(
        (ending.cause.as_str(), ending.first_rank),
        (Cause::Exception.name(), Some(1))
    );
    commit(&world, &store, 33).await;
    let stored = store.0.run(&run_key()).await.expect("the database answers");
    let stored = stored.expect("it was committed");
    assert_eq!(stored.facts.ended, Some(at(30)));
    assert_eq!(
        stored.ranks[1]
            .1
            .exception
            .as_ref()
            .map(|it| it.kind.as_str()),
        Some("ValueError")
    );
}

#[test]
fn nothing_heard_is_silent_and_not_ended() {
    let mut world = World::new();
    world.introduce(1, 0, 5, 1);
    let run = world.fleet.runs().get(&run_key()).expect("it is known");
    assert_eq!(run.state(at(64)), State::Running);
    assert_eq!(run.state(at(65)), State::Silent { since: at(5) });
}

#[tokio::test]
async fn a_run_whose_ranks_are_heard_and_make_no_step_stands_and_promises_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = store(&folder).await;
    let mut world = World::new();
    let mut watch = watch::Watch::default();
    for rank in 0..2 {
        world.introduce(u128::from(rank) + 1, rank, 10, 2);
        world.send(rank, 10, vec![block(0, 700)], Vec::new());
    }
    for seconds in [10, 130, 140] {
        (0..2).for_each(|rank| world.introduce(u128::from(rank) + 1, rank, seconds, 2));
        watch.round(world.fleet.runs(), &store, at(seconds)).await;
        let run = world.fleet.runs().get(&run_key()).expect("it is known");
        let ended_at = run.judged.as_ref().expect("it has steps").ended_at;
        let stands = at(seconds).since(ended_at) > 120 * NANOS_PER_SECOND;
        assert_eq!(run.state(at(seconds)), State::Running);
        assert_eq!(run.stands_since(at(seconds)), stands.then_some(ended_at));
        let sentence = words::sentence(&run, &[], at(seconds), "USD");
        assert_eq!(
            sentence.starts_with("Stands: "),
            seconds == 140,
            "{sentence}"
        );
    }
}

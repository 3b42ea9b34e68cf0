//! Training runs over a fleet that was made: a slow rank, a run that stands, and what is none of it.

use std::sync::Arc;

use gpufleet_analysis::cause::Cause;
use gpufleet_analysis::incident::{Family, Incident, State};
use gpufleet_telemetry::catalog::{Metric, gpu, node, training};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{AgentId, Origin, Part, PartKind, ResourceKind, attribute};
use gpufleet_telemetry::steps::{StepBlock, StepTimes};
use gpufleet_telemetry::time::{Clock, NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::training::RankId;
use gpufleet_telemetry::wire::Lane;

use crate::detect::tests::{World, is_gpu, set};
use crate::fleet::{Fleet, Live, LiveValue};
use crate::runs::{Heard, RunKey, watch::Watch};
use crate::view::fixture;

mod again;
mod before;
mod beside;
mod changed;
mod first;
mod lost;
mod reset;
mod saves;
mod shares;
mod strangers;
mod together;
mod unruly;

/// A rank for each GPU of the world.
pub(in crate::detect) const RANKS: u32 = 16;
pub(in crate::detect) const RUN: &str = "research/train-7b/u/0";
const MILLI: u64 = 1_000_000;

/// What a rank does in a tick.
#[derive(Clone, Copy)]
pub(in crate::detect) struct Does {
    /// Of each step of a second; none makes no step.
    pub(in crate::detect) busy_ms: Option<u64>,
    /// How long a step takes.
    pub(in crate::detect) wall_ms: u64,
    pub(in crate::detect) data_wait_ms: u64,
    /// Whether it tells what of a step it waits for others.
    pub(in crate::detect) tells_waits: bool,
    pub(in crate::detect) phase: f64,
    /// Seconds that it is in a collective.
    pub(in crate::detect) collective_s: Option<f64>,
    pub(in crate::detect) is_heard: bool,
    /// By how many seconds the clock of its agent is ahead.
    pub(in crate::detect) ahead_s: i64,
    /// Whether its steps are told again, old ones behind new ones.
    pub(in crate::detect) again: bool,
}

pub(in crate::detect) const WELL: Does = Does {
    busy_ms: Some(700),
    wall_ms: 1_000,
    data_wait_ms: 20,
    tells_waits: true,
    phase: 3.0,
    collective_s: None,
    is_heard: true,
    ahead_s: 0,
    again: false,
};

/// The GPUs of the world with a run on them.
pub(in crate::detect) struct Training {
    pub(in crate::detect) world: World,
    watch: Watch,
    step: u64,
    /// By how much longer than a second a step takes, of which ten are told a tick all the same.
    longer_ms: u64,
    /// What a rank says beside its steps; then it is seen in the fleet too.
    pub(in crate::detect) says: Option<Says>,
}

/// What the rank of this number says.
pub(in crate::detect) type Says = Box<dyn Fn(u32, &mut Live)>;

impl Training {
    /// A run of which nothing is heard yet.
    pub(in crate::detect) async fn without_steps() -> Self {
        Self {
            world: World::new().await,
            watch: Watch::default(),
            step: 100,
            longer_ms: 0,
            says: None,
        }
    }

    pub(in crate::detect) async fn new() -> Self {
        let mut training = Self::without_steps().await;
        training.ticks(6, |_| WELL, |_| {}).await;
        assert_eq!(training.world.open(), [], "a run that is well");
        training
    }

    /// So many ticks of ten steps.
    pub(in crate::detect) async fn ticks(
        &mut self,
        count: usize,
        does: impl Fn(u32) -> Does,
        change: impl Fn(&mut Live) + Copy,
    ) {
        for _ in 0..count {
            let now = self.world.hand.now().shifted(10 * NANOS_PER_SECOND);
            for rank in 0..RANKS {
                let fleet = &self.world.app.fleet;
                let does = does(rank);
                let wall_ms = does.wall_ms + self.longer_ms;
                tell(
                    fleet,
                    (self.step, rank),
                    Does { wall_ms, ..does },
                    self.says.as_deref(),
                    now,
                );
            }
            self.step += 10;
            let app = &self.world.app;
            self.watch.round(app.fleet.runs(), &app.store, now).await;
            self.world.ticks(1, change);
        }
    }

    /// An agent tells this of a rank of the run now.
    pub(in crate::detect) fn hears(
        &self,
        (kind, severity): (EventKind, Severity),
        rank: u32,
        told: &[(&str, &str)],
    ) {
        let now = self.world.hand.now();
        let told = told.iter();
        let told = told.map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        let event = Event {
            at: now,
            kind,
            severity,
            resource_kind: ResourceKind::Rank,
            resource_id: format!("{RUN}/{rank}").into(),
            message: kind.name().to_owned(),
            attributes: told.collect(),
        };
        let heard = Heard {
            agent: AgentId(uuid::Uuid::from_u128(1)),
            lane: Lane::Live,
            received: now,
        };
        let runs = self.world.app.fleet.runs();
        runs.event(&"prod".into(), &event, heard)
            .expect("there is room");
    }

    pub(in crate::detect) fn one(&self) -> Incident {
        let open = self.world.open();
        assert_eq!(open.len(), 1, "{open:#?}");
        open[0].clone()
    }
}

/// The same, lent.
pub(in crate::detect) type SaysOf<'a> = &'a dyn Fn(u32, &mut Live);

/// What the agent of a rank tells of the ten steps up to this one.
pub(in crate::detect) fn tell(
    fleet: &Fleet,
    (step, rank): (u64, u32),
    does: Does,
    says: Option<SaysOf<'_>>,
    now: Timestamp,
) {
    if !does.is_heard {
        return;
    }
    let node = if rank < 8 { "node-1" } else { "node-2" };
    let id = format!("{RUN}/{rank}");
    let mut live = fixture::live("prod", node, ResourceKind::Rank, &id, Origin::Live);
    let resource = (*live.resource).clone();
    let gpu = format!("GPU-prod-{node}-{:04}", rank % 8);
    live.resource = resource
        .with(attribute::WORLD, RANKS.to_string())
        .with(attribute::MESH, format!("dp={rank}/{RANKS} pp=0/1"))
        .with(attribute::GPU_ID, gpu)
        .into();
    let told = now.shifted(does.ahead_s * NANOS_PER_SECOND);
    live.last_point = told;
    set(&mut live, &training::PHASE_NOW, does.phase);
    set(&mut live, &training::PHASE_AGE, 1.0);
    let in_flight = if does.collective_s.is_some() {
        1.0
    } else {
        0.0
    };
    set(&mut live, &training::COLLECTIVES_IN_FLIGHT, in_flight);
    let age = does.collective_s.unwrap_or(0.0);
    set(&mut live, &training::COLLECTIVE_OLDEST_AGE, age);
    if let Some(says) = says {
        says(rank, &mut live);
        fleet.put_for_tests(live.clone());
    }
    let heard = Heard {
        agent: AgentId(uuid::Uuid::from_u128(1 + u128::from(rank / 8))),
        lane: Lane::Live,
        received: now,
    };
    let runs = fleet.runs();
    runs.rank(&live, heard).expect("there is room");
    let Some(busy_ms) = does.busy_ms else {
        return;
    };
    // The peers' own times differ by a little, as real ones do.
    let jitter = |step: u64| (u64::from(rank) * 31 + step * 17) % 5;
    let waits = |step: u64| match does.tells_waits {
        true => does.wall_ms - busy_ms - jitter(step) - does.data_wait_ms,
        false => 0,
    };
    let times = |step: u64| StepTimes {
        wall_ns: does.wall_ms * MILLI,
        busy_ns: (busy_ms + jitter(step)) * MILLI,
        data_wait_ns: does.data_wait_ms * MILLI,
        comm_wait_ns: waits(step) * MILLI,
    };
    let block = |before: u64| {
        let (first, ended) = (
            step - before,
            told.shifted(-(before as i64) * NANOS_PER_SECOND),
        );
        StepBlock {
            first_step: first,
            steps_log2: 0,
            started_at: ended.shifted(-10 * NANOS_PER_SECOND),
            ended_at: ended,
            tokens: 0,
            samples: 0,
            times: (0..10).map(|step| times(first + step)).collect(),
        }
    };
    let order: &[u64] = match does.again {
        true => &[10, 0, 20, 0, 10],
        false => &[0],
    };
    let id = RankId::parse(&id).expect("an id");
    let key = RunKey::of(&"prod".into(), &id);
    for before in order {
        runs.steps(&key, rank, &block(*before), heard)
            .expect("there is room");
    }
}

pub(in crate::detect) fn slow(rank: u32) -> impl Fn(u32) -> Does {
    move |it| Does {
        busy_ms: Some(if it == rank { 910 } else { 700 }),
        ..WELL
    }
}

#[tokio::test]
async fn a_slow_rank_is_one_incident_with_what_all_gpus_lose_and_ends_when_it_is_fast_again() {
    let mut training = Training::new().await;
    training.ticks(5, slow(5), |_| {}).await;
    let told = training.one();
    assert_eq!(
        (told.family, told.cause),
        (Family::Straggler, Cause::Unknown)
    );
    let place = &told.place;
    assert_eq!((place.rank, place.run.as_deref()), (Some(5), Some(RUN)));
    assert_eq!(place.gpu.as_deref(), Some("GPU-prod-node-1-0005"));
    // 16 GPUs wait about 200 of each 1,000 ms.
    let lost = told.losing.milli_gpus;
    assert!((3_000..3_600).contains(&lost), "{lost}");
    assert_eq!(
        told.losing.nano_usd_per_hour(),
        Some(i64::try_from(lost).expect("small") * 36_000_000)
    );
    let id = told.id;
    training.ticks(20, slow(5), |_| {}).await;
    assert_eq!(training.one().id, id, "the same for as long as it lasts");
    training.ticks(14, |_| WELL, |_| {}).await;
    assert_eq!(training.world.open(), []);
    let over = training.world.app.incidents.get(id).expect("it was lately");
    assert_eq!(over.state, State::Resolved);
}

#[tokio::test]
async fn a_slow_rank_whose_gpu_is_hot_is_the_heats_incident_with_the_runs_price() {
    let mut training = Training::new().await;
    let heat = |live: &mut Live| {
        if live.key.id.starts_with("GPU") {
            let is_hot = is_gpu(live, "node-1", 5);
            grow(
                live,
                &gpu::THROTTLE_THERMAL,
                if is_hot { 10.0 } else { 0.0 },
            );
            grow(live, &gpu::THROTTLE_BOARD_LIMIT, 0.0);
            grow(live, &gpu::THROTTLE_POWER, 0.0);
            set(live, &gpu::SM_CLOCK, if is_hot { 1.52e9 } else { 1.98e9 });
            set(live, &gpu::TEMPERATURE, if is_hot { 69.0 } else { 61.0 });
        }
    };
    training.ticks(8, slow(5), heat).await;
    let told = training.one();
    assert_eq!((told.family, told.cause), (Family::Heat, Cause::Heat));
    assert!(told.losing.milli_gpus > 3_000, "{:?}", told.losing);
    let of_rank = told.evidence.iter().find(|it| it.place.rank == Some(5));
    let of_rank = of_rank.expect("it says which rank waits for it");
    assert_eq!(of_rank.cause, Cause::Heat);
    let names: Vec<&str> = of_rank.readings.iter().map(|it| &*it.name).collect();
    assert!(names.contains(&"slowed down by heat"), "{names:?}");
    let of = |name: &str| {
        let mut readings = of_rank.readings.iter();
        let found = readings.find(|it| it.name == name);
        found.map(|it| (it.value, it.usual))
    };
    assert_eq!(of("temperature"), Some((69.0, Some(61.0))));
    // Its peers compute some 702 ms of a second and wait 20 ms for data. So did it in half of the last 40 steps when it
    // was first told; in the others it computed some 912 ms.
    let (own, like) = of("waiting in collectives, of a step").expect("ranks tell it");
    let like = like.expect("its peers tell it");
    assert!((own - 0.173).abs() < 0.003, "{own}");
    assert!((like - 0.278).abs() < 0.003, "{like}");
}

#[tokio::test]
async fn a_rank_that_waits_for_its_data_is_told_by_what_it_waits_for() {
    for (pressure, cause) in [(0.01, Cause::Data), (0.6, Cause::Storage)] {
        let mut training = Training::new().await;
        let waits = |it: u32| Does {
            data_wait_ms: if it == 12 { 220 } else { 20 },
            ..WELL
        };
        let host = |live: &mut Live| {
            if live.key.kind == ResourceKind::Node {
                set(live, &node::PSI_CPU, 0.02);
                let is_own = &*live.node == "node-2";
                set(
                    live,
                    &node::PSI_IO_SOME,
                    if is_own { pressure } else { 0.01 },
                );
            }
        };
        training.ticks(6, waits, host).await;
        let told = training.one();
        assert_eq!(told.place.rank, Some(12));
        assert_eq!((told.family, told.cause), (Family::Straggler, cause));
    }
}

#[tokio::test]
async fn a_pressure_of_seconds_is_not_why_a_rank_is_slow_and_one_that_stays_is() {
    let mut training = Training::new().await;
    let host = |pressure: f64| {
        move |live: &mut Live| {
            if live.key.kind == ResourceKind::Node {
                let is_own = &*live.node == "node-1";
                set(live, &node::PSI_CPU, if is_own { pressure } else { 0.01 });
            }
        }
    };
    training.ticks(6, slow(5), host(0.01)).await;
    assert_eq!(training.one().cause, Cause::Unknown);
    training.ticks(1, slow(5), host(0.6)).await;
    training.ticks(6, slow(5), host(0.01)).await;
    let told = training.one();
    assert_eq!((told.place.rank, told.cause), (Some(5), Cause::Unknown));
    training.ticks(8, slow(5), host(0.6)).await;
    assert_eq!(training.one().cause, Cause::HostCpu);
}

#[tokio::test]
async fn a_rank_whose_machines_port_makes_errors_or_is_down_waits_for_the_network() {
    for (errors, is_up, cause) in [
        (0.0, true, Cause::Unknown),
        (500.0, true, Cause::Network),
        (0.0, false, Cause::Network),
    ] {
        let mut training = Training::new().await;
        let ports = |live: &mut Live| {
            if live.key.kind != ResourceKind::Node {
                return;
            }
            let is_own = &*live.node == "node-2";
            let total = if is_own { errors } else { 0.0 } * live.last_point.seconds() as f64;
            let up = f64::from(u8::from(is_up || !is_own));
            for (port, up) in [("mlx5_0", up), ("mlx5_1", 0.0)] {
                let part = Part::new(PartKind::Nic, port);
                set_part(live, &node::NIC_ERRORS, &part, total);
                set_part(live, &node::NIC_UP, &part, up);
            }
        };
        training.ticks(6, slow(12), ports).await;
        let told = training.one();
        assert_eq!(told.place.rank, Some(12));
        assert_eq!((told.family, told.cause), (Family::Straggler, cause));
    }
}

#[tokio::test]
async fn the_ranks_of_one_node_that_are_slow_together_are_one_incident_of_the_node() {
    let mut training = Training::new().await;
    let slow = |it: u32| Does {
        busy_ms: Some(if (8..12).contains(&it) { 910 } else { 700 }),
        ..WELL
    };
    training.ticks(8, slow, |_| {}).await;
    let told = training.one();
    let place = &told.place;
    assert_eq!(place.node.as_deref(), Some("node-2"), "{place:?}");
    assert_eq!((place.rank, place.gpu.as_deref()), (None, None));
    // 16 GPUs wait about 200 of each 1,000 ms, though they would without any one of the four.
    let lost = told.losing.milli_gpus;
    assert!((3_000..3_600).contains(&lost), "{lost}");
}

#[tokio::test]
async fn a_run_that_stands_names_the_rank_that_is_in_no_collective_and_ends_when_it_steps() {
    let mut training = Training::new().await;
    let stands = |it: u32| Does {
        busy_ms: None,
        phase: 5.0,
        collective_s: (it != 9).then_some(150.0),
        ..WELL
    };
    training.ticks(11, stands, |_| {}).await;
    assert_eq!(training.world.open(), [], "not yet for long");
    training.ticks(3, stands, |_| {}).await;
    let told = training.one();
    assert_eq!((told.family, told.place.rank), (Family::Hang, Some(9)));
    assert_eq!(told.losing.milli_gpus, 16_000, "all of it stands");
    training.ticks(4, |_| WELL, |_| {}).await;
    assert_eq!(training.world.open(), []);
}

#[tokio::test]
async fn a_run_that_saves_or_is_not_heard_does_not_hang_and_nothing_of_it_is_over() {
    let mut training = Training::new().await;
    let saves = |_| Does {
        busy_ms: None,
        phase: 6.0,
        ..WELL
    };
    training.ticks(30, saves, set_idle).await;
    assert_eq!(training.world.open(), []);
    training.ticks(5, slow(5), |_| {}).await;
    let before = training.one();
    let unheard = |_| Does {
        is_heard: false,
        ..WELL
    };
    training.ticks(30, unheard, |_| {}).await;
    let told = training.one();
    assert_eq!(told.id, before.id, "nobody knows whether it is over");
    assert!(told.unheard_since.is_some());
}

fn set_idle(live: &mut Live) {
    if live.key.id.starts_with("GPU") {
        set(live, &gpu::TENSOR_ACTIVE, 0.0);
    }
}

fn grow(live: &mut Live, metric: &Metric, by: f64) {
    let before = live.value(metric.id).and_then(|it| it.reading.ok());
    set(live, metric, before.unwrap_or(0.0) + by);
}

fn set_part(live: &mut Live, metric: &Metric, part: &Part, value: f64) {
    let is_it = |it: &LiveValue| it.metric == metric.id && it.part.as_deref() == Some(part);
    live.values.retain(|it| !is_it(it));
    live.values.push(LiveValue {
        metric: metric.id,
        part: Some(Arc::new(part.clone())),
        reading: Ok(value),
        max: None,
        at: live.last_point,
    });
    live.values
        .sort_by(|one, other| (one.metric, &one.part).cmp(&(other.metric, &other.part)));
}

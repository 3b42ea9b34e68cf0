//! The network under a run of 16 ranks on two nodes, whose GPUs of one place do collectives together.

use gpufleet_telemetry::catalog::{Metric, gpu, node};
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::identity::{Origin, Part, PartKind, ResourceKind};
use gpufleet_telemetry::sample::{Missing, Reading as Sample};
use gpufleet_telemetry::time::Clock as _;
use gpufleet_telemetry::training::{RankId, attribute};

use super::*;
use crate::detect::runs::tests::{Does as OfRank, RUN, Training, WELL, slow};
use crate::detect::tests::{is_gpu, set};
use crate::fleet::{LiveValue, LiveXid};
use crate::runs::words::sentence;
use crate::view::fixture::{self, Does};

const USUAL: f64 = 45e9;

fn put(live: &mut Live, metric: &Metric, part: &Part, reading: Sample) {
    let is_it = |it: &LiveValue| it.metric == metric.id && it.part.as_deref() == Some(part);
    live.values.retain(|it| !is_it(it));
    live.values.push(LiveValue {
        metric: metric.id,
        part: Some(Arc::new(part.clone())),
        reading,
        max: None,
        at: live.last_point,
    });
    live.values
        .sort_by(|one, other| (one.metric, &one.part).cmp(&(other.metric, &other.part)));
}

/// What a rank measures of this communicator.
fn measures_of(communicator: u32, live: &mut Live, bandwidth: f64) {
    let part = Part::new(
        PartKind::Collective,
        format!("{communicator:016x}/AllReduce"),
    );
    put(live, &training::COLLECTIVE_CALLS, &part, Ok(1e6));
    put(live, &training::COLLECTIVE_TRAFFIC, &part, Ok(64e12));
    let bandwidth = Ok(bandwidth);
    put(live, &training::COLLECTIVE_BUS_BANDWIDTH, &part, bandwidth);
}

/// What a rank measures where the links of its communicator give this; the later half of the ranks waits.
fn measures(rank: u32, live: &mut Live, bandwidth: f64) {
    let own = if rank < 8 { bandwidth } else { bandwidth * 0.6 };
    measures_of(rank % 8, live, own);
}

/// Ranks of which those on GPU 3 have links at half their bandwidth.
fn one_is_slow(rank: u32, live: &mut Live) {
    let part = if rank % 8 == 3 { 0.5 } else { 1.0 };
    measures(rank, live, USUAL * part);
}

fn all_are_well(rank: u32, live: &mut Live) {
    measures(rank, live, USUAL);
}

/// What the ports of a machine carry each way, and whether one of node-2 came up at half its speed.
fn ports(live: &mut Live, host: f64, rdma: f64, is_slow: bool) {
    if live.key.kind != ResourceKind::Node {
        return;
    }
    let names = std::iter::once("eth0".to_owned()).chain((0..8).map(|it| format!("mlx5_{it}")));
    for (place, name) in names.enumerate() {
        let part = Part::new(PartKind::Nic, name);
        let (rate, speed) = if place == 0 {
            (host, 25e9)
        } else {
            (rdma, 50e9)
        };
        let total = rate * live.last_point.seconds() as f64;
        let is_this = is_slow && place == 4 && &*live.node == "node-2";
        put(live, &node::NIC_SENT, &part, Ok(total));
        put(live, &node::NIC_RECEIVED, &part, Ok(total * 1.05));
        put(live, &node::NIC_UP, &part, Ok(1.0));
        put(
            live,
            &node::NIC_SPEED,
            &part,
            Ok(if is_this { 25e9 } else { speed }),
        );
        if place > 0 {
            put(live, &node::RDMA_RETRIES, &part, Ok(0.0));
        }
    }
}

async fn training(says: fn(u32, &mut Live)) -> Training {
    let mut training = Training::new().await;
    training.says = Some(Box::new(says));
    training
}

#[tokio::test]
async fn a_slow_link_is_told_as_the_way_between_its_ends_with_what_the_run_loses_to_it() {
    let mut training = training(all_are_well).await;
    training.ticks(14, |_| WELL, |_| {}).await;
    assert_eq!(training.world.open(), [], "all links are well");
    training.says = Some(Box::new(one_is_slow));
    training.ticks(8, |_| WELL, |_| {}).await;
    assert_eq!(training.world.open(), [], "not yet for long");
    training.ticks(6, |_| WELL, |_| {}).await;
    let told = training.one();
    assert_eq!((told.family, told.cause), (Family::Link, Cause::Network));
    assert_eq!(
        told.what,
        "the way between node-1 and node-2 is slower than its like"
    );
    assert_eq!(told.place.run.as_deref(), Some(RUN));
    let bandwidth = &told.evidence[0].readings[0];
    let usual = bandwidth.usual.unwrap_or(0.0);
    assert!(
        (bandwidth.value / USUAL - 0.5).abs() < 1e-6,
        "{bandwidth:?}"
    );
    assert!((usual / USUAL - 1.0).abs() < 1e-6, "{bandwidth:?}");
    // Half of the 280 ms of each second that 16 GPUs wait in collectives, at most.
    let lost = told.losing.milli_gpus;
    assert!((2_000..2_400).contains(&lost), "{lost}");
    assert!(told.losing.nano_usd_per_hour() > Some(0));
    training.says = Some(Box::new(all_are_well));
    training.ticks(34, |_| WELL, |_| {}).await;
    assert_eq!(training.world.open(), [], "it is as fast as its like again");
}

#[tokio::test]
async fn what_nobody_tells_of_waits_is_no_loss_of_0() {
    let untold = |of: fn(u32) -> bool| {
        move |rank: u32| OfRank {
            tells_waits: !of(rank),
            ..WELL
        }
    };
    // As the hooks tell a script that marks no communication.
    let mut training = training(|rank, live| {
        one_is_slow(rank, live);
        set(live, &training::STEP_WALL, 1_000.0);
        set(live, &training::STEP_COMMUNICATION_WAIT, 0.0);
    })
    .await;
    training.ticks(14, untold(|_| true), |_| {}).await;
    let told = training.one();
    assert_eq!((told.family, told.basis), (Family::Link, Basis::NoSteps));
    // One of the ranks that tell none says nothing of the others.
    let mut training = self::training(one_is_slow).await;
    training.ticks(14, untold(|rank| rank == 15), |_| {}).await;
    let told = training.one();
    assert_eq!(told.basis, Basis::LongerCollectives);
    let lost = told.losing.milli_gpus;
    assert!((2_000..2_400).contains(&lost), "{lost}");
}

#[tokio::test]
async fn of_two_ends_the_one_is_named_whose_port_came_up_slower() {
    let mut training = training(one_is_slow).await;
    training
        .ticks(14, |_| WELL, |live| ports(live, 3e6, 18e9, true))
        .await;
    let told = training.one();
    assert_eq!(told.place, Place::node("prod", "node-2"));
    assert_eq!((told.family, told.cause), (Family::Link, Cause::Network));
    let readings = &told.evidence[0].readings;
    let speed = readings.iter().find(|it| it.name == "speed, mlx5_3");
    let speed = speed.map(|it| (it.value, it.usual));
    assert_eq!(speed, Some((25e9, Some(50e9))), "{readings:?}");
}

#[tokio::test]
async fn a_link_that_is_slow_because_of_a_slow_rank_is_that_ranks() {
    let mut training = training(|rank, live| {
        let part = if rank % 8 == 5 { 0.5 } else { 1.0 };
        measures(rank, live, USUAL * part);
    })
    .await;
    training.ticks(20, slow(5), |_| {}).await;
    let told = training.one();
    assert_eq!((told.family, told.place.rank), (Family::Straggler, Some(5)));
}

#[tokio::test]
async fn a_slow_link_that_is_measured_no_more_is_not_over_and_what_was_never_measured_is_none() {
    let mut training = training(one_is_slow).await;
    training.ticks(14, |_| WELL, |_| {}).await;
    let before = training.one();
    training.says = Some(Box::new(|_, live| live.values.clear()));
    training.ticks(45, |_| WELL, |_| {}).await;
    let told = training.one();
    assert_eq!(told.id, before.id, "nobody knows whether it is over");
    assert!(told.unheard_since.is_some());
    let mut training = self::training(|_, _| {}).await;
    training.ticks(20, |_| WELL, |_| {}).await;
    assert_eq!(training.world.open(), []);
}

/// Ranks whose communicators are pairs within a node, of which the one of node-1 has half the bandwidth of the others.
fn a_pair_within_is_slow(rank: u32, live: &mut Live) {
    if (2..8).contains(&rank) {
        return;
    }
    let bandwidth = if rank < 2 { 0.5 * USUAL } else { USUAL };
    measures_of(rank / 2, live, bandwidth);
}

/// Ranks on four nodes whose communicators each have one of every node, of which one has half the bandwidth of the others.
fn one_of_four_is_slow(rank: u32, live: &mut Live) {
    live.node = format!("node-{}", rank % 4 + 1).into();
    let bandwidth = if rank < 4 { 0.5 * USUAL } else { USUAL };
    measures_of(rank / 4, live, bandwidth);
}

#[tokio::test]
async fn a_slow_way_among_four_nodes_is_told_of_the_run_that_became_slower_by_it() {
    let mut training = training(one_of_four_is_slow).await;
    training.ticks(14, |_| WELL, |_| {}).await;
    // Two of the nodes have no agent, which is told beside it.
    let of_link = |training: &Training| {
        let open = training.world.open().into_iter();
        let of_link: Vec<_> = open.filter(|it| it.family != Family::Blind).collect();
        assert_eq!(of_link.len(), 1, "{of_link:#?}");
        of_link[0].clone()
    };
    let told = of_link(&training);
    assert_eq!((told.family, told.cause), (Family::Link, Cause::Network));
    assert_eq!(
        told.what,
        "one of the ways among node-1, node-2, node-3, node-4 is slower than its like"
    );
    let place = Place {
        cluster: "prod".to_owned(),
        run: Some(RUN.to_owned()),
        ..Place::default()
    };
    assert_eq!(told.place, place);
    assert!(told.losing.milli_gpus > 0, "{:?}", told.losing);
    let longer = |_: u32| OfRank {
        wall_ms: 1_200,
        ..WELL
    };
    training.ticks(40, longer, |_| {}).await;
    let slower = of_link(&training);
    assert_eq!(slower.id, told.id);
    let mut of_run = slower.evidence.iter();
    let of_run = of_run.find(|it| it.what.starts_with("its steps take longer"));
    let of_run = of_run.expect("that it became slower is explained");
    assert_eq!((&of_run.place, of_run.cause), (&place, Cause::Network));
}

#[tokio::test]
async fn of_gpus_within_a_node_the_one_is_named_whose_link_is_down_before_one_whose_link_had_an_error()
 {
    for (up, named, shown) in [(16.0, 1, ("NVLinks up", 16.0)), (18.0, 0, ("XID", 74.0))] {
        let mut training = training(a_pair_within_is_slow).await;
        let reads = |up: f64| {
            move |live: &mut Live| {
                if is_gpu(live, "node-1", 1) {
                    set(live, &gpu::NVLINKS_ACTIVE, up);
                } else if is_gpu(live, "node-1", 0) {
                    let told = LiveXid::new(fixture::NOW, 74, "nvlink", Severity::Error, "");
                    live.told.xids = vec![told];
                }
            }
        };
        training.ticks(3, |_| WELL, reads(18.0)).await;
        training.ticks(12, |_| WELL, reads(up)).await;
        let open = training.world.open();
        let of_link = open.iter().flat_map(|it| &it.evidence);
        let what = "its links within the node are slower than their like";
        let of_link: Vec<_> = of_link.filter(|it| it.what == what).collect();
        assert_eq!(of_link.len(), 1, "{open:#?}");
        let place = Place::gpu("prod", "node-1", &format!("GPU-prod-node-1-{named:04}"));
        assert_eq!(
            (&of_link[0].place, of_link[0].cause),
            (&place, Cause::Nvlink)
        );
        let mut readings = of_link[0].readings.iter();
        let is_shown = readings.any(|it| (&*it.name, it.value) == shown);
        assert!(is_shown, "{shown:?}: {:?}", of_link[0].readings);
    }
}

/// The run's fingerprint says so of NCCL.
fn is_set(training: &Training, pairs: &str) {
    let told = [(attribute::FINGERPRINT, pairs)];
    training.hears((EventKind::RunStarted, Severity::Info), 0, &told);
}

#[tokio::test]
async fn a_run_over_the_hosts_ports_is_told_with_the_setting_and_a_price_until_it_goes_the_right_way()
 {
    let mut training = training(all_are_well).await;
    is_set(
        &training,
        "NCCL_DEBUG=INFO\nNCCL_IB_DISABLE=1\ntorch=2.9.1\n",
    );
    let right = |live: &mut Live| ports(live, 3e6, 18e9, false);
    let wrong = |live: &mut Live| ports(live, 2.1e9, 0.0, false);
    training.ticks(10, |_| WELL, right).await;
    assert_eq!(training.world.open(), []);
    training.ticks(9, |_| WELL, wrong).await;
    let told = training.one();
    assert_eq!((told.family, told.cause), (Family::Slower, Cause::Network));
    assert_eq!(told.what, wrong::WHAT);
    assert_eq!(
        (told.place.run.as_deref(), &told.place.node),
        (Some(RUN), &None)
    );
    assert!(told.action.contains("NCCL_IB_DISABLE=1"), "{}", told.action);
    assert!(told.action.contains("eth0"), "{}", told.action);
    let readings = &told.evidence[0].readings;
    assert_eq!(readings[0].name, "eth0, each way");
    let rate = readings[0].value / 2.1e9;
    assert!((rate - 1.0).abs() < 1e-6, "{readings:?}");
    assert_eq!(
        (&*readings[1].name, readings[1].value),
        ("8 RDMA ports together", 0.0)
    );
    // Three quarters of the 280 ms of each second that 16 GPUs wait, at most.
    let lost = told.losing.milli_gpus;
    assert!((3_100..3_500).contains(&lost), "{lost}");
    training.ticks(12, |_| WELL, right).await;
    assert_eq!(training.world.open(), []);
}

#[tokio::test]
async fn a_run_that_tells_neither_waits_nor_collectives_is_told_by_its_setting_and_else_says_what_it_lacks()
 {
    let lacks = "Whether its traffic takes the wrong network is not known";
    let id = RankId::parse(&format!("{RUN}/0")).expect("an id");
    let key = RunKey::of(&"prod".into(), &id);
    for (setting, is_told) in [("NCCL_IB_DISABLE=1", true), ("NCCL_DEBUG=INFO", false)] {
        let mut training = training(|_, live| {
            set(live, &training::STEP_WALL, 1_000.0);
            set(live, &training::STEP_COMMUNICATION_WAIT, 0.0);
        })
        .await;
        is_set(&training, &format!("{setting}\ntorch=2.9.1\n"));
        let untold = |_: u32| OfRank {
            tells_waits: false,
            ..WELL
        };
        let wrong = |live: &mut Live| ports(live, 2.1e9, 0.0, false);
        training.ticks(14, untold, wrong).await;
        let open = training.world.open();
        assert_eq!(open.len(), usize::from(is_told), "{setting}: {open:#?}");
        if let [told] = &open[..] {
            assert_eq!((&*told.what, told.basis), (wrong::WHAT, Basis::NoSteps));
            assert!(told.action.contains(setting), "{}", told.action);
        }
        let now = training.world.hand.now();
        let runs = training.world.app.fleet.runs();
        let said = runs.look(&key, |run| sentence(run, &open, now, "USD"));
        let said = said.expect("it is known");
        assert_eq!(said.contains(lacks), !is_told, "{setting}: {said}");
    }
}

#[tokio::test]
async fn traffic_whose_ports_are_read_no_more_is_not_known_to_go_the_right_way() {
    let mut training = training(all_are_well).await;
    training
        .ticks(10, |_| WELL, |live| ports(live, 2.1e9, 0.0, false))
        .await;
    assert_eq!(training.one().family, Family::Slower);
    let unread = |live: &mut Live| {
        let is_nic =
            |it: &&mut LiveValue| [node::NIC_SENT.id, node::NIC_RECEIVED.id].contains(&it.metric);
        let nics = live.values.iter_mut().filter(is_nic);
        nics.for_each(|it| it.reading = Err(Missing::Unreachable));
    };
    training.ticks(30, |_| WELL, unread).await;
    assert!(training.one().unheard_since.is_some());
    let mut unread_from_the_start = self::training(all_are_well).await;
    unread_from_the_start.ticks(20, |_| WELL, unread).await;
    assert_eq!(unread_from_the_start.world.open(), []);
}

#[tokio::test]
async fn a_port_that_came_up_slower_than_the_same_port_of_like_machines_is_told_without_any_run() {
    let mut world = crate::detect::tests::World::new().await;
    for name in ["node-3", "node-4", "node-5"] {
        let gpu = fixture::gpu("prod", name, 0, Does::Work, Origin::Live);
        world.lives.push(gpu);
        world.lives.push(fixture::without_readers("prod", name));
    }
    world.ticks(20, |live| ports(live, 3e6, 18e9, false));
    assert_eq!(world.open(), []);
    world.ticks(12, |live| ports(live, 3e6, 18e9, true));
    let open = world.open();
    assert_eq!(open.len(), 1, "{open:?}");
    assert_eq!(open[0].place, Place::node("prod", "node-2"));
    assert_eq!(
        open[0].what,
        "a network device came up slower than its like"
    );
    let is_slow_one = |it: &&mut LiveValue| {
        it.metric == node::NIC_SPEED.id && it.part.as_ref().is_some_and(|it| &*it.id == "mlx5_3")
    };
    world.ticks(40, |live| {
        let speed = live.values.iter_mut().filter(is_slow_one);
        speed.for_each(|it| it.reading = Err(Missing::NotSupported));
    });
    assert_eq!(world.open().len(), 1, "nobody knows whether it is over");
    world.ticks(44, |live| ports(live, 3e6, 18e9, false));
    assert_eq!(world.open(), []);
}

//! Nodes with the same trouble: within minutes of each other, and days apart.

use super::*;

const MINUTE_NS: i64 = 60 * 1_000_000_000;
const DAY_NS: i64 = 24 * 60 * MINUTE_NS;

/// Of ten nodes, as they are in a small cluster.
fn small() -> World {
    let mut world = World::new();
    world.nodes.retain(|(_, node), _| node.len() == 6);
    assert_eq!(world.nodes.len(), 10);
    world
}

/// A GPU of this node fell off the bus.
fn broken(node: usize, since: Timestamp) -> Signal {
    Signal {
        what: "XID 79".to_owned(),
        severity: Severity::Error,
        cause: Cause::GpuFault,
        since: Some(since),
        ..signal(Family::GpuFault, gpu(node, 0))
    }
}

/// How many nodes are in the incident of the cluster, and how many have each their own.
fn counted(world: &World) -> (usize, usize) {
    let open = world.open().into_iter();
    let (wide, own): (Vec<&Incident>, Vec<&Incident>) = open.partition(|it| it.place.is_cluster());
    assert!(wide.len() <= 1, "{wide:?}");
    assert!(own.iter().all(|it| it.place.node.is_some()), "{own:?}");
    (wide.first().map_or(0, |it| it.places), own.len())
}

#[test]
fn nodes_whose_gpus_break_a_day_apart_have_each_an_incident_with_their_node() {
    let mut world = small();
    let mut all = Vec::new();
    for node in 0..8 {
        world.now = START.shifted(node as i64 * DAY_NS);
        all.push(broken(node, world.now));
        let opened = [Change::Opened(Uuid::from_u128(node as u128 + 1))];
        assert_eq!(world.ticks(3, &all), opened, "nothing else changes");
        assert_eq!(counted(&world), (0, node + 1));
    }
    // A server that learns of all of them at once says the same.
    let mut anew = small();
    anew.now = world.now;
    anew.ticks(3, &all);
    assert_eq!(counted(&anew), (0, 8));
}

#[test]
fn nodes_that_break_within_minutes_are_the_clusters_and_one_of_a_day_later_is_not() {
    let mut world = small();
    let mut all: Vec<Signal> = (0..6).map(|it| broken(it, START)).collect();
    let id = Uuid::from_u128(1);
    assert_eq!(world.ticks(3, &all), [Change::Opened(id)]);
    assert_eq!(counted(&world), (6, 0));
    // Three minutes later one more comes in.
    world.now = START.shifted(3 * MINUTE_NS);
    all.push(broken(6, world.now));
    world.ticks(3, &all);
    assert_eq!(counted(&world), (7, 0));
    world.now = START.shifted(DAY_NS);
    all.push(broken(7, world.now));
    let later = Uuid::from_u128(2);
    assert_eq!(world.ticks(3, &all), [Change::Opened(later)]);
    assert_eq!(counted(&world), (7, 1));
    // The cluster's goes on with the last of its nodes, and ends with it.
    world.ticks(60, &all[3..]);
    assert_eq!(counted(&world), (4, 1));
    world.ticks(60, &all[6..]);
    assert_eq!(counted(&world), (1, 1));
    assert_eq!(world.ticks(3, &all[7..]), [Change::Resolved(id)]);
    assert_eq!(world.open()[0].id, later);
}

#[test]
fn a_node_that_was_mended_and_breaks_again_is_no_more_of_the_clusters() {
    let mut world = small();
    let all: Vec<Signal> = (0..6).map(|it| broken(it, START)).collect();
    world.ticks(3, &all);
    world.ticks(60, &all[1..]);
    let again = broken(0, world.now);
    world.ticks(3, &[&all[1..], &[again]].concat());
    assert_eq!(counted(&world), (5, 1));
}

#[test]
fn what_was_wrong_with_a_node_long_before_stays_its_own_beside_the_clusters() {
    let mut world = small();
    let before = Signal {
        place: gpu(0, 5),
        ..broken(0, START)
    };
    world.ticks(40, std::slice::from_ref(&before));
    let id = world.open()[0].id;
    let mut all: Vec<Signal> = (0..7).map(|it| broken(it, world.now)).collect();
    all.push(before);
    world.ticks(3, &all);
    assert_eq!(counted(&world), (7, 1));
    let open = world.open();
    let own = open.iter().find(|it| it.id == id).expect("it goes on");
    assert_eq!(own.place, gpu(0, 5));
}

#[test]
fn nodes_with_two_causes_are_not_told_together() {
    let of = |nodes: std::ops::Range<usize>, cause| -> Vec<Signal> {
        let of = |it| Signal {
            cause,
            ..signal(Family::Link, gpu(it, 0))
        };
        nodes.map(of).collect()
    };
    let mut world = small();
    let both = [of(0..4, Cause::Network), of(4..8, Cause::Pcie)].concat();
    world.ticks(6, &both);
    assert_eq!(counted(&world), (0, 8));
    let mut world = small();
    world.ticks(6, &of(0..8, Cause::Network));
    assert_eq!(counted(&world), (8, 0));
}

#[test]
fn nodes_without_an_agent_are_told_together_since_whenever_each_is_ready() {
    let mut world = small();
    let silent = |it: usize| Signal {
        since: Some(START.shifted(-(it as i64) * DAY_NS)),
        ..signal(Family::Blind, Place::node("prod", &format!("node-{it}")))
    };
    let all: Vec<Signal> = (0..8).map(silent).collect();
    world.ticks(3, &all);
    assert_eq!(counted(&world), (8, 0));
}

#[test]
fn nodes_that_are_not_heard_end_nothing() {
    let mut world = small();
    let all: Vec<Signal> = (0..6).map(|it| broken(it, START)).collect();
    world.ticks(3, &all);
    world.silent.insert("node-4".to_owned());
    world.ticks(30, &[]);
    assert_eq!(world.open().len(), 1);
    assert!(world.open()[0].unheard_since.is_some());
    world.silent.clear();
    assert_eq!(world.ticks(3, &[]), [Change::Resolved(Uuid::from_u128(1))]);
}

#[test]
fn after_a_restart_the_clusters_goes_on_with_the_nodes_that_are_left() {
    let mut world = small();
    let all: Vec<Signal> = (0..6).map(|it| broken(it, START)).collect();
    world.ticks(3, &all);
    let kept = world.open().into_iter().cloned().collect();
    world.book = Book::restored(kept, world.now);
    assert_eq!(world.ticks(20, &all[..3]), []);
    assert_eq!(counted(&world), (3, 0));
    assert_eq!(world.ticks(3, &[]), [Change::Resolved(Uuid::from_u128(1))]);
}

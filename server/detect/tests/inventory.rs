//! What the inventory adds to what is judged: nodes without an agent, and nodes that are gone.

use gpufleet_analysis::inventory::{Node, Ready};

use super::*;
use crate::inventory::now;

fn node(name: &str) -> Node {
    Node {
        name: name.to_owned(),
        model: "NVIDIA H100 80GB HBM3".to_owned(),
        gpus: 8,
        allocatable: 8,
        ready: Ready::Yes,
        ready_since: Some(NOW.shifted(-3_600 * NANOS_PER_SECOND)),
        ..Node::default()
    }
}

impl World {
    /// The cluster says that these are its nodes.
    pub(super) fn cluster_has(&self, names: &[&str]) {
        let nodes = names.iter().map(|it| node(it)).collect();
        self.app.inventory.known().all_nodes(nodes, now(&self.app));
    }
}

#[tokio::test]
async fn a_node_without_an_agent_is_an_incident_once_agents_had_time_and_until_one_comes() {
    let mut world = World::new().await;
    world.cluster_has(&["node-1", "node-2", "node-3"]);
    // Ten minutes after the server began to look.
    world.ticks(60, |_| {});
    assert_eq!(world.open(), [], "agents need a while to come up");
    world.ticks(3, |_| {});
    let open = world.open();
    assert_eq!(open.len(), 1, "{open:?}");
    assert_eq!(open[0].place, Place::node("prod", "node-3"));
    assert_eq!(open[0].what, "a node with GPUs and without an agent");
    assert_eq!(open[0].evidence[0].readings[0].value, 8.0);
    // What it costs is told by the cluster's word of what it is.
    let unobserved = &open[0].stake.losing;
    assert_eq!(unobserved.nano_usd_per_hour(), Some(8 * 36_000_000_000));
    world.lives.push(fixture::without_readers("prod", "node-3"));
    world.ticks(5, |_| {});
    assert_eq!(world.open(), [], "its agent is there");
}

#[tokio::test]
async fn a_node_without_an_agent_whose_price_nobody_knows_is_unpriced_and_not_free() {
    for (model, is_shared) in [("", false), ("NVIDIA H100 80GB HBM3", true)] {
        let mut world = World::new().await;
        let unknown = Node {
            model: model.to_owned(),
            is_shared,
            ..node("node-3")
        };
        let nodes = vec![node("node-1"), node("node-2"), unknown];
        world
            .app
            .inventory
            .known()
            .all_nodes(nodes, now(&world.app));
        world.ticks(63, |_| {});
        let open = world.open();
        assert_eq!(open.len(), 1, "{open:?}");
        let unobserved = &open[0].stake.losing;
        assert_eq!(unobserved.milli_gpus, 8_000);
        assert_eq!(unobserved.nano_usd_per_hour(), None, "{model} {is_shared}");
    }
}

#[tokio::test]
async fn a_node_without_an_agent_that_goes_away_is_an_incident_no_more() {
    let mut world = World::new().await;
    world.cluster_has(&["node-1", "node-2", "node-3"]);
    world.ticks(63, |_| {});
    assert_eq!(world.open().len(), 1);
    world.cluster_has(&["node-1", "node-2"]);
    world.ticks(5, |_| {});
    assert_eq!(world.open(), [], "nothing is wrong with what is gone");
}

#[tokio::test]
async fn a_silent_node_that_the_cluster_has_no_more_is_not_missed() {
    let mut world = World::new().await;
    world.cluster_has(&["node-1", "node-2"]);
    world.ticks(3, |_| {});
    let mut before: Vec<Live> = Vec::new();
    before.append(&mut world.lives);
    let (stays, goes): (Vec<_>, Vec<_>) = before.into_iter().partition(|it| &*it.node == "node-1");
    world.lives = stays;
    assert_eq!(goes.len(), 9);
    world.ticks(8, |_| {});
    let open = world.open();
    assert_eq!(open.len(), 1, "{open:?}");
    assert_eq!(open[0].what, "nothing is heard from the node");
    world.cluster_has(&["node-1"]);
    world.ticks(5, |_| {});
    assert_eq!(world.open(), [], "it was scaled down");
}

#[tokio::test]
async fn a_node_of_another_clusters_name_is_told_by_its_agent_all_the_same() {
    let mut world = World::new().await;
    let elsewhere = fixture::without_readers("staging", "node-3");
    world.lives.push(elsewhere);
    world.cluster_has(&["node-1", "node-2", "node-3"]);
    world.ticks(70, |_| {});
    assert_eq!(world.open(), [], "its agent calls the cluster otherwise");
}

#[tokio::test]
async fn an_agent_that_comes_by_another_name_of_cluster_and_node_ends_the_incident() {
    let mut world = World::new().await;
    world.cluster_has(&["node-1", "node-2", "node-3"]);
    world.ticks(63, |_| {});
    assert_eq!(world.open().len(), 1);
    // Its machine calls itself by its whole name.
    let come = fixture::without_readers("staging", "node-3.hpc.example");
    world.lives.push(come);
    world.ticks(5, |_| {});
    assert_eq!(world.open(), [], "an agent tells of it");
}

#[tokio::test]
async fn a_block_in_which_machine_after_machine_broke_is_told_once_with_its_machines() {
    let mut world = World::new().await;
    world.lives.clear();
    let name = |block: usize, number: usize| format!("b{block}-n{number}");
    let mut nodes = Vec::new();
    for (block, number) in (0..4).flat_map(|block| (0..8).map(move |it| (block, it))) {
        let name = name(block, number);
        let gpu = fixture::gpu("prod", &name, 0, Does::Work, Origin::Live);
        world.lives.push(gpu);
        world.lives.push(fixture::without_readers("prod", &name));
        nodes.push(Node {
            block: format!("block-{block}"),
            ..node(&name)
        });
    }
    world
        .app
        .inventory
        .known()
        .all_nodes(nodes, now(&world.app));
    world.ticks(3, |_| {});
    let whole = world.lives.clone();
    let at = world.hand.now();
    let broken = ["b1-n0", "b1-n2", "b1-n3", "b1-n5", "b1-n7"];
    world.ticks(2, |live| {
        broken.iter().for_each(|it| breaks(it, 0, at)(live));
    });
    assert_eq!(world.open().len(), 5);
    let back = world.hand.now();
    world.lives = whole;
    world.ticks(5, |live| {
        broken.iter().for_each(|it| works_again(it, 0, back)(live));
    });
    assert_eq!(world.open(), [], "each is over");
    let written = world.app.incidents.write(&world.app.store).await;
    written.expect("it is written");
    let looked = world.detectors.offenders.look(&world.app).await;
    looked.expect("the store answers");
    world.ticks(1, |_| {});
    let open = world.open();
    assert_eq!(open.len(), 1, "{open:?}");
    assert_eq!(open[0].family, Family::Offender);
    assert_eq!(
        open[0].what,
        "machine after machine breaks in block block-1"
    );
    let readings = &open[0].evidence[0].readings;
    let names: Vec<&str> = readings[2..].iter().map(|it| &*it.name).collect();
    assert_eq!(names, broken);
    assert_eq!((readings[1].value, readings[1].usual), (0.625, Some(0.0)));
}

#[tokio::test]
async fn a_gpu_that_is_lost_and_forgotten_stays_an_incident_until_another_is_in_its_place() {
    const DAY_NS: i64 = 86_400 * NANOS_PER_SECOND;
    for is_scaled_down in [false, true] {
        let mut world = World::new().await;
        world.cluster_has(&NODES);
        world.ticks(2, |_| {});
        let last = world.hand.now();
        world.ticks(6, |live| {
            if is_gpu(live, "node-1", 5) {
                (live.last_point, live.received) = (last, last);
            }
        });
        let open = world.open();
        assert_eq!(open.len(), 1, "{open:?}");
        assert_eq!(open[0].what, "its readings stopped");
        // A day later all is forgotten; the others are heard again at the next tick.
        world.lives.retain(|it| !is_gpu(it, "node-1", 5));
        let forgets = world.hand.now().shifted(DAY_NS);
        world.app.fleet.take_commit(forgets);
        world.ticks(20, |_| {});
        let open = world.open();
        assert_eq!(open.len(), 1, "nobody mended anything");
        assert!(open[0].unheard_since.is_some());
        if is_scaled_down {
            world.cluster_has(&["node-2"]);
        } else {
            let mut other = fixture::gpu("prod", "node-1", 8, Does::Work, Origin::Live);
            other.told = crate::fleet::live::Told::default();
            other.first_seen = world.hand.now();
            world.lives.push(other);
        }
        world.ticks(5, |_| {});
        assert_eq!(world.open(), [], "scaled down: {is_scaled_down}");
    }
}

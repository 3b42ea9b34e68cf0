//! Of what nothing is heard: a machine is by its agent, whoever else tells of it.

use gpufleet_analysis::incident::Happened;
use gpufleet_telemetry::identity::ResourceKind;

use super::*;

/// A rank that tells of itself, without an agent.
fn rank_of_itself(node: &str) -> Live {
    let id = "research/train-7b/u/0/0";
    Live {
        agent: None,
        ..fixture::live("prod", node, ResourceKind::Rank, id, Origin::Live)
    }
}

/// Nothing comes of this agent any more.
fn agent_of(node: &str) -> impl Fn(&mut Live) {
    move |live| {
        if &*live.node == node && live.agent.is_some() {
            live.node = "".into();
        }
    }
}

fn families(world: &World) -> Vec<Family> {
    world.open().iter().map(|it| it.family).collect()
}

#[tokio::test]
async fn a_job_without_an_agent_that_ended_leaves_no_silent_node() {
    let mut world = World::new().await;
    world.lives.push(rank_of_itself("train-7b-0"));
    world.ticks(3, |_| {});
    world.lives.pop();
    world.ticks(10, |_| {});
    assert_eq!(world.open(), []);
}

#[tokio::test]
async fn a_node_whose_agent_is_gone_is_blind_and_has_lost_no_gpu_while_a_rank_on_it_goes_on() {
    let mut world = World::new().await;
    world.lives.push(rank_of_itself("node-1"));
    world.ticks(3, |_| {});
    world.ticks(10, agent_of("node-1"));
    assert_eq!(families(&world), [Family::Blind], "{:#?}", world.open());
    assert_eq!(world.open()[0].place, Place::node("prod", "node-1"));
    world.ticks(5, |_| {});
    assert_eq!(world.open(), []);
}

/// What happened to an incident, as far as it is a note.
fn notes(incident: &Incident) -> Vec<&str> {
    let said = incident.log.iter().filter_map(|it| match &it.happened {
        Happened::Note(note) => Some(note.as_str()),
        _ => None,
    });
    said.collect()
}

#[tokio::test]
async fn what_was_wrong_with_a_node_that_left_is_over_once_it_is_forgotten_and_not_listed() {
    for is_listed in [false, true] {
        let mut world = World::new().await;
        if is_listed {
            world.cluster_has(&NODES);
        }
        world.ticks(2, breaks("node-2", 3, NOW));
        world.lives.retain(|it| &*it.node != "node-2");
        world.ticks(8, |_| {});
        let before = [Family::GpuFault, Family::Blind];
        assert_eq!(families(&world), before);
        let ids = world.open().into_iter().map(|it| it.id);
        let ids: Vec<Uuid> = ids.collect();
        // A day later it is forgotten; the other is heard again at the next tick.
        let forgets = world.hand.now().shifted(86_400 * NANOS_PER_SECOND);
        world.app.fleet.take_commit(forgets);
        world.ticks(20, |_| {});
        if is_listed {
            assert_eq!(families(&world), before, "the cluster has it");
            continue;
        }
        assert_eq!(world.open(), []);
        for id in ids {
            let over = world.app.incidents.get(id).expect("it was lately");
            let said = "nothing tells of it any more: it was not seen to be over";
            assert_eq!(notes(&over), [said]);
        }
    }
}

/// A tick of a minute, and whether of one GPU anything still comes.
fn each_minute(is_there: bool) -> impl Fn(&mut Live) {
    move |live| {
        let seconds = live.last_point.since(NOW) / NANOS_PER_SECOND + 3;
        let is_gone = !is_there && is_gpu(live, "node-1", 5);
        if seconds % 60 != 0 || is_gone {
            live.node = "".into();
        }
    }
}

#[tokio::test]
async fn a_gpu_told_of_once_a_minute_is_lost_after_two_and_stays_so_between_points_of_others() {
    let mut world = World::new().await;
    for live in &mut world.lives {
        live.interval = Duration::from_secs(60);
    }
    world.ticks(18, each_minute(true));
    assert_eq!(world.open(), []);
    world.ticks(12, each_minute(false));
    assert_eq!(world.open(), [], "it is late");
    for _ in 0..18 {
        world.ticks(1, each_minute(false));
        let open = world.open();
        assert_eq!(open.len(), 1, "{open:#?}");
        assert_eq!(open[0].what, "its readings stopped");
        assert_eq!(open[0].opened_at, Some(NOW.shifted(310 * NANOS_PER_SECOND)));
    }
}

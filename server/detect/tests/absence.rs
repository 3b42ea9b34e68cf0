//! Of what nothing is heard: a machine is by its agent, whoever else tells of it.

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

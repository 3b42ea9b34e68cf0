//! The hand-off: a GPU that breaks in a cluster that the server sees. In shadow nothing is written; with the right and
//! the mode the node has a condition, a taint and an event, until the GPU is mended. Without the taint the right to
//! write conditions and events is enough.

use std::time::Duration;

use gpufleet_tests::harness::kubernetes::{Kubernetes, TOKEN};
use gpufleet_tests::harness::simulator::{Simulator, steady_seed};
use gpufleet_tests::harness::{World, server, wait};
use gpufleet_tests::on_both_databases;
use serde_json::{Value, json};

/// A tick, its shipping, a tick of the detectors, and a machine that is busy.
const LIMIT: Duration = Duration::from_secs(240);
/// The node whose GPU the simulator breaks.
const NODE: &str = "demo-node-2";
/// The node beside it.
const WHOLE: &str = "demo-node-1";
const CONDITION: &str = "GpufleetGpuBroken";

fn node(name: &str) -> Value {
    let gpus = json!({"nvidia.com/gpu": "8"});
    json!({
        "metadata": {"name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
        "status": {
            "capacity": gpus, "allocatable": gpus,
            "conditions": [{"type": "Ready", "status": "True",
                "lastTransitionTime": "2026-01-01T00:02:00Z"}],
        },
    })
}

/// A server that asks this API about the cluster of the simulator.
fn place(world: &World, api: &Kubernetes) -> server::Place {
    let token = world.file("token", TOKEN);
    server::Place::new(world)
        .with("inventory.source=\"kubernetes\"")
        .with("inventory.cluster=\"demo\"")
        .with(&format!("inventory.kubernetes_url=\"{}\"", api.url()))
        .with(&format!(
            "inventory.kubernetes_token_file=\"{}\"",
            token.display()
        ))
}

fn condition(api: &Kubernetes) -> Option<Value> {
    condition_of(api, NODE)
}

fn condition_of(api: &Kubernetes, node: &str) -> Option<Value> {
    let node = api.node_object(node)?;
    let conditions = node["status"]["conditions"].as_array()?.clone();
    conditions.into_iter().find(|it| it["type"] == CONDITION)
}

fn taints(api: &Kubernetes) -> Vec<String> {
    let node = api.node_object(NODE).unwrap_or_default();
    let taints = node["spec"]["taints"].as_array().cloned();
    let key = |it: &Value| it["key"].as_str().unwrap_or_default().to_owned();
    taints.unwrap_or_default().iter().map(key).collect()
}

/// Notes on the one incident.
fn notes(server: &server::Server) -> Vec<String> {
    let answer = server.get("/api/v1/incidents").json();
    let items = answer["items"].as_array().cloned().unwrap_or_default();
    let lines = items.iter().flat_map(|it| it["log"].as_array().cloned());
    let lines = lines.flatten().filter(|it| it["what"] == "note");
    lines
        .map(|it| it["detail"].as_str().unwrap_or_default().to_owned())
        .collect()
}

on_both_databases!(
    a_broken_gpus_node_is_told_in_shadow_and_with_the_right_written_until_it_is_mended
);

fn a_broken_gpus_node_is_told_in_shadow_and_with_the_right_written_until_it_is_mended(
    world: World,
) {
    let api = Kubernetes::start();
    api.let_see_all(true);
    for number in 1..=2 {
        api.put_node_object(&node(&format!("demo-node-{number}")));
    }
    let server = place(&world, &api).start();
    let endpoint = format!("http://{}", server.place.grpc);
    let more = ["--nodes", "2", "--seed", &steady_seed()];
    let simulator = Simulator::start(&world, &endpoint, &more);
    wait::until("the API lists 16 GPUs", LIMIT, || {
        let gpus = server.get("/api/v1/gpus?cluster=demo").json();
        (gpus["items"].as_array()?.len() == 16).then_some(())
    });
    simulator.fault("xid79");
    let told = wait::until("the incident says what would be written", LIMIT, || {
        notes(&server).into_iter().find(|it| it.contains(CONDITION))
    });
    assert!(
        told.starts_with("In shadow") && told.contains(NODE),
        "{told}"
    );
    assert_eq!(condition(&api), None, "nothing is written");

    // Without the right nothing is written, and the server says what gives it.
    let place = server.stop();
    let place = place
        .with("handoff.mode=\"write\"")
        .with("handoff.taint=true");
    let server = place.start();
    wait::until("it is refused", LIMIT, || {
        let refused = api.refused();
        refused.contains("nodes cannot be patched").then_some(())
    });
    assert_eq!(condition(&api), None);
    api.let_write(true, true);
    let is = wait::until("the node has the condition", LIMIT, || {
        condition(&api).filter(|it| it["status"] == "True" && !api.told().is_empty())
    });
    assert_eq!(is["reason"], "XID79", "{is}");
    assert!(
        is["message"]
            .as_str()
            .unwrap_or_default()
            .contains("reboot"),
        "{is}"
    );
    wait::until("others' taints stay beside ours", LIMIT, || {
        (taints(&api) == ["nvidia.com/gpu", "gpufleet.io/gpu-broken"]).then_some(())
    });
    let events = api.told();
    assert_eq!(events[0]["involvedObject"]["name"], NODE, "{events:?}");
    wait::until("it stands on the incident", LIMIT, || {
        let told = notes(&server).into_iter();
        told.into_iter()
            .find(|it| it.starts_with("Node demo-node-2 has the condition"))
    });

    // A server that begins anew writes it again, and says the same of when it became so.
    // It has no taint to set, nor the right to: what the one before it left on a node that is whole it takes back.
    let before = condition(&api).expect("it has it");
    let place = server.stop().with("handoff.taint=false");
    let mut left = api.node_object(WHOLE).expect("it was put before");
    left["status"]["conditions"]
        .as_array_mut()
        .expect("it is Ready")
        .push(before.clone());
    api.put_node_object(&left);
    api.let_write(true, false);
    let server = place.start();
    let after = wait::until("the condition is written anew", LIMIT, || {
        condition(&api).filter(|it| it["lastHeartbeatTime"] != before["lastHeartbeatTime"])
    });
    assert_eq!(after["lastTransitionTime"], before["lastTransitionTime"]);
    let left = condition_of(&api, WHOLE);
    assert_eq!(left.expect("it has it")["status"], "False", "taken back");
    let refused = ["nodes cannot be patched".to_owned()];
    assert_eq!(api.refused(), refused.into(), "of before it had the right");
    // The taint of before is taken back too, once it may be.
    api.let_write(true, true);
    simulator.fault("heal");
    wait::until("it is taken back", 2 * LIMIT, || {
        let is_over = condition(&api)?["status"] == "False";
        (is_over && taints(&api) == ["nvidia.com/gpu"]).then_some(())
    });
    simulator.stop();
    server.stop();
}

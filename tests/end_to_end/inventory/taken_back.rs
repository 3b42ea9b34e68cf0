//! A Spot machine that its provider takes back, of which its agent hears nothing.

use gpufleet_tests::harness::kubernetes::Kubernetes;
use gpufleet_tests::harness::{World, wait};
use serde_json::json;

use super::{LIMIT, is_seen, node, place, queue_is};

#[test]
fn a_spot_node_that_is_tainted_as_about_to_go_and_then_goes_is_one_preemption() {
    let world = World::new();
    let api = Kubernetes::start();
    api.let_see_all(true);
    let id = json!({"providerID": "gce://a-project/us-central1-a/node-1"});
    let mut spot = node("node-1", &id);
    let labels = &mut spot["metadata"]["labels"];
    labels["node.kubernetes.io/instance-type"] = json!("a3-highgpu-8g");
    labels["topology.kubernetes.io/region"] = json!("us-central1");
    labels["cloud.google.com/gke-spot"] = json!("true");
    api.put_node_object(&spot);
    let server = place(&world, &api).start();
    queue_is(&server, "the node is there", |it| {
        is_seen(it) && it["capacity"][0]["nodes"] == 1
    });
    spot["spec"]["taints"] = json!([
        {"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}]);
    api.put_node_object(&spot);
    wait::until("its end is told", LIMIT, || {
        let events = server.get("/api/v1/events?cluster=test").json();
        let mut events = events["items"].as_array()?.iter();
        events
            .any(|it| it["kind"] == "preemption_noticed")
            .then_some(())
    });
    api.delete_node("node-1");
    queue_is(&server, "it is gone", |it| {
        it["unwell_nodes"][0]["phase"] == "gone"
    });
    let told = wait::until("the report has it", LIMIT, || {
        let report = server.get("/api/v1/reports/chargeback?by=project&format=json");
        let spot = report.json()["spot"].clone();
        (spot["preemptions"] == 1).then_some(spot)
    });
    assert_eq!(told["preemptions_elsewhere"], 0, "{told}");
    server.stop();
}

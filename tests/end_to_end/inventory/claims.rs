//! GPUs that NVIDIA's driver gives out by resource claims, in a cluster of before their API was v1.

use gpufleet_tests::harness::World;
use gpufleet_tests::harness::kubernetes::Kubernetes;
use serde_json::{Value, json};

use super::{is_seen, node, place, pod, queue_is};

#[test]
fn gpus_that_are_given_out_by_claims_are_free_held_and_waited_for_as_others() {
    let world = World::new();
    let api = Kubernetes::start();
    api.let_see_all(true);
    let kinds = [
        "ResourceSlice",
        "ResourceClaim",
        "ResourceClaimTemplate",
        "DeviceClass",
    ];
    for kind in kinds {
        api.install(kind);
    }
    // No device plugin counts its GPUs.
    let mut plain = node("node-1", &Value::Null);
    plain["status"]["capacity"] = json!({"cpu": "208"});
    plain["status"]["allocatable"] = json!({"cpu": "206"});
    api.put_node_object(&plain);
    let device = |number: u32| json!({"name": format!("gpu-{number}"), "basic": {"attributes": {"type": {"string": "gpu"}}}});
    let devices: Vec<Value> = (0..8).map(device).collect();
    api.put_object(
        "ResourceSlice",
        &json!({"metadata": {"name": "slice-1", "uid": "s-1"}, "spec": {"driver": "gpu.nvidia.com",
            "nodeName": "node-1", "pool": {"name": "node-1", "generation": 1}, "devices": devices}}),
    );
    let class =
        "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'";
    api.put_object(
        "DeviceClass",
        &json!({"metadata": {"name": "ours", "uid": "d-1"},
            "spec": {"selectors": [{"cel": {"expression": class}}]}}),
    );
    let claim = |name: &str, count: u32| {
        json!({"metadata": {"name": name, "namespace": "research", "uid": format!("uid-of-{name}")},
            "spec": {"devices": {"requests": [{"name": "gpus", "deviceClassName": "ours", "count": count}]}}})
    };
    let mut given = claim("two", 2);
    let result = |device: &str| json!({"request": "gpus", "driver": "gpu.nvidia.com", "pool": "node-1", "device": device});
    given["status"] =
        json!({"allocation": {"devices": {"results": [result("gpu-0"), result("gpu-1")]}}});
    api.put_object("ResourceClaim", &given);
    let mut waits = pod("train-1", None);
    waits["spec"]["containers"] = json!([{"resources": {"claims": [{"name": "gpus"}]}}]);
    waits["spec"]["resourceClaims"] =
        json!([{"name": "gpus", "resourceClaimTemplateName": "four"}]);
    api.put_pod_object(&waits);
    let server = place(&world, &api).start();
    let told = queue_is(&server, "two are held", |it| {
        is_seen(it) && it["capacity"][0]["held"] == 2
    });
    let pool = &told["capacity"][0];
    assert_eq!(
        (&pool["gpus"], &pool["free"]),
        (&json!(8), &json!(6)),
        "{told}"
    );
    assert_eq!(
        told["waiting"],
        json!([]),
        "nobody told what its template asks for: {told}"
    );
    let four = claim("four", 4);
    let template = json!({"metadata": four["metadata"], "spec": {"spec": four["spec"]}});
    api.put_object("ResourceClaimTemplate", &template);
    let told = queue_is(&server, "four are waited for by the template", |it| {
        it["gpus_waited_for"] == 4
    });
    assert_eq!(told["waiting"][0]["pods_that_fit"], 1, "{told}");
    // A job of three such pods that is suspended, and has none yet.
    let mut job = json!({"metadata": {"name": "later", "namespace": "research", "uid": "j-1",
            "labels": {"kueue.x-k8s.io/queue-name": "a"}},
        "spec": {"suspend": true, "parallelism": 3, "template": {"spec": {"resourceClaims":
            [{"name": "gpus", "resourceClaimTemplateName": "four"}]}}}});
    api.put_object("Job", &job);
    queue_is(&server, "the job waits for twelve more", |it| {
        it["gpus_waited_for"] == 4 + 12
    });
    job["spec"]["suspend"] = json!(false);
    api.put_object("Job", &job);
    waits["status"]["resourceClaimStatuses"] =
        json!([{"name": "gpus", "resourceClaimName": "train-1-gpus"}]);
    api.put_pod_object(&waits);
    api.put_object("ResourceClaim", &claim("train-1-gpus", 4));
    queue_is(&server, "four are waited for by the claim", |it| {
        it["gpus_waited_for"] == 4 && it["waiting"].as_array().map(Vec::len) == Some(1)
    });
    let mut given = claim("train-1-gpus", 4);
    let results: Vec<Value> = ["gpu-4", "gpu-5", "gpu-6", "gpu-7"].map(result).into();
    given["status"] = json!({"allocation": {"devices": {"results": results}}});
    api.put_object("ResourceClaim", &given);
    waits["spec"]["nodeName"] = json!("node-1");
    api.put_pod_object(&waits);
    queue_is(&server, "it has its four", |it| {
        it["waiting"] == json!([]) && it["capacity"][0]["free"] == 2
    });
    server.stop();
}

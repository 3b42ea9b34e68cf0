//! A small cluster in which somebody waits for GPUs, and a server that asks it.

use serde_json::json;

use super::kubernetes::{Kubernetes, TOKEN};
use super::{World, server};

/// A server's place that asks this cluster, by the name of those of the tests' agents.
pub fn asked(place: server::Place, world: &World, cluster: &Kubernetes) -> server::Place {
    let token = world.file("token", TOKEN).display().to_string();
    place
        .with("inventory.source=\"kubernetes\"")
        .with("inventory.cluster=\"test\"")
        .with(&format!("inventory.kubernetes_url=\"{}\"", cluster.url()))
        .with(&format!("inventory.kubernetes_token_file=\"{token}\""))
}

/// A cluster with a node that takes work, one that does not, a pod that runs and one that waits.
///
/// # Panics
/// When no port can be had.
pub fn cluster() -> Kubernetes {
    let gpus = json!({"nvidia.com/gpu": "8"});
    let node = |name: &str, is_cordoned: bool| {
        json!({
            "metadata": {
                "name": name, "uid": format!("uid-of-{name}"), "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {
                    "cloud.google.com/gke-accelerator": "nvidia-h100-80gb",
                    "topology.kubernetes.io/zone": "us-central1-a",
                },
            },
            "spec": {"unschedulable": is_cordoned},
            "status": {"capacity": gpus, "allocatable": gpus, "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:02:00Z"},
            ]},
        })
    };
    let waiting = json!({
        "metadata": {
            "name": "train-1", "namespace": "research", "uid": "uid-of-train-1",
            "creationTimestamp": "2026-01-01T10:00:00Z",
            "labels": {"jobset.sigs.k8s.io/jobset-name": "train"},
        },
        "spec": {"containers": [{"resources": {"limits": gpus}}]},
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}]},
    });
    let cluster = Kubernetes::start();
    cluster.let_see_all(true);
    cluster.put_node_object(&node("live-node-1", false));
    cluster.put_node_object(&node("live-node-2", true));
    cluster.put_pod_object(&waiting);
    cluster
}

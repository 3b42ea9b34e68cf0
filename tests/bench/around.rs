//! What is around the simulated fleet while its pages are measured: a Kubernetes that tells of its nodes and of pods
//! that wait, a live node with an agent, and things that are broken. Without them pages that answer for trouble,
//! queue and blind spots would be measured while they have nothing to say.
//!
//! Limits: simulated GPUs are never live, so that what is asked of live clusters alone (checks, blind spots, waste) is
//! measured with one live node that has an agent and as many that have none as Kubernetes tells of.

use std::time::Duration;

use gpufleet_standin_nvml::Scenario;
use gpufleet_standin_nvml::load::Load;
use gpufleet_tests::harness::agent::{self, Agent};
use gpufleet_tests::harness::kubernetes::{Kubernetes, TOKEN};
use gpufleet_tests::harness::server::{Place, Server};
use gpufleet_tests::harness::simulator::Simulator;
use gpufleet_tests::harness::{World, wait};
use serde_json::{Value, json};

/// Nodes of the live cluster, of which one has an agent.
const NODES: usize = 100;
/// Pods that wait, sixteen to a gang.
const WAITING: usize = 400;
/// The name of the live node.
const LIVE: &str = "live-node-0";
/// What is broken, and the incident that it is: a rank for which all others wait, and a GPU.
const FAULTS: [(&str, &str); 2] = [("lowclock", "straggler"), ("xid79", "gpu_fault")];
/// How long it may take until it is told.
const TOLD_LIMIT: Duration = Duration::from_secs(300);

/// The live cluster beside the simulated one.
pub(crate) struct Around {
    cluster: Kubernetes,
    token: String,
}

impl Around {
    pub(crate) fn start(world: &World) -> Self {
        let cluster = Kubernetes::start();
        cluster.let_see_all(true);
        for number in 0..NODES {
            cluster.put_node_object(&node(number));
        }
        for number in 0..WAITING {
            cluster.put_pod_object(&waiting(number));
        }
        let token = world.file("token", TOKEN).display().to_string();
        Self { cluster, token }
    }

    /// The server that is told of it.
    pub(crate) fn told_to(&self, place: Place) -> Place {
        place
            .with("inventory.source=\"kubernetes\"")
            .with("inventory.cluster=\"test\"")
            .with(&format!(
                "inventory.kubernetes_url=\"{}\"",
                self.cluster.url()
            ))
            .with(&format!(
                "inventory.kubernetes_token_file=\"{}\"",
                self.token
            ))
    }
}

/// The agent of the live node, which reads the stand-in.
pub(crate) fn live_agent(world: &World, endpoint: &str) -> Agent {
    let place = agent::Place::new(world, LIVE, endpoint, "");
    place.show(&Scenario::of(8, "NVIDIA H100 80GB HBM3", Load::Training));
    place.start()
}

/// Breaks what is to be broken, and waits until each is an incident: the pages of the job that runs and of one incident.
pub(crate) fn broken(server: &Server, simulator: &Simulator) -> [String; 2] {
    let first = |path: &str, is_it: &dyn Fn(&Value) -> bool| {
        let answer = server.get(path).json();
        let items = answer["items"].as_array().cloned().unwrap_or_default();
        items.into_iter().find(|it| is_it(it))
    };
    let job = wait::until("a job runs", TOLD_LIMIT, || {
        first("/api/v1/jobs", &|it| it["state"] != "ended")
    });
    let mut last = Value::Null;
    for (fault, family) in FAULTS {
        simulator.fault(fault);
        last = wait::until(family, TOLD_LIMIT, || {
            first("/api/v1/incidents", &|it| it["family"] == family)
        });
    }
    let text = |of: &Value, name: &str| of[name].as_str().expect("it is told").to_owned();
    let name = text(&job, "job").replace('/', "%2F");
    let attempt = job["attempt"].as_u64().expect("it is told");
    [
        format!("/clusters/{}/jobs/{name}/{attempt}", text(&job, "cluster")),
        format!("/incidents/{}", text(&last, "id")),
    ]
}

fn node(number: usize) -> Value {
    let gpus = json!({"nvidia.com/gpu": "8"});
    json!({
        "metadata": {
            "name": format!("live-node-{number}"), "uid": format!("uid-of-node-{number}"),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "cloud.google.com/gke-accelerator": "nvidia-h100-80gb",
                "topology.kubernetes.io/zone": format!("us-central1-{}", ["a", "b", "c"][number % 3]),
            },
        },
        "spec": {"unschedulable": number % 20 == 1},
        "status": {"capacity": gpus, "allocatable": gpus, "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:02:00Z"},
        ]},
    })
}

fn waiting(number: usize) -> Value {
    let gpus = json!({"nvidia.com/gpu": "8"});
    json!({
        "metadata": {
            "name": format!("train-{number}"), "namespace": "research", "uid": format!("uid-of-pod-{number}"),
            "creationTimestamp": "2026-01-01T10:00:00Z",
            "labels": {"jobset.sigs.k8s.io/jobset-name": format!("train-{}", number / 16)},
        },
        "spec": {"containers": [{"resources": {"limits": gpus}}]},
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/100 nodes are available: 100 Insufficient nvidia.com/gpu."}]},
    })
}

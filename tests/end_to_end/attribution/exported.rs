//! Who holds a GPU where the kubelet is out of reach: an exporter's labels and the Kubernetes API, through the readers.

use std::sync::Arc;

use gpufleet_agent::attribute::SOURCE;
use gpufleet_agent::config::Config;
use gpufleet_agent::read::exporter::Target;
use gpufleet_agent::read::{self, NodeFacts, Turn, Wiring};
use gpufleet_program::clock::SystemClock;
use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};
use gpufleet_telemetry::time::Clock as _;
use gpufleet_tests::harness::kubernetes::{Kubernetes, TOKEN};
use gpufleet_tests::harness::{World, wait};
use serde_json::json;

use super::{LIMIT, NODE};

#[test]
fn pods_that_an_exporter_names_hold_gpus_with_their_job_and_labels_where_the_kubelet_is_out_of_reach()
 {
    let world = World::new();
    let api = Kubernetes::start();
    api.put_node(NODE, "gce://project/us-central1-a/node-1", &json!({}));
    api.put_namespace("team-a", &json!({"team": "nlp"}));
    let labels = json!({"jobset.sigs.k8s.io/jobset-name": "train", "app": "llm"});
    let owners = [json!({"kind": "Job", "name": "train-workers-0", "controller": true})];
    let more = json!({"labels": labels, "owners": owners});
    api.put_pod(NODE, ["team-a", "train-0", "uid-1"], &more);
    let line = |gpu: &str, labels: &str| {
        format!("DCGM_FI_DEV_GPU_UTIL{{UUID=\"GPU-{gpu}\"{labels}}} 50\n")
    };
    let text = [
        line(
            "a",
            ",pod=\"train-0\",namespace=\"team-a\",container=\"main\"",
        ),
        line("b", ",pod=\"\",namespace=\"\",container=\"\""),
        line("c", ""),
    ];
    let text = text.concat();
    let runtime = tokio::runtime::Runtime::new().expect("a test may have one");
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
    let listener = listener.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let answer = axum::routing::get(move || async move { text });
    let router = axum::Router::new().route("/metrics", answer);
    runtime.spawn(async move { axum::serve(listener, router).await });
    let mut config = Config::for_tests();
    config.exporter.targets = vec![Target::at(&format!("http://{address}/metrics"))];
    config.attribute.enabled = true;
    config.attribute.labels = vec!["app".to_owned()];
    // The folder is there, and nobody listens in it.
    std::fs::create_dir_all(world.path("kubelet")).expect("a folder");
    config.attribute.kubelet_socket = world.path("kubelet/kubelet.sock");
    config.attribute.kubernetes_url = api.url();
    config.attribute.kubernetes_token_file = world.file("token", TOKEN);
    config.attribute.slurm_jobs_folder = world.path("jobs");
    config.attribute.scontrol_path = world.path("no-scontrol");
    config.attribute.squeue_path = world.path("no-squeue");
    config.host.proc_folder = world.path("proc");
    config.node.metadata_server = String::new();
    let wiring = Wiring::to_look(Arc::new(NodeFacts::for_tests()));
    let mut readers = read::readers(&config, wiring).expect("a config that can be used");
    let expected = [
        (attribute::HOLDER, "pod:team-a/train-0"),
        (attribute::POD_UID, "uid-1"),
        (attribute::CONTAINER, "main"),
        (attribute::WORKLOAD, "jobset:team-a/train"),
        ("gpufleet.label.app", "llm"),
        ("gpufleet.namespace_label.team", "nlp"),
    ];
    let gpus = wait::until("the pod's job and labels are known", LIMIT, || {
        let gpus = attributed(&mut readers, &runtime);
        let gpu = gpus.iter().find(|it| &*it.id == "GPU-a")?;
        let is_told = |(name, value): &(&str, &str)| gpu.attribute(name) == Some(*value);
        expected.iter().all(is_told).then_some(gpus)
    });
    let unknown = |id: &str| {
        let gpu = gpus.iter().find(|it| &*it.id == id).expect("it is listed");
        assert_eq!(gpu.attribute(attribute::HOLDER), None, "{id}");
        gpu.attribute(attribute::HOLDER_UNKNOWN).map(str::to_owned)
    };
    assert_eq!(unknown("GPU-b"), None, "nobody holds it");
    let why = unknown("GPU-c").expect("no label says it");
    assert!(why.starts_with("not_heard: the kubelet's socket"), "{why}");
    let (lists, _) = api.asked();
    for _ in 0..3 {
        attributed(&mut readers, &runtime);
    }
    assert_eq!(api.asked().0, lists, "no round asks for pods");
    assert_eq!(api.refused(), [].into(), "asked what nobody may ask");
}

/// What is told of holders of GPUs after a round of each reader.
fn attributed(
    readers: &mut read::Readers,
    runtime: &tokio::runtime::Runtime,
) -> Vec<Arc<Resource>> {
    let clock = SystemClock::start();
    let mut told = Vec::new();
    for reader in readers {
        let turn = Turn {
            at: clock.now(),
            monotonic: clock.monotonic(),
            node: Arc::new(NodeFacts::for_tests()),
        };
        let readings = runtime.block_on(reader.read(turn));
        let readings = readings.expect("each has something to tell");
        if reader.name() == SOURCE {
            told = readings.resources;
        }
    }
    let told = told.into_iter().map(|it| it.resource);
    told.filter(|it| it.kind == ResourceKind::Gpu).collect()
}

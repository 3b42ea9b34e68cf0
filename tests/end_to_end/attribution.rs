//! Who holds a GPU, the whole way: kubelet and Kubernetes API → agent → server → API.

use std::sync::Arc;
use std::time::Duration;

use gpufleet_agent::attribute::Attribution;
use gpufleet_agent::attribute::users::Users;
use gpufleet_agent::config::Config;
use gpufleet_agent::read::{NodeFacts, Read, Turn};
use gpufleet_program::clock::SystemClock;
use gpufleet_standin_nvml::load::Load;
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};
use gpufleet_telemetry::sample::{ResourceSamples, Sample};
use gpufleet_telemetry::time::Clock as _;
use gpufleet_tests::harness::kubelet::{Given, Kubelet};
use gpufleet_tests::harness::kubernetes::{Kubernetes, TOKEN};
use gpufleet_tests::harness::{World, agent, server, wait};
use serde_json::{Value, json};

mod exported;

/// The start, two rounds, two ticks, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Ticks of a second, so that a change is seen soon.
const SAMPLE: &str = "[sample]\nship_interval_seconds = 1\n[exporter]\nauto = false\n";

const NODE: &str = "node-1";

/// A node of Kubernetes with two GPUs, and a server that hears of it.
struct Node {
    kubelet: Kubelet,
    api: Kubernetes,
    server: server::Server,
    agent: agent::Agent,
    gpus: Vec<String>,
    token: std::path::PathBuf,
    _world: World,
}

impl Node {
    fn start() -> Self {
        let world = World::new();
        let kubelet = Kubelet::start(&world.path("kubelet"));
        let api = Kubernetes::start();
        let labels = json!({
            "node.kubernetes.io/instance-type": "a3-highgpu-8g",
            "topology.kubernetes.io/zone": "us-central1-a",
        });
        api.put_node(NODE, "gce://project/us-central1-a/node-1", &labels);
        api.put_namespace("team-a", &json!({"team": "nlp"}));
        let token = world.file("token", TOKEN);
        let server = server::Place::new(&world).start();
        let config = format!(
            "{SAMPLE}[attribute]\nperiod_seconds = 1\nlabels = [\"app\"]\n\
             kubelet_socket = \"{}\"\nkubernetes_url = \"{}\"\nkubernetes_token_file = \"{}\"\n",
            kubelet.socket().display(),
            api.url(),
            token.display(),
        );
        let endpoint = format!("http://{}", server.place.grpc);
        let place = agent::Place::new(&world, NODE, &endpoint, &config);
        // Nothing runs: of work that nobody is known to do the holder would be unknown.
        let mut scenario = agent::gpus(0, 2);
        let gpus = scenario.gpus.iter_mut();
        gpus.for_each(|it| it.load = Load::Idle);
        place.show(&scenario);
        let agent = place.start();
        let gpus = wait::until("two GPUs are listed", LIMIT, || {
            let listed = server.get("/api/v1/gpus?cluster=test").json();
            let ids = listed["items"].as_array()?.iter();
            let ids: Vec<String> = ids
                .filter_map(|it| Some(it["id"].as_str()?.to_owned()))
                .collect();
            (ids.len() == 2).then_some(ids)
        });
        Self {
            kubelet,
            api,
            server,
            agent,
            gpus,
            token,
            _world: world,
        }
    }

    fn gpu(&self, index: usize) -> Value {
        let path = format!("/api/v1/gpus/test/{}", self.gpus[index]);
        self.server.get(&path).json()
    }

    /// Waits until a GPU's holder is this one and has these attributes.
    fn waits(&self, what: &str, index: usize, holder: &Value, attributes: &[(&str, &str)]) {
        wait::until(what, LIMIT, || {
            let gpu = self.gpu(index);
            let told = &gpu["attributes"];
            let is_told = |(name, value): &(&str, &str)| told[*name] == **value;
            (gpu["holder"] == *holder && attributes.iter().all(is_told)).then_some(())
        });
    }

    fn stop(self) {
        assert_eq!(self.api.refused(), [].into(), "asked what nobody may ask");
        self.agent.stop();
        self.server.stop();
    }
}

fn pod(namespace: &str, name: &str) -> Value {
    json!({"known": true, "name": format!("pod:{namespace}/{name}")})
}

fn nobody() -> Value {
    json!({"known": true, "name": null})
}

#[test]
fn a_pod_that_comes_and_goes_is_seen_on_the_server_with_its_job_its_labels_and_its_node() {
    let node = Node::start();
    node.waits("nobody holds a GPU", 0, &nobody(), &[]);
    let labels = json!({
        "jobset.sigs.k8s.io/jobset-name": "train",
        "kueue.x-k8s.io/queue-name": "research",
        "app": "llm",
    });
    let more = json!({
        "labels": labels,
        "owners": [{"kind": "Job", "name": "train-workers-0", "controller": true}],
    });
    node.api
        .put_pod(NODE, ["team-a", "train-0", "uid-1"], &more);
    node.api
        .put_pod("node-2", ["team-a", "train-1", "uid-2"], &more);
    let answers = node.kubelet.show(&[
        Given::gpus("team-a", "train-0", &[&node.gpus[0]]),
        Given::gpus("team-a", "cpu-only", &[]),
    ]);
    let attributes = [
        ("gpufleet.workload", "jobset:team-a/train"),
        ("gpufleet.queue", "research"),
        ("gpufleet.label.app", "llm"),
        ("gpufleet.namespace_label.team", "nlp"),
        ("k8s.pod.uid", "uid-1"),
        ("k8s.container.name", "main"),
    ];
    node.waits(
        "the pod holds GPU 0",
        0,
        &pod("team-a", "train-0"),
        &attributes,
    );
    // By the kubelet's own count: rounds of a second, ticks of a second.
    let asked = node.kubelet.answers() - answers;
    assert!(asked < 30, "it took {asked} rounds");
    node.waits("nobody holds GPU 1", 1, &nobody(), &[]);
    let told = node
        .server
        .get(&format!("/api/v1/nodes/test/{NODE}"))
        .json();
    let told = &told["attributes"];
    assert_eq!(told["host.type"], "a3-highgpu-8g", "{told}");
    assert_eq!(told["cloud.account.id"], "project", "{told}");
    // The next pod takes the device before the first is deleted, as the kubelet has it.
    let ended = json!({"labels": labels, "phase": "Succeeded"});
    node.api
        .put_pod(NODE, ["team-a", "train-0", "uid-1"], &ended);
    node.kubelet.show(&[
        Given::gpus("team-a", "train-0", &[&node.gpus[0]]),
        Given::gpus("team-b", "serve", &["nvidia0", "no-such-device"]),
    ]);
    node.waits("the next pod holds it", 0, &pod("team-b", "serve"), &[]);
    node.api.delete_pod("uid-1");
    node.kubelet.show(&[]);
    node.waits("nobody holds it", 0, &nobody(), &[]);
    node.stop();
}

#[test]
fn a_pod_whose_container_does_not_run_yet_starts_on_its_gpu_until_it_does() {
    let node = Node::start();
    let put = |phase: &str, state: Value| {
        let more = json!({"phase": phase, "containers": [{"name": "main", "state": state}]});
        node.api
            .put_pod(NODE, ["team-a", "train-0", "uid-1"], &more);
    };
    let is = |state: &str| {
        wait::until(state, LIMIT, || {
            (node.gpu(0)["state"] == state).then_some(())
        });
    };
    put(
        "Pending",
        json!({"waiting": {"reason": "ContainerCreating"}}),
    );
    let held = [Given::gpus("team-a", "train-0", &[&node.gpus[0]])];
    node.kubelet.show(&held);
    let attributes = [("gpufleet.holder.starting", "true")];
    node.waits("it starts", 0, &pod("team-a", "train-0"), &attributes);
    is("starting_pod");
    put(
        "Running",
        json!({"running": {"startedAt": "2026-11-23T10:00:00Z"}}),
    );
    // Nothing computes on it yet, and no memory is in use.
    is("gap");
    node.waits("it runs", 0, &pod("team-a", "train-0"), &[]);
    assert_eq!(
        node.gpu(0)["attributes"]["gpufleet.holder.starting"],
        Value::Null
    );
    node.stop();
}

#[test]
fn a_kubelet_that_is_gone_makes_holders_unknown_and_one_that_begins_anew_is_asked_anew() {
    let mut node = Node::start();
    let held = [Given::gpus("team-a", "train-0", &[&node.gpus[0]])];
    node.kubelet.show(&held);
    node.waits("the pod holds GPU 0", 0, &pod("team-a", "train-0"), &[]);
    // Slower than the agent waits, then dead: what was known counts for three ticks.
    node.kubelet.delay(Duration::from_secs(3_600));
    wait::until("the kubelet is slow", LIMIT, || {
        let text = node.agent.get("/metrics")?.text();
        let line = "gpufleet_agent_holders_answer_flag";
        let mut lines = text
            .lines()
            .filter(|it| it.starts_with(line) && it.contains("kubelet"));
        lines.any(|it| it.ends_with(" 0")).then_some(())
    });
    node.kubelet.die();
    let unknown = json!({"known": false, "name": null});
    node.waits("who holds it is not known", 0, &unknown, &[]);
    node.waits("nor of the other", 1, &unknown, &[]);
    let why = node.gpu(0)["attributes"]["gpufleet.holder.unknown"].clone();
    let why = why.as_str().unwrap_or_default();
    assert!(why.starts_with("not_heard: the kubelet's socket"), "{why}");
    node.kubelet.delay(Duration::ZERO);
    node.kubelet.begin();
    node.waits("it is known again", 0, &pod("team-a", "train-0"), &[]);
    let other = Given::gpus("team-a", "other", &[&node.gpus[0]]);
    node.kubelet.show(&[held[0].clone(), other]);
    node.waits(
        "two hold it",
        0,
        &unknown,
        &[(
            "gpufleet.holder.unknown",
            "claimed_twice: pod:team-a/other, pod:team-a/train-0",
        )],
    );
    node.stop();
}

#[test]
fn an_api_server_that_forgets_refuses_or_is_gone_costs_labels_for_a_while_and_no_holder() {
    let mut node = Node::start();
    node.kubelet
        .show(&[Given::gpus("team-a", "a", &[&node.gpus[0]])]);
    let app = |app: &str| json!({"labels": {"app": app}});
    let is = |node: &Node, what: &str, label: &str| {
        node.waits(
            what,
            0,
            &pod("team-a", "a"),
            &[("gpufleet.label.app", label)],
        );
    };
    node.api.put_pod(NODE, ["team-a", "a", "uid"], &app("1"));
    is(&node, "the label is known", "1");
    let (lists, _) = node.api.asked();
    node.api.put_pod(NODE, ["team-a", "a", "uid"], &app("2"));
    is(&node, "a change is told", "2");
    assert_eq!(node.api.asked().0, lists, "by the watch, not by a list");
    // It forgets where the watch is: the pods are listed anew.
    node.api.forget();
    node.api.put_pod(NODE, ["team-a", "a", "uid"], &app("3"));
    is(&node, "a change after it forgot", "3");
    assert!(node.api.asked().0 > lists, "by a list");
    // It is gone, and comes back with another token.
    node.api.die();
    node.api.take_token("rotated");
    node.api.put_pod(NODE, ["team-a", "a", "uid"], &app("4"));
    node.kubelet
        .show(&[Given::gpus("team-a", "b", &[&node.gpus[0]])]);
    node.waits(
        "the kubelet alone tells the holder",
        0,
        &pod("team-a", "b"),
        &[],
    );
    node.api.begin();
    std::fs::write(&node.token, "rotated").expect("the test's own file");
    node.kubelet
        .show(&[Given::gpus("team-a", "a", &[&node.gpus[0]])]);
    is(&node, "a change while it was gone", "4");
    node.stop();
}

#[test]
fn each_replica_of_a_time_sliced_gpu_has_its_holder_once_it_is_known_how_many_there_are() {
    let node = Node::start();
    let replica = |number: u32| format!("{}::{number}", node.gpus[0]);
    let held = [
        Given::gpus("team-a", "notebook", &[&replica(0)]),
        Given::gpus("team-b", "serve", &[&replica(2)]),
    ];
    node.kubelet.show(&held);
    let unknown = json!({"known": false, "name": null});
    node.waits("how many there are is not known", 0, &unknown, &[]);
    wait::until("why it is not known is told", LIMIT, || {
        let why = node.gpu(0)["attributes"]["gpufleet.holder.unknown"].clone();
        let why = why.as_str()?;
        (why.starts_with("part_held: ") && why.contains("older than 1.23")).then_some(())
    });
    assert_eq!(node.gpu(0)["shares"], json!([]), "and nothing is made up");
    let mut all: Vec<String> = (0..4).map(replica).collect();
    all.push(node.gpus[1].clone());
    node.kubelet.gives_out(&all);
    let nobody = nobody();
    let expected = [
        (replica(0), pod("team-a", "notebook"), "gap"),
        (replica(1), nobody.clone(), "unallocated"),
        (replica(2), pod("team-b", "serve"), "gap"),
        (replica(3), nobody, "unallocated"),
    ];
    wait::until("each replica is somebody's or free", LIMIT, || {
        let gpu = node.gpu(0);
        let shares = gpu["shares"].as_array()?;
        let is_told = |(id, holder, state): &(String, Value, &str)| {
            let share = shares.iter().find(|it| it["id"] == **id);
            share.is_some_and(|it| it["holder"] == *holder && it["state"] == **state)
        };
        (shares.len() == 4 && expected.iter().all(is_told)).then_some(())
    });
    let share = node
        .server
        .get(&format!("/api/v1/gpus/test/{}", replica(0)));
    let told = &share.json()["attributes"];
    assert_eq!(told["hw.parent"], node.gpus[0].as_str(), "{told}");
    assert_eq!(told["gpufleet.gpu.replicas"], "4", "{told}");
    // All are given back: the card is one again, and its replicas are no more.
    node.kubelet.show(&[]);
    node.waits("the card is one again", 0, &self::nobody(), &[]);
    node.stop();
}

/// Who has the GPU by one round of the reader; nobody where it does not say.
fn holder(reader: &mut Attribution, runtime: &tokio::runtime::Runtime) -> Option<String> {
    let clock = SystemClock::start();
    let turn = Turn {
        at: clock.now(),
        monotonic: clock.monotonic(),
        node: Arc::new(NodeFacts::for_tests()),
    };
    let readings = runtime
        .block_on(reader.read(turn))
        .expect("it never fails as a whole");
    let mut gpus = readings.resources.iter().map(|it| &it.resource);
    let gpu = gpus.find(|it| it.kind == ResourceKind::Gpu)?;
    gpu.attribute(attribute::HOLDER).map(str::to_owned)
}

/// A config that asks this kubelet and nobody else.
fn asks(world: &World, kubelet: &Kubelet) -> Config {
    let mut config = Config::for_tests();
    config.attribute.enabled = true;
    config.attribute.kubelet_socket = kubelet.socket().to_owned();
    config.attribute.slurm_jobs_folder = world.path("jobs");
    config.attribute.scontrol_path = world.path("no-scontrol");
    config.attribute.squeue_path = world.path("no-squeue");
    config.host.proc_folder = world.path("proc");
    config.node.metadata_server = String::new();
    config
}

/// `GPU-0`, on which no process is.
fn idle() -> Arc<Users> {
    let users: Arc<Users> = Arc::default();
    let count = Sample {
        metric: gpu::PROCESSES.id,
        part: None,
        reading: Ok(0.0),
    };
    let card = Resource::new(ResourceKind::Gpu, "GPU-0").with(attribute::GPU_INDEX, "0");
    users.note(&[ResourceSamples {
        resource: Arc::new(card),
        samples: vec![count],
    }]);
    users
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a test may have one")
}

#[test]
fn a_kubelet_that_has_just_begun_and_does_not_list_its_pods_yet_frees_no_gpu() {
    let world = World::new();
    let mut kubelet = Kubelet::start(&world.path("kubelet"));
    let mut config = asks(&world, &kubelet);
    config.attribute.pod_namespace = "gpufleet".to_owned();
    config.attribute.pod_name = "agent-1".to_owned();
    let mut reader = Attribution::new(&config, idle()).expect("it is enabled");
    let runtime = runtime();
    let own = Given::gpus("gpufleet", "agent-1", &[]);
    let training = Given::gpus("team-a", "a", &["GPU-0"]);
    kubelet.show(&[own.clone(), training]);
    let held = Some("pod:team-a/a");
    assert_eq!(holder(&mut reader, &runtime).as_deref(), held);
    kubelet.die();
    kubelet.show(&[]);
    kubelet.begin();
    for _ in 0..3 {
        assert_eq!(holder(&mut reader, &runtime).as_deref(), held);
    }
    // Of the node's own manifests it knows before it has heard of the API server.
    kubelet.show(&[Given::gpus("kube-system", "kube-proxy-1", &[])]);
    assert_eq!(holder(&mut reader, &runtime).as_deref(), held);
    kubelet.show(&[own]);
    assert_eq!(
        holder(&mut reader, &runtime),
        None,
        "it knows all, and nobody holds it"
    );
}

#[test]
fn a_change_of_pods_is_in_the_very_next_round_and_rounds_are_no_further_apart_than_ticks() {
    let world = World::new();
    let kubelet = Kubelet::start(&world.path("kubelet"));
    let config = asks(&world, &kubelet);
    let shipped = Config::default();
    assert!(
        shipped.attribute.period_seconds <= u64::from(shipped.sample.ship_interval_seconds),
        "a round in each tick"
    );
    let mut reader = Attribution::new(&config, idle()).expect("it is enabled");
    let runtime = runtime();
    for (pods, expected) in [
        (
            vec![Given::gpus("team-a", "a", &["GPU-0"])],
            Some("pod:team-a/a"),
        ),
        (
            vec![Given::gpus("team-b", "b", &["GPU-0"])],
            Some("pod:team-b/b"),
        ),
        (Vec::new(), None),
        (
            vec![Given::gpus("team-a", "a", &["GPU-0"])],
            Some("pod:team-a/a"),
        ),
    ] {
        let before = kubelet.show(&pods);
        assert_eq!(holder(&mut reader, &runtime).as_deref(), expected);
        assert_eq!(kubelet.answers(), before + 1, "one question a round");
    }
}

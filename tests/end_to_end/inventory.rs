//! What the cluster tells beside the agents, the whole way: Kubernetes API → server → API, with a server
//! that is asked by the real program and refuses what the real one refuses.

use std::time::Duration;

use gpufleet_tests::harness::kubernetes::{Kubernetes, TOKEN};
use gpufleet_tests::harness::{World, agent, server, usage, wait};
use gpufleet_tests::on_both_databases;
use serde_json::{Value, json};

mod claims;

mod taken_back;

/// The longest pause between two questions, twice, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A list of 400 pages, on a busy machine.
const LONG_LIST: Duration = Duration::from_secs(240);

/// The most that a server's memory may grow by 100,000 pods that ask for no GPU, bytes: it has two pages
/// of them at a time.
const MOST_BYTES: f64 = 64e6;

const WORDS: &str = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: no.";

fn node(name: &str, more: &Value) -> Value {
    let gpus = json!({"nvidia.com/gpu": "8"});
    let mut node = json!({
        "metadata": {
            "name": name, "uid": format!("uid-of-{name}"), "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "cloud.google.com/gke-accelerator": "nvidia-h100-80gb",
                "topology.kubernetes.io/zone": "us-central1-a",
            },
        },
        "spec": {},
        "status": {
            "capacity": gpus, "allocatable": gpus,
            "conditions": [{"type": "Ready", "status": "True",
                "lastTransitionTime": "2026-01-01T00:02:00Z"}],
        },
    });
    if more.is_object() {
        node["spec"] = more.clone();
    }
    node
}

/// A pod that asks for eight GPUs; on a node, or waiting.
fn pod(name: &str, on: Option<&str>) -> Value {
    let containers = json!([{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]);
    let mut pod = json!({
        "metadata": {
            "name": name, "namespace": "research", "uid": format!("uid-of-{name}"),
            "creationTimestamp": "2026-01-01T10:00:00Z",
            "labels": {"jobset.sigs.k8s.io/jobset-name": "train"},
        },
        "spec": {"containers": containers},
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": WORDS}]},
    });
    if let Some(node) = on {
        pod["spec"]["nodeName"] = json!(node);
        pod["status"] = json!({"phase": "Running"});
    }
    pod
}

/// A server that asks this API about cluster `test`.
fn place(world: &World, api: &Kubernetes) -> server::Place {
    let token = world.file("token", TOKEN);
    server::Place::new(world)
        .with("inventory.source=\"kubernetes\"")
        .with("inventory.cluster=\"test\"")
        .with("inventory.agent_within_s=10")
        .with(&format!("inventory.kubernetes_url=\"{}\"", api.url()))
        .with(&format!(
            "inventory.kubernetes_token_file=\"{}\"",
            token.display()
        ))
}

fn queue(server: &server::Server) -> Value {
    server.get("/api/v1/queue").json()
}

/// Waits until the queue is so.
fn queue_is(server: &server::Server, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    wait::until(what, LIMIT, || Some(queue(server)).filter(&is))
}

fn is_seen(queue: &Value) -> bool {
    queue["nodes"]["state"] == "seen" && queue["claims"]["state"] == "seen"
}

fn open_incidents(server: &server::Server) -> Vec<String> {
    let answer = server
        .get("/api/v1/incidents?state=open&cluster=test")
        .json();
    let items = answer["items"].as_array().cloned().unwrap_or_default();
    let of = |it: &Value| {
        let what = it["what"].as_str().unwrap_or_default();
        let node = it["place"]["node"].as_str().unwrap_or_default();
        format!("{node}: {what}")
    };
    items.iter().map(of).collect()
}

on_both_databases!(
    a_pod_that_waits_is_in_the_queue_with_its_reason_and_a_node_without_an_agent_is_an_incident_until_one_comes
);

fn a_pod_that_waits_is_in_the_queue_with_its_reason_and_a_node_without_an_agent_is_an_incident_until_one_comes(
    world: World,
) {
    let api = Kubernetes::start();
    api.let_see_all(true);
    let server = place(&world, &api).start();
    api.put_node_object(&node("node-1", &Value::Null));
    api.put_pod_object(&pod("train-0", Some("node-1")));
    api.put_pod_object(&pod("train-1", None));
    let told = queue_is(&server, "a pod waits, and one is on its node", |it| {
        is_seen(it) && it["gpus_waited_for"] == 8 && it["capacity"][0]["held"] == 8
    });
    let row = &told["waiting"][0];
    assert_eq!(row["workload"], "jobset:research/train", "{told}");
    assert_eq!(row["scheduler_says"], WORDS);
    assert_eq!(row["plainly"][0], "1 node has too few free GPUs.");
    assert_eq!(row["since"], "2026-01-01T10:00:00.000Z");
    let pool = &told["capacity"][0];
    assert_eq!((&pool["gpus"], &pool["free"]), (&json!(8), &json!(0)));
    // A second node comes, without an agent as the first; the pod is put on it and ends.
    api.put_node_object(&node("node-2", &Value::Null));
    queue_is(&server, "the new node is free", |it| {
        let gangs = &it["capacity"][0]["largest_gangs"];
        it["capacity"][0]["free"] == 8 && gangs[3]["pods"] == 1
    });
    api.put_pod_object(&pod("train-1", Some("node-2")));
    queue_is(&server, "nobody waits", |it| {
        it["waiting"] == json!([]) && it["capacity"][0]["free"] == 0
    });
    let mut over = pod("train-1", Some("node-2"));
    over["status"]["phase"] = json!("Succeeded");
    api.put_pod_object(&over);
    queue_is(&server, "what ended holds nothing", |it| {
        it["capacity"][0]["free"] == 8
    });
    api.put_node_object(&node("node-2", &json!({"unschedulable": true})));
    let told = queue_is(&server, "the node is cordoned", |it| {
        it["unwell_nodes"][0]["phase"] == "cordoned"
    });
    assert_eq!(told["capacity"][0]["free"], 0, "{told}");
    let last = &told["changes"][0];
    assert_eq!(
        (&last["node"], &last["what"]),
        (&json!("node-2"), &json!("is cordoned"))
    );
    // Both are without an agent.
    let blind = "a node with GPUs and without an agent";
    let both = [format!("node-1: {blind}"), format!("node-2: {blind}")];
    wait::until("both are incidents", LIMIT, || {
        let mut open = open_incidents(&server);
        open.sort();
        (open == both).then_some(())
    });
    // An agent comes to the one, and the other is scaled down.
    let endpoint = format!("http://{}", server.place.grpc);
    let place = agent::Place::new(
        &world,
        "node-1",
        &endpoint,
        "[sample]\nship_interval_seconds = 1\n",
    );
    place.show(&agent::gpus(0, 2));
    let agent = place.start();
    api.delete_node("node-2");
    wait::until("no node is without an agent", LIMIT, || {
        open_incidents(&server).is_empty().then_some(())
    });
    // A server that starts anew knows since when.
    let told = queue(&server)["unwell_nodes"][0].clone();
    assert_eq!(told["phase"], "gone", "{told}");
    let server = server.stop().start();
    let again = queue_is(&server, "it is read anew", is_seen);
    assert_eq!(again["unwell_nodes"][0], told, "{again}");
    assert_eq!(again["changes"][0]["what"], "is gone", "{again}");
    // The other is scaled down too, and its agent with it: that is no silent node and costs nothing.
    let gpus_are = |count: usize| {
        wait::until("so many GPUs are there", LIMIT, || {
            let fleet = server.get("/api/v1/fleet").json();
            (fleet["live"]["gpus"] == count).then_some(fleet)
        })
    };
    gpus_are(2);
    api.delete_node("node-1");
    agent.stop();
    assert_eq!(gpus_are(0)["silent_nodes"], 0);
    let metrics = server.get("/metrics").text();
    let silent = "gpufleet_server_nodes{cluster=\"test\",origin=\"live\",state=\"silent\"} 0\n";
    assert!(metrics.contains(silent), "{metrics}");
    let doctor = server.get("/api/v1/doctor").json();
    let findings = doctor["findings"].as_array().expect("a list");
    let is_silent = |it: &Value| it["id"] == "state-no_sample";
    assert!(!findings.iter().any(is_silent), "{doctor}");
    let page = server.get("/clusters/test/nodes/node-1").text();
    assert!(page.contains("The cluster says that it is gone"), "{page}");
    wait::until("nothing is wrong with it", LIMIT, || {
        open_incidents(&server).is_empty().then_some(())
    });
    assert_eq!(api.refused(), [].into(), "asked what nobody may ask");
    server.stop();
}

#[test]
fn a_node_whose_agent_never_told_anything_is_paid_for_and_not_observed() {
    let world = World::new();
    let api = Kubernetes::start();
    api.let_see_all(true);
    let mut silent = node(
        "node-1",
        &json!({"providerID": "gce://a-project/us-central1-a/node-1"}),
    );
    let labels = &mut silent["metadata"]["labels"];
    labels["node.kubernetes.io/instance-type"] = json!("a3-highgpu-8g");
    labels["topology.kubernetes.io/region"] = json!("us-central1");
    api.put_node_object(&silent);
    let server = place(&world, &api).start();
    let report = wait::until("the node is in the report", LIMIT, || {
        let answer = server.get("/api/v1/reports/chargeback?by=project,gpu&format=json");
        let report: Value = answer.json();
        (report["total"]["gpu_millis"].as_i64()? > 0).then_some(report)
    });
    let group = &report["groups"][0];
    assert_eq!(
        group["by"],
        json!({"gpu": "node-1", "project": "a-project"}),
        "{report}"
    );
    let states = group["states"].as_object().expect("there are some");
    assert_eq!(
        states.keys().collect::<Vec<_>>(),
        ["unobserved"],
        "{report}"
    );
    // All eight, since the month began, at the published price.
    let millis = report["total"]["gpu_millis"].as_i64().expect("a number");
    assert_eq!(
        (millis % 8, report["unpriced"]["gpu_millis"].as_i64()),
        (0, Some(0)),
        "{report}"
    );
    assert_eq!(report["balance"]["is_exact"], true, "{report}");
    let cost = report["total"]["cost"].as_str().expect("money is text");
    let cost = gpufleet_analysis::money::parse(cost).expect("a decimal");
    let hour = i128::from(cost) * 8 * 3_600_000 / i128::from(millis);
    assert!(
        (80_000_000_000..100_000_000_000).contains(&hour),
        "{hour} an hour"
    );
    server.stop();
}

/// Objects that wait for GPUs before they have pods, and what the autoscaler says of one that has.
fn waiting_before_pods(api: &Kubernetes) {
    let meta = |name: &str, uid: &str| json!({"name": name, "namespace": "research", "uid": uid, "creationTimestamp": "2026-01-01T09:00:00Z"});
    let pods = json!({"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}],
        "tolerations": [{"key": "team", "operator": "Exists"}]}});
    let job = json!({"suspend": true, "parallelism": 2, "template": pods});
    api.put_object(
        "Job",
        &json!({"metadata": meta("alone", "j-1"), "spec": job}),
    );
    api.install("JobSet");
    api.install("Workload");
    let jobs = json!([{"replicas": 3, "template": {"spec": job}}]);
    let set = json!({"metadata": meta("large", "s-1"), "spec": {"suspend": true, "replicatedJobs": jobs}});
    api.put_object("JobSet", &set);
    let mut queued = json!({"metadata": meta("w", "w-1"),
        "spec": {"queueName": "a", "podSets": [{"count": 6, "template": pods}]},
        "status": {"conditions": [{"type": "QuotaReserved", "status": "False",
            "message": "insufficient unused quota for nvidia.com/gpu"}]}});
    queued["metadata"]["ownerReferences"] =
        json!([{"kind": "JobSet", "name": "large", "controller": true}]);
    api.put_object("Workload", &queued);
    let said = json!({"metadata": meta("train-0.1", "e-1"), "reason": "NotTriggerScaleUp",
        "message": "pod didn't trigger scale-up: 1 max node group size reached",
        "involvedObject": {"kind": "Pod", "uid": "uid-of-train-0"},
        "source": {"component": "cluster-autoscaler"}, "lastTimestamp": "2099-01-01T10:00:00Z"});
    api.put_object("Event", &said);
}

#[test]
fn what_waits_before_it_has_pods_is_in_the_queue_once_with_who_says_more_and_the_autoscaler_is_heard()
 {
    let world = World::new();
    let api = Kubernetes::start();
    api.let_see_all(true);
    api.put_pod_object(&pod("train-0", None));
    let kept = json!({"taints": [{"key": "team", "value": "nlp", "effect": "NoSchedule"}]});
    api.put_node_object(&node("node-1", &kept));
    let server = place(&world, &api).start();
    let told = queue_is(&server, "the cluster is seen", |it| {
        is_seen(it) && it["gpus_waited_for"] == 8
    });
    // JobSets and Kueue are not installed: that is nothing to mend.
    assert_eq!(told["not_seen_besides"], json!([]), "{told}");
    waiting_before_pods(&api);
    let told = queue_is(&server, "all of it waits", |it| {
        let rows = it["waiting"].as_array().map_or(&[][..], Vec::as_slice);
        rows.len() == 3
            && rows.iter().any(|it| it["queue"] == "a")
            && rows
                .iter()
                .any(|it| it["autoscaler"]["what"] == "adds_none")
    });
    let rows = told["waiting"].as_array().expect("there are some");
    let of = |name: &str| rows.iter().find(|it| it["workload"] == name).expect(name);
    let large = of("jobset:research/large");
    assert_eq!(
        (&large["gpus"], &large["reason"]),
        (&json!(48), &json!("held_back")),
        "{told}"
    );
    assert_eq!(
        large["scheduler_says"],
        "insufficient unused quota for nvidia.com/gpu"
    );
    // They tolerate the taint of the one node, on which the pod that waits may not go.
    assert_eq!(large["pods_that_fit"], 1, "{told}");
    assert_eq!(of("job:research/alone")["gpus"], 16, "{told}");
    assert_eq!(of("jobset:research/train")["pods_that_fit"], 0, "{told}");
    // No queue lets it begin: its owner is to.
    let alone = of("job:research/alone");
    assert_eq!(alone["reason"], "held_by_owner", "{told}");
    assert_eq!(told["gpus_waited_for"], 8 + 48, "{told}");
    assert_eq!(told["gpus_held_by_owners"], 16, "{told}");
    assert_eq!(api.refused(), [].into(), "asked what nobody may ask");
    server.stop();
}

#[test]
fn an_api_server_that_refuses_forgets_talks_nonsense_or_is_gone_is_named_and_never_taken_for_an_empty_cluster()
 {
    let world = World::new();
    let mut api = Kubernetes::start();
    api.put_node_object(&node("node-1", &Value::Null));
    api.put_pod_object(&pod("train-0", None));
    api.take_token("another");
    let server = place(&world, &api).start();
    let told = queue_is(&server, "its token is nobody's", |it| {
        let why = it["nodes"]["why"].as_str().unwrap_or_default();
        it["nodes"]["state"] == "never_seen" && why.contains("401")
    });
    let fix = told["nodes"]["fix"].as_str().unwrap_or_default();
    assert!(fix.contains("credentials are invalid"), "{told}");
    api.take_token(TOKEN);
    let told = queue_is(&server, "it is refused", |it| {
        ["nodes", "claims"].iter().all(|part| {
            let why = it[*part]["why"].as_str().unwrap_or_default();
            it[*part]["state"] == "never_seen" && why.contains("403")
        })
    });
    for part in ["nodes", "claims"] {
        let fix = told[part]["fix"].as_str().unwrap_or_default();
        assert!(fix.contains("ClusterRoleBinding gpufleet-server"), "{told}");
        let why = told[part]["why"].as_str().unwrap_or_default();
        assert!(why.contains("403"), "{told}");
    }
    let doctor = server.get("/api/v1/doctor").json();
    let findings = doctor["findings"].as_array().cloned().unwrap_or_default();
    let of_cluster = findings.iter().filter(|it| it["check"] == "cluster");
    let lines: Vec<_> = of_cluster.map(|it| &it["line"]).collect();
    assert_eq!(
        lines, ["kubectl apply -f deploy/base/accounts.yaml"; 2],
        "{doctor}"
    );
    assert_eq!(
        (&told["waiting"], &told["capacity"]),
        (&Value::Null, &Value::Null)
    );
    api.let_see_all(true);
    queue_is(&server, "it may look", is_seen);
    // It forgets where the watches are, while something happens.
    let (lists, _) = api.asked();
    api.forget();
    api.put_pod_object(&pod("train-1", None));
    queue_is(&server, "it listed anew", |it| it["gpus_waited_for"] == 16);
    assert!(api.asked().0 > lists, "by a list");
    // A proxy in between answers, after the server is gone for a while.
    api.die();
    let told = queue_is(&server, "it is gone", |it| {
        it["nodes"]["state"] == "stale" && it["claims"]["state"] == "stale"
    });
    assert_eq!(told["gpus_waited_for"], 16, "as it was: {told}");
    assert!(told["nodes"]["last_seen"].is_string(), "{told}");
    api.speak_garbage(true);
    api.begin();
    queue_is(&server, "it talks nonsense", |it| {
        let why = it["nodes"]["why"].as_str().unwrap_or_default();
        it["nodes"]["state"] == "stale" && why.contains("something unreadable")
    });
    api.speak_garbage(false);
    api.delete_pod("uid-of-train-1");
    let told = queue_is(&server, "it is well again", |it| {
        is_seen(it) && it["gpus_waited_for"] == 8
    });
    assert_eq!(told["capacity"][0]["nodes"], 1, "{told}");
    server.stop();
}

#[test]
fn a_hundred_thousand_pods_are_read_in_pages_and_those_that_ask_for_no_gpu_cost_no_memory() {
    let world = World::new();
    let mut api = Kubernetes::start();
    api.let_see_all(true);
    let server = place(&world, &api).start();
    queue_is(&server, "an empty cluster is seen", is_seen);
    let before = usage::of_group(server.id()).rss_bytes;
    // While nobody answers, so that no watch tells of it.
    api.die();
    api.fill(100_000);
    api.put_node_object(&node("node-1", &Value::Null));
    api.put_pod_object(&pod("train-0", Some("node-1")));
    api.put_pod_object(&pod("train-1", None));
    let (lists, _) = api.asked();
    // What happened in between is forgotten, so all of it has to be listed.
    api.forget();
    api.begin();
    wait::until("the one that waits is found", LONG_LIST, || {
        let queue = queue(&server);
        (queue["gpus_waited_for"] == 8 && queue["capacity"][0]["held"] == 8).then_some(())
    });
    let pages = api.asked().0 - lists;
    assert!((400..900).contains(&pages), "{pages} pages");
    let grown = usage::of_group(server.id()).rss_bytes - before;
    assert!(grown < MOST_BYTES, "it grew by {grown} bytes");
    server.stop();
}

#[test]
fn what_slurm_says_in_the_files_of_a_cron_job_is_the_queue_and_half_of_it_is_half_known() {
    let world = World::new();
    let folder = world.path("slurm");
    std::fs::create_dir(&folder).expect("the test's own folder");
    let write = |name: &str, what: &Value| {
        std::fs::write(folder.join(name), what.to_string()).expect("the test's own folder");
    };
    let nodes = json!({"sinfo": [{"node": {"state": ["MIXED"]}, "nodes": {"nodes": ["n1"]},
        "gres": {"total": "gpu:h100:8(S:0-1)", "used": "gpu:h100:6(IDX:0-5)"}, "partition": {"name": "gpu"}}]});
    write("sinfo.json", &nodes);
    let place = server::Place::new(&world)
        .with("inventory.source=\"slurm\"")
        .with(&format!("inventory.slurm_folder=\"{}\"", folder.display()));
    let server = place.start();
    let told = queue_is(&server, "nodes are known, jobs are not", |it| {
        it["nodes"]["state"] == "seen" && it["claims"]["state"] == "never_seen"
    });
    assert_eq!(
        (&told["waiting"], &told["capacity"][0]["free"]),
        (&Value::Null, &Value::Null)
    );
    let why = told["claims"]["why"].as_str().unwrap_or_default();
    assert!(why.contains("squeue.json"), "{told}");
    let jobs = json!({"jobs": [{"job_id": 7, "job_state": ["PENDING"], "state_reason": "Resources",
        "account": "ml", "partition": "gpu", "tres_req_str": "node=1,gres/gpu=8",
        "submit_time": {"set": true, "infinite": false, "number": 1_767_000_000}}]});
    write("squeue.json", &jobs);
    let told = queue_is(&server, "a job waits", |it| it["gpus_waited_for"] == 8);
    assert!(is_seen(&told), "{told}");
    assert_eq!(told["waiting"][0]["workload"], "slurm:7", "{told}");
    assert_eq!(told["capacity"][0]["free"], 2, "{told}");
    // Its partition is down: nothing begins there, and nothing of it is free.
    let mut down = nodes.clone();
    down["sinfo"][0]["partition"]["partition"] = json!({"state": ["DOWN"]});
    write("sinfo.json", &down);
    let told = queue_is(&server, "its partition is down", |it| {
        it["capacity"][0]["free"] == 0
    });
    let waits = &told["waiting"][0];
    assert_eq!(waits["reason"], "held_back", "{told}");
    assert_eq!(waits["scheduler_says"], "PartitionDown", "{told}");
    assert_eq!(
        waits["plainly"],
        json!(["Its partition is down."]),
        "{told}"
    );
    assert_eq!(waits["pods_that_fit"], 0, "{told}");
    server.stop();
}

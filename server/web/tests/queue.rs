//! The queue and capacity, as page and in the API: what is seen, and what is not.

use gpufleet_analysis::inventory::{Claim, Node, Ready, Reason};
use gpufleet_program::kubernetes::Refusal;

use super::*;
use crate::inventory::known::{Bound, Moment, Pod, Pods};

pub(super) const NOW: Moment = Moment {
    at: fixture::NOW,
    monotonic: Duration::ZERO,
};

/// A server that asks Kubernetes about cluster `prod`.
async fn asking() -> Fixture {
    let mut config = Config::for_tests();
    config.inventory.source = "kubernetes".to_owned();
    config.inventory.cluster = "prod".to_owned();
    config.inventory.kubernetes_url = "http://127.0.0.1:1".to_owned();
    server_with(config, fixture::fleet(), false).await
}

pub(super) fn node(name: &str) -> Node {
    Node {
        name: name.to_owned(),
        model: "nvidia-h100-80gb".to_owned(),
        zone: "us-central1-a".to_owned(),
        gpus: 8,
        allocatable: 8,
        ready: Ready::Yes,
        ..Node::default()
    }
}

fn waits(workload: &str, words: &str) -> Pod {
    Pod::Waits(Box::new(Claim {
        namespace: "research".to_owned(),
        workload: workload.to_owned(),
        queue: "a".to_owned(),
        model: String::new(),
        places: 1,
        gpus_each: 8,
        together: None,
        is_shares: false,
        since: fixture::NOW.shifted(-600_000_000_000),
        reason: Reason::NoPlace,
        words: words.to_owned(),
        tolerates: Vec::new(),
        partitions: Vec::new(),
        scaler: None,
    }))
}

/// Two nodes, one of which has two GPUs free, and two pods that wait for eight each.
fn tell(server: &Fixture) {
    let mut pods = Pods::default();
    let words = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.";
    pods.put("1", waits("jobset:research/train", words));
    pods.put("2", waits("jobset:research/train", words));
    for (uid, node, gpus) in [("3", "h100-00", 8), ("4", "h100-01", 6)] {
        let node = node.into();
        pods.put(uid, Pod::Bound(Bound { node, gpus }));
    }
    let mut known = server.inventory.known();
    known.all_nodes(vec![node("h100-00"), node("h100-01")], NOW);
    known.all_pods(pods, NOW);
}

#[tokio::test]
async fn what_is_on_a_node_that_takes_no_work_is_for_nobody_who_waits_and_drains_or_is_unhealthy() {
    for (cordoned, ready, kind, what, counts) in [
        (false, Ready::Yes, "free", "that nobody holds", [8, 0, 1]),
        // Of what was not lost before nothing works: eight are free, four pause, and of three nobody knows.
        (
            false,
            Ready::No,
            "broken",
            "16 GPUs on 4 nodes that take no work (not ready)",
            [0, 0, 16],
        ),
        (
            true,
            Ready::Yes,
            "draining",
            "no work (cordoned or about to go)",
            [0, 8, 1],
        ),
    ] {
        let server = asking().await;
        let names = || (0..8).map(|number| format!("h100-{number:02}"));
        // That they were ready makes them not ready afterwards, and not starting.
        server
            .inventory
            .known()
            .all_nodes(names().map(|it| node(&it)).collect(), NOW);
        let nodes = names().map(|name| Node {
            cordoned,
            ready,
            ..node(&name)
        });
        server.inventory.known().all_nodes(nodes.collect(), NOW);
        let today = server.json("/api/v1/today").await;
        let counted = &today["sections"][0]["counts"]["by_state"];
        let found = ["unallocated", "draining", "unhealthy"];
        let found = found.map(|state| counted[state].as_i64().unwrap_or(0));
        assert_eq!(found, counts);
        // What drains or is unhealthy is not idle.
        let (_, cost) = server.get("/cost").await;
        let row = "<td data-label=\"GPUs\"><details><summary>8 GPUs on 1 node of prod";
        assert_eq!(cost.contains(row), kind == "free", "{cost}");
        let (_, page) = server
            .get("/clusters/prod/gpus/GPU-prod-h100-05-0000")
            .await;
        let drains = "<span class=\"soft\">nobody holds it and its node is being emptied";
        assert_eq!(page.contains(drains), cordoned, "{page}");
        let is_lost = page.contains("Its node was ready and is not any more.");
        assert_eq!(is_lost, kind == "broken", "{page}");
        let waste = today["sections"][0]["waste"].as_array().unwrap().iter();
        let free: Vec<&Value> = waste
            .filter(|it| ["free", "draining", "broken"].contains(&it["kind"].as_str().unwrap()))
            .collect();
        assert_eq!(free.len(), 1, "{free:?}");
        assert_eq!(free[0]["kind"], kind);
        assert!(
            free[0]["what"].as_str().unwrap().ends_with(what),
            "{free:?}"
        );
        let is_offered = free[0]["action"].as_str().unwrap().contains("who waits");
        assert_eq!(is_offered, kind == "free", "{free:?}");
    }
}

#[tokio::test]
async fn who_waits_stands_there_with_the_schedulers_words_and_what_is_free_with_the_largest_gang() {
    let server = asking().await;
    tell(&server);
    let queue = server.json("/api/v1/queue").await;
    assert_eq!(queue["nodes"]["state"], "seen", "{queue}");
    assert_eq!(queue["gpus_waited_for"], 16);
    let row = &queue["waiting"][0];
    assert_eq!(row["workload"], "jobset:research/train");
    assert_eq!((&row["pods"], &row["gpus"]), (&2.into(), &16.into()));
    assert_eq!(row["reason"], "no_place");
    assert!(
        row["scheduler_says"]
            .as_str()
            .unwrap()
            .starts_with("0/2 nodes")
    );
    assert_eq!(row["plainly"][0], "2 nodes have too few free GPUs.");
    let pool = &queue["capacity"][0];
    assert_eq!((&pool["free"], &pool["held"]), (&2.into(), &14.into()));
    let gangs = pool["largest_gangs"].as_array().unwrap();
    let fits: Vec<_> = gangs
        .iter()
        .map(|it| it["pods"].as_u64().unwrap())
        .collect();
    assert_eq!(fits, [2, 1, 0, 0], "of pods of 1, 2, 4 and 8");
    let (status, page) = server.get("/queue").await;
    assert_eq!(status, StatusCode::OK);
    for words in [
        "1 workload waits for 16 GPUs; 2 free",
        "16 GPUs, 2 pods of 8",
        "2 nodes have too few free GPUs.",
        "0/2 nodes are available",
        "0 pods of 8",
        "10 min ago",
    ] {
        assert!(page.contains(words), "{words} is not in {page}");
    }
}

#[tokio::test]
async fn what_its_owner_holds_back_stands_there_and_is_waited_for_by_nobody() {
    let server = asking().await;
    let Pod::Waits(claim) = waits("slurm:7", "JobArrayTaskLimit") else {
        panic!("it waits");
    };
    let claim = Claim {
        reason: Reason::ByOwner,
        ..*claim
    };
    let mut pods = Pods::default();
    pods.put("1", Pod::Waits(Box::new(claim)));
    server
        .inventory
        .known()
        .all_nodes(vec![node("h100-00")], NOW);
    server.inventory.known().all_pods(pods, NOW);
    let queue = server.json("/api/v1/queue").await;
    assert_eq!(queue["waiting"][0]["reason"], "held_by_owner", "{queue}");
    let gpus = ["gpus_waited_for", "gpus_held_by_owners"].map(|it| queue[it].as_u64());
    assert_eq!(gpus, [Some(0), Some(8)]);
    let (_, page) = server.get("/queue").await;
    for words in [
        "Nobody waits for GPUs, and owners hold 1 workload back; 8 free",
        "As many tasks of its array run as its owner lets run at once.",
        "so it is no demand.",
    ] {
        assert!(page.contains(words), "{words} is not in {page}");
    }
}

#[tokio::test]
async fn without_the_right_to_watch_it_is_said_with_the_line_that_gives_it_and_nothing_is_counted()
{
    let server = asking().await;
    let why = "pods is forbidden".to_owned();
    server
        .inventory
        .known()
        .claims
        .failed(why, Some(Refusal::NoRight));
    server
        .inventory
        .known()
        .all_nodes(vec![node("h100-00")], NOW);
    let queue = server.json("/api/v1/queue").await;
    assert_eq!(queue["claims"]["state"], "never_seen", "{queue}");
    let fix = queue["claims"]["fix"].as_str().unwrap();
    assert!(
        fix.contains("ClusterRole") && fix.contains("gpufleet-server"),
        "{fix}"
    );
    assert_eq!(
        (&queue["waiting"], &queue["gpus_waited_for"]),
        (&Value::Null, &Value::Null)
    );
    let pool = &queue["capacity"][0];
    assert_eq!((&pool["gpus"], &pool["free"]), (&8.into(), &Value::Null));
    assert_eq!(pool["largest_gangs"], Value::Null);
    let (_, page) = server.get("/queue").await;
    for words in [
        "Who waits for GPUs is not known</a>",
        "what is free is not known</a>",
        "pods is forbidden",
        "ClusterRoleBinding gpufleet-server",
        "not known",
    ] {
        assert!(page.contains(words), "{words} is not in {page}");
    }
    assert!(!page.contains("Nobody"), "{page}");
    assert_eq!(doctor::left_open(&page), [""; 0]);
    // The same of nodes is a blind spot.
    let server = asking().await;
    let why = "nodes is forbidden".to_owned();
    server
        .inventory
        .known()
        .nodes
        .failed(why, Some(Refusal::NoRight));
    let (_, today) = server.get("/").await;
    assert!(today.contains("nodes is forbidden"), "{today}");
}

#[tokio::test]
async fn what_was_seen_once_says_since_when_it_is_old_and_what_is_read_is_no_emptiness() {
    let server = asking().await;
    let (_, page) = server.get("/queue").await;
    assert!(page.contains("is being read"), "{page}");
    assert_eq!(doctor::left_open(&page), [""; 0]);
    tell(&server);
    let gone = "nobody answers".to_owned();
    server.inventory.known().nodes.failed(gone, None);
    let queue = server.json("/api/v1/queue").await;
    assert_eq!(queue["nodes"]["state"], "stale");
    assert!(queue["nodes"]["last_seen"].is_string(), "{queue}");
    assert_eq!(queue["capacity"][0]["nodes"], 2, "as it was then");
    let (_, page) = server.get("/queue").await;
    assert!(
        page.contains("nobody answers. What stands here is of then."),
        "{page}"
    );
}

#[tokio::test]
async fn a_server_that_asks_nobody_says_how_to_turn_it_on_and_one_with_a_list_knows_no_queue() {
    let server = server().await;
    let queue = server.json("/api/v1/queue").await;
    assert_eq!(
        (&queue["source"], &queue["nodes"]["state"]),
        (&"off".into(), &"nobody_tells".into())
    );
    assert_eq!(
        (&queue["waiting"], &queue["capacity"]),
        (&Value::Null, &Value::Null)
    );
    let (_, page) = server.get("/queue").await;
    assert_eq!(doctor::left_open(&page), [""; 0]);
    for words in ["inventory.source = &#34;kubernetes&#34;", "inventory.nodes"] {
        assert!(page.contains(words), "{words} is not in {page}");
    }
    let (_, today) = server.get("/").await;
    assert!(
        !today.contains("inventory.source"),
        "it is no blind spot where nobody asked for it"
    );
}

#[tokio::test]
async fn a_node_without_an_agent_is_a_blind_spot_of_today() {
    let server = asking().await;
    let before = fixture::NOW.shifted(-3_600_000_000_000);
    let began = Moment { at: before, ..NOW };
    let nodes = vec![node("h100-00"), node("dark-1")];
    server.inventory.known().all_nodes(nodes, began);
    let (_, page) = server.get("/").await;
    assert!(
        page.contains("1 node with 8 GPUs and without an agent"),
        "{page}"
    );
    assert!(page.contains("dark-1"), "{page}");
    let (_, found) = server.get("/find?q=dark-1").await;
    assert!(found.contains("no agent tells of it"), "{found}");
    let doctor = server.json("/api/v1/doctor").await;
    let found = doctor["findings"].as_array().expect("a list");
    let found = found.iter().find(|it| it["check"] == "no_agent");
    let found = found.expect("it is found");
    assert_eq!(found["what"], "1 node with GPUs has no agent");
    assert_eq!(
        (&found["gpus"], &found["severity"]),
        (&8.into(), &"error".into())
    );
    let today = server.json("/api/v1/today").await;
    let said = today["sections"][0]["blind_spots"].to_string();
    assert!(
        said.contains("1 node with 8 GPUs and without an agent"),
        "{said}"
    );
}

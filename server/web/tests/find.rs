//! The box on every page: what it finds, where it leads, and what it does not.

use gpufleet_telemetry::training::RunId;

use super::*;
use crate::auth::Grant;
use crate::find::{self, Names};
use crate::runs::{KnownRun, RunFacts, RunKey};
use crate::store::model::Commit;
use crate::view::gather::gather;
use crate::words::address;
use crate::words::text::{grouped, segment};

/// What is answered to a text in the box: where it leads, or the page.
async fn find(server: &Fixture, asked: &str) -> Result<String, String> {
    let address = format!("/find?q={}", segment(asked));
    let request = Request::get(address).body(Body::empty()).unwrap();
    let response = server.ask(request).await;
    if response.status() == StatusCode::SEE_OTHER {
        return Ok(response.headers()[header::LOCATION]
            .to_str()
            .unwrap()
            .to_owned());
    }
    assert_eq!(response.status(), StatusCode::OK, "{asked}");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    Err(String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn the_box_is_on_every_page_and_asks_without_a_script() {
    let server = server().await;
    for address in ["/", "/fleet", "/settings", "/no/such/page", "/find"] {
        let (_, page) = server.get(address).await;
        let form = "<form class=\"find\" role=\"search\" action=\"/find\"><input type=\"search\" name=\"q\"";
        assert!(page.contains(form), "{address}: {page}");
    }
}

#[tokio::test]
async fn a_whole_name_leads_straight_to_its_page() {
    let server = server().await;
    let dead = jobs::address(jobs::DEAD);
    let attempt = format!("{}/0", jobs::DEAD);
    for (asked, leads) in [
        ("h100-03", address::node("prod", "h100-03")),
        (" H100-03 ", address::node("prod", "h100-03")),
        (GPU, address::gpu("prod", GPU)),
        ("h100-00/0", address::gpu("prod", GPU)),
        (fixture::HOSTILE, address::node("hostile", fixture::HOSTILE)),
        ("dead", dead.clone()),
        ("team/dead", dead.clone()),
        (jobs::DEAD, dead.clone()),
        (attempt.as_str(), dead.clone()),
    ] {
        assert_eq!(find(&server, asked).await, Ok(leads), "{asked}");
    }
}

#[tokio::test]
async fn a_part_of_a_name_lists_what_has_it_by_kind_and_counts_what_is_more() {
    let server = server().await;
    let page = find(&server, "h100-0").await.expect_err("there are many");
    let links = |page: &str, part: &str| page.matches(&format!("<td><a href=\"{part}")).count();
    assert_eq!(links(&page, "/clusters/prod/nodes/"), 9);
    assert_eq!(links(&page, "/clusters/prod/gpus/"), find::MAX_TOLD);
    assert!(page.contains("And 52 more."), "{page}");
    assert!(page.contains("silent for 12 min 34 s"), "{page}");
    assert!(!page.contains("<h2>Jobs</h2>"), "{page}");
    let page = find(&server, "train-7b").await.expect_err("it holds many");
    assert!(page.contains("held by pod:research/train-7b-0"), "{page}");
    let page = find(&server, "llam").await.expect_err("a part of a name");
    assert!(page.contains(&jobs::address(jobs::JOB)), "{page}");
    assert!(page.contains("team, attempt 0, running"), "{page}");
    let page = find(&server, "sim-").await.expect_err("eight nodes");
    assert!(page.contains("<span class=\"mark simulated\">SIMULATED"));
}

#[tokio::test]
async fn hostile_names_and_texts_are_found_as_text() {
    let server = server().await;
    let page = find(&server, "onerror").await.expect_err("a part");
    assert!(page.contains("/clusters/hostile/nodes/"), "{page}");
    assert!(
        !page.contains("<img") && !page.contains('\u{202e}'),
        "{page}"
    );
    let page = find(&server, "<script>x\u{202e}").await;
    let page = page.expect_err("nobody is called so");
    assert!(page.contains("&#60;script&#62;x"), "{page}");
    assert!(!page.contains("<script>x") && !page.contains('\u{202e}'));
}

#[tokio::test]
async fn an_empty_box_says_what_to_type_one_that_finds_nothing_what_was_looked_at() {
    let server = server().await;
    for empty in ["/find", "/find?q=", "/find?q=%20"] {
        let (status, page) = server.get(empty).await;
        assert_eq!(status, StatusCode::OK, "{empty}");
        assert!(page.contains("Type a part of a name"), "{page}");
    }
    let page = find(&server, "nobody-at-all").await.expect_err("nothing");
    assert!(page.contains("Nothing that was looked at"), "{page}");
    let long = format!("/find?q={}", "n".repeat(find::MAX_ASKED + 1));
    let (status, page) = server.get(&long).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(page.contains("No name is so long"), "{page}");
}

#[tokio::test]
async fn the_api_finds_the_same() {
    let server = server().await;
    let found = server.json("/api/v1/find?q=h100-03").await;
    let [nodes, gpus, jobs] = ["nodes", "gpus", "jobs"].map(|it| &found[it]);
    let node = &nodes["items"][0];
    assert_eq!(node["page"], "/clusters/prod/nodes/h100-03");
    assert_eq!(
        (&node["name"], &node["origin"]),
        (&"h100-03".into(), &"live".into())
    );
    assert_eq!(
        (&gpus["items"][7]["name"], &gpus["more"]),
        (&"GPU 7 of h100-03".into(), &0.into())
    );
    assert_eq!(jobs["items"], Value::Array(Vec::new()));
    let empty = server.json("/api/v1/find").await;
    assert_eq!(empty["nodes"]["items"], Value::Array(Vec::new()));
    let long = format!("/api/v1/find?q={}", "n".repeat(find::MAX_ASKED + 1));
    let (status, said) = server.get(&long).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(said.contains("at most 256 characters"), "{said}");
}

/// Makes jobs durable that began when the picture was taken.
async fn begin(server: &Fixture, commit: u64, jobs: std::ops::Range<usize>) {
    let run = |number| KnownRun {
        key: RunKey {
            cluster: "prod".into(),
            run: RunId::parse(&format!("team/many-{number}/u/0")).unwrap(),
        },
        facts: RunFacts {
            started: Some(fixture::NOW),
            heard: fixture::NOW,
            ..RunFacts::default()
        },
        ranks: Vec::new(),
        is_part: false,
    };
    let commit = Commit {
        number: commit,
        runs: jobs.map(run).collect(),
        ..Commit::default()
    };
    let length = Duration::from_secs(30);
    let lease = server.store.acquire_lease("tests", fixture::NOW, length);
    let token = lease.await.unwrap().token;
    server.store.commit(&commit, token).await.unwrap();
}

#[tokio::test]
async fn jobs_beyond_those_that_are_looked_at_are_said_to_be_so_and_not_to_be_none() {
    let server = server().await;
    let dead = Ok(jobs::address(jobs::DEAD));
    let most = grouped(find::MAX_JOBS as f64);
    let only = &*format!("Only the {most} that started last were looked at.");
    begin(&server, 1_000, 2..find::MAX_JOBS).await;
    assert_eq!(find(&server, "dead").await, dead, "two began before these");
    let page = find(&server, "many-").await.expect_err("there are many");
    let more = format!("And {} more.", grouped(4_978.0));
    assert!(page.contains(&more), "{page}");
    assert!(page.contains("team, attempt 0, running"), "{page}");
    assert!(!page.contains(only), "all were looked at: {page}");
    begin(&server, 1_001, 0..2).await;
    assert_eq!(find(&server, "dead").await, dead, "names are kept");
    server.pass(5);
    let page = find(&server, "dead").await.expect_err("it is too old");
    assert!(page.contains("Nothing that was looked at"), "{page}");
    assert!(page.contains(only), "{page}");
    let found = server.json("/api/v1/find?q=many-4999").await;
    assert_eq!(found["jobs"]["items"][0]["name"], "many-4999");
    assert_eq!(found["not_all_jobs"], only);
}

#[tokio::test]
async fn without_the_store_jobs_are_not_known_and_not_none() {
    let server = server().await;
    server.store.close().await;
    let page = find(&server, "h100-0").await.expect_err("there are many");
    assert!(page.contains("/clusters/prod/nodes/h100-03"), "{page}");
    assert!(page.contains("the store does not answer"), "{page}");
}

#[tokio::test]
async fn who_may_see_one_cluster_finds_what_is_in_it_alone() {
    let server = server().await;
    let grant = Grant {
        cluster: Some("demo".into()),
    };
    let view = Arc::new(gather(&server.app)).seen_with(&grant);
    let of = async |asked| {
        let found = find::find(&server.app, &Names::default(), &view, &grant, asked).await;
        let found = found.unwrap();
        [found.nodes, found.gpus, found.jobs].map(|it| it.told.len())
    };
    assert_eq!(of("sim-0").await, [1, 8, 0]);
    assert_eq!(of("h100").await, [0, 0, 0]);
    assert_eq!(of("dead").await, [0, 0, 0]);
}

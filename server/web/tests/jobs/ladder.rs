//! Ladders on the pages and in the API.

use std::cell::Cell;

use tokio::sync::Semaphore;

use super::*;
use crate::runs::ladder;

#[tokio::test]
async fn runs_with_the_same_ladder_tag_are_its_rungs_each_against_the_one_before() {
    let server = server().await;
    let ladder = "ladders/prod/fp8%20%26%20more";
    let found = server.json(&format!("/api/v1/{ladder}")).await;
    let rungs = found["rungs"].as_array().unwrap();
    assert_eq!(rungs.len(), 2);
    let of = |job: &str| rungs.iter().find(|it| it["run"]["job"] == job).unwrap();
    assert_eq!(of(JOB)["rung"], "<i>fused");
    assert_eq!(of(JOB)["step_seconds"], 1.0);
    assert_eq!(rungs[0]["against_before"], Value::Null);
    let against = &rungs[1]["against_before"];
    assert!(against["speed_up_missing"].is_string(), "one has no steps");
    assert_eq!(against["differences"].as_array().unwrap().len(), 0);
    let (status, page) = server.get("/clusters/prod/ladders/fp8%20%26%20more").await;
    assert_eq!(status, StatusCode::OK);
    assert!(
        page.contains("&lt;i&gt;fused") || page.contains("&#60;i&#62;fused"),
        "{page}"
    );
    assert!(
        page.contains("1.00 s") && page.contains("too few steps"),
        "{page}"
    );
    let (status, _) = server.get("/clusters/prod/ladders/other").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

/// A job of one rank in a cluster, with the tag of the ladder.
async fn put_rung(server: &Fixture, cluster: &str, job: &str, origin: Origin) {
    let runs = server.fleet.runs();
    let cluster: Arc<str> = cluster.into();
    began(runs, &cluster, job);
    let mut live = rank(job, 0, &[]);
    let resource = Resource::clone(&live.resource)
        .with(named::CLUSTER, &*cluster)
        .with(named::ORIGIN, origin.name());
    (live.key.cluster, live.origin) = (cluster, origin);
    live.resource = Arc::new(resource);
    runs.rank(&live, heard(10)).unwrap();
    let mut watch = Watch::default();
    watch.round(runs, &server.store, at(10)).await;
    make_durable(&server.fleet, &server.store).await;
}

#[tokio::test]
async fn where_a_ladder_is_names_each_cluster_that_has_it_once_and_no_other() {
    let server = server().await;
    let places = "/api/v1/ladders/fp8%20%26%20more";
    let found = server.json(places).await;
    assert_eq!(found["clusters"], serde_json::json!(["prod"]));
    assert_eq!(
        (&found["name"], &found["are_all"]),
        (&"fp8 & more".into(), &true.into())
    );
    for job in ["team/one/u1", "team/two/u1"] {
        put_rung(&server, "lab", job, Origin::Live).await;
    }
    let found = server.json(places).await;
    assert_eq!(found["clusters"], serde_json::json!(["lab", "prod"]));
    let none = server.json("/api/v1/ladders/other").await;
    assert_eq!(none["clusters"], serde_json::json!([]));
    let lab = Arc::from("lab");
    let views = Semaphore::new(1);
    let bound = ladder::places(&server.app, &views, (Some(&lab), "fp8 & more")).await;
    assert_eq!(bound.unwrap().clusters, BTreeSet::from([lab]));
}

#[tokio::test]
async fn a_ladder_of_simulated_runs_says_so_in_its_title_on_top_and_at_each_run() {
    let server = server().await;
    put_rung(&server, "demo", "team/sim/u1", Origin::Simulated).await;
    let (status, page) = server.get("/clusters/demo/ladders/fp8%20%26%20more").await;
    assert_eq!(status, StatusCode::OK);
    for says in [
        "SIMULATED · gpufleet</title>",
        "data-stands=\"simulated\"",
        "<div class=\"banner simulated\">",
        "<div class=\"stack watermarked simulated\">",
        "<td><span class=\"mark simulated\">SIMULATED</span>",
    ] {
        assert!(page.contains(says), "{says}: {page}");
    }
    let (_, live) = server.get("/clusters/prod/ladders/fp8%20%26%20more").await;
    assert!(
        !live.contains("SIMULATED") && !live.contains("data-stands"),
        "{live}"
    );
}

#[tokio::test]
async fn what_a_run_says_of_itself_leads_nowhere_and_what_it_does_not_say_to_the_hooks() {
    let server = server().await;
    for job in ["team/one/u1", SOUNDS_OPEN] {
        put_rung(&server, "lab", job, Origin::Live).await;
    }
    let (_, page) = server.get("/clusters/lab/ladders/fp8%20%26%20more").await;
    let either = ["Llama → no price", "no price → Llama"];
    let either = either.map(|it| format!("<span class=\"mono\">model: {it}</span>"));
    assert!(either.iter().any(|it| page.contains(it)), "{page}");
    let sounds = format!("lab/{SOUNDS_OPEN}/0");
    let (_, page) = server
        .get(&format!("/compare?a=lab/team/one/u1/0&b={sounds}"))
        .await;
    let told = "<td class=\"mono\">Llama</td><td class=\"mono\">no price</td>";
    assert!(page.contains(told), "{page}");
    let (_, page) = server.get(&format!("/compare?a={RUN}&b={sounds}")).await;
    let untold = "<td class=\"mono\"><a class=\"missing\" href=\"/health#hooks\">not said</a></td>\
                  <td class=\"mono\">no price</td>";
    assert!(page.contains(untold), "{page}");
    // Neither is heard any more: that it is not known whether they run leads to what mends that, and no more of it.
    let (_, page) = server.get("/jobs").await;
    let unheard =
        " ago. <a class=\"missing\" href=\"/health#silent\">Whether it runs is not known.</a></td>";
    assert_eq!(page.matches(unheard).count(), 2, "{page}");
}

#[tokio::test]
async fn who_waits_for_steps_comes_between_the_rungs_of_a_ladder() {
    let server = server().await;
    let (views, is_read) = (Semaphore::new(1), Cell::new(false));
    let held = views.acquire().await;
    let cluster = Arc::from("prod");
    let reads = async {
        let found = ladder::read(&server.app, &views, (&cluster, "fp8 & more")).await;
        is_read.set(true);
        found.unwrap()
    };
    // Behind the ladder in the line.
    let other = async {
        let _view = views.acquire().await;
        assert!(!is_read.get());
    };
    let frees = async { drop(held) };
    let (found, (), ()) = futures::future::join3(reads, other, frees).await;
    assert_eq!(found.rungs.len(), 2);
}

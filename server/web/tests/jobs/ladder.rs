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

//! The money on the web port: the page, the reports, and what they refuse.

use gpufleet_telemetry::identity::{Resource, attribute};

use super::*;

#[tokio::test]
async fn the_page_names_what_is_idle_and_what_has_no_price_with_the_line_that_mends_it() {
    let (status, page) = server().await.get("/cost").await;
    assert_eq!(status, StatusCode::OK);
    for words in [
        "Idle now:",
        "without a price",
        "[detect.gpu_hour_usd]",
        "SIMULATED",
        "The ledger has no hours of this month yet",
    ] {
        assert!(page.contains(words), "{words} is not in {page}");
    }
    assert!(
        !page.contains("$0.00"),
        "what is not known is not shown as nothing"
    );
}

#[tokio::test]
async fn a_gpu_that_nobody_holds_is_not_told_as_that_of_who_held_it_last() {
    let mut free = fixture::gpu("prod", "h100-09", 0, Does::Nothing, Origin::Live);
    let left = Resource::clone(&free.resource).with(attribute::HOLDER, "pod:research/gone-0");
    free.resource = Arc::new(left);
    let (_, page) = server_of(vec![free], false).await.get("/cost").await;
    assert!(page.contains("GPU 0 of h100-09"), "{page}");
    assert!(!page.contains("gone-0"), "{page}");
}

#[tokio::test]
async fn a_report_comes_in_the_form_that_was_asked_for_and_refuses_what_it_cannot_answer() {
    let server = server().await;
    let json = server.json("/api/v1/reports/chargeback?by=team,gpu").await;
    assert_eq!(json["balance"]["is_exact"], true);
    let (status, csv) = server.get("/api/v1/reports/efficiency?format=csv").await;
    assert_eq!(status, StatusCode::OK);
    assert!(csv.starts_with("team,gpu_hours,"), "{csv}");
    for (query, says) in [
        ("chargeback?month=2026-13", "2026-10 is one"),
        ("chargeback?by=shoe", "`shoe`"),
        ("chargeback?format=pdf", "`pdf`"),
        ("chargeback?shape=round", "shape"),
        ("efficiency?format=focus", "not as focus"),
    ] {
        let (status, body) = server.get(&format!("/api/v1/reports/{query}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}");
        assert!(body.contains(says), "{query}: {body}");
    }
}

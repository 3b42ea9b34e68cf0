//! Silences by pattern: what matches is told nobody, also what breaks meanwhile, until they end.

use axum::http::StatusCode;
use gpufleet_analysis::incident::{Incident, Place, Tick};
use gpufleet_telemetry::time::Timestamp;
use serde_json::Value;

use super::{Fixture, INCIDENT, OPERATOR, TOKEN, server, server_of};
use crate::auth::Grant;
use crate::notify::fixture::settings;
use crate::notify::settings::Kind;
use crate::view::fixture;

const HOUR: Timestamp = fixture::NOW.shifted(3_600_000_000_000);
const LATER: &str = "77e55044-10b1-426f-9247-bb680e5fe0c8";

async fn keep(server: &Fixture, body: &str) -> (StatusCode, Value) {
    let answer = server.post("/api/v1/silences", "application/json", body, Some(OPERATOR));
    read(answer.await).await
}

async fn read(answer: axum::http::Response<axum::body::Body>) -> (StatusCode, Value) {
    let status = answer.status();
    let body = http_body_util::BodyExt::collect(answer.into_body()).await;
    let body = body.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

fn held(server: &Fixture, id: &str) -> Incident {
    let found = server.incidents.get(id.parse().unwrap());
    found.expect("it is open")
}

/// What people would be told of now.
async fn told(server: &Fixture) -> usize {
    // Only what is written is said.
    let written = server.incidents.write(&server.store).await;
    written.expect("the store takes it");
    server.incidents.next_messages(fixture::NOW).len()
}

/// The incident is still so, and another card of the cluster breaks.
fn another_breaks(server: &Fixture, node: &str) {
    let first = super::signal();
    let mut second = first.clone();
    second.place = Place::gpu("prod", node, "GPU-of-another");
    let tick = Tick {
        now: fixture::NOW,
        signals: vec![first, second],
        is_heard: &|_, _| true,
        quiet_runs: &Default::default(),
        nodes: &Default::default(),
        runs: &Default::default(),
    };
    server.incidents.tick(tick, &mut || LATER.parse().unwrap());
}

/// A person silences the incident alone, for so many seconds.
async fn silence_by_hand(server: &Fixture, seconds: u32) {
    let silence = format!(r#"{{"what":"silence","who":"ada","for_s":{seconds}}}"#);
    let say = format!("/api/v1/incidents/{INCIDENT}/say");
    let said = server.post(&say, "application/json", &silence, Some(OPERATOR));
    assert_eq!(said.await.status(), StatusCode::OK);
}

#[tokio::test]
async fn what_matches_is_silent_also_what_breaks_later_and_is_told_when_the_silence_ends() {
    let server = server().await;
    // A message of each incident.
    server
        .incidents
        .tells(settings(&[("chat", Kind::Alertmanager)]).into());
    let server = server.with_an_incident().await;
    let (status, kept) = keep(
        &server,
        r#"{"matches":{"node":"h100-*","kind":"gpu_*"},"for_s":3600,"who":"ada","note":"works <b>"}"#,
    )
    .await;
    assert_eq!(
        (status, &kept["incidents"]),
        (StatusCode::CREATED, &Value::from(1)),
        "{kept}"
    );
    assert_eq!(held(&server, INCIDENT).silenced_until, Some(HOUR));
    another_breaks(&server, "h100-07");
    let later = held(&server, LATER);
    assert_eq!(later.silenced_until, Some(HOUR));
    let by = later.log.last().and_then(|it| it.who.clone());
    assert_eq!(by.as_deref(), Some("ada (node=h100-* kind=gpu_*)"));
    assert_eq!(told(&server).await, 0);
    let (_, page) = server.get("/incidents").await;
    assert!(
        page.contains("node=h100-* kind=gpu_*") && page.contains("works &#60;b&#62;"),
        "{page}"
    );
    // It is durable, and an audit says who it was.
    let stored = server.store.silences(fixture::NOW).await.unwrap();
    assert_eq!(
        stored,
        server.incidents.silences(&Grant::default(), fixture::NOW)
    );
    assert_eq!(server.store.audited(1).await.unwrap()[0].action, "silence");

    let id = kept["id"].as_str().unwrap();
    let address = format!("/api/v1/silences/{id}/end");
    let ended = server.post(
        &address,
        "application/json",
        r#"{"who":"ada"}"#,
        Some(OPERATOR),
    );
    assert_eq!(ended.await.status(), StatusCode::OK);
    for id in [INCIDENT, LATER] {
        assert_eq!(held(&server, id).silenced_until, None, "{id}");
    }
    assert_eq!(told(&server).await, 1);
    assert_eq!(server.json("/api/v1/silences").await, serde_json::json!([]));
    assert_eq!(server.store.silences(fixture::NOW).await.unwrap(), []);
}

#[tokio::test]
async fn what_does_not_match_is_told_and_a_longer_silence_by_hand_stays() {
    let server = server().await.with_an_incident().await;
    silence_by_hand(&server, 7200).await;
    let (_, kept) = keep(
        &server,
        r#"{"matches":{"node":"h100-0?","cluster":"prod"},"for_s":60,"who":"ada"}"#,
    )
    .await;
    assert_eq!(kept["incidents"], 0, "only * is any text: {kept}");
    let (_, kept) = keep(
        &server,
        r#"{"matches":{"node":"h100-03"},"for_s":60,"who":"ada"}"#,
    )
    .await;
    assert_eq!(kept["incidents"], 1);
    let until = held(&server, INCIDENT).silenced_until;
    assert_eq!(until, Some(fixture::NOW.shifted(7_200_000_000_000)));
    another_breaks(&server, "a100-01");
    assert_eq!(held(&server, LATER).silenced_until, None);
}

#[tokio::test]
async fn a_shorter_silence_by_hand_holds_on_when_a_longer_one_by_pattern_ends_early() {
    let server = server().await.with_an_incident().await;
    silence_by_hand(&server, 60).await;
    let by_hand = held(&server, INCIDENT).silenced_until;
    assert_eq!(by_hand, Some(fixture::NOW.shifted(60_000_000_000)));
    let hour = r#"{"matches":{"node":"h100-03"},"for_s":3600,"who":"mira"}"#;
    let (_, kept) = keep(&server, hour).await;
    assert_eq!(held(&server, INCIDENT).silenced_until, Some(HOUR));
    let address = format!("/api/v1/silences/{}/end", kept["id"].as_str().unwrap());
    let who = r#"{"who":"mira"}"#;
    let ended = server.post(&address, "application/json", who, Some(OPERATOR));
    assert_eq!(ended.await.status(), StatusCode::OK);
    assert_eq!(held(&server, INCIDENT).silenced_until, by_hand);
}

#[tokio::test]
async fn only_who_operates_silences_and_what_makes_no_sense_is_refused() {
    let server = server_of(fixture::fleet(), true)
        .await
        .with_an_incident()
        .await;
    let good = r#"{"matches":{"node":"h100-*"},"for_s":60,"who":"ada"}"#;
    for (body, token, status) in [
        (good, None, StatusCode::UNAUTHORIZED),
        (good, Some(TOKEN), StatusCode::FORBIDDEN),
        (
            r#"{"matches":{},"for_s":60,"who":"ada"}"#,
            Some(OPERATOR),
            StatusCode::BAD_REQUEST,
        ),
        (
            r#"{"matches":{"node":"*"},"for_s":60,"who":"ada"}"#,
            Some(OPERATOR),
            StatusCode::BAD_REQUEST,
        ),
        (
            r#"{"matches":{"host":"a"},"for_s":60,"who":"ada"}"#,
            Some(OPERATOR),
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
        (
            r#"{"matches":{"node":"a"},"who":"ada"}"#,
            Some(OPERATOR),
            StatusCode::BAD_REQUEST,
        ),
        (
            r#"{"matches":{"node":"a"},"for_s":60}"#,
            Some(OPERATOR),
            StatusCode::BAD_REQUEST,
        ),
        (
            r#"{"matches":{"node":"a"},"for_s":9999999,"who":"ada"}"#,
            Some(OPERATOR),
            StatusCode::BAD_REQUEST,
        ),
        (good, Some(OPERATOR), StatusCode::CREATED),
    ] {
        let answer = server.post("/api/v1/silences", "application/json", body, token);
        assert_eq!(answer.await.status(), status, "{body}");
    }
    let stored = server.store.silences(fixture::NOW).await.unwrap();
    assert_eq!(stored.len(), 1, "what was refused is not there");
}

#[tokio::test]
async fn silences_are_bounded_and_one_that_is_over_makes_room() {
    let server = server().await.with_an_incident().await;
    for number in 0..crate::notify::silence::MAX_SILENCES {
        let body = format!(r#"{{"matches":{{"node":"n{number}"}},"for_s":60,"who":"ada"}}"#);
        assert_eq!(keep(&server, &body).await.0, StatusCode::CREATED);
    }
    let more = r#"{"matches":{"node":"more"},"for_s":60,"who":"ada"}"#;
    assert_eq!(keep(&server, more).await.0, StatusCode::CONFLICT);
    let minutes = fixture::NOW.shifted(120_000_000_000);
    assert_eq!(server.incidents.silences(&Grant::default(), minutes), []);
    assert_eq!(server.store.silences(minutes).await.unwrap(), []);
}

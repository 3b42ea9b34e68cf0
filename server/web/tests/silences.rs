//! Silences, by pattern and by hand: what matches is told nobody, also what breaks meanwhile, until they end.

use axum::http::StatusCode;
use gpufleet_analysis::incident::{Incident, Place, Tick};
use gpufleet_telemetry::time::Timestamp;
use serde_json::Value;

use super::{Fixture, INCIDENT, OPERATOR, TOKEN, server, server_of};
use crate::auth::Grant;
use crate::notify::fixture::settings;
use crate::notify::lane::Outcome;
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
        in_its_place: &|_, _| None,
        is_forgotten: &|_, _| false,
        quiet_runs: &Default::default(),
        nodes: &Default::default(),
        runs: &Default::default(),
    };
    server.incidents.tick(tick, &mut || LATER.parse().unwrap());
}

/// The incident is still so.
fn another_tick(server: &Fixture) {
    let tick = Tick {
        now: fixture::NOW,
        signals: vec![super::signal()],
        is_heard: &|_, _| true,
        in_its_place: &|_, _| None,
        is_forgotten: &|_, _| false,
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

/// A server that tells a channel of each incident, with one that nobody was told of yet.
async fn telling() -> Fixture {
    let server = server().await;
    let chat = settings(&[("chat", Kind::Alertmanager)]);
    server.incidents.tells(chat.into());
    server.with_an_incident().await
}

/// A person says one word to the incident.
async fn say(server: &Fixture, what: &str) -> (StatusCode, Value) {
    let said = format!(r#"{{"what":"{what}","who":"ada"}}"#);
    let address = format!("/api/v1/incidents/{INCIDENT}/say");
    let answer = server.post(&address, "application/json", &said, Some(OPERATOR));
    read(answer.await).await
}

#[tokio::test]
async fn what_is_silent_by_hand_is_listed_and_told_exactly_once_when_that_is_ended_by_hand() {
    let server = telling().await;
    assert_eq!(say(&server, "unsilence").await.0, StatusCode::CONFLICT);
    silence_by_hand(&server, 3600).await;
    assert_eq!(say(&server, "acknowledge").await.0, StatusCode::OK);
    assert_eq!(told(&server).await, 0);
    let listed = server.json("/api/v1/silences").await;
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(listed[0]["incident"], INCIDENT);
    assert_eq!(
        (&listed[0]["who"], &listed[0]["matches"]),
        (&"ada".into(), &serde_json::json!({}))
    );
    let (_, page) = server.get("/incidents").await;
    let until = crate::words::text::moment(HOUR);
    for says in [
        format!("<span>until {until} UTC</span>"),
        "It alone; its page ends this.".to_owned(),
        format!("Nobody is told before {until} UTC."),
    ] {
        assert!(page.contains(&says), "{says} is not in {page}");
    }

    let (status, loud) = say(&server, "unsilence").await;
    assert_eq!(
        (status, &loud["silenced_until"]),
        (StatusCode::OK, &Value::Null)
    );
    let log = loud["log"].as_array().and_then(|it| it.last());
    let last = log.expect("it has lines");
    assert_eq!(
        (&last["what"], &last["detail"]),
        (&"unsilenced".into(), &Value::Null)
    );
    let audited = server.store.audited(1).await.unwrap();
    assert_eq!(audited[0].action, "incident unsilence");
    assert_eq!(server.json("/api/v1/silences").await, serde_json::json!([]));
    another_tick(&server);
    server.incidents.write(&server.store).await.unwrap();
    let messages = server.incidents.next_messages(fixture::NOW);
    assert_eq!(messages.len(), 1);
    let (sent, is_there) = (&messages[0], Outcome::Delivered);
    server.incidents.sent(sent, is_there, fixture::NOW, 0.5);
    assert_eq!(told(&server).await, 0, "once");
}

#[tokio::test]
async fn what_a_pattern_alone_keeps_silent_stays_so_and_says_what_ends_it() {
    let server = telling().await;
    let hour = r#"{"matches":{"node":"h100-03"},"for_s":3600,"who":"mira"}"#;
    let (_, kept) = keep(&server, hour).await;
    let (status, problem) = say(&server, "unsilence").await;
    assert_eq!(status, StatusCode::CONFLICT, "{problem}");
    let ends = format!("gpufleet silences --end {}", kept["id"].as_str().unwrap());
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains(&ends), "{detail}");
    assert_eq!(held(&server, INCIDENT).silenced_until, Some(HOUR));
    assert_eq!(told(&server).await, 0);
}

#[tokio::test]
async fn what_is_silent_by_hand_and_by_pattern_stays_so_by_the_pattern_until_that_ends() {
    let server = telling().await;
    silence_by_hand(&server, 7200).await;
    let hour = r#"{"matches":{"node":"h100-03"},"for_s":3600,"who":"mira"}"#;
    let (_, kept) = keep(&server, hour).await;
    let (status, still) = say(&server, "unsilence").await;
    assert_eq!(status, StatusCode::OK, "{still}");
    let silent = held(&server, INCIDENT);
    // Without a moment between, in which somebody would be told.
    assert_eq!(silent.silenced_until, Some(HOUR));
    assert_eq!(silent.silenced_alone_until, None);
    assert_eq!(told(&server).await, 0);
    let id = kept["id"].as_str().unwrap();
    let address = format!("/api/v1/silences/{id}/end");
    let who = r#"{"who":"mira"}"#;
    let ended = server.post(&address, "application/json", who, Some(OPERATOR));
    assert_eq!(ended.await.status(), StatusCode::OK);
    assert_eq!(held(&server, INCIDENT).silenced_until, None);
    assert_eq!(told(&server).await, 1);
}

#[tokio::test]
async fn a_silence_that_is_over_is_none() {
    let server = telling().await;
    silence_by_hand(&server, 60).await;
    let own = format!("/api/v1/incidents/{INCIDENT}");
    let routes = format!("{own}/told");
    for (seconds, is_silent) in [(59, true), (1, false)] {
        server.pass(seconds);
        for address in [&own, &routes] {
            let known = server.json(address).await;
            assert_eq!(known["silenced_until"].is_string(), is_silent, "{known}");
        }
        let listed = server.json("/api/v1/silences").await;
        assert_eq!(listed[0].is_object(), is_silent, "{listed}");
    }
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

//! The streams that tell open pages when there is something new.

use super::*;
use crate::pages::live::MOST_OF_A_TOKEN;

const JSON: &str = "application/json";

impl Fixture {
    /// Asks for a stream, as a page with this token does.
    async fn follow(&self, token: Option<&str>) -> Response<Body> {
        let mut request = Request::get("/live").header(header::ACCEPT_ENCODING, "gzip");
        if let Some(token) = token {
            request = request.header(header::COOKIE, format!("gpufleet_token={token}"));
        }
        self.ask(request.body(Body::empty()).unwrap()).await
    }

    /// A stream whose first words were heard.
    async fn stream(&self, token: Option<&str>) -> Body {
        let response = self.follow(token).await;
        assert_eq!(response.status(), StatusCode::OK);
        let mut body = response.into_body();
        assert_eq!(heard(&mut body).await, "retry: 2000\n: gpufleet\n\n");
        body
    }
}

/// What comes next; empty at the end.
async fn heard(body: &mut Body) -> String {
    let Some(frame) = body.frame().await else {
        return String::new();
    };
    let bytes = frame.unwrap().into_data().unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn an_open_page_is_told_what_the_detectors_and_what_people_have_brought() {
    const TOLD: &str = "data: changed\n\n";
    let server = server().await.with_an_incident().await;
    let mut stream = server.stream(None).await;
    server.news.send_replace(());
    server.news.send_replace(());
    assert_eq!(heard(&mut stream).await, TOLD, "both at once");
    let said = r#"{"what":"note","who":"ada","note":"seen"}"#;
    let address = format!("/api/v1/incidents/{INCIDENT}/say");
    let answer = server.post(&address, JSON, said, None).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(heard(&mut stream).await, TOLD);
    let silence = r#"{"matches":{"node":"h100-*"},"who":"ada","for_s":60}"#;
    let kept = server.post("/api/v1/silences", JSON, silence, None).await;
    assert_eq!(kept.status(), StatusCode::CREATED);
    assert_eq!(heard(&mut stream).await, TOLD);
    let kept = kept.into_body().collect().await.unwrap().to_bytes();
    let kept: Value = serde_json::from_slice(&kept).unwrap();
    let end = format!("/api/v1/silences/{}/end", kept["id"].as_str().unwrap());
    let ended = server.post(&end, JSON, r#"{"who":"ada"}"#, None).await;
    assert_eq!(ended.status(), StatusCode::OK);
    assert_eq!(heard(&mut stream).await, TOLD);
}

#[tokio::test]
async fn a_stream_passes_proxies_as_it_comes() {
    let server = server().await;
    let response = server.follow(None).await;
    for (name, expected) in [
        ("content-type", Some("text/event-stream")),
        ("cache-control", Some("no-store")),
        ("x-accel-buffering", Some("no")),
        ("content-encoding", None),
    ] {
        let found = response.headers().get(name);
        let found = found.map(|it| it.to_str().unwrap());
        assert_eq!(found, expected, "{name}");
    }
}

#[tokio::test]
async fn a_stream_says_nothing_to_a_token_that_is_not_good_any_more() {
    let server = server_of(fixture::fleet(), true).await;
    let refused = server.follow(None).await.status();
    assert_eq!(refused, StatusCode::UNAUTHORIZED);
    let mut readers = server.stream(Some(TOKEN)).await;
    let mut operators = server.stream(Some(OPERATOR)).await;
    let file = server._folder.path().join(Role::Read.name());
    std::fs::write(file, "another-token-that-may-read-now").unwrap();
    server.news.send_replace(());
    assert_eq!(heard(&mut readers).await, "");
    assert_eq!(heard(&mut operators).await, "data: changed\n\n");
}

#[tokio::test]
async fn a_stream_ends_with_the_server_and_after_its_time() {
    let server = server().await;
    let mut stream = server.stream(None).await;
    // From here on nothing is read from the store, whose time is another.
    tokio::time::pause();
    let mut lines = 0;
    loop {
        let line = heard(&mut stream).await;
        if line.is_empty() {
            break;
        }
        assert!(line.starts_with(':'), "nothing is new: {line}");
        lines += 1;
    }
    assert_eq!(lines, 240 / 15 - 1, "a proxy sees that it lives");
    let mut stream = server.stream(None).await;
    server.stop.cancel();
    assert_eq!(heard(&mut stream).await, "");
}

#[tokio::test]
async fn one_token_takes_no_more_than_its_share_and_is_told_when_to_come_back() {
    let server = server_of(fixture::fleet(), true).await;
    let mut streams = Vec::new();
    for _ in 0..MOST_OF_A_TOKEN {
        streams.push(server.stream(Some(TOKEN)).await);
    }
    let refused = server.follow(Some(TOKEN)).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()[header::RETRY_AFTER], "60");
    drop(server.stream(Some(OPERATOR)).await);
    let metrics =
        Request::get("/metrics").header(header::COOKIE, format!("gpufleet_token={TOKEN}"));
    let metrics = server.ask(metrics.body(Body::empty()).unwrap()).await;
    let metrics = metrics.into_body().collect().await.unwrap().to_bytes();
    let metrics = String::from_utf8(metrics.to_vec()).unwrap();
    let line = format!("\ngpufleet_server_live_streams {MOST_OF_A_TOKEN}\n");
    assert!(metrics.contains(&line), "{metrics}");
    streams.pop();
    drop(server.stream(Some(TOKEN)).await);
}

#[tokio::test]
async fn an_open_page_says_that_its_store_is_gone_as_soon_as_it_is() {
    let server = server().await;
    let pages = [
        "/jobs".to_owned(),
        jobs::address(jobs::JOB),
        "/clusters/prod/nodes/h100-00".to_owned(),
        format!("/clusters/prod/gpus/{GPU}"),
    ];
    let piece = "<p class=\"note bad\" data-live=\"past\">The store does not answer";
    for page in &pages {
        assert!(!server.get(page).await.1.contains(piece), "{page}");
    }
    server.store.close().await;
    for page in &pages {
        let (status, text) = server.get(page).await;
        assert_eq!(status, StatusCode::OK, "{page}");
        assert!(text.contains(piece), "{page}: {text}");
    }
}

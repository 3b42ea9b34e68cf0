//! What no handler answers: a panic, a time limit, a wrong method, a long body, an unknown parameter.

use axum::routing::get;
use gpufleet_telemetry::identity::{AgentId, Epoch};
use gpufleet_telemetry::wire::Stream;
use uuid::Uuid;

use super::*;
use crate::fleet::Restored;
use crate::store::model::{Cursor, CursorKey};

/// A server with an address under the API and one of a page that break, and one of each that never answers.
pub(super) async fn breaking() -> Fixture {
    let mut server = server().await;
    let web = super::super::shared(server.app.clone());
    let mut routes = super::super::routes(&web);
    for at in ["/api/v1/x", "/x"] {
        routes = routes
            .route(&format!("{at}/breaks"), get(breaks))
            .route(&format!("{at}/hangs"), get(std::future::pending::<()>));
    }
    server.router = super::super::around(routes, web);
    server
}

async fn breaks() -> StatusCode {
    panic!("the secret of the log")
}

fn check(response: &Response<Body>, body: &str, status: StatusCode, says: &str) {
    let kind = response.headers()[header::CONTENT_TYPE].to_str().unwrap();
    assert_eq!(response.status(), status, "{body}");
    assert!(body.contains(says), "{says} is not in {body}");
    assert!(!body.contains("secret"), "{body}");
    let policy = &response.headers()[header::CONTENT_SECURITY_POLICY];
    assert!(policy.to_str().unwrap().contains("default-src 'none'"));
    match kind {
        "application/problem+json" => {
            let problem: Value = serde_json::from_str(body).unwrap();
            assert_eq!(problem["status"], status.as_u16());
            assert!(problem["detail"].as_str().unwrap().contains(says));
        }
        "text/html; charset=utf-8" => {
            assert!(body.contains("<h1>") && body.contains("</html>"), "{body}");
        }
        other => panic!("{other}: {body}"),
    }
}

async fn taken_apart(response: Response<Body>) -> (Response<Body>, String) {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    (Response::from_parts(parts, Body::empty()), body)
}

#[tokio::test]
async fn what_breaks_hangs_is_too_long_or_asked_wrongly_is_a_problem_under_the_api_and_a_page_elsewhere()
 {
    let server = breaking().await;
    // Only what hangs waits, so its time passes at once.
    tokio::time::pause();
    let long = "x".repeat(super::super::MAX_BODY_BYTES + 1);
    for (method, path, body, status, says) in [
        ("GET", "x/breaks", "", 500, "its log says what"),
        ("GET", "x/hangs", "", 503, "no answer within 20 s"),
        ("DELETE", "fleet", "", 405, "does not take DELETE"),
        ("POST", "x/breaks", &*long, 413, "at most 65536 bytes"),
    ] {
        for (at, kind) in [("/api/v1/", "application/problem+json"), ("/", "text/html")] {
            let request = Request::builder().method(method).uri(format!("{at}{path}"));
            let request = request.header(header::CONTENT_LENGTH, body.len());
            let request = request.body(Body::from(body.to_owned())).unwrap();
            let (response, body) = taken_apart(server.ask(request).await).await;
            let its = response.headers()[header::CONTENT_TYPE].to_str().unwrap();
            assert!(its.starts_with(kind), "{method} {at}{path}: {its}");
            check(
                &response,
                &body,
                StatusCode::from_u16(status).unwrap(),
                says,
            );
            if status == 405 {
                assert!(response.headers().contains_key(header::ALLOW), "{at}{path}");
            }
        }
    }
}

#[tokio::test]
async fn a_parameter_that_a_route_does_not_have_is_refused_by_name_and_one_it_has_is_not() {
    let server = server().await.with_an_incident().await;
    for (method, _, address) in addresses() {
        let join = if address.contains('?') { '&' } else { '?' };
        let request = Request::builder()
            .method(&*method.to_uppercase())
            .uri(format!("{address}{join}clutser=prod"))
            .header(header::CONTENT_TYPE, "application/json");
        let (response, body) =
            taken_apart(server.ask(request.body(Body::empty()).unwrap()).await).await;
        let says = "“clutser” is no parameter of this route, which takes";
        check(&response, &body, StatusCode::BAD_REQUEST, says);
    }
    let (_, body) = server.get("/api/v1/clusters?clutser=prod").await;
    assert!(body.contains("takes limit, after"), "{body}");
    server.json("/api/v1/gpus?cluster=prod&limit=3").await;
    let page = server.get("/fleet?utm_source=mail").await;
    assert_eq!(
        page.0,
        StatusCode::OK,
        "pages pass over what they do not know"
    );
}

#[tokio::test]
async fn a_span_that_ends_before_it_begins_is_refused_by_each_route_that_takes_one() {
    let server = server().await.with_an_incident().await;
    let document = serde_json::to_value(crate::api::document()).unwrap();
    let mut asked = 0;
    for (method, path, address) in addresses() {
        let parameters = document["paths"][&path][&method]["parameters"].as_array();
        let takes = |name: &str| {
            let mut all = parameters.into_iter().flatten();
            all.any(|it| it["name"] == name && it["in"] == "query")
        };
        if !takes("from") || !takes("to") {
            continue;
        }
        let address = format!("{address}?from=2026-09-21T14:00:00Z&to=2026-09-21T13:00:00Z");
        let request = Request::get(&address).body(Body::empty()).unwrap();
        let (response, body) = taken_apart(server.ask(request).await).await;
        let says = "is not before to=2026-09-21T13:00:00";
        check(&response, &body, StatusCode::BAD_REQUEST, says);
        asked += 1;
    }
    assert!(asked >= 5, "{asked} routes take a span");
}

#[tokio::test]
async fn each_route_answers_as_the_document_says_also_without_store_lead_or_token() {
    let document = serde_json::to_value(crate::api::document()).unwrap();
    let whole = server().await.with_an_incident().await;
    let storeless = server().await;
    storeless.store.close().await;
    let mut standby = server().await;
    standby.router = super::super::router(App {
        lead: Arc::default(),
        ..standby.app.clone()
    });
    let guarded = server_of(fixture::fleet(), true).await;
    for (state, server, token, expected) in [
        ("whole", &whole, None, None),
        ("without its store", &storeless, None, None),
        (
            "standby",
            &standby,
            None,
            Some(StatusCode::SERVICE_UNAVAILABLE),
        ),
        ("guarded", &guarded, None, Some(StatusCode::UNAUTHORIZED)),
        (
            "a wrong token",
            &guarded,
            Some("no-token-of-it"),
            Some(StatusCode::FORBIDDEN),
        ),
        ("a reader", &guarded, Some(TOKEN), None),
    ] {
        for (method, path, address) in addresses() {
            let mut request = Request::builder()
                .method(&*method.to_uppercase())
                .uri(&address)
                .header(header::CONTENT_TYPE, "application/json");
            if let Some(token) = token {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            // Whatever a route takes beside who says so, it says that the rest is not there.
            let body = match path.as_str() {
                it if it.contains("/commands") => r#"{"action":"release_nvml"}"#,
                it if it.contains("/say") => r#"{"what":"acknowledge","who":"ada"}"#,
                "/api/v1/silences" => r#"{"matches":{"node":"h100-*"},"who":"ada","for_s":60}"#,
                _ => r#"{"who":"ada"}"#,
            };
            let response = server.ask(request.body(Body::from(body)).unwrap()).await;
            let status = response.status();
            let answers = &document["paths"][&path][&method]["responses"];
            let described = &answers[status.as_str()]["content"];
            let kind = response.headers()[header::CONTENT_TYPE].to_str().unwrap();
            let is_described = described.get(kind).is_some();
            assert!(
                is_described,
                "{state}: {method} {path} says {status}, {kind}: {answers}"
            );
            let is_open = path == "/api/v1/health";
            if let Some(expected) = expected.filter(|_| !is_open) {
                assert_eq!(status, expected, "{state}: {method} {path}");
            }
        }
    }
}

/// What a route answers to a request, its status, the type of its words and the methods that it takes.
async fn answer_to(
    server: &Fixture,
    method: &str,
    address: &str,
    body: String,
) -> (StatusCode, String, String) {
    let request = Request::builder().method(method).uri(address);
    let request = request
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONTENT_LENGTH, body.len());
    let response = server.ask(request.body(Body::from(body)).unwrap()).await;
    let text = |name| {
        let value = response.headers().get(name);
        value.map_or("", |it| it.to_str().unwrap()).to_owned()
    };
    let (kind, allow) = (text(header::CONTENT_TYPE), text(header::ALLOW));
    (response.status(), kind, allow)
}

#[tokio::test]
async fn the_document_says_of_each_route_how_it_answers_other_methods_long_bodies_and_what_breaks()
{
    let document = serde_json::to_value(crate::api::document()).unwrap();
    let server = server().await.with_an_incident().await;
    let says = |path: &str, method: &str, status: StatusCode, kind: &str| {
        let answers = &document["paths"][path][method]["responses"];
        let described = answers[status.as_str()]["content"].get(kind).is_some();
        assert!(
            described,
            "{method} {path} says {status}, {kind}: {answers}"
        );
    };
    for (method, path, address) in addresses() {
        let taken = document["paths"][&path].as_object().unwrap();
        for other in ["delete", "put", "patch", "get", "post"] {
            if taken.contains_key(other) {
                continue;
            }
            let (status, kind, allow) =
                answer_to(&server, &other.to_uppercase(), &address, String::new()).await;
            assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{other} {path}");
            says(&path, &method, status, &kind);
            for method in taken.keys() {
                let method = method.to_uppercase();
                assert!(allow.split(',').any(|it| it == method), "{path}: {allow}");
            }
        }
        let by = method.to_uppercase();
        let known = by.parse().unwrap();
        let long = "x".repeat(super::super::longest_body(&known, &path) + 1);
        let (status, kind, _) = answer_to(&server, &by, &address, long).await;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{method} {path}");
        says(&path, &method, status, &kind);
        let join = if address.contains('?') { '&' } else { '?' };
        let wrong = format!("{address}{join}clutser=prod");
        let (status, kind, _) =
            answer_to(&server, &method.to_uppercase(), &wrong, String::new()).await;
        says(&path, &method, status, &kind);
        let broken = StatusCode::INTERNAL_SERVER_ERROR;
        says(&path, &method, broken, "application/problem+json");
    }
    let (broken, kind, _) =
        answer_to(&breaking().await, "GET", "/api/v1/x/breaks", String::new()).await;
    assert_eq!(broken, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(kind, "application/problem+json");
}

#[tokio::test]
async fn an_agent_for_which_too_many_commands_wait_is_429_and_the_document_says_so_of_that_route_alone()
 {
    let server = server().await;
    let agent = AgentId(Uuid::from_u128(7));
    let cursor = Cursor {
        key: CursorKey {
            agent,
            epoch: Epoch(Uuid::from_u128(8)),
            stream: Stream::Metrics,
        },
        seq: 1,
        clock_offset_nanos: 0,
        seen: server.app.clock.now(),
    };
    let heard = Restored {
        cursors: vec![cursor],
        ..Restored::default()
    };
    server.fleet.restore(heard, server.app.clock.now());
    let address = format!("/api/v1/agents/{}/commands", agent.0);
    let mut last = StatusCode::OK;
    for number in 0..=crate::fleet::MAX_COMMANDS {
        let body = format!(r#"{{"action":"probe_now","arguments":{{"gpu":"GPU-{number}"}}}}"#);
        let (status, kind, _) = answer_to(&server, "POST", &address, body).await;
        let is_last = number == crate::fleet::MAX_COMMANDS;
        assert_eq!(
            status == StatusCode::ACCEPTED,
            !is_last,
            "{number}: {status}"
        );
        assert!(!is_last || kind == "application/problem+json", "{kind}");
        last = status;
    }
    assert_eq!(last, StatusCode::TOO_MANY_REQUESTS);
    let document = serde_json::to_value(crate::api::document()).unwrap();
    for (method, path, _) in addresses() {
        let answers = &document["paths"][&path][&method]["responses"];
        let says = answers.get(last.as_str()).is_some();
        assert_eq!(says, path.ends_with("/commands"), "{method} {path}");
    }
}

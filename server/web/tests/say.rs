//! What people say to an incident on its page, without scripts.

use axum::body::Body;
use axum::http::{Request, StatusCode, header};

use super::{Fixture, INCIDENT, OPERATOR, TOKEN, server, server_of, server_with};
use crate::config::Config;
use crate::view::fixture;

const OWN: [(&str, &str); 1] = [("sec-fetch-site", "same-origin")];

/// Sends the form of the page; the status, where it leads, and the page.
async fn send(
    server: &Fixture,
    form: &str,
    headers: &[(&str, &str)],
) -> (StatusCode, String, String) {
    let mut request = Request::post(format!("/incidents/{INCIDENT}/say"));
    request = request.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = server.ask(request.body(Body::from(form.to_owned())).unwrap());
    let answer = answer.await;
    let status = answer.status();
    let leads = answer.headers().get(header::LOCATION);
    let leads = leads.map_or_else(String::new, |it| it.to_str().unwrap().to_owned());
    let body = http_body_util::BodyExt::collect(answer.into_body()).await;
    let body = String::from_utf8(body.unwrap().to_bytes().to_vec()).unwrap();
    (status, leads, body)
}

fn held(server: &Fixture) -> gpufleet_analysis::incident::Incident {
    let id = INCIDENT.parse().unwrap();
    server.incidents.get(id).expect("it is open")
}

#[tokio::test]
async fn a_person_acknowledges_silences_and_annotates_by_a_form_with_a_row_in_the_audit() {
    let server = server().await.with_an_incident().await;
    let (_, page) = server.get(&format!("/incidents/{INCIDENT}")).await;
    let form = format!("<form method=\"post\" action=\"/incidents/{INCIDENT}/say\">");
    assert!(
        page.contains(&form) && page.contains("name=\"who\""),
        "{page}"
    );
    let first = page
        .split(&form)
        .nth(1)
        .and_then(|it| it.split("<button").nth(1));
    assert!(
        first.is_some_and(|it| it.starts_with(" name=\"what\" value=\"note\"")),
        "Enter in a field presses the first button: {first:?}"
    );
    let sent = "what=acknowledge&who=ada&note=card+%3Cb%3Eis%3C/b%3E+ordered&for_s=3600";
    let (status, leads, _) = send(&server, sent, &OWN).await;
    assert_eq!(status, StatusCode::SEE_OTHER);
    assert_eq!(leads, format!("/incidents/{INCIDENT}"));
    assert_eq!(held(&server).acknowledged_by.as_deref(), Some("ada"));
    assert_eq!(
        held(&server).silenced_until,
        None,
        "only who presses that button silences"
    );
    let (status, ..) = send(&server, "what=silence&who=ada&note=&for_s=3600", &OWN).await;
    assert_eq!(status, StatusCode::SEE_OTHER);
    let hour = fixture::NOW.shifted(3_600_000_000_000);
    assert_eq!(held(&server).silenced_until, Some(hour));
    let (_, page) = server.get(&leads).await;
    assert!(
        page.contains("card &#60;b&#62;is&#60;/b&#62; ordered"),
        "{page}"
    );
    let audited = server.store.audited(10).await.unwrap();
    let actions: Vec<&str> = audited.iter().rev().map(|it| &*it.action).collect();
    let expected = ["incident acknowledge", "incident note", "incident silence"];
    assert_eq!(actions, expected);
}

#[tokio::test]
async fn what_was_said_is_taken_back_by_buttons_that_stand_there_only_then() {
    let server = server().await.with_an_incident().await;
    let own = format!("/incidents/{INCIDENT}");
    let buttons = |page: &str| {
        ["release", "unsilence"].map(|it| page.contains(&format!("name=\"what\" value=\"{it}\"")))
    };
    let (_, page) = server.get(&own).await;
    assert_eq!(buttons(&page), [false, false]);
    for form in [
        "what=acknowledge&who=ada",
        "what=silence&who=ada&for_s=3600",
    ] {
        let (status, ..) = send(&server, form, &OWN).await;
        assert_eq!(status, StatusCode::SEE_OTHER, "{form}");
    }
    let (_, page) = server.get(&own).await;
    assert_eq!(buttons(&page), [true, true]);
    for form in ["what=release&who=bob", "what=unsilence&who=bob"] {
        let (status, ..) = send(&server, form, &OWN).await;
        assert_eq!(status, StatusCode::SEE_OTHER, "{form}");
        let (status, _, page) = send(&server, form, &OWN).await;
        assert_eq!(status, StatusCode::CONFLICT, "{form}");
        assert!(page.contains("there is nothing to"), "{page}");
    }
    let is = held(&server);
    assert_eq!((is.acknowledged_by, is.silenced_until), (None, None));
    let (_, page) = server.get(&own).await;
    assert_eq!(buttons(&page), [false, false]);
    assert_eq!(page.matches("is silent until").count(), 1, "{page}");
    for says in ["is silent no more", "released: nobody works on it now"] {
        assert!(page.contains(says), "{says} is not in {page}");
    }
    let audited = server.store.audited(10).await.unwrap();
    let actions: Vec<&str> = audited.iter().map(|it| &*it.action).collect();
    assert!(actions.contains(&"incident release"), "{actions:?}");
}

#[tokio::test]
async fn what_makes_no_sense_or_comes_from_another_page_changes_nothing_and_says_why() {
    let server = server().await.with_an_incident().await;
    let evil = [("origin", "https://evil.example"), ("host", "localhost")];
    let cross = [("sec-fetch-site", "cross-site")];
    for (form, headers, status, says) in [
        (
            "what=acknowledge&who=ada",
            &cross[..],
            StatusCode::FORBIDDEN,
            "not sent by a page",
        ),
        (
            "what=acknowledge&who=ada",
            &evil[..],
            StatusCode::FORBIDDEN,
            "not sent by a page",
        ),
        (
            "what=acknowledge&who=ada",
            &[][..],
            StatusCode::FORBIDDEN,
            "not sent by a page",
        ),
        (
            "what=acknowledge&who=",
            &OWN[..],
            StatusCode::BAD_REQUEST,
            "a name of 1 to",
        ),
        (
            "what=note&who=ada&note=+",
            &OWN[..],
            StatusCode::BAD_REQUEST,
            "a note has 1 to",
        ),
        (
            "what=mend&who=ada",
            &OWN[..],
            StatusCode::BAD_REQUEST,
            "it is one of",
        ),
        (
            "what=silence&who=ada",
            &OWN[..],
            StatusCode::BAD_REQUEST,
            "a silence ends",
        ),
    ] {
        let (answered, _, page) = send(&server, form, headers).await;
        assert_eq!(answered, status, "{form} {headers:?}");
        assert!(page.contains(says), "{form}: {says} is not in {page}");
        let held = held(&server);
        assert_eq!((held.acknowledged_by, held.log.len()), (None, 1), "{form}");
    }
}

#[tokio::test]
async fn only_who_operates_says_something_and_a_proxy_names_him() {
    let server = server_of(fixture::fleet(), true)
        .await
        .with_an_incident()
        .await;
    let signed_in = |token: &str| format!("gpufleet_token={token}");
    for (token, status) in [
        (TOKEN, StatusCode::FORBIDDEN),
        (OPERATOR, StatusCode::SEE_OTHER),
    ] {
        let cookie = signed_in(token);
        let headers = [OWN[0], ("cookie", &*cookie)];
        let (answered, ..) = send(&server, "what=acknowledge&who=ada", &headers).await;
        assert_eq!(answered, status);
        let request = Request::get(format!("/incidents/{INCIDENT}")).header("cookie", cookie);
        let answer = server.ask(request.body(Body::empty()).unwrap()).await;
        let page = http_body_util::BodyExt::collect(answer.into_body()).await;
        let page = String::from_utf8(page.unwrap().to_bytes().to_vec()).unwrap();
        assert_eq!(page.contains("name=\"what\""), token == OPERATOR);
        for says in ["It takes a token of role operate", "Sign in with one</a>"] {
            assert_eq!(page.contains(says), token == TOKEN, "{says}: {page}");
        }
    }
    let mut config = Config::for_tests();
    config.auth.user_header = "x-user".to_owned();
    config.auth.trusted_proxies = vec!["10.0.0.0/8".to_owned()];
    let server = server_with(config, fixture::fleet(), false).await;
    let server = server.with_an_incident().await;
    let (_, page) = server.get(&format!("/incidents/{INCIDENT}")).await;
    assert!(!page.contains("name=\"who\""), "the proxy says who");
    let (status, ..) = send(&server, "what=acknowledge&who=mallory", &OWN).await;
    assert_eq!(status, StatusCode::SEE_OTHER);
    let by = held(&server).acknowledged_by;
    assert_eq!(by.as_deref(), Some("a token of role operate"));
}

//! Who is let in, by header or by cookie; signing in and out, and to whom it is offered.

use super::*;

const FORM: &str = "application/x-www-form-urlencoded";

/// By what a request says who sends it.
#[derive(Clone, Copy)]
enum By<'a> {
    Nothing,
    Cookie(&'a str),
    Header(&'a str),
}

/// A page as it is shown to who asks for it so.
async fn page(server: &Fixture, address: &str, by: By<'_>) -> (StatusCode, String) {
    let request = Request::get(address);
    let request = match by {
        By::Nothing => request,
        By::Cookie(token) => request.header(header::COOKIE, format!("gpufleet_token={token}")),
        By::Header(token) => request.header(header::AUTHORIZATION, format!("Bearer {token}")),
    };
    let answer = server.ask(request.body(Body::empty()).unwrap()).await;
    let status = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// Sends the button that signs out, of a page of this site.
async fn sign_out(server: &Fixture, back: &str, site: &str) -> Response<Body> {
    let request = Request::post("/sign-out")
        .header(header::CONTENT_TYPE, FORM)
        .header(header::COOKIE, format!("gpufleet_token={TOKEN}"))
        .header("sec-fetch-site", site);
    let form = format!("back={}", crate::words::text::segment(back));
    server.ask(request.body(Body::from(form)).unwrap()).await
}

/// A server with an incident and one token file, of this role.
async fn with_one_token(folder: &tempfile::TempDir, role: Role) -> Fixture {
    let file = folder.path().join(role.name());
    std::fs::write(&file, TOKEN).unwrap();
    let auth = AuthConfig {
        tokens: vec![TokenFile {
            role,
            file: file.display().to_string(),
            cluster: None,
        }],
        ..AuthConfig::default()
    };
    let mut server = server().await.with_an_incident().await;
    server.router = super::super::router(App {
        access: Arc::new(Access::load(&auth).unwrap()),
        ..server.app.clone()
    });
    server
}

#[tokio::test]
async fn what_a_proxy_asked_for_in_the_header_does_not_hide_who_signed_in() {
    const OTHER: &str = "no-token-of-ours";
    let server = server_of(fixture::fleet(), true).await;
    let (good, wrong) = (format!("Bearer {TOKEN}"), format!("Bearer {OTHER}"));
    let (basic, good, wrong) = ("Basic eA==", good.as_str(), wrong.as_str());
    // A page answers a token that is not known with the form, the API with that it is of no use.
    let refused = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN];
    let let_in = [StatusCode::OK; 2];
    for (shown, cookie, told) in [
        (vec![basic], TOKEN, let_in),
        (vec![basic], OTHER, refused),
        (vec![wrong], TOKEN, refused),
        (vec![good], OTHER, let_in),
        (vec![basic, good], OTHER, let_in),
    ] {
        for (address, status) in ["/", "/api/v1/fleet"].into_iter().zip(told) {
            let mut request = Request::get(address);
            for value in &shown {
                request = request.header(header::AUTHORIZATION, *value);
            }
            let request = request.header(header::COOKIE, format!("gpufleet_token={cookie}"));
            let answer = server.ask(request.body(Body::empty()).unwrap()).await;
            assert_eq!(answer.status(), status, "{address} {shown:?} {cookie}");
        }
    }
}

#[tokio::test]
async fn the_sign_in_form_gives_a_cookie_only_for_a_good_token() {
    let server = server_of(fixture::fleet(), true).await;
    let good = server
        .post("/sign-in", FORM, &format!("token={TOKEN}&back=/api"), None)
        .await;
    assert_eq!(
        (good.status(), &good.headers()[header::LOCATION]),
        (StatusCode::SEE_OTHER, &"/api".parse().unwrap())
    );
    let cookie = good.headers()[header::SET_COOKIE].to_str().unwrap();
    for part in ["HttpOnly", "SameSite=Lax", "Max-Age=2592000"] {
        assert!(cookie.contains(part), "{part} is not in {cookie}");
    }
    let bad = server
        .post("/sign-in", FORM, "token=a-token-that-is-wrong&back=/", None)
        .await;
    assert_eq!(bad.status(), StatusCode::UNAUTHORIZED);
    assert!(!bad.headers().contains_key(header::SET_COOKIE));
}

/// The cookies that an answer has a browser keep.
fn cookies(answer: &Response<Body>) -> Vec<&str> {
    let all = answer.headers().get_all(header::SET_COOKIE).iter();
    all.map(|it| it.to_str().unwrap()).collect()
}

#[tokio::test]
async fn the_cookie_of_a_form_that_came_over_tls_goes_over_nothing_else_also_where_a_proxy_ends_it()
{
    let server = server_of(fixture::fleet(), true).await;
    for (origin, is_secure) in [
        ("https://gpus.example.org", true),
        ("http://gpus.example.org", false),
        ("null", false),
    ] {
        let request = Request::post("/sign-in")
            .header(header::CONTENT_TYPE, FORM)
            .header(header::ORIGIN, origin);
        let form = format!("token={TOKEN}");
        let answer = server.ask(request.body(Body::from(form)).unwrap()).await;
        assert_eq!(answer.status(), StatusCode::SEE_OTHER, "{origin}");
        let [cookie] = cookies(&answer)[..] else {
            panic!("{origin}: {answer:?}")
        };
        assert_eq!(cookie.contains("; Secure"), is_secure, "{origin}: {cookie}");
        // Without TLS a browser lets nobody put another one in the place of one that goes over TLS alone.
        let has_own_name = cookie.starts_with("__Secure-gpufleet_token=");
        assert_eq!(has_own_name, is_secure, "{origin}: {cookie}");
    }
}

#[tokio::test]
async fn either_cookie_lets_in_the_one_of_tls_first_and_signing_out_takes_both() {
    let server = server_of(fixture::fleet(), true).await;
    let (secure, plain) = ("__Secure-gpufleet_token", "gpufleet_token");
    for (sent, status) in [
        (format!("{secure}={TOKEN}"), StatusCode::OK),
        (format!("{plain}={TOKEN}"), StatusCode::OK),
        (format!("{plain}=old; {secure}={TOKEN}"), StatusCode::OK),
        (
            format!("{plain}={TOKEN}; {secure}=old"),
            StatusCode::UNAUTHORIZED,
        ),
    ] {
        let request = Request::get("/").header(header::COOKIE, &sent);
        let answer = server.ask(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status(), status, "{sent}");
    }
    let left = sign_out(&server, "/jobs", "same-origin").await;
    let rest = "=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax";
    let gone = [format!("{secure}{rest}; Secure"), format!("{plain}{rest}")];
    assert_eq!(cookies(&left), gone);
}

#[tokio::test]
async fn whoever_is_signed_in_sees_as_whom_takes_another_token_and_signs_out() {
    let server = server_of(fixture::fleet(), true)
        .await
        .with_an_incident()
        .await;
    let own = format!("/incidents/{INCIDENT}");
    let form = format!("href=\"/sign-in?back=%2Fincidents%2F{INCIDENT}\">Sign in");
    let button = "action=\"/sign-out\"";
    for (token, role) in [(TOKEN, "read"), (OPERATOR, "operate")] {
        // The page of the fleet is kept as it was rendered last.
        for address in [own.as_str(), "/fleet", "/api"] {
            let (status, shown) = page(&server, address, By::Cookie(token)).await;
            assert_eq!(status, StatusCode::OK, "{address}");
            let says = format!("Token of role {role}<");
            for part in [says.as_str(), button, "Sign in with another token"] {
                assert!(shown.contains(part), "{address}: {part} is not in {shown}");
            }
        }
        let (_, shown) = page(&server, &own, By::Cookie(token)).await;
        let leads = format!("{form} with one</a>");
        assert_eq!(shown.contains(&leads), role == "read", "{shown}");
        let (status, shown) = page(&server, "/sign-in?back=%2Fjobs", By::Cookie(token)).await;
        assert_eq!(status, StatusCode::OK);
        let says = format!("signed in with a token of role {role}");
        for part in [says.as_str(), "value=\"/jobs\"", "name=\"token\"", button] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
    }
    let (status, shown) = page(&server, &own, By::Cookie("rotated-since-then")).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert!(!shown.contains(button) && shown.contains("name=\"token\""));
    let left = sign_out(&server, "/jobs", "same-origin").await;
    assert_eq!(left.status(), StatusCode::SEE_OTHER);
    assert_eq!(left.headers()[header::LOCATION], "/sign-in?back=%2Fjobs");
    let foreign = sign_out(&server, "/jobs", "cross-site").await;
    assert_eq!(foreign.status(), StatusCode::FORBIDDEN);
    assert!(!foreign.headers().contains_key(header::SET_COOKIE));
}

#[tokio::test]
async fn signing_in_is_offered_only_where_it_would_count() {
    let own = format!("/incidents/{INCIDENT}");
    let offers = |page: &str| {
        ["href=\"/sign-in", "name=\"token\"", "action=\"/sign-out\""].map(|it| page.contains(it))
    };
    let none = [false; 3];
    let open = server().await.with_an_incident().await;
    for (address, says) in [
        (own.as_str(), "name=\"what\""),
        ("/sign-in", "Nobody signs in here"),
    ] {
        let (status, shown) = page(&open, address, By::Nothing).await;
        assert_eq!((status, offers(&shown)), (StatusCode::OK, none), "{shown}");
        assert!(shown.contains(says), "{says} is not in {shown}");
    }
    let guarded = server_of(fixture::fleet(), true)
        .await
        .with_an_incident()
        .await;
    for (address, token, status, says) in [
        (own.as_str(), TOKEN, StatusCode::OK, "It takes a token"),
        (own.as_str(), OPERATOR, StatusCode::OK, "name=\"what\""),
        ("/sign-in", TOKEN, StatusCode::OK, "a token of role read in"),
        (
            own.as_str(),
            "no-token-of-ours",
            StatusCode::UNAUTHORIZED,
            "in their Authorization header",
        ),
    ] {
        let (answered, shown) = page(&guarded, address, By::Header(token)).await;
        assert_eq!((answered, offers(&shown)), (status, none), "{shown}");
        assert!(shown.contains(says), "{says} is not in {shown}");
    }
    let folder = tempfile::tempdir().unwrap();
    let reads = with_one_token(&folder, Role::Read).await;
    let (_, shown) = page(&reads, &own, By::Cookie(TOKEN)).await;
    assert!(shown.contains("role operate is closed"), "{shown}");
    assert!(!shown.contains("Sign in with one<"), "nobody operates");
    let closed = with_one_token(&folder, Role::Ingest).await;
    for (address, status) in [
        (own.as_str(), StatusCode::UNAUTHORIZED),
        ("/sign-in", StatusCode::OK),
    ] {
        let (answered, shown) = page(&closed, address, By::Nothing).await;
        assert_eq!((answered, offers(&shown)), (status, none), "{shown}");
    }
}

#[tokio::test]
async fn the_form_leads_to_a_page_of_this_server_that_can_be_asked_for() {
    let server = server_of(fixture::fleet(), true).await;
    let segment = crate::words::text::segment;
    for (back, leads) in [
        ("/jobs?state=running", "/jobs?state=running"),
        ("https://evil.example/", "/"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("\"><img src=x>", "/"),
    ] {
        let address = format!("/sign-in?back={}", segment(back));
        let (_, shown) = page(&server, &address, By::Cookie(TOKEN)).await;
        for part in [
            format!(
                "<form class=\"card\" method=\"post\" action=\"/sign-in\">\n<input type=\"hidden\" name=\"back\" value=\"{leads}\">"
            ),
            format!("<a href=\"{leads}\">Back</a>"),
        ] {
            assert!(shown.contains(&part), "{part} is not in {shown}");
        }
        assert!(!shown.contains("<img"), "{shown}");
        let form = format!("token={TOKEN}&back={}", segment(back));
        let answer = server.post("/sign-in", FORM, &form, None).await;
        assert_eq!(answer.headers()[header::LOCATION], leads);
    }
    // What was sent is lost: a link would only ask for its address.
    let say = format!("/incidents/{INCIDENT}/say");
    let refused = server.post(&say, FORM, "what=note&note=seen", None).await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    let shown = String::from_utf8(body.to_vec()).unwrap();
    assert!(shown.contains("name=\"back\" value=\"/\""), "{shown}");
    assert!(!shown.contains(&say), "{shown}");
}

#[tokio::test]
async fn no_form_of_another_site_changes_anything_by_the_api() {
    let server = server().await.with_an_incident().await;
    let mut asked = 0;
    for (method, _, address) in addresses() {
        if method == "get" {
            continue;
        }
        for kind in ["text/plain", FORM, "multipart/form-data; boundary=x"] {
            let answer = server.post(&address, kind, r#"{"who":"ada"}"#, None).await;
            let expected = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            assert_eq!(answer.status(), expected, "{address} {kind}");
        }
        asked += 1;
    }
    assert!(asked >= 5, "{asked} routes change something");
    assert!(server.store.audited(10).await.unwrap().is_empty());
}

//! Who is let in, by header or by cookie.

use super::*;

#[tokio::test]
async fn what_a_proxy_asked_for_in_the_header_does_not_hide_who_signed_in() {
    const OTHER: &str = "no-token-of-ours";
    let server = server_of(fixture::fleet(), true).await;
    let (good, wrong) = (format!("Bearer {TOKEN}"), format!("Bearer {OTHER}"));
    let (basic, good, wrong) = ("Basic eA==", good.as_str(), wrong.as_str());
    for (shown, cookie, status) in [
        (vec![basic], TOKEN, StatusCode::OK),
        (vec![basic], OTHER, StatusCode::UNAUTHORIZED),
        (vec![wrong], TOKEN, StatusCode::UNAUTHORIZED),
        (vec![good], OTHER, StatusCode::OK),
        (vec![basic, good], OTHER, StatusCode::OK),
    ] {
        for address in ["/", "/api/v1/fleet"] {
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

//! Whether a form was sent by a page of ours: a browser sends cookies, and reaches a loopback port, for any
//! page that it shows.
//!
//! Browsers say themselves where a request comes from: `Sec-Fetch-Site`, and where they do not send that
//! (without TLS on another host) `Origin`, which has to be the host that was asked. A request that says
//! neither comes from no browser of the last years and is refused; programs use the API.

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether the page that sent this form is one of this server.
pub fn is_own(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).and_then(|it| it.to_str().ok());
    if let Some(site) = text(FETCH_SITE) {
        return site == "same-origin";
    }
    let origin = text(ORIGIN).and_then(|it| it.split_once("://"));
    origin.is_some_and(|(_, from)| text(HOST).is_some_and(|host| host.eq_ignore_ascii_case(from)))
}

/// Whether the page that sent this form came over TLS, also where a proxy before this server ends it: browsers say it in
/// `Origin` with every form.
pub fn is_over_tls(headers: &HeaderMap) -> bool {
    let origin = headers.get(ORIGIN);
    origin.is_some_and(|it| it.as_bytes().starts_with(b"https://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(HeaderName, &str)], expected: bool) {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (name.clone(), value.parse().expect("a header")))
            .collect();
        assert_eq!(is_own(&headers), expected, "{headers:?}");
    }

    #[test]
    fn only_a_page_of_the_host_that_was_asked_sends_a_form() {
        let host = (HOST, "gpus.example.org:8080");
        let own = (ORIGIN, "https://gpus.example.org:8080");
        check(&[(FETCH_SITE, "same-origin")], true);
        for site in ["cross-site", "same-site", "none", ""] {
            check(&[(FETCH_SITE, site), own.clone(), host.clone()], false);
        }
        check(&[own, host.clone()], true);
        for origin in ["https://evil.example", "https://gpus.example.org", "null"] {
            check(&[(ORIGIN, origin), host.clone()], false);
        }
        check(&[host], false);
        check(&[], false);
    }
}

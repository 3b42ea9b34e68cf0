//! What every page has around its content: title, theme, time, and where it is.

use std::convert::Infallible;
use std::sync::Arc;

use askama::Template;
use axum::extract::FromRequestParts;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, VARY};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use gpufleet_telemetry::time::Timestamp;

use super::{assets, problem, sign_in};
use crate::auth::{Grant, Role};
use crate::health::{self, StoreSeen, Unjudged};
use crate::web::signed::Signed;
use crate::web::{Web, cookie};
use crate::words::text;

/// A request with this header wants only what is inside `<main>`: live.js swaps it in.
pub const FRAGMENT: HeaderName = HeaderName::from_static("gpufleet-fragment");

/// The cookie with the chosen theme.
pub const THEME_COOKIE: &str = "gpufleet_theme";

/// Light or dark, or as the system has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Theme {
    /// As the system has it.
    #[default]
    System,
    /// Dark letters on light ground.
    Light,
    /// Light letters on dark ground.
    Dark,
}

/// What a page's template needs beside its content. Taken from the request.
#[derive(Debug, Clone)]
pub struct Frame {
    /// When the page was made.
    pub at: Timestamp,
    /// The theme chosen on this browser.
    pub theme: Theme,
    /// Whether only the content is wanted.
    pub fragment: bool,
    /// The address asked for, to come back to.
    pub here: String,
    /// What the reader may see.
    pub grant: Grant,
    /// As whom the reader comes.
    pub signed: Signed,
    /// The host the reader reached us by, for commands to copy; empty when not told.
    pub host: String,
    /// Whether the database takes what the server writes.
    pub store: StoreSeen,
    /// That the detectors stand; none while they judge.
    pub unjudged: Option<Unjudged>,
}

impl Theme {
    /// The value of `data-theme`; empty when the system decides.
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "",
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }

    /// The word on the button.
    pub const fn word(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }

    /// The theme that the button brings.
    pub const fn next(self) -> Self {
        match self {
            Self::System => Self::Dark,
            Self::Dark => Self::Light,
            Self::Light => Self::System,
        }
    }

    /// The theme with this name; the system's for any other.
    pub fn parse(name: &str) -> Self {
        [Self::Light, Self::Dark]
            .into_iter()
            .find(|theme| theme.name() == name)
            .unwrap_or_default()
    }
}

impl Frame {
    /// From what a request says.
    pub fn of(web: &Web, headers: &HeaderMap, here: &str, grant: Grant) -> Self {
        Self {
            at: web.app.clock.now(),
            theme: cookie(headers, THEME_COOKIE).map_or(Theme::System, Theme::parse),
            fragment: headers.contains_key(FRAGMENT),
            here: here.to_owned(),
            grant,
            signed: Signed::of(web, headers),
            host: host(headers),
            store: StoreSeen::of(&web.app),
            unjudged: health::unjudged(&web.app),
        }
    }

    /// Since when the database takes nothing, in words; none while it does.
    pub fn store_fails(&self) -> Option<String> {
        let is_failing = self.store.is_failing;
        is_failing.then(|| self.since(self.store.taken))
    }

    /// Since when the detectors judge nothing, in words; none while they do.
    pub fn detectors_stand(&self) -> Option<String> {
        self.unjudged.map(|it| self.since(it.last))
    }

    /// Since when something is so that was otherwise at its last moment, if it ever was since the start.
    fn since(&self, last: Option<Timestamp>) -> String {
        let of = |last| {
            let (at, ago) = (text::moment(last), text::ago(self.at, last));
            format!("since {at} UTC, {ago}")
        };
        last.map_or_else(|| "since this server started".to_owned(), of)
    }

    /// The role of the reader's token; none without one that is good.
    pub fn role(&self) -> Option<&'static str> {
        self.signed.role().map(Role::name)
    }

    /// Where a token can be signed in that takes the place of what is shown now, to come back here; none where it
    /// would not count, and on that page itself.
    pub fn sign_in(&self) -> Option<String> {
        let takes = self.signed.takes_form() && !sign_in::is_form(&self.here);
        takes.then(|| sign_in::address(&self.here))
    }

    /// The address of an asset.
    pub fn asset(&self, name: &str) -> String {
        format!("/assets/{}/{name}", assets::version())
    }

    /// The server's version.
    pub const fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// The time of the page in words, UTC.
    pub fn moment(&self) -> String {
        text::moment(self.at)
    }

    /// The time of the page for machines.
    pub fn rfc3339(&self) -> String {
        text::rfc3339(self.at)
    }
}

/// The host without its port, if it is made only of what host names and addresses are made of.
fn host(headers: &HeaderMap) -> String {
    let raw = headers
        .get(axum::http::header::HOST)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let name = match raw.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|it| it.is_ascii_digit()) => name,
        _ => raw,
    };
    let fits = name.len() <= 253
        && name
            .bytes()
            .all(|it| it.is_ascii_alphanumeric() || b".-_[]:".contains(&it));
    if fits { name.to_owned() } else { String::new() }
}

impl FromRequestParts<Arc<Web>> for Frame {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, web: &Arc<Web>) -> Result<Self, Infallible> {
        let grant = parts.extensions.get::<Grant>().cloned();
        let here = parts.uri.path_and_query().map_or("/", |it| it.as_str());
        Ok(Self::of(
            web,
            &parts.headers,
            here,
            grant.unwrap_or_default(),
        ))
    }
}

/// A rendered page as a response. Pages change every few seconds and may name people: no cache
/// keeps them.
pub fn page(status: StatusCode, template: &impl Template) -> Response {
    match template.render() {
        Ok(body) => html(status, body),
        Err(error) => problem::broken(&error),
    }
}

/// HTML as a response.
pub fn html(status: StatusCode, body: impl Into<axum::body::Body>) -> Response {
    let headers = [
        (
            CONTENT_TYPE,
            HeaderValue::from_static("text/html; charset=utf-8"),
        ),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (VARY, HeaderValue::from_static("gpufleet-fragment, cookie")),
    ];
    (status, headers, body.into()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_theme_button_goes_round_all_three() {
        let mut theme = Theme::System;
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(theme);
            assert_eq!(Theme::parse(theme.name()), theme);
            theme = theme.next();
        }
        assert_eq!(theme, Theme::System);
        assert_eq!(seen, [Theme::System, Theme::Dark, Theme::Light]);
    }

    #[test]
    fn a_host_goes_into_a_command_only_when_it_is_one() {
        for (raw, expected) in [
            ("fleet.example.org:8080", "fleet.example.org"),
            ("10.0.0.7", "10.0.0.7"),
            ("[::1]:8080", "[::1]"),
            ("x;rm -rf /", ""),
            ("<script>", ""),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("host", HeaderValue::from_str(raw).expect("visible ASCII"));
            assert_eq!(host(&headers), expected);
        }
    }
}

//! Pages for when there is nothing to show: not found, not allowed, broken. Each says what to do.

use std::fmt::Display;
use std::sync::Arc;

use askama::Template;
use axum::extract::{Form, Request, State};
use axum::http::header::{LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::frame::{self, Frame, THEME_COOKIE, Theme, html};
use crate::auth::{AuthError, Grant, Role};
use crate::web::{TOKEN_COOKIE, Web};

/// A page that says what is the case and where to go.
#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage {
    frame: Frame,
    title: String,
    sentences: Vec<String>,
    links: Vec<(String, String)>,
    sign_in: bool,
}

/// 404, naming what was asked for and where to look instead.
pub fn not_found(frame: Frame, title: String, sentences: Vec<String>) -> Response {
    let page = ProblemPage {
        links: vec![
            ("/fleet".to_owned(), "The whole fleet".to_owned()),
            ("/api".to_owned(), "What the API can list".to_owned()),
        ],
        frame,
        title,
        sentences,
        sign_in: false,
    };
    frame::page(StatusCode::NOT_FOUND, &page)
}

/// Something that was asked for was not done: why, and the way back.
pub fn refused(frame: Frame, status: StatusCode, title: &str, why: String, back: &str) -> Response {
    let page = ProblemPage {
        frame,
        title: title.to_owned(),
        sentences: vec![why],
        links: vec![(back.to_owned(), "Back".to_owned())],
        sign_in: false,
    };
    frame::page(status, &page)
}

/// 503, when the past cannot be read; what is live is still shown on the fleet page.
pub fn store_failed(frame: Frame, error: &dyn Display) -> Response {
    tracing::error!(%error, "a page could not read the store");
    let page = ProblemPage {
        frame,
        title: "The store does not answer".to_owned(),
        sentences: vec![
            "What happened before now cannot be read at the moment; the server's log says why.".to_owned(),
            "What is live is still shown on the fleet page, and agents keep what is not yet stored.".to_owned(),
        ],
        links: vec![("/fleet".to_owned(), "The whole fleet".to_owned())],
        sign_in: false,
    };
    frame::page(StatusCode::SERVICE_UNAVAILABLE, &page)
}

/// 503, of a server that does not lead.
pub fn does_not_lead(web: &Web, request: &Request, why: String) -> Response {
    let here = request.uri().path_and_query().map_or("/", |it| it.as_str());
    let page = ProblemPage {
        frame: Frame::of(web, request.headers(), here, Grant::default()),
        title: "This server does not lead".to_owned(),
        sentences: vec![
            why,
            "It knows nothing of the fleet until it does; the server that leads shows the pages."
                .to_owned(),
        ],
        links: vec![("/readyz".to_owned(), "What it waits for".to_owned())],
        sign_in: false,
    };
    frame::page(StatusCode::SERVICE_UNAVAILABLE, &page)
}

/// 401, with the form for a token.
pub fn sign_in(web: &Web, request: &Request, error: &AuthError) -> Response {
    let here = request.uri().path_and_query().map_or("/", |it| it.as_str());
    let page = ProblemPage {
        frame: Frame::of(web, request.headers(), here, Grant::default()),
        title: "Sign in".to_owned(),
        sentences: vec![format!(
            "This server shows its pages to holders of a token with role read or operate: {error}."
        )],
        links: Vec::new(),
        sign_in: true,
    };
    frame::page(StatusCode::UNAUTHORIZED, &page)
}

/// An error that no handler found words for.
pub fn without_words(
    web: &Web,
    headers: &HeaderMap,
    here: &str,
    status: StatusCode,
    why: String,
) -> Response {
    let title = match status {
        StatusCode::INTERNAL_SERVER_ERROR => "Something broke on the server",
        StatusCode::METHOD_NOT_ALLOWED => "This address does not take that",
        StatusCode::PAYLOAD_TOO_LARGE => "That is too long",
        StatusCode::SERVICE_UNAVAILABLE => "The server does not answer in time",
        _ => "This was not understood",
    };
    let frame = Frame::of(web, headers, here, Grant::default());
    refused(frame, status, title, why, "/")
}

/// 500. The reader gets a constant text, the log gets the truth.
pub fn broken(error: &dyn Display) -> Response {
    tracing::error!(%error, "a page could not be rendered");
    constant_500()
}

fn constant_500() -> Response {
    const BODY: &str = "<!doctype html><html lang=en><title>Something broke · gpufleet</title><h1>Something broke on the server</h1><p>The server's log says what. <a href=\"/\">Back to the fleet</a>.";
    html(StatusCode::INTERNAL_SERVER_ERROR, BODY)
}

/// The sign-in form.
#[derive(Deserialize)]
pub struct SignIn {
    token: String,
    #[serde(default)]
    back: String,
}

/// `POST /sign-in`: puts a good token into a cookie that scripts cannot read.
pub async fn take_token(
    State(web): State<Arc<Web>>,
    headers: HeaderMap,
    Form(form): Form<SignIn>,
) -> Response {
    let token = form.token.trim();
    let fits = token
        .bytes()
        .all(|it| it.is_ascii_graphic() && it != b';' && it != b',');
    let shown = format!("Bearer {token}");
    let access = &web.app.access;
    let is_known = [Role::Read, Role::Operate]
        .into_iter()
        .any(|role| access.guards(role) && access.check(role, Some(shown.as_bytes())).is_ok());
    if !fits || !is_known {
        let page = ProblemPage {
            frame: Frame::of(&web, &headers, &form.back, Grant::default()),
            title: "Sign in".to_owned(),
            sentences: vec!["This token is not known here, or does not allow reading.".to_owned()],
            links: Vec::new(),
            sign_in: true,
        };
        return frame::page(StatusCode::UNAUTHORIZED, &page);
    }
    let secure = if web.app.config.auth.tls_certificate_file.is_empty() {
        ""
    } else {
        "; Secure"
    };
    go_back(
        &form.back,
        &format!("{TOKEN_COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict{secure}"),
    )
}

/// The theme button.
#[derive(Deserialize)]
pub struct ChosenTheme {
    theme: String,
    #[serde(default)]
    back: String,
}

/// `POST /theme`.
pub async fn take_theme(Form(form): Form<ChosenTheme>) -> Response {
    let name = Theme::parse(&form.theme).name();
    go_back(
        &form.back,
        &format!("{THEME_COOKIE}={name}; Path=/; Max-Age=31536000; SameSite=Lax"),
    )
}

/// Sends the browser back to where it was, but never to another host.
fn go_back(back: &str, cookie: &str) -> Response {
    // Browsers drop tabs and line ends from an address before they look at its slashes.
    let is_here = back.starts_with('/')
        && !back.starts_with("//")
        && !back.contains(|it: char| it == '\\' || it.is_control());
    let place = if is_here { back } else { "/" };
    let location = HeaderValue::from_str(place).unwrap_or(HeaderValue::from_static("/"));
    match HeaderValue::from_str(cookie) {
        Ok(cookie) => (
            StatusCode::SEE_OTHER,
            [(LOCATION, location), (SET_COOKIE, cookie)],
        )
            .into_response(),
        Err(error) => broken(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_sends_nobody_to_another_host() {
        for (back, place) in [
            ("/clusters/a/nodes/b?hours=6", "/clusters/a/nodes/b?hours=6"),
            ("//evil.example", "/"),
            ("https://evil.example", "/"),
            ("/\\evil.example", "/"),
            ("/\t/evil.example", "/"),
            ("", "/"),
            ("/a\nset-cookie: x", "/"),
        ] {
            let response = go_back(back, "a=b");
            assert_eq!(response.headers()[LOCATION], place, "{back:?}");
        }
    }
}

//! Pages for when there is nothing to show: not found, not done, broken. Each says what to do.

use std::fmt::Display;

use askama::Template;
use axum::extract::{Form, Request};
use axum::http::header::{LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::frame::{self, Frame, THEME_COOKIE, Theme, html};
use crate::auth::Grant;
use crate::health::StoreSeen;
use crate::web::Web;
use crate::words::text;

/// A page that says what is the case and where to go.
#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage {
    frame: Frame,
    title: String,
    /// What happened.
    sentences: Vec<String>,
    more: More,
    links: Vec<(String, String)>,
}

/// What a reader wants to know of what went wrong; what is empty is not shown.
#[derive(Default)]
struct More {
    /// Since when it is so.
    since: String,
    /// What to do, one thing a sentence.
    todo: Vec<String>,
    /// What is true all the same.
    holds: Vec<String>,
}

impl More {
    fn is_empty(&self) -> bool {
        self.since.is_empty() && self.todo.is_empty() && self.holds.is_empty()
    }
}

fn owned<const COUNT: usize>(words: [&str; COUNT]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

fn links<const COUNT: usize>(of: [(&str, &str); COUNT]) -> Vec<(String, String)> {
    let of = of.into_iter();
    of.map(|(address, words)| (address.to_owned(), words.to_owned()))
        .collect()
}

/// 404, naming what was asked for, why it may not be there, and where to look instead.
pub fn not_found(frame: Frame, title: String, sentences: Vec<String>) -> Response {
    let page = ProblemPage {
        more: More {
            todo: owned([
                "Look for it by a part of its name in the box above: nodes, GPUs and jobs are found.",
                "If a link led here, what it led to is gone or older than it is kept; the page where the link was has what is there now.",
            ]),
            ..More::default()
        },
        links: links([
            ("/fleet", "The whole fleet"),
            ("/jobs", "All jobs"),
            ("/incidents", "All incidents"),
            ("/api", "What the API can list"),
        ]),
        frame,
        title,
        sentences,
    };
    frame::page(StatusCode::NOT_FOUND, &page)
}

/// Something that was asked for was not done: why, and the way back.
pub fn refused(frame: Frame, status: StatusCode, title: &str, why: String, back: &str) -> Response {
    told(
        frame,
        status,
        title,
        vec![why],
        More::default(),
        links([(back, "Back")]),
    )
}

fn told(
    frame: Frame,
    status: StatusCode,
    title: &str,
    sentences: Vec<String>,
    more: More,
    links: Vec<(String, String)>,
) -> Response {
    let page = ProblemPage {
        frame,
        title: title.to_owned(),
        sentences,
        more,
        links,
    };
    frame::page(status, &page)
}

/// The same page again, for what passes; none where its address would lead to another host.
fn again(frame: &Frame) -> Option<(String, String)> {
    is_here(&frame.here).then(|| (frame.here.clone(), "Try again".to_owned()))
}

/// 503, when the past cannot be read; what is live is still shown on the fleet page.
pub fn store_failed(mut frame: Frame, error: &dyn Display) -> Response {
    tracing::error!(%error, "a page could not read the store");
    let since = match (frame.store_fails(), frame.store.taken) {
        (Some(since), _) => format!("It takes nothing {since}."),
        (None, Some(taken)) => format!(
            "Not known: it last took something at {} UTC, {}, and did not answer this page.",
            text::moment(taken),
            text::ago(frame.at, taken)
        ),
        (None, None) => "Not known: it did not answer this page.".to_owned(),
    };
    let more = More {
        since,
        todo: owned([
            "Look at the database: is it there, is its disk full, does a session block it? The server's log has its own words; the runbook says what to look at and in which order.",
            "Nothing is to be started anew: the server asks on, and this page is whole when the database answers.",
        ]),
        holds: owned([
            "Fleet, Today, Queue, and the pages of nodes and GPUs show what is live, as always.",
            "Nothing that agents send is lost: they keep it until it is durable.",
        ]),
    };
    let ways = links([
        ("/fleet", "The whole fleet, live"),
        ("/health#database", "What the server says of itself"),
        ("/runbooks/server-stuck", "Runbook"),
    ]);
    let ways = again(&frame).into_iter().chain(ways).collect();
    // It is said below, with more words.
    frame.store = StoreSeen::default();
    let what = owned([
        "What happened before now cannot be read at the moment, and this page is made of it.",
    ]);
    let title = "The store does not answer";
    told(
        frame,
        StatusCode::SERVICE_UNAVAILABLE,
        title,
        what,
        more,
        ways,
    )
}

/// 503, of a server that does not lead.
pub fn does_not_lead(web: &Web, request: &Request, why: String) -> Response {
    let here = request.uri().path_and_query().map_or("/", |it| it.as_str());
    let frame = Frame::of(web, request.headers(), here, Grant::default());
    let since = web.app.lead.waits_since().map(|it| {
        let (at, ago) = (text::moment(it), text::ago(frame.at, it));
        format!("It waits since {at} UTC, {ago}.")
    });
    let more = More {
        since: since.unwrap_or_default(),
        todo: owned([
            "Open this page at the server that leads. An address before both that sends only to a server whose /readyz says 200 always leads there.",
            "If none leads for longer than a minute, /readyz and this server's log say what it waits for.",
        ]),
        holds: owned([
            "It knows nothing of the fleet until it leads, so it shows nothing rather than an empty fleet; the server that leads shows the pages.",
            "It takes nothing of agents either: they keep what they have and send it to the one that leads.",
            "The runbooks are here too.",
        ]),
    };
    let ways = links([
        ("/readyz", "What it waits for"),
        ("/runbooks", "All runbooks"),
    ]);
    let ways = again(&frame).into_iter().chain(ways).collect();
    let title = "This server does not lead";
    told(
        frame,
        StatusCode::SERVICE_UNAVAILABLE,
        title,
        vec![why],
        more,
        ways,
    )
}

/// An error that no handler found words for.
pub fn without_words(
    web: &Web,
    (method, headers): (&Method, &HeaderMap),
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
    if !status.is_server_error() {
        return refused(frame, status, title, why, "/");
    }
    let todo = match status {
        StatusCode::SERVICE_UNAVAILABLE => owned([
            "Ask for less: one cluster, fewer days, fewer ranks. Or again when the server is less busy.",
            "If every page does this, the database or the machine is too slow: the runbook says what to look at.",
        ]),
        _ => owned([
            "The server's log says what broke, at the time that stands above; it is a fault of gpufleet and worth a report.",
        ]),
    };
    let more = More {
        since: format!(
            "This was asked at {} UTC. What was asked before or beside it is not touched.",
            frame.moment()
        ),
        todo,
        holds: owned([
            "What comes in is taken and judged as always, and messages to people go out: neither waits for pages.",
            "Today and Fleet are made of memory and are the quickest.",
        ]),
    };
    let ways = links([
        ("/", "Today"),
        ("/fleet", "The whole fleet"),
        ("/runbooks/server-slow", "Runbook"),
    ]);
    // What was sent is not sent again by a link.
    let again = again(&frame).filter(|_| method == Method::GET);
    let ways = again.into_iter().chain(ways).collect();
    told(frame, status, title, vec![why], more, ways)
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
        &[format!(
            "{THEME_COOKIE}={name}; Path=/; Max-Age=31536000; SameSite=Lax"
        )],
    )
}

/// Whether an address is one of this host. Browsers drop tabs and line ends from it before they look at its slashes.
pub(super) fn is_here(address: &str) -> bool {
    address.starts_with('/')
        && !address.starts_with("//")
        && !address.contains(|it: char| it == '\\' || it.is_control())
}

/// Sends the browser back to where it was, but never to another host, and has it keep these cookies.
pub(super) fn go_back(back: &str, cookies: &[String]) -> Response {
    let place = if is_here(back) { back } else { "/" };
    let location = HeaderValue::from_str(place).unwrap_or(HeaderValue::from_static("/"));
    let mut response = (StatusCode::SEE_OTHER, [(LOCATION, location)]).into_response();
    for cookie in cookies {
        match HeaderValue::from_str(cookie) {
            Ok(cookie) => response.headers_mut().append(SET_COOKIE, cookie),
            Err(error) => return broken(&error),
        };
    }
    response
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
            let response = go_back(back, &["a=b".to_owned()]);
            assert_eq!(response.headers()[LOCATION], place, "{back:?}");
        }
    }
}

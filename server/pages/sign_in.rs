//! Signing in and out: the form for a token, which goes into a cookie that scripts cannot read.
//!
//! Limit: a browser keeps it for [`LASTS_DAYS`], unless it is rotated. It goes with links of other sites, so that one in
//! a message opens its page, and with nothing that they send: no GET changes anything, the API takes JSON alone, and
//! the forms of pages ask [`same_origin`] besides.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Form, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;

use super::asked::Query;
use super::frame::{self, Frame};
use super::problem;
use crate::auth::{AuthError, Grant, Role};
use crate::web::signed::Signed;
use crate::web::{SECURE_TOKEN_COOKIE, TOKEN_COOKIE, Web, same_origin};
use crate::words::text;

/// How long a browser keeps the token: a screen on a wall that starts anew does not ask for it.
const LASTS_DAYS: u32 = 30;

/// Where the form is.
const PATH: &str = "/sign-in";

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage {
    frame: Frame,
    /// Why it is asked for, and as whom the reader is here.
    sentences: Vec<String>,
    /// Where the form leads, on this server.
    back: String,
    days: u32,
}

/// What the address may ask for.
#[derive(Debug, Default, Deserialize)]
pub struct Asked {
    /// Where to go from there.
    #[serde(default)]
    back: String,
}

/// What the form sends.
#[derive(Deserialize)]
pub struct Sent {
    token: String,
    #[serde(default)]
    back: String,
}

/// The button that signs out.
#[derive(Debug, Deserialize)]
pub struct Leaves {
    #[serde(default)]
    back: String,
}

/// The address of the form that leads back to this one.
pub fn address(back: &str) -> String {
    match is_form(back) {
        true => back.to_owned(),
        false => format!("{PATH}?back={}", text::segment(own(back))),
    }
}

/// Whether an address is that of the form.
pub fn is_form(address: &str) -> bool {
    address.split('?').next() == Some(PATH)
}

/// An address where it is one of this server, else that of the first page.
fn own(address: &str) -> &str {
    if problem::is_here(address) {
        address
    } else {
        "/"
    }
}

/// 401, of a page that asks for a token.
pub fn needed(web: &Web, request: &Request, error: &AuthError) -> Response {
    let here = request.uri().path_and_query().map_or("/", |it| it.as_str());
    // What was sent is not sent again by a link.
    let here = if request.method().is_safe() {
        here
    } else {
        "/"
    };
    let frame = Frame::of(web, request.headers(), here, Grant::default());
    let why = format!(
        "This server shows its pages to holders of a token with role read or operate: {error}."
    );
    let is_shown = matches!(frame.signed, Signed::Shown(_));
    let hidden = is_shown.then(|| standing(frame.signed));
    let sentences = std::iter::once(why).chain(hidden).collect();
    page(StatusCode::UNAUTHORIZED, frame, sentences, here)
}

/// `GET /sign-in`: the form, also for who is signed in with another token.
pub async fn show(Query(asked): Query<Asked>, frame: Frame) -> Response {
    let sentences = vec![standing(frame.signed)];
    page(StatusCode::OK, frame, sentences, &asked.back)
}

/// `POST /sign-in`: puts a good token into the cookie.
pub async fn take(
    State(web): State<Arc<Web>>,
    headers: HeaderMap,
    Form(sent): Form<Sent>,
) -> Response {
    let token = sent.token.trim();
    let fits = token
        .bytes()
        .all(|it| it.is_ascii_graphic() && it != b';' && it != b',');
    let shown = format!("Bearer {token}");
    let access = &web.app.access;
    let is_known = [Role::Read, Role::Operate]
        .into_iter()
        .any(|role| access.guards(role) && access.check(role, Some(shown.as_bytes())).is_ok());
    if !fits || !is_known {
        let frame = Frame::of(&web, &headers, &address(&sent.back), Grant::default());
        let sentences = vec![
            "This token is not known here, or does not allow reading.".to_owned(),
            standing(frame.signed),
        ];
        return page(StatusCode::UNAUTHORIZED, frame, sentences, &sent.back);
    }
    let has_tls = !web.app.config.auth.tls_certificate_file.is_empty();
    let name = match has_tls || same_origin::is_over_tls(&headers) {
        true => SECURE_TOKEN_COOKIE,
        false => TOKEN_COOKIE,
    };
    problem::go_back(&sent.back, &[cookie(name, token, LASTS_DAYS * 86_400)])
}

/// `POST /sign-out`: takes the cookie away, by either name, and shows the form.
pub async fn leave(
    State(web): State<Arc<Web>>,
    headers: HeaderMap,
    Form(sent): Form<Leaves>,
) -> Response {
    let back = own(&sent.back);
    if !same_origin::is_own(&headers) {
        let frame = Frame::of(&web, &headers, back, Grant::default());
        let why = "This form was not sent by a page of this server.".to_owned();
        return problem::refused(
            frame,
            StatusCode::FORBIDDEN,
            "Nothing was changed",
            why,
            back,
        );
    }
    let gone = [SECURE_TOKEN_COOKIE, TOKEN_COOKIE].map(|it| cookie(it, "", 0));
    problem::go_back(&address(back), &gone)
}

fn page(status: StatusCode, frame: Frame, sentences: Vec<String>, back: &str) -> Response {
    let page = SignInPage {
        frame,
        sentences,
        back: own(back).to_owned(),
        days: LASTS_DAYS,
    };
    frame::page(status, &page)
}

/// As whom the reader is here, and what another token would change.
fn standing(signed: Signed) -> String {
    match signed {
        Signed::Open => "Nobody signs in here: the server has no token files (auth.tokens), so whoever reaches it may look and operate.".to_owned(),
        Signed::Closed => "Nobody can sign in here: none of the server's token files (auth.tokens) is of role read or operate.".to_owned(),
        Signed::Out => "You are not signed in.".to_owned(),
        Signed::In(role) => format!(
            "You are signed in with a token of role {}. Another one takes its place.",
            role.name()
        ),
        Signed::Shown(role) => {
            let which = match role {
                Some(role) => format!("a token of role {}", role.name()),
                None => "a token that is not good here".to_owned(),
            };
            format!(
                "Your requests come with {which} in their Authorization header, where a proxy may have put it: that counts, and none that is signed in."
            )
        }
    }
}

/// The cookie of this name that holds a token for so many seconds; with 0 the browser forgets it. That of a form that came
/// over TLS goes over nothing else.
fn cookie(name: &str, token: &str, lasts_s: u32) -> String {
    let secure = match name == SECURE_TOKEN_COOKIE {
        true => "; Secure",
        false => "",
    };
    format!("{name}={token}; Path=/; Max-Age={lasts_s}; HttpOnly; SameSite=Lax{secure}")
}

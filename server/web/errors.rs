//! What a request that went wrong is answered with, whoever refused it: problem+json under the API, a page elsewhere.
//!
//! Handlers find their own words. What comes from none of them has no words, or those of a library: a time limit, a
//! body that is too long, a method that an address does not take, a handler that broke. They get them here.

use std::any::Any;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::{Web, longest_body};
use crate::api::problem::Problem;
use crate::pages;

/// Why an answer has no body, said by whoever gave the request up.
#[derive(Clone)]
pub struct Why(pub String);

/// Gives every error that has no words of ours words.
pub async fn with_words(State(web): State<Arc<Web>>, request: Request, next: Next) -> Response {
    let (method, headers) = (request.method().clone(), request.headers().clone());
    let here = request.uri().path_and_query();
    let here = here.map_or_else(|| "/".to_owned(), |it| it.as_str().to_owned());
    let response = next.run(request).await;
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    if !is_error || has_words(&response, &here) {
        return response;
    }
    let most = longest_body(&method, here.split('?').next().unwrap_or_default());
    let why = why(&response, &method, most);
    let mut told = if here.starts_with("/api/") {
        Problem::new(status, why).into_response()
    } else {
        pages::problem::without_words(&web, (&method, &headers), &here, status, why)
    };
    // Which methods are taken, and when to come again, holds whatever the words.
    let mut carried = response.headers().clone();
    carried.remove(CONTENT_TYPE);
    carried.remove(CONTENT_LENGTH);
    told.headers_mut().extend(carried);
    told
}

/// Whether an error says what is wrong in the form in which whoever asked for this address reads it. Assets and /metrics are
/// read by programs that take text.
fn has_words(response: &Response, here: &str) -> bool {
    let kind = response.headers().get(CONTENT_TYPE);
    let kind = kind.and_then(|it| it.to_str().ok()).unwrap_or_default();
    let is_json = kind.starts_with("application/problem+json") || kind == "application/json";
    match here.starts_with("/api/") {
        true => is_json,
        false => {
            let is_of_programs = here.starts_with("/assets/") || here.starts_with("/metrics");
            is_json || kind.starts_with("text/html") || (is_of_programs && !kind.is_empty())
        }
    }
}

/// What is said of a body of more than so many bytes.
pub fn too_long(most: usize) -> String {
    format!("what was sent is too long: a request has at most {most} bytes here")
}

fn why(response: &Response, method: &Method, most: usize) -> String {
    if let Some(Why(why)) = response.extensions().get() {
        return why.clone();
    }
    match response.status() {
        StatusCode::METHOD_NOT_ALLOWED => {
            let taken = response.headers().get(ALLOW);
            let taken = taken
                .and_then(|it| it.to_str().ok())
                .unwrap_or("another method");
            format!("this address does not take {method}; it takes {taken}")
        }
        StatusCode::PAYLOAD_TOO_LARGE => too_long(most),
        StatusCode::UNSUPPORTED_MEDIA_TYPE | StatusCode::UNPROCESSABLE_ENTITY => {
            "what was sent is not what this address takes".to_owned()
        }
        _ => "this request was not answered; the server's log may say why".to_owned(),
    }
}

/// What a panicking handler answers. The reader gets constant words, the log gets the truth.
pub fn on_panic(panic: Box<dyn Any + Send + 'static>) -> Response<Body> {
    let said = panic
        .downcast_ref::<&str>()
        .map(|it| (*it).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default();
    tracing::error!(panic = %said, "a handler of the web port panicked");
    let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
    let why = "something broke on the server; its log says what".to_owned();
    response.extensions_mut().insert(Why(why));
    response
}

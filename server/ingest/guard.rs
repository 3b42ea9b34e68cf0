//! What stands before both protocols: rights, whether this server leads, size, the reading of the body, how many at once, how
//! long.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE};

use super::MAX_COMPRESSED_BYTES;
use super::accept::Ingest;
use super::http::refuse_http;
use super::refuse::{Kind, Refused};
use crate::auth::{AuthError, Role};
use crate::refusals::{self, Door};

/// How a refusal is to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Grpc,
    Http,
}

/// What tonic says of a message that is too large: OUT_OF_RANGE as it comes, RESOURCE_EXHAUSTED with
/// these words once it is decompressed. OTLP's senders expect the latter, and people what to do.
const GRPC_OUT_OF_RANGE: &str = "11";
const GRPC_RESOURCE_EXHAUSTED: &str = "8";
const DECOMPRESSING: &[u8] = b"Error%20decompressing";

#[derive(Clone)]
struct Guard {
    ingest: Ingest,
    protocol: Protocol,
    timeout: Duration,
}

/// Puts the guard before every route.
pub(super) fn guarded(routes: Router, ingest: &Ingest, protocol: Protocol) -> Router {
    let config = &ingest.app.config.ingest;
    let guard = Guard {
        ingest: ingest.clone(),
        protocol,
        timeout: Duration::from_millis(config.request_timeout_ms),
    };
    let door = match protocol {
        Protocol::Grpc => Door::Grpc,
        Protocol::Http => Door::Http,
    };
    let watched = (ingest.app.clone(), door);
    routes
        .layer(from_fn_with_state(guard, pass))
        .layer(from_fn_with_state(watched, refusals::watch))
}

async fn pass(State(guard): State<Guard>, mut request: Request, next: Next) -> Response {
    let is_json = super::body::is_json(request.headers().get(CONTENT_TYPE));
    let refuse = |refused: &Refused| match guard.protocol {
        Protocol::Grpc => refused.status().into_http::<Body>(),
        Protocol::Http => refuse_http(refused, is_json),
    };
    let authorization = request.headers().get(AUTHORIZATION);
    let authorization = authorization.map(http::HeaderValue::as_bytes);
    match guard.ingest.app.access.check(Role::Ingest, authorization) {
        Ok(grant) => request.extensions_mut().insert(grant),
        Err(error) => {
            let kind = match error {
                AuthError::Missing(_) => Kind::Unauthenticated,
                _ => Kind::Forbidden,
            };
            return refuse(&Refused::new(kind, error.to_string()));
        }
    };
    if let Some(why) = guard.ingest.app.lead.waits() {
        return refuse(&Refused::new(Kind::Unavailable, why));
    }
    let length = request.headers().get(CONTENT_LENGTH);
    let length: usize = length
        .and_then(|it| it.to_str().ok()?.parse().ok())
        .unwrap_or(0);
    if length > MAX_COMPRESSED_BYTES {
        return refuse(&super::body::too_large(length));
    }
    let room = &guard.ingest.room;
    let work = async {
        let (parts, body) = request.into_parts();
        let held = room.read(body).await?;
        let request = Request::from_parts(parts, Body::from(held.bytes.clone()));
        Ok(room.work(next.run(request)).await)
    };
    match tokio::time::timeout(guard.timeout, work).await {
        Ok(Err(refused)) => refuse(&refused),
        Ok(Ok(response)) if is_too_large(&response) => refuse(&super::body::too_large_inside()),
        Ok(Ok(response)) => response,
        Err(_) => refuse(&Refused::new(
            Kind::TooSlow,
            format!(
                "the request took longer than {} ms (ingest.request_timeout_ms)",
                guard.timeout.as_millis()
            ),
        )),
    }
    .into_response()
}

/// Whether tonic refused it for its size, in words without a way out.
fn is_too_large(response: &Response) -> bool {
    let header = |name| {
        response
            .headers()
            .get(name)
            .map(http::HeaderValue::as_bytes)
    };
    let status = header("grpc-status");
    let said = header("grpc-message").unwrap_or_default();
    status == Some(GRPC_OUT_OF_RANGE.as_bytes())
        || status == Some(GRPC_RESOURCE_EXHAUSTED.as_bytes()) && said.starts_with(DECOMPRESSING)
}

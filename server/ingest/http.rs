//! OTLP over HTTP.

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use axum::{Extension, Router};
use gpufleet_telemetry::otlp::Encoding;
use gpufleet_telemetry::wire::Stream;
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use prost::Message;

use super::accept::{Accepted, Ingest, Request};
use super::refuse::{Kind, Refused};
use super::{body, guard, reply};
use crate::auth::Grant;

const PROTOBUF: &str = "application/x-protobuf";
const JSON: &str = "application/json";

pub(super) fn router(ingest: &Ingest) -> Router {
    let mut routes = Router::new().route("/v1/traces", any(traces));
    for (path, stream) in [("/v1/metrics", Stream::Metrics), ("/v1/logs", Stream::Logs)] {
        let take = move |State(ingest): State<Ingest>,
                         Extension(grant): Extension<Grant>,
                         headers: HeaderMap,
                         sent: Bytes| async move {
            let is_json = body::is_json(headers.get(CONTENT_TYPE));
            match take(&ingest, grant, &headers, stream, &sent).await {
                Ok(accepted) => answer(&accepted, stream, is_json),
                Err(refused) => refuse_http(&refused, is_json),
            }
        };
        routes = routes.route(path, post(take));
    }
    // The guard has read the body, within its own cap.
    let routes = routes.layer(DefaultBodyLimit::disable());
    guard::guarded(
        routes.with_state(ingest.clone()),
        ingest,
        guard::Protocol::Http,
    )
}

async fn take(
    ingest: &Ingest,
    grant: Grant,
    headers: &HeaderMap,
    stream: Stream,
    sent: &[u8],
) -> Result<Accepted, Refused> {
    let request = {
        let (encoding, plain) = body::plain(headers, sent)?;
        Request::parse(stream, encoding, &plain)?
    };
    ingest.accept(headers, grant, request).await
}

fn answer(accepted: &Accepted, stream: Stream, is_json: bool) -> Response {
    let (encoding, content_type) = if is_json {
        (Encoding::Json, JSON)
    } else {
        (Encoding::Protobuf, PROTOBUF)
    };
    let body = reply::encode(accepted, stream, encoding);
    let headers = accepted.headers.clone();
    (headers, [(CONTENT_TYPE, content_type)], body).into_response()
}

async fn traces() -> Response {
    let text = "this server keeps metrics and events, not traces: send traces elsewhere";
    (StatusCode::NOT_FOUND, text).into_response()
}

/// A refusal as OTLP/HTTP wants it: a google.rpc.Status in the language of the request.
pub(super) fn refuse_http(refused: &Refused, is_json: bool) -> Response {
    let code = refused.kind.grpc() as i32;
    let body = if is_json {
        let json = serde_json::json!({ "code": code, "message": refused.message });
        ([(CONTENT_TYPE, JSON)], json.to_string()).into_response()
    } else {
        let status = tonic_types::Status {
            code,
            message: refused.message.clone(),
            details: Vec::new(),
        };
        ([(CONTENT_TYPE, PROTOBUF)], status.encode_to_vec()).into_response()
    };
    let mut headers = refused.headers();
    if let Some(delay) = refused.retry_after {
        headers.insert(RETRY_AFTER, delay.as_secs().into());
    }
    if refused.kind == Kind::Unauthenticated {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    (refused.kind.http(), headers, body).into_response()
}

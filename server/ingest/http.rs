//! OTLP over HTTP.

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use axum::{Extension, Router};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
};
use prost::Message;
use serde::Serialize;

use super::accept::{Accepted, Ingest, Request};
use super::guard;
use super::refuse::{Kind, Refused};
use super::{MAX_COMPRESSED_BYTES, body};
use crate::auth::Grant;

const PROTOBUF: &str = "application/x-protobuf";
const JSON: &str = "application/json";

pub(super) fn router(ingest: &Ingest) -> Router {
    let routes = Router::new()
        .route("/v1/metrics", post(metrics))
        .route("/v1/logs", post(logs))
        .route("/v1/traces", any(traces))
        .layer(DefaultBodyLimit::max(MAX_COMPRESSED_BYTES))
        .with_state(ingest.clone());
    guard::guarded(routes, ingest, guard::Protocol::Http)
}

async fn metrics(
    State(ingest): State<Ingest>,
    Extension(grant): Extension<Grant>,
    headers: HeaderMap,
    sent: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Response {
    let request = whole(sent).and_then(|sent| body::read(&headers, &sent));
    let is_json = body::is_json(headers.get(CONTENT_TYPE));
    let accepted = match request {
        Ok(request) => {
            ingest
                .accept(&headers, grant, Request::Metrics(request))
                .await
        }
        Err(refused) => Err(refused),
    };
    answer(accepted, is_json, |accepted| ExportMetricsServiceResponse {
        partial_success: is_partial(accepted).then(|| ExportMetricsPartialSuccess {
            rejected_data_points: accepted.rejected,
            error_message: accepted.message.clone(),
        }),
    })
}

async fn logs(
    State(ingest): State<Ingest>,
    Extension(grant): Extension<Grant>,
    headers: HeaderMap,
    sent: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Response {
    let request = whole(sent).and_then(|sent| body::read(&headers, &sent));
    let is_json = body::is_json(headers.get(CONTENT_TYPE));
    let accepted = match request {
        Ok(request) => ingest.accept(&headers, grant, Request::Logs(request)).await,
        Err(refused) => Err(refused),
    };
    answer(accepted, is_json, |accepted| ExportLogsServiceResponse {
        partial_success: is_partial(accepted).then(|| ExportLogsPartialSuccess {
            rejected_log_records: accepted.rejected,
            error_message: accepted.message.clone(),
        }),
    })
}

async fn traces() -> Response {
    let text = "this server keeps metrics and events, not traces: send traces elsewhere";
    (StatusCode::NOT_FOUND, text).into_response()
}

/// The body, unless it broke off or was over the cap.
fn whole(sent: Result<Bytes, axum::extract::rejection::BytesRejection>) -> Result<Bytes, Refused> {
    sent.map_err(|error| match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => body::too_large(MAX_COMPRESSED_BYTES + 1),
        _ => Refused::new(Kind::Invalid, format!("the body broke off: {error}")),
    })
}

fn is_partial(accepted: &Accepted) -> bool {
    accepted.rejected > 0 || !accepted.message.is_empty()
}

fn answer<T: Message + Serialize>(
    accepted: Result<Accepted, Refused>,
    is_json: bool,
    body: impl FnOnce(&Accepted) -> T,
) -> Response {
    match accepted {
        Ok(accepted) => {
            let body = body(&accepted);
            (accepted.headers, encoded(&body, is_json)).into_response()
        }
        Err(refused) => refuse_http(&refused, is_json),
    }
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

fn encoded<T: Message + Serialize>(body: &T, is_json: bool) -> Response {
    if is_json {
        let json = serde_json::to_vec(body).expect("an OTLP reply is plain data");
        ([(CONTENT_TYPE, JSON)], json).into_response()
    } else {
        ([(CONTENT_TYPE, PROTOBUF)], body.encode_to_vec()).into_response()
    }
}

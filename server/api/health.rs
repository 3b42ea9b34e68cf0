//! `/health`: whether this server can do its work, for load balancers and people. Needs no token,
//! so it says what, not whose.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::health as judge;
use crate::web::Web;
use crate::words::text;

/// Whether the server can do its work.
#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// `ok`, or `failing` when a check fails.
    pub status: &'static str,
    /// The server's version.
    pub version: &'static str,
    /// The server's time.
    #[schema(format = DateTime)]
    pub at: String,
    /// What was looked at.
    pub checks: Vec<Check>,
    /// What does not stop the server and is to be mended: its clock, its limits, detectors that stand.
    pub warnings: Vec<String>,
}

/// One thing that was looked at.
#[derive(Debug, Serialize, ToSchema)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// Whether it is well.
    pub ok: bool,
    /// What is wrong; none when it is well.
    pub why: Option<String>,
}

/// 200 when the server can do its work, 503 with what is wrong when not.
#[utoipa::path(get, path = "/api/v1/health", tag = "Server", security(()),
    responses((status = 200, body = Health), (status = 400, body = super::problem::Problem, content_type = "application/problem+json"), (status = 503, body = Health)))]
pub async fn health(State(web): State<Arc<Web>>) -> Response {
    let app = &web.app;
    let checks = [
        ("lead", app.lead.waits()),
        ("store", judge::store(app).await),
        ("commits", judge::commits(app)),
    ];
    let checks = checks.map(|(name, why)| Check {
        name,
        ok: why.is_none(),
        why,
    });
    let checks = Vec::from(checks);
    let is_ok = checks.iter().all(|check| check.ok);
    let health = Health {
        status: if is_ok { "ok" } else { "failing" },
        version: env!("CARGO_PKG_VERSION"),
        at: text::rfc3339(web.app.clock.now()),
        checks,
        warnings: judge::warnings(app),
    };
    let status = if is_ok {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(health)).into_response()
}

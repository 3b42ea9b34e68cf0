//! `/health`: whether this server can do its work, for load balancers and people. Needs no token,
//! so it says what, not whose.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::files;
use crate::pages::text;
use crate::web::Web;

/// How long the store may take to say that it is there.
const STORE_WITHIN: Duration = Duration::from_secs(2);

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
    /// What will become a problem when the fleet grows.
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
    pub why: Option<&'static str>,
}

/// 200 when the server can do its work, 503 with what is wrong when not.
#[utoipa::path(get, path = "/api/v1/health", tag = "Server", security(()),
    responses((status = 200, body = Health), (status = 503, body = Health)))]
pub async fn health(State(web): State<Arc<Web>>) -> Response {
    let answered = tokio::time::timeout(STORE_WITHIN, web.app.store.check()).await;
    let why = match answered {
        Ok(Ok(())) => None,
        Ok(Err(error)) => {
            tracing::warn!(%error, "health: the store does not answer");
            Some("the database refuses; the server's log says why")
        }
        Err(_) => Some("the database did not answer within 2 s"),
    };
    let checks = vec![Check {
        name: "store",
        ok: why.is_none(),
        why,
    }];
    let is_ok = checks.iter().all(|check| check.ok);
    let health = Health {
        status: if is_ok { "ok" } else { "failing" },
        version: env!("CARGO_PKG_VERSION"),
        at: text::rfc3339(web.app.clock.now()),
        checks,
        warnings: files::warning().into_iter().collect(),
    };
    let status = if is_ok {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(health)).into_response()
}

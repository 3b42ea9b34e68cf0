//! `/reports/…`: a month of the ledger as money, in every form.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use clap::ValueEnum as _;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use utoipa::IntoParams;

use super::problem::{Asked, Problem};
use crate::auth::Grant;
use crate::money::report::{self, Basis, Form, What};
use crate::web::Web;

/// What the browser may do with a report, which brings its style with it, so that it can be sent by mail: show it.
const OF_A_REPORT: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox";

/// Most KiB of reports that are on their way: a FOCUS file of 10,000 GPUs is 455 MB, and whoever is slow to take it keeps
/// it here.
const ROOM_KIB: u32 = 1 << 20;

/// Room for reports that are on their way to who asked for them.
#[derive(Debug, Clone)]
pub struct Room {
    kib: Arc<Semaphore>,
    most: u32,
}

/// A report, and the room that it takes until the last byte of it is gone.
struct Held {
    text: String,
    _room: OwnedSemaphorePermit,
}

/// Which month, of what, in which form.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReportAsked {
    /// The month, `2026-10`. Without it: the one that runs, to the end of today.
    pub month: Option<String>,
    /// What lines are grouped by, with commas between: team, namespace, job, model, project, pool, gpu.
    #[param(default = "team")]
    pub by: Option<String>,
    /// Of one cluster, also of one that is simulated. Without it: of all live ones.
    pub cluster: Option<String>,
    /// `json`, `csv`, `html` or, of the chargeback, `focus`.
    #[param(default = "json")]
    pub format: Option<String>,
    /// In which version of FOCUS, of `focus` alone: `1.2` or `1.3`.
    #[param(default = "1.2")]
    pub focus_version: Option<String>,
    /// At which price a GPU counts: `fully-loaded`, its part of its machine's, or, of the chargeback but for `focus`,
    /// `gpu-only`, its own. Both stand in every report (`cost`, `gpu_only_cost`); by `gpu-only` its own is also the `cost`.
    #[param(default = "fully-loaded")]
    pub basis: Option<String>,
}

/// Who owes what for a month: the lines add up to the node-hours' price exactly.
#[utoipa::path(get, path = "/api/v1/reports/chargeback", tag = "Money", params(ReportAsked),
    responses((status = 200, description = "The report, in the form that was asked for", content_type = "application/json", body = serde_json::Value), (status = 400, body = Problem, content_type = "application/problem+json"), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn chargeback(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Asked(asked): Asked<ReportAsked>,
) -> Result<Response, Problem> {
    answer(&web, &grant, What::Chargeback, asked).await
}

/// What the time of a month was worth: use and waste by team, cost of a useful GPU-hour.
#[utoipa::path(get, path = "/api/v1/reports/efficiency", tag = "Money", params(ReportAsked),
    responses((status = 200, description = "The report, in the form that was asked for", content_type = "application/json", body = serde_json::Value), (status = 400, body = Problem, content_type = "application/problem+json"), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn efficiency(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Asked(asked): Asked<ReportAsked>,
) -> Result<Response, Problem> {
    answer(&web, &grant, What::Efficiency, asked).await
}

async fn answer(
    web: &Web,
    grant: &Grant,
    what: What,
    asked: ReportAsked,
) -> Result<Response, Problem> {
    let now = web.app.clock.now();
    let format = asked.format.as_deref().unwrap_or("json");
    let form = Form::from_str(format, false).map_err(|_| {
        let said: String = format.chars().take(40).collect();
        Problem::bad(format!(
            "`{said}` is no format: json, csv, html and focus are"
        ))
    })?;
    let cluster = Problem::of_cluster(grant, asked.cluster.as_deref())?;
    let cluster = cluster.map(|it| it.to_string());
    let month = asked.month.unwrap_or_else(|| report::month_of(now));
    let by = asked.by.as_deref().unwrap_or("team");
    let basis = asked.basis.as_deref().unwrap_or("fully-loaded");
    let basis = Basis::from_str(basis, false).map_err(|_| {
        let said: String = basis.chars().take(40).collect();
        Problem::bad(format!(
            "`{said}` is no price of GPUs: fully-loaded and gpu-only are"
        ))
    })?;
    let version = asked.focus_version;
    let asked = report::Asked::new(what, form, &month, by, cluster, now);
    let asked = asked.and_then(|it| it.at(basis));
    let asked = asked.and_then(|it| it.version(version.as_deref()));
    let asked = asked.map_err(Problem::bad)?;
    // One is made at a time, also of those that nobody waits for any more: a month of a large fleet is large.
    let permit = Arc::clone(&web.reports).acquire_owned().await;
    let terms = web.app.money.terms();
    let days = report::read(&web.app.store, &web.specs, &asked).await;
    let days = days.map_err(|error| Problem::store(&error))?;
    let name = asked.file_name();
    let rendered = tokio::task::spawn_blocking(move || {
        let text = report::render(&asked, &days, &terms, None, now);
        drop(days);
        drop(permit);
        text
    });
    let text = rendered.await.map_err(|error| {
        tracing::error!(%error, "a report failed");
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the report failed; the server's log says why",
        )
    })?;
    let text = web.sent_reports.keep(text)?;
    let mut response = Body::from(text).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(form.media_type()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // What is for people opens in their browser, and has a name when they keep it.
    let way = match form {
        Form::Html => {
            let policy = HeaderValue::from_static(OF_A_REPORT);
            headers.insert(CONTENT_SECURITY_POLICY, policy);
            "inline"
        }
        _ => "attachment",
    };
    if form != Form::Json {
        let named = format!("{way}; filename=\"{name}\"");
        let named = HeaderValue::from_str(&named).expect("a month and an ending are ASCII");
        headers.insert(CONTENT_DISPOSITION, named);
    }
    Ok(response)
}

impl Default for Room {
    fn default() -> Self {
        Self::of(ROOM_KIB)
    }
}

impl Room {
    fn of(kib: u32) -> Self {
        let most = kib as usize;
        Self {
            kib: Arc::new(Semaphore::new(most)),
            most: kib,
        }
    }

    /// The bytes of a report, which take their room until they are sent or given up. One that is larger than all the
    /// room takes all of it.
    fn keep(&self, text: String) -> Result<Bytes, Problem> {
        let kib = u32::try_from(text.len() / 1024 + 1).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.kib).try_acquire_many_owned(kib.min(self.most));
        let room = room.map_err(|_| {
            let mib = self.most / 1024;
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!(
                    "reports that others are downloading fill the {mib} MiB for them: try again"
                ),
            )
        })?;
        Ok(Bytes::from_owner(Held { text, _room: room }))
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_that_are_on_their_way_take_room_until_their_last_byte_is_gone() {
        let room = Room::of(4);
        let text = |kib: usize| "x".repeat(kib * 1024 - 1);
        let mut first = room.keep(text(3)).expect("there is room");
        let second = room.keep(text(1)).expect("there is room for a small one");
        let refused = room.keep(text(1)).expect_err("there is none");
        let refused = refused.into_response();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        // All but a byte of it is sent.
        let last = first.split_off(first.len() - 1);
        drop(first);
        assert!(room.keep(text(1)).is_err());
        drop(last);
        room.keep(text(3)).expect("there is room again");
        drop(second);
        let large = room.keep(text(9)).expect("one may be larger than the room");
        assert_eq!(large.len(), 9 * 1024 - 1);
        assert!(room.keep(String::new()).is_err(), "and is alone then");
    }
}

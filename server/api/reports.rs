//! `/reports/…`: a month of the ledger as money, in every form, also against a bill that is sent with the question.
//!
//! Limits: [`MAX_BILL_BYTES`] a bill, [`BILLS_KIB`] of all that are on their way here, [`ROOM_KIB`] of reports on their way
//! to who asked for them.

use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    HeaderName,
};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use clap::ValueEnum as _;
use gpufleet_analysis::price_book::export::Invoice;
use http_body_util::LengthLimitError;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use utoipa::IntoParams;

use super::problem::{Asked, Problem};
use crate::auth::Grant;
use crate::money::Terms;
use crate::money::report::{self, Basis, Form, Rendered, What, bill, told};
use crate::web::{Web, errors};

/// What the browser may do with a report, which brings its style with it, so that it can be sent by mail: show it.
const OF_A_REPORT: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox";

/// Most KiB of reports that are on their way: a FOCUS file of 10,000 GPUs is 455 MB, and whoever is slow to take it keeps
/// it here.
const ROOM_KIB: u32 = 1 << 20;

/// Where a bill can be sent to.
pub const RECONCILE: &str = "/api/v1/reports/reconcile";

/// Longest bill: some ten thousand rows of a detailed export. What is longer is summed up by what it was for.
pub const MAX_BILL_BYTES: usize = 16 << 20;

/// Most KiB of bills that are on their way here: whoever is slow to send one keeps it here.
const BILLS_KIB: u32 = 64 << 10;

/// What may fill that, and what the room for reports.
const BILLS: &str = "billing exports that others are sending";
const REPORTS: &str = "reports that others are downloading";

/// In what a bill may come. A form of another site's page cannot be sent in either.
const OF_A_BILL: [&str; 2] = ["application/json", "application/x-ndjson"];

/// Room for what is on its way to or from who asks.
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
    /// What lines are grouped by, with commas between: team, cluster, namespace, job, model, project, pool, gpu.
    #[param(default = "team")]
    pub by: Option<String>,
    /// Of one cluster, also of one that is simulated. Without it: of all live ones.
    pub cluster: Option<String>,
    /// `json`, `csv`, `html` or, of the chargeback, `focus`. What is missing in the report stands in it as `json` and `html`;
    /// beside `csv` and `focus` the header `gpufleet-findings` says it, `{"count": 3, "said": ["…"]}`.
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

/// Which month, in which form.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReconcileAsked {
    /// The month, `2026-10`. Without it: the one that runs, to the end of today.
    pub month: Option<String>,
    /// Of one cluster, also of one that is simulated. Without it: of all live ones.
    pub cluster: Option<String>,
    /// `json`, `csv` or `html`. What is missing stands in it as `json` and `html`; beside `csv` the header `gpufleet-findings`
    /// says it, `{"count": 3, "said": ["…"]}`.
    #[param(default = "json")]
    pub format: Option<String>,
}

/// Who owes what for a month: the lines add up to the node-hours' price exactly.
#[utoipa::path(get, path = "/api/v1/reports/chargeback", tag = "Money", params(ReportAsked),
    responses((status = 200, description = "The report, in the form that was asked for", content_type = "application/json", body = serde_json::Value), (status = 400, body = Problem, content_type = "application/problem+json"), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn chargeback(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Asked(asked): Asked<ReportAsked>,
) -> Result<Response, Problem> {
    answer(&web, &grant, What::Chargeback, asked, None).await
}

/// What the time of a month was worth: use and waste by team, cost of a useful GPU-hour.
#[utoipa::path(get, path = "/api/v1/reports/efficiency", tag = "Money", params(ReportAsked),
    responses((status = 200, description = "The report, in the form that was asked for", content_type = "application/json", body = serde_json::Value), (status = 400, body = Problem, content_type = "application/problem+json"), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn efficiency(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Asked(asked): Asked<ReportAsked>,
) -> Result<Response, Problem> {
    answer(&web, &grant, What::Efficiency, asked, None).await
}

/// Whether a month adds up: what everybody is charged, against the price of all node-hours and unused commitments. Send the
/// provider's bill with POST to hold it against that as well.
#[utoipa::path(get, path = "/api/v1/reports/reconcile", tag = "Money", params(ReconcileAsked),
    responses((status = 200, description = "The figures, in the form that was asked for", content_type = "application/json", body = serde_json::Value), (status = 400, body = Problem, content_type = "application/problem+json"), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn reconcile(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Asked(asked): Asked<ReconcileAsked>,
) -> Result<Response, Problem> {
    answer(&web, &grant, What::Reconcile, asked.into(), None).await
}

/// The same against the provider's bill: the invoice and its residual, what of it is named and what is left. The body has the
/// rows of the billing export, as one array or, as BigQuery extracts them, one row a line (`application/x-ndjson`), at most
/// 16 MiB of them. It is read for this answer and not kept. Role `read` suffices.
#[utoipa::path(post, path = "/api/v1/reports/reconcile", tag = "Money", params(ReconcileAsked), request_body(content = Vec<serde_json::Value>, content_type = "application/json"),
    responses((status = 200, description = "The figures, in the form that was asked for", content_type = "application/json", body = serde_json::Value), (status = 400, body = Problem, content_type = "application/problem+json"), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn reconcile_bill(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Asked(asked): Asked<ReconcileAsked>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let says = |name: HeaderName| parts.headers.get(name)?.to_str().ok();
    let kind = says(CONTENT_TYPE).unwrap_or_default();
    if !OF_A_BILL.iter().any(|it| kind.starts_with(it)) {
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "a billing export is sent as application/json or application/x-ndjson",
        ));
    }
    let length = says(CONTENT_LENGTH).and_then(|it| it.parse().ok());
    let length = length.unwrap_or(MAX_BILL_BYTES);
    let room = web.sent_bills.take(length, BILLS)?;
    let bill = to_bytes(body, MAX_BILL_BYTES).await;
    let bill = Bill {
        rows: bill.map_err(|error| unread(&error))?,
        _room: room,
    };
    answer(&web, &grant, What::Reconcile, asked.into(), Some(bill)).await
}

/// A billing export, and the room that it takes.
struct Bill {
    rows: Bytes,
    _room: OwnedSemaphorePermit,
}

/// Why a bill did not come.
fn unread(error: &axum::Error) -> Problem {
    let error: &(dyn std::error::Error + 'static) = error;
    let mut causes = std::iter::successors(Some(error), |it| it.source());
    match causes.any(|it| it.is::<LengthLimitError>()) {
        true => Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            errors::too_long(MAX_BILL_BYTES),
        ),
        false => Problem::bad("what was sent broke off"),
    }
}

impl Bill {
    /// Its rows of the invoice of a month. Takes a second of CPU: not for a thread that serves.
    fn invoice(&self, month: &str, terms: &Terms) -> Result<Invoice, Problem> {
        let rows = std::str::from_utf8(&self.rows);
        let rows = rows.map_err(|_| Problem::bad("what was sent is no text in UTF-8"))?;
        bill::invoice_of(rows, month, &terms.book.currency).map_err(Problem::bad)
    }
}

impl From<ReconcileAsked> for ReportAsked {
    fn from(asked: ReconcileAsked) -> Self {
        Self {
            month: asked.month,
            cluster: asked.cluster,
            format: asked.format,
            ..Self::default()
        }
    }
}

async fn answer(
    web: &Web,
    grant: &Grant,
    what: What,
    asked: ReportAsked,
    bill: Option<Bill>,
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
    // Before the month is read: a bill without a row of it is refused at once.
    let (permit, invoice) = match bill {
        Some(bill) => {
            let terms = Arc::clone(&terms);
            // It goes on where nobody waits for it any more, and keeps the next from beginning beside it.
            let read = tokio::task::spawn_blocking(move || {
                let invoice = bill.invoice(&month, &terms);
                (permit, invoice)
            });
            let (permit, invoice) = read.await.map_err(|error| failed(&error))?;
            (permit, Some(invoice?))
        }
        None => (permit, None),
    };
    let days = report::read(&web.app.store, &web.specs, &asked).await;
    let days = days.map_err(|error| Problem::store(&error))?;
    let name = asked.file_name();
    let rendered = tokio::task::spawn_blocking(move || {
        let rendered = report::render(&asked, &days, &terms, invoice.as_ref(), now);
        drop(days);
        drop(permit);
        rendered
    });
    let Rendered { text, told } = rendered.await.map_err(|error| failed(&error))?;
    let text = web.sent_reports.keep(text)?;
    let mut response = Body::from(text).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(form.media_type()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(said) = told::header(&told) {
        let said = HeaderValue::try_from(said).expect("it is ASCII");
        headers.insert(HeaderName::from_static(told::HEADER), said);
    }
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

fn failed(error: &tokio::task::JoinError) -> Problem {
    tracing::error!(%error, "a report failed");
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "the report failed; the server's log says why",
    )
}

impl Room {
    /// For reports that are on their way to who asked for them.
    pub fn of_reports() -> Self {
        Self::of(ROOM_KIB)
    }

    /// For bills that are on their way here.
    pub fn of_bills() -> Self {
        Self::of(BILLS_KIB)
    }

    fn of(kib: u32) -> Self {
        let most = kib as usize;
        Self {
            kib: Arc::new(Semaphore::new(most)),
            most: kib,
        }
    }

    /// Room for so many bytes, all that there is for more than that; where others have it, it is said what of theirs fills it.
    fn take(&self, bytes: usize, others: &str) -> Result<OwnedSemaphorePermit, Problem> {
        let kib = u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.kib).try_acquire_many_owned(kib.min(self.most));
        room.map_err(|_| {
            let mib = self.most / 1024;
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{others} fill the {mib} MiB for them: try again"),
            )
        })
    }

    /// The bytes of a report, which take their room until they are sent or given up.
    fn keep(&self, text: String) -> Result<Bytes, Problem> {
        let room = self.take(text.len(), REPORTS)?;
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

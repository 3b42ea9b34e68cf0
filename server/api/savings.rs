//! `/savings`: who could do with fewer or smaller GPUs, and which nodes could be off at which time of the week.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use gpufleet_analysis::taken::{Kind, Record, Sum};
use gpufleet_telemetry::time::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::problem::Problem;
use crate::auth::Grant;
use crate::money::savings::{self as money, Off, RightSize};
use crate::web::Web;
use crate::words::text;

/// What could be saved.
#[derive(Debug, Serialize, ToSchema)]
pub struct Savings {
    /// When it began to be made. An answer serves for an hour.
    #[schema(format = DateTime)]
    pub at: String,
    /// What money is counted in, as ISO 4217 has it. All money is in its billionths.
    #[schema(example = "USD")]
    pub currency: String,
    /// Holders that could do with fewer or smaller GPUs by the last seven days, the most saving first.
    pub right_size: Vec<RightSizeRow>,
    /// Holders of which nothing is proposed, and why.
    pub not_proposed: Vec<NotProposed>,
    /// Nodes that nobody held at that time of the week in any of the last four weeks, the most saving first.
    pub shutdown: Vec<ShutdownRow>,
    /// What was advised in the last 30 days, by kind.
    pub advised: Vec<AdvisedRow>,
    /// What was taken of it, what saved most first, at most 100.
    pub taken: Vec<TakenRow>,
    /// Why there may have been more; absent where this is all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice_not_kept: Option<String>,
}

/// Advice of a kind.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdvisedRow {
    /// `knob`, `right_size`, `shutdown` or `idle`.
    pub kind: &'static str,
    /// How many were given.
    pub given: usize,
    /// What these were worth a day, of those of which that is known; null where it is of none.
    pub worth_nano_per_day: Option<i64>,
    /// How many of those given have no price, or a gain that nobody knows.
    pub without_price: usize,
    /// How many were taken.
    pub taken: usize,
    /// Of how many of these what was saved could not be measured.
    pub taken_not_measured: usize,
    /// What was saved, measured against before; null where nothing of what was taken was measured.
    pub saved_nano: Option<i64>,
}

/// Advice that was taken.
#[derive(Debug, Serialize, ToSchema)]
pub struct TakenRow {
    /// `knob`, `right_size`, `shutdown` or `idle`.
    pub kind: &'static str,
    /// The cluster.
    pub cluster: String,
    /// `live` or `simulated`.
    pub origin: &'static str,
    /// The job, or the machine type of nodes.
    pub about: String,
    /// A team, `unowned` or `nobody`.
    pub owner: String,
    /// What was to change.
    pub what: String,
    /// How it was.
    pub before: String,
    /// What was proposed.
    pub proposed: String,
    /// When it was first advised.
    #[schema(format = DateTime)]
    pub advised_at: String,
    /// When the change was first seen.
    #[schema(format = DateTime)]
    pub taken_at: Option<String>,
    /// What it saved, measured against before; null where nothing was measured.
    pub saved_nano: Option<i64>,
    /// Why what it saved is not measured, of a time in which it is not.
    pub not_measured: Option<String>,
}

/// A holder that could do with less.
#[derive(Debug, Serialize, ToSchema)]
pub struct RightSizeRow {
    /// Its cluster.
    pub cluster: Arc<str>,
    /// `live` or `simulated`.
    pub origin: &'static str,
    /// Its job.
    pub job: String,
    /// A team, or `unowned`.
    pub owner: String,
    /// How many GPUs it has.
    pub gpus: u32,
    /// Of which card.
    pub card: String,
    /// How many of them were looked at.
    pub gpus_looked_at: usize,
    /// For how many hours at least each.
    pub hours_measured: f64,
    /// How many GPUs would do.
    pub proposed_gpus: u32,
    /// Of which card.
    pub proposed_card: String,
    /// What that saves a day.
    pub saved_nano_per_day: i64,
    /// `low`, `medium` or `high`.
    pub confidence: &'static str,
    /// The most memory in use of any of them, bytes.
    pub memory_peak_bytes: Option<f64>,
    /// Memory in use, 95th percentile, bytes.
    pub memory_p95_bytes: Option<f64>,
    /// How busy tensor cores were, 95th percentile, 0 to 1.
    pub tensor_p95_ratio: Option<f64>,
    /// How busy the memory's bandwidth was, 95th percentile, 0 to 1.
    pub dram_p95_ratio: Option<f64>,
}

/// Holders of which nothing is proposed.
#[derive(Debug, Serialize, ToSchema)]
pub struct NotProposed {
    /// How many.
    pub holders: usize,
    /// Why.
    pub why: String,
}

/// Nodes that could be off.
#[derive(Debug, Serialize, ToSchema)]
pub struct ShutdownRow {
    /// Their cluster.
    pub cluster: String,
    /// `live` or `simulated`.
    pub origin: &'static str,
    /// Their machine type.
    pub machine_type: String,
    /// How many.
    pub nodes: u32,
    /// The first hour of the week, 0 is Monday 00:00 UTC.
    pub from_hour_of_week: usize,
    /// How many hours.
    pub hours: usize,
    /// The same in words.
    pub when: String,
    /// What that saves a week.
    pub saved_nano_per_week: i64,
}

/// What is answered while nothing was worked out yet.
#[derive(Debug, Serialize, ToSchema)]
pub struct NotYet {
    /// Why there is no answer yet, and what to do.
    pub detail: &'static str,
}

/// How long the first answer is waited for: of a small fleet it is there by then.
const FIRST_WITHIN: Duration = Duration::from_secs(2);

/// After how many seconds to ask again.
const ASK_AGAIN_S: &str = "10";

/// What is said meanwhile.
const NOT_YET: NotYet = NotYet {
    detail: "what could be saved is being worked out, which takes longer for a large fleet: ask again",
};

impl IntoResponse for NotYet {
    fn into_response(self) -> Response {
        let again = [(RETRY_AFTER, ASK_AGAIN_S)];
        (StatusCode::ACCEPTED, again, Json(self)).into_response()
    }
}

/// Who could do with fewer or smaller GPUs, and which nodes could be off at which time of the week, as it was last
/// worked out (`at`): once an hour, and while somebody asks. A server that has not worked it out yet says so with 202.
#[utoipa::path(get, path = "/api/v1/savings", tag = "Money",
    responses((status = 200, body = Savings), (status = 202, body = NotYet)))]
pub async fn savings(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
) -> Result<Response, Problem> {
    let now = web.app.clock.now();
    let (app, specs) = (&web.app, &web.specs);
    let made = match app.savings.last(app, specs, &grant, now) {
        Some(made) => made,
        None => {
            let making = app.savings.get(app, specs, &grant, now);
            let Ok(made) = tokio::time::timeout(FIRST_WITHIN, making).await else {
                return Ok(NOT_YET.into_response());
            };
            made.map_err(|error| Problem::store(&error))?
        }
    };
    let mut not_proposed: Vec<NotProposed> = made
        .silent
        .iter()
        .map(|(why, holders)| NotProposed {
            holders: *holders,
            why: why.to_string(),
        })
        .collect();
    for (holders, why) in [
        (
            made.unknown,
            "its card has no price, or its figures are not known",
        ),
        (made.more, "there are so many that it was not looked at"),
    ] {
        not_proposed.extend((holders > 0).then(|| NotProposed {
            holders,
            why: why.to_owned(),
        }));
    }
    let savings = Savings {
        at: text::rfc3339(made.at),
        currency: made.currency.clone(),
        right_size: made.right_size.iter().map(right_size).collect(),
        not_proposed,
        shutdown: made.off.iter().map(shutdown).collect(),
        advised: advised(&made),
        taken: taken(&made),
        advice_not_kept: made.advised.not_kept.clone(),
    };
    Ok(Json(savings).into_response())
}

/// Beyond nine billion an amount stays where it is.
fn nano(amount: i128) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

fn right_size(it: &RightSize) -> RightSizeRow {
    let measured = &it.proposal.measured;
    RightSizeRow {
        cluster: Arc::clone(&it.cluster),
        origin: it.origin.name(),
        job: it.job.clone(),
        owner: it.payer.name().to_owned(),
        gpus: it.gpus,
        card: it.card.clone(),
        gpus_looked_at: it.looked_at,
        hours_measured: measured.hours,
        proposed_gpus: it.proposal.gpus,
        proposed_card: it.proposal.card.clone(),
        saved_nano_per_day: nano(it.proposal.saved_per_day),
        confidence: it.proposal.confidence.name(),
        memory_peak_bytes: measured.memory_peak,
        memory_p95_bytes: measured.memory_p95,
        tensor_p95_ratio: measured.tensor_p95,
        dram_p95_ratio: measured.dram_p95,
    }
}

fn advised(made: &money::Savings) -> Vec<AdvisedRow> {
    let sums = made.advised.by_kind(&made.advised_in).into_iter();
    let of = |(kind, sum): (Kind, Sum)| AdvisedRow {
        kind: kind.name(),
        given: sum.given,
        worth_nano_per_day: sum.worth().map(nano),
        without_price: sum.unpriced,
        taken: sum.taken,
        taken_not_measured: sum.unmeasured,
        saved_nano: sum.saved().map(nano),
    };
    sums.map(of).collect()
}

fn taken(made: &money::Savings) -> Vec<TakenRow> {
    let moment = |at_ms: i64| text::rfc3339(Timestamp::from_millis(at_ms));
    let of = |it: &Record| TakenRow {
        kind: it.advice.kind.name(),
        cluster: it.advice.cluster.clone(),
        origin: it.advice.origin.name(),
        about: it.advice.about.clone(),
        owner: it.advice.payer.clone(),
        what: it.advice.what.clone(),
        before: it.advice.today.clone(),
        proposed: it.advice.proposed.clone(),
        advised_at: moment(it.first_ms),
        taken_at: it.changed_ms.map(moment),
        saved_nano: it.saved_in(&made.advised_in).map(nano),
        not_measured: Some(it.unmeasured.clone()).filter(|it| !it.is_empty()),
    };
    let taken = made.advised.taken(&made.advised_in).into_iter();
    taken.map(of).collect()
}

fn shutdown(it: &Off) -> ShutdownRow {
    ShutdownRow {
        cluster: it.cluster.clone(),
        origin: it.origin.name(),
        machine_type: it.machine_type.clone(),
        nodes: it.window.nodes,
        from_hour_of_week: it.window.from,
        hours: it.window.hours,
        when: it.window.words(),
        saved_nano_per_week: nano(it.window.saved_per_week),
    }
}

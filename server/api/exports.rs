//! `/exports`: the ways on which the record is pushed to others, how each goes, and what Cloud Monitoring asks for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Json;
use axum::extract::{Extension, State};
use gpufleet_telemetry::time::Minute;
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::Grant;
use crate::export::Pushed;
use crate::export::cloud_monitoring::Told;
use crate::export::cloud_monitoring::cost::{Month, OfMetric};
use crate::export::cloud_monitoring::target::Reason;
use crate::web::Web;
use crate::words::text;

/// How pushing one way goes.
#[derive(Debug, Serialize, ToSchema)]
pub struct ExportKnown {
    /// `remote_write` or `cloud_monitoring`.
    pub name: &'static str,
    /// Points that were taken since the start.
    pub taken: u64,
    /// Points since the start that will not be taken, and are not sent again.
    pub refused: u64,
    /// Requests since the start that did not get through and are sent again.
    pub failed: u64,
    /// Minutes since the start that were skipped, because the target was away for too long.
    pub skipped_minutes: u64,
    /// Until when all minutes are pushed; null before the first since the start.
    #[schema(format = DateTime)]
    pub pushed_until: Option<String>,
    /// What Cloud Monitoring bills for a month like the newest minute; null elsewhere, before the first minute,
    /// and for a token of one cluster.
    pub month: Option<MonthKnown>,
    /// Points since the start that were left out, by reason: some of them are in `refused`, the others were not sent.
    /// Empty elsewhere than with Cloud Monitoring.
    pub left_out: Vec<LeftOutKnown>,
}

/// Points that were left out for one reason.
#[derive(Debug, Serialize, ToSchema)]
pub struct LeftOutKnown {
    /// `refused`, `denied`, `failed`, `sent_again`, `descriptor`, `kind` or `too_many`.
    #[schema(example = "refused")]
    pub reason: &'static str,
    /// The same in words.
    pub words: &'static str,
    /// How many points.
    pub points: u64,
}

/// A month of some series.
#[derive(Debug, Serialize, ToSchema)]
pub struct MonthKnown {
    /// How many series.
    pub series: u64,
    /// What is billed, bytes.
    pub bytes: f64,
    /// What that costs at most, dollars; null where cloud_monitoring.price_usd_per_mib is 0: not known.
    pub usd: Option<f64>,
    /// The same by metric, the dearest first: they add up to it.
    pub metrics: Vec<MetricMonthKnown>,
}

/// A month of the series of one metric.
#[derive(Debug, Serialize, ToSchema)]
pub struct MetricMonthKnown {
    /// The metric's name.
    #[schema(example = "gpufleet_gpu_power_watts")]
    pub metric: &'static str,
    /// How many series.
    pub series: u64,
    /// What is billed, bytes.
    pub bytes: f64,
    /// Its part of what all of them cost, dollars; null as there.
    pub usd: Option<f64>,
}

impl MonthKnown {
    fn of(month: Month, metrics: Vec<OfMetric>) -> Self {
        let of = |it: OfMetric| MetricMonthKnown {
            metric: it.name,
            series: it.month.series,
            bytes: it.month.bytes,
            usd: it.month.usd,
        };
        Self {
            series: month.series,
            bytes: month.bytes,
            usd: month.usd,
            metrics: metrics.into_iter().map(of).collect(),
        }
    }
}

/// Every way that is configured.
#[utoipa::path(get, path = "/api/v1/exports", tag = "Server",
    responses((status = 200, body = [ExportKnown])))]
pub async fn exports(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
) -> Json<Vec<ExportKnown>> {
    let (app, config) = (&web.app, &web.app.config);
    let mut ways = Vec::new();
    if !config.remote_write.url.is_empty() {
        ways.push(known("remote_write", &app.pushed));
    }
    if !config.cloud_monitoring.project.is_empty() {
        let told = &app.cloud_monitoring;
        let month = told.month(&config.cloud_monitoring);
        let metrics = told.month_by_metric(&config.cloud_monitoring);
        let month = month.zip(metrics).filter(|_| grant.cluster.is_none());
        ways.push(ExportKnown {
            month: month.map(|(month, metrics)| MonthKnown::of(month, metrics)),
            left_out: left_out(told),
            ..known("cloud_monitoring", &told.pushed)
        });
    }
    Json(ways)
}

fn known(name: &'static str, pushed: &Pushed) -> ExportKnown {
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    let newest = pushed.newest.load(Ordering::Relaxed);
    let until = Minute(newest + 1).start();
    ExportKnown {
        name,
        taken: count(&pushed.taken),
        refused: count(&pushed.refused),
        failed: count(&pushed.failed),
        skipped_minutes: count(&pushed.skipped),
        pushed_until: (newest > 0).then(|| text::rfc3339(until)),
        month: None,
        left_out: Vec::new(),
    }
}

/// What was left out, without the reasons for which nothing was.
fn left_out(told: &Told) -> Vec<LeftOutKnown> {
    let of = |reason: Reason| LeftOutKnown {
        reason: reason.name(),
        words: reason.words(),
        points: told.left_out_because(reason),
    };
    let all = Reason::ALL.into_iter().map(of);
    all.filter(|it| it.points > 0).collect()
}

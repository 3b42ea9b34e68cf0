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
        let month = month.filter(|_| grant.cluster.is_none());
        ways.push(ExportKnown {
            month: month.map(|it| MonthKnown {
                series: it.series,
                bytes: it.bytes,
                usd: it.usd,
            }),
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
    }
}

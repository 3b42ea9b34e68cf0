//! What is written to Cloud Monitoring and what each metric costs a month, beside the settings that choose it.

use std::collections::BTreeMap;

use gpufleet_telemetry::identity::ResourceKind;

use crate::App;
use crate::export::cloud_monitoring::cost::{self, Month, OfMetric};
use crate::export::cloud_monitoring::target::Reason;
use crate::export::samples::Selection;
use crate::words::text::{counted, grouped};

/// Bytes of a MiB, in which prices are given.
const MIB: f64 = 1_048_576.0;

/// What stands below the table of keys.
pub(super) struct Written {
    /// All of it in one sentence.
    pub(super) sentence: String,
    pub(super) rows: Vec<Row>,
    /// Why points were left out, each a sentence.
    pub(super) left_out: Vec<String>,
}

/// A metric.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) series: String,
    pub(super) mebibytes: String,
    pub(super) usd: String,
}

/// What is written; none where no project is configured.
pub(super) fn of(app: &App) -> Option<Written> {
    let config = &app.config.cloud_monitoring;
    if config.project.is_empty() {
        return None;
    }
    let told = &app.cloud_monitoring;
    let (sentence, metrics) = match told.month(config).zip(told.month_by_metric(config)) {
        Some((month, metrics)) => (
            format!("What is chosen costs {}.", at_most(&month)),
            metrics,
        ),
        None => {
            let (month, metrics) = of_one_gpu(app)?;
            let sentence = format!(
                "No minute has been written whole since this server started. Of each GPU what is chosen costs {}.",
                at_most(&month)
            );
            (sentence, metrics)
        }
    };
    let lost = |reason: Reason| {
        let points = told.left_out_because(reason);
        let count = counted(
            usize::try_from(points).unwrap_or(usize::MAX),
            "point",
            "points",
        );
        (points > 0).then(|| {
            format!(
                "{count} left out since this server started: {} ({}).",
                reason.words(),
                reason.name()
            )
        })
    };
    Some(Written {
        sentence,
        rows: metrics.iter().map(row).collect(),
        left_out: Reason::ALL.into_iter().filter_map(lost).collect(),
    })
}

/// A month of one GPU with all metrics that are chosen of GPUs.
fn of_one_gpu(app: &App) -> Option<(Month, Vec<OfMetric>)> {
    let config = &app.config.cloud_monitoring;
    // A server with a selection that cannot be read does not start.
    let selection = Selection::read(&config.metrics).ok()?;
    let of_gpu = selection.metrics();
    let of_gpu = of_gpu.filter(|it| it.resource == ResourceKind::Gpu);
    let series: BTreeMap<_, u64> = of_gpu.map(|it| (it.id, 1)).collect();
    let month = Month::of(series.len() as u64, config);
    Some((month, cost::by_metric(&series, config)))
}

fn at_most(month: &Month) -> String {
    let series = month.series as f64;
    let money = match month.usd {
        Some(usd) => format!("at most {usd:.2} USD a month"),
        None => "an amount that is not known, because cloud_monitoring.price_usd_per_mib is 0"
            .to_owned(),
    };
    format!(
        "{money}, for {} series of {:.2} MiB together",
        grouped(series),
        month.bytes / MIB
    )
}

fn row(of: &OfMetric) -> Row {
    let month = &of.month;
    Row {
        name: of.name,
        series: grouped(month.series as f64),
        mebibytes: format!("{:.2}", month.bytes / MIB),
        usd: month
            .usd
            .map_or_else(|| "no price".to_owned(), |it| format!("{it:.2}")),
    }
}

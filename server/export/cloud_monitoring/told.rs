//! How writing goes, for the server's own metrics, its API and its page.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpufleet_telemetry::catalog::MetricId;

use super::CloudMonitoringConfig;
use super::cost::{self, Month, OfMetric};
use super::target::Reason;
use crate::export::push::Pushed;

/// How writing goes.
#[derive(Debug, Default)]
pub struct Told {
    /// How pushing goes.
    pub pushed: Pushed,
    left_out: [AtomicU64; Reason::ALL.len()],
    /// The series of the newest minute that was written whole, by metric; none before the first.
    series: Mutex<Option<BTreeMap<MetricId, u64>>>,
}

impl Told {
    pub(crate) fn count(&self, reason: Reason, points: u64) {
        self.left_out[reason as usize].fetch_add(points, Ordering::Relaxed);
    }

    /// How many points were not taken for this reason.
    pub fn left_out_because(&self, reason: Reason) -> u64 {
        self.left_out[reason as usize].load(Ordering::Relaxed)
    }

    /// Why points were not taken, and how many.
    pub fn left_out(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let all = Reason::ALL.into_iter();
        all.map(|it| (it.name(), self.left_out_because(it) as f64))
    }

    /// Takes in how many series of each metric the newest minute had.
    pub(crate) fn wrote(&self, series: BTreeMap<MetricId, u64>) {
        *self.series() = Some(series);
    }

    fn series(&self) -> MutexGuard<'_, Option<BTreeMap<MetricId, u64>>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a month of as many series as in the newest minute costs; none before the first.
    pub fn month(&self, config: &CloudMonitoringConfig) -> Option<Month> {
        let series = self.series().as_ref()?.values().sum();
        Some(Month::of(series, config))
    }

    /// The same by metric, the dearest first; none before the first minute.
    pub fn month_by_metric(&self, config: &CloudMonitoringConfig) -> Option<Vec<OfMetric>> {
        Some(cost::by_metric(self.series().as_ref()?, config))
    }
}

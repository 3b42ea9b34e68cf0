//! The sample loop's results: the newest reading of everything, for /metrics and /healthz.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpufleet_telemetry::catalog::MetricId;
use gpufleet_telemetry::identity::{Part, Resource};
use gpufleet_telemetry::sample::Reading;
use gpufleet_telemetry::time::Timestamp;
use serde::{Deserialize, Serialize};

/// How often is sampled and shipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SampleConfig {
    /// Milliseconds between two samples; a divisor of the ship interval.
    pub period_ms: u64,
    /// Seconds of samples that make one request; at most 60.
    pub ship_interval_seconds: u32,
}

/// The newest reading of everything; a new one replaces it after each sample.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Latest {
    /// When the newest round was taken.
    pub at: Timestamp,
    /// Every resource that was read in the last two of its reader's periods.
    pub resources: Vec<LatestResource>,
    /// How each reader is doing.
    pub readers: Vec<ReaderHealth>,
}

/// The newest readings of one resource.
#[derive(Debug, Clone, PartialEq)]
pub struct LatestResource {
    /// The resource with its attributes.
    pub resource: Arc<Resource>,
    /// Its readings, ordered by metric and part.
    pub values: Vec<LatestValue>,
}

/// The newest reading of one metric.
#[derive(Debug, Clone, PartialEq)]
pub struct LatestValue {
    /// Which metric.
    pub metric: MetricId,
    /// The part it is about; none when about the resource itself.
    pub part: Option<Part>,
    /// What was read.
    pub reading: Reading,
    /// When.
    pub at: Timestamp,
}

/// How one reader is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaderHealth {
    /// Its name.
    pub name: Arc<str>,
    /// Whether its last round succeeded; none before its first.
    pub success: Option<bool>,
    /// What its last failed round said, while it fails.
    pub error: Option<String>,
    /// When it last succeeded.
    pub last_success: Option<Timestamp>,
    /// How long its last round took.
    pub duration: Duration,
    /// Rounds that failed since the start.
    pub failures: u64,
}

/// Where the sample loop puts the newest readings and where others take them from.
#[derive(Debug, Default)]
pub struct LatestCell(Mutex<Arc<Latest>>);

impl LatestCell {
    /// The newest readings.
    pub fn get(&self) -> Arc<Latest> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces them.
    pub fn set(&self, latest: Arc<Latest>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = latest;
    }
}

impl Default for SampleConfig {
    fn default() -> Self {
        Self {
            period_ms: 1_000,
            ship_interval_seconds: 10,
        }
    }
}

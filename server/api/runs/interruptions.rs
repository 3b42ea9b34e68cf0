//! How often a job breaks off, for programs.

use gpufleet_analysis::ending::Reliability;
use serde::Serialize;
use utoipa::ToSchema;

/// How often a job breaks off, over all its attempts.
#[derive(Debug, Serialize, ToSchema)]
pub struct Interruptions {
    /// Attempts of the job that nobody ended on purpose.
    pub interruptions: u64,
    /// As many of 1,000 GPU-days; none where the GPUs were held for no time that is known.
    pub interruptions_per_1000_gpu_days: Option<f64>,
    /// Mean time between them, seconds.
    pub mtbf_seconds: Option<f64>,
    /// Mean time until the next attempt came up, seconds.
    pub mttr_seconds: Option<f64>,
}

impl From<&Reliability> for Interruptions {
    fn from(it: &Reliability) -> Self {
        Self {
            interruptions: it.interruptions,
            interruptions_per_1000_gpu_days: it.per_thousand_gpu_days,
            mtbf_seconds: it.mtbf_ns.map(|it| it / 1e9),
            mttr_seconds: it.mttr_ns.map(|it| it / 1e9),
        }
    }
}

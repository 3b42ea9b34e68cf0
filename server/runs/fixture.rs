//! Ranks for tests of what is said of runs.

use gpufleet_telemetry::catalog::Metric;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::Ended;

use super::Rank;
use super::facts::RankEnd;

/// A rank on the GPU of this name that tells these readings, in any order.
pub(crate) fn rank(gpu: &str, told: &[(Metric, f64)]) -> Rank {
    let mut rank = Rank::default();
    rank.facts.gpu = gpu.into();
    rank.facts.readings = told.iter().map(|(metric, it)| (metric.id, *it)).collect();
    rank.facts.readings.sort_by_key(|it| it.0);
    rank
}

/// The end of a rank of which no more is known than when.
pub(crate) const fn vanished(at: Timestamp) -> RankEnd {
    RankEnd {
        at,
        ended: Ended::Vanished,
        exit_status: None,
        signal: None,
        oom_kills: None,
        step: None,
        checkpoint_step: None,
        phase: None,
    }
}

//! What the last probe of a GPU found, as long as its agent goes on telling it.

use gpufleet_analysis::health::Probed;
use gpufleet_telemetry::catalog::{Metric, own};
use gpufleet_telemetry::time::Timestamp;

use crate::detect::watch::fresh;
use crate::fleet::Live;

/// What is wrong by the last probe; none where it found nothing or is not told.
pub(super) fn of(live: &Live, now: Timestamp) -> Option<Probed> {
    const DEGRADED: u64 = 2;
    const FAIL: u64 = 3;
    let value = |metric: &Metric| fresh(live, metric, now);
    let verdict = value(&own::PROBE_VERDICT)? as u64;
    let at = value(&own::PROBE_AT)?;
    [DEGRADED, FAIL].contains(&verdict).then(|| Probed {
        is_wrong: verdict == FAIL,
        sm: value(&own::PROBE_SM).map(|it| it as u32),
        at: Timestamp((at * 1e9) as i64),
    })
}

//! How fast a run is, for programs.

use gpufleet_telemetry::time::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::Figure;
use crate::runs::{Run, RunKey, lookup};
use crate::web::Web;

/// How fast a run is.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunPace {
    /// How long a step takes, seconds.
    pub step_seconds: Figure,
    /// Tokens a second of all ranks.
    pub tokens_per_second: Figure,
    /// Model FLOPs utilisation, 0 to 1, of the dense peak of the type used.
    pub mfu_ratio: Figure,
    /// Which peak that is: the card's with its type, or one that the run states itself.
    pub mfu_peak: Option<String>,
    /// How the FLOPs of `mfu_ratio` were got, in words with the convention; none where the run does not say.
    pub flops_by: Option<String>,
    /// Hardware FLOPs utilisation, recomputation counted, 0 to 1, of the same peak.
    pub hfu_ratio: Figure,
    /// Where it is from: `told`, `recomputed` (4/3 of MFU), `estimated` (tensor cores' activity, an upper bound).
    pub hfu_basis: Option<&'static str>,
}

impl RunPace {
    pub(super) fn of(web: &Web, (key, run): (&RunKey, &Run), now: Timestamp) -> Self {
        let (mfu, hfu) = lookup::utilisation(&web.app.fleet, &web.specs, (key, run), now);
        let pace = |value, why| Figure::of(run.at_its_pace(value, why, now));
        Self {
            step_seconds: pace(run.step_seconds(), "no step was told"),
            tokens_per_second: pace(run.tokens_per_second(), "no rank says its tokens"),
            mfu_peak: mfu.as_ref().ok().map(|it| it.peak.words()),
            mfu_ratio: Figure::of(mfu.map(|it| it.ratio)),
            flops_by: run.flops_by(),
            hfu_basis: hfu.as_ref().ok().map(|it| it.1.name()),
            hfu_ratio: Figure::of(hfu.map(|it| it.0.ratio)),
        }
    }
}

//! When a run is done, and what it costs, for programs.

use gpufleet_telemetry::time::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::Figure;
use crate::runs::cost::Cost;
use crate::runs::{Run, State};
use crate::web::Web;
use crate::words::text;

/// Why there is no cost at the finish.
const NO_FINISH: &str = "not known: it does not run, or plans neither steps nor tokens";

/// When a run is done, and what it costs.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunMoney {
    /// When it will be done at its present pace; none where it plans nothing.
    #[schema(format = DateTime)]
    pub finish_at: Option<String>,
    /// When it has to be done; none where it does not say.
    #[schema(format = DateTime)]
    pub deadline: Option<String>,
    /// How long after its deadline it finishes, seconds; negative when before.
    pub late_seconds: Option<f64>,
    /// What its money is in, as ISO 4217 has it: `cost.currency`. Nothing is converted, also where a name says USD.
    #[schema(example = "USD")]
    pub currency: String,
    /// What all attempts up to this one have cost, in `currency`.
    pub cost_so_far_usd: Figure,
    /// What it will have cost at its finish, in `currency`.
    pub cost_at_finish_usd: Figure,
    /// What a step costs at its present pace, in `currency`.
    pub usd_per_step: Figure,
    /// What a million tokens cost at its present pace, in `currency`.
    pub usd_per_million_tokens: Figure,
}

impl RunMoney {
    pub(super) fn of(web: &Web, run: &Run, cost: &Cost, now: Timestamp) -> Self {
        let finish = run.forecast(cost, now);
        let finish = finish.filter(|_| run.state(now) == State::Running);
        let deadline = run.speaker().and_then(|(_, it)| it.deadline());
        let dollars = |nano: i64| nano as f64 / 1e9;
        let at_finish = finish.and_then(|it| it.cost_at_finish);
        let at_finish = at_finish.and_then(|it| i64::try_from(it).ok());
        let no_finish = || cost.so_far().err().unwrap_or_else(|| NO_FINISH.to_owned());
        Self {
            finish_at: finish.and_then(|it| it.finish_at).map(text::rfc3339),
            deadline: deadline.map(text::rfc3339),
            late_seconds: finish.and_then(|it| it.late_ns).map(|it| it as f64 / 1e9),
            currency: web.app.currency().to_owned(),
            cost_so_far_usd: Figure::of(cost.so_far().map(dollars)),
            cost_at_finish_usd: Figure::of(at_finish.map(dollars).ok_or_else(no_finish)),
            usd_per_step: Figure::of(cost.of_a_step(run, now)),
            usd_per_million_tokens: Figure::of(cost.of_a_million_tokens(run, now)),
        }
    }
}

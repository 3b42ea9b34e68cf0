//! What would make a run faster, for programs.

use gpufleet_analysis::adviser::{Knob, Profile};
use serde::Serialize;
use utoipa::ToSchema;

use crate::runs::Run;
use crate::runs::advice;

/// A setting, as it is and as it should be.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub struct KnobKnown {
    /// Its name as the user writes it: `num_workers`.
    pub name: &'static str,
    /// What it is; none where the run does not tell it.
    pub today: Option<String>,
    /// What it should be.
    pub proposed: String,
}

/// One thing that would make a run faster.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub struct AdviceKnown {
    /// What limits the run, for example `data_workers`.
    pub limit: &'static str,
    /// The same in words.
    pub what: &'static str,
    /// What was measured, in words.
    pub measured: String,
    /// What to change: by it the gain is worked out, where it can be.
    pub knob: KnobKnown,
    /// What to change with it: how much each of these gains is not known.
    pub also: Vec<KnobKnown>,
    /// The share of the run's time that this takes, 0 to 1.
    pub share: f64,
    /// The share of today's time that it takes no more, 0 to 1; none with the reason in `gain_missing`.
    pub removed: Option<f64>,
    /// How many times as fast the run is with it, if nothing else becomes the limit; none with the reason in `gain_missing`.
    pub gain: Option<f64>,
    /// Why nobody can work out what it gains.
    pub gain_missing: Option<&'static str>,
    /// What that is worth, in words.
    pub worth: String,
    /// The same in money, in `currency` of the run; none without a price or a known gain.
    pub usd_per_day: Option<f64>,
    /// GPU-hours that do the same work no more, each day; none without a known gain.
    pub gpu_hours_per_day: Option<f64>,
    /// How directly it was measured: `low`, `medium` or `high`.
    pub confidence: &'static str,
}

/// What would make a run faster.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub struct Advised {
    /// What would make it faster, what gains most first and what gains nobody knows how much last; empty where nothing that
    /// was measured says so, none with the reason in `advice_missing`.
    pub advice: Option<Vec<AdviceKnown>>,
    /// Why nothing is advised.
    pub advice_missing: Option<&'static str>,
    /// How many times as fast the run is with all of it together whose gain is known; none where that is of fewer than two.
    pub advice_together: Option<f64>,
    /// That its GPUs stand still and nothing that was measured says why, in a sentence; none where they do not, or it is
    /// known.
    pub unexplained_gaps: Option<String>,
    /// That its collectives run for a part of its steps and it is not known how much of that computing hides, in a
    /// sentence; none where they do not, or it is known.
    pub unexplained_collectives: Option<String>,
}

impl Advised {
    /// By what is known of a run, or why nothing is advised of it.
    pub(super) fn of(profile: Result<Profile, &'static str>, run: &Run, currency: &str) -> Self {
        let profile = match profile {
            Ok(profile) => profile,
            Err(why) => return Self::none(why),
        };
        let told = advice::advisory(&profile, run, currency);
        Self {
            advice: Some(told.all.into_iter().map(known).collect()),
            advice_missing: None,
            advice_together: told.gain_together,
            unexplained_gaps: advice::unexplained(&profile, run),
            unexplained_collectives: advice::maybe_hidden(&profile),
        }
    }

    fn none(why: &'static str) -> Self {
        Self {
            advice: None,
            advice_missing: Some(why),
            advice_together: None,
            unexplained_gaps: None,
            unexplained_collectives: None,
        }
    }
}

fn known(told: advice::Advised) -> AdviceKnown {
    let advice = told.advice;
    AdviceKnown {
        limit: advice.bottleneck.name(),
        what: told.what,
        measured: told.measured,
        share: advice.share,
        removed: advice.removed.ok(),
        gain: advice.gain().ok(),
        gain_missing: advice.removed.err(),
        worth: told.worth,
        usd_per_day: told.nano_usd_per_day.map(|it| it as f64 / 1e9),
        gpu_hours_per_day: told.gpu_hours_per_day,
        confidence: told.confidence,
        also: advice.also.into_iter().map(knob).collect(),
        knob: knob(advice.knob),
    }
}

fn knob(knob: Knob) -> KnobKnown {
    KnobKnown {
        name: knob.name,
        today: knob.today,
        proposed: knob.proposed,
    }
}

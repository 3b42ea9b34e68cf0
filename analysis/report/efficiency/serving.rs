//! What serving cost by token: what model servers told of their tokens, with the cost of the GPUs that served them.
//!
//! Numbers. Nano-units for a million tokens; GPU-milliseconds; millionths. The cost is that of the time of which
//! tokens are told, at the mean rate of the job on each node.

use super::part;
use crate::money::{decimal, ratio};
use crate::report::Report;

/// Tokens of a price.
const MILLION: i128 = 1_000_000;

/// A job that serves, or a model server of which nobody knows whose GPUs serve it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Serving {
    /// The cluster.
    pub cluster: String,
    /// Who pays; empty where not known.
    pub payer: String,
    /// The job; the model server where not known.
    pub job: String,
    /// The models.
    pub models: Vec<String>,
    /// How many model servers told of it.
    pub endpoints: usize,
    /// Tokens of prompts; none where nobody told them.
    pub prompt_tokens: Option<i64>,
    /// Tokens generated; none where nobody told them.
    pub generated_tokens: Option<i64>,
    /// GPU time of which tokens are told.
    pub gpu_millis: i64,
    /// All GPU time of the job.
    pub held_millis: i64,
    /// What the time of which tokens are told cost; none where that is not known.
    pub cost: Option<i128>,
    /// Why that is not known; empty where it is.
    pub why: String,
}

impl Serving {
    /// What a million tokens cost, of prompts and generated ones together; none where one of them is not known.
    pub fn per_million(&self) -> Option<i128> {
        let tokens = self.generated_tokens?.checked_add(self.prompt_tokens?)?;
        ratio(self.cost?, MILLION, tokens.into())
    }

    /// What a million generated tokens cost; none where that is not known, and of none.
    pub fn per_million_generated(&self) -> Option<i128> {
        ratio(self.cost?, MILLION, self.generated_tokens?.into())
    }

    /// The share of the job's GPU time of which tokens are told, millionths.
    pub fn covered(&self) -> Option<i128> {
        ratio(self.gpu_millis.into(), MILLION, self.held_millis.into())
    }

    /// Why there is no cost of a token; none where there is one.
    pub fn why_not(&self) -> Option<&str> {
        match (self.per_million_generated(), self.why.as_str()) {
            (Some(_), _) => None,
            (None, "") => Some("no token was generated in the time that is told"),
            (None, why) => Some(why),
        }
    }
}

/// As JSON.
pub(super) fn json(report: &Report<'_>) -> Vec<serde_json::Value> {
    let one = |it: &Serving| {
        serde_json::json!({
            "cluster": it.cluster,
            "team": it.payer,
            "job": it.job,
            "models": it.models,
            "endpoints": it.endpoints,
            "prompt_tokens": it.prompt_tokens,
            "generated_tokens": it.generated_tokens,
            "gpu_millis": it.gpu_millis,
            "covered_ratio": part(it.covered()),
            "cost": it.cost.map(decimal),
            "cost_per_million_tokens": it.per_million().map(decimal),
            "cost_per_million_generated_tokens": it.per_million_generated().map(decimal),
            "not_known": it.why_not(),
        })
    };
    report.serving.iter().map(one).collect()
}

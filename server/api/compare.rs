//! `/runs/compare`: two attempts side by side, or several of each, what they are made of first.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use gpufleet_analysis::regression::between::{self, Verdict};
use gpufleet_telemetry::training::RunId;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::paging;
use super::problem::{Asked, Problem};
use super::runs::{Figure, RunKnown, stands, unknown};
use crate::auth::Grant;
use crate::runs::RunKey;
use crate::runs::compare::{self, Against, NO_LOSS, NO_PACE, NOT_TOLD};
use crate::runs::repeats::{self, Sides};
use crate::web::Web;
use crate::words::text;

/// Which two.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct CompareAsked {
    /// The first: cluster, `/`, and the run's id: namespace, name, uid and attempt with `/` between
    /// them. A `/` in the cluster's name as `%2F`. Several runs of one way with a comma between them, at most 16.
    #[param(example = "prod/team/llama/u1/0")]
    pub a: String,
    /// The second, written the same way, one or several.
    #[param(example = "prod/team/llama/u2/0")]
    pub b: String,
}

/// A setting that differs.
#[derive(Debug, Serialize, ToSchema)]
pub struct Difference {
    /// Which.
    pub key: String,
    /// In the first; none where it does not say.
    pub a: Option<String>,
    /// In the second; none where it does not say.
    pub b: Option<String>,
}

/// What is compared of one run.
#[derive(Debug, Serialize, ToSchema)]
pub struct Compared {
    /// Which run, and how it stands.
    pub run: RunKnown,
    /// The median step, seconds; none of fewer than 20 steps after the first 5.
    pub step_seconds: Option<f64>,
    /// How many steps that is of: those of its last six hours.
    pub steps: usize,
    /// Tokens a step of the run; none where it does not say.
    pub tokens_per_step: Option<f64>,
    /// What a million tokens cost at this pace, in `currency` of the answer.
    pub usd_per_million_tokens: Figure,
}

/// Losses where both had seen as many tokens.
#[derive(Debug, Serialize, ToSchema)]
pub struct LossAtTokens {
    /// So many, since each began.
    pub tokens: f64,
    /// Of the first.
    pub a: f64,
    /// Of the second.
    pub b: f64,
}

/// What the second of two runs is against the first.
#[derive(Debug, Serialize, ToSchema)]
pub struct AgainstIt {
    /// The settings that differ, by key.
    pub differences: Vec<Difference>,
    /// Why there are none, where a run has not told what it is made of.
    pub differences_missing: Option<&'static str>,
    /// How many times as fast the second does the same work; below 1 it is slower. Of several runs the medians of both
    /// sides are held against each other.
    pub speed_up: Option<f64>,
    /// `tokens`, or `steps` where they do not say tokens: then a step has to be the same work.
    pub speed_up_by: Option<&'static str>,
    /// How uncertain the speed-up is, as a part of it: two standard errors, from stretches of each run.
    /// How much two runs of one program differ is not in it. None of too few steps, and of several runs.
    pub speed_up_uncertainty: Option<f64>,
    /// Why there is no speed-up.
    pub speed_up_missing: Option<&'static str>,
    /// The losses at equal tokens; none where they have no place in common.
    pub loss: Option<LossAtTokens>,
    /// Why there is none.
    pub loss_missing: Option<&'static str>,
}

/// The runs of one side.
#[derive(Debug, Serialize, ToSchema)]
pub struct OfOneWay {
    /// The fastest first; those whose pace is not known come last.
    pub runs: Vec<Compared>,
    /// The settings in which they differ from each other: what differs more than these says nothing of the way.
    pub differ_in: Vec<String>,
}

/// What several runs of each say.
#[derive(Debug, Serialize, ToSchema)]
pub struct Repeats {
    /// `slower` or `faster` where B is so by more than runs of one way differ, and each run of B is on that side; `alike` where
    /// they are not told apart; `too_few_runs` of fewer than three of each; none of too few steps.
    pub verdict: Option<&'static str>,
    /// The same in a sentence, with what is missing to it.
    pub sentence: String,
    /// The least change that the runs of both let tell, as a part: 2 %, four times their spread, or their whole range. None
    /// of fewer than three of each.
    pub told_from: Option<f64>,
    /// The runs of the first.
    pub a: OfOneWay,
    /// The runs of the second.
    pub b: OfOneWay,
}

/// Two runs side by side, or several of each.
#[derive(Debug, Serialize, ToSchema)]
pub struct Comparison {
    /// The first; of several the middle one by its pace.
    pub a: Compared,
    /// The second; of several the middle one by its pace.
    pub b: Compared,
    /// What several runs of each say; none of one run each.
    pub repeats: Option<Repeats>,
    /// What its money is in, as ISO 4217 has it: `cost.currency`, also where a name says USD.
    #[schema(example = "USD")]
    pub currency: String,
    /// What the second is against the first.
    #[serde(flatten)]
    pub against: AgainstIt,
}

/// Two attempts side by side, or several of each, of the last six hours of every one.
#[utoipa::path(get, path = "/api/v1/runs/compare", tag = "Training", params(CompareAsked),
    responses((status = 200, body = Comparison), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn compare(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Asked(asked): Asked<CompareAsked>,
) -> Result<Json<Comparison>, Problem> {
    let a = found(&web, named(&grant, "a", &asked.a)?).await?;
    let b = found(&web, named(&grant, "b", &asked.b)?).await?;
    let sides = Sides::of(a, b);
    let middle = |runs: &[compare::Compared]| compared(repeats::middle(runs));
    Ok(Json(Comparison {
        a: middle(&sides.a),
        b: middle(&sides.b),
        currency: web.app.currency().to_owned(),
        repeats: sides.repeated.map(|told| {
            let verdict = told.comparison.map(|it| it.verdict);
            let is_told = |it: &between::Comparison| it.verdict != Verdict::TooFewRuns;
            let sentence = told.sentence();
            let [a, b] = told.differ_in;
            let of_one_way = |runs: &[compare::Compared], differ_in| OfOneWay {
                runs: runs.iter().map(compared).collect(),
                differ_in,
            };
            Repeats {
                verdict: verdict.map(Verdict::name),
                sentence,
                told_from: told.comparison.filter(is_told).map(|it| it.told_from),
                a: of_one_way(&sides.a, a),
                b: of_one_way(&sides.b, b),
            }
        }),
        against: AgainstIt::of(sides.against),
    }))
}

impl AgainstIt {
    pub(super) fn of(it: Against) -> Self {
        let difference = |it: compare::Difference| Difference {
            key: it.key,
            a: it.a,
            b: it.b,
        };
        Self {
            differences: it.differences.into_iter().map(difference).collect(),
            differences_missing: (!it.is_told).then_some(NOT_TOLD),
            speed_up: it.speed_up.map(|it| it.0),
            speed_up_by: it.speed_up.map(|it| it.1),
            speed_up_uncertainty: it.uncertainty,
            speed_up_missing: it.speed_up.is_none().then_some(NO_PACE),
            loss_missing: it.loss.is_none().then_some(NO_LOSS),
            loss: it.loss.map(|it| LossAtTokens {
                tokens: it.tokens,
                a: it.a,
                b: it.b,
            }),
        }
    }
}

/// The run of a name, which is cluster, namespace, job's name, uid and attempt with `/` between them, each
/// percent-encoded where it has to be; none where it is no name.
pub fn parse(raw: &str) -> Option<RunKey> {
    let (cluster, run) = raw.split_once('/')?;
    let cluster = paging::read_cursor(cluster)?.pop()?;
    Some(RunKey {
        cluster: cluster.into(),
        run: RunId::parse(run).ok()?,
    })
}

/// The name of a run, as [`parse`] reads it.
pub fn name(key: &RunKey) -> String {
    format!("{}/{}", text::segment(&key.cluster), key.run)
}

/// The names in a list with commas between them, each as [`name`] writes it, so that a run is there once however it is
/// spelled. What is no name stands as it is.
pub fn listed(raw: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for one in raw.split(',') {
        let one = parse(one).map_or_else(|| one.to_owned(), |key| name(&key));
        if !names.contains(&one) {
            names.push(one);
        }
    }
    names
}

fn named(grant: &Grant, side: &str, raw: &str) -> Result<Vec<RunKey>, Problem> {
    let names = listed(raw);
    if names.len() > repeats::MOST {
        let (count, most) = (names.len(), repeats::MOST);
        return Err(Problem::bad(format_args!(
            "{side}: {count} runs; at most {most} are compared"
        )));
    }
    let key = |name: String| {
        let key = parse(&name).ok_or_else(|| {
            Problem::bad(format_args!(
                "{side}=“{name}”: a run is CLUSTER/NAMESPACE/NAME/UID/ATTEMPT, as /api/v1/jobs names them"
            ))
        })?;
        match grant.may_see(&key.cluster) {
            true => Ok(key),
            false => Err(unknown()),
        }
    };
    names.into_iter().map(key).collect()
}

async fn found(web: &Web, keys: Vec<RunKey>) -> Result<Vec<compare::Compared>, Problem> {
    let mut runs = Vec::with_capacity(keys.len());
    for key in keys {
        // For each run anew: others come between.
        let _permit = web.step_views.acquire().await;
        let found = compare::one(&web.app, key).await;
        let found = found.map_err(|error| Problem::store(&error))?;
        runs.push(found.ok_or_else(unknown)?);
    }
    Ok(runs)
}

pub(super) fn compared(it: &compare::Compared) -> Compared {
    Compared {
        run: stands(&it.key, &it.facts, it.state, it.sentence.to_string()),
        step_seconds: it.side.step_seconds(),
        steps: it.side.steps,
        tokens_per_step: it.side.tokens_per_step,
        usd_per_million_tokens: Figure::of(it.usd_per_million_tokens.clone()),
    }
}

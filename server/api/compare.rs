//! `/runs/compare`: two attempts side by side, what they are made of first.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use gpufleet_telemetry::training::RunId;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::paging;
use super::problem::{Asked, Problem};
use super::runs::{Figure, RunKnown, known, unknown};
use crate::auth::Grant;
use crate::runs::compare::{self, Against, NO_LOSS, NO_PACE, NOT_TOLD, Side};
use crate::runs::{Run, RunKey, cost};
use crate::web::Web;
use crate::words::text;

/// Which two.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct CompareAsked {
    /// The first: cluster, `/`, and the run's id: namespace, name, uid and attempt with `/` between
    /// them. A `/` in the cluster's name as `%2F`.
    #[param(example = "prod/team/llama/u1/0")]
    pub a: String,
    /// The second, written the same way.
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
    /// How many steps that is of.
    pub steps: usize,
    /// Tokens a step of the run; none where it does not say.
    pub tokens_per_step: Option<f64>,
    /// What a million tokens cost at this pace, US dollars.
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
    /// How many times as fast the second does the same work; below 1 it is slower.
    pub speed_up: Option<f64>,
    /// `tokens`, or `steps` where they do not say tokens: then a step has to be the same work.
    pub speed_up_by: Option<&'static str>,
    /// How uncertain the speed-up is, as a part of it: two standard errors, from stretches of each run.
    /// How much two runs of one program differ is not in it. None of too few steps.
    pub speed_up_uncertainty: Option<f64>,
    /// Why there is no speed-up.
    pub speed_up_missing: Option<&'static str>,
    /// The losses at equal tokens; none where they have no place in common.
    pub loss: Option<LossAtTokens>,
    /// Why there is none.
    pub loss_missing: Option<&'static str>,
}

/// Two runs side by side.
#[derive(Debug, Serialize, ToSchema)]
pub struct Comparison {
    /// The first.
    pub a: Compared,
    /// The second.
    pub b: Compared,
    /// What the second is against the first.
    #[serde(flatten)]
    pub against: AgainstIt,
}

/// Two attempts side by side, of the last six hours of each.
#[utoipa::path(get, path = "/api/v1/runs/compare", tag = "Training", params(CompareAsked),
    responses((status = 200, body = Comparison), (status = 400, body = Problem, content_type = "application/problem+json"), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn compare(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Asked(asked): Asked<CompareAsked>,
) -> Result<Json<Comparison>, Problem> {
    let _permit = web.step_views.acquire().await;
    let a = one(&web, named(&grant, "a", &asked.a)?).await?;
    let b = one(&web, named(&grant, "b", &asked.b)?).await?;
    let against = compare::against((&a.run, &a.side), (&b.run, &b.side));
    Ok(Json(Comparison {
        a: compared(&web, &a.key, &a.run, &a.side),
        b: compared(&web, &b.key, &b.run, &b.side),
        against: AgainstIt::of(against),
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

fn named(grant: &Grant, name: &str, raw: &str) -> Result<RunKey, Problem> {
    let key = parse(raw).ok_or_else(|| {
        Problem::bad(format_args!(
            "{name}=“{raw}”: a run is CLUSTER/NAMESPACE/NAME/UID/ATTEMPT, as /api/v1/jobs names them"
        ))
    })?;
    match grant.may_see(&key.cluster) {
        true => Ok(key),
        false => Err(unknown()),
    }
}

async fn one(web: &Web, key: RunKey) -> Result<compare::Compared, Problem> {
    let found = compare::one(&web.app, key).await;
    let found = found.map_err(|error| Problem::store(&error))?;
    found.ok_or_else(unknown)
}

pub(super) fn compared(web: &Web, key: &RunKey, run: &Run, side: &Side) -> Compared {
    Compared {
        run: known(
            key,
            run,
            &web.app.incidents.of_run(key),
            web.app.clock.now(),
        ),
        step_seconds: side.step_seconds,
        steps: side.steps,
        tokens_per_step: side.tokens_per_step,
        usd_per_million_tokens: Figure::of(cost::per_million_tokens(&web.app, (key, run), side)),
    }
}

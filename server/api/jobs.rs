//! `/jobs`: training jobs by their last attempt, and a job's attempts.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::training::{JobId, RunId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::paging::{self, Page, Paging};
use super::problem::{Asked, Place, Problem};
use super::runs::{Figure, RunKnown, key, known, unknown};
use crate::App;
use crate::auth::Grant;
use crate::health::StoreSeen;
use crate::runs::order::{After, List, Order};
use crate::runs::worth::{Worth, Worths};
use crate::runs::{KnownRun, Run, RunKey, lookup};
use crate::store::RunFilter;
use crate::web::Web;
use crate::words::text;

const RUNNING: &str = "running";

/// Why a list has no figures of a run that is not in memory, or was not when they were made.
const NOT_LISTED: &str =
    "on its page: it is over for long, or has just begun; its run in the API has it too";

/// How a job may stand.
pub(crate) const STATES: [&str; 3] = [RUNNING, "silent", "ended"];

/// Within this the store was told that a run was heard that runs, nanoseconds: it is told every five minutes, while it
/// takes anything.
const RUNNING_HEARD_WITHIN: i64 = 3_600 * NANOS_PER_SECOND;

/// Which jobs.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct JobsAsked {
    /// Of this cluster.
    pub cluster: Option<String>,
    /// Only of this name, `namespace/name`, or id, written as in an id.
    #[param(example = "team/llama")]
    pub name: Option<String>,
    /// Only those that stand so: `running`, `silent` or `ended`. A page may then have few items or none, and a next one.
    pub state: Option<String>,
    /// What comes first: `started` the last started, `cost` the dearest attempt, `mfu` the lowest MFU, `gpus` the most GPUs.
    /// Jobs of which the figure is not known come last, the last started first; so do those that are over for long, whose
    /// figures are on their pages alone. In an order a page may have few items or none, and a next one. Each job comes once
    /// where all pages are asked for within a minute: their figures are those of the first.
    #[param(default = "started")]
    pub sort: Option<String>,
    /// Most items of the answer, 1 to 1000.
    #[param(default = 200, minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
    /// The `next` of the answer before; without it the first page.
    pub after: Option<String>,
}

/// A job by its last attempt.
#[derive(Debug, Serialize, ToSchema)]
pub struct JobKnown {
    /// How that attempt stands.
    #[serde(flatten)]
    pub run: RunKnown,
    /// Who pays for it: a team, or `unowned` where no rule names one. None where nobody can say.
    pub owner: Option<String>,
    /// How many GPUs it computes on; of one that is over for long one for each rank. None where that is not known.
    pub gpus: Option<usize>,
    /// Model FLOPs utilisation, 0 to 1, of the dense peak of the type used.
    pub mfu_ratio: Figure,
    /// What its money is in, as ISO 4217 has it: `cost.currency`. Nothing is converted, also where a name says USD.
    #[schema(example = "USD")]
    pub currency: String,
    /// What its GPUs cost an hour now, in `currency`.
    pub usd_per_hour: Figure,
    /// What this attempt has cost, in `currency`; `cost_so_far_usd` of its run has those before it too.
    pub cost_of_attempt_usd: Figure,
    /// Of which moment owner, GPUs, MFU and costs are.
    #[schema(format = DateTime)]
    pub figures_at: String,
}

/// A job with its attempts, the last first.
#[derive(Debug, Serialize, ToSchema)]
pub struct JobDetail {
    /// The cluster it runs in.
    pub cluster: Arc<str>,
    /// Its id.
    pub job: String,
    /// Its attempts, the last started first: the newest 1,000.
    pub attempts: Vec<RunKnown>,
    /// Whether it may have earlier ones than those.
    pub not_all_attempts: bool,
}

/// Jobs, each by its last attempt, the last started first or in the order that is asked for.
#[utoipa::path(get, path = "/api/v1/jobs", tag = "Training", params(JobsAsked),
    responses((status = 200, body = Page<JobKnown>)))]
pub async fn jobs(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Asked(asked): Asked<JobsAsked>,
) -> Result<Json<Page<JobKnown>>, Problem> {
    let paging = Paging {
        limit: asked.limit,
        after: asked.after.clone(),
    };
    let limit = paging.limit()?;
    let list = list(&web.app, &grant, &asked)?;
    let worths = worths(&web, &grant, &list).await;
    let found = list.page(&web.app, &worths, limit).await;
    let (found, next) = found.map_err(|error| Problem::store(&error))?;
    let items = found.into_iter().map(|it| job_known(&web, &worths, it));
    Ok(Json(Page {
        items: items
            .filter(|it| list.state.is_none_or(|state| it.run.state == state))
            .collect(),
        next: next.map(|it| cursor(&it, list.order)),
    }))
}

/// A job and its attempts.
#[utoipa::path(get, path = "/api/v1/jobs/{cluster}/{job}", tag = "Training",
    params(("cluster" = String, Path, description = "The cluster's name"), ("job" = String, Path, description = "The job's id, percent-encoded as one segment")),
    responses((status = 200, body = JobDetail), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn job(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Place((cluster, job)): Place<(String, String)>,
) -> Result<Json<JobDetail>, Problem> {
    let key = key(&grant, &cluster, &job, 0)?;
    let filter = RunFilter {
        cluster: Some(Arc::clone(&key.cluster)),
        job: Some(key.run.job.clone()),
        ..RunFilter::default()
    };
    let found = web.app.store.runs(&filter, None, paging::MAX_LIMIT).await;
    let (found, next) = found.map_err(|error| Problem::store(&error))?;
    if found.is_empty() {
        return Err(unknown());
    }
    Ok(Json(JobDetail {
        attempts: found.into_iter().map(|it| as_it_is(&web, it)).collect(),
        not_all_attempts: next.is_some(),
        cluster: key.cluster,
        job: key.run.job.to_string(),
    }))
}

/// What is asked for, of what a reader may see.
pub(crate) fn list(app: &App, grant: &Grant, asked: &JobsAsked) -> Result<List, Problem> {
    let order = asked.sort.as_deref().map(order).transpose()?;
    let order = order.unwrap_or_default();
    let after = asked.after.as_deref().map(|it| place(it, order));
    let after = after.transpose()?;
    let state = asked.state.as_deref().map(state).transpose()?;
    let named = asked.name.as_deref().map(named).transpose()?;
    let now = app.clock.now();
    let is_told = state == Some(RUNNING) && !StoreSeen::of(app).is_failing;
    let filter = RunFilter {
        cluster: Problem::of_cluster(grant, asked.cluster.as_deref())?,
        only_last: true,
        // How the others stand the store cannot say.
        heard_since: is_told.then(|| now.shifted(-RUNNING_HEARD_WITHIN)),
        ..named.unwrap_or_default()
    };
    Ok(List {
        filter,
        state,
        order,
        after,
    })
}

/// What is known of the jobs of a page of this list.
pub(crate) async fn worths(web: &Web, grant: &Grant, list: &List) -> Arc<Worths> {
    match list.order {
        Order::Started => web.worths.get(&web.app, &web.specs, grant).await,
        Order::Cost | Order::Mfu | Order::Gpus => {
            let before = list.after.as_ref().and_then(After::look);
            web.worths.page(&web.app, &web.specs, grant, before).await
        }
    }
}

/// Which jobs are called so.
fn named(asked: &str) -> Result<RunFilter, Problem> {
    let parse = |id: &str| {
        let job = JobId::parse(id);
        job.map_err(|error| Problem::bad(format_args!("name=“{asked}”: {error}")))
    };
    let mut filter = RunFilter::default();
    match asked.matches('/').count() {
        0 => filter.called = Some(parse(&format!("/{asked}/"))?.name),
        1 => filter.name_of = Some(parse(&format!("{asked}/"))?),
        _ => filter.job = Some(parse(asked)?),
    }
    Ok(filter)
}

/// A state by its name.
fn state(asked: &str) -> Result<&'static str, Problem> {
    let known = STATES.into_iter().find(|it| *it == asked);
    known.ok_or_else(|| {
        Problem::bad(format_args!(
            "state=“{asked}”: it is one of {}",
            STATES.join(", ")
        ))
    })
}

/// What comes first by its name.
fn order(asked: &str) -> Result<Order, Problem> {
    let known = Order::ALL.into_iter().find(|it| it.name() == asked);
    known.ok_or_else(|| {
        let names = Order::ALL.map(Order::name).join(", ");
        Problem::bad(format_args!("sort=“{asked}”: it is one of {names}"))
    })
}

/// Where a page of a list ends, as the next one is asked for.
pub(crate) fn cursor(after: &After, order: Order) -> String {
    let in_order = |look: &Timestamp| vec![order.name().to_owned(), look.0.to_string()];
    let words = match after {
        After::Started((at, id)) => vec![at.to_string(), id.to_string()],
        After::Ranked {
            look,
            last: (rank, key),
        } => {
            let (job, attempt) = (key.run.job.to_string(), key.run.attempt.to_string());
            let last = [rank.to_string(), key.cluster.to_string(), job, attempt];
            [in_order(look), last.to_vec()].concat()
        }
        After::Others {
            look,
            last: (at, id),
        } => [in_order(look), vec![at.to_string(), id.to_string()]].concat(),
    };
    paging::write_cursor(&words)
}

/// Where a page of a list in this order ends.
fn place(cursor: &str, order: Order) -> Result<After, Problem> {
    let words = paging::read_cursor(cursor).unwrap_or_default();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    after(&words, order).ok_or_else(|| {
        Problem::bad(
            "after: this is no cursor of this list; use the next of the answer before, as it is",
        )
    })
}

/// The same of the words of a cursor.
fn after(words: &[&str], order: Order) -> Option<After> {
    match words {
        [at, id] if order == Order::Started => {
            Some(After::Started((at.parse().ok()?, id.parse().ok()?)))
        }
        [name, look, last @ ..] if order != Order::Started && *name == order.name() => {
            let look = Timestamp(look.parse().ok()?);
            match last {
                [at, id] => {
                    let last = (at.parse().ok()?, id.parse().ok()?);
                    Some(After::Others { look, last })
                }
                [rank, cluster, job, attempt] => {
                    let run = RunId {
                        job: JobId::parse(job).ok()?,
                        attempt: attempt.parse().ok()?,
                    };
                    let cluster = Arc::from(*cluster);
                    let last = (rank.parse().ok()?, RunKey { cluster, run });
                    Some(After::Ranked { look, last })
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// A run as it is now, else as the store has it.
fn as_it_is(web: &Web, stored: KnownRun) -> RunKnown {
    let now = web.app.clock.now();
    let open = web.app.incidents.of_run(&stored.key);
    let known = |key: &RunKey, run: &Run| known(key, run, &open, now, web.app.currency());
    lookup::as_it_is(&web.app, stored, known)
}

/// A job by an attempt of it, with what it is worth.
fn job_known(web: &Web, worths: &Worths, stored: KnownRun) -> JobKnown {
    let worth = worths.of(&stored.key);
    let payer = worths.payer(&stored.key, &stored.facts);
    let gpus = worths.gpus(&stored.key, &stored.facts);
    let figure = |of: fn(&Worth) -> Result<f64, String>| {
        Figure::of(worth.map_or_else(|| Err(NOT_LISTED.to_owned()), of))
    };
    JobKnown {
        owner: payer.map(|it| it.name().to_owned()),
        gpus,
        mfu_ratio: figure(|it| it.mfu.as_ref().map(|it| it.ratio).map_err(Clone::clone)),
        currency: web.app.currency().to_owned(),
        usd_per_hour: figure(|it| it.nano_usd_per_hour.clone().map(usd)),
        cost_of_attempt_usd: figure(|it| it.attempt_nano_usd.clone().map(usd)),
        figures_at: text::rfc3339(worths.at),
        run: as_it_is(web, stored),
    }
}

/// Nano-units as units.
fn usd(nano: i64) -> f64 {
    nano as f64 / 1e9
}

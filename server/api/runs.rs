//! `/runs`: an attempt of a training job, its ranks and its steps.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use futures::FutureExt as _;
use gpufleet_analysis::goodput::{Category, Goodput};
use gpufleet_analysis::scaling::Efficiency;
use gpufleet_telemetry::steps::{StepBlock, StepTimes};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::{JobId, RunId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::past::RangeAsked;
use super::problem::{Asked, Place, Problem};
use crate::auth::Grant;
use crate::runs::{
    Judged, Rank, Run, RunKey, advice, cost, history, lookup, reliability, scaling, words,
};
use crate::web::Web;
use crate::words::text;

mod advised;
mod drawn;
mod figure;
mod interruptions;
mod listed;
mod money;
mod pace;

pub use advised::{AdviceKnown, Advised, KnobKnown};
pub use drawn::Drawn;
pub use figure::Figure;
pub use interruptions::Interruptions;
pub use listed::RunKnown;
pub(super) use listed::{known, stands};
pub use money::RunMoney;
pub use pace::RunPace;

/// Longest range of steps, hours.
const MAX_STEPS_RANGE_HOURS: i64 = 2;

/// Most ranks whose steps one answer holds.
const MAX_STEP_RANKS: usize = 64;

/// A rank that makes the others wait.
#[derive(Debug, Serialize, ToSchema)]
pub struct SlowRank {
    /// Its number.
    pub rank: u32,
    /// Its busy time ÷ its peers'.
    pub ratio: f64,
    /// Since when.
    #[schema(format = DateTime)]
    pub since: Option<String>,
    /// `low`, `medium` or `high`.
    pub confidence: String,
}

/// Why a run ended.
#[derive(Debug, Serialize, ToSchema)]
pub struct Ending {
    /// The cause.
    pub cause: String,
    /// One sentence.
    pub sentence: String,
    /// The first rank that failed.
    pub first_rank: Option<u32>,
    /// What that rests on.
    pub evidence: Vec<String>,
    /// What was looked at.
    pub looked_at: Vec<String>,
    /// Steps since the last checkpoint; none where that is not known.
    pub steps_lost: Option<u64>,
    /// What they cost at the price of now, in `currency` of the run.
    pub lost_usd: Figure,
}

/// One process of a run.
#[derive(Debug, Serialize, ToSchema)]
pub struct RankKnown {
    /// Its number.
    pub rank: u32,
    /// Its node; none where that is not known.
    pub node: Option<String>,
    /// The id of its GPU or share; none where that is not known.
    pub gpu: Option<String>,
    /// Where it stands in the mesh, `dp=3/8 pp=0/4`; empty where that is not known.
    pub mesh: String,
    /// Who said so: `given`, `megatron`, `device_mesh`, `deepspeed`, `communicators` (by their names); `unknown` where nobody
    /// did.
    pub mesh_source: &'static str,
    /// `proved` or `claimed`; none before its first reading.
    pub trust: Option<&'static str>,
    /// When anything of it was last heard.
    #[schema(format = DateTime)]
    pub heard: String,
    /// How it ended: `finished`, `stopped`, `exception`, `vanished`; none while nobody said.
    pub ended: Option<&'static str>,
    /// Type and first line of the exception that nobody caught.
    pub exception: Option<String>,
    /// Its newest readings by metric name, those with a value.
    pub readings: BTreeMap<String, f64>,
}

/// An attempt with everything that is known of it.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunDetail {
    /// What the list has.
    #[serde(flatten)]
    pub run: RunKnown,
    /// What it is made of: versions, settings.
    pub fingerprint: BTreeMap<String, String>,
    /// How fast it is.
    #[serde(flatten)]
    pub pace: RunPace,
    /// Where the time of the job went, seconds by category; none with the reason in `goodput_missing`.
    pub goodput_seconds: Option<BTreeMap<String, f64>>,
    /// Why there is no goodput.
    pub goodput_missing: Option<String>,
    /// The productive share of the observed time, 0 to 1.
    pub goodput_ratio: Figure,
    /// The share of the time that was observed: whose steps are kept.
    pub observed_ratio: Figure,
    /// Ranks that make the others wait.
    pub slow_ranks: Vec<SlowRank>,
    /// Why nobody is judged to be slow, or cannot be; none where somebody is named, or it is known that nobody is slow.
    pub not_judged: Option<&'static str>,
    /// What would make it faster.
    #[serde(flatten)]
    pub advised: Advised,
    /// Why it ended.
    pub ending: Option<Ending>,
    /// When it is done, and what it costs.
    #[serde(flatten)]
    pub money: RunMoney,
    /// What its GPUs drew.
    #[serde(flatten)]
    pub drawn: Drawn,
    /// What each GPU does compared with a smaller run of this job, 1 is linear.
    pub scaling_ratio: Figure,
    /// The same in a sentence.
    pub scaling: String,
    /// How often its job breaks off.
    #[serde(flatten)]
    pub interruptions: Interruptions,
    /// Its ranks.
    pub ranks: Vec<RankKnown>,
}

/// Which steps.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct StepsAsked {
    /// The first moment, RFC 3339. Without it: one hour before `to`.
    #[param(format = DateTime)]
    pub from: Option<String>,
    /// The moment it ends before, RFC 3339. Without it: now.
    #[param(format = DateTime)]
    pub to: Option<String>,
    /// Of these ranks, numbers with commas between them; without it of the first 64.
    pub ranks: Option<String>,
}

/// Steps of one rank without a gap.
#[derive(Debug, Serialize, ToSchema)]
pub struct Block {
    /// Of which rank.
    pub rank: u32,
    /// The number of the first step.
    pub first_step: u64,
    /// How many steps each entry sums up.
    pub steps_per_entry: u64,
    /// When the first began.
    #[schema(format = DateTime)]
    pub started: String,
    /// When the last ended.
    #[schema(format = DateTime)]
    pub ended: String,
    /// Tokens of all of them; none where that was not said.
    pub tokens: Option<u64>,
    /// How long each entry took, seconds.
    pub wall_seconds: Vec<f64>,
    /// In which the rank computed.
    pub busy_seconds: Vec<f64>,
    /// In which it waited for data.
    pub data_wait_seconds: Vec<f64>,
    /// In which it waited for other ranks.
    pub communication_wait_seconds: Vec<f64>,
}

/// An attempt of a job with its ranks.
#[utoipa::path(get, path = "/api/v1/runs/{cluster}/{job}/{attempt}", tag = "Training",
    params(("cluster" = String, Path, description = "The cluster's name"), ("job" = String, Path, description = "The job's id, percent-encoded as one segment"), ("attempt" = u32, Path, description = "Which attempt, counted from 0")),
    responses((status = 200, body = RunDetail), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn run(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Place((cluster, job, attempt)): Place<(String, String, u32)>,
) -> Result<Json<RunDetail>, Problem> {
    let key = key(&grant, &cluster, &job, attempt)?;
    let run = Arc::new(find(&web, &key).await?);
    detail(&web, (&key, &run)).await.map(Json)
}

/// Steps of an attempt, at most two hours and 64 ranks at once.
#[utoipa::path(get, path = "/api/v1/runs/{cluster}/{job}/{attempt}/steps", tag = "Training",
    params(("cluster" = String, Path, description = "The cluster's name"), ("job" = String, Path, description = "The job's id, percent-encoded as one segment"), ("attempt" = u32, Path, description = "Which attempt, counted from 0"), StepsAsked),
    responses((status = 200, body = Vec<Block>), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn steps(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Place((cluster, job, attempt)): Place<(String, String, u32)>,
    Asked(asked): Asked<StepsAsked>,
) -> Result<Json<Vec<Block>>, Problem> {
    let key = key(&grant, &cluster, &job, attempt)?;
    let range = RangeAsked {
        from: asked.from,
        to: asked.to,
    };
    let (from, to) = range.resolve(web.app.clock.now(), 1, MAX_STEPS_RANGE_HOURS)?;
    let run = find(&web, &key).await?;
    let ranks: Vec<u32> = match &asked.ranks {
        None => run.ranks.keys().take(MAX_STEP_RANKS).copied().collect(),
        Some(text) => {
            let numbers: Result<Vec<u32>, _> = text.split(',').map(str::parse).collect();
            let wrong = || {
                Problem::bad(format_args!(
                    "ranks=“{text}”: numbers with commas between them"
                ))
            };
            numbers.map_err(|_| wrong())?
        }
    };
    if ranks.len() > MAX_STEP_RANKS {
        return Err(Problem::bad(format_args!(
            "{} ranks are asked for; one answer holds the steps of at most {MAX_STEP_RANKS}",
            ranks.len()
        )));
    }
    let range: Range<Timestamp> = from..to;
    let _permit = web.step_views.acquire().await;
    let found = history::steps(&web.app.store, (&key, &run), Some(&ranks), &range).await;
    let found = found.map_err(|error| Problem::store(&error))?;
    let blocks = found
        .iter()
        .flat_map(|(rank, blocks)| blocks.iter().map(|it| block(*rank, it)));
    Ok(Json(blocks.collect()))
}

fn block(rank: u32, block: &StepBlock) -> Block {
    let seconds =
        |of: fn(&StepTimes) -> u64| block.times.iter().map(|it| of(it) as f64 / 1e9).collect();
    Block {
        rank,
        first_step: block.first_step,
        steps_per_entry: block.steps_per_entry(),
        started: text::rfc3339(block.started_at),
        ended: text::rfc3339(block.ended_at),
        tokens: (block.tokens > 0).then_some(block.tokens),
        wall_seconds: seconds(|it| it.wall_ns),
        busy_seconds: seconds(|it| it.busy_ns),
        data_wait_seconds: seconds(|it| it.data_wait_ns),
        communication_wait_seconds: seconds(|it| it.comm_wait_ns),
    }
}

/// A run by its place in an address; one of another cluster than the token's is not there.
pub(super) fn key(
    grant: &Grant,
    cluster: &str,
    job: &str,
    attempt: u32,
) -> Result<RunKey, Problem> {
    let job = JobId::parse(job)
        .ok()
        .filter(|_| grant.may_see(cluster))
        .ok_or_else(unknown)?;
    Ok(RunKey {
        cluster: cluster.into(),
        run: RunId { job, attempt },
    })
}

pub(super) fn unknown() -> Problem {
    Problem::unknown("no such job or attempt in this cluster; /api/v1/jobs lists them")
}

/// A run from memory, else from the store.
pub(super) async fn find(web: &Web, key: &RunKey) -> Result<Run, Problem> {
    let found = lookup::find(&web.app, key).await;
    found
        .map_err(|error| Problem::store(&error))?
        .ok_or_else(unknown)
}

async fn detail(web: &Web, (key, shared): (&RunKey, &Arc<Run>)) -> Result<RunDetail, Problem> {
    let (store, now) = (&web.app.store, web.app.clock.now());
    let run: &Run = shared;
    let (of_job, scaling, drawn) = tokio::join!(
        web.goodputs.of_job(&web.app, (key, shared), now).boxed(),
        scaling::of(store, (key, run)),
        Drawn::of(web, (key, run), now),
    );
    let (attempts, added_up) = of_job.map_err(|error| Problem::store(&error))?;
    let goodput = added_up.goodput;
    let scaling = scaling.map_err(|error| Problem::store(&error))?;
    let seconds = goodput.as_ref().ok().map(|it| {
        let of = |category: &Category| (category.name().to_owned(), it.of(*category) as f64 / 1e9);
        Category::ALL.iter().map(of).collect()
    });
    let own = cost::Attempt::of(&web.app, (key, run), now);
    let cost = cost::of(&attempts, key, own);
    let broke_off = reliability::of(&attempts);
    let looked_up = (&cost, Some(&broke_off));
    let profile = advice::of(&web.app.fleet, &web.specs, (key, run), looked_up, now);
    let (open, currency) = (web.app.incidents.of_run(key), web.app.currency());
    let judged = run.who_waits();
    Ok(RunDetail {
        run: known(key, run, &open, now, currency),
        fingerprint: run.facts.fingerprint.clone(),
        pace: RunPace::of(web, (key, run), now),
        goodput_seconds: seconds,
        goodput_ratio: Figure::of(share(goodput.as_ref(), Goodput::ratio)),
        observed_ratio: Figure::of(share(goodput.as_ref(), Goodput::observed)),
        goodput_missing: goodput.err().map(str::to_owned),
        slow_ranks: judged.map(slow_ranks).unwrap_or_default(),
        not_judged: judged.and_then(|it| words::not_named(run, &it.verdict)),
        advised: Advised::of(profile, run, currency),
        ending: ending(run, &cost),
        money: RunMoney::of(web, run, &cost, now),
        drawn,
        scaling_ratio: Figure::of(match scaling {
            Efficiency::Own { ratio, .. } => Ok(ratio),
            Efficiency::Published(_) | Efficiency::Unknown => Err(scaling.sentence()),
        }),
        scaling: scaling.sentence(),
        interruptions: Interruptions::from(&broke_off),
        ranks: run
            .ranks
            .iter()
            .map(|(number, it)| rank(*number, it))
            .collect(),
    })
}

fn slow_ranks(judged: &Judged) -> Vec<SlowRank> {
    let slow = judged.verdict.stragglers.iter().map(|it| SlowRank {
        rank: it.rank,
        ratio: it.ratio,
        since: judged.since.get(&it.rank).copied().map(text::rfc3339),
        confidence: it.confidence.name().to_owned(),
    });
    slow.collect()
}

fn ending(run: &Run, cost: &cost::Cost) -> Option<Ending> {
    let ending = run.facts.ending.clone();
    ending.map(|it| Ending {
        cause: it.cause,
        sentence: it.sentence,
        first_rank: it.first_rank,
        evidence: it.evidence,
        looked_at: it.looked_at,
        steps_lost: it.steps_lost,
        lost_usd: Figure::of(cost.of_lost_steps(run)),
    })
}

/// A share of the job's time.
fn share(
    goodput: Result<&Goodput, &&'static str>,
    of: fn(&Goodput) -> Option<f64>,
) -> Result<f64, &'static str> {
    of(goodput.map_err(|why| *why)?).ok_or("no time yet")
}

fn rank(number: u32, rank: &Rank) -> RankKnown {
    let facts = &rank.facts;
    let text_of = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let exception = facts.exception.as_ref();
    let named = facts.readings.iter();
    RankKnown {
        rank: number,
        node: text_of(&facts.node),
        gpu: text_of(&facts.gpu),
        mesh: facts.mesh.to_string(),
        mesh_source: facts.mesh_source.name(),
        trust: facts.trust.map(|it| it.name()),
        heard: text::rfc3339(facts.heard),
        ended: facts.end.as_ref().map(|it| it.ended.name()),
        exception: exception.map(|it| format!("{}: {}", it.kind, it.message)),
        readings: named
            .map(|(id, value)| (super::shape::metric_name(*id), *value))
            .collect(),
    }
}

//! `/ladders`: runs that were tagged as steps of one improvement, each against the one before.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use serde::Serialize;
use utoipa::ToSchema;

use super::compare::{AgainstIt, Compared, compared};
use super::problem::{Place, Problem};
use crate::auth::Grant;
use crate::runs::ladder::{self, RUNG};
use crate::web::Web;

/// A run on a ladder.
#[derive(Debug, Serialize, ToSchema)]
pub struct Rung {
    /// What was changed, as the run's tag `rung` says; none where it does not.
    pub rung: Option<String>,
    /// The run and its pace.
    #[serde(flatten)]
    pub compared: Compared,
    /// Against the rung before it; none of the first.
    pub against_before: Option<AgainstIt>,
    /// Against the first; none of the first.
    pub against_first: Option<AgainstIt>,
}

/// Runs of one cluster with the same tag `ladder`.
#[derive(Debug, Serialize, ToSchema)]
pub struct Ladder {
    /// The cluster.
    pub cluster: Arc<str>,
    /// The text of the tag.
    pub name: String,
    /// The first started first.
    pub rungs: Vec<Rung>,
    /// How many earlier ones are left out.
    pub left_out: usize,
    /// What its money is in, as ISO 4217 has it: `cost.currency`, also where a name says USD.
    #[schema(example = "USD")]
    pub currency: String,
}

/// Where the runs of a ladder are.
#[derive(Debug, Serialize, ToSchema)]
pub struct LadderPlaces {
    /// The text of the tag.
    pub name: String,
    /// The clusters in which a job has it, of those that you may see; none where no job has.
    pub clusters: Vec<String>,
    /// Whether every job was looked at. When not, earlier ones may have the tag in other clusters too.
    pub are_all: bool,
}

/// In which clusters there is a ladder of this name. The last 5,000 jobs are looked at.
#[utoipa::path(get, path = "/api/v1/ladders/{name}", tag = "Training",
    params(("name" = String, Path, description = "The text of the tag `ladder`, percent-encoded as one segment")),
    responses((status = 200, body = LadderPlaces)))]
pub async fn ladder_places(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Place(name): Place<String>,
) -> Result<Json<LadderPlaces>, Problem> {
    let asked = (grant.cluster.as_ref(), name.as_str());
    let found = ladder::places(&web.app, &web.step_views, asked).await;
    let found = found.map_err(|error| Problem::store(&error))?;
    Ok(Json(LadderPlaces {
        clusters: found.clusters.iter().map(|it| it.to_string()).collect(),
        are_all: found.are_all,
        name,
    }))
}

/// A ladder: each job with the tag `ladder` of this name by its last attempt, against the one before it
/// and against the first. At most 16, the last ones.
#[utoipa::path(get, path = "/api/v1/ladders/{cluster}/{name}", tag = "Training",
    params(("cluster" = String, Path, description = "The cluster's name"), ("name" = String, Path, description = "The text of the tag `ladder`, percent-encoded as one segment")),
    responses((status = 200, body = Ladder), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn ladder(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Place((cluster, name)): Place<(String, String)>,
) -> Result<Json<Ladder>, Problem> {
    let unknown = || Problem::unknown("no run of this cluster has the tag `ladder` with this text");
    if !grant.may_see(&cluster) {
        return Err(unknown());
    }
    let cluster: Arc<str> = cluster.into();
    let found = ladder::read(&web.app, &web.step_views, (&cluster, &name)).await;
    let found = found.map_err(|error| Problem::store(&error))?;
    if found.rungs.is_empty() {
        return Err(unknown());
    }
    let rung = |it: ladder::Rung| Rung {
        rung: it.compared.facts.tags.get(RUNG).cloned(),
        compared: compared(&it.compared),
        against_before: it.step.map(AgainstIt::of),
        against_first: it.whole.map(AgainstIt::of),
    };
    Ok(Json(Ladder {
        rungs: found.rungs.into_iter().map(rung).collect(),
        left_out: found.left_out,
        currency: web.app.currency().to_owned(),
        cluster,
        name,
    }))
}

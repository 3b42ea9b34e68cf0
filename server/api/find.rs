//! `/find`: nodes, GPUs and jobs by a part of their name.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::problem::{Asked, Problem};
use crate::auth::Grant;
use crate::find::{self, Few, Match};
use crate::web::Web;

/// What is looked for.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct FindAsked {
    /// A part of a name: of a node, of a GPU (its id, `node/index`, who holds it) or of a training job. Small and
    /// capital letters are the same. Nothing is found where it is empty.
    #[param(max_length = 256)]
    pub q: Option<String>,
}

/// What has it in its name.
#[derive(Debug, Serialize, ToSchema)]
pub struct FoundNames {
    /// Nodes, also those of which no agent tells.
    pub nodes: FoundKind,
    /// GPUs, and shares of them.
    pub gpus: FoundKind,
    /// Training jobs, each by its last attempt or the one that was named.
    pub jobs: FoundKind,
    /// Why there may be more jobs; absent where all that are kept were looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_all_jobs: Option<String>,
}

/// Those of a kind.
#[derive(Debug, Serialize, ToSchema)]
pub struct FoundKind {
    /// The first 20; those whose whole name was asked for go before.
    pub items: Vec<FoundName>,
    /// How many there are beyond.
    pub more: usize,
}

/// One of them.
#[derive(Debug, Serialize, ToSchema)]
pub struct FoundName {
    /// Its cluster.
    pub cluster: Arc<str>,
    /// `live`, `recorded` or `simulated`.
    pub origin: &'static str,
    /// What people call it.
    pub name: String,
    /// What else tells it from others, in words.
    pub about: String,
    /// The address of its page on this server.
    pub page: String,
}

/// Nodes, GPUs and jobs by a part of their name.
#[utoipa::path(get, path = "/api/v1/find", tag = "Fleet", params(FindAsked),
    responses((status = 200, body = FoundNames)))]
pub async fn find(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Asked(asked): Asked<FindAsked>,
) -> Result<Json<FoundNames>, Problem> {
    let view = web.views.get(&web.app).await.seen_with(&grant);
    let text = asked.q.unwrap_or_default();
    let found = find::find(&web.app, &web.names, &view, &grant, &text).await;
    let found = found.map_err(Problem::bad)?;
    Ok(Json(FoundNames {
        nodes: kind(found.nodes),
        gpus: kind(found.gpus),
        jobs: kind(found.jobs),
        not_all_jobs: found.not_all_jobs,
    }))
}

fn kind(few: Few) -> FoundKind {
    let more = few.more();
    let name = |it: Match| FoundName {
        cluster: it.cluster,
        origin: it.origin.name(),
        name: it.name,
        about: it.about,
        page: it.address,
    };
    FoundKind {
        items: few.told.into_iter().map(name).collect(),
        more,
    }
}

//! `/fleet`, `/clusters`, `/nodes`, `/gpus`: what is there now.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use gpufleet_analysis::ledger;
use gpufleet_telemetry::identity::Origin;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::paging::{Page, Paging};
use super::problem::{Asked, Place, Problem};
use super::shape::{self, Gpu, Node, ReadingNow, StateCounts};
use crate::auth::Grant;
use crate::fleet::live::Live;
use crate::inventory;
use crate::view::forgotten::{self, WithNode};
use crate::view::judge::NodesNow;
use crate::view::{ClusterView, FleetView, GpuView, NodeView, gather};
use crate::web::Web;
use crate::words::text;

/// Longest name of an unknown state that is told, characters: those that are known stand behind it.
const STATE_CHARACTERS: usize = 40;

/// The whole fleet in numbers. What is recorded or simulated has counts of its own.
#[derive(Debug, Serialize, ToSchema)]
pub struct Fleet {
    /// When the picture was made.
    #[schema(format = DateTime)]
    pub at: String,
    /// GPUs read from hardware now.
    pub live: StateCounts,
    /// GPUs played back from recordings; in no live total.
    pub recorded: StateCounts,
    /// GPUs made by the simulator; in no live total.
    pub simulated: StateCounts,
    /// Nodes of live clusters that are silent.
    pub silent_nodes: usize,
}

/// A cluster, or the part of it that has one origin.
#[derive(Debug, Serialize, ToSchema)]
pub struct Cluster {
    /// Its name.
    pub name: Arc<str>,
    /// `live`, `recorded` or `simulated`.
    pub origin: &'static str,
    /// Nodes in it.
    pub nodes: usize,
    /// Nodes that are silent.
    pub silent_nodes: usize,
    /// Its GPUs counted.
    pub counts: StateCounts,
}

/// A node with its GPUs and its own readings.
#[derive(Debug, Serialize, ToSchema)]
pub struct NodeDetail {
    /// What the list has.
    #[serde(flatten)]
    pub node: Node,
    /// What is known of the machine: boot id, versions.
    pub attributes: BTreeMap<String, String>,
    /// Its GPUs.
    pub gpus: Vec<Gpu>,
    /// Every reading of the machine and of the agent on it.
    pub readings: Vec<ReadingNow>,
}

/// A GPU with every reading.
#[derive(Debug, Serialize, ToSchema)]
pub struct GpuDetail {
    /// What the list has.
    #[serde(flatten)]
    pub gpu: Gpu,
    /// What is known of it: PCI address, serial number, driver.
    pub attributes: BTreeMap<String, String>,
    /// Every reading, in the order of the catalog.
    pub all_readings: Vec<ReadingNow>,
}

/// Which nodes.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct NodeFilter {
    /// Of this cluster.
    pub cluster: Option<String>,
    /// `live`, `recorded` or `simulated`.
    pub origin: Option<String>,
    /// Only silent ones, or only those that report.
    pub silent: Option<bool>,
    /// Most items of the answer, 1 to 1000.
    #[param(default = 200, minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
    /// The `next` of the answer before; without it the first page.
    pub after: Option<String>,
}

/// Which GPUs.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct GpuFilter {
    /// Of this cluster.
    pub cluster: Option<String>,
    /// On this node.
    pub node: Option<String>,
    /// `live`, `recorded` or `simulated`.
    pub origin: Option<String>,
    /// In this state, or in one of several with commas between them. A GPU whose state changes between two pages may be in
    /// none of them; no other is left out or comes twice.
    #[param(example = "parked,held_empty")]
    pub state: Option<String>,
    /// Most items of the answer, 1 to 1000.
    #[param(default = 200, minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
    /// The `next` of the answer before; without it the first page.
    pub after: Option<String>,
}

/// The fleet in numbers.
#[utoipa::path(get, path = "/api/v1/fleet", tag = "Fleet",
    responses((status = 200, body = Fleet)))]
pub async fn fleet(State(web): State<Arc<Web>>, Extension(grant): Extension<Grant>) -> Json<Fleet> {
    let view = seen(&web, &grant).await;
    let counts = |origin| StateCounts::from(&view.counts(origin));
    Json(Fleet {
        at: text::rfc3339(view.at),
        live: counts(Origin::Live),
        recorded: counts(Origin::Recorded),
        simulated: counts(Origin::Simulated),
        silent_nodes: view.of(Origin::Live).map(|cluster| silent(cluster)).sum(),
    })
}

/// Every cluster. One with data of several origins has an entry for each.
#[utoipa::path(get, path = "/api/v1/clusters", tag = "Fleet", params(Paging),
    responses((status = 200, body = Page<Cluster>)))]
pub async fn clusters(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Asked(paging): Asked<Paging>,
) -> Result<Json<Page<Cluster>>, Problem> {
    let view = seen(&web, &grant).await;
    paging
        .page(
            view.clusters.iter(),
            |words| match words {
                [origin, name] => Some((Origin::parse(origin)?, name.clone())),
                _ => None,
            },
            |it, after: &(Origin, String)| (it.origin, &*it.name) > (after.0, after.1.as_str()),
            |it| vec![it.origin.name().to_owned(), it.name.to_string()],
            |it| Cluster {
                name: Arc::clone(&it.name),
                origin: it.origin.name(),
                nodes: it.nodes.len(),
                silent_nodes: silent(it),
                counts: StateCounts::from(&it.counts),
            },
        )
        .map(Json)
}

/// Nodes, by origin, cluster and name.
#[utoipa::path(get, path = "/api/v1/nodes", tag = "Fleet", params(NodeFilter),
    responses((status = 200, body = Page<Node>)))]
pub async fn nodes(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Asked(filter): Asked<NodeFilter>,
) -> Result<Json<Page<Node>>, Problem> {
    let origin = origin(filter.origin.as_deref())?;
    let cluster = Problem::of_cluster(&grant, filter.cluster.as_deref())?;
    let view = seen(&web, &grant).await;
    let all = places(&view, cluster.as_deref(), origin).filter(|(_, node)| {
        filter
            .silent
            .is_none_or(|it| it == node.silent_since.is_some())
    });
    let paging = Paging {
        limit: filter.limit,
        after: filter.after.clone(),
    };
    paging
        .page(
            all,
            |words| match words {
                [origin, cluster, node] => {
                    Some((Origin::parse(origin)?, cluster.clone(), node.clone()))
                }
                _ => None,
            },
            |(cluster, node), after: &(Origin, String, String)| {
                let (origin, of, name) = after;
                (cluster.origin, &*cluster.name, &*node.name)
                    > (*origin, of.as_str(), name.as_str())
            },
            |(cluster, node)| {
                vec![
                    cluster.origin.name().to_owned(),
                    cluster.name.to_string(),
                    node.name.to_string(),
                ]
            },
            |(cluster, node)| Node::of(&cluster.name, cluster.origin.name(), node),
        )
        .map(Json)
}

/// One node with its GPUs and readings.
///
/// One that is silent for so long that it is in no list (`fleet.forget_after_s`) is as it was last heard, without
/// readings.
#[utoipa::path(get, path = "/api/v1/nodes/{cluster}/{node}", tag = "Fleet",
    params(("cluster" = String, Path, description = "The cluster's name"), ("node" = String, Path, description = "The node's name")),
    responses((status = 200, body = NodeDetail), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn node(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Place((cluster, name)): Place<(String, String)>,
) -> Result<Json<NodeDetail>, Problem> {
    let view = seen(&web, &grant).await;
    let names = (cluster.as_str(), name.as_str());
    let found = forgotten::with_node(&web.app, view, &grant, names).await;
    let WithNode { view, live, .. } = found.map_err(|error| Problem::store(&error))?;
    let Some((part, found)) = view.node(&cluster, &name) else {
        return Err(Problem::unknown(format_args!(
            "no node “{name}” in cluster “{cluster}”; /api/v1/nodes lists them"
        )));
    };
    Ok(Json(NodeDetail {
        node: Node::of(&part.name, part.origin.name(), found),
        attributes: live
            .as_ref()
            .map(|it| it.resource.attributes.clone().into_iter().collect())
            .unwrap_or_default(),
        gpus: found.gpus.iter().map(Gpu::from).collect(),
        readings: live.as_ref().map(shape::readings).unwrap_or_default(),
    }))
}

/// GPUs, by origin, cluster, node and index.
#[utoipa::path(get, path = "/api/v1/gpus", tag = "Fleet", params(GpuFilter),
    responses((status = 200, body = Page<Gpu>)))]
pub async fn gpus(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Asked(filter): Asked<GpuFilter>,
) -> Result<Json<Page<Gpu>>, Problem> {
    let origin = origin(filter.origin.as_deref())?;
    let states = states(filter.state.as_deref())?;
    let cluster = Problem::of_cluster(&grant, filter.cluster.as_deref())?;
    let view = seen(&web, &grant).await;
    let all = places(&view, cluster.as_deref(), origin)
        .filter(|(_, node)| filter.node.as_deref().is_none_or(|it| it == &*node.name))
        .flat_map(|(_, node)| &node.gpus)
        .filter(|gpu| states.as_ref().is_none_or(|it| it.contains(&gpu.state)));
    let paging = Paging {
        limit: filter.limit,
        after: filter.after.clone(),
    };
    let index = |gpu: &GpuView| gpu.index.unwrap_or(u32::MAX);
    paging
        .page(
            all,
            |words| match words {
                [origin, cluster, node, index, id] => Some((
                    Origin::parse(origin)?,
                    cluster.clone(),
                    node.clone(),
                    index.parse().ok()?,
                    id.clone(),
                )),
                _ => None,
            },
            |gpu, after: &(Origin, String, String, u32, String)| {
                let (origin, cluster, node, number, id) = after;
                let of = (gpu.origin, &*gpu.key.cluster, &*gpu.node);
                (of, index(gpu), &*gpu.key.id)
                    > (
                        (*origin, cluster.as_str(), node.as_str()),
                        *number,
                        id.as_str(),
                    )
            },
            |gpu| {
                vec![
                    gpu.origin.name().to_owned(),
                    gpu.key.cluster.to_string(),
                    gpu.node.to_string(),
                    index(gpu).to_string(),
                    gpu.key.id.to_string(),
                ]
            },
            Gpu::from,
        )
        .map(Json)
}

/// One GPU or share with every reading.
///
/// One that is silent for so long that it is in no list (`fleet.forget_after_s`) is as it was last heard, without
/// readings.
#[utoipa::path(get, path = "/api/v1/gpus/{cluster}/{id}", tag = "Fleet",
    params(("cluster" = String, Path, description = "The cluster's name"), ("id" = String, Path, description = "The GPU's or share's id")),
    responses((status = 200, body = GpuDetail), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn gpu(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Place((cluster, id)): Place<(String, String)>,
) -> Result<Json<GpuDetail>, Problem> {
    let live = find_gpu(&web, &grant, &cluster, &id).await?;
    let view = seen(&web, &grant).await;
    let gpu = match view.gpu(&live.key) {
        Some(gpu) => Gpu::from(gpu),
        None => {
            let now = inventory::now(&web.app);
            let nodes = NodesNow::of(&web.app.fleet, &web.app.inventory, now);
            Gpu::from(&gather::gpu_view(&live, now.at, &nodes))
        }
    };
    Ok(Json(GpuDetail {
        gpu,
        attributes: live.resource.attributes.clone().into_iter().collect(),
        all_readings: shape::readings(&live),
    }))
}

/// A GPU or share as it is now, or as it was when it was last heard.
///
/// # Errors
/// 404 when the cluster never had such a GPU, or the token may not see the cluster; 503 when the store is needed and
/// does not answer.
pub async fn find_gpu(web: &Web, grant: &Grant, cluster: &str, id: &str) -> Result<Live, Problem> {
    let found = forgotten::gpu(&web.app, grant, cluster, id).await;
    let found = found.map_err(|error| Problem::store(&error))?;
    found.map(|it| it.live).ok_or_else(|| {
        Problem::unknown(format_args!(
            "no GPU “{id}” in cluster “{cluster}”; /api/v1/gpus lists them"
        ))
    })
}

async fn seen(web: &Web, grant: &Grant) -> Arc<FleetView> {
    web.views.get(&web.app).await.seen_with(grant)
}

fn silent(cluster: &ClusterView) -> usize {
    cluster
        .nodes
        .iter()
        .filter(|node| node.silent_since.is_some())
        .count()
}

fn places<'a>(
    view: &'a FleetView,
    cluster: Option<&'a str>,
    origin: Option<Origin>,
) -> impl Iterator<Item = (&'a Arc<ClusterView>, &'a NodeView)> {
    view.clusters
        .iter()
        .filter(move |it| cluster.is_none_or(|name| name == &*it.name))
        .filter(move |it| origin.is_none_or(|origin| origin == it.origin))
        .flat_map(|cluster| cluster.nodes.iter().map(move |node| (cluster, node)))
}

fn origin(name: Option<&str>) -> Result<Option<Origin>, Problem> {
    name.map(|name| {
        Origin::parse(name).ok_or_else(|| {
            Problem::bad(format_args!(
                "origin=“{name}”: it is live, recorded or simulated"
            ))
        })
    })
    .transpose()
}

/// The states that are named, with commas between them.
fn states(names: Option<&str>) -> Result<Option<BTreeSet<ledger::State>>, Problem> {
    let state = |name: &str| {
        ledger::State::parse(name).ok_or_else(|| {
            let known = ledger::State::ALL.map(ledger::State::name).join(", ");
            let name = text::harmless(name, STATE_CHARACTERS);
            Problem::bad(format_args!(
                "state=“{name}”: it is one of {known}, or several with commas between them"
            ))
        })
    };
    names
        .map(|it| {
            let states = it.split(',').map(state);
            states.collect::<Result<BTreeSet<_>, Problem>>()
        })
        .transpose()
}

//! `/queue`: who waits for GPUs and why, what is free, the largest gang that fits, nodes that are not well.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use gpufleet_analysis::inventory::change::Change;
use gpufleet_analysis::inventory::place::{Gang, Pool};
use gpufleet_analysis::inventory::{Record, Waiting, why};
use gpufleet_telemetry::time::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::problem::Problem;
use crate::auth::Grant;
use crate::inventory::look::{Look, Sight};
use crate::inventory::now;
use crate::web::Web;
use crate::words::text;

/// Whether something of the cluster is seen.
#[derive(Debug, Serialize, ToSchema)]
pub struct SeenOf {
    /// `seen`, `starting`, `stale`, `never_seen` or `nobody_tells`.
    pub state: &'static str,
    /// Of `stale` the moment from which what is told is.
    #[schema(format = DateTime)]
    pub last_seen: Option<String>,
    /// What is the case, where it is not `seen`.
    pub why: Option<String>,
    /// What mends it.
    pub fix: Option<String>,
}

/// All that waits of one workload for one reason.
#[derive(Debug, Serialize, ToSchema)]
pub struct WaitingRow {
    /// Its namespace, or Slurm's account.
    pub namespace: String,
    /// `jobset:namespace/name`, `job:…`, `pod:…`, `slurm:4711`.
    pub workload: String,
    /// Its queue; null where it has none.
    pub queue: Option<String>,
    /// Pods that wait; 1 for a job of Slurm, and for pods of one kind that are not made yet.
    pub pods: usize,
    /// GPUs that they wait for; of `is_shares` shares of GPUs.
    pub gpus: u64,
    /// GPUs of each pod, or of each node of a job.
    pub gpus_per_pod: u32,
    /// Whether these are shares of GPUs.
    pub is_shares: bool,
    /// The type of GPU that it insists on; null where any will do, or its affinity says it.
    pub gpu_type: Option<String>,
    /// Since when the first of them waits.
    #[schema(format = DateTime)]
    pub since: String,
    /// `no_place`, `held_back`, `held_by_owner` (no demand, and not in `gpus_waited_for`) or `not_tried`.
    pub reason: &'static str,
    /// The scheduler's words; null where it said nothing.
    pub scheduler_says: Option<String>,
    /// The same in plain sentences.
    pub plainly: Vec<String>,
    /// How many pods of this size would fit now on nodes of the type that it insists on and whose taints it
    /// tolerates, of a job that names partitions in one of these; affinity, CPU and memory are not looked at. Null
    /// of shares, and where what is free is not known.
    pub pods_that_fit: Option<u64>,
    /// What the autoscaler said last; null where it said nothing in the last hour.
    pub autoscaler: Option<AutoscalerSaid>,
}

/// What the autoscaler does for what waits.
#[derive(Debug, Serialize, ToSchema)]
pub struct AutoscalerSaid {
    /// `adds_nodes`, `adds_none` or `failed`.
    pub what: &'static str,
    /// When it said so.
    #[schema(format = DateTime)]
    pub at: String,
    /// In its words.
    pub says: String,
}

/// A gang that could begin now.
#[derive(Debug, Serialize, ToSchema)]
pub struct GangNow {
    /// The partition of Slurm's that it fits in; null where nodes tell none.
    pub partition: Option<String>,
    /// GPUs of each pod.
    pub gpus_per_pod: u32,
    /// Pods that fit together.
    pub pods: u32,
    /// GPUs of all of them.
    pub gpus: u64,
    /// The most of its pods in one block of the topology; null where nodes tell no blocks.
    pub pods_in_one_block: Option<u32>,
}

/// The nodes of one type of GPU in one zone.
#[derive(Debug, Serialize, ToSchema)]
pub struct PoolNow {
    /// The type as the cluster names it; null where it does not.
    pub gpu_type: Option<String>,
    /// The zone; null where not told.
    pub zone: Option<String>,
    /// Nodes that are there.
    pub nodes: usize,
    /// Their GPUs.
    pub gpus: u64,
    /// GPUs that something bound to a node has asked for; null where that is not known.
    pub held: Option<u64>,
    /// GPUs that could be given out now; null where that is not known.
    pub free: Option<u64>,
    /// GPUs that nobody has and that a taint keeps for others; null where that is not known.
    pub kept_for_others: Option<u64>,
    /// Nodes that come up.
    pub starting_nodes: usize,
    /// Nodes that were ready and are not.
    pub not_ready_nodes: usize,
    /// Nodes that take nothing new.
    pub cordoned_nodes: usize,
    /// Nodes whose GPUs are given out in shares: in no gang and no count of GPUs.
    pub shared_nodes: usize,
    /// The largest gangs that fit, by what each pod asks for; null where that is not known.
    pub largest_gangs: Option<Vec<GangNow>>,
    /// Partitions of which no gang is told: those with the least that is free, beyond the first six.
    pub partitions_left_out: usize,
}

/// A node that does not take work.
#[derive(Debug, Serialize, ToSchema)]
pub struct NodeLife {
    /// Its name.
    pub node: String,
    /// `starting`, `not_ready`, `cordoned` or `gone`.
    pub phase: &'static str,
    /// Since when.
    #[schema(format = DateTime)]
    pub since: String,
    /// Why; null where nobody says.
    pub why: Option<String>,
    /// GPUs that it has.
    pub gpus: u32,
    /// From when it is billed.
    #[schema(format = DateTime)]
    pub billed_from: String,
    /// When it was first ready; null before.
    #[schema(format = DateTime)]
    pub ready_at: Option<String>,
    /// When it was gone; null while it is there.
    #[schema(format = DateTime)]
    pub gone_at: Option<String>,
}

/// Something that happened to a node.
#[derive(Debug, Serialize, ToSchema)]
pub struct NodeChange {
    /// When it was seen.
    #[schema(format = DateTime)]
    pub at: String,
    /// The node.
    pub node: String,
    /// What, as the end of a sentence that begins with the node's name.
    #[schema(example = "is cordoned")]
    pub what: String,
}

/// Something that is asked for and not seen.
#[derive(Debug, Serialize, ToSchema)]
pub struct NotSeen {
    /// What is the case.
    pub why: String,
    /// What mends it.
    pub fix: String,
}

/// Who waits for GPUs, and what there is for them.
#[derive(Debug, Serialize, ToSchema)]
pub struct Queue {
    /// When this was so.
    #[schema(format = DateTime)]
    pub at: String,
    /// The cluster.
    pub cluster: String,
    /// Who tells it: `kubernetes`, `slurm`, `static` or `off`.
    pub source: &'static str,
    /// Whether nodes are seen.
    pub nodes: SeenOf,
    /// Whether it is seen who holds GPUs and who waits.
    pub claims: SeenOf,
    /// What else is asked for and not seen, each with what mends it: what waits before it has pods, the autoscaler.
    pub not_seen_besides: Vec<NotSeen>,
    /// Who waits, the longest first, at most 200; null where it is not known.
    pub waiting: Option<Vec<WaitingRow>>,
    /// Rows and pods beyond those.
    pub more_waiting: usize,
    /// GPUs that all of them wait for, without what owners hold back; null where it is not known.
    pub gpus_waited_for: Option<u64>,
    /// GPUs of what owners hold back, which is no demand; null where it is not known.
    pub gpus_held_by_owners: Option<u64>,
    /// By type of GPU and zone; null where nodes are not known.
    pub capacity: Option<Vec<PoolNow>>,
    /// Nodes that do not take work, or went in the last hour, at most 200.
    pub unwell_nodes: Vec<NodeLife>,
    /// Nodes beyond those.
    pub more_unwell_nodes: usize,
    /// Nodes that this server has no room for: they are in no count.
    pub nodes_left_out: usize,
    /// What happened to nodes in the last hour, the newest first, at most 200.
    pub changes: Vec<NodeChange>,
    /// Changes beyond those.
    pub more_changes: usize,
}

/// Who waits for GPUs, since when and why; what is free, and the largest gang that could begin now. What is
/// not seen is null, with why and what mends it, and never 0.
#[utoipa::path(get, path = "/api/v1/queue", tag = "Fleet",
    responses((status = 200, body = Queue), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn queue(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
) -> Result<Json<Queue>, Problem> {
    let now = now(&web.app);
    let look = web.app.inventory.look(&grant, now);
    let look = look.ok_or_else(|| {
        Problem::unknown("this token is bound to another cluster than the one whose queue this is")
    })?;
    Ok(Json(shown(look, now.at)))
}

fn shown(look: Look, at: Timestamp) -> Queue {
    let is_free_known = look.is_free_known;
    let pool = |it: Pool| {
        let known = |it| is_free_known.then_some(it);
        let gangs = it.gangs.iter().map(gang).collect();
        PoolNow {
            gpu_type: some(it.model),
            zone: some(it.zone),
            nodes: it.nodes,
            gpus: it.gpus,
            held: known(it.held),
            free: known(it.free),
            kept_for_others: known(it.kept),
            starting_nodes: it.starting,
            not_ready_nodes: it.not_ready,
            cordoned_nodes: it.cordoned,
            shared_nodes: it.shared,
            largest_gangs: is_free_known.then_some(gangs),
            partitions_left_out: it.partitions_left_out,
        }
    };
    Queue {
        at: text::rfc3339(at),
        cluster: look.cluster,
        source: look.source,
        nodes: seen(&look.nodes, "nodes", at),
        claims: seen(&look.claims, "claims", at),
        not_seen_besides: look
            .besides
            .into_iter()
            .map(|it| NotSeen {
                why: it.what,
                fix: it.fix,
            })
            .collect(),
        waiting: look.waiting.map(|all| {
            let rows = all.into_iter().zip(look.places);
            rows.map(|(it, places)| row(it, places)).collect()
        }),
        more_waiting: look.more_waiting,
        gpus_waited_for: look.gpus_waited_for,
        gpus_held_by_owners: look.gpus_held_by_owners,
        capacity: look.pools.map(|all| all.into_iter().map(pool).collect()),
        unwell_nodes: look.unwell.iter().map(node).collect(),
        more_unwell_nodes: look.more_unwell,
        nodes_left_out: look.nodes_left_out,
        changes: look.changes.into_iter().map(change).collect(),
        more_changes: look.more_changes,
    }
}

fn seen(sight: &Sight, what: &str, at: Timestamp) -> SeenOf {
    let told = sight.told(what, at);
    SeenOf {
        state: sight.name(),
        last_seen: match sight {
            Sight::Stale { since, .. } => Some(text::rfc3339(*since)),
            _ => None,
        },
        why: told.as_ref().map(|it| it.what.clone()),
        fix: told.map(|it| it.fix),
    }
}

fn row(it: Waiting, places: Option<u64>) -> WaitingRow {
    let Waiting {
        first,
        claims,
        gpus,
        scaler,
    } = it;
    WaitingRow {
        pods_that_fit: places,
        autoscaler: scaler.map(|it| AutoscalerSaid {
            what: it.what.name(),
            at: text::rfc3339(it.at),
            says: it.words,
        }),
        plainly: why::plain(first.reason, &first.words),
        namespace: first.namespace,
        workload: first.workload,
        queue: some(first.queue),
        pods: claims,
        gpus,
        gpus_per_pod: first.gpus_each,
        is_shares: first.is_shares,
        gpu_type: some(first.model),
        since: text::rfc3339(first.since),
        reason: first.reason.name(),
        scheduler_says: some(first.words),
    }
}

fn gang(it: &Gang) -> GangNow {
    GangNow {
        partition: some(it.partition.clone()),
        gpus_per_pod: it.gpus_each,
        pods: it.pods,
        gpus: it.gpus(),
        pods_in_one_block: it.in_one_block,
    }
}

fn node(it: &Record) -> NodeLife {
    NodeLife {
        node: it.node.name.clone(),
        phase: it.phase().name(),
        since: text::rfc3339(it.phase_since),
        why: some(it.node.trouble.clone()),
        gpus: it.node.gpus,
        billed_from: text::rfc3339(it.billed_from()),
        ready_at: it.ready_at.map(text::rfc3339),
        gone_at: it.gone_at.map(text::rfc3339),
    }
}

fn change(it: Change) -> NodeChange {
    NodeChange {
        at: text::rfc3339(it.at),
        node: it.node,
        what: it.what,
    }
}

/// A text, where there is one.
fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

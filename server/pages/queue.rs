//! The queue and capacity: who waits for GPUs and why, what is free, the largest gang that fits, nodes that
//! are not well, what happened to them in the last hour.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use gpufleet_analysis::inventory::place::{Gang, Pool};
use gpufleet_analysis::inventory::{Record, Waiting, why};
use gpufleet_telemetry::time::Timestamp;

use super::frame::{self, Frame};
use super::problem;
use crate::inventory::look::{Look, Sight, Told};
use crate::inventory::now;
use crate::view::FleetView;
use crate::web::Web;
use crate::words::address;
use crate::words::text::{self, Name, counted, grouped};

/// Longest a scheduler's words are shown, characters.
const WORDS: usize = 600;

#[derive(Template)]
#[template(path = "queue.html")]
struct QueuePage {
    frame: Frame,
    /// Who waits, in one line without its full stop.
    waits: String,
    /// What is free, likewise.
    free: String,
    notes: Vec<Told>,
    waiting: Option<Vec<Row>>,
    more_waiting: usize,
    pools: Option<Vec<PoolRow>>,
    is_free_known: bool,
    unwell: Vec<NodeRow>,
    more_unwell: usize,
    left_out: usize,
    knows_nodes: bool,
    changes: Vec<ChangeRow>,
    more_changes: usize,
}

/// All that waits of one workload.
struct Row {
    workload: Name,
    queue: Option<Name>,
    wants: String,
    model: Option<Name>,
    since: String,
    ago: String,
    plainly: Vec<String>,
    words: Option<String>,
    /// What the autoscaler does, and in its words.
    scaler: Option<(&'static str, String)>,
    /// What would fit now.
    fits: Option<String>,
}

struct PoolRow {
    model: String,
    zone: String,
    nodes: String,
    gpus: String,
    held: String,
    free: String,
    apart: Vec<String>,
    gangs: Vec<String>,
}

struct NodeRow {
    name: Name,
    /// Its page, where an agent tells of it.
    address: Option<String>,
    phase: &'static str,
    is_bad: bool,
    since: String,
    why: String,
    gpus: u32,
}

struct ChangeRow {
    at: String,
    datetime: String,
    node: Name,
    what: String,
}

/// `GET /queue`.
pub async fn show(State(web): State<Arc<Web>>, frame: Frame) -> Response {
    let now = now(&web.app);
    let Some(look) = web.app.inventory.look(&frame.grant, now) else {
        return problem::not_found(
            frame,
            "This is another cluster's queue".to_owned(),
            vec!["The token that you signed in with is bound to one cluster, and this server sees the queue of another.".to_owned()],
        );
    };
    let view = web.views.get(&web.app).await;
    let page = page((look, &view), now.at, frame);
    frame::page(StatusCode::OK, &page)
}

fn page((look, view): (Look, &FleetView), at: Timestamp, frame: Frame) -> QueuePage {
    let notes = [look.nodes.told("nodes", at), look.claims.told("claims", at)];
    let mut notes: Vec<Told> = notes.into_iter().flatten().collect();
    // Where pods are not seen, what has none yet is the least of it.
    if look.claims == Sight::Seen {
        notes.extend(look.besides.iter().cloned());
    }
    // Nobody is asked for either: once is enough.
    notes.dedup_by(|one, other| one.fix == other.fix && look.source == "off");
    let known = look.is_free_known;
    let cluster = look.cluster.clone();
    QueuePage {
        waits: waits(&look),
        free: free(&look),
        notes,
        waiting: look.waiting.map(|all| {
            let rows = all.into_iter().zip(look.places);
            rows.map(|(it, places)| row(it, places, at)).collect()
        }),
        more_waiting: look.more_waiting,
        pools: look
            .pools
            .map(|all| all.iter().map(|it| pool(it, known)).collect()),
        is_free_known: known,
        unwell: look
            .unwell
            .iter()
            .map(|it| node(it, view.node(&cluster, &it.node.name).is_some(), &cluster))
            .collect(),
        more_unwell: look.more_unwell,
        left_out: look.nodes_left_out,
        knows_nodes: look.nodes.is_known(),
        changes: look
            .changes
            .into_iter()
            .map(|it| ChangeRow {
                at: text::clock_time(it.at),
                datetime: text::rfc3339(it.at),
                node: Name::new(&it.node),
                what: text::harmless(&it.what, WORDS),
            })
            .collect(),
        more_changes: look.more_changes,
        frame,
    }
}

/// Who waits, and whether that was so when it was last seen.
fn waits(look: &Look) -> String {
    let all = look.waiting.as_ref().map(Vec::len);
    let all = all.map(|rows| rows + look.more_waiting);
    let wanted = all.map(|all| all.saturating_sub(look.held_by_owners));
    let mut waits = match (wanted, look.gpus_waited_for) {
        (None, _) => "Who waits for GPUs is not known".to_owned(),
        (Some(0), _) | (_, None) => "Nobody waits for GPUs".to_owned(),
        (_, Some(0)) => "Nobody waits for whole GPUs, some wait for shares".to_owned(),
        (Some(wanted), Some(gpus)) => format!(
            "{} {} for {}",
            counted(wanted, "workload", "workloads"),
            if wanted == 1 { "waits" } else { "wait" },
            counted(usize::try_from(gpus).unwrap_or(usize::MAX), "GPU", "GPUs"),
        ),
    };
    if look.held_by_owners > 0 {
        let held = counted(look.held_by_owners, "workload", "workloads");
        waits += &format!(", and owners hold {held} back");
    }
    let is_old = |it: &Sight| matches!(it, Sight::Stale { .. });
    match is_old(&look.nodes) || is_old(&look.claims) {
        true => format!("When it was last seen: {waits}"),
        false => waits,
    }
}

/// How much is free.
fn free(look: &Look) -> String {
    match look.pools.as_ref().filter(|_| look.is_free_known) {
        Some(pools) => {
            let free: u64 = pools.iter().map(|it| it.free).sum();
            format!("{} free", grouped(free as f64))
        }
        None => "what is free is not known".to_owned(),
    }
}

fn row(it: Waiting, places: Option<u64>, at: Timestamp) -> Row {
    let first = it.first;
    let thing = |count: u64| match first.is_shares {
        true => counted(
            usize::try_from(count).unwrap_or(usize::MAX),
            "share",
            "shares",
        ),
        false => counted(usize::try_from(count).unwrap_or(usize::MAX), "GPU", "GPUs"),
    };
    let each = match (it.claims, first.places) {
        (1, 1) => String::new(),
        (1, places) => format!(", {places} places of {}", first.gpus_each),
        (pods, _) => format!(", {pods} pods of {}", first.gpus_each),
    };
    Row {
        workload: Name::new(&first.workload),
        queue: (!first.queue.is_empty()).then(|| Name::new(&first.queue)),
        wants: thing(it.gpus) + &each,
        model: (!first.model.is_empty()).then(|| Name::new(&first.model)),
        since: text::moment(first.since),
        ago: text::ago(at, first.since),
        plainly: why::plain(first.reason, &first.words)
            .iter()
            .map(|it| text::harmless(it, WORDS))
            .collect(),
        words: (!first.words.is_empty()).then(|| text::harmless(&first.words, WORDS)),
        scaler: it
            .scaler
            .map(|it| (it.what.plain(), text::harmless(&it.words, WORDS))),
        fits: places.map(|places| {
            let pods = counted(usize::try_from(places).unwrap_or(usize::MAX), "pod", "pods");
            let by = match first.partitions.is_empty() {
                true => "type and taints",
                false => "type and partition",
            };
            format!("By GPUs, {by} {pods} of {} would fit now.", first.gpus_each)
        }),
    }
}

fn pool(it: &Pool, is_free_known: bool) -> PoolRow {
    let named = |text: &str| match text {
        "" => "not told".to_owned(),
        text => text::harmless(text, text::SHOWN_CHARACTERS),
    };
    let known = |count: u64| match is_free_known {
        true => grouped(count as f64),
        false => "not known".to_owned(),
    };
    let apart = [
        (it.starting, "starting"),
        (it.not_ready, "not ready"),
        (it.cordoned, "cordoned"),
        (it.shared, "shared"),
    ];
    let apart = apart.into_iter().filter(|(count, _)| *count > 0);
    let mut apart: Vec<String> = apart
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if it.kept > 0 && is_free_known {
        apart.push(format!("{} GPUs kept for others by a taint", it.kept));
    }
    let left_out = (it.partitions_left_out > 0).then(|| {
        let partitions = text::counted(it.partitions_left_out, "partition", "partitions");
        format!("and {partitions} with less that is free")
    });
    PoolRow {
        model: named(&it.model),
        zone: named(&it.zone),
        nodes: grouped(it.nodes as f64),
        gpus: grouped(it.gpus as f64),
        held: known(it.held),
        free: known(it.free),
        apart,
        gangs: it.gangs.iter().map(gang).chain(left_out).collect(),
    }
}

fn gang(it: &Gang) -> String {
    let block = match it.in_one_block {
        Some(pods) => format!(", {pods} in one block"),
        None => String::new(),
    };
    let partition = match it.partition.as_str() {
        "" => String::new(),
        named => format!(
            " in partition {}",
            text::harmless(named, text::SHOWN_CHARACTERS)
        ),
    };
    let pods = counted(it.pods as usize, "pod", "pods");
    format!("{pods} of {}{partition}{block}", it.gpus_each)
}

fn node(it: &Record, has_page: bool, cluster: &str) -> NodeRow {
    use gpufleet_analysis::inventory::Phase;
    let phase = it.phase();
    NodeRow {
        name: Name::new(&it.node.name),
        address: has_page.then(|| address::node(cluster, &it.node.name)),
        phase: match phase {
            Phase::Starting => "starting",
            Phase::Ready => "ready",
            Phase::NotReady => "not ready",
            Phase::Cordoned => "cordoned",
            Phase::Gone => "gone",
        },
        is_bad: phase == Phase::NotReady,
        since: text::moment(it.phase_since),
        why: match it.node.trouble.as_str() {
            "" if phase == Phase::Starting && it.node.gpus == 0 => {
                "its GPUs are not there yet".to_owned()
            }
            "" => String::new(),
            why => text::harmless(why, WORDS),
        },
        gpus: it.node.gpus,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gang_is_said_with_its_partition_and_its_block_where_they_are_told() {
        let of = |partition: &str, in_one_block| {
            gang(&Gang {
                partition: partition.to_owned(),
                gpus_each: 8,
                pods: 3,
                in_one_block,
            })
        };
        assert_eq!(of("", None), "3 pods of 8");
        assert_eq!(of("", Some(2)), "3 pods of 8, 2 in one block");
        assert_eq!(of("long", None), "3 pods of 8 in partition long");
    }
}

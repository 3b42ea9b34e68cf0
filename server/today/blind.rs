//! Blind spots: what of the live fleet is not seen, since when, and what opens the eye.
//!
//! Limits: at most [`NAMED`] names per line; the count is always whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_analysis::inventory::Record;
use gpufleet_analysis::ledger::{Reason, State};
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;

use crate::App;
use crate::auth::Grant;
use crate::fleet::ServerClock;
use crate::inventory::Source;
use crate::inventory::look::Sight;
use crate::view::{ClusterView, FleetView, NodeView};
use crate::words::text::{self, Name, counted};
use crate::words::{self, address};

/// Names given before a line says "and n more".
const NAMED: usize = 6;

/// A spool that holds data older than this is called behind, seconds: what the agent itself calls so.
const BEHIND_SECONDS: f64 = 60.0;

/// One thing that is not seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlindSpot {
    /// What is not seen.
    pub what: String,
    /// What fixes it.
    pub fix: String,
    /// The line of the page Health about it.
    pub anchor: &'static str,
    /// Where: addresses with names.
    pub places: Vec<(String, Name)>,
    /// How many places are not named.
    pub more: usize,
}

/// A node with its cluster.
type Place<'a> = (&'a ClusterView, &'a NodeView);

/// What of the live clusters is not seen.
pub fn spots(view: &FleetView) -> Vec<BlindSpot> {
    let places: Vec<Place<'_>> = view
        .of(Origin::Live)
        .flat_map(|cluster| cluster.nodes.iter().map(move |node| (&**cluster, node)))
        .collect();
    let mut spots: Vec<BlindSpot> = clock(view.server_clock).into_iter().collect();
    silent(&mut spots, &places, view.at);
    readers(&mut spots, &places);
    unknown(&mut spots, &places);
    behind(&mut spots, &places);
    spots
}

/// The same with what the inventory knows: nodes with GPUs of which no agent tells, and whether the cluster
/// itself is seen where somebody was asked to tell it.
pub fn with_inventory(app: &App, grant: &Grant, view: &FleetView) -> Vec<BlindSpot> {
    let mut all = spots(view);
    let now = crate::inventory::now(app);
    let inventory = &app.inventory;
    if !tells(app, grant.cluster.as_deref()) {
        return all;
    }
    let blind = without_agent(app, grant.cluster.as_deref(), view);
    all.extend(unknown_nodes(&blind, inventory.source()));
    let sight = inventory.known().nodes.sight(now);
    // While it is read for the first time nothing is wrong yet.
    if sight != Sight::Starting
        && let Some(told) = sight.told("nodes", now.at)
    {
        all.push(BlindSpot {
            what: told.what,
            fix: told.fix,
            anchor: "cluster",
            places: vec![("/queue".to_owned(), Name::new("Queue"))],
            more: 0,
        });
    }
    all
}

/// Whether the inventory tells a reader anything who is bound to a cluster, or to none.
fn tells(app: &App, bound: Option<&str>) -> bool {
    let asked = app.inventory.cluster();
    *app.inventory.source() != Source::Off && bound.is_none_or(|it| it == &**asked)
}

/// Nodes with GPUs of which no agent tells, as far as a reader may see them who is bound to a cluster, or to none.
pub fn without_agent(app: &App, bound: Option<&str>, view: &FleetView) -> Vec<Record> {
    if !tells(app, bound) {
        return Vec::new();
    }
    let nodes = view.clusters.iter().flat_map(|cluster| &cluster.nodes);
    let told = app.inventory.told(nodes.map(|node| &*node.name));
    let now = crate::inventory::now(app);
    app.inventory.without_agent(&told, now)
}

fn unknown_nodes(blind: &[Record], source: &Source) -> Option<BlindSpot> {
    if blind.is_empty() {
        return None;
    }
    let gpus = blind.iter().map(|it| it.node.gpus);
    let gpus = gpus.fold(0, u32::saturating_add);
    // It has no page of its own: nothing is known of it here.
    let place = |it: &Record| ("/incidents".to_owned(), Name::new(&it.node.name));
    Some(BlindSpot {
        what: format!(
            "{} with {} and without an agent: nothing tells what they do.",
            counted(blind.len(), "node", "nodes"),
            counted(gpus as usize, "GPU", "GPUs"),
        ),
        fix: no_agent_fix(source).to_owned(),
        anchor: "no_agent",
        places: blind.iter().take(NAMED).map(place).collect(),
        more: blind.len().saturating_sub(NAMED),
    })
}

/// What says why nodes have no agent.
pub const fn no_agent_fix(source: &Source) -> &'static str {
    match source {
        Source::Kubernetes(_) => {
            "kubectl -n gpufleet describe daemonset gpufleet-agent says why no agent is there: a selector, a taint, an image that cannot be pulled."
        }
        _ => {
            "systemctl status gpufleet-agent on the node says whether one runs; if it does, node.name in its config is to be the name that the cluster gives the node."
        }
    }
}

/// The server's own clock, when that is what is wrong.
fn clock(clock: ServerClock) -> Option<BlindSpot> {
    Some(BlindSpot {
        what: clock.sentence()?,
        fix: "timedatectl on the server's machine says whether its clock is synchronised."
            .to_owned(),
        anchor: "server_clock",
        places: Vec::new(),
        more: 0,
    })
}

fn spot<'a>(
    what: String,
    (fix, anchor): (&str, &'static str),
    places: impl ExactSizeIterator<Item = Place<'a>>,
) -> BlindSpot {
    let more = places.len().saturating_sub(NAMED);
    BlindSpot {
        what,
        fix: fix.to_owned(),
        anchor,
        places: places
            .take(NAMED)
            .map(|(cluster, node)| {
                let address = address::node(&cluster.name, &node.name);
                (address, Name::new(&node.name))
            })
            .collect(),
        more,
    }
}

fn silent(spots: &mut Vec<BlindSpot>, places: &[Place<'_>], at: Timestamp) {
    let mut silent: Vec<(Timestamp, Place<'_>)> = places
        .iter()
        .filter_map(|place| Some((place.1.silent_since?, *place)))
        .collect();
    // The one that fell silent last is the news.
    silent.sort_by_key(|(since, _)| std::cmp::Reverse(*since));
    let (Some((newest, _)), Some((oldest, _))) = (silent.first(), silent.last()) else {
        return;
    };
    let gpus: usize = silent.iter().map(|(_, place)| place.1.gpus.len()).sum();
    let who = format!(
        "{} with {} silent",
        counted(silent.len(), "node", "nodes"),
        counted(gpus, "GPU", "GPUs")
    );
    let since = if newest == oldest {
        format!(
            "since {} UTC ({})",
            text::moment(*newest),
            text::ago(at, *newest)
        )
    } else {
        format!(
            "the newest {}, the oldest {}",
            text::ago(at, *newest),
            text::ago(at, *oldest)
        )
    };
    let fix = words::reason(Reason::NoSample).map_or("", |why| why.fix);
    spots.push(spot(
        format!("{who}: {since}."),
        (fix, "silent"),
        silent
            .into_iter()
            .map(|(_, place)| place)
            .collect::<Vec<_>>()
            .into_iter(),
    ));
}

fn readers(spots: &mut Vec<BlindSpot>, places: &[Place<'_>]) {
    let mut by_reader: BTreeMap<&Arc<str>, Vec<Place<'_>>> = BTreeMap::new();
    for place in places.iter().filter(|place| place.1.silent_since.is_none()) {
        for reader in &place.1.failing_readers {
            by_reader.entry(reader).or_default().push(*place);
        }
    }
    for (reader, places) in by_reader {
        let what = format!(
            "Reader {} fails on {}.",
            Name::new(reader).text,
            counted(places.len(), "node", "nodes")
        );
        spots.push(spot(
            what,
            (
                "The node's page has its error; gpufleet-agent doctor on the node has the line that fixes it.",
                "readers",
            ),
            places.into_iter(),
        ));
    }
}

/// GPUs that are measured, but of which something decisive is not known.
fn unknown(spots: &mut Vec<BlindSpot>, places: &[Place<'_>]) {
    for (reason, anchor) in [
        (Reason::HolderUnknown, "holders"),
        (Reason::ActivityUnknown, "activity"),
    ] {
        let is_blind = |place: &&Place<'_>| count(place.1, reason) > 0;
        let blind: Vec<Place<'_>> = places.iter().filter(is_blind).copied().collect();
        let gpus: usize = blind.iter().map(|place| count(place.1, reason)).sum();
        let Some(why) = words::reason(reason).filter(|_| gpus > 0) else {
            continue;
        };
        let what = format!(
            "{}: {}. {}",
            counted(gpus, "GPU", "GPUs"),
            why.short,
            why.sentence
        );
        spots.push(spot(what, (why.fix, anchor), blind.into_iter()));
    }
}

fn count(node: &NodeView, reason: Reason) -> usize {
    let is_blind =
        |gpu: &&crate::view::GpuView| gpu.state == State::Unobserved && gpu.reason == reason;
    node.gpus.iter().filter(is_blind).count()
}

fn behind(spots: &mut Vec<BlindSpot>, places: &[Place<'_>]) {
    let behind: Vec<Place<'_>> = places
        .iter()
        .filter(|place| {
            place
                .1
                .spool_age_seconds
                .is_some_and(|age| age > BEHIND_SECONDS)
        })
        .copied()
        .collect();
    if behind.is_empty() {
        return;
    }
    let what = format!(
        "{} more than a minute behind: the past hours are still being sent.",
        counted(behind.len(), "agent is", "agents are")
    );
    spots.push(spot(
        what,
        (
            "Nothing is lost; if it lasts, look at the network between node and server.",
            "spools",
        ),
        behind.into_iter(),
    ));
}

//! What changed in the last day: incidents that opened or are over, nodes that are new, what the inventory saw
//! happen to nodes, and what agents told of drivers, GPUs and runs.
//!
//! Limits: events of one kind are one line a cluster; of each kind the newest [`MAX_EVENTS`] are read, and
//! a line that counts so many says "at least". At most [`MAX_RUNS`] runs and [`MAX_INCIDENTS`] incidents are looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_analysis::incident::{Incident, State};
use gpufleet_analysis::inventory::change::Change as NodeChange;
use gpufleet_telemetry::event::{EventKind, Severity};
use gpufleet_telemetry::identity::{Origin, ResourceKind};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::Look;
use crate::App;
use crate::auth::Grant;
use crate::runs::KnownRun;
use crate::store::model::{EventFilter, IncidentFilter, StoredEvent};
use crate::store::{RunFilter, StoreError};
use crate::words::incident::place_words;
use crate::words::text::{counted, span};
use crate::words::{self, address};

/// A day, nanoseconds.
const DAY_NS: i64 = 86_400 * NANOS_PER_SECOND;

/// Events of one kind that are looked at: a driver that is rolled out to five hundred nodes.
const MAX_EVENTS: usize = 500;

/// Runs that broke off in a day that are looked at, those that started last.
const MAX_RUNS: usize = 5_000;

/// Incidents that are over that are looked at, those that began last.
const MAX_INCIDENTS: usize = 1_000;

/// What people ask of the day before; what is wrong now is an incident.
const KINDS: [EventKind; 8] = [
    EventKind::DriverChanged,
    EventKind::MigChanged,
    EventKind::GpuAdded,
    EventKind::GpuRemoved,
    EventKind::GpuReset,
    EventKind::AgentStarted,
    EventKind::FingerprintChanged,
    EventKind::PreemptionNoticed,
];

/// What the inventory saw of nodes that people ask of: how its words begin, the kind of the line, its name, and what
/// several of them did. A node that came is told by its agent.
const OF_NODES: [(&str, &str, &str, &str); 5] = [
    ("is gone", "nodes_gone", "nodes gone", "are gone"),
    (
        "is cordoned",
        "nodes_cordoned",
        "nodes cordoned",
        "are cordoned",
    ),
    (
        "is not ready",
        "nodes_not_ready",
        "nodes not ready",
        "were not ready",
    ),
    (
        "was made anew",
        "nodes_anew",
        "nodes anew",
        "were made anew",
    ),
    (
        "has another",
        "nodes_changed",
        "nodes changed",
        "have another driver, image or machine type",
    ),
];

/// What the store knows of the last day.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// Attempts that broke off.
    pub(super) failed: Vec<KnownRun>,
    over: Vec<Incident>,
    events: Vec<StoredEvent>,
    /// What the inventory saw happen to nodes of its cluster, the newest first.
    nodes: Vec<NodeChange>,
}

/// Something that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// When; of several the last.
    pub at: Timestamp,
    /// What kind: `incident_opened`, `incident_over`, `new_nodes`, one of [`OF_NODES`], or the name of a kind of event.
    pub kind: &'static str,
    /// What kind, in words.
    pub name: &'static str,
    /// What, in one sentence without its full stop.
    pub what: String,
    /// The page about it.
    pub address: Option<String>,
    /// How bad it is.
    pub severity: Severity,
}

/// Reads the last day.
///
/// # Errors
/// When the database refuses.
pub(super) async fn read(app: &App, grant: &Grant, now: Timestamp) -> Result<Past, StoreError> {
    let store = &app.store;
    let from = now.shifted(-DAY_NS);
    let runs = RunFilter {
        cluster: grant.cluster.clone(),
        heard_since: Some(from),
        only_interrupted: true,
        ..RunFilter::default()
    };
    let broke_off = |it: KnownRun| it.facts.ended.is_some_and(|at| at >= from).then_some(it);
    let incidents = IncidentFilter {
        cluster: grant.cluster.clone(),
        state: Some(State::Resolved),
        resolved_since: Some(from),
        ..IncidentFilter::default()
    };
    let kinds = KINDS.map(|kind| EventFilter {
        cluster: grant.cluster.clone(),
        kind: Some(kind),
        from: Some(from),
        ..EventFilter::default()
    });
    let asked = app.inventory.cluster();
    let of_nodes = async {
        match grant.may_see(asked) {
            true => store.inventory_changes(asked, from, None).await,
            false => Ok(Vec::new()),
        }
    };
    let ((failed, _), (over, _), events, nodes) = tokio::try_join!(
        store.made_of_runs(&runs, None, MAX_RUNS, broke_off),
        store.incidents(&incidents, None, MAX_INCIDENTS),
        store.events_of_each(&kinds, MAX_EVENTS),
        of_nodes,
    )?;
    Ok(Past {
        failed,
        over,
        events,
        nodes,
    })
}

/// What changed in the clusters of an origin, the newest first.
pub(super) fn changes(look: &Look<'_>, origin: Origin, past: &Past) -> Vec<Change> {
    let is_here = |cluster: &str| look.origin(cluster) == Some(origin);
    let from = look.at.shifted(-DAY_NS);
    let mut all = of_events(past.events.iter().filter(|it| is_here(&it.cluster)));
    let opened = look.open.iter();
    let opened = opened.filter(|it| it.opened_at.is_some_and(|at| at >= from));
    let opened = opened.filter(|it| is_here(&it.place.cluster));
    all.extend(opened.map(|it| of_incident(look, it, it.opened_at, false)));
    let is_open = |it: &&Incident| !look.open.iter().any(|open| open.id == it.id);
    let over = past.over.iter().filter(is_open);
    let over = over.filter(|it| is_here(&it.place.cluster));
    all.extend(over.map(|it| of_incident(look, it, it.resolved_at, true)));
    all.extend(new_nodes(look, origin, from));
    // Of real nodes alone: nobody asks about those that are simulated.
    if origin == Origin::Live {
        all.extend(of_nodes(&past.nodes));
    }
    all.sort_by(|one, other| other.at.cmp(&one.at).then(one.what.cmp(&other.what)));
    all
}

fn of_incident(
    look: &Look<'_>,
    incident: &Incident,
    at: Option<Timestamp>,
    is_over: bool,
) -> Change {
    let place = place_words(&incident.place, look.view);
    let at = at.unwrap_or(incident.since);
    let (kind, name, severity, lasted) = match is_over {
        true => {
            let lasted = span(at.millis() - incident.since.millis());
            let lasted = format!(", over after {lasted}");
            ("incident_over", "incident over", Severity::Info, lasted)
        }
        false => {
            let (kind, name) = ("incident_opened", "incident opened");
            (kind, name, incident.severity, String::new())
        }
    };
    Change {
        at,
        kind,
        name,
        what: format!("{place}: {}{lasted}", incident.what),
        address: Some(format!("/incidents/{}", incident.id)),
        severity,
    }
}

fn new_nodes(look: &Look<'_>, origin: Origin, from: Timestamp) -> Option<Change> {
    let nodes = look.view.of(origin).flat_map(|it| &it.nodes);
    let first = |node: &crate::view::NodeView| node.gpus.iter().map(|it| it.first_seen).min();
    let new: Vec<(Timestamp, &Arc<str>)> = nodes
        .filter_map(|node| Some((first(node)?, &node.name)))
        .filter(|(at, _)| *at > from)
        .collect();
    let (at, last) = new.iter().max()?;
    Some(Change {
        at: *at,
        kind: "new_nodes",
        name: "new nodes",
        what: match new.len() {
            1 => format!("{last} reported for the first time"),
            count => format!("{count} nodes reported for the first time, the last {last}"),
        },
        address: None,
        severity: Severity::Info,
    })
}

/// One line for each kind of what happened to nodes; `changes` are the newest first.
fn of_nodes(changes: &[NodeChange]) -> Vec<Change> {
    let line = |(begins, kind, name, several): &(&str, &'static str, &'static str, &str)| {
        let all = changes.iter().filter(|it| it.what.starts_with(begins));
        let last = all.clone().next()?;
        let nodes: BTreeSet<&str> = all.map(|it| it.node.as_str()).collect();
        Some(Change {
            at: last.at,
            kind,
            name,
            what: match nodes.len() {
                1 => format!("{} {}", last.node, last.what),
                count => format!(
                    "{count} nodes {several}; the last: {} {}",
                    last.node, last.what
                ),
            },
            address: None,
            severity: Severity::Info,
        })
    };
    OF_NODES.iter().filter_map(line).collect()
}

/// One line for each kind and cluster.
fn of_events<'a>(events: impl Iterator<Item = &'a StoredEvent>) -> Vec<Change> {
    let mut kinds: BTreeMap<(EventKind, &str), Vec<&StoredEvent>> = BTreeMap::new();
    for it in events {
        let key = (it.event.kind, &*it.cluster);
        kinds.entry(key).or_default().push(it);
    }
    let lines = kinds.into_iter();
    lines
        .filter_map(|((kind, cluster), all)| {
            let last = all.iter().max_by_key(|it| it.event.at)?;
            Some(Change {
                at: last.event.at,
                kind: kind.name(),
                name: words::event(kind),
                what: what(cluster, &all, last),
                address: address(last).filter(|_| all.len() == 1),
                severity: last.event.severity,
            })
        })
        .collect()
}

fn what(cluster: &str, all: &[&StoredEvent], last: &StoredEvent) -> String {
    let message = last.event.message.trim_end_matches('.');
    let said = match message {
        "" => last.event.resource_id.to_string(),
        message => message.to_owned(),
    };
    if all.len() == 1 {
        return said;
    }
    let at_least = if all.len() >= MAX_EVENTS {
        "at least "
    } else {
        ""
    };
    let times = counted(all.len(), "time", "times");
    format!("{at_least}{times} in {cluster}; the last: {said}")
}

/// The page of what an event is about.
fn address(stored: &StoredEvent) -> Option<String> {
    let (cluster, id) = (&stored.cluster, &stored.event.resource_id);
    match stored.event.resource_kind {
        ResourceKind::Node => Some(address::node(cluster, id)),
        ResourceKind::Gpu | ResourceKind::Share => Some(address::gpu(cluster, id)),
        ResourceKind::Endpoint | ResourceKind::Rank => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_left_are_one_line_and_what_came_or_is_ready_again_is_none() {
        let seen = |second: i64, node: &str, what: &str| NodeChange {
            at: Timestamp::from_seconds(second),
            node: node.to_owned(),
            what: what.to_owned(),
        };
        let told = of_nodes(&[
            seen(9, "b", "is gone"),
            seen(8, "a", "is ready"),
            seen(7, "a", "is gone"),
            seen(6, "c", "has another driver: 570.1 → 580.2"),
            seen(5, "c", "came with 8 GPUs"),
        ]);
        let told: Vec<(&str, &str)> = told.iter().map(|it| (it.kind, it.what.as_str())).collect();
        assert_eq!(
            told,
            [
                ("nodes_gone", "2 nodes are gone; the last: b is gone"),
                ("nodes_changed", "c has another driver: 570.1 → 580.2"),
            ]
        );
    }
}

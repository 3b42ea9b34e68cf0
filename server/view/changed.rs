//! What was changed in a cluster, to be marked on charts: what the cluster tells of its nodes, what agents tell of
//! drivers, MIG, GPUs and resets, and what people or this server had done, under their names.
//!
//! Limits: [`MAX_EVENTS`] of each kind of event, [`MAX_AUDITED`] of what was done, of nodes as many as the store
//! gives at a time; always the newest, and where there may be more it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_telemetry::event::{Event, EventKind};
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::time::Timestamp;

use super::{ClusterView, FleetView};
use crate::App;
use crate::detect::thresholds;
use crate::handoff;
use crate::store::model::{AuditEntry, EventFilter};
use crate::store::{MAX_EVENT_IDS, MAX_INVENTORY_CHANGES, StoreError};

/// Events of a kind that are read: a driver that is rolled out to five hundred nodes.
const MAX_EVENTS: usize = 500;

/// Rows of the audit that are read: what people do to machines is rare.
const MAX_AUDITED: usize = 500;

/// What was changed, of what agents tell.
const KINDS: [EventKind; 5] = [
    EventKind::DriverChanged,
    EventKind::MigChanged,
    EventKind::GpuAdded,
    EventKind::GpuRemoved,
    EventKind::GpuReset,
];

/// What commands are called in the audit, before their names.
const COMMAND: &str = "command ";

/// What something happened to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// What the server judges by.
    Server,
    /// A node, by its name.
    Node(Arc<str>),
    /// A GPU, as people call it.
    Gpu(String),
}

/// Something that was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happened {
    /// When.
    pub at: Timestamp,
    /// Of what.
    pub subject: Subject,
    /// What, as words behind the subject.
    pub words: String,
    /// By whom, where that is known.
    pub by: Option<String>,
}

/// What was changed in a time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changed {
    /// In no order.
    pub all: Vec<Happened>,
    /// Whether there may be older ones in that time that were not read.
    pub is_cut: bool,
    /// Whether the store did not answer: then nothing is known.
    pub failed: bool,
}

/// Of what changes are asked for.
#[derive(Debug, Clone)]
pub struct Of<'a> {
    /// The cluster.
    pub cluster: &'a Arc<str>,
    /// Names of nodes and ids of GPUs; none is all of the cluster.
    pub ids: Option<BTreeSet<Arc<str>>>,
}

impl Of<'_> {
    fn has(&self, id: &str) -> bool {
        self.ids.as_ref().is_none_or(|it| it.contains(id))
    }
}

/// What was changed from a moment on and before another one.
pub async fn changed(
    app: &App,
    view: &FleetView,
    of: &Of<'_>,
    time: (Timestamp, Timestamp),
) -> Changed {
    read(app, view, of, time).await.unwrap_or_else(|error| {
        tracing::error!(%error, "a page could not read what was changed");
        Changed {
            failed: true,
            ..Changed::default()
        }
    })
}

async fn read(
    app: &App,
    view: &FleetView,
    of: &Of<'_>,
    (since, until): (Timestamp, Timestamp),
) -> Result<Changed, StoreError> {
    let ids = of.ids.iter().filter(|it| it.len() <= MAX_EVENT_IDS);
    let of_kind = EventFilter {
        cluster: Some(Arc::clone(of.cluster)),
        // More than one question may name are asked for with all of the cluster.
        resource_ids: ids.flatten().cloned().collect(),
        from: Some(since),
        until: Some(until),
        ..EventFilter::default()
    };
    let filters = KINDS.map(|kind| EventFilter {
        kind: Some(kind),
        ..of_kind.clone()
    });
    let (of_nodes, events, mut done) = tokio::try_join!(
        app.store.inventory_changes(of.cluster, since, Some(until)),
        app.store.events_of_each(&filters, MAX_EVENTS),
        app.store.audited(MAX_AUDITED),
    )?;
    let mut events: Vec<Event> = events.into_iter().map(|it| it.event).collect();
    let is_full =
        |kind: &EventKind| events.iter().filter(|it| it.kind == *kind).count() >= MAX_EVENTS;
    let mut found = Changed {
        is_cut: of_nodes.len() >= MAX_INVENTORY_CHANGES
            || KINDS.iter().any(is_full)
            || done.len() == MAX_AUDITED && done.last().is_some_and(|it| it.at >= since),
        ..Changed::default()
    };
    let of_nodes = of_nodes.into_iter().filter(|it| of.has(&it.node));
    found.all.extend(of_nodes.map(|it| Happened {
        at: it.at,
        subject: Subject::Node(it.node.into()),
        words: it.what,
        by: None,
    }));
    events.retain(|it| of.has(&it.resource_id));
    let parts: Vec<&Arc<ClusterView>> = view.cluster(of.cluster).collect();
    let ids = events.iter().map(|it| &*it.resource_id).collect();
    let names = names(&parts, &ids);
    found.all.extend(events.iter().map(|it| Happened {
        at: it.at,
        subject: match (it.resource_kind, names.get(&*it.resource_id)) {
            (ResourceKind::Node, _) => Subject::Node(Arc::clone(&it.resource_id)),
            (_, Some(name)) => Subject::Gpu(name.clone()),
            (_, None) => Subject::Gpu(it.resource_id.to_string()),
        },
        words: it.message.trim_end_matches('.').to_owned(),
        by: None,
    }));
    done.retain(|it| (since..until).contains(&it.at));
    let told = done.iter().filter_map(|it| of_audit(app, &parts, of, it));
    found.all.extend(told);
    Ok(found)
}

/// What people call the GPUs and shares among these ids.
fn names<'a>(parts: &[&'a Arc<ClusterView>], ids: &BTreeSet<&str>) -> BTreeMap<&'a str, String> {
    let nodes = parts.iter().flat_map(|it| it.nodes.iter().chain(&it.ended));
    let gpus = nodes.flat_map(|it| &it.gpus);
    let all = gpus.flat_map(|gpu| {
        std::iter::once((gpu, gpu)).chain(gpu.shares.iter().map(move |it| (gpu, it)))
    });
    all.filter(|(_, it)| ids.contains(&*it.key.id))
        .map(|(gpu, it)| (&*it.key.id, gpu.called()))
        .collect()
}

/// What somebody had done to what is asked for; none where it is about something else.
fn of_audit(
    app: &App,
    parts: &[&Arc<ClusterView>],
    of: &Of<'_>,
    entry: &AuditEntry,
) -> Option<Happened> {
    let node = || (**app.inventory.cluster() == **of.cluster).then(|| Arc::from(&*entry.target));
    let (subject, words) = match entry.action.as_str() {
        thresholds::ACTION if of.ids.is_none() => {
            (Subject::Server, "its thresholds were changed".to_owned())
        }
        handoff::HAND_OFF => (Subject::Node(node()?), "was handed off".to_owned()),
        handoff::TAKE_BACK => (Subject::Node(node()?), "is handed off no more".to_owned()),
        other => {
            let command = other.strip_prefix(COMMAND)?;
            let agent = entry.target.strip_prefix("agent ")?;
            let mut nodes = parts.iter().flat_map(|it| it.nodes.iter().chain(&it.ended));
            let node = nodes.find(|it| it.agent.is_some_and(|it| it.to_string() == agent))?;
            let words = format!("its agent was told: {}", command.replace('_', " "));
            (Subject::Node(Arc::clone(&node.name)), words)
        }
    };
    let is_asked_for = match &subject {
        Subject::Node(node) => of.has(node),
        Subject::Server | Subject::Gpu(_) => true,
    };
    is_asked_for.then(|| Happened {
        at: entry.at,
        subject,
        words,
        by: Some(entry.who.clone()).filter(|it| !it.is_empty()),
    })
}

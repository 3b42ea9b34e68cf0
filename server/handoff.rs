//! The hand-off: tells Kubernetes of a node that is to be drained, for whoever drains nodes there. Shadow first.
//!
//! While an incident says of a node that it is to be drained, reset or rebooted ([`ask`]), the node has a condition
//! and gets an event, and with `handoff.taint` a taint that keeps new pods off it. gpufleet evicts nothing and
//! cordons nothing: what acts on the condition is the cluster's to choose. In shadow, the default, nothing is
//! written; what would have been stands as a note on the incident.
//!
//! Limits: `handoff.most_nodes` at a time, and a tenth of the cluster's nodes where that is less: trouble of more than
//! that is the fleet's, and no node is drained for it. Only nodes of the cluster that the inventory sees.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::time::Duration;

use gpufleet_analysis::incident::{Book, Happened, Refused};
use gpufleet_program::kubernetes::{Api, ApiError, escaped};
use gpufleet_program::section;
use gpufleet_telemetry::time::Timestamp;
use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::App;
use crate::auth::Grant;
use crate::incidents::ChangeError;
use crate::inventory::{Source, kubernetes, moment};
use crate::store::model::AuditEntry;

pub mod ask;

use ask::{Ask, CONDITION};

/// How often incidents are looked at.
const EVERY: Duration = Duration::from_secs(10);

/// One in so many nodes of the cluster may be handed off at a time …
const PART: usize = 10;

/// Nodes of one page.
const PAGE: usize = 500;

/// What handing a node off is called in the audit.
pub(crate) const HAND_OFF: &str = "hand off a node";

/// What taking that back is called there.
pub(crate) const TAKE_BACK: &str = "take back a hand-off";

/// Who says so on an incident and in the audit.
const WHO: &str = "gpufleet";

/// What gives the right to write.
pub const RIGHTS: &str = "deploy/handoff.yaml (patch of nodes/status, create of events; with handoff.taint get and patch of nodes)";

section! {
    /// The hand-off of nodes that are to be drained to Kubernetes.
    pub struct HandoffConfig {
        /// `shadow`: what would be written stands on the incident and nothing is written; `write`: the node has a
        /// condition (GpufleetGpuBroken) and an event, which needs the rights of deploy/handoff.yaml; `off`.
        pub mode: String = "shadow".to_owned(),
        /// Whether it also has a taint (gpufleet.io/gpu-broken:NoSchedule) while that is so.
        pub taint: bool = false,
        /// Most nodes at a time, 1 to 1000; never more than a tenth of the cluster's, but one.
        pub most_nodes: usize = 5,
    }
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Off,
    /// It is told on the incident.
    Shadow,
    /// It is written.
    Write,
}

impl HandoffConfig {
    /// Refuses what cannot be meant.
    ///
    /// # Errors
    /// Names the key.
    pub fn check(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.mode()?;
        match self.most_nodes {
            1..=1_000 => Ok(()),
            other => Err(format!("handoff.most_nodes = {other}: must be 1 to 1000").into()),
        }
    }

    fn mode(&self) -> Result<Mode, String> {
        match self.mode.as_str() {
            "off" => Ok(Mode::Off),
            "shadow" => Ok(Mode::Shadow),
            "write" => Ok(Mode::Write),
            other => Err(format!(
                "handoff.mode = \"{other}\": it may be shadow, write or off"
            )),
        }
    }
}

/// What of it is known to be so.
#[derive(Default)]
struct Handed {
    /// By node. An ask without an incident was found on a node when this server began.
    nodes: BTreeMap<String, Ask>,
    /// Those of them whose hand-off broke off in the middle: what was written is to be taken back too.
    begun: BTreeSet<String>,
    /// Nodes for which there was no room when it was last told.
    beyond: usize,
}

/// Looks at incidents from when this server leads until it is told to stop.
pub async fn run(app: App, stop: CancellationToken) {
    let mode = app.config.handoff.mode().unwrap_or(Mode::Off);
    let Source::Kubernetes(base) = app.inventory.source().clone() else {
        return stop.cancelled().await;
    };
    if mode == Mode::Off || !app.lead.wait(&stop).await {
        return stop.cancelled().await;
    }
    let (job, clock) = (app.jobs.of("the hand-off"), app.clock.as_ref());
    let mut handed: Option<Handed> = None;
    while !stop.is_cancelled() {
        // Before the detectors have judged, incidents of before the start may not be back yet.
        if app.incidents.health.last().is_some() {
            job.round(clock, round(&app, mode, &base, &mut handed))
                .await;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

/// Why a round broke off: it is tried again.
#[derive(Debug, thiserror::Error)]
enum Failed {
    /// The API refused or did not answer.
    #[error("{0}")]
    Api(#[from] ApiError),
    /// Its files cannot be used.
    #[error("{0}")]
    Files(String),
    /// The store did not take what was done.
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    /// The incident did not take its note.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

impl Failed {
    /// Whether it was answered of this node, so that others may be asked about.
    const fn is_of_one_node(&self) -> bool {
        matches!(self, Self::Api(ApiError::Status { .. }))
    }
}

async fn round(
    app: &App,
    mode: Mode,
    base: &str,
    handed: &mut Option<Handed>,
) -> Result<(), Failed> {
    let writing = match mode {
        Mode::Write => {
            let asker = gpufleet_program::kubernetes::Asker {
                rights: RIGHTS,
                ..kubernetes::asker(&app.config.inventory)
            };
            let api = Api::new(base, asker);
            Some(api.map_err(|error| Failed::Files(error.to_string()))?)
        }
        Mode::Off | Mode::Shadow => None,
    };
    let handed = match handed {
        Some(handed) => handed,
        None => handed.insert(Handed {
            nodes: match &writing {
                Some(api) => found(api).await?,
                None => BTreeMap::new(),
            },
            begun: BTreeSet::new(),
            beyond: 0,
        }),
    };
    let cluster = app.inventory.cluster();
    let open = app.incidents.open(&Grant::default());
    let wanted = ask::asks(&open, cluster);
    let over: Vec<String> = handed
        .nodes
        .keys()
        .filter(|it| !wanted.contains_key(*it))
        .cloned()
        .collect();
    // What fails for one node holds up no other.
    let mut failed: Option<Failed> = None;
    for node in over {
        let ask = handed.nodes[&node].clone();
        match take_back(app, writing.as_ref(), &node, &ask).await {
            Ok(()) => {
                handed.nodes.remove(&node);
                handed.begun.remove(&node);
            }
            Err(error) if error.is_of_one_node() => failed = failed.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    let most = most(app, app.config.handoff.most_nodes);
    let mut beyond = 0;
    for (node, mut ask) in wanted {
        let known = handed.nodes.get(&node);
        if known.is_some_and(|it| it.incident == ask.incident) {
            continue;
        }
        let now = app.clock.now();
        ask.from = known.and_then(|it| it.from).or(Some(now));
        ask.is_tainted = known.is_some_and(|it| it.is_tainted);
        if known.is_none() && handed.nodes.len() >= most {
            beyond += 1;
            continue;
        }
        let is_new = known.is_none() || handed.begun.contains(&node);
        match hand_off(app, writing.as_ref(), &node, &mut ask, is_new).await {
            Ok(()) => {
                handed.begun.remove(&node);
                handed.nodes.insert(node, ask);
            }
            // The cluster has no such node any more, or never had: there is nothing to drain.
            Err(Failed::Api(error)) if error.is_not_found() => {}
            Err(error) => {
                let goes_on = error.is_of_one_node();
                if is_new {
                    handed.begun.insert(node.clone());
                }
                let half = handed.nodes.entry(node);
                let half = half.or_insert_with(|| Ask::unknown(ask.from, false));
                half.is_tainted = ask.is_tainted;
                if !goes_on {
                    return Err(error);
                }
                failed = failed.or(Some(error));
            }
        }
    }
    if beyond > handed.beyond {
        tracing::warn!(
            beyond,
            most,
            "more nodes are to be drained than handoff.most_nodes and a tenth of the cluster: they are not handed off"
        );
    }
    handed.beyond = beyond;
    failed.map_or(Ok(()), Err)
}

/// How many nodes may be handed off at a time.
fn most(app: &App, configured: usize) -> usize {
    let nodes = app.inventory.known().count();
    configured.min((nodes / PART).max(1))
}

async fn hand_off(
    app: &App,
    api: Option<&Api>,
    node: &str,
    ask: &mut Ask,
    is_new: bool,
) -> Result<(), Failed> {
    let now = app.clock.now();
    let taints = app.config.handoff.taint;
    if let Some(api) = api {
        set_condition(api, node, &ask.condition(now)).await?;
        if taints {
            let set = set_taint(api, node, true).await;
            // What was refused is not there; of what broke off nobody knows.
            let is_refused =
                matches!(&set, Err(ApiError::Status { status, .. }) if status.is_client_error());
            ask.is_tainted |= !is_refused;
            set?;
        }
        if is_new {
            tell(api, &ask.event(node, now)).await?;
        }
        audit(app, HAND_OFF, node, &ask.message, now).await?;
    }
    let also = if taints {
        ", an event and a taint"
    } else {
        " and an event"
    };
    let (reason, message) = (&ask.reason, &ask.message);
    let said = match api {
        Some(_) => {
            format!("Node {node} has the condition {CONDITION} ({reason}: {message}){also}.")
        }
        None => format!(
            "In shadow: with handoff.mode = \"write\" node {node} would have the condition {CONDITION} ({reason}: {message}){also}."
        ),
    };
    note(app, ask.incident, &said, now).await
}

async fn take_back(app: &App, api: Option<&Api>, node: &str, ask: &Ask) -> Result<(), Failed> {
    let now = app.clock.now();
    if let Some(api) = api {
        let cleared = async {
            set_condition(api, node, &ask::whole(now)).await?;
            // Also where the taint was switched off meanwhile. Who may set none may not read a node either.
            match ask.is_tainted {
                true => set_taint(api, node, false).await,
                false => Ok(()),
            }
        };
        match cleared.await {
            // A node that is gone has nothing that is to be taken back.
            Err(error) if error.is_not_found() => return Ok(()),
            other => other?,
        }
        audit(app, TAKE_BACK, node, "", now).await?;
    }
    let said = match api {
        Some(_) => format!("The condition {CONDITION} of node {node} is False again."),
        None => {
            format!("In shadow: the condition {CONDITION} of node {node} would be False again.")
        }
    };
    match ask.incident {
        it if it.is_nil() => Ok(()),
        incident => note(app, incident, &said, now).await,
    }
}

/// Notes on an incident what was done for it; one that is no longer in the book needs no note.
async fn note(app: &App, id: Uuid, text: &str, now: Timestamp) -> Result<(), Failed> {
    // A server that begins anew does the same once more, and does not say it once more.
    let is_said = app.incidents.get(id).is_some_and(|it| {
        let mut newest = it.log.iter().rev();
        let own = newest.find(|it| it.who.as_deref() == Some(WHO));
        own.is_some_and(|it| matches!(&it.happened, Happened::Note(said) if said == text))
    });
    if is_said {
        return Ok(());
    }
    let change = |book: &mut Book| book.annotate(id, WHO, text, now);
    match app.incidents.change(&app.store, id, change).await {
        Ok(_) | Err(ChangeError::Refused(Refused::Unknown(_))) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn audit(
    app: &App,
    action: &str,
    node: &str,
    detail: &str,
    now: Timestamp,
) -> Result<(), Failed> {
    let detail = json!({ "why": detail }).to_string();
    let entry = AuditEntry::here(now, WHO, (action, node), detail);
    Ok(app.store.audit(&entry).await?)
}

/// A node as far as it is looked at here.
#[derive(Debug, Deserialize)]
struct Node {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    #[serde(default)]
    resource_version: String,
}

#[derive(Debug, Default, Deserialize)]
struct Spec {
    #[serde(default)]
    taints: Option<Vec<serde_json::Value>>,
}

#[derive(Debug, Default, Deserialize)]
struct Status {
    #[serde(default)]
    conditions: Option<Vec<Condition>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(default)]
    last_transition_time: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Nodes {
    #[serde(default)]
    metadata: ListMetadata,
    #[serde(default)]
    items: Vec<Node>,
}

#[derive(Debug, Default, Deserialize)]
struct ListMetadata {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

/// Nodes that have the condition or the taint already: a server before this one wrote it.
async fn found(api: &Api) -> Result<BTreeMap<String, Ask>, ApiError> {
    let (mut found, mut next) = (BTreeMap::new(), String::new());
    loop {
        let page: Nodes = api
            .get(&format!(
                "/api/v1/nodes?limit={PAGE}&continue={}",
                escaped(&next)
            ))
            .await?;
        for node in page.items {
            let conditions = node.status.conditions.unwrap_or_default();
            let is_ours = |it: &&Condition| it.kind == CONDITION && it.status == "True";
            let mut taints = node.spec.taints.iter().flatten();
            let is_tainted = taints.any(|it| it["key"] == ask::TAINT);
            let ours = conditions.iter().find(is_ours);
            if is_tainted || ours.is_some() {
                let from = ours.and_then(|it| moment(it.last_transition_time.as_deref()?));
                found.insert(node.metadata.name, Ask::unknown(from, is_tainted));
            }
        }
        next = page.metadata.next.unwrap_or_default();
        if next.is_empty() {
            return Ok(found);
        }
    }
}

async fn set_condition(
    api: &Api,
    node: &str,
    condition: &serde_json::Value,
) -> Result<(), ApiError> {
    let path = format!("/api/v1/nodes/{}/status", escaped(node));
    let body = json!({"status": {"conditions": [condition]}});
    // Conditions are merged by their type: nobody else's is touched.
    api.patch(&path, "application/strategic-merge-patch+json", &body)
        .await
}

async fn set_taint(api: &Api, node: &str, is_set: bool) -> Result<(), ApiError> {
    let path = format!("/api/v1/nodes/{}", escaped(node));
    let known: Node = api.get(&path).await?;
    let before = known.spec.taints.unwrap_or_default();
    let Some(taints) = ask::tainted(&before, is_set) else {
        return Ok(());
    };
    // Of the version that was read: a taint that came meanwhile is not lost.
    let version = known.metadata.resource_version;
    let body = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
    api.patch(&path, "application/merge-patch+json", &body)
        .await
}

async fn tell(api: &Api, event: &serde_json::Value) -> Result<(), ApiError> {
    api.post("/api/v1/namespaces/default/events", event).await
}

#[cfg(test)]
mod tests {
    use gpufleet_program::config::assert_refused;

    use crate::config::Config;

    #[test]
    fn a_mode_or_a_number_that_cannot_be_meant_is_refused_by_name() {
        let check = assert_refused::<Config>;
        check(
            "handoff.mode=\"drain\"",
            &["handoff.mode = \"drain\"", "shadow, write or off"],
        );
        check(
            "handoff.most_nodes=0",
            &["handoff.most_nodes = 0", "1 to 1000"],
        );
    }
}

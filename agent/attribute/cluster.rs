//! What the Kubernetes API knows of this node and its pods: a list once, then a watch, so that nothing
//! is looked up when a reading is taken.
//!
//! Tasks of their own keep it: a server that is slow, gone or restarted costs freshness and nothing
//! else. What was known stays known until the server says otherwise. Namespaces are asked for one by
//! one, and only those of pods that hold a GPU: watching all of them from every node would be dear.
//!
//! Every way round has its pause, because every node of the fleet takes it when the server is at its
//! weakest: longer each time until a watch has lasted ([`LASTED`]).
//!
//! Limits: [`MAX_NAMESPACES`], [`WATCH_FOR`], [`LONGEST_PAUSE`]; those of pods are in `pods`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::AttributeConfig;
use super::api::{self, Api, ApiError, escaped};
use super::labels::{self, Facts, Labels, Owner};
use super::node::{self, Node};
use super::pods::{Pod, Pods};
use super::standing::{Source, Standing};

/// Most pods that are asked for at once.
const PAGE: usize = 500;

/// Most namespaces: one for each pod that can hold a GPU.
const MAX_NAMESPACES: usize = 256;

/// How long a watch lasts before it is begun anew, seconds. A connection that died without a word is
/// noticed after it and [`WATCH_SLACK`].
const WATCH_FOR: u64 = 120;
const WATCH_SLACK: Duration = Duration::from_secs(20);

/// For so long the server's word counts that a pod has ended: within it a watch ends or fails.
const TOLD_FOR: Duration = Duration::from_secs(WATCH_FOR + 30);

/// The pause between two watches, and after a failure; doubled each time up to the longest: a server that
/// comes back is not overrun by its nodes.
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A watch that lasted this long worked: the next pause is the shortest again.
const LASTED: Duration = Duration::from_secs(5);

/// How often it is looked whether a namespace has to be asked for, and how old its labels may be.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const NAMESPACE_AGE: Duration = Duration::from_secs(300);

/// How often the node itself is asked for: what it tells hardly changes.
const NODE_AGE: Duration = Duration::from_secs(600);

/// What is known; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Snapshot {
    pub(super) pods: Arc<Pods>,
    pub(super) namespaces: Arc<BTreeMap<String, Facts>>,
    pub(super) node: Arc<Facts>,
    pub(super) standing: Standing,
}

/// The tasks that keep it; they end when this is dropped.
#[derive(Debug)]
pub(super) struct Cluster {
    shared: Arc<Shared>,
    tasks: Vec<tokio::task::AbortHandle>,
}

#[derive(Debug)]
struct Shared {
    config: AttributeConfig,
    /// Where the API is.
    base: String,
    api: OnceCell<Api>,
    node: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    known: Snapshot,
    wanted: BTreeSet<String>,
    /// When each namespace, and the node, is to be asked for again.
    due: BTreeMap<String, Instant>,
    node_due: Option<Instant>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct List {
    metadata: ListMeta,
    /// Go writes a list that was never made as `null`.
    items: Option<Vec<Object>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    go_on: String,
}

/// A pod or namespace, of which this much is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Object {
    pub(super) metadata: Meta,
    pub(super) status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Meta {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) labels: Labels,
    pub(super) owner_references: Vec<Owner>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    phase: String,
    /// Of an error in a watch.
    code: u16,
    message: String,
}

#[derive(Debug, Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: serde_json::Value,
}

/// What is listed and then watched.
trait Watched: Sync {
    /// All of it as it is now; returns from where to watch on.
    fn list(&self) -> impl Future<Output = Result<String, ApiError>> + Send;

    /// One watch, until the server ends it; returns from where to watch on.
    fn watch(&self, version: String) -> impl Future<Output = Result<String, ApiError>> + Send;

    /// Takes note that it failed.
    fn failed(&self, why: &ApiError);
}

impl Cluster {
    /// Begins to watch; needs a runtime. None where there is nobody to ask.
    pub(super) fn start(node: &str, config: &AttributeConfig) -> Option<Self> {
        let shared = Arc::new(Shared {
            base: Api::base_of(config)?,
            config: config.clone(),
            api: OnceCell::new(),
            node: node.to_owned(),
            state: Mutex::default(),
        });
        let mut tasks = vec![tokio::spawn(Arc::clone(&shared).keep_the_rest()).abort_handle()];
        // Pods are of use where somebody says which of them has which GPU.
        if !config.kubelet_socket.as_os_str().is_empty() {
            let of_pods = Arc::clone(&shared);
            tasks.push(tokio::spawn(async move { keep(&*of_pods).await }).abort_handle());
        }
        Some(Self { shared, tasks })
    }

    /// What is known now.
    pub(super) fn known(&self) -> Snapshot {
        self.shared.lock().known.clone()
    }

    /// Says of which namespaces something holds a GPU.
    pub(super) fn want(&self, namespaces: BTreeSet<String>) {
        self.shared.lock().wanted = namespaces;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::AbortHandle::abort);
    }
}

impl Snapshot {
    /// What is known of a pod by its name. Of one that has ended only while the server tells of changes:
    /// later another may have its name, as those of a StatefulSet have.
    pub(super) fn pod(&self, namespace: &str, name: &str) -> Option<&Pod> {
        let is_told =
            self.standing.error().is_none() && self.standing.age().is_some_and(|it| it <= TOLD_FOR);
        let pod = self.pods.of(namespace, name);
        pod.filter(|it| !it.is_over || is_told)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The API, as soon as its files can be used: in a pod that has just begun they may not be there yet.
    async fn api(&self) -> &Api {
        let made = async {
            loop {
                match Api::new(&self.base, &self.config) {
                    Ok(api) => return api,
                    Err(error) => {
                        let words = format!("{error:#}");
                        self.lock().known.standing.failed(Source::Kubernetes, words);
                    }
                }
                tokio::time::sleep(LONGEST_PAUSE).await;
            }
        };
        self.api.get_or_init(|| made).await
    }

    fn take(&self, event: Event, version: &mut String, path: &str) -> Result<(), ApiError> {
        let malformed = |error: serde_json::Error| ApiError::Malformed {
            path: path.to_owned(),
            why: error.to_string(),
        };
        if event.kind == "ERROR" {
            let status: Status = serde_json::from_value(event.object).map_err(malformed)?;
            return Err(ApiError::Status {
                path: path.to_owned(),
                status: http::StatusCode::from_u16(status.code)
                    .unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR),
                message: status.message,
            });
        }
        let mut object: Object = serde_json::from_value(event.object).map_err(malformed)?;
        *version = std::mem::take(&mut object.metadata.resource_version);
        let mut state = self.lock();
        state.known.standing.heard();
        let pods = &mut state.known.pods;
        match event.kind.as_str() {
            "ADDED" | "MODIFIED" => Arc::make_mut(pods).put(self.pod(object)),
            "DELETED" => Arc::make_mut(pods).remove(&object.metadata.uid),
            // A bookmark only says how far the server is.
            _ => {}
        }
        Ok(())
    }

    fn pod(&self, object: Object) -> Pod {
        let Meta {
            name,
            namespace,
            uid,
            labels,
            owner_references,
            ..
        } = object.metadata;
        Pod {
            facts: labels::facts(&namespace, &labels, &owner_references, &self.config.labels),
            is_over: ["Succeeded", "Failed"].contains(&object.status.phase.as_str()),
            uid,
            namespace,
            name,
        }
    }

    /// Asks for the node, and for the namespaces that are wanted, whenever they are old.
    async fn keep_the_rest(self: Arc<Self>) {
        loop {
            let now = Instant::now();
            let is_due = |at: Option<&Instant>| at.is_none_or(|it| *it <= now);
            let (node_is_due, namespaces) = {
                let state = self.lock();
                let wanted = state.wanted.iter();
                let due = wanted.filter(|it| is_due(state.due.get(*it)));
                let due: Vec<String> = due.take(MAX_NAMESPACES).cloned().collect();
                (is_due(state.node_due.as_ref()), due)
            };
            if node_is_due {
                self.ask_for_node().await;
            }
            if !self.config.namespace_labels.is_empty() {
                for namespace in namespaces {
                    self.ask_for_namespace(namespace).await;
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn ask_for_node(&self) {
        let path = format!("/api/v1/nodes/{}", escaped(&self.node));
        let asked = self.api().await.get::<Node>(&path).await;
        let mut state = self.lock();
        state.node_due = Some(next(&asked, NODE_AGE));
        match asked {
            Ok(node) => state.known.node = Arc::new(node::facts(&node)),
            // Not that of the pods: what the node is, others may know as well.
            Err(error) => tracing::warn!(%error, "what this node is, is not known of Kubernetes"),
        }
    }

    async fn ask_for_namespace(&self, name: String) {
        let path = format!("/api/v1/namespaces/{}", escaped(&name));
        let asked = self.api().await.get::<Object>(&path).await;
        let mut state = self.lock();
        let State {
            known, wanted, due, ..
        } = &mut *state;
        let namespaces = Arc::make_mut(&mut known.namespaces);
        due.retain(|it, _| wanted.contains(it));
        namespaces.retain(|it, _| wanted.contains(it));
        due.insert(name.clone(), next(&asked, NAMESPACE_AGE));
        match asked {
            Ok(object) => {
                let wanted = &self.config.namespace_labels;
                let facts = labels::namespace_facts(&object.metadata.labels, wanted);
                namespaces.insert(name, facts);
            }
            Err(error) => tracing::warn!(%error, "labels of a namespace are not known"),
        }
    }
}

/// Whether this is a line of a watch of pods.
pub fn understands(line: &[u8]) -> bool {
    let shared = Shared {
        config: AttributeConfig::default(),
        base: String::new(),
        api: OnceCell::new(),
        node: String::new(),
        state: Mutex::default(),
    };
    let event = serde_json::from_slice(line);
    event.is_ok_and(|event| shared.take(event, &mut String::new(), "").is_ok())
}

impl Watched for Shared {
    async fn list(&self) -> Result<String, ApiError> {
        let api = self.api().await;
        let all = format!("{}&limit={PAGE}", api::pods(&self.node));
        // Out of the server's cache: it may be a little old, and the watch tells the rest. It takes no heed
        // of pages, so more than an answer may have is asked for anew, page by page.
        let mut path = format!("{all}&resourceVersion=0");
        let mut pods = Pods::default();
        let version = loop {
            let list: List = match api.get(&path).await {
                Err(ApiError::TooLarge { .. }) if path.ends_with("&resourceVersion=0") => {
                    path.clone_from(&all);
                    continue;
                }
                answer => answer?,
            };
            for object in list.items.unwrap_or_default() {
                pods.put(self.pod(object));
            }
            if list.metadata.go_on.is_empty() {
                break list.metadata.resource_version;
            }
            path = format!("{all}&continue={}", escaped(&list.metadata.go_on));
        };
        self.lock().known.pods = Arc::new(pods);
        Ok(version)
    }

    async fn watch(&self, mut version: String) -> Result<String, ApiError> {
        let path = format!(
            "{}&watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_FOR}&resourceVersion={}",
            api::pods(&self.node),
            escaped(&version)
        );
        let mut lines = self.api().await.watch(&path).await?;
        self.lock().known.standing.heard();
        let until = Instant::now() + Duration::from_secs(WATCH_FOR) + WATCH_SLACK;
        loop {
            // A dead connection ends like one that the server ended.
            let Ok(line) = tokio::time::timeout_at(until, lines.next()).await else {
                return Ok(version);
            };
            let Some(line) = line? else {
                return Ok(version);
            };
            if line.trim_ascii().is_empty() {
                continue;
            }
            let event = serde_json::from_slice(&line);
            let event: Event = event.map_err(|error| lines.malformed(error.to_string()))?;
            self.take(event, &mut version, &path)?;
        }
    }

    fn failed(&self, why: &ApiError) {
        let words = why.to_string();
        self.lock().known.standing.failed(Source::Kubernetes, words);
    }
}

/// Lists and watches for ever.
async fn keep(of: &impl Watched) {
    let mut pause = SHORTEST_PAUSE;
    // From where to watch on; none where it is to be listed.
    let mut from = None;
    loop {
        let listed = match from.take() {
            Some(version) => Ok(version),
            None => of.list().await,
        };
        let began = Instant::now();
        let watched = match listed {
            Ok(version) => of.watch(version).await,
            Err(error) => Err(error),
        };
        if began.elapsed() >= LASTED {
            pause = SHORTEST_PAUSE;
        }
        match watched {
            Ok(version) => from = Some(version),
            // Not a failure: the server forgot what lies that far back.
            Err(error) if error.is_gone() => {}
            Err(error) => of.failed(&error),
        }
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// When something is asked for again: at its age, or soon where it failed; what was known stays.
fn next<T>(asked: &Result<T, ApiError>, age: Duration) -> Instant {
    let pause = match asked {
        Ok(_) => age,
        Err(_) => LONGEST_PAUSE,
    };
    Instant::now() + pause
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;

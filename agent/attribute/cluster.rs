//! What the Kubernetes API knows of this node and its pods: a list once, then a watch, so that nothing
//! is looked up when a reading is taken.
//!
//! Tasks of their own keep it: a server that is slow, gone or restarted costs freshness and nothing
//! else. What was known stays known until the server says otherwise. Namespaces are asked for one by
//! one, and only those of pods that hold a GPU: watching all of them from every node would be dear.
//!
//! Limits: [`MAX_NAMESPACES`]; those of pods are in `pods`, those of asking in the program's
//! `kubernetes::follow`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpufleet_program::kubernetes::follow::{self, Follow, LONGEST_PAUSE, TOLD_FOR};
use gpufleet_program::kubernetes::{Api, ApiError, escaped};
use serde::Deserialize;
use tokio::sync::{Notify, OnceCell};
use tokio::time::Instant;

use super::AttributeConfig;
use super::api;
use super::labels::{self, Facts, Labels, Owner};
use super::node::{self, Node};
use super::pods::{Pod, Pods, Waiting};
use super::standing::{Source, Standing};
use super::task::Task;

/// Most namespaces: one for each pod that can hold a GPU.
const MAX_NAMESPACES: usize = 256;

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
    _tasks: [Task; 2],
}

#[derive(Debug)]
struct Shared {
    config: AttributeConfig,
    /// Where the API is.
    base: String,
    api: OnceCell<Api>,
    node: String,
    state: Mutex<State>,
    /// That pods are of use, because somebody says which of them has which GPU.
    pods_wanted: Notify,
}

#[derive(Debug, Default)]
struct State {
    known: Snapshot,
    wanted: BTreeSet<String>,
    /// When each namespace, and the node, is to be asked for again.
    due: BTreeMap<String, Instant>,
    node_due: Option<Instant>,
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
    pub(super) labels: Labels,
    pub(super) owner_references: Vec<Owner>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Status {
    phase: String,
    container_statuses: Vec<Container>,
    init_container_statuses: Vec<Container>,
}

/// What the kubelet said last of a container.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    name: String,
    state: ContainerState,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    waiting: Option<serde::de::IgnoredAny>,
}

impl Cluster {
    /// Begins to watch; needs a runtime. None where there is nobody to ask.
    pub(super) fn start(node: &str, config: &AttributeConfig) -> Option<Self> {
        let shared = Arc::new(Shared {
            base: api::base_of(config)?,
            config: config.clone(),
            api: OnceCell::new(),
            node: node.to_owned(),
            state: Mutex::default(),
            pods_wanted: Notify::new(),
        });
        let of_pods = Arc::clone(&shared);
        let of_pods = Task::start(async move {
            of_pods.pods_wanted.notified().await;
            follow::follow(&*of_pods).await;
        });
        let of_rest = Task::start(Arc::clone(&shared).keep_the_rest());
        let cluster = Self {
            shared,
            _tasks: [of_pods, of_rest],
        };
        if !config.kubelet_socket.as_os_str().is_empty() {
            cluster.watch_pods();
        }
        Some(cluster)
    }

    /// Has the pods of the node watched from now on: somebody says which of them has which GPU.
    pub(super) fn watch_pods(&self) {
        self.shared.pods_wanted.notify_one();
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

impl Snapshot {
    /// What is known of a pod by its name. Of one that has ended only while the server tells of changes:
    /// later another may have its name, as those of a StatefulSet have.
    pub(super) fn pod(&self, namespace: &str, name: &str) -> Option<&Pod> {
        let pod = self.pods.of(namespace, name);
        pod.filter(|it| !it.is_over || self.is_told())
    }

    /// Whether a container of a pod does not run and waits for something, while the server tells of changes: what was
    /// told before may be long over.
    pub(super) fn is_starting(&self, namespace: &str, pod: &str, container: &str) -> bool {
        let pod = self.pods.of(namespace, pod);
        pod.is_some_and(|it| it.waiting.has(container)) && self.is_told()
    }

    fn is_told(&self) -> bool {
        self.standing.error().is_none() && self.standing.age().is_some_and(|it| it <= TOLD_FOR)
    }
}

impl Status {
    fn waiting(&self) -> Waiting {
        let containers = self.init_container_statuses.iter();
        let mut containers = containers.chain(&self.container_statuses).peekable();
        if self.phase == "Pending" && containers.peek().is_none() {
            return Waiting::All;
        }
        let waiting = containers.filter(|it| it.state.waiting.is_some());
        Waiting::Named(waiting.map(|it| it.name.clone()).collect())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The API, as soon as its files can be used: in a pod that has just begun they may not be there yet.
    async fn opened(&self) -> &Api {
        let made = async {
            loop {
                match api::open(&self.base, &self.config) {
                    Ok(api) => return api,
                    Err(error) => {
                        let words = error.to_string();
                        self.lock().known.standing.failed(Source::Kubernetes, words);
                    }
                }
                tokio::time::sleep(LONGEST_PAUSE).await;
            }
        };
        self.api.get_or_init(|| made).await
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
            waiting: object.status.waiting(),
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
        let asked = self.opened().await.get::<Node>(&path).await;
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
        let asked = self.opened().await.get::<Object>(&path).await;
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
    follow::read::<Object>(line, "").is_ok()
}

impl Follow for Shared {
    type Object = Object;
    type All = Pods;

    const IS_SHORT: bool = true;

    fn path(&self) -> String {
        api::pods(&self.node)
    }

    async fn api(&self) -> &Api {
        self.opened().await
    }

    fn gather(&self, all: &mut Pods, object: Object) {
        all.put(self.pod(object));
    }

    fn replace(&self, all: Pods) {
        self.lock().known.pods = Arc::new(all);
    }

    fn put(&self, object: Object) {
        Arc::make_mut(&mut self.lock().known.pods).put(self.pod(object));
    }

    fn remove(&self, object: Object) {
        Arc::make_mut(&mut self.lock().known.pods).remove(&object.metadata.uid);
    }

    fn heard(&self) {
        self.lock().known.standing.heard();
    }

    fn failed(&self, why: &ApiError) {
        let words = why.to_string();
        self.lock().known.standing.failed(Source::Kubernetes, words);
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

//! A Kubernetes API server as the real one is to an agent and to a server: pods of one node, or of all to
//! who has the right, and nodes, listed in pages and watched; a node, namespaces. It wants a token, a version
//! to watch from, and a field selector of pods; it forgets what lies behind, ends watches, and sends
//! bookmarks. What leaves a selector is deleted to who watches by it, as with the real one. Who has the right
//! may change a node's conditions and taints and make events, and nothing else.
//!
//! Longer than 500 lines because one state is listed, watched, changed and spoilt by every part of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::free_port;

/// The token that it takes.
pub const TOKEN: &str = "the-token-of-a-pod";

/// What a question may carry.
type Asked = BTreeMap<String, String>;

/// A running API server; it stops when it is dropped.
#[derive(Debug)]
pub struct Kubernetes {
    port: u16,
    shared: Arc<Shared>,
    runtime: Option<tokio::runtime::Runtime>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<Cluster>,
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Cluster {
    version: u64,
    /// Versions up to this one are forgotten.
    forgotten: u64,
    pods: BTreeMap<String, Value>,
    namespaces: BTreeMap<String, Value>,
    nodes: BTreeMap<String, Value>,
    /// Objects of other kinds, by kind; of those that are not installed there is no entry.
    others: BTreeMap<&'static str, BTreeMap<String, Value>>,
    events: Vec<Happened>,
    token: String,
    delay: Duration,
    lists: u64,
    watches: u64,
    refused: BTreeSet<String>,
    /// Whether pods and nodes of the whole cluster may be looked at.
    is_wide: bool,
    /// Whether conditions of nodes and events may be written, and taints.
    may_write: [bool; 2],
    /// What was told of nodes.
    told: Vec<Value>,
    /// Whether lists are no JSON.
    is_garbage: bool,
}

/// What happened to an object.
#[derive(Debug)]
struct Happened {
    version: u64,
    /// `Pod` or `Node`.
    kind: &'static str,
    before: Option<Value>,
    after: Option<Value>,
}

/// What of a kind of object is asked for.
#[derive(Debug, Clone)]
enum Asks {
    /// Pods of a node.
    OfNode(String),
    /// Pods that are not over.
    NotOver,
    /// All nodes.
    Nodes,
    /// All objects of another kind.
    All(&'static str),
    /// Events that the autoscaler made of pods.
    OfScaler,
}

/// Kinds of objects beside nodes and pods, with their paths; the first two every cluster has.
const OTHERS: [(&str, &str); 8] = [
    ("Event", "/api/v1/events"),
    ("Job", "/apis/batch/v1/jobs"),
    ("JobSet", "/apis/jobset.x-k8s.io/v1alpha2/jobsets"),
    ("Workload", "/apis/kueue.x-k8s.io/v1beta1/workloads"),
    // A cluster of before the API was v1.
    (
        "ResourceSlice",
        "/apis/resource.k8s.io/v1beta1/resourceslices",
    ),
    (
        "ResourceClaim",
        "/apis/resource.k8s.io/v1beta1/resourceclaims",
    ),
    ("DeviceClass", "/apis/resource.k8s.io/v1beta1/deviceclasses"),
    (
        "ResourceClaimTemplate",
        "/apis/resource.k8s.io/v1beta1/resourceclaimtemplates",
    ),
];

impl Asks {
    const fn kind(&self) -> &'static str {
        match self {
            Self::OfNode(_) | Self::NotOver => "Pod",
            Self::Nodes => "Node",
            Self::All(kind) => kind,
            Self::OfScaler => "Event",
        }
    }

    fn has(&self, object: &Value) -> bool {
        match self {
            Self::OfNode(node) => object["spec"]["nodeName"] == node.as_str(),
            Self::NotOver => {
                let phase = object["status"]["phase"].as_str();
                !["Succeeded", "Failed"].contains(&phase.unwrap_or_default())
            }
            Self::Nodes | Self::All(_) => true,
            Self::OfScaler => {
                object["source"]["component"] == "cluster-autoscaler"
                    && object["involvedObject"]["kind"] == "Pod"
            }
        }
    }
}

impl Happened {
    /// How it is told to who asks for this.
    fn told(&self, asks: &Asks) -> Option<Value> {
        if self.kind != asks.kind() {
            return None;
        }
        let is_in = |it: &&Value| asks.has(it);
        let (before, after) = (
            self.before.as_ref().filter(is_in),
            self.after.as_ref().filter(is_in),
        );
        let (kind, object) = match (before, after) {
            (None, None) => return None,
            (None, Some(after)) => ("ADDED", after.clone()),
            (Some(_), Some(after)) => ("MODIFIED", after.clone()),
            (Some(before), None) => ("DELETED", self.after.as_ref().unwrap_or(before).clone()),
        };
        let mut object = object;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        Some(json!({"type": kind, "object": object}))
    }
}

impl Kubernetes {
    /// Starts one on a free port of loopback.
    ///
    /// # Panics
    /// When the port was taken meanwhile.
    pub fn start() -> Self {
        let (changed, _) = watch::channel(1);
        let built_in = OTHERS.iter().take(2);
        let state = Cluster {
            version: 1,
            token: TOKEN.to_owned(),
            others: built_in.map(|it| (it.0, BTreeMap::new())).collect(),
            ..Cluster::default()
        };
        let mut started = Self {
            port: free_port(),
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                changed,
            }),
            runtime: None,
        };
        started.begin();
        started
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// It is gone: connections break, and nobody listens.
    pub fn die(&mut self) {
        self.runtime = None;
    }

    /// It is there, with what it knew.
    ///
    /// # Panics
    /// When the port was taken meanwhile.
    pub fn begin(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a test may start a thread");
        let mut router = Router::new();
        for (kind, path) in OTHERS {
            router = router.route(path, get(move |shared, asked| others(kind, shared, asked)));
        }
        let router = router
            .route("/api/v1/pods", get(pods))
            .route("/api/v1/nodes", get(nodes))
            .route("/api/v1/namespaces/{name}", get(namespace))
            .route("/api/v1/nodes/{name}", get(node).patch(taint))
            .route("/api/v1/nodes/{name}/status", patch(conditions))
            .route("/api/v1/namespaces/default/events", post(event))
            .route_layer(from_fn_with_state(Arc::clone(&self.shared), admit))
            .with_state(Arc::clone(&self.shared));
        let address = ("127.0.0.1", self.port);
        let listener = runtime.block_on(tokio::net::TcpListener::bind(address));
        let listener = listener.expect("the port is free");
        runtime.spawn(async { axum::serve(listener, router).await });
        self.runtime = Some(runtime);
    }

    /// A pod on a node, new or changed.
    pub fn put_pod(&self, node: &str, [namespace, name, uid]: [&str; 3], more: &Value) {
        let mut state = self.shared.lock();
        state.version += 1;
        let version = state.version;
        let mut pod = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "name": name, "namespace": namespace, "uid": uid,
                "resourceVersion": version.to_string(),
                "labels": more["labels"], "ownerReferences": more["owners"],
            },
            "spec": {"nodeName": node, "containers": [{"name": "main"}]},
            "status": {"phase": more["phase"].as_str().unwrap_or("Running")},
        });
        if !more["containers"].is_null() {
            pod["status"]["containerStatuses"] = more["containers"].clone();
        }
        for absent in ["labels", "ownerReferences"] {
            // What is empty is left out, never null.
            let meta = pod["metadata"].as_object_mut().expect("it was written so");
            meta.retain(|name, value| name != absent || !value.is_null());
        }
        let before = state.pods.insert(uid.to_owned(), pod.clone());
        state.happened("Pod", before, Some(pod));
        self.shared.changed.send_replace(version);
    }

    /// A pod as a whole, new or changed: metadata with uid, spec, status.
    ///
    /// # Panics
    /// When it has no uid.
    pub fn put_pod_object(&self, pod: &Value) {
        let mut state = self.shared.lock();
        state.version += 1;
        let uid = pod["metadata"]["uid"].as_str().expect("it has a uid");
        let before = state.pods.insert(uid.to_owned(), pod.clone());
        state.happened("Pod", before, Some(pod.clone()));
        self.shared.changed.send_replace(state.version);
    }

    /// So many pods that ask for no GPU, which have been there for ever.
    pub fn fill(&self, count: usize) {
        let mut state = self.shared.lock();
        state.version += 1;
        for number in 0..count {
            let uid = format!("filler-{number:06}");
            let pod = json!({
                "metadata": {"name": uid, "namespace": "web", "uid": uid},
                "spec": {"nodeName": "cpu-1", "containers": [{"resources": {"requests": {"cpu": "1"}}}]},
                "status": {"phase": "Running"},
            });
            state.pods.insert(uid, pod);
        }
        self.shared.changed.send_replace(state.version);
    }

    /// A node as a whole, new or changed.
    ///
    /// # Panics
    /// When it has no name.
    pub fn put_node_object(&self, node: &Value) {
        let mut state = self.shared.lock();
        state.version += 1;
        let name = node["metadata"]["name"].as_str().expect("it has a name");
        let mut node = node.clone();
        node["metadata"]["resourceVersion"] = json!(state.version.to_string());
        let before = state.nodes.insert(name.to_owned(), node.clone());
        state.happened("Node", before, Some(node));
        self.shared.changed.send_replace(state.version);
    }

    /// A kind of object that not every cluster has is installed: `JobSet`, `Workload`.
    ///
    /// # Panics
    /// When it knows no such kind.
    pub fn install(&self, kind: &str) {
        let known = OTHERS.iter().find(|it| it.0 == kind);
        let kind = known.expect("a kind that it knows").0;
        self.shared.lock().others.entry(kind).or_default();
    }

    /// An object of another kind as a whole, new or changed: `Job`, `Event`, `JobSet`, `Workload`, `ResourceSlice` ….
    ///
    /// # Panics
    /// When it has no uid, or its kind is not installed.
    pub fn put_object(&self, kind: &str, object: &Value) {
        let mut state = self.shared.lock();
        state.version += 1;
        let uid = object["metadata"]["uid"].as_str().expect("it has a uid");
        let known = OTHERS.iter().find(|it| it.0 == kind);
        let kind = known.expect("a kind that it knows").0;
        let objects = state.others.get_mut(kind).expect("it is installed");
        let before = objects.insert(uid.to_owned(), object.clone());
        state.happened(kind, before, Some(object.clone()));
        self.shared.changed.send_replace(state.version);
    }

    /// A node goes.
    ///
    /// # Panics
    /// When there is none of this name.
    pub fn delete_node(&self, name: &str) {
        let mut state = self.shared.lock();
        state.version += 1;
        let before = state.nodes.remove(name).expect("it was put before");
        state.happened("Node", Some(before), None);
        self.shared.changed.send_replace(state.version);
    }

    /// Whether nodes and pods of the whole cluster may be looked at from now on. Watches that are open end.
    pub fn let_see_all(&self, is_wide: bool) {
        let mut state = self.shared.lock();
        state.is_wide = is_wide;
        self.shared.changed.send_replace(state.version);
    }

    /// Whether conditions of nodes and events may be written from now on, and whether nodes may be read and their
    /// taints changed.
    pub fn let_write(&self, conditions: bool, taints: bool) {
        self.shared.lock().may_write = [conditions, taints];
    }

    /// A node as it is.
    pub fn node_object(&self, name: &str) -> Option<Value> {
        self.shared.lock().nodes.get(name).cloned()
    }

    /// The events that were made.
    pub fn told(&self) -> Vec<Value> {
        self.shared.lock().told.clone()
    }

    /// Whether lists are no JSON from now on.
    pub fn speak_garbage(&self, is_garbage: bool) {
        self.shared.lock().is_garbage = is_garbage;
    }

    /// A pod goes.
    ///
    /// # Panics
    /// When there is none with this uid.
    pub fn delete_pod(&self, uid: &str) {
        let mut state = self.shared.lock();
        state.version += 1;
        let before = state.pods.remove(uid).expect("it was put before");
        state.happened("Pod", Some(before), None);
        self.shared.changed.send_replace(state.version);
    }

    /// A namespace with these labels.
    pub fn put_namespace(&self, name: &str, labels: &Value) {
        let object = json!({"kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        self.shared
            .lock()
            .namespaces
            .insert(name.to_owned(), object);
    }

    /// A node with these labels and this id of its provider.
    pub fn put_node(&self, name: &str, provider_id: &str, labels: &Value) {
        let object = json!({
            "kind": "Node", "metadata": {"name": name, "labels": labels},
            "spec": {"providerID": provider_id},
        });
        self.shared.lock().nodes.insert(name.to_owned(), object);
    }

    /// Forgets everything that has happened: whoever watches from before has to list again.
    pub fn forget(&self) {
        let mut state = self.shared.lock();
        state.version += 1;
        state.forgotten = state.version;
        state.events.clear();
        self.shared.changed.send_replace(state.version);
    }

    /// The token that it takes from now on.
    pub fn take_token(&self, token: &str) {
        self.shared.lock().token = token.to_owned();
    }

    /// How long every answer takes from now on.
    pub fn delay(&self, delay: Duration) {
        self.shared.lock().delay = delay;
    }

    /// How often pods were listed, and how often watched.
    pub fn asked(&self) -> (u64, u64) {
        let state = self.shared.lock();
        (state.lists, state.watches)
    }

    /// What was asked that nobody may ask.
    pub fn refused(&self) -> BTreeSet<String> {
        self.shared.lock().refused.clone()
    }
}

impl Cluster {
    fn happened(&mut self, kind: &'static str, before: Option<Value>, after: Option<Value>) {
        self.events.push(Happened {
            version: self.version,
            kind,
            before,
            after,
        });
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Cluster> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse(&self, code: StatusCode, why: &str) -> Response {
        self.lock().refused.insert(why.to_owned());
        status(code, why)
    }

    /// What is new for a watch from `from`, and from where it goes on; none at its end.
    fn news(&self, asks: &Asks, from: &mut u64) -> Option<String> {
        let state = self.lock();
        if !matches!(asks, Asks::OfNode(_)) && !state.is_wide {
            return None;
        }
        if *from < state.forgotten {
            let gone = json!({"type": "ERROR", "object": {
                "kind": "Status", "status": "Failure", "reason": "Expired", "code": 410,
                "message": format!("too old resource version: {from} ({})", state.forgotten),
            }});
            *from = u64::MAX;
            return Some(format!("{gone}\n"));
        }
        if *from == u64::MAX {
            return None;
        }
        let news = state.events.iter().filter(|it| it.version > *from);
        let news = news.filter_map(|it| it.told(asks));
        let mut text: String = news.map(|event| format!("{event}\n")).collect();
        *from = state.version;
        let bookmark = json!({"type": "BOOKMARK", "object": {
            "kind": asks.kind(), "metadata": {"resourceVersion": from.to_string()},
        }});
        text.push_str(&format!("{bookmark}\n"));
        Some(text)
    }
}

/// A refusal as the real one writes it.
fn status(code: StatusCode, message: &str) -> Response {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "message": message, "code": code.as_u16(),
    });
    (code, axum::Json(body)).into_response()
}

/// Lets those ask who may, after the delay that every answer has.
async fn admit(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    request: Request,
    next: Next,
) -> Response {
    let (token, delay) = {
        let state = shared.lock();
        (state.token.clone(), state.delay)
    };
    tokio::time::sleep(delay).await;
    let shown = headers.get(header::AUTHORIZATION);
    let expected = format!("Bearer {token}");
    match shown.is_some_and(|it| it.as_bytes() == expected.as_bytes()) {
        true => next.run(request).await,
        false => status(StatusCode::UNAUTHORIZED, "Unauthorized"),
    }
}

async fn pods(State(shared): State<Arc<Shared>>, Query(asked): Query<Asked>) -> Response {
    let selector = asked.get("fieldSelector").map_or("", String::as_str);
    let asks = match selector.strip_prefix("spec.nodeName=") {
        Some(node) => Asks::OfNode(node.to_owned()),
        None => Asks::NotOver,
    };
    let is_right = selector == "status.phase!=Succeeded,status.phase!=Failed";
    if matches!(asks, Asks::NotOver) {
        let is_wide = shared.lock().is_wide;
        if !is_wide {
            return shared.refuse(StatusCode::FORBIDDEN, "pods of all nodes");
        }
        if !is_right {
            return shared.refuse(StatusCode::BAD_REQUEST, "pods that are over");
        }
    }
    answer(shared, asks, &asked)
}

async fn nodes(State(shared): State<Arc<Shared>>, Query(asked): Query<Asked>) -> Response {
    let is_wide = shared.lock().is_wide;
    if !is_wide {
        return shared.refuse(StatusCode::FORBIDDEN, "nodes is forbidden");
    }
    answer(shared, Asks::Nodes, &asked)
}

async fn others(
    kind: &'static str,
    State(shared): State<Arc<Shared>>,
    Query(asked): Query<Asked>,
) -> Response {
    let (is_wide, is_there) = {
        let state = shared.lock();
        (state.is_wide, state.others.contains_key(kind))
    };
    if !is_there {
        let why = "the server could not find the requested resource";
        return status(StatusCode::NOT_FOUND, why);
    }
    if !is_wide {
        let why = format!("{kind} is forbidden");
        return shared.refuse(StatusCode::FORBIDDEN, &why);
    }
    let selector = asked.get("fieldSelector").map_or("", String::as_str);
    let asks = match (kind, selector) {
        ("Event", "source=cluster-autoscaler,involvedObject.kind=Pod") => Asks::OfScaler,
        ("Event", _) => return shared.refuse(StatusCode::BAD_REQUEST, "all events"),
        _ => Asks::All(kind),
    };
    answer(shared, asks, &asked)
}

/// A page of a list. A continuation is the last key of the page before and the version of the list.
fn list(shared: &Shared, asks: &Asks, asked: &Asked) -> Response {
    let mut state = shared.lock();
    state.lists += 1;
    if state.is_garbage {
        return "<html>a proxy in between</html>".into_response();
    }
    let (after, version) = match asked.get("continue").and_then(|it| it.rsplit_once('@')) {
        None => (String::new(), state.version),
        Some((key, version)) => (key.to_owned(), version.parse().unwrap_or(0)),
    };
    if version < state.forgotten {
        return status(StatusCode::GONE, "the continuation is too old");
    }
    let objects = match asks.kind() {
        "Node" => &state.nodes,
        "Pod" => &state.pods,
        other => match state.others.get(other) {
            Some(objects) => objects,
            None => {
                return status(
                    StatusCode::NOT_FOUND,
                    "the server could not find the requested resource",
                );
            }
        },
    };
    let limit = asked.get("limit").and_then(|it| it.parse::<usize>().ok());
    // Out of the cache there are no pages.
    let limit = limit.filter(|_| asked.get("resourceVersion").is_none_or(|it| it != "0"));
    let limit = limit.unwrap_or(usize::MAX);
    let beyond = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
    let mut found = objects.range(beyond).filter(|(_, it)| asks.has(it));
    let page: Vec<(&String, &Value)> = found.by_ref().take(limit).collect();
    let last = page.last().map(|(key, _)| (*key).clone());
    let mut meta = json!({"resourceVersion": version.to_string()});
    if let (Some(last), Some(_)) = (last, found.next()) {
        meta["continue"] = json!(format!("{last}@{version}"));
    }
    let items: Vec<&Value> = page.into_iter().map(|(_, it)| it).collect();
    let list = json!({
        "kind": format!("{}List", asks.kind()), "apiVersion": "v1", "metadata": meta, "items": items,
    });
    axum::Json(list).into_response()
}

fn answer(shared: Arc<Shared>, asks: Asks, asked: &Asked) -> Response {
    if asked.get("watch").map(String::as_str) != Some("true") {
        return list(&shared, &asks, asked);
    }
    let version = asked.get("resourceVersion").and_then(|it| it.parse().ok());
    let Some(from) = version else {
        return shared.refuse(StatusCode::BAD_REQUEST, "a watch from nowhere");
    };
    if !asked.contains_key("timeoutSeconds") {
        return shared.refuse(StatusCode::BAD_REQUEST, "a watch without end");
    }
    shared.lock().watches += 1;
    let changed = shared.changed.subscribe();
    let watch = (shared, changed, asks, from, true);
    let lines = futures::stream::unfold(watch, |watch| async move {
        let (shared, mut changed, asks, mut from, is_first) = watch;
        if !is_first {
            changed.changed().await.ok()?;
        }
        changed.mark_unchanged();
        let text = shared.news(&asks, &mut from)?;
        Some((
            Ok::<_, std::io::Error>(text),
            (shared, changed, asks, from, false),
        ))
    });
    let json = [(header::CONTENT_TYPE, "application/json")];
    (json, Body::from_stream(lines)).into_response()
}

async fn namespace(State(shared): State<Arc<Shared>>, Path(name): Path<String>) -> Response {
    found(shared.lock().namespaces.get(&name), &name)
}

/// A node by its name: an agent reads its own; a server, which sees the whole cluster, where it may change taints.
async fn node(State(shared): State<Arc<Shared>>, Path(name): Path<String>) -> Response {
    let is_forbidden = {
        let state = shared.lock();
        state.is_wide && !state.may_write[1]
    };
    if is_forbidden {
        return shared.refuse(StatusCode::FORBIDDEN, "nodes cannot be read by name");
    }
    found(shared.lock().nodes.get(&name), &name)
}

/// Whether an object has these keys and no others.
fn has_only(object: &Value, keys: &[&str]) -> bool {
    let known = object.as_object();
    known.is_some_and(|it| it.len() == keys.len() && keys.iter().all(|key| it.contains_key(*key)))
}

/// Whether a text is a moment to the second.
fn is_moment(text: &Value) -> bool {
    let text = text.as_str().unwrap_or_default();
    text.len() == 20 && text.ends_with('Z') && text.as_bytes()[10] == b'T'
}

/// A change of a node by who may make it.
fn change(
    shared: &Shared,
    (name, right, kind): (&str, usize, &str),
    headers: &HeaderMap,
    make: impl FnOnce(&mut Value) -> Result<(), (StatusCode, &'static str)>,
) -> Response {
    if !shared.lock().may_write[right] {
        return shared.refuse(StatusCode::FORBIDDEN, "nodes cannot be patched");
    }
    let sent = headers.get(header::CONTENT_TYPE);
    if sent.is_none_or(|it| it.as_bytes() != kind.as_bytes()) {
        return shared.refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "another kind of patch");
    }
    let mut state = shared.lock();
    let Some(before) = state.nodes.get(name).cloned() else {
        return status(
            StatusCode::NOT_FOUND,
            &format!("nodes \"{name}\" not found"),
        );
    };
    let mut after = before.clone();
    if let Err((code, why)) = make(&mut after) {
        state.refused.insert(why.to_owned());
        return status(code, why);
    }
    state.version += 1;
    after["metadata"]["resourceVersion"] = json!(state.version.to_string());
    state.nodes.insert(name.to_owned(), after.clone());
    state.happened("Node", Some(before), Some(after.clone()));
    shared.changed.send_replace(state.version);
    axum::Json(after).into_response()
}

/// Conditions are merged by their type.
async fn conditions(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    axum::Json(body): axum::Json<Value>,
) -> Response {
    let kind = "application/strategic-merge-patch+json";
    let make = |node: &mut Value| {
        let wrong = |why| Err((StatusCode::UNPROCESSABLE_ENTITY, why));
        let is_right = has_only(&body, &["status"]) && has_only(&body["status"], &["conditions"]);
        let conditions = body["status"]["conditions"].as_array().filter(|_| is_right);
        let Some(conditions) = conditions else {
            return wrong("something else than conditions");
        };
        for condition in conditions {
            let text = |name: &str| condition[name].as_str().unwrap_or_default();
            let letters = |it: char| it.is_ascii_alphanumeric();
            let reason = text("reason");
            let is_reason = reason.starts_with(|it: char| it.is_ascii_alphabetic())
                && reason.chars().all(letters);
            if text("type").is_empty() || !is_reason || text("message").len() > 32_768 {
                return wrong("a condition without type or with a reason that is none");
            }
            if !["True", "False", "Unknown"].contains(&text("status")) {
                return wrong("a condition's status");
            }
            if !["lastHeartbeatTime", "lastTransitionTime"]
                .iter()
                .all(|it| is_moment(&condition[*it]))
            {
                return wrong("a condition's time");
            }
            if !node["status"]["conditions"].is_array() {
                node["status"]["conditions"] = json!([]);
            }
            let known = node["status"]["conditions"].as_array_mut();
            let known = known.expect("it was just made one");
            known.retain(|it| it["type"] != condition["type"]);
            known.push(condition.clone());
        }
        Ok(())
    };
    change(&shared, (&name, 0, kind), &headers, make)
}

/// A list of taints takes the place of the one before, of the version that was read.
async fn taint(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    axum::Json(body): axum::Json<Value>,
) -> Response {
    let make = |node: &mut Value| {
        let is_right = has_only(&body, &["metadata", "spec"])
            && has_only(&body["metadata"], &["resourceVersion"])
            && has_only(&body["spec"], &["taints"]);
        let taints = body["spec"]["taints"].as_array().filter(|_| is_right);
        let Some(taints) = taints else {
            let why = "something else than taints";
            return Err((StatusCode::UNPROCESSABLE_ENTITY, why));
        };
        if body["metadata"]["resourceVersion"] != node["metadata"]["resourceVersion"] {
            let why = "the object has been modified";
            return Err((StatusCode::CONFLICT, why));
        }
        node["spec"]["taints"] = json!(taints);
        Ok(())
    };
    let kind = "application/merge-patch+json";
    change(&shared, (&name, 1, kind), &headers, make)
}

async fn event(State(shared): State<Arc<Shared>>, axum::Json(body): axum::Json<Value>) -> Response {
    if !shared.lock().may_write[0] {
        return shared.refuse(StatusCode::FORBIDDEN, "events cannot be created");
    }
    let text = |at: &Value| at.as_str().unwrap_or_default().to_owned();
    let object = &body["involvedObject"];
    let is_right = text(&body["metadata"]["namespace"]) == "default"
        && !text(&body["metadata"]["generateName"]).is_empty()
        && text(&object["kind"]) == "Node"
        && !text(&object["name"]).is_empty()
        && ["Warning", "Normal"].contains(&text(&body["type"]).as_str())
        && text(&body["message"]).len() <= 1_024
        && !text(&body["reason"]).is_empty()
        && is_moment(&body["firstTimestamp"]);
    if !is_right {
        return shared.refuse(StatusCode::UNPROCESSABLE_ENTITY, "an event that is none");
    }
    shared.lock().told.push(body.clone());
    (StatusCode::CREATED, axum::Json(body)).into_response()
}

fn found(object: Option<&Value>, name: &str) -> Response {
    match object {
        Some(object) => axum::Json(object).into_response(),
        None => status(StatusCode::NOT_FOUND, &format!("\"{name}\" not found")),
    }
}

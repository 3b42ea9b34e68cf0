//! A Kubernetes API server as the real one is to an agent: pods of one node, listed and watched, a node,
//! namespaces. It wants a token, a version to watch from, and a field selector; it forgets what lies
//! behind, ends watches, and sends bookmarks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
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
    /// What happened, with its version.
    events: Vec<(u64, Value)>,
    token: String,
    delay: Duration,
    lists: u64,
    watches: u64,
    refused: BTreeSet<String>,
}

impl Kubernetes {
    /// Starts one on a free port of loopback.
    ///
    /// # Panics
    /// When the port was taken meanwhile.
    pub fn start() -> Self {
        let (changed, _) = watch::channel(1);
        let state = Cluster {
            version: 1,
            token: TOKEN.to_owned(),
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
        let router = Router::new()
            .route("/api/v1/pods", get(pods))
            .route("/api/v1/namespaces/{name}", get(namespace))
            .route("/api/v1/nodes/{name}", get(node))
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
        for absent in ["labels", "ownerReferences"] {
            // What is empty is left out, never null.
            let meta = pod["metadata"].as_object_mut().expect("it was written so");
            meta.retain(|name, value| name != absent || !value.is_null());
        }
        let known = state.pods.insert(uid.to_owned(), pod.clone());
        let kind = known.map_or("ADDED", |_| "MODIFIED");
        let event = (version, json!({"type": kind, "object": pod}));
        state.events.push(event);
        self.shared.changed.send_replace(version);
    }

    /// A pod goes.
    ///
    /// # Panics
    /// When there is none with this uid.
    pub fn delete_pod(&self, uid: &str) {
        let mut state = self.shared.lock();
        state.version += 1;
        let version = state.version;
        let mut pod = state.pods.remove(uid).expect("it was put before");
        pod["metadata"]["resourceVersion"] = json!(version.to_string());
        let event = (version, json!({"type": "DELETED", "object": pod}));
        state.events.push(event);
        self.shared.changed.send_replace(version);
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

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Cluster> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether who asks may ask.
    async fn admit(&self, headers: &HeaderMap) -> Result<(), Response> {
        let (token, delay) = {
            let state = self.lock();
            (state.token.clone(), state.delay)
        };
        tokio::time::sleep(delay).await;
        let shown = headers.get(header::AUTHORIZATION);
        let expected = format!("Bearer {token}");
        match shown.is_some_and(|it| it.as_bytes() == expected.as_bytes()) {
            true => Ok(()),
            false => Err(status(StatusCode::UNAUTHORIZED, "Unauthorized")),
        }
    }

    fn refuse(&self, code: StatusCode, why: &str) -> Response {
        self.lock().refused.insert(why.to_owned());
        status(code, why)
    }

    /// What is new for a watch from `from`, and from where it goes on; none at its end.
    fn news(&self, node: &str, from: &mut u64) -> Option<String> {
        let state = self.lock();
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
        let is_new = |(version, event): &&(u64, Value)| {
            version > from && event["object"]["spec"]["nodeName"] == node
        };
        let news = state.events.iter().filter(is_new);
        let mut text: String = news.map(|(_, event)| format!("{event}\n")).collect();
        *from = state.version;
        let bookmark = json!({"type": "BOOKMARK", "object": {
            "kind": "Pod", "metadata": {"resourceVersion": from.to_string()},
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

async fn pods(
    State(shared): State<Arc<Shared>>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Response {
    if let Err(refused) = shared.admit(&headers).await {
        return refused;
    }
    let selector = asked.get("fieldSelector").map_or("", String::as_str);
    let Some(node) = selector.strip_prefix("spec.nodeName=").map(str::to_owned) else {
        return shared.refuse(StatusCode::FORBIDDEN, "pods of all nodes");
    };
    let version = asked.get("resourceVersion").and_then(|it| it.parse().ok());
    if asked.get("watch").map(String::as_str) != Some("true") {
        let mut state = shared.lock();
        state.lists += 1;
        let of_node = |pod: &&Value| pod["spec"]["nodeName"] == node.as_str();
        let items: Vec<Value> = state.pods.values().filter(of_node).cloned().collect();
        let version = state.version.to_string();
        let list = json!({
            "kind": "PodList", "apiVersion": "v1",
            "metadata": {"resourceVersion": version}, "items": items,
        });
        return axum::Json(list).into_response();
    }
    let Some(from) = version else {
        return shared.refuse(StatusCode::BAD_REQUEST, "a watch from nowhere");
    };
    if !asked.contains_key("timeoutSeconds") {
        return shared.refuse(StatusCode::BAD_REQUEST, "a watch without end");
    }
    shared.lock().watches += 1;
    let changed = shared.changed.subscribe();
    let watch = (shared, changed, node, from, true);
    let lines = futures::stream::unfold(watch, |watch| async move {
        let (shared, mut changed, node, mut from, is_first) = watch;
        if !is_first {
            changed.changed().await.ok()?;
        }
        changed.mark_unchanged();
        let text = shared.news(&node, &mut from)?;
        Some((
            Ok::<_, std::io::Error>(text),
            (shared, changed, node, from, false),
        ))
    });
    let json = [(header::CONTENT_TYPE, "application/json")];
    (json, Body::from_stream(lines)).into_response()
}

async fn namespace(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    if let Err(refused) = shared.admit(&headers).await {
        return refused;
    }
    found(shared.lock().namespaces.get(&name), &name)
}

async fn node(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    if let Err(refused) = shared.admit(&headers).await {
        return refused;
    }
    found(shared.lock().nodes.get(&name), &name)
}

fn found(object: Option<&Value>, name: &str) -> Response {
    match object {
        Some(object) => axum::Json(object).into_response(),
        None => status(StatusCode::NOT_FOUND, &format!("\"{name}\" not found")),
    }
}

//! What Google Compute Engine's metadata server says of the machine.
//!
//! It is asked where the machine's firmware says that it is one of theirs, by a task of its own, so that
//! nothing waits for it; elsewhere nobody is asked. Only single values are read: the whole tree holds
//! secrets. What is known stays, because a machine does not change; what is missing is asked for again.
//!
//! The metadata server of GKE, which pods are given where Workload Identity is on, serves a part of it: neither the machine
//! type nor anything of Spot. Its node's label says that it is Spot, and that nobody tells its end is in the log.
//!
//! Of a Spot machine another task has a question open all the time that is answered when the provider takes the machine
//! back: 30 s before it is gone.
//!
//! Limits: [`ANSWER_WITHIN`], [`MAX_VALUE_BYTES`]; [`PAUSES`] between two rounds; [`HELD_FOR`] a question is open.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use gpufleet_program::connect::Connector;
use gpufleet_program::reloaded::words;
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{ResourceKind, attribute};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::sync::Notify;

use super::labels::Facts;
use super::node::add;
use super::task::Task;
use crate::read::Turn;

/// Where it is on every such machine.
const ADDRESS: &str = "http://169.254.169.254";

/// What their firmware calls the machine.
const PRODUCT: &str = "Google Compute Engine";

/// The header that question and answer must carry: who has it does not come through a proxy.
const FLAVOR: (&str, &str) = ("Metadata-Flavor", "Google");

/// How long one answer may take: it is on the same host.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Most bytes of a value.
const MAX_VALUE_BYTES: usize = 1_024;

/// The pause before the next round while something is missing: first short, because the server of GKE's
/// Workload Identity comes soon after the node; then long, for as long as it takes.
const PAUSES: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(600)];

/// How many rounds have the short pause.
const SOON: u32 = 10;

/// What is asked for.
const INSTANCE_ID: &str = "instance/id";
const MACHINE_TYPE: &str = "instance/machine-type";
const ZONE: &str = "instance/zone";
const PREEMPTIBLE: &str = "instance/scheduling/preemptible";
const PROJECT: &str = "project/project-id";
const ALL: [&str; 5] = [INSTANCE_ID, MACHINE_TYPE, ZONE, PREEMPTIBLE, PROJECT];

/// Whether the provider takes the machine back.
const PREEMPTED: &str = "instance/preempted";

/// What the value of [`PROVISIONING`](attribute::PROVISIONING) is of a machine that may be taken back.
pub(super) const SPOT: &str = "spot";

/// How long the server keeps a question open of which nothing changes: a connection that broke unseen is found by then.
const HELD_FOR: Duration = Duration::from_secs(60);

/// The pause behind an answer, for a server that does not keep questions open.
const BETWEEN: Duration = Duration::from_secs(1);

/// The version of a value that nobody has: the first question is answered at once.
const NO_VERSION: &str = "NONE";

/// Longest name of a version: they are sixteen digits.
const MAX_VERSION_BYTES: usize = 64;

/// What the tasks have learned.
#[derive(Debug)]
pub(super) struct Metadata {
    facts: Arc<Mutex<Arc<Facts>>>,
    /// Whether the provider takes the machine back and nobody was told yet.
    noticed: Arc<AtomicBool>,
    /// Has the machine's end be asked for.
    is_spot: Arc<Notify>,
    _tasks: [Task; 2],
}

impl Metadata {
    /// Asks where the config says, or where the machine is one that has such a server; needs a runtime.
    pub(super) fn start(server: &str, sys: &Path) -> Option<Self> {
        let address = match server {
            "" => return None,
            "auto" => is_theirs(sys).then(|| ADDRESS.to_owned())?,
            address => address.trim_end_matches('/').to_owned(),
        };
        let facts = Arc::<Mutex<Arc<Facts>>>::default();
        let (noticed, is_spot) = (Arc::<AtomicBool>::default(), Arc::new(Notify::new()));
        let of_watch = (address.clone(), Arc::clone(&is_spot), Arc::clone(&noticed));
        let of_task = (Arc::clone(&facts), Arc::clone(&is_spot));
        let kept = Task::start(async move { keep(&address, &of_task.0, &of_task.1).await });
        let watched =
            Task::start(async move { watch(&of_watch.0, &of_watch.1, &of_watch.2).await });
        Some(Self {
            facts,
            noticed,
            is_spot,
            _tasks: [kept, watched],
        })
    }

    /// What is known now.
    pub(super) fn known(&self) -> Arc<Facts> {
        Arc::clone(&self.facts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The machine is a Spot one, whoever says so: its end is asked for.
    pub(super) fn is_spot(&self) {
        self.is_spot.notify_one();
    }

    /// That the provider takes the machine back; once.
    pub(super) fn notice(&self, turn: &Turn) -> Option<Event> {
        let is_news = self.noticed.swap(false, Ordering::Relaxed);
        is_news.then(|| Event {
            at: turn.at,
            kind: EventKind::PreemptionNoticed,
            severity: Severity::Warning,
            resource_kind: ResourceKind::Node,
            resource_id: turn.node.node.as_str().into(),
            message: "the provider takes this Spot machine back within 30 s".to_owned(),
            attributes: BTreeMap::new(),
        })
    }
}

fn is_theirs(sys: &Path) -> bool {
    let product = fs::read_to_string(sys.join("class/dmi/id/product_name"));
    product.is_ok_and(|it| it.trim() == PRODUCT)
}

/// Asks until all is known, and says when it is known that the machine is a Spot one.
async fn keep(address: &str, known: &Mutex<Arc<Facts>>, is_spot: &Notify) {
    let mut missing = ALL.to_vec();
    let mut told = String::new();
    for round in 0_u32.. {
        let mut facts = Facts::clone(&known.lock().unwrap_or_else(PoisonError::into_inner));
        let error = ask(address, &mut missing, &mut facts).await;
        let spot = |it: &(String, String)| it.0 == attribute::PROVISIONING && it.1 == SPOT;
        if facts.iter().any(spot) {
            is_spot.notify_one();
        }
        *known.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(facts);
        let Some(error) = error else {
            return;
        };
        if error != told {
            tracing::warn!(
                error,
                "the metadata server does not say all of this machine"
            );
            told = error;
        }
        tokio::time::sleep(pause_after(round)).await;
    }
}

/// Waits until the provider takes the machine back; of one that is no Spot machine for ever.
async fn watch(address: &str, is_spot: &Notify, noticed: &AtomicBool) {
    is_spot.notified().await;
    let (mut version, mut told, mut failed) = (NO_VERSION.to_owned(), String::new(), 0);
    loop {
        let pause = match is_preempted(address, &mut version).await {
            Ok(true) => return noticed.store(true, Ordering::Relaxed),
            Ok(false) => {
                failed = 0;
                BETWEEN
            }
            Err(error) => {
                if error != told {
                    tracing::warn!(error, "nobody says when this Spot machine is taken back");
                    told = error;
                }
                failed += 1;
                pause_after(failed)
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Whether the provider takes the machine back, once that is another than in the version that is known, or a while later.
async fn is_preempted(address: &str, version: &mut String) -> Result<bool, String> {
    let held_s = HELD_FOR.as_secs();
    let query = format!("?wait_for_change=true&timeout_sec={held_s}&last_etag={version}");
    let asked = get(address, PREEMPTED, &query);
    let asked = tokio::time::timeout(HELD_FOR + ANSWER_WITHIN, asked).await;
    let (value, next) = asked.unwrap_or_else(|_| Err(format!("{address} did not answer")))?;
    let is_version = (1..=MAX_VERSION_BYTES).contains(&next.len())
        && next.bytes().all(|it| it.is_ascii_alphanumeric());
    *version = match is_version {
        true => next,
        false => NO_VERSION.to_owned(),
    };
    Ok(value == "TRUE")
}

fn pause_after(round: u32) -> Duration {
    PAUSES[usize::from(round >= SOON)]
}

/// Asks for what is missing, adds what comes, and says why something does not.
async fn ask(address: &str, missing: &mut Vec<&'static str>, facts: &mut Facts) -> Option<String> {
    let mut error = None;
    for path in std::mem::take(missing) {
        let asked = tokio::time::timeout(ANSWER_WITHIN, value(address, path)).await;
        match asked.unwrap_or_else(|_| Err(format!("{address} did not answer"))) {
            Ok(value) => note(facts, path, &value),
            Err(why) => {
                missing.push(path);
                error = Some(why);
            }
        }
    }
    if !facts.is_empty() {
        add(facts, attribute::CLOUD_PROVIDER, "gcp");
    }
    error
}

/// One value as the fact it is. Types and zones come as `projects/<number>/zones/<zone>`.
fn note(facts: &mut Facts, path: &str, value: &str) {
    let last = value.rsplit('/').next().unwrap_or_default();
    match path {
        INSTANCE_ID => add(facts, attribute::HOST_ID, value),
        MACHINE_TYPE => add(facts, attribute::MACHINE_TYPE, last),
        PROJECT => add(facts, attribute::CLOUD_ACCOUNT, value),
        PREEMPTIBLE => match value {
            "TRUE" => add(facts, attribute::PROVISIONING, SPOT),
            "FALSE" => add(facts, attribute::PROVISIONING, "on_demand"),
            _ => {}
        },
        _ => {
            add(facts, attribute::ZONE, last);
            let region = last.rsplit_once('-').map_or("", |it| it.0);
            add(facts, attribute::REGION, region);
        }
    }
}

async fn value(address: &str, path: &str) -> Result<String, String> {
    get(address, path, "").await.map(|it| it.0)
}

/// A value, and which version of it that is; empty where that is not told.
async fn get(address: &str, path: &str, query: &str) -> Result<(String, String), String> {
    let client: Client<Connector, Empty<Bytes>> =
        Client::builder(TokioExecutor::new()).build(Connector::plain());
    let request = Request::get(format!("{address}/computeMetadata/v1/{path}{query}"))
        .header(FLAVOR.0, FLAVOR.1)
        .body(Empty::new())
        .map_err(|error| format!("node.metadata_server `{address}`: {error}"))?;
    let answer = client.request(request).await;
    let answer = answer.map_err(|error| format!("{address}: {}", words(&error)))?;
    let status = answer.status();
    if status != StatusCode::OK {
        return Err(format!("{address} answered {status} to {path}"));
    }
    // Whoever else answers under this address does not say so.
    if answer
        .headers()
        .get(FLAVOR.0)
        .is_none_or(|it| it != FLAVOR.1)
    {
        return Err(format!("what answers at {address} is no metadata server"));
    }
    let version = answer.headers().get(http::header::ETAG);
    let version = version.and_then(|it| it.to_str().ok());
    let version = version.unwrap_or_default().to_owned();
    let body = Limited::new(answer.into_body(), MAX_VALUE_BYTES)
        .collect()
        .await;
    let body = body.map_err(|error| format!("{address}, {path}: {}", words(error.as_ref())))?;
    let text = String::from_utf8(body.to_bytes().to_vec());
    let text = text.map_err(|_| format!("{address}, {path}: no text"))?;
    Ok((text.trim().to_owned(), version))
}

#[cfg(test)]
#[path = "metadata_tests.rs"]
pub(super) mod tests;

//! What Google Compute Engine's metadata server says of the machine.
//!
//! It is asked where the machine's firmware says that it is one of theirs, by a task of its own, so that
//! nothing waits for it; elsewhere nobody is asked. Only single values are read: the whole tree holds
//! secrets. What is known stays, because a machine does not change; what is missing is asked for again.
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
const SPOT: &str = "spot";

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
        let of_task = Arc::clone(&facts);
        let kept = Task::start(async move { keep(&address, &of_task, &is_spot).await });
        let watched =
            Task::start(async move { watch(&of_watch.0, &of_watch.1, &of_watch.2).await });
        Some(Self {
            facts,
            noticed,
            _tasks: [kept, watched],
        })
    }

    /// What is known now.
    pub(super) fn known(&self) -> Arc<Facts> {
        Arc::clone(&self.facts.lock().unwrap_or_else(PoisonError::into_inner))
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
mod tests {
    use axum::Router;
    use axum::extract::Request;
    use axum::response::IntoResponse;
    use futures::FutureExt;
    use gpufleet_telemetry::time::Timestamp;

    use super::*;
    use crate::read::NodeFacts;

    /// A server that refuses what the real one refuses, of a Spot machine; `lacks` is what it does not know.
    async fn server(lacks: &'static str) -> String {
        server_of(lacks, "TRUE").await
    }

    async fn server_of(lacks: &'static str, preemptible: &'static str) -> String {
        let answer = move |request: Request| async move {
            let headers = request.headers();
            let is_ours = headers
                .get("metadata-flavor")
                .is_some_and(|it| it == "Google");
            if !is_ours || headers.contains_key("x-forwarded-for") {
                return StatusCode::FORBIDDEN.into_response();
            }
            let path = request.uri().path().to_owned();
            let path = path
                .strip_prefix("/computeMetadata/v1/")
                .unwrap_or_default();
            let value = match path {
                _ if path == lacks => return StatusCode::NOT_FOUND.into_response(),
                "instance/id" => "4711",
                "instance/machine-type" => "projects/123/machineTypes/a3-highgpu-8g",
                "instance/zone" => "projects/123/zones/us-central1-a",
                "instance/scheduling/preemptible" => preemptible,
                "project/project-id" => "my-project",
                _ => return StatusCode::NOT_FOUND.into_response(),
            };
            ([("Metadata-Flavor", "Google")], value).into_response()
        };
        serve(Router::new().fallback(answer)).await
    }

    /// A server that says at once that the machine stays, and to who knows that, that it goes, when `taken` says so.
    async fn provider(taken: Arc<Notify>) -> String {
        let answer = move |request: Request| {
            let taken = Arc::clone(&taken);
            let query = request.uri().query().unwrap_or_default();
            let waits = query.starts_with("wait_for_change=true&") && query.ends_with("etag=a1");
            async move {
                let (value, version) = match waits {
                    true => {
                        taken.notified().await;
                        ("TRUE", "b2")
                    }
                    false => ("FALSE", "a1"),
                };
                ([("Metadata-Flavor", "Google"), ("ETag", version)], value).into_response()
            }
        };
        serve(Router::new().fallback(answer)).await
    }

    async fn serve(router: Router) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        tokio::spawn(async { axum::serve(listener, router).await });
        format!("http://{address}")
    }

    /// All that one round comes to.
    async fn told_of(address: &str) -> (Facts, Option<String>) {
        let (mut missing, mut facts) = (ALL.to_vec(), Facts::new());
        let error = ask(address, &mut missing, &mut facts).await;
        (facts, error)
    }

    fn told(facts: &Facts) -> String {
        let told: Vec<String> = facts.iter().map(|(a, b)| format!("{a}={b}")).collect();
        told.join(" ")
    }

    #[tokio::test]
    async fn the_machine_is_what_its_metadata_server_says() {
        let (facts, missing) = told_of(&server("nothing").await).await;
        assert_eq!(missing, None);
        let expected = "host.id=4711 host.type=a3-highgpu-8g cloud.availability_zone=us-central1-a \
                        cloud.region=us-central1 gpufleet.provisioning=spot \
                        cloud.account.id=my-project cloud.provider=gcp";
        assert_eq!(told(&facts), expected);
    }

    #[tokio::test]
    async fn what_it_does_not_say_is_missing_and_the_rest_is_known() {
        let (facts, missing) = told_of(&server(MACHINE_TYPE).await).await;
        let missing = missing.expect("something is missing");
        assert!(
            missing.contains("404") && missing.contains(MACHINE_TYPE),
            "{missing}"
        );
        assert!(told(&facts).starts_with("host.id=4711 cloud.availability_zone="));
    }

    #[tokio::test]
    async fn what_is_known_stays_and_only_what_is_missing_is_asked_for_again() {
        let (mut missing, mut facts) = (ALL.to_vec(), Facts::new());
        let first = server(MACHINE_TYPE).await;
        assert!(ask(&first, &mut missing, &mut facts).await.is_some());
        assert_eq!(missing, [MACHINE_TYPE]);
        let nobody = "http://127.0.0.1:1";
        assert!(ask(nobody, &mut missing, &mut facts).await.is_some());
        assert!(told(&facts).contains("gpufleet.provisioning=spot"));
        assert_eq!(missing, [MACHINE_TYPE]);
        // This one does not know the instance any more, which nobody asks for.
        let last = server(INSTANCE_ID).await;
        assert_eq!(ask(&last, &mut missing, &mut facts).await, None);
        assert!(told(&facts).contains("host.id=4711") && told(&facts).contains("a3-highgpu-8g"));
    }

    #[test]
    fn a_server_that_comes_late_is_asked_often_at_first_and_then_now_and_then_for_ever() {
        let seconds = [0, 9, 10, 100_000].map(|round| pause_after(round).as_secs());
        assert_eq!(seconds, [30, 30, 600, 600]);
    }

    #[tokio::test]
    async fn a_question_stays_open_until_the_provider_takes_the_machine_back() {
        let taken = Arc::new(Notify::new());
        let address = provider(Arc::clone(&taken)).await;
        let mut version = NO_VERSION.to_owned();
        assert_eq!(is_preempted(&address, &mut version).await, Ok(false));
        assert_eq!(version, "a1");
        let takes = async { taken.notify_one() };
        let (found, ()) = tokio::join!(is_preempted(&address, &mut version), takes);
        assert_eq!(found, Ok(true));
        // Who does not answer says nothing.
        let nobody = is_preempted("http://127.0.0.1:1", &mut version).await;
        assert!(nobody.is_err(), "{nobody:?}");
    }

    #[tokio::test]
    async fn only_of_a_spot_machine_it_is_asked_and_its_end_is_told_once() {
        let is_spot = Notify::new();
        let facts = Mutex::default();
        keep(&server_of("nothing", "FALSE").await, &facts, &is_spot).await;
        assert_eq!(is_spot.notified().now_or_never(), None);
        let facts = Mutex::default();
        keep(&server("nothing").await, &facts, &is_spot).await;
        let goes = serve(
            Router::new()
                .fallback(|| async { ([("Metadata-Flavor", "Google")], "TRUE").into_response() }),
        );
        let noticed = Arc::<AtomicBool>::default();
        watch(&goes.await, &is_spot, &noticed).await;
        let task = || Task::start(async {});
        let metadata = Metadata {
            facts: Arc::default(),
            noticed,
            _tasks: [task(), task()],
        };
        let turn = Turn {
            at: Timestamp::from_seconds(1_790_000_000),
            monotonic: Duration::ZERO,
            node: Arc::new(NodeFacts::for_tests()),
        };
        let event = metadata.notice(&turn).expect("it was noticed");
        assert_eq!(event.kind, EventKind::PreemptionNoticed);
        assert_eq!(*event.resource_id, *turn.node.node);
        assert_eq!(metadata.notice(&turn), None);
    }

    #[tokio::test]
    async fn whoever_else_answers_there_is_not_believed() {
        let other = serve(Router::new().fallback(|| async { "a3-highgpu-8g" })).await;
        let (facts, missing) = told_of(&other).await;
        assert_eq!(facts, Facts::new());
        assert!(
            missing
                .expect("nothing is known")
                .contains("no metadata server")
        );
    }

    #[tokio::test]
    async fn a_machine_of_others_asks_nobody() {
        let sys = tempfile::tempdir().expect("a folder");
        let sys = sys.path();
        assert!(Metadata::start("auto", sys).is_none());
        assert!(Metadata::start("", sys).is_none());
        let folder = sys.join("class/dmi/id");
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("product_name"), "Standard PC\n").expect("written");
        assert!(!is_theirs(sys));
        fs::write(folder.join("product_name"), "Google Compute Engine\n").expect("written");
        assert!(is_theirs(sys));
    }
}

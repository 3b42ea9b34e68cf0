//! What Google Compute Engine's metadata server says of the machine.
//!
//! It is asked where the machine's firmware says that it is one of theirs, by a task of its own, so that
//! nothing waits for it; elsewhere nobody is asked. Only single values are read: the whole tree holds
//! secrets. What is known stays, because a machine does not change; what is missing is asked for again.
//!
//! Limits: [`ANSWER_WITHIN`], [`MAX_VALUE_BYTES`]; [`PAUSES`] between two rounds.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use gpufleet_program::connect::Connector;
use gpufleet_program::reloaded::words;
use gpufleet_telemetry::identity::attribute;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::labels::Facts;
use super::node::add;

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

/// What the task has learned.
#[derive(Debug)]
pub(super) struct Metadata {
    facts: Arc<Mutex<Arc<Facts>>>,
    task: tokio::task::AbortHandle,
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
        let of_task = Arc::clone(&facts);
        let task = tokio::spawn(async move { keep(&address, &of_task).await });
        Some(Self {
            facts,
            task: task.abort_handle(),
        })
    }

    /// What is known now.
    pub(super) fn known(&self) -> Arc<Facts> {
        Arc::clone(&self.facts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Metadata {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn is_theirs(sys: &Path) -> bool {
    let product = fs::read_to_string(sys.join("class/dmi/id/product_name"));
    product.is_ok_and(|it| it.trim() == PRODUCT)
}

/// Asks until all is known.
async fn keep(address: &str, known: &Mutex<Arc<Facts>>) {
    let mut missing = ALL.to_vec();
    let mut told = String::new();
    for round in 0_u32.. {
        let mut facts = Facts::clone(&known.lock().unwrap_or_else(PoisonError::into_inner));
        let error = ask(address, &mut missing, &mut facts).await;
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
            "TRUE" => add(facts, attribute::PROVISIONING, "spot"),
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
    let client: Client<Connector, Empty<Bytes>> =
        Client::builder(TokioExecutor::new()).build(Connector::plain());
    let request = Request::get(format!("{address}/computeMetadata/v1/{path}"))
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
    let body = Limited::new(answer.into_body(), MAX_VALUE_BYTES)
        .collect()
        .await;
    let body = body.map_err(|error| format!("{address}, {path}: {}", words(error.as_ref())))?;
    let text = String::from_utf8(body.to_bytes().to_vec());
    let text = text.map_err(|_| format!("{address}, {path}: no text"))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::extract::Request;
    use axum::response::IntoResponse;

    use super::*;

    /// A server that refuses what the real one refuses; `lacks` is what it does not know.
    async fn server(lacks: &'static str) -> String {
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
                "instance/scheduling/preemptible" => "TRUE",
                "project/project-id" => "my-project",
                _ => return StatusCode::NOT_FOUND.into_response(),
            };
            ([("Metadata-Flavor", "Google")], value).into_response()
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

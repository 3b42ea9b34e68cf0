//! What the metadata server says, by servers that refuse what the real one refuses.

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

/// GKE's own, which serves a part of it, and when it was asked whether the machine goes.
pub(in super::super) async fn of_gke() -> (String, Arc<Notify>) {
    let asked = Arc::new(Notify::new());
    let of_server = Arc::clone(&asked);
    let answer = move |request: Request| {
        let asked = Arc::clone(&of_server);
        async move {
            let value = match request.uri().path() {
                "/computeMetadata/v1/instance/id" => "4711",
                "/computeMetadata/v1/instance/zone" => "projects/123/zones/us-central1-a",
                "/computeMetadata/v1/instance/hostname" => "gke-a3-1",
                path => {
                    if path.ends_with(PREEMPTED) {
                        asked.notify_one();
                    }
                    return StatusCode::NOT_FOUND.into_response();
                }
            };
            ([("Metadata-Flavor", "Google")], value).into_response()
        }
    };
    (serve(Router::new().fallback(answer)).await, asked)
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
        is_spot: Arc::default(),
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
async fn that_nobody_tells_the_end_of_a_spot_machine_is_an_error_to_log() {
    let (address, _) = of_gke().await;
    let (facts, _) = told_of(&address).await;
    assert!(!told(&facts).contains(attribute::PROVISIONING), "{facts:?}");
    let nobody = is_preempted(&address, &mut NO_VERSION.to_owned()).await;
    let why = nobody.expect_err("it does not serve that");
    assert!(why.contains("404") && why.contains(PREEMPTED), "{why}");
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

//! The web port from outside: every route, hostile names, rights, and what must never be said.
//!
//! Longer than 500 lines because one fixture serves all, and each test asks pages and API alike.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use gpufleet_analysis::cause::{Cause, Reading};
use gpufleet_analysis::incident::{Family, Place, Remedy, Signal, Tick};
use gpufleet_analysis::lost::Losing;
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::identity::{Origin, ResourceKind};
use gpufleet_telemetry::time::Timestamp;
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

use crate::App;
use crate::auth::{Access, AuthConfig, Role, TokenFile};
use crate::config::Config;
use crate::fleet::Fleet;
use crate::fleet::live::Live;
use crate::hand::Hand;
use crate::incidents::Incidents;
use crate::notify::fixture::settings;
use crate::notify::settings::Kind;
use crate::store::{Store, StoreConfig};
use crate::view::fixture::{self, Does, HOSTILE};

mod bound;

mod budgets;

mod cost;

mod described;

mod doctor;

mod errors;

mod filled;

mod find;

mod fleet;

mod forgotten;

mod gone;

mod incidents;

mod jobs;

mod live;

mod marks;

mod problems;

mod questions;

mod queue;

mod runbooks;

mod say;

mod sign_in;

mod silences;

mod today;

mod troubles;

mod written;

const GPU: &str = "GPU-prod-h100-00-0000";
const TOKEN: &str = "a-token-that-may-read";
const OPERATOR: &str = "a-token-that-may-operate";

/// What every disk has left, bytes: the machine's own may be full.
const ROOM: u64 = 100_000_000_000;

/// The incident of [`Fixture::with_an_incident`], which is also the id in every address with one.
const INCIDENT: &str = "67e55044-10b1-426f-9247-bb680e5fe0c8";

/// A server with a known fleet and an empty store.
struct Fixture {
    router: Router,
    store: Store,
    fleet: Arc<Fleet>,
    incidents: Arc<Incidents>,
    news: tokio::sync::watch::Sender<()>,
    stop: tokio_util::sync::CancellationToken,
    inventory: Arc<crate::inventory::Inventory>,
    app: App,
    hand: Arc<Hand>,
    _folder: tempfile::TempDir,
}

async fn server_of(lives: Vec<Live>, guarded: bool) -> Fixture {
    server_with(Config::for_tests(), lives, guarded).await
}

async fn server_with(config: Config, lives: Vec<Live>, guarded: bool) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&StoreConfig::for_tests(folder.path()))
        .await
        .unwrap();
    let fleet = Fleet::new(config.fleet.clone());
    for live in lives {
        fleet.put_for_tests(live);
    }
    jobs::put(&fleet, &store).await;
    let tokens = [(Role::Read, TOKEN), (Role::Operate, OPERATOR)].map(|(role, secret)| {
        let file = folder.path().join(role.name());
        std::fs::write(&file, secret).unwrap();
        let file = file.display().to_string();
        TokenFile {
            role,
            file,
            cluster: None,
        }
    });
    let auth = AuthConfig {
        tokens: if guarded { tokens.to_vec() } else { Vec::new() },
        ..AuthConfig::default()
    };
    let access = Access::load(&auth).unwrap();
    let hand = Arc::new(Hand::at(fixture::NOW));
    let app = App {
        fleet: Arc::new(fleet),
        lead: Arc::new(crate::lead::Lead::leading()),
        room: |_| Some(ROOM),
        ..App::new(config, store.clone(), access, hand.clone())
    };
    Fixture {
        incidents: Arc::clone(&app.incidents),
        inventory: Arc::clone(&app.inventory),
        fleet: Arc::clone(&app.fleet),
        news: app.news.clone(),
        stop: app.stop.clone(),
        app: app.clone(),
        router: super::router(app),
        store,
        hand,
        _folder: folder,
    }
}

async fn server() -> Fixture {
    server_of(fixture::fleet(), false).await
}

fn signal() -> Signal {
    Signal {
        family: Family::GpuFault,
        place: Place::gpu("prod", "h100-03", "GPU-prod-h100-03-0005"),
        severity: Severity::Error,
        what: HOSTILE.to_owned(),
        action: "Drain the node and reboot it.".to_owned(),
        remedy: Remedy::Reboot,
        cause: Cause::GpuFault,
        since: Some(fixture::NOW.shifted(-3_600_000_000_000)),
        readings: vec![Reading::new("temperature", 91.0, Some(60.0), Unit::Celsius)],
        price: Price::of(Basis::BrokenGpu, Losing::gpus(1, Some(10_000_000))),
        confidence: None,
        booted_at: None,
    }
}

impl Fixture {
    /// Lets time pass.
    fn pass(&self, seconds: u64) {
        self.hand.pass(Duration::from_secs(seconds));
    }

    /// One open incident of a GPU, with a text that tries everything.
    async fn with_an_incident(self) -> Self {
        self.with(signal()).await
    }

    /// One open incident.
    async fn with(self, signal: Signal) -> Self {
        let length = Duration::from_secs(15);
        let lease = self.store.acquire_lease("test", fixture::NOW, length).await;
        let token = lease.unwrap().token;
        self.incidents.leads(token);
        let tick = Tick {
            now: fixture::NOW,
            signals: vec![signal],
            is_heard: &|_, _| true,
            in_its_place: &|_, _| None,
            is_forgotten: &|_, _| false,
            quiet_runs: &BTreeSet::new(),
            nodes: &BTreeMap::new(),
            runs: &Default::default(),
        };
        self.incidents.tick(tick, &mut || INCIDENT.parse().unwrap());
        self
    }

    async fn ask(&self, request: Request<Body>) -> Response<Body> {
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn get(&self, address: &str) -> (StatusCode, String) {
        let response = self
            .ask(Request::get(address).body(Body::empty()).unwrap())
            .await;
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn json(&self, address: &str) -> Value {
        let (status, body) = self.get(address).await;
        assert_eq!(status, StatusCode::OK, "{address}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    async fn post(
        &self,
        address: &str,
        kind: &str,
        body: &str,
        token: Option<&str>,
    ) -> Response<Body> {
        let mut request = Request::post(address).header(header::CONTENT_TYPE, kind);
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        self.ask(request.body(Body::from(body.to_owned())).unwrap())
            .await
    }
}

/// Every route of the document: its method, its path, and an address with its parameters filled in.
fn addresses() -> Vec<(String, String, String)> {
    let document = serde_json::to_value(crate::api::document()).unwrap();
    let mut found = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let of_ids = ["/agents/", "/incidents/", "/silences/"];
        let id = if of_ids.iter().any(|it| path.contains(it)) {
            INCIDENT
        } else {
            GPU
        };
        let address = path
            .replace("/compare", &format!("/compare?a={0}&b={0}", jobs::RUN))
            .replace("{job}", &crate::words::text::segment(jobs::JOB))
            .replace("{attempt}", "0")
            .replace("{cluster}", "prod")
            .replace("{node}", "h100-00")
            .replace("{channel}", "nobody")
            .replace("{name}", "fp8%20%26%20more")
            .replace("{id}", id);
        for method in methods.as_object().unwrap().keys() {
            found.push((method.clone(), path.clone(), address.clone()));
        }
    }
    found
}

#[tokio::test]
async fn every_route_of_the_document_answers_as_it_says() {
    let server = server().await.with_an_incident().await;
    let addresses = addresses();
    assert!(addresses.len() >= 12, "{addresses:?}");
    for (method, _, address) in addresses {
        if method == "get" {
            server.json(&address).await;
        } else {
            let (body, status) = if address.contains("/incidents/") {
                (
                    r#"{"what":"note","who":"ada","note":"seen"}"#,
                    StatusCode::OK,
                )
            } else if address.ends_with("/silences") {
                (
                    r#"{"matches":{"node":"h100-*"},"who":"ada","for_s":60}"#,
                    StatusCode::CREATED,
                )
            } else if address.contains("/silences/") || address.contains("/channels/") {
                (r#"{"who":"ada"}"#, StatusCode::NOT_FOUND)
            } else if address.contains("/reports/") {
                // A bill without a row.
                ("[]", StatusCode::BAD_REQUEST)
            } else {
                // There is no such agent.
                (r#"{"action":"release_nvml"}"#, StatusCode::NOT_FOUND)
            };
            let answer = server.post(&address, "application/json", body, None).await;
            assert_eq!(answer.status(), status, "{address}");
        }
    }
}

#[tokio::test]
async fn an_incident_is_on_the_first_page_on_its_own_and_in_the_api_with_what_it_costs() {
    let (_, page) = server().await.get("/fleet").await;
    assert!(!page.contains("1 incident"), "nothing is wrong");
    let server = server().await.with_an_incident().await;
    let own = format!("/incidents/{INCIDENT}");
    for (address, says) in [
        ("/", "GPU 5 of h100-03"),
        ("/", "$864.00"),
        ("/fleet", "GPU 5 of h100-03"),
        ("/fleet", "costs $36.00/h"),
        ("/incidents", "GPU 5 of h100-03"),
        ("/incidents", "1.00 GPU-hours, $36.00"),
        (&own, "To do: Drain the node and reboot it."),
        (&own, "temperature 91"),
    ] {
        let (status, body) = server.get(address).await;
        assert_eq!(status, StatusCode::OK, "{address}");
        assert!(body.contains(says), "{address}: {says} is not in {body}");
        assert!(!body.contains("<img"), "{address}");
    }
    let list = server
        .json("/api/v1/incidents?state=open&family=gpu_fault")
        .await;
    assert_eq!(list["items"][0]["id"], INCIDENT);
    assert_eq!(list["items"][0]["lost_nano_usd"], 36_000_000_000_i64);
    for nothing in ["?state=resolved", "?cluster=demo", "?family=heat"] {
        let list = server.json(&format!("/api/v1/incidents{nothing}")).await;
        assert_eq!(list["items"].as_array().map(Vec::len), Some(0), "{nothing}");
    }
}

#[tokio::test]
async fn what_is_simulated_is_in_no_count_and_no_sum_of_incidents_that_are_live() {
    let simulated = Signal {
        place: Place::gpu("demo", "sim-00", "GPU-simulated"),
        ..signal()
    };
    let alone = server().await.with(simulated.clone()).await;
    let (_, page) = alone.get("/incidents").await;
    for says in [
        "Nothing live is wrong",
        "In no live total: 1 simulated.",
        "SIMULATED",
    ] {
        assert!(page.contains(says), "{says} is not in {page}");
    }
    let both = server().await.with_an_incident().await;
    let tick = Tick {
        now: fixture::NOW,
        signals: vec![signal(), simulated],
        is_heard: &|_, _| true,
        in_its_place: &|_, _| None,
        is_forgotten: &|_, _| false,
        quiet_runs: &BTreeSet::new(),
        nodes: &BTreeMap::new(),
        runs: &Default::default(),
    };
    both.incidents.tick(tick, &mut uuid::Uuid::now_v7);
    let (_, page) = both.get("/incidents").await;
    assert!(page.contains("<b>1 incident</b> is open"), "{page}");
    let (_, page) = both.get("/fleet").await;
    assert!(
        page.contains("1 incident</a>") && page.contains("GPU 5 of h100-03"),
        "{page}"
    );
    assert!(!page.contains("together, the worst"), "{page}");
}

#[tokio::test]
async fn an_incident_of_a_cluster_that_is_not_seen_any_more_is_no_more_live_for_it() {
    let of = |cluster| Signal {
        place: Place::gpu(cluster, "gone-00", "GPU-gone"),
        ..signal()
    };
    let live = fixture::gpu("prod", "h100-00", 0, Does::Work, Origin::Live);
    let server = server_of(vec![live], false).await.with(of("demo")).await;
    let tick = Tick {
        now: fixture::NOW,
        signals: vec![of("demo"), of("h200-recorded")],
        is_heard: &|_, _| true,
        in_its_place: &|_, _| None,
        is_forgotten: &|_, _| false,
        quiet_runs: &BTreeSet::new(),
        nodes: &BTreeMap::new(),
        runs: &Default::default(),
    };
    server.incidents.tick(tick, &mut uuid::Uuid::now_v7);
    let (_, page) = server.get("/incidents").await;
    for says in [
        "Nothing live is wrong",
        "In no live total: 1 simulated and 1 recorded.",
        "SIMULATED",
        "RECORDED",
    ] {
        assert!(page.contains(says), "{says} is not in {page}");
    }
}

#[tokio::test]
async fn people_speak_to_an_incident_by_name_and_only_those_who_operate() {
    let server = server_of(fixture::fleet(), true)
        .await
        .with_an_incident()
        .await;
    let address = format!("/api/v1/incidents/{INCIDENT}/say");
    let said = r#"{"what":"acknowledge","who":"ada"}"#;
    for (body, token, status) in [
        (said, None, StatusCode::UNAUTHORIZED),
        (said, Some(TOKEN), StatusCode::FORBIDDEN),
        (said, Some(OPERATOR), StatusCode::OK),
        (
            r#"{"what":"acknowledge","who":""}"#,
            Some(OPERATOR),
            StatusCode::BAD_REQUEST,
        ),
        (
            r#"{"what":"mend","who":"ada"}"#,
            Some(OPERATOR),
            StatusCode::BAD_REQUEST,
        ),
        (
            r#"{"what":"note","who":"ada"}"#,
            Some(OPERATOR),
            StatusCode::BAD_REQUEST,
        ),
        (
            r#"{"what":"silence","who":"ada","until":"2020-01-01T00:00:00Z"}"#,
            Some(OPERATOR),
            StatusCode::BAD_REQUEST,
        ),
    ] {
        let answer = server.post(&address, "application/json", body, token).await;
        assert_eq!(answer.status(), status, "{body}");
    }
    let stored = server
        .store
        .incident(INCIDENT.parse().unwrap())
        .await
        .unwrap();
    let stored = stored.expect("it is durable before it is answered");
    assert_eq!(stored.acknowledged_by.as_deref(), Some("ada"));
    let written = server.store.audited(10).await.unwrap();
    let first = written.last().expect("it stands in the audit");
    assert_eq!(first.action, "incident acknowledge");
    assert!(first.target.contains(INCIDENT) && first.detail.contains("ada"));
}

#[tokio::test]
async fn what_could_not_be_written_of_an_incident_is_not_there_in_memory_either() {
    let server = server().await.with_an_incident().await;
    let (id, far) = (
        INCIDENT.parse().unwrap(),
        fixture::NOW.shifted(i64::MAX / 4),
    );
    let replaced = server
        .store
        .acquire_lease("another", far, Duration::from_secs(1));
    replaced.await.unwrap();
    let address = format!("/api/v1/incidents/{INCIDENT}/say");
    let said = r#"{"what":"acknowledge","who":"ada"}"#;
    let answer = server.post(&address, "application/json", said, None).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let held = server.incidents.get(id).expect("it is open");
    assert_eq!((held.acknowledged_by, held.log.len()), (None, 1));
}

#[tokio::test]
async fn a_silence_is_durable_with_what_it_makes_of_the_messages() {
    let server = server().await;
    server
        .incidents
        .tells(Arc::new(settings(&[("pager", Kind::Pagerduty)])));
    let server = server.with_an_incident().await;
    server.incidents.write(&server.store).await.unwrap();
    let address = format!("/api/v1/incidents/{INCIDENT}/say");
    let said = r#"{"what":"silence","who":"ada","for_s":3600}"#;
    let answer = server.post(&address, "application/json", said, None).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let groups = server.store.standing_groups().await.unwrap();
    let members: Vec<_> = groups.iter().flat_map(|it| it.members.values()).collect();
    assert_eq!(members.len(), 1);
    assert!(members[0].silenced_until.is_some(), "{members:?}");
    assert!(!server.incidents.has_unwritten_messages());
}

#[tokio::test]
async fn where_a_proxy_names_people_nobody_names_himself() {
    let mut config = Config::for_tests();
    config.auth.user_header = "x-user".to_owned();
    config.auth.trusted_proxies = vec!["10.0.0.0/8".to_owned()];
    let server = server_with(config, fixture::fleet(), false).await;
    let server = server.with_an_incident().await;
    let address = format!("/api/v1/incidents/{INCIDENT}/say");
    let said = r#"{"what":"acknowledge","who":"ada"}"#;
    let answer = server.post(&address, "application/json", said, None).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let held = server.incidents.get(INCIDENT.parse().unwrap());
    let named = held.and_then(|it| it.acknowledged_by);
    assert_eq!(named.as_deref(), Some("a token of role operate"));
}

#[tokio::test]
async fn the_document_is_openapi_3_1_and_the_reference_page_has_every_route() {
    let server = server().await;
    let document = server.json("/api/v1/openapi.json").await;
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let (status, page) = server.get("/api").await;
    assert_eq!(status, StatusCode::OK);
    for path in document["paths"].as_object().unwrap().keys() {
        assert!(page.contains(path.as_str()), "{path}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_404_and_says_where_to_look() {
    let server = server().await;
    for (address, says) in [
        ("/clusters/prod/nodes/nobody", "nobody"),
        ("/clusters/nowhere", "nowhere"),
        ("/clusters/nowhere/nodes/h100-00", "nowhere"),
        ("/clusters/prod/gpus/GPU-none", "GPU-none"),
        ("/clusters/prod/nodes/h100-00/99", "index 99"),
        ("/fleet?state=asleep", "asleep"),
        ("/no/such/page", "no such page"),
        ("/api/v1/gpus/prod/GPU-none", "GPU-none"),
        ("/api/v1/gpus/prod/GPU-none/minutes", "GPU-none"),
        ("/api/v1/nodes/prod/nobody", "nobody"),
        ("/clusters/prod/jobs/team%2Fnone%2Fu", "team/none/u"),
        ("/clusters/prod/jobs/nonsense/0", "nonsense"),
        ("/api/v1/jobs/prod/team%2Fnone%2Fu", "/api/v1/jobs"),
        ("/api/v1/runs/prod/team%2Fnone%2Fu/0", "/api/v1/jobs"),
        ("/api/v1/nothing", "/api lists them"),
        ("/assets/0000000000000000/gpufleet.css", "no such asset"),
    ] {
        let (status, body) = server.get(address).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{address}");
        assert!(body.contains(says), "{address}: {body}");
    }
}

#[tokio::test]
async fn an_address_that_cannot_be_understood_is_answered_with_a_page() {
    let server = server().await;
    for (address, says) in [
        ("/find?q=a&q=b", "duplicate field"),
        ("/clusters/prod/nodes/%ff", "UTF-8"),
        ("/runbooks/%ff", "UTF-8"),
    ] {
        let (status, page) = server.get(address).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{address}");
        assert!(page.contains("</html>"), "{address}: {page}");
        assert!(page.contains(says), "{address}: {page}");
    }
}

#[tokio::test]
async fn a_bad_range_filter_or_page_is_400_and_names_what_is_wrong() {
    let server = server().await;
    for (address, says) in [
        (
            format!("/api/v1/gpus/prod/{GPU}/minutes?from=yesterday"),
            "yesterday",
        ),
        (
            format!("/api/v1/gpus/prod/{GPU}/minutes?from=2020-01-01T00:00:00Z"),
            "48 h",
        ),
        (
            format!("/api/v1/gpus/prod/{GPU}/hours?from=2030-01-01T00:00:00Z"),
            "is not before",
        ),
        ("/api/v1/gpus?state=asleep".to_owned(), "asleep"),
        ("/api/v1/gpus?state=parked,asleep".to_owned(), "“asleep”"),
        ("/api/v1/gpus?state=parked,".to_owned(), "held_empty"),
        ("/api/v1/gpus?origin=dreamt".to_owned(), "dreamt"),
        ("/api/v1/gpus?limit=0".to_owned(), "limit=0"),
        ("/api/v1/gpus?limit=many".to_owned(), "limit"),
        ("/api/v1/gpus?after=nonsense".to_owned(), "cursor"),
        ("/api/v1/events?kind=party".to_owned(), "party"),
        ("/api/v1/jobs?after=x".to_owned(), "cursor"),
        ("/api/v1/jobs?state=asleep".to_owned(), "running, silent"),
        (
            "/api/v1/jobs?sort=colour".to_owned(),
            "“colour”: it is one of started, cost",
        ),
        ("/api/v1/jobs?sort=cost&after=1/2".to_owned(), "cursor"),
        (
            "/api/v1/jobs?sort=cost&after=cost/1/x/2".to_owned(),
            "cursor",
        ),
        (
            "/api/v1/jobs?sort=mfu&after=cost/1/2/3".to_owned(),
            "cursor",
        ),
        ("/api/v1/jobs?after=cost/1/2/3".to_owned(), "cursor"),
        ("/api/v1/jobs?name=a/b/c/d".to_owned(), "parts"),
        ("/api/v1/jobs?name=".to_owned(), "is no name"),
        ("/api/v1/runs/compare?a=prod&b=prod".to_owned(), "CLUSTER"),
        ("/api/v1/events?after=1".to_owned(), "cursor"),
    ] {
        let response = server
            .ask(Request::get(&address).body(Body::empty()).unwrap())
            .await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{address}");
        assert_eq!(
            response.headers()[header::CONTENT_TYPE],
            "application/problem+json"
        );
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let problem: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(problem["status"], 400);
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(says), "{address}: {detail}");
    }
}

/// What a list of GPUs has in pages of ten: cluster, id and state of each.
async fn gpus_in_pages(server: &Fixture, filter: &str) -> Vec<[String; 3]> {
    let first = format!("/api/v1/gpus?limit=10{filter}");
    let (mut found, mut address) = (Vec::new(), first.clone());
    loop {
        let page = server.json(&address).await;
        for gpu in page["items"].as_array().unwrap() {
            found.push(["cluster", "id", "state"].map(|it| gpu[it].as_str().unwrap().to_owned()));
        }
        let Some(next) = page["next"].as_str() else {
            return found;
        };
        address = format!("{first}&after={}", crate::words::text::segment(next));
    }
}

#[tokio::test]
async fn a_list_in_pages_holds_every_gpu_once_of_all_states_and_of_some() {
    let server = server().await;
    let all = gpus_in_pages(&server, "").await;
    assert_eq!(all.len(), 73 + 1 + 64);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    let mut states: BTreeSet<&str> = all.iter().map(|[_, _, state]| state.as_str()).collect();
    let left_out = states.pop_last().unwrap();
    assert!(states.len() > 1, "{states:?}");
    let names = states.iter().copied().collect::<Vec<_>>().join(",");
    let some = gpus_in_pages(&server, &format!("&state={names}")).await;
    let expected = all.iter().filter(|[_, _, state]| state != left_out);
    assert_eq!(some, expected.cloned().collect::<Vec<_>>(), "{names}");
}

#[tokio::test]
async fn what_is_simulated_or_recorded_is_in_no_live_total_and_marked_on_every_page() {
    let server = server().await;
    let fleet = server.json("/api/v1/fleet").await;
    assert_eq!(fleet["live"]["gpus"], 73);
    assert_eq!(fleet["simulated"]["gpus"], 64);
    assert_eq!(fleet["recorded"]["gpus"], 1);
    let (_, page) = server.get("/fleet").await;
    let line = "<b>53 of 73 GPUs at work, 8 idle, 1 lost or unhealthy, 8 not measured, 3 holder unknown</b>";
    assert!(page.contains(line), "{page}");
    let (_, today) = server.get("/").await;
    assert!(today.contains(line), "both begin alike: {today}");
    for (address, word) in [
        ("/clusters/demo/nodes/sim-0", "SIMULATED"),
        ("/clusters/demo/gpus/GPU-demo-sim-0-0000", "SIMULATED"),
        (
            "/clusters/h200-recorded/gpus/GPU-h200-recorded-captured-node-0000",
            "RECORDED",
        ),
    ] {
        let (status, page) = server.get(address).await;
        assert_eq!(status, StatusCode::OK, "{address}");
        assert!(
            page.contains(&format!(">{word}</span>")) && page.contains("watermarked"),
            "{address}"
        );
        // Also where only the content is asked for, as the page does every ten seconds.
        let request = Request::get(address).header("gpufleet-fragment", "1");
        let response = server.ask(request.body(Body::empty()).unwrap()).await;
        let fragment = response.into_body().collect().await.unwrap().to_bytes();
        let fragment = String::from_utf8(fragment.to_vec()).unwrap();
        assert!(fragment.trim_start().starts_with("<main") && fragment.contains(word));
    }
    let (_, live) = server.get(&format!("/clusters/prod/gpus/{GPU}")).await;
    assert!(!live.contains("SIMULATED") && !live.contains("RECORDED"));
}

#[tokio::test]
async fn a_missing_reading_is_a_reason_and_never_zero() {
    let server = server().await;
    let gpu = server.json(&format!("/api/v1/gpus/prod/{GPU}")).await;
    let tensor = &gpu["readings"]["tensor_active_ratio"];
    assert_eq!(
        (&tensor["value"], &tensor["missing"]),
        (&Value::Null, &"not_supported".into())
    );
    let lost = server.json("/api/v1/gpus/prod/GPU-prod-h100-03-0005").await;
    assert_eq!(lost["state"], "unhealthy");
    for reading in ["power_watts", "utilization_ratio", "memory_used_bytes"] {
        assert_eq!(lost["readings"][reading]["value"], Value::Null);
        assert_eq!(lost["readings"][reading]["missing"], "gpu_lost");
    }
    let (_, page) = server
        .get("/clusters/prod/gpus/GPU-prod-h100-03-0005")
        .await;
    assert!(
        page.contains("GPU lost") && !page.contains("<dd>0 "),
        "{page}"
    );
    let (_, page) = server.get(&format!("/clusters/prod/gpus/{GPU}")).await;
    assert!(page.contains("not supported by this card"));
}

#[tokio::test]
async fn hostile_names_are_shown_as_text_and_cut() {
    let long = "<b>".repeat(3_500);
    let mut lives = fixture::fleet();
    lives.push(fixture::gpu("long", &long, 0, Does::Work, Origin::Live));
    lives.push(fixture::gpu(HOSTILE, "n", 0, Does::Work, Origin::Live));
    lives.push(fixture::live(
        "long",
        &long,
        ResourceKind::Node,
        &long,
        Origin::Live,
    ));
    let server = server_of(lives, false).await;
    let segment = crate::words::text::segment;
    let hostile_gpu = format!("GPU-hostile-{HOSTILE}-0000");
    for address in [
        "/".to_owned(),
        "/fleet".to_owned(),
        "/health".to_owned(),
        "/queue".to_owned(),
        "/incidents".to_owned(),
        "/jobs".to_owned(),
        "/cost".to_owned(),
        format!("/clusters/{}", segment(HOSTILE)),
        format!("/clusters/hostile/nodes/{}", segment(HOSTILE)),
        format!("/clusters/hostile/gpus/{}", segment(&hostile_gpu)),
        format!("/clusters/long/nodes/{}", segment(&long)),
        format!("/clusters/<img src=x>/nodes/{}", segment(HOSTILE)).replace(['<', '>', ' '], "%3C"),
        format!("/fleet?state={}", segment(HOSTILE)),
    ] {
        let (_, page) = server.get(&address).await;
        assert!(!page.contains("<img"), "{address}");
        assert!(!page.contains("<b><b>"), "{address}");
        assert!(
            !page.contains('\u{202e}') && !page.contains('\u{0}'),
            "{address}"
        );
        // The address of a node carries its whole name; nothing else may.
        let shown = page.replace(&segment(&long), "");
        assert!(!shown.contains(&"&lt;b&gt;".repeat(200)), "{address}");
    }
    let (_, node) = server
        .get(&format!("/clusters/hostile/nodes/{}", segment(HOSTILE)))
        .await;
    assert!(
        node.contains("&#60;img") || node.contains("&lt;img"),
        "{node}"
    );
}

#[tokio::test]
async fn no_page_holds_inline_script_or_style_and_each_forbids_them() {
    let server = server().await;
    for address in [
        "/".to_owned(),
        "/fleet".to_owned(),
        "/health".to_owned(),
        "/api".to_owned(),
        "/nothing".to_owned(),
        format!("/compare?a={0}&b={0}", jobs::RUN),
        "/clusters/prod/nodes/h100-00".to_owned(),
        format!("/clusters/prod/gpus/{GPU}"),
    ] {
        let response = server
            .ask(Request::get(&address).body(Body::empty()).unwrap())
            .await;
        let policy = response.headers()[header::CONTENT_SECURITY_POLICY]
            .to_str()
            .unwrap()
            .to_owned();
        assert!(
            policy.contains("default-src 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let page = String::from_utf8(body.to_vec()).unwrap();
        for forbidden in [
            " style=",
            " onclick=",
            "<style",
            "javascript:",
            "http://",
            "https://",
        ] {
            assert!(!page.contains(forbidden), "{address} holds {forbidden}");
        }
        let scripts = page.matches("<script").count();
        assert_eq!(
            page.matches("<script src=\"/assets/").count(),
            scripts,
            "{address}"
        );
    }
}

#[tokio::test]
async fn without_a_token_nothing_is_shown_where_tokens_are_asked_for() {
    let server = server_of(fixture::fleet(), true).await;
    for address in [
        "/",
        "/fleet",
        "/health",
        "/api/v1/doctor",
        "/settings",
        "/runbooks",
        "/api/v1/settings",
        "/metrics",
        "/clusters/prod/nodes/h100-00",
        "/api/v1/fleet",
        "/api/v1/gpus",
    ] {
        let (status, body) = server.get(address).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{address}");
        assert!(
            !body.contains("H100") && !body.contains("gpus"),
            "{address}: {body}"
        );
        for (name, value) in [
            (header::AUTHORIZATION, format!("Bearer {TOKEN}")),
            (
                header::COOKIE,
                format!("theme=dark; gpufleet_token={TOKEN}"),
            ),
            (header::AUTHORIZATION, format!("Bearer {OPERATOR}")),
        ] {
            let request = Request::get(address)
                .header(name, value)
                .body(Body::empty())
                .unwrap();
            assert_eq!(
                server.ask(request).await.status(),
                StatusCode::OK,
                "{address}"
            );
        }
    }
    assert_eq!(server.get("/api/v1/health").await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_command_needs_the_right_to_operate_and_an_action_that_is_known() {
    const ADDRESS: &str = "/api/v1/agents/67e55044-10b1-426f-9247-bb680e5fe0c8/commands";
    let server = server_of(fixture::fleet(), true).await;
    for (token, body, expected) in [
        (
            None,
            r#"{"action":"release_nvml"}"#,
            StatusCode::UNAUTHORIZED,
        ),
        (
            Some(TOKEN),
            r#"{"action":"release_nvml"}"#,
            StatusCode::FORBIDDEN,
        ),
        (
            Some(OPERATOR),
            r#"{"action":"release_nvml"}"#,
            StatusCode::NOT_FOUND,
        ),
        (
            Some(OPERATOR),
            r#"{"action":"dance"}"#,
            StatusCode::BAD_REQUEST,
        ),
        (
            Some(OPERATOR),
            r#"{"action":"probe_now","expires_in_seconds":0}"#,
            StatusCode::BAD_REQUEST,
        ),
        (
            Some(OPERATOR),
            r#"{"action":"probe_now","when":"now"}"#,
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
        (
            Some(OPERATOR),
            r#"{"action":"capture_profile"}"#,
            StatusCode::BAD_REQUEST,
        ),
        (
            Some(OPERATOR),
            r#"{"action":"capture_profile","arguments":{"gpu":"GPU-1","steps":"11"}}"#,
            StatusCode::BAD_REQUEST,
        ),
        (Some(OPERATOR), "not json", StatusCode::BAD_REQUEST),
    ] {
        let answer = server.post(ADDRESS, "application/json", body, token).await;
        assert_eq!(answer.status(), expected, "{token:?} {body}");
    }
    let written = server.store.audited(10).await.unwrap();
    let [entry] = &written[..] else {
        panic!("one was let through: {written:?}");
    };
    assert_eq!(entry.who, "a token of role operate");
    assert_eq!(entry.action, "command release_nvml");
    assert!(entry.target.contains("67e55044"), "{entry:?}");
    let long = format!(
        r#"{{"action":"probe_now","arguments":{{"gpu":"{}"}}}}"#,
        "x".repeat(5_000)
    );
    let answer = server
        .post(ADDRESS, "application/json", &long, Some(OPERATOR))
        .await;
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn without_its_store_the_server_still_shows_what_is_live_and_says_what_is_not_known() {
    let server = server().await;
    server.store.close().await;
    let (status, page) = server.get(&format!("/clusters/prod/gpus/{GPU}")).await;
    assert_eq!(status, StatusCode::OK);
    assert!(page.contains("The store does not answer") && page.contains("93 %"));
    let (status, page) = server.get("/").await;
    assert_eq!(status, StatusCode::OK);
    assert!(
        page.contains("The store does not answer") && page.contains("of 73 GPUs at work"),
        "{page}"
    );
    assert_eq!(server.get("/fleet").await.0, StatusCode::OK);
    let (status, page) = server.get("/health").await;
    assert_eq!(status, StatusCode::OK);
    assert!(page.contains("the database refuses"), "{page}");
    for address in ["/api/v1/health", "/api/v1/events", "/api/v1/agents"] {
        assert_eq!(
            server.get(address).await.0,
            StatusCode::SERVICE_UNAVAILABLE,
            "{address}"
        );
    }
}

#[tokio::test]
async fn an_empty_fleet_says_the_command_that_connects_an_agent() {
    let server = server_of(Vec::new(), false).await;
    for address in ["/", "/fleet"] {
        let (_, page) = server.get(address).await;
        assert!(page.contains("No agent has reported yet"), "{page}");
        assert!(page.contains("GPUFLEET_SHIP__ENDPOINT=") && page.contains("gpufleet-agent"));
    }
}

#[tokio::test]
async fn the_page_of_a_cluster_shows_that_cluster_alone() {
    let server = server().await;
    let (status, page) = server.get("/clusters/demo").await;
    assert_eq!(status, StatusCode::OK);
    assert!(page.contains("sim-0") && !page.contains("h100-00"));
    assert!(page.contains("No GPU is live") && page.contains("SIMULATED"));
}

#[tokio::test]
async fn a_divided_card_leads_to_its_shares() {
    let mut lives = fixture::fleet();
    let mut share = fixture::gpu("prod", "h100-00", 0, Does::Work, Origin::Live);
    share.key.kind = ResourceKind::Share;
    share.key.id = "MIG-1".into();
    let parent = gpufleet_telemetry::identity::attribute::PARENT;
    share.resource = Arc::new((*share.resource).clone().with(parent, GPU));
    lives.push(share);
    let server = server_of(lives, false).await;
    let (_, page) = server.get(&format!("/clusters/prod/gpus/{GPU}")).await;
    assert!(
        page.contains("href=\"/clusters/prod/gpus/MIG-1\""),
        "{page}"
    );
    assert_eq!(
        server.get("/clusters/prod/gpus/MIG-1").await.0,
        StatusCode::OK
    );
    assert_eq!(
        server.json("/api/v1/fleet").await["live"]["gpus"],
        73,
        "a share is no GPU more"
    );
}

#[tokio::test]
async fn a_tile_leads_to_its_gpu() {
    let server = server().await;
    let (_, page) = server.get("/fleet").await;
    assert!(
        page.contains("href=\"/clusters/prod/nodes/h100-00/0\""),
        "{page}"
    );
    let request = Request::get("/clusters/prod/nodes/h100-00/0")
        .body(Body::empty())
        .unwrap();
    let answer = server.ask(request).await;
    assert_eq!(answer.status(), StatusCode::TEMPORARY_REDIRECT);
    let place = answer.headers()[header::LOCATION].to_str().unwrap();
    assert_eq!(place, format!("/clusters/prod/gpus/{GPU}"));
}

#[tokio::test]
async fn the_page_of_ten_thousand_gpus_stays_under_200_kb_on_the_wire() {
    let lives = (0..10_000_u32).map(|place| {
        let (node, index) = (place / 8, place % 8);
        let does = if (node * 7 + index) % 11 < 8 {
            Does::Work
        } else {
            Does::Nothing
        };
        // Ids and names as random as real ones.
        let name = format!(
            "gke-pool-{:08x}-{node:04}",
            node.wrapping_mul(2_654_435_761)
        );
        let mut live = fixture::gpu("prod", &name, index, does, Origin::Live);
        live.key.id = format!("GPU-{}", uuid::Uuid::now_v7()).into();
        live
    });
    let server = server_of(lives.collect(), false).await;
    for address in ["/", "/fleet", "/health"] {
        let request = Request::get(address).header(header::ACCEPT_ENCODING, "gzip");
        let response = server.ask(request.body(Body::empty()).unwrap()).await;
        assert_eq!(response.headers()[header::CONTENT_ENCODING], "gzip");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(body.len() <= 200_000, "{address}: {} bytes", body.len());
    }
}

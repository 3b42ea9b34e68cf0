//! The endpoints over a real socket, and the truth of /healthz as a table.

use std::sync::Mutex;

use bytes::Bytes;
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::identity::ResourceKind;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::*;
use crate::read::NodeFacts;
use crate::sample::{LatestResource, LatestValue, ReaderHealth};
use gpufleet_program::clock::SystemClock;

struct FixedClock(Mutex<Timestamp>);

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().expect("no test panics with it")
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

fn reader(name: &str, success: Option<bool>, error: Option<&str>) -> ReaderHealth {
    ReaderHealth {
        name: name.into(),
        success,
        error: error.map(str::to_owned),
        last_success: success
            .filter(|it| *it)
            .map(|_| Timestamp::from_seconds(990)),
        duration: Duration::from_millis(12),
        failures: u64::from(success == Some(false)),
    }
}

fn latest_at(second: i64, readers: Vec<ReaderHealth>) -> Latest {
    Latest {
        at: Timestamp::from_seconds(second),
        readers,
        ..Latest::default()
    }
}

#[test]
fn health_is_what_is_true() {
    let good = || reader("host", Some(true), None);
    let bad = || reader("nvml", Some(false), Some("no driver; install one"));
    let mute = || reader("nvml", None, None);
    let cases = [
        (latest_at(995, vec![good(), bad()]), true, "ok"),
        (latest_at(1_001, vec![good()]), true, "ok"),
        (latest_at(995, vec![bad()]), true, "no_reader_works"),
        (
            latest_at(995, vec![bad(), mute()]),
            false,
            "no_reader_works",
        ),
        (latest_at(995, vec![]), true, "no_reader_works"),
        (latest_at(989, vec![good()]), false, "stalled"),
        (latest_at(1005, vec![good()]), false, "stalled"),
        (Latest::default(), false, "starting"),
    ];
    for (latest, healthy, status) in cases {
        let now = Timestamp::from_seconds(1000);
        let (is_healthy, health) = health(&latest, now, Duration::from_secs(1));
        assert_eq!((is_healthy, health.status), (healthy, status), "{latest:?}");
    }
}

#[test]
fn beyond_loopback_the_agent_listens_only_when_told_to() {
    let cases = [
        ("127.0.0.1:9410", false, None),
        ("[::1]:9410", false, None),
        ("0.0.0.0:9410", false, Some("listen.allow_insecure = true")),
        ("[::]:9410", false, Some("listen.allow_insecure = true")),
        ("0.0.0.0:9410", true, None),
        ("localhost", false, Some("is no address with a port")),
    ];
    for (address, allow_insecure, why) in cases {
        let config = ListenConfig {
            address: address.to_owned(),
            allow_insecure,
            ..ListenConfig::default()
        };
        match (config.checked_address(), why) {
            (Ok(_), None) => {}
            (Err(error), Some(why)) => assert!(error.to_string().contains(why), "{error}"),
            (result, _) => panic!("{address}: {result:?}"),
        }
    }
}

/// Serves `latest` and returns a function that asks.
async fn get_all(config: Config, latest: Latest, now: i64) -> Vec<(u16, String)> {
    let cell = Arc::new(LatestCell::default());
    cell.set(Arc::new(latest));
    let clock = Arc::new(FixedClock(Mutex::new(Timestamp::from_seconds(now))));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("an address");
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let server =
        tokio::spawn(async move { serve_on(listener, &config, cell, clock, stopped).await });
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let mut answers = Vec::new();
    for (path, token) in [
        ("metrics", None),
        ("metrics", Some("Bearer secret")),
        ("metrics", Some("Bearer secreT")),
        ("healthz", None),
        ("readyz", None),
        ("nothing", None),
    ] {
        let mut request = Request::get(format!("http://{address}/{path}"));
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, token);
        }
        let request = request.body(Empty::new()).expect("right");
        let response = client.request(request).await.expect("an answer");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body");
        let body = String::from_utf8(body.to_bytes().to_vec()).expect("text");
        answers.push((status, body));
    }
    stop.cancel();
    drop(client);
    server.await.expect("no panic").expect("a clean end");
    answers
}

fn with_gpu(mut latest: Latest) -> Latest {
    let resource =
        NodeFacts::for_tests().resource(ResourceKind::Gpu, "GPU-1", Default::default(), "nvml");
    latest.resources.push(LatestResource {
        resource: Arc::new(resource),
        values: vec![LatestValue {
            metric: gpu::POWER.id,
            part: None,
            reading: Ok(70.0),
            at: latest.at,
        }],
    });
    latest
}

#[tokio::test]
async fn the_endpoints_answer_and_the_token_guards_only_the_metrics() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = Config::for_tests();
    config.listen.token_file = folder.path().join("token");
    std::fs::write(&config.listen.token_file, "secret\n").expect("written");
    let latest = with_gpu(latest_at(
        1000,
        vec![reader("nvml", Some(false), Some("no driver"))],
    ));
    let answers = get_all(config, latest, 1001).await;
    let statuses: Vec<u16> = answers.iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [401, 200, 401, 200, 503, 404]);
    assert!(
        answers[1].1.contains("gpufleet_gpu_power_watts{"),
        "{}",
        answers[1].1
    );
    assert!(answers[1].1.contains("DCGM_FI_DEV_POWER_USAGE{"));
    let health: serde_json::Value = serde_json::from_str(&answers[3].1).expect("JSON");
    assert_eq!(health["status"], "no_reader_works");
    assert_eq!(health["sample_age_seconds"], 1.0);
    assert_eq!(health["readers"][0]["error"], "no driver");
}

#[test]
fn a_gpu_that_hangs_is_named_and_one_that_lacks_a_reading_is_not() {
    let mut latest = with_gpu(with_gpu(latest_at(1000, Vec::new())));
    latest.resources[0].values[0].reading = Err(Missing::DriverHang);
    latest.resources[1].values[0].reading = Err(Missing::NotSupported);
    let (_, health) = health(
        &latest,
        Timestamp::from_seconds(1000),
        Duration::from_secs(1),
    );
    let expected = Troubled {
        id: "GPU-1".to_owned(),
        reason: "driver_hang",
        readings: 1,
    };
    assert_eq!(health.troubled, [expected]);
}

#[tokio::test]
async fn a_loop_that_stands_still_is_told() {
    let latest = latest_at(1000, vec![reader("host", Some(true), None)]);
    let answers = get_all(Config::for_tests(), latest, 1100).await;
    assert_eq!((answers[3].0, answers[4].0), (503, 503));
    assert!(answers[3].1.contains("stalled"));
}

#[tokio::test]
async fn when_every_place_is_taken_a_request_is_refused_not_kept_waiting() {
    let cell = Arc::new(LatestCell::default());
    let shared = Arc::new(Shared {
        latest: cell,
        clock: Arc::new(SystemClock::start()),
        prometheus: PrometheusConfig::default(),
        token: None,
        period: Duration::from_secs(1),
        places: Semaphore::new(0),
    });
    let router = Router::new()
        .route("/", get(|| async { "here" }))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), limit));
    let ask = || {
        let request = Request::get("/").body(axum::body::Body::empty());
        tower::ServiceExt::oneshot(router.clone(), request.expect("right"))
    };
    assert_eq!(ask().await.expect("an answer").status(), 503);
    shared.places.add_permits(1);
    assert_eq!(ask().await.expect("an answer").status(), 200);
    assert_eq!(
        ask().await.expect("an answer").status(),
        200,
        "the place is given back"
    );
}

#[test]
fn an_empty_token_file_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = ListenConfig {
        token_file: folder.path().join("token"),
        ..ListenConfig::default()
    };
    assert!(
        config
            .token()
            .expect_err("absent")
            .to_string()
            .contains("listen.token_file")
    );
    std::fs::write(&config.token_file, "\n").expect("written");
    assert!(
        config
            .token()
            .expect_err("empty")
            .to_string()
            .contains("is empty")
    );
    config.token_file = PathBuf::new();
    assert_eq!(config.token().expect("none wanted"), None);
}

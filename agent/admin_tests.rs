//! The endpoints over a real socket, and the truth of /healthz as a table.

use std::sync::Mutex;

use bytes::Bytes;
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::identity::ResourceKind;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use gpufleet_telemetry::sample::Missing;

use gpufleet_program::connect::{Connector, Protocol};
use gpufleet_program::tls::ClientFiles;

use super::*;
use crate::read::NodeFacts;
use crate::sample::own::Shipping;
use crate::sample::{Latest, LatestResource, LatestValue, ReaderHealth};
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
        let (is_healthy, health) = health::judge(&latest, None, now, Duration::from_secs(1));
        assert_eq!((is_healthy, health.status), (healthy, status), "{latest:?}");
    }
}

#[test]
fn a_spool_that_fails_and_a_server_that_acknowledges_nothing_are_told_and_no_restart_is_asked_for()
{
    let started = Timestamp::from_seconds(0);
    let shipping = |oldest: Option<i64>, durable: Option<i64>, spool_error: Option<&str>| {
        let mut shipping = Shipping {
            spool_error: spool_error.map(str::to_owned),
            failing: Some("no route".to_owned()),
            ..Shipping::default()
        };
        shipping.streams[0].oldest = oldest.map(Timestamp::from_seconds);
        shipping.streams[1].durable_at = durable.map(Timestamp::from_seconds);
        shipping
    };
    for (shipping, expected, status) in [
        (shipping(None, None, None), "ok", "ok"),
        (shipping(Some(990), None, None), "ok", "ok"),
        (
            shipping(Some(810), None, None),
            "not_acknowledged",
            "degraded",
        ),
        (shipping(Some(-9_000), Some(900), None), "ok", "ok"),
        (shipping(Some(990), Some(5), None), "ok", "ok"),
        (
            shipping(Some(-9_000), Some(810), None),
            "not_acknowledged",
            "degraded",
        ),
        (
            shipping(Some(990), Some(980), Some("disk full")),
            "spool_fails",
            "degraded",
        ),
    ] {
        let now = Timestamp::from_seconds(1_000);
        let sending = health::sending(&shipping, started, now);
        assert_eq!(sending.status, expected, "{shipping:?}");
        assert_eq!(sending.error.as_deref(), Some("no route"));
        let latest = latest_at(995, vec![reader("host", Some(true), None)]);
        let (is_healthy, health) =
            health::judge(&latest, Some(sending), now, Duration::from_secs(1));
        assert_eq!((is_healthy, health.status), (true, status), "{shipping:?}");
    }
}

#[test]
fn beyond_loopback_the_agent_listens_only_when_told_to() {
    let cases = [
        ("127.0.0.1:9410", [false, false, false], None),
        ("[::1]:9410", [false, false, false], None),
        (
            "0.0.0.0:9410",
            [false, false, false],
            Some("listen.allow_insecure = true"),
        ),
        (
            "[::]:9410",
            [false, true, false],
            Some("without TLS and token"),
        ),
        (
            "[::]:9410",
            [false, false, true],
            Some("without TLS and token"),
        ),
        ("[::]:9410", [false, true, true], None),
        ("0.0.0.0:9410", [true, false, false], None),
        (
            "localhost",
            [false, false, false],
            Some("is no address with a port"),
        ),
    ];
    for (address, [allow_insecure, has_tls, has_token], why) in cases {
        let file = |is_set: bool| PathBuf::from(if is_set { "/file" } else { "" });
        let config = ListenConfig {
            address: address.to_owned(),
            allow_insecure,
            certificate_file: file(has_tls),
            token_file: file(has_token),
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
    let shown = Shown {
        latest: cell,
        shipping: None,
    };
    let clock = Arc::new(FixedClock(Mutex::new(Timestamp::from_seconds(now))));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("an address");
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let server =
        tokio::spawn(async move { serve_on(listener, &config, shown, clock, stopped).await });
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

#[tokio::test]
async fn the_listener_speaks_tls_where_it_has_a_certificate() {
    let testdata = concat!(env!("CARGO_MANIFEST_DIR"), "/../program/testdata");
    let mut config = Config::for_tests();
    config.listen.certificate_file = format!("{testdata}/certificate.pem").into();
    config.listen.key_file = format!("{testdata}/key.pem").into();
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let socket = socket.expect("a port");
    let port = socket.local_addr().expect("an address").port();
    let files = ClientFiles {
        authorities: Setting::new("ca_file", &config.listen.certificate_file),
        ..ClientFiles::default()
    };
    let clock = Arc::new(SystemClock::start());
    let stop = CancellationToken::new();
    let serving = async move { serve_on(socket, &config, Shown::default(), clock, stop).await };
    let server = tokio::spawn(serving);
    let connector = Connector::secure("the test", files, Protocol::Http1).expect("usable");
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
    let address = format!("https://localhost:{port}/healthz").parse();
    let response = client
        .get(address.expect("right"))
        .await
        .expect("an answer");
    assert_eq!(response.status().as_u16(), 503, "nothing is read yet");
    let plain: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let address = format!("http://localhost:{port}/healthz").parse();
    plain
        .get(address.expect("right"))
        .await
        .expect_err("not without TLS");
    server.abort();
}

#[test]
fn a_gpu_that_hangs_is_named_and_one_that_lacks_a_reading_is_not() {
    let mut latest = with_gpu(with_gpu(latest_at(1000, Vec::new())));
    latest.resources[0].values[0].reading = Err(Missing::DriverHang);
    latest.resources[1].values[0].reading = Err(Missing::NotSupported);
    let now = Timestamp::from_seconds(1000);
    let (_, health) = health::judge(&latest, None, now, Duration::from_secs(1));
    let expected = health::Troubled {
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
    let shared = Arc::new(Shared {
        shown: Shown::default(),
        started: Timestamp::default(),
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

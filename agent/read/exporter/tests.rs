//! The reader against real sockets: what it makes of answers, and of those that are none.

use std::io::Write as _;

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use gpufleet_program::listen::{self, Listener};
use gpufleet_program::tls::ServerFiles;
use gpufleet_telemetry::time::Timestamp;

use super::*;

const DCGM: &str = "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-1\"} 50\n";

fn turn() -> Turn {
    Turn {
        at: Timestamp::from_seconds(100),
        monotonic: Duration::from_secs(1),
        node: Arc::new(NodeFacts::for_tests()),
    }
}

/// Serves one answer and returns its address.
async fn serve<A>(answer: A) -> String
where
    A: IntoResponse + Clone + Send + Sync + 'static,
{
    let router = Router::new().route("/metrics", get(move || async move { answer.clone() }));
    serve_router(router).await
}

async fn serve_router(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}/metrics")
}

fn reader(target: &Target, auto: bool) -> Exporter {
    Exporter::new(target, &table::shipped(), &NodeFacts::for_tests(), auto).expect("a reader")
}

async fn read(url: &str) -> Result<Readings, ReadError> {
    reader(&Target::at(url), false).read(turn()).await
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).expect("memory");
    encoder.finish().expect("memory")
}

#[tokio::test]
async fn a_scrape_gives_full_resources_and_says_that_dcgm_names_are_taken() {
    let readings = read(&serve(DCGM).await).await.expect("readings");
    let gpu = &readings.resources[0];
    assert_eq!(gpu.resource.id.as_ref(), "GPU-1");
    for (name, value) in [
        ("gpufleet.source", "exporter:dcgm"),
        ("gpufleet.origin", "live"),
        ("host.name", "node-1"),
        ("k8s.cluster.name", "test"),
    ] {
        assert_eq!(gpu.resource.attribute(name), Some(value), "{name}");
    }
    assert_eq!(gpu.samples[0].reading, Ok(0.5));
    let own = &readings.resources[1].samples[0];
    assert_eq!((own.metric, own.reading), (own::FOREIGN_DCGM.id, Ok(1.0)));
}

#[tokio::test]
async fn each_scrape_notes_of_how_many_gpus_it_says_whether_a_pod_holds_them() {
    let text = format!("{DCGM}DCGM_FI_DEV_GPU_UTIL{{UUID=\"GPU-2\",pod=\"\"}} 0\n");
    let mut reader = reader(&Target::at(&serve(text).await), false);
    let name = reader.name.clone();
    assert_eq!(reader.exported.count(&name), (0, 0));
    reader.read(turn()).await.expect("readings");
    assert_eq!(reader.exported.count(&name), (1, 2));
    // A model server's tables name no such labels.
    let text = "vllm:num_requests_running{model_name=\"m\",pod=\"p\",namespace=\"n\"} 1\n";
    let mut server = self::reader(&Target::at(&serve(text).await), false);
    server.read(turn()).await.expect("readings");
    assert_eq!(server.exported.count(&server.name), (0, 0));
}

#[tokio::test]
async fn a_compressed_answer_is_read() {
    let answer = ([(header::CONTENT_ENCODING, "gzip")], gzip(DCGM));
    let readings = read(&serve(answer).await).await.expect("readings");
    assert_eq!(readings.resources[0].samples[0].reading, Ok(0.5));
}

#[tokio::test]
async fn an_answer_that_is_none_is_a_failure_that_says_why() {
    let bomb = gzip(&"#".repeat(MAX_BODY + 1));
    let huge = "#".repeat(MAX_BODY + 1);
    let gzipped = [(header::CONTENT_ENCODING, "gzip")];
    let cases = [
        (serve("# HELP a b\n").await, "zero series"),
        (serve("").await, "zero series"),
        (serve("up 1\n").await, "no table reads it: 1 series unknown"),
        (
            serve("gpufleet_gpu_power_watts 1\n").await,
            "it is a gpufleet agent",
        ),
        (
            serve(StatusCode::INTERNAL_SERVER_ERROR).await,
            "answered 500",
        ),
        (serve(StatusCode::UNAUTHORIZED).await, "set token_file"),
        (serve((gzipped.clone(), bomb)).await, "sent more than"),
        (serve((gzipped, "not gzip")).await, "cannot be read"),
        (serve(huge).await, "sent more than"),
        (serve(vec![0xff_u8, 0xfe]).await, "not UTF-8"),
        (
            serve(([(header::CONTENT_ENCODING, "br")], DCGM)).await,
            "unknown encoding `br`",
        ),
        ("http://127.0.0.1:1/metrics".to_owned(), "cannot be reached"),
    ];
    for (url, why) in cases {
        let error = read(&url).await.expect_err(why).to_string();
        assert!(error.contains(why), "{error} for {why}");
    }
}

const MAX_BODY: usize = scrape::MAX_BODY_BYTES;

#[tokio::test]
async fn a_dcgm_exporter_that_was_only_looked_for_may_be_absent_until_it_was_seen() {
    let mut reader = reader(&Target::at("http://127.0.0.1:1/metrics"), true);
    let readings = reader
        .read(turn())
        .await
        .expect("nothing to complain about");
    assert!(readings.resources.is_empty());
    reader.found = true;
    assert!(reader.read(turn()).await.is_err(), "it was there and went");
}

#[tokio::test]
async fn the_token_is_sent() {
    let router = Router::new().route(
        "/metrics",
        get(|headers: HeaderMap| async move {
            match headers.get(header::AUTHORIZATION) {
                Some(token) if token == "Bearer secret" => Ok(DCGM),
                _ => Err(StatusCode::UNAUTHORIZED),
            }
        }),
    );
    let mut target = Target::at(&serve_router(router).await);
    let folder = tempfile::tempdir().expect("a folder");
    target.token_file = folder.path().join("token");
    std::fs::write(&target.token_file, "secret\n").expect("written");
    let mut reader = reader(&target, false);
    reader.read(turn()).await.expect("readings");
    std::fs::write(&target.token_file, "another\n").expect("written");
    let error = reader
        .read(turn())
        .await
        .expect_err("it was rotated here alone");
    assert!(error.to_string().contains("set token_file"), "{error}");
}

/// The certificate that the tests of `program` have: for localhost, signed by itself.
fn testdata(name: &str) -> PathBuf {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.join("../program/testdata").join(name)
}

#[tokio::test]
async fn an_endpoint_is_scraped_over_tls_by_whom_trusts_its_certificate_and_by_nobody_else() {
    let files = ServerFiles {
        certificate: Setting::new("certificate", testdata("certificate.pem")),
        key: Setting::new("key", testdata("key.pem")),
        client_authorities: Setting::default(),
    };
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let socket = socket.expect("a free port");
    let port = socket.local_addr().expect("an address").port();
    let tls = files.reloaded("the test").expect("usable files");
    let listener = Listener::new(socket, tls, 4).expect("it has an address");
    let router = Router::new().route("/metrics", get(async || DCGM));
    tokio::spawn(listen::serve(listener, router, std::future::pending()));
    let mut target = Target::at(&format!("https://localhost:{port}/metrics"));
    target.ca_file = testdata("certificate.pem");
    let readings = reader(&target, false).read(turn()).await;
    assert_eq!(
        readings.expect("readings").resources[0].samples[0].reading,
        Ok(0.5)
    );
    // One who trusts another authority.
    let made = std::process::Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ])
        .args([
            "-nodes",
            "-subj",
            "/CN=another",
            "-days",
            "2",
            "-keyout",
            "/dev/null",
        ])
        .output()
        .expect("openssl is there");
    assert!(made.status.success(), "{made:?}");
    let folder = tempfile::tempdir().expect("a folder");
    target.ca_file = folder.path().join("another.pem");
    std::fs::write(&target.ca_file, made.stdout).expect("written");
    let error = reader(&target, false)
        .read(turn())
        .await
        .expect_err("no trust");
    let error = error.to_string();
    for word in ["cannot be trusted", "ca_file", "another.pem"] {
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn a_target_that_cannot_be_used_is_named_with_its_key() {
    let change = |change: fn(&mut Target)| {
        let mut target = Target::at("http://127.0.0.1:9400/metrics");
        change(&mut target);
        target
    };
    let cases = [
        (
            change(|it| it.url = "ftp://a/metrics".to_owned()),
            "must begin with http://",
        ),
        (
            change(|it| it.url = "nonsense".to_owned()),
            "must begin with http://",
        ),
        (change(|it| it.ca_file = "/ca.pem".into()), "needs https://"),
        (
            change(|it| {
                it.url = "https://a/metrics".to_owned();
                it.ca_file = "/nowhere.pem".into();
            }),
            "ca_file: /nowhere.pem",
        ),
        (
            change(|it| it.tables = vec!["dcmg".to_owned()]),
            "no table `dcmg`; there are dcgm,",
        ),
        (change(|it| it.period_seconds = 0), "period_seconds"),
        (change(|it| it.timeout_ms = 60_000), "timeout_ms"),
        (change(|it| it.token_file = "/nowhere".into()), "token_file"),
    ];
    for (target, why) in cases {
        let made = Exporter::new(&target, &table::shipped(), &NodeFacts::for_tests(), false);
        let error = made.expect_err(why).to_string();
        assert!(error.contains(why), "{error} for {why}");
        assert!(error.contains(&target.url), "{error}");
    }
}

#[test]
fn the_exporter_on_the_node_is_looked_for_once() {
    let node = NodeFacts::for_tests();
    let names = |config: &ExporterConfig| {
        let readers = exporters(config, &node).expect("readers");
        readers.iter().map(|it| it.name.clone()).collect::<Vec<_>>()
    };
    let mut config = ExporterConfig::default();
    assert_eq!(names(&config), ["exporter:dcgm"]);
    config.targets.push(Target::at(DCGM_URL));
    assert_eq!(names(&config), ["exporter:127.0.0.1:9400"]);
    config.auto = false;
    config.targets.clear();
    assert!(names(&config).is_empty());
}

//! What no well-behaved sender sends: each gets a clear answer that names the thing, the rest goes
//! on.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::minute::Counter;
use gpufleet_telemetry::time::{Minute, Timestamp};
use gpufleet_tests::harness::{World, checker, http, repository, server, wait};
use prost::Message as _;

use crate::otlp::{self, PROTOBUF};

/// Larger than any request may be after decompression.
const BOMB_BYTES: usize = 64 << 20;
/// Label values that somebody who labels by request sends.
const MANY: usize = 10_000;
const LIMIT: Duration = Duration::from_secs(40);

#[test]
fn what_is_not_otlp_is_refused_by_name_and_the_server_goes_on() {
    let world = World::new();
    let server = server::Place::sqlite(&world).start();
    let bomb = otlp::gzip(&vec![0; BOMB_BYTES]);
    assert!(bomb.len() < 200_000, "a bomb is small");
    let json = "application/json";
    for (what, headers, body, status) in [
        (
            "no protobuf",
            vec![("content-type", PROTOBUF)],
            b"\xff\xff\xff".to_vec(),
            400,
        ),
        (
            "no JSON",
            vec![("content-type", json)],
            b"{\"resourceMetrics\": [".to_vec(),
            400,
        ),
        (
            "wrong types",
            vec![("content-type", json)],
            b"{\"resourceMetrics\": 5}".to_vec(),
            400,
        ),
        (
            "a strange type",
            vec![("content-type", "text/plain")],
            b"up 1".to_vec(),
            415,
        ),
        (
            "no gzip",
            vec![("content-type", PROTOBUF), ("content-encoding", "gzip")],
            b"no".to_vec(),
            400,
        ),
        (
            "a bomb",
            vec![("content-type", PROTOBUF), ("content-encoding", "gzip")],
            bomb,
            413,
        ),
        (
            "too long",
            vec![("content-type", PROTOBUF)],
            vec![0; BOMB_BYTES],
            413,
        ),
    ] {
        let answer = otlp::post(&server, &headers, &body);
        assert_eq!(answer.status, status, "{what}: {}", answer.text());
        assert!(answer.body.len() > 10, "{what}: the refusal says why");
    }
    let answer = otlp::send(
        &server,
        &otlp::power(&[("GPU-good", 300.0, otlp::now_nanos())]),
    );
    assert_eq!(
        (answer.status, otlp::rejected(&answer)),
        (200, 0),
        "{}",
        answer.text()
    );
    assert_eq!(server.get("/api/v1/health").status, 200);
    server.stop();
}

#[test]
fn a_bad_point_is_left_out_and_counted_and_its_neighbours_are_kept() {
    let world = World::new();
    let server = server::Place::sqlite(&world).start();
    let now = otlp::now_nanos();
    for (what, bad) in [
        ("NaN", ("GPU-bad", f64::NAN, now)),
        ("infinite", ("GPU-bad", f64::INFINITY, now)),
        ("from 1970", ("GPU-bad", 1.0, 1)),
        (
            "from next year",
            ("GPU-bad", 1.0, now + 31_536_000_000_000_000),
        ),
    ] {
        let good = format!("GPU-beside-{}", what.replace(' ', "-"));
        let answer = otlp::send(&server, &otlp::power(&[bad, (&good, 250.0, now)]));
        assert_eq!(answer.status, 200, "{what}: {}", answer.text());
        assert_eq!(otlp::rejected(&answer), 1, "{what}: {}", answer.text());
    }
    let page = server.get("/api/v1/gpus?cluster=default").text();
    for what in ["NaN", "infinite", "from-1970", "from-next-year"] {
        assert!(
            page.contains(&format!("GPU-beside-{what}")),
            "{what}: {page}"
        );
    }
    assert!(!page.contains("GPU-bad"), "{page}");
    server.stop();
}

#[test]
fn what_is_not_otlp_is_refused_over_grpc_as_well() {
    let world = World::new();
    let server = server::Place::sqlite(&world).start();
    let good = otlp::power(&[("GPU-good", 300.0, otlp::now_nanos())]).encode_to_vec();
    for (what, packing, bytes, codes) in [
        // The protobuf decoder of gRPC itself refuses it, and says so as an internal error.
        (
            "no protobuf",
            "plain",
            b"\xff\xff\xff".to_vec(),
            ["INTERNAL", "INVALID_ARGUMENT"],
        ),
        (
            "a bomb",
            "gzip",
            vec![0; BOMB_BYTES],
            ["RESOURCE_EXHAUSTED", "OUT_OF_RANGE"],
        ),
        (
            "too long",
            "plain",
            vec![0; BOMB_BYTES],
            ["RESOURCE_EXHAUSTED", "OUT_OF_RANGE"],
        ),
        ("good", "gzip", good, ["OK", "OK"]),
    ] {
        let said = grpc(&server, packing, &bytes);
        let code = said.split_whitespace().next().unwrap_or_default();
        assert!(codes.contains(&code), "{what}: {said}");
        assert!(
            code == "OK" || said.len() > code.len() + 10,
            "{what} says why: {said}"
        );
    }
    wait::until("what was good is there", LIMIT, || {
        let list = server.get("/api/v1/gpus?cluster=default").text();
        list.contains("GPU-good").then_some(())
    });
    server.stop();
}

/// What the server says to raw bytes over gRPC.
fn grpc(server: &server::Server, packing: &str, bytes: &[u8]) -> String {
    let mut sender = Command::new(repository().join("target/test-python/bin/python"))
        .arg(repository().join("tests/end_to_end/grpc_sender.py"))
        .args([&server.place.grpc, packing])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python's grpc is there: scripts/setup.sh test installs it");
    let mut input = sender.stdin.take().expect("its input is a pipe");
    input.write_all(bytes).expect("it reads its input");
    drop(input);
    let output = sender.wait_with_output().expect("it ends by itself");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn ten_thousand_label_values_keep_the_first_and_the_server_says_how_many_it_left_out() {
    let world = World::new();
    let server = server::Place::sqlite(&world).start();
    let now = otlp::now_nanos();
    let names: Vec<String> = (0..MANY).map(|it| format!("GPU-label-{it:05}")).collect();
    let points: Vec<_> = names.iter().map(|it| (it.as_str(), 1.0, now)).collect();
    let answer = otlp::send(&server, &otlp::power(&points));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let rejected = usize::try_from(otlp::rejected(&answer)).expect("not negative");
    assert!(
        (1..MANY).contains(&rejected),
        "{rejected}: {}",
        answer.text()
    );
    assert!(answer.text().contains("resource"), "{}", answer.text());
    let fine = otlp::send(&server, &otlp::power(&[("GPU-label-00001", 2.0, now + 1)]));
    assert_eq!(
        (fine.status, otlp::rejected(&fine)),
        (200, 0),
        "{}",
        fine.text()
    );
    assert_eq!(server.get("/").status, 200);
    server.stop();
}

#[test]
fn what_a_foreign_sender_sends_twice_and_below_zero_counts_once_and_not_at_all() {
    let world = World::new();
    let server = server::Place::sqlite(&world).start();
    let now = otlp::now_nanos();
    let request = otlp::power(&[("GPU-twice", 250.0, now)]);
    let json = serde_json::to_vec(&request).expect("a request is JSON");
    let first = otlp::send(&server, &request);
    let again = otlp::send(&server, &request);
    let as_json = otlp::post(&server, &[("content-type", "application/json")], &json);
    let over_grpc = grpc(&server, "plain", &request.encode_to_vec());
    assert_eq!((first.status, otlp::rejected(&first)), (200, 0));
    assert_eq!(
        (again.status, otlp::rejected(&again)),
        (200, 1),
        "{}",
        again.text()
    );
    assert!(again.text().contains("not_newer"), "{}", again.text());
    assert_eq!(as_json.status, 200, "{}", as_json.text());
    assert!(as_json.text().contains("not_newer"), "{}", as_json.text());
    assert!(over_grpc.starts_with("OK"), "{over_grpc}");
    let negative = otlp::energy(&[("GPU-twice", -5.0, now + 1), ("GPU-twice", 5.0, now + 2)]);
    let negative = otlp::send(&server, &negative);
    assert_eq!(
        (negative.status, otlp::rejected(&negative)),
        (200, 1),
        "{}",
        negative.text()
    );
    let place = server.stop();
    let minute = Timestamp(i64::try_from(now).expect("before 2262")).minute();
    let minutes = Minute(minute.0 - 1)..Minute(minute.0 + 2);
    let rows = checker::rows(
        &place.database,
        "default",
        ResourceKind::Gpu,
        "GPU-twice",
        minutes,
    );
    let gauges = rows
        .values()
        .filter_map(|row| row.metrics.get(&gpu::POWER.id));
    let counters = rows
        .values()
        .filter_map(|row| row.counters.get(&gpu::ENERGY.id));
    let counts: (u32, u32) = (
        gauges.map(|it| it.count).sum(),
        counters.map(Counter::count).sum(),
    );
    assert_eq!(counts, (1, 1), "{rows:?}");
}

#[test]
fn a_port_that_is_taken_and_a_key_that_nobody_knows_end_the_start_with_the_reason() {
    let world = World::new();
    let first = server::Place::sqlite(&world).start();
    let mut second = server::Place::sqlite(&World::new());
    second.log = world.path("second.log");
    for (set, word) in [
        (
            format!("web.listen={}", first.place.web),
            first.place.web.as_str(),
        ),
        ("web.lissten=127.0.0.1:1".to_owned(), "lissten"),
        ("web.listen=0.0.0.0:0".to_owned(), "0.0.0.0"),
    ] {
        let output = second
            .clone()
            .with(&set)
            .command()
            .output()
            .expect("the server was built");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{set}: {said}");
        assert!(said.contains(word), "{set}: {said}");
    }
    assert!(http::get(&first.place.web, "/api/v1/health").is_ok());
    first.stop();
}

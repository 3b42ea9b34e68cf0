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
use gpufleet_tests::on_both_databases;
use prost::Message as _;

use crate::otlp::{self, PROTOBUF};

/// Larger than any request may be after decompression.
const BOMB_BYTES: usize = 64 << 20;
/// Label values that somebody who labels by request sends.
const MANY: usize = 10_000;
const LIMIT: Duration = Duration::from_secs(120);

/// What the two ends of a refusal are: the thing, and the way out.
type Words = [&'static str; 2];

#[test]
fn what_is_not_otlp_is_refused_by_name_and_the_server_goes_on() {
    let world = World::new();
    let server = server::Place::new(&world).start();
    let zeros = vec![0; BOMB_BYTES];
    let bomb = otlp::gzip(&zeros);
    let dense = otlp::zstd(&zeros);
    assert!(
        bomb.len() < 200_000 && dense.len() < 200_000,
        "a bomb is small"
    );
    let json = ("content-type", "application/json");
    let protobuf = ("content-type", PROTOBUF);
    let packed = |name| ("content-encoding", name);
    let too_large: Words = ["over the cap of", "send smaller batches"];
    let not_protobuf: Words = ["not an OTLP request in protobuf", "content-type"];
    let not_json: Words = ["not an OTLP request in JSON", "content-type"];
    for (what, headers, body, status, words) in [
        (
            "no protobuf",
            vec![protobuf],
            b"\xff\xff\xff".to_vec(),
            400,
            not_protobuf,
        ),
        (
            "no JSON",
            vec![json],
            b"{\"resourceMetrics\": [".to_vec(),
            400,
            not_json,
        ),
        (
            "wrong types",
            vec![json],
            b"{\"resourceMetrics\": 5, \"resourceLogs\": 5}".to_vec(),
            400,
            not_json,
        ),
        (
            "a strange type",
            vec![("content-type", "text/plain")],
            b"up 1".to_vec(),
            415,
            [
                "text/plain",
                "send application/x-protobuf or application/json",
            ],
        ),
        (
            "no gzip",
            vec![protobuf, packed("gzip")],
            b"no".to_vec(),
            400,
            ["not gzip", "content-encoding"],
        ),
        (
            "no zstd",
            vec![protobuf, packed("zstd")],
            b"no".to_vec(),
            400,
            ["not zstd", "content-encoding"],
        ),
        (
            "a strange packing",
            vec![protobuf, packed("br")],
            b"no".to_vec(),
            400,
            ["br", "send gzip, zstd or identity"],
        ),
        (
            "a gzip bomb",
            vec![protobuf, packed("gzip")],
            bomb,
            413,
            too_large,
        ),
        (
            "a zstd bomb",
            vec![protobuf, packed("zstd")],
            dense,
            413,
            too_large,
        ),
        ("too long", vec![protobuf], zeros, 413, too_large),
    ] {
        for path in ["/v1/metrics", "/v1/logs"] {
            let answer = otlp::post_to(&server, path, &headers, &body);
            let said = answer.text();
            assert_eq!(answer.status, status, "{what} to {path}: {said}");
            for word in words {
                assert!(said.contains(word), "{what} to {path}: {word:?} in {said}");
            }
        }
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

on_both_databases!(
    a_bad_point_is_left_out_by_its_reason_and_its_neighbours_are_kept,
    ten_thousand_label_values_keep_the_first_and_the_server_says_how_many_it_left_out,
    what_a_foreign_sender_sends_twice_and_below_zero_counts_once_and_not_at_all,
);

fn a_bad_point_is_left_out_by_its_reason_and_its_neighbours_are_kept(world: World) {
    let server = server::Place::new(&world).start();
    let now = otlp::now_nanos();
    let next_year = now + 31_536_000_000_000_000;
    for (what, bad, reason) in [
        ("NaN", ("GPU-bad", f64::NAN, now), "not_a_number"),
        ("infinite", ("GPU-bad", f64::INFINITY, now), "infinite"),
        ("from 1970", ("GPU-bad", 1.0, 1), "time_out_of_range"),
        (
            "from next year",
            ("GPU-bad", 1.0, next_year),
            "time_out_of_range",
        ),
    ] {
        let good = format!("GPU-beside-{}", what.replace(' ', "-"));
        let answer = otlp::send(&server, &otlp::power(&[bad, (&good, 250.0, now)]));
        assert_eq!(answer.status, 200, "{what}: {}", answer.text());
        assert_eq!(otlp::rejected(&answer), 1, "{what}: {}", answer.text());
        assert!(answer.text().contains(reason), "{what}: {}", answer.text());
    }
    let metrics = server.get("/metrics").text();
    for reason in ["not_a_number", "infinite", "time_out_of_range"] {
        assert!(
            metrics.contains(&format!("reason=\"{reason}\"")),
            "{metrics}"
        );
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
    let server = server::Place::new(&world).start();
    let good = otlp::power(&[("GPU-good", 300.0, otlp::now_nanos())]).encode_to_vec();
    let zeros = vec![0; BOMB_BYTES];
    for (what, packing, bytes, words) in [
        (
            "no protobuf",
            "plain",
            b"\xff\xff\xff".to_vec(),
            ["INVALID_ARGUMENT", "not an OTLP request in protobuf"],
        ),
        (
            "a bomb",
            "gzip",
            zeros.clone(),
            ["RESOURCE_EXHAUSTED", "send smaller batches"],
        ),
        (
            "too long",
            "plain",
            zeros,
            ["RESOURCE_EXHAUSTED", "send smaller batches"],
        ),
        ("good", "gzip", good, ["OK", ""]),
    ] {
        let said = grpc(&server, packing, &bytes);
        assert!(said.starts_with(words[0]), "{what}: {said}");
        assert!(said.contains(words[1]), "{what} says why: {said}");
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

fn ten_thousand_label_values_keep_the_first_and_the_server_says_how_many_it_left_out(world: World) {
    let server = server::Place::new(&world).start();
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

fn what_a_foreign_sender_sends_twice_and_below_zero_counts_once_and_not_at_all(world: World) {
    let server = server::Place::new(&world).start();
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
    assert!(
        negative.text().contains("negative_counter"),
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
    let first = server::Place::new(&world).start();
    let other = World::new();
    let mut second = server::Place::new(&other);
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

//! What no well-behaved sender sends: each gets a clear answer that names the thing, the rest goes
//! on.

use gpufleet_tests::harness::{World, http, server};

use crate::otlp::{self, PROTOBUF};

/// Larger than any request may be after decompression.
const BOMB_BYTES: usize = 64 << 20;

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
            400,
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

//! Connections that are kept or not, and answers that come packed, are long, or break off.

use std::net::{TcpListener, TcpStream as Stream};
use std::sync::mpsc::{Receiver, channel};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use super::*;

/// Longer than the other side takes for anything.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a packed answer begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(bytes).expect("there is memory");
    packer.finish().expect("there is memory")
}

/// One question of a connection; none where the other side ends it. What is posted is two bytes long.
fn question(stream: &mut Stream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.extend(byte);
    }
    if head.starts_with(b"POST") {
        stream.read_exact(&mut [0; 2]).ok()?;
    }
    String::from_utf8(head).ok()
}

/// A server that ends each of its connections after so many answers, which are packed; its address, and the questions
/// that come with the place of their connection.
fn server(ends_after: &'static [usize]) -> (String, Receiver<(usize, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it listens");
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for (place, answers) in ends_after.iter().enumerate() {
            let (mut stream, _) = listener.accept().expect("it listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("it is open");
            for _ in 0..*answers {
                let Some(asked) = question(&mut stream) else {
                    break;
                };
                let body = packed(br#"{"items": []}"#);
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                let answer = [head.as_bytes(), &body].concat();
                stream.write_all(&answer).expect("somebody reads it");
                tell.send((place, asked)).expect("the test goes on");
            }
        }
    });
    (format!("http://{address}"), told)
}

/// A client of a server that answers its only question with these bytes after the head, and ends; and its address.
fn answered(status: &str, body: Vec<u8>, length: usize) -> (String, Client) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = format!("http://{}", listener.local_addr().expect("it listens"));
    let packed = if body.starts_with(&GZIP) {
        "gzip"
    } else {
        "identity"
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-encoding: {packed}\r\ncontent-length: {length}\r\n\r\n"
    );
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("it listens");
        question(&mut stream).expect("it asks");
        stream.write_all(head.as_bytes()).expect("it reads");
        // Who has heard enough ends the connection.
        let _ = stream.write_all(&body);
    });
    let waiting = Waiting::on_terminal(false);
    let client = Client::new(&address, None, None, waiting).expect("it is an address");
    (address, client)
}

#[test]
fn a_report_that_is_longer_than_what_is_kept_is_written_whole() {
    let row = b"ml-platform,a100,2026-10-01,1234.567890\n";
    let csv = row.repeat((65 << 20) / row.len());
    let body = packed(&csv);
    let length = body.len();
    let (_, client) = answered("200 OK", body, length);
    let mut out: Vec<u8> = Vec::new();
    let copied = client.copy("/reports/chargeback", &mut out);
    copied.expect("there is no limit");
    assert!(out == csv, "{} of {} bytes", out.len(), csv.len());
}

#[test]
fn what_the_server_says_beside_a_report_comes_with_it() {
    let said = r#"{"count":1,"said":["a day is missing"]}"#;
    let status = format!("200 OK\r\ngpufleet-findings: {said}");
    let client = || answered(&status, b"a,b\n".to_vec(), 4).1;
    let mut out: Vec<u8> = Vec::new();
    let copied = client().copy("/reports/chargeback", &mut out);
    assert_eq!(copied.expect("it came").as_deref(), Some(said));
    let (text, told) = client().text("/reports/reconcile", None).expect("it came");
    assert_eq!((out.as_slice(), text.as_str()), (&b"a,b\n"[..], "a,b\n"));
    assert_eq!(told.as_deref(), Some(said));
    let (_, without) = answered("200 OK", b"a,b\n".to_vec(), 4);
    let copied = without.copy("/reports/chargeback", &mut out);
    assert_eq!(copied.expect("it came"), None);
}

#[test]
fn an_answer_that_is_too_long_is_no_server_that_is_away() {
    let body = vec![b' '; MAX_BODY_BYTES + 1];
    for body in [packed(&body), body] {
        let length = body.len();
        let (address, client) = answered("200 OK", body, length);
        let refused = client.get("/gpus").expect_err("it is too long");
        let said = refused.to_string();
        assert!(said.contains(&address), "{said}");
        assert!(said.contains("longer than 67108864 bytes"), "{said}");
        assert!(!said.contains("nobody answers"), "{said}");
    }
}

#[test]
fn a_report_that_breaks_off_says_so_and_what_came_is_written() {
    let csv = b"a,b\n".repeat(100_000);
    let whole = packed(&csv);
    let cut = whole.len() - 9;
    for (body, length) in [
        (csv[..4_000].to_vec(), csv.len()),
        (whole[..cut].to_vec(), whole.len()),
        (whole[..cut].to_vec(), cut),
    ] {
        let (_, client) = answered("200 OK", body, length);
        let mut out: Vec<u8> = Vec::new();
        let refused = client.copy("/reports/chargeback", &mut out);
        let refused = refused.expect_err("not all of it came").to_string();
        assert!(refused.contains("is not whole"), "{refused}");
        assert!(!out.is_empty() && csv.starts_with(&out), "{}", out.len());
    }
}

#[test]
fn a_report_that_is_refused_says_why_and_nothing_is_written() {
    let body = br#"{"detail": "reports that others are downloading fill the room"}"#;
    let (_, client) = answered("503 Service Unavailable", body.to_vec(), body.len());
    let mut out: Vec<u8> = Vec::new();
    let refused = client.copy("/reports/chargeback", &mut out);
    let refused = refused.expect_err("it is refused").to_string();
    assert_eq!(refused, "reports that others are downloading fill the room");
    assert_eq!(out, b"");
}

#[test]
fn a_connection_is_kept_until_the_server_ends_it_and_what_changes_something_has_its_own() {
    let (address, told) = server(&[2, 2, 1]);
    let waiting = Waiting::on_terminal(false);
    let client = Client::new(&address, None, None, waiting).expect("it is an address");
    for path in ["/a", "/b", "/c"] {
        let answer = client.get(path).expect("an answer");
        assert_eq!(answer, json!({"items": []}), "it came packed");
    }
    client.post("/d", &json!({})).expect("an answer");
    let expected = [
        (0, "GET /api/v1/a "),
        (0, "GET /api/v1/b "),
        (1, "GET /api/v1/c "),
        (2, "POST /api/v1/d "),
    ];
    for (place, line) in expected {
        let (came_by, asked) = told.recv_timeout(PATIENCE).expect("it was asked");
        assert_eq!(came_by, place, "{asked}");
        assert!(asked.starts_with(line), "{asked}");
        assert!(asked.contains("accept-encoding: gzip\r\n"), "{asked}");
    }
}

#[test]
fn what_is_longer_unpacked_than_is_taken_is_refused_and_so_is_what_is_not_packed() {
    let zeros = packed(&[0; 1_000]);
    assert!(zeros.len() < 100, "{} bytes", zeros.len());
    let whole = unpacked(&zeros, 1_000).expect("it is packed");
    let whole = whole.expect("it fits");
    assert_eq!((whole.len(), whole.iter().max()), (1_000, Some(&0)));
    assert_eq!(unpacked(&zeros, 999).expect("it is packed"), None);
    for bytes in [&zeros[..12], &b"{}"[..]] {
        unpacked(bytes, 999).expect_err("it is not packed");
    }
}

//! Connections that are kept or not, and answers that come packed.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream as Stream};
use std::sync::mpsc::{Receiver, channel};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use super::*;

/// Longer than the other side takes for anything.
const PATIENCE: Duration = Duration::from_secs(10);

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
    let whole = unpacked(&zeros, 1_000).expect("it fits");
    assert_eq!((whole.len(), whole.iter().max()), (1_000, Some(&0)));
    for (bytes, says) in [
        (zeros.as_slice(), "longer than 999 bytes"),
        (&zeros[..12], "not packed as it says"),
        (&b"{}"[..], "not packed as it says"),
    ] {
        let refused = unpacked(bytes, 999).expect_err("it is refused");
        assert!(refused.to_string().contains(says), "{refused:#}");
    }
}

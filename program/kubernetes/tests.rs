//! The API by itself: what is asked, over TLS, of whom.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;

use super::*;
use crate::tls::ServerFiles;

/// A certificate for localhost and its key, and another authority, made for tests and good for nothing else.
fn file(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");
    PathBuf::from(folder).join(name)
}

/// An API server that answers every question of one connection after the other.
fn server() -> String {
    let files = ServerFiles {
        certificate: Setting::new("certificate", file("certificate.pem")),
        key: Setting::new("key", file("key.pem")),
        client_authorities: Setting::new("authorities", ""),
    };
    let config = files.read().expect("usable").expect("it is set");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            let session = rustls::ServerConnection::new(Arc::clone(&config));
            let mut session = session.expect("the config is good");
            let mut stream = rustls::Stream::new(&mut session, &mut socket);
            let mut asked = [0; 4_096];
            let Ok(length) = stream.read(&mut asked) else {
                continue;
            };
            let asked = String::from_utf8_lossy(&asked[..length]);
            let is_ours = asked.contains("authorization: Bearer secret\r\n");
            let body = if is_ours { "{\"kind\":\"ours\"}" } else { "{}" };
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length:";
            let length = body.len();
            let _ = write!(stream, "{head} {length}\r\n\r\n{body}");
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    });
    format!("https://localhost:{port}")
}

fn asker(token: &Path, authorities: &Path) -> Asker {
    Asker {
        program: "gpufleet-test/1",
        url_key: "test.url",
        token: Setting::new("test.token_file", token),
        authorities: Setting::new("test.ca_file", authorities),
        rights: "ClusterRole test",
    }
}

async fn ask(base: &str, authority: &str) -> Result<serde_json::Value, ApiError> {
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    std::fs::write(&token, "secret\n").expect("written");
    let api = Api::new(base, asker(&token, &file(authority)));
    let api = api.expect("both files are there");
    api.get("/api/v1/nodes/x").await
}

#[tokio::test]
async fn the_token_goes_to_the_server_that_the_authority_vouches_for_and_to_no_other() {
    let base = server();
    let answer = ask(&base, "certificate.pem").await.expect("it is ours");
    assert_eq!(answer["kind"], "ours");
    let error = ask(&base, "foreign.pem").await.expect_err("it is not");
    let error = error.to_string();
    assert!(error.contains("test.ca_file"), "{error}");
}

#[test]
fn a_token_is_never_sent_without_tls_to_another_machine() {
    for (base, expected) in [
        ("https://10.0.0.1:443", Some(true)),
        ("https://kubernetes.default.svc", Some(true)),
        ("http://127.0.0.1:8001", Some(false)),
        ("http://127.9.9.9", Some(false)),
        ("http://[::1]:8001", Some(false)),
        ("http://localhost:8001", Some(false)),
        ("http://10.0.0.1", None),
        ("http://localhost.evil.example", None),
        ("http://127.0.0.1.evil.example", None),
        ("http://127.0.0.1@evil.example", None),
        ("ftp://127.0.0.1", None),
        ("kubernetes.default", None),
    ] {
        assert_eq!(is_secure(base, "test.url").ok(), expected, "{base}");
    }
}

#[test]
fn what_stands_in_an_address_is_escaped() {
    assert_eq!(escaped("node-1.x_y~"), "node-1.x_y~");
    assert_eq!(escaped("a=b&c/d é"), "a%3Db%26c%2Fd%20%C3%A9");
}

#[test]
fn a_refusal_says_what_to_do() {
    let asker = asker(Path::new("/token"), Path::new("/ca"));
    for (status, words) in [
        (StatusCode::FORBIDDEN, "apply ClusterRole test"),
        (
            StatusCode::UNAUTHORIZED,
            "is test.token_file the pod's own token?",
        ),
    ] {
        assert!(way_out(&asker, status).contains(words), "{status}");
    }
    assert_eq!(way_out(&asker, StatusCode::GONE), "");
}

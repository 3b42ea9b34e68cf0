//! A page that is open is told by the real server, which nobody has to wait for when it ends.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use gpufleet_tests::harness::{World, server};

/// A tick of the detectors, on a busy machine.
const TOLD_LIMIT: Duration = Duration::from_secs(120);

#[test]
fn what_the_detectors_judge_is_told_to_open_pages_and_streams_end_with_the_server() {
    let world = World::new();
    let server = server::Place::new(&world).start();
    let mut stream = TcpStream::connect(&server.place.web).expect("the server listens");
    let limited = stream.set_read_timeout(Some(TOLD_LIMIT));
    limited.expect("it is a time");
    let request = format!("GET /live HTTP/1.1\r\nhost: {}\r\n\r\n", server.place.web);
    let sent = stream.write_all(request.as_bytes());
    sent.expect("the server reads");
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while line.trim_end() != "data: changed" {
        line.clear();
        let bytes = stream.read_line(&mut line).expect("it is told in time");
        assert!(bytes > 0, "the stream ended");
    }
    let log = server.place.log.clone();
    server.stop();
    let mut rest = String::new();
    let read = stream.read_to_string(&mut rest);
    read.expect("the stream ends whole");
    assert!(rest.ends_with("0\r\n\r\n"), "{rest}");
    let log = std::fs::read_to_string(log).expect("it has a log");
    assert!(!log.contains("connections were still open"), "{log}");
}

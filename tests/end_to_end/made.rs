//! What a test makes up itself: a node, written by the agent's own encoder, and a model server, in the words of
//! vLLM, which the real agent reads.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use gpufleet_agent::prometheus::{PrometheusConfig, encode};
use gpufleet_agent::sample::Latest;
use gpufleet_program::clock::SystemClock;
use gpufleet_telemetry::time::Clock as _;

/// Serves /metrics, where it says: what is told at a scrape of this number, from 1 on, at this Unix time in
/// seconds. Scrapes are answered one after the other.
pub(crate) fn node(mut tells: impl FnMut(u64, f64) -> Latest + Send + 'static) -> String {
    served(move |scrape, now| encode(&tells(scrape, now), &PrometheusConfig::default()))
}

/// Serves /metrics as a vLLM server with one engine does that answers ten requests between two scrapes, by the names
/// that its documentation gives ("Production Metrics").
pub(crate) fn vllm() -> String {
    served(|scrape, _| VLLM.replace("@SCRAPE@", &scrape.to_string()))
}

/// What it serves; with the number of the scrape in front, what stands behind is a counter that grows.
const VLLM: &str = include_str!("vllm.metrics");

/// Serves texts on /metrics, each made at a scrape.
fn served(mut text: impl FnMut(u64, f64) -> String + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has one").to_string();
    std::thread::spawn(move || {
        let clock = SystemClock::start();
        for (scrape, stream) in (1..).zip(listener.incoming().flatten()) {
            let now = clock.now().millis() as f64 / 1e3;
            // A scraper that went away asks again.
            let _ = answer(stream, &text(scrape, now));
        }
    });
    address
}

fn answer(mut stream: TcpStream, text: &str) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut part = [0; 4096];
    while !request.windows(4).any(|it| it == b"\r\n\r\n") {
        let read = stream.read(&mut part)?;
        if read == 0 {
            return Ok(());
        }
        request.extend_from_slice(&part[..read]);
    }
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )
}

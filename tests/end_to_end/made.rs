//! A node of a test's own: what it tells is made up, and written by the agent's own encoder.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use gpufleet_agent::prometheus::{PrometheusConfig, encode};
use gpufleet_agent::sample::Latest;
use gpufleet_program::clock::SystemClock;
use gpufleet_telemetry::time::Clock as _;

/// Serves /metrics, where it says: what is told at a scrape of this number, from 1 on, at this Unix time in
/// seconds. Scrapes are answered one after the other.
pub(crate) fn node(mut tells: impl FnMut(u64, f64) -> Latest + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has one").to_string();
    std::thread::spawn(move || {
        let clock = SystemClock::start();
        for (scrape, stream) in (1..).zip(listener.incoming().flatten()) {
            let now = clock.now().millis() as f64 / 1e3;
            let text = encode(&tells(scrape, now), &PrometheusConfig::default());
            // A scraper that went away asks again.
            let _ = answer(stream, &text);
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

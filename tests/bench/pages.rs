//! How fast pages and API answer while the server takes in a fleet. Figures without a verdict.

use std::time::Duration;

use gpufleet_tests::harness::server::Server;
use gpufleet_tests::harness::{http, wait};

use crate::figures::{Spread, told};

/// Requests a second, each on a connection of its own, sent whether or not the ones before are back.
const RATE: u32 = 50;
const SECONDS: u32 = 20;
/// Threads that send: with so many an answer may take 0.32 s before the rate falls.
const SENDERS: u32 = 16;
/// Scrapes of /metrics, one after the other: scrapers do not come 50 times a second.
const SCRAPES: usize = 20;

/// Asks for the fleet at 50 requests a second, then scrapes /metrics.
pub(crate) fn measure(server: &Server) {
    for (what, path) in [
        ("first page", "/"),
        ("fleet page", "/fleet"),
        ("fleet in the API", "/api/v1/fleet"),
    ] {
        let (took, failed) = at_rate(&server.place.web, path);
        told(&format!(
            "{what} ({path}) at {RATE} requests/s: {}, {failed} failed",
            spread(&took)
        ));
    }
    let (mut took, mut bytes) = (Spread::default(), 0);
    for _ in 0..SCRAPES {
        let began = wait::now();
        bytes = server.get("/metrics").body.len();
        took.add(milliseconds(wait::now() - began));
    }
    told(&format!("/metrics: {}, {bytes} bytes", spread(&took)));
}

fn at_rate(address: &str, path: &str) -> (Spread, u64) {
    let began = wait::now();
    let send = |sender: u32| {
        let (mut took, mut failed) = (Spread::default(), 0_u64);
        for turn in (sender..RATE * SECONDS).step_by(SENDERS as usize) {
            // From when it was due, so that a slow answer counts for those that waited behind it.
            let due = began + Duration::from_secs(1) * turn / RATE;
            wait::pause(due.saturating_sub(wait::now()));
            let is_good = http::get(address, path).is_ok_and(|answer| answer.status == 200);
            failed += u64::from(!is_good);
            took.add(milliseconds(wait::now() - due));
        }
        (took, failed)
    };
    let (mut took, mut failed) = (Spread::default(), 0);
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| scope.spawn(move || send(sender)))
            .collect();
        for sender in senders {
            let (its, bad) = sender.join().expect("a sender does not panic");
            took.join(&its);
            failed += bad;
        }
    });
    (took, failed)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

fn spread(took: &Spread) -> String {
    format!(
        "p99 {:.1} ms (median {:.1}, greatest {:.1}, n={})",
        took.quantile(0.99),
        took.quantile(0.5),
        took.max(),
        took.count()
    )
}

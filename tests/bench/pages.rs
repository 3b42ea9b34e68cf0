//! How fast pages and API answer while the server takes in a fleet, how many bytes they are on the wire, and
//! how soon Chromium shows them.

use std::time::Duration;

use gpufleet_tests::harness::browser::{Browser, Window};
use gpufleet_tests::harness::server::Server;
use gpufleet_tests::harness::{World, http, wait};

use crate::figures::{Spread, line, told};

/// Requests a second, each on a connection of its own, sent whether or not the ones before are back.
const RATE: u32 = 50;
const SECONDS: u32 = 20;
/// Threads that send: with so many an answer may take 0.32 s before the rate falls.
const SENDERS: u32 = 16;
/// Scrapes of /metrics, one after the other: scrapers do not come 50 times a second.
const SCRAPES: usize = 20;
/// Times that Chromium opens a page, with nothing of it kept, and times that an open page is refreshed.
const OPENED: usize = 5;

/// What must be reached, milliseconds: the 99th percentile of answers, /metrics, and what a person waits for.
const MAX_ANSWER_MS: f64 = 100.0;
const MAX_SCRAPE_MS: f64 = 300.0;
const MAX_SHOWN_MS: f64 = 1_000.0;
/// An open page is refreshed each ten seconds, which is the agents' tick.
const MAX_REFRESH_MS: f64 = 10_000.0;
/// The first page on the wire, with what it needs, as a browser asks for it over http: with gzip.
const MAX_FIRST_KB: f64 = 200.0;

/// How long the open page took, milliseconds, and what came over the wire for it, bytes.
const SHOWN: &str = r"return new Promise(done => requestAnimationFrame(() => setTimeout(() => {
    const page = performance.getEntriesByType('navigation')[0];
    const painted = performance.getEntriesByName('first-contentful-paint')[0];
    const all = [page, ...performance.getEntriesByType('resource')];
    done([Math.max(page.loadEventEnd, painted ? painted.startTime : 0), all.reduce((sum, it) => sum + it.transferSize, 0)]);
})));";

/// How long the page's own script took to refresh it, milliseconds: it does so when it comes into view.
const REFRESHED: &str = r"return new Promise(done => {
    const began = performance.now();
    new MutationObserver((_, watch) => { watch.disconnect(); done(performance.now() - began); })
        .observe(document.getElementById('pulse'), { childList: true });
    document.dispatchEvent(new Event('visibilitychange'));
});";

/// Asks for the fleet at 50 requests a second, scrapes /metrics, and opens the pages in Chromium.
pub(crate) fn measure(world: &World, server: &Server) -> bool {
    let mut reached = true;
    for (what, path) in [
        ("first page", "/"),
        ("fleet page", "/fleet"),
        ("fleet in the API", "/api/v1/fleet"),
        ("what the box finds", "/find?q=node-"),
    ] {
        let (took, failed) = at_rate(&server.place.web, path);
        let name = format!("{what} ({path}) at {RATE} requests/s, p99 ms");
        reached &= line(&name, &spread(&took), took.quantile(0.99), MAX_ANSWER_MS);
        reached &= line(&format!("{what}: failed"), "", failed as f64, 0.0);
    }
    let (mut took, mut bytes) = (Spread::default(), 0);
    for _ in 0..SCRAPES {
        let began = wait::now();
        bytes = server.get("/metrics").body.len();
        took.add(milliseconds(wait::now() - began));
    }
    let figure = format!("{}, {bytes} bytes", spread(&took));
    reached &= line(
        "/metrics, p99 ms",
        &figure,
        took.quantile(0.99),
        MAX_SCRAPE_MS,
    );
    reached & in_chromium(world, server)
}

/// Opens the first page and the tiles as somebody who was never there, and lets the tiles refresh.
fn in_chromium(world: &World, server: &Server) -> bool {
    let browser = Browser::start(world, Window::DESK);
    browser.devtools("Network.enable", &serde_json::json!({}));
    browser.devtools(
        "Network.setCacheDisabled",
        &serde_json::json!({"cacheDisabled": true}),
    );
    let mut reached = true;
    for (what, path) in [("first page", ""), ("fleet page", "fleet")] {
        let (mut shown, mut kilobytes) = (Spread::default(), Spread::default());
        for _ in 0..OPENED {
            browser.open(&format!("http://{}/{path}", server.place.web));
            let figures = browser.run(SHOWN);
            shown.add(figures[0].as_f64().unwrap_or(f64::INFINITY));
            kilobytes.add(figures[1].as_f64().unwrap_or(f64::INFINITY) / 1_000.0);
        }
        let name = format!("{what} in Chromium, ms until it is shown");
        reached &= line(&name, &shown.told(), shown.max(), MAX_SHOWN_MS);
        let name = format!("{what} on the wire, kB");
        if path.is_empty() {
            reached &= line(&name, &kilobytes.told(), kilobytes.max(), MAX_FIRST_KB);
        } else {
            told(&format!("{name}: {}", kilobytes.told()));
        }
    }
    let mut refreshed = Spread::default();
    for _ in 0..OPENED {
        refreshed.add(browser.run(REFRESHED).as_f64().unwrap_or(f64::INFINITY));
    }
    reached
        & line(
            "fleet page, ms until the open page is refreshed",
            &refreshed.told(),
            refreshed.max(),
            MAX_REFRESH_MS,
        )
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
        "{:.1} (median {:.1}, greatest {:.1}, n={})",
        took.quantile(0.99),
        took.quantile(0.5),
        took.max(),
        took.count()
    )
}

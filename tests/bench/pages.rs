//! How fast pages and API answer while the server takes in a fleet, how many bytes they are on the wire, and
//! how soon Chromium shows them.

use std::collections::BTreeMap;
use std::time::Duration;

use gpufleet_server::find::MAX_JOBS;
use gpufleet_server::runs::{KnownRun, RunFacts, RunKey};
use gpufleet_server::store::model::Commit;
use gpufleet_server::store::{Store, StoreConfig};
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::{JobId, RunId};
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

/// How long an open page is left alone before it is refreshed: what is drawn of a second is drawn once.
const LEFT: Duration = Duration::from_millis(1_100);

/// What must be reached, milliseconds: the 99th percentile of answers, /metrics, and what a person waits for.
const MAX_ANSWER_MS: f64 = 100.0;
const MAX_SCRAPE_MS: f64 = 300.0;
const MAX_SHOWN_MS: f64 = 1_000.0;
/// An open page is refreshed each ten seconds, which is the agents' tick.
const MAX_REFRESH_MS: f64 = 10_000.0;
/// The first page on the wire, with what it needs, as a browser asks for it over http: with gzip.
const MAX_FIRST_KB: f64 = 200.0;

/// What is asked of the box: it is in the names of all nodes, GPUs and jobs, which is the most that it may have to tell.
const ASKED: &str = "/find?q=node-";
/// How many texts are in the fingerprint of a stored job.
const FINGERPRINT: usize = 20;
/// When the stored jobs were over: nothing of them is live any more.
const OVER_SECONDS: i64 = 3 * 86_400;

/// How long the open page took, milliseconds, and what came over the wire for it, bytes.
const SHOWN: &str = r"return new Promise(done => requestAnimationFrame(() => setTimeout(() => {
    const page = performance.getEntriesByType('navigation')[0];
    const painted = performance.getEntriesByName('first-contentful-paint')[0];
    const all = [page, ...performance.getEntriesByType('resource')];
    done([Math.max(page.loadEventEnd, painted ? painted.startTime : 0), all.reduce((sum, it) => sum + it.transferSize, 0)]);
})));";

/// How long the page's own script took to refresh it, milliseconds: it does so when it comes into view. It sets the classes
/// of the pulse anew each time, its text where that differs alone.
const REFRESHED: &str = r"return new Promise(done => {
    const began = performance.now();
    new MutationObserver((_, watch) => { watch.disconnect(); done(performance.now() - began); })
        .observe(document.getElementById('pulse'), { attributes: true, attributeFilter: ['class'] });
    document.dispatchEvent(new Event('visibilitychange'));
});";

/// Puts jobs into the record before a server has it, one more than the box looks at.
pub(crate) fn store_jobs(url: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime can be made");
    runtime.block_on(async {
        let config = StoreConfig {
            url: url.to_owned(),
            ..StoreConfig::default()
        };
        let store = Store::open(&config).await.expect("a new database opens");
        let now = Timestamp::from_seconds(wait::unix_seconds());
        let length = Duration::from_secs(60);
        let lease = store.acquire_lease("bench", now, length).await;
        let token = lease.expect("nobody has the lease of a new database").token;
        let commit = Commit {
            number: 1,
            runs: (0..=MAX_JOBS).map(job).collect(),
            ..Commit::default()
        };
        let committed = store.commit(&commit, token).await;
        committed.expect("nothing else writes");
        let released = store.release_lease(token).await;
        released.expect("the database answers");
        store.close().await;
    });
}

fn job(number: usize) -> KnownRun {
    let over = Timestamp::from_seconds(wait::unix_seconds() - OVER_SECONDS);
    let started = over.shifted(-(number as i64 + 1) * 60_000_000_000);
    let job = JobId {
        namespace: "research".to_owned(),
        name: format!("node-sweep-{number}"),
        uid: format!("uid-{number}"),
    };
    let text = |it| (format!("package.{it}"), format!("{it}.0.1+build.{number}"));
    let fingerprint: BTreeMap<_, _> = (0..FINGERPRINT).map(text).collect();
    KnownRun {
        key: RunKey {
            cluster: "bench-simulated".into(),
            run: RunId { job, attempt: 0 },
        },
        facts: RunFacts {
            origin: Origin::Simulated,
            started: Some(started),
            heard: over,
            ended: Some(over),
            fingerprint,
            ..RunFacts::default()
        },
        ranks: Vec::new(),
        is_part: false,
    }
}

/// The pages of a node, a GPU and a job, as the box finds them; it must find stored jobs, as many as it looks at less the
/// jobs that run, and say that it did not look at all of them.
fn found_pages(server: &Server) -> [String; 3] {
    let found = server.get(&format!("/api/v1{ASKED}")).json();
    let jobs = &found["jobs"];
    let told = jobs["items"].as_array().map_or(0, Vec::len) as u64;
    let all = told + jobs["more"].as_u64().unwrap_or_default();
    let most = MAX_JOBS as u64;
    assert!(
        (most / 2..most).contains(&all),
        "{all} of {most} jobs were found"
    );
    assert!(found["not_all_jobs"].is_string(), "{jobs}");
    ["nodes", "gpus", "jobs"].map(|kind| {
        let page = found[kind]["items"][0]["page"].as_str();
        page.expect("one of each kind is found").to_owned()
    })
}

/// Asks for the fleet at 50 requests a second, scrapes /metrics, and opens the pages in Chromium; `live` are the pages of
/// a job that runs and of an incident.
pub(crate) fn measure(world: &World, server: &Server, [live, incident]: &[String; 2]) -> bool {
    let mut reached = true;
    let [node, gpu, job] = found_pages(server);
    let cluster = node.split("/nodes/").next().expect("it has a first part");
    for (what, path) in [
        ("first page", "/"),
        ("fleet page", "/fleet"),
        ("fleet in the API", "/api/v1/fleet"),
        ("what the box finds", ASKED),
        ("jobs", "/jobs"),
        ("the dearest jobs", "/jobs?sort=cost"),
        ("a job that is over", job.as_str()),
        ("a job that runs", live.as_str()),
        ("a cluster", cluster),
        ("a node", node.as_str()),
        ("a GPU", gpu.as_str()),
        ("incidents", "/incidents"),
        ("an incident", incident.as_str()),
        ("cost", "/cost"),
        ("queue", "/queue"),
        ("health", "/health"),
        ("Today in the API", "/api/v1/today"),
        ("GPUs in the API", "/api/v1/gpus"),
        ("jobs in the API", "/api/v1/jobs"),
        ("the dearest jobs in the API", "/api/v1/jobs?sort=cost"),
        ("incidents in the API", "/api/v1/incidents"),
        ("the queue in the API", "/api/v1/queue"),
        ("checks in the API", "/api/v1/doctor"),
        ("events in the API", "/api/v1/events"),
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
        wait::pause(LEFT);
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

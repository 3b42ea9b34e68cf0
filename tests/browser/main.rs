//! The pages as a person sees them: a real Chromium opens every page that a link leads to.
//!
//! Pictures of what it saw are kept in target/screenshots, outside of git.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use gpufleet_standin_nvml::Scenario;
use gpufleet_standin_nvml::load::Load;
use gpufleet_tests::harness::browser::Browser;
use gpufleet_tests::harness::simulator::Simulator;
use gpufleet_tests::harness::{World, agent, repository, server, wait};

/// Most pages opened: one of each kind many times over, in a minute.
const MAX_PAGES: usize = 40;
/// Two ship intervals and the start.
const FIRST_DATA_LIMIT: Duration = Duration::from_secs(120);

/// A server that knows a live node, a simulated fleet with an hour of history, and a broken GPU.
fn fleet(world: &World) -> (server::Server, agent::Agent, Simulator) {
    let server = server::Place::sqlite(world).start();
    let endpoint = format!("http://{}", server.place.grpc);
    let place = agent::Place::new(world, "live-node-1", &endpoint, "");
    place.show(&Scenario::of(8, "NVIDIA H100 80GB HBM3", Load::Training));
    let agent = place.start();
    let simulator = Simulator::start(world, &endpoint, &["--history-hours", "1"]);
    simulator.fault("xid79");
    for name in ["live-node-1", "demo-node-8"] {
        wait::until(&format!("{name} is on the page"), FIRST_DATA_LIMIT, || {
            server.get("/fleet").text().contains(name).then_some(())
        });
    }
    (server, agent, simulator)
}

/// The links of the open page that stay on the server and show a page.
fn links(browser: &Browser, root: &str) -> Vec<String> {
    let found = browser.run(
        "return Array.from(document.querySelectorAll('a[href]')).map(it => it.href.split('#')[0])",
    );
    let found = found.as_array().cloned().unwrap_or_default();
    found
        .iter()
        .filter_map(|link| link.as_str())
        .filter(|link| {
            link.starts_with(root) && !link.contains("/api/") && !link.contains("/metrics")
        })
        .map(str::to_owned)
        .collect()
}

/// A name for a picture.
fn file_name(url: &str, root: &str) -> String {
    let path: String = url[root.len()..]
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter
            } else {
                '-'
            }
        })
        .take(80)
        .collect();
    format!("page{path}.png")
}

#[test]
fn every_page_opens_without_an_error_asks_nobody_else_and_fits_its_window() {
    let world = World::new();
    let (server, _agent, _simulator) = fleet(&world);
    let root = format!("http://{}/", server.place.web);
    let pictures = repository().join("target/screenshots");
    for (width, height, size) in [(1280, 900, "wide"), (390, 844, "narrow")] {
        let browser = Browser::start(&world, width, height);
        let mut seen = BTreeSet::from([root.clone()]);
        let mut waiting = VecDeque::from([root.clone()]);
        let mut opened = 0;
        let mut kinds = BTreeSet::new();
        while let Some(url) = waiting.pop_front().filter(|_| opened < MAX_PAGES) {
            browser.open(&url);
            opened += 1;
            let console = browser.console();
            assert_eq!(console.errors, Vec::<String>::new(), "{size} {url}");
            let elsewhere: Vec<_> = console
                .requests
                .iter()
                .filter(|it| !["data:", &root].iter().any(|own| it.starts_with(own)))
                .collect();
            assert!(
                elsewhere.is_empty(),
                "{url} asks other hosts: {elsewhere:?}"
            );
            let title = browser.run("return document.title");
            assert_ne!(title.as_str().unwrap_or_default(), "", "{url} has no title");
            let overflow =
                browser.run("return document.documentElement.scrollWidth - window.innerWidth");
            assert!(
                overflow.as_i64().unwrap_or(0) <= 1,
                "{size} {url} is {overflow} pixels wider than its window"
            );
            // One picture of each kind of page: the first path segment tells the kind.
            let kind = url[root.len()..]
                .split(['/', '?'])
                .next()
                .unwrap_or_default()
                .to_owned();
            if kinds.insert(kind) {
                browser.screenshot(&pictures.join(size).join(file_name(&url, &root)));
            }
            for link in links(&browser, &root) {
                if seen.insert(link.clone()) {
                    waiting.push_back(link);
                }
            }
        }
        assert!(opened > 10, "only {opened} pages are linked");
    }
}

#[test]
fn what_is_simulated_says_so_on_the_page() {
    let world = World::new();
    let (server, _agent, _simulator) = fleet(&world);
    let browser = Browser::start(&world, 1280, 900);
    for page in ["", "fleet"] {
        browser.open(&format!("http://{}/{page}", server.place.web));
        let text = browser.run("return document.body.innerText").to_string();
        assert!(text.to_uppercase().contains("SIMULATED"), "/{page}: {text}");
    }
    let text = browser.run("return document.body.innerText").to_string();
    assert!(text.contains("live-node-1"), "{text}");
}

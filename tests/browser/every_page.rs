//! Every kind of page, in each window and each light: without an error, from no other host, no wider than
//! its window, and with nothing that axe finds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::ledger::{Reason, State};
use gpufleet_server::money::report::month_of;
use gpufleet_server::pages::tiles;
use gpufleet_server::store::model::ResourceKey;
use gpufleet_server::view::{ClusterView, GpuView, NodeView, Shown};
use gpufleet_telemetry::identity::{Origin, ResourceKind};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_tests::harness::browser::{Browser, Window};
use gpufleet_tests::harness::server::Server;
use gpufleet_tests::harness::{World, repository, wait};

use crate::axe::Axe;
use crate::stand_still;

/// The demo's history is accounted, on a busy machine.
const MONTH_LIMIT: Duration = Duration::from_secs(240);

/// What a page is looked at in: a name, a window, whether it is dark.
const LOOKS: [(&str, Window, bool); 5] = [
    ("desk", Window::DESK, false),
    ("desk-dark", Window::DESK, true),
    ("phone", Window::PHONE, false),
    ("phone-dark", Window::PHONE, true),
    ("wall", Window::WALL, false),
];

/// The kinds of pages that are looked at on a wall.
const ON_A_WALL: [&str; 8] = [
    "today",
    "fleet",
    "queue",
    "incidents",
    "jobs",
    "job simulated",
    "cost",
    "health",
];

/// What an eye some metres away cannot read, or follow from line to line.
const FROM_AFAR: &str = r"
    const letter = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const long = Array.from(document.querySelectorAll('main p'))
        .map(it => Math.round(it.getBoundingClientRect().width / letter)).filter(it => it > 70);
    const tiles = Array.from(document.querySelectorAll('main a.t'))
        .map(it => Math.round(it.getBoundingClientRect().width)).filter(it => it < 24);
    return [letter < 20 ? [`has letters of ${letter} pixels`] : [],
        long.slice(0, 1).map(it => `has a line as long as ${it} letters are high`),
        tiles.slice(0, 1).map(it => `has a tile ${it} pixels wide`)].flat();";

/// What is wrong with the open page, which was asked for at this address, beside what axe finds.
pub(crate) fn wrong_with(browser: &Browser, url: &str) -> Vec<String> {
    let host = url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
    let mut wrong = Vec::new();
    let console = browser.console();
    wrong.extend(console.errors);
    let is_own = |it: &&String| ["data:", &host].iter().any(|own| it.starts_with(own));
    let foreign = console.requests.iter().filter(|it| !is_own(it));
    wrong.extend(foreign.map(|it| format!("asks another host: {it}")));
    let status = browser.run("return performance.getEntriesByType('navigation')[0].responseStatus");
    if status != 200 && url.starts_with("http") {
        wrong.push(format!("was answered with {status}"));
    }
    if browser.run("return document.title") == "" {
        wrong.push("has no title".to_owned());
    }
    let width = browser.run("return document.documentElement.scrollWidth");
    let width = width.as_u64().unwrap_or(u64::MAX);
    if width > u64::from(browser.window().width) {
        wrong.push(format!("is {width} pixels wide"));
    }
    wrong
}

/// What is wrong with any of these pages, in any window and light.
pub(crate) fn wrong_with_all(
    browser: &mut Browser,
    pages: &BTreeMap<String, String>,
) -> Vec<String> {
    let pictures = repository().join("target/screenshots");
    let axe = Axe::into(browser);
    let mut wrong = Vec::new();
    // What was asked for before is not of these pages.
    browser.console();
    for (look, window, is_dark) in LOOKS {
        browser.resize(window);
        browser.likes_dark(is_dark);
        let is_shown = |kind: &str| window != Window::WALL || ON_A_WALL.contains(&kind);
        for (kind, url) in pages.iter().filter(|it| is_shown(it.0)) {
            browser.open(url);
            stand_still(browser);
            let mut its = wrong_with(browser, url);
            if window == Window::WALL {
                let found = browser.run(FROM_AFAR);
                let found = found.as_array().into_iter().flatten();
                its.extend(found.map(ToString::to_string));
            } else if let Some(axe) = &axe {
                its.extend(axe.complaints(browser));
            }
            // A picture takes as long as the page: of what is dark only where something is wrong with it.
            if !is_dark || !its.is_empty() {
                let file = format!("{}.png", kind.replace(' ', "-"));
                browser.screenshot(&pictures.join(look).join(file));
            }
            wrong.extend(its.iter().map(|it| format!("{look} {kind} ({url}): {it}")));
        }
    }
    wrong
}

/// The address of the month as a page of its own, as it lies on the disk of whoever downloads it.
pub(crate) fn report(server: &Server, world: &World) -> String {
    // The month in which most of the history lies: a month may have begun a minute ago.
    let month = month_of(Timestamp::from_seconds(wait::unix_seconds() - 1_800));
    let asked =
        format!("/api/v1/reports/chargeback?format=html&by=team,job&cluster=demo&month={month}");
    let report = wait::until("the month has its first hours", MONTH_LIMIT, || {
        let text = server.get(&asked).text();
        text.contains("foundation-models").then_some(text)
    });
    format!("file://{}", world.file("report.html", &report).display())
}

#[test]
fn axe_finds_what_is_wrong() {
    let world = World::new();
    let page = world.file(
        "wrong.html",
        "<!doctype html><html lang=en><title>Wrong</title><style>.over { position: relative }\
         .over::after { content: ''; position: absolute; inset: 0; background: repeating-linear-gradient(red 0 1px, blue 0 2px) }\
         </style><main><h1>Wrong</h1><img src='data:,'><div class=over><p style='color: #ccc; background: #fff'>pale</p></div></main>",
    );
    let browser = Browser::start(&world, Window::DESK);
    let Some(axe) = Axe::into(&browser) else {
        return;
    };
    browser.open(&format!("file://{}", page.display()));
    let complaints = axe.complaints(&browser);
    for rule in ["image-alt", "color-contrast"] {
        let is_found = complaints.iter().any(|it| it.starts_with(rule));
        assert!(is_found, "{rule} is not found: {complaints:#?}");
    }
}

/// How small the smallest tile is, how many lines of tiles the first node has, and how wide the page is.
const TOUCHED: &str = "
    const tiles = Array.from(document.querySelectorAll('a.t')).map(it => it.getBoundingClientRect());
    const first = Array.from(document.querySelectorAll('li:first-child a.t')).map(it => it.getBoundingClientRect().y);
    return [Math.min(...tiles.map(it => Math.min(it.width, it.height))), new Set(first).size, tiles.length,
        document.documentElement.scrollWidth]";

#[test]
fn tiles_of_a_large_cluster_are_large_enough_for_a_finger() {
    let gpu = |node: &Arc<str>, index: u32| GpuView {
        key: ResourceKey {
            cluster: "prod".into(),
            kind: ResourceKind::Gpu,
            id: format!("GPU-{node}-{index}").into(),
        },
        index: Some(index),
        model: "NVIDIA H100 80GB HBM3".into(),
        origin: Origin::Live,
        node: Arc::clone(node),
        state: State::ActiveUnrated,
        reason: Reason::Unknown,
        is_silent: false,
        first_seen: Timestamp::default(),
        is_one_sample: false,
        last_point: Timestamp::default(),
        holder: None,
        holder_known: true,
        held: false,
        source: "nvml".into(),
        readings: Shown::default(),
        shares: Vec::new(),
    };
    let node = |number: u32| {
        let name: Arc<str> = format!("node-{number:02}").into();
        NodeView {
            gpus: (0..8).map(|index| gpu(&name, index)).collect(),
            name,
            ..NodeView::default()
        }
    };
    let cluster = ClusterView {
        name: "prod".into(),
        nodes: (0..40).map(node).collect(),
        ..ClusterView::default()
    };
    let drawn = tiles::cluster(&cluster, Timestamp::default(), None);
    assert!(drawn.is_many, "it is drawn as one with many nodes");
    let style = repository().join("server/pages/assets/gpufleet.css");
    let style = std::fs::read_to_string(style).expect("it is there");
    let page = format!(
        "<!doctype html><html lang=en><meta name=viewport content='width=device-width, initial-scale=1'>\
         <title>Tiles</title><style>{style}</style><main><h1>Tiles</h1><section class=cluster>\
         <ul class='nodes many'>{}</ul></section></main>",
        drawn.nodes
    );
    let world = World::new();
    let page = world.file("tiles.html", &page);
    let mut browser = Browser::start(&world, Window::DESK);
    browser.resize(Window::PHONE);
    browser.open(&format!("file://{}", page.display()));
    let found = browser.run(TOUCHED);
    let is_large = found[0].as_f64().is_some_and(|it| it >= 24.0);
    assert!(is_large, "{found}");
    assert_eq!(found[1], 1, "a node is a line: {found}");
    assert_eq!(found[2], 320, "every tile was measured");
    let width = found[3].as_u64().expect("a width");
    assert!(width <= u64::from(Window::PHONE.width), "{found}");
}

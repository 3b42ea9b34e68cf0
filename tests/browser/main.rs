//! The pages as a person sees them, in a real Chromium: every kind of page on a desk and on a telephone, light
//! and dark, by mouse and by keyboard, while the fleet changes.
//!
//! Pictures of what it saw are kept in target/screenshots, outside of git.

use std::collections::BTreeMap;
use std::time::Duration;

use gpufleet_standin_nvml::Scenario;
use gpufleet_standin_nvml::load::Load;
use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::identity::attribute;
use gpufleet_tests::harness::browser::{Browser, Window};
use gpufleet_tests::harness::kubernetes::Kubernetes;
use gpufleet_tests::harness::simulator::{Simulator, steady_seed};
use gpufleet_tests::harness::{World, agent, queue, server, wait};
use serde_json::json;

mod axe;

mod kinds;

mod every_page;

mod by_hand;

mod keyboard;

mod live;

mod origins;

mod doors;

mod troubles;

/// A start, two ship intervals and an hour of history, on a machine that does other things too.
const FIRST_DATA_LIMIT: Duration = Duration::from_secs(180);

/// The cluster in which a recording is played back.
pub(crate) const RECORDED: &str = "captured-recorded";

/// How long the recording is, seconds: then it has ended, and nothing of it changes any more.
const RECORDED_S: i64 = 30;

/// A server that knows a live node, a recording, a cluster with a queue, and a simulated fleet with an hour of
/// history, in which a GPU is broken.
struct Fleet {
    server: server::Server,
    simulator: Simulator,
    _agent: agent::Agent,
    _cluster: Kubernetes,
}

impl Fleet {
    fn new(world: &World) -> Self {
        let cluster = queue::cluster();
        let server = queue::asked(server::Place::sqlite(world), world, &cluster)
            .with("fleet.commit_interval_s=2")
            .start();
        let endpoint = format!("http://{}", server.place.grpc);
        let place = agent::Place::new(world, "live-node-1", &endpoint, &recorded(world));
        place.show(&Scenario::of(8, "NVIDIA H100 80GB HBM3", Load::Training));
        let agent = place.start();
        let more = ["--history-hours", "1", "--seed", &steady_seed()];
        let simulator = Simulator::start(world, &endpoint, &more);
        let there = |path: &str, words: &str| {
            wait::until(&format!("{path} says {words}"), FIRST_DATA_LIMIT, || {
                server.get(path).text().contains(words).then_some(())
            });
        };
        there("/fleet", "live-node-1");
        there("/fleet", "demo-node-8");
        there("/fleet", "recorded, one sample");
        there("/fleet", "recording, played up to");
        there("/jobs", "llama-70b-pretrain");
        // What breaks before anybody has seen it whole is not news.
        simulator.fault("xid79");
        there("/incidents", "XID 79");
        there("/queue", "jobset:research/train");
        Self {
            server,
            simulator,
            _agent: agent,
            _cluster: cluster,
        }
    }

    /// The address of the first page.
    fn root(&self) -> String {
        format!("http://{}/", self.server.place.web)
    }
}

/// One page of each kind, as links lead to them.
fn pages(browser: &Browser, fleet: &Fleet) -> BTreeMap<String, String> {
    // What is judged anew is linked a tick after what it is of.
    wait::until("links lead to every kind of page", FIRST_DATA_LIMIT, || {
        let pages = kinds::found(browser, &fleet.root());
        let found: Vec<&str> = pages.keys().map(String::as_str).collect();
        let is_all = found == kinds::ALL;
        if !is_all {
            eprintln!("links lead to {found:?}");
        }
        is_all.then_some(pages)
    })
}

#[test]
fn every_kind_of_page_is_whole_for_everybody_by_keyboard_and_loads_from_here_alone() {
    let world = World::new();
    let fleet = Fleet::new(&world);
    let mut browser = Browser::start(&world, Window::DESK);
    let pages = pages(&browser, &fleet);
    let mut wrong = origins::wrong_with(&browser, &pages);
    wrong.extend(keyboard::wrong_with(&mut browser, &pages));
    wrong.extend(keyboard::wrong_with_shortcuts(&mut browser, &fleet.root()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_kind_of_page_is_whole_for_everybody_by_eye() {
    let world = World::new();
    let fleet = Fleet::new(&world);
    let mut browser = Browser::start(&world, Window::DESK);
    let pages = pages(&browser, &fleet);
    let mut wrong = every_page::wrong_with_all(&mut browser, &pages);
    // It is there minutes after the pages are, which are looked at meanwhile.
    let report = every_page::report(&fleet.server, &world);
    let report = BTreeMap::from([("report".to_owned(), report)]);
    wrong.extend(every_page::wrong_with_all(&mut browser, &report));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn clicks_lead_everywhere_and_open_pages_follow_the_fleet() {
    let world = World::new();
    let fleet = Fleet::new(&world);
    let mut browser = Browser::start(&world, Window::DESK);
    by_hand::from_page_to_page(&mut browser, &fleet.root());
    by_hand::light_and_words(&browser, &fleet.root());
    live::follows(&browser, fleet);
}

/// The part of an agent's config that plays back a recording, once, and a capture of one moment.
fn recorded(world: &World) -> String {
    let header = json!({
        "gpufleet_recording": 1, "taken_at_seconds": 1_780_000_000, "agent_version": "0.1.0", "node": "recorded",
    });
    let round = |second: i64| {
        let sample =
            |metric: Metric, value: f64| json!({"of": 0, "metric": metric.id.0, "value": value});
        json!({
            "at_ns": second * 1_000_000_000, "reader": "nvml",
            "define": [{"number": 0, "kind": "gpu", "id": "GPU-recorded", "attributes": {
                attribute::GPU_MODEL: "NVIDIA H200", attribute::GPU_INDEX: "0",
            }}],
            "samples": [
                sample(gpu::POWER, 600.0 + second as f64),
                sample(gpu::UTILIZATION, 0.9),
                sample(gpu::MEMORY_USED, 64e9),
                sample(gpu::TEMPERATURE, 61.0),
            ],
        })
    };
    let lines = std::iter::once(header).chain((0..RECORDED_S).map(round));
    let lines: Vec<String> = lines.map(|it| it.to_string()).collect();
    let recording = world.file("h200.jsonl", &format!("{}\n", lines.join("\n")));
    let capture = world.file(
        "moment.metrics",
        "# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n\
         DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",UUID=\"GPU-captured\",device=\"nvidia0\",\
         modelName=\"NVIDIA H200\",Hostname=\"h\"} 300\n",
    );
    format!(
        "[recorded]\nfiles = [\"{}\", \"{}\"]\ncluster = \"{RECORDED}\"\n",
        recording.display(),
        capture.display()
    )
}

/// Has the open page stand still, as one that nobody sees: what it swaps for newer pieces would be other elements.
fn stand_still(browser: &Browser) {
    browser.run("Object.defineProperty(document, 'hidden', { get: () => true })");
}

//! Every alert rule of the folder on what is really served, all at once but for those in [`blind`]: Debian's Prometheus
//! scrapes the real server, real agents with faults, and two nodes of the test's own that tell every other fault in the agent's
//! own words. What the server owns holds still in the cluster that it hears and pages for, fires in the one
//! that it does not, and fires in both when it is gone.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpufleet_agent::sample::Latest;
use gpufleet_standin_nvml::load::Load;
use gpufleet_standin_nvml::{Fault, FaultKind, Process, Scenario, Xid};
use gpufleet_tests::harness::small_disk::SmallDisk;
use gpufleet_tests::harness::{World, agent, free_port, server, wait};
use gpufleet_tests::on_both_databases;
use gpufleet_tests::people::Service;
use gpufleet_tests::people::server::{Mood, Running};
use gpufleet_tests::people::webhook::Webhook;
use serde_json::Value;

use crate::made;
use crate::otlp;
use crate::peers::{MANAGED, Peer};

mod broken;

mod blind;

use broken::{Moment, broken};

/// From a change until it is read, scraped and evaluated, on a busy machine; a silent node takes a minute.
const LIMIT: Duration = Duration::from_secs(180);
/// Slower than a scrape takes anywhere: one that is missed would be a server that is gone.
const SCRAPE_EVERY_S: u32 = 5;

const SIGNING_KEY: &str = "s1gn1ng-key-of-the-webhook";
const MODEL: &str = "NVIDIA H100 80GB HBM3";

/// The cluster of the agents that the server hears, and one that it does not.
const HEARD: &str = "test";
const UNHEARD: &str = "alone";

/// What a real agent tells of the faults of the stand-in driver.
const OF_THE_DRIVER: [&str; 18] = [
    "GpufleetGpuLost",
    "GpufleetRecoveryAction",
    "GpufleetEccUncorrected",
    "GpufleetSramUncorrected",
    "GpufleetEccCorrectedOften",
    "GpufleetRowRemapFailed",
    "GpufleetRowRemapPending",
    "GpufleetHardwareSlowdown",
    "GpufleetNvlinkDown",
    "GpufleetStalled",
    "GpufleetHeldIdle",
    "GpufleetXidRebootNode",
    "GpufleetXidRestartVm",
    "GpufleetXidResetGpu",
    "GpufleetXidNvlink",
    "GpufleetXidCheckPower",
    "GpufleetXidUpdateSoftware",
    "GpufleetReadingsRefused",
];

/// An alert rule.
struct Rule {
    name: String,
    is_owned: bool,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../alerts/rules")
}

/// The names of the files with rules.
fn files() -> Vec<String> {
    let listed = fs::read_dir(folder()).expect("the rules are there");
    listed
        .map(|it| it.expect("an entry").file_name())
        .map(|it| it.into_string().expect("our names are words"))
        .collect()
}

/// Every rule but those that say what the server owns.
fn rules() -> Vec<Rule> {
    let mut found = Vec::new();
    for file in files().iter().filter(|it| *it != "server-owns.yml") {
        let text = fs::read_to_string(folder().join(file)).expect("it can be read");
        let parsed: Value = serde_norway::from_str(&text).expect("promtool accepts it");
        let groups = parsed["groups"].as_array().into_iter().flatten();
        for rule in groups.flat_map(|it| it["rules"].as_array().into_iter().flatten()) {
            found.push(Rule {
                name: rule["alert"].as_str().expect("an alert").to_owned(),
                is_owned: rule["labels"]["owner"] == "server",
            });
        }
    }
    assert!(found.len() > 60, "only {} rules", found.len());
    found
}

/// These files in a hurry.
pub(crate) fn hurried(world: &World, files: &[String]) -> Vec<PathBuf> {
    let hurried = |name: &String| {
        let text = fs::read_to_string(folder().join(name)).expect("the rules are there");
        world.file(name, &in_a_hurry(&text))
    };
    files.iter().map(hurried).collect()
}

/// The same of the resources for Google Managed Prometheus, as its rule evaluator is given them.
pub(crate) fn hurried_managed(world: &World, files: &[String]) -> Vec<PathBuf> {
    let hurried = |name: &String| {
        let file = folder().with_file_name("gmp").join(name);
        let text = fs::read_to_string(file).expect("the resources are there");
        let mut resource: Value = serde_norway::from_str(&text).expect("it can be read");
        let groups = resource["spec"]["groups"].as_array_mut();
        let rules = groups
            .into_iter()
            .flatten()
            .flat_map(|it| it["rules"].as_array_mut());
        for rule in rules.flatten() {
            for (label, value) in MANAGED {
                rule["labels"][label] = value.into();
            }
        }
        let text = serde_norway::to_string(&resource["spec"]).expect("it can be written");
        world.file(&format!("managed-{name}"), &in_a_hurry(&text))
    };
    files.iter().map(hurried).collect()
}

/// Rules without the time that they wait, which would be minutes here; nothing else of them is changed but how long ago
/// something was, since when a server or its detectors stand still, or how long a machine has been up.
fn in_a_hurry(text: &str) -> String {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("for: "));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    text.replace("interval: 30s", "interval: 1s")
        .replace("offset 15m", "offset 30s")
        .replace(
            "gpufleet_server_heartbeat_timestamp_seconds) > 90",
            "gpufleet_server_heartbeat_timestamp_seconds) > 5",
        )
        .replace(
            "gpufleet_server_detect_last_timestamp_seconds) > 90",
            "gpufleet_server_detect_last_timestamp_seconds) > 2",
        )
        .replace(
            "gpufleet_node_uptime_seconds{origin=\"\"} > 600",
            "gpufleet_node_uptime_seconds{origin=\"\"} > 1",
        )
}

/// A node that tells nothing until everything of it breaks.
fn made(cluster: &'static str, is_broken: &Arc<AtomicBool>) -> String {
    let is_broken = Arc::clone(is_broken);
    let mut since = 0;
    made::node(move |_, now| {
        if !is_broken.load(Ordering::Relaxed) {
            return Latest::default();
        }
        since += 1;
        let scrape = since;
        broken(cluster, Moment { scrape, now })
    })
}

/// The cards of the real node before anything breaks: one is idle and held, one waits for nobody.
fn well() -> Scenario {
    let mut scenario = Scenario::of(8, MODEL, Load::Training);
    scenario.gpus[5].load = Load::Idle;
    scenario.gpus[5].processes = vec![Process {
        pid: std::process::id(),
        memory_mib: 1_000,
        sm_percent: 0,
        mig: None,
    }];
    scenario.gpus[6].load = Load::Deadlocked;
    scenario
}

fn ill() -> Scenario {
    let mut scenario = well();
    scenario.gpus[1].recovery_action = 1;
    scenario.gpus[1].remapped = [0, 0, 1, 1];
    scenario.gpus[2].ecc = [100, 1];
    scenario.gpus[2].sram = [0, 1, 0];
    scenario.gpus[3].throttle = 0x8;
    scenario.gpus[4].links_down = vec![0];
    scenario.faults = vec![
        Fault::of(0, FaultKind::Lost),
        Fault::of(3, FaultKind::NoPermission).in_function("nvmlDeviceGetTemperature"),
    ];
    let xid = |code| Xid {
        gpu: 7,
        code,
        after_s: None,
        mig: None,
    };
    scenario.xids = [79, 151, 95, 74, 54, 78].map(xid).into();
    scenario
}

/// The names of alerts that fired, once at least, on series that match.
fn fired(prometheus: &Peer, matching: &str) -> BTreeSet<String> {
    let comma = if matching.is_empty() { "" } else { "," };
    let ever = format!(
        "count by (alertname) (count_over_time(ALERTS{{alertstate=\"firing\"{comma}{matching}}}[30m]))"
    );
    let found = prometheus.query(&ever);
    found
        .iter()
        .map(|it| it.label("alertname").to_owned())
        .collect()
}

/// Waits until all of these have fired on series that match.
fn all_fire<'a>(prometheus: &Peer, matching: &str, names: impl Iterator<Item = &'a str> + Clone) {
    wait::until(
        &format!("every rule fires of {{{matching}}}"),
        LIMIT,
        || {
            let fired = fired(prometheus, matching);
            let quiet: Vec<&str> = names.clone().filter(|it| !fired.contains(*it)).collect();
            eprintln!("{{{matching}}}: {} have not fired: {quiet:?}", quiet.len());
            quiet.is_empty().then_some(())
        },
    );
}

/// Waits until one has fired.
fn rule_fires(prometheus: &Peer, name: &str) {
    all_fire(prometheus, "", [name].into_iter());
}

/// What a server answers with an error, and what it leaves out: rules about that fire while somebody asks for it.
fn fire_of_what_it_is_asked(prometheus: &Peer, server: &server::Server, world: &World) {
    let key = world.path("hook-key");
    let rules = ["GpufleetServerErrors", "GpufleetServerLosesData"];
    wait::until("the rules about errors and losses fire", LIMIT, || {
        // A channel whose key is gone for a moment cannot be tried.
        fs::remove_file(&key).expect("it was there");
        let tried = server.post("/api/v1/channels/hook/test", "{}");
        world.file("hook-key", SIGNING_KEY);
        assert_eq!(tried.status, 503, "{}", tried.text());
        // A machine whose clock is twenty minutes ahead.
        let ahead = otlp::now_nanos() + 1_200_000_000_000;
        otlp::send(server, &otlp::power(&[("GPU-ahead", 1.0, ahead)]));
        let fired = fired(prometheus, "");
        rules.iter().all(|it| fired.contains(*it)).then_some(())
    });
}

on_both_databases!(every_rule_fires_of_what_is_really_served_and_what_the_server_owns_holds_still_while_it_is_there);

fn every_rule_fires_of_what_is_really_served_and_what_the_server_owns_holds_still_while_it_is_there(
    world: World,
) {
    let [hook, deaf] =
        [(); 2].map(|()| Running::start(Service::Webhook(Webhook::new(SIGNING_KEY))));
    // A receiver that takes no message of ours is no reason for the rules to page: the other one does.
    deaf.mood(Mood::Says(413, "too large".to_owned()));
    let key = world.file("hook-key", SIGNING_KEY).display().to_string();
    let channel = |name: &str, it: &Running| {
        format!(
            "{{ name = '{name}', kind = 'webhook', urls = ['http://{}/x'], secret_file = '{key}' }}",
            it.address
        )
    };
    let channels = format!(
        "notify.channels=[{}, {}]",
        channel("hook", &hook),
        channel("deaf", &deaf)
    );
    // A disk of less than a gigabyte, and a service that watches the server and is not there: its job fails.
    let disk = SmallDisk::new(&world, "disk", 64);
    let nobody = format!("http://127.0.0.1:{}/beat", free_port());
    let beat = world.file("heartbeat-url", &nobody);
    let mut server = server::Place::new(&world)
        .with("fleet.commit_interval_s=1")
        .with(&format!("notify.heartbeat_file={}", beat.display()))
        .with("notify.heartbeat_every_s=10")
        .with(&channels);
    server.spool = disk.path().join("spool");
    let server = server.start();
    let endpoint = format!("http://{}", server.place.grpc);
    let often = "[sample]\nship_interval_seconds = 1";
    let place = agent::Place::new(&world, "node-1", &endpoint, often);
    place.show(&well());
    let leaving = agent::Place::new(&world, "node-2", &endpoint, often);
    leaving.show(&agent::gpus(2, 4));
    let leaves = leaving.start();
    let is_broken = Arc::new(AtomicBool::new(false));
    let mut agents = vec![
        place.listen.clone(),
        leaving.listen.clone(),
        made(HEARD, &is_broken),
        made(UNHEARD, &is_broken),
    ];
    // Three agents that never answer.
    agents.extend((0..3).map(|_| format!("127.0.0.1:{}", free_port())));
    let jobs = [
        ("gpufleet-agent", agents),
        ("gpufleet-server", vec![server.place.web.clone()]),
    ];
    let prometheus = Peer::prometheus_of(&world, SCRAPE_EVERY_S, &jobs, &hurried(&world, &files()));
    let is_known = |query: &str| {
        wait::until(query, LIMIT, || {
            (!prometheus.query(query).is_empty()).then_some(())
        });
    };
    // Some cards of the first node are idle or stalled from its start on: the server owns the cluster by then.
    is_known(&format!(
        "gpufleet:server_owns_alerts{{cluster=\"{HEARD}\"}}"
    ));
    let _agent = place.start();
    // What is to grow, or was up, has to be known before.
    is_known("gpufleet_gpu_ecc_corrected_volatile_total{node=\"node-1\"}");
    is_known("gpufleet_gpu_sram_uncorrected_volatile_total{node=\"node-1\"}");
    is_known("gpufleet_gpu_nvlink_up_flag{node=\"node-1\"} == 1");

    place.show(&ill());
    leaves.kill();
    is_broken.store(true, Ordering::Relaxed);
    let rules = rules();
    let is_here = |name: &str| name != "GpufleetServerGone" && !blind::RULES.contains(&name);
    let named = |is_owned: bool| {
        let all = rules.iter().filter(move |it| it.is_owned == is_owned);
        all.map(|it| it.name.as_str()).filter(|it| is_here(it))
    };
    let of = |cluster: &str| format!("cluster=\"{cluster}\"");
    all_fire(&prometheus, &of(UNHEARD), named(true));
    fire_of_what_it_is_asked(&prometheus, &server, &world);
    all_fire(&prometheus, "", named(false));
    // The node in the other cluster has told as much by now.
    let scrapes = |cluster: &str| {
        let count = format!(
            "count_over_time(gpufleet_agent_cpu_seconds_total{{cluster=\"{cluster}\", node=\"made-1\"}}[30m])"
        );
        prometheus.query(&count).first().map_or(0.0, |it| it.value)
    };
    let enough = scrapes(UNHEARD) + 1.0;
    wait::until("both made nodes were heard as often", LIMIT, || {
        (scrapes(HEARD) >= enough).then_some(())
    });
    let owned = format!("{}, owner=\"server\"", of(HEARD));
    assert_eq!(
        fired(&prometheus, &owned),
        BTreeSet::new(),
        "the server pages for them"
    );

    server.stop();
    all_fire(&prometheus, &of(HEARD), named(true));
    all_fire(&prometheus, "node=\"node-1\"", OF_THE_DRIVER.into_iter());
    rule_fires(&prometheus, "GpufleetServerGone");
}

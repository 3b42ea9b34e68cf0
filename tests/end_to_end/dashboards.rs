//! Every panel of the Grafana dashboards, asked of Debian's Prometheus that scrapes the real agent, the
//! real server, and a node of the test's own: it serves every metric of an agent, written by the
//! agent's own encoder, faults among them, and counters that grow. And the alert rules on the same: what
//! the server owns holds still while it is there, and fires when it is gone.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gpufleet_agent::prometheus::{PrometheusConfig, encode};
use gpufleet_agent::sample::{Latest, LatestResource, LatestValue};
use gpufleet_program::clock::SystemClock;
use gpufleet_standin_nvml::load::Load;
use gpufleet_standin_nvml::{Fault, FaultKind, Scenario};
use gpufleet_telemetry::catalog::{self, Kind, Metric, gpu};
use gpufleet_telemetry::identity::{Part, Resource, ResourceKind, attribute};
use gpufleet_telemetry::sample::Missing;
use gpufleet_telemetry::time::Clock;
use gpufleet_tests::harness::{World, agent, server, wait};
use gpufleet_tests::people::Service;
use gpufleet_tests::people::server::Running;
use gpufleet_tests::people::webhook::Webhook;
use serde_json::Value;

use crate::peers::Peer;

/// From the start of Prometheus until every panel has data: two scrapes for rates, a tick for the server.
const DATA_LIMIT: Duration = Duration::from_secs(120);

const SIGNING_KEY: &str = "s1gn1ng-key-of-the-webhook";

/// What Grafana puts in for the choices at the top when all is chosen, and for a rate's interval.
const CHOSEN: [(&str, &str); 8] = [
    ("$origin", "|live"),
    ("$cluster", ".*"),
    ("$node", ".*"),
    ("$gpu", ".*"),
    ("$job", ".*"),
    ("$attempt", ".*"),
    ("$endpoint", ".*"),
    ("$__rate_interval", "10s"),
];

/// Panels that must show the faults of the test's node, and not only something.
const FAULTS: [&str; 5] = [
    "XIDs in the last hour",
    "GPUs lost or hanging",
    "GPUs that ask for recovery",
    "Cards to replace",
    "Not finite, or skipped",
];

/// The alert that both GPUs deserve, the agent's and that of the test's own node.
const LOST: &str = "ALERTS{alertname=\"GpufleetGpuLost\", alertstate=\"firing\"";

/// A query of a panel.
struct Asked {
    panel: String,
    expr: String,
}

/// Every query of every panel that is never empty where all is well.
fn asked() -> Vec<Asked> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dashboards");
    let listed = fs::read_dir(folder).expect("the dashboards are there");
    let paths = listed.map(|it| it.expect("an entry").path());
    let mut found = Vec::new();
    for path in paths.filter(|it| it.extension().is_some_and(|it| it == "json")) {
        let text = fs::read_to_string(&path).expect("it can be read");
        let dashboard: Value = serde_json::from_str(&text).expect("it is JSON");
        for panel in dashboard["panels"].as_array().expect("panels") {
            let says = panel["description"].as_str().unwrap_or_default();
            if says.contains(" Empty where") {
                continue;
            }
            for target in panel["targets"].as_array().into_iter().flatten() {
                let expr = target["expr"].as_str().expect("a query").to_owned();
                let expr = CHOSEN
                    .iter()
                    .fold(expr, |expr, (name, value)| expr.replace(name, value));
                let panel = panel["title"].as_str().unwrap_or_default().to_owned();
                found.push(Asked { panel, expr });
            }
        }
    }
    assert!(found.len() > 100, "only {} queries", found.len());
    found
}

/// Everything an agent can tell, at its scrape of this number.
fn everything(scrape: u64, now_seconds: f64) -> Latest {
    let on_node = |kind, id: &str| {
        Resource::new(kind, id)
            .with(attribute::CLUSTER, "made")
            .with(attribute::NODE, "node-9")
    };
    let resources = [
        on_node(ResourceKind::Node, "node-9"),
        on_node(ResourceKind::Gpu, "GPU-made")
            .with(attribute::GPU_INDEX, "0")
            .with(attribute::GPU_MODEL, "NVIDIA H100 80GB HBM3"),
        on_node(ResourceKind::Rank, "a/llm/u/0/5")
            .with(attribute::JOB, "llm")
            .with(attribute::ATTEMPT, "0")
            .with(attribute::RANK, "5"),
        on_node(ResourceKind::Endpoint, "http://127.0.0.1:8000/metrics")
            .with(attribute::MODEL_NAME, "llama"),
    ];
    let values = |kind: ResourceKind| -> Vec<LatestValue> {
        catalog::all()
            .filter(|metric| metric.resource == kind && metric.kind != Kind::SecondBits)
            .map(|metric| LatestValue {
                metric: metric.id,
                part: metric.part.map(|kind| Part::new(kind, "5")),
                reading: reading(metric, scrape, now_seconds),
                at: Default::default(),
            })
            .collect()
    };
    let latest = resources.map(|resource| LatestResource {
        values: values(resource.kind),
        resource: Arc::new(resource),
    });
    Latest {
        resources: latest.into(),
        ..Latest::default()
    }
}

fn reading(metric: &Metric, scrape: u64, now_seconds: f64) -> Result<f64, Missing> {
    match metric.kind {
        _ if metric.id == gpu::THROTTLE_REASONS.id => Err(Missing::GpuLost),
        Kind::Counter => Ok(2.0 * scrape as f64),
        _ if metric.name.ends_with("_timestamp_seconds") => Ok(now_seconds),
        _ => Ok(1.0),
    }
}

/// A node that serves all that; the scrapes are answered one after the other.
fn made_node() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has one").to_string();
    std::thread::spawn(move || {
        let clock = SystemClock::start();
        for (scrape, stream) in (1..).zip(listener.incoming().flatten()) {
            let now = clock.now().millis() as f64 / 1e3;
            let text = encode(&everything(scrape, now), &PrometheusConfig::default());
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

/// The rules about GPUs and those that say what the server owns, evaluated each second and without
/// their waiting time, which would be minutes here.
fn hurried_rules(world: &World) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../alerts/rules");
    let hurried = |name: &str| {
        let text = fs::read_to_string(folder.join(name)).expect("the rules are there");
        let lines = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("for: "));
        let text: String = lines.flat_map(|line| [line, "\n"]).collect();
        world.file(name, &text.replace("interval: 30s", "interval: 1s"))
    };
    ["gpu.yml", "server-owns.yml"].map(hurried).into()
}

/// What a panel's query returns as numbers; nothing when one of them is none.
fn numbers(prometheus: &Peer, asked: &Asked) -> Vec<f64> {
    let values: Vec<f64> = prometheus
        .query(&asked.expr)
        .iter()
        .map(|it| it.value)
        .collect();
    if values.iter().any(|it| it.is_finite()) {
        values
    } else {
        Vec::new()
    }
}

fn scenario() -> Scenario {
    Scenario::of(2, "NVIDIA H100 80GB HBM3", Load::Training)
}

#[test]
fn every_panel_of_every_dashboard_returns_data_and_shows_the_faults_that_are_there() {
    let world = World::new();
    // Who tells nobody owns no alerts.
    let hook = Running::start(Service::Webhook(Webhook::new(SIGNING_KEY)));
    let key = world.file("hook-key", SIGNING_KEY).display().to_string();
    let channel = format!(
        "notify.channels=[{{ name = 'hook', kind = 'webhook', urls = ['http://{}/x'], secret_file = '{key}' }}]",
        hook.address
    );
    let server = server::Place::sqlite(&world)
        .with("fleet.commit_interval_s=1")
        .with(&channel)
        .start();
    let endpoint = format!("http://{}", server.place.grpc);
    let place = agent::Place::new(
        &world,
        "node-1",
        &endpoint,
        "[sample]\nship_interval_seconds = 1",
    );
    place.show(&scenario());
    let _agent = place.start();
    let jobs = [
        ("gpufleet-agent", vec![place.listen.clone(), made_node()]),
        ("gpufleet-server", vec![server.place.web.clone()]),
    ];
    let prometheus = Peer::prometheus_of(&world, &jobs, &hurried_rules(&world));
    let mut missing = asked();
    let all = missing.len();
    wait::until("every panel has data", DATA_LIMIT, || {
        missing.retain(|it| numbers(&prometheus, it).is_empty());
        let first: Vec<&str> = missing.iter().map(|it| it.expr.as_str()).take(5).collect();
        eprintln!(
            "{} of {all} queries return nothing yet: {first:?}",
            missing.len()
        );
        missing.is_empty().then_some(())
    });
    for panel in FAULTS {
        let of_panel: Vec<Asked> = asked().into_iter().filter(|it| it.panel == panel).collect();
        assert!(!of_panel.is_empty(), "{panel}: no such panel");
        wait::until(panel, DATA_LIMIT, || {
            let is_shown = |it: &Asked| numbers(&prometheus, it).iter().any(|it| *it > 0.0);
            of_panel.iter().all(is_shown).then_some(())
        });
    }
    server_owns_what_it_hears(&prometheus, &place, server);
}

/// Of two lost GPUs the server hears one: that one's alert holds still until the server is gone.
fn server_owns_what_it_hears(prometheus: &Peer, place: &agent::Place, server: server::Server) {
    let mut scenario = scenario();
    scenario.faults.push(Fault::of(1, FaultKind::Lost));
    place.show(&scenario);
    let is_lost = "gpufleet_agent_missing_reading_flag{cluster=\"test\", reason=\"gpu_lost\"}";
    let known = format!("max(count_over_time({is_lost}[1m])) > 3");
    let [told, owned] = ["made", "test"].map(|it| format!("{LOST}, cluster=\"{it}\"}}"));
    wait::until(
        "Prometheus has known of both for some rounds",
        DATA_LIMIT,
        || {
            let is_known = [&known, &told]
                .iter()
                .all(|it| !prometheus.query(it).is_empty());
            is_known.then_some(())
        },
    );
    let ever = prometheus.query(&format!("count_over_time({owned}[1m])"));
    assert!(ever.is_empty(), "the server pages for it: {ever:?}");
    server.stop();
    wait::until("the rule fires when the server is gone", DATA_LIMIT, || {
        (!prometheus.query(&owned).is_empty()).then_some(())
    });
}

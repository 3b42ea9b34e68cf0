//! Every panel of the Grafana dashboards, asked of Debian's Prometheus that scrapes the real agent, the
//! real server, and a node of the test's own: it serves every metric of an agent, written by the
//! agent's own encoder, faults among them, and counters that grow.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_agent::sample::{Latest, LatestResource, LatestValue};
use gpufleet_standin_nvml::Scenario;
use gpufleet_standin_nvml::load::Load;
use gpufleet_telemetry::catalog::{self, Kind, Metric, gpu};
use gpufleet_telemetry::identity::{Part, Resource, ResourceKind, attribute};
use gpufleet_telemetry::sample::Missing;
use gpufleet_tests::harness::{World, agent, server, wait};
use gpufleet_tests::people::Service;
use gpufleet_tests::people::server::Running;
use gpufleet_tests::people::webhook::Webhook;
use serde_json::Value;

use crate::peers::Peer;
use crate::{alerts, made};

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
    // A panel shows how people are told.
    let hook = Running::start(Service::Webhook(Webhook::new(SIGNING_KEY)));
    let key = world.file("hook-key", SIGNING_KEY).display().to_string();
    let channel = format!(
        "notify.channels=[{{ name = 'hook', kind = 'webhook', urls = ['http://{}/x'], secret_file = '{key}' }}]",
        hook.address
    );
    let server = server::Place::new(&world)
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
    let rules = alerts::hurried(
        &world,
        &["gpu.yml".to_owned(), "server-owns.yml".to_owned()],
    );
    let jobs = [
        (
            "gpufleet-agent",
            vec![place.listen.clone(), made::node(everything)],
        ),
        ("gpufleet-server", vec![server.place.web.clone()]),
    ];
    let prometheus = Peer::prometheus_of(&world, 2, &jobs, &rules);
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
}

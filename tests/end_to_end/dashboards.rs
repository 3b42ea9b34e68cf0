//! Every panel, every choice and every annotation of the Grafana dashboards, asked of Debian's Prometheus that
//! scrapes the real server, the real agent, which reads a stand-in for a model server, a simulated fleet for each
//! fault that a panel names, and a node of the test's own, which has all faults, written by the agent's own encoder.
//! A panel has data where one of the others has it: what only that node can show is listed by name in [`ONLY_MADE`].
//! Those for Google Managed Prometheus are asked of a second one, which scrapes the same as that does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gpufleet_agent::sample::{Latest, LatestResource, LatestValue};
use gpufleet_standin_nvml::Scenario;
use gpufleet_standin_nvml::load::Load;
use gpufleet_telemetry::catalog::{self, Kind, Metric, gpu, own};
use gpufleet_telemetry::identity::{Part, Resource, ResourceKind, attribute};
use gpufleet_telemetry::sample::Missing;
use gpufleet_tests::harness::simulator::{Simulator, steady_seeds};
use gpufleet_tests::harness::{World, agent, free_port, server, wait};
use gpufleet_tests::people::Service;
use gpufleet_tests::people::server::Running;
use gpufleet_tests::people::webhook::Webhook;
use serde::Deserialize;
use serde_json::Value;

use crate::peers::Peer;
use crate::{alerts, incidents, made};

mod choices;

use choices::Choice;

/// From the start of Prometheus until every panel has data: two scrapes for rates, a tick for the server.
const DATA_LIMIT: Duration = Duration::from_secs(120);

/// Until a fault is read, shipped, judged and scraped: the slowest is a run that stands still for so long that it
/// is none of its pauses. On a busy machine.
const FAULT_LIMIT: Duration = Duration::from_secs(400);

const SIGNING_KEY: &str = "s1gn1ng-key-of-the-webhook";

/// The fault of the test's own node, which has all of them, and its cluster.
const MADE: &str = "made";

/// A fleet of which nothing is heard any more.
const SILENT: &str = "silent";

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

/// The same for what is told by programs that there are: the real agent's cluster, those of the simulated fleets, and
/// the server, which is of none. Simulated counters move with their tick, every 10 s.
const REAL: [(&str, &str); 3] = [
    ("$origin", "|live|simulated"),
    ("$cluster", "test|.+-simulated|"),
    ("$__rate_interval", "40s"),
];

/// Metrics, or what else a query asks for, that no program tells here, with the reason: their panels have data of the
/// test's own node.
const ONLY_MADE: [(&str, &str); 6] = [
    (
        "parent!=\"\"",
        "no card of the stand-in or of a simulated fleet is cut into instances",
    ),
    (
        "gpufleet_gpu_xid_total",
        "there is no counter of an XID before one came, and no fleet is broken yet",
    ),
    (
        "gpufleet_training_evaluation_loss",
        "simulated runs do not evaluate",
    ),
    (
        "gpufleet_training_checkpoint_timestamp_seconds",
        "a simulated run tells of checkpoints once it saved one, which takes longer than this test waits",
    ),
    ("gpufleet_training_checkpoint_step", "the same"),
    (
        "gpufleet_training_checkpoint_save_failures_total",
        "the same",
    ),
];

/// What is asked of the second Prometheus, and must not be there: a series of ours with an `instance` of its own, or, of
/// the server's, with a `job` of its own. The queries for Google Managed Prometheus, and the rules, take these labels for the target's.
const NOT_OURS: [&str; 2] = [
    "{__name__=~\"gpufleet_.+\", exported_instance!=\"\"}",
    "{__name__=~\"gpufleet_server_.+\", __name__!~\"gpufleet_server_(job|incident)_.+\", exported_job!=\"\"}",
];

/// The dashboards of a folder: each with its file.
type Dashboards = Vec<(PathBuf, Value)>;

/// A query of a panel.
#[derive(Clone)]
struct Asked {
    panel: String,
    expr: String,
    says: Says,
    /// What its dashboard can be narrowed down to.
    choices: Vec<Choice>,
}

/// What the source of a panel says that Grafana does not need.
#[derive(Clone, Deserialize)]
struct Says {
    title: String,
    /// The fault that it shows.
    fault: Option<String>,
    /// With that a value is over this.
    #[serde(default)]
    over: f64,
    /// When it is empty although all is well.
    may_be_empty: Option<String>,
}

impl Asked {
    /// The query with what Grafana puts in.
    fn of(&self, chosen: &[(&str, &str)]) -> String {
        put_in(&self.expr, chosen)
    }

    /// The query as it is asked of what programs tell.
    fn of_programs(&self) -> String {
        self.of(&[&REAL[..], &CHOSEN].concat())
    }

    /// Whether it asks for what only the test's own node tells.
    fn is_only_made(&self) -> bool {
        ONLY_MADE
            .iter()
            .any(|(what, _why)| self.expr.contains(what))
    }

    /// The query as it is asked of the fleet that has the panel's fault, or of what is live: of what it takes one at a time,
    /// for each that is offered there.
    fn of_fault(&self, peer: &Peer) -> Vec<String> {
        let each = |cluster: &str, chosen: &[(&str, &str)]| {
            let queries = choices::each(&self.expr, &self.choices, (peer, cluster), chosen);
            queries.iter().map(|it| put_in(it, chosen)).collect()
        };
        let fault = self.says.fault.as_deref().unwrap_or(MADE);
        if fault == MADE {
            return each(MADE, &CHOSEN);
        }
        let cluster = cluster(fault);
        let mut chosen = CHOSEN;
        chosen[0].1 = "simulated";
        chosen[1].1 = &cluster;
        // A simulated counter moves with its tick, every 10 s.
        chosen[7].1 = "40s";
        each(&cluster, &chosen)
    }
}

/// A query with what Grafana puts in. Of what it takes one at a time, where none was put in before, all are asked for.
fn put_in(query: &str, chosen: &[(&str, &str)]) -> String {
    let query = query.replace("=\"$one_", "=~\"$");
    let query = query.replace("$one_", "$");
    let one = |query: String, (name, value): &(&str, &str)| query.replace(name, value);
    chosen.iter().fold(query, one)
}

/// The cluster of the fleet with a fault.
fn cluster(fault: &str) -> String {
    format!("{fault}-simulated")
}

/// Every query of every panel that asks Prometheus.
fn asked(dashboards: &Dashboards) -> Vec<Asked> {
    let mut found = Vec::new();
    for (path, dashboard) in dashboards {
        let panels = dashboard["panels"].as_array().expect("panels");
        let panels = panels.iter().filter(|it| it["type"] != "row");
        for (panel, says) in panels.zip(said(path)) {
            assert_eq!(panel["title"], says.title, "{}", path.display());
            let choices = choices::of(dashboard);
            let queries = panel["targets"].as_array().into_iter().flatten();
            found.extend(queries.filter_map(|it| {
                Some(Asked {
                    panel: format!("{}: {}", path.display(), says.title),
                    expr: it["expr"].as_str()?.to_owned(),
                    says: says.clone(),
                    choices: choices.clone(),
                })
            }));
        }
    }
    assert!(found.len() > 100, "only {} queries", found.len());
    found
}

/// The queries of annotations that ask for series, each once.
fn annotations(dashboards: &Dashboards) -> BTreeSet<String> {
    let lists = dashboards
        .iter()
        .flat_map(|(_, it)| it["annotations"]["list"].as_array());
    let queries = lists.flatten().filter_map(|it| it["expr"].as_str());
    let found: BTreeSet<String> = queries.map(str::to_owned).collect();
    assert!(!found.is_empty(), "no dashboard shows incidents");
    found
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dashboards")
}

/// Every dashboard of a folder with its file.
fn dashboards(folder: &Path) -> Dashboards {
    let listed = fs::read_dir(folder).expect("the dashboards are there");
    let paths = listed.map(|it| it.expect("an entry").path());
    let paths = paths.filter(|it| it.extension().is_some_and(|it| it == "json"));
    paths
        .map(|path| {
            let text = fs::read_to_string(&path).expect("it can be read");
            let dashboard = serde_json::from_str(&text).expect("it is JSON");
            (path, dashboard)
        })
        .collect()
}

/// What the source of a dashboard says of its panels, in their order.
fn said(path: &Path) -> Vec<Says> {
    #[derive(Deserialize)]
    struct Source {
        row: Vec<Row>,
    }
    #[derive(Deserialize)]
    struct Row {
        panel: Vec<Says>,
    }
    let name = path.file_stem().expect("a name").to_string_lossy();
    let source = folder().join(format!("source/{name}.toml"));
    let text = fs::read_to_string(source).expect("it has a source");
    let source: Source = toml::from_str(&text).expect("it can be read");
    source.row.into_iter().flat_map(|it| it.panel).collect()
}

/// Everything an agent can tell, at its scrape of this number.
fn everything(scrape: u64, now_seconds: f64) -> Latest {
    let on_node = |kind, id: &str| {
        Resource::new(kind, id)
            .with(attribute::CLUSTER, MADE)
            .with(attribute::NODE, "node-9")
    };
    let resources = [
        on_node(ResourceKind::Node, "node-9"),
        on_node(ResourceKind::Gpu, "GPU-made")
            .with(attribute::GPU_INDEX, "0")
            .with(attribute::GPU_MODEL, "NVIDIA H100 80GB HBM3"),
        on_node(ResourceKind::Share, "MIG-made")
            .with(attribute::GPU_INDEX, "0")
            .with(attribute::GPU_MODEL, "NVIDIA H100 80GB HBM3")
            .with(attribute::PARENT, "GPU-made")
            .with(attribute::MIG_PROFILE, "1g.10gb"),
        on_node(ResourceKind::Rank, "a/llm/u/0/5")
            .with(attribute::JOB, "a/llm/u")
            .with(attribute::ATTEMPT, "0")
            .with(attribute::RANK, "5"),
        on_node(ResourceKind::Endpoint, "http://127.0.0.1:8000/metrics")
            .with(attribute::MODEL_NAME, "llama"),
    ];
    let is_told = |metric: &Metric, kind: ResourceKind| match kind {
        ResourceKind::Share => gpu::shares_have(metric),
        _ => metric.resource == kind,
    };
    let values = |kind: ResourceKind| -> Vec<LatestValue> {
        catalog::all()
            .filter(|metric| is_told(metric, kind) && metric.kind != Kind::SecondBits)
            .map(|metric| LatestValue {
                metric: metric.id,
                part: metric.part.map(|kind| Part::new(kind, "5")),
                reading: reading(metric, scrape, now_seconds),
                at: Default::default(),
            })
            .collect()
    };
    let mut latest: Vec<_> = resources
        .map(|resource| LatestResource {
            values: values(resource.kind),
            resource: Arc::new(resource),
        })
        .into();
    // Its like, which has all its links.
    let like = on_node(ResourceKind::Gpu, "GPU-like")
        .with(attribute::GPU_INDEX, "1")
        .with(attribute::GPU_MODEL, "NVIDIA H100 80GB HBM3");
    latest.push(LatestResource {
        values: vec![LatestValue {
            metric: gpu::NVLINKS_ACTIVE.id,
            part: None,
            reading: Ok(18.0),
            at: Default::default(),
        }],
        resource: Arc::new(like),
    });
    Latest {
        resources: latest,
        ..Latest::default()
    }
}

fn reading(metric: &Metric, scrape: u64, now_seconds: f64) -> Result<f64, Missing> {
    match metric.kind {
        _ if metric.id == gpu::THROTTLE_REASONS.id => Err(Missing::GpuLost),
        // A card over its threshold has this beside it, and is to be replaced all the same.
        _ if metric.id == gpu::REMAP_FAILURE.id => Ok(0.0),
        _ if metric.id == own::READER_SUCCESS.id => Ok(0.0),
        Kind::Counter => Ok(2.0 * scrape as f64),
        _ if metric.name.ends_with("_timestamp_seconds") => Ok(now_seconds),
        _ => Ok(1.0),
    }
}

/// What a query returns as numbers; nothing when one of them is none.
fn numbers(prometheus: &Peer, query: &str) -> Vec<f64> {
    let values: Vec<f64> = prometheus.query(query).iter().map(|it| it.value).collect();
    if values.iter().any(|it| it.is_finite()) {
        values
    } else {
        Vec::new()
    }
}

fn scenario() -> Scenario {
    Scenario::of(2, "NVIDIA H100 80GB HBM3", Load::Training)
}

/// A fleet for each fault that a panel names, still well.
fn fleets(world: &World, server: &server::Server, asked: &[Asked]) -> BTreeMap<String, Simulator> {
    let named = asked.iter().filter_map(|it| it.says.fault.clone());
    let faults: BTreeSet<String> = named.filter(|it| it != MADE).collect();
    let endpoint = format!("http://{}", server.place.grpc);
    let start = |(fault, seed): (String, String)| {
        // Four nodes that train: of a fleet with more, some are idle.
        let cluster = cluster(&fault);
        let more = ["--nodes", "4", "--seed", &seed, "--cluster", &cluster];
        let fleet = Simulator::start_in(world, &fault, &endpoint, &more);
        (fault, fleet)
    };
    faults.into_iter().zip(steady_seeds()).map(start).collect()
}

/// That annotations mark the incidents of the fleets.
fn marks_incidents(prometheus: &Peer, dashboards: &Dashboards) {
    for query in annotations(dashboards) {
        let marks = put_in(&query, &[&[("$origin", "simulated")], &CHOSEN[..]].concat());
        assert!(
            !numbers(prometheus, &marks).is_empty(),
            "{query} marks nothing"
        );
    }
}

#[test]
fn every_panel_of_every_dashboard_returns_data_and_shows_the_faults_that_are_there() {
    let world = World::new();
    let all = [folder(), folder().join("gmp")].map(|it| dashboards(&it));
    let [asked, asked_managed] = all.each_ref().map(asked);
    // A panel shows how people are told.
    let hook = Running::start(Service::Webhook(Webhook::new(SIGNING_KEY)));
    let key = world.file("hook-key", SIGNING_KEY).display().to_string();
    let channel = format!(
        "notify.channels=[{{ name = 'hook', kind = 'webhook', urls = ['http://{}/x'], secret_file = '{key}' }}]",
        hook.address
    );
    let server = server::Place::new(&world)
        .with("fleet.commit_interval_s=1")
        .with("detect.hang_after_s=30")
        .with(&channel)
        .start();
    let mut fleets = fleets(&world, &server, &asked);
    let endpoint = format!("http://{}", server.place.grpc);
    let place = agent::Place::new(
        &world,
        "node-1",
        &endpoint,
        &format!(
            "[sample]\nship_interval_seconds = 1\n\n[[exporter.targets]]\nurl = \"http://{}/metrics\"\n\
             tables = [\"vllm\"]\nperiod_seconds = 1\ntimeout_ms = 1000\n",
            made::vllm()
        ),
    );
    place.show(&scenario());
    let _agent = place.start();
    let rules = ["gpu.yml".to_owned(), "server-owns.yml".to_owned()];
    let mut agents = vec![place.listen.clone(), made::node(everything)];
    // One that nobody reaches.
    agents.push(format!("127.0.0.1:{}", free_port()));
    agents.extend(fleets.values().map(|it| it.control.clone()));
    let jobs = [
        ("gpufleet-agent", agents),
        ("gpufleet-server", vec![server.place.web.clone()]),
    ];
    let prometheus = Peer::prometheus_of(&world, 2, &jobs, &alerts::hurried(&world, &rules));
    let of_managed = alerts::hurried_managed(&world, &rules);
    let managed = Peer::prometheus_managed(&world, 2, &jobs, &of_managed);
    let peers = [&prometheus, &managed];
    let asked: Vec<(&Peer, &Asked)> = asked
        .iter()
        .map(|it| (&prometheus, it))
        .chain(asked_managed.iter().map(|it| (&managed, it)))
        .collect();
    let mut missing = asked.clone();
    missing.retain(|(_, it)| it.says.may_be_empty.is_none());
    let count = missing.len();
    wait::until("every panel has data", DATA_LIMIT, || {
        missing.retain(|(peer, it)| {
            let is_there = |query: String| !numbers(peer, &query).is_empty();
            !(is_there(it.of_programs()) || it.is_only_made() && is_there(it.of(&CHOSEN)))
        });
        let first = missing.iter().map(|(_, it)| it.expr.as_str());
        let first: Vec<&str> = first.take(5).collect();
        eprintln!(
            "{} of {count} queries return nothing yet: {first:?}",
            missing.len()
        );
        missing.is_empty().then_some(())
    });
    for (peer, dashboards) in peers.into_iter().zip(&all) {
        choices::are_offered(peer, dashboards);
    }
    wait::until("the ranks of every fleet are compared", FAULT_LIMIT, || {
        let is_compared = |it: &String| incidents::compared(&server, &cluster(it)).is_some();
        fleets.keys().all(is_compared).then_some(())
    });
    fleets.remove(SILENT).expect("a panel names it").kill();
    for (fault, fleet) in &fleets {
        fleet.fault(fault);
    }
    let mut unseen = asked;
    unseen.retain(|(_, it)| it.says.fault.is_some());
    assert!(
        unseen.len() > 60,
        "only {} panels show faults",
        unseen.len()
    );
    wait::until("every fault is seen where it is shown", FAULT_LIMIT, || {
        unseen.retain(|(peer, it)| {
            let is_over = |value: &f64| *value > it.says.over;
            let mut queries = it.of_fault(peer).into_iter();
            !queries.any(|query| numbers(peer, &query).iter().any(is_over))
        });
        let first = unseen.iter().map(|(_, it)| it.panel.as_str());
        let first: Vec<&str> = first.take(9).collect();
        eprintln!("{} faults are not seen yet: {first:?}", unseen.len());
        unseen.is_empty().then_some(())
    });
    for (peer, dashboards) in peers.into_iter().zip(&all) {
        marks_incidents(peer, dashboards);
    }
    for query in NOT_OURS {
        let ours = managed.query(query);
        assert!(ours.is_empty(), "{query}: {:?}", ours.first());
    }
}

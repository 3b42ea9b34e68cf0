//! The real programs of others that ours must get along with: Prometheus, Alertmanager and
//! VictoriaMetrics.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use gpufleet_tests::harness::http::{self, Answer};
use gpufleet_tests::harness::process::Process;
use gpufleet_tests::harness::{World, free_port, later, wait};
use serde_json::Value;

const START_LIMIT: Duration = Duration::from_secs(90);

/// Where a cluster of GKE is, which Google Managed Prometheus says of every series that it scrapes there and of what every
/// rule gives. None of our clusters is called so.
pub(crate) const MANAGED: [(&str, &str); 4] = [
    ("project_id", "acme"),
    ("location", "europe-west4"),
    ("cluster", "gke-1"),
    ("namespace", "gpufleet"),
];

/// A program with Prometheus's query API.
pub(crate) struct Peer {
    pub(crate) address: String,
    _process: Process,
}

/// One series of an answer.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    labels: Value,
    pub(crate) value: f64,
}

impl Series {
    pub(crate) fn label(&self, name: &str) -> &str {
        self.labels[name].as_str().unwrap_or_default()
    }
}

impl Peer {
    /// Debian's Prometheus, scraping `target` every two seconds.
    pub(crate) fn prometheus(world: &World, target: &str) -> Self {
        Self::prometheus_of(world, 2, &[("gpufleet", vec![target.to_owned()])], &[])
    }

    /// The same at another pace, with jobs by name and their targets, our own labels kept, and files of rules.
    pub(crate) fn prometheus_of(
        world: &World,
        every_s: u32,
        jobs: &[(&str, Vec<String>)],
        rules: &[PathBuf],
    ) -> Self {
        let config = scraping(every_s, jobs, rules, "honor_labels: true", "{}");
        Self::prometheus_with("prometheus", world, &config, &[])
    }

    /// The same as Google Managed Prometheus does it: its labels say where a target is, and ours of those names are called
    /// `exported_…`.
    pub(crate) fn prometheus_managed(
        world: &World,
        every_s: u32,
        jobs: &[(&str, Vec<String>)],
        rules: &[PathBuf],
    ) -> Self {
        let labels = MANAGED.map(|(name, value)| format!("{name}: {value}"));
        let labels = format!("{{{}}}", labels.join(", "));
        let config = scraping(every_s, jobs, rules, "honor_labels: false", &labels);
        Self::prometheus_with("prometheus-managed", world, &config, &[])
    }

    /// Debian's Prometheus, that takes what is pushed to it and scrapes nothing.
    pub(crate) fn prometheus_receiving(world: &World) -> Self {
        let takes = ["--web.enable-remote-write-receiver"];
        Self::prometheus_with(
            "prometheus-receiving",
            world,
            "scrape_configs: []\n",
            &takes,
        )
    }

    fn prometheus_with(name: &str, world: &World, config: &str, more: &[&str]) -> Self {
        let config = world.file(&format!("{name}.yml"), config);
        let address = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                world.path(name).display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .args(more);
        Self::start(name, command, world, address, "/-/ready")
    }

    /// Debian's Alertmanager, that tells nobody.
    pub(crate) fn alertmanager(world: &World) -> Self {
        let config = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n";
        let config = world.file("alertmanager.yml", config);
        let address = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new("prometheus-alertmanager");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.path={}",
                world.path("alertmanager").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .arg("--cluster.listen-address=");
        Self::start("alertmanager", command, world, address, "/-/ready")
    }

    /// The alerts that an Alertmanager takes for active.
    pub(crate) fn alerts(&self) -> Vec<Value> {
        let answer = http::get(&self.address, "/api/v2/alerts?active=true");
        let answer = answer.expect("Alertmanager answers").json();
        answer.as_array().cloned().unwrap_or_default()
    }

    /// VictoriaMetrics that takes OTLP, empty.
    pub(crate) fn victoria(world: &World) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        let program = later("victoria-metrics").expect("scripts/setup.sh test fetches it");
        let mut command = Command::new(program);
        command
            .arg(format!(
                "-storageDataPath={}",
                world.path("victoria").display()
            ))
            .arg(format!("-httpListenAddr={address}"))
            .args(["-retentionPeriod=100y", "-search.latencyOffset=0s"]);
        Self::start("victoria-metrics", command, world, address, "/health")
    }

    fn start(name: &str, command: Command, world: &World, address: String, ready: &str) -> Self {
        let mut process = Process::start(name, command, &world.path(&format!("{name}.log")));
        wait::until(&format!("{name} is ready"), START_LIMIT, || {
            process.must_run();
            http::get(&address, ready)
                .ok()
                .filter(|it| it.status == 200)
        });
        Self {
            address,
            _process: process,
        }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        http::get(&self.address, path).expect("it was ready before")
    }

    /// What an instant query returns.
    pub(crate) fn query(&self, query: &str) -> Vec<Series> {
        let answer = self
            .get(&format!("/api/v1/query?query={}", percent_encoded(query)))
            .json();
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        let result = answer["data"]["result"].as_array().cloned();
        result
            .unwrap_or_default()
            .into_iter()
            .map(|series| Series {
                value: series["value"][1]
                    .as_str()
                    .and_then(|text| text.parse().ok())
                    .expect("Prometheus writes values as text"),
                labels: series["metric"].clone(),
            })
            .collect()
    }

    /// The values of a label among the series that match.
    pub(crate) fn label_values(&self, label: &str, matching: &str) -> Vec<String> {
        let path = format!(
            "/api/v1/label/{label}/values?match%5B%5D={}",
            percent_encoded(matching)
        );
        let answer = self.get(&path).json();
        let values = answer["data"].as_array().cloned().unwrap_or_default();
        values
            .iter()
            .filter_map(|value| value.as_str().map(str::to_owned))
            .collect()
    }
}

/// Prometheus' config with jobs by name and their targets, whose labels these are, and files of rules.
fn scraping(
    every_s: u32,
    jobs: &[(&str, Vec<String>)],
    rules: &[PathBuf],
    honor: &str,
    labels: &str,
) -> String {
    let mut config = format!(
        "global:\n  scrape_interval: {every_s}s\n  evaluation_interval: 1s\n\
         rule_files: {rules:?}\nscrape_configs:\n"
    );
    for (name, targets) in jobs {
        config.push_str(&format!(
            "  - job_name: {name}\n    {honor}\n    static_configs:\n      - targets: {targets:?}\n        \
             labels: {labels}\n"
        ));
    }
    config
}

/// For a query string.
pub(crate) fn percent_encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

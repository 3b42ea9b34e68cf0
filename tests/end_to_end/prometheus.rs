//! Debian's Prometheus scrapes the agent: dashboards made for dcgm-exporter work as they are.

use std::process::{Command, Stdio};
use std::time::Duration;

use gpufleet_standin_nvml::load::{self, Load, Values};
use gpufleet_standin_nvml::{Scenario, models};
use gpufleet_tests::harness::{World, agent, repository, server, wait};

use crate::peers::{Peer, Series};

const GPUS: u8 = 8;
const MODEL: &str = "NVIDIA H100 80GB HBM3";
/// The rates of GPM need two samples; the rest is there at once.
const FIRST_SCRAPE_LIMIT: Duration = Duration::from_secs(120);

/// Two ship intervals and the start.
const SHIPPED_LIMIT: Duration = Duration::from_secs(120);

/// A panel's query, and the scenario's value of it for one GPU.
type Panel = (&'static str, fn(&Values) -> f64);

/// The panels of dashboard 12239 and of Google's sample dashboard that show one line per GPU.
/// `$instance` and `$gpu` are filled in as Grafana does for "All".
const PANELS: &[Panel] = &[
    (
        "DCGM_FI_DEV_GPU_TEMP{instance=~\"$instance\", gpu=~\"$gpu\"}",
        |it| f64::from(it.temperature_c),
    ),
    (
        "DCGM_FI_DEV_POWER_USAGE{instance=~\"$instance\", gpu=~\"$gpu\"}",
        |it| f64::from(it.power_mw) / 1000.0,
    ),
    (
        "DCGM_FI_DEV_SM_CLOCK{instance=~\"$instance\", gpu=~\"$gpu\"} * 1000000",
        |it| f64::from(it.clock_mhz[0]) * 1e6,
    ),
    (
        "DCGM_FI_DEV_GPU_UTIL{instance=~\"$instance\", gpu=~\"$gpu\"}",
        |it| f64::from(it.gpu_percent),
    ),
    (
        "DCGM_FI_DEV_FB_USED{instance=~\"$instance\", gpu=~\"$gpu\"}",
        |it| framebuffer_used_mib(it),
    ),
    (
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance=~\"$instance\", gpu=~\"$gpu\"}",
        |it| it.gpm_percent[4] / 100.0,
    ),
    (
        "avg by (Hostname, modelName, gpu) (DCGM_FI_PROF_GR_ENGINE_ACTIVE)",
        |it| it.gpm_percent[0] / 100.0,
    ),
    (
        "avg by (Hostname, modelName, gpu) (DCGM_FI_PROF_DRAM_ACTIVE)",
        |it| it.gpm_percent[9] / 100.0,
    ),
    (
        "avg by (Hostname, modelName, gpu) (DCGM_FI_DEV_MEM_COPY_UTIL)",
        |it| f64::from(it.memory_percent),
    ),
];

fn scenario() -> Scenario {
    Scenario::of(GPUS, MODEL, Load::Training)
}

/// What the scenario's GPU in this slot must read.
fn expected(slot: u8) -> Values {
    let scenario = scenario();
    let model = models::by_name(MODEL);
    let at = scenario.time_s.expect("the scenario stands still");
    load::values(&scenario.gpus[usize::from(slot)], model, slot, at)
}

/// What of the memory without the driver's part is used, in whole MiB, as the stand-in tells it.
fn framebuffer_used_mib(values: &Values) -> f64 {
    let (total, reserved) = models::by_name(MODEL).memory_mib;
    let share = values.memory_used_mib as f64 / total as f64;
    ((total - reserved) as f64 * share).floor()
}

fn as_grafana_sends(query: &str) -> String {
    query.replace("$instance", ".+").replace("$gpu", ".+")
}

/// What a query returns, once it returns anything: a scrape that was late leaves nothing until the next.
fn answered(prometheus: &Peer, query: &str) -> Vec<Series> {
    wait::until(query, FIRST_SCRAPE_LIMIT, || {
        Some(prometheus.query(query)).filter(|it| !it.is_empty())
    })
}

#[test]
fn every_query_of_the_dcgm_dashboards_returns_one_series_per_gpu_with_its_value() {
    let world = World::new();
    let place = agent::Place::new(&world, "node-1", "", "");
    place.show(&scenario());
    let _agent = place.start();
    let prometheus = Peer::prometheus(&world, &place.listen);
    wait::until(
        "Prometheus has the profiling metrics",
        FIRST_SCRAPE_LIMIT,
        || {
            let series = prometheus.query("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE");
            (series.len() == usize::from(GPUS)).then_some(())
        },
    );
    for (query, value) in PANELS {
        let query = as_grafana_sends(query);
        let mut series = answered(&prometheus, &query);
        series.sort_by_key(|it| it.label("gpu").to_owned());
        let found: Vec<_> = series.iter().map(|it| it.label("gpu").to_owned()).collect();
        assert_eq!(found, ["0", "1", "2", "3", "4", "5", "6", "7"], "{query}");
        for (slot, series) in (0..GPUS).zip(&series) {
            near(series, value(&expected(slot)), &query);
        }
    }
    for (query, value) in [
        (
            "avg(DCGM_FI_DEV_GPU_TEMP)",
            mean(|it| f64::from(it.temperature_c)),
        ),
        (
            "sum(DCGM_FI_DEV_POWER_USAGE)",
            mean(|it| f64::from(it.power_mw) / 1000.0) * f64::from(GPUS),
        ),
    ] {
        let series = answered(&prometheus, query);
        assert_eq!(series.len(), 1, "{query}");
        near(&series[0], value, query);
    }
    let instances = prometheus.label_values("instance", "DCGM_FI_DEV_GPU_TEMP");
    assert_eq!(instances, [place.listen.as_str()]);
    assert_eq!(
        prometheus.label_values("gpu", "DCGM_FI_DEV_GPU_TEMP").len(),
        usize::from(GPUS)
    );
}

#[test]
fn a_live_scrape_has_every_default_name_of_dcgm_exporter_for_every_gpu() {
    let world = World::new();
    let place = agent::Place::new(&world, "node-1", "", "");
    place.show(&scenario());
    let agent = place.start();
    let facts = repository().join("telemetry/catalog/driver_facts.txt");
    let facts = std::fs::read_to_string(facts).expect("a file of the repository");
    let lines = facts.lines().filter_map(|it| it.strip_prefix("served "));
    let served: Vec<_> = lines.flat_map(str::split_whitespace).collect();
    assert_eq!(served.len(), 33);
    // Some are read in turns; the first round reads them all, and GPM's rates come with the second.
    wait::until("every name has one line a GPU", FIRST_SCRAPE_LIMIT, || {
        let text = agent.get("/metrics")?.text();
        let lines = |name: &str| {
            let start = format!("{name}{{gpu=");
            text.lines().filter(|it| it.starts_with(&start)).count()
        };
        served
            .iter()
            .all(|name| lines(name) == usize::from(GPUS))
            .then_some(())
    });
}

#[test]
fn promtool_has_nothing_to_say_about_our_own_names() {
    let world = World::new();
    let place = agent::Place::new(&world, "node-1", "", "");
    place.show(&scenario());
    let agent = place.start();
    let text = wait::until("the agent serves its metrics", FIRST_SCRAPE_LIMIT, || {
        agent
            .get("/metrics")
            .map(|answer| answer.text())
            .filter(|text| text.contains("gpufleet_gpu_tensor_active_ratio{"))
    });
    // dcgm-exporter's names break promtool's rules and cannot be changed: they are left out.
    let ours: String = text
        .lines()
        .filter(|line| !line.contains("DCGM_FI_"))
        .flat_map(|line| [line, "\n"])
        .collect();
    assert_eq!(promtool(&ours), "");
    agent.stop();
}

#[test]
fn promtool_has_nothing_to_say_about_the_servers_names() {
    let world = World::new();
    let server = server::Place::new(&world).start();
    let place = agent::Place::new(
        &world,
        "node-1",
        &format!("http://{}", server.place.grpc),
        "",
    );
    place.show(&scenario());
    let agent = place.start();
    let text = wait::until("the server serves the GPUs", SHIPPED_LIMIT, || {
        let text = server.get("/metrics").text();
        text.contains("gpu=\"GPU-5eed0001").then_some(text)
    });
    assert!(text.contains("gpufleet_server_"), "its own health as well");
    assert_eq!(promtool(&text), "");
    agent.stop();
    server.stop();
}

/// What `promtool check metrics` says.
fn promtool(text: &str) -> String {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool comes with Debian's prometheus");
    std::io::Write::write_all(
        promtool.stdin.as_mut().expect("its input is a pipe"),
        text.as_bytes(),
    )
    .expect("promtool reads its input");
    let output = promtool
        .wait_with_output()
        .expect("promtool ends at the end of its input");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

fn mean(value: fn(&Values) -> f64) -> f64 {
    (0..GPUS).map(|slot| value(&expected(slot))).sum::<f64>() / f64::from(GPUS)
}

fn near(series: &Series, expected: f64, query: &str) {
    // Percentages cross the driver's interface as whole numbers or as floats of their own width.
    let allowed = expected.abs() * 1e-6 + 1e-9;
    assert!(
        (series.value - expected).abs() <= allowed,
        "{query}: {series:?}, the scenario says {expected}"
    );
}

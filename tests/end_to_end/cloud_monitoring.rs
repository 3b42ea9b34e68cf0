//! Minutes of the record, written to Cloud Monitoring's strict stand-in by the real server, which is killed
//! while a request of it is taken and not answered.
//!
//! An hour of simulated history lies in the record; the cursor is set back by ten minutes, as if Cloud
//! Monitoring had been away for so long. What series are of is written of a real agent, whose node, pods and
//! machine are told by the stand-ins for kubelet, Kubernetes and metadata server.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use gpufleet_standin_nvml::load::Load;
use gpufleet_telemetry::time::{Minute, Timestamp};
use gpufleet_tests::harness::kubelet::{Given, Kubelet};
use gpufleet_tests::harness::kubernetes::{Kubernetes, TOKEN};
use gpufleet_tests::harness::{World, agent, free_port, server, wait};
use gpufleet_tests::on_both_databases;
use gpufleet_tests::people::Service;
use gpufleet_tests::people::cloud_monitoring::{CloudMonitoring, Point};
use gpufleet_tests::people::server::{Mood, Running};

use crate::exports::{GPUS, MISSED, record_history, set_back};

/// Ten minutes are written; a request that hangs is given up after ten seconds.
const WRITE_LIMIT: Duration = Duration::from_secs(180);
/// Requests until the first of the fourth minute: descriptors, one of the first minute, which has no counters
/// yet, two for each of the second and third, and that itself.
const BEFORE_THE_KILL: u64 = METRICS.len() as u64 + 1 + 2 + 2 + 1;
/// It has missed so many minutes fewer than others have: five seconds lie between one and the next.
const FEWER: i64 = 3;
/// What is written of each GPU: three gauges and a counter, in two requests a minute.
const METRICS: [&str; 4] = [
    "gpufleet_gpu_energy_joules_total",
    "gpufleet_gpu_memory_used_bytes",
    "gpufleet_gpu_power_watts",
    "gpufleet_gpu_temperature_celsius",
];

fn state(monitoring: &Running) -> CloudMonitoring {
    match monitoring.service() {
        Service::CloudMonitoring(it) => it,
        other => panic!("another service: {other:?}"),
    }
}

/// A server that writes these metrics to it.
fn writing_to(monitoring: &Running, place: server::Place, metrics: &[&str]) -> server::Place {
    place
        .with("cloud_monitoring.project=p-1")
        .with("cloud_monitoring.anonymous=true")
        .with(&format!(
            "cloud_monitoring.endpoint=http://{}",
            monitoring.address
        ))
        .with(&format!("cloud_monitoring.metrics={metrics:?}"))
}

/// The series of a metric.
fn series<'a>(
    of: &'a CloudMonitoring,
    metric: &'a str,
) -> impl Iterator<Item = (&'a String, &'a Vec<Point>)> {
    let all = of.series.iter();
    all.filter(move |(name, points)| name.contains(metric) && !points.is_empty())
}

/// Whether every GPU has a gauge's point for each of these minutes.
fn has(of: &CloudMonitoring, minutes: std::ops::Range<i64>) -> bool {
    let ends: BTreeSet<i64> = minutes.map(|it| Minute(it + 1).start().millis()).collect();
    let whole = series(of, "gpufleet_gpu_power_watts").filter(|(_, points)| {
        let found: BTreeSet<i64> = points.iter().map(|it| it.end).collect();
        ends.is_subset(&found)
    });
    whole.count() == GPUS
}

on_both_databases!(
    series_arrive_in_cloud_monitoring_with_no_rule_broken_over_a_kill_in_the_middle_of_a_request
);

fn series_arrive_in_cloud_monitoring_with_no_rule_broken_over_a_kill_in_the_middle_of_a_request(
    world: World,
) {
    let place = server::Place::new(&world);
    let first = record_history(&world, &place).0 + FEWER;
    set_back(&place, "cloud_monitoring", Minute(first));
    let monitoring = Running::start(Service::CloudMonitoring(CloudMonitoring::new("p-1")));
    let place = writing_to(&monitoring, place, &METRICS);

    // It takes what comes next and does not answer, while the server's doors stay open.
    monitoring.mood(Mood::Hangs);
    let server = place.start();
    let hangs = |what: &str, requests: u64| {
        wait::until(what, WRITE_LIMIT, || {
            (monitoring.requests() > requests).then_some(())
        });
    };
    hangs("the first descriptor hangs", 0);
    let gpus = server.get("/api/v1/gpus?limit=1").json();
    assert!(gpus["items"].is_array(), "{gpus}");
    // A killed server may have everything of the minute that is under way taken, and does not know it: here
    // the first of the two requests of the fourth minute.
    monitoring.mood_until(Mood::Well, BEFORE_THE_KILL, Mood::Hangs);
    let requests = monitoring.requests() + BEFORE_THE_KILL - 1;
    hangs("a request is taken and not answered", requests);
    let place = server.kill();
    let before = state(&monitoring);
    monitoring.mood(Mood::Well);
    let server = place.start();
    wait::until("all minutes are written", WRITE_LIMIT, || {
        has(&state(&monitoring), first..first + MISSED - FEWER - 2).then_some(())
    });
    let told = server.get("/metrics").text();
    let exports = server.get("/api/v1/exports").json();
    let log = server.output();
    server.stop();

    let after = state(&monitoring);
    assert_eq!(after.broken, [] as [String; 0], "no rule is broken");
    assert!(after.most <= 200, "{}", after.most);
    // What was taken and not answered comes again once, and none of the counters, which begin anew.
    let gauges = (GPUS * (METRICS.len() - 1)) as u64;
    assert_eq!(before.repeats, 0);
    assert!((1..=gauges).contains(&after.repeats), "{}", after.repeats);
    let again = after.messages.values().filter(|times| **times > 1);
    assert_eq!(again.copied().sum::<u64>(), 2 * after.repeats);
    assert_eq!(after.descriptors.len(), METRICS.len());
    for (name, points) in series(&after, "energy_joules_total") {
        // One start for each of the two servers, and each of them counts up.
        let starts: BTreeSet<i64> = points.iter().map(|it| it.start).collect();
        assert_eq!(starts.len(), 2, "{name}: {points:?}");
        assert!(
            points.iter().all(|it| it.value >= 0.0),
            "{name}: {points:?}"
        );
    }
    let counters = series(&after, "energy_joules_total").count();
    assert_eq!(counters, GPUS, "every counter is there");
    let places = after.series.keys();
    let of_node = places.filter(|it| it.contains("k8s_node") && it.contains("us-central1-a"));
    assert_eq!(
        of_node.count(),
        GPUS * METRICS.len(),
        "{:?}",
        after.series.keys().next()
    );
    for words in [
        "gpufleet_server_cloud_monitoring_samples_total{outcome=\"taken\"}",
        "gpufleet_server_cloud_monitoring_samples_total{outcome=\"refused\"} 0",
        "gpufleet_server_cloud_monitoring_month_usd",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let export = &exports[0];
    assert_eq!(export["name"], "cloud_monitoring", "{exports}");
    assert!(export["taken"].as_u64() > Some(0), "{exports}");
    assert!(export["month"]["usd"].is_number(), "{exports}");
    let again = &export["left_out"][0];
    assert_eq!(again["reason"], "sent_again", "{exports}");
    assert_eq!(again["points"], after.repeats, "{exports}");
    assert!(
        log.contains("4 metrics are written to Cloud Monitoring"),
        "{log}"
    );
}

#[test]
fn points_that_fail_for_now_are_written_again_in_order_and_each_metric_has_its_price() {
    let world = World::new();
    let place = server::Place::new(&world);
    let first = record_history(&world, &place).0 + FEWER;
    set_back(&place, "cloud_monitoring", Minute(first));
    let mut project = CloudMonitoring::new("p-1");
    // Each point of this node fails once.
    project
        .fails
        .insert("\"node\":\"demo-node-3\"".to_owned(), 1);
    let monitoring = Running::start(Service::CloudMonitoring(project));
    let server = writing_to(&monitoring, place, &METRICS).start();
    // What a month costs is that of the newest minute: those behind the history have no points.
    let (priced, page) = wait::until("each metric has its price", WRITE_LIMIT, || {
        let exports = server.get("/api/v1/exports").json();
        let page = server.get("/settings").text();
        let all = exports[0]["month"]["metrics"].as_array()?.len();
        (all == METRICS.len() && page.contains("at most 22.07 USD a month"))
            .then_some((exports, page))
    });
    wait::until("all minutes are written", WRITE_LIMIT, || {
        has(&state(&monitoring), first..first + MISSED - FEWER - 2).then_some(())
    });
    let exports = server.get("/api/v1/exports").json();
    server.stop();

    let written = state(&monitoring);
    assert_eq!(written.broken, [] as [String; 0], "no rule is broken");
    assert_eq!(written.repeats, 0, "only what failed comes again");
    let times: BTreeSet<u64> = written
        .messages
        .iter()
        .map(|(name, times)| match name.contains("demo-node-3") {
            true => *times,
            false => *times + 10,
        })
        .collect();
    assert!(times.is_subset(&BTreeSet::from([1, 2, 11])), "{times:?}");
    assert!(times.is_superset(&BTreeSet::from([2, 11])), "{times:?}");
    let export = &exports[0];
    assert!(export["failed"].as_u64() > Some(0), "{exports}");
    assert_eq!(export["refused"], 0, "{exports}");
    assert_eq!(export["left_out"], serde_json::json!([]), "{exports}");
    let metrics = priced[0]["month"]["metrics"].as_array().expect("a list");
    let names: BTreeSet<&str> = metrics
        .iter()
        .filter_map(|it| it["metric"].as_str())
        .collect();
    assert_eq!(names, BTreeSet::from(METRICS), "{priced}");
    for of in metrics {
        // 64 series × 43,800 minutes × 8 bytes = 22,425,600 bytes = 21.3867 MiB, at 0.258 USD each 5.5178.
        assert_eq!(of["series"], GPUS, "{of}");
        assert_eq!(of["bytes"], 22_425_600.0, "{of}");
        let usd = of["usd"].as_f64().expect("a price");
        assert!((usd - 5.5178).abs() < 0.0001, "{of}");
        let row = format!(
            "<tr><th scope=\"row\"><code>{}</code></th><td class=\"number\">64</td><td class=\"number\">21.39</td><td class=\"number\">5.52</td></tr>",
            of["metric"].as_str().expect("a name")
        );
        assert!(page.contains(&row), "{row} is not in {page}");
    }
}

/// The number of the machine, as Compute Engine gives it.
const INSTANCE: &str = "4520031799277581759";

/// The metadata server of a machine of Compute Engine; it stops with the runtime.
fn metadata_server() -> (String, tokio::runtime::Runtime) {
    async fn value(Path(what): Path<String>) -> Response {
        let value = match what.as_str() {
            "instance/id" => INSTANCE,
            "instance/machine-type" => "projects/1/machineTypes/a3-highgpu-8g",
            "instance/zone" => "projects/1/zones/us-central1-a",
            "instance/scheduling/preemptible" => "FALSE",
            "project/project-id" => "p-1",
            _ => return StatusCode::NOT_FOUND.into_response(),
        };
        ([("Metadata-Flavor", "Google")], value).into_response()
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a test may start a thread");
    let address = format!("127.0.0.1:{}", free_port());
    let listener = runtime.block_on(tokio::net::TcpListener::bind(&address));
    let listener = listener.expect("the port is free");
    let router = Router::new().route("/computeMetadata/v1/{*what}", get(value));
    runtime.spawn(async { axum::serve(listener, router).await });
    (format!("http://{address}"), runtime)
}

/// The points of a GPU's power, as a series of a resource of this type with these labels.
fn power_of(
    of: &CloudMonitoring,
    gpu: &str,
    resource: &str,
    labels: &[(&str, &str)],
) -> Vec<Point> {
    let resource = format!(" {resource}{{");
    let labels: Vec<String> = labels
        .iter()
        .map(|(name, value)| format!("\"{name}\":\"{value}\""))
        .collect();
    let of_power = series(of, "gpufleet_gpu_power_watts");
    let mut found = of_power.filter(|(name, _)| {
        let place = name.split_once(&resource).map(|it| it.1);
        let has = |place: &str| labels.iter().all(|it| place.contains(it));
        name.contains(gpu) && place.is_some_and(has)
    });
    found.next().map(|it| it.1.clone()).unwrap_or_default()
}

#[test]
fn series_are_of_containers_also_in_their_last_minute_of_machines_and_of_generic_nodes() {
    let world = World::new();
    let kubelet = Kubelet::start(&world.path("kubelet"));
    let api = Kubernetes::start();
    let zone = serde_json::json!({"topology.kubernetes.io/zone": "us-central1-a"});
    api.put_node("node-1", "gce://p-1/us-central1-a/node-1", &zone);
    let (metadata, _metadata) = metadata_server();
    let monitoring = Running::start(Service::CloudMonitoring(CloudMonitoring::new("p-1")));
    let place = server::Place::new(&world).with("fleet.commit_interval_s=2");
    let place = writing_to(&monitoring, place, &["gpufleet_gpu_power_watts"]);
    let of_containers = place
        .clone()
        .with("cloud_monitoring.resource=k8s_container");
    let server = of_containers.start();
    let config = format!(
        "[sample]\nship_interval_seconds = 1\n[exporter]\nauto = false\n\
         [attribute]\nperiod_seconds = 1\nkubelet_socket = \"{}\"\n\
         kubernetes_url = \"{}\"\nkubernetes_token_file = \"{}\"\n",
        kubelet.socket().display(),
        api.url(),
        world.file("token", TOKEN).display(),
    );
    let endpoint = format!("http://{}", server.place.grpc);
    let agent = agent::Place::new(&world, "node-1", &endpoint, &config);
    let node = "[node]\n";
    agent.replace_in_config(node, &format!("{node}metadata_server = \"{metadata}\"\n"));
    let mut scenario = agent::gpus(0, 2);
    scenario.gpus.iter_mut().for_each(|it| it.load = Load::Idle);
    agent.show(&scenario);
    let agent = agent.start();
    let gpus = wait::until("two GPUs are listed", WRITE_LIMIT, || {
        let listed = server.get("/api/v1/gpus?cluster=test").json();
        let all = listed["items"].as_array()?.iter();
        let all: Vec<String> = all
            .filter_map(|it| Some(it["id"].as_str()?.to_owned()))
            .collect();
        (all.len() == 2).then_some(all)
    });

    // A pod holds the first GPU for some seconds, and is gone a minute before that minute is written.
    let holder = || server.get(&format!("/api/v1/gpus/test/{}", gpus[0])).json()["holder"].clone();
    api.put_pod("node-1", ["ml", "train-0", "uid-1"], &serde_json::json!({}));
    kubelet.show(&[Given::gpus("ml", "train-0", &[&gpus[0]])]);
    let since = wait::until("the pod holds it", WRITE_LIMIT, || {
        (holder()["name"] == "pod:ml/train-0").then(wait::unix_seconds)
    });
    // Long enough for the server to look who holds what, and for the minute to be one in which it held it.
    let now = wait::until("it held it for a while", WRITE_LIMIT, || {
        let now = wait::unix_seconds();
        (now > since + 12 && now.rem_euclid(60) >= 5).then_some(now)
    });
    let last = Timestamp::from_seconds(now).minute();
    api.delete_pod("uid-1");
    kubelet.show(&[]);
    wait::until("nobody holds it", WRITE_LIMIT, || {
        holder()["name"].is_null().then_some(())
    });
    let of_node = [
        ("cluster_name", "test"),
        ("location", "us-central1-a"),
        ("node_name", "node-1"),
    ];
    let of_pod = [
        ("cluster_name", "test"),
        ("location", "us-central1-a"),
        ("namespace_name", "ml"),
        ("pod_name", "train-0"),
        ("container_name", "main"),
    ];
    wait::until("its last minute is of its container", WRITE_LIMIT, || {
        let ends = power_of(&state(&monitoring), &gpus[0], "k8s_container", &of_pod);
        let end = Minute(last.0 + 1).start().millis();
        ends.iter().any(|it| it.end == end).then_some(())
    });
    wait::until("the other GPU's is of the node", WRITE_LIMIT, || {
        let points = power_of(&state(&monitoring), &gpus[1], "k8s_node", &of_node);
        (!points.is_empty()).then_some(())
    });
    let containers = state(&monitoring);
    let of_container = containers.series.keys();
    let of_container = of_container.filter(|it| it.contains("k8s_container"));
    assert_eq!(of_container.count(), 1, "{:?}", containers.series.keys());

    // The same minutes of a machine, and of a node that is in no such place.
    let generic = [
        ("location", "us-central1-a"),
        ("namespace", "test"),
        ("node_id", "node-1"),
    ];
    let machine = [("zone", "us-central1-a"), ("instance_id", INSTANCE)];
    let asked = [
        ("gce_instance", "gce_instance", machine.as_slice()),
        ("generic", "generic_node", &generic),
    ];
    server.stop();
    for (resource, kind, labels) in asked {
        set_back(&place, "cloud_monitoring", last);
        let key = format!("cloud_monitoring.resource={resource}");
        let server = place.clone().with(&key).start();
        wait::until("minutes are of what is asked for", WRITE_LIMIT, || {
            let found = state(&monitoring);
            let has = |gpu: &String| !power_of(&found, gpu, kind, labels).is_empty();
            gpus.iter().all(has).then_some(())
        });
        server.stop();
    }
    agent.stop();
    let broken = state(&monitoring).broken;
    assert_eq!(broken, [] as [String; 0], "no rule is broken");
    assert_eq!(api.refused(), [].into(), "asked what nobody may ask");
}

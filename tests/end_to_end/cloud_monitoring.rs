//! Minutes of the record, written to Cloud Monitoring's strict stand-in by the real server, which is killed
//! while a request of it is taken and not answered.
//!
//! An hour of simulated history lies in the record; the cursor is set back by ten minutes, as if Cloud
//! Monitoring had been away for so long.

use std::collections::BTreeSet;
use std::time::Duration;

use gpufleet_telemetry::time::Minute;
use gpufleet_tests::harness::{World, server, wait};
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
    let first = record_history(&world, &place).0;
    set_back(&place, "cloud_monitoring", Minute(first));
    let monitoring = Running::start(Service::CloudMonitoring(CloudMonitoring::new("p-1")));
    let place = [
        "cloud_monitoring.project=p-1".to_owned(),
        "cloud_monitoring.anonymous=true".to_owned(),
        format!("cloud_monitoring.endpoint=http://{}", monitoring.address),
        format!("cloud_monitoring.metrics={METRICS:?}"),
    ]
    .iter()
    .fold(place, |place, key| place.with(key));

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
        has(&state(&monitoring), first..first + MISSED - 2).then_some(())
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
    assert!(
        log.contains("4 metrics are written to Cloud Monitoring"),
        "{log}"
    );
}

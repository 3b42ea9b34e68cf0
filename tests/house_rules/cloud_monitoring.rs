//! The dashboard and alert policies of `deploy/cloud-monitoring/`: what they ask for is what the server writes when
//! nothing else is chosen, by names, labels and aligners that Cloud Monitoring has for it.

use std::fs;

use gpufleet_server::export::CloudMonitoringConfig;
use gpufleet_server::export::cloud_monitoring::descriptor;
use gpufleet_telemetry::catalog::{self, Kind, Metric, gpu};
use serde_json::Value;

use super::tree::{none, root};

mod forms;

use forms::{DASHBOARD, Form, POLICY};

/// Columns of a dashboard.
const COLUMNS: u64 = 48;

/// Aligners of what only grows, and of what goes up and down.
const OF_COUNTERS: [&str; 2] = ["ALIGN_RATE", "ALIGN_DELTA"];
const OF_GAUGES: [&str; 3] = ["ALIGN_MEAN", "ALIGN_MAX", "ALIGN_MIN"];

/// What leaves instances of a card out: they have no `gpu`.
const OF_CARDS: &str = " metric.label.\"gpu\"=monitoring.regex.full_match(\".+\")";

/// The files by name.
fn files() -> Vec<(String, Value)> {
    let folder = root().join("deploy/cloud-monitoring");
    let alerts = fs::read_dir(folder.join("alerts")).expect("the folder is there");
    let alerts = alerts.map(|it| it.expect("it can be listed").path());
    let all = alerts.chain([folder.join("dashboard.json")]);
    all.map(|path| {
        let text = fs::read_to_string(&path).expect("it can be read");
        let read = serde_json::from_str(&text);
        let read = read.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path.display().to_string(), read)
    })
    .collect()
}

/// Every object in it that has a filter: the filter, and the aggregations beside it.
fn asked<'a>(of: &'a Value, found: &mut Vec<(&'a str, Vec<&'a Value>)>) {
    if let Some(filter) = of["filter"].as_str() {
        let many = of["aggregations"].as_array().into_iter().flatten();
        let one = of.get("aggregation");
        found.push((filter, many.chain(one).collect()));
    }
    let inner: Vec<&Value> = match of {
        Value::Object(all) => all.values().collect(),
        Value::Array(all) => all.iter().collect(),
        _ => Vec::new(),
    };
    for it in inner {
        asked(it, found);
    }
}

/// The labels of the metric that a filter or grouping names.
fn labels(text: &str) -> impl Iterator<Item = &str> {
    let named = text.split("metric.label.\"").skip(1);
    named.filter_map(|it| it.split('"').next())
}

/// What is wrong with a query; nothing when it asks for what is written.
fn wrong(filter: &str, aggregations: &[&Value]) -> Option<String> {
    let config = CloudMonitoringConfig::default();
    let written = |it: &Metric| {
        format!(
            "metric.type=\"{}\" ",
            descriptor::type_name(it, &config.prefix)
        )
    };
    let metric = catalog::all().find(|it| filter.starts_with(&written(it)));
    let Some(metric) = metric.filter(|it| config.metrics.iter().any(|name| name == it.name)) else {
        return Some("no metric that is written by default".to_owned());
    };
    if !filter.contains(" resource.type=\"k8s_node\" ") {
        return Some("not the resource that is written by default".to_owned());
    }
    if !filter.contains("metric.label.\"origin\"=\"live\"") {
        return Some("what is recorded or simulated is in it".to_owned());
    }
    if gpu::shares_have(metric) && !filter.contains(OF_CARDS) {
        return Some("instances of a card are in it beside the card".to_owned());
    }
    let aligners: &[&str] = match metric.kind {
        Kind::Counter => &OF_COUNTERS,
        Kind::Gauge | Kind::Last | Kind::SecondBits => &OF_GAUGES,
    };
    for it in aggregations {
        let aligner = it["perSeriesAligner"].as_str().unwrap_or_default();
        if !aligners.contains(&aligner) {
            return Some(format!("{aligner} of {}", metric.name));
        }
        let period = it["alignmentPeriod"]
            .as_str()
            .and_then(|it| it.strip_suffix('s'));
        if period
            .and_then(|it| it.parse::<u64>().ok())
            .is_none_or(|it| it < 60)
        {
            return Some("points come once a minute".to_owned());
        }
    }
    let groups = aggregations
        .iter()
        .flat_map(|it| it["groupByFields"].as_array())
        .flatten();
    let groups = groups.filter_map(Value::as_str).flat_map(labels);
    let known = descriptor::labels(metric);
    let unknown = labels(filter).chain(groups).find(|it| !known.contains(it));
    let unknown = unknown.map(|it| format!("{} has no label {it}", metric.name));
    unknown.or_else(|| aggregations.is_empty().then(|| "no aligner".to_owned()))
}

#[test]
fn dashboard_and_policies_ask_for_what_is_written_by_default() {
    let (mut count, mut broken) = (0, Vec::new());
    for (file, read) in files() {
        let mut found = Vec::new();
        asked(&read, &mut found);
        assert!(!found.is_empty(), "{file} asks for nothing");
        count += found.len();
        let judged = found.iter();
        let judged = judged.filter_map(|(filter, all)| Some((filter, wrong(filter, all)?)));
        broken.extend(judged.map(|(filter, why)| format!("{file}: {why}: {filter}")));
    }
    assert!(count > 8, "only {count} queries");
    none("Cloud Monitoring has what is asked for", &broken);
}

#[test]
fn dashboard_and_policies_have_the_fields_and_names_of_the_api_and_each_condition_one_kind() {
    let mut wrong = Vec::new();
    for (file, read) in files() {
        let form = match file.ends_with("dashboard.json") {
            true => DASHBOARD,
            false => POLICY,
        };
        wrong.extend(Form::wrong(form, &read, &file));
        for it in read["conditions"].as_array().into_iter().flatten() {
            let kinds = it.as_object().expect("it has fields").len() - 1;
            let says = || format!("{file}: {} is of {kinds} kinds", it["displayName"]);
            wrong.extend((kinds != 1).then(says));
        }
    }
    none("Cloud Monitoring takes the files", &wrong);
}

#[test]
fn a_query_that_would_find_nothing_is_found() {
    let good = "metric.type=\"custom.googleapis.com/gpufleet_gpu_power_watts\" resource.type=\"k8s_node\" metric.label.\"origin\"=\"live\"";
    let mean = serde_json::json!({"perSeriesAligner": "ALIGN_MEAN", "alignmentPeriod": "60s"});
    assert_eq!(wrong(good, &[&mean]), None);
    let memory = good.replace("power_watts", "memory_used_bytes");
    assert_eq!(wrong(&format!("{memory}{OF_CARDS}"), &[&mean]), None);
    let bad = |filter: &str, of: &Value| assert!(wrong(filter, &[of]).is_some(), "{filter} {of}");
    bad(&good.replace("power_watts", "power_watt"), &mean);
    bad(&good.replace("power_watts", "sm_clock_hertz"), &mean);
    bad(&good.replace("k8s_node", "global"), &mean);
    bad(&memory, &mean);
    bad(&good.replace("origin", "gpu"), &mean);
    bad(&format!("{good} metric.label.\"pod\"=\"x\""), &mean);
    bad(
        good,
        &serde_json::json!({"perSeriesAligner": "ALIGN_RATE", "alignmentPeriod": "60s"}),
    );
    bad(
        good,
        &serde_json::json!({"perSeriesAligner": "ALIGN_MEAN", "alignmentPeriod": "10s"}),
    );
    let grouped = serde_json::json!({"perSeriesAligner": "ALIGN_MEAN", "alignmentPeriod": "60s",
        "groupByFields": ["metric.label.\"pod\""]});
    bad(good, &grouped);
}

#[test]
fn tiles_lie_beside_each_other() {
    let (_, dashboard) = files().pop().expect("the dashboard is the last");
    let tiles = dashboard["mosaicLayout"]["tiles"]
        .as_array()
        .expect("tiles");
    let span = |tile: &Value, at: &str, size: &str| {
        let at = tile[at].as_u64().expect("a place");
        at..at + tile[size].as_u64().expect("a size")
    };
    let meet =
        |a: &std::ops::Range<u64>, b: &std::ops::Range<u64>| a.start < b.end && b.start < a.end;
    for (index, tile) in tiles.iter().enumerate() {
        let (across, down) = (span(tile, "xPos", "width"), span(tile, "yPos", "height"));
        assert!(across.end <= COLUMNS, "{tile}");
        assert!(tile["widget"]["title"].is_string(), "{tile}");
        for other in &tiles[..index] {
            let is_over = meet(&across, &span(other, "xPos", "width"))
                && meet(&down, &span(other, "yPos", "height"));
            assert!(!is_over, "{tile} lies over {other}");
        }
    }
}

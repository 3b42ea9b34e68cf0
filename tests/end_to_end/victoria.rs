//! The agent's own OTLP, kept by VictoriaMetrics: eight GPUs are eight series.
//!
//! Debian's VictoriaMetrics (1.79) is older than its OTLP receiver (1.92). So the test receives the
//! agent's requests as a Collector would and hands the points on, labelled by the two rules in use:
//! VictoriaMetrics's (every resource attribute and every point attribute is a label) and
//! Prometheus's (of the resource only service.name and service.instance.id).

use std::collections::BTreeMap;
use std::time::Duration;

use gpufleet_standin_nvml::Scenario;
use gpufleet_standin_nvml::load::Load;
use gpufleet_tests::harness::{World, agent, http, wait};
use gpufleet_tests::receiver::Receiver;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{metric, number_data_point};
use serde_json::json;

use crate::peers::Peer;

const GPUS: u8 = 8;
/// Two ship intervals and the start.
const FIRST_TICK_LIMIT: Duration = Duration::from_secs(40);
/// How long VictoriaMetrics may take to find a new series.
const INDEX_LIMIT: Duration = Duration::from_secs(20);

#[test]
fn eight_gpus_are_eight_series_by_either_rule_of_labels() {
    let world = World::new();
    let receiver = Receiver::start();
    let place = agent::Place::new(&world, "node-1", &receiver.endpoint(), "");
    place.show(&Scenario::of(GPUS, "NVIDIA H100 80GB HBM3", Load::Training));
    let _agent = place.start();
    let requests = wait::until(
        "the agent ships a tick with its GPUs",
        FIRST_TICK_LIMIT,
        || {
            let requests = receiver.metrics();
            let has_gpus = requests
                .iter()
                .any(|it| format!("{it:?}").contains("hw.gpu.utilization"));
            has_gpus.then_some(requests)
        },
    );
    let victoria = Peer::victoria(&world);
    for (rule, keeps) in [
        ("victoria", (|_| true) as fn(&str) -> bool),
        ("prometheus", |name| {
            matches!(name, "service.name" | "service.instance.id")
        }),
    ] {
        let lines: String = requests
            .iter()
            .flat_map(|request| points(request, rule, keeps))
            .collect();
        let answer = http::post(&victoria.address, "/api/v1/import", &[], lines.as_bytes())
            .expect("VictoriaMetrics answers");
        assert_eq!(answer.status, 204, "{}", answer.text());
        for name in ["hw.gpu.utilization", "hw.power", "hw.energy"] {
            let query = format!(
                "count(last_over_time({{__name__=\"{name}\", rule=\"{rule}\"}}[10m])) by (task)"
            );
            // A flush makes samples readable at once, but the index of new series only within a
            // second or so: ask until they are there.
            let what = format!("VictoriaMetrics has {GPUS} series of {name} by {rule}");
            wait::until(&what, INDEX_LIMIT, || {
                victoria.get("/internal/force_flush");
                let counts: Vec<_> = victoria.query(&query).iter().map(|it| it.value).collect();
                let all = !counts.is_empty() && counts.iter().all(|it| *it == f64::from(GPUS));
                all.then_some(())
            });
        }
    }
}

/// The points of a request as lines of VictoriaMetrics's import format.
fn points(
    request: &ExportMetricsServiceRequest,
    rule: &str,
    keeps: fn(&str) -> bool,
) -> Vec<String> {
    let mut lines = Vec::new();
    for resource_metrics in &request.resource_metrics {
        let resource = resource_metrics.resource.clone().unwrap_or_default();
        let labels: BTreeMap<String, String> = texts(&resource.attributes)
            .filter(|(name, _)| keeps(name))
            .collect();
        for metric in resource_metrics
            .scope_metrics
            .iter()
            .flat_map(|it| &it.metrics)
        {
            let points = match &metric.data {
                Some(metric::Data::Gauge(gauge)) => &gauge.data_points,
                Some(metric::Data::Sum(sum)) => &sum.data_points,
                _ => continue,
            };
            for point in points {
                let value = match point.value {
                    Some(number_data_point::Value::AsDouble(value)) => value,
                    Some(number_data_point::Value::AsInt(value)) => value as f64,
                    None => continue,
                };
                let mut series = labels.clone();
                series.extend(texts(&point.attributes));
                let task = series.get("hw.gpu.task").cloned().unwrap_or_default();
                series.insert("task".to_owned(), task);
                series.insert("rule".to_owned(), rule.to_owned());
                series.insert("__name__".to_owned(), metric.name.clone());
                let millis = point.time_unix_nano / 1_000_000;
                let line = json!({"metric": series, "values": [value], "timestamps": [millis]});
                lines.push(format!("{line}\n"));
            }
        }
    }
    lines
}

fn texts(attributes: &[KeyValue]) -> impl Iterator<Item = (String, String)> {
    attributes
        .iter()
        .filter_map(|it| match it.value.as_ref()?.value.as_ref()? {
            any_value::Value::StringValue(text) => Some((it.key.clone(), text.clone())),
            any_value::Value::IntValue(number) => Some((it.key.clone(), number.to_string())),
            _ => None,
        })
}

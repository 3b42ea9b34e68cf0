//! Dashboards for Google Managed Prometheus, which keeps some labels for itself: series have their own `cluster`, `job`
//! and `namespace` as `exported_cluster` and so on. They are the same dashboards, under the same uids, that ask by those.

use serde_json::Value;

use super::promql::{TAKEN, named, renamed};
use super::{answers, dashboards, generate, query_of, variables};

/// The dashboard for it.
pub(super) fn dashboard(mut made: Value) -> Value {
    rename(&mut made);
    let panels = made.get_mut("panels").and_then(Value::as_array_mut);
    for panel in panels.into_iter().flatten() {
        if is_foreign(&panel["targets"][0]) {
            continue;
        }
        // A table's columns of the target say where the scraper found it, beside our own of like names.
        let hidden = panel.pointer_mut("/transformations/0/options/excludeByName");
        if let Some(hidden) = hidden.and_then(Value::as_object_mut) {
            hidden.extend(TAKEN.map(|it| (it.to_owned(), true.into())));
        }
    }
    made
}

/// Whether something asks for series that are not gpufleet's, such as Prometheus' alerts.
fn is_foreign(asks: &Value) -> bool {
    let asked = asks.get("expr").and_then(Value::as_str);
    asked.is_some_and(|it| !it.contains("gpufleet_"))
}

fn rename(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(rename),
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) => *text = put(name, text),
                    other => rename(other),
                }
            }
        }
        _ => {}
    }
}

/// The text of a field of Grafana's with the labels' names as they are there.
fn put(field: &str, text: &str) -> String {
    match field {
        "expr" => renamed(text),
        // The other queries of this name are SQL, or no query.
        "query" | "definition" if text.starts_with("label_values(") => renamed(text),
        "legendFormat" | "titleFormat" | "textFormat" => named(text, &TAKEN, "{{", "}}"),
        "url" => named(text, &TAKEN, "${__data.fields.", "}"),
        _ => text.to_owned(),
    }
}

#[test]
fn series_that_it_scraped_are_told_apart_by_their_own_cluster_and_job() {
    // As its collector leaves them: `cluster`, `job` and `namespace` are those of the target.
    let target = "project_id='p', location='eu', cluster='gke', namespace='gpufleet'";
    let of_job = |job: &str, rank: u32| {
        format!(
            "gpufleet_training_step_busy_seconds_total{{{target}, job='gpufleet-agent', exported_cluster='c', exported_job='{job}', attempt='0', rank='{rank}'}}"
        )
    };
    let (first, second) = (of_job("a", 0), of_job("b", 0));
    let series = [(first.as_str(), "1x9"), (second.as_str(), "1x9")];
    let query = query_of("collectives", "Stragglers");
    assert_eq!(answers(&renamed(&query), &series, 5, None), None);
    let mixed = answers(&query, &series, 5, Some(("{}", 0.0)));
    assert_eq!(mixed, None, "two runs would be taken for one");

    let power = format!("gpufleet_gpu_power_watts{{{target}, exported_cluster='c', gpu='0'}}");
    let query = query_of("fleet", "Power");
    let expected = Some(("{exported_cluster=\"c\"}", 300.0));
    let wrong = answers(&renamed(&query), &[(power.as_str(), "300x9")], 5, expected);
    assert_eq!(wrong, None);
}

#[test]
fn choices_legends_and_links_go_by_our_own_labels_there_and_sql_does_not() {
    let made = |name: &str| dashboard(generate::dashboard(&dashboards()[name], &variables()));
    let fleet = made("fleet").to_string();
    for part in [
        "\"label_values(gpufleet_node_uptime_seconds{from=\\\"\\\", origin=~\\\"$origin\\\"}, exported_cluster)\"",
        "\"legendFormat\":\"{{exported_cluster}}\"",
        "var-one_cluster=${__data.fields.exported_cluster}&var-one_node=${__data.fields.node}",
        "\"textFormat\":\"{{exported_cluster}} {{node}} {{gpu}} {{exported_job}} {{rank}} {{team}}\"",
        // Alerts of the rules in alerts/gmp.
        "\"textFormat\":\"{{exported_cluster}} {{node}} {{gpu}} {{exported_job}}\"",
    ] {
        assert!(fleet.contains(part), "{part}");
    }
    let (here, there) = (
        generate::dashboard(&dashboards()["cost"], &variables()),
        made("cost"),
    );
    let sql = |it: &Value| it["panels"][1]["targets"][0]["rawSql"].clone();
    assert!(sql(&here).is_string());
    assert_eq!(sql(&here), sql(&there));
    assert_eq!(here["uid"], there["uid"]);
    let hidden = |name: &str, title: &str| {
        let made = made(name);
        let panels = made["panels"].as_array().expect("panels");
        let panel = panels.iter().find(|it| it["title"] == title);
        panel.expect("it is there")["transformations"][0]["options"]["excludeByName"].clone()
    };
    assert_eq!(hidden("fleet", "Open incidents")["cluster"], true);
    assert_eq!(hidden("fleet", "Alerts that fire")["cluster"], Value::Null);
}

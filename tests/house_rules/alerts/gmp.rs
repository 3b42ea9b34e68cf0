//! The rules for Google Managed Prometheus: resources in `alerts/gmp` that say what the files in `alerts/rules` say, by our
//! labels as they are called there. The tests in `alerts/tests` hold of them too, on series as its collector leaves them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::mem;
use std::path::Path;

use serde_norway::{Mapping, Value};
use tempfile::TempDir;

use super::{alerts, files_of, folder, parse, refused};
use crate::dashboards::promql::{named, own_labels, renamed, tokens};

/// How they are made.
const BLESS: &str =
    "GPUFLEET_BLESS=1 cargo test -p gpufleet-tests --test house_rules every_resource";

/// What a resource says beside its rules, which look at the series of its own namespace alone.
const FRAME: &str = "apiVersion: monitoring.googleapis.com/v1\nkind: Rules\n\
                     metadata: {name: gpufleet-@NAME, namespace: gpufleet}\n";

/// What the collector says of every series, and the rule evaluator of what every rule gives.
const SCOPE: [(&str, &str); 4] = [
    ("project_id", "acme"),
    ("location", "europe-west4"),
    ("cluster", "gke-1"),
    ("namespace", "gpufleet"),
];

/// What the collector says further of a series of which its test does not say it.
const TARGET: [(&str, &str); 2] = [("job", "gpufleet-agent"), ("instance", "node-7:metrics")];

/// What a list in something has in it; nothing when there is none.
fn list<'a>(of: &'a mut Value, name: &str) -> impl Iterator<Item = &'a mut Value> {
    let list = of.get_mut(name).and_then(Value::as_sequence_mut);
    list.into_iter().flatten()
}

/// Every rule of a file.
fn rules(file: &mut Value) -> impl Iterator<Item = &mut Value> {
    list(file, "groups").flat_map(|it| list(it, "rules"))
}

/// A file's name.
fn name(path: &Path) -> String {
    let name = path.file_name().expect("it has a name");
    name.to_string_lossy().into_owned()
}

/// The resource with the rules of a file.
fn resource(path: &Path) -> Value {
    let mut file: Value = parse(path);
    for rule in rules(&mut file) {
        let expr = rule["expr"].as_str().expect("a rule asks").to_owned();
        let own = own_labels(&expr);
        rule["expr"] = renamed(&expr).into();
        let says = rule.get_mut("annotations").and_then(Value::as_mapping_mut);
        for text in says.into_iter().flat_map(Mapping::values_mut) {
            let old = text.as_str().expect("a sentence");
            *text = named(old, &own, "{{ $labels.", " }}").into();
        }
    }
    let name = name(path);
    let frame = FRAME.replace("@NAME", name.trim_end_matches(".yml"));
    let mut resource: Value = serde_norway::from_str(&frame).expect("it is YAML");
    resource["spec"] = file;
    resource
}

/// A resource as a file, below what is said above its rules.
fn written(path: &Path, resource: &Value) -> String {
    let source = fs::read_to_string(path).expect("it can be read");
    let above = source.lines().take_while(|it| it.starts_with('#'));
    let above: String = above.flat_map(|it| [it, "\n"]).collect();
    let rules = serde_norway::to_string(resource).expect("it can be written");
    let name = name(path);
    format!(
        "{above}#\n# alerts/rules/{name} for Google Managed Prometheus, made by\n# {BLESS}\n\n{rules}"
    )
}

/// A series of a test as the collector leaves it.
fn scraped(series: &str) -> String {
    let series = renamed(series);
    let said = tokens(&series);
    let target = SCOPE.iter().chain(&TARGET);
    let target: String = target
        .filter(|(label, _)| !said.contains(label))
        .flat_map(|(label, value)| [*label, "=\"", *value, "\", "])
        .collect();
    series.replacen('{', &format!("{{{target}"), 1)
}

/// The labels of an alert that a test expects, those in `own` as they are called there, as the rule evaluator sends it.
fn sent(labels: &mut Mapping, own: &[&str]) {
    let rename = |(label, value): (Value, Value)| {
        let name = label.as_str().filter(|it| own.contains(it));
        let name = name.map(|it| format!("exported_{it}").into());
        (name.unwrap_or(label), value)
    };
    *labels = mem::take(labels).into_iter().map(rename).collect();
    for (label, value) in SCOPE {
        labels.insert(label.into(), value.into());
    }
}

/// A folder with the `rules` of the resources, as they are given to the rule evaluator, and their `tests`.
pub(super) fn tried() -> TempDir {
    let inside = tempfile::tempdir().expect("a folder");
    let write = |folder: &str, path: &Path, made: &Value| {
        let folder = inside.path().join(folder);
        fs::create_dir_all(&folder).expect("it can be made");
        let text = serde_norway::to_string(made).expect("it can be written");
        fs::write(folder.join(name(path)), text).expect("it can be written");
    };
    for path in files_of("gmp") {
        let mut resource: Value = parse(&path);
        let mut file = mem::take(&mut resource["spec"]);
        for rule in rules(&mut file) {
            for (label, value) in SCOPE {
                rule["labels"][label] = value.into();
            }
        }
        write("rules", &path, &file);
    }
    let alerts = alerts().into_iter();
    let own: BTreeMap<String, _> = alerts.map(|it| (it.alert, own_labels(&it.expr))).collect();
    for path in files_of("tests") {
        let mut file: Value = parse(&path);
        for test in list(&mut file, "tests") {
            for input in list(test, "input_series") {
                let series = input["series"].as_str().expect("a series");
                input["series"] = scraped(series).into();
            }
            for asked in list(test, "alert_rule_test") {
                let alert = asked["alertname"].as_str().expect("an alert");
                let own = &own[alert];
                for expected in list(asked, "exp_alerts") {
                    let labels = expected.get_mut("exp_labels");
                    let labels = labels.and_then(Value::as_mapping_mut);
                    sent(labels.expect("an alert has labels"), own);
                }
            }
        }
        write("tests", &path, &file);
    }
    inside
}

#[test]
fn every_resource_is_what_its_rules_say() {
    let blessed = std::env::var_os("GPUFLEET_BLESS").is_some_and(|it| it == "1");
    for path in files_of("rules") {
        let made = resource(&path);
        let file = folder().join("gmp").join(name(&path));
        if blessed {
            fs::write(&file, written(&path, &made)).expect("it can be written");
        }
        let text = fs::read_to_string(&file).unwrap_or_default();
        let committed: Value = serde_norway::from_str(&text).unwrap_or_default();
        assert!(committed == made, "{} is stale: {BLESS}", file.display());
    }
    let names =
        |folder| -> BTreeSet<String> { files_of(folder).iter().map(|it| name(it)).collect() };
    assert_eq!(names("gmp"), names("rules"), "a resource without rules");
}

#[test]
fn a_rule_that_goes_by_the_job_of_the_scrape_would_be_found() {
    let tried = tried();
    let file = tried.path().join("rules/training.yml");
    let text = fs::read_to_string(&file).expect("it is there");
    let mistaken = text.replace("exported_job", "job");
    fs::write(&file, mistaken).expect("it can be written");
    let said = refused("promtool", tried.path()).expect("no alert is of our job any more");
    assert!(said.contains("GpufleetTrainingStandsStill fires"), "{said}");
}

//! The Prometheus rules in `alerts/`, held against their tests, the table of kinds, the runbooks, the
//! agent's table of XIDs, and Debian's promtool and amtool; those for Google Managed Prometheus against what they are made of.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpufleet_analysis::incident::Family;
use serde::Deserialize;

use super::tree::{none, root};
use gpufleet_tests::harness::later;

mod gmp;

/// What a rule that the server owns ends with.
const HELD_STILL: &str = "unless on (cluster) gpufleet:server_owns_alerts";

/// The rules that say where the server owns alerts; no kind of trouble is among them.
const OWNS: &str = "server-owns.yml";

/// What every runbook has, in this order.
const HEADINGS: [&str; 4] = [
    "## What it means",
    "## Look here",
    "## Do this",
    "## When to escalate",
];

/// Subjects whose series an agent serves: live ones have no label `origin`.
const OF_AGENTS: [&str; 5] = ["gpu", "node", "serving", "agent", "training"];

/// Series of the server that count live, recorded and simulated GPUs apart.
const BY_ORIGIN: [&str; 2] = ["gpufleet_server_gpus", "gpufleet_server_nodes"];

#[derive(Deserialize)]
struct Table {
    kind: Vec<Kind>,
}

/// A row of `alerts/kinds.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kind {
    name: String,
    says: String,
    incident: String,
    owner: String,
    rule: String,
    #[serde(default)]
    why: String,
    severity: String,
    runbook: String,
}

#[derive(Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    #[serde(default)]
    alert: String,
    expr: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Tests {
    tests: Vec<Test>,
}

#[derive(Deserialize)]
struct Test {
    name: String,
    #[serde(default)]
    input_series: Vec<serde_norway::Value>,
    alert_rule_test: Vec<Expectation>,
}

#[derive(Deserialize)]
struct Expectation {
    alertname: String,
    #[serde(default)]
    exp_alerts: Vec<serde_norway::Value>,
}

fn folder() -> PathBuf {
    root().join("alerts")
}

fn parse<T: for<'a> Deserialize<'a>>(path: &Path) -> T {
    let text = fs::read_to_string(path).expect("the file can be read");
    serde_norway::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files of a folder below `alerts/`, in order.
fn files_of(name: &str) -> Vec<PathBuf> {
    files_in(&folder().join(name))
}

/// The files of a folder, in order.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(folder).expect("the folder is there");
    let mut paths: Vec<_> = listed
        .map(|it| it.expect("it can be listed").path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    paths
}

/// Every alert that is about a kind of trouble.
fn alerts() -> Vec<Rule> {
    files_of("rules")
        .iter()
        .filter(|path| !path.ends_with(OWNS))
        .flat_map(|path| parse::<Rules>(path).groups)
        .flat_map(|group| group.rules)
        .collect()
}

fn kinds() -> Vec<Kind> {
    let text = fs::read_to_string(folder().join("kinds.toml")).expect("the table is there");
    let table: Table = toml::from_str(&text).expect("the table can be read");
    table.kind
}

/// Runs a checker in a folder; what it said, if it found something.
pub(crate) fn complaint(
    program: &str,
    arguments: &[&str],
    files: &[PathBuf],
    inside: &Path,
) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .args(files)
        .current_dir(inside)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; scripts/setup.sh test installs it"));
    let said = [output.stdout, output.stderr].concat();
    (!output.status.success()).then(|| String::from_utf8_lossy(&said).into_owned())
}

/// Holds every rule, and the tests of each, against one promtool, and the same for Google Managed Prometheus.
fn passes(promtool: &str) {
    assert_eq!(refused(promtool, &folder()), None);
    assert_eq!(refused(promtool, gmp::tried().path()), None);
}

/// What a promtool has against the `rules` in a folder, or finds by the `tests` beside them.
fn refused(promtool: &str, folder: &Path) -> Option<String> {
    let (rules, tests) = (folder.join("rules"), folder.join("tests"));
    let checked = complaint(promtool, &["check", "rules"], &files_in(&rules), folder);
    checked.or_else(|| complaint(promtool, &["test", "rules"], &files_in(&tests), &tests))
}

#[test]
fn promtool_accepts_every_rule_and_each_passes_its_tests() {
    passes("promtool");
}

/// What a promtool calls itself: `2.42.0+ds`.
fn version(promtool: &str) -> String {
    let said = Command::new(promtool).arg("--version").output();
    let said = said.expect("scripts/setup.sh test installs it");
    // Old ones say it on standard error.
    let said = [said.stdout, said.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    let (_, rest) = said.split_once("version ").expect("it says its version");
    rest.split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Holds the rules against the promtool of a version, where setup has fetched it or it is this machine's own.
fn passes_by(wanted: &str, fetched: &str) {
    if version("promtool").starts_with(wanted) {
        // The test before this one holds them against it.
        return;
    }
    let Some(promtool) = later(fetched) else {
        eprintln!(
            "NOT RUN: the rules by promtool {wanted}x: no target/tools/{fetched} (scripts/setup.sh test)"
        );
        return;
    };
    let promtool = promtool.display().to_string();
    assert!(
        version(&promtool).starts_with(wanted),
        "{}",
        version(&promtool)
    );
    passes(&promtool);
}

#[test]
fn the_promtool_of_prometheus_2_42_accepts_every_rule_and_each_passes_its_tests() {
    passes_by("2.42.", "promtool-2.42");
}

#[test]
fn the_promtool_of_prometheus_3_accepts_every_rule_and_each_passes_its_tests() {
    passes_by("3.", "promtool");
}

#[test]
fn a_rule_that_no_longer_fires_would_be_found() {
    let copy = tempfile::tempdir().expect("a folder");
    for (name, files) in [("rules", files_of("rules")), ("tests", files_of("tests"))] {
        fs::create_dir(copy.path().join(name)).expect("it can be made");
        for path in files {
            let text = fs::read_to_string(&path).expect("it can be read");
            let file = path.file_name().expect("it has a name");
            let changed = text.replace("> 0.95\n", "> 1.95\n");
            fs::write(copy.path().join(name).join(file), changed).expect("it can be written");
        }
    }
    let tests = [PathBuf::from("serving.yml")];
    let inside = copy.path().join("tests");
    let said = complaint("promtool", &["test", "rules"], &tests, &inside);
    let said = said.expect("the rule about a full cache fires no more");
    assert!(said.contains("GpufleetServingCacheFull fires"), "{said}");
}

#[test]
fn every_alert_is_tested_firing_quiet_and_without_data() {
    let mut tests = BTreeMap::new();
    for path in files_of("tests") {
        for test in parse::<Tests>(&path).tests {
            tests.insert(test.name.clone(), test);
        }
    }
    let mut broken = Vec::new();
    for rule in alerts() {
        let always = rule.labels["severity"] == "none";
        let owned = rule.labels["owner"] == "server";
        let cases = [
            ("fires", true, true),
            ("is quiet", false, !always),
            ("without data", always, true),
            ("while the server owns alerts", false, owned),
        ];
        for (case, fires, _) in cases.into_iter().filter(|(_, _, wanted)| *wanted) {
            let name = format!("{} {case}", rule.alert);
            let found = tests.remove(&name).is_some_and(|test| {
                let mut asked = test.alert_rule_test.iter();
                let has_input = case == "without data" || !test.input_series.is_empty();
                has_input
                    && asked.len() > 0
                    && asked
                        .all(|it| it.alertname == rule.alert && it.exp_alerts.is_empty() != fires)
            });
            if !found {
                broken.push(name);
            }
        }
    }
    broken.extend(tests.into_keys().map(|name| format!("{name}: of no rule")));
    none("an alert has its four tests, and a test its alert", &broken);
}

#[test]
fn table_and_rules_say_the_same() {
    let mut rules: BTreeMap<String, Rule> = alerts()
        .into_iter()
        .map(|rule| (rule.alert.clone(), rule))
        .collect();
    let mut broken = Vec::new();
    let mut names = BTreeSet::new();
    for kind in kinds() {
        let name = &kind.name;
        if !names.insert(name.clone()) {
            broken.push(format!("{name} stands twice"));
        }
        if kind.says.is_empty() || !["server", "prometheus"].contains(&kind.owner.as_str()) {
            broken.push(format!("{name} has no sentence or no owner"));
        }
        if kind.rule.is_empty() == kind.why.is_empty() {
            broken.push(format!("{name} has a rule or a reason why not"));
        }
        if kind.rule.is_empty() {
            continue;
        }
        let Some(rule) = rules.remove(&kind.rule) else {
            broken.push(format!("{name}: no rule {}", kind.rule));
            continue;
        };
        let page = format!("/{}.md", kind.runbook);
        let url = rule.annotations.get("runbook_url");
        let is_same = rule.labels.get("severity") == Some(&kind.severity)
            && rule.labels.get("incident") == Some(&kind.incident)
            && rule.labels.get("owner") == Some(&kind.owner)
            && url.is_some_and(|it| it.starts_with("https://") && it.ends_with(&page));
        let is_told = ["summary", "description"]
            .iter()
            .all(|it| rule.annotations.get(*it).is_some_and(|it| !it.is_empty()));
        if !is_same || !is_told {
            broken.push(format!("{name}: {} says otherwise", kind.rule));
        }
    }
    broken.extend(rules.into_keys().map(|rule| format!("{rule}: of no kind")));
    none("a kind and its rule agree", &broken);
}

#[test]
fn every_family_of_incidents_has_a_kind_and_every_kind_a_family() {
    let families: BTreeSet<String> = Family::ALL.map(|it| it.name().to_owned()).into();
    let named: BTreeSet<String> = kinds().into_iter().map(|it| it.incident).collect();
    assert_eq!(named, families);
}

#[test]
fn every_kind_has_a_runbook_that_can_be_followed_and_every_runbook_a_kind() {
    let runbooks = root().join("docs/runbooks");
    let wanted: BTreeSet<String> = kinds().into_iter().map(|it| it.runbook).collect();
    let listed = fs::read_dir(&runbooks).expect("the folder is there");
    let there: BTreeSet<String> = listed
        .map(|it| it.expect("it can be listed").file_name())
        .map(|name| name.to_string_lossy().replace(".md", ""))
        .collect();
    assert_eq!(wanted, there);
    let mut broken = Vec::new();
    for name in there {
        let text = fs::read_to_string(runbooks.join(format!("{name}.md"))).expect("it is there");
        let headings: Vec<&str> = text.lines().filter(|it| it.starts_with("## ")).collect();
        let sections = text.split("\n## ").skip(1);
        let is_empty = |section: &str| section.lines().skip(1).all(|line| line.trim().is_empty());
        if headings != HEADINGS || sections.into_iter().any(is_empty) {
            broken.push(name);
        }
    }
    none("a runbook has the four sections", &broken);
}

#[test]
fn what_the_server_owns_holds_still_while_it_is_well_and_nothing_else_does() {
    let broken: Vec<String> = alerts()
        .into_iter()
        .filter(|rule| {
            let is_owned = rule.labels["owner"] == "server";
            rule.expr.trim_end().ends_with(HELD_STILL) != is_owned
                || rule.expr.contains("server_owns_alerts") != is_owned
        })
        .map(|rule| rule.alert)
        .collect();
    none("one owner per page", &broken);
}

#[test]
fn rules_look_at_live_series_only() {
    let mut broken = Vec::new();
    let mut seen = 0;
    for path in files_of("rules") {
        for rule in parse::<Rules>(&path)
            .groups
            .into_iter()
            .flat_map(|it| it.rules)
        {
            for part in rule.expr.split("gpufleet_").skip(1) {
                let name = part
                    .split(|it: char| !(it.is_alphanumeric() || it == '_'))
                    .next();
                let name = format!("gpufleet_{}", name.unwrap_or_default());
                let subject = name.split('_').nth(1).unwrap_or_default();
                let after = &part[name.len() - "gpufleet_".len()..];
                let labels = after.strip_prefix('{').and_then(|it| it.split('}').next());
                let labels = labels.unwrap_or_default();
                let is_live = if OF_AGENTS.contains(&subject) {
                    labels.contains("origin=\"\"")
                } else {
                    !BY_ORIGIN.contains(&name.as_str()) || labels.contains("origin=\"live\"")
                };
                seen += 1;
                if !is_live {
                    broken.push(format!("{}: {name}", rule.expr.trim()));
                }
            }
        }
    }
    assert!(seen > 50, "only {seen} series were looked at");
    none("recorded and simulated GPUs page nobody", &broken);
}

/// The codes that a list like `46, "97-99"` names.
fn codes(list: &toml::Value) -> BTreeSet<u32> {
    let list = list.as_array().expect("a list of codes");
    list.iter()
        .flat_map(|it| match it {
            toml::Value::String(range) => {
                let (from, to) = range.split_once('-').expect("a range");
                from.parse::<u32>().expect("a code")..=to.parse().expect("a code")
            }
            other => {
                let code = other.as_integer().expect("a code") as u32;
                code..=code
            }
        })
        .collect()
}

#[test]
fn every_class_of_xid_that_is_an_error_has_a_rule_with_its_codes() {
    let text =
        fs::read_to_string(root().join("agent/read/nvml/xid_actions.toml")).expect("it is there");
    let classes: toml::Table = toml::from_str(&text).expect("it can be read");
    let rules: BTreeSet<BTreeSet<u32>> = alerts()
        .iter()
        .filter_map(|rule| rule.expr.split_once("xid=~\"")?.1.split('"').next())
        .map(|codes| {
            codes
                .split('|')
                .map(|it| it.parse().expect("a code"))
                .collect()
        })
        .collect();
    let broken: Vec<String> = classes
        .iter()
        .filter(|(_, class)| class["severity"].as_str() == Some("error"))
        .filter(|(_, class)| !rules.contains(&codes(&class["xids"])))
        .map(|(name, _)| name.clone())
        .collect();
    none("a class of XIDs has one rule with the same codes", &broken);
}

#[test]
fn amtool_accepts_the_example_and_sends_each_alert_its_way() {
    let example = [PathBuf::from("alertmanager.yml")];
    assert_eq!(
        complaint("amtool", &["check-config"], &example, &folder()),
        None
    );
    for (labels, receiver) in [
        (
            &["alertname=GpufleetWatchdog", "severity=none"][..],
            "dead-man",
        ),
        (
            &["alertname=GpufleetServerOwnsAlerts", "severity=none"],
            "nobody",
        ),
        (&["incident=gpu_fault", "severity=critical"], "pager"),
        (&["incident=blind", "severity=critical"], "platform-pager"),
        (&["incident=heat", "severity=warning"], "chat"),
        (&["incident=idle", "severity=info"], "nobody"),
    ] {
        let verify = format!("--verify.receivers={receiver}");
        let ask = [
            "config",
            "routes",
            "test",
            "--config.file=alertmanager.yml",
            &verify,
        ];
        let said = complaint("amtool", &[&ask[..], labels].concat(), &[], &folder());
        assert_eq!(said, None, "{labels:?}");
    }
}

#[test]
fn promtool_accepts_the_example_and_it_loads_every_rule_file_but_the_servers_own() {
    let example = [PathBuf::from("prometheus.yml")];
    assert_eq!(
        complaint("promtool", &["check", "config"], &example, &folder()),
        None
    );
    let text = fs::read_to_string(folder().join("prometheus.yml")).expect("it is there");
    for path in files_of("rules") {
        let name = path.file_name().expect("it has a name").to_string_lossy();
        let is_loaded = text.contains(&format!("\n  - rules/{name}\n"));
        assert_eq!(is_loaded, name != OWNS, "{name}");
    }
}

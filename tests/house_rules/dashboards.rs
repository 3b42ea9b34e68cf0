//! Grafana's dashboards in `dashboards/`: what is committed is what `generate` makes of their sources, and
//! every query can be asked. That queries name only metrics of the catalog is checked in `documents`,
//! that they return data in the end-to-end tests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::alerts::complaint;
use super::tree::{none, root};

mod generate;

mod gmp;

pub(super) mod promql;

mod shown;

mod source;

use source::{Dashboard, Variables};

/// Series that have no origin: of the server itself, and of Prometheus.
const WITHOUT_ORIGIN: [&str; 1] = ["gpufleet_server_"];

fn folder() -> PathBuf {
    root().join("dashboards")
}

fn variables() -> Variables {
    let text = fs::read_to_string(folder().join("source/variables.toml")).expect("it is there");
    toml::from_str(&text).expect("the variables can be read")
}

/// The sources by the name of their file, their queries written out.
fn dashboards() -> BTreeMap<String, Dashboard> {
    let sources = sources().into_iter();
    sources
        .map(|(name, source)| (name, source.written_out()))
        .collect()
}

/// The sources by the name of their file, as they stand there.
fn sources() -> BTreeMap<String, Dashboard> {
    let listed = fs::read_dir(folder().join("source")).expect("the folder is there");
    let paths = listed.map(|it| it.expect("it can be listed").path());
    let sources = paths.filter(|path| !path.ends_with("variables.toml"));
    let dashboards: BTreeMap<_, _> = sources
        .map(|path| {
            let text = fs::read_to_string(&path).expect("it can be read");
            let parsed = toml::from_str(&text);
            let parsed = parsed.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let name = path.file_stem().expect("it has a name");
            (name.to_string_lossy().into_owned(), parsed)
        })
        .collect();
    assert!(dashboards.len() > 3, "dashboards are missing");
    dashboards
}

/// Bytes of a query or a piece of one as it stands in a source: a longer one is made of pieces.
const LONGEST: usize = 500;

#[test]
fn every_piece_of_a_query_is_there_and_used_and_none_is_too_long_to_read() {
    let mut broken = Vec::new();
    for (name, source) in sources() {
        let queries = source.panels().flat_map(|it| &it.queries);
        let queries = queries.map(|it| &it.expr);
        let all: Vec<&String> = queries.chain(source.fragments.values()).collect();
        let is_named = |piece: &str| all.iter().any(|it| it.contains(piece));
        let pieces = source.fragments.keys().map(|it| format!("<<{it}>>"));
        let unused = pieces.filter(|it| !is_named(it));
        broken.extend(unused.map(|it| format!("{name}: {it} is not used")));
        let long = all.iter().filter(|it| it.len() > LONGEST);
        broken.extend(long.map(|it| format!("{name}: {} bytes: {it}", it.len())));
        for query in source.written_out().panels().flat_map(|it| &it.queries) {
            if query.expr.contains("<<") {
                broken.push(format!("{name}: names what is no piece: {}", query.expr));
            }
        }
    }
    none("queries are made of pieces that are there", &broken);
}

#[test]
fn every_dashboard_is_what_its_source_says() {
    let variables = variables();
    let made = dashboards().into_iter();
    let made = made.map(|(name, source)| (name, generate::dashboard(&source, &variables)));
    let made: BTreeMap<String, Value> = made.collect();
    held(&folder(), &made);
    let made = made.into_iter();
    let made = made.map(|(name, made)| (name, gmp::dashboard(made)));
    let made: BTreeMap<String, Value> = made.collect();
    held(&folder().join("gmp"), &made);
}

/// Holds the dashboards in a folder against those that were made, or writes them.
fn held(folder: &Path, made: &BTreeMap<String, Value>) {
    let blessed = std::env::var_os("GPUFLEET_BLESS").is_some_and(|it| it == "1");
    if blessed {
        fs::create_dir_all(folder).expect("it can be made");
    }
    for (name, made) in made {
        let path = folder.join(format!("{name}.json"));
        if blessed {
            let text = serde_json::to_string_pretty(made).expect("it can be written");
            fs::write(&path, text + "\n").expect("it can be written");
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        let committed: Value = serde_json::from_str(&text).unwrap_or_default();
        assert!(
            committed == *made,
            "{} is stale: GPUFLEET_BLESS=1 cargo test -p gpufleet-tests --test house_rules dashboards",
            path.display()
        );
    }
    let listed = fs::read_dir(folder).expect("it can be listed");
    let listed = listed.map(|it| {
        it.expect("an entry")
            .file_name()
            .to_string_lossy()
            .into_owned()
    });
    let mut there: Vec<String> = listed.filter(|it| it.ends_with(".json")).collect();
    there.sort();
    let names: Vec<String> = made.keys().map(|it| format!("{it}.json")).collect();
    assert_eq!(there, names, "a dashboard without a source");
}

/// What promtool says of queries, each as a rule of its own; nothing when it takes all of them.
fn refused(queries: &[String]) -> Option<String> {
    let mut rules = "groups:\n- name: queries\n  rules:\n".to_owned();
    for (index, query) in queries.iter().enumerate() {
        let query = serde_json::to_string(query).expect("a text");
        writeln!(rules, "  - {{record: \"query:{index}\", expr: {query}}}").expect("a text");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("queries.yml");
    fs::write(&file, rules).expect("it can be written");
    complaint("promtool", &["check", "rules"], &[file], folder.path())
}

/// Series with their values, minute by minute.
type Series<'a> = &'a [(&'a str, &'a str)];

/// What promtool says against what a query answers to these series: a value with its labels, or nothing.
fn answers(
    query: &str,
    series: Series<'_>,
    minute: u32,
    expected: Option<(&str, f64)>,
) -> Option<String> {
    let series = series.iter();
    let series = series.map(|(name, values)| serde_json::json!({"series": name, "values": values}));
    let samples = expected.iter();
    let samples =
        samples.map(|(labels, value)| serde_json::json!({"labels": labels, "value": value}));
    let case = serde_json::json!({"tests": [{
        "interval": "1m",
        "input_series": series.collect::<Vec<_>>(),
        "promql_expr_test": [{
            "expr": query, "eval_time": format!("{minute}m"),
            "exp_samples": samples.collect::<Vec<_>>(),
        }],
    }]});
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("case.yml");
    // JSON is YAML.
    fs::write(&file, case.to_string()).expect("it can be written");
    complaint("promtool", &["test", "rules"], &[file], folder.path())
}

/// The query of a panel as Grafana sends it where all is chosen and nothing is recorded or simulated.
fn query_of(dashboard: &str, title: &str) -> String {
    let (variables, dashboards) = (variables(), dashboards());
    let mut panels = dashboards[dashboard].panels();
    let panel = panels.find(|it| it.title == title);
    let query = &panel.expect("it is there").queries[0].expr;
    let query = generate::expression(query, &variables);
    let chosen = [
        ("$origin", "|live"),
        ("$cluster", ".*"),
        ("$node", ".*"),
        ("$gpu", ".*"),
        ("$job", ".*"),
        ("$attempt", ".*"),
        ("$__rate_interval", "5m"),
    ];
    chosen
        .iter()
        .fold(query, |it, (name, value)| it.replace(name, value))
}

#[test]
fn an_xid_is_counted_once_whatever_was_not_scraped_since() {
    let query = query_of("health", "XIDs in the last hour");
    let name = "gpufleet_gpu_xid_total{cluster='c', node='n', gpu='0', xid='63'}";
    for (values, minute, expected, why) in [
        ("3x70", 65, 0.0, "it came long ago"),
        (
            "_x10 3x70",
            30,
            3.0,
            "the first ones of a code began the series",
        ),
        (
            "3x59 _x30 3x70",
            130,
            0.0,
            "an hour ago nothing was scraped, and nothing came since",
        ),
        ("3x59 _x30 5x70", 130, 2.0, "two came in the gap or since"),
        ("3x59 _x10 1x20", 80, 1.0, "the agent began anew"),
    ] {
        let wrong = answers(&query, &[(name, values)], minute, Some(("{}", expected)));
        assert_eq!(wrong, None, "{why}");
    }
    let wrong = answers(&query, &[(name, "3x70")], 65, Some(("{}", 1.0)));
    assert!(wrong.is_some(), "another answer would not be found");

    let newest = "gpufleet_gpu_last_xid_code{cluster='c', node='n', gpu='0'}";
    let again = [(name, "1x30 _x120 1x70"), (newest, "63x30 _x5 0x114 63x70")];
    for (minute, expected) in [(140, 0.0), (155, 1.0), (205, 1.0), (220, 0.0)] {
        let wrong = answers(&query, &again, minute, Some(("{}", expected)));
        assert_eq!(wrong, None, "as many came again after the agent began anew");
    }
}

#[test]
fn a_card_to_replace_is_counted_for_either_reason() {
    let query = query_of("health", "Cards to replace");
    let remap = "gpufleet_gpu_row_remap_failure_flag{cluster='c', node='n', gpu='0'}";
    let sram = "gpufleet_gpu_sram_threshold_exceeded_flag{cluster='c', node='n', gpu='0'}";
    for (of_remap, of_sram, expected) in [
        ("0x9", "0x9", 0.0),
        ("0x9", "1x9", 1.0),
        ("1x9", "0x9", 1.0),
        ("1x9", "1x9", 1.0),
        ("_x9", "1x9", 1.0),
    ] {
        let series = [(remap, of_remap), (sram, of_sram)];
        let wrong = answers(&query, &series, 5, Some(("{}", expected)));
        assert_eq!(wrong, None, "remapping {of_remap}, memory {of_sram}");
    }
}

#[test]
fn what_waiting_cost_is_no_nothing_where_it_is_not_measured_or_nobody_is_compared() {
    let busy = |job: &str, rank: u32| {
        format!(
            "gpufleet_training_step_busy_seconds_total{{cluster='c', job='{job}', attempt='0', rank='{rank}'}}"
        )
    };
    let (first, second, other) = (busy("a", 0), busy("a", 1), busy("b", 0));
    let link = "{cluster='c', family='link', id='1'}";
    let open = format!("gpufleet_server_incident_open{link}");
    let lost = format!("gpufleet_server_incident_lost_gpu_seconds{link}");
    let compared = [(first.as_str(), "1x9"), (second.as_str(), "1x9")];
    let apart = [(first.as_str(), "1x9"), (other.as_str(), "1x9")];
    let unmeasured = [compared[0], compared[1], (open.as_str(), "1x9")];
    let measured = [unmeasured[2], (lost.as_str(), "7x9")];
    let well = Some(("{}", 0.0));
    let cases: [(&str, Series<'_>, _); 6] = [
        ("Lost by waiting", &compared, well),
        ("Lost by waiting", &apart, None),
        ("Lost by waiting", &unmeasured, None),
        ("Lost by waiting", &measured, Some(("{}", 7.0))),
        ("Stragglers", &compared, well),
        ("Stragglers", &apart, None),
    ];
    for (title, series, expected) in cases {
        let wrong = answers(&query_of("collectives", title), series, 5, expected);
        assert_eq!(wrong, None, "{title}: {series:?}");
    }
}

#[test]
fn only_collectives_that_were_timed_on_several_ranks_say_what_was_waited_in_them() {
    let query = query_of("collectives", "Waited inside collectives, at least");
    let of = |what: &str, rank: u32| {
        format!(
            "gpufleet_training_collective_{what}_total{{cluster='c', job='j', attempt='0', rank='{rank}', collective='dp/AllReduce'}}"
        )
    };
    let took = [0, 1].map(|rank| of("duration_seconds", rank));
    let timed = [0, 1].map(|rank| of("timed", rank));
    let labels = "{job=\"j\", function=\"AllReduce\"}";
    // How long collectives took on both ranks, and how many of them were timed.
    for (values, expected, why) in [
        (
            ["0+60x9", "0+180x9", "0+60x9", "0+60x9"],
            Some((labels, 0.5)),
            "one waits two thirds of its time",
        ),
        (
            ["0+60x9", "0+30x9", "0+60x9", "0+30x9"],
            Some((labels, 0.0)),
            "one is timed half as often, and nobody waits",
        ),
        (
            ["0+60x9", "9x9", "0+60x9", "9x9"],
            None,
            "one is no longer timed",
        ),
        (
            ["0+60x9", "_x9", "0+60x9", "_x9"],
            None,
            "one is there alone",
        ),
        (
            ["0+60x9", "0+90x9", "_x9", "_x9"],
            None,
            "agents do not tell how many were timed",
        ),
    ] {
        let names = [&took[0], &took[1], &timed[0], &timed[1]];
        let series: Vec<_> = names.into_iter().map(String::as_str).zip(values).collect();
        assert_eq!(answers(&query, &series, 8, expected), None, "{why}");
    }
}

#[test]
fn what_is_pushed_by_remote_write_is_not_added_to_what_is_scraped() {
    let scraped = "gpufleet_gpu_power_watts{cluster='c', node='n', gpu='0', uuid='GPU-1'}";
    let pushed = "gpufleet_gpu_power_watts{cluster='c', node='n', gpu='GPU-1', index='0', origin='live', from='record'}";
    let both = [(scraped, "300x9"), (pushed, "300x9")];
    let query = query_of("fleet", "Power");
    let wrong = answers(&query, &both, 5, Some(("{cluster=\"c\"}", 300.0)));
    assert_eq!(wrong, None);
    let filters = variables().filters.into_iter();
    let of_prometheus = filters.filter(|it| it.0 != "ledger");
    let mixed: Vec<_> = of_prometheus
        .filter(|it| !it.1.starts_with("from=\"\", "))
        .map(|it| it.0)
        .collect();
    assert_eq!(mixed, [] as [String; 0]);
}

/// Every query of a dashboard as Grafana sends it when all is chosen, to Google Managed Prometheus too.
fn queries(source: &Dashboard, variables: &Variables) -> Vec<String> {
    let queries = source.panels().flat_map(|panel| &panel.queries);
    let queries = queries.filter(|it| !it.expr.is_empty());
    let asked = queries.map(|query| generate::expression(&query.expr, variables));
    asked
        .chain([generate::ALERTS.to_owned(), generate::incidents(source)])
        .map(|it| it.replace("$__rate_interval", "2m"))
        .flat_map(|it| [promql::renamed(&it), it])
        .collect()
}

#[test]
fn every_query_can_be_asked() {
    let variables = variables();
    let all: Vec<String> = dashboards()
        .values()
        .flat_map(|it| queries(it, &variables))
        .collect();
    assert!(all.len() > 200, "only {} queries", all.len());
    assert_eq!(refused(&all), None);
    let broken = ["sum(gpufleet_gpu_power_watts".to_owned()];
    assert!(
        refused(&broken).is_some(),
        "a broken query would not be found"
    );
}

#[test]
fn every_panel_says_what_it_shows_and_follows_what_is_chosen() {
    let variables = variables();
    let mut broken = Vec::new();
    for (name, source) in dashboards() {
        let unknown = |it: &&String| !variables.variable.iter().any(|known| known.name == **it);
        broken.extend(
            source
                .variables
                .iter()
                .filter(unknown)
                .map(|it| format!("{name}: ${it}")),
        );
        let unoffered = source.one.iter();
        let unoffered = unoffered.filter(|it| !source.variables.contains(it));
        broken.extend(unoffered.map(|it| format!("{name}: one ${it}")));
        for panel in source.panels() {
            let at = format!("{name}: {}", panel.title);
            if !panel.says.ends_with('.') || panel.queries.is_empty() || panel.width > 24 {
                broken.push(format!("{at} says nothing, asks nothing or is too wide"));
            }
            // A fault is of a fleet that Prometheus scrapes.
            if panel.may_be_empty.is_some() && panel.fault.is_none() && !panel.is_of_ledger() {
                broken.push(format!(
                    "{at} may be empty, and nothing says when it is not"
                ));
            }
            if panel.over != 0.0 && panel.fault.is_none() {
                broken.push(format!("{at} is over something, and nothing says when"));
            }
            for query in &panel.queries {
                if query.expr.is_empty() == query.sql.is_empty()
                    || query.sql.is_empty() == panel.is_of_ledger()
                {
                    broken.push(format!("{at} asks neither one, or both"));
                }
                if !query.sql.is_empty() && !query.sql.contains("WHERE (@ledger)") {
                    broken.push(format!("{at} asks the ledger of any origin"));
                }
                for filter in query.expr.split("{@").skip(1) {
                    let filter = filter.split([',', '}']).next().unwrap_or_default();
                    let is_offered =
                        filter == "fleet" || source.variables.iter().any(|it| it == filter);
                    if !is_offered || !variables.filters.contains_key(filter) {
                        broken.push(format!("{at}: @{filter} is not offered"));
                    }
                }
                broken
                    .extend(unfiltered(&query.expr).map(|it| format!("{at}: {it} of any origin")));
            }
        }
    }
    none("panels explain themselves and mix no origins", &broken);
}

/// Series of GPUs, nodes and ranks that no filter narrows down.
fn unfiltered(expr: &str) -> impl Iterator<Item = String> + '_ {
    let by_origin = ["gpufleet_server_gpus", "gpufleet_server_nodes"];
    let of_incidents = "gpufleet_server_incident_";
    expr.split("gpufleet_").skip(1).filter_map(move |part| {
        let end = part.find(|it: char| !(it.is_alphanumeric() || it == '_'));
        let (name, after) = part.split_at(end.unwrap_or(part.len()));
        let name = format!("gpufleet_{name}");
        let is_free = WITHOUT_ORIGIN.iter().any(|it| name.starts_with(it));
        let is_bound =
            !is_free || by_origin.contains(&name.as_str()) || name.starts_with(of_incidents);
        (is_bound && !after.starts_with("{@")).then_some(name)
    })
}

#[test]
fn a_series_that_no_filter_narrows_down_would_be_found() {
    let found: Vec<_> =
        unfiltered("sum(gpufleet_gpu_power_watts) / gpufleet_server_gpus{a=\"b\"}").collect();
    assert_eq!(found, ["gpufleet_gpu_power_watts", "gpufleet_server_gpus"]);
    assert_eq!(
        unfiltered("gpufleet_server_points_total + gpufleet_node_cpus{@node}").count(),
        0
    );
}

//! Queries read word by word: how much those of dashboards draw, and what else the labels of them and of rules may be called.

use super::source::{Kind, Panel};
use super::{dashboards, generate, none, variables};

/// Lines of a chart that can be told from each other, and rows of a table that are read: as many a panel shows of things
/// of which a large fleet has thousands.
const MOST_LINES: u32 = 20;
const MOST_ROWS: u32 = 100;

/// Labels with as many values as a fleet has GPUs, ranks, nodes or model servers.
const OF_MANY: [&str; 6] = ["gpu", "uuid", "rank", "node", "endpoint", "instance"];

/// What makes one series of many, or one for each value of the labels after `by`.
const AGGREGATIONS: [&str; 7] = [
    "sum",
    "avg",
    "min",
    "max",
    "count",
    "quantile",
    "count_values",
];

/// What goes before a list of labels that says which series belong together.
const MATCHING: [&str; 4] = ["on", "ignoring", "group_left", "group_right"];

/// Labels that Google Managed Prometheus keeps for itself: what it scrapes has its own of these names renamed, and no
/// relabelling may write onto them. `instance` is one too, but no series of ours has that of its own: it is where we are scraped.
pub(super) const TAKEN: [&str; 5] = ["project_id", "location", "cluster", "namespace", "job"];

/// What the server tells has the `job` of its target, but for these, which have one of their own. The end-to-end test of
/// the dashboards holds it.
const WITH_A_JOB: [&str; 2] = ["gpufleet_server_job_", "gpufleet_server_incident_"];

/// Words, quoted texts and other characters one by one; together they are the query.
pub(crate) fn tokens(query: &str) -> Vec<&str> {
    let is_of_word = |it: char| it.is_ascii_alphanumeric() || it == '_';
    let mut tokens = Vec::new();
    let mut rest = query;
    while let Some(first) = rest.chars().next() {
        let length = if first == '"' {
            rest[1..].find('"').map_or(rest.len(), |end| end + 2)
        } else if is_of_word(first) {
            rest.find(|it| !is_of_word(it)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        tokens.push(token);
        rest = after;
    }
    tokens
}

/// Those of the labels that Google Managed Prometheus keeps for itself which our series in a query have of their own, so
/// that they are called otherwise there.
pub(crate) fn own_labels(query: &str) -> Vec<&'static str> {
    let is_of_server = |it: &str| it.starts_with("gpufleet_server_");
    let has_job = tokens(query).into_iter().any(|it| {
        it.starts_with("gpufleet_")
            && (!is_of_server(it) || WITH_A_JOB.iter().any(|own| it.starts_with(own)))
    });
    let all = TAKEN.into_iter();
    all.filter(|it| *it != "job" || has_job).collect()
}

/// The query for series whose labels were renamed by Google Managed Prometheus. What is not gpufleet's (`up`, `ALERTS`)
/// has those labels of the target and keeps them.
pub(crate) fn renamed(query: &str) -> String {
    let own = own_labels(query);
    let mut renamed = String::new();
    let (mut before, mut is_foreign) = ("", false);
    for token in tokens(query) {
        match token {
            "{" => is_foreign = !before.starts_with("gpufleet_"),
            "}" => is_foreign = false,
            _ => {}
        }
        if !is_foreign && own.contains(&token) {
            renamed.push_str("exported_");
        }
        renamed.push_str(token);
        before = token;
    }
    renamed
}

/// The text with these labels renamed where they stand between `before` and `after`.
pub(crate) fn named(text: &str, labels: &[&str], before: &str, after: &str) -> String {
    let rename = |text: String, name: &&str| {
        let old = format!("{before}{name}{after}");
        text.replace(&old, &format!("{before}exported_{name}{after}"))
    };
    labels.iter().fold(text.to_owned(), rename)
}

/// The numbers of series that `topk` and `bottomk` in a query leave.
pub(super) fn cuts(query: &str) -> Vec<u32> {
    let tokens = tokens(query);
    let cuts = tokens.windows(3).filter_map(|it| match it {
        ["topk" | "bottomk", "(", count] => count.parse().ok(),
        _ => None,
    });
    cuts.collect()
}

/// The series in a query of which it draws as many as there are GPUs, ranks, nodes or model servers: that nothing adds up,
/// no `topk` or `bottomk` of at most `most` cuts, and no choice of one node and the like, of those in `one`, narrows down.
pub(super) fn without_end<'a>(query: &'a str, one: &[String], most: u32) -> Vec<&'a str> {
    let mut tokens = tokens(query);
    tokens.retain(|it| !it.trim().is_empty());
    let one = one.iter().filter(|it| OF_MANY.contains(&it.as_str()));
    let chosen: Vec<String> = one.map(|it| format!("\"${it}\"")).collect();
    let mut found = Vec::new();
    // Of each bracket that is open whether it bounds what is in it, and whether the next one will.
    let mut open: Vec<bool> = Vec::new();
    let mut bounds = false;
    let mut rest = tokens.as_slice();
    while let [token, after @ ..] = rest {
        rest = after;
        match *token {
            "(" => open.push(std::mem::take(&mut bounds)),
            ")" => {
                open.pop();
            }
            "{" => rest = split(rest, "}").1,
            "[" => rest = split(rest, "]").1,
            "topk" | "bottomk" => {
                bounds = matches!(rest, ["(", count, ..] if count.parse::<u32>().is_ok_and(|it| it <= most));
            }
            word if MATCHING.contains(&word) && rest.first() == Some(&"(") => {
                rest = split(rest, ")").1;
            }
            word if AGGREGATIONS.contains(&word) => {
                (bounds, rest) = match rest {
                    ["by", after @ ..] => {
                        let (labels, after) = split(after, ")");
                        (!labels.iter().any(|it| OF_MANY.contains(it)), after)
                    }
                    ["without", after @ ..] => (false, split(after, ")").1),
                    _ => (true, rest),
                };
            }
            name if is_of_many(name) => {
                let selector = match rest {
                    ["{", after @ ..] => split(after, "}").0,
                    _ => &[],
                };
                let is_narrow = selector.iter().any(|it| chosen.iter().any(|one| one == it));
                if !is_narrow && !open.contains(&true) {
                    found.push(name);
                }
            }
            _ => {}
        }
    }
    found
}

/// What agents tell; the server's own series are of states and incidents.
fn is_of_many(name: &str) -> bool {
    name == "up" || name.starts_with("gpufleet_") && !name.starts_with("gpufleet_server_")
}

/// What stands before the first `end`, and after it.
fn split<'a, 'b>(tokens: &'b [&'a str], end: &str) -> (&'b [&'a str], &'b [&'a str]) {
    let at = tokens.iter().position(|it| *it == end);
    let at = at.unwrap_or(tokens.len());
    (&tokens[..at], tokens.get(at + 1..).unwrap_or_default())
}

/// Whether a panel says that it shows so many only.
fn says(panel: &Panel, count: u32) -> bool {
    let words = [(10, "ten"), (20, "twenty"), (100, "hundred")];
    let text = format!("{} {}", panel.title, panel.says).to_lowercase();
    let has = |word: &str| {
        text.split(|it: char| !it.is_alphanumeric())
            .any(|it| it == word)
    };
    words
        .iter()
        .any(|(number, word)| *number == count && has(word))
}

#[test]
fn no_panel_draws_a_line_for_each_gpu_or_rank_of_a_large_fleet() {
    let variables = variables();
    let mut broken = Vec::new();
    for (name, source) in dashboards() {
        for panel in source.panels() {
            let at = format!("{name}: {}", panel.title);
            let most = if panel.kind == Kind::Table {
                MOST_ROWS
            } else {
                MOST_LINES
            };
            for query in &panel.queries {
                let query = generate::expression(&query.expr, &variables);
                let drawn = without_end(&query, &source.one, most);
                broken.extend(
                    drawn
                        .iter()
                        .map(|it| format!("{at}: as many as there are {it}")),
                );
                let unsaid = cuts(&query).into_iter().filter(|it| !says(panel, *it));
                broken.extend(unsaid.map(|it| format!("{at}: does not say that it shows {it}")));
            }
        }
    }
    none(
        "a panel shows the few that matter of 10,000 GPUs, and says so",
        &broken,
    );
}

#[test]
fn a_query_that_draws_a_line_for_each_gpu_would_be_found() {
    let power = "gpufleet_gpu_power_watts";
    for (query, expected) in [
        ("gpufleet_gpu_power_watts{node=~\"$node\"}", vec![power]),
        (
            "rate(gpufleet_gpu_power_watts{a=\"b\"}[$__rate_interval])",
            vec![power],
        ),
        (
            "sum by (cluster, gpu) (gpufleet_gpu_power_watts)",
            vec![power],
        ),
        ("sum without (uuid) (gpufleet_gpu_power_watts)", vec![power]),
        ("topk(500, gpufleet_gpu_power_watts)", vec![power]),
        ("sum(up) + gpufleet_gpu_power_watts", vec![power]),
        (
            "gpufleet_gpu_power_watts / on (node) group_left sum by (node) (up)",
            vec![power, "up"],
        ),
        ("gpufleet_gpu_power_watts{gpu=~\"$gpu\"}", vec![power]),
        ("gpufleet_gpu_power_watts{job=~\"$job\"}", vec![power]),
        ("sum(rate(gpufleet_gpu_power_watts{a=\"(\"}[1m]))", vec![]),
        ("sum by (cluster) (gpufleet_gpu_power_watts)", vec![]),
        (
            "count_values by (job) (\"gpu\", gpufleet_gpu_power_watts)",
            vec![],
        ),
        (
            "topk(20, gpufleet_gpu_power_watts - on (node, gpu) group_left (uuid) (gpufleet_gpu_power_watts))",
            vec![],
        ),
        (
            "time() - gpufleet_server_incident_since_timestamp_seconds{gpu=\"0\"}",
            vec![],
        ),
    ] {
        assert_eq!(
            without_end(query, &["job".to_owned()], MOST_LINES),
            expected,
            "{query}"
        );
    }
    let of_one_node = "gpufleet_gpu_power_watts{origin=~\"$origin\", node=~\"$node\"}";
    let one = ["node".to_owned()];
    assert_eq!(without_end(of_one_node, &one, MOST_LINES), [""; 0]);
    let beside = format!("{power} / {of_one_node}");
    assert_eq!(without_end(&beside, &one, MOST_LINES), [power]);
    assert_eq!(cuts("topk(20, a) + bottomk(7, topk)"), [20, 7]);
}

#[test]
fn only_labels_of_our_own_series_are_renamed() {
    for (query, expected) in [
        (
            "sum by (cluster, job) (gpufleet_x_total{cluster=~\"$cluster\", job!=\"job\"})",
            "sum by (exported_cluster, exported_job) (gpufleet_x_total{exported_cluster=~\"$cluster\", exported_job!=\"job\"})",
        ),
        (
            "count(up{job=\"gpufleet-agent\"} == 1)",
            "count(up{job=\"gpufleet-agent\"} == 1)",
        ),
        (
            "label_values(gpufleet_job{node=\"a\"}, cluster)",
            "label_values(gpufleet_job{node=\"a\"}, exported_cluster)",
        ),
        (
            "ALERTS{job=\"a\"} and on (job) gpufleet_y",
            "ALERTS{job=\"a\"} and on (exported_job) gpufleet_y",
        ),
        (
            "max by (cluster) (gpufleet_server_nodes and on (job, instance) gpufleet_server_leads{job=\"a\"})",
            "max by (exported_cluster) (gpufleet_server_nodes and on (job, instance) gpufleet_server_leads{job=\"a\"})",
        ),
        (
            "sum by (instance, job) (gpufleet_server_job_failures_total)",
            "sum by (instance, exported_job) (gpufleet_server_job_failures_total)",
        ),
    ] {
        assert_eq!(renamed(query), expected);
    }
}

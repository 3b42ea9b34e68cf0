//! `gpufleet fleet`: what the fleet is doing, in its clusters, models or nodes, as the page Fleet has it.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::Answer;
use crate::ask;
use crate::client::Client;
use crate::named;
use crate::table::Table;
use crate::top::Mean;
use crate::words;

/// The states in the order of the page, with the letters and words of its tiles. What is active shares one.
const STATES: [(&str, char, &str); 13] = [
    ("active_efficient", 'A', "active"),
    ("active_inefficient", 'A', "active"),
    ("active_unrated", 'A', "active"),
    ("gap", 'G', "gap"),
    ("parked", 'P', "parked"),
    ("held_empty", 'E', "held, empty"),
    ("unallocated", 'F', "free"),
    ("stalled", 'S', "stalled"),
    ("unhealthy", '!', "unhealthy"),
    ("starting_node", 'N', "starting"),
    ("starting_pod", 'N', "starting"),
    ("draining", 'D', "draining"),
    ("unobserved", '?', "not measured"),
];

/// The letter and words of a state that a newer server has.
const NEWER: (char, &str) = ('*', "in a newer state");

/// What is listed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  gpufleet fleet                   every cluster: its nodes and GPUs, and what these do
  gpufleet fleet --by model        the same by the cards' name
  gpufleet fleet --by node         every node with a letter for each of its GPUs
  gpufleet fleet --origin live --json
Who uses them: gpufleet top. Every GPU by itself: gpufleet gpus. Whether the server is well: gpufleet status.")]
pub(crate) struct Asked {
    /// One line for each cluster, each model of a cluster, or each node.
    #[arg(long, default_value = "cluster")]
    by: By,
    /// Only of this cluster.
    #[arg(long)]
    cluster: Option<String>,
    /// Only `live`, `recorded` or `simulated` ones.
    #[arg(long)]
    origin: Option<String>,
}

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Cluster,
    Model,
    Node,
}

/// What GPUs with one line do.
#[derive(Debug, Default)]
struct Line {
    nodes: BTreeSet<String>,
    models: BTreeSet<String>,
    gpus: usize,
    /// GPUs by their state's place in [`STATES`], those with an unknown one behind.
    states: BTreeMap<usize, usize>,
    /// A letter for each GPU, in the order of their indices.
    tiles: String,
    busy: Mean,
    power: Mean,
}

/// Origin, cluster, and what tells its lines apart.
type Key = (String, String, String);

/// The answer.
pub(crate) fn answer(client: &Client, asked: &Asked) -> anyhow::Result<Answer> {
    let given = ask::given([
        ("cluster", asked.cluster.as_deref()),
        ("origin", asked.origin.as_deref()),
    ]);
    let list = ask::all(client, "/gpus", &given)?;
    if list.items.is_empty() {
        named::known_place(client, asked.cluster.as_deref(), None)?;
    }
    let mut silent = given;
    silent.push(("silent", "true"));
    let silent = ask::all(client, "/nodes", &silent)?;
    let lines = lines(&list.items, asked.by);
    let text = table(&lines, asked.by)
        .text("no GPU is there; `gpufleet status` says whether the server is well");
    Ok(Answer {
        text: text + &key(&lines, asked.by) + &silent_nodes(&silent.items) + &list.note(),
        json: json!({
            "items": lines.iter().map(|(key, it)| told(key, it, asked.by)).collect::<Vec<_>>(),
            "silent_nodes": silent.items,
            "whole": list.is_whole && silent.is_whole,
        }),
        is_good: true,
    })
}

fn lines(gpus: &[Value], by: By) -> BTreeMap<Key, Line> {
    let mut lines: BTreeMap<Key, Line> = BTreeMap::new();
    for gpu in gpus {
        let [origin, cluster, node, model] =
            ["origin", "cluster", "node", "model"].map(|it| words::text(&gpu[it]));
        let name = match by {
            By::Cluster => String::new(),
            By::Model => model.clone(),
            By::Node => node.clone(),
        };
        let line = lines.entry((origin, cluster, name)).or_default();
        line.gpus += 1;
        line.nodes.insert(node);
        line.models.insert(model);
        let state = place(&gpu["state"]);
        *line.states.entry(state).or_default() += 1;
        line.tiles
            .push(STATES.get(state).map_or(NEWER.0, |it| it.1));
        line.busy.add(&gpu["readings"]["utilization_ratio"]);
        line.power.add(&gpu["readings"]["power_watts"]);
    }
    lines
}

/// The place of a state in [`STATES`]; behind them for one of a newer server.
fn place(state: &Value) -> usize {
    let found = STATES.iter().position(|it| *state == it.0);
    found.unwrap_or(STATES.len())
}

/// GPUs by the words of their states, in the order of the page.
fn by_words(line: &Line) -> Vec<(&'static str, usize)> {
    let mut found: Vec<(&'static str, usize)> = Vec::new();
    for (state, count) in &line.states {
        let word = STATES.get(*state).map_or(NEWER.1, |it| it.2);
        match found.iter_mut().find(|it| it.0 == word) {
            Some(same) => same.1 += count,
            None => found.push((word, *count)),
        }
    }
    found
}

fn table(lines: &BTreeMap<Key, Line>, by: By) -> Table {
    let heads: &[&'static str] = match by {
        By::Cluster => &["CLUSTER", ">NODES", ">GPUS", ">BUSY", ">POWER", "STATES"],
        By::Model => &[
            "CLUSTER", "MODEL", ">NODES", ">GPUS", ">BUSY", ">POWER", "STATES",
        ],
        By::Node => &[
            "CLUSTER", "NODE", "MODEL", ">GPUS", ">BUSY", ">POWER", "STATES",
        ],
    };
    let mut table = Table::new(heads);
    for ((origin, cluster, name), line) in lines {
        let mut row = vec![cluster.clone() + &words::origin(&json!(origin))];
        let states = by_words(line).into_iter();
        let states: Vec<String> = states.map(|(word, it)| format!("{it} {word}")).collect();
        match by {
            By::Cluster => row.push(line.nodes.len().to_string()),
            By::Model => row.extend([name.clone(), line.nodes.len().to_string()]),
            By::Node => row.extend([name.clone(), joined(&line.models)]),
        }
        row.extend([
            line.gpus.to_string(),
            words::percent(&json!(line.busy.mean())),
            words::kilowatts(&json!(line.power.sum())),
            match by {
                By::Node => line.tiles.clone(),
                By::Cluster | By::Model => states.join(", "),
            },
        ]);
        table.row(row);
    }
    table
}

fn joined(names: &BTreeSet<String>) -> String {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.join(", ")
}

/// What the letters mean that were shown.
fn key(lines: &BTreeMap<Key, Line>, by: By) -> String {
    let shown: BTreeSet<usize> = lines
        .values()
        .flat_map(|it| it.states.keys().copied())
        .collect();
    let mut said: Vec<String> = shown
        .iter()
        .map(|it| STATES.get(*it).map_or(NEWER, |it| (it.1, it.2)))
        .map(|(letter, word)| format!("{letter} {word}"))
        .collect();
    said.dedup();
    match (by, said.is_empty()) {
        (By::Node, false) => format!("{}\n", said.join("   ")),
        _ => String::new(),
    }
}

/// Most silent nodes that are named.
const NAMED: usize = 10;

fn silent_nodes(nodes: &[Value]) -> String {
    let names: Vec<String> = nodes
        .iter()
        .take(NAMED)
        .map(|it| words::text(&it["name"]))
        .collect();
    match (nodes.len(), nodes.len().saturating_sub(NAMED)) {
        (0, _) => String::new(),
        (count, 0) => format!("silent ({count}): {}\n", names.join(", ")),
        (count, more) => format!("silent ({count}): {} and {more} more\n", names.join(", ")),
    }
}

fn told((origin, cluster, name): &Key, line: &Line, by: By) -> Value {
    let states: BTreeMap<&str, usize> = by_words(line).into_iter().collect();
    let mut told = json!({
        "cluster": cluster,
        "origin": origin,
        "nodes": line.nodes.len(),
        "models": line.models,
        "gpus": line.gpus,
        "states": states,
        "busy_ratio": line.busy.mean(),
        "power_watts": line.power.sum(),
    });
    match by {
        By::Cluster => {}
        By::Model => told["model"] = json!(name),
        By::Node => told["node"] = json!(name),
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(origin: &str, node: &str, state: &str, watts: Value) -> Value {
        json!({"cluster": "prod", "origin": origin, "node": node, "model": "NVIDIA H100", "state": state,
            "readings": {"utilization_ratio": {"value": 0.5, "missing": null},
                "power_watts": {"value": watts, "missing": null}}})
    }

    fn gpus() -> Vec<Value> {
        vec![
            gpu("live", "n-1", "active_unrated", json!(600.0)),
            gpu("live", "n-1", "unobserved", Value::Null),
            gpu("live", "n-2", "active_efficient", json!(1_000.0)),
            gpu("live", "n-2", "made_up_later", json!(400.0)),
            gpu("simulated", "d-1", "held_empty", Value::Null),
        ]
    }

    #[test]
    fn clusters_are_counted_by_origin_and_what_is_not_measured_is_no_zero() {
        let text = table(&lines(&gpus(), By::Cluster), By::Cluster).text("");
        let expected = "CLUSTER           NODES  GPUS  BUSY   POWER  STATES\n\
             prod                  2     4  50 %  2.0 kW  2 active, 1 not measured, 1 in a newer state\n\
             prod (simulated)      1     1  50 %       –  1 held, empty\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_node_has_a_letter_for_each_gpu_and_the_letters_are_explained() {
        let lines = lines(&gpus(), By::Node);
        let text = table(&lines, By::Node).text("") + &key(&lines, By::Node);
        let expected = "CLUSTER           NODE  MODEL        GPUS  BUSY   POWER  STATES\n\
             prod              n-1   NVIDIA H100     2  50 %  0.6 kW  A?\n\
             prod              n-2   NVIDIA H100     2  50 %  1.4 kW  A*\n\
             prod (simulated)  d-1   NVIDIA H100     1  50 %       –  E\n\
             A active   E held, empty   ? not measured   * in a newer state\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn silent_nodes_are_named_up_to_a_limit() {
        let nodes = |count: usize| -> Vec<Value> {
            (0..count)
                .map(|it| json!({"name": format!("n-{it}")}))
                .collect()
        };
        assert_eq!(silent_nodes(&[]), "");
        assert_eq!(silent_nodes(&nodes(2)), "silent (2): n-0, n-1\n");
        assert!(silent_nodes(&nodes(12)).ends_with("n-9 and 2 more\n"));
    }
}

//! A cluster as nodes with a tile for each GPU. Written by hand and not by a template: at 10,000
//! GPUs every byte and every call counts.
//!
//! A tile's address goes by node and index where the index is unique, because 10,000 random UUIDs
//! alone would be 180 KB on the wire.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gpufleet_analysis::ledger::State;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;

use super::day::Day;
use crate::view::{ClusterView, Counts, GpuView, NodeView, Told};
use crate::words;
use crate::words::text::{self, Name, counted, segment};

/// From this many nodes on a cluster is drawn with small tiles and one short line per node.
const MANY_NODES: usize = 40;

/// A node name this short fits over its small tiles, characters.
const SHORT_NAME: usize = 18;

/// Kinds of card named in a cluster's heading.
const MODELS_NAMED: usize = 3;

/// A cluster ready for the template.
pub struct Cluster {
    /// Its name.
    pub name: Name,
    /// The address of the page with it alone.
    pub address: String,
    /// What live.js knows its parts by.
    pub key: String,
    /// Its GPUs in words.
    pub counts: String,
    /// Its kinds of card.
    pub models: String,
    /// Whether it is drawn with small tiles.
    pub is_many: bool,
    /// Its last day; none where it is not drawn here.
    pub day: Option<Day>,
    /// Its nodes, as list items.
    pub nodes: String,
    /// How many nodes the filter hides.
    pub hidden: usize,
}

/// Draws a cluster; with a filter only nodes that have a GPU in that state.
pub fn cluster(cluster: &ClusterView, at: Timestamp, filter: Option<State>) -> Cluster {
    let is_many = cluster.nodes.len() >= MANY_NODES;
    let mut nodes = String::with_capacity(cluster.counts.all * 128);
    let mut hidden = 0;
    let cluster_path = segment(&cluster.name);
    let shared = if is_many { shared_start(cluster) } else { 0 };
    for node in &cluster.nodes {
        if filter.is_some_and(|state| !node.gpus.iter().any(|gpu| gpu.state == state)) {
            hidden += 1;
            continue;
        }
        draw_node(
            &mut nodes,
            &Drawn {
                node,
                at,
                filter,
                is_many,
                shared,
                cluster_path: &cluster_path,
                origin: cluster.origin,
            },
        );
    }
    Cluster {
        name: Name::new(&cluster.name),
        address: format!("/clusters/{cluster_path}"),
        key: format!("{}/{}", cluster.origin.name(), cluster_path),
        counts: counts_in_words(&cluster.counts, cluster.nodes.len()),
        models: models(cluster),
        is_many,
        day: None,
        nodes,
        hidden,
    }
}

struct Drawn<'a> {
    node: &'a NodeView,
    at: Timestamp,
    filter: Option<State>,
    is_many: bool,
    /// Characters at the start of the name that all nodes of the cluster share.
    shared: usize,
    cluster_path: &'a str,
    origin: Origin,
}

/// `64 GPUs on 8 nodes: 40 active, 16 free, 8 parked`.
fn counts_in_words(counts: &Counts, nodes: usize) -> String {
    let mut out = format!(
        "{} on {}",
        counted(counts.all, "GPU", "GPUs"),
        counted(nodes, "node", "nodes")
    );
    let known = words::ORDER
        .into_iter()
        .filter(|state| counts.of(*state) > 0);
    for (index, state) in known.enumerate() {
        let word = if index == 0 { ": " } else { ", " };
        let _ = write!(
            out,
            "{word}{} {}",
            counts.of(state),
            words::look(state).name
        );
    }
    out
}

fn draw_node(out: &mut String, drawn: &Drawn<'_>) {
    let node = drawn.node;
    let node_path = segment(&node.name);
    let address = format!("/clusters/{}/nodes/{node_path}", drawn.cluster_path);
    let _ = write!(
        out,
        "<li data-live=\"{}/{node_path}\"><div class=name><a href=\"{address}\"",
        drawn.cluster_path
    );
    let name = if node.name.is_empty() {
        Name {
            text: "(node not told)".to_owned(),
            title: None,
        }
    } else {
        Name::new(&node.name)
    };
    let title = name.title.as_ref().or(drawn.is_many.then_some(&name.text));
    if let Some(title) = title {
        out.push_str(" title=\"");
        escape(out, title);
        out.push('"');
    }
    out.push('>');
    if drawn.shared > 0 {
        // All names begin alike: what tells them apart is at the end.
        out.push('…');
    }
    let told_apart: String = name.text.chars().skip(drawn.shared).collect();
    escape(out, &told_apart);
    out.push_str("</a>");
    if !drawn.is_many {
        out.push_str("<small>");
        escape(out, &summary(node));
        out.push_str("</small>");
    }
    out.push_str("</div>");
    if !node.gpus.is_empty() {
        out.push_str("<div class=tiles>");
        for (place, gpu) in node.gpus.iter().enumerate() {
            draw_tile(out, drawn, &address, place, gpu);
        }
        out.push_str("</div>");
    }
    draw_trouble(out, drawn);
    out.push_str("</li>");
}

fn draw_tile(out: &mut String, drawn: &Drawn<'_>, node_address: &str, place: usize, gpu: &GpuView) {
    let look = words::look(gpu.state);
    let gpus = &drawn.node.gpus;
    let is_dim = drawn.filter.is_some_and(|state| state != gpu.state);
    let is_alone = |index: u32| {
        // Sorted by index: an equal one would stand beside it.
        let same = |other: Option<&GpuView>| other.is_some_and(|it| it.index == Some(index));
        !(same(gpus.get(place + 1)) || place > 0 && same(gpus.get(place - 1)))
    };
    out.push_str("<a class=\"t s-");
    out.push(look.class);
    if is_dim {
        out.push_str(" dim");
    }
    out.push_str("\" href=\"");
    match gpu.index.filter(|index| is_alone(*index)) {
        Some(index) => {
            let _ = write!(out, "{node_address}/{index}");
        }
        None => {
            let id = segment(&gpu.key.id);
            let _ = write!(out, "/clusters/{}/gpus/{id}", drawn.cluster_path);
        }
    }
    out.push_str("\" tabindex=-1 title=\"");
    draw_title(out, gpu, look.name, drawn.is_many);
    out.push_str("\">");
    out.push(if gpu.is_lost() { '×' } else { look.letter });
    out.push_str("</a>");
}

/// What the tooltip says: which GPU, its state, and how busy it is.
fn draw_title(out: &mut String, gpu: &GpuView, state: &str, is_short: bool) {
    match gpu.index {
        Some(index) => {
            let _ = write!(out, "GPU {index}: {state}");
        }
        None => {
            let _ = write!(out, "GPU: {state}");
        }
    }
    if let Some(why) = words::reason(gpu.reason) {
        let _ = write!(out, " ({})", why.short);
    }
    if let Some(Ok(utilization)) = gpu.readings.utilization.filter(|_| !gpu.is_silent) {
        let _ = write!(out, ", {:.0} %", utilization * 100.0);
    }
    if is_short {
        return;
    }
    if !gpu.model.is_empty() {
        out.push_str(", ");
        escape(out, &Name::new(&gpu.model).text);
    }
    if let Some(holder) = &gpu.holder {
        out.push_str(", held by ");
        escape(out, &Name::new(holder).text);
    }
}

/// What is wrong with the node, under its tiles.
fn draw_trouble(out: &mut String, drawn: &Drawn<'_>) {
    let node = drawn.node;
    let mut say = |class: &str, said: &str| {
        let _ = write!(out, "<small class={class}>");
        escape(out, said);
        out.push_str("</small>");
    };
    if let Some(since) = node.silent_since {
        let since_words = if drawn.is_many {
            format!("silent {}", text::span(drawn.at.millis() - since.millis()))
        } else {
            format!(
                "silent since {} UTC, {}",
                text::moment(since),
                text::ago(drawn.at, since)
            )
        };
        say("warn", &since_words);
    }
    if node.gpus.iter().any(|gpu| gpu.is_one_sample) {
        say("soft", "recorded, one sample");
    } else if drawn.origin == Origin::Recorded {
        say(
            "soft",
            &format!("recording, played up to {}", text::moment(node.last_point)),
        );
    }
    if node.gpus.is_empty() && !drawn.is_many {
        say("soft", "no GPU reported");
    }
    if drawn.is_many || node.silent_since.is_some() {
        return;
    }
    for reader in &node.failing_readers {
        say("warn", &format!("reader {} fails", Name::new(reader).text));
    }
}

/// `87 % · 5.2 kW`: the node's GPUs in one glance. Only of GPUs that are seen now: what a silent node
/// last said is not what it does.
fn summary(node: &NodeView) -> String {
    let mut parts = Vec::new();
    let known = |told: fn(&GpuView) -> Told| {
        let seen = node.gpus.iter().filter(|gpu| !gpu.is_silent);
        let values: Vec<f64> = seen.filter_map(|gpu| told(gpu)?.ok()).collect();
        (!values.is_empty()).then_some(values)
    };
    if let Some(values) = known(|gpu| gpu.readings.utilization) {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        parts.push(format!("{:.0} %", mean * 100.0));
    }
    if let Some(values) = known(|gpu| gpu.readings.power) {
        parts.push(format!("{:.1} kW", values.iter().sum::<f64>() / 1000.0));
    }
    parts.join(" · ")
}

/// The kinds of card in a cluster, the commonest first: `H100 80GB HBM3, L4`.
fn models(cluster: &ClusterView) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in cluster.nodes.iter().flat_map(|node| &node.gpus) {
        if !gpu.model.is_empty() {
            *counts.entry(&gpu.model).or_default() += 1;
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let more = counts.len().saturating_sub(MODELS_NAMED);
    let mut names: Vec<String> = counts
        .into_iter()
        .take(MODELS_NAMED)
        .map(|(name, _)| text::harmless(name.trim_start_matches("NVIDIA "), 28))
        .collect();
    if more > 0 {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}

/// How many characters all node names of a cluster share at their start, where hiding them makes
/// short of long names; 0 where names are short already.
fn shared_start(cluster: &ClusterView) -> usize {
    // Sorted by name: what the first and the last share, all share.
    let (Some(first), Some(last)) = (cluster.nodes.first(), cluster.nodes.last()) else {
        return 0;
    };
    let shared = first
        .name
        .chars()
        .zip(last.name.chars())
        .take_while(|(one, other)| one == other);
    let is_short = |node: &NodeView| node.name.chars().count() <= SHORT_NAME;
    if cluster.nodes.iter().all(is_short) {
        0
    } else {
        // At least one character stays, and names are cut at their own length first.
        shared.count().min(text::SHOWN_CHARACTERS / 2)
    }
}

/// HTML's five.
pub fn escape(out: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(character),
        }
    }
}

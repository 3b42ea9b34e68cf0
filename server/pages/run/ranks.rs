//! The ranks of a run as the job page lists them.
//!
//! Limits: [`RANKS`] ranks are listed, the one that failed first before those that ended badly or are slow, and of those
//! [`SHOWN_RANKS`] are seen at once.

use std::collections::BTreeSet;
use std::sync::Arc;

use gpufleet_telemetry::catalog::{Metric, Unit, training};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::{Ended, MeshSource};

use crate::runs::facts::RankFacts;
use crate::runs::state::SILENT_AFTER;
use crate::runs::{Rank, Run};
use crate::view::FleetView;
use crate::words::address;
use crate::words::text::{self, Name, quantity};

/// Ranks listed.
const RANKS: usize = 256;

/// Ranks seen at once: the others are alike, and behind a fold.
const SHOWN_RANKS: usize = 12;

/// A rank as a row.
pub(super) struct RankLine {
    pub(super) number: u32,
    /// Whether it is the one that failed first.
    pub(super) is_first: bool,
    pub(super) node: Option<(String, Name)>,
    pub(super) gpu: Option<(String, Name)>,
    pub(super) mesh: String,
    pub(super) state: String,
    pub(super) is_bad: bool,
    pub(super) slow: String,
    pub(super) step: String,
    pub(super) memory: String,
    pub(super) exception: Option<Name>,
}

/// The ranks of a run as they are listed.
pub(super) struct RankLines {
    pub(super) shown: Vec<RankLine>,
    /// Those behind the fold.
    pub(super) others: Vec<RankLine>,
    /// How many are left out.
    pub(super) more: usize,
}

/// The ranks, the one that failed first before those that ended badly or are slow.
pub(super) fn ranks(
    run: &Run,
    now: Timestamp,
    (cluster, view): (&Arc<str>, &FleetView),
) -> RankLines {
    let first = run.facts.ending.as_ref().and_then(|it| it.first_rank);
    let judged = run.who_waits();
    let blamed = judged.map(|it| it.verdict.stragglers.as_slice());
    let blamed = blamed.unwrap_or_default();
    let ratio = |number: u32| {
        blamed
            .iter()
            .find(|it| it.rank == number)
            .map(|it| it.ratio)
    };
    let mut all: Vec<RankLine> = run
        .ranks
        .iter()
        .map(|(number, it)| RankLine {
            is_first: Some(*number) == first,
            ..rank(*number, it, ratio(*number), now, (cluster, view))
        })
        .collect();
    all.sort_by_key(|it| (!it.is_first, !it.is_bad && it.slow.is_empty(), it.number));
    let more = all.len().saturating_sub(RANKS);
    all.truncate(RANKS);
    let others = all.split_off(all.len().min(SHOWN_RANKS));
    RankLines {
        shown: all,
        others,
        more,
    }
}

/// What people call the GPU of a rank: by its index on its node where that is known.
pub(super) fn gpu_name(facts: &RankFacts, cluster: &str, view: &FleetView) -> Option<String> {
    let (_, node) = view.node(cluster, &facts.node)?;
    let gpu = node.gpus.iter().find(|it| *it.key.id == *facts.gpu)?;
    gpu.index.map(|index| format!("GPU {index}"))
}

/// How many ranks a run has, on how many nodes, and since when; none before a rank was heard of.
pub(super) fn made_of(run: &Run) -> Option<String> {
    let nodes: BTreeSet<&str> = run.ranks.values().map(|it| &*it.facts.node).collect();
    let ranks = run.ranks.len();
    let since = run
        .facts
        .started
        .map(|at| format!(", since {} UTC", text::moment(at)));
    let on = match nodes.contains("") {
        true => String::new(),
        false => format!(" on {}", text::counted(nodes.len(), "node", "nodes")),
    };
    let ranks = (ranks > 0).then(|| text::counted(ranks, "rank", "ranks"))?;
    Some(format!("{ranks}{on}{}", since.unwrap_or_default()))
}

/// Where a rank stands in the mesh and who says so; empty where nobody does.
fn mesh(facts: &RankFacts) -> String {
    let by = match facts.mesh_source {
        MeshSource::Unknown => "",
        MeshSource::Given => " (given)",
        MeshSource::Megatron => " (Megatron)",
        MeshSource::DeviceMesh => " (DeviceMesh)",
        MeshSource::Deepspeed => " (DeepSpeed)",
        MeshSource::Communicators => " (names of communicators)",
    };
    match facts.mesh.to_string() {
        mesh if mesh.is_empty() => mesh,
        mesh => mesh + by,
    }
}

fn rank(
    number: u32,
    rank: &Rank,
    slow: Option<f64>,
    now: Timestamp,
    (cluster, view): (&Arc<str>, &FleetView),
) -> RankLine {
    let facts = &rank.facts;
    let link = |page: fn(&str, &str) -> String, id: &str, name: &str| {
        (!id.is_empty()).then(|| (page(cluster, id), Name::new(name)))
    };
    let gpu = gpu_name(facts, cluster, view);
    let gpu = gpu.as_deref().unwrap_or(&facts.gpu);
    let told = |metric: Metric| facts.reading(metric.id);
    let (state, is_bad) = match &facts.end {
        Some(end) => {
            let is_bad = matches!(end.ended, Ended::Exception | Ended::Vanished);
            (
                format!("{} at {}", end.ended.name(), text::moment(end.at)),
                is_bad,
            )
        }
        None if now.since(facts.heard) >= SILENT_AFTER => (
            format!("silent, heard {}", text::ago(now, facts.heard)),
            true,
        ),
        None => ("runs".to_owned(), false),
    };
    let exception = facts.exception.as_ref();
    let memory = told(training::MEMORY_PEAK_RESERVED).zip(told(training::MEMORY_LIMIT));
    RankLine {
        number,
        is_first: false,
        node: link(address::node, &facts.node, &facts.node),
        gpu: link(address::gpu, &facts.gpu, gpu),
        mesh: mesh(facts),
        state,
        is_bad,
        slow: slow.map_or_else(String::new, |it| format!("{it:.2} × its peers")),
        step: told(training::LAST_STEP).map_or_else(|| "not told".to_owned(), text::grouped),
        memory: memory.map_or_else(
            || "not said".to_owned(),
            |(peak, limit)| {
                format!(
                    "{} of {}",
                    quantity(Unit::Bytes, peak),
                    quantity(Unit::Bytes, limit)
                )
            },
        ),
        exception: exception.map(|it| Name::new(&format!("{}: {}", it.kind, it.message))),
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::training::Mesh;

    use super::*;

    #[test]
    fn a_place_in_the_mesh_stands_with_who_says_so() {
        let mut facts = RankFacts {
            mesh: Mesh::parse("dp=1/2 tp=0/8"),
            ..RankFacts::default()
        };
        assert_eq!(mesh(&facts), "dp=1/2 tp=0/8");
        facts.mesh_source = MeshSource::Megatron;
        assert_eq!(mesh(&facts), "dp=1/2 tp=0/8 (Megatron)");
        facts.mesh = Mesh::default();
        assert_eq!(mesh(&facts), "");
    }
}

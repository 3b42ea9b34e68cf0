//! What broke a run that ended: the incidents of the GPU or node of the rank that failed first, and that GPU's name.

use gpufleet_analysis::incident::{Incident, Place};
use gpufleet_telemetry::time::NANOS_PER_SECOND;

use super::ranks;
use crate::App;
use crate::auth::Grant;
use crate::runs::facts::RankFacts;
use crate::runs::{Run, RunKey};
use crate::view::FleetView;
use crate::words::Said;

/// So long before or after the end of a run what broke its first rank begins, nanoseconds.
const AROUND: i64 = 900 * NANOS_PER_SECOND;

/// Open incidents of the GPU or node on which a run that broke off failed first, that began about when it ended.
pub(super) fn incidents(app: &App, grant: &Grant, (key, run): (&RunKey, &Run)) -> Vec<Incident> {
    let Some((first, ended)) = first(run).zip(run.facts.ended) else {
        return Vec::new();
    };
    let there = Place {
        cluster: key.cluster.to_string(),
        node: Some(first.node.to_string()).filter(|it| !it.is_empty()),
        gpu: Some(first.gpu.to_string()).filter(|it| !it.is_empty()),
        ..Place::default()
    };
    if there.node.is_none() {
        return Vec::new();
    }
    let mut open = app.incidents.open(grant);
    open.retain(|it| {
        let is_its_own = it.place.run.is_some() || it.place.node.is_none();
        let about = it.since.since(ended).abs() <= AROUND;
        !is_its_own && about && it.place.overlaps(&there)
    });
    open
}

/// The same sentence with the GPU that failed first as people call it.
pub(super) fn named(said: Said, (key, run): (&RunKey, &Run), view: &FleetView) -> Said {
    let Some(first) = first(run).filter(|it| !it.gpu.is_empty()) else {
        return said;
    };
    match ranks::gpu_name(first, &key.cluster, view) {
        Some(name) => said.renamed(&first.gpu, &name),
        None => said,
    }
}

/// The rank that failed first, of a run that broke off.
fn first(run: &Run) -> Option<&RankFacts> {
    let ending = run.facts.ending.as_ref();
    let number = ending.filter(|it| it.is_interruption())?.first_rank?;
    run.ranks.get(&number).map(|it| &it.facts)
}

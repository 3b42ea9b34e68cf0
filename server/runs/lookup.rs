//! What a page or an answer needs to know of a run beside the run itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_analysis::mfu::Utilisation;
use gpufleet_telemetry::catalog::gpu::TENSOR_ACTIVE;
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::identity::{Resource, ResourceKind};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::card::Card;
use super::utilisation::{Gpus, Hfu};
use super::{KnownRun, Run, RunKey, Runs};
use crate::App;
use crate::fleet::{Fleet, Live};
use crate::store::StoreError;
use crate::store::model::ResourceKey;

/// A run from memory, else from the store; none when neither knows it.
///
/// # Errors
/// When the database refuses.
pub async fn find(app: &App, key: &RunKey) -> Result<Option<Run>, StoreError> {
    match app.fleet.runs().get(key) {
        Some(run) => Ok(Some(run)),
        None => Ok(app.store.run(key).await?.map(Run::of_store)),
    }
}

/// What is made of a run that the store told of: of the run as it is now where it is in memory, else as the store
/// has it.
pub fn as_it_is<T>(app: &App, stored: KnownRun, make: impl Fn(&RunKey, &Run) -> T) -> T {
    let key = stored.key.clone();
    let live = app.fleet.runs().look(&key, |run| make(&key, run));
    live.unwrap_or_else(|| make(&key, &Run::of_store(stored)))
}

/// Since when steps are kept.
pub fn kept_from(app: &App, now: Timestamp) -> Timestamp {
    let days = app.config.retention.steps_d;
    now.shifted(
        days.saturating_mul(86_400)
            .saturating_mul(-NANOS_PER_SECOND),
    )
}

/// The card of a GPU or share that a rank names; none where the GPU is not reported.
pub fn card(fleet: &Fleet, cluster: &Arc<str>, gpu: &str) -> Option<Card> {
    Card::of(&live(fleet, cluster, gpu)?.resource)
}

/// MFU and HFU of a run, by what the fleet knows of its GPUs.
pub fn utilisation(
    fleet: &Fleet,
    specs: &Specs,
    (key, run): (&RunKey, &Run),
    now: Timestamp,
) -> (Result<Utilisation, String>, Result<Hfu, String>) {
    let cluster = &key.cluster;
    let tensor = |gpu: &str| {
        let live = live(fleet, cluster, gpu)?;
        live.value(TENSOR_ACTIVE.id)?.reading.ok()
    };
    let gpus = Gpus {
        card: &|gpu| card(fleet, cluster, gpu),
        tensor: &tensor,
    };
    let is_in_table = |it: &Card| !it.is_part() && specs.lookup(&it.model).is_some();
    let in_table = |gpu: &str| (gpus.card)(gpu).filter(is_in_table);
    let stated = run.mfu_of_stated_peak(in_table);
    let mfu = stated.unwrap_or_else(|| run.mfu(gpus.card, specs));
    (mfu, run.hfu(&gpus, specs, now))
}

/// What the node of a GPU or share says of itself; none where it is not reported.
pub fn node_of(fleet: &Fleet, cluster: &Arc<str>, gpu: &str) -> Option<Arc<Resource>> {
    let node = fleet.get(&ResourceKey {
        cluster: Arc::clone(cluster),
        kind: ResourceKind::Node,
        id: live(fleet, cluster, gpu)?.node,
    })?;
    Some(node.resource)
}

fn live(fleet: &Fleet, cluster: &Arc<str>, gpu: &str) -> Option<Live> {
    let key = |kind| ResourceKey {
        cluster: Arc::clone(cluster),
        kind,
        id: gpu.into(),
    };
    let found = [ResourceKind::Gpu, ResourceKind::Share].into_iter();
    found.filter_map(|kind| fleet.get(&key(kind))).next()
}

impl Runs {
    /// Of each of these GPUs the last started run that has a rank on it, with that rank, of those that
    /// have not ended. One pass over all ranks of the cluster.
    pub fn on_gpus<'a>(
        &self,
        cluster: &str,
        gpus: &BTreeSet<&'a str>,
    ) -> BTreeMap<&'a str, (RunKey, u32)> {
        let known = self.lock();
        let mut found: BTreeMap<&str, (Option<Timestamp>, &RunKey, u32)> = BTreeMap::new();
        let runs = known.runs.iter();
        for (key, run) in
            runs.filter(|(key, run)| *key.cluster == *cluster && run.facts.ended.is_none())
        {
            for (number, rank) in run.living() {
                let Some(gpu) = gpus.get(&*rank.facts.gpu) else {
                    continue;
                };
                let is_later = |it: &(Option<Timestamp>, &RunKey, u32)| it.0 < run.facts.started;
                if found.get(gpu).is_none_or(is_later) {
                    found.insert(gpu, (run.facts.started, key, *number));
                }
            }
        }
        let named = found.into_iter();
        named
            .map(|(gpu, (_, key, rank))| (gpu, (key.clone(), rank)))
            .collect()
    }
}

//! What a page or an answer needs to know of a run beside the run itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
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

/// What the fleet knows of a GPU or share that a rank names.
struct Seen {
    resource: Arc<Resource>,
    node: Arc<str>,
    /// The share of time in which its tensor cores were active lately.
    tensor: Option<f64>,
}

/// The GPUs and shares that the ranks of a run name, each looked up once; without those that are not reported.
pub struct GpusSeen<'a>(HashMap<&'a str, Seen>);

impl<'a> GpusSeen<'a> {
    /// As they are now.
    pub fn of(fleet: &Fleet, (key, run): (&RunKey, &'a Run)) -> Self {
        let gpus = run.gpus().into_iter();
        let seen = gpus.filter_map(|gpu| Some((gpu, look(fleet, &key.cluster, gpu, Seen::of)?)));
        Self(seen.collect())
    }

    /// The card of one.
    pub fn card(&self, gpu: &str) -> Option<Card> {
        Card::of(&self.0.get(gpu)?.resource)
    }

    /// The node that one is on.
    pub fn node(&self, gpu: &str) -> Option<&Arc<str>> {
        self.0.get(gpu).map(|it| &it.node)
    }

    fn tensor(&self, gpu: &str) -> Option<f64> {
        self.0.get(gpu)?.tensor
    }
}

impl Seen {
    fn of(live: &Live) -> Self {
        let tensor = live.value(TENSOR_ACTIVE.id);
        Self {
            resource: Arc::clone(&live.resource),
            node: Arc::clone(&live.node),
            tensor: tensor.and_then(|it| it.reading.ok()),
        }
    }
}

/// MFU and HFU of a run, by what the fleet knows of its GPUs.
pub fn utilisation(
    fleet: &Fleet,
    specs: &Specs,
    (key, run): (&RunKey, &Run),
    now: Timestamp,
) -> (Result<Utilisation, String>, Result<Hfu, String>) {
    let seen = GpusSeen::of(fleet, (key, run));
    let gpus = Gpus {
        card: &|gpu| seen.card(gpu),
        tensor: &|gpu| seen.tensor(gpu),
    };
    (mfu_on(gpus.card, specs, run), run.hfu(&gpus, specs, now))
}

/// MFU alone, as [`utilisation`] has it.
///
/// # Errors
/// A sentence that says why there is none.
pub fn mfu(
    fleet: &Fleet,
    specs: &Specs,
    (key, run): (&RunKey, &Run),
) -> Result<Utilisation, String> {
    let seen = GpusSeen::of(fleet, (key, run));
    mfu_on(&|gpu| seen.card(gpu), specs, run)
}

/// MFU of a run on these cards: against their peak, or that which the run states of what is in no table.
fn mfu_on(
    card: &dyn Fn(&str) -> Option<Card>,
    specs: &Specs,
    run: &Run,
) -> Result<Utilisation, String> {
    let is_in_table = |it: &Card| !it.is_part() && specs.lookup(&it.model).is_some();
    let stated = run.mfu_of_stated_peak(|gpu| card(gpu).filter(is_in_table));
    stated.unwrap_or_else(|| run.mfu(card, specs))
}

/// What a node says of itself; none where it is not reported.
pub fn node(fleet: &Fleet, cluster: &Arc<str>, name: &Arc<str>) -> Option<Arc<Resource>> {
    let key = ResourceKey {
        cluster: Arc::clone(cluster),
        kind: ResourceKind::Node,
        id: Arc::clone(name),
    };
    fleet.look(&key, |it| Arc::clone(&it.resource))
}

/// Shows a GPU or share to `look`.
fn look<T>(fleet: &Fleet, cluster: &Arc<str>, gpu: &str, look: impl Fn(&Live) -> T) -> Option<T> {
    let key = |kind| ResourceKey {
        cluster: Arc::clone(cluster),
        kind,
        id: gpu.into(),
    };
    let mut kinds = [ResourceKind::Gpu, ResourceKind::Share].into_iter();
    kinds.find_map(|kind| fleet.look(&key(kind), &look))
}

impl Runs {
    /// Of each of these GPUs the last started run that has a rank on it, with that rank, of those that
    /// have not ended. One pass over all ranks of the cluster, one run at a time: data that comes in waits for the runs.
    pub fn on_gpus<'a>(
        &self,
        cluster: &str,
        gpus: &BTreeSet<&'a str>,
    ) -> BTreeMap<&'a str, (RunKey, u32)> {
        let mut found: BTreeMap<&str, (Option<Timestamp>, (RunKey, u32))> = BTreeMap::new();
        let keys = self.keys().into_iter();
        for key in keys.filter(|it| *it.cluster == *cluster) {
            self.look(&key, |run| {
                let started = run.facts.started;
                let living = run.living().filter(|_| run.facts.ended.is_none());
                for (number, rank) in living {
                    let Some(gpu) = gpus.get(&*rank.facts.gpu) else {
                        continue;
                    };
                    if found.get(gpu).is_none_or(|it| it.0 < started) {
                        found.insert(gpu, (started, (key.clone(), *number)));
                    }
                }
            });
        }
        let found = found.into_iter();
        found.map(|(gpu, (_, run))| (gpu, run)).collect()
    }
}

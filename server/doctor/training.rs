//! What training does not tell: GPUs at work of which no run says anything, and runs whose collectives
//! nobody counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_analysis::owner::Holder;
use gpufleet_telemetry::catalog::training;
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::training::CollectivesFrom as From;

use super::{Finding, Look, Looked, Place};
use crate::App;
use crate::runs::{Run, RunKey, State};
use crate::view::{FleetView, GpuView};
use crate::words::text::counted;
use crate::words::{self, address};

/// A run that goes on.
#[derive(Debug)]
pub(super) struct Running {
    key: RunKey,
    gpus: usize,
    /// Where its collectives are known from, or why not; none when no agent says it.
    from: Option<From>,
}

/// Live runs that go on, of what a reader may see.
pub(super) fn running(app: &App, view: &FleetView) -> Vec<Running> {
    let live: BTreeSet<&str> = view.of(Origin::Live).map(|it| &*it.name).collect();
    let runs = app.fleet.runs();
    let keys = runs.keys().into_iter();
    let keys = keys.filter(|it| live.contains(&*it.cluster));
    let look = |key: RunKey| {
        let seen = |run: &Run| {
            let goes_on = run.state(view.at) == State::Running;
            (goes_on && run.facts.origin == Origin::Live).then(|| (run.gpu_count(), from(run)))
        };
        let (gpus, from) = runs.look(&key, seen)??;
        Some(Running { key, gpus, from })
    };
    keys.filter_map(look).collect()
}

/// What the rank that stands for a run says of its collectives.
fn from(run: &Run) -> Option<From> {
    let (_, rank) = run.speaker()?;
    let code = rank.facts.reading(training::COLLECTIVES_FROM.id)?;
    From::from_number(code as u64)
}

/// GPUs at work for a job that tells nothing of itself.
pub(super) fn hooks(look: &Look<'_>) -> Looked {
    // Jobs by name, each with its GPUs and the page of the first.
    let mut silent: BTreeMap<(Arc<str>, String), (usize, String)> = BTreeMap::new();
    for cluster in look.view.of(Origin::Live) {
        let gpus = cluster.nodes.iter().flat_map(|it| &it.gpus);
        let shares = gpus.flat_map(GpuView::with_shares);
        let works = |it: &&GpuView| it.state.is_active() && it.holder.is_some();
        let working: Vec<_> = shares.filter(works).collect();
        let ids = working.iter().map(|it| &*it.key.id).collect();
        let told = look.app.fleet.runs().on_gpus(&cluster.name, &ids);
        for one in working.iter().filter(|it| !told.contains_key(&*it.key.id)) {
            let known = look.found.gpu(&cluster.name, &one.key.id);
            let holder = known.and_then(|it| Holder::told_by(&it.resource));
            let job = match holder {
                Some(holder) if !holder.job.is_empty() => holder.job,
                _ => one.holder.as_deref().unwrap_or_default().to_owned(),
            };
            let place = (Arc::clone(&cluster.name), job);
            let address = || address::gpu(&cluster.name, &one.key.id);
            silent.entry(place).or_insert_with(|| (0, address())).0 += 1;
        }
    }
    let mut all: Vec<Finding> = of_unknown_rank(look).into_iter().collect();
    if silent.is_empty() {
        return Ok(all);
    }
    let gpus = silent.values().map(|it| it.0).sum();
    let what = format!(
        "{} at work for {} of whose steps nothing is told",
        counted(gpus, "GPU is", "GPUs are"),
        counted(silent.len(), "job", "jobs")
    );
    let places = silent.iter().map(|((cluster, job), (_, address))| Place {
        name: format!("{job} in {cluster}"),
        address: Some(address.clone()),
    });
    let found = Finding::new(Severity::Info, "hooks", what)
        .missing("Of those that train: steps, MFU, goodput, which rank is slow, why a run ended and what it lost")
        .fix("Two lines before the loop of the training script, and a mount of the agent's socket (docs/hooks.md). What serves a model has no steps and needs none.")
        .line("import gpufleet\ngpufleet.watch(model, optimizer, loader)")
        .at(places);
    all.push(Finding { gpus, ..found });
    Ok(all)
}

/// Processes that train and do not say which rank they are; those with our NCCL plugin alone among them.
fn of_unknown_rank(look: &Look<'_>) -> Option<Finding> {
    let (places, count) = &look.seen.rank_unknown;
    if places.is_empty() {
        return None;
    }
    let what = counted(
        *count as usize,
        "training process does not say which rank it is",
        "training processes do not say which rank they are",
    );
    let found = Finding::new(Severity::Warning, "hooks-rank-unknown", what)
        .missing("These processes on every job's page: their steps, their collectives, and why they ended")
        .fix("Our NCCL plugin alone says nothing of its process: the script imports the package. Where nothing else tells its ranks apart (the launcher's variables, torch.distributed, JAX, Ray), it says which it is (docs/hooks.md).")
        .line("gpufleet.init(rank=…, world=…)")
        .on(places);
    Some(found)
}

/// Runs whose collectives nobody counts.
pub(super) fn collectives(look: &Look<'_>) -> Looked {
    let mut by_reason: BTreeMap<Option<From>, Vec<&Running>> = BTreeMap::new();
    for run in &look.runs {
        if run.from.is_none_or(is_none) {
            by_reason.entry(run.from).or_default().push(run);
        }
    }
    let finding = |(from, runs): (Option<From>, Vec<&Running>)| {
        let what = format!(
            "Collectives of {} are not counted. {}",
            counted(runs.len(), "run", "runs"),
            words::no_collectives(from)
        );
        let id = from.map_or("not_said", From::name);
        let places = runs.iter().map(|run| Place {
            name: format!("{} in {}", run.key.run.job.name, run.key.cluster),
            address: Some(address::run(&run.key)),
        });
        let found = Finding::new(Severity::Info, format!("collectives-{id}"), what)
            .missing("Bytes and time of each collective; when a run hangs, in which collective and which rank is not in it")
            .fix("docs/collectives.md says how to load the plugin, or to have NCCL's RAS service asked.")
            .line("export NCCL_PROFILER_PLUGIN=/opt/gpufleet/libgpufleet-nccl-profiler.so")
            .at(places);
        let gpus = runs.iter().map(|it| it.gpus).sum();
        Finding { gpus, ..found }
    };
    Ok(by_reason.into_iter().map(finding).collect())
}

/// Whether nothing is known of collectives, though there could be.
const fn is_none(from: From) -> bool {
    match from {
        From::Plugin
        | From::PluginUntimed
        | From::Silent
        | From::Ras
        | From::Inspector
        | From::OneRank
        | From::NotYet => false,
        From::SwitchedOff
        | From::NotLoaded
        | From::OtherPlugin
        | From::NotAsked
        | From::OtherNamespace
        | From::NoAnswer
        | From::OldNccl
        | From::NotInAnswer => true,
    }
}

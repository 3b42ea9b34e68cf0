//! Whose an incident is: who pays for the run, the GPU or the job that it is about, by the owner rules. And whose a run
//! is, also one that is over.

use gpufleet_analysis::incident::Place;
use gpufleet_analysis::ledger::State;
use gpufleet_analysis::owner::{Holder, Owners, Payer};
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::RunId;

use super::now::MoneySnapshot;
use crate::fleet::{Fleet, Live};
use crate::runs::{Run, RunKey, State as RunState};
use crate::store::model::ResourceKey;
use crate::view::judge::judge;

/// The team that pays for what lies at a place: of a run who pays for the first of its GPUs that is known. None
/// where no rule names one, where nobody holds it, and of a whole node or cluster, which may be many people's.
pub fn of_place(fleet: &Fleet, owners: &Owners, place: &Place, now: Timestamp) -> Option<String> {
    let of_gpu = |gpu: &str| {
        let kinds = [ResourceKind::Gpu, ResourceKind::Share].into_iter();
        let live = kinds.filter_map(|kind| {
            fleet.get(&ResourceKey {
                cluster: place.cluster.as_str().into(),
                kind,
                id: gpu.into(),
            })
        });
        live.filter_map(|it| of_live(&it, owners, now, |_| true))
            .next()
    };
    let of_run = |run: &str| {
        let key = RunKey {
            cluster: place.cluster.as_str().into(),
            run: RunId::parse(run).ok()?,
        };
        fleet.runs().gpus(&key).iter().find_map(|it| of_gpu(it))
    };
    let run = place.run.as_deref();
    run.and_then(of_run)
        .or_else(|| place.gpu.as_deref().and_then(of_gpu))
        .or_else(|| of_job(fleet, owners, (&place.cluster, run?), now))
}

/// Who pays for a job that tells no run: who pays for the first of its GPUs that is met.
fn of_job(
    fleet: &Fleet,
    owners: &Owners,
    (cluster, job): (&str, &str),
    now: Timestamp,
) -> Option<String> {
    let mut found = None;
    fleet.visit(|live| {
        let is_here = *live.key.cluster == *cluster;
        if found.is_none() && is_here && live.key.kind != ResourceKind::Node {
            found = of_live(live, owners, now, |it| it.job == job);
        }
    });
    found
}

fn of_live(
    live: &Live,
    owners: &Owners,
    now: Timestamp,
    is_it: impl Fn(&Holder) -> bool,
) -> Option<String> {
    let holder = Holder::told_by(&live.resource).filter(is_it)?;
    if judge(live, now).state == State::Unallocated {
        return None;
    }
    match owners.payer(&live.key.cluster, &holder, now.millis()) {
        Payer::Team(team) => Some(team),
        Payer::Unowned | Payer::Nobody => None,
    }
}

/// Who pays for a run: who pays for the first of its GPUs that is known to be held, of one that does not run for one that
/// its job still holds; else what a rule knows of its namespace. None where nobody can say.
pub fn of_run(
    found: &MoneySnapshot,
    owners: &Owners,
    (key, run): (&RunKey, &Run),
    now: Timestamp,
) -> Option<Payer> {
    let (gpus, state) = (run.gpus().into_iter(), run.state(now));
    let held = match state {
        RunState::Running => {
            let mut payers = gpus.filter_map(|it| Some(&found.gpu(&key.cluster, it)?.payer));
            payers.find(|it| **it != Payer::Nobody).cloned()
        }
        RunState::Silent { .. } | RunState::Ended { .. } => still_holding(found, key, gpus),
    };
    held.or_else(|| by_name(owners, key, state.until(now)))
}

/// Who pays for the first of these GPUs that is still told to be held by the job of a run; others may have them by now.
pub fn still_holding<'a>(
    found: &MoneySnapshot,
    key: &RunKey,
    gpus: impl IntoIterator<Item = &'a str>,
) -> Option<Payer> {
    let job = &key.run.job.name;
    let known = gpus.into_iter();
    let mut known = known.filter_map(|it| found.gpu(&key.cluster, it));
    let still = known.find(|it| Holder::told_by(&it.resource).is_some_and(|it| it.is_called(job)));
    still.map(|it| it.payer.clone())
}

/// Who pays for a run at a moment by its cluster and its job's namespace alone; none where no rule knows it.
pub fn by_name(owners: &Owners, key: &RunKey, at: Timestamp) -> Option<Payer> {
    let job = &key.run.job;
    let holder = Holder {
        name: job.name.clone(),
        namespace: job.namespace.clone(),
        job: job.name.clone(),
        ..Holder::default()
    };
    let payer = owners.payer(&key.cluster, &holder, at.millis());
    (payer != Payer::Unowned).then_some(payer)
}

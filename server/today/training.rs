//! Rows of waste of training: runs that broke off in the last day, and runs below the target of their use.
//!
//! A run that broke off lost the steps since its last checkpoint, at the pace and on the GPUs that it had;
//! the time that it was down is in the rows of its idle GPUs. A target is the job's own, its team's or everybody's from
//! the tables, else what one of four runs like it reached ([`Reached`](crate::money::savings::reached::Reached)), else the
//! shipped one, [`DEFAULT_MFU`]; a run that says no FLOPs is compared with none.
//!
//! No GPU is looked up while runs are locked: a tick of data holds a shard of the fleet when it comes to
//! the runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_analysis::adviser::advise;
use gpufleet_analysis::ending::Cause;
use gpufleet_analysis::lost::WHOLE_GPU;
use gpufleet_analysis::owner::Holder;
use gpufleet_telemetry::identity::{Origin, attribute};
use gpufleet_telemetry::training::JobId;

use super::waste::{Kind, Waste};
use super::{Look, owner};
use crate::App;
use crate::money::savings::reached::Like;
use crate::runs::advice::profile;
use crate::runs::{KnownRun, Run, RunKey, State};
use crate::words::address;
use crate::words::text::{SHOWN_CHARACTERS, counted, grouped, harmless};

/// The share of a card's dense peak that training is measured by where nobody says another.
const DEFAULT_MFU: f64 = 0.40;

/// Seconds of a day.
const DAY_S: f64 = 86_400.0;

/// Runs below their target that the adviser looks at: the dearest.
const ADVISED: usize = 5;

/// Runs that are compared with no target.
#[derive(Debug, Default)]
pub(super) struct Unrated {
    /// How many.
    pub(super) count: usize,
    /// Some of them by name, each with what it lacks.
    pub(super) named: Vec<String>,
}

/// How many of them are named: who wants them all has the page of jobs.
const NAMED: usize = 3;

impl Unrated {
    fn note(&mut self, key: &RunKey, why: &str) {
        self.count += 1;
        if self.named.len() < NAMED {
            let name = harmless(&key.run.job.name, SHOWN_CHARACTERS);
            // The row says already that it is not known.
            let why = why.split_once(": ").map_or(why, |it| it.1);
            self.named.push(format!("{name} ({why})"));
        }
    }
}

/// What a run computes with.
pub(super) struct Brief {
    step_s: Option<f64>,
    gpus: BTreeSet<String>,
    count: usize,
}

impl Brief {
    fn of(run: &Run) -> Self {
        Self {
            step_s: run.step_seconds(),
            gpus: run.gpus().into_iter().map(str::to_owned).collect(),
            count: run.gpu_count(),
        }
    }

    /// Nano-units that one of its GPUs costs a second, mean over them; none where one has no price.
    fn second(&self, look: &Look<'_>, cluster: &str) -> Option<f64> {
        let prices = self
            .gpus
            .iter()
            .map(|it| look.found.gpu(cluster, it)?.second);
        let prices: Option<Vec<i64>> = prices.collect();
        let prices = prices.filter(|it| !it.is_empty())?;
        Some(prices.iter().map(|it| *it as f64).sum::<f64>() / prices.len() as f64)
    }
}

/// Runs below their target, and by origin those that are compared with none.
pub(super) fn below_target(look: &Look<'_>) -> (Vec<Waste>, BTreeMap<Origin, Unrated>) {
    let runs = look.app.fleet.runs();
    let mut unrated: BTreeMap<Origin, Unrated> = BTreeMap::new();
    let mut below: Vec<(RunKey, Waste)> = Vec::new();
    for key in runs.keys() {
        let Some(origin) = look.origin(&key.cluster) else {
            continue;
        };
        let card = |gpu: &str| {
            let known = look.found.gpu(&key.cluster, gpu)?;
            let model = known.resource.attribute(attribute::GPU_MODEL);
            model.map(str::to_owned)
        };
        let seen = runs.look(&key, |run| {
            let is_on = run.state(look.at) == State::Running && run.stands_since(look.at).is_none();
            is_on.then(|| {
                let like = Like::of(run, card);
                (run.mfu(card, look.specs), like, Brief::of(run))
            })
        });
        match seen.flatten() {
            None => {}
            Some((Err(why), ..)) => unrated.entry(origin).or_default().note(&key, &why),
            Some((Ok(mfu), like, brief)) => {
                let (target, whose) = aim(look, &key, &brief, like.as_ref());
                if mfu.ratio < target {
                    let row = of_slow(look, &key, (mfu.ratio, target, &whose), &brief);
                    below.push((key, row));
                }
            }
        }
    }
    below.sort_by_key(|(_, it)| std::cmp::Reverse((it.day_cost, it.milli_gpus)));
    for (key, row) in below.iter_mut().take(ADVISED) {
        row.action = advice(look, key).unwrap_or_else(|| row.action.clone());
    }
    (below.into_iter().map(|it| it.1).collect(), unrated)
}

/// What a run is held against, and whose word that is.
fn aim(look: &Look<'_>, key: &RunKey, brief: &Brief, like: Option<&Like>) -> (f64, String) {
    let usual = look.reached.zip(like);
    let usual = usual.and_then(|(reached, like)| reached.usual(like));
    match (target(look, key, brief), usual) {
        (Some(own), _) => (own, "from the tables".to_owned()),
        (None, Some(it)) => {
            let runs = counted(it.runs, "run", "runs");
            (it.mfu, format!("75th percentile of {runs} like it"))
        }
        (None, None) => (DEFAULT_MFU, "default".to_owned()),
    }
}

/// What tables aim at for a run, by the holder of the first of its GPUs that is known.
fn target(look: &Look<'_>, key: &RunKey, brief: &Brief) -> Option<f64> {
    let mut known = brief
        .gpus
        .iter()
        .filter_map(|it| look.found.gpu(&key.cluster, it));
    let holder = known.find_map(|it| Holder::told_by(&it.resource));
    let job = &key.run.job;
    let mut holder = holder.unwrap_or_else(|| Holder {
        namespace: job.namespace.clone(),
        ..Holder::default()
    });
    if !holder.is_called(&job.name) {
        // Who holds the GPUs calls it otherwise, or nobody told who does.
        holder.job.clone_from(&job.name);
    }
    look.targets.mfu(&key.cluster, &holder, look.at.millis())
}

fn of_slow(
    look: &Look<'_>,
    key: &RunKey,
    (mfu, target, whose): (f64, f64, &str),
    brief: &Brief,
) -> Waste {
    let missing = 1.0 - mfu / target;
    let gpus = brief.count as f64 * missing;
    let second = brief.second(look, &key.cluster);
    Waste {
        kind: Kind::BelowTarget,
        what: format!(
            "MFU {:.1} % on {}, below the target of {:.0} % ({whose})",
            mfu * 100.0,
            counted(brief.count, "GPU", "GPUs"),
            target * 100.0
        ),
        milli_gpus: (gpus * WHOLE_GPU as f64).round() as u64,
        day_cost: second.map(|it| (it * gpus * DAY_S) as i128),
        action: "Its page says where the time goes.".to_owned(),
        status: "active, so in no sum".to_owned(),
        ..of_run(look, key, brief.count)
    }
}

/// What the adviser would change first.
fn advice(look: &Look<'_>, key: &RunKey) -> Option<String> {
    let run = look.app.fleet.runs().get(key)?;
    let profile = profile(key, &run, &look.app.fleet, None, look.specs)?;
    let first = advise(&profile).into_iter().next()?;
    let today = first.knob.today.as_deref().unwrap_or("not told");
    let knob = &first.knob;
    let gain = match first.gain() {
        Ok(gain) => format!("about {gain:.2} × as fast"),
        Err(_) => "gain unknown".to_owned(),
    };
    Some(format!(
        "First: {} from {today} to {}, {gain}.",
        knob.name, knob.proposed
    ))
}

/// What each of these runs computed with, where that is known.
pub(super) async fn briefs(app: &App, runs: &[KnownRun]) -> Vec<Option<Brief>> {
    let mut briefs = Vec::with_capacity(runs.len());
    for run in runs {
        briefs.push(brief(app, &run.key).await);
    }
    briefs
}

async fn brief(app: &App, key: &RunKey) -> Option<Brief> {
    if let Some(brief) = app.fleet.runs().look(key, Brief::of) {
        return Some(brief);
    }
    match app.store.run(key).await {
        Ok(known) => known.map(|it| Brief::of(&Run::of_store(it))),
        Err(error) => {
            tracing::error!(%error, "a run that broke off cannot be read");
            None
        }
    }
}

/// Jobs whose attempts broke off, each with what it computed with, by what was lost to it in the last day.
pub(super) fn failed(look: &Look<'_>, runs: &[KnownRun], briefs: &[Option<Brief>]) -> Vec<Waste> {
    let mut jobs: BTreeMap<(&Arc<str>, &JobId), Broken<'_>> = BTreeMap::new();
    for (run, brief) in runs.iter().zip(briefs) {
        let job = jobs.entry((&run.key.cluster, &run.key.run.job));
        let job = job.or_default();
        job.attempts.push(run);
        job.losses.push(lost(look, run, brief.as_ref()));
    }
    let jobs = jobs.into_values();
    jobs.filter_map(|it| of_job(look, &it.attempts, &it.losses))
        .collect()
}

/// The attempts of a job that broke off, and what each lost.
#[derive(Default)]
struct Broken<'a> {
    attempts: Vec<&'a KnownRun>,
    losses: Vec<Loss>,
}

/// What an attempt that broke off lost.
struct Loss {
    steps: Option<u64>,
    gpu_s: Option<f64>,
    cost: Option<i128>,
    gpus: usize,
}

fn lost(look: &Look<'_>, attempt: &KnownRun, brief: Option<&Brief>) -> Loss {
    let steps = attempt.facts.ending.as_ref().and_then(|it| it.steps_lost);
    let gpus = brief.map_or(0, |it| it.count);
    let step_s = brief.and_then(|it| it.step_s);
    let gpu_s = steps
        .zip(step_s)
        .map(|(steps, each)| steps as f64 * each * gpus as f64);
    let second = brief.and_then(|it| it.second(look, &attempt.key.cluster));
    let cost = gpu_s
        .zip(second)
        .map(|(seconds, price)| (seconds * price) as i128);
    Loss {
        steps,
        gpu_s,
        cost,
        gpus,
    }
}

fn of_job(look: &Look<'_>, attempts: &[&KnownRun], losses: &[Loss]) -> Option<Waste> {
    let last = attempts.iter().max_by_key(|it| it.facts.ended)?;
    let ending = last.facts.ending.as_ref()?;
    let gpu_s: f64 = losses.iter().filter_map(|it| it.gpu_s).sum();
    let cost = known_cost(losses);
    let gpus = losses.iter().map(|it| it.gpus).max().unwrap_or(0);
    Some(Waste {
        kind: Kind::FailedRun,
        what: format!(
            "{} broke off in the last day{}; the last: {}",
            counted(attempts.len(), "attempt", "attempts"),
            lost_words(losses),
            ending.sentence.trim_end_matches('.')
        ),
        // As if it were lost all day long.
        milli_gpus: (gpu_s / DAY_S * WHOLE_GPU as f64).round() as u64,
        day_cost: cost,
        unpriced: if cost.is_none() { gpus } else { 0 },
        since: last.facts.ended,
        action: action(ending.cause()).to_owned(),
        status: "over".to_owned(),
        ..of_run(look, &last.key, gpus)
    })
}

/// What is known of what attempts cost: one that nobody knows it of does not take it from the others.
fn known_cost(losses: &[Loss]) -> Option<i128> {
    let known: Vec<i128> = losses.iter().filter_map(|it| it.cost).collect();
    (!known.is_empty()).then(|| known.iter().sum())
}

/// What attempts lost, and of how many that is not known, as words behind how many there were.
fn lost_words(losses: &[Loss]) -> String {
    let known: Vec<u64> = losses.iter().filter_map(|it| it.steps).collect();
    let steps: u64 = known.iter().sum();
    let again = match (steps, known.len() == losses.len()) {
        (0, true) => ", no step lost".to_owned(),
        (0, false) => ", how many steps were lost is not known".to_owned(),
        (_, true) => format!(", {} steps done again", grouped(steps as f64)),
        (_, false) => format!(", at least {} steps done again", grouped(steps as f64)),
    };
    let unpriced = losses.iter().filter(|it| it.cost.is_none()).count();
    // Where nobody knows it of any, the page says so of the whole.
    match unpriced == 0 || unpriced == losses.len() {
        true => again,
        false => format!("{again}, what {unpriced} of them cost is not known"),
    }
}

fn of_run(look: &Look<'_>, key: &RunKey, gpus: usize) -> Waste {
    Waste {
        kind: Kind::FailedRun,
        cluster: Arc::clone(&key.cluster),
        place: key.run.job.name.clone(),
        address: address::run(key),
        what: String::new(),
        milli_gpus: (gpus as u64).saturating_mul(WHOLE_GPU),
        day_cost: None,
        unpriced: 0,
        since: None,
        owner: owner(look.owner_of_run(key)),
        action: String::new(),
        status: String::new(),
        incident: None,
    }
}

const fn action(cause: Option<Cause>) -> &'static str {
    match cause {
        Some(Cause::NodeLost) => "Look at the node; save checkpoints more often if it stays so.",
        Some(Cause::GpuFault) => "Drain the GPU that failed before the job lands there again.",
        Some(Cause::HostOutOfMemory) => "Give the pod more memory, or the loader fewer workers.",
        Some(Cause::Preempted) => "Save checkpoints more often, or take capacity that stays.",
        Some(Cause::Evicted) => "Look why the pod was thrown out: limits, priority, a drain.",
        Some(Cause::CudaOutOfMemory) => "Make the batch smaller, or recompute activations.",
        Some(Cause::Exception) => "Its page has the exception and the rank it came from.",
        Some(Cause::CollectiveTimeout) => "Its page names the rank that the others waited for.",
        _ => "Its page says what was looked at.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(steps: Option<u64>, cost: Option<i128>) -> Loss {
        Loss {
            steps,
            gpu_s: None,
            cost,
            gpus: 8,
        }
    }

    #[test]
    fn what_is_known_of_one_attempt_is_told_beside_what_is_not_known_of_another() {
        let told = |all: &[Loss]| (known_cost(all), lost_words(all));
        assert_eq!(
            told(&[loss(Some(20), Some(5)), loss(Some(1), Some(2))]),
            (Some(7), ", 21 steps done again".to_owned())
        );
        assert_eq!(
            told(&[loss(Some(20), Some(5)), loss(Some(1_000), None)]),
            (
                Some(5),
                ", 1\u{202f}020 steps done again, what 1 of them cost is not known".to_owned()
            )
        );
        assert_eq!(
            told(&[loss(None, None), loss(Some(20), Some(5))]),
            (
                Some(5),
                ", at least 20 steps done again, what 1 of them cost is not known".to_owned()
            )
        );
        assert_eq!(
            told(&[loss(None, None)]),
            (None, ", how many steps were lost is not known".to_owned())
        );
        assert_eq!(
            told(&[loss(Some(0), Some(0))]),
            (Some(0), ", no step lost".to_owned())
        );
    }
}

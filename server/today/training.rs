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
use gpufleet_analysis::owner::{Holder, Payer};
use gpufleet_telemetry::identity::{Origin, ResourceKind};
use gpufleet_telemetry::time::{Minute, Timestamp};
use gpufleet_telemetry::training::JobId;

use super::waste::{Kind, Waste};
use super::{Look, owner};
use crate::money::payer;
use crate::money::savings::reached::Like;
use crate::runs::advice::profile;
use crate::runs::card::Card;
use crate::runs::{KnownRun, Run, RunKey, State};
use crate::store::model::ResourceKey;
use crate::store::{Store, StoreError};
use crate::words::address;
use crate::words::text::{SHOWN_CHARACTERS, counted, grouped, harmless};

/// The share of a card's dense peak that training is measured by where nobody says another.
const DEFAULT_MFU: f64 = 0.40;

/// Seconds of a day.
const DAY_S: f64 = 86_400.0;

/// Runs below their target that the adviser looks at: the dearest.
const ADVISED: usize = 5;

/// GPUs of a run that ended of which it is asked who held them: the first that is known says it.
const ASKED_GPUS: usize = 3;

/// Minutes before its end in which somebody must have held them.
const HELD_MINUTES: i64 = 10;

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
struct Brief {
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
            Card::of(&known.resource)
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

/// Jobs whose attempts broke off, by what was lost to it in the last day.
pub(super) async fn failed(look: &Look<'_>, runs: &[KnownRun]) -> Vec<Waste> {
    let mut jobs: BTreeMap<(&Arc<str>, &JobId), Vec<&KnownRun>> = BTreeMap::new();
    for run in runs {
        let job = (&run.key.cluster, &run.key.run.job);
        jobs.entry(job).or_default().push(run);
    }
    let mut rows = Vec::new();
    for attempts in jobs.into_values() {
        let mut losses = Vec::with_capacity(attempts.len());
        for attempt in &attempts {
            losses.push(lost(look, attempt).await);
        }
        let last = attempts.iter().zip(&losses);
        let last = last.max_by_key(|(it, _)| it.facts.ended);
        let payer = match last {
            Some((attempt, loss)) => who_paid(look, attempt, &loss.cards).await,
            None => None,
        };
        rows.extend(of_job(look, &attempts, &losses, payer.as_ref()));
    }
    rows
}

/// Who paid for a run that ended: who pays for a GPU that is still told to be held by its job, else for who held one by
/// the minutes before the end, else what a rule knows of its namespace. Whoever has its GPUs now had no part in it.
async fn who_paid(look: &Look<'_>, run: &KnownRun, gpus: &BTreeSet<String>) -> Option<Payer> {
    let (cluster, job) = (&run.key.cluster, &run.key.run.job);
    let ended = run.facts.ended.unwrap_or(look.at);
    let is_its = |holder: &Holder| holder.is_called(&job.name);
    let named = gpus.iter().map(String::as_str);
    let still = payer::still_holding(look.found, &run.key, named);
    if still.is_some() {
        return still;
    }
    let mut holder = None;
    for gpu in gpus.iter().take(ASKED_GPUS) {
        let held = held_by(&look.app.store, (cluster, gpu), ended).await;
        let held = held.unwrap_or_else(|error| {
            tracing::error!(%error, "who held a GPU cannot be read");
            Vec::new()
        });
        holder = held.into_iter().find(is_its);
        if holder.is_some() {
            break;
        }
    }
    let Some(holder) = holder else {
        return payer::by_name(look.owners, &run.key, ended);
    };
    let payer = look.owners.payer(cluster, &holder, ended.millis());
    (payer != Payer::Unowned).then_some(payer)
}

/// Who held a GPU in the minutes before a moment.
async fn held_by(
    store: &Store,
    (cluster, gpu): (&Arc<str>, &str),
    until: Timestamp,
) -> Result<Vec<Holder>, StoreError> {
    let key = ResourceKey {
        cluster: Arc::clone(cluster),
        kind: ResourceKind::Gpu,
        id: gpu.into(),
    };
    let last = until.minute().0;
    let minutes = store
        .minutes(&key, Minute(last - HELD_MINUTES)..Minute(last + 1))
        .await?;
    let numbers = minutes.rows.values().flat_map(|it| it.holders.keys());
    let numbers: BTreeSet<i64> = numbers.copied().collect();
    Ok(store.holders(&numbers).await?.into_values().collect())
}

/// What an attempt that broke off lost.
struct Loss {
    steps: Option<u64>,
    gpu_s: Option<f64>,
    cost: Option<i128>,
    gpus: usize,
    /// Which they were.
    cards: BTreeSet<String>,
}

async fn lost(look: &Look<'_>, attempt: &KnownRun) -> Loss {
    let key = &attempt.key;
    let brief = match look.app.fleet.runs().look(key, Brief::of) {
        Some(brief) => Some(brief),
        None => match look.app.store.run(key).await {
            Ok(known) => known.map(|it| Brief::of(&Run::of_store(it))),
            Err(error) => {
                tracing::error!(%error, "a run that broke off cannot be read");
                None
            }
        },
    };
    let steps = attempt.facts.ending.as_ref().and_then(|it| it.steps_lost);
    let gpus = brief.as_ref().map_or(0, |it| it.count);
    let step_s = brief.as_ref().and_then(|it| it.step_s);
    let gpu_s = steps
        .zip(step_s)
        .map(|(steps, each)| steps as f64 * each * gpus as f64);
    let second = brief.as_ref().and_then(|it| it.second(look, &key.cluster));
    let cost = gpu_s
        .zip(second)
        .map(|(seconds, price)| (seconds * price) as i128);
    Loss {
        steps,
        gpu_s,
        cost,
        gpus,
        cards: brief.map(|it| it.gpus).unwrap_or_default(),
    }
}

fn of_job(
    look: &Look<'_>,
    attempts: &[&KnownRun],
    losses: &[Loss],
    payer: Option<&Payer>,
) -> Option<Waste> {
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
        owner: owner(payer),
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
        Some(Cause::GpuFault) => "Drain the failed GPU, so that the job is not put on it again.",
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
            cards: BTreeSet::new(),
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

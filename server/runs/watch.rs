//! Judges the runs, every ten seconds: which rank makes the others wait, which run has ended and why.
//!
//! What it knows of a run is made of the run's steps, so that a server that begins anew knows it again from the steps of
//! the last ten to twenty minutes, and says nothing before the detector has seen enough. What became slower before
//! that it knows from the incident that is open ([`Watch::resume`]). A run whose ending was judged is judged again for
//! [`AGAIN_FOR`]: the fault of a GPU may be told after the end of the process.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join;
use gpufleet_analysis::ending::{AFTER_NS, BEFORE_NS, GpuFault, NodeLost};
use gpufleet_analysis::incident::Incident;
use gpufleet_analysis::regression;
use gpufleet_analysis::straggler::{self, Reading, Source, Verdict};
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use tokio_util::sync::CancellationToken;

use super::facts::EndingFacts;
use super::state::Known;
use super::{CompleteStep, Place, Run, RunKey, Runs, State, recall};
use crate::App;
use crate::auth::Grant;
use crate::inventory::Inventory;
use crate::store::model::EventFilter;
use crate::store::{MAX_EVENT_IDS, MAX_EVENTS, Store};
use crate::threads::apart;

mod before;
mod noticed;
mod noted;
mod pace;

#[cfg(test)]
pub(crate) use before::FIRST_STEPS;
pub use before::SlowerThanBefore;
use pace::Pace;
pub use pace::Slowdown;

/// How often runs are judged: as often as agents send.
const EVERY: Duration = Duration::from_secs(10);

/// For how long after its end a run is judged again, nanoseconds.
const AGAIN_FOR: i64 = AFTER_NS;

/// Complete steps that are taken at a time.
const STEPS_AT_A_TIME: usize = 512;

/// A node that is seen to be gone so long after it was heard last went with what was on it, nanoseconds: it is
/// told to be gone some minutes after its machine is.
const GOES_WITHIN: i64 = 1_800 * NANOS_PER_SECOND;

/// Pages of faults that are read of 512 GPUs: ten thousand.
const FAULT_PAGES: usize = 10;

/// The attribute of an event with the number of an XID.
const XID: &str = "xid";

/// What was judged of a run that goes on.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// Who makes the others wait, or why nobody is named.
    pub verdict: Verdict,
    /// Of each rank that is blamed since when.
    pub since: BTreeMap<u32, Timestamp>,
    /// That its steps take longer than they did; none once they are as fast again.
    pub slower: Option<Slowdown>,
    /// That its steps take longer than those of the runs before it.
    pub before: Option<SlowerThanBefore>,
    /// The last complete step.
    pub step: u64,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How long a step takes, median of the last 20, nanoseconds.
    pub step_ns: u64,
}

/// What the pace of runs and their ranks is judged by.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct JudgedBy {
    pub(super) straggler: straggler::Thresholds,
    pub(super) slower: regression::Thresholds,
}

/// What is known of a run between two rounds.
struct Watched {
    place: Place,
    straggler: straggler::Run,
    pace: Pace,
    before: Option<SlowerThanBefore>,
    /// Steps that were seen, and at how many it is held against the runs before it next.
    seen: u64,
    compared_at: u64,
    /// In which round that became due.
    due: Option<u64>,
    since: BTreeMap<u32, Timestamp>,
}

/// That a run is slower, than it was and than those before it.
#[derive(Default)]
struct Slower {
    than_it_was: Option<Slowdown>,
    than_before: Option<SlowerThanBefore>,
}

/// All of them.
#[derive(Default)]
pub struct Watch {
    runs: BTreeMap<RunKey, Watched>,
    /// Runs that were slower before it watched, by cluster and run.
    slower: HashMap<(String, String), Slower>,
    /// How many rounds there were.
    rounds: u64,
    /// Who knows which nodes went; none where nobody is asked.
    inventory: Option<Arc<Inventory>>,
}

/// Judges from when this server leads until it is told to stop.
pub async fn run(app: App, stop: CancellationToken) {
    if !app.lead.wait(&stop).await {
        return;
    }
    let mut watch = Watch::seeing(Arc::clone(&app.inventory));
    tokio::select! {
        () = stop.cancelled() => return,
        () = app.incidents.restored() => {}
    }
    watch.resume(&app.incidents.open(&Grant::default()));
    while !stop.is_cancelled() {
        watch = watch.round_apart(&app).await;
        // Beside the pause: no round waits for what is read of runs before.
        let compared = watch.compare(app.fleet.runs(), &app.store);
        let pause = tokio::time::sleep(EVERY);
        tokio::select! {
            () = stop.cancelled() => {}
            ((), ()) = join(compared, pause) => {}
        }
    }
}

impl Watch {
    /// One that knows by this which nodes went.
    pub fn seeing(inventory: Arc<Inventory>) -> Self {
        Self {
            inventory: Some(inventory),
            ..Self::default()
        }
    }

    /// Judges on from what these incidents say, of runs that are not watched yet.
    pub fn resume(&mut self, open: &[Incident]) {
        for evidence in open.iter().flat_map(|it| &it.evidence) {
            let place = &evidence.place;
            let (slowdown, before) = (Slowdown::told(evidence), SlowerThanBefore::told(evidence));
            if let (Some(run), true) = (&place.run, slowdown.is_some() || before.is_some()) {
                let known = self.slower.entry((place.cluster.clone(), run.clone()));
                let known = known.or_default();
                known.than_it_was = known.than_it_was.or(slowdown);
                known.than_before = known.than_before.or(before);
            }
        }
    }

    /// Judges every run once.
    pub async fn round(&mut self, runs: &Runs, store: &Store, now: Timestamp) {
        recalled(runs, store).await;
        let ended = self.judge(runs, now);
        self.settle_all(runs, store, ended).await;
    }

    /// The same, judged beside the threads that answer: of thousands of ranks it takes tens of milliseconds.
    async fn round_apart(mut self, app: &App) -> Self {
        let now = app.clock.now();
        recalled(app.fleet.runs(), &app.store).await;
        let fleet = Arc::clone(&app.fleet);
        let judging = move || {
            let ended = self.judge(fleet.runs(), now);
            (self, ended)
        };
        let (watch, ended) = apart(judging).await;
        watch.settle_all(app.fleet.runs(), &app.store, ended).await;
        watch
    }

    /// Holds a run against those before it: one at a round, because its steps and theirs are read from the store.
    async fn compare(&mut self, runs: &Runs, store: &Store) {
        let by = runs.lock().by;
        self.rounds += 1;
        let Some((key, watched)) = next_due(&mut self.runs, self.rounds) else {
            return;
        };
        watched.compared_at = watched.seen + before::AGAIN_STEPS;
        let Some(run) = runs.get(key) else {
            return;
        };
        let slower = before::slower(store, (key, &run), by.slower.change);
        watched.before = before::in_time(slower, key, watched.before).await;
    }

    /// Judges every run that goes on. Hands out those that have ended and of which it is still to be said why,
    /// each with when.
    pub fn judge(&mut self, runs: &Runs, now: Timestamp) -> Vec<(RunKey, Timestamp)> {
        let mut ended = Vec::new();
        let by = runs.lock().by;
        let keys = runs.keys();
        self.runs.retain(|key, _| keys.binary_search(key).is_ok());
        for key in keys {
            let look = |run: &Run| (run.state(now), run.facts.ended, run.facts.ending.is_some());
            match runs.look(&key, look) {
                Some((State::Ended { at }, known, is_judged)) => {
                    self.runs.remove(&key);
                    let is_settled = known == Some(at) && is_judged;
                    if !is_settled || now.since(at) < AGAIN_FOR {
                        ended.push((key, at));
                    }
                }
                Some((_, Some(_), _)) => runs.settle(&key, None, None),
                Some((State::Running, None, _)) => {
                    let slower = &mut self.slower;
                    let new = || Watched::new(slower_before(slower, &key));
                    let watched = self.runs.entry(key.clone()).or_insert_with(new);
                    watched.take(runs, &key, &by);
                    runs.judge(&key, watched.judged(&by));
                }
                // Whoever was on a machine that went says no more.
                Some((State::Silent { since }, None, _)) => {
                    let lost = runs.look(&key, |run| self.lost(&key, run, since));
                    if lost.is_some_and(|it| !it.is_empty()) {
                        ended.push((key, since));
                    }
                }
                None => {}
            }
        }
        ended
    }

    /// Says why each of these runs ended.
    async fn settle_all(&self, runs: &Runs, store: &Store, ended: Vec<(RunKey, Timestamp)>) {
        for (key, at) in ended {
            self.settle(runs, store, &key, at).await;
        }
    }

    /// Says why a run ended.
    async fn settle(&self, runs: &Runs, store: &Store, key: &RunKey, at: Timestamp) {
        let Some(run) = runs.get(key) else {
            return;
        };
        let faults = match gpu_faults(store, key, &run, at).await {
            Ok(faults) => faults,
            Err(error) => {
                tracing::error!(%error, "the events of a run's GPUs cannot be read: why it ended is judged without them");
                Vec::new()
            }
        };
        let mut lost = self.lost(key, &run, at);
        if let Err(error) = noticed::mark(store, &key.cluster, &mut lost).await {
            tracing::error!(%error, "which nodes were taken back cannot be read: the inventory alone says which are Spot's");
        }
        let at_spot = lost.iter().filter(|it| it.is_spot);
        let taken_back = at_spot.map(|it| it.name.clone()).collect();
        let known = Known {
            gpu_faults: faults,
            nodes_lost: lost,
            nodes_were_watched: {
                let inventory = self.inventory.as_ref();
                inventory.is_some_and(|it| it.has_nodes(&key.cluster))
            },
        };
        let ending = run.ending(at, known);
        let ending = EndingFacts {
            taken_back,
            ..EndingFacts::of(&ending)
        };
        runs.settle(key, Some(at), Some(ending));
    }

    /// The nodes of a run that went around its end.
    fn lost(&self, key: &RunKey, run: &Run, at: Timestamp) -> Vec<NodeLost> {
        let Some(inventory) = &self.inventory else {
            return Vec::new();
        };
        let mut heard: BTreeMap<&str, Timestamp> = BTreeMap::new();
        for rank in run.members().map(|it| &it.1.facts) {
            let known = heard.entry(&rank.node).or_insert(rank.heard);
            *known = rank.heard.max(*known);
        }
        let lost = |(node, heard): (&str, Timestamp)| {
            let gone = inventory.gone(&key.cluster, node, heard)?;
            let at = at.clamp(gone.from.min(gone.until), gone.until);
            let is_of_it = heard.since(at) <= BEFORE_NS && at.since(heard) <= GOES_WITHIN;
            is_of_it.then(|| NodeLost {
                name: node.to_owned(),
                at,
                is_spot: gone.is_spot,
            })
        };
        heard.into_iter().filter_map(lost).collect()
    }
}

/// Lets the runs know of themselves what the store does.
async fn recalled(runs: &Runs, store: &Store) {
    if let Err(error) = recall(runs, store).await {
        tracing::error!(%error, "what the store knows of new runs cannot be read; asked again");
    }
}

/// How a run is slower by what was told before it was watched.
fn slower_before(slower: &mut HashMap<(String, String), Slower>, key: &RunKey) -> Slower {
    if slower.is_empty() {
        return Slower::default();
    }
    let name = (key.cluster.to_string(), key.run.to_string());
    slower.remove(&name).unwrap_or_default()
}

impl Watched {
    fn new(slower: Slower) -> Self {
        Self {
            place: Place::default(),
            straggler: straggler::Run::new(Source::Hooks),
            pace: Pace::resumed(slower.than_it_was),
            before: slower.than_before,
            seen: 0,
            compared_at: before::FIRST_STEPS,
            due: None,
            since: BTreeMap::new(),
        }
    }

    /// Takes in what is complete since the last round.
    fn take(&mut self, runs: &Runs, key: &RunKey, by: &JudgedBy) {
        loop {
            let steps = runs.complete_steps(key, &mut self.place, STEPS_AT_A_TIME);
            let is_all = steps.len() < STEPS_AT_A_TIME;
            for step in &steps {
                self.observe(step, by);
            }
            if is_all || steps.is_empty() {
                break;
            }
        }
    }

    fn observe(&mut self, step: &CompleteStep, by: &JudgedBy) {
        let readings = step.readings.iter().map(|it| Reading {
            rank: it.rank,
            seat: it.seat,
            // A rank that waits long for its data makes the others wait as well.
            busy_ns: it.times.own_ns(),
        });
        self.straggler.observe(&straggler::Step {
            step: step.step,
            wall_ns: step.wall_ns,
            readings: &readings.collect::<Vec<_>>(),
        });
        self.seen += 1;
        self.pace.observe(step, &by.slower);
    }

    /// What there is to say; nothing before the first complete step.
    fn judged(&mut self, by: &JudgedBy) -> Option<Judged> {
        let (step, ended_at) = self.pace.last()?;
        let verdict = self.straggler.judge_by(&by.straggler);
        let is_blamed = |rank: &u32| verdict.stragglers.iter().any(|it| it.rank == *rank);
        self.since.retain(|rank, _| is_blamed(rank));
        for straggler in &verdict.stragglers {
            let begun = self.pace.ended_at(straggler.since_step);
            let begun = begun.unwrap_or(ended_at);
            self.since.entry(straggler.rank).or_insert(begun);
        }
        let step_ns = self.pace.step_ns();
        self.pace.settle(&by.slower);
        let slower = 1.0 + by.slower.change / 2.0;
        self.before = self
            .before
            .filter(|it| step_ns as f64 >= it.usual_ns * slower);
        Some(Judged {
            verdict,
            since: self.since.clone(),
            slower: self.pace.slower(),
            before: self.before,
            step,
            ended_at,
            step_ns,
        })
    }
}

/// Who is to be held against the runs before it: the one that has waited longest for that, which waits no more.
fn next_due(runs: &mut BTreeMap<RunKey, Watched>, round: u64) -> Option<(&RunKey, &mut Watched)> {
    let due = runs.iter_mut().filter(|(_, it)| it.seen >= it.compared_at);
    let mut next: Option<(&RunKey, &mut Watched)> = None;
    for (key, watched) in due {
        let since = *watched.due.get_or_insert(round);
        if next.as_ref().is_none_or(|it| Some(since) < it.1.due) {
            next = Some((key, watched));
        }
    }
    if let Some((_, watched)) = &mut next {
        watched.due = None;
    }
    next
}

/// The XIDs of a run's GPUs around its end, of those that spew them the newest.
async fn gpu_faults(
    store: &Store,
    key: &RunKey,
    run: &Run,
    at: Timestamp,
) -> Result<Vec<GpuFault>, crate::store::StoreError> {
    let gpus: Vec<Arc<str>> = run.gpus().into_iter().map(Arc::from).collect();
    let mut faults = Vec::new();
    for gpus in gpus.chunks(MAX_EVENT_IDS) {
        let filter = EventFilter {
            cluster: Some(Arc::clone(&key.cluster)),
            resource_kind: Some(ResourceKind::Gpu),
            resource_ids: gpus.to_vec(),
            kind: Some(EventKind::Xid),
            from: Some(at.shifted(-BEFORE_NS)),
            until: Some(at.shifted(AFTER_NS)),
            ..EventFilter::default()
        };
        let (mut before, mut left) = (None, FAULT_PAGES);
        loop {
            let page = store.events(&filter, before, MAX_EVENTS).await?;
            let events = page.events.into_iter().map(|it| it.event);
            faults.extend(events.filter_map(|it| {
                Some(GpuFault {
                    gpu_id: it.resource_id.to_string(),
                    xid: it.attributes.get(XID)?.parse().ok()?,
                    at: it.at,
                })
            }));
            (before, left) = (page.next, left - 1);
            if before.is_none() {
                break;
            }
            if left == 0 {
                tracing::warn!(run = %key.run, "the run's GPUs tell more faults than are looked at");
                break;
            }
        }
    }
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::training::{JobId, RunId};

    use super::*;

    #[test]
    fn every_run_comes_to_be_compared_however_often_others_are_due() {
        let key = |job: &str| RunKey {
            cluster: "prod".into(),
            run: RunId {
                job: JobId::parse(&format!("team/{job}/u1")).expect("an id"),
                attempt: 0,
            },
        };
        let names = ["a", "b", "c"];
        let mut runs: BTreeMap<RunKey, Watched> = BTreeMap::new();
        for name in names {
            let mut watched = Watched::new(Slower::default());
            watched.seen = before::FIRST_STEPS;
            runs.insert(key(name), watched);
        }
        let mut compared = Vec::new();
        for round in 1..7 {
            // All of them are due again at once.
            let (key, _) = next_due(&mut runs, round).expect("one is due");
            compared.push(key.run.job.name.clone());
            assert_eq!(runs.values().filter(|it| it.due.is_none()).count(), 1);
        }
        assert_eq!(compared, ["a", "b", "c", "a", "b", "c"]);
    }
}

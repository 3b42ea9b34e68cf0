//! Runs of training jobs as they are now: their ranks, the last steps of each, what happened.
//!
//! A run is one attempt of a job; its ranks are spread over the agents of many nodes, so that this
//! is, beside who owns a resource, the second place that the fleet's shards share. It is taken after
//! a shard's lock and never before one. What must outlive the server is in tables run, rank and
//! step_block; steps go there with the cursors of what brought them, exactly once.
//!
//! Limits: [`MAX_RUNS`], [`MAX_RANKS`], [`MAX_STEP_BYTES`]; per rank [`ring::MAX_BLOCKS`]. For a run that is more than that
//! one that is over leaves the memory ([`room`]), or it is refused and counted; more steps shorten their rank.
//!
//! Read in this order: [`facts`], [`ranks`], [`belief`], [`ring`], [`room`], [`recall`], [`complete`], [`state`], [`watch`],
//! [`blind`]; then what is shown of them: [`history`], [`figures`], [`heat`], [`goodput`], [`cost`],
//! [`scaling`], [`reliability`], [`compare`], [`repeats`], [`ladder`], [`worth`], [`order`], [`words`], [`advice`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use gpufleet_telemetry::event::{Event, EventKind};
use gpufleet_telemetry::identity::{AgentId, Resource, ResourceKind};
use gpufleet_telemetry::steps::StepBlock;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::training::{RankId, RunId};
use gpufleet_telemetry::wire::Lane;

use crate::detect::tuned::Tuned;
use crate::fleet::{Live, LiveValue};
use crate::store::model::ResourceKey;

pub mod facts;
mod ranks;
mod belief;
pub mod ring;
mod room;
mod recall;
pub mod complete;
pub mod stopped;
pub mod state;
pub mod watch;
pub mod blind;
mod stored;
pub mod stuck;

pub mod history;
pub mod figures;
pub mod utilisation;
pub mod card;
pub mod heat;
pub mod attempts;
pub mod goodput;
pub mod cost;
pub mod energy;
pub mod scaling;
pub mod reliability;
pub mod compare;
pub mod repeats;
pub mod ladder;
pub mod lookup;
pub mod worth;
pub mod order;
pub mod words;
pub mod advice;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

pub use complete::{CompleteStep, Place, RankStep};
pub use facts::{RankFacts, RunFacts};
pub use ranks::Ranks;
pub use recall::recall;
pub use state::State;
pub use stored::{stored, stored_steps};
pub use stuck::Stuck;
use watch::JudgedBy;
pub use watch::{Judged, Slowdown, SlowerThanBefore};

use ring::Ring;

/// Most runs in memory: a day of a cluster that starts one every 20 s.
pub const MAX_RUNS: usize = 4_096;

/// Most ranks in memory, of all runs: as many as there may be resources. About 2 KiB each without
/// their steps.
pub const MAX_RANKS: usize = 250_000;

/// Most bytes of packed steps in memory, of all ranks: ten minutes of 20,000 ranks at two steps a
/// second. Beyond it each new block pushes older ones of its rank out.
pub const MAX_STEP_BYTES: usize = 256 * 1024 * 1024;

/// The store learns a rank's newest readings, and when it and its run were heard, this often,
/// nanoseconds: each costs a row.
const TOLD_EVERY: i64 = 300 * NANOS_PER_SECOND;

/// A run's steps leave the memory when it was silent for so long, nanoseconds; the store has them.
const STEPS_KEPT: i64 = 3_600 * NANOS_PER_SECOND;

/// A run leaves the memory when it was silent for so long, nanoseconds: agents keep a day of data,
/// so nothing comes of it any more.
pub const RUN_KEPT: i64 = 86_400 * NANOS_PER_SECOND;

/// Events that say something of a run.
const OF_RUNS: [EventKind; 7] = [
    EventKind::RunStarted,
    EventKind::RunEnded,
    EventKind::RankException,
    EventKind::CheckpointSaved,
    EventKind::CheckpointRestored,
    EventKind::FingerprintChanged,
    EventKind::CollectiveStuck,
];

/// Catalog numbers of what a rank tells of itself.
const OF_RANKS: std::ops::Range<u16> = 700..800;

/// A run's name in the whole installation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunKey {
    /// The cluster it runs in.
    pub cluster: Arc<str>,
    /// Job and attempt.
    pub run: RunId,
}

/// A run with its ranks.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// What is known of it.
    pub facts: RunFacts,
    /// Its ranks by number.
    pub ranks: Ranks,
    /// What was judged of it in the last round; nothing before its first complete step.
    pub judged: Option<Judged>,
    /// The same by the times of its collectives; none where its steps say it, or these do not.
    pub by_collectives: Option<Judged>,
    /// Collectives that its ranks were told not to come out of, the newest last.
    pub stuck: Vec<Stuck>,
    /// Whether it has had no step for as long as a hang has none, and nothing else is known that would show whether it
    /// is one.
    pub lacks_evidence: bool,
    /// Whether its nodes' traffic takes the wrong network, and nothing shows that it is its own.
    pub may_be_astray: bool,
    /// Who told of it first; none of one that the store told of.
    opened_by: Option<AgentId>,
    /// Whether what the store knows of it is in it. Until then the store merges what it is told.
    is_recalled: bool,
    changed: bool,
    told: Timestamp,
}

/// One process of a run.
#[derive(Debug, Clone, Default)]
pub struct Rank {
    /// What is known of it.
    pub facts: RankFacts,
    /// Its last steps.
    pub ring: Ring,
    /// The resource that its facts were last taken from.
    introduced: Option<Arc<Resource>>,
    changed: bool,
    told: Timestamp,
}

/// A run as the store is told of it, and knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownRun {
    /// Its name.
    pub key: RunKey,
    /// What is known of it.
    pub facts: RunFacts,
    /// Its ranks; of one that is told, those that changed.
    pub ranks: Vec<(u32, RankFacts)>,
    /// Whether the store may know more of it: then this is merged with that, and does not replace it.
    pub is_part: bool,
}

/// What one commit adds to ten minutes of a rank's steps.
#[derive(Debug, Clone, PartialEq)]
pub struct StepDelta {
    /// Of which run.
    pub key: RunKey,
    /// Of which rank.
    pub rank: u32,
    /// Minutes since the Unix epoch, divided by ten.
    pub bucket: i64,
    /// In the order in which they came.
    pub blocks: Vec<StepBlock>,
}

/// There are as many runs or ranks as the server takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// From whom something came, and when.
#[derive(Debug, Clone, Copy)]
pub struct Heard {
    /// Who sent it.
    pub agent: AgentId,
    /// Fresh or old.
    pub lane: Lane,
    /// When it arrived.
    pub received: Timestamp,
}

/// Every run that was heard of lately.
#[derive(Debug, Default)]
pub struct Runs(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    runs: BTreeMap<RunKey, Run>,
    /// Those that made room for others and are still to be told to the store.
    leaving: BTreeMap<RunKey, Run>,
    /// Of `runs` alone.
    ranks: usize,
    step_bytes: usize,
    by: JudgedBy,
}

impl Runs {
    /// Takes in what the resource of a rank says, with its newest readings.
    ///
    /// # Errors
    /// When there is no room for another run or rank.
    pub fn rank(&self, live: &Live, heard: Heard) -> Result<(), Full> {
        let Ok(id) = RankId::parse(&live.key.id) else {
            return Ok(());
        };
        let known = &mut *self.lock();
        let key = RunKey::of(&live.key.cluster, &id);
        let run = known.run(&key, id.rank, heard)?;
        let at = heard.at(live.last_point);
        run.facts.heard = run.facts.heard.max(at);
        run.introduce(id.rank, &live.resource);
        let rank = run.ranks.entry(id.rank).or_default();
        rank.facts.heard = rank.facts.heard.max(at);
        if heard.lane == Lane::Live {
            let is_told = |it: &&LiveValue| it.part.is_none() && OF_RANKS.contains(&it.metric.0);
            let values = live.values.iter().filter(is_told);
            rank.facts.readings.clear();
            let readings = values.filter_map(|it| Some((it.metric, it.reading.ok()?)));
            rank.facts.readings.extend(readings);
        }
        Ok(())
    }

    /// Takes in a block of a rank's steps, times already in the server's.
    ///
    /// # Errors
    /// When there is no room for another run or rank.
    pub fn steps(
        &self,
        key: &RunKey,
        rank: u32,
        block: &StepBlock,
        heard: Heard,
    ) -> Result<(), Full> {
        let known = &mut *self.lock();
        known.run(key, rank, heard)?;
        let Known {
            runs, step_bytes, ..
        } = known;
        let run = runs.get_mut(key).ok_or(Full)?;
        let at = heard.at(block.ended_at);
        run.facts.heard = run.facts.heard.max(at);
        let rank = run.ranks.entry(rank).or_default();
        rank.facts.heard = rank.facts.heard.max(at);
        if heard.lane == Lane::Backfill {
            return Ok(());
        }
        let others = *step_bytes - rank.ring.bytes();
        rank.ring.push(block);
        // Two for one, so that what is over the limit shrinks.
        for _ in 0..2 {
            if others + rank.ring.bytes() > MAX_STEP_BYTES {
                rank.ring.shorten();
            }
        }
        *step_bytes = others + rank.ring.bytes();
        Ok(())
    }

    /// Takes in an event of a rank, its time already in the server's. Others are left alone.
    ///
    /// # Errors
    /// When there is no room for another run or rank.
    pub fn event(&self, cluster: &Arc<str>, event: &Event, heard: Heard) -> Result<(), Full> {
        if !OF_RUNS.contains(&event.kind) || event.resource_kind != ResourceKind::Rank {
            return Ok(());
        }
        let Ok(id) = RankId::parse(&event.resource_id) else {
            return Ok(());
        };
        let known = &mut *self.lock();
        let run = known.run(&RunKey::of(cluster, &id), id.rank, heard)?;
        if run.counts(id.rank) {
            run.facts.learn(id.rank, event);
            Stuck::learn(&mut run.stuck, event);
        }
        let at = heard.at(event.at);
        run.facts.heard = run.facts.heard.max(at);
        let rank = run.ranks.entry(id.rank).or_default();
        rank.facts.learn(event);
        rank.facts.heard = rank.facts.heard.max(at);
        (run.changed, rank.changed) = (true, true);
        Ok(())
    }

    /// From now on runs are judged by these thresholds.
    pub fn judge_by(&self, tuned: &Tuned) {
        self.lock().by = JudgedBy {
            straggler: tuned.straggler,
            slower: tuned.slower,
        };
    }

    /// Every run in memory.
    pub fn keys(&self) -> Vec<RunKey> {
        self.lock().runs.keys().cloned().collect()
    }

    /// A run as it is now. Its ranks are shared with it until they change.
    pub fn get(&self, key: &RunKey) -> Option<Run> {
        self.lock().runs.get(key).cloned()
    }

    /// Shows a run to `look`. All runs are locked meanwhile: copy what is needed.
    pub fn look<T>(&self, key: &RunKey, look: impl FnOnce(&Run) -> T) -> Option<T> {
        self.lock().runs.get(key).map(look)
    }

    /// The GPUs that a run's ranks name; none of a run that is not in memory.
    pub fn gpus(&self, key: &RunKey) -> Vec<String> {
        let named = |run: &Run| run.gpus().into_iter().map(str::to_owned).collect();
        self.look(key, named).unwrap_or_default()
    }

    /// The steps of a run that are complete and were not handed out before at this place, oldest
    /// first, at most `most`.
    pub fn complete_steps(
        &self,
        key: &RunKey,
        place: &mut Place,
        most: usize,
    ) -> Vec<CompleteStep> {
        let rings = self.lock();
        let rings = rings
            .runs
            .get(key)
            .map(|it| complete::Rings::of(it, *place));
        // Unpacked and turned round without the lock.
        rings.map_or(Vec::new(), |rings| rings.complete(place, most))
    }

    /// Notes how a run stands: when it ended and why; or, with nothing, that it runs.
    pub fn settle(
        &self,
        key: &RunKey,
        ended: Option<Timestamp>,
        ending: Option<facts::EndingFacts>,
    ) {
        if let Some(run) = self.lock().runs.get_mut(key) {
            run.changed |= run.facts.ended != ended || run.facts.ending != ending;
            (run.facts.ended, run.facts.ending) = (ended, ending);
        }
    }

    /// Hands out what the store does not know: runs that changed, and those that `needed` names.
    /// Forgets what was silent for long.
    pub fn drain(&self, now: Timestamp, needed: impl Fn(&RunKey) -> bool) -> Vec<KnownRun> {
        let known = &mut *self.lock();
        let mut told = Vec::new();
        for (key, run) in known.runs.iter_mut().chain(&mut known.leaving) {
            told.extend(run.drain(key, &needed));
        }
        // A part that was told is told again as a whole once the store's is in it.
        known.leaving.retain(|_, run| !run.is_recalled);
        known.forget(now);
        told
    }

    /// Takes in what the store knows. Only before anything else.
    pub fn restore(&self, runs: Vec<KnownRun>, steps: Vec<StepDelta>) {
        let known = &mut *self.lock();
        for restored in runs {
            for (number, facts) in restored.ranks {
                let Ok(run) = known.seat(&restored.key, number) else {
                    tracing::warn!(
                        "the store knows more ranks than are taken: the rest comes back as it is heard"
                    );
                    break;
                };
                let rank = run.ranks.entry(number).or_default();
                (rank.told, rank.facts, rank.changed) = (facts.heard, facts, false);
            }
            if let Some(run) = known.runs.get_mut(&restored.key) {
                run.told = restored.facts.heard;
                run.facts = restored.facts;
                (run.is_recalled, run.changed) = (true, false);
            }
        }
        for delta in steps {
            let Ok(run) = known.seat(&delta.key, delta.rank) else {
                continue;
            };
            let rank = run.ranks.entry(delta.rank).or_default();
            for block in &delta.blocks {
                rank.ring.push(block);
            }
            rank.facts.heard = rank
                .facts
                .heard
                .max(rank.ring.ended_at().unwrap_or_default());
        }
        let ranks = known.runs.values().flat_map(|it| it.ranks.values());
        known.step_bytes = ranks.map(|it| it.ring.bytes()).sum();
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0
            .lock()
            .expect("nothing panics while it holds the runs")
    }
}

impl Run {
    /// What the store is to be told of it; nothing when it knows. Of one that is not recalled all of it
    /// stays to be told.
    fn drain(&mut self, key: &RunKey, needed: impl Fn(&RunKey) -> bool) -> Option<KnownRun> {
        let is_part = !self.is_recalled;
        let due = self.ranks.changing(Rank::is_due);
        let told = due.map(|(number, rank)| (*number, rank.drain(is_part)));
        let ranks: Vec<_> = told.collect();
        let is_due = self.facts.heard.since(self.told) >= TOLD_EVERY;
        if !self.changed && !is_due && ranks.is_empty() && !needed(key) {
            return None;
        }
        (self.changed, self.told) = (is_part, self.facts.heard);
        Some(KnownRun {
            key: key.clone(),
            facts: self.facts.clone(),
            ranks,
            is_part,
        })
    }
}

impl Rank {
    /// Whether the store is to be told of it.
    fn is_due(&self) -> bool {
        self.changed || self.facts.heard.since(self.told) >= TOLD_EVERY
    }

    /// What the store is to be told of it.
    fn drain(&mut self, is_part: bool) -> RankFacts {
        (self.changed, self.told) = (is_part, self.facts.heard);
        self.facts.clone()
    }
}

impl RunKey {
    /// The run of a rank.
    pub fn of(cluster: &Arc<str>, id: &RankId) -> Self {
        Self {
            cluster: Arc::clone(cluster),
            run: id.run(),
        }
    }

    /// The key of one of its ranks among the resources.
    pub fn rank(&self, rank: u32) -> ResourceKey {
        let id = RankId {
            job: self.run.job.clone(),
            attempt: self.run.attempt,
            rank,
        };
        ResourceKey {
            cluster: Arc::clone(&self.cluster),
            kind: ResourceKind::Rank,
            id: id.to_string().into(),
        }
    }
}

impl Heard {
    /// When it counts as heard: old data is no sign of life.
    fn at(self, happened: Timestamp) -> Timestamp {
        match self.lane {
            Lane::Live => self.received,
            Lane::Backfill => happened.min(self.received),
        }
    }
}

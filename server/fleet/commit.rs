//! What becomes durable together: all shards' deltas with their cursors, in one numbered commit.
//!
//! One commit is in flight at a time; folding goes on meanwhile. A commit whose outcome is not
//! known is settled by the number that the store has: the same commit is offered again, or counted
//! as done. Nothing is folded twice and nothing is answered as durable before.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::wire::Lane;

use super::pending::Waited;
use super::shard::Shard;
use super::{FOREIGN_AGENT, Fleet, lock, lock_commit};
use crate::runs::{RunKey, StepDelta};
use crate::store::model::{Commit, KnownResource, MinuteDelta};

/// The store learns the time of a resource's newest point this often, nanoseconds: each costs a row.
const TOLD_EVERY: i64 = 300 * NANOS_PER_SECOND;

/// An agent that was silent for longer is forgotten with its cursors, nanoseconds: a spool keeps
/// 24 h, so nothing can come twice any more.
pub(super) const AGENT_FORGOTTEN: i64 = 7 * 86_400 * NANOS_PER_SECOND;

/// The commit in flight and the number of the last one that is done.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    pub(super) done: u64,
    commit: Option<Arc<Commit>>,
    bytes: LaneBytes,
    /// Of each resource in the commit the time of its oldest fresh point.
    oldest: Vec<Timestamp>,
    /// The same of the last commit that is done.
    done_oldest: Vec<Timestamp>,
}

/// Bytes by lane.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LaneBytes {
    pub(super) live: usize,
    pub(super) backfill: usize,
}

/// What follows from the number of the last commit that the store has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The commit is in the store after all.
    Done,
    /// It is not: offer the same one again.
    Retry,
    /// The store is ahead of this server: another one has taken over, and this one must stop.
    Superseded,
}

impl Fleet {
    /// The next commit, or the same one again while its outcome is not settled. None when there is
    /// nothing to commit.
    pub fn take_commit(&self, now: Timestamp) -> Option<Arc<Commit>> {
        let mut in_flight = lock_commit(&self.commit);
        if let Some(commit) = &in_flight.commit {
            return Some(Arc::clone(commit));
        }
        let mut commit = Commit {
            number: in_flight.done + 1,
            ..Commit::default()
        };
        let mut bytes = LaneBytes::default();
        let (mut oldest, mut votes) = (Vec::new(), Vec::new());
        for shard in &self.shards {
            let mut shard = lock(shard);
            let resources = shard.resources.values_mut();
            oldest.extend(resources.filter_map(|it| it.oldest_live.take()));
            votes.extend(shard.agents.values().filter_map(|it| it.vote(now)));
            let waited = self.drain(&mut shard, now, &mut commit);
            bytes.live += std::mem::take(&mut shard.bytes.live);
            bytes.backfill += std::mem::take(&mut shard.bytes.backfill);
            // Data that comes in waits for the shard, not for its rows to be made.
            drop(shard);
            let rows = waited.into_iter().flat_map(Waited::rows);
            commit.minutes.extend(rows);
        }
        let clock = self.server_clock.lock();
        let mut clock = clock.unwrap_or_else(PoisonError::into_inner);
        clock.judge(&mut votes, &mut commit.events, now);
        drop(clock);
        let is_empty = commit.cursors.is_empty()
            && commit.resources.is_empty()
            && commit.minutes.is_empty()
            && commit.steps.is_empty()
            && commit.events.is_empty();
        merge_steps(&mut commit.steps);
        let has_steps = |key: &RunKey| commit.steps.binary_search_by(|it| it.key.cmp(key)).is_ok();
        let runs = self.runs.drain(now, has_steps);
        if is_empty && runs.is_empty() {
            return None;
        }
        commit.runs = runs;
        merge_minutes(&mut commit.minutes);
        let commit = Arc::new(commit);
        in_flight.bytes = bytes;
        in_flight.oldest = oldest;
        in_flight.commit = Some(Arc::clone(&commit));
        Some(commit)
    }

    /// The commit is in the store: what it holds is durable, and agents are told so from now on.
    pub fn committed(&self, number: u64) {
        let mut in_flight = lock_commit(&self.commit);
        let Some(commit) = in_flight.commit.take_if(|it| it.number == number) else {
            return;
        };
        in_flight.done = number;
        let bytes = std::mem::take(&mut in_flight.bytes);
        in_flight.done_oldest = std::mem::take(&mut in_flight.oldest);
        drop(in_flight);
        for (lane, bytes) in [(Lane::Live, bytes.live), (Lane::Backfill, bytes.backfill)] {
            self.pending.of(lane).fetch_sub(bytes, Ordering::Relaxed);
        }
        for cursor in &commit.cursors {
            let mut shard = lock(self.shard_of(cursor.key.agent));
            let Some(agent) = shard.agents.get_mut(&cursor.key.agent) else {
                continue;
            };
            let stream = agent
                .streams
                .iter_mut()
                .find(|it| it.cursor.key == cursor.key);
            if let Some(stream) = stream {
                stream.durable = stream.durable.max(cursor.seq);
            }
        }
    }

    /// The commit failed, or its reply got lost; `last` is the number of the last commit that the
    /// store has, read after the failure.
    pub fn commit_failed(&self, number: u64, last: u64) -> Progress {
        if last > number {
            return Progress::Superseded;
        }
        if last < number {
            return Progress::Retry;
        }
        self.committed(number);
        Progress::Done
    }

    /// How old the fresh samples of the last commit were at `now`: of each resource the oldest,
    /// 99th percentile over the resources. None when it had none.
    pub fn sample_age_p99(&self, now: Timestamp) -> Option<Duration> {
        let mut oldest = lock_commit(&self.commit).done_oldest.clone();
        let place = oldest.len() / 100;
        if oldest.is_empty() {
            return None;
        }
        let (_, oldest, _) = oldest.select_nth_unstable(place);
        Some(Duration::from_nanos(
            u64::try_from(now.since(*oldest)).unwrap_or(0),
        ))
    }

    /// Bytes that wait for the next commit or are in the one in flight.
    pub fn pending_bytes(&self) -> usize {
        let live = self.pending.of(Lane::Live).load(Ordering::Relaxed);
        live + self.pending.of(Lane::Backfill).load(Ordering::Relaxed)
    }

    /// Hands out what a shard has for the commit: its minutes as they were folded.
    fn drain(&self, shard: &mut Shard, now: Timestamp, commit: &mut Commit) -> Vec<Waited> {
        let mut waited = Vec::new();
        commit.events.append(&mut shard.events);
        commit.gaps.append(&mut shard.gaps);
        commit.steps.append(&mut shard.steps);
        commit.foreign.append(&mut shard.marks.drain());
        for stream in shard.agents.values_mut().flat_map(|it| &mut it.streams) {
            if std::mem::take(&mut stream.dirty) {
                commit.cursors.push(stream.cursor.clone());
            }
        }
        for tracked in shard.resources.values_mut() {
            let live = &tracked.live;
            let is_heard = live.first_seen < Timestamp(i64::MAX);
            let seen_again = tracked.visible && live.last_point.since(tracked.told) >= TOLD_EVERY;
            if is_heard && (tracked.changed || seen_again) {
                tracked.changed = false;
                tracked.told = live.last_point;
                commit.resources.push(KnownResource {
                    key: live.key.clone(),
                    resource: Arc::clone(&live.resource),
                    agent: live.agent,
                    first_seen: live.first_seen,
                    last_seen: live.last_point,
                });
            }
            commit.holders.append(&mut tracked.holding.met());
            waited.extend(tracked.take());
        }
        self.forget(shard, now);
        waited
    }

    /// Forgets resources and agents that were silent for long; the store keeps what it has of them.
    fn forget(&self, shard: &mut Shard, now: Timestamp) {
        let seconds = i64::try_from(self.config.forget_after_s).unwrap_or(i64::MAX);
        let forget_after = seconds.saturating_mul(NANOS_PER_SECOND);
        let agents = &mut shard.agents;
        shard.resources.retain(|key, tracked| {
            let heard = tracked.live.received.max(tracked.live.last_point);
            if now.since(heard) < forget_after {
                return true;
            }
            let reporter = tracked.live.agent.unwrap_or(FOREIGN_AGENT);
            if let Some(agent) = agents.get_mut(&reporter) {
                agent.resources = agent.resources.saturating_sub(1);
            }
            self.owners.forget(key, reporter);
            self.resources.fetch_sub(1, Ordering::Relaxed);
            false
        });
        let before = agents.len();
        agents.retain(|id, agent| {
            *id == FOREIGN_AGENT || now.since(agent.live.heard) < AGENT_FORGOTTEN
        });
        let forgotten = before - agents.len();
        self.agents.fetch_sub(forgotten, Ordering::Relaxed);
    }
}

/// Sorts by run, rank and time and puts together what belongs to one row.
fn merge_steps(steps: &mut Vec<StepDelta>) {
    // Stable: of one row the blocks stay in the order in which they came.
    steps.sort_by(|a, b| (&a.key, a.rank, a.bucket).cmp(&(&b.key, b.rank, b.bucket)));
    steps.dedup_by(|later, first| {
        let same =
            (later.rank, later.bucket) == (first.rank, first.bucket) && later.key == first.key;
        if same {
            first.blocks.append(&mut later.blocks);
        }
        same
    });
}

/// Sorts by resource and minute and merges what two agents told of the same one, so that the store
/// meets every row once and in the order of its index.
fn merge_minutes(minutes: &mut Vec<MinuteDelta>) {
    minutes.sort_by(|a, b| (&a.key, a.minute).cmp(&(&b.key, b.minute)));
    minutes.dedup_by(|later, first| {
        let same = later.minute == first.minute && later.key == first.key;
        if same {
            first.row.merge(&later.row);
        }
        same
    });
}

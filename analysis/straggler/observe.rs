//! Taking in a step: each rank's slowness among its peers, the column's, and what the longest took beyond the next.
//!
//! Limits: steps at or below the last one are old reports, unless [`super::RESTART_STEPS`] of them
//! come in order: then the numbers began anew and all that is known is forgotten.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    ABSENT_STEPS, LEAST_STEPS, LONGEST, MAX_RANKS, RESTART_STEPS, Rank, Reading, Recent, Run,
    SCALE, Seat, Step, WARM_UP_STEPS, keep,
};
use crate::robust::median;

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observed {
    /// It counts.
    Taken,
    /// One of the first of an attempt, or of a restart.
    WarmingUp,
    /// A step that was seen before, or an old one.
    Repeated,
    /// Less than half of the ranks are known.
    TooFewRanks,
}

/// One rank in one step, on the way.
struct Slowness {
    rank: u32,
    seat: Seat,
    x: f64,
}

impl Run {
    /// Takes in a step.
    pub fn observe(&mut self, step: &Step<'_>) -> Observed {
        if self.last_step.is_some_and(|last| step.step <= last) && !self.is_restart(step.step) {
            return Observed::Repeated;
        }
        self.behind = 0;
        self.last_step = Some(step.step);
        let told = step.readings.iter().filter(|it| it.busy_ns > 0);
        let mut readings: Vec<Reading> = told.copied().collect();
        // Of a doubled one the first stays the first.
        readings.sort_by_key(|it| it.rank);
        readings.dedup_by_key(|it| it.rank);
        self.seen = self.seen.saturating_add(1);
        if self.seen <= WARM_UP_STEPS {
            return Observed::WarmingUp;
        }
        let known = self.current().count();
        let is_incomplete = readings.len() * 2 < known || readings.is_empty();
        self.incomplete = self.incomplete << 1 | u64::from(is_incomplete);
        if is_incomplete {
            return Observed::TooFewRanks;
        }
        let mut found = self.among_peers(&readings);
        let slowest = found.iter().max_by(|a, b| a.x.total_cmp(&b.x));
        let slowest = slowest.map_or((0, 0), |it| (it.rank, scaled(it.x)));
        self.keep_slowness(&mut found, step.step);
        let (longest, excess_ns) = self.longest(&readings);
        let recent = Recent {
            step: step.step,
            wall_ns: step.wall_ns,
            longest,
            excess_ns: excess_ns.min(step.wall_ns),
            slowest: slowest.0,
            x: slowest.1,
        };
        keep(&mut self.recent, recent, LONGEST);
        Observed::Taken
    }

    /// Ranks that are there now.
    pub(super) fn current(&self) -> impl Iterator<Item = (&u32, &Rank)> {
        let from = self.last_step.unwrap_or(0).saturating_sub(ABSENT_STEPS);
        self.ranks
            .iter()
            .filter(move |(_, rank)| rank.last_step >= from)
    }

    /// Whether the numbers began anew with this step, which is not above the last one.
    fn is_restart(&mut self, step: u64) -> bool {
        let is_next = self.behind > 0 && step > self.behind_step;
        self.behind = if is_next { self.behind + 1 } else { 1 };
        self.behind_step = step;
        if self.behind < RESTART_STEPS {
            return false;
        }
        *self = Self::new(self.source);
        true
    }

    /// The slowness of each rank, and the stages' busy times.
    fn among_peers(&mut self, readings: &[Reading]) -> Vec<Slowness> {
        let mut stages: BTreeMap<Option<u32>, Vec<&Reading>> = BTreeMap::new();
        for reading in readings {
            stages.entry(reading.seat.stage).or_default().push(reading);
        }
        let mut found = Vec::with_capacity(readings.len());
        for (stage, mut peers) in stages {
            peers.sort_unstable_by_key(|it| it.busy_ns);
            // What the work takes: up to three quarters of them may be slow.
            let work = peers[(peers.len() - 1) / 4].busy_ns;
            if let Some(stage) = stage {
                keep(self.stages.entry(stage).or_default(), work, LEAST_STEPS);
            }
            for (index, reading) in peers.iter().enumerate() {
                let others = median_without(&peers, index);
                found.push(Slowness {
                    rank: reading.rank,
                    seat: reading.seat,
                    x: others.map_or(0.0, |others| (reading.busy_ns as f64 / others).ln()),
                });
            }
        }
        found
    }

    fn keep_slowness(&mut self, found: &mut [Slowness], step: u64) {
        found.sort_unstable_by_key(|it| (it.seat.column, it.seat.stage, it.rank));
        let mut others: Vec<f64> = Vec::new();
        for column in found.chunk_by(|a, b| a.seat.column == b.seat.column) {
            for own in column {
                others.clear();
                if own.seat.column.is_some() {
                    let elsewhere = column.iter().filter(|it| it.seat.stage != own.seat.stage);
                    others.extend(elsewhere.map(|it| it.x));
                }
                let shared = median(&mut others).unwrap_or(0.0);
                self.keep_rank(own, shared, step);
            }
        }
    }

    fn keep_rank(&mut self, own: &Slowness, shared: f64, step: u64) {
        if self.ranks.len() >= MAX_RANKS && !self.ranks.contains_key(&own.rank) {
            return;
        }
        let seat = own.seat;
        let rank = self.ranks.entry(own.rank).or_insert_with(|| Rank {
            seat,
            last_step: step,
            slow: Vec::new(),
            column: Vec::new(),
            blamed_since: None,
        });
        if (rank.seat.stage, rank.seat.column) != (seat.stage, seat.column) {
            // A rank that moved has other peers: what is known of it compares with the old ones.
            rank.slow.clear();
            rank.column.clear();
        }
        rank.seat = seat;
        rank.last_step = step;
        keep(&mut rank.slow, scaled(own.x), LONGEST);
        keep(&mut rank.column, scaled(shared), LONGEST);
    }

    /// The rank that computed longest and how much longer than the next that is not blamed.
    fn longest(&self, readings: &[Reading]) -> (u32, u64) {
        let Some(longest) = readings.iter().max_by_key(|it| it.busy_ns) else {
            return (0, 0);
        };
        let blamed = self.ranks.iter().filter(|it| it.1.blamed_since.is_some());
        let blamed: BTreeSet<u32> = blamed.map(|it| *it.0).collect();
        let is_other = |it: &&Reading| it.rank != longest.rank && !blamed.contains(&it.rank);
        let next = readings.iter().filter(is_other).map(|it| it.busy_ns).max();
        let excess_ns = next.map_or(0, |next| longest.busy_ns.saturating_sub(next));
        (longest.rank, excess_ns)
    }
}

/// The median busy time of the others, of peers in order; none without others.
fn median_without(peers: &[&Reading], index: usize) -> Option<f64> {
    let others = peers.len() - 1;
    let at = |place: usize| peers[if place < index { place } else { place + 1 }].busy_ns as f64;
    match others {
        0 => None,
        odd if odd % 2 == 1 => Some(at(odd / 2)),
        even => Some(at(even / 2 - 1).midpoint(at(even / 2))),
    }
}

fn scaled(x: f64) -> i16 {
    (x * SCALE).round() as i16
}

//! Steps of which all ranks are known: what a detector sees of a run.
//!
//! A step is complete when every rank that has not ended has reported it, or when it is older than
//! the newest by [`AGED_OUT`]: a rank that fell silent holds nobody back for longer. Where ranks sum
//! 2^k steps, those of all are summed so, as coarsely as three quarters of them do at most: one that
//! tells nonsense is then missing, and does not stop the rest. Times are those of one step.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use gpufleet_analysis::straggler::Seat;
use gpufleet_telemetry::steps::StepTimes;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::ring::Ring;
use super::{RankFacts, Run};

/// How long a step waits for the ranks that have not reported it, nanoseconds: six shipments.
pub const AGED_OUT: i64 = 60 * NANOS_PER_SECOND;

/// Most readings of one answer, steps × ranks: 64 MiB.
const MAX_READINGS: usize = 1_000_000;

/// How far a reader of complete steps has come. One for each run and reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The next step; none before the first.
    next: Option<u64>,
}

/// A step, or 2^k of them, with what each rank did.
#[derive(Debug, Clone, PartialEq)]
pub struct CompleteStep {
    /// The run's number of it, or of the first of them.
    pub step: u64,
    /// How many steps are summed up: 1, or a power of two.
    pub steps: u64,
    /// When the last rank ended it.
    pub ended_at: Timestamp,
    /// How long one step took, median over the ranks, nanoseconds.
    pub wall_ns: u64,
    /// What each rank did, by its number.
    pub readings: Vec<RankStep>,
    /// Ranks that did not report it, of those that are known or said to be.
    pub missing: usize,
}

/// One rank in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankStep {
    /// Its number.
    pub rank: u32,
    /// Where it stands.
    pub seat: Seat,
    /// Its times, of one step.
    pub times: StepTimes,
}

/// The rings of a run's ranks, to be read without its lock.
#[derive(Debug)]
pub(super) struct Rings {
    ranks: Vec<Seated>,
    /// How many ranks there should be.
    expected: usize,
    /// Those of them that have ended.
    ended: BTreeSet<u32>,
}

/// A rank with what a reader has not been given of it.
#[derive(Debug)]
struct Seated {
    rank: u32,
    seat: Seat,
    /// The steps of the whole ring since the numbers last went back.
    span: (u64, u64),
    ring: Ring,
}

/// One rank's part of a step on the way.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    steps: u64,
    ended_at: Timestamp,
    times: StepTimes,
}

impl Rings {
    /// What a reader at this place needs: of a large run the blocks that it has had are many.
    pub(super) fn of(run: &Run, place: Place) -> Self {
        let world = run.facts.world;
        let ranks = run.members();
        let seated = ranks.clone().filter_map(|(number, rank)| {
            let span = rank.ring.span()?;
            let ring = match place.next {
                Some(next) if span.1 > next => rank.ring.from(next),
                // It went back, or is to be read from its beginning.
                _ => rank.ring.clone(),
            };
            Some(Seated {
                rank: *number,
                seat: seat(&rank.facts, world),
                span,
                ring,
            })
        });
        let ended = ranks.clone().filter(|(_, rank)| rank.facts.end.is_some());
        Self {
            expected: ranks.clone().count().max(world as usize),
            ended: ended.map(|(number, _)| *number).collect(),
            ranks: seated.collect(),
        }
    }

    pub(super) fn complete(&self, place: &mut Place, most: usize) -> Vec<CompleteStep> {
        let Some(from) = self.begin(*place) else {
            return Vec::new();
        };
        let rings = || self.ranks.iter().map(|it| &it.ring);
        let newest = rings().filter_map(Ring::ended_at).max();
        let newest = newest.unwrap_or_default();
        let log2 = of_most(rings().map(|it| it.coarsest(from)).collect()).unwrap_or(0);
        let per_group = 1_u64 << log2;
        let from = from.next_multiple_of(per_group);
        let most = most.min(MAX_READINGS / self.ranks.len().max(1)).max(1) as u64;
        let until = from.saturating_add(most.saturating_mul(per_group));
        let mut complete = Vec::new();
        for (step, sums) in self.sums(from, until, log2) {
            let found = self.step(step, per_group, &sums);
            let has_ended = |it: &&RankStep| self.ended.contains(&it.rank);
            let excused = self.ended.len() - found.readings.iter().filter(has_ended).count();
            let is_whole = found.readings.len() + excused >= self.expected;
            if !is_whole && newest.since(found.ended_at) < AGED_OUT {
                break;
            }
            place.next = Some(step + per_group);
            if !found.readings.is_empty() {
                complete.push(found);
            }
        }
        complete
    }

    /// Where to go on: at the place, or where most ranks are when there is none, or when half of them
    /// went back before it.
    fn begin(&self, place: Place) -> Option<u64> {
        let spans: Vec<(u64, u64)> = self.ranks.iter().map(|it| it.span).collect();
        let together = of_most(spans.iter().map(|it| it.0).collect())?;
        match place.next {
            Some(next) => {
                let behind = spans.iter().filter(|it| it.1 < next).count();
                let went_back = behind * 2 > spans.len();
                Some(if went_back { together.min(next) } else { next })
            }
            None => Some(together),
        }
    }

    /// What each rank did, by step; ranks by their place, in order.
    fn sums(&self, from: u64, until: u64, log2: u8) -> BTreeMap<u64, Vec<(usize, Sum)>> {
        let mut groups: BTreeMap<u64, Vec<(usize, Sum)>> = BTreeMap::new();
        for (place, seated) in self.ranks.iter().enumerate() {
            for block in seated.ring.blocks_in(from, until) {
                let per_entry = block.steps_per_entry();
                let mut step = block.first_step;
                for (times, ended_at) in block.times.iter().zip(block.ends()) {
                    let group = step >> log2 << log2;
                    if group >= from && group < until {
                        let sums = groups.entry(group).or_default();
                        if sums.last().is_none_or(|it| it.0 != place) {
                            sums.push((place, Sum::default()));
                        }
                        if let Some((_, sum)) = sums.last_mut() {
                            sum.add(times, per_entry, ended_at);
                        }
                    }
                    step += per_entry;
                }
            }
        }
        groups
    }

    fn step(&self, step: u64, steps: u64, sums: &[(usize, Sum)]) -> CompleteStep {
        let whole = sums.iter().filter(|(_, sum)| sum.steps == steps);
        let reading = |(place, sum): &(usize, Sum)| {
            let Seated { rank, seat, .. } = self.ranks[*place];
            let times = sum.times.of_one(steps);
            RankStep { rank, seat, times }
        };
        let readings: Vec<RankStep> = whole.map(reading).collect();
        let mut walls: Vec<u64> = readings.iter().map(|it| it.times.wall_ns).collect();
        walls.sort_unstable();
        let ended_at = sums.iter().map(|(_, it)| it.ended_at).max();
        CompleteStep {
            step,
            steps,
            ended_at: ended_at.unwrap_or_default(),
            wall_ns: walls.get(walls.len() / 2).copied().unwrap_or(0),
            missing: self.expected.saturating_sub(readings.len()),
            readings,
        }
    }
}

/// What three quarters of the ranks are at or below; of two or three the greatest.
fn of_most<T: Ord + Copy>(mut told: Vec<T>) -> Option<T> {
    told.sort_unstable();
    told.get(told.len() * 3 / 4).copied()
}

impl Sum {
    fn add(&mut self, times: &StepTimes, steps: u64, ended_at: Timestamp) {
        self.steps += steps;
        self.ended_at = self.ended_at.max(ended_at);
        self.times = self.times.and(*times);
    }
}

/// Where a rank stands for the straggler detector. A dimension that nobody told is of size 1 where
/// the ones that were told make up the whole world; else the column is not known.
pub fn seat(rank: &RankFacts, world: u32) -> Seat {
    let axes = rank.mesh.axes();
    let sizes = axes
        .iter()
        .filter_map(|(_, it)| *it)
        .map(|it| u64::from(it.of));
    let is_whole = world > 0 && sizes.product::<u64>() == u64::from(world);
    let mut column = Some(0_u32);
    for (name, place) in axes.iter().filter(|(name, _)| *name != "pp") {
        let (at, of) = match place {
            Some(place) if place.of > 0 => (place.at, place.of),
            // Experts are spread over the ranks of other dimensions: they add none.
            None if is_whole || *name == "ep" => (0, 1),
            _ => {
                column = None;
                break;
            }
        };
        column = column.and_then(|it| it.checked_mul(of)?.checked_add(at));
    }
    Seat {
        stage: rank.mesh.pp.map(|it| it.at),
        column,
        host: host(&rank.node),
        replica: rank.mesh.dp.map(|it| it.at),
        context: rank.mesh.cp.filter(|it| it.of > 1).map(|it| it.at),
    }
}

/// A number for a node, by its name alone, so that it stays when others come; none of one that is not known.
fn host(node: &str) -> Option<u32> {
    let mut hasher = DefaultHasher::new();
    node.hash(&mut hasher);
    (!node.is_empty()).then(|| hasher.finish() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_one_node_share_a_host_that_no_other_has_and_an_unknown_node_is_none() {
        let on = |node: &str| {
            let rank = RankFacts {
                node: node.into(),
                ..RankFacts::default()
            };
            seat(&rank, 8).host
        };
        assert_eq!(on("node-1"), on("node-1"));
        assert_ne!(on("node-1"), on("node-2"));
        assert_eq!(on(""), None);
    }
}

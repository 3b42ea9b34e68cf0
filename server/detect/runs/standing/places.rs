//! How far the ranks of a run that may stand are, on each communicator and in all.
//!
//! How far a rank is on a communicator is how many collectives of a function it has done there, and one more where it
//! is in one. Which of its communicators that one is on is not told, so that of the communicators on which ranks differ
//! the one is named that agents say is stuck, else the one whose ranks wait for longest: whoever needs the rank next
//! waits first. Where nothing is counted, who is in no collective is behind those that are in one.
//!
//! Limits: counts of NCCL's own service are a minute old, so that they count once the run stands for
//! [`ASKED_NS`]; those of NCCL Inspector's files do not. Collectives that are counted when they are enqueued say how far the
//! program is, not the GPU.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gpufleet_analysis::hang::{Hang, Position, Watch};
use gpufleet_telemetry::catalog::training;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::training::{CollectivesFrom, collective_of};

use crate::detect::runs::waits::HOLDS_S;
use crate::detect::runs::{RankSnapshot, RunSnapshot, is_heard};
use crate::detect::seconds_since;
use crate::fleet::{Fleet, Live, LiveValue};
use crate::runs::RunKey;

/// After so long every rank was asked again by NCCL's service, nanoseconds: it is asked each minute, and what it said
/// counts for three.
const ASKED_NS: i64 = 240 * NANOS_PER_SECOND;

/// How many collectives each rank has entered or done, by rank; by communicator and function.
#[derive(Debug, Default)]
pub(in crate::detect::runs) struct Entered(BTreeMap<u32, Vec<(Name, u64)>>);

/// A communicator and a function.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) communicator: u64,
    pub(super) function: String,
}

/// Where its ranks are: in communicators, which are numbered as they are to be asked, and in all of the run.
#[derive(Default)]
pub(super) struct Places {
    pub(super) positions: Vec<Position>,
    /// The communicators by number.
    names: Vec<Name>,
}

/// The number of all of a run, behind every communicator's: it is asked last.
const WHOLE: u64 = u64::MAX;

/// What such a number stands for.
enum Where<'a> {
    /// A communicator and a function, of which ranks are counted.
    Communicator(&'a Name),
    /// All of the run, with each rank once: whether it is in a collective, whichever.
    Whole,
}

/// What the ranks of a run count of their collectives.
pub(in crate::detect::runs) fn entered(
    key: &RunKey,
    run: &RunSnapshot,
    fleet: &Fleet,
    now: Timestamp,
) -> Entered {
    let of = |rank: &RankSnapshot| {
        let counted = fleet.look(&key.rank(rank.rank), |live| counted(live, now))?;
        (!counted.is_empty()).then_some((rank.rank, counted))
    };
    Entered(run.ranks.iter().filter_map(of).collect())
}

/// What a rank counts as of now: a communicator that it no longer tells of is gone.
fn counted(live: &Live, now: Timestamp) -> Vec<(Name, u64)> {
    let is_told = |it: &&LiveValue| seconds_since(now, it.at) <= HOLDS_S;
    let counts = live.parts(training::COLLECTIVE_CALLS.id).filter(is_told);
    let one = |value: &LiveValue| {
        let (communicator, function) = collective_of(&value.part.as_ref()?.id)?;
        let name = Name {
            communicator,
            function: function.to_owned(),
        };
        Some((name, value.reading.ok()? as u64))
    };
    counts.filter_map(one).collect()
}

impl Places {
    /// Of a run that may stand.
    pub(super) fn of(run: &RunSnapshot, entered: &Entered, watch: &Watch, now: Timestamp) -> Self {
        let stood_ns = watch.stands_for(now);
        let stood = now.shifted(-stood_ns);
        let mut counted = counted_positions(run, entered, stood_ns, now);
        // Before the first step counts that differ for a moment are no evidence: it may merely not tell its steps.
        if watch.has_begun() {
            for positions in counted.values_mut() {
                are_in(positions, stood);
            }
        }
        let mut counted: Vec<(&Name, Vec<Position>)> = counted.into_iter().collect();
        counted.sort_by_key(|(name, positions)| {
            let oldest = positions.iter().filter_map(|it| it.in_since).min();
            let waits = Reverse(oldest.map(|it| now.since(it)));
            let is_stuck = is_stuck(run, name, stood);
            (!is_stuck, waits, positions.len(), (*name).clone())
        });
        let mut places = Self::default();
        for (communicator, (name, positions)) in (0_u64..).zip(counted) {
            let of = |it| Position { communicator, ..it };
            places.positions.extend(positions.into_iter().map(of));
            places.names.push(name.clone());
        }
        let told = run.ranks.iter().filter(|it| tells(it, now));
        places.positions.extend(told.map(|it| {
            let is_in = u64::from(in_since(it, now).is_some());
            position(it, is_in, now)
        }));
        places
    }

    fn at(&self, number: u64) -> Where<'_> {
        let name = usize::try_from(number).ok();
        let name = name.and_then(|it| self.names.get(it));
        name.map_or(Where::Whole, Where::Communicator)
    }

    /// What a run stands in: by what its ranks count, else by what an agent told first of those that are stuck.
    pub(super) fn stands_in(&self, run: &RunSnapshot, hang: &Hang) -> Option<Name> {
        match self.at(hang.communicator?) {
            Where::Communicator(name) => Some(name.clone()),
            Where::Whole => {
                let stuck = run.stuck.iter().find(|it| it.at >= hang.since)?;
                Some(Name {
                    communicator: stuck.communicator,
                    function: stuck.function.clone(),
                })
            }
        }
    }

    /// The ranks that say whether they are in a collective, each once.
    pub(super) fn whole(&self) -> impl Iterator<Item = &Position> {
        self.positions.iter().filter(|it| it.communicator == WHOLE)
    }

    /// How far a rank is in what stands, where ranks are counted there.
    pub(super) fn counted(&self, hang: &Hang, rank: u32) -> Option<u64> {
        let number = hang.communicator?;
        let is_it = |it: &&Position| it.communicator == number && it.rank == rank;
        let found = self.positions.iter().find(is_it)?;
        matches!(self.at(number), Where::Communicator(_)).then_some(found.sequence)
    }
}

/// How far ranks are in the communicators that two of them count at least, which are not numbered yet.
fn counted_positions<'a>(
    run: &RunSnapshot,
    entered: &'a Entered,
    stood_ns: i64,
    now: Timestamp,
) -> BTreeMap<&'a Name, Vec<Position>> {
    let mut counted: BTreeMap<&Name, Vec<Position>> = BTreeMap::new();
    for rank in &run.ranks {
        // Whether what it is in counts already.
        let counts_entered = match rank.collectives {
            Some(CollectivesFrom::Plugin) => false,
            Some(CollectivesFrom::PluginUntimed | CollectivesFrom::Silent) => true,
            Some(CollectivesFrom::Ras) if stood_ns >= ASKED_NS => true,
            _ => continue,
        };
        let one_more = u64::from(!counts_entered && in_since(rank, now).is_some());
        let counts = entered.0.get(&rank.rank);
        for (name, count) in counts.into_iter().flatten() {
            let of_name = counted.entry(name).or_default();
            of_name.push(position(rank, count.saturating_add(one_more), now));
        }
    }
    counted.retain(|_, it| it.len() > 1);
    counted
}

/// Whether a rank says now whether it is in a collective.
fn tells(rank: &RankSnapshot, now: Timestamp) -> bool {
    rank.in_flight.is_some() && is_heard(rank.heard, now)
}

/// Since when a rank is in a collective, as it says now.
fn in_since(rank: &RankSnapshot, now: Timestamp) -> Option<Timestamp> {
    let (count, age_s) = rank.in_flight.filter(|_| tells(rank, now))?;
    let age_ns = ((age_s * 1e9) as i64).saturating_neg();
    (count > 0.0).then(|| now.shifted(age_ns))
}

/// Where a rank is in all of the run.
fn position(rank: &RankSnapshot, sequence: u64, now: Timestamp) -> Position {
    Position {
        communicator: WHOLE,
        rank: rank.rank,
        sequence,
        in_since: in_since(rank, now),
    }
}

/// Whether agents say since it stands that ranks do not come out of it.
fn is_stuck(run: &RunSnapshot, name: &Name, stood: Timestamp) -> bool {
    run.stuck.iter().filter(|it| it.at >= stood).any(|it| {
        let is_function = it.function.is_empty() || it.function == name.function;
        it.communicator == name.communicator && is_function
    })
}

/// Ranks of a communicator of which nobody says what is in flight and whose counts differ: who is furthest waits there
/// since the run stands.
fn are_in(positions: &mut [Position], stood: Timestamp) {
    let is_told = positions.iter().any(|it| it.in_since.is_some());
    let most = positions.iter().map(|it| it.sequence).max();
    let differ = positions.iter().any(|it| Some(it.sequence) != most);
    if !is_told && differ {
        for it in positions {
            it.in_since = (Some(it.sequence) == most).then_some(stood);
        }
    }
}

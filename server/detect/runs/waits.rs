//! Who makes the others wait, by the times of collectives: of a run whose steps do not say so, because it tells none
//! or because nobody in it tells waits for others, so that all ranks look alike.
//!
//! A collective ends nearly together on all its ranks: whose calls are the shortest came last
//! ([`straggler::collectives`]). What each rank's calls took since the tick before is held against those of the other
//! ranks of the same communicator and function, and such a tick is judged as a step is
//! ([`straggler::Source::Collectives`]).
//!
//! Limits: times that our plugin measures on the GPU, of the [`MOST`] longest of a rank's communicators and functions;
//! [`straggler::RANK_BYTES`] a rank for the straggler and [`COUNTED_BYTES`] for what its calls took, 512 together. A tick
//! without calls says nothing, and for [`HOLDS_S`] what was said before holds. A run is judged after 25 ticks.

use std::collections::BTreeMap;

use gpufleet_analysis::robust::median;
use gpufleet_analysis::straggler::collectives::{Function, Operation, readings};
use gpufleet_analysis::straggler::{self, Price, Seat, Silent, Source, Verdict};
use gpufleet_telemetry::catalog::training;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::training::collective_of;

use crate::detect::detector::TickSnapshot;
use crate::detect::{TICK, seconds_since};
use crate::fleet::{Live, LiveValue};
use crate::runs::complete::seat;
use crate::runs::{Judged, Run, RunKey};

/// Communicators and functions of a rank whose times are kept, those it is in for longest: more take no time that
/// would be missed.
const MOST: usize = 8;

/// Longer than this between two readings of a rank, seconds, and they say nothing together; nor does what was judged
/// hold for longer without new ones.
pub(super) const HOLDS_S: f64 = 90.0;

/// What is kept of a run.
pub(super) struct Waits {
    run: straggler::Run,
    ticks: u64,
    before: BTreeMap<u32, Counted>,
    since: BTreeMap<u32, Timestamp>,
    /// What was said last, and when.
    said: Option<(Judged, Timestamp)>,
}

/// What a rank's collectives took in all.
#[derive(Debug, Clone, Default)]
struct Counted {
    at: Timestamp,
    /// By communicator and function.
    totals: Box<[Total]>,
}

/// Those of one function on one communicator.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Total {
    communicator: u64,
    seconds: f64,
    /// The low bits of how many.
    calls: u32,
    function: Function,
}

/// Most bytes that are kept of a rank's calls, with its number, beside what the straggler keeps of it.
const COUNTED_BYTES: usize = 220;
const _: () = {
    let counted = size_of::<u32>() + size_of::<Counted>() + MOST * size_of::<Total>();
    assert!(counted <= COUNTED_BYTES);
    assert!(straggler::RANK_BYTES + COUNTED_BYTES <= 512);
};

/// What a rank's collectives took since the tick before.
struct Took {
    rank: u32,
    calls: u64,
    /// Each of them on average, nanoseconds.
    mean_ns: u64,
}

impl Waits {
    pub(super) fn new() -> Self {
        Self {
            run: straggler::Run::new(Source::Collectives),
            ticks: 0,
            before: BTreeMap::new(),
            since: BTreeMap::new(),
            said: None,
        }
    }

    /// Takes in a tick and says who makes the others wait; none where that is not known. A step takes `step_ns`,
    /// 0 where the run tells none.
    pub(super) fn judge(
        &mut self,
        key: &RunKey,
        tick: &TickSnapshot<'_>,
        step_ns: u64,
    ) -> Option<Judged> {
        let now = tick.now;
        let seats = tick.runs().look(key, seats)?;
        self.before.retain(|rank, _| seats.contains_key(rank));
        let mut calls: BTreeMap<(u64, Function), Vec<Took>> = BTreeMap::new();
        let mut walls = Vec::new();
        for rank in seats.keys() {
            let counted = tick.fleet.look(&key.rank(*rank), |it| Counted::of(it, now));
            let Some(counted) = counted.filter(|it| !it.totals.is_empty()) else {
                continue;
            };
            let Some(before) = self.before.insert(*rank, counted.clone()) else {
                continue;
            };
            let wall = seconds_since(counted.at, before.at);
            if wall > 0.0 && wall <= HOLDS_S {
                walls.push(wall);
                for (name, calls_of, mean_ns) in counted.since(&before) {
                    calls.entry(name).or_default().push(Took {
                        rank: *rank,
                        calls: calls_of,
                        mean_ns,
                    });
                }
            }
        }
        let wall_ns = median(&mut walls).unwrap_or(0.0) * NANOS_PER_SECOND as f64;
        if let Some(readings) = busy(&calls, wall_ns as u64, &seats) {
            self.ticks += 1;
            self.run.observe(&straggler::Step {
                step: self.ticks,
                wall_ns: wall_ns as u64,
                readings: &readings,
            });
            let verdict = self.run.judge_by(&tick.by.straggler);
            let judged = self.judged(verdict, step_ns, now);
            self.said = judged.map(|it| (it, now));
        }
        let said = self.said.as_ref();
        let said = said.filter(|it| seconds_since(now, it.1) <= HOLDS_S);
        said.map(|it| it.0.clone())
    }

    /// What there is to say; none where nobody can be judged. Where more look slow than can be named it says that.
    fn judged(&mut self, mut verdict: Verdict, step_ns: u64, now: Timestamp) -> Option<Judged> {
        if verdict.silent.is_some_and(|it| it != Silent::MeshUnknown) {
            return None;
        }
        let is_blamed = |rank: &u32| verdict.stragglers.iter().any(|it| it.rank == *rank);
        // Where several look slow nobody is named, and who was may be slow on.
        if verdict.silent.is_none() {
            self.since.retain(|rank, _| is_blamed(rank));
        }
        let tick_ns = i64::try_from(TICK.as_nanos()).unwrap_or(0);
        for slow in &mut verdict.stragglers {
            let ticks = self.ticks.saturating_sub(slow.since_step);
            let ticks = i64::try_from(ticks).unwrap_or(0);
            let begun = now.shifted(-ticks.saturating_mul(tick_ns));
            self.since.entry(slow.rank).or_insert(begun);
            slow.price = slow.price.map(|it| of_a_step(it, step_ns));
        }
        Some(Judged {
            verdict,
            since: self.since.clone(),
            slower: None,
            before: None,
            step: self.ticks,
            ended_at: now,
            step_ns,
        })
    }
}

/// What holds of a tick, of a step of this length; of a tick where none is known.
fn of_a_step(price: Price, step_ns: u64) -> Price {
    if step_ns == 0 || price.step_ns == 0 {
        return price;
    }
    let left = price.without_ns as f64 / price.step_ns as f64;
    Price {
        step_ns,
        without_ns: (step_ns as f64 * left) as u64,
    }
}

/// Where the ranks sit that have not ended.
fn seats(run: &Run) -> BTreeMap<u32, Seat> {
    run.living()
        .map(|(number, it)| (*number, seat(&it.facts, run.facts.world)))
        .collect()
}

/// How long each rank did not wait; none where nobody measured anything.
fn busy(
    calls: &BTreeMap<(u64, Function), Vec<Took>>,
    wall_ns: u64,
    seats: &BTreeMap<u32, Seat>,
) -> Option<Vec<straggler::Reading>> {
    type Durations = Vec<(u32, u64)>;
    let all = calls.iter().map(|((_, function), took)| {
        // Agents read at moments a little apart: how many calls came between is taken to be the same for all.
        let mut counts: Vec<u64> = took.iter().map(|it| it.calls).collect();
        counts.sort_unstable();
        let durations: Durations = took.iter().map(|it| (it.rank, it.mean_ns)).collect();
        (*function, counts[counts.len() / 2], durations)
    });
    let all: Vec<(Function, u64, Durations)> = all.collect();
    let operations = all.iter().map(|(function, calls, durations)| Operation {
        function: *function,
        calls: *calls,
        durations,
    });
    let readings = readings(wall_ns, &operations.collect::<Vec<_>>(), seats);
    (wall_ns > 0 && !readings.is_empty()).then_some(readings)
}

impl Counted {
    /// What is live of a rank.
    fn of(live: &Live, now: Timestamp) -> Self {
        let is_fresh = |it: &&LiveValue| seconds_since(now, it.at) <= HOLDS_S;
        let timed = live.parts(training::COLLECTIVE_DURATION.id);
        let mut at = Timestamp::default();
        let mut totals: Vec<Total> = Vec::new();
        for value in timed.filter(is_fresh) {
            if let Some(total) = Total::of(live, value) {
                at = at.max(value.at);
                totals.push(total);
            }
        }
        totals.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        totals.truncate(MOST);
        Self {
            at,
            totals: totals.into_boxed_slice(),
        }
    }

    /// How many calls came since, by communicator and function, and what one took on average, nanoseconds.
    fn since(&self, before: &Self) -> Vec<((u64, Function), u64, u64)> {
        let of = |total: &Total| {
            let name = (total.communicator, total.function);
            let is_it = |it: &&Total| (it.communicator, it.function) == name;
            let before = before.totals.iter().find(is_it)?;
            let seconds = total.seconds - before.seconds;
            let calls = total.calls.wrapping_sub(before.calls);
            // A process that began anew counts from 0 again.
            let has_grown = seconds > 0.0 && (1..u32::MAX / 2).contains(&calls);
            let mean_ns = seconds * NANOS_PER_SECOND as f64 / f64::from(calls);
            has_grown.then_some((name, calls.into(), mean_ns as u64))
        };
        self.totals.iter().filter_map(of).collect()
    }
}

impl Total {
    fn of(live: &Live, timed: &LiveValue) -> Option<Self> {
        let part = timed.part.as_ref()?;
        let seconds = timed.reading.ok().filter(|it| *it > 0.0)?;
        let (communicator, function) = collective_of(&part.id)?;
        let function = Function::of(function);
        let calls = live.timed_collectives(Some(&**part))?;
        Some(Self {
            communicator,
            seconds,
            calls: calls as u64 as u32,
            function,
        })
        .filter(|it| it.function.synchronises())
    }
}

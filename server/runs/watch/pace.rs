//! The last steps of a run: how long one takes, whether that is longer than it was, and where the time of a step went
//! before and since.
//!
//! A run that became slower is so until its steps take about what they did before: more on top, or a part that is
//! gained back, changes by how much. One whose rises come back at the same distance, as after each evaluation, is told
//! once, and rests between them.
//!
//! Limits: [`RECENT`] steps of 32 bytes, and 8 bytes for each step of a baseline while that is learnt.

use std::collections::VecDeque;

use gpufleet_analysis::cause::before::Spent;
use gpufleet_analysis::incident::Evidence;
use gpufleet_analysis::regression::{self, Change, Direction, Rises, Thresholds};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use crate::runs::CompleteStep;

/// Steps that are remembered: the straggler's longest window and some more, and those of a baseline.
const RECENT: usize = 64;

/// Steps over which a run's pace is told.
const PACE: usize = 20;

/// Part of a step that may be neither computing nor waiting: clocks and rounding make some.
const QUIET_PART: f64 = 0.1;

/// A run whose steps take longer than they did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slowdown {
    /// By how much, and since which step.
    pub change: Change,
    /// Steps from one rise to the next, where they come back at the same distance.
    pub every: Option<u64>,
    /// Whether its steps take no longer just now, until the next rise.
    pub rests: bool,
    /// When the first of the longer steps ended.
    pub began_at: Timestamp,
    /// Where the time of its steps went before; none is not known.
    pub before: Option<Spent>,
    /// And where since, up to where it was confirmed.
    pub since: Option<Spent>,
}

impl Slowdown {
    /// What is said of such a run, and what its readings are called.
    pub const WHAT: &'static str = "its steps take longer than they did";
    /// How long a step takes, and did.
    pub const STEP: &'static str = "a step";
    /// The first that takes longer.
    pub const SINCE: &'static str = "since step";

    /// As it was told before this server watched; none where it was not.
    pub(super) fn told(evidence: &Evidence) -> Option<Self> {
        let (step_ns, usual_ns) = step_told(evidence, Self::WHAT)?;
        let ratio = step_ns / usual_ns;
        let since = evidence.readings.iter().find(|it| it.name == Self::SINCE);
        let since_step = since.map_or(0, |it| it.value as u64);
        Some(Self {
            change: Change {
                direction: Direction::Slower,
                since_step,
                at_step: since_step,
                baseline_ns: usual_ns,
                ratio,
            },
            every: None,
            rests: false,
            began_at: evidence.at,
            before: None,
            since: None,
        })
    }
}

/// How long a step takes, and is usual, by evidence that says so, nanoseconds.
pub(super) fn step_told(evidence: &Evidence, what: &str) -> Option<(f64, f64)> {
    let mut readings = evidence.readings.iter().filter(|_| evidence.what == what);
    let step = readings.find(|it| it.name == Slowdown::STEP)?;
    let usual = step.usual.filter(|it| *it > 0.0)?;
    let nanos = NANOS_PER_SECOND as f64;
    Some((step.value * nanos, usual * nanos))
}

/// What is known of the pace of one run.
#[derive(Default)]
pub(super) struct Pace {
    regression: regression::Watch,
    /// Where the time of the steps of its baseline goes, while that is learnt, and once it is.
    learning: Vec<Spent>,
    usual: Option<Spent>,
    slower: Option<Slowdown>,
    rises: Rises,
    recent: VecDeque<Recent>,
}

/// One of the last steps.
#[derive(Clone, Copy)]
struct Recent {
    step: u64,
    ended_at: Timestamp,
    wall_ns: u64,
    spent: Spent,
}

const _: () = assert!(size_of::<Recent>() <= 32 && size_of::<Spent>() <= 8);

impl Pace {
    /// Of a run that was told to be slower before this server watched.
    pub(super) fn resumed(slower: Option<Slowdown>) -> Self {
        Self {
            slower,
            ..Self::default()
        }
    }

    /// Takes in a step.
    pub(super) fn observe(&mut self, step: &CompleteStep, by: &Thresholds) {
        // Numbers that went back are another time of the run: a step before has the number of one that comes.
        if self.recent.back().is_some_and(|it| step.step < it.step) {
            (self.slower, self.rises) = (None, Rises::default());
            self.learning.clear();
            self.recent.clear();
        }
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        let spent = spent(step);
        self.recent.push_back(Recent {
            step: step.step,
            ended_at: step.ended_at,
            wall_ns: step.wall_ns,
            spent,
        });
        let is_quiet = is_quiet(step);
        let is_learning = self.regression.baseline_ns().is_none();
        let regression = &mut self.regression;
        let change = regression.observe_by(step.step, step.wall_ns, is_quiet, by);
        if is_learning && !is_quiet && self.learning.len() < RECENT {
            self.learning.push(spent);
        }
        if is_learning && self.regression.baseline_ns().is_some() {
            self.usual = Spent::median(&std::mem::take(&mut self.learning));
        }
        if let Some(change) = change {
            self.changed(&change, step.ended_at, by);
        }
    }

    /// Its steps take longer or shorter, which this step confirms.
    fn changed(&mut self, change: &Change, confirmed_at: Timestamp, by: &Thresholds) {
        let before = self.usual.take();
        let standing = self.slower.filter(|it| !it.rests);
        let whole = standing.map_or(*change, |it| it.change.and(change));
        // What is left and would be no change is none.
        if whole.ratio < 1.0 + by.change {
            self.is_as_fast();
            return;
        }
        if standing.is_none() {
            self.rises.push(change.since_step);
        }
        let every = self.rises.every();
        let began_at = self.ended_at(change.since_step).unwrap_or(confirmed_at);
        let since = self.spent_since(change.since_step);
        let known = self.slower.filter(|it| !it.rests || every.is_some());
        self.slower = Some(match known {
            Some(known) => Slowdown {
                change: Change {
                    since_step: known.change.since_step,
                    ..whole
                },
                every,
                rests: false,
                since,
                ..known
            },
            None => Slowdown {
                change: whole,
                every,
                rests: false,
                began_at,
                before,
                since,
            },
        });
    }

    /// Its steps take no longer than they did: it is over, or rests where the next rise is awaited.
    fn is_as_fast(&mut self) {
        let resting = |it: Slowdown| it.every.map(|_| Slowdown { rests: true, ..it });
        self.slower = self.slower.and_then(resting);
    }

    /// Where the time of the steps from this one on went.
    fn spent_since(&self, step: u64) -> Option<Spent> {
        let longer = self.recent.iter().filter(|it| it.step >= step);
        Spent::median(&longer.map(|it| it.spent).collect::<Vec<_>>())
    }

    /// The last step and when it ended.
    pub(super) fn last(&self) -> Option<(u64, Timestamp)> {
        self.recent.back().map(|it| (it.step, it.ended_at))
    }

    /// When this step ended, or the first that is known after it.
    pub(super) fn ended_at(&self, step: u64) -> Option<Timestamp> {
        let found = self.recent.iter().find(|it| it.step >= step);
        found.map(|it| it.ended_at)
    }

    /// How long a step takes, median of the last [`PACE`], nanoseconds; 0 before the first.
    pub(super) fn step_ns(&self) -> u64 {
        let last = self.recent.iter().rev().take(PACE);
        let mut pace: Vec<u64> = last.map(|it| it.wall_ns).collect();
        pace.sort_unstable();
        pace.get(pace.len() / 2).copied().unwrap_or(0)
    }

    /// That it is slower than it was.
    pub(super) const fn slower(&self) -> Option<Slowdown> {
        self.slower
    }

    /// Looks whether it is slower still. A baseline that was learnt while it was slow tells no change back: within half
    /// of what is a change it is as fast again.
    pub(super) fn settle(&mut self, by: &Thresholds) {
        let step_ns = self.step_ns() as f64;
        let is_fast = |it: &Slowdown| step_ns < it.change.baseline_ns * (1.0 + by.change / 2.0);
        if self.slower.as_ref().is_some_and(is_fast) {
            self.is_as_fast();
        }
        let step = self.last().map_or(0, |it| it.0);
        let rises = self.rises;
        self.slower = self.slower.filter(|it| !it.rests || rises.awaits(step));
    }
}

/// Where the time of a step went on the rank that computed longest: the others wait for it, and it waits for none.
fn spent(step: &CompleteStep) -> Spent {
    let longest = step.readings.iter().max_by_key(|it| it.times.own_ns());
    longest.map_or(Spent::default(), |it| Spent {
        data_wait_ns: it.times.data_wait_ns as f32,
        collective_wait_ns: it.times.comm_wait_ns as f32,
    })
}

/// Whether a step was also spent on what is not training, a checkpoint or an evaluation: on some rank
/// more than [`QUIET_PART`] of it is neither computing nor waiting.
fn is_quiet(step: &CompleteStep) -> bool {
    step.readings.iter().any(|it| {
        let known = it.times.own_ns().saturating_add(it.times.comm_wait_ns);
        it.times.wall_ns.saturating_sub(known) as f64 > QUIET_PART * it.times.wall_ns as f64
    })
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::cause::{Cause, Reading};
    use gpufleet_analysis::incident::Place;
    use gpufleet_analysis::straggler::Seat;
    use gpufleet_telemetry::catalog::Unit;
    use gpufleet_telemetry::steps::StepTimes;

    use super::*;
    use crate::runs::RankStep;

    const MILLI: u64 = 1_000_000;

    /// A step of two ranks: the second computes longer, waits so long for data, and both so long in collectives.
    fn step(number: u64, data_ms: u64, collectives_ms: u64) -> CompleteStep {
        let wall_ms = 800 + data_ms + collectives_ms;
        let of = |rank: u32, busy_ms: u64, data_ms: u64| RankStep {
            rank,
            seat: Seat::default(),
            times: StepTimes {
                wall_ns: wall_ms * MILLI,
                busy_ns: busy_ms * MILLI,
                data_wait_ns: data_ms * MILLI,
                comm_wait_ns: (wall_ms - busy_ms - data_ms) * MILLI,
            },
        };
        CompleteStep {
            step: number,
            steps: 1,
            ended_at: Timestamp::from_seconds(1_790_000_000 + number as i64),
            wall_ns: wall_ms * MILLI,
            readings: vec![of(0, 700, 10), of(1, 800, data_ms)],
            missing: 0,
        }
    }

    #[test]
    fn a_run_that_was_told_to_be_slower_is_until_its_steps_are_as_fast_again() {
        let evidence = |what: &str| Evidence {
            at: Timestamp::from_seconds(1_790_000_000),
            place: Place::default(),
            what: what.to_owned(),
            cause: Cause::Unknown,
            readings: vec![
                Reading::new(Slowdown::STEP, 1.2, Some(1.0), Unit::Seconds),
                Reading::new(Slowdown::SINCE, 70.0, None, Unit::Count),
            ],
        };
        assert_eq!(Slowdown::told(&evidence("makes the others wait")), None);
        let told = Slowdown::told(&evidence(Slowdown::WHAT)).expect("it says so");
        let change = told.change;
        assert_eq!((change.since_step, change.baseline_ns), (70, 1e9));
        let mut pace = Pace::resumed(Some(told));
        let by = regression::Thresholds::default();
        for number in 5_000..5_200 {
            pace.observe(&step(number, 20, 380), &by);
        }
        assert_eq!(pace.slower(), Some(told), "as long as it was told to be");
        for number in 5_200..5_300 {
            pace.observe(&step(number, 20, 180), &by);
        }
        assert_eq!(pace.slower(), None);
    }

    #[test]
    fn a_run_that_became_slower_says_where_its_time_went_before_and_since_and_forgets_it_when_it_is_over()
     {
        let mut pace = Pace::default();
        let by = Thresholds::default();
        for number in 0..100 {
            pace.observe(&step(number, 20, 180), &by);
        }
        assert_eq!(pace.slower(), None);
        for number in 100..140 {
            pace.observe(&step(number, 120, 180), &by);
        }
        let slower = pace.slower().expect("a tenth longer");
        assert_eq!(slower.change.since_step, 100);
        assert_eq!(slower.began_at, Timestamp::from_seconds(1_790_000_100));
        let millis = |it: Option<Spent>| {
            let it = it.expect("it is known");
            [it.data_wait_ns, it.collective_wait_ns].map(|it| (it / MILLI as f32).round())
        };
        assert_eq!(millis(slower.before), [20.0, 180.0]);
        assert_eq!(millis(slower.since), [120.0, 180.0]);
        // A fifth on top, by the network this time: against what was before both.
        for number in 140..260 {
            let network = if number < 200 { 180 } else { 400 };
            pace.observe(&step(number, 120, network), &by);
        }
        let slower = pace.slower().expect("a third longer");
        assert!((slower.change.ratio - 1.32).abs() < 0.005, "{slower:?}");
        assert_eq!(slower.change.since_step, 100);
        assert_eq!(slower.began_at, Timestamp::from_seconds(1_790_000_100));
        assert_eq!(millis(slower.before), [20.0, 180.0]);
        assert_eq!(millis(slower.since), [120.0, 400.0]);
        // What was on top is gained back, and then all of it.
        for number in 260..340 {
            pace.observe(&step(number, 120, 180), &by);
            pace.settle(&by);
        }
        let slower = pace.slower().expect("still a tenth longer");
        assert!((slower.change.ratio - 1.1).abs() < 0.005, "{slower:?}");
        for number in 340..380 {
            pace.observe(&step(number, 20, 180), &by);
            pace.settle(&by);
        }
        assert_eq!(pace.slower(), None);
        for number in 380..500 {
            let data = if number < 440 { 20 } else { 120 };
            pace.observe(&step(number, data, 180), &by);
        }
        assert!(pace.slower().is_some());
        pace.observe(&step(7, 20, 180), &by);
        assert_eq!(pace.slower(), None, "another time of the run");
    }
    #[test]
    fn rises_that_come_back_at_the_same_distance_are_told_once_from_the_third_on_until_one_is_missing()
     {
        let mut pace = Pace::default();
        let by = Thresholds::default();
        let mut begun = Vec::new();
        let mut rests = 0;
        for number in 0..2_400 {
            // Longer for 100 steps of each 300, seven times.
            let is_longer = (300..2_200).contains(&number) && number % 300 < 100;
            let was_slower = pace.slower().is_some();
            pace.observe(&step(number, if is_longer { 220 } else { 20 }, 180), &by);
            pace.settle(&by);
            let slower = pace.slower();
            rests += u32::from(slower.is_some_and(|it| it.rests));
            if let Some(slower) = slower.filter(|_| !was_slower) {
                begun.push((slower.change.since_step, slower.every));
            }
        }
        assert_eq!(begun, [(300, None), (600, None), (900, Some(300))]);
        let slower = pace.slower().expect("the eighth may still come");
        assert_eq!((slower.every, slower.change.since_step), (Some(300), 900));
        assert!(rests > 800, "{rests}");
        for number in 2_400..2_500 {
            pace.observe(&step(number, 20, 180), &by);
            pace.settle(&by);
        }
        assert_eq!(pace.slower(), None);
    }
}

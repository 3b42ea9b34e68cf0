//! What is wrong with training runs: a rank that makes the others wait, a run that stands still, became
//! slower, or learns nothing; each with its cause, as far as readings say, and what its GPUs lose to it.
//!
//! Who is slow and whether a run became slower is judged beside the runs ([`crate::runs::watch`]), with
//! their steps; here it is given cause and price. That a run stands, its numbers, and who is slow where steps do
//! not say so ([`waits`]), are judged here. A run is looked at whole only when something may be wrong with it.
//!
//! Limits: state is 300 bytes a run, 3.5 KB of what its machines were like, the last looks at each place that is slow or
//! stands, and 512 a rank of one whose collectives are judged.

use std::collections::{BTreeMap, HashMap};

use gpufleet_analysis::cause::Reading;
use gpufleet_analysis::cause::before::History;
use gpufleet_analysis::incident::{Family, Place, Signal};
use gpufleet_analysis::price::Basis;
use gpufleet_analysis::straggler::Silent;
use gpufleet_telemetry::catalog::{Unit, gpu, training};
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::detector::{Detector, Findings, Finds, Need, TickSnapshot};
use super::gather::Gpus;
use crate::runs::{Judged, Run, RunKey, Runs, State};

mod brief;
mod broken;
mod changed;
mod learning;
mod quiet;
pub(super) mod slow;
mod snapshot;
mod standing;
#[cfg(test)]
pub(super) mod tests;
mod waits;

use brief::Brief;
pub(super) use broken::is_broken;
use broken::{activity, is_broken_since, is_stepped_with};
use learning::Learning;
pub(super) use quiet::{QUIET_S, is_quiet};
pub(super) use snapshot::{RankSnapshot, RunSnapshot, all_of, seen};
use snapshot::{gpu_of, place, whole};
pub(super) use standing::{COMPUTED, STANDS};
use waits::Waits;

/// A rank that was heard within two ticks and what a tick needs.
const HEARD_NS: i64 = 25 * NANOS_PER_SECOND;

/// Numbers that are wrong beside those of the steps before, which take so long to come again, seconds.
const NUMBERS_LEARN: [&str; 5] = [
    "its loss left its trend",
    "its loss does not change",
    "its gradients burst",
    "its loss was far above its trend",
    "the loss scaler skips",
];
const NUMBERS_LEARN_S: i64 = 1_800;

/// What is kept of each run that goes on.
#[derive(Default)]
pub(super) struct RunWatches(BTreeMap<RunKey, Watched>);

struct Watched {
    standing: standing::Kept,
    learning: Learning,
    /// Of a run whose steps do not say who makes the others wait.
    waits: Option<Box<Waits>>,
    /// What its machines were like lately, for why it became slower.
    history: History,
    /// Why those are slow that are.
    causes: slow::Causes,
    /// What was told of families of which others tell too, when that was last judged.
    told: Vec<(Family, Place)>,
}

/// Of what of a run it is known at a tick whether it is so.
struct Known {
    /// Who makes the others wait.
    straggler: bool,
    /// That it is slower than it was, or than runs before it.
    pace: bool,
    /// That its numbers go wrong.
    numbers: bool,
    /// That it stands still.
    hang: bool,
}

impl Detector for RunWatches {
    fn finds(&self) -> Vec<Finds> {
        let learns = &[
            Need::OneOf(&[&training::LOSS, &training::NON_FINITE_LOSSES]),
            Need::Reading(&training::LAST_STEP),
        ];
        let steps =
            |name, family, prices: &[Basis]| Finds::of(name, family, &[Need::Steps], prices);
        let waited_for = &[Basis::LongerForRank, Basis::NoSteps];
        let numbers = &[
            Basis::WorthlessSteps,
            Basis::SkippedSteps,
            Basis::IfItFollows,
        ];
        // GPUs that wait in a collective read as fully used.
        let moves = &[
            &gpu::TENSOR_ACTIVE,
            &training::COLLECTIVES_IN_FLIGHT,
            &training::COLLECTIVE_CALLS,
        ];
        let times = &[
            Need::Reading(&training::COLLECTIVE_DURATION),
            Need::Reading(&training::COLLECTIVE_CALLS),
        ];
        vec![
            steps(
                "a rank that makes the others wait",
                Family::Straggler,
                waited_for,
            ),
            Finds::of(
                "a rank that the others wait for in collectives",
                Family::Straggler,
                times,
                waited_for,
            ),
            steps(
                "a run that became slower",
                Family::Slower,
                &[Basis::LongerThanBefore],
            ),
            Finds::of(
                "a run slower than the runs before it",
                Family::Slower,
                &[Need::Steps, Need::RunsBefore],
                &[Basis::LongerThanRuns],
            ),
            Finds::of(
                "a run that stands still",
                Family::Hang,
                &[Need::Steps, Need::OneOf(moves)],
                &[Basis::RunStands],
            ),
            Finds::of(
                "a run that stands still and leaves its GPUs idle",
                Family::Hang,
                &[Need::Steps, Need::Reading(&gpu::OBSERVED)],
                &[Basis::RunStands],
            ),
            Finds::of(
                "numbers of training that go wrong",
                Family::Training,
                learns,
                numbers,
            )
            .learns(&NUMBERS_LEARN, NUMBERS_LEARN_S),
        ]
    }

    fn judge(&mut self, tick: &TickSnapshot<'_>, found: &mut Findings) {
        let keys = tick.runs().keys();
        self.0.retain(|key, _| keys.binary_search(key).is_ok());
        for key in keys {
            let look = |run: &Run| (run.state(tick.now), is_judged(run));
            match tick.runs().look(&key, look) {
                Some((State::Running, true)) => {
                    let new = || Watched::new(tick.before.stood(&key));
                    let watched = self.0.entry(key.clone()).or_insert_with(new);
                    watched.judge(&key, tick, found);
                }
                Some((State::Silent { .. }, true)) => {
                    let all = Family::ALL.into_iter().filter(|it| it.is_of_run());
                    found.unjudged.extend(all.map(|it| unjudged(it, &key)));
                }
                _ => {
                    if self.0.remove(&key).is_some() {
                        tick.runs().judge_collectives(&key, None);
                    }
                }
            }
        }
    }
}

impl Watched {
    /// Of a run that is not watched yet: since when it stands, if it does, and whether it computed without a step.
    fn new(stood: Option<(Timestamp, bool)>) -> Self {
        Self {
            standing: standing::Kept::of(stood),
            learning: Learning::default(),
            waits: None,
            history: History::default(),
            causes: slow::Causes::default(),
            told: Vec::new(),
        }
    }

    /// Who makes the others wait by the times of collectives, where steps do not say it.
    fn by_collectives(
        &mut self,
        key: &RunKey,
        brief: &Brief,
        tick: &TickSnapshot<'_>,
    ) -> Option<Judged> {
        if !brief.asks_collectives {
            if self.waits.take().is_some() {
                tick.runs().judge_collectives(key, None);
            }
            return None;
        }
        // What was said before says nothing of now.
        if !brief.goes_on() {
            tick.runs().judge_collectives(key, None);
            return None;
        }
        let waits = self.waits.get_or_insert_with(|| Box::new(Waits::new()));
        let step_ns = brief.judged.as_ref().map_or(0, |it| it.step_ns);
        let judged = waits.judge(key, tick, step_ns);
        tick.runs().judge_collectives(key, judged.clone());
        judged
    }

    /// One run that goes on.
    fn judge(&mut self, key: &RunKey, tick: &TickSnapshot<'_>, found: &mut Findings) {
        let limit_ns = self.standing.watch.limit_ns(&tick.by.hang);
        let look = |run: &Run| Brief::of((key, run), limit_ns, tick);
        let Some(brief) = tick.runs().look(key, look) else {
            return;
        };
        if let Some(since) = brief.waits_since() {
            self.standing.watch.count_from(since);
        }
        if brief.is_quiet {
            let quiet = (key.cluster.to_string(), key.run.to_string());
            found.quiet.insert(quiet);
        }
        self.remember(key, &brief, tick);
        let by_collectives = self.by_collectives(key, &brief, tick);
        if by_collectives.is_some() {
            found.by_collectives.insert(key.clone());
        }
        let names = |it: &Judged| it.verdict.silent.is_none();
        let mut known = Known::of(&brief, by_collectives.as_ref().is_some_and(names));
        let pace = slow::together(brief.judged.as_ref().filter(|_| known.pace), by_collectives);
        let step_ns = brief.judged.as_ref().map(|it| it.step_ns);
        let at = (tick.now, step_ns.filter(|it| *it > 0));
        let numbers = self
            .learning
            .observe(brief.learning.as_ref(), &tick.by.loss, at);
        let numbers = numbers.to_vec();
        let may_stand = self.standing.watch.may_stand(tick.now, &tick.by.hang);
        let run = match may_stand || pace.is_some() || !numbers.is_empty() {
            true => whole(key, pace.as_ref(), tick),
            false => RunSnapshot::default(),
        };
        known.hang = self.stands(key, (&run, may_stand), &brief, tick, found);
        let paces = self.paces(&run, pace.as_ref(), tick.gpus, found);
        if known.straggler || known.pace {
            self.causes.turn();
        }
        self.tell((Family::Slower, known.pace), paces, found);
        let all = || all_of(&run, tick.gpus);
        let numbers = numbers.iter().map(|it| it.signal(&run, all(), tick.now));
        self.tell((Family::Training, known.numbers), numbers.collect(), found);
        known.note(key, found);
    }

    /// Says what is wrong. Of a family that is not judged now, what was told before is neither so nor over; what others
    /// tell of it, readings over their limits, goes on without.
    fn tell(
        &mut self,
        (family, is_judged): (Family, bool),
        signals: Vec<Signal>,
        found: &mut Findings,
    ) {
        let is_it = |it: &(Family, Place)| it.0 == family;
        if is_judged {
            self.told.retain(|it| !is_it(it));
            let own = signals.iter().filter(|it| it.family == family);
            self.told.extend(own.map(|it| (family, it.place.clone())));
        } else {
            let unread = self.told.iter().filter(|it| is_it(it));
            found.unread.extend(unread.cloned());
        }
        found.signals.extend(signals);
    }

    /// What its machines are like now, for why it may become slower: what it does beside training says nothing of its
    /// pace.
    fn remember(&mut self, key: &RunKey, brief: &Brief, tick: &TickSnapshot<'_>) {
        let trains = brief.judged.is_some() && brief.goes_on();
        if trains && self.history.is_due(tick.now) {
            let look = |run: &Run| changed::machines(key, run, tick);
            let machines = tick.runs().look(key, look);
            self.history.push(tick.now, &machines.unwrap_or_default());
        }
    }

    /// Whether it stands still, and what it waits for; says whether it would be known that it goes on again.
    fn stands(
        &mut self,
        key: &RunKey,
        (run, may_stand): (&RunSnapshot, bool),
        brief: &Brief,
        tick: &TickSnapshot<'_>,
        found: &mut Findings,
    ) -> bool {
        let entered = match may_stand {
            true => standing::entered(key, run, tick.fleet, tick.now),
            false => standing::Entered::default(),
        };
        let around = standing::Around {
            run,
            gpus: tick.gpus,
            entered: &entered,
            is_done: brief.waits_since().is_some(),
        };
        let standing = standing::judge(&around, &mut self.standing, brief, tick);
        if brief.lacks_evidence != standing.lacks_evidence {
            tick.runs().lacks_evidence(key, standing.lacks_evidence);
        }
        found.signals.extend(standing.signal);
        standing.is_known
    }

    /// Who makes the others wait, and that it became slower.
    fn paces(
        &mut self,
        run: &RunSnapshot,
        pace: Option<&Judged>,
        gpus: &Gpus<'_>,
        found: &Findings,
    ) -> Vec<Signal> {
        let Some(judged) = pace else {
            return Vec::new();
        };
        let around = slow::Around {
            run,
            judged,
            history: &self.history,
            gpus,
        };
        let mut signals = slow::signals(&around, &mut self.causes);
        let name = (run.cluster.clone(), run.name.clone());
        if let Some(link) = found.slow_links.get(&name) {
            slow::explain(&mut signals, link);
        }
        signals
    }
}

impl Known {
    /// By what is known of a run beside whether it hangs, and whether its collectives say who makes the others wait.
    fn of(brief: &Brief, by_collectives: bool) -> Self {
        let verdict = brief.judged.as_ref().map(|it| &it.verdict);
        // A run that stands repeats its last verdict, which says nothing of now.
        let silent = verdict.filter(|_| !brief.stands).map(|it| it.silent);
        let is_paced =
            |it: Option<Silent>| !matches!(it, Some(Silent::Starting | Silent::RanksMissing));
        Self {
            straggler: match brief.asks_collectives {
                // Steps in which nobody tells waits name nobody who makes the others wait.
                true => by_collectives,
                false => silent.is_some_and(|it| it.is_none()),
            },
            // A run whose ranks have no peers is slower than it was all the same.
            pace: silent.is_some_and(is_paced),
            numbers: brief.learning.is_some(),
            hang: false,
        }
    }

    /// Of what nothing is known it cannot be said that it is over, in families of which nobody else tells.
    fn note(&self, key: &RunKey, found: &mut Findings) {
        let families = [
            (Family::Straggler, self.straggler),
            (Family::Hang, self.hang),
        ];
        let unknown = families.into_iter().filter(|(_, is_known)| !is_known);
        let unknown = unknown.map(|(family, _)| unjudged(family, key));
        found.unjudged.extend(unknown);
    }
}

/// Which run holds a GPU or share, by cluster and id.
pub(super) type Holders<'a> = HashMap<(&'a str, &'a str), String>;

/// The runs that go on and hold one of these GPUs or shares, each with its cluster.
pub(super) fn holders<'a>(
    runs: &Runs,
    gpus: impl Iterator<Item = (&'a str, &'a str)>,
    now: Timestamp,
) -> Holders<'a> {
    let mut found = Holders::new();
    let wanted: HashMap<(&str, &str), (&'a str, &'a str)> = gpus.map(|it| (it, it)).collect();
    if wanted.is_empty() {
        return found;
    }
    for key in runs.keys() {
        runs.look(&key, |run| {
            if !is_judged(run) || run.state(now) != State::Running {
                return;
            }
            for (_, rank) in run.living() {
                if let Some(named) = wanted.get(&(&*key.cluster, &*rank.facts.gpu)) {
                    found.insert(*named, key.run.to_string());
                }
            }
        });
    }
    found
}

pub(super) fn unjudged(family: Family, key: &RunKey) -> (Family, String, String) {
    (family, key.cluster.to_string(), key.run.to_string())
}

pub(super) fn is_judged(run: &Run) -> bool {
    run.facts.origin != Origin::Recorded
}

/// Whether what was heard then is of now.
pub(super) fn is_heard(heard: Timestamp, now: Timestamp) -> bool {
    now.since(heard) < HEARD_NS
}

fn seconds(name: &str, nanos: f64, usual: Option<f64>) -> Reading {
    let nanos_per_second = NANOS_PER_SECOND as f64;
    let usual = usual.map(|it| it / nanos_per_second);
    Reading::new(name, nanos / nanos_per_second, usual, Unit::Seconds)
}

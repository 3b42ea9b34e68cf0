//! A run that stands still: whether it does, in which collective, which rank it waits for, and what all its GPUs lose.
//!
//! Who is not heard any more says nothing of now, and may be who the others wait for: of a run that is seen to stand by
//! those that are heard, the ranks of a node that fell silent as it last stepped are named first, and not where more
//! than half of all are silent, because then it is more likely the way to them that is gone.
//!
//! What breaks or falls silent once a run has stood for so long that it is called so is not why: the others waited
//! before, as while the agents of a cluster are exchanged node by node. It goes on waiting for whom it waited, also where
//! that rank is not heard meanwhile. Only who waits in collectives may name another.
//!
//! Why a rank stands that is heard is what most looks at it say ([`Causes`]), of the last two minutes since it is told.
//!
//! Limits: a server that begins anew has the steps of a run of the last minutes, and before them the number of the last
//! that its ranks tell: its clock begins with the server, and how long steps take it learns anew. Since when a run stands, and
//! that it computed without telling a step, is known by its open incident alone.

use std::sync::Arc;

use gpufleet_analysis::cause::{self, Reading};
use gpufleet_analysis::hang::{self, Evidence, Hang, Verdict, Watch};
use gpufleet_analysis::incident::{Family, Place, Remedy, Signal};
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_analysis::straggler::Confidence;
use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::slow::{Causes, read};
use super::{
    Brief, Gpus, QUIET_S, RankSnapshot, RunSnapshot, TickSnapshot, activity, all_of, gpu_of,
    is_broken, is_broken_since, is_heard, is_stepped_with, place, seconds,
};
use crate::words::text;

mod places;

use places::Places;
pub(super) use places::{Entered, entered};

/// A rank that was heard so long before the run's last step, nanoseconds, may have told nothing since its own, which agents
/// ship a tick or two later: one that was silent for longer is not why the run stands.
const STEPPED_WITHIN_NS: i64 = 60 * NANOS_PER_SECOND;

/// What is said of a run that stands, and of one that has made no step, or all: so its words begin.
pub(in crate::detect) const STANDS: [&str; 4] = [
    "the run stands still",
    "the run has not made its first step and stands still",
    COMPUTED,
    "the run has made its steps and stands still",
];

/// What is said of one that has told no step and computed.
pub(in crate::detect) const COMPUTED: &str =
    "the run computed without telling a step and stands still";

/// Longest name of a function that is shown.
const SHOWN_FUNCTION: usize = 24;

/// What is kept of a run for it.
pub(super) struct Kept {
    pub(super) watch: Watch,
    /// Why the rank stands that it waits for.
    causes: Causes,
    /// Which rank that was at the tick before, of a run that stood then.
    waits_for: Option<u32>,
    /// Whether it stood when that was last known.
    stood: bool,
}

/// What surrounds a run.
pub(super) struct Around<'a> {
    pub(super) run: &'a RunSnapshot,
    pub(super) gpus: &'a Gpus<'a>,
    pub(super) entered: &'a Entered,
    /// Whether it has made the steps that it planned, and waits in collectives since.
    pub(super) is_done: bool,
}

/// What is said of a run.
pub(super) struct Standing {
    pub(super) signal: Option<Signal>,
    /// Whether it would be known that it goes on again.
    pub(super) is_known: bool,
    /// Whether it may stand and nothing is known that would show it.
    pub(super) lacks_evidence: bool,
}

/// Who a run waits for.
enum Suspect<'a> {
    /// Ranks of one node of which nothing is heard, one at least.
    Silent(Vec<&'a RankSnapshot>),
    /// One that is heard.
    Rank(&'a RankSnapshot),
    Nobody,
}

impl Kept {
    /// Of a run that is not watched yet: since when it stands, if it does, and whether it computed without a step.
    pub(super) fn of(stood: Option<(Timestamp, bool)>) -> Self {
        Self {
            stood: stood.is_some(),
            watch: stood.map_or_else(Watch::new, |(at, has_computed)| {
                Watch::stood_since(at, has_computed)
            }),
            causes: Causes::default(),
            waits_for: None,
        }
    }

    /// Keeps whether it stands and whom it waits for; where that is not known, what was known before.
    fn note(&mut self, verdict: &Verdict, suspect: &Suspect<'_>) {
        self.stood = match verdict {
            Verdict::Unheard | Verdict::NoEvidence => self.stood,
            Verdict::Hung(_) => true,
            Verdict::Moving | Verdict::Quiet => false,
        };
        self.waits_for = match (verdict, suspect) {
            (Verdict::Unheard | Verdict::NoEvidence, _) => self.waits_for,
            (_, Suspect::Rank(rank)) => Some(rank.rank),
            (_, Suspect::Silent(ranks)) if ranks.len() == 1 => ranks.first().map(|it| it.rank),
            (_, Suspect::Silent(_) | Suspect::Nobody) => None,
        };
    }
}

/// What is to be said of the run.
pub(super) fn judge(
    around: &Around<'_>,
    kept: &mut Kept,
    brief: &Brief,
    tick: &TickSnapshot<'_>,
) -> Standing {
    let now = tick.now;
    let places = Places::of(around.run, around.entered, &kept.watch, now);
    let ranks = around.run.ranks.iter();
    let first = brief.first;
    // One that stood is not over because some of it are not heard for a while.
    let is_unknown = kept.stood && brief.may_wait();
    let at = hang::Tick {
        now,
        step: brief.step,
        up_since: first.map(|it| it.up_since),
        is_heard: is_heard(brief.heard, now) && !is_unknown,
        is_quiet: first.map_or(brief.rests() && !is_unknown, |it| it.is_quiet),
        activity: match first {
            Some(first) => first.activity,
            None => activity(ranks.map(|it| {
                // What a card that is cut does says nothing of one of its shares.
                let gpu = gpu_of(around.run, it, around.gpus).filter(|_| it.share.is_none());
                (is_heard(it.heard, now), gpu)
            })),
        },
        positions: &places.positions,
    };
    let verdict = kept.watch.observe_by(&at, &tick.by.hang);
    let suspect = match &verdict {
        Verdict::Hung(hang) => suspect(around, hang, kept.waits_for, now),
        _ => Suspect::Nobody,
    };
    kept.note(&verdict, &suspect);
    let why = why(around, &suspect, &mut kept.causes);
    let is_read = !matches!(verdict, Verdict::Unheard | Verdict::NoEvidence);
    if is_read {
        kept.causes.turn();
    }
    // What a silent node's ranks do is seen when it is heard again.
    let is_told = !matches!(suspect, Suspect::Silent(_));
    Standing {
        is_known: is_told && is_read,
        lacks_evidence: verdict == Verdict::NoEvidence,
        signal: match &verdict {
            Verdict::Hung(hang) => Some(told(around, hang, &at, &places, (&suspect, &why))),
            _ => None,
        },
    }
}

/// Who a run waits for that stands, and which rank it waited for at the tick before: who waits for a rank whose GPU is
/// broken waits for that, but not for one with which it has stepped as it is, nor for one that broke once it stood, unless
/// others wait for its rank.
fn suspect<'a>(
    around: &Around<'a>,
    hang: &Hang,
    before: Option<u32>,
    now: Timestamp,
) -> Suspect<'a> {
    let run = around.run;
    let called = called_at(around, hang);
    let is_named = |rank: &RankSnapshot| hang.suspects.contains(&rank.rank);
    let broken = |it: &&RankSnapshot| {
        let gpu = gpu_of(run, it, around.gpus).filter(|gpu| is_broken(gpu));
        // What breaks again was broken before.
        let is_known = before == Some(it.rank);
        let broke_then = |gpu| is_known || !is_broken_since(gpu, called);
        let is_why = |gpu| !is_stepped_with(gpu, hang) && broke_then(gpu);
        gpu.is_some_and(|gpu| is_named(it) || is_why(gpu))
    };
    if let Some(rank) = run.ranks.iter().find(broken) {
        return Suspect::Rank(rank);
    }
    let silent = fell_silent(run, called, now);
    if !silent.is_empty() {
        return Suspect::Silent(silent);
    }
    let number = hang.suspects.first().copied().or(before);
    match run.ranks.iter().find(|it| Some(it.rank) == number) {
        Some(rank) if !is_heard(rank.heard, now) => Suspect::Silent(vec![rank]),
        Some(rank) if is_named(rank) => Suspect::Rank(rank),
        _ => Suspect::Nobody,
    }
}

/// When a run had stood for so long that it is called so. Of one that has made its steps a rank may rightly do something
/// else for an hour.
fn called_at(around: &Around<'_>, hang: &Hang) -> Timestamp {
    let limit_ns = match around.is_done {
        true => hang.limit_ns.max((QUIET_S * 1e9) as i64),
        false => hang.limit_ns,
    };
    hang.since.shifted(limit_ns)
}

/// The ranks of the first node that fell silent as the run last stepped, or later until it was called standing; none
/// where more than half of all are silent.
fn fell_silent(run: &RunSnapshot, called: Timestamp, now: Timestamp) -> Vec<&RankSnapshot> {
    let silent = run.ranks.iter().filter(|it| !is_heard(it.heard, now));
    let mut silent: Vec<&RankSnapshot> = silent.collect();
    if silent.len() * 2 > run.ranks.len() {
        return Vec::new();
    }
    let stepped = run.stepped_at.map(|at| at.shifted(-STEPPED_WITHIN_NS));
    let is_then = |it: &RankSnapshot| stepped.is_none_or(|at| it.heard >= at);
    silent.retain(|it| is_then(it) && it.heard <= called);
    if let Some(first) = silent.first().map(|it| Arc::clone(&it.node)) {
        silent.retain(|it| it.node == first);
    }
    silent
}

fn told(
    around: &Around<'_>,
    hang: &Hang,
    tick: &hang::Tick<'_>,
    places: &Places,
    (suspect, why): (&Suspect<'_>, &cause::Verdict),
) -> Signal {
    let (run, gpus) = (around.run, around.gpus);
    let rank = match suspect {
        Suspect::Silent(ranks) => ranks.first().copied(),
        Suspect::Rank(rank) => Some(*rank),
        Suspect::Nobody => None,
    };
    let at = place(run, rank);
    let is_the_nodes = matches!(suspect, Suspect::Silent(ranks) if ranks.len() > 1);
    let action = match suspect {
        Suspect::Silent(_) => {
            "Look whether this node and its agent run; end the run if it does not go on."
        }
        Suspect::Rank(_) => {
            "Look at the stack of this rank and at its GPU; end the run if it does not go on."
        }
        Suspect::Nobody if hang.is_first && hang.has_computed => {
            "Look at the ranks' logs and stacks; end the run if it does not go on, or give it longer by detect.first_step_after_s. A run whose script tells steps is told within minutes."
        }
        Suspect::Nobody if hang.is_first => {
            "Look at the ranks' logs and stacks: a group that waits for a rank that never came, a download, a compiler. End the run if it does not go on, or give it longer by detect.first_step_after_s."
        }
        Suspect::Nobody => {
            "Look at the ranks' stacks and at the network; end the run if it does not go on."
        }
    };
    // A long compilation computes nothing on the GPUs too.
    let severity = match (hang.is_first, hang.evidence) {
        (true, Evidence::NothingComputes) => Severity::Warning,
        _ => Severity::Error,
    };
    let mut readings = readings(around, hang, tick, rank, places);
    readings.extend(why.0.iter().flat_map(|it| it.readings.iter().cloned()));
    Signal {
        family: Family::Hang,
        place: Place {
            gpu: at.gpu.filter(|_| !is_the_nodes),
            rank: at.rank.filter(|_| !is_the_nodes),
            ..at
        },
        severity,
        what: words(around, hang, places, suspect, tick.now),
        action: action.to_owned(),
        remedy: Remedy::Look,
        cause: why.cause(),
        since: Some(hang.since),
        readings,
        price: Price::of(Basis::RunStands, all_of(run, gpus)),
        // Whether a machine that is not heard has what its run waits for, nobody knows.
        confidence: matches!(suspect, Suspect::Silent(_)).then_some(Confidence::Low),
        booted_at: None,
    }
}

/// Why it stands: what the readings of the rank that it waits for say, beside those of its peers. Those of one that is
/// not heard are of before.
fn why(around: &Around<'_>, suspect: &Suspect<'_>, causes: &mut Causes) -> cause::Verdict {
    let Suspect::Rank(rank) = suspect else {
        return cause::Verdict::default();
    };
    let is_it = |it: &RankSnapshot| it.rank == rank.rank;
    let look = cause::judge(&read(around.run, &is_it, rank, f64::INFINITY, around.gpus));
    causes.take(&place(around.run, Some(rank)), look)
}

/// What it is.
fn words(
    around: &Around<'_>,
    hang: &Hang,
    places: &Places,
    suspect: &Suspect<'_>,
    now: Timestamp,
) -> String {
    let run = around.run;
    let name = places.stands_in(run, hang);
    let of_collective = name.as_ref().map_or_else(String::new, |it| {
        let function = text::harmless(&it.function, SHOWN_FUNCTION);
        let what = match function.is_empty() {
            true => "a collective".to_owned(),
            false => function,
        };
        format!(" in {what} on communicator {:x}", it.communicator)
    });
    let stands = match (hang.is_first, hang.has_computed) {
        (false, _) if around.is_done => STANDS[3],
        (false, _) => STANDS[0],
        (true, false) => STANDS[1],
        (true, true) => STANDS[2],
    };
    let all = match run.ranks.iter().all(|it| is_heard(it.heard, now)) {
        true => "all its ranks",
        false => "all its ranks that are heard",
    };
    match (hang.evidence, suspect) {
        (_, Suspect::Silent(ranks)) => {
            let whom = if ranks.len() > 1 {
                "the ranks of this node"
            } else {
                "this rank"
            };
            format!(
                "{stands}{of_collective} and probably waits for {whom}, of which nothing is heard"
            )
        }
        (_, Suspect::Rank(_)) => format!("{stands}{of_collective} and waits for this rank"),
        (Evidence::CollectiveStands | Evidence::SequencesDiffer, Suspect::Nobody)
            if name.is_some() =>
        {
            format!("{stands}{of_collective}, which {all} are in")
        }
        (Evidence::CollectiveStands | Evidence::SequencesDiffer, Suspect::Nobody) => {
            format!("{stands} in a collective that {all} are in")
        }
        (Evidence::NothingComputes, Suspect::Nobody) => format!("{stands} and computes nothing"),
    }
}

fn readings(
    around: &Around<'_>,
    hang: &Hang,
    tick: &hang::Tick<'_>,
    suspect: Option<&RankSnapshot>,
    places: &Places,
) -> Vec<Reading> {
    let run = around.run;
    let name = match (hang.is_first, hang.has_computed) {
        (false, _) if around.is_done => "in collectives after its last step for",
        (false, _) => "without a step for",
        (true, false) => "without its first step, and not busy, for",
        (true, true) => "without a step told, and not busy, for",
    };
    let limit = (!around.is_done).then_some(hang.limit_ns as f64);
    let stood = seconds(name, tick.now.since(hang.since) as f64, limit);
    let mut readings = vec![stood];
    let silent = run.ranks.iter().filter(|it| !is_heard(it.heard, tick.now));
    let silent = silent.count();
    let count = |name, value: usize, usual: Option<f64>| {
        Reading::new(name, value as f64, usual, Unit::Count)
    };
    if silent > 0 {
        let name = "ranks that are not heard";
        readings.push(count(name, silent, Some(run.ranks.len() as f64)));
    }
    if hang.is_first {
        let world = Some(f64::from(run.world)).filter(|it| *it > 0.0);
        readings.push(count("ranks that came up", run.ranks.len(), world));
    }
    let waiting = places.whole().filter(|it| it.in_since.is_some());
    let (waiting, all) = (waiting.count(), places.whole().count());
    if all > 0 {
        let all = Some(all as f64);
        readings.push(count("ranks in a collective", waiting, all));
    }
    let own = suspect.and_then(|rank| places.counted(hang, rank.rank));
    if let (Some(own), Some(others)) = (own, hang.sequence) {
        let (own, others) = (own as f64, Some(others as f64));
        let name = "such collectives that it entered";
        readings.push(Reading::new(name, own, others, Unit::Count));
    }
    if let Some(activity) = tick.activity {
        let limit = Some(hang::IDLE_ACTIVITY);
        let name = "tensor cores active";
        readings.push(Reading::new(name, activity, limit, Unit::Ratio));
    }
    readings
}

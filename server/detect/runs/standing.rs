//! A run that stands still: whether it does, in which collective, which rank it waits for, and what all its GPUs lose.
//!
//! How far a rank is on a communicator is how many collectives of a function it has done there, and one more where it
//! is in one. Which of its communicators that one is on is not told, so that of the communicators on which ranks differ
//! the one is named that agents say is stuck, else the one whose ranks wait for longest: whoever needs the rank next
//! waits first. Where nothing is counted, who is in no collective is behind those that are in one.
//!
//! Who is not heard any more says nothing of now, and may be who the others wait for: of a run that is seen to stand by
//! those that are heard, the ranks of a node that fell silent as it last stepped are named first, and not where more
//! than half of all are silent, because then it is more likely the way to them that is gone.
//!
//! Limits: counts of NCCL's own service are a minute old, so that they count once the run stands for
//! [`ASKED_NS`]; those of NCCL Inspector's files do not. Collectives that are counted when they are enqueued say how far the
//! program is, not the GPU.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_analysis::cause::{self, Reading};
use gpufleet_analysis::hang::{self, Evidence, Hang, Position, Verdict, Watch};
use gpufleet_analysis::incident::{Family, Place, Signal};
use gpufleet_analysis::lost::Losing;
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_analysis::straggler::Confidence;
use gpufleet_telemetry::catalog::{Unit, training};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::training::{CollectivesFrom, collective_of};

use super::slow::read;
use super::waits::HOLDS_S;
use super::{
    Brief, Gpus, RankSnapshot, RunSnapshot, TickSnapshot, activity, gpu_of, is_broken, is_heard,
    place, price_of, seconds,
};
use crate::detect::seconds_since;
use crate::fleet::{Fleet, Live, LiveValue};
use crate::runs::RunKey;
use crate::words::text;

/// After so long every rank was asked again by NCCL's service, nanoseconds: it is asked each minute, and what it said
/// counts for three.
const ASKED_NS: i64 = 240 * NANOS_PER_SECOND;

/// A rank that was heard so long before the run's last step, nanoseconds, may have told nothing since its own, which agents
/// ship a tick or two later: one that was silent for longer is not why the run stands.
const STEPPED_WITHIN_NS: i64 = 60 * NANOS_PER_SECOND;

/// What is said of a run that stands, and of one that has made no step: so its words begin.
pub(in crate::detect) const STANDS: [&str; 2] = [
    "the run stands still",
    "the run has not made its first step and stands still",
];

/// Longest name of a function that is shown.
const SHOWN_FUNCTION: usize = 24;

/// How many collectives each rank has entered or done, by rank; by communicator and function.
#[derive(Debug, Default)]
pub(super) struct Entered(BTreeMap<u32, Vec<(Name, u64)>>);

/// A communicator and a function.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    communicator: u64,
    function: String,
}

/// What surrounds a run.
pub(super) struct Around<'a> {
    pub(super) run: &'a RunSnapshot,
    pub(super) gpus: &'a Gpus<'a>,
    pub(super) entered: &'a Entered,
}

/// Where its ranks are, and what the numbers of the communicators stand for: the first names, then what is not known.
struct Places {
    positions: Vec<Position>,
    names: Vec<Name>,
}

/// What the ranks of a run count of their collectives.
pub(super) fn entered(key: &RunKey, run: &RunSnapshot, fleet: &Fleet, now: Timestamp) -> Entered {
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

/// What is to be said of the run.
pub(super) fn judge(
    around: &Around<'_>,
    watch: &mut Watch,
    brief: &Brief,
    tick: &TickSnapshot<'_>,
) -> Standing {
    let now = tick.now;
    let places = places(around, watch, now);
    let ranks = around.run.ranks.iter();
    let first = brief.first;
    let at = hang::Tick {
        now,
        step: brief.step,
        up_since: first.map(|it| it.up_since),
        is_heard: is_heard(brief.heard, now),
        is_quiet: first.map_or(brief.is_quiet, |it| it.is_quiet),
        activity: match first {
            Some(first) => first.activity,
            None => activity(ranks.map(|it| {
                let gpu = gpu_of(around.run, it, around.gpus);
                (is_heard(it.heard, now), gpu)
            })),
        },
        positions: &places.positions,
    };
    let verdict = watch.observe_by(&at, &tick.by.hang);
    let suspect = match &verdict {
        Verdict::Hung(hang) => suspect(around, hang, now),
        _ => Suspect::Nobody,
    };
    // What a silent node's ranks do is seen when it is heard again.
    let is_told = !matches!(suspect, Suspect::Silent(_));
    Standing {
        is_known: is_told && !matches!(verdict, Verdict::Unheard | Verdict::NoEvidence),
        lacks_evidence: verdict == Verdict::NoEvidence,
        signal: match &verdict {
            Verdict::Hung(hang) => Some(told(around, hang, &at, &places.names, &suspect)),
            _ => None,
        },
    }
}

/// Who a run waits for that stands: who waits for a rank whose GPU is broken waits for that.
fn suspect<'a>(around: &Around<'a>, hang: &Hang, now: Timestamp) -> Suspect<'a> {
    let run = around.run;
    let broken = |it: &&RankSnapshot| gpu_of(run, it, around.gpus).is_some_and(is_broken);
    if let Some(rank) = run.ranks.iter().find(broken) {
        return Suspect::Rank(rank);
    }
    let silent = fell_silent(run, now);
    if !silent.is_empty() {
        return Suspect::Silent(silent);
    }
    let named = |number: &u32| run.ranks.iter().find(|it| it.rank == *number);
    let named = hang.suspects.first().and_then(named);
    named.map_or(Suspect::Nobody, Suspect::Rank)
}

/// The ranks of the first node that fell silent as the run last stepped, or later; none where more than half of all are
/// silent.
fn fell_silent(run: &RunSnapshot, now: Timestamp) -> Vec<&RankSnapshot> {
    let silent = run.ranks.iter().filter(|it| !is_heard(it.heard, now));
    let mut silent: Vec<&RankSnapshot> = silent.collect();
    if silent.len() * 2 > run.ranks.len() {
        return Vec::new();
    }
    let stepped = run.stepped_at.map(|at| at.shifted(-STEPPED_WITHIN_NS));
    silent.retain(|it| stepped.is_none_or(|at| it.heard >= at));
    if let Some(first) = silent.first().map(|it| Arc::clone(&it.node)) {
        silent.retain(|it| it.node == first);
    }
    silent
}

/// Where the ranks of a run are that may stand.
fn places(around: &Around<'_>, watch: &Watch, now: Timestamp) -> Places {
    let stood_ns = watch.stands_for(now);
    let stood = now.shifted(-stood_ns);
    let mut known: BTreeMap<&Name, Vec<Position>> = BTreeMap::new();
    let mut all = Vec::new();
    for rank in &around.run.ranks {
        let since = |age_s: f64| now.shifted(((age_s * 1e9) as i64).saturating_neg());
        let in_flight = rank.in_flight.filter(|_| is_heard(rank.heard, now));
        let in_flight = in_flight.map(|(count, age_s)| (count > 0.0, age_s));
        let in_since = in_flight.and_then(|(is_in, age_s)| is_in.then(|| since(age_s)));
        let position = |sequence| Position {
            communicator: 0,
            rank: rank.rank,
            sequence,
            in_since,
        };
        // Whether what it is in counts already.
        let counts_entered = match rank.collectives {
            Some(CollectivesFrom::Plugin) => Some(false),
            Some(CollectivesFrom::PluginUntimed | CollectivesFrom::Silent) => Some(true),
            Some(CollectivesFrom::Ras) => (stood_ns >= ASKED_NS).then_some(true),
            _ => None,
        };
        let counts = around.entered.0.get(&rank.rank);
        for (name, count) in counts.into_iter().flatten() {
            if let Some(counts_entered) = counts_entered {
                let one_more = u64::from(in_since.is_some() && !counts_entered);
                let known = known.entry(name).or_default();
                known.push(position(count.saturating_add(one_more)));
            }
        }
        if in_flight.is_some() {
            all.push(position(u64::from(in_since.is_some())));
        }
    }
    known.retain(|_, it| it.len() > 1);
    // Before the first step counts that differ for a moment are no evidence: it may merely not tell its steps.
    if watch.has_begun() {
        for positions in known.values_mut() {
            are_in(positions, stood);
        }
    }
    let mut named: Vec<(&Name, Vec<Position>)> = known.into_iter().collect();
    let is_stuck = |name: &Name| {
        let mut stuck = around.run.stuck.iter().filter(|it| it.at >= stood);
        stuck.any(|it| {
            let is_function = it.function.is_empty() || it.function == name.function;
            it.communicator == name.communicator && is_function
        })
    };
    named.sort_by_key(|(name, positions)| {
        let oldest = positions.iter().filter_map(|it| it.in_since).min();
        let waits = Reverse(oldest.map(|it| now.since(it)));
        (!is_stuck(name), waits, positions.len(), (*name).clone())
    });
    let mut places = Places {
        positions: Vec::new(),
        names: Vec::with_capacity(named.len()),
    };
    for (number, (name, positions)) in (0_u64..).zip(named) {
        let of = |it| Position {
            communicator: number,
            ..it
        };
        places.positions.extend(positions.into_iter().map(of));
        places.names.push(name.clone());
    }
    let last = places.names.len() as u64;
    let of = |it| Position {
        communicator: last,
        ..it
    };
    places.positions.extend(all.into_iter().map(of));
    places
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

fn told(
    around: &Around<'_>,
    hang: &Hang,
    tick: &hang::Tick<'_>,
    names: &[Name],
    suspect: &Suspect<'_>,
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
    let why = why(around, suspect);
    let mut readings = readings(run, hang, tick, rank, names);
    readings.extend(why.0.iter().flat_map(|it| it.readings.iter().cloned()));
    Signal {
        family: Family::Hang,
        place: Place {
            gpu: at.gpu.filter(|_| !is_the_nodes),
            rank: at.rank.filter(|_| !is_the_nodes),
            ..at
        },
        severity,
        what: words(run, hang, names, suspect, tick.now),
        action: action.to_owned(),
        cause: why.cause(),
        since: Some(hang.since),
        readings,
        price: Price::of(
            Basis::RunStands,
            Losing::gpus(run.ranks.len() as u64, price_of(run, gpus)),
        ),
        // Whether a machine that is not heard has what its run waits for, nobody knows.
        confidence: matches!(suspect, Suspect::Silent(_)).then_some(Confidence::Low),
        booted_at: None,
    }
}

/// Why it stands: what the readings of the rank that it waits for say, beside those of its peers. Those of one that is
/// not heard are of before.
fn why(around: &Around<'_>, suspect: &Suspect<'_>) -> cause::Verdict {
    let Suspect::Rank(rank) = suspect else {
        return cause::Verdict::default();
    };
    let is_it = |it: &RankSnapshot| it.rank == rank.rank;
    cause::judge(&read(around.run, &is_it, rank, f64::INFINITY, around.gpus))
}

/// What it is.
fn words(
    run: &RunSnapshot,
    hang: &Hang,
    names: &[Name],
    suspect: &Suspect<'_>,
    now: Timestamp,
) -> String {
    let name = name_of(run, hang, names);
    let of_collective = name.as_ref().map_or_else(String::new, |it| {
        let function = text::harmless(&it.function, SHOWN_FUNCTION);
        let what = match function.is_empty() {
            true => "a collective".to_owned(),
            false => function,
        };
        format!(" in {what} on communicator {:x}", it.communicator)
    });
    let stands = STANDS[usize::from(hang.is_first)];
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

/// What it stands in: by what its ranks count, else by what an agent told first of those that are stuck.
fn name_of(run: &RunSnapshot, hang: &Hang, names: &[Name]) -> Option<Name> {
    let number = usize::try_from(hang.communicator?).ok()?;
    let told = || {
        let stuck = run.stuck.iter().find(|it| it.at >= hang.since)?;
        Some(Name {
            communicator: stuck.communicator,
            function: stuck.function.clone(),
        })
    };
    names.get(number).cloned().or_else(told)
}

fn readings(
    run: &RunSnapshot,
    hang: &Hang,
    tick: &hang::Tick<'_>,
    suspect: Option<&RankSnapshot>,
    names: &[Name],
) -> Vec<Reading> {
    let name = match hang.is_first {
        true => "without its first step, and not busy, for",
        false => "without a step for",
    };
    let stood = seconds(
        name,
        tick.now.since(hang.since) as f64,
        Some(hang.limit_ns as f64),
    );
    let mut readings = vec![stood];
    let silent = run.ranks.iter().filter(|it| !is_heard(it.heard, tick.now));
    let silent = silent.count();
    // Each rank is there once behind the names.
    let last = names.len() as u64;
    let ranks = || tick.positions.iter().filter(|it| it.communicator == last);
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
    let waiting = ranks().filter(|it| it.in_since.is_some()).count();
    let all = ranks().count();
    if all > 0 {
        let all = Some(all as f64);
        readings.push(count("ranks in a collective", waiting, all));
    }
    let is_counted = |it: &&Position| {
        it.communicator < last
            && Some(it.communicator) == hang.communicator
            && suspect.is_some_and(|rank| rank.rank == it.rank)
    };
    let own = tick.positions.iter().find(is_counted);
    if let (Some(own), Some(others)) = (own, hang.sequence) {
        let (own, others) = (own.sequence as f64, Some(others as f64));
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

//! A run that stands still: whether it does, which rank it waits for, and what all its GPUs lose.

use gpufleet_analysis::cause::{Cause, Reading};
use gpufleet_analysis::hang::{self, Evidence, Hang, Position, Verdict, Watch};
use gpufleet_analysis::incident::{Family, Signal};
use gpufleet_analysis::ledger::State;
use gpufleet_analysis::lost::Losing;
use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;

use super::{
    Brief, Gpus, HEARD_NS, RankSnapshot, RunSnapshot, TickSnapshot, gpu_of, is_broken, place,
    price_of, seconds,
};

/// What is said of the run, and whether anything is known that could be.
pub(super) fn signal(
    run: &RunSnapshot,
    around: &TickSnapshot<'_>,
    watch: &mut Watch,
    brief: &Brief,
) -> (Option<Signal>, bool) {
    let (gpus, now) = (around.gpus, around.now);
    let positions = positions(run, now);
    let tick = hang::Tick {
        now,
        step: brief.step,
        is_heard: now.since(brief.heard) < HEARD_NS,
        is_quiet: brief.is_quiet,
        activity: activity(run, gpus),
        positions: &positions,
    };
    match watch.observe_by(&tick, &around.by.hang) {
        Verdict::Hung(hang) => (Some(told(run, gpus, &hang, &tick)), true),
        Verdict::Moving | Verdict::Quiet => (None, true),
        Verdict::Unheard | Verdict::NoEvidence => (None, false),
    }
}

/// Where the ranks are: in a collective, or in none. Their numbers are not known, so that all are taken
/// for the same one, and who is in none is behind.
fn positions(run: &RunSnapshot, now: Timestamp) -> Vec<Position> {
    let of = |rank: &RankSnapshot| {
        let (in_flight, age_s) = rank.in_flight?;
        let since = now.shifted(-((age_s * 1e9) as i64));
        Some(Position {
            communicator: 0,
            rank: rank.rank,
            sequence: u64::from(in_flight > 0.0),
            in_since: (in_flight > 0.0).then_some(since),
        })
    };
    run.ranks.iter().filter_map(of).collect()
}

/// How busy the tensor cores of its GPUs are at most; none where one of them may compute unseen.
fn activity(run: &RunSnapshot, gpus: &Gpus<'_>) -> Option<f64> {
    let of = |rank: &RankSnapshot| {
        let seen = gpu_of(run, rank, gpus)?;
        match seen.status.state {
            // Busy without work, idle or broken: neither computes.
            State::Stalled | State::Gap | State::Parked | State::HeldEmpty => Some(0.0),
            _ if is_broken(seen) => Some(0.0),
            _ => seen.tensor,
        }
    };
    let all: Option<Vec<f64>> = run.ranks.iter().map(of).collect();
    all?.into_iter().reduce(f64::max)
}

fn told(run: &RunSnapshot, gpus: &Gpus<'_>, hang: &Hang, tick: &hang::Tick<'_>) -> Signal {
    let named = |number: &u32| run.ranks.iter().find(|it| it.rank == *number);
    let broken = |it: &&RankSnapshot| gpu_of(run, it, gpus).is_some_and(is_broken);
    // Who waits for a rank whose GPU is broken waits for that.
    let suspect = run
        .ranks
        .iter()
        .find(broken)
        .or_else(|| hang.suspects.first().and_then(named));
    let cause = match run.ranks.iter().find(broken) {
        Some(_) => Cause::GpuFault,
        None => Cause::Unknown,
    };
    let stood = seconds(
        "without a step for",
        tick.now.since(hang.since) as f64,
        Some(hang.limit_ns as f64),
    );
    let waiting = tick.positions.iter().filter(|it| it.in_since.is_some());
    let mut readings = vec![stood];
    if !tick.positions.is_empty() {
        let count = waiting.count() as f64;
        let all = Some(tick.positions.len() as f64);
        readings.push(Reading::new(
            "ranks in a collective",
            count,
            all,
            Unit::Count,
        ));
    }
    if let Some(activity) = tick.activity {
        let limit = Some(hang::IDLE_ACTIVITY);
        readings.push(Reading::new(
            "tensor cores active",
            activity,
            limit,
            Unit::Ratio,
        ));
    }
    Signal {
        family: Family::Hang,
        place: place(run, suspect),
        severity: Severity::Error,
        what: match (hang.evidence, suspect) {
            (_, Some(_)) => "the run stands still and waits for this rank",
            (Evidence::CollectiveStands | Evidence::SequencesDiffer, None) => {
                "the run stands still in a collective that all ranks are in"
            }
            (Evidence::NothingComputes, None) => "the run stands still and computes nothing",
        }
        .to_owned(),
        action: match suspect {
            Some(_) => {
                "Look at the stack of this rank and at its GPU; end the run if it does not go on."
            }
            None => {
                "Look at the ranks' stacks and at the network; end the run if it does not go on."
            }
        }
        .to_owned(),
        cause,
        since: Some(hang.since),
        readings,
        losing: Losing::gpus(run.ranks.len() as u64, price_of(run, gpus)),
        booted_at: None,
    }
}

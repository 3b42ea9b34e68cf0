//! A run that became slower than it was: what that costs, and what changed with it.
//!
//! Who makes it wait, or the one machine that holds it up, is known elsewhere ([`slow`]). Else what its steps waited
//! for and what its machines read, before and since, says why ([`before`]).

use gpufleet_analysis::cause::before::{self, History, Machines};
use gpufleet_analysis::cause::{Cause, Reading, Verdict};
use gpufleet_analysis::incident::{Family, Place, Remedy, Signal};
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::event::Severity;

use super::{Gpus, RunSnapshot, TickSnapshot, all_of, place, seconds, slow};
use crate::runs::{Rank, Run, RunKey, Slowdown};

/// Ranks whose machines are looked at for what changed when a run became slower: of 2,048 GPUs one of each machine.
const LOOKED_AT: usize = 256;

/// Where a run is held up, and why, as far as that is known.
pub(super) struct At {
    pub(super) place: Place,
    pub(super) cause: Cause,
    /// What says so, unless another signal of the place does.
    pub(super) readings: Vec<Reading>,
}

/// What holds a run's machines up most now, of [`LOOKED_AT`] ranks at least where it has more.
pub(super) fn machines(key: &RunKey, run: &Run, tick: &TickSnapshot<'_>) -> Machines {
    let every = (run.ranks.len() / LOOKED_AT).max(1);
    let looked_at = run.living().step_by(every);
    let of = |(_, rank): (&u32, &Rank)| {
        let seen = tick.card(&key.cluster, &rank.facts.gpu)?;
        Some(Machines {
            sm_clock: seen.clock,
            heat_part: seen.rates.heat_now,
            brake_part: seen.rates.brake_now,
            cap_part: seen.rates.cap_now,
            steal: seen.host.steal,
            cpu_pressure: seen.host.cpu_pressure,
            memory_pressure: seen.host.memory_pressure,
            io_pressure: seen.host.io_pressure,
        })
    };
    let all: Vec<Machines> = looked_at.map(|it| of(it).unwrap_or_default()).collect();
    Machines::worst(&all)
}

/// A run whose steps take longer than they did: by what changed with it, where it is not known where and why it is
/// held up.
pub(super) fn slower(
    run: &RunSnapshot,
    slowdown: &Slowdown,
    at: Option<At>,
    history: &History,
    gpus: &Gpus<'_>,
) -> Signal {
    let change = &slowdown.change;
    let known = at.as_ref().map_or(Cause::Unknown, |it| it.cause);
    let (at, of_place) = at.map(|it| (it.place, it.readings)).unzip();
    let longer_ns = change.baseline_ns * change.ratio;
    let step = |nanos: f64| nanos.max(0.0) as u64;
    let now_ns = match slowdown.rests {
        true => change.baseline_ns,
        false => longer_ns,
    };
    let losing = all_of(run, gpus).by_step(step(now_ns), step(change.baseline_ns));
    let (why, untold) = match known {
        Cause::Unknown => changed_with(slowdown, history),
        _ => (Verdict::default(), Vec::new()),
    };
    let cause = match known {
        Cause::Unknown => why.cause(),
        known => known,
    };
    let mut readings = vec![
        seconds(Slowdown::STEP, longer_ns, Some(change.baseline_ns)),
        Reading::new(Slowdown::SINCE, change.since_step as f64, None, Unit::Count),
    ];
    let every = slowdown.every.map(|it| it as f64);
    let every = every.map(|it| Reading::new("again after steps", it, None, Unit::Count));
    readings.extend(every);
    readings.extend(of_place.into_iter().flatten());
    readings.extend(why.0.into_iter().flat_map(|it| it.readings));
    let (action, remedy) = action_of_run(cause, &untold);
    Signal {
        family: Family::Slower,
        place: at.unwrap_or_else(|| place(run, None)),
        severity: Severity::Warning,
        what: Slowdown::WHAT.to_owned(),
        action,
        remedy,
        cause,
        // It is sure only some twenty steps later, which with long steps is many minutes.
        since: Some(slowdown.began_at),
        readings,
        price: Price::of(Basis::LongerThanBefore, losing),
        confidence: None,
        booted_at: None,
    }
}

/// What changed when a run became slower, and what of that was not read.
fn changed_with(slowdown: &Slowdown, history: &History) -> (Verdict, Vec<&'static str>) {
    let (machines, machines_since) = history.around(slowdown.began_at);
    let before = before::Window {
        spent: slowdown.before,
        machines,
    };
    let since = before::Window {
        spent: slowdown.since,
        machines: machines_since,
    };
    let change = &slowdown.change;
    let why = before::judge(change.ratio, change.baseline_ns, &before, &since);
    let untold = match why.cause() {
        Cause::Unknown => before::untold(&before, &since),
        _ => Vec::new(),
    };
    (why, untold)
}

/// What to do about a run that became slower.
fn action_of_run(cause: Cause, untold: &[&str]) -> (String, Remedy) {
    let known = match cause {
        Cause::HostCpu | Cause::HostMemory => {
            "Look what else runs on its nodes since, and whether its pods have the CPUs and the memory they ask for."
        }
        Cause::Storage | Cause::Data => {
            "Look at the run's input: its storage, its number of workers, what of the data it reads now."
        }
        Cause::Network => {
            "Look at the network: who else uses it since, links and ports with errors."
        }
        Cause::Unknown => {
            let begin =
                "Compare with the time before on the job's page: what changed in what it computes.";
            let action = match untold {
                [] => format!(
                    "{begin} Nothing that is read of its waits and machines changed with it."
                ),
                untold => format!(
                    "{begin} Not read, and it would tell: {}.",
                    untold.join(", ")
                ),
            };
            return (action, Remedy::Look);
        }
        cause => {
            let (action, remedy) = slow::action(cause);
            return (action.to_owned(), remedy);
        }
    };
    (known.to_owned(), Remedy::Look)
}

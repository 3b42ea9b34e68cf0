//! The collectives of a run by function, or why nothing is known of them.
//!
//! How long ranks waited for the last one no rank knows: it is worked out of what their collectives took, as the least
//! that it can have been, where they do not tell it all the same.

use std::collections::BTreeMap;

use gpufleet_analysis::straggler::collectives::{Function, Operation, waits};
use gpufleet_telemetry::catalog::{Unit, training};
use gpufleet_telemetry::identity::Part;
use gpufleet_telemetry::time::NANOS_PER_SECOND;
use gpufleet_telemetry::training::{CollectivesFrom as From, collective_of};

use crate::fleet::{Live, LiveValue};
use crate::runs::Run;
use crate::words;
use crate::words::text::{self, quantity};

/// A function's collectives over the ranks.
pub(super) struct Collective {
    pub(super) name: String,
    pub(super) calls: String,
    pub(super) moved: String,
    pub(super) bandwidth: String,
    pub(super) waited: String,
}

/// Collectives by function, or why there are none.
pub(super) fn collectives(lives: &[Live], run: &Run) -> Result<Vec<Collective>, String> {
    /// Calls, bytes, seconds waited, as far as a rank tells them; the least and the greatest bandwidth.
    type Sums = ([Option<f64>; 3], Option<(f64, f64)>);
    let mut found: BTreeMap<String, Sums> = BTreeMap::new();
    let counted = [
        training::COLLECTIVE_CALLS,
        training::COLLECTIVE_TRAFFIC,
        training::COLLECTIVE_WAIT,
    ];
    for live in lives {
        for (place, metric) in counted.iter().enumerate() {
            for value in live.parts(metric.id) {
                if let (Some(name), Ok(value)) = (function(value.part.as_deref()), value.reading) {
                    let sum = &mut found.entry(name).or_default().0[place];
                    *sum = Some(sum.unwrap_or(0.0) + value);
                }
            }
        }
        for value in live.parts(training::COLLECTIVE_BUS_BANDWIDTH.id) {
            if let (Some(name), Ok(it)) = (function(value.part.as_deref()), value.reading) {
                let known = &mut found.entry(name).or_default().1;
                *known =
                    Some(known.map_or((it, it), |(least, most)| (least.min(it), most.max(it))));
            }
        }
    }
    if found.is_empty() {
        return Err(no_collectives(lives, run));
    }
    let least = least_waits(lives);
    // NCCL's RAS service counts calls and nothing else.
    let told = |unit: Unit, sum: Option<f64>| {
        sum.map_or_else(|| "not told".to_owned(), |it| quantity(unit, it))
    };
    let line = |(name, ([calls, bytes, waited], bandwidth)): (String, Sums)| Collective {
        waited: match (waited.filter(|it| *it > 0.0), least.get(&name)) {
            (Some(waited), _) => quantity(Unit::Seconds, waited),
            (None, Some(least)) if *least > 0.0 => {
                format!("at least {}", quantity(Unit::Seconds, *least))
            }
            (None, Some(_)) => "none that shows".to_owned(),
            (None, None) => "not known".to_owned(),
        },
        calls: told(Unit::Count, calls),
        moved: told(Unit::Bytes, bytes),
        bandwidth: bandwidth.map_or_else(
            || "not measured".to_owned(),
            |(least, most)| {
                let shown = |it| quantity(Unit::BytesPerSecond, it);
                format!("{} to {}", shown(least), shown(most))
            },
        ),
        name,
    };
    Ok(found.into_iter().map(line).collect())
}

/// What a rank's collectives took on one communicator.
struct Took {
    /// Any number that is no other's.
    rank: u32,
    /// Whose time was measured.
    calls: u64,
    /// Each of them on average, nanoseconds.
    mean_ns: u64,
}

impl Took {
    /// With communicator and function; none where no time is measured.
    fn of(rank: u32, live: &Live, timed: &LiveValue) -> Option<((u64, String), Self)> {
        let (communicator, _) = collective_of(&timed.part.as_ref()?.id)?;
        let name = function(timed.part.as_deref())?;
        let calls = live.timed_collectives(timed.part.as_deref())?;
        let seconds = timed.reading.ok().filter(|it| *it > 0.0)?;
        let mean_ns = seconds / calls * NANOS_PER_SECOND as f64;
        let took = Self {
            rank,
            calls: calls as u64,
            mean_ns: mean_ns as u64,
        };
        (took.calls > 0).then_some(((communicator, name), took))
    }
}

/// The least that all ranks together waited for the last one to come, seconds by function; of functions that end
/// together, on communicators of which the times of two ranks are known.
fn least_waits(lives: &[Live]) -> BTreeMap<String, f64> {
    let mut took: BTreeMap<(u64, String), Vec<Took>> = BTreeMap::new();
    for (rank, live) in (0..).zip(lives) {
        for timed in live.parts(training::COLLECTIVE_DURATION.id) {
            if let Some((of, it)) = Took::of(rank, live, timed) {
                took.entry(of).or_default().push(it);
            }
        }
    }
    let mut found = BTreeMap::new();
    for ((_, name), took) in took {
        let durations: Vec<(u32, u64)> = took.iter().map(|it| (it.rank, it.mean_ns)).collect();
        // A rank that is behind has fewer.
        let calls = took.iter().map(|it| it.calls).min().unwrap_or(0);
        let waited = waits(&[Operation {
            function: Function::of(&name),
            calls,
            durations: &durations,
        }]);
        if !waited.is_empty() {
            let seconds = waited.values().sum::<u64>() as f64 / NANOS_PER_SECOND as f64;
            *found.entry(name).or_default() += seconds;
        }
    }
    found
}

/// The function of a collective's part, `<communicator>/<function>`.
fn function(part: Option<&Part>) -> Option<String> {
    let (_, function) = part?.id.rsplit_once('/')?;
    Some(text::harmless(function, 24))
}

/// Why there are none, by what the agent says of the rank that stands for the run.
fn no_collectives(lives: &[Live], run: &Run) -> String {
    let told = run
        .speaker()
        .and_then(|(_, it)| it.facts.reading(training::COLLECTIVES_FROM.id));
    let why = match told.and_then(|code| From::from_number(code as u64)) {
        _ if lives.is_empty() => "No rank of it is live, and collectives are not kept.",
        from => words::no_collectives(from),
    };
    why.to_owned()
}

//! The collectives of a run by function, or why nothing is known of them.

use std::collections::BTreeMap;

use gpufleet_telemetry::catalog::{Unit, training};
use gpufleet_telemetry::identity::Part;
use gpufleet_telemetry::training::CollectivesFrom as From;

use crate::fleet::Live;
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
    // NCCL's RAS service counts calls and nothing else.
    let told = |unit: Unit, sum: Option<f64>| {
        sum.map_or_else(|| "not told".to_owned(), |it| quantity(unit, it))
    };
    let line = |(name, ([calls, bytes, waited], bandwidth)): (String, Sums)| Collective {
        name,
        calls: told(Unit::Count, calls),
        moved: told(Unit::Bytes, bytes),
        bandwidth: bandwidth.map_or_else(
            || "not measured".to_owned(),
            |(least, most)| {
                let shown = |it| quantity(Unit::BytesPerSecond, it);
                format!("{} to {}", shown(least), shown(most))
            },
        ),
        waited: told(Unit::Seconds, waited),
    };
    Ok(found.into_iter().map(line).collect())
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

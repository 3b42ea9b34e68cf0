//! What the GPUs of a run drew while its job held them, from the ledger.
//!
//! Limits: whole hours, so that of the first and the last one an earlier or later attempt of the same job is in it; of
//! more than [`MAX_DRAWN`] GPU-hours nothing is added up.

use std::collections::BTreeSet;

use gpufleet_analysis::ledger::Energy;
use gpufleet_analysis::money::ratio;
use gpufleet_telemetry::time::Timestamp;

use super::parts::{Figure, figure};
use crate::App;
use crate::money::advice::{is_of, name};
use crate::runs::{Run, RunKey};
use crate::store::{MAX_DRAWN, StoreError};

/// Millijoules of a tenth of a kilowatt-hour.
const TENTH: i128 = 360_000_000;

/// For how long the job of a run held its GPUs, milliseconds, and what these drew.
///
/// # Errors
/// When the database refuses. Else a sentence that says why it is not known.
pub(super) async fn of(
    app: &App,
    (key, run): (&RunKey, &Run),
    now: Timestamp,
) -> Result<Result<(i64, Energy), String>, StoreError> {
    let Some(started) = run.facts.started else {
        return Ok(Err("not known: nobody said when it began".to_owned()));
    };
    let until = run.state(now).until(now);
    let gpus: Vec<&str> = run.gpus().into_iter().collect();
    if gpus.is_empty() {
        return Ok(Err(
            "not known: no rank says on which GPU it computes".to_owned()
        ));
    }
    let hours = started.minute().hour()..until.minute().hour() + 1;
    let Some(drawn) = app.store.drawn(&key.cluster, &gpus, hours).await? else {
        return Ok(Err(format!(
            "not added up: it held its GPUs for more than {MAX_DRAWN} GPU-hours; the month's report has it"
        )));
    };
    let numbers: BTreeSet<i64> = drawn.keys().copied().collect();
    let holders = app.store.holders(&numbers).await?;
    let all: i64 = drawn.values().map(|it| it.0).sum();
    let name = name(&key.run.job);
    // A job that calls itself otherwise than its holder is called is the one that had them most of the time.
    let is_its = |number: &i64, millis: i64| {
        let job = holders.get(number).map_or("", |it| it.job.as_str());
        is_of(job, &name) || millis > all / 2
    };
    let (mut millis, mut energy) = (0, Energy::default());
    for (number, (held, of)) in drawn {
        if is_its(&number, held) {
            millis += held;
            energy.add(of);
        }
    }
    Ok(match millis {
        0 => Err("not in the ledger yet: nobody knows that its job held its GPUs".to_owned()),
        _ => Ok((millis, energy)),
    })
}

/// In words.
pub(super) fn drawn(energy: &Result<(i64, Energy), String>) -> Figure {
    let told = energy.as_ref().map_err(Clone::clone);
    let told = told.and_then(|(millis, it)| {
        let drawn = it
            .told()
            .ok_or("not told: its cards have no counter of it")?;
        let tenths = ratio(drawn.into(), 1, TENTH).unwrap_or(0);
        Ok::<_, String>((
            tenths,
            ratio(it.metered_millis.into(), 1_000, (*millis).into()),
        ))
    });
    Figure {
        small: told
            .as_ref()
            .ok()
            .and_then(|it| it.1)
            .filter(|it| *it < 1_000)
            .map(|it| format!("told of {}.{} % of its time", it / 10, it % 10)),
        ..figure(
            "Energy so far",
            "What its GPUs drew by their own counters while the job held them; not the machines around them.",
            told.map(|(tenths, _)| format!("{}.{} kWh", tenths / 10, tenths % 10)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_is_said_with_how_much_of_the_time_is_behind_it_or_why_it_is_not_known() {
        let of = |millijoules, metered_millis| {
            let energy = Energy {
                millijoules,
                metered_millis,
            };
            drawn(&Ok((1_000_000, energy)))
        };
        let half = of(45_360_000_000, 500_000);
        assert_eq!(half.value.as_deref(), Ok("12.6 kWh"));
        assert_eq!(half.small.as_deref(), Some("told of 50.0 % of its time"));
        assert_eq!(of(45_360_000_000, 1_000_000).small, None);
        let none = of(0, 0);
        assert!(
            none.value.is_err_and(|it| it.starts_with("not told")),
            "not 0"
        );
        assert_eq!(drawn(&Err("why".to_owned())).value, Err("why".to_owned()));
    }
}

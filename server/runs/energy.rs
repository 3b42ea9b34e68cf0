//! What the GPUs of a run drew while its job held them, from the ledger.
//!
//! Limits: whole hours, so that of the first and the last one an earlier or later attempt of the same job is in it; of
//! more than [`MAX_DRAWN`] GPU-hours nothing is added up.

use std::collections::BTreeSet;

use gpufleet_analysis::ledger::Energy;
use gpufleet_telemetry::time::Timestamp;

use super::{Run, RunKey};
use crate::App;
use crate::money::advice::{is_of, name};
use crate::store::{MAX_DRAWN, StoreError};

/// What the GPUs of a run drew, as far as that is told.
#[derive(Debug, Clone, Copy)]
pub struct Drawn {
    /// For how long its job held them, milliseconds.
    pub held_millis: i64,
    /// Of how much of that it is told.
    pub metered_millis: i64,
    /// What they drew in that, millijoules.
    pub millijoules: i64,
}

impl Drawn {
    /// What is told of that time; else a sentence that says why nothing is.
    pub fn told(held_millis: i64, energy: Energy) -> Result<Self, String> {
        let millijoules = energy.told();
        let millijoules = millijoules.ok_or("not told: its cards have no counter of it")?;
        Ok(Self {
            held_millis,
            metered_millis: energy.metered_millis,
            millijoules,
        })
    }
}

/// What the GPUs of a run drew while its job held them.
///
/// # Errors
/// When the database refuses. Else a sentence that says why it is not known.
pub async fn of(
    app: &App,
    (key, run): (&RunKey, &Run),
    now: Timestamp,
) -> Result<Result<Drawn, String>, StoreError> {
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
        _ => Drawn::told(millis, energy),
    })
}

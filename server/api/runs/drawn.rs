//! What the GPUs of a run drew, for programs.

use gpufleet_analysis::ledger::Energy;
use gpufleet_telemetry::time::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Figure, Problem};
use crate::runs::{Run, RunKey, energy};
use crate::web::Web;

/// Millijoules of a kilowatt-hour.
const MILLIJOULES_PER_KWH: f64 = 3.6e9;

/// What the GPUs of a run drew.
#[derive(Debug, Serialize, ToSchema)]
pub struct Drawn {
    /// What they drew while its job held them, kWh, by their own counters and without the machines around them.
    pub energy_kwh: Figure,
    /// Of how much of that time it is told, 0 to 1; none where it is told of none, or not known.
    pub energy_metered_ratio: Option<f64>,
}

impl Drawn {
    pub(super) async fn of(
        web: &Web,
        of: (&RunKey, &Run),
        now: Timestamp,
    ) -> Result<Self, Problem> {
        let energy = energy::of(&web.app, of, now).await;
        let energy = energy.map_err(|error| Problem::store(&error))?;
        Ok(Self {
            energy_metered_ratio: metered(&energy),
            energy_kwh: Figure::of(kilowatt_hours(energy)),
        })
    }
}

/// What was drawn, kWh.
fn kilowatt_hours(energy: Result<(i64, Energy), String>) -> Result<f64, String> {
    let (_, energy) = energy?;
    let drawn = energy.told();
    let drawn = drawn.ok_or("not told: its cards have no counter of it")?;
    Ok(drawn as f64 / MILLIJOULES_PER_KWH)
}

/// Of how much of the time it is told.
fn metered(energy: &Result<(i64, Energy), String>) -> Option<f64> {
    let (held, energy) = energy.as_ref().ok()?;
    let is_told = energy.metered_millis > 0;
    is_told.then(|| (energy.metered_millis as f64 / *held as f64).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_is_told_with_how_much_of_the_time_is_behind_it_and_never_as_none() {
        let of = |millijoules, metered_millis| {
            let energy = Energy {
                millijoules,
                metered_millis,
            };
            Ok((1_000_000, energy))
        };
        let half = of(45_360_000_000, 500_000);
        assert_eq!(
            (metered(&half), kilowatt_hours(half)),
            (Some(0.5), Ok(12.6))
        );
        let none = of(0, 0);
        assert_eq!(metered(&none), None);
        assert!(kilowatt_hours(none).is_err_and(|it| it.starts_with("not told")));
        let why = || Err("not in the ledger yet".to_owned());
        assert_eq!(
            (metered(&why()), kilowatt_hours(why()).is_err()),
            (None, true)
        );
    }
}

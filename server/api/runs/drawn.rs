//! What the GPUs of a run drew, for programs.

use gpufleet_telemetry::time::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::Figure;
use crate::runs::{Run, RunKey, energy};
use crate::web::Web;
use crate::words::Said;

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
    pub(super) async fn of(web: &Web, of: (&RunKey, &Run), now: Timestamp) -> Self {
        let from = (&web.app.store, &web.app.clock);
        Self::told(web.energies.get(from, of, now).await)
    }

    fn told(energy: Result<energy::Drawn, Said>) -> Self {
        let metered = |it: &energy::Drawn| it.metered_millis as f64 / it.held_millis as f64;
        Self {
            energy_metered_ratio: energy.as_ref().ok().map(|it| metered(it).min(1.0)),
            energy_kwh: Figure::of(match energy {
                Ok(it) => Ok(it.millijoules as f64 / MILLIJOULES_PER_KWH),
                Err(why) => Err(why.to_string()),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::ledger::Energy;

    use super::*;

    #[test]
    fn energy_is_told_with_how_much_of_the_time_is_behind_it_and_never_as_none() {
        let of = |millijoules, metered_millis| {
            let energy = Energy {
                millijoules,
                metered_millis,
            };
            Drawn::told(energy::Drawn::told(1_000_000, energy))
        };
        let half = of(45_360_000_000, 500_000);
        assert_eq!(
            (half.energy_metered_ratio, half.energy_kwh.value),
            (Some(0.5), Some(12.6))
        );
        let none = of(0, 0);
        assert_eq!(
            (none.energy_metered_ratio, none.energy_kwh.value),
            (None, None)
        );
        assert!(
            none.energy_kwh
                .missing
                .is_some_and(|it| it.starts_with("not told"))
        );
        let why = Drawn::told(Err("not in the ledger yet".into()));
        assert_eq!(
            (why.energy_metered_ratio, why.energy_kwh.value),
            (None, None)
        );
    }
}

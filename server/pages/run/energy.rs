//! What the GPUs of a run drew, in words.

use gpufleet_analysis::ledger::Energy;
use gpufleet_analysis::money::ratio;

use super::parts::{Figure, figure};

/// Millijoules of a tenth of a kilowatt-hour.
const TENTH: i128 = 360_000_000;

/// In words, of the time that it was held and what was drawn in that.
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

//! What the GPUs of a run drew, in words.

use gpufleet_analysis::money::ratio;

use super::parts::{Figure, HOOKS, figure};
use crate::runs::energy::Drawn;
use crate::words::Said;

/// Millijoules of a tenth of a kilowatt-hour.
const TENTH: i128 = 360_000_000;

/// In words, with how much of the time that is behind it.
pub(super) fn words(drawn: &Result<Drawn, Said>) -> Figure {
    let metered = drawn.as_ref().ok().and_then(|it| {
        let ratio = ratio(it.metered_millis.into(), 1_000, it.held_millis.into());
        ratio.filter(|it| *it < 1_000)
    });
    let told = drawn.as_ref().map_err(ToString::to_string).map(|it| {
        let tenths = ratio(it.millijoules.into(), 1, TENTH).unwrap_or(0);
        format!("{}.{} kWh", tenths / 10, tenths % 10)
    });
    let open = drawn.as_ref().err().and_then(Said::anchor);
    Figure {
        anchor: open.unwrap_or(HOOKS),
        small: metered.map(|it| format!("told of {}.{} % of its time", it / 10, it % 10)),
        ..figure(
            "Energy so far",
            "What its GPUs drew by their own counters while the job held them; not the machines around them.",
            told,
        )
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::ledger::Energy;

    use super::*;

    #[test]
    fn energy_is_said_with_how_much_of_the_time_is_behind_it_or_why_it_is_not_known() {
        let of = |millijoules, metered_millis| {
            let energy = Energy {
                millijoules,
                metered_millis,
            };
            words(&Drawn::told(1_000_000, energy))
        };
        let half = of(45_360_000_000, 500_000);
        assert_eq!(half.value.as_deref(), Ok("12.6 kWh"));
        assert_eq!(half.small.as_deref(), Some("told of 50.0 % of its time"));
        assert_eq!(of(45_360_000_000, 1_000_000).small, None);
        let none = of(0, 0);
        assert_eq!(none.anchor, "readings");
        assert!(
            none.value.is_err_and(|it| it.starts_with("not told")),
            "not 0"
        );
        let unheld = words(&Err(Said::open("holders", "why")));
        assert_eq!(unheld.value, Err("why".to_owned()));
        assert_eq!(unheld.anchor, "holders");
    }
}

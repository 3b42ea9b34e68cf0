//! The month's facts on the terms of paying: what Spot and commitments came to, where there are any.

use gpufleet_analysis::chargeback::commitments::Commitments;
use gpufleet_analysis::chargeback::spot::Outcome;
use gpufleet_analysis::money::{ratio, tenths};

use crate::words::text::{amount, counted};

/// Name, value and note of each.
pub(super) fn tiles(
    currency: &str,
    spot: &Outcome,
    commitments: Option<&Commitments>,
) -> Vec<(&'static str, String, String)> {
    let is_spot = spot.bought.gpu_millis + spot.bought.unknown_gpu_millis > 0;
    let spot = is_spot.then(|| of_spot(currency, spot));
    let commitments = commitments.map(of_commitments);
    spot.into_iter().chain(commitments).collect()
}

fn of_spot(currency: &str, it: &Outcome) -> (&'static str, String, String) {
    if it.bought.gpu_millis == 0 {
        let why = "its time has no Spot price or none on demand".to_owned();
        return ("Saved by Spot", "not known".to_owned(), why);
    }
    let count = usize::try_from(it.preemptions).unwrap_or(usize::MAX);
    let count = match it.is_untold {
        true => "how often it was preempted is not known".to_owned(),
        false => counted(count, "machine taken back", "machines taken back"),
    };
    let runs = match (it.is_untold, usize::try_from(it.runs).unwrap_or(usize::MAX)) {
        (true, _) | (_, 0) => String::new(),
        (false, runs) => format!(", with {}", counted(runs, "run", "runs")),
    };
    let rate = match it.preemptions_per_1000_hours() {
        Some(rate) if rate > 0 => format!(", {} per 1,000 GPU-hours", tenths(rate)),
        _ => String::new(),
    };
    let lost = match (it.lost, it.unknown_losses) {
        (0, 0) => String::new(),
        (0, unknown) => format!(", what {unknown} of these lost is not known"),
        (lost, 0) => format!(", {} lost", amount(currency, lost)),
        (lost, unknown) => format!(
            ", {} lost; of {unknown} of these not everything is known",
            amount(currency, lost)
        ),
    };
    let most = if it.unknown_losses > 0 || it.is_untold {
        "at most "
    } else {
        ""
    };
    let value = format!("{most}{}", amount(currency, it.net()));
    (
        "Saved by Spot, net",
        value,
        format!("{count}{rate}{runs}{lost}"),
    )
}

fn of_commitments(it: &Commitments) -> (&'static str, String, String) {
    let part = |millionths: Option<i128>| {
        let percent = millionths.and_then(|it| ratio(it, 100, 1_000_000));
        percent.map_or("not known".to_owned(), |it| format!("{it} %"))
    };
    let value = format!("{} used", part(it.total().utilisation()));
    let note = format!(
        "coverage {}, effective savings rate {}",
        part(it.coverage()),
        part(it.savings_rate())
    );
    ("Commitments", value, note)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gpufleet_analysis::chargeback::commitments::Used;
    use gpufleet_analysis::chargeback::spot::Bought;

    use super::*;

    const USD: i128 = 1_000_000_000;
    const HOUR: i64 = 3_600_000;

    #[test]
    fn spot_and_commitments_have_a_fact_each_where_there_are_any() {
        assert!(tiles("USD", &Outcome::default(), None).is_empty());
        let bought = Bought {
            gpu_millis: 800 * HOUR,
            spot: 400 * USD,
            on_demand: 900 * USD,
            unknown_gpu_millis: 0,
        };
        let spot = Outcome {
            bought,
            preemptions: 2,
            without_runs: 1,
            runs: 3,
            unknown_losses: 1,
            lost_gpu_millis: HOUR,
            lost: USD,
            is_untold: false,
        };
        let used = Used {
            used: 3 * USD,
            unused: USD,
        };
        let commitments = Commitments {
            by_id: BTreeMap::from([("c1".to_owned(), used)]),
            covered_gpu_millis: HOUR,
            on_demand_gpu_millis: HOUR,
            paid: 9 * USD,
            list: 10 * USD,
        };
        let [saved, committed] = tiles("USD", &spot, Some(&commitments))
            .try_into()
            .expect("two");
        assert_eq!(
            (saved.0, saved.1.as_str()),
            ("Saved by Spot, net", "at most $499.00")
        );
        let note = "2 machines taken back, 2.5 per 1,000 GPU-hours, with 3 runs, $1.00 lost; of 1 of these not everything is known";
        assert_eq!(saved.2, note);
        let untold = Outcome {
            is_untold: true,
            unknown_losses: 0,
            ..spot
        };
        let [saved] = tiles("USD", &untold, None).try_into().expect("one");
        assert_eq!(saved.1, "at most $499.00");
        let note = "how often it was preempted is not known, $1.00 lost";
        assert_eq!(saved.2, note);
        assert_eq!(committed.1, "75 % used");
        assert_eq!(committed.2, "coverage 50 %, effective savings rate 10 %");
    }

    #[test]
    fn spot_without_a_price_saves_nobody_knows_what() {
        let mut spot = Outcome::default();
        spot.bought.unknown_gpu_millis = HOUR;
        assert_eq!(tiles("USD", &spot, None)[0].1, "not known");
    }
}

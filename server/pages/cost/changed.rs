//! What changed since the month before, in a line: how much, of what, and whose cost moved most.

use gpufleet_analysis::chargeback::Sum;
use gpufleet_analysis::chargeback::change::Change;

use super::{Made, money};
use crate::words::Said;
use crate::words::text::{SHOWN_CHARACTERS, amount, harmless};

/// The whole days of the month against as many of the one before; where that cannot be said, why.
pub(super) fn of(made: &Made) -> Said {
    let name = match made.is_over {
        true => "the month before",
        false => "last month",
    };
    match &made.change {
        Ok(change) => said(name, change, &made.currency).and(format!(". {}", made.compared)),
        Err(why) => why.as_str().into(),
    }
}

/// What changed since a month that is called so, without the full stop.
fn said(name: &str, change: &Change, currency: &str) -> Said {
    let has_price = |sum: &Sum| sum.gpu_millis == 0 || sum.unpriced_millis < sum.gpu_millis;
    let (apart, most) = match has_price(&change.now) && has_price(&change.before) {
        true => (
            format!("{}, ", changed(change, currency)),
            moved(change, currency),
        ),
        // What has no price is no money less.
        false => (String::new(), String::new()),
    };
    let money = |sum| Said::ours("prices", money(currency, sum));
    Said::from(format!("Against {name}: {apart}"))
        .and(money(&change.now))
        .and(" after ")
        .and(money(&change.before))
        .and(most)
}

fn changed(change: &Change, currency: &str) -> String {
    let cost = change.cost();
    match change.percent() {
        _ if cost == 0 => "as much".to_owned(),
        None => apart(cost, currency),
        Some(0) => format!("{} (under 1 %)", apart(cost, currency)),
        Some(percent) => format!("{} ({percent:+} %)", apart(cost, currency)),
    }
}

fn moved(change: &Change, currency: &str) -> String {
    let Some((who, nano)) = &change.most else {
        return String::new();
    };
    let who = harmless(who, SHOWN_CHARACTERS);
    format!("; {who} moved most, {}", apart(*nano, currency))
}

/// Nano-units of a difference.
fn apart(nano: i128, currency: &str) -> String {
    let word = if nano < 0 { "less" } else { "more" };
    format!("{} {word}", amount(currency, nano.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many dollars for ten GPU-hours, of which so many have no price.
    fn sum(dollars: i128, unpriced_hours: i64) -> Sum {
        Sum {
            gpu_millis: 36_000_000,
            cost: dollars * 1_000_000_000,
            unpriced_millis: unpriced_hours * 3_600_000,
            ..Sum::default()
        }
    }

    fn told(now: Sum, before: Sum, most: Option<(&str, i128)>) -> Said {
        let most = most.map(|(who, dollars)| (who.to_owned(), dollars * 1_000_000_000));
        said("last month", &Change { now, before, most }, "USD")
    }

    #[test]
    fn a_change_is_said_in_money_and_per_cent_with_whose_cost_moved_most() {
        for (now, before, most, expected) in [
            (
                sum(600, 0),
                sum(480, 0),
                Some(("research", 150)),
                "$120.00 more (+25 %), $600.00 after $480.00; research moved most, $150.00 more",
            ),
            (
                sum(480, 0),
                sum(600, 0),
                Some(("ads", -150)),
                "$120.00 less (-20 %), $480.00 after $600.00; ads moved most, $150.00 less",
            ),
            (
                sum(600, 0),
                sum(600, 0),
                None,
                "as much, $600.00 after $600.00",
            ),
            (
                sum(601, 0),
                sum(600, 0),
                None,
                "$1.00 more (under 1 %), $601.00 after $600.00",
            ),
            // Recorded, and there was nothing.
            (
                sum(600, 0),
                Sum::default(),
                None,
                "$600.00 more, $600.00 after $0.00",
            ),
        ] {
            let told = told(now, before, most);
            assert_eq!(told.to_string(), format!("Against last month: {expected}"));
            assert_eq!(told.anchor(), None, "{told}");
        }
    }

    #[test]
    fn what_has_no_price_is_no_money_less_and_leads_to_the_prices() {
        let part = told(sum(600, 1), sum(500, 0), None);
        assert_eq!(
            part.to_string(),
            "Against last month: $100.00 more (+20 %), $600.00 and 1.0 GPU-hours without a price after $500.00"
        );
        assert_eq!(part.anchor(), Some("prices"));
        let all = told(sum(0, 10), sum(500, 0), Some(("research", -500)));
        assert_eq!(
            all.to_string(),
            "Against last month: no price after $500.00"
        );
        assert_eq!(all.anchor(), Some("prices"));
    }
}

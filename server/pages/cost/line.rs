//! A month in one line.

use gpufleet_analysis::chargeback::Sum;

use super::{Made, money};
use crate::words::Said;
use crate::words::text::{self, amount};

/// The month in one line: what is spent, what of it for nothing, what it will come to; of what has a price.
pub(super) fn of(made: &Made) -> Said {
    let (title, total) = (&made.title, &made.headline.total);
    if total.gpu_millis == 0 {
        let yet = if made.is_over { "" } else { " yet" };
        return format!("{title}: the ledger has no hours{yet}").into();
    }
    // What of it has no price is said with it.
    let spent = Said::ours("prices", money(&made.currency, total));
    if total.unpriced_millis >= total.gpu_millis {
        let (so_far, hours) = (so_far(made), text::hours(total.gpu_millis));
        return Said::from(format!("{title}{so_far}: {hours} GPU-hours, ")).and(spent);
    }
    let forecast = match made.forecast {
        // What a month that is over came to is what was spent.
        _ if made.is_over => String::new(),
        Some(nano) => format!("; forecast {}", amount(&made.currency, nano)),
        None => "; no forecast before a whole day".to_owned(),
    };
    let so_far = so_far(made);
    // What of it has no price is so many hours and not nothing.
    let of_it = |sum: &Sum, what: &str| match sum.unpriced_millis {
        0 => format!("{} of it {what}", amount(&made.currency, sum.cost)),
        unpriced => {
            let hours = text::hours(unpriced);
            let priced = amount(&made.currency, sum.cost);
            format!("{priced} of it and {hours} GPU-hours without a price {what}")
        }
    };
    let wasted = of_it(&made.headline.waste, "wasted");
    let unseen = match &made.headline.unobserved {
        Sum { gpu_millis: 0, .. } => Said::default(),
        unseen => {
            let unseen = of_it(unseen, "not measured");
            Said::from(", ").and(Said::open("readings", unseen))
        }
    };
    Said::from(format!("{title}{so_far}: "))
        .and(spent)
        .and(format!(", {wasted}"))
        .and(unseen)
        .and(forecast)
}

const fn so_far(made: &Made) -> &'static str {
    match made.is_over {
        true => "",
        false => " so far",
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::chargeback::spot::Outcome;
    use gpufleet_analysis::chargeback::view::{Group, Headline};
    use gpufleet_telemetry::time::Timestamp;

    use super::*;

    /// A month of so many hours and dollars, what of it is wasted and not measured, and its forecast.
    fn made(hours: i64, [cost, waste, unseen]: [i128; 3], forecast: Option<i128>) -> Made {
        let dollars = |cost: i128| Sum {
            gpu_millis: hours * 3_600_000,
            cost: cost * 1_000_000_000,
            ..Sum::default()
        };
        let mut headline = Headline {
            total: dollars(cost),
            waste: dollars(waste),
            unobserved: match unseen {
                0 => Sum::default(),
                unseen => dollars(unseen),
            },
            ..Headline::default()
        };
        if cost == 0 {
            headline.total.unpriced_millis = headline.total.gpu_millis;
        }
        Made {
            at: Timestamp::default(),
            title: "November 2026".to_owned(),
            is_over: false,
            is_unbegun: false,
            before: "2026-10".to_owned(),
            headline,
            whole: Group::default(),
            forecast: forecast.map(|it| it * 1_000_000_000),
            change: Err(String::new()),
            compared: String::new(),
            teams: Vec::new(),
            budgets: Vec::new(),
            quotas: Vec::new(),
            serving: Vec::new(),
            spot: Outcome::default(),
            commitments: None,
            findings: Vec::new(),
            currency: "USD".to_owned(),
        }
    }

    fn said(hours: i64, costs: [i128; 3], forecast: Option<i128>) -> String {
        of(&made(hours, costs, forecast)).to_string()
    }

    #[test]
    fn what_was_not_measured_leads_to_readings_what_has_no_price_to_prices_and_the_rest_nowhere() {
        let open = |made: &Made| {
            let pieces = of(made).pieces.into_iter();
            let open = pieces.filter_map(|it| Some((it.anchor?, it.text)));
            open.collect::<Vec<_>>()
        };
        let mut some = made(90, [900, 300, 50], None);
        let unseen = ("readings", "$50.00 of it not measured".to_owned());
        assert_eq!(open(&some), std::slice::from_ref(&unseen));
        some.headline.total.unpriced_millis = 3_600_000;
        let unpriced = "$900.00 and 1.0 GPU-hours without a price";
        assert_eq!(open(&some), [("prices", unpriced.to_owned()), unseen]);
        some.headline.unobserved = Sum {
            gpu_millis: 3_600_000,
            unpriced_millis: 3_600_000,
            ..Sum::default()
        };
        let unseen = "$0.00 of it and 1.0 GPU-hours without a price not measured";
        assert_eq!(open(&some)[1], ("readings", unseen.to_owned()));
        let none = made(90, [0, 0, 0], None);
        assert_eq!(open(&none), [("prices", "no price".to_owned())]);
        assert!(open(&made(90, [900, 300, 0], None)).is_empty());
    }

    #[test]
    fn a_month_that_is_over_is_not_so_far_and_has_no_forecast() {
        let over = |hours, costs| {
            let made = made(hours, costs, Some(900));
            let over = Made {
                is_over: true,
                ..made
            };
            of(&over).to_string()
        };
        let whole = "November 2026: $900.00, $300.00 of it wasted";
        assert_eq!(over(90, [900, 300, 0]), whole);
        assert_eq!(
            over(90, [0, 0, 0]),
            "November 2026: 90.0 GPU-hours, no price"
        );
        assert_eq!(over(0, [0, 0, 0]), "November 2026: the ledger has no hours");
    }

    #[test]
    fn the_month_in_a_line_says_what_is_known_of_it_and_never_nothing_for_not_known() {
        let forecast =
            "November 2026 so far: $900.00, $300.00 of it wasted; forecast $1\u{202f}200.00";
        assert_eq!(said(90, [900, 300, 0], Some(1_200)), forecast);
        let unseen = "November 2026 so far: $900.00, $0.00 of it wasted, $50.00 of it not measured; no forecast before a whole day";
        assert_eq!(said(90, [900, 0, 50], None), unseen);
        let unpriced = "November 2026 so far: 90.0 GPU-hours, no price";
        assert_eq!(said(90, [0, 0, 0], Some(0)), unpriced);
        let empty = "November 2026: the ledger has no hours yet";
        assert_eq!(said(0, [0, 0, 0], None), empty);
    }
}

//! A month against the one before it.
//!
//! A month that is over is compared with all of the one before. Of one that runs its days that are over are compared with
//! as many of the month before, or all of that where it is shorter: else a month would be cheaper until it ends, and on
//! its first days by nearly all.

use std::ops::Range;

use gpufleet_analysis::chargeback::variance::Variance;
use gpufleet_analysis::chargeback::{Chargeback, Detail, MILLIS_PER_DAY};
use gpufleet_telemetry::time::Timestamp;

use super::super::Terms;
use super::super::month::{self, Days, Month};
use super::{Asked, month_of, title};

/// What is compared.
pub(super) struct Compared {
    before: Month,
    /// What of the month is; none where all of it is.
    own: Option<Chargeback>,
}

/// Charges what is compared; none where there is nothing of the month before, or no day of this one is over.
pub(super) fn charged(
    asked: &Asked,
    [days, before]: [&Days; 2],
    terms: &Terms,
) -> Option<Compared> {
    let range = asked.days_before();
    let is_there = !before.days.is_empty() || !before.lives.is_empty();
    if range.is_empty() || !is_there {
        return None;
    }
    let is_part = asked.whole != asked.days;
    Some(Compared {
        before: month::charge(before, range, terms, Detail::Nodes),
        own: is_part.then(|| month::charged(days, &asked.whole, terms)),
    })
}

/// What was wrong with the month before, one sentence each.
pub(super) fn findings(
    asked: &Asked,
    before: &Days,
    compared: Option<&Compared>,
    now: Timestamp,
) -> Vec<String> {
    let range = asked.days_before();
    let recorded = compared.map(|it| &it.before.recorded).into_iter();
    let not_recorded = recorded.flat_map(|it| it.missing(&range, now));
    let all = before.not_read(&range).into_iter().chain(not_recorded);
    all.map(|it| format!("of the month before, {it}")).collect()
}

/// What is compared with what, in a sentence.
pub(super) fn words(asked: &Asked) -> String {
    let month = &asked.title;
    let before = Timestamp::from_millis(asked.before_day * MILLIS_PER_DAY);
    let before = title(&month_of(before));
    if asked.whole == asked.days {
        return format!("All of {month} against all of {before}.");
    }
    let count = |days: &Range<i64>| days.end - days.start;
    let running = "the day that runs is not in it";
    match (count(&asked.whole), count(&asked.days_before())) {
        (0, _) => format!(
            "No day of {month} is over yet: it is compared with {before} from its second day on."
        ),
        (1, _) => format!("The first day of {month} against the first of {before}; {running}."),
        (own, theirs) if theirs < own => {
            format!("The first {own} days of {month} against all {theirs} of {before}; {running}.")
        }
        (own, _) => format!(
            "The first {own} days of {month} against the first {own} of {before}; {running}."
        ),
    }
}

impl Compared {
    /// What the change is made of, to the month as the report has it.
    pub(super) fn variance(&self, month: &Chargeback) -> Variance {
        self.own
            .as_ref()
            .unwrap_or(month)
            .variance(&self.before.made)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpufleet_analysis::ledger::{Energy, Reason, State};
    use gpufleet_analysis::table;

    use super::super::{Form, What, render};
    use super::*;
    use crate::money::terms::Sources;
    use crate::store::model::{DayFacts, DayOf, DayTime, LedgerDay};

    const CARD: &str = "NVIDIA L40S";
    const HOUR: i64 = 3_600_000;

    fn at(moment: &str) -> Timestamp {
        Timestamp::from_millis(table::moment(moment).expect("a moment"))
    }

    fn asked(month: &str, now: Timestamp) -> Asked {
        let asked = Asked::new(What::Chargeback, Form::Json, month, "team", None, now);
        asked.expect("it may be asked")
    }

    #[test]
    fn as_many_days_of_the_month_before_are_compared_as_are_over_of_a_month_that_runs() {
        let check = |month: &str, now: &str, days: i64, expected: &str| {
            let asked = asked(month, at(now));
            let before = asked.days_before();
            assert_eq!(
                (before.start, before.end - before.start),
                (asked.before_day, days)
            );
            assert_eq!(words(&asked), expected);
        };
        check(
            "2026-10",
            "2026-11-21T20:00:00Z",
            30,
            "All of October 2026 against all of September 2026.",
        );
        check(
            "2026-11",
            "2026-11-10T08:00:00Z",
            9,
            "The first 9 days of November 2026 against the first 9 of October 2026; the day that runs is not in it.",
        );
        check(
            "2026-11",
            "2026-11-30T08:00:00Z",
            29,
            "The first 29 days of November 2026 against the first 29 of October 2026; the day that runs is not in it.",
        );
        check(
            "2026-11",
            "2026-11-02T00:00:00Z",
            1,
            "The first day of November 2026 against the first of October 2026; the day that runs is not in it.",
        );
        check(
            "2026-11",
            "2026-11-01T08:00:00Z",
            0,
            "No day of November 2026 is over yet: it is compared with October 2026 from its second day on.",
        );
        check(
            "2026-03",
            "2026-03-31T08:00:00Z",
            28,
            "The first 30 days of March 2026 against all 28 of February 2026; the day that runs is not in it.",
        );
    }

    /// A card that trains on these days, of which the last has so many hours.
    fn days(days: Range<i64>, last_hours: i64) -> Days {
        let of = Arc::new(DayOf {
            cluster: "lab".to_owned(),
            id: "GPU-1".to_owned(),
            is_share: false,
            facts: DayFacts {
                node: "node-1".to_owned(),
                gpu_model: CARD.to_owned(),
                slices: 1,
                of: 1,
                ..DayFacts::default()
            },
        });
        let last = days.end - 1;
        let day = |day: i64| {
            let hours = if day == last { last_hours } else { 24 };
            let from_ms = day * MILLIS_PER_DAY;
            LedgerDay {
                day,
                of: Arc::clone(&of),
                spans: vec![(from_ms, from_ms + hours * HOUR)],
                times: vec![DayTime {
                    holder: 1,
                    state: State::ActiveUnrated,
                    reason: Reason::Unknown,
                    millis: hours * HOUR,
                    energy: Energy::default(),
                    lost_millis: 0,
                }],
            }
        };
        Days {
            days: days.map(day).collect(),
            ..Days::default()
        }
    }

    #[test]
    fn a_month_that_goes_on_as_the_one_before_costs_no_less_while_it_runs() {
        let terms = Terms::of(Sources {
            gpu_hour_usd: [(CARD.to_owned(), "2".to_owned())].into(),
            ..Sources::default()
        });
        let now = at("2026-11-10T08:00:00Z");
        let asked = asked("2026-11", now);
        let of_month = days(asked.days.clone(), 8);
        let all_before = days(asked.before_day..asked.days.start, 24);
        let told = render(&asked, &[of_month, all_before], &terms, None, now);
        let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        let hours = told["total"]["gpu_millis"].as_i64().map(|it| it / HOUR);
        assert_eq!(hours, Some(9 * 24 + 8), "the report is of today too");
        for part in ["change", "price", "volume", "mix", "efficiency"] {
            assert_eq!(told["variance"][part], "0.0", "{part}");
        }
        assert_eq!(told["variance"]["compared"], words(&asked).as_str());
        // On the first day there is nothing to compare, and nothing is.
        let now = at("2026-11-01T08:00:00Z");
        let asked = self::asked("2026-11", now);
        let first = days(asked.days.clone(), 8);
        let told = render(&asked, &[first, Days::default()], &terms, None, now);
        let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        assert!(told["variance"].is_null());
    }
}

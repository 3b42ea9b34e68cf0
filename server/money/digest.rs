//! A week of the ledger for each payer: which days are read for it, and what analysis makes of them.

use std::ops::Range;

use gpufleet_analysis::chargeback::{Detail, MILLIS_PER_DAY};
use gpufleet_analysis::digest::{self, Asked, Stretch, Summary, Week};
use gpufleet_telemetry::gpu_specs::Specs;

use super::month::{self, Days, Recorded};
use super::report::month_around;
use super::{Terms, advice, tables};
use crate::store::{Store, StoreError};

/// The first day of the month that the week's Sunday is in, and that of the month after it.
fn month_of_week(week: Week) -> Range<i64> {
    let days = week.days();
    month_around(days.end - 1).unwrap_or(days)
}

/// The month that the week's Sunday is in as far as that Sunday's end.
fn month_to_date(week: Week) -> Range<i64> {
    month_of_week(week).start..week.days().end
}

/// Reads the week, the one before and the month to date of all live clusters, and the week's training runs, whose
/// cards' peaks are these.
///
/// # Errors
/// When the store does not answer.
pub async fn read(store: &Store, specs: &Specs, week: Week) -> Result<Days, StoreError> {
    let first = month_to_date(week).start.min(week.before().days().start);
    let mut days = month::ledger(store, first..week.days().end, None).await?;
    month::train(&mut days, store, &week.days(), None, specs).await?;
    days.advised = advice::read(store, month::time_of(&week.days()), None).await?;
    Ok(days)
}

/// Each payer's week, the dearest first. Takes seconds of CPU for 10,000 GPUs: not for a thread that serves.
pub fn summaries(days: &Days, week: Week, terms: &Terms) -> Vec<Summary> {
    let ranges = [week.days(), week.before().days(), month_to_date(week)];
    let all = days.not_read(&(i64::MIN..i64::MAX));
    let made = ranges
        .each_ref()
        .map(|it| month::charge(days, it.clone(), terms, Detail::Nodes));
    // A cluster that was there in any of them is one of which each day should be recorded.
    let recorded = Recorded::together(made.iter().map(|it| &it.recorded));
    let missing = ranges.each_ref().map(|it| recorded.lacking(it));
    let [this, before, month] = [0, 1, 2].map(|it| Stretch {
        made: &made[it].made,
        fleet: &made[it].fleet,
        missing: &missing[it].0,
        missing_of: &missing[it].1,
    });
    let whole = month_of_week(week);
    let budgets = tables::budgets_at(&terms.budgets, None, whole.start * MILLIS_PER_DAY);
    let at_ms = week.days().end * MILLIS_PER_DAY;
    let standing = month
        .made
        .budgets(&budgets, at_ms, whole.end * MILLIS_PER_DAY);
    digest::summaries(&Asked {
        week,
        this,
        before,
        month,
        not_read: all.as_deref(),
        runs: &made[0].runs,
        runs_untold: days.trained_untold.as_deref(),
        budgets: &standing,
        advised: &days.advised,
    })
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::table;

    use super::*;

    #[test]
    fn the_month_to_date_is_that_of_the_sunday_and_with_the_week_before_never_over_a_month() {
        let day = |date: &str| table::moment(date).expect("a date") / MILLIS_PER_DAY;
        for (week, first, end) in [
            ("2026-W47", "2026-11-01", "2026-11-23"),
            // Its Sunday is the first of November.
            ("2026-W44", "2026-11-01", "2026-11-02"),
            ("2026-W53", "2027-01-01", "2027-01-04"),
        ] {
            let week = Week::parse(week).expect("a week");
            assert_eq!(month_to_date(week), day(first)..day(end), "{week}");
        }
        let mut week = Week::parse("2024-W01").expect("a week");
        for _ in 0..600 {
            let first = month_to_date(week).start.min(week.before().days().start);
            assert!(week.days().end - first <= month::MAX_DAYS, "{week}");
            week = Week::at(week.days().end * MILLIS_PER_DAY);
        }
    }
}

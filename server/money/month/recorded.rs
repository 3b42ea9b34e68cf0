//! Which days of a stretch have a record: a month half of which is missing says so.

use std::collections::BTreeSet;
use std::ops::Range;

use gpufleet_analysis::report::day_text;

use crate::money::report::month_around;

/// Most stretches of days that are named.
const MAX_NAMED: usize = 5;

/// That nothing is recorded of days of a range, in one sentence; none where something is of each, or of none: then there
/// is nothing to be taken for all of it. The day that runs may not have begun for the ledger.
pub(super) fn missing(recorded: &BTreeSet<i64>, range: &Range<i64>) -> Option<String> {
    let last = range.end - 1;
    let runs = month_around(last).is_none_or(|month| range.end < month.end);
    let is_missing = |day: &i64| !recorded.contains(day) && (!runs || *day != last);
    let missing: Vec<i64> = range.clone().filter(is_missing).collect();
    if missing.is_empty() || recorded.is_empty() {
        return None;
    }
    let stretches = missing.chunk_by(|one, other| one + 1 == *other);
    let stretches: Vec<&[i64]> = stretches.collect();
    let named = stretches.iter().take(MAX_NAMED).map(|days| {
        let (first, last) = (days[0], days[days.len() - 1]);
        match first == last {
            true => day_text(first),
            false => format!("{} to {}", day_text(first), day_text(last)),
        }
    });
    let named: Vec<String> = named.collect();
    let more = match stretches.len() > MAX_NAMED {
        true => " and others",
        false => "",
    };
    Some(format!(
        "nothing is recorded of {} days, which are in no figure: {}{more}",
        missing.len(),
        named.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::chargeback::MILLIS_PER_DAY;
    use gpufleet_analysis::table;

    use super::*;

    /// A day of October 2026.
    fn day(number: i64) -> i64 {
        let first = table::moment("2026-10-01").expect("a date") / MILLIS_PER_DAY;
        first + number - 1
    }

    #[test]
    fn days_without_a_record_are_named_and_a_day_that_has_just_begun_is_none() {
        let of = |recorded: &[i64], days: Range<i64>| {
            let recorded = recorded.iter().map(|it| day(*it)).collect();
            missing(&recorded, &(day(days.start)..day(days.end)))
        };
        let all: Vec<i64> = (1..=31).collect();
        assert_eq!(of(&all, 1..32), None);
        assert_eq!(
            of(&all[9..], 1..32).as_deref(),
            Some("nothing is recorded of 9 days, which are in no figure: 2026-10-01 to 2026-10-09")
        );
        let holes = [&all[..4], &all[5..20], &all[22..]].concat();
        assert_eq!(
            of(&holes, 1..32).as_deref(),
            Some(
                "nothing is recorded of 3 days, which are in no figure: 2026-10-05, 2026-10-21 to 2026-10-22"
            )
        );
        let odd: Vec<i64> = (1..=31).step_by(2).collect();
        let told = of(&odd, 1..32).expect("every other day is missing");
        assert!(told.ends_with("2026-10-10 and others"), "{told}");
        // The tenth runs; of the last of a month that is over it is told.
        assert_eq!(of(&all[..9], 1..11), None);
        assert!(of(&all[..30], 1..32).is_some());
        assert_eq!(of(&[], 1..32), None, "there is nothing at all");
    }
}

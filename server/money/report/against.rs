//! A month against the one before it.
//!
//! A month that is over is compared with all of the one before. Of one that runs its days that are over are compared with
//! as many of the month before, or all of that where it is shorter: else a month would be cheaper until it ends, and on
//! its first days by nearly all.
//!
//! What is said of it in a line ([`change`]) is of days that are recorded in both, of every cluster that is in one of them:
//! days of which nothing is recorded are no cheaper than others. The report's tables say beside them which are missing.

use std::ops::Range;

use gpufleet_analysis::chargeback::change::Change;
use gpufleet_analysis::chargeback::variance::Variance;
use gpufleet_analysis::chargeback::{Chargeback, Detail, MILLIS_PER_DAY};
use gpufleet_analysis::report::day_text;
use gpufleet_telemetry::time::Timestamp;

use super::super::Terms;
use super::super::month::{self, Days, Month, Recorded};
use super::{Asked, month_of, title};
use crate::store::{Store, StoreError};
use crate::words::text::counted;

/// What is compared.
pub(super) struct Compared {
    before: Month,
    /// What of the month is; none where all of it is.
    own: Option<Chargeback>,
}

/// Reads the days of the month before with which a month is compared; none where it is not.
///
/// # Errors
/// When the store does not answer.
pub async fn read_before(store: &Store, asked: &Asked) -> Result<Days, StoreError> {
    let range = asked.days_before();
    match asked.compares() && !range.is_empty() {
        true => month::ledger(store, range, asked.cluster.as_deref()).await,
        false => Ok(Days::default()),
    }
}

/// Charges a month, lines by node, and beside it the days of the month before: the month, and its [`change`]. Takes
/// seconds of CPU for 10,000 GPUs: not for a thread that serves.
pub fn charge(
    asked: &Asked,
    [days, before]: [&Days; 2],
    terms: &Terms,
) -> (Month, Result<Change, String>) {
    let (month, earlier) = std::thread::scope(|scope| {
        let earlier = scope.spawn(|| charged_before(asked, before, terms));
        let month = month::charge(days, asked.days.clone(), terms, Detail::Nodes);
        let earlier = earlier.join();
        let earlier = earlier.unwrap_or_else(|why| std::panic::resume_unwind(why));
        (month, earlier)
    });
    let change = change(asked, [days, before], &month, earlier.as_ref());
    (month, change)
}

/// Charges what is compared; none where there is nothing of the month before, or no day of this one is over.
pub(super) fn charged(
    asked: &Asked,
    [days, before]: [&Days; 2],
    terms: &Terms,
) -> Option<Compared> {
    if !is_there(asked, before) {
        return None;
    }
    let is_part = asked.whole != asked.days;
    std::thread::scope(|scope| {
        let own = || month::charged(days, &asked.whole, terms);
        let own = is_part.then(|| scope.spawn(own));
        let before = charged_before(asked, before, terms)?;
        let own = own.map(|it| {
            let own = it.join();
            own.unwrap_or_else(|why| std::panic::resume_unwind(why))
        });
        Some(Compared { before, own })
    })
}

fn charged_before(asked: &Asked, before: &Days, terms: &Terms) -> Option<Month> {
    let charge = || month::charge(before, asked.days_before(), terms, Detail::Nodes);
    is_there(asked, before).then(charge)
}

/// Whether there is something of the days before to compare with.
fn is_there(asked: &Asked, before: &Days) -> bool {
    let is_empty = before.days.is_empty() && before.lives.is_empty();
    !is_empty && !asked.days_before().is_empty()
}

/// What the month's whole days came to against as many of the month before, which is none where there is nothing of it;
/// in a sentence why that cannot be said where some of these days are not recorded or cannot be read.
pub(super) fn change(
    asked: &Asked,
    [days, before]: [&Days; 2],
    month: &Month,
    earlier: Option<&Month>,
) -> Result<Change, String> {
    let (own, theirs) = (&asked.whole, &asked.days_before());
    if own.is_empty() {
        return Err(words(asked));
    }
    let (title, title_before) = (&asked.title, before_title(asked));
    let not_compared = |why: String| format!("Not compared with {title_before}: {why}.");
    let recorded = [Some(month), earlier].into_iter().flatten();
    // A cluster that was there in one of them is one of which each day should be recorded.
    let recorded = Recorded::together(recorded.map(|it| &it.recorded));
    let (is_whole, is_all_before) = (*own == asked.days, theirs.end == asked.days.start);
    let missing = not_recorded(&recorded, (own, is_whole), title)
        .or_else(|| not_recorded(&recorded, (theirs, is_all_before), &title_before))
        .or_else(|| Some(format!("of {title}, {}", days.not_read(own)?)))
        .or_else(|| Some(format!("of {title_before}, {}", before.not_read(theirs)?)));
    match (missing, earlier) {
        (Some(why), _) => Err(not_compared(why)),
        (None, Some(earlier)) => Ok(month.made.change(own, &earlier.made, theirs)),
        // There is no month before the first of all.
        (None, None) => Err(not_compared("there is nothing of it".to_owned())),
    }
}

/// That some of these days of a month, which may be all of it, are not recorded, of any cluster or of some; none where
/// all are.
fn not_recorded(
    recorded: &Recorded,
    (range, is_all): (&Range<i64>, bool),
    title: &str,
) -> Option<String> {
    let (days, clusters) = recorded.lacking(range);
    let (first, last) = (*days.first()?, *days.last()?);
    let count = counted(days.len(), "day", "days");
    let within = match clusters.as_slice() {
        [] => String::new(),
        [one] => format!(" in {one}"),
        // Which of them lacks which day, the report says.
        all => {
            let clusters = counted(all.len(), "cluster", "clusters");
            return Some(format!(
                "some of {clusters} have no record of {count} of {title}"
            ));
        }
    };
    let is_stretch = usize::try_from(last - first).is_ok_and(|it| it + 1 == days.len());
    let is_beginning = is_stretch && first == range.start;
    Some(match (is_beginning, last + 1 == range.end) {
        (true, true) if is_all => format!("{title} was not recorded{within}"),
        (true, true) => match range.end - range.start {
            1 => format!("the first day of {title} was not recorded{within}"),
            all => format!("the first {all} days of {title} were not recorded{within}"),
        },
        (true, false) => format!("{title} is recorded{within} from {} on", day_text(last + 1)),
        (false, _) => format!("nothing is recorded{within} of {count} of {title}"),
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
pub fn words(asked: &Asked) -> String {
    let (month, before) = (&asked.title, before_title(asked));
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

/// The month before, in words.
fn before_title(asked: &Asked) -> String {
    let before = Timestamp::from_millis(asked.before_day * MILLIS_PER_DAY);
    title(&month_of(before))
}

impl Compared {
    /// The days of the month before.
    pub(super) const fn before(&self) -> &Month {
        &self.before
    }

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
    use crate::store::model::{DayFacts, DayOf, DayTime, LedgerDay, UnreadDay};

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
        let told = render(&asked, &[of_month, all_before], &terms, None, now).text;
        let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        let hours = told["total"]["gpu_millis"].as_i64().map(|it| it / HOUR);
        assert_eq!(hours, Some(9 * 24 + 8), "the report is of today too");
        for part in ["change", "price", "volume", "mix", "efficiency"] {
            assert_eq!(told["variance"][part], "0.0", "{part}");
        }
        let against = &told["against"];
        assert_eq!(against["change"], "0.0", "nor is today in it: {against}");
        assert_eq!(against["days"]["gpu_millis"], 9 * 24 * HOUR);
        assert_eq!(against["days_before"], against["days"]);
        assert_eq!(against["compared"], words(&asked).as_str());
        assert_eq!(told["variance"]["compared"], words(&asked).as_str());
        // On the first day there is nothing to compare, and nothing is.
        let now = at("2026-11-01T08:00:00Z");
        let asked = self::asked("2026-11", now);
        let first = days(asked.days.clone(), 8);
        let told = render(&asked, &[first, Days::default()], &terms, None, now).text;
        let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        assert!(told["variance"].is_null());
        assert_eq!(told["against"]["not_compared"], words(&asked).as_str());
    }

    #[test]
    fn what_is_missing_in_a_month_is_told_beside_rows_which_have_no_place_for_it() {
        let terms = Terms::of(Sources {
            gpu_hour_usd: [(CARD.to_owned(), "2".to_owned())].into(),
            ..Sources::default()
        });
        let now = at("2026-11-10T08:00:00Z");
        let told = |month: Days, form: Form| {
            let asked = Asked::new(What::Chargeback, form, "2026-10", "team", None, now);
            let asked = asked.expect("it may be asked");
            render(&asked, &[month, Days::default()], &terms, None, now).told
        };
        let first = asked("2026-10", now).days.start;
        let holed = || {
            let mut month = days(first..first + 31, 24);
            let hole = first + 9..first + 21;
            month.days.retain(|it| !hole.contains(&it.day));
            month.unreadable = vec![UnreadDay {
                day: first,
                subject: 2,
                cluster: "lab".to_owned(),
            }];
            month
        };
        let expected = [
            "lab: nothing is recorded of 12 days, which are in no figure: 2026-10-10 to 2026-10-21",
            "1 days of GPUs cannot be read and are left out: the server's log names them",
        ];
        for form in [Form::Csv, Form::Focus] {
            assert_eq!(told(holed(), form)[..2], expected, "{form:?}");
        }
        assert_eq!(told(holed(), Form::Json), [""; 0], "it has them itself");
        let whole = told(days(first..first + 31, 24), Form::Csv);
        assert_eq!(whole, [""; 0]);
    }

    #[test]
    fn nothing_is_compared_with_time_that_was_not_recorded() {
        let terms = Terms::of(Sources {
            gpu_hour_usd: [(CARD.to_owned(), "2".to_owned())].into(),
            ..Sources::default()
        });
        let now = at("2026-11-10T08:00:00Z");
        let asked = asked("2026-11", now);
        let (own, theirs) = (asked.days.start, asked.before_day);
        let of = |range: Range<i64>| days(range, 24);
        let said = |month: &Days, before: &Days| charge(&asked, [month, before], &terms).1;
        let (month, before) = (of(own..own + 10), of(theirs..theirs + 9));
        let change = said(&month, &before).expect("both are recorded");
        assert_eq!((change.cost(), change.percent()), (0, Some(0)));
        let not = |month: &Days, before: &Days, why: &str| {
            let expected = format!("Not compared with October 2026: {why}.");
            assert_eq!(said(month, before), Err(expected));
        };
        let none = Days::default();
        not(
            &month,
            &none,
            "the first 9 days of October 2026 were not recorded",
        );
        not(
            &month,
            &of(theirs + 4..theirs + 9),
            "October 2026 is recorded from 2026-10-05 on",
        );
        let mut holed = of(theirs..theirs + 9);
        holed.days.remove(5);
        not(
            &month,
            &holed,
            "nothing is recorded of 1 day of October 2026",
        );
        not(
            &of(own + 2..own + 10),
            &before,
            "November 2026 is recorded from 2026-11-03 on",
        );
        // One that is there in the month alone is no dearer for it.
        let mut two = of(own..own + 10);
        let other: Vec<LedgerDay> = two.days.iter().cloned().map(elsewhere).collect();
        two.days.extend(other);
        not(
            &two,
            &before,
            "the first 9 days of October 2026 were not recorded in new",
        );
        let mut unread = of(theirs..theirs + 9);
        let of_lab = |day| UnreadDay {
            day,
            subject: 2,
            cluster: "lab".to_owned(),
        };
        unread.unreadable = vec![of_lab(theirs), of_lab(theirs + 1)];
        not(
            &month,
            &unread,
            "of October 2026, 2 days of GPUs cannot be read and are left out: the server's log names them",
        );
    }

    /// The same day of another card in another cluster.
    fn elsewhere(day: LedgerDay) -> LedgerDay {
        let mut of = DayOf::clone(&day.of);
        (of.cluster, of.id) = ("new".to_owned(), "GPU-2".to_owned());
        of.facts.node = "node-2".to_owned();
        LedgerDay {
            of: Arc::new(of),
            ..day
        }
    }
}

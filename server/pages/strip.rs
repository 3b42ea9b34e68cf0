//! A day in states, of one GPU or of many: one column for each hour, filled from below by the time in each state; time
//! that nobody observed is hatched, time that has not come yet is empty.

use std::ops::Range;

use gpufleet_analysis::ledger::{LedgerHour, MILLIS_PER_HOUR, State};
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;

use super::marks::Marks;
use crate::words::{self, text};

/// Hours shown.
pub const HOURS: i64 = 24;

/// Height of a column in its own units.
const HEIGHT: i64 = 100;

/// How far the ledger may be behind: an hour that runs is computed every five minutes. What is
/// younger and not accounted is empty, not called unobserved.
const SETTLING_MILLIS: i64 = 600_000;

/// Width of a column, without the space beside it.
const WIDTH: i64 = 9;

/// Distance between columns.
const STEP: i64 = 10;

/// Where a day ends that is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Until {
    /// Now.
    #[default]
    Now,
    /// With the recording that is played back.
    ItsEnd,
    /// When it was last heard, where that is longer ago than a day goes back.
    LastHeard,
}

impl Until {
    /// Where the day ends of what was last heard then, and when that is.
    pub fn of(origin: Origin, last: Timestamp, now: Timestamp) -> (Self, Timestamp) {
        match origin {
            Origin::Recorded => (Self::ItsEnd, last),
            _ if last < span(now).0 => (Self::LastHeard, last),
            _ => (Self::Now, now),
        }
    }

    /// What the day is called.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Now => "The last 24 hours",
            Self::ItsEnd => "The 24 hours up to its end",
            Self::LastHeard => "The 24 hours up to when it was last heard",
        }
    }

    /// What stands at the end of its line of time.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::ItsEnd => "its end",
            Self::LastHeard => "last heard",
        }
    }
}

/// One box of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Its distance from the top.
    pub y: i64,
    /// Its height.
    pub height: i64,
    /// The class of its colour after `f-`; `u` is hatched.
    pub class: char,
}

/// One hour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its place from the left.
    pub x: i64,
    /// What it is called: `14:00`.
    pub name: String,
    /// Where its time went, in words.
    pub words: String,
    /// Its boxes, from below.
    pub blocks: Vec<Block>,
}

/// A day ready for the template.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Strip {
    /// Its hours, the oldest first.
    pub columns: Vec<Column>,
    /// The states that occur, for the legend: class, letter, name.
    pub looks: Vec<words::Look>,
    /// Width of the view box.
    pub width: i64,
    /// Height of the view box.
    pub height: i64,
    /// Width of a column.
    pub column_width: i64,
    /// What was changed in that time.
    pub marks: Marks,
}

/// The hours of the ledger that are in a strip up to `now`.
pub fn range(now: Timestamp) -> Range<i64> {
    let end = now.minute().hour() + 1;
    end - HOURS..end
}

/// From when to when it goes: whole hours.
pub fn span(now: Timestamp) -> (Timestamp, Timestamp) {
    let Range { start, end } = range(now);
    let moment = |hour: i64| Timestamp::from_millis(hour * MILLIS_PER_HOUR);
    (moment(start), moment(end))
}

/// When a GPU was there that was first seen then and still is.
pub const fn since(first_seen: Timestamp) -> Range<Timestamp> {
    first_seen..Timestamp(i64::MAX)
}

/// Draws the [`HOURS`] hours up to `now` from the ledger of GPUs, each of which was there in that time; of an hour that the
/// ledger does not have nothing was observed. Time before a GPU was first seen is empty, because it may not have been
/// there, and so is what follows its end. A full column is all GPUs that are there for an hour, or the most there were.
pub fn strip(hours: &[LedgerHour], gpus: &[Range<Timestamp>], now: Timestamp) -> Strip {
    let first = range(now).start;
    let limits = |hour: i64| (hour * MILLIS_PER_HOUR, (hour + 1) * MILLIS_PER_HOUR);
    // The part of an hour in which they can have been observed: while each was there, and long enough ago to be
    // accounted.
    let past_of = |hour: i64| -> i64 {
        let (start, end) = limits(hour);
        let settled = end.min(now.millis() - SETTLING_MILLIS);
        let of_one = |it: &Range<Timestamp>| {
            let (from, until) = (it.start.millis(), it.end.millis());
            (settled.min(until) - start.max(from)).max(0)
        };
        gpus.iter().map(of_one).sum()
    };
    let past: Vec<i64> = (first..first + HOURS).map(past_of).collect();
    let there = gpus.iter().filter(|it| it.end > now).count();
    let there = i64::try_from(there).unwrap_or(i64::MAX / MILLIS_PER_HOUR);
    let totals = hours.iter().map(LedgerHour::total_millis);
    // GPUs that are there no more may have been so many more.
    let most = totals.chain(past.iter().copied()).max();
    let full = most.unwrap_or(0).max(there.max(1) * MILLIS_PER_HOUR);
    let mut strip = Strip {
        width: HOURS * STEP,
        height: HEIGHT,
        column_width: WIDTH,
        ..Strip::default()
    };
    for (place, past_millis) in (0..HOURS).zip(past) {
        let hour = first + place;
        let known = hours.iter().find(|it| it.hour == hour);
        let mut column = column(place * STEP, hour, known, past_millis, full);
        if column.words.is_empty() {
            let (start, end) = limits(hour);
            let is_before = |it: &Range<Timestamp>| end <= it.start.millis();
            let words = if gpus.iter().all(is_before) {
                "before it was first seen"
            } else if gpus
                .iter()
                .all(|it| is_before(it) || it.end.millis() <= start)
            {
                "none of its GPUs was there"
            } else {
                "not accounted yet"
            };
            words.clone_into(&mut column.words);
        }
        strip.columns.push(column);
    }
    for state in words::ORDER {
        let look = words::look(state);
        let occurs = strip
            .columns
            .iter()
            .any(|column| column.blocks.iter().any(|it| it.class == look.class));
        if occurs && !strip.looks.contains(&look) {
            strip.looks.push(look);
        }
    }
    strip
}

fn column(x: i64, hour: i64, known: Option<&LedgerHour>, past_millis: i64, full: i64) -> Column {
    let start = Timestamp::from_millis(hour * MILLIS_PER_HOUR);
    let total = known.map_or(0, LedgerHour::total_millis);
    let mut spans: Vec<(State, i64)> = words::ORDER
        .into_iter()
        .map(|state| (state, known.map_or(0, |it| it.millis(state))))
        .collect();
    // What the ledger does not account for, of the time that has passed, was not observed.
    if let Some(last) = spans.last_mut() {
        last.1 += (past_millis - total).max(0);
    }
    let mut blocks: Vec<Block> = Vec::new();
    let mut said = Vec::new();
    let mut below = 0;
    for (state, millis) in spans.into_iter().filter(|(_, millis)| *millis > 0) {
        let look = words::look(state);
        said.push(match full {
            MILLIS_PER_HOUR => format!("{} {}", look.name, text::span(millis)),
            _ => format!("{} {} GPU-hours", look.name, text::hours(millis)),
        });
        // Rounding goes by the running sum, so that a full hour fills the column.
        let top = |millis: i64| (millis * HEIGHT + full / 2) / full;
        let (from, to) = (top(below), top(below + millis).min(HEIGHT));
        below += millis;
        match blocks.last_mut().filter(|it| it.class == look.class) {
            Some(same) => {
                same.height += to - from;
                same.y = HEIGHT - to;
            }
            None if to > from => blocks.push(Block {
                y: HEIGHT - to,
                height: to - from,
                class: look.class,
            }),
            None => {}
        }
    }
    Column {
        x,
        name: text::clock_time(start),
        words: said.join(", "),
        blocks,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gpufleet_analysis::ledger::Reason;

    use super::*;

    const NOW: Timestamp = Timestamp::from_seconds(1_000 * 3_600 + 1_800);

    /// Long before the day that is drawn.
    const EVER: Range<Timestamp> = since(Timestamp::from_seconds(0));

    fn hour(hour: i64, spans: &[(State, i64)]) -> LedgerHour {
        let time: BTreeMap<_, _> = spans
            .iter()
            .map(|(state, minutes)| ((*state, Reason::Unknown), minutes * 60_000))
            .collect();
        LedgerHour::new(hour, time)
    }

    #[test]
    fn a_strip_goes_from_the_first_of_its_hours_to_the_end_of_the_last() {
        let hour = |it: i64| Timestamp::from_seconds(it * 3_600);
        assert_eq!(span(NOW), (hour(977), hour(1_001)));
        assert_eq!(strip(&[], &[EVER], NOW).columns.len(), 24);
    }

    #[test]
    fn an_hour_without_a_ledger_is_hatched_and_not_idle() {
        let drawn = strip(&[], &[EVER], NOW);
        let full = Block {
            y: 0,
            height: 100,
            class: 'u',
        };
        assert_eq!(drawn.columns[0].blocks, [full]);
        assert_eq!(drawn.columns[0].words, "not measured 1 h");
    }

    #[test]
    fn the_time_before_it_was_first_seen_is_empty_and_says_so() {
        let first_seen = Timestamp::from_seconds(999 * 3_600 + 900);
        let drawn = strip(&[], &[since(first_seen)], NOW);
        assert_eq!(drawn.columns[21].blocks, []);
        assert_eq!(drawn.columns[21].words, "before it was first seen");
        assert_eq!(drawn.columns[22].words, "not measured 45 min");
    }

    #[test]
    fn what_the_ledger_could_not_account_yet_is_not_called_unobserved() {
        let just_begun = Timestamp::from_seconds(1_000 * 3_600 + 300);
        let drawn = strip(
            &[hour(999, &[(State::ActiveUnrated, 55)])],
            &[EVER],
            just_begun,
        );
        assert_eq!(drawn.columns[22].words, "active 55 min");
        assert_eq!(drawn.columns[23].words, "not accounted yet");
    }

    #[test]
    fn what_the_ledger_does_not_account_for_is_hatched() {
        let drawn = strip(&[hour(999, &[(State::ActiveUnrated, 30)])], &[EVER], NOW);
        let column = &drawn.columns[22];
        assert_eq!(column.words, "active 30 min, not measured 30 min");
        let heights: Vec<_> = column
            .blocks
            .iter()
            .map(|it| (it.class, it.y, it.height))
            .collect();
        assert_eq!(heights, [('a', 50, 50), ('u', 0, 50)]);
    }

    #[test]
    fn the_part_of_the_hour_that_has_not_come_is_empty() {
        let drawn = strip(&[hour(1_000, &[(State::Unallocated, 30)])], &[EVER], NOW);
        let column = &drawn.columns[23];
        assert_eq!(column.words, "free 30 min");
        assert_eq!(
            column.blocks,
            [Block {
                y: 50,
                height: 50,
                class: 'f'
            }]
        );
    }

    #[test]
    fn a_full_hour_fills_its_column_whatever_the_rounding() {
        let thirds = [
            (State::ActiveUnrated, 20),
            (State::Gap, 20),
            (State::Parked, 20),
        ];
        let drawn = strip(&[hour(999, &thirds)], &[EVER], NOW);
        let sum: i64 = drawn.columns[22].blocks.iter().map(|it| it.height).sum();
        assert_eq!(sum, HEIGHT);
    }

    #[test]
    fn what_was_measured_of_gpus_that_went_hides_nothing_of_those_that_are_there() {
        let at = |hour: i64| Timestamp::from_seconds(hour * 3_600);
        let went = at(0)..at(999);
        let hours = [
            hour(998, &[(State::ActiveUnrated, 60)]),
            hour(999, &[(State::ActiveUnrated, 60)]),
        ];
        let drawn = strip(&hours, &[EVER, went.clone()], NOW);
        assert_eq!(
            drawn.columns[21].words,
            "active 1.0 GPU-hours, not measured 1.0 GPU-hours"
        );
        assert_eq!(drawn.columns[22].words, "active 1.0 GPU-hours");
        // None of them is there any more, and its time before is as high as it was.
        let drawn = strip(&[], &[went.clone(), went], NOW);
        assert_eq!(drawn.columns[21].blocks[0].height, HEIGHT);
        assert_eq!(drawn.columns[22].words, "none of its GPUs was there");
    }

    #[test]
    fn of_many_gpus_a_full_column_is_all_of_them_and_one_that_came_later_is_missing_before() {
        let later = since(Timestamp::from_seconds(999 * 3_600 + 1_800));
        let of = |minutes: i64| hour(999, &[(State::ActiveUnrated, minutes)]);
        let drawn = strip(&[of(80)], &[EVER, EVER, later], NOW);
        let column = &drawn.columns[22];
        assert_eq!(
            column.words,
            "active 1.3 GPU-hours, not measured 1.2 GPU-hours"
        );
        let heights: Vec<_> = column
            .blocks
            .iter()
            .map(|it| (it.class, it.height))
            .collect();
        assert_eq!(heights, [('a', 44), ('u', 39)]);
        // More than there are now: some are gone since.
        let drawn = strip(&[of(240)], &[EVER, EVER], NOW);
        let full = Block {
            y: 0,
            height: 100,
            class: 'a',
        };
        assert_eq!(drawn.columns[22].blocks, [full]);
    }
}

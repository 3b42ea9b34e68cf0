//! Weeks as ISO 8601 has them: from Monday on, of the year that has its Thursday.

use std::fmt;
use std::ops::Range;

use crate::chargeback::MILLIS_PER_DAY;
use crate::table;

/// Days of a week.
pub const DAYS: i64 = 7;

/// The first Monday after the epoch, 1970-01-05, days since it.
const FIRST_MONDAY: i64 = 4;

/// A week by its Monday.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Week {
    /// Days since the Unix epoch; a Monday.
    monday: i64,
}

impl Week {
    /// The week that a moment is in.
    pub const fn at(millis: i64) -> Self {
        let day = millis.div_euclid(MILLIS_PER_DAY);
        Self {
            monday: day - (day - FIRST_MONDAY).rem_euclid(DAYS),
        }
    }

    /// The week of a text such as `2026-W47`; none where it is no week.
    pub fn parse(text: &str) -> Option<Self> {
        let (year, number) = text.split_once("-W")?;
        if year.len() != 4 || number.len() != 2 {
            return None;
        }
        // The fourth of January is in the first week of every year.
        let fourth = table::moment(&format!("{year}-01-04"))?;
        let number: i64 = number.parse().ok()?;
        let week = Self {
            monday: Self::at(fourth).monday + (number - 1) * DAYS,
        };
        // A year without a week 53, a week 0, a sign.
        (week.to_string() == text).then_some(week)
    }

    /// The one before.
    pub const fn before(self) -> Self {
        Self {
            monday: self.monday - DAYS,
        }
    }

    /// Its days, since the Unix epoch.
    pub const fn days(self) -> Range<i64> {
        self.monday..self.monday + DAYS
    }
}

impl fmt::Display for Week {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let thursday = table::moment_text((self.monday + 3) * MILLIS_PER_DAY);
        let year = thursday.get(..4).unwrap_or_default();
        let first = table::moment(&format!("{year}-01-01")).unwrap_or_default();
        let days = self.monday + 3 - first.div_euclid(MILLIS_PER_DAY);
        write!(out, "{year}-W{:02}", days / DAYS + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_week_is_of_the_year_that_has_its_thursday() {
        for (date, week) in [
            ("2026-11-22", "2026-W47"),
            ("2026-11-23", "2026-W48"),
            ("2026-01-01", "2026-W01"),
            ("2027-01-03", "2026-W53"),
            ("2027-01-04", "2027-W01"),
            ("2025-12-28", "2025-W52"),
            ("2025-12-29", "2026-W01"),
            ("2024-02-29", "2024-W09"),
            ("1969-12-31", "1970-W01"),
        ] {
            let at = table::moment(date).expect("a date");
            assert_eq!(Week::at(at).to_string(), week, "{date}");
            assert_eq!(Week::parse(week), Some(Week::at(at)), "{week}");
        }
        let week = Week::parse("2026-W47").expect("a week");
        assert_eq!(week.before().to_string(), "2026-W46");
        let first = table::moment("2026-11-16").expect("a date") / MILLIS_PER_DAY;
        assert_eq!(week.days(), first..first + 7);
    }

    #[test]
    fn what_is_no_week_is_none() {
        for text in [
            "2026-W54",
            "2025-W53",
            "2026-W00",
            "2026-W+1",
            "2026-47",
            "26-W47",
            "2026-W1",
            "",
            "-W",
            "2026-W047",
        ] {
            assert_eq!(Week::parse(text), None, "{text}");
        }
    }
}

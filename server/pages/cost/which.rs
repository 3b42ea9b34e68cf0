//! Which month the page is of, and the ways to the one before it and the one after it.

use gpufleet_analysis::chargeback::MILLIS_PER_DAY;
use gpufleet_telemetry::time::Timestamp;
use serde::Deserialize;

use crate::money::report::{self, Asked, Form, NotAsked, What};

/// What the address may ask for.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct CostAsked {
    /// A month such as `2026-10`; without one that which runs.
    month: Option<String>,
}

/// The month of the page.
pub(super) struct Which {
    /// As `2026-11`.
    pub(super) month: String,
    /// In words.
    pub(super) title: String,
    /// Whether it is the one that runs.
    pub(super) runs: bool,
    /// The page of the month before it; none where that has nothing to show.
    pub(super) before: Option<Way>,
    /// The page of the one after it; none of the one that runs.
    pub(super) after: Option<Way>,
}

/// The page of another month.
pub(super) struct Way {
    pub(super) address: String,
    pub(super) title: String,
}

/// What is read of a month.
pub(super) fn asked(
    month: &str,
    cluster: Option<String>,
    now: Timestamp,
) -> Result<Asked, NotAsked> {
    let (what, form) = (What::Chargeback, Form::Html);
    Asked::new(what, form, month, "team", cluster, now)
}

impl Which {
    /// The month that is asked for.
    ///
    /// # Errors
    /// When it is none, or has not begun.
    pub(super) fn of(wanted: &CostAsked, now: Timestamp) -> Result<Self, NotAsked> {
        let running = report::month_of(now);
        let given = wanted.month.as_deref().map(str::trim);
        let month = given.filter(|it| !it.is_empty()).unwrap_or(&running);
        let it = asked(month, None, now)?;
        let way = |first_day: i64| {
            let month = report::month_of(Timestamp::from_millis(first_day * MILLIS_PER_DAY));
            let title = asked(&month, None, now).ok()?.title;
            let address = match month == running {
                true => "/cost".to_owned(),
                false => format!("/cost?month={month}"),
            };
            Some(Way { address, title })
        };
        let runs = *month == running;
        Ok(Self {
            month: month.to_owned(),
            title: it.title,
            runs,
            before: way(it.before_day),
            after: (!runs).then(|| way(it.end_day)).flatten(),
        })
    }

    /// The month in an address of the API, behind other words; empty of the one that runs.
    pub(super) fn query(&self) -> String {
        match self.runs {
            true => String::new(),
            false => format!("&month={}", self.month),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fixture::NOW;

    fn of(month: &str) -> Result<Which, NotAsked> {
        let month = Some(month.to_owned());
        Which::of(&CostAsked { month }, NOW)
    }

    #[test]
    fn a_month_leads_to_its_neighbours_and_the_one_that_runs_to_none_after_it() {
        for (month, title, before, after) in [
            ("", "September 2026", "/cost?month=2026-08", None),
            ("2026-09", "September 2026", "/cost?month=2026-08", None),
            (
                "2026-08",
                "August 2026",
                "/cost?month=2026-07",
                Some("/cost"),
            ),
            (
                "2026-01",
                "January 2026",
                "/cost?month=2025-12",
                Some("/cost?month=2026-02"),
            ),
        ] {
            let Ok(which) = of(month) else {
                panic!("{month} is a month");
            };
            assert_eq!(which.title, title);
            assert_eq!(which.runs, after.is_none());
            assert_eq!(which.query().is_empty(), which.runs);
            assert_eq!(which.before.map(|it| it.address).as_deref(), Some(before));
            assert_eq!(which.after.map(|it| it.address).as_deref(), after);
        }
    }

    #[test]
    fn what_is_no_month_or_has_not_begun_is_refused() {
        for (month, expected) in [
            ("2026-10", NotAsked::Future("October 2026".to_owned())),
            ("2026-13", NotAsked::Month("2026-13".to_owned())),
            ("now", NotAsked::Month("now".to_owned())),
            ("0001-01", NotAsked::Month("0001-01".to_owned())),
        ] {
            assert_eq!(of(month).err(), Some(expected));
        }
    }
}

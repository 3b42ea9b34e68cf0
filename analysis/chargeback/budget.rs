//! What the month will come to; and budgets of teams: what is spent, and when the budget is gone.
//!
//! Forecast: what is spent, and for each day to come the mean of the last [`RECENT_DAYS`] whole days
//! (of all whole days when there are fewer). The day that runs is not whole, nor is the one in which the
//! record begins, unless the month begins with it. Without a whole day there is no forecast.

use std::collections::BTreeMap;

use super::{Chargeback, MILLIS_PER_DAY};
use crate::money::ratio;
use crate::owner::Payer;

/// Days that the forecast goes by: a week, so that weekends count as often as they come.
pub const RECENT_DAYS: i64 = 7;

/// Where a team stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The team.
    pub team: String,
    /// What it may spend in the month, nano-units.
    pub budget: i128,
    /// What it has spent.
    pub spent: i128,
    /// What the month will come to.
    pub forecast: Option<i128>,
    /// The first day, counted from the epoch, by whose end the budget is gone; past or forecast.
    pub gone_on_day: Option<i64>,
}

impl Standing {
    /// Whether it spent more than it may, or will.
    pub fn is_over(&self) -> bool {
        self.spent > self.budget || self.forecast.is_some_and(|it| it > self.budget)
    }
}

/// What was spent or held day by day, and what that says of days to come.
pub(super) struct Course {
    /// Nano-units, or GPU-milliseconds, by day, counted from the epoch.
    costs: BTreeMap<i64, i128>,
    /// The first day of the month.
    first: i64,
    /// The day that runs.
    today: i64,
    /// The day after the month's last.
    end: i64,
    /// The first of the days that the forecast goes by.
    recent_from: i64,
}

impl Course {
    pub(super) fn spent(&self) -> i128 {
        self.costs.values().sum()
    }

    /// What was spent before today.
    fn whole(&self) -> i128 {
        self.costs.range(..self.today).map(|it| it.1).sum()
    }

    /// What so many days cost by the mean of the last; none where none was whole.
    fn of_days(&self, days: i64) -> Option<i128> {
        let recent_days = self.today - self.recent_from;
        if recent_days <= 0 {
            return None;
        }
        let recent = self.costs.range(self.recent_from..self.today);
        let recent: i128 = recent.map(|it| it.1).sum();
        ratio(recent, days.into(), recent_days.into())
    }

    /// What the whole days came to, each.
    pub(super) fn whole_days(&self) -> impl Iterator<Item = i128> {
        self.costs.range(..self.today).map(|it| *it.1)
    }

    pub(super) fn forecast(&self) -> Option<i128> {
        let to_come = self.of_days(self.end - self.today)?;
        Some((self.whole() + to_come).max(self.spent()))
    }

    /// The first day by whose end this much is spent; past or forecast.
    fn gone_on_day(&self, budget: i128) -> Option<i64> {
        let mut sum = 0;
        let past = (self.first..self.today).find(|day| {
            sum += self.costs.get(day).copied().unwrap_or(0);
            sum > budget
        });
        let whole = self.whole();
        let is_gone = |day: &i64| {
            let to_come = self.of_days(day + 1 - self.today);
            to_come.is_some_and(|it| whole + it > budget)
        };
        // Today has cost more than the mean of the days before.
        let today = (self.spent() > budget).then_some(self.today);
        past.or(today)
            .or_else(|| (self.today..self.end).find(is_gone))
    }
}

impl Chargeback {
    /// What a month that ends at `end_ms` will come to, nano-units, at a moment in it; none before there
    /// was a whole day.
    pub fn forecast(&self, now_ms: i64, end_ms: i64) -> Option<i128> {
        self.course(|_| true, now_ms, end_ms).forecast()
    }

    /// The same of one payer.
    pub fn forecast_of(&self, payer: &Payer, now_ms: i64, end_ms: i64) -> Option<i128> {
        self.course(|it| it == payer, now_ms, end_ms).forecast()
    }

    /// Where teams stand at a moment in a month that ends at `end_ms`, in the order of their names.
    pub fn budgets(
        &self,
        budgets: &BTreeMap<String, i128>,
        now_ms: i64,
        end_ms: i64,
    ) -> Vec<Standing> {
        let standing = |(team, budget): (&String, &i128)| {
            let payer = Payer::Team(team.clone());
            let course = self.course(|it| *it == payer, now_ms, end_ms);
            Standing {
                team: team.clone(),
                budget: *budget,
                spent: course.spent(),
                forecast: course.forecast(),
                gone_on_day: course.gone_on_day(*budget),
            }
        };
        budgets.iter().map(standing).collect()
    }

    /// GPU-milliseconds that a payer held. What it pays for a commitment that nobody used is in no pool.
    pub(super) fn held_course(&self, payer: &Payer, now_ms: i64, end_ms: i64) -> Course {
        let theirs = self.days.iter().filter(|(day, _)| {
            self.payers[day.payer] == *payer && !self.pools[day.pool].is_empty()
        });
        let mut held: BTreeMap<i64, i128> = BTreeMap::new();
        for (day, sum) in theirs {
            *held.entry(day.day).or_default() += i128::from(sum.gpu_millis);
        }
        self.course_of(held, now_ms, end_ms)
    }

    /// What these payers spent.
    fn course(&self, is_in: impl Fn(&Payer) -> bool, now_ms: i64, end_ms: i64) -> Course {
        let mut costs: BTreeMap<i64, i128> = BTreeMap::new();
        let theirs = self.days.iter();
        for (day, sum) in theirs.filter(|it| is_in(&self.payers[it.0.payer])) {
            *costs.entry(day.day).or_default() += sum.cost;
        }
        self.course_of(costs, now_ms, end_ms)
    }

    fn course_of(&self, costs: BTreeMap<i64, i128>, now_ms: i64, end_ms: i64) -> Course {
        let first = self.from_ms.div_euclid(MILLIS_PER_DAY);
        let end = end_ms.div_euclid(MILLIS_PER_DAY);
        let today = now_ms.div_euclid(MILLIS_PER_DAY).clamp(first, end);
        // Of everybody: a team that spent nothing in the days before did so in whole days. What is paid for a
        // commitment before there was a record says nothing of how GPUs are used.
        let begun = self.begun_ms().div_euclid(MILLIS_PER_DAY);
        let first_whole = if begun > first { begun + 1 } else { first };
        Course {
            costs,
            first,
            today,
            end,
            recent_from: (today - RECENT_DAYS).max(first_whole),
        }
    }
}

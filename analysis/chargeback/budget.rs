//! Budgets of teams: what is spent, what the month will come to, and when the budget is gone.
//!
//! Forecast: what is spent, and for each day to come the mean of the last [`RECENT_DAYS`] whole days
//! (of all whole days when there are fewer). Without a whole day there is no forecast.

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

impl Chargeback {
    /// Where teams stand at a moment in a month that ends at `end_ms`, in the order of their names.
    pub fn budgets(
        &self,
        budgets: &BTreeMap<String, i128>,
        now_ms: i64,
        end_ms: i64,
    ) -> Vec<Standing> {
        let days = |payer: &Payer| {
            let mut costs: BTreeMap<i64, i128> = BTreeMap::new();
            for (day, sum) in &self.days {
                if self.payers[day.payer] == *payer {
                    *costs.entry(day.day).or_default() += sum.cost;
                }
            }
            costs
        };
        let standing = |(team, budget): (&String, &i128)| {
            let costs = days(&Payer::Team(team.clone()));
            self.standing(team, *budget, &costs, (now_ms, end_ms))
        };
        budgets.iter().map(standing).collect()
    }

    fn standing(
        &self,
        team: &str,
        budget: i128,
        costs: &BTreeMap<i64, i128>,
        (now_ms, end_ms): (i64, i64),
    ) -> Standing {
        let first = self.from_ms.div_euclid(MILLIS_PER_DAY);
        let end = end_ms.div_euclid(MILLIS_PER_DAY);
        // The day that runs is not whole.
        let today = now_ms.div_euclid(MILLIS_PER_DAY).clamp(first, end);
        let whole: i128 = costs.range(..today).map(|it| it.1).sum();
        let recent_from = (today - RECENT_DAYS).max(first);
        let recent: i128 = costs.range(recent_from..today).map(|it| it.1).sum();
        let daily = |days: i64| ratio(recent, days.into(), (today - recent_from).into());
        let spent: i128 = costs.values().sum();
        let forecast = daily(end - today).map(|to_come| (whole + to_come).max(spent));
        let mut sum = 0;
        let past = (first..today).find(|day| {
            sum += costs.get(day).copied().unwrap_or(0);
            sum > budget
        });
        let to_come = || {
            (today..end).find(|day| daily(day + 1 - today).is_some_and(|it| whole + it > budget))
        };
        Standing {
            team: team.to_owned(),
            budget,
            spent,
            forecast,
            gone_on_day: past.or_else(to_come),
        }
    }
}

//! Teams that spent more in the month that runs than their budget has, or will by the month's forecast: as the month
//! was made last ([`crate::money::daily`]).
//!
//! A month of which something has no price or was not read may come to more than is told. So what was over in it goes
//! on until all of it is told, or the next month begins; and before a month was made nothing is over.
//!
//! Limits: live clusters, and budgets that a column holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_analysis::cause::{Cause, Reading};
use gpufleet_analysis::incident::{Family, Place, Remedy, Signal};
use gpufleet_analysis::owner::Payer;
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::event::Severity;

use super::detector::{Detector, Findings, Finds, Need, TickSnapshot};
use crate::money::budgets::{Standings, place};
use crate::store::MoneyMonth;

/// A forecast that was over is no more below so many hundredths of the budget: it swings from day to day.
const NO_MORE_PERCENT: i128 = 95;

const SPENT: &str = "the month's budget is overspent";
const FORECAST: &str = "the month will go over its budget";
const ACTION: &str = "Look on the page Cost at what it went for: stop what can wait, give back what is idle, or agree \
                      on another budget.";

/// Teams over their budgets, as of the last tick.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    /// As the month was made last; none before it was.
    standings: Option<Arc<Standings>>,
    /// Who was over last, in which month and of which budget, unless a month that is all told said otherwise.
    over: BTreeMap<Place, (String, i64)>,
}

impl Budgets {
    /// From now on teams stand so; none where that is not known.
    pub(super) fn take(&mut self, standings: Option<Arc<Standings>>) {
        self.standings = standings;
    }
}

impl Detector for Budgets {
    fn finds(&self) -> Vec<Finds> {
        let (needs, prices) = (&[Need::Money], &[Basis::BudgetSpent]);
        vec![Finds::of(
            "a team over its budget",
            Family::Budget,
            needs,
            prices,
        )]
    }

    fn judge(&mut self, _: &TickSnapshot<'_>, found: &mut Findings) {
        let Some(standings) = self.standings.clone() else {
            found.unknown.insert(Family::Budget);
            return;
        };
        let month = &standings.month;
        let before = std::mem::take(&mut self.over);
        for row in &standings.teams {
            let (Some(Payer::Team(team)), Some(budget)) = (&row.payer, row.budget) else {
                continue;
            };
            let place = place(&row.cluster, team);
            let was = before.get(&place);
            match over(row, budget, was.is_some_and(|it| it.0 == *month)) {
                Some(told) => {
                    let signal = signal(row, budget, place.clone(), told);
                    found.signals.push(signal);
                    self.over.insert(place, (month.clone(), budget));
                }
                None if !is_whole(row) => {
                    // After a start it is not known which month was over, nor of which budget.
                    if was.is_none_or(|it| it.0 == *month && it.1 == budget) {
                        found.unread.push((Family::Budget, place.clone()));
                    }
                    self.over.extend(was.map(|it| (place, it.clone())));
                }
                None => {}
            }
        }
    }
}

/// Whether all is told of what a team spent.
fn is_whole(row: &MoneyMonth) -> bool {
    row.spent.is_some() && row.unpriced_millis == 0 && row.untold.is_empty()
}

/// How a team is over its budget, and how bad that is; none where it is not.
fn over(row: &MoneyMonth, budget: i64, was: bool) -> Option<(Severity, &'static str)> {
    if row.spent.is_some_and(|it| it > budget) {
        return Some((Severity::Warning, SPENT));
    }
    let percent = if was { NO_MORE_PERCENT } else { 100 };
    let is_over = |it: i64| i128::from(it) * 100 > i128::from(budget) * percent;
    let is_over = row.forecast.is_some_and(is_over);
    is_over.then_some((Severity::Info, FORECAST))
}

fn signal(
    row: &MoneyMonth,
    budget: i64,
    place: Place,
    (severity, what): (Severity, &str),
) -> Signal {
    let reading = |(name, nano): (&str, i64)| {
        let name = format!("{name} in {}", row.currency);
        Reading::new(&name, (nano as f64 / 1e9).ceil(), None, Unit::Count)
    };
    let told = [
        ("spent", row.spent),
        ("budget", Some(budget)),
        ("forecast", row.forecast),
    ];
    let told = told.into_iter().filter_map(|(name, it)| Some((name, it?)));
    Signal {
        family: Family::Budget,
        place,
        severity,
        what: what.to_owned(),
        action: ACTION.to_owned(),
        remedy: Remedy::Look,
        cause: Cause::Spending,
        since: None,
        readings: told.map(reading).collect(),
        price: Price::none(Basis::BudgetSpent),
        confidence: None,
        booted_at: None,
    }
}

#[cfg(test)]
mod tests;

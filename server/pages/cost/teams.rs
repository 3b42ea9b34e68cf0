//! The teams of a month: the dearest, all that have a budget or are over their quota, and what the others come to.
//!
//! Limit: [`MAX_ROWS`] rows and those of such teams; how many teams have none is said, with their money.

use gpufleet_analysis::chargeback::{Sum, budget, quota};
use gpufleet_analysis::money::{ratio, tenths};

use super::made::TeamTime;
use super::{MAX_ROWS, money};
use crate::words::text::{self, Name, amount};

/// A team's month.
pub(super) struct Row {
    pub(super) name: Name,
    pub(super) cost: String,
    pub(super) hours: String,
    pub(super) active: String,
    pub(super) waste: String,
    pub(super) budget: Option<Budget>,
    /// GPUs held on average of those it may hold; empty without a quota.
    pub(super) quota: String,
    pub(super) is_over_quota: bool,
}

/// What a team may spend in the month.
pub(super) struct Budget {
    pub(super) amount: String,
    pub(super) forecast: String,
    pub(super) is_over: bool,
}

/// The rows of teams that stand in the order of their money, and how many teams have none and what they cost; none
/// where each has one. Who is over a budget or a quota is in no remainder.
pub(super) fn rows(
    teams: &[TeamTime],
    (budgets, quotas): (&[budget::Standing], &[quota::Standing]),
    currency: &str,
) -> (Vec<Row>, Option<String>) {
    let mut rows = Vec::new();
    let (mut more, mut rest) = (0_usize, Sum::default());
    for (place, team) in teams.iter().enumerate() {
        let budget = budgets.iter().find(|it| it.team == team.name);
        let quota = quotas.iter().find(|it| it.team == team.name);
        let is_over_quota = quota.is_some_and(quota::Standing::is_over);
        if place < MAX_ROWS || budget.is_some() || is_over_quota {
            rows.push(row(team, (budget, quota), currency));
        } else {
            more += 1;
            rest.add(&team.sum);
        }
    }
    let rest = (more > 0).then(|| format!("And {more} more, {}", money(currency, &rest)));
    (rows, rest)
}

fn row(
    it: &TeamTime,
    (budget, quota): (Option<&budget::Standing>, Option<&quota::Standing>),
    currency: &str,
) -> Row {
    let observed = it.sum.gpu_millis - it.unobserved.gpu_millis;
    let share = ratio(it.active.gpu_millis.into(), 100, observed.into());
    Row {
        name: Name::new(&it.name),
        cost: money(currency, &it.sum),
        hours: text::hours(it.sum.gpu_millis),
        active: share.map_or("not measured".to_owned(), |it| format!("{it} %")),
        waste: match observed {
            0 => "not measured".to_owned(),
            _ => money(currency, &it.waste),
        },
        quota: quota.map_or(String::new(), |it| {
            let mean = it.mean.map_or("–".to_owned(), tenths);
            format!("{mean} of {}", it.quota)
        }),
        is_over_quota: quota.is_some_and(quota::Standing::is_over),
        budget: budget.map(|it| Budget {
            amount: amount(currency, it.budget),
            forecast: it
                .forecast
                .map_or("no whole day yet".to_owned(), |it| amount(currency, it)),
            is_over: it.is_over(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn teams_beyond_the_table_are_counted_and_those_with_a_budget_or_over_a_quota_are_in_it() {
        let dollars = |dollars: i128| dollars * 1_000_000_000;
        let team = |place: usize| {
            let sum = Sum {
                gpu_millis: 3_600_000,
                cost: dollars(7),
                ..Sum::default()
            };
            TeamTime {
                name: format!("team-{place}"),
                sum,
                active: sum,
                waste: Sum::default(),
                unobserved: Sum::default(),
            }
        };
        let teams: Vec<TeamTime> = (0..MAX_ROWS + 2).map(team).collect();
        let last = format!("team-{}", MAX_ROWS + 1);
        let spent = budget::Standing {
            team: last.clone(),
            budget: dollars(5),
            spent: dollars(7),
            forecast: None,
            gone_on_day: None,
        };
        let shown = |count: usize, budgets: &[budget::Standing]| {
            let (rows, rest) = rows(&teams[..count], (budgets, &[]), "USD");
            let last = rows.into_iter().next_back().expect("there is one");
            let is_over = last.budget.is_some_and(|it| it.is_over);
            (last.name.text, is_over, rest)
        };
        let fiftieth = format!("team-{}", MAX_ROWS - 1);
        assert_eq!(shown(MAX_ROWS, &[]), (fiftieth.clone(), false, None));
        let rest = |said: &str| Some(said.to_owned());
        assert_eq!(
            shown(MAX_ROWS + 1, &[]),
            (fiftieth.clone(), false, rest("And 1 more, $7.00"))
        );
        assert_eq!(
            shown(MAX_ROWS + 2, &[]),
            (fiftieth.clone(), false, rest("And 2 more, $14.00"))
        );
        assert_eq!(
            shown(MAX_ROWS + 2, &[spent]),
            (last.clone(), true, rest("And 1 more, $7.00"))
        );
        for (held, name, more) in [
            (4_000, fiftieth, "And 2 more, $14.00"),
            (4_001, last.clone(), "And 1 more, $7.00"),
        ] {
            let quota = quota::Standing {
                team: last.clone(),
                quota: 4,
                mean: Some(held),
                most_of_a_day: None,
                forecast: None,
            };
            let (rows, said) = rows(&teams, (&[], &[quota]), "USD");
            let is_over = held > 4_000;
            let row = rows.into_iter().next_back().expect("there is one");
            assert_eq!((row.name.text, row.is_over_quota), (name, is_over));
            assert_eq!(said, rest(more));
        }
    }
}

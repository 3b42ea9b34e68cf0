//! What commitments are worth: coverage, utilisation and the effective savings rate of a month.
//!
//! Method, as FinOps has them:
//!
//! - coverage = time that commitments covered ÷ time that they could have covered: that of nodes that are
//!   paid on demand, covered or not. Spot and own machines cannot be covered and are in neither.
//! - utilisation = what was used of the commitments ÷ all that was paid for them, by money.
//! - effective savings rate = 1 − what was paid ÷ what the time that was used costs at list: paid is
//!   commitments, used or not, and on demand after discounts. Below 0 when what nobody used costs
//!   more than commitments and discounts saved.
//!
//! Numbers. Nano-units (i128), GPU-milliseconds (i64), ratios in millionths, each rounded once.
//!
//! Limits. Time without a price is in nothing, because its list price is not known. Where a commitment is
//! dearer than the list, its list price counts as its own, so the rate is never made better by it.

use std::collections::BTreeMap;

use super::{Chargeback, Tariff};
use crate::money::ratio;
use crate::price_book::Basis;

/// A whole, in millionths.
const WHOLE: i128 = 1_000_000;

/// What one commitment came to, nano-units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// What was used of it.
    pub used: i128,
    /// What nobody used.
    pub unused: i128,
}

/// What commitments came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Commitments {
    /// By name.
    pub by_id: BTreeMap<String, Used>,
    /// GPU-milliseconds that they covered.
    pub covered_gpu_millis: i64,
    /// GPU-milliseconds that were paid on demand.
    pub on_demand_gpu_millis: i64,
    /// What was paid for commitments and on demand, nano-units.
    pub paid: i128,
    /// What the time that was used costs at list.
    pub list: i128,
}

impl Used {
    /// The used part of it, millionths; none of one that costs nothing.
    pub fn utilisation(&self) -> Option<i128> {
        ratio(self.used, WHOLE, self.used + self.unused)
    }
}

impl Commitments {
    /// What the commitments of a month came to; none where there was none.
    pub fn of(made: &Chargeback) -> Option<Self> {
        let mut found = Self::default();
        for (key, sum) in &made.lines {
            match &made.tariffs[key.tariff] {
                Tariff::Committed { id, .. } => {
                    found.by_id.entry(id.clone()).or_default().used += sum.cost;
                    found.covered_gpu_millis += sum.gpu_millis;
                    found.list += sum.list;
                }
                Tariff::Unused { id, .. } => {
                    found.by_id.entry(id.clone()).or_default().unused += sum.cost;
                }
                Tariff::Rate {
                    basis: Basis::OnDemand,
                    ..
                } => {
                    found.on_demand_gpu_millis += sum.gpu_millis;
                    found.list += sum.list;
                }
                Tariff::Rate { .. } | Tariff::Unpriced(_) => continue,
            }
            found.paid += sum.cost;
        }
        (!found.by_id.is_empty()).then_some(found)
    }

    /// All commitments together.
    pub fn total(&self) -> Used {
        let mut total = Used::default();
        for it in self.by_id.values() {
            total.used += it.used;
            total.unused += it.unused;
        }
        total
    }

    /// The covered part of what could be covered, millionths; none where nothing could.
    pub fn coverage(&self) -> Option<i128> {
        let all = self.covered_gpu_millis + self.on_demand_gpu_millis;
        ratio(self.covered_gpu_millis.into(), WHOLE, all.into())
    }

    /// What was saved of the list price, millionths; none where nothing was used.
    pub fn savings_rate(&self) -> Option<i128> {
        ratio(self.list - self.paid, WHOLE, self.list)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{HOUR, RATES, book, fleet, october, part, period};
    use super::*;
    use crate::ledger::State;

    const USD: i128 = 1_000_000_000;

    /// Two nodes for an hour, one committed for the first two hours at this price.
    fn made(price: &str) -> Commitments {
        let commitment = format!(
            "c1,box-8g,here,1,commitment_3y,USD,{price},2026-10-01,2026-10-01T02:00:00Z,\n"
        );
        let parts = [part(Some(0), State::ActiveUnrated, HOUR)];
        let periods = [period(0, 0, &parts), period(1, 0, &parts)];
        let made = october(&fleet(2), &periods, &book(RATES, &commitment));
        Commitments::of(&made).expect("there is one")
    }

    #[test]
    fn coverage_utilisation_and_savings_are_those_of_the_lines() {
        let found = made("32");
        assert_eq!(found.coverage(), Some(500_000), "one node of two");
        assert_eq!(
            found.total().utilisation(),
            Some(500_000),
            "one hour of two"
        );
        // 32 used, 32 not, 80 on demand, for two node-hours of 80.
        assert_eq!((found.paid, found.list), (144 * USD, 160 * USD));
        assert_eq!(found.savings_rate(), Some(100_000));
        let used = Used {
            used: 32 * USD,
            unused: 32 * USD,
        };
        assert_eq!(found.by_id, BTreeMap::from([("c1".to_owned(), used)]));
    }

    #[test]
    fn a_commitment_that_costs_more_than_it_saves_has_a_rate_below_nothing() {
        assert_eq!(made("60").savings_rate(), Some(-250_000), "200 for 160");
    }

    #[test]
    fn a_part_of_a_gpu_counts_as_one_gpu_used_or_not() {
        let rates = format!("{RATES}slice-1,here,on_demand,USD,1,,2026-10-01,,list,a\n");
        let commitment =
            "c1,slice-1,here,2,commitment_3y,USD,0.5,2026-10-01,2026-10-01T01:00:00Z,\n";
        let mut fleet = fleet(1);
        fleet.nodes[0].machine_type = "slice-1".to_owned();
        fleet.nodes[0].gpus = 1;
        let mut period = period(0, 0, &[part(Some(0), State::ActiveUnrated, HOUR)]);
        period.gpus.truncate(1);
        let made = october(&fleet, &[period], &book(&rates, commitment));
        let found = Commitments::of(&made).expect("there is one");
        assert_eq!(found.covered_gpu_millis, HOUR);
        assert_eq!(made.headline().unused.gpu_millis, HOUR);
    }

    #[test]
    fn spot_can_not_be_covered_and_without_a_commitment_there_is_nothing_to_tell() {
        let mut fleet = fleet(2);
        fleet.nodes[1].basis = Basis::Spot;
        let parts = [part(Some(0), State::ActiveUnrated, HOUR)];
        let periods = [period(0, 0, &parts), period(1, 0, &parts)];
        let commitment = "c1,box-8g,here,1,commitment_3y,USD,32,2026-10-01,2026-10-01T01:00:00Z,\n";
        let made = october(&fleet, &periods, &book(RATES, commitment));
        let found = Commitments::of(&made).expect("there is one");
        assert_eq!(found.coverage(), Some(WHOLE));
        assert_eq!((found.paid, found.list), (32 * USD, 80 * USD));
        let without = october(&fleet, &periods, &book(RATES, ""));
        assert_eq!(Commitments::of(&without), None);
    }
}

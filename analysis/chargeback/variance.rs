//! Why this month cost more or less than the one before: price, volume, mix, efficiency.
//!
//! With node time by machine type, region and tariff (h), their cost (c), and useful time (active
//! GPU time, u), of the month before (0) and this one (1):
//!
//! - price: Σ over what both months had of c1 − c0·h1/h0: the same time at another rate.
//! - volume: c0·(u1 − u0)/u0: more or less useful time at the old price and efficiency.
//! - efficiency: c0·(h1/h0 − u1/u0): more or less time paid for the same useful time.
//! - mix: what is left: other machines, regions, terms.
//!
//! Each is rounded once; mix takes the rest, so the four add up to the change exactly.

use super::{Chargeback, Tariff};
use crate::money::ratio;

/// What the change is made of, nano-units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variance {
    /// This month minus the one before.
    pub change: i128,
    /// Other rates.
    pub price: i128,
    /// More or less useful time.
    pub volume: i128,
    /// Other machines, regions and terms.
    pub mix: i128,
    /// More or less time paid for the same useful time.
    pub efficiency: i128,
}

impl Chargeback {
    /// What the change from an earlier month is made of.
    pub fn variance(&self, before: &Self) -> Variance {
        let (cost_before, cost_now) = (before.nodes_cost(), self.nodes_cost());
        let change = cost_now - cost_before;
        let mut price = 0;
        for ((machine, region, tariff), now) in &self.nodes {
            let then = before.nodes.iter().find(|((its, there, its_tariff), _)| {
                its == machine
                    && there == region
                    && before.tariffs[*its_tariff] == self.tariffs[*tariff]
            });
            let Some((_, then)) = then else { continue };
            if matches!(self.tariffs[*tariff], Tariff::Unpriced(_)) {
                continue;
            }
            let at_old = ratio(then.cost, now.node_millis.into(), then.node_millis.into());
            price += at_old.map_or(0, |it| now.cost - it);
        }
        let hours = |it: &Self| {
            it.nodes
                .values()
                .map(|sum| i128::from(sum.node_millis))
                .sum::<i128>()
        };
        let useful = |it: &Self| i128::from(it.headline().active.gpu_millis);
        let (hours_before, hours_now) = (hours(before), hours(self));
        let (useful_before, useful_now) = (useful(before), useful(self));
        let paid = ratio(cost_before, hours_now - hours_before, hours_before).unwrap_or(0);
        // Without useful time before, all of the change in time is volume.
        let volume = ratio(cost_before, useful_now - useful_before, useful_before).unwrap_or(paid);
        let efficiency = paid - volume;
        Variance {
            change,
            price,
            volume,
            mix: change - price - volume - efficiency,
            efficiency,
        }
    }
}

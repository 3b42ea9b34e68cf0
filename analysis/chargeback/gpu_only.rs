//! A month at the price of its GPUs alone, without the machines around them: for who compares cards, or pays for machines
//! from another purse.

use super::{Chargeback, Fleet, NodeSum, Sum, Tariff};
use crate::price_book::Quality;

impl Chargeback {
    /// The same time, each GPU at its own price; time of which that is not known has none, which is not 0. What was bought
    /// as machines and no GPU used is not in it (unused commitments), and what Spot and commitments saved is not told.
    #[must_use]
    pub fn of_gpus_alone(&self, fleet: &Fleet) -> Self {
        let tariffs = self.tariffs.iter().map(|it| match it {
            Tariff::Committed { basis, .. } | Tariff::Unused { basis, .. } => Tariff::Rate {
                basis: *basis,
                quality: Quality::Listed,
            },
            told => told.clone(),
        });
        let mut made = Self {
            tariffs: tariffs.collect(),
            spot: Default::default(),
            nodes: Default::default(),
            lines: Default::default(),
            days: Default::default(),
            ..self.clone()
        };
        for (key, sum) in &self.lines {
            let Some(node) = key.node.map(|it| &fleet.nodes[it]) else {
                continue;
            };
            let sum = of_gpu(sum);
            let key_of_node = (node.machine_type.clone(), node.region.clone(), key.tariff);
            let of_node = made.nodes.entry(key_of_node.clone()).or_insert_with(|| {
                let known = self.nodes.get(&key_of_node);
                NodeSum {
                    node_millis: known.map_or(0, |it| it.node_millis),
                    cost: 0,
                }
            });
            of_node.cost += sum.cost;
            made.lines.insert(*key, sum);
        }
        // A commitment that nothing used has a pool without a name.
        let days = self.days.iter();
        let days = days.filter(|(day, _)| !self.pools[day.pool].is_empty());
        made.days = days.map(|(day, sum)| (*day, of_gpu(sum))).collect();
        made
    }
}

fn of_gpu(sum: &Sum) -> Sum {
    Sum {
        cost: sum.gpu_cost,
        list: sum.gpu_cost,
        unpriced_millis: sum.gpu_unpriced_millis,
        ..*sum
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{FIRST_HOUR, HOUR, RATES, book, fleet, october, part, period};
    use crate::ledger::State;

    #[test]
    fn gpus_alone_cost_their_own_price_and_unused_machines_and_unknown_prices_are_not_in_it() {
        let until = "2026-10-01T01:00:00Z";
        let commitments = format!("c,box-8g,here,2,commitment_1y,USD,50,2026-10-01,{until},\n");
        let fleet = fleet(2);
        let periods = [
            period(0, 0, &[part(Some(0), State::ActiveUnrated, HOUR)]),
            period(1, 1, &[part(Some(1), State::Parked, HOUR)]),
        ];
        let made = october(&fleet, &periods, &book(RATES, &commitments));
        let alone = made.of_gpus_alone(&fleet);
        assert!(made.balance().is_exact() && alone.balance().is_exact());
        // One hour of eight GPUs was covered by the commitment, whose GPUs have no price; one was not.
        let total = alone.total();
        assert_eq!(total.gpu_millis, 16 * HOUR);
        assert_eq!(
            (total.cost, total.unpriced_millis),
            (72_000_000_000, 8 * HOUR)
        );
        assert_eq!(
            made.total().gpu_millis,
            24 * HOUR,
            "with the unused machine"
        );
        let days: i128 = alone.days.values().map(|it| it.cost).sum();
        assert_eq!(days, total.cost);
        assert!(alone.spot.is_empty());
        assert_eq!(alone.from_ms, FIRST_HOUR * HOUR);
    }
}

//! Whether it adds up: the lines against the node-hours' price, and the estimate against an invoice.
//!
//! Invoice = estimate (GPU states and unused commitments, with the rest of their nodes) + machines without GPUs, disks,
//! network, cluster fee and others + tax + credits + residual. Discounts, those of commitments among them, are in what they
//! are taken off. The residual is printed; above
//! [`RESIDUAL_ALERT_MILLIONTHS`] (2 %) it is said that something is wrong.

use std::collections::BTreeMap;

use super::Chargeback;
use crate::money::ratio;
use crate::price_book::export::{BilledFor, Invoice};

/// Above this share of the invoice the residual is told.
pub const RESIDUAL_ALERT_MILLIONTHS: i128 = 20_000;

/// The lines against the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Balance {
    /// What the lines add up to, nano-units.
    pub lines: i128,
    /// What the nodes and unused commitments cost by themselves.
    pub nodes: i128,
}

/// The estimate against an invoice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reconciled {
    /// What the lines add up to.
    pub estimate: i128,
    /// What the invoice has for the same: GPUs, machines with them and commitments to either.
    pub billed: i128,
    /// What the invoice has besides, by what it is for.
    pub besides: BTreeMap<BilledFor, i128>,
    /// Credits that are no discount, 0 or below.
    pub credits: i128,
    /// The invoice's total.
    pub total: i128,
    /// What is left: billed − estimate.
    pub residual: i128,
    /// The residual's share of the invoice's total, millionths; none when the total is not above 0.
    pub residual_millionths: Option<i128>,
}

impl Balance {
    /// Whether not a nano-unit is missing or too much.
    pub const fn is_exact(&self) -> bool {
        self.lines == self.nodes
    }
}

impl Reconciled {
    /// Whether the residual is to be told.
    pub fn is_off(&self) -> bool {
        let share = self.residual_millionths.map(i128::abs);
        share.map_or(self.residual != 0, |it| it > RESIDUAL_ALERT_MILLIONTHS)
    }
}

impl Chargeback {
    /// The lines against the nodes.
    pub fn balance(&self) -> Balance {
        Balance {
            lines: self.total().cost,
            nodes: self.nodes_cost(),
        }
    }

    /// The estimate against an invoice.
    pub fn reconciled(&self, invoice: &Invoice) -> Reconciled {
        let is_ours = |it: &BilledFor| {
            matches!(
                it,
                BilledFor::Gpu | BilledFor::Machine | BilledFor::Commitment
            )
        };
        let ours = invoice.costs.iter().filter(|it| is_ours(it.0));
        let billed = ours.map(|it| it.1).sum::<i128>();
        let besides = invoice.costs.iter().filter(|it| !is_ours(it.0));
        let estimate = self.total().cost;
        let (total, residual) = (invoice.total(), billed - estimate);
        Reconciled {
            estimate,
            billed,
            besides: besides.map(|(kind, cost)| (*kind, *cost)).collect(),
            credits: invoice.credits,
            total,
            residual,
            residual_millionths: ratio(residual, 1_000_000, total),
        }
    }
}

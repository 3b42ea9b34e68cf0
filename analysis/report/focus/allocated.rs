//! What of a machine's charge each line has: the split cost allocation of FOCUS 1.3.
//!
//! The charge that is split (the origin charge) is that of one machine paid in one way: lines of the same `x_Cluster`,
//! `ResourceId`, `x_PriceBasis` and `CommitmentDiscountId`. A line's ratio is its part of their cost, and of their
//! GPU time where none of it has a cost; the ratios of an origin add up to 1 exactly, by largest remainder. What it is
//! allocated to is who held the GPU; of what nobody held there is none, which is how the specification tells the part
//! that is not allocated. A commitment that nothing used is of no machine, and nothing of it is split.
//!
//! Limits. A ratio has nine digits behind the point.

use std::collections::HashMap;

use super::{Row, UNIT};
use crate::chargeback::view::By;
use crate::chargeback::{Sum, Tariff};
use crate::money::{apportion, decimal};
use crate::report::{Report, hours};

/// How the parts are worked out, as `docs/cost.md` says under this name.
pub const METHOD: &str = "gpufleet-gpu-time";

/// One, in the unit of ratios.
const ONE: i128 = 1_000_000_000;

/// Of each line, in their order, its part of what is split: billionths; none of what is not split.
pub(super) fn ratios(report: &Report<'_>) -> Vec<Option<i128>> {
    let (made, fleet) = (report.chargeback, report.fleet);
    let mut machines: HashMap<(&str, &str), usize> = HashMap::new();
    // A machine may be several nodes of the fleet, one after the other.
    let machine_of: Vec<usize> = fleet
        .nodes
        .iter()
        .map(|it| {
            let known = machines.len();
            let name = super::resource(it).as_str();
            *machines.entry((&it.cluster, name)).or_insert(known)
        })
        .collect();
    let mut bases: HashMap<String, usize> = HashMap::new();
    // Of nodes without a card and with one.
    let basis_of: Vec<[usize; 2]> = made
        .tariffs
        .iter()
        .map(|it| {
            [false, true].map(|is_by_card| {
                let known = bases.len();
                let (id, basis) = (commitment(it), super::price_basis(it, is_by_card));
                *bases.entry(format!("{id}\n{basis}")).or_insert(known)
            })
        })
        .collect();
    let mut origins: HashMap<(usize, usize), Vec<(usize, &Sum)>> = HashMap::new();
    for (at, (key, sum)) in made.lines.iter().enumerate() {
        if let Some(node) = key.node {
            let is_by_card = fleet.nodes[node].card.is_some();
            let basis = basis_of[key.tariff][usize::from(is_by_card)];
            let origin = (machine_of[node], basis);
            origins.entry(origin).or_default().push((at, sum));
        }
    }
    let mut found = vec![None; made.lines.len()];
    for lines in origins.into_values() {
        for ((at, _), part) in lines.iter().zip(parts(&lines)) {
            found[*at] = Some(part);
        }
    }
    found
}

/// The parts of an origin's lines, which add up to [`ONE`].
fn parts(lines: &[(usize, &Sum)]) -> Vec<i128> {
    let costs: Result<Vec<i64>, _> = lines.iter().map(|it| i64::try_from(it.1.cost)).collect();
    let costs = costs.ok().and_then(|it| apportion(ONE, &it));
    let times = || {
        let times: Vec<i64> = lines.iter().map(|it| it.1.gpu_millis).collect();
        apportion(ONE, &times)
    };
    let equal = || apportion(ONE, &vec![1; lines.len()]);
    let found = costs.or_else(times).or_else(equal);
    found.expect("an origin has lines, of which each counts for one")
}

fn commitment(tariff: &Tariff) -> &str {
    match tariff {
        Tariff::Committed { id, .. } | Tariff::Unused { id, .. } => id,
        Tariff::Rate { .. } | Tariff::Unpriced(_) => "",
    }
}

impl Row<'_> {
    /// A column that 1.3 has for what is split; empty where nothing is or the line has none.
    pub(super) fn allocated_field(&self, column: &str) -> String {
        let Some(ratio) = self.ratio else {
            return String::new();
        };
        match column {
            "AllocatedMethodId" => METHOD.to_owned(),
            "AllocatedMethodDetails" => format!(
                r#"{{"Elements":[{{"AllocatedRatio":{},"UsageUnit":"{UNIT}","UsageQuantity":{}}}]}}"#,
                decimal(ratio),
                hours(self.sum.gpu_millis)
            ),
            "AllocatedResourceId" => self.held_by(),
            "AllocatedResourceName" => match self.word(By::Job) {
                job if job.is_empty() => self.held_by(),
                job => job,
            },
            "AllocatedTags" if self.key.holder.is_some() => self.tags(&HELD),
            _ => String::new(),
        }
    }

    /// Who held the GPU: namespace and job, else its name; empty where nobody did.
    fn held_by(&self) -> String {
        let Some(holder) = self.key.holder.map(|it| &self.report.fleet.holders[it]) else {
            return String::new();
        };
        let names = [&holder.job, &holder.name, &holder.user];
        let name = names.into_iter().find(|it| !it.is_empty());
        let name = name.map_or("unnamed", String::as_str);
        match holder.namespace.as_str() {
            "" => name.to_owned(),
            namespace => format!("{namespace}/{name}"),
        }
    }

    /// What the contract that covers it, or that it is a part of that nothing used, has of it; empty without one.
    pub(super) fn contract_applied(&self) -> String {
        let Some((id, ..)) = self.commitment() else {
            return String::new();
        };
        // A commitment is a contract of its own here, and one to use, not to spend: it has a quantity and no cost.
        let id = serde_json::Value::from(id);
        format!(
            r#"{{"Elements":[{{"ContractId":{id},"ContractCommitmentId":{id},"ContractCommitmentAppliedQuantity":{},"ContractCommitmentAppliedUnit":"{UNIT}"}}]}}"#,
            hours(self.sum.gpu_millis)
        )
    }
}

/// The tags of who held it; that of who pays is one of the charge.
const HELD: [By; 3] = [By::Job, By::Model, By::Namespace];

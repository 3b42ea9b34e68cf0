//! Many rows of a FOCUS file: what lines have in common is worked out once.
//!
//! Of 70 columns of a line some fifteen are its own; the others are those of the report, of its node, of how it is
//! paid or of who holds and pays. Those are kept as they stand in the file. What a column is taken to depend on is
//! a matter of speed alone for those that are not listed; a test holds each listed one to its rows.
//!
//! Limits: [`MAX_KEPT`] fields of each kind are kept. Lines come node by node, so what is forgotten is seldom wanted
//! again, and is worked out again if it is.

use std::collections::HashMap;
use std::hash::Hash;

use super::{Account, Row, Version, allocated};
use crate::report::Report;
use crate::table;

/// Most nodes, ways of paying, and people whose fields are kept: some 2 KB each.
const MAX_KEPT: usize = 10_000;

/// What a column depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Report,
    Node,
    Tariff,
    Who,
    Line,
}

/// Fields as they stand in the file, by column; empty those of other columns.
type Fields = Vec<String>;

/// Writes all lines of a report behind its header.
pub(super) fn write(
    out: &mut String,
    report: &Report<'_>,
    account: &Account,
    (version, header): (Version, &[&str]),
) {
    let ratios = match version {
        Version::V1_2 => Vec::new(),
        Version::V1_3 => allocated::ratios(report),
    };
    let columns: Vec<Of> = header.iter().map(|it| of(it)).collect();
    let mut whole: Option<Fields> = None;
    let mut nodes: HashMap<Option<usize>, Fields> = HashMap::new();
    let mut tariffs: HashMap<(usize, Option<usize>), Fields> = HashMap::new();
    let mut people: HashMap<(usize, Option<usize>, &str), Fields> = HashMap::new();
    for (at, (key, sum)) in report.chargeback.lines.iter().enumerate() {
        let row = Row {
            report,
            account,
            version,
            key,
            sum,
            ratio: ratios.get(at).copied().flatten(),
        };
        let fields = |wanted: Of| {
            let all = header.iter().zip(&columns);
            let field = |(name, of): (&&str, &Of)| match *of == wanted {
                true => shown(&row.field(name)),
                false => String::new(),
            };
            all.map(field).collect::<Fields>()
        };
        let whole = whole.get_or_insert_with(|| fields(Of::Report));
        let node = kept(&mut nodes, key.node, || fields(Of::Node));
        let tariff = kept(&mut tariffs, (key.tariff, key.node), || fields(Of::Tariff));
        let project = key.node.map(|it| report.fleet.nodes[it].project.as_str());
        let who = (key.payer, key.holder, project.unwrap_or_default());
        let who = kept(&mut people, who, || fields(Of::Who));
        for (index, (name, of)) in header.iter().zip(&columns).enumerate() {
            if index > 0 {
                out.push(',');
            }
            match of {
                Of::Report => out.push_str(&whole[index]),
                Of::Node => out.push_str(&node[index]),
                Of::Tariff => out.push_str(&tariff[index]),
                Of::Who => out.push_str(&who[index]),
                Of::Line => table::push_shown(out, &row.field(name)),
            }
        }
        out.push('\n');
    }
}

fn kept<K: Eq + Hash, M: FnOnce() -> Fields>(
    known: &mut HashMap<K, Fields>,
    key: K,
    make: M,
) -> &Fields {
    if known.len() >= MAX_KEPT && !known.contains_key(&key) {
        known.clear();
    }
    known.entry(key).or_insert_with(make)
}

fn shown(field: &str) -> String {
    let mut out = String::new();
    table::push_shown(&mut out, field);
    out
}

fn of(column: &str) -> Of {
    match column {
        "BillingAccountId"
        | "BillingAccountName"
        | "BillingAccountType"
        | "BillingCurrency"
        | "BillingPeriodEnd"
        | "BillingPeriodStart"
        | "CapacityReservationId"
        | "CapacityReservationStatus"
        | "ChargeCategory"
        | "ChargeClass"
        | "ChargeFrequency"
        | "ChargePeriodEnd"
        | "ChargePeriodStart"
        | "InvoiceId"
        | "PricingCurrency"
        | "PricingUnit"
        | "ServiceCategory"
        | "ServiceSubcategory"
        | "x_Estimated" => Of::Report,
        "AvailabilityZone" | "RegionId" | "RegionName" | "ResourceId" | "ResourceName"
        | "ResourceType" | "x_Cluster" => Of::Node,
        "CommitmentDiscountCategory"
        | "CommitmentDiscountId"
        | "CommitmentDiscountName"
        | "CommitmentDiscountStatus"
        | "CommitmentDiscountType"
        | "CommitmentDiscountUnit"
        | "ConsumedUnit"
        | "HostProviderName"
        | "InvoiceIssuerName"
        | "PricingCategory"
        | "ProviderName"
        | "PublisherName"
        | "ServiceName"
        | "ServiceProviderName"
        | "SkuId"
        | "SkuMeter"
        | "SkuPriceDetails"
        | "SkuPriceId"
        | "x_PriceBasis" => Of::Tariff,
        "SubAccountId"
        | "SubAccountName"
        | "SubAccountType"
        | "Tags"
        | "x_Job"
        | "x_Namespace"
        | super::OWN_TEAM => Of::Who,
        _ => Of::Line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_very_many_people_keeps_some_of_them_and_tells_each_right() {
        let mut known: HashMap<usize, Fields> = HashMap::new();
        let mut made = 0;
        for who in (0..3 * MAX_KEPT).flat_map(|it| [it, it]) {
            let found = kept(&mut known, who, || {
                made += 1;
                vec![who.to_string()]
            });
            assert_eq!(*found, [who.to_string()]);
        }
        assert_eq!(made, 3 * MAX_KEPT, "once each while they are wanted");
        assert!(known.len() <= MAX_KEPT, "{}", known.len());
    }
}

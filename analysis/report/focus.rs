//! FOCUS 1.2 or 1.3 (FinOps Open Cost and Usage Specification): one row for each line, and a checker.
//!
//! An estimate, and marked so (`x_Estimated`, no invoice): billed and effective cost are the same,
//! because what was paid ahead for commitments is spread over what they covered, and what they did
//! not cover has rows of its own (`Unused`). Time without a price has a row with cost 0.0, because the
//! columns must not be empty; `x_PriceBasis` says `unpriced` and why. What the cards drew is in columns of our own,
//! because FOCUS has none for it: `x_EnergyKwh` is empty where nobody told it, and `x_EnergyMeteredGpuHours` says for how
//! much of the time it is known.
//!
//! The checker knows the columns of a [`Version`], which may be empty, the formats and the values; it is run in
//! tests over every kind of line. It is not the specification's own validator.

use std::collections::BTreeMap;

use super::{Report, hours, kilowatt_hours};
use crate::chargeback::view::By;
use crate::chargeback::{Key, Node, Seller, Sum, Tariff};
use crate::money::{decimal, ratio};
use crate::price_book::Basis;
use crate::table;

pub mod allocated;

pub mod check;

mod rows;

mod version;

pub use rows::{Known, Rows};
pub use version::{COLUMNS_1_3, Version};

/// The columns of FOCUS 1.2 in the order of their names.
pub const COLUMNS: [&str; 57] = [
    "AvailabilityZone",
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingAccountType",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "CapacityReservationId",
    "CapacityReservationStatus",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "CommitmentDiscountCategory",
    "CommitmentDiscountId",
    "CommitmentDiscountName",
    "CommitmentDiscountQuantity",
    "CommitmentDiscountStatus",
    "CommitmentDiscountType",
    "CommitmentDiscountUnit",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceId",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingCurrency",
    "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyEffectiveCost",
    "PricingCurrencyListUnitPrice",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "RegionId",
    "RegionName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SkuPriceDetails",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "SubAccountType",
    "Tags",
];

/// Our own columns, behind all others.
pub const OWN: [&str; 12] = [
    "x_Cluster",
    "x_EnergyKwh",
    "x_EnergyMeteredGpuHours",
    "x_Estimated",
    "x_GpuOnlyCost",
    "x_GpuReason",
    "x_GpuState",
    "x_GpuUuid",
    "x_Job",
    "x_MigInstance",
    "x_Namespace",
    "x_PriceBasis",
];

/// And the one that people filter by.
pub const OWN_TEAM: &str = "x_Team";

/// The unit of every quantity.
const UNIT: &str = "GPU-Hours";

/// What the ledger does not know of the account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its id; must not be empty.
    pub billing_account_id: String,
    /// Its name; may be empty.
    pub billing_account_name: String,
    /// Who sells what nobody else is known to sell, such as machines of one's own.
    pub seller: Seller,
    /// Who sold commitments, by their id.
    pub commitments: BTreeMap<String, Seller>,
}

/// All of it as one text.
#[cfg(test)]
pub(super) fn csv(report: &Report<'_>, account: &Account, version: Version) -> String {
    let rows = Rows::new(report, account, version);
    // Made by two in turn.
    let mut known = [Known::default(), Known::default()];
    let parts = (0..rows.parts()).map(|it| rows.part(it, &mut known[it % 2]));
    [rows.header().to_owned()]
        .into_iter()
        .chain(parts)
        .collect()
}

/// The fields of one line, each worked out by itself.
#[cfg(test)]
pub(super) fn fields(
    report: &Report<'_>,
    account: &Account,
    (version, at): (Version, usize),
    header: &[&str],
) -> Vec<String> {
    let (key, sum) = report.chargeback.lines.iter().nth(at).expect("a line");
    let ratio = match version {
        Version::V1_2 => None,
        Version::V1_3 => allocated::ratios(report)[at],
    };
    let row = Row {
        report,
        account,
        version,
        key,
        sum,
        ratio,
    };
    header.iter().map(|it| row.field(it)).collect()
}

struct Row<'a> {
    report: &'a Report<'a>,
    account: &'a Account,
    version: Version,
    key: &'a Key,
    sum: &'a Sum,
    /// Its part of its machine's charge, billionths; none where the version tells none or nothing is split.
    ratio: Option<i128>,
}

/// The end of the month that begins with a moment: a bill is of all of it, also while it runs.
fn month_end_ms(from_ms: i64) -> i64 {
    let month: String = table::moment_text(from_ms).chars().take(7).collect();
    let hours = table::month_hours(&month).expect("a moment is in a month");
    hours.end * 3_600_000
}

/// The machine's full name, else its name.
fn resource(node: &Node) -> &String {
    match node.resource.is_empty() {
        true => &node.name,
        false => &node.resource,
    }
}

/// On what terms a time at a rate was paid. Of a node with a card what no commitment covered was at the card's own rate,
/// although the node is on demand for commitments to cover it.
const fn rated(basis: Basis, is_by_card: bool) -> Basis {
    match basis {
        Basis::OnDemand if is_by_card => Basis::Own,
        _ => basis,
    }
}

/// How a time of a node, with a card beside it or without, was paid, as `x_PriceBasis` has it.
fn price_basis(tariff: &Tariff, is_by_card: bool) -> String {
    match tariff {
        Tariff::Rate { basis, .. } => rated(*basis, is_by_card).name().to_owned(),
        Tariff::Committed { basis, .. } | Tariff::Unused { basis, .. } => basis.name().to_owned(),
        Tariff::Unpriced(why) => format!("unpriced: {why}"),
    }
}

impl Row<'_> {
    fn tariff(&self) -> &Tariff {
        &self.report.chargeback.tariffs[self.key.tariff]
    }

    fn word(&self, by: By) -> String {
        by.word(self.report.chargeback, self.report.fleet, self.key)
            .to_owned()
    }

    fn commitment(&self) -> Option<(&str, Basis, bool)> {
        match self.tariff() {
            Tariff::Committed { id, basis } => Some((id, *basis, true)),
            Tariff::Unused { id, basis } => Some((id, *basis, false)),
            _ => None,
        }
    }

    fn seller(&self) -> &Seller {
        let node = self.key.node.map(|it| &self.report.fleet.nodes[it]);
        let of_commitment = || self.account.commitments.get(self.commitment()?.0);
        let known = node.and_then(|it| it.seller.as_ref());
        known.or_else(of_commitment).unwrap_or(&self.account.seller)
    }

    /// Whether a card is priced where no commitment covers its node.
    fn is_by_card(&self) -> bool {
        let node = self.key.node.map(|it| &self.report.fleet.nodes[it]);
        node.is_some_and(|it| it.card.is_some())
    }

    fn is_priced(&self) -> bool {
        !matches!(self.tariff(), Tariff::Unpriced(_))
    }

    /// A price of one GPU-hour; empty where there is none.
    fn unit_price(&self, cost: i128) -> String {
        let price = ratio(cost, 3_600_000, self.sum.gpu_millis.into());
        price
            .filter(|_| self.is_priced())
            .map(decimal)
            .unwrap_or_default()
    }

    fn field(&self, column: &str) -> String {
        let node = self.key.node.map(|it| &self.report.fleet.nodes[it]);
        let of_node = |of: fn(&Node) -> &String| node.map(of).cloned().unwrap_or_default();
        let made = self.report.chargeback;
        match column {
            "AvailabilityZone" => of_node(|it| &it.zone),
            "BilledCost" | "EffectiveCost" | "PricingCurrencyEffectiveCost" => {
                decimal(self.sum.cost)
            }
            "ContractedCost" => decimal(self.contracted()),
            "ListCost" => decimal(self.sum.list),
            "BillingAccountId" => self.account.billing_account_id.clone(),
            "BillingAccountName" => self.account.billing_account_name.clone(),
            "BillingAccountType" => "Billing Account".to_owned(),
            "BillingCurrency" | "PricingCurrency" => made.currency.clone(),
            "BillingPeriodStart" | "ChargePeriodStart" => table::moment_text(made.from_ms),
            "BillingPeriodEnd" => table::moment_text(month_end_ms(made.from_ms)),
            "ChargePeriodEnd" => table::moment_text(made.until_ms),
            "ChargeCategory" => "Usage".to_owned(),
            "ChargeDescription" => format!("GPU time {}", self.key.state.name()),
            "ChargeFrequency" => "Usage-Based".to_owned(),
            "ConsumedQuantity" if self.is_used() => hours(self.sum.gpu_millis),
            "ConsumedUnit" if self.is_used() => UNIT.to_owned(),
            "ContractedUnitPrice" | "PricingCurrencyContractedUnitPrice" => {
                self.unit_price(self.contracted())
            }
            "ListUnitPrice" | "PricingCurrencyListUnitPrice" => self.unit_price(self.sum.list),
            "PricingCategory" => self.pricing_category().to_owned(),
            "PricingQuantity" => hours(self.sum.gpu_millis),
            "PricingUnit" => UNIT.to_owned(),
            "ProviderName"
            | "PublisherName"
            | "InvoiceIssuerName"
            | "HostProviderName"
            | "ServiceProviderName" => self.seller().provider.clone(),
            "RegionId" | "RegionName" => of_node(|it| &it.region),
            "ResourceId" => of_node(resource),
            "ResourceName" => of_node(|it| &it.name),
            "ResourceType" if node.is_some() => "Virtual Machine".to_owned(),
            "ServiceCategory" => "Compute".to_owned(),
            "ServiceName" => self.seller().service.clone(),
            "ServiceSubcategory" => "Virtual Machines".to_owned(),
            "SkuId" | "SkuPriceId" if self.is_priced() => self.sku(),
            "SkuMeter" if self.is_priced() => "GPU Time".to_owned(),
            "SkuPriceDetails" if self.is_priced() && node.is_some() => {
                serde_json::json!({ "x_MachineType": of_node(|it| &it.machine_type) }).to_string()
            }
            "SubAccountId" | "SubAccountName" => self.word(By::Project),
            "SubAccountType" if !self.word(By::Project).is_empty() => "Project".to_owned(),
            // Tags of who held it are its own in 1.3, and those of the charge are not among them.
            "Tags" if self.version == Version::V1_3 => self.tags(&[By::Team]),
            "Tags" => self.tags(&[By::Job, By::Model, By::Namespace, By::Team]),
            "ContractApplied" => self.contract_applied(),
            _ if column.starts_with("Allocated") => self.allocated_field(column),
            _ if column.starts_with("CommitmentDiscount") => self.commitment_field(column),
            _ if column.starts_with("x_") => self.own_field(column),
            _ => String::new(),
        }
    }

    fn commitment_field(&self, column: &str) -> String {
        let Some((id, _, is_used)) = self.commitment() else {
            return String::new();
        };
        match column {
            "CommitmentDiscountCategory" => "Usage".to_owned(),
            "CommitmentDiscountId" | "CommitmentDiscountName" => id.to_owned(),
            "CommitmentDiscountQuantity" => hours(self.sum.gpu_millis),
            "CommitmentDiscountStatus" => if is_used { "Used" } else { "Unused" }.to_owned(),
            "CommitmentDiscountType" => "Resource-based commitment".to_owned(),
            "CommitmentDiscountUnit" => UNIT.to_owned(),
            _ => String::new(),
        }
    }

    fn own_field(&self, column: &str) -> String {
        let fleet = self.report.fleet;
        let known = self.sum.gpu_millis > self.sum.gpu_unpriced_millis;
        match column {
            "x_Cluster" => self.key.node.map(|it| fleet.nodes[it].cluster.clone()),
            "x_EnergyKwh" => kilowatt_hours(self.sum.energy),
            "x_EnergyMeteredGpuHours" => Some(hours(self.sum.energy.metered_millis)),
            "x_Estimated" => Some("true".to_owned()),
            "x_GpuOnlyCost" => known.then(|| decimal(self.sum.gpu_cost)),
            "x_GpuReason" => Some(self.key.reason.name().to_owned()),
            "x_GpuState" => Some(self.key.state.name().to_owned()),
            "x_GpuUuid" => self.key.gpu.map(|it| fleet.gpus[it].clone()),
            "x_Job" => Some(self.word(By::Job)),
            "x_MigInstance" => self.key.share.map(|it| fleet.shares[it].clone()),
            "x_Namespace" => Some(self.word(By::Namespace)),
            "x_PriceBasis" => Some(price_basis(self.tariff(), self.is_by_card())),
            OWN_TEAM => Some(self.word(By::Team)),
            _ => None,
        }
        .unwrap_or_default()
    }

    fn tags(&self, all: &[By]) -> String {
        let tag = |by: &By| (format!("gpufleet/{}", by.name()), self.word(*by).into());
        let tags: serde_json::Map<_, _> = all.iter().map(tag).collect();
        serde_json::Value::Object(tags).to_string()
    }

    /// Of what a commitment covers, negotiated discounts are not known apart from the commitment.
    fn contracted(&self) -> i128 {
        match self.commitment() {
            Some(_) => self.sum.list,
            None => self.sum.cost,
        }
    }

    fn is_used(&self) -> bool {
        !matches!(self.tariff(), Tariff::Unused { .. })
    }

    fn pricing_category(&self) -> &'static str {
        match self.tariff() {
            Tariff::Rate { basis, .. } => match rated(*basis, self.is_by_card()) {
                Basis::Spot => "Dynamic",
                Basis::OnDemand => "Standard",
                _ => "Other",
            },
            Tariff::Committed { .. } | Tariff::Unused { .. } => "Committed",
            Tariff::Unpriced(_) => "Other",
        }
    }

    fn sku(&self) -> String {
        let node = self.key.node.map(|it| &self.report.fleet.nodes[it]);
        let place = node.map_or("commitment".to_owned(), |it| {
            format!("{}/{}", it.machine_type, it.region)
        });
        format!("gpu-time/{place}/{}", self.own_field("x_PriceBasis"))
    }
}

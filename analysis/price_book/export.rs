//! Rows of a Cloud Billing export: what the provider billed, by what it was for.
//!
//! Reads JSON, one row a line as BigQuery extracts it, or one array; standard and detailed exports
//! alike. What a row was for follows from its service, SKU and cost type. Costs are decimals with more
//! digits than a nano-unit; each row is rounded once, to the nearest. Rows in another currency or of
//! another month are left out and noted.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::money;

/// What a row was billed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BilledFor {
    /// GPUs of machines.
    Gpu,
    /// Cores, memory and local SSD of machines.
    Machine,
    /// Commitments, used or not.
    Commitment,
    /// Disks and images.
    Disk,
    /// Traffic, addresses and load balancers.
    Network,
    /// The fee of a cluster.
    ClusterFee,
    /// Tax.
    Tax,
    /// Anything else.
    Other,
}

/// An invoice, as far as the export has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Invoice {
    /// Nano-units by what they were for, before credits.
    pub costs: BTreeMap<BilledFor, i128>,
    /// Nano-units of credits, 0 or below.
    pub credits: i128,
    /// Rows that were taken.
    pub rows: usize,
    /// What was left out and why, with how many rows.
    pub left_out: BTreeMap<String, usize>,
}

#[derive(Deserialize)]
struct Row {
    #[serde(default)]
    service: Described,
    #[serde(default)]
    sku: Described,
    cost: Value,
    currency: String,
    #[serde(default)]
    cost_type: String,
    #[serde(default)]
    invoice: InvoiceMonth,
    #[serde(default)]
    credits: Vec<Credit>,
}

#[derive(Deserialize, Default)]
struct Described {
    #[serde(default)]
    description: String,
}

#[derive(Deserialize, Default)]
struct InvoiceMonth {
    #[serde(default)]
    month: String,
}

#[derive(Deserialize)]
struct Credit {
    amount: Value,
}

impl BilledFor {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::Gpu,
        Self::Machine,
        Self::Commitment,
        Self::Disk,
        Self::Network,
        Self::ClusterFee,
        Self::Tax,
        Self::Other,
    ];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Machine => "machine",
            Self::Commitment => "commitment",
            Self::Disk => "disk",
            Self::Network => "network",
            Self::ClusterFee => "cluster_fee",
            Self::Tax => "tax",
            Self::Other => "other",
        }
    }

    fn of(row: &Row) -> Self {
        let sku = row.sku.description.as_str();
        let has = |words: &[&str]| words.iter().any(|word| sku.contains(word));
        match row.service.description.as_str() {
            _ if row.cost_type == "tax" => Self::Tax,
            "Kubernetes Engine" => Self::ClusterFee,
            "Networking" => Self::Network,
            "Compute Engine" if sku.starts_with("Commitment") => Self::Commitment,
            "Compute Engine" if has(&["GPU", "RTX 6000", "gpu slice"]) => Self::Gpu,
            "Compute Engine" if has(&["Instance Core", "Instance Ram", "Local Storage"]) => {
                Self::Machine
            }
            "Compute Engine" if has(&["PD Capacity", "Hyperdisk", "Image", "Snapshot"]) => {
                Self::Disk
            }
            "Compute Engine" if has(&["Egress", "Data Transfer", "IP Charge", "Forwarding"]) => {
                Self::Network
            }
            _ => Self::Other,
        }
    }
}

impl Invoice {
    /// Reads the rows of one month, such as `2026-10`.
    pub fn read(text: &str, month: &str, currency: &str) -> Self {
        let month = month.replace('-', "");
        let mut invoice = Self::default();
        let trimmed = text.trim_start();
        let is_array = trimmed.starts_with('[');
        let rows: Vec<Result<Row, serde_json::Error>> = if is_array {
            match serde_json::from_str::<Vec<Value>>(trimmed) {
                Ok(rows) => rows.into_iter().map(serde_json::from_value).collect(),
                Err(error) => vec![Err(error)],
            }
        } else {
            let lines = text.lines().filter(|line| !line.trim().is_empty());
            lines.map(serde_json::from_str).collect()
        };
        for row in rows {
            let taken = row.map_err(|error| format!("not a row of an export: {error}"));
            let taken = taken.and_then(|row| invoice.add(&row, &month, currency));
            match taken {
                Ok(()) => invoice.rows += 1,
                Err(why) => *invoice.left_out.entry(why).or_default() += 1,
            }
        }
        invoice
    }

    fn add(&mut self, row: &Row, month: &str, currency: &str) -> Result<(), String> {
        if row.currency != currency {
            return Err(format!("in {}, not in {currency}", row.currency));
        }
        if row.invoice.month != month {
            return Err(format!("of the invoice of `{}`", row.invoice.month));
        }
        let cost = nanos(&row.cost)?;
        let credits = row.credits.iter().map(|it| nanos(&it.amount));
        let credits = credits.sum::<Result<i128, String>>()?;
        *self.costs.entry(BilledFor::of(row)).or_default() += cost;
        self.credits += credits;
        Ok(())
    }

    /// What has to be paid: costs and credits.
    pub fn total(&self) -> i128 {
        self.costs.values().sum::<i128>() + self.credits
    }
}

/// A number or its text, to the nearest nano-unit.
fn nanos(value: &Value) -> Result<i128, String> {
    let text = match value {
        Value::String(text) => text.as_str(),
        Value::Number(number) => return nanos_of_float(number.as_f64(), value),
        _ => return Err(format!("`{value}` is no amount")),
    };
    match money::parse(text) {
        Ok(exact) => Ok(i128::from(exact)),
        Err(_) => nanos_of_float(text.parse().ok(), value),
    }
}

/// The export's own type is a float; up to 9 million of a currency it holds every nano-unit.
fn nanos_of_float(number: Option<f64>, value: &Value) -> Result<i128, String> {
    let number = number.filter(|it| it.is_finite() && it.abs() < 1e18);
    let number = number.ok_or_else(|| format!("`{value}` is no amount"))?;
    Ok((number * 1e9).round() as i128)
}

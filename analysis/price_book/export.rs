//! Rows of a Cloud Billing export: what the provider billed, by what it was for.
//!
//! Reads JSON, one row a line as BigQuery extracts it, or one array; standard and detailed exports
//! alike. What a row was for follows from its service, SKU and cost type, and what of machines belongs to machines with
//! GPUs from the machine family. N1 machines and local SSD may have GPUs or not: there the machine that the row names
//! (only the detailed export names one) says it, by whether the bill has a GPU of it. Usage that a commitment covers is
//! exported at its price on demand with a credit on the same row that takes that off, and the commitment's fee is a row of
//! its own: so what is a discount by its type is taken off what the row was for, and the rest, such as a promotion, is a
//! credit. Costs are decimals with more digits than a nano-unit; each amount is rounded once, to the nearest. Rows in
//! another currency or of another month are left out and noted.
//!
//! Limits: what was left out has [`MAX_REASONS`] reasons of [`REASON_CHARACTERS`] each, since they quote the rows. Of the
//! text, which its sender bounds, the fields named here alone are kept: each row is read by itself, and the rest of it is
//! passed over. As JSON values all rows took up to a hundred times their text.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::money;

/// Most reasons for which rows are left out that are told apart: what is sent may be wrong in each row.
pub const MAX_REASONS: usize = 20;

/// Longest of them, characters: a row may have a text of any length where a number belongs.
pub const REASON_CHARACTERS: usize = 200;

/// What the other rows that were left out are counted under.
const OTHER_REASONS: &str = "for other reasons";

/// What a row was billed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BilledFor {
    /// GPUs of machines.
    Gpu,
    /// Cores, memory and local SSD of machines with GPUs.
    Machine,
    /// Commitments to GPUs and machines with them, used or not.
    Commitment,
    /// Machines without GPUs, and commitments to such or to an amount.
    OtherMachine,
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
    /// Nano-units by what they were for, after discounts and before credits.
    pub costs: BTreeMap<BilledFor, i128>,
    /// Nano-units of credits that are no discount, 0 or below.
    pub credits: i128,
    /// Rows that were taken.
    pub rows: usize,
    /// What was left out and why, with how many rows.
    pub left_out: BTreeMap<String, usize>,
    /// Rows of N1 machines and local SSD that name no machine, so that whether it has GPUs is not known: they count as of
    /// machines with GPUs where the bill has GPUs that they can belong to.
    pub of_no_machine: usize,
}

/// What the rows of a bill say together of which machines have GPUs.
#[derive(Default)]
struct Bill<'a> {
    /// Machines that rows of GPUs, cores and memory name, and whether they have GPUs.
    machines: HashMap<&'a str, bool>,
    /// Whether it has GPUs that are added to N1 machines.
    has_added_gpus: bool,
    /// Whether it has any GPUs.
    has_gpus: bool,
}

/// Whose part of a machine a SKU is, by its description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Machine {
    /// A GPU.
    Gpu,
    /// Of a family that always has GPUs.
    WithGpus,
    /// Of N1, to which GPUs may be added.
    N1,
    /// Local SSD, which says no family.
    LocalSsd,
    /// Of another family, or an amount that was committed to.
    Other,
}

/// How families begin whose machines always have GPUs: `A3`, `A3Plus`, `A4X`.
const GPU_FAMILIES: [&str; 5] = ["A2", "A3", "A4", "G2", "G4"];

/// How SKUs call GPUs that are added to N1 machines.
const ADDED_GPUS: [&str; 4] = ["Tesla T4", "Tesla P4", "Tesla P100", "Tesla V100"];

/// How SKUs call GPUs.
const GPUS: [&str; 3] = ["GPU", "RTX 6000", "gpu slice"];

#[derive(Deserialize)]
struct Row {
    #[serde(default)]
    service: Described,
    #[serde(default)]
    sku: Described,
    cost: Amount,
    currency: String,
    #[serde(default)]
    cost_type: String,
    #[serde(default)]
    invoice: InvoiceMonth,
    #[serde(default)]
    credits: Vec<Credit>,
    #[serde(default)]
    resource: Option<Resource>,
}

/// Only detailed exports have it.
#[derive(Deserialize)]
struct Resource {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    global_name: Option<String>,
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
    amount: Amount,
    /// Rows of before September 2020 have none.
    #[serde(default, rename = "type")]
    kind: Option<String>,
}

/// Nano-units, or why they are none.
struct Amount(Result<i128, String>);

/// Shows the items of an array one after the other, as they are written.
struct Each<F>(F);

/// What a credit is taken off, by its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// What its row was for: it is a lower price of that.
    ItsRow,
    /// What the fee of a commitment to an amount is counted with, which stands beside machines with GPUs.
    CommitmentToAnAmount,
    /// The bill as a whole.
    TheBill,
}

impl Credit {
    /// The types are those of the reference of the export, `credits.type`.
    fn taken(&self) -> Taken {
        match self.kind.as_deref().unwrap_or_default() {
            "COMMITTED_USAGE_DISCOUNT"
            | "SUSTAINED_USAGE_DISCOUNT"
            | "DISCOUNT"
            | "FEE_UTILIZATION_OFFSET"
            | "SUBSCRIPTION_BENEFIT"
            | "RESELLER_MARGIN" => Taken::ItsRow,
            "COMMITTED_USAGE_DISCOUNT_DOLLAR_BASE" => Taken::CommitmentToAnAmount,
            _ => Taken::TheBill,
        }
    }
}

impl BilledFor {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::Gpu,
        Self::Machine,
        Self::Commitment,
        Self::OtherMachine,
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
            Self::OtherMachine => "machine_without_gpus",
            Self::Disk => "disk",
            Self::Network => "network",
            Self::ClusterFee => "cluster_fee",
            Self::Tax => "tax",
            Self::Other => "other",
        }
    }

    /// Where the fee of a commitment to an amount stands that covers this.
    const fn beside(self) -> Self {
        match self {
            Self::Gpu | Self::Machine => Self::OtherMachine,
            other => other,
        }
    }

    /// What a row is for, and whether that was not to be told for want of a machine's name.
    fn of(row: &Row, bill: &Bill<'_>) -> (Self, bool) {
        let sku = row.sku.description.as_str();
        let has = |words: &[&str]| words.iter().any(|word| sku.contains(word));
        let of = match row.service.description.as_str() {
            _ if row.cost_type == "tax" => Self::Tax,
            "Kubernetes Engine" => Self::ClusterFee,
            "Networking" => Self::Network,
            "Compute Engine" if sku.starts_with("Commitment") => {
                return bill.has_gpus_of(row, [Self::Commitment, Self::OtherMachine]);
            }
            "Compute Engine" if has(&GPUS) => Self::Gpu,
            "Compute Engine" if has(&["Instance Core", "Instance Ram", "Local Storage"]) => {
                return bill.has_gpus_of(row, [Self::Machine, Self::OtherMachine]);
            }
            "Compute Engine" if has(&["PD Capacity", "Hyperdisk", "Image", "Snapshot"]) => {
                Self::Disk
            }
            "Compute Engine" if has(&["Egress", "Data Transfer", "IP Charge", "Forwarding"]) => {
                Self::Network
            }
            _ => Self::Other,
        };
        (of, false)
    }
}

impl Machine {
    fn of(sku: &str) -> Self {
        let has = |words: &[&str]| words.iter().any(|word| sku.contains(word));
        let what = sku.strip_prefix("Commitment v1: ").unwrap_or(sku);
        let what = what.strip_prefix("Spot Preemptible ").unwrap_or(what);
        let is_family = |word: &str| {
            let rest = GPU_FAMILIES.iter().find_map(|it| word.strip_prefix(it));
            rest.is_some_and(|it| !it.starts_with(|next: char| next.is_ascii_digit()))
        };
        if has(&GPUS) {
            Self::Gpu
        } else if what.split([' ', '-']).any(is_family) {
            Self::WithGpus
        } else if has(&["Local Storage", "Local SSD"]) {
            Self::LocalSsd
        } else if ["N1 ", "Custom ", "Cpu ", "Ram "]
            .iter()
            .any(|it| what.starts_with(it))
        {
            // SKUs of before there were other families do not name theirs.
            Self::N1
        } else {
            Self::Other
        }
    }
}

impl<'a> Bill<'a> {
    fn of(rows: &'a [Row]) -> Self {
        let mut bill = Self::default();
        for row in rows {
            let sku = row.sku.description.as_str();
            let machine = Machine::of(sku);
            if row.service.description != "Compute Engine" || machine == Machine::LocalSsd {
                continue;
            }
            let has_gpus = matches!(machine, Machine::Gpu | Machine::WithGpus);
            bill.has_gpus |= has_gpus;
            bill.has_added_gpus |= ADDED_GPUS.iter().any(|it| sku.contains(it));
            if let Some(name) = row.machine() {
                *bill.machines.entry(name).or_default() |= has_gpus;
            }
        }
        bill
    }

    /// The first for a part of a machine with GPUs, else the second; and whether that is not known.
    fn has_gpus_of(&self, row: &Row, [with, without]: [BilledFor; 2]) -> (BilledFor, bool) {
        let can_be = match Machine::of(&row.sku.description) {
            Machine::Gpu | Machine::WithGpus => return (with, false),
            Machine::Other => return (without, false),
            Machine::N1 => self.has_added_gpus,
            Machine::LocalSsd => self.has_gpus,
        };
        // Local SSD may name itself in place of its machine.
        match row.machine().and_then(|it| self.machines.get(it)) {
            Some(true) => (with, false),
            None if can_be => (with, true),
            Some(false) | None => (without, false),
        }
    }
}

impl Row {
    /// The machine that it names.
    fn machine(&self) -> Option<&str> {
        let resource = self.resource.as_ref()?;
        let name = resource.global_name.as_deref().or(resource.name.as_deref());
        name.filter(|it| !it.is_empty())
    }
}

impl Invoice {
    /// Reads the rows of one month, such as `2026-10`.
    pub fn read(text: &str, month: &str, currency: &str) -> Self {
        let month = month.replace('-', "");
        let mut invoice = Self::default();
        let mut read = Vec::new();
        let mut take = |row: Result<Row, String>| match row {
            Ok(row) => read.push(row),
            Err(why) => invoice.leave_out(&format!("not a row of an export: {why}")),
        };
        // Some programs say with a mark before it that a text is in UTF-8.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let trimmed = text.trim_start();
        if trimmed.starts_with('[') {
            let row = |it| serde_json::from_str(it).map_err(|error| without_place(&error));
            if let Err(error) = each(trimmed, |it| take(row(it))) {
                // What is no array as a whole is no bill, whatever it begins with.
                (read, invoice) = (Vec::new(), Self::default());
                invoice.leave_out(&format!("not a row of an export: {error}"));
            }
        } else {
            let lines = text.lines().filter(|line| !line.trim().is_empty());
            let rows = lines.map(|it| serde_json::from_str(it).map_err(|error| error.to_string()));
            rows.for_each(take);
        }
        let bill = Bill::of(&read);
        for row in &read {
            match invoice.add(row, &bill, &month, currency) {
                Ok(()) => invoice.rows += 1,
                Err(why) => invoice.leave_out(&why),
            }
        }
        invoice
    }

    fn leave_out(&mut self, why: &str) {
        let mut why: String = why.chars().take(REASON_CHARACTERS).collect();
        if self.left_out.len() >= MAX_REASONS && !self.left_out.contains_key(&why) {
            OTHER_REASONS.clone_into(&mut why);
        }
        *self.left_out.entry(why).or_default() += 1;
    }

    fn add(
        &mut self,
        row: &Row,
        bill: &Bill<'_>,
        month: &str,
        currency: &str,
    ) -> Result<(), String> {
        if row.currency != currency {
            return Err(format!("in {}, not in {currency}", row.currency));
        }
        if row.invoice.month != month {
            return Err(format!("of the invoice of `{}`", row.invoice.month));
        }
        let cost = row.cost.0.clone()?;
        let credits = row.credits.iter();
        let credits = credits.map(|it| Ok((it.taken(), it.amount.0.clone()?)));
        let credits = credits.collect::<Result<Vec<(Taken, i128)>, String>>()?;
        let (of, is_unsure) = BilledFor::of(row, bill);
        *self.costs.entry(of).or_default() += cost;
        self.of_no_machine += usize::from(is_unsure);
        for (taken, amount) in credits {
            match taken {
                Taken::ItsRow => *self.costs.entry(of).or_default() += amount,
                Taken::CommitmentToAnAmount => {
                    *self.costs.entry(of.beside()).or_default() += amount;
                }
                Taken::TheBill => self.credits += amount,
            }
        }
        Ok(())
    }

    /// What has to be paid: costs and credits.
    pub fn total(&self) -> i128 {
        self.costs.values().sum::<i128>() + self.credits
    }
}

impl<'de> Deserialize<'de> for Amount {
    /// A number or its text, to the nearest nano-unit. Of anything else its beginning is quoted.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?.get();
        let nanos = match raw.as_bytes().first() {
            Some(b'"') => {
                let text: String = serde_json::from_str(raw).map_err(D::Error::custom)?;
                let exact = money::parse(&text).ok().map(i128::from);
                exact.or_else(|| nanos_of_float(&text))
            }
            Some(b'-' | b'0'..=b'9') => nanos_of_float(raw),
            _ => None,
        };
        Ok(Self(nanos.ok_or_else(|| {
            let quoted: String = raw.chars().take(REASON_CHARACTERS).collect();
            format!("`{quoted}` is no amount")
        })))
    }
}

impl<'de, F: FnMut(&'de str)> Visitor<'de> for Each<F> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an array of rows")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        while let Some(item) = items.next_element::<&'de RawValue>()? {
            (self.0)(item.get());
        }
        Ok(())
    }
}

/// Shows the items of an array to `look`, each as it is written.
fn each<'a>(array: &'a str, look: impl FnMut(&'a str)) -> Result<(), serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(array);
    Deserializer::deserialize_seq(&mut reader, Each(look))?;
    reader.end()
}

/// What is wrong with a row of an array, without the place in the row: rows that lack the same are counted as one reason.
fn without_place(error: &serde_json::Error) -> String {
    let said = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    said.strip_suffix(&place).unwrap_or(&said).to_owned()
}

/// The export's own type is a float; up to 9 million of a currency it holds every nano-unit.
fn nanos_of_float(text: &str) -> Option<i128> {
    let number: Option<f64> = text.parse().ok();
    let number = number.filter(|it| it.is_finite() && it.abs() < 1e18)?;
    Some((number * 1e9).round() as i128)
}

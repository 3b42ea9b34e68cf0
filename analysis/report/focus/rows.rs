//! Many rows of a FOCUS file: what lines have in common is worked out once, and parts of them may be made on several threads.
//!
//! Of 70 columns of a line some ten are its own; the others are those of the report, of its node, of its GPU, of how it
//! is paid, of who holds and pays, or of its state. Those are kept as they stand in the file. What a column is taken to
//! depend on is a matter of speed alone for those that are not listed; a test holds each listed one to its rows.
//!
//! Limits: [`MAX_KEPT`] fields of each kind are kept by who makes parts. Lines come node by node, so what is forgotten is
//! seldom wanted again, and is worked out again if it is. A part is [`PART_LINES`] lines, some 4 MB.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;

use super::{Account, OWN, OWN_TEAM, Row, Version, allocated};
use crate::chargeback::{Key, Sum};
use crate::ledger::{Reason, State};
use crate::report::Report;
use crate::table;

/// Most nodes, GPUs, ways of paying, people and states whose fields are kept: up to 1 KB each.
const MAX_KEPT: usize = 10_000;

/// Lines of a part: enough that handing it over costs nothing beside it. Tests have few lines, and several parts of them.
const PART_LINES: usize = if cfg!(test) { 4 } else { 4_096 };

/// Bytes of a row, about.
const ROW_BYTES: usize = 1_100;

/// What a column depends on.
#[derive(Debug, Clone, Copy)]
enum Of {
    Report,
    Node,
    Gpu,
    Tariff,
    Who,
    State,
    Line,
}

/// How many things a column may depend on.
const KINDS: usize = Of::Line as usize + 1;

/// The fields of columns that depend on the same.
type Fields = Vec<String>;

/// Where the columns of a file come from.
struct Columns<'a> {
    /// What each depends on, and the place of its field among those of that.
    places: Vec<(Of, usize)>,
    /// What depends on each; columns that say the same are one.
    names: [Vec<&'a str>; KINDS],
}

/// The lines of a report as rows of a file, part by part: of a large fleet they are hundreds of MB, which whoever sends
/// them on need not have at once. All of them take seconds of CPU then.
pub struct Rows<'a> {
    header: String,
    report: &'a Report<'a>,
    account: &'a Account,
    version: Version,
    columns: Columns<'a>,
    lines: Vec<(&'a Key, &'a Sum)>,
    /// Their parts of what is split; empty where the version tells none.
    ratios: Vec<Option<i128>>,
}

/// Fields that were worked out, as they stand in the file: of each who makes parts.
#[derive(Default)]
pub struct Known<'a> {
    report: Option<Fields>,
    nodes: HashMap<Option<usize>, Fields>,
    /// By GPU and share.
    gpus: HashMap<(Option<usize>, Option<usize>), Fields>,
    /// By tariff and node.
    tariffs: HashMap<(usize, Option<usize>), Fields>,
    /// By payer, holder, and the project of the node.
    people: HashMap<(usize, Option<usize>, &'a str), Fields>,
    states: HashMap<(State, Reason), Fields>,
}

impl<'a> Columns<'a> {
    fn new(header: &[&'a str]) -> Self {
        let mut names: [Vec<&'a str>; KINDS] = Default::default();
        let mut places = Vec::with_capacity(header.len());
        for column in header {
            let (kind, name) = (of(column), same(column));
            let known = &mut names[kind as usize];
            let place = known.iter().position(|it| *it == name);
            if place.is_none() {
                known.push(name);
            }
            places.push((kind, place.unwrap_or(known.len() - 1)));
        }
        Self { places, names }
    }

    /// What a line says in the columns that depend on this.
    fn fields(&self, row: &Row<'_>, kind: Of) -> impl Iterator<Item = String> {
        let names = self.names[kind as usize].iter();
        names.map(move |it| row.field(it))
    }
}

impl<'a> Rows<'a> {
    /// Those of a report.
    pub fn new(report: &'a Report<'a>, account: &'a Account, version: Version) -> Self {
        let mut columns = version.columns();
        columns.extend(OWN);
        columns.push(OWN_TEAM);
        let mut header = String::new();
        table::write(&mut header, &columns);
        Self {
            header,
            report,
            account,
            version,
            columns: Columns::new(&columns),
            lines: report.chargeback.lines.iter().collect(),
            ratios: match version {
                Version::V1_2 => Vec::new(),
                Version::V1_3 => allocated::ratios(report),
            },
        }
    }

    /// The first line of the file.
    pub fn header(&self) -> &str {
        &self.header
    }

    /// How many parts come behind it.
    pub fn parts(&self) -> usize {
        self.lines.len().div_ceil(PART_LINES)
    }

    /// The so many-th part, from 0, as it stands in the file; empty behind the last.
    pub fn part(&self, number: usize, known: &mut Known<'a>) -> String {
        let first = number.saturating_mul(PART_LINES).min(self.lines.len());
        let end = self.lines.len().min(first + PART_LINES);
        self.lines(first..end, known)
    }

    fn row(&self, at: usize) -> Row<'a> {
        let (key, sum) = self.lines[at];
        Row {
            report: self.report,
            account: self.account,
            version: self.version,
            key,
            sum,
            ratio: self.ratios.get(at).copied().flatten(),
        }
    }

    /// Some lines as they stand in the file.
    fn lines(&self, lines: Range<usize>, known: &mut Known<'a>) -> String {
        let mut out = String::with_capacity(lines.len() * ROW_BYTES);
        let mut own = Fields::new();
        for row in lines.map(|it| self.row(it)) {
            let key = row.key;
            let of = |kind: Of| -> Fields {
                let fields = self.columns.fields(&row, kind);
                fields.map(shown).collect()
            };
            let report = known.report.get_or_insert_with(|| of(Of::Report));
            let node = kept(&mut known.nodes, key.node, || of(Of::Node));
            let gpu = (key.gpu, key.share);
            let gpu = kept(&mut known.gpus, gpu, || of(Of::Gpu));
            let tariff = (key.tariff, key.node);
            let tariff = kept(&mut known.tariffs, tariff, || of(Of::Tariff));
            let nodes = &self.report.fleet.nodes;
            let project = key.node.map_or("", |it| nodes[it].project.as_str());
            let who = (key.payer, key.holder, project);
            let who = kept(&mut known.people, who, || of(Of::Who));
            let state = (key.state, key.reason);
            let state = kept(&mut known.states, state, || of(Of::State));
            own.clear();
            own.extend(self.columns.fields(&row, Of::Line));
            for (index, (kind, at)) in self.columns.places.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                match kind {
                    Of::Report => out.push_str(&report[*at]),
                    Of::Node => out.push_str(&node[*at]),
                    Of::Gpu => out.push_str(&gpu[*at]),
                    Of::Tariff => out.push_str(&tariff[*at]),
                    Of::Who => out.push_str(&who[*at]),
                    Of::State => out.push_str(&state[*at]),
                    Of::Line => table::push_shown(&mut out, &own[*at]),
                }
            }
            out.push('\n');
        }
        out
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

fn shown(field: String) -> String {
    let mut out = String::with_capacity(field.len());
    table::push_shown(&mut out, &field);
    out
}

/// The column that says the same of every line; most are the only one.
fn same(column: &str) -> &str {
    match column {
        "EffectiveCost" | "PricingCurrencyEffectiveCost" => "BilledCost",
        "PricingCurrencyContractedUnitPrice" => "ContractedUnitPrice",
        "PricingCurrencyListUnitPrice" => "ListUnitPrice",
        _ => column,
    }
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
        "x_GpuUuid" | "x_MigInstance" => Of::Gpu,
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
        "SubAccountId" | "SubAccountName" | "SubAccountType" | "Tags" | "x_Job" | "x_Namespace"
        | OWN_TEAM => Of::Who,
        "ChargeDescription" | "x_GpuReason" | "x_GpuState" => Of::State,
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

//! What holds now: the price book, the owner rules, the budgets, and what a node costs by them.
//!
//! A node is priced by its machine type, region and provisioning; where its machine type has own rates there, by those
//! from the first on, unless it is told to be Spot. One that tells no machine type, or one
//! of which no rate is known at the time, is priced by the configured price of its GPU, if there is one: an own rate,
//! of each card by itself, so that how many a node has need not be known. One that a commitment may cover is a whole node
//! all the same, of which the rest costs that. An imported rate goes before shipped ones that begin when it does or later.
//!
//! Limits: [`MAX_FINDINGS`] findings, [`MAX_OF_ONE`] of one table while others have some; the others are
//! counted.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use gpufleet_analysis::inventory;
use gpufleet_analysis::money;
use gpufleet_analysis::owner::Owners;
use gpufleet_analysis::price_book::{Ask, Basis, Book, SHIPPED_MACHINES, Tables, Text, load};
use gpufleet_analysis::table;
use gpufleet_telemetry::identity::{Resource, attribute};

use super::CostConfig;
use super::shipped;
use super::tables::{self, Budget, File, Kind, Quota, Standby, Targets};
use crate::config::Config;
use crate::store::model::MoneyTable;

mod priced_as;

pub use priced_as::PricedAs;

/// Most findings that are told: a table that is wrong is wrong in every row.
const MAX_FINDINGS: usize = 50;

/// Most findings of one table that are told while there are others: what is wrong in the second is not
/// hidden by the first.
const MAX_OF_ONE: usize = 10;

/// How many terms this process has made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// What terms are made from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sources {
    /// The configuration.
    pub cost: CostConfig,
    /// Prices of GPUs by the card's name, or by cluster and name.
    pub gpu_hour_usd: BTreeMap<String, String>,
    /// Files of the configuration.
    pub files: Vec<File>,
    /// Tables of the store.
    pub stored: Vec<MoneyTable>,
}

/// Everything that holds now.
pub struct Terms {
    /// Prices.
    pub book: Book,
    /// Who pays.
    pub owners: Owners,
    /// What teams may spend.
    pub budgets: Vec<Budget>,
    /// How many GPUs they may hold.
    pub quotas: Vec<Quota>,
    /// What their time is held against.
    pub targets: Targets,
    /// What is held and idle by design.
    pub standby: Standby,
    /// What is wrong with tables and rules, one sentence each.
    pub findings: Vec<String>,
    /// What they were made from, beside what is shipped.
    pub sources: Sources,
    /// Which of all that this process made: what is kept as worked out by them goes by it.
    pub number: u64,
}

/// What a node is, as far as its price goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Machine<'a> {
    /// Its cluster.
    pub cluster: &'a str,
    /// Its machine type; empty when not told.
    pub machine_type: &'a str,
    /// Its region; empty when not told.
    pub region: &'a str,
    /// `on_demand`, `spot`, `flex_start` or `reserved`; empty when not told.
    pub provisioning: &'a str,
    /// The card's name.
    pub gpu_model: &'a str,
    /// How many GPUs it was seen with.
    pub gpus: u32,
}

/// What has a price: a machine type, on what terms, and how many GPUs one has.
pub type Paid = (String, Basis, u32);

impl<'a> Machine<'a> {
    /// A node as it tells of itself.
    pub fn told(
        cluster: &'a str,
        node: Option<&'a Resource>,
        gpu_model: &'a str,
        gpus: u32,
    ) -> Self {
        let text = |name| node.and_then(|it| it.attribute(name)).unwrap_or_default();
        Self {
            cluster,
            machine_type: text(attribute::MACHINE_TYPE),
            region: text(attribute::REGION),
            provisioning: text(attribute::PROVISIONING),
            gpu_model,
            gpus,
        }
    }

    /// A node as its cluster tells of it.
    pub fn listed(cluster: &'a str, node: &'a inventory::Node) -> Self {
        Self {
            cluster,
            machine_type: &node.machine,
            region: &node.region,
            provisioning: &node.provisioning,
            gpu_model: &node.model,
            gpus: node.gpus,
        }
    }
}

impl Sources {
    /// What a configuration says by itself.
    pub fn of(config: &Config) -> Self {
        Self {
            cost: config.cost.clone(),
            gpu_hour_usd: config.detect.gpu_hour_usd.clone(),
            ..Self::default()
        }
    }

    /// With its files as they are now. Takes as long as the disk does.
    #[must_use]
    pub fn read(mut self) -> Self {
        let files = self.cost.tables.iter();
        self.files = files.map(|it| tables::file(it)).collect();
        self
    }
}

impl Terms {
    /// Makes the terms; what cannot be used is among the findings.
    pub fn of(sources: Sources) -> Self {
        let mut findings = Vec::new();
        let mut of_kind: HashMap<&'static str, Vec<Text>> = HashMap::new();
        for (name, text) in &sources.files {
            let known = text.as_ref().map_err(Clone::clone);
            match known.and_then(|text| Ok((Kind::of(text)?, text))) {
                Ok((kind, text)) => of_kind
                    .entry(kind.name())
                    .or_default()
                    .push(Text::new(name, text)),
                Err(error) => findings.push(format!("{name}: {error}")),
            }
        }
        for table in &sources.stored {
            let text = Text::new(&table.name, &table.content);
            match Kind::parse(&table.kind) {
                Some(kind) => of_kind.entry(kind.name()).or_default().push(text),
                None => findings.push(format!(
                    "{}: a table of `{}` is not known to this server",
                    table.name, table.kind
                )),
            }
        }
        let mut take = |kind: Kind| of_kind.remove(kind.name()).unwrap_or_default();
        let currency = sources.cost.currency.as_str();
        let (machines, rates) = own_tables(&sources.gpu_hour_usd, currency);
        let imported = take(Kind::Rates);
        let shipped = shipped::rates(&imported, currency);
        let tables = Tables {
            machines: [
                vec![Text::new("machines.csv", SHIPPED_MACHINES)],
                take(Kind::Machines),
                vec![machines],
            ]
            .concat(),
            rates: [vec![shipped], imported, vec![rates]].concat(),
            discounts: take(Kind::Discounts),
            commitments: take(Kind::Commitments),
        };
        let book = Book::load(currency, &tables);
        findings.extend(book.findings.iter().map(ToString::to_string));
        let mut owners = Owners::default();
        let mut rules = take(Kind::Owners);
        rules.push(team_rules(&sources.cost.team_labels));
        let rules = rules.iter().map(|it| (it, Owners::read(&it.text)));
        let idle = take(Kind::Idle);
        let idle = idle.iter().map(|it| (it, Owners::read_idle(&it.text)));
        for (table, read) in rules.chain(idle) {
            match read {
                Ok(mut read) => {
                    let wrong = read.findings.drain(..);
                    findings.extend(wrong.map(|it| format!("{} {it}", table.name)));
                    owners.join(read);
                }
                Err(error) => findings.push(format!("{}: {error}", table.name)),
            }
        }
        // What only the tables together say.
        findings.append(&mut owners.findings);
        let mut budgets = Vec::new();
        for table in take(Kind::Budgets) {
            let (read, wrong) = tables::budgets(&table.text, currency);
            budgets.extend(read);
            findings.extend(wrong.into_iter().map(|it| format!("{} {it}", table.name)));
        }
        let mut quotas = Vec::new();
        for table in take(Kind::Quotas) {
            let (read, wrong) = tables::quotas(&table.text);
            quotas.extend(read);
            findings.extend(wrong.into_iter().map(|it| format!("{} {it}", table.name)));
        }
        let mut targets = Vec::new();
        for table in take(Kind::Targets) {
            let (read, wrong) = tables::targets(&table.text);
            targets.extend(read);
            findings.extend(wrong.into_iter().map(|it| format!("{} {it}", table.name)));
        }
        let mut standby = Vec::new();
        for table in take(Kind::Standby) {
            let (read, wrong) = tables::standby(&table.text);
            standby.extend(read);
            findings.extend(wrong.into_iter().map(|it| format!("{} {it}", table.name)));
        }
        findings.extend(tables::overlapping_budgets(&budgets));
        findings.extend(tables::overlapping_quotas(&quotas));
        let targets = Targets::new(&owners, targets);
        findings.extend(targets.overlaps());
        let findings = some(findings);
        Self {
            targets,
            standby: Standby::new(standby),
            book,
            owners,
            budgets,
            quotas,
            findings,
            sources,
            number: MADE.fetch_add(1, Ordering::Relaxed),
        }
    }
}

/// What a price is asked by.
pub(super) fn ask<'a>(
    machine: &Machine<'a>,
    (machine_type, basis, gpus): &'a Paid,
    from_ms: i64,
    until_ms: i64,
) -> Ask<'a> {
    Ask {
        machine_type,
        region: machine.region,
        gpu_model: machine.gpu_model,
        gpus: *gpus,
        basis: *basis,
        from_ms,
        until_ms,
    }
}

/// The machine type that stands for one of these GPUs.
fn own_name(key: &str) -> String {
    format!("own {key}")
}

/// As many findings as are told: of each table some, and how many more there are.
fn some(findings: Vec<String>) -> Vec<String> {
    let all = findings.len();
    if all <= MAX_FINDINGS {
        return findings;
    }
    // What a finding begins with is the table's name.
    let mut of_table: HashMap<String, usize> = HashMap::new();
    let mut is_first = |it: &String| {
        let table = it.split([' ', ':']).next().unwrap_or_default();
        let known = of_table.entry(table.to_owned()).or_default();
        *known += 1;
        *known <= MAX_OF_ONE
    };
    let (mut kept, others): (Vec<String>, Vec<String>) =
        findings.into_iter().partition(|it| is_first(it));
    kept.extend(others);
    kept.truncate(MAX_FINDINGS);
    kept.push(format!("and {} findings more", all - MAX_FINDINGS));
    kept
}

/// Machine types and rates of nodes that are priced by their card.
fn own_tables(prices: &BTreeMap<String, String>, currency: &str) -> (Text, Text) {
    let (mut machines, mut rates) = (String::new(), String::new());
    table::write(&mut machines, &load::MACHINES);
    table::write(&mut rates, &load::RATES);
    let source = "detect.gpu_hour_usd";
    for (key, price) in prices {
        // What is no price is refused when the configuration is read.
        let Ok(one) = money::parse(price) else {
            continue;
        };
        let name = own_name(key);
        table::write(&mut machines, &[&name, key, "1", "", ""]);
        let hour = money::decimal(i128::from(one));
        let basis = Basis::Own.name();
        let fields = [
            &name,
            "*",
            basis,
            currency,
            &hour,
            &hour,
            "1970-01-01",
            "",
            "list",
            source,
        ];
        table::write(&mut rates, &fields);
    }
    (Text::new(source, &machines), Text::new(source, &rates))
}

/// Owner rules that take the team from labels of pods.
fn team_rules(labels: &[String]) -> Text {
    let mut rules = String::new();
    table::write(&mut rules, &gpufleet_analysis::owner::COLUMNS);
    for label in labels {
        table::write(&mut rules, &["1970-01-01", "", "pod_label", label, "*", ""]);
    }
    Text::new("cost.team_labels", &rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_beyond_what_is_told_are_counted_and_hide_no_other_table() {
        let of = |table: &str, count: usize| -> Vec<String> {
            (1..=count)
                .map(|it| format!("{table} line {it}: wrong"))
                .collect()
        };
        let few = of("a.csv", MAX_FINDINGS);
        assert_eq!(some(few.clone()), few);
        let told = some([of("a.csv", 60), of("owners.csv", 2)].concat());
        assert_eq!(told.len(), MAX_FINDINGS + 1);
        assert!(
            told.contains(&"owners.csv line 2: wrong".to_owned()),
            "{told:?}"
        );
        assert_eq!(
            told.last().map(String::as_str),
            Some("and 12 findings more")
        );
    }
}

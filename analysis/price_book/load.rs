//! Reading a price book from tables: every row that cannot be used is named, with the reason. Rows of rates or discounts
//! that say the same are one: a table that is kept under two names contradicts nothing.

use std::collections::HashSet;

use super::finding::{Finding, Place, Problem};
use super::{Basis, Book, Commitment, Discount, MAX_GPUS, Machine, Quality, Rate};
use crate::money;
use crate::table::{self, TableError, TableRow};

mod field;

use field::{amount, basis_of, field, fields, not_empty, span, whole};

/// Columns of the table of machine types.
pub const MACHINES: [&str; 5] = [
    "machine_type",
    "gpu_model",
    "gpu_count",
    "vcpus",
    "memory_gib",
];

/// Columns of a table of rates.
pub const RATES: [&str; 10] = [
    "machine_type",
    "region",
    "basis",
    "currency",
    "hour",
    "gpu_hour",
    "from",
    "until",
    "quality",
    "source",
];

/// Columns of the table of discounts; `*` or an empty basis is every one.
pub const DISCOUNTS: [&str; 6] = [
    "machine_type",
    "region",
    "basis",
    "percent_off",
    "from",
    "until",
];

/// Columns of the table of commitments where each may name the cluster that it is of.
pub const COMMITMENTS_OF_CLUSTERS: [&str; 11] = [
    "id",
    "machine_type",
    "region",
    "nodes",
    "basis",
    "currency",
    "hour",
    "from",
    "until",
    "owner",
    "cluster",
];

/// The same where all are of all live clusters together.
pub const COMMITMENTS: [&str; 10] = [
    "id",
    "machine_type",
    "region",
    "nodes",
    "basis",
    "currency",
    "hour",
    "from",
    "until",
    "owner",
];

/// A table: what it is called and its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// Its name, for messages.
    pub name: String,
    /// What is in it.
    pub text: String,
}

/// What a book is read from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tables {
    /// Machine types.
    pub machines: Vec<Text>,
    /// Rates.
    pub rates: Vec<Text>,
    /// What was agreed to be taken off.
    pub discounts: Vec<Text>,
    /// What was committed to.
    pub commitments: Vec<Text>,
}

impl Text {
    /// A table.
    pub fn new(name: &str, text: &str) -> Self {
        Self {
            name: name.to_owned(),
            text: text.to_owned(),
        }
    }
}

impl Book {
    /// Reads a book in one currency. What cannot be used is in its findings.
    pub fn load(currency: &str, tables: &Tables) -> Self {
        let mut book = Self {
            currency: currency.to_owned(),
            findings: Vec::new(),
            machines: std::collections::BTreeMap::new(),
            rates: std::collections::BTreeMap::new(),
            discounts: Vec::new(),
            commitments: Vec::new(),
        };
        let exact = |columns: &'static [&'static str]| move |text: &str| table::read(text, columns);
        let committed = |text: &str| table::read_without_last(text, &COMMITMENTS_OF_CLUSTERS);
        book.rows(&tables.machines, exact(&MACHINES), Self::add_machine);
        book.rows(&tables.rates, exact(&RATES), Self::add_rate);
        book.rows(&tables.discounts, exact(&DISCOUNTS), Self::add_discount);
        book.rows(&tables.commitments, committed, Self::add_commitment);
        for rates in book.rates.values_mut() {
            rates.sort_by(|a, b| (a.from_ms, &a.place).cmp(&(b.from_ms, &b.place)));
            take_once(rates);
            close(rates);
        }
        book.check_series();
        book.check_spot();
        book
    }

    fn rows(
        &mut self,
        texts: &[Text],
        read: impl Fn(&str) -> Result<Vec<TableRow>, TableError>,
        add: fn(&mut Self, &Place, &TableRow) -> Result<(), Problem>,
    ) {
        for text in texts {
            let at = |line| Place {
                table: text.name.clone(),
                line,
            };
            let rows = read(&text.text).unwrap_or_else(|error| {
                self.find(at(0), Problem::Table(error));
                Vec::new()
            });
            for row in rows {
                let place = at(row.line);
                if let Err(problem) = add(self, &place, &row) {
                    self.find(place, problem);
                }
            }
        }
    }

    fn find(&mut self, place: Place, problem: Problem) {
        self.findings.push(Finding { place, problem });
    }

    fn add_machine(&mut self, _: &Place, row: &TableRow) -> Result<(), Problem> {
        let [name, gpu_model, gpu_count, vcpus, memory_gib] = fields(row);
        not_empty("machine_type", name)?;
        let number = |column, value: &str| match value {
            "" => Ok(None),
            _ => whole(column, value).map(Some),
        };
        let count = amount("gpu_count", gpu_count)?;
        let eighth = i64::try_from(money::NANOS / 8).expect("an eighth is small");
        if count < 0 || count % eighth != 0 {
            return Err(field("gpu_count", gpu_count, "GPUs come in eighths"));
        }
        let eighths = u32::try_from(count / eighth).ok();
        let too_many = || {
            let why = format!("so many GPUs are in no node, at most {MAX_GPUS}");
            field("gpu_count", gpu_count, &why)
        };
        let machine = Machine {
            gpu_model: gpu_model.to_owned(),
            gpu_eighths: eighths
                .filter(|it| *it <= 8 * MAX_GPUS)
                .ok_or_else(too_many)?,
            vcpus: number("vcpus", vcpus)?,
            memory_gib: number("memory_gib", memory_gib)?,
        };
        match self.machines.get(name) {
            Some(known) if *known != machine => Err(Problem::MachineTwice(name.to_owned())),
            _ => {
                self.machines.insert(name.to_owned(), machine);
                Ok(())
            }
        }
    }

    fn add_rate(&mut self, place: &Place, row: &TableRow) -> Result<(), Problem> {
        let [
            machine,
            region,
            basis,
            currency,
            hour,
            gpu_hour,
            from,
            until,
            quality,
            source,
        ] = fields(row);
        let eighths = self.known(machine)?;
        not_empty("region", region)?;
        let basis = basis_of(basis)?;
        let hour = self.rate_of(basis, "hour", currency, hour)?;
        let mut gpu_hour = match gpu_hour {
            "" => None,
            _ => Some(self.rate_of(basis, "gpu_hour", currency, gpu_hour)?),
        };
        let (from_ms, until_ms) = span(from, until)?;
        let quality = match quality {
            "list" | "" => Quality::Listed,
            "inferred" => Quality::Inferred,
            "suspect" => Quality::Suspect,
            _ => return Err(field("quality", quality, "list, inferred or suspect")),
        };
        let gpus = gpu_hour.map(|it| i128::from(it) * i128::from(eighths) / 8);
        if let Some(gpus) = gpus.filter(|it| *it > i128::from(hour)) {
            let (gpus, node) = (money::decimal(gpus), money::decimal(i128::from(hour)));
            self.find(place.clone(), Problem::GpuAboveNode { gpus, node });
            gpu_hour = None;
        }
        let series = (machine.to_owned(), region.to_owned(), basis);
        self.rates.entry(series).or_default().push(Rate {
            hour,
            gpu_hour,
            from_ms,
            until_ms,
            quality,
            source: source.to_owned(),
            place: place.clone(),
            end_ms: i64::MAX,
        });
        Ok(())
    }

    fn add_discount(&mut self, place: &Place, row: &TableRow) -> Result<(), Problem> {
        let [machine_type, region, basis, percent, from, until] = fields(row);
        not_empty("machine_type", machine_type)?;
        not_empty("region", region)?;
        let basis = match basis {
            "" | super::ANY => None,
            _ => Some(basis_of(basis)?),
        };
        // A percent is 10,000 millionths; finer than that is not an agreement.
        let millionth = 100_000;
        let nanos = amount("percent_off", percent)?;
        if nanos % millionth != 0 || !(0..=1_000_000 * millionth).contains(&nanos) {
            let why = "a percentage from 0 to 100 with at most 4 digits behind the point";
            return Err(field("percent_off", percent, why));
        }
        let (from_ms, until_ms) = span(from, until)?;
        let discount = Discount {
            machine_type: machine_type.to_owned(),
            region: region.to_owned(),
            basis,
            millionths: nanos / millionth,
            from_ms,
            until_ms,
            place: place.clone(),
        };
        if !self.discounts.iter().any(|it| it.says(&discount)) {
            self.discounts.push(discount);
        }
        Ok(())
    }

    fn add_commitment(&mut self, place: &Place, row: &TableRow) -> Result<(), Problem> {
        let [
            id,
            machine,
            region,
            nodes,
            basis,
            currency,
            hour,
            from,
            until,
            owner,
            cluster,
        ] = fields(row);
        not_empty("id", id)?;
        // Its price would stand for the node's with all GPUs in it, which are paid for beside the host.
        if self.known(machine)? == 0 || machine.contains('+') {
            return Err(Problem::PartCommitted(machine.to_owned()));
        }
        not_empty("region", region)?;
        not_empty("until", until)?;
        let name = basis;
        let basis = basis_of(basis)?;
        if !matches!(basis, Basis::Commitment1Year | Basis::Commitment3Years) {
            return Err(field("basis", name, "commitment_1y or commitment_3y"));
        }
        let (from_ms, until_ms) = span(from, until)?;
        let commitment = Commitment {
            id: id.to_owned(),
            machine_type: machine.to_owned(),
            region: region.to_owned(),
            nodes: whole("nodes", nodes)?,
            basis,
            hour: self.rate_of(basis, "hour", currency, hour)?,
            from_ms,
            until_ms: until_ms.expect("it is not empty"),
            owner: owner.to_owned(),
            cluster: cluster.to_owned(),
            place: place.clone(),
        };
        let first = self.commitments.iter().find(|it| it.is_same(&commitment));
        if let Some(first) = first {
            let (id, first) = (commitment.id, first.place.clone());
            return Err(Problem::CommittedTwice { id, first });
        }
        self.commitments.push(commitment);
        Ok(())
    }

    /// The GPUs of a known machine type, in eighths.
    fn known(&self, machine: &str) -> Result<u32, Problem> {
        not_empty("machine_type", machine)?;
        let known = self.machines.get(machine).map(|it| it.gpu_eighths);
        known.ok_or_else(|| Problem::UnknownMachine(machine.to_owned()))
    }

    /// A price an hour. One of nothing is meant only of a machine that is bought: of any other it is a field that
    /// somebody did not fill in, and time at it would read free.
    fn rate_of(
        &self,
        basis: Basis,
        column: &'static str,
        currency: &str,
        value: &str,
    ) -> Result<i64, Problem> {
        if currency != self.currency {
            return Err(Problem::Currency {
                found: currency.to_owned(),
                book: self.currency.clone(),
            });
        }
        match amount(column, value)? {
            price if price < 0 => Err(Problem::Negative(value.to_owned())),
            0 if basis != Basis::Own => Err(Problem::Free(column)),
            price => Ok(price),
        }
    }

    /// Names gaps and overlaps of each series.
    fn check_series(&mut self) {
        let mut found = Vec::new();
        for rates in self.rates.values() {
            for pair in rates.windows(2) {
                let [one, next] = pair else { continue };
                let end = one.until_ms.unwrap_or(next.from_ms);
                let problem = if end > next.from_ms || one.from_ms == next.from_ms {
                    Problem::Overlap(one.place.clone())
                } else if end < next.from_ms {
                    Problem::Gap {
                        from: table::moment_text(end),
                        until: table::moment_text(next.from_ms),
                    }
                } else {
                    continue;
                };
                found.push((next.place.clone(), problem));
            }
        }
        found.into_iter().for_each(|(at, it)| self.find(at, it));
    }

    /// Names Spot that is not below the on-demand price of a time that both hold.
    fn check_spot(&mut self) {
        let mut found = Vec::new();
        let spot = self.rates.iter().filter(|it| it.0.2 == Basis::Spot);
        for ((machine, region, _), rates) in spot {
            let listed = self.series(machine, region, Basis::OnDemand);
            let pairs = rates
                .iter()
                .flat_map(|it| listed.iter().map(move |on| (it, on)));
            for (rate, other) in pairs.filter(|(rate, other)| rate.is_not_below(other)) {
                let problem = Problem::SpotNotBelow {
                    spot: money::decimal(i128::from(rate.hour)),
                    on_demand: money::decimal(i128::from(other.hour)),
                    other: other.place.clone(),
                };
                found.push((rate.place.clone(), problem));
            }
        }
        found.into_iter().for_each(|(at, it)| self.find(at, it));
    }
}

impl Rate {
    /// Whether it holds at a moment.
    pub(super) const fn holds(&self, at_ms: i64) -> bool {
        self.from_ms <= at_ms && at_ms < self.end_ms
    }

    /// Whether it is not below another at some time.
    fn is_not_below(&self, other: &Self) -> bool {
        let both = self.from_ms.max(other.from_ms)..self.end_ms.min(other.end_ms);
        self.hour >= other.hour && !both.is_empty()
    }
}

impl Discount {
    /// Whether its row says the same as another.
    fn says(&self, other: &Self) -> bool {
        let words = |it: &Self| (it.basis, it.millionths, it.from_ms, it.until_ms);
        words(self) == words(other)
            && self.machine_type == other.machine_type
            && self.region == other.region
    }
}

impl Commitment {
    /// Whether another row is of the same commitment at the same time, so that both together would count twice. Rows of
    /// two clusters are the parts that each has of it.
    fn is_same(&self, other: &Self) -> bool {
        let is_of_both =
            self.cluster == other.cluster || self.cluster.is_empty() || other.cluster.is_empty();
        self.id == other.id
            && is_of_both
            && self.from_ms < other.until_ms
            && other.from_ms < self.until_ms
    }
}

/// Keeps of rates of a series whose rows say the same the first.
fn take_once(rates: &mut Vec<Rate>) {
    let mut known = HashSet::new();
    rates.retain(|it| {
        let prices = (it.hour, it.gpu_hour, it.from_ms, it.until_ms);
        known.insert((prices, it.quality, it.source.clone()))
    });
}

/// Says of each rate of a series, in the order of time, until when it holds.
fn close(rates: &mut [Rate]) {
    let (mut begins, mut next) = (i64::MAX, i64::MAX);
    for rate in rates.iter_mut().rev() {
        if rate.from_ms < begins {
            (begins, next) = (rate.from_ms, begins);
        }
        rate.end_ms = rate.until_ms.unwrap_or(next);
    }
}

//! What a node costs an hour, when, where and on what terms; and why it has no price.
//!
//! Method. A *series* is the rates of one machine type, region and basis. A rate holds from its date until its end, without
//! one until the next of its series begins. At a moment exactly one rate must hold: none is a gap, two are an overlap (rows
//! that say the same are one), and both are [`Unpriced`]. Nothing is carried over from another region, basis or date. A Spot rate that is not below the
//! on-demand rate of its time is refused. A host without GPUs of its own (`n1-standard-16`) costs its own rate and that of
//! each GPU added to it (`n1+nvidia-tesla-t4`). A negotiated discount is taken off the list rate and rounded once to the
//! nano-unit; two discounts on one rate are no price.
//!
//! Numbers. Nano-units of one currency an hour; moments in Unix milliseconds, intervals half open.
//! Spot is a series like the others: a3-highgpu-8g in us-central1 went from 62.5 to 20.4 to 50.6 USD.
//!
//! Limits. The shipped table has no rates of flex-start, and GPU rates apart only for N1; of the others the GPU's own part
//! is not known and reads unpriced until a catalog ([`catalog`]) or an own table says it.

use std::collections::{BTreeMap, BTreeSet};

mod by_card;

pub mod catalog;

pub mod export;

mod finding;

pub mod load;

#[cfg(test)]
mod tests;

mod unpriced;

pub use finding::{Finding, Place, Problem};
pub use load::{Tables, Text};
pub use unpriced::Unpriced;

use crate::money;

/// The shipped machine types.
pub const SHIPPED_MACHINES: &str = include_str!("price_book/machines.csv");

/// The shipped prices; their sources and dates are in the file.
pub const SHIPPED_PRICES: &str = include_str!("price_book/gcp.csv");

/// A region that stands for every region: own rates of machines that are bought.
pub const ANY: &str = "*";

/// Most GPUs of one node: twice what the largest has. More is another column's number, the MiB of a card, and each would
/// have its time in the ledger.
pub const MAX_GPUS: u32 = 32;

/// On what terms a node is paid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Basis {
    /// The list price without terms.
    OnDemand,
    /// Capacity that can be taken back.
    Spot,
    /// Google's flex-start: begun when there is room, for a week at most, at a rate of its own.
    FlexStart,
    /// Committed for a year.
    Commitment1Year,
    /// Committed for three years.
    Commitment3Years,
    /// An own rate, of machines that are bought.
    Own,
}

/// How far a rate can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Quality {
    /// Published or agreed.
    Listed,
    /// Put together from other prices.
    Inferred,
    /// Published, and probably of something else.
    Suspect,
}

/// What a node of a machine type has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Its GPU, as the provider calls it; empty without one.
    pub gpu_model: String,
    /// GPUs in eighths of one: a g4-standard-6 has one eighth.
    pub gpu_eighths: u32,
    /// Virtual cores, if known.
    pub vcpus: Option<u32>,
    /// Memory, GiB, if known.
    pub memory_gib: Option<u32>,
}

/// A rate of a series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rate {
    /// Nano-units an hour of the whole node; of one GPU for a type with a plus sign.
    pub hour: i64,
    /// Of it, what one GPU costs by itself, if known.
    pub gpu_hour: Option<i64>,
    /// Holds from here.
    pub from_ms: i64,
    /// And until here; none: until the next of its series.
    pub until_ms: Option<i64>,
    /// How far it can be trusted.
    pub quality: Quality,
    /// Where it comes from.
    pub source: String,
    /// Its row.
    pub place: Place,
    /// Until when it holds: its own end, else the beginning of the next, else for good.
    end_ms: i64,
}

/// What is agreed to be taken off.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Discount {
    machine_type: String,
    region: String,
    basis: Option<Basis>,
    millionths: i64,
    from_ms: i64,
    until_ms: Option<i64>,
    place: Place,
}

/// Nodes that are paid for whether they are used or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commitment {
    /// Its name.
    pub id: String,
    /// The machine type.
    pub machine_type: String,
    /// The region.
    pub region: String,
    /// How many nodes.
    pub nodes: u32,
    /// One year or three.
    pub basis: Basis,
    /// Nano-units an hour of each node.
    pub hour: i64,
    /// From here.
    pub from_ms: i64,
    /// Until here.
    pub until_ms: i64,
    /// Which team answers for what is not used; empty: the platform.
    pub owner: String,
    /// The cluster whose nodes alone it covers; empty: those of all live ones.
    pub cluster: String,
    /// Its row.
    pub place: Place,
}

/// A series: machine type, region, basis.
type Series = (String, String, Basis);

/// Every rate that is known, in one currency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Book {
    /// The currency, as ISO 4217 has it.
    pub currency: String,
    /// What was wrong with what was read, in the order of the tables.
    pub findings: Vec<Finding>,
    machines: BTreeMap<String, Machine>,
    rates: BTreeMap<Series, Vec<Rate>>,
    discounts: Vec<Discount>,
    commitments: Vec<Commitment>,
}

/// Whose price is asked for, for which time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask<'a> {
    /// The machine type.
    pub machine_type: &'a str,
    /// The region.
    pub region: &'a str,
    /// The model of the GPUs that were added to a host; not looked at for other types.
    pub gpu_model: &'a str,
    /// How many were added.
    pub gpus: u32,
    /// On what terms.
    pub basis: Basis,
    /// From here.
    pub from_ms: i64,
    /// Until here.
    pub until_ms: i64,
}

/// What a node costs, nano-units an hour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quote {
    /// As published for this basis.
    pub list_hour: i64,
    /// After what was agreed.
    pub hour: i64,
    /// Of it, all its GPUs by themselves; none when not known.
    pub gpu_part_hour: Option<i64>,
    /// How far it can be trusted.
    pub quality: Quality,
    /// Where it comes from.
    pub source: String,
}

/// A stretch of time with one price, or with one reason why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// From here.
    pub from_ms: i64,
    /// Until here.
    pub until_ms: i64,
    /// The price.
    pub quote: Result<Quote, Unpriced>,
}

impl Basis {
    /// Every basis.
    pub const ALL: [Self; 6] = [
        Self::OnDemand,
        Self::Spot,
        Self::FlexStart,
        Self::Commitment1Year,
        Self::Commitment3Years,
        Self::Own,
    ];

    /// Its name in tables and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "on_demand",
            Self::Spot => "spot",
            Self::FlexStart => "flex_start",
            Self::Commitment1Year => "commitment_1y",
            Self::Commitment3Years => "commitment_3y",
            Self::Own => "own",
        }
    }

    /// The basis of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}

impl Machine {
    /// How many GPUs a node of it shows, and is counted with wherever GPU time is told: a part of one is one. 0 of a
    /// host without any.
    pub const fn gpus(&self) -> u32 {
        self.gpu_eighths.div_ceil(8)
    }
}

impl Commitment {
    /// Whether it may cover nodes of this machine type, region and cluster that are paid on demand.
    pub fn is_for(&self, (machine_type, region, cluster): (&str, &str, &str)) -> bool {
        let is_of_cluster = self.cluster.is_empty() || self.cluster == cluster;
        is_of_cluster && self.machine_type == machine_type && self.region == region
    }
}

/// What a second of one of so many GPUs costs, rounded to the nano-unit, where an hour of their node costs `hour`; none
/// where that does not fit.
pub fn second_of(hour: i64, gpus: u32) -> Option<i64> {
    let second = money::ratio(hour.into(), 1, i128::from(gpus.max(1)) * 3_600);
    second.and_then(|it| i64::try_from(it).ok())
}

impl Book {
    /// The shipped prices.
    pub fn shipped() -> Self {
        let tables = Tables {
            machines: vec![Text::new("machines.csv", SHIPPED_MACHINES)],
            rates: vec![Text::new("gcp.csv", SHIPPED_PRICES)],
            ..Tables::default()
        };
        Self::load("USD", &tables)
    }

    /// What a node of this type has.
    pub fn machine(&self, machine_type: &str) -> Option<&Machine> {
        self.machines.get(machine_type)
    }

    /// Every machine type, by name.
    pub fn machines(&self) -> impl Iterator<Item = (&str, &Machine)> {
        self.machines.iter().map(|(name, it)| (name.as_str(), it))
    }

    /// What is committed.
    pub fn commitments(&self) -> &[Commitment] {
        &self.commitments
    }

    /// The price over a time, in stretches that follow each other without a gap.
    pub fn quote(&self, ask: &Ask<'_>) -> Vec<Stretch> {
        let mut cuts = BTreeSet::from([ask.from_ms]);
        let discounts = self.discounts.iter();
        let edges = discounts.flat_map(|it| [Some(it.from_ms), it.until_ms]);
        cuts.extend(edges.flatten());
        // Spot has no price from when that on demand is not above it until it is again.
        let compared = (ask.basis == Basis::Spot).then_some(Basis::OnDemand);
        for machine in [ask.machine_type.to_owned(), ask.added()] {
            for basis in [ask.basis].into_iter().chain(compared) {
                let rates = self.series(&machine, ask.region, basis);
                cuts.extend(rates.iter().flat_map(|it| [it.from_ms, it.end_ms]));
            }
        }
        let inside = cuts.into_iter().filter(|at| ask.is_within(*at));
        let cuts: Vec<i64> = inside.collect();
        let mut stretches: Vec<Stretch> = Vec::new();
        for (index, from_ms) in cuts.iter().enumerate() {
            let until_ms = cuts.get(index + 1).copied().unwrap_or(ask.until_ms);
            let quote = self.at(ask, *from_ms);
            match stretches.last_mut() {
                Some(last) if last.quote == quote => last.until_ms = until_ms,
                _ => stretches.push(Stretch {
                    from_ms: *from_ms,
                    until_ms,
                    quote,
                }),
            }
        }
        stretches
    }

    /// What one of its GPUs costs a second at a moment, with its part of the node: for prices of
    /// incidents, rounded to the nano-unit. Sums that must balance go by [`Self::quote`].
    ///
    /// # Errors
    /// When there is no price.
    pub fn gpu_second(&self, ask: &Ask<'_>) -> Result<i64, Unpriced> {
        let quote = self.at(ask, ask.from_ms)?;
        let gpus = match self.machine(ask.machine_type).map_or(0, Machine::gpus) {
            0 => ask.gpus,
            own => own,
        };
        second_of(quote.hour, gpus).ok_or_else(|| Unpriced::TooLarge(ask.machine_type.to_owned()))
    }

    /// The price at a moment.
    fn at(&self, ask: &Ask<'_>, at_ms: i64) -> Result<Quote, Unpriced> {
        if ask.machine_type.is_empty() {
            return Err(Unpriced::NoMachine);
        }
        let unknown = || Unpriced::UnknownMachine(ask.machine_type.to_owned());
        let machine = self.machine(ask.machine_type).ok_or_else(unknown)?;
        let rate = self.rate(ask.machine_type, ask, at_ms)?;
        let name = || series_name(ask.machine_type, ask.region, ask.basis);
        let too_large = || Unpriced::TooLarge(name());
        let mut quote = Quote {
            list_hour: rate.hour,
            hour: 0,
            gpu_part_hour: rate.gpu_hour.and_then(|hour| {
                i64::try_from(i128::from(hour) * i128::from(machine.gpu_eighths) / 8).ok()
            }),
            quality: rate.quality,
            source: rate.source.clone(),
        };
        if machine.gpu_eighths == 0 && ask.gpus > 0 {
            let added = self.rate(&ask.added(), ask, at_ms)?;
            let part = added.hour.checked_mul(i64::from(ask.gpus));
            let part = part.ok_or_else(too_large)?;
            quote.list_hour = quote.list_hour.checked_add(part).ok_or_else(too_large)?;
            quote.gpu_part_hour = Some(part);
            quote.quality = quote.quality.max(added.quality);
            if added.source != quote.source {
                quote.source = format!("{} and {}", quote.source, added.source);
            }
        }
        let kept = 1_000_000 - self.discount(ask, at_ms)?;
        let after = |hour: i64| {
            let hour = money::ratio(i128::from(hour), i128::from(kept), 1_000_000);
            hour.and_then(|it| i64::try_from(it).ok())
                .ok_or_else(too_large)
        };
        quote.hour = after(quote.list_hour)?;
        quote.gpu_part_hour = quote.gpu_part_hour.map(after).transpose()?;
        Ok(quote)
    }

    /// The rates of a series, of the region itself or else of every region.
    fn series(&self, machine_type: &str, region: &str, basis: Basis) -> &[Rate] {
        let of = |region: &str| {
            let key = (machine_type.to_owned(), region.to_owned(), basis);
            self.rates.get(&key).map(Vec::as_slice)
        };
        of(region).or_else(|| of(ANY)).unwrap_or_default()
    }

    /// The one rate of a series that holds at a moment.
    fn rate(&self, machine_type: &str, ask: &Ask<'_>, at_ms: i64) -> Result<&Rate, Unpriced> {
        let series = || series_name(machine_type, ask.region, ask.basis);
        let rates = self.series(machine_type, ask.region, ask.basis);
        let first = rates.first().ok_or_else(|| Unpriced::NoRate(series()))?;
        let mut holding = rates.iter().filter(|it| it.holds(at_ms));
        let is_refused =
            |it: &Rate| ask.basis == Basis::Spot && self.is_too_dear(machine_type, ask, it, at_ms);
        match (holding.next(), holding.next()) {
            (Some(rate), None) if is_refused(rate) => Err(Unpriced::Refused {
                series: series(),
                place: rate.place.clone(),
            }),
            (Some(rate), None) => Ok(rate),
            (Some(first), Some(second)) => Err(Unpriced::Overlap {
                series: series(),
                first: first.place.clone(),
                second: second.place.clone(),
            }),
            (None, _) if at_ms < first.from_ms => Err(Unpriced::Before {
                series: series(),
                first: crate::table::moment_text(first.from_ms),
            }),
            (None, _) => Err(Unpriced::Gap {
                series: series(),
                at: crate::table::moment_text(at_ms),
            }),
        }
    }

    /// Whether Spot is not below what the same costs on demand at a moment.
    fn is_too_dear(&self, machine_type: &str, ask: &Ask<'_>, spot: &Rate, at_ms: i64) -> bool {
        let listed = self.series(machine_type, ask.region, Basis::OnDemand);
        let mut listed = listed.iter().filter(|it| it.holds(at_ms));
        listed.any(|it| it.hour <= spot.hour)
    }

    /// What is taken off at a moment, millionths.
    fn discount(&self, ask: &Ask<'_>, at_ms: i64) -> Result<i64, Unpriced> {
        let is_any = |pattern: &str, value: &str| pattern == ANY || pattern == value;
        let mut holding = self.discounts.iter().filter(|it| {
            is_any(&it.machine_type, ask.machine_type)
                && is_any(&it.region, ask.region)
                && it.basis.is_none_or(|basis| basis == ask.basis)
                && it.from_ms <= at_ms
                && it.until_ms.is_none_or(|until| at_ms < until)
        });
        match (holding.next(), holding.next()) {
            (None, _) => Ok(0),
            (Some(it), None) => Ok(it.millionths),
            (Some(first), Some(second)) => Err(Unpriced::TwoDiscounts {
                series: series_name(ask.machine_type, ask.region, ask.basis),
                first: first.place.clone(),
                second: second.place.clone(),
            }),
        }
    }
}

impl Ask<'_> {
    fn is_within(&self, at_ms: i64) -> bool {
        self.from_ms <= at_ms && at_ms < self.until_ms
    }

    /// The machine type of one GPU that was added: `n1+nvidia-tesla-t4`.
    fn added(&self) -> String {
        let family = self.machine_type.split('-').next().unwrap_or_default();
        format!("{family}+{}", self.gpu_model)
    }
}

fn series_name(machine_type: &str, region: &str, basis: Basis) -> String {
    format!("{machine_type} in {region}, {}", basis.name())
}

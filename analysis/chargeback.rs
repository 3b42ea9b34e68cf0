//! Who owes what for a month: every GPU-millisecond that was billed, in one line, with its money.
//!
//! Method. The input is what the nodes were billed and what their GPUs did, period by period (an
//! hour, or a day of daily roll-ups). Of each node and period:
//!
//! 1. `spread`: the GPUs' time becomes integers that add up to GPUs × billed time. Shares count
//!    by their part of the GPU; the part of no share is `unallocated` (stranded); time that nobody
//!    accounted is `unobserved`, or `starting_node` while the node was not ready yet; time beyond what was billed (clocks that disagree) is scaled to it
//!    and noted. So idle is never negative and nothing is dropped.
//! 2. `cover`: which of it commitments cover, hour by hour; `price`: the node's time in slices of one price: covered by a
//!    commitment, at the rate of its basis, or without a price. Each slice is rounded once, to the nano-unit.
//! 3. A slice's money is divided over the lines by largest remainder. So the lines of a node add up
//!    to its price exactly, and all lines to the node-hours' price and the unused commitments.
//!
//! Numbers. GPU-milliseconds (i64), nano-units (i128). A period that is a whole hour at one rate
//! costs that rate exactly. Time without a price has lines without money: unpriced, never 0.
//!
//! Limits. Within a period money follows time at the period's mean rate: what was done before and
//! after a change of price within one period, of the server's a day, is not told apart.

use std::collections::BTreeMap;

mod make;

mod cover;

pub mod standing;

mod price;

mod spread;

pub mod budget;

pub mod change;

pub mod commitments;

mod gpu_only;

pub mod quota;

pub mod reconcile;

pub mod spot;

pub mod variance;

pub mod view;

#[cfg(test)]
pub(crate) mod fixture;

#[cfg(test)]
mod month_tests;

#[cfg(test)]
mod tests;

use crate::ledger::{Energy, Reason, State};
pub use make::chargeback;

use crate::owner::{Holder, Owners, Payer};
use crate::price_book::{Basis, Book, Commitment, Quality};
use crate::states::{Accounted, Held};

/// Milliseconds of a day.
pub const MILLIS_PER_DAY: i64 = 86_400_000;

/// A node, as far as its price needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its cluster.
    pub cluster: String,
    /// Its name.
    pub name: String,
    /// The provider's name of the machine; empty when not known.
    pub resource: String,
    /// The provider's project.
    pub project: String,
    /// The pool it belongs to, as [`pool`](crate::owner::idle::pool) has it.
    pub pool: String,
    /// Its machine type; empty when not known.
    pub machine_type: String,
    /// Its region.
    pub region: String,
    /// Its zone.
    pub zone: String,
    /// The model of its GPUs.
    pub gpu_model: String,
    /// How many it has; 0 when not known, then as many as were seen.
    pub gpus: u32,
    /// On what terms it is paid. What a commitment covers is paid by that.
    pub basis: Basis,
    /// The machine type that stands for one of its cards, by whose own rate it is priced while its own has none.
    pub card: Option<String>,
    /// Of whom it is; none where nobody knows.
    pub seller: Option<Seller>,
}

/// Who sells machines, and as what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seller {
    /// Who, such as `Google Cloud`.
    pub provider: String,
    /// The service, such as `Compute Engine`.
    pub service: String,
}

/// What the input points into.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fleet {
    /// Nodes.
    pub nodes: Vec<Node>,
    /// GPUs by their UUID.
    pub gpus: Vec<String>,
    /// Shares by their id.
    pub shares: Vec<String>,
    /// Holders.
    pub holders: Vec<Holder>,
}

/// One node in one period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePeriod {
    /// The node.
    pub node: usize,
    /// The period's first millisecond.
    pub from_ms: i64,
    /// The one after its last.
    pub until_ms: i64,
    /// When in it the node was billed, one after the other.
    pub billed: Vec<(i64, i64)>,
    /// Of that, how long it was not ready yet: time that none of its GPUs accounted is `starting_node`
    /// for so long and `unobserved` beyond.
    pub starting_millis: i64,
    /// What its GPUs did.
    pub gpus: Vec<GpuPeriod>,
}

/// One GPU in one period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuPeriod {
    /// The GPU.
    pub gpu: usize,
    /// How long the card itself was accounted; of a card with shares, what they do not fill of it
    /// is stranded.
    pub present_millis: i64,
    /// Where its time and that of its shares went.
    pub parts: Vec<Part>,
}

/// Time of a GPU or a share in one state in one holder's hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The share; none: the whole GPU.
    pub share: Option<usize>,
    /// Its part of the GPU: compute slices of 7 (of an A30 4), 1 of as many replicas, 1 of 1.
    pub slices: u32,
    /// Of how many.
    pub of: u32,
    /// Who held it.
    pub holder: Option<usize>,
    /// The state.
    pub state: State,
    /// Why.
    pub reason: Reason,
    /// How long.
    pub millis: i64,
    /// Of it, what inefficiency lost.
    pub lost_millis: i64,
    /// What was drawn in it.
    pub energy: Energy,
}

/// How time was paid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tariff {
    /// At the rate of a basis.
    Rate {
        /// The basis.
        basis: Basis,
        /// How far the rate can be trusted.
        quality: Quality,
    },
    /// Covered by a commitment.
    Committed {
        /// Its name.
        id: String,
        /// One year or three.
        basis: Basis,
    },
    /// A commitment that nothing used.
    Unused {
        /// Its name.
        id: String,
        /// One year or three.
        basis: Basis,
    },
    /// Not at all, as far as it is known.
    Unpriced(String),
}

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The node; none of a commitment that nothing used.
    pub node: Option<usize>,
    /// The GPU; none where it was never seen, and where it is not asked for ([`Detail`]).
    pub gpu: Option<usize>,
    /// The share.
    pub share: Option<usize>,
    /// The holder.
    pub holder: Option<usize>,
    /// Who pays, an index into [`Chargeback::payers`].
    pub payer: usize,
    /// The state.
    pub state: State,
    /// Why.
    pub reason: Reason,
    /// How it was paid, an index into [`Chargeback::tariffs`].
    pub tariff: usize,
}

/// Time and money.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sum {
    /// GPU-milliseconds.
    pub gpu_millis: i64,
    /// Nano-units: the GPU's part of its node's price.
    pub cost: i128,
    /// The same at the published rate.
    pub list: i128,
    /// The GPU's own price, without its node; of the time for which it is known.
    pub gpu_cost: i128,
    /// GPU-milliseconds for which the GPU's own price is not known.
    pub gpu_unpriced_millis: i64,
    /// GPU-milliseconds without any price.
    pub unpriced_millis: i64,
    /// Of inefficient time, what was missing to the target.
    pub lost_millis: i64,
    /// What was drawn in the time of which that was told.
    pub energy: Energy,
}

/// Node time by machine type, region and tariff.
pub type NodeTime = BTreeMap<(String, String, usize), NodeSum>;

/// What nodes were billed for and what that costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeSum {
    /// Node-milliseconds.
    pub node_millis: i64,
    /// Nano-units.
    pub cost: i128,
}

/// A day of a payer in a pool, what was idle of it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day {
    /// Days since the epoch.
    pub day: i64,
    /// The pool, an index into [`Chargeback::pools`].
    pub pool: usize,
    /// The payer.
    pub payer: usize,
    /// The last edge of the owner rules and policies not after the period.
    pub since_ms: i64,
    /// Whether it was idle: of what nobody held only that is divided by the policies.
    pub is_idle: bool,
}

/// The result.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chargeback {
    /// Its first millisecond.
    pub from_ms: i64,
    /// The one after its last.
    pub until_ms: i64,
    /// The currency.
    pub currency: String,
    /// Who pays.
    pub payers: Vec<Payer>,
    /// How things were paid.
    pub tariffs: Vec<Tariff>,
    /// The pools.
    pub pools: Vec<String>,
    /// The lines, by what they are about.
    pub lines: BTreeMap<Key, Sum>,
    /// What the nodes cost by themselves: what the lines must add up to.
    pub nodes: NodeTime,
    /// The same by day, pool and payer.
    pub days: BTreeMap<Day, Sum>,
    /// What was bought at Spot, and what it would have cost on demand.
    pub spot: BTreeMap<spot::Place, spot::Bought>,
    /// What did not fit together and how often.
    pub notes: BTreeMap<String, u64>,
}

/// How far lines are told apart. Whoever shows no GPU needs far fewer lines; the money of what they are
/// grouped by is the same to the nano-unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// By GPU and share.
    Gpus,
    /// By node: lines have neither.
    Nodes,
}

/// What a month is made from.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// How far lines are told apart.
    pub detail: Detail,
    /// Its first millisecond.
    pub from_ms: i64,
    /// The one after its last.
    pub until_ms: i64,
    /// The moment at which it is asked, of what has not happened yet nothing is told: until then commitments count as paid.
    pub now_ms: i64,
    /// What the periods point into.
    pub fleet: &'a Fleet,
    /// Periods, in any order; each node and period once, periods of one grid.
    pub periods: &'a [NodePeriod],
    /// Prices.
    pub book: &'a Book,
    /// What is committed to for these nodes: each covers those of the cluster that it names, else all of them.
    pub commitments: &'a [Commitment],
    /// Owners.
    pub owners: &'a Owners,
}

impl GpuPeriod {
    /// A whole GPU's hour as [`crate::states::account`] has it. A holder's number there is its index
    /// in [`Fleet::holders`] and 1.
    pub fn whole(gpu: usize, accounted: &Accounted) -> Self {
        let held = accounted.held.iter();
        let part = |((holder, state, reason), held): (&(i64, State, Reason), &Held)| Part {
            share: None,
            slices: 1,
            of: 1,
            holder: holder
                .checked_sub(1)
                .and_then(|it| usize::try_from(it).ok()),
            state: *state,
            reason: *reason,
            millis: held.millis,
            lost_millis: held.lost_millis,
            energy: held.energy,
        };
        Self {
            gpu,
            present_millis: accounted.ledger.total_millis(),
            parts: held.map(part).collect(),
        }
    }
}

impl Sum {
    /// Adds another.
    pub fn add(&mut self, other: &Self) {
        self.gpu_millis += other.gpu_millis;
        self.cost += other.cost;
        self.list += other.list;
        self.gpu_cost += other.gpu_cost;
        self.gpu_unpriced_millis += other.gpu_unpriced_millis;
        self.unpriced_millis += other.unpriced_millis;
        self.lost_millis += other.lost_millis;
        self.energy.add(other.energy);
    }
}

impl Chargeback {
    /// All lines together.
    pub fn total(&self) -> Sum {
        let mut total = Sum::default();
        self.lines.values().for_each(|it| total.add(it));
        total
    }

    /// What the nodes and the unused commitments cost by themselves.
    pub fn nodes_cost(&self) -> i128 {
        self.nodes.values().map(|it| it.cost).sum()
    }
}

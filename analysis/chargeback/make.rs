//! Putting lines together: spread a node's time, slice its price, divide the one over the other.

use std::collections::HashMap;

use super::Tariff;
use super::cover::{Coverage, Unused};
use super::price::{self, Priced};
use super::spot::Place;
use super::spread;
use super::{Asked, Chargeback, Day, Detail, Key, MILLIS_PER_DAY, NodePeriod, Sum};
use crate::ledger::{Energy, Reason, State};
use crate::owner::{PLATFORM, Payer};
use crate::price_book::Basis;

/// Accounts a month.
pub fn chargeback(asked: &Asked<'_>) -> Chargeback {
    let mut maker = Maker::new(asked);
    let coverage = Coverage::of(asked);
    let mut prices = price::Prices::new(asked);
    for (index, period) in asked.periods.iter().enumerate() {
        if period.from_ms < asked.from_ms || period.until_ms > asked.until_ms {
            let note = "a period outside the time asked for was left out".to_owned();
            *maker.made.notes.entry(note).or_default() += 1;
            continue;
        }
        maker.node(index, period, &coverage, &mut prices);
    }
    for unused in coverage.unused {
        maker.unused(&unused);
    }
    maker.made.lines = maker.lines.into_iter().collect();
    maker.made
}

/// Puts lines together.
struct Maker<'a> {
    asked: &'a Asked<'a>,
    made: Chargeback,
    lines: HashMap<Key, Sum>,
    /// Indexes of what was met.
    payer_of: HashMap<Payer, usize>,
    tariff_of: HashMap<Tariff, usize>,
    pool_of: HashMap<String, usize>,
    /// The cluster of each node, as a number: that of the first node of it.
    cluster_of: Vec<usize>,
    /// The payer of a holder in a cluster since an edge of the rules.
    owner_of: HashMap<(usize, usize, i64), usize>,
    edges: Vec<i64>,
}

impl<'a> Maker<'a> {
    fn new(asked: &'a Asked<'a>) -> Self {
        let mut clusters: HashMap<&str, usize> = HashMap::new();
        let nodes = asked.fleet.nodes.iter().enumerate();
        let cluster_of = nodes.map(|(at, it)| *clusters.entry(&it.cluster).or_insert(at));
        Self {
            cluster_of: cluster_of.collect(),
            asked,
            made: Chargeback {
                from_ms: asked.from_ms,
                until_ms: asked.until_ms,
                currency: asked.book.currency.clone(),
                ..Chargeback::default()
            },
            lines: HashMap::new(),
            payer_of: HashMap::new(),
            tariff_of: HashMap::new(),
            pool_of: HashMap::new(),
            owner_of: HashMap::new(),
            edges: asked.owners.edges(),
        }
    }

    fn node(
        &mut self,
        index: usize,
        period: &NodePeriod,
        coverage: &Coverage,
        prices: &mut price::Prices<'a>,
    ) {
        let node = &self.asked.fleet.nodes[period.node];
        let mut notes = Vec::new();
        let spread = spread::spread(node, period, &mut notes);
        for note in notes {
            *self
                .made
                .notes
                .entry(format!("{}: {note}", node.name))
                .or_default() += 1;
        }
        let since_ms = self.edges.iter().rev().find(|it| **it <= period.from_ms);
        let since_ms = since_ms.copied().unwrap_or(i64::MIN);
        let gpus = spread.gpus;
        if node.basis == Basis::Spot {
            let bought = prices.bought(period, gpus);
            self.made
                .spot
                .entry(Place::of(node))
                .or_default()
                .add(&bought);
        }
        let mut left: Vec<i64> = spread.pieces.iter().map(|it| it.gpu_millis).collect();
        let slices = prices.slices(index, period, coverage);
        let count = slices.len();
        let mut drawn: Vec<Energy> = spread.pieces.iter().map(|it| it.energy).collect();
        for (at, slice) in slices.into_iter().enumerate() {
            let tariff = index_of(&slice.tariff, &mut self.tariff_of, &mut self.made.tariffs);
            let key = (node.machine_type.clone(), node.region.clone(), tariff);
            let sum = self.made.nodes.entry(key).or_default();
            sum.node_millis += slice.node_millis;
            sum.cost += slice.priced.map_or(0, |it| it.cost);
            let taken = match at + 1 == count {
                true => left.clone(),
                false => spread::take(slice.node_millis * gpus, &left),
            };
            let money = Money::divided(slice.priced.as_ref(), &taken);
            for (index, piece) in spread.pieces.iter().enumerate() {
                let millis = taken[index];
                let energy = divided(&mut drawn[index], millis, left[index]);
                let sum = piece.sum(millis, money[index], energy);
                self.add(period, piece, tariff, since_ms, &sum);
                left[index] -= millis;
            }
        }
    }

    fn add(
        &mut self,
        period: &NodePeriod,
        piece: &spread::Piece,
        tariff: usize,
        since_ms: i64,
        sum: &Sum,
    ) {
        if sum.gpu_millis == 0 && sum.cost == 0 {
            return;
        }
        let payer = self.payer(period, piece.holder, since_ms);
        let (gpu, share) = match self.asked.detail {
            Detail::Gpus => (piece.gpu, piece.share),
            Detail::Nodes => (None, None),
        };
        let key = Key {
            node: Some(period.node),
            gpu,
            share,
            holder: piece.holder,
            payer,
            state: piece.state,
            reason: piece.reason,
            tariff,
        };
        self.lines.entry(key).or_default().add(sum);
        let pool = &self.asked.fleet.nodes[period.node].pool;
        let pool = index_of(pool, &mut self.pool_of, &mut self.made.pools);
        let day = period.from_ms.div_euclid(MILLIS_PER_DAY);
        let day = Day {
            day,
            pool,
            payer,
            since_ms,
            is_idle: piece.state.is_idle(),
        };
        self.made.days.entry(day).or_default().add(sum);
    }

    fn payer(&mut self, period: &NodePeriod, holder: Option<usize>, since_ms: i64) -> usize {
        let Some(holder) = holder else {
            return index_of(&Payer::Nobody, &mut self.payer_of, &mut self.made.payers);
        };
        let of = (self.cluster_of[period.node], holder, since_ms);
        if let Some(known) = self.owner_of.get(&of) {
            return *known;
        }
        let fleet = self.asked.fleet;
        let (cluster, holder) = (&fleet.nodes[period.node].cluster, &fleet.holders[holder]);
        let payer = self.asked.owners.payer(cluster, holder, period.from_ms);
        let payer = index_of(&payer, &mut self.payer_of, &mut self.made.payers);
        self.owner_of.insert(of, payer);
        payer
    }

    fn unused(&mut self, unused: &Unused) {
        let team = match unused.owner.as_str() {
            "" => PLATFORM,
            team => team,
        };
        let payer = Payer::team(team);
        let payer = index_of(&payer, &mut self.payer_of, &mut self.made.payers);
        let tariff = index_of(&unused.tariff, &mut self.tariff_of, &mut self.made.tariffs);
        let key = (unused.machine_type.clone(), unused.region.clone(), tariff);
        let nodes = self.made.nodes.entry(key).or_default();
        nodes.node_millis += unused.node_millis;
        nodes.cost += unused.cost;
        let sum = Sum {
            gpu_millis: unused.gpu_millis,
            cost: unused.cost,
            list: unused.cost,
            gpu_unpriced_millis: unused.gpu_millis,
            ..Sum::default()
        };
        let key = Key {
            node: None,
            gpu: None,
            share: None,
            holder: None,
            payer,
            state: State::Unallocated,
            reason: Reason::ReservedUnused,
            tariff,
        };
        self.lines.entry(key).or_default().add(&sum);
        let pool = index_of(&String::new(), &mut self.pool_of, &mut self.made.pools);
        let day = unused.from_ms.div_euclid(MILLIS_PER_DAY);
        let day = Day {
            day,
            pool,
            payer,
            since_ms: i64::MIN,
            is_idle: key.state.is_idle(),
        };
        self.made.days.entry(day).or_default().add(&sum);
    }
}

/// The money of one piece in one slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Money {
    is_priced: bool,
    cost: i128,
    list: i128,
    gpu_cost: Option<i128>,
}

impl Money {
    /// A slice's money over pieces, by their time.
    fn divided(priced: Option<&Priced>, millis: &[i64]) -> Vec<Self> {
        let Some(priced) = priced else {
            return vec![Self::default(); millis.len()];
        };
        let divide = |whole: i128| {
            let parts = crate::money::apportion(whole, millis);
            parts.unwrap_or_else(|| vec![0; millis.len()])
        };
        let cost = divide(priced.cost);
        let list = match priced.list == priced.cost {
            true => cost.clone(),
            false => divide(priced.list),
        };
        let gpu_cost = priced.gpu_cost.map(divide);
        (0..millis.len())
            .map(|at| Self {
                is_priced: true,
                cost: cost[at],
                list: list[at],
                gpu_cost: gpu_cost.as_ref().map(|it| it[at]),
            })
            .collect()
    }
}

/// What of the energy that is left belongs to this much of the time that is left; it is taken from it. So what
/// slices have of a piece adds up to what the piece drew.
fn divided(drawn: &mut Energy, millis: i64, left: i64) -> Energy {
    if *drawn == Energy::default() {
        return Energy::default();
    }
    let part = |whole: i64| {
        let part = crate::money::ratio(whole.into(), millis.into(), left.into());
        part.and_then(|it| i64::try_from(it).ok()).unwrap_or(0)
    };
    let energy = Energy {
        millijoules: part(drawn.millijoules),
        metered_millis: part(drawn.metered_millis),
    };
    drawn.millijoules -= energy.millijoules;
    drawn.metered_millis -= energy.metered_millis;
    energy
}

impl spread::Piece {
    fn sum(&self, millis: i64, money: Money, energy: Energy) -> Sum {
        let lost = crate::money::ratio(
            i128::from(self.lost_millis),
            i128::from(millis),
            i128::from(self.gpu_millis),
        );
        Sum {
            gpu_millis: millis,
            cost: money.cost,
            list: money.list,
            gpu_cost: money.gpu_cost.unwrap_or(0),
            gpu_unpriced_millis: if money.gpu_cost.is_none() { millis } else { 0 },
            unpriced_millis: if money.is_priced { 0 } else { millis },
            lost_millis: lost.and_then(|it| i64::try_from(it).ok()).unwrap_or(0),
            energy,
        }
    }
}

/// The index of a thing in the list of those that were met, which it joins.
fn index_of<T: Clone + Eq + std::hash::Hash>(
    thing: &T,
    known: &mut HashMap<T, usize>,
    all: &mut Vec<T>,
) -> usize {
    if let Some(index) = known.get(thing) {
        return *index;
    }
    all.push(thing.clone());
    known.insert(thing.clone(), all.len() - 1);
    all.len() - 1
}

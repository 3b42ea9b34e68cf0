//! A node's time in slices of one price each: what a commitment covers, a rate, or no price.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::cover::Coverage;
use super::spot::Bought;
use super::{Asked, Node, NodePeriod, Tariff};
use crate::money::ratio;
use crate::price_book::{Ask, Basis, Stretch};

/// Milliseconds of an hour: rates are an hour's.
const HOUR_MS: i128 = 3_600_000;

/// Money of a slice, nano-units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Priced {
    pub(super) cost: i128,
    pub(super) list: i128,
    /// Of all its GPUs by themselves, if known.
    pub(super) gpu_cost: Option<i128>,
}

/// A part of a node's billed time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) tariff: Tariff,
    pub(super) node_millis: i64,
    pub(super) priced: Option<Priced>,
}

/// Nano-units of nano-units-an-hour × milliseconds, to the nearest.
pub(super) fn cost(rate_millis: i128) -> i128 {
    ratio(rate_millis, 1, HOUR_MS).expect("a rate is below 2^63 and a time below 2^62")
}

/// What has one price: machine type, region, card, how many of it, how it is paid, what stands for a card of it.
type Kind<'a> = (&'a str, &'a str, &'a str, u32, Basis, Option<&'a str>);

/// The price of each kind of node over the whole month, looked up once.
pub(super) struct Prices<'a> {
    asked: &'a Asked<'a>,
    known: HashMap<Kind<'a>, Rc<[Stretch]>>,
}

/// Rate × time of one tariff, before it is divided by an hour.
#[derive(Default)]
struct Raw {
    node_millis: i64,
    cost: i128,
    list: i128,
    gpu_cost: Option<i128>,
}

impl<'a> Prices<'a> {
    pub(super) fn new(asked: &'a Asked<'a>) -> Self {
        Self {
            asked,
            known: HashMap::new(),
        }
    }

    /// The slices of a node's billed time, unpriced ones last.
    pub(super) fn slices(
        &mut self,
        index: usize,
        period: &NodePeriod,
        coverage: &Coverage,
    ) -> Vec<Slice> {
        let node = &self.asked.fleet.nodes[period.node];
        let mut raws: BTreeMap<Tariff, Raw> = BTreeMap::new();
        let stretches = self.stretches(node, node.basis);
        for (from, until) in &period.billed {
            add_interval(&mut raws, &stretches, node.basis, *from, *until);
        }
        let covered = coverage.of_period(index);
        let billed: i64 = raws.values().map(|it| it.node_millis).sum();
        let kept = billed - covered.iter().map(|it| it.1).sum::<i64>();
        let mut slices = Vec::new();
        for (number, millis) in covered {
            slices.push(self.committed(*number, *millis, billed, &raws));
        }
        // What commitments cover is taken from all tariffs in proportion, by largest remainder.
        let weights: Vec<i64> = raws.values().map(|it| it.node_millis).collect();
        let lefts = super::spread::take(kept, &weights);
        for ((tariff, raw), left) in raws.into_iter().zip(lefts) {
            if left == 0 {
                continue;
            }
            let part = |whole: i128| {
                let scaled = ratio(whole, i128::from(left), i128::from(raw.node_millis));
                cost(scaled.expect("a rate × two times is below 2^127"))
            };
            let priced = Priced {
                cost: part(raw.cost),
                list: part(raw.list),
                gpu_cost: raw.gpu_cost.map(part),
            };
            let is_priced = !matches!(tariff, Tariff::Unpriced(_));
            slices.push(Slice {
                tariff,
                node_millis: left,
                priced: is_priced.then_some(priced),
            });
        }
        slices
    }

    /// What a commitment covers costs its own rate; at list it costs what the node's own rate says.
    fn committed(
        &self,
        number: usize,
        millis: i64,
        billed: i64,
        raws: &BTreeMap<Tariff, Raw>,
    ) -> Slice {
        let commitment = &self.asked.commitments[number];
        let own = cost(i128::from(commitment.hour) * i128::from(millis));
        let list = raws.values().map(|it| it.list).sum::<i128>();
        let list = ratio(list, i128::from(millis), i128::from(billed)).map(cost);
        Slice {
            tariff: Tariff::Committed {
                id: commitment.id.clone(),
                basis: commitment.basis,
            },
            node_millis: millis,
            priced: Some(Priced {
                cost: own,
                list: list.unwrap_or(own).max(own),
                gpu_cost: None,
            }),
        }
    }

    /// A node's billed time at Spot beside what it costs on demand, where both are known.
    pub(super) fn bought(&mut self, period: &NodePeriod, gpus: i64) -> Bought {
        let node = &self.asked.fleet.nodes[period.node];
        let spot = self.stretches(node, Basis::Spot);
        let on_demand = self.stretches(node, Basis::OnDemand);
        let (mut millis, mut known_millis) = (0, 0);
        let (mut at_spot, mut at_on_demand) = (0, 0);
        for (from, until) in &period.billed {
            millis += until - from;
            for (one, other) in spot
                .iter()
                .flat_map(|it| on_demand.iter().map(move |on| (it, on)))
            {
                let until = one.until_ms.min(other.until_ms).min(*until);
                let time = until - one.from_ms.max(other.from_ms).max(*from);
                let (Ok(one), Ok(other)) = (&one.quote, &other.quote) else {
                    continue;
                };
                if time > 0 {
                    known_millis += time;
                    at_spot += i128::from(one.hour) * i128::from(time);
                    at_on_demand += i128::from(other.hour) * i128::from(time);
                }
            }
        }
        Bought {
            gpu_millis: known_millis * gpus,
            spot: cost(at_spot),
            on_demand: cost(at_on_demand),
            unknown_gpu_millis: (millis - known_millis) * gpus,
        }
    }

    fn stretches(&mut self, node: &'a Node, basis: Basis) -> Rc<[Stretch]> {
        let kind = (
            node.machine_type.as_str(),
            node.region.as_str(),
            node.gpu_model.as_str(),
            node.gpus,
            basis,
            node.card.as_deref(),
        );
        let asked = self.asked;
        let known = self.known.entry(kind).or_insert_with(|| {
            let ask = Ask {
                machine_type: kind.0,
                region: kind.1,
                gpu_model: kind.2,
                gpus: kind.3,
                basis: kind.4,
                from_ms: asked.from_ms,
                until_ms: asked.until_ms,
            };
            asked.book.quote_or_cards(&ask, kind.5).into()
        });
        Rc::clone(known)
    }
}

fn add_interval(
    raws: &mut BTreeMap<Tariff, Raw>,
    stretches: &[Stretch],
    basis: Basis,
    from: i64,
    until: i64,
) {
    for stretch in stretches {
        let millis = stretch.until_ms.min(until) - stretch.from_ms.max(from);
        if millis <= 0 {
            continue;
        }
        let tariff = match &stretch.quote {
            Ok(quote) => Tariff::Rate {
                basis,
                quality: quote.quality,
            },
            Err(why) => Tariff::Unpriced(why.to_string()),
        };
        let is_new = !raws.contains_key(&tariff);
        let raw = raws.entry(tariff).or_default();
        raw.node_millis += millis;
        let Ok(quote) = &stretch.quote else { continue };
        let time = i128::from(millis);
        raw.cost += i128::from(quote.hour) * time;
        raw.list += i128::from(quote.list_hour) * time;
        let gpu = quote.gpu_part_hour.map(|it| i128::from(it) * time);
        raw.gpu_cost = match (is_new, raw.gpu_cost) {
            (true, _) => gpu,
            (false, known) => known.zip(gpu).map(|(a, b)| a + b),
        };
    }
}

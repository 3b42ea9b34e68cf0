//! A node as the chargeback has it: how many GPUs of it are paid for, and when.
//!
//! How many GPUs a node has its machine type says; else it had as many as it was seen with for most of a
//! day, so that a card that is exchanged is not one more. A node that is priced by its cards is billed for
//! each card while that was there.

use std::collections::{BTreeMap, HashMap};

use gpufleet_analysis::chargeback::{Fleet, GpuPeriod, MILLIS_PER_DAY, Node, NodePeriod};
use gpufleet_analysis::price_book::Basis;

use super::super::{Machine, Terms};
use super::{NodeDay, NodeKey, Seen, joined};

/// What a node is in the chargeback: one, or where its count of GPUs changes from day to day several, or
/// where it is priced by its cards one a card.
pub(super) struct Nodes<'a> {
    terms: &'a Terms,
    machine: Machine<'a>,
    base: Node,
    range: (i64, i64),
    of_count: BTreeMap<u32, Node>,
    /// By the count of GPUs that are paid for and, where it is one a card, the card.
    placed: HashMap<(u32, Option<usize>), usize>,
}

impl<'a> Nodes<'a> {
    pub(super) fn new(terms: &'a Terms, key: &'a NodeKey, seen: Seen, range: (i64, i64)) -> Self {
        let base = Node {
            cluster: key.cluster.clone(),
            name: key.node.clone(),
            resource: seen.instance,
            project: seen.account,
            pool: key.cluster.clone(),
            machine_type: String::new(),
            region: key.region.clone(),
            zone: seen.zone,
            gpu_model: seen.gpu_model,
            gpus: 0,
            basis: Basis::OnDemand,
        };
        let machine = Machine {
            cluster: &key.cluster,
            machine_type: &key.machine_type,
            region: &key.region,
            provisioning: &key.provisioning,
            gpu_model: "",
            gpus: 0,
        };
        Self {
            terms,
            machine,
            base,
            range,
            of_count: BTreeMap::new(),
            placed: HashMap::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        day: i64,
        of_day: NodeDay,
        fleet: &mut Fleet,
        periods: &mut Vec<NodePeriod>,
    ) {
        let node = self.priced(usual_count(&of_day));
        let cards = of_day.gpus.into_iter().map(|(gpu, it)| {
            let spans = joined(it.spans);
            let period = GpuPeriod {
                gpu,
                present_millis: spans.iter().map(|it| it.1 - it.0).sum(),
                parts: it.parts,
            };
            (spans, period)
        });
        let mut push = |node, billed, gpus| {
            periods.push(NodePeriod {
                node,
                from_ms: day * MILLIS_PER_DAY,
                until_ms: (day + 1) * MILLIS_PER_DAY,
                billed,
                gpus,
            });
        };
        if node.basis == Basis::Own {
            for (spans, card) in cards {
                push(self.place(&node, Some(card.gpu), fleet), spans, vec![card]);
            }
        } else {
            let gpus = cards.map(|it| it.1).collect();
            push(self.place(&node, None, fleet), joined(of_day.spans), gpus);
        }
    }

    /// The node with so many GPUs.
    fn priced(&mut self, gpus: u32) -> Node {
        let (terms, base, machine) = (self.terms, &self.base, &self.machine);
        let (from_ms, until_ms) = self.range;
        let node = || {
            let machine = Machine {
                gpu_model: &base.gpu_model,
                gpus,
                ..*machine
            };
            terms.node(&machine, base.clone(), from_ms, until_ms)
        };
        self.of_count.entry(gpus).or_insert_with(node).clone()
    }

    /// Its place in the fleet.
    fn place(&mut self, node: &Node, card: Option<usize>, fleet: &mut Fleet) -> usize {
        *self.placed.entry((node.gpus, card)).or_insert_with(|| {
            fleet.nodes.push(node.clone());
            fleet.nodes.len() - 1
        })
    }
}

/// With how many cards at once a node was seen for most of its day. Not the most: a card that is gone is
/// accounted for up to an hour, in which the one in its place may be there.
fn usual_count(day: &NodeDay) -> u32 {
    let mut edges: Vec<(i64, i64)> = Vec::new();
    for (from, until) in day.gpus.values().flat_map(|it| joined(it.spans.clone())) {
        edges.extend([(from, 1), (until, -1)]);
    }
    edges.sort_unstable();
    let mut millis_of: BTreeMap<i64, i64> = BTreeMap::new();
    let (mut count, mut since) = (0, 0);
    for (at, change) in edges {
        if count > 0 {
            *millis_of.entry(count).or_default() += at - since;
        }
        (count, since) = (count + change, at);
    }
    let usual = millis_of
        .into_iter()
        .max_by_key(|(count, millis)| (*millis, *count));
    usual.map_or(0, |(count, _)| u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::ledger::{Reason, State};
    use gpufleet_telemetry::identity::Origin;

    use super::super::{Days, GpuDay, charge};
    use super::*;
    use crate::money::terms::Sources;
    use crate::store::model::{DayFacts, DayTime, LedgerDay};

    const CARD: &str = "NVIDIA L40S";
    /// A dollar an hour, in nano-units.
    const DOLLAR: i128 = 1_000_000_000;

    /// A card of `node-1` that was there from one hour of day 20,000 to another, or of days after it.
    fn card(name: &str, from_h: i64, until_h: i64) -> LedgerDay {
        let day = 20_000 + from_h / 24;
        let ms = |hour: i64| 20_000 * MILLIS_PER_DAY + hour * 3_600_000;
        LedgerDay {
            day,
            cluster: "lab".to_owned(),
            id: name.to_owned(),
            is_share: false,
            facts: DayFacts {
                origin: Origin::Live,
                node: "node-1".to_owned(),
                machine_type: String::new(),
                region: String::new(),
                zone: String::new(),
                provisioning: String::new(),
                account: String::new(),
                instance: String::new(),
                gpu_model: CARD.to_owned(),
                parent: String::new(),
                slices: 1,
                of: 1,
            },
            spans: vec![(ms(from_h), ms(until_h))],
            times: vec![DayTime {
                holder: 0,
                state: State::Unallocated,
                reason: Reason::Unknown,
                millis: ms(until_h) - ms(from_h),
            }],
        }
    }

    fn hours(days: Vec<LedgerDay>, price: Option<&str>) -> (i64, i128) {
        let days = Days {
            days,
            ..Days::default()
        };
        let price = price.map(|it| (CARD.to_owned(), it.to_owned()));
        let terms = Terms::of(Sources {
            gpu_hour_usd: price.into_iter().collect(),
            cost: crate::money::CostConfig::default(),
            ..Sources::default()
        });
        let month = charge(&days, 20_000..20_031, &terms);
        assert_eq!(month.made.total().cost, month.made.nodes_cost());
        let total = month.made.total();
        (total.gpu_millis / 3_600_000, total.cost)
    }

    fn all(cards: &[&str], from_h: i64, until_h: i64) -> Vec<LedgerDay> {
        cards.iter().map(|it| card(it, from_h, until_h)).collect()
    }

    #[test]
    fn a_card_that_is_exchanged_at_noon_is_not_one_more_for_the_month() {
        let mut days = all(&["a", "b"], 0, 24);
        days.push(card("old", 0, 13));
        days.push(card("new", 12, 24));
        days.extend(all(&["a", "b", "new"], 24, 48));
        assert_eq!(hours(days.clone(), Some("1")), (145, 145 * DOLLAR));
        let (without_price, cost) = hours(days, None);
        assert_eq!(
            (without_price, cost),
            (144, 0),
            "and without a price none either"
        );
    }

    #[test]
    fn a_machine_that_comes_back_with_other_cards_is_not_twice_as_large() {
        let mut days = all(&["a", "b", "c"], 0, 10);
        days.extend(all(&["d", "e", "f"], 11, 24));
        assert_eq!(hours(days.clone(), Some("2")), (69, 138 * DOLLAR));
        assert_eq!(hours(days, None), (69, 0));
    }

    #[test]
    fn a_node_with_more_cards_than_any_machine_pays_for_each() {
        let names: Vec<String> = (0..20).map(|it| format!("GPU-{it}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(hours(all(&names, 0, 2), Some("1.5")), (40, 60 * DOLLAR));
    }

    #[test]
    fn what_was_there_for_most_of_the_day_counts() {
        let count = |days: Vec<LedgerDay>| {
            let mut node = NodeDay::default();
            for (gpu, day) in days.iter().enumerate() {
                let spans = day.spans.clone();
                let of_gpu = GpuDay {
                    spans,
                    ..GpuDay::default()
                };
                node.gpus.insert(gpu, of_gpu);
            }
            usual_count(&node)
        };
        assert_eq!(count(Vec::new()), 0);
        assert_eq!(count(all(&["a", "b"], 0, 24)), 2);
        let mut exchanged = all(&["a"], 0, 24);
        exchanged.extend([card("b", 0, 13), card("c", 12, 24)]);
        assert_eq!(count(exchanged), 2);
        let mut grown = all(&["a", "b"], 0, 24);
        grown.extend(all(&["c", "d"], 12, 24));
        assert_eq!(count(grown), 4, "of equal times the larger");
    }
}

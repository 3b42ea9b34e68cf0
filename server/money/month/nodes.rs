//! A node as the chargeback has it: how many GPUs of it are paid for, and when.
//!
//! How many GPUs a node has its machine type says; else it had as many as it was seen with for most of a
//! day, so that a card that is exchanged is not one more, or as many as the inventory says, if that is more.
//! A node that is priced by its cards is billed for each card, at the price of its own model, while that was there, and for
//! those that nobody accounted while the inventory had the node: at the prices of those that were seen least that day, and
//! where none was seen at that of one of its cards; one that is bought as a whole is paid for as a whole. Which of the two
//! it is follows from the prices of each day, and not of
//! the time that a report is of: so a day costs the same whatever it is reported with.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gpufleet_analysis::chargeback::{Fleet, GpuPeriod, Node, NodePeriod, Part};
use gpufleet_analysis::ledger::State;
use gpufleet_analysis::owner::idle;
use gpufleet_analysis::price_book::Basis;

use super::super::terms::{Paid, PricedAs};
use super::super::{Machine, Terms};
use super::gather::{GpuDay, NodeDay, NodeKey, Seen};
use super::seller;
use super::spans::{Span, Spans, joined, length, within};

/// What a node is in the chargeback: one, or where its count of GPUs changes from day to day several, or
/// where it is priced by its cards one a card.
pub(super) struct Nodes<'a> {
    terms: &'a Terms,
    machine: Machine<'a>,
    base: Node,
    /// Its node pool; empty where it is not known.
    node_pool: String,
    range: Span,
    /// By count and model of its cards.
    priced_as: HashMap<(u32, Arc<str>), PricedAs>,
    /// By the terms, the count and model of the GPUs that are paid for, by what the rest is priced, and what of it is one.
    placed: HashMap<(Basis, u32, String, Option<String>, Slot), usize>,
    /// For how long GPUs of it are billed that nobody saw and that may have been gone, milliseconds.
    pub(super) unwatched_millis: i64,
}

/// What of a node is one node of the chargeback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Slot {
    /// All of it.
    Whole,
    /// This card.
    Card(usize),
    /// A card that nobody accounted.
    Unseen(usize),
}

impl<'a> Nodes<'a> {
    pub(super) fn new(terms: &'a Terms, key: &'a NodeKey, seen: Seen, range: Span) -> Self {
        let base = Node {
            cluster: key.cluster.clone(),
            name: key.node.clone(),
            resource: seller::resource(&seen),
            seller: seller::of(&seen, &key.machine_type, &terms.sources.cost.service),
            project: seen.account,
            pool: String::new(),
            machine_type: String::new(),
            region: key.region.clone(),
            zone: seen.zone,
            gpu_model: seen.gpu_model,
            gpus: 0,
            basis: Basis::OnDemand,
            card: None,
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
            node_pool: seen.pool,
            range,
            priced_as: HashMap::new(),
            placed: HashMap::new(),
            unwatched_millis: 0,
        }
    }

    /// Adds a day of the node.
    pub(super) fn add(
        &mut self,
        day: i64,
        mut of_day: NodeDay,
        fleet: &mut Fleet,
        periods: &mut Vec<NodePeriod>,
    ) {
        trim_gone(&mut of_day);
        let count = usual_count(&of_day.gpus).max(of_day.count);
        let models = self.models(&of_day);
        let node = self.priced(count, &models[0], day);
        self.unwatched_millis += unwatched_of(&of_day, node.gpus.max(count));
        let starting = starting_of(&of_day);
        // What stands for one of its cards has another name.
        let mut models_of_day = models.iter();
        let of_machine = self.machine.machine_type;
        let is_by_card = models_of_day.any(|it| self.paid(count, it, day).0 != of_machine);
        let billed = match is_by_card {
            true => self.cards(of_day, (day, &models[0]), count, fleet),
            false => vec![self.whole(&node, of_day, fleet)],
        };
        periods.extend(billed.into_iter().map(|it| it.period(day, &starting)));
    }

    /// The models of its cards of a day, each once, that of the first card first: one at least.
    fn models(&self, of_day: &NodeDay) -> Vec<Arc<str>> {
        let mut models: Vec<Arc<str>> = Vec::new();
        for model in of_day.gpus.values().map(|it| &it.model) {
            if !model.is_empty() && !models.contains(model) {
                models.push(Arc::clone(model));
            }
        }
        if models.is_empty() {
            models.push(self.base.gpu_model.as_str().into());
        }
        models
    }

    /// A node that is paid for as a whole.
    fn whole(&mut self, node: &Node, of_day: NodeDay, fleet: &mut Fleet) -> Billed {
        Billed {
            node: self.place(node, Slot::Whole, fleet),
            spans: joined([of_day.spans, of_day.there].concat()),
            gpus: cards(of_day.gpus).map(|it| it.2).collect(),
        }
    }

    /// A node of which each card is paid for by itself, also those that nobody accounted of so many. A card that tells no
    /// model is of `usual`.
    fn cards(
        &mut self,
        of_day: NodeDay,
        (day, usual): (i64, &Arc<str>),
        count: u32,
        fleet: &mut Fleet,
    ) -> Vec<Billed> {
        let (mut billed, mut seen) = (Vec::new(), Spans::new());
        let mut node_of: HashMap<Arc<str>, Node> = HashMap::new();
        let mut seen_millis: Vec<(i64, Arc<str>)> = Vec::new();
        for (model, spans, card) in cards(of_day.gpus) {
            let model = match model.is_empty() {
                true => Arc::clone(usual),
                false => model,
            };
            seen.extend_from_slice(&spans);
            seen_millis.push((card.present_millis, Arc::clone(&model)));
            let node = node_of
                .entry(model)
                .or_insert_with_key(|model| self.card(model, day));
            billed.push(Billed {
                node: self.place(node, Slot::Card(card.gpu), fleet),
                spans,
                gpus: vec![card],
            });
        }
        // What was not accounted for longest is most likely the card that was seen least.
        seen_millis.sort_by_key(|it| it.0);
        let unseen = unseen(&seen, &joined(of_day.there), count).into_iter();
        billed.extend(unseen.enumerate().map(|(slot, spans)| {
            let model = seen_millis.get(slot).map_or(usual, |it| &it.1);
            let node = self.card(model, day);
            Billed {
                node: self.place(&node, Slot::Unseen(slot), fleet),
                spans,
                gpus: Vec::new(),
            }
        }));
        billed
    }

    /// One card of this model as it is priced by itself on a day; without a price where it has none of its own.
    fn card(&mut self, model: &Arc<str>, day: i64) -> Node {
        Node {
            gpus: 1,
            ..self.priced(1, model, day)
        }
    }

    /// The node with so many GPUs of this model as it is priced on a day.
    fn priced(&mut self, gpus: u32, model: &Arc<str>, day: i64) -> Node {
        let of_day = Span::days(&(day..day + 1));
        let priced = self.priced_as(gpus, model);
        let card = priced.card_beside(of_day.from_ms, of_day.until_ms);
        let card = card.map(str::to_owned);
        let (machine_type, basis, gpus) = self.paid(gpus, model, day).clone();
        Node {
            machine_type,
            basis,
            gpus,
            card,
            pool: idle::pool(&self.base.cluster, &self.node_pool, model),
            gpu_model: model.to_string(),
            ..self.base.clone()
        }
    }

    /// As what it is paid for then.
    fn paid(&mut self, gpus: u32, model: &Arc<str>, day: i64) -> &Paid {
        let of_day = Span::days(&(day..day + 1));
        let priced = self.priced_as(gpus, model);
        priced.within(of_day.from_ms, of_day.until_ms)
    }

    /// As what it is priced day by day.
    fn priced_as(&mut self, gpus: u32, model: &Arc<str>) -> &PricedAs {
        let (terms, range) = (self.terms, self.range);
        let machine = Machine {
            gpu_model: model,
            gpus,
            ..self.machine
        };
        let priced = || terms.priced_as(&machine, range.from_ms, range.until_ms);
        let known = self.priced_as.entry((gpus, Arc::clone(model)));
        known.or_insert_with(priced)
    }

    /// Its place in the fleet.
    fn place(&mut self, node: &Node, slot: Slot, fleet: &mut Fleet) -> usize {
        let (model, card) = (node.gpu_model.clone(), node.card.clone());
        let key = (node.basis, node.gpus, model, card, slot);
        *self.placed.entry(key).or_insert_with(|| {
            fleet.nodes.push(node.clone());
            fleet.nodes.len() - 1
        })
    }
}

/// What is billed of a day: a node of the chargeback, when, and what its GPUs did.
struct Billed {
    node: usize,
    /// Joined.
    spans: Spans,
    gpus: Vec<GpuPeriod>,
}

impl Billed {
    fn period(self, day: i64, starting: &[Span]) -> NodePeriod {
        let its_start = self.spans.iter().flat_map(|it| within(starting, *it));
        let whole = Span::days(&(day..day + 1));
        NodePeriod {
            node: self.node,
            from_ms: whole.from_ms,
            until_ms: whole.until_ms,
            starting_millis: its_start.map(Span::length).sum(),
            billed: self.spans.into_iter().map(Into::into).collect(),
            gpus: self.gpus,
        }
    }
}

/// Cards as the chargeback has them, with the model of each and when it was accounted.
fn cards(gpus: BTreeMap<usize, GpuDay>) -> impl Iterator<Item = (Arc<str>, Spans, GpuPeriod)> {
    gpus.into_iter().map(|(gpu, it)| {
        let spans = joined(it.spans);
        let period = GpuPeriod {
            gpu,
            present_millis: length(&spans),
            parts: it.parts,
        };
        (it.model, spans, period)
    })
}

/// Takes from a day what nobody saw of the time in which its node was gone.
pub(super) fn trim_gone(of_day: &mut NodeDay) {
    let gone = joined(std::mem::take(&mut of_day.gone));
    if gone.is_empty() {
        return;
    }
    for gpu in of_day.gpus.values_mut() {
        cut_tail(gpu, &gone);
    }
    let left = of_day.gpus.values().flat_map(|it| &it.spans);
    of_day.spans = left.copied().collect();
}

/// When the node was not ready yet. What agents tell of it is no part of its start, whatever the cluster says.
fn starting_of(of_day: &NodeDay) -> Spans {
    let starting = joined(of_day.starting.clone()).into_iter();
    starting.flat_map(|it| it.without(&of_day.spans)).collect()
}

/// For how long at most this many GPUs are billed though nobody saw them and they may have been gone, milliseconds.
fn unwatched_of(of_day: &NodeDay, count: u32) -> i64 {
    let unwatched = joined(of_day.unwatched.clone());
    let silent = of_day.gpus.values().map(|it| silent(it, &unwatched));
    let silent: i64 = silent.sum();
    let untold = unwatched
        .into_iter()
        .flat_map(|it| it.without(&of_day.spans));
    silent + untold.map(Span::length).sum::<i64>() * i64::from(count)
}

/// With how many cards at once a node was seen for most of its day. Not the most: a card that is gone is
/// accounted for up to an hour, in which the one in its place may be there.
fn usual_count(gpus: &BTreeMap<usize, GpuDay>) -> u32 {
    let mut edges: Vec<(i64, i64)> = Vec::new();
    for span in gpus.values().flat_map(|it| joined(it.spans.clone())) {
        edges.extend([(span.from_ms, 1), (span.until_ms, -1)]);
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

/// For how long at most a GPU was accounted and unobserved in these times, milliseconds: whoever falls silent is
/// accounted for a while.
fn silent(gpu: &GpuDay, times: &[Span]) -> i64 {
    let unobserved = gpu.parts.iter().filter(|it| it.state == State::Unobserved);
    let of_card = |it: &Part| it.millis * i64::from(it.slices) / i64::from(it.of.max(1));
    let spans = joined(gpu.spans.clone()).into_iter();
    let accounted: i64 = spans.map(|it| length(&within(times, it))).sum();
    unobserved.map(of_card).sum::<i64>().min(accounted)
}

/// Takes from a GPU what is unobserved of the time in which its node was gone: whoever falls silent is
/// accounted for a while as long as nobody knows better. What was observed then was there.
fn cut_tail(gpu: &mut GpuDay, gone: &[Span]) {
    let mut spans = joined(std::mem::take(&mut gpu.spans));
    let unobserved = |it: &&mut Part| it.state == State::Unobserved && it.of == 1;
    let mut left: i64 = spans.iter().map(|it| length(&within(gone, *it))).sum();
    let mut cut = 0;
    for part in gpu.parts.iter_mut().filter(unobserved) {
        let millis = part.millis.min(left);
        part.millis -= millis;
        left -= millis;
        cut += millis;
    }
    // From the end: what is observed of a node that goes comes first.
    for gone in gone.iter().rev() {
        let mut kept = Vec::with_capacity(spans.len() + 1);
        for span in spans.into_iter().rev() {
            let end = span.until_ms.min(gone.until_ms);
            let millis = span.within(*gone).map_or(0, |it| it.length().min(cut));
            if millis == 0 {
                kept.push(span);
                continue;
            }
            cut -= millis;
            kept.push(Span::new(end, span.until_ms));
            kept.push(Span::new(span.from_ms, end - millis));
        }
        kept.retain(|it| it.from_ms < it.until_ms);
        kept.reverse();
        spans = kept;
    }
    gpu.spans = spans;
}

/// When each of so many cards was not accounted while the node was there, fewest holes first.
fn unseen(seen: &[Span], there: &[Span], count: u32) -> Vec<Spans> {
    let count = usize::try_from(count).unwrap_or(0);
    let mut slots: Vec<Spans> = vec![Spans::new(); count];
    for there in there {
        let seen = within(seen, *there);
        let all = seen.iter().chain([there]);
        let mut edges: Vec<i64> = all.flat_map(|it| [it.from_ms, it.until_ms]).collect();
        edges.sort_unstable();
        edges.dedup();
        for edge in edges.windows(2) {
            let between = Span::new(edge[0], edge[1]);
            let there = seen.iter().filter(|it| it.within(between) == Some(between));
            let missing = count.saturating_sub(there.count());
            let slots = slots.iter_mut().take(missing);
            slots.for_each(|it| it.push(between));
        }
    }
    slots.retain(|it| !it.is_empty());
    slots.into_iter().map(joined).collect()
}

#[cfg(test)]
mod tests;

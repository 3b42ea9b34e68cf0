//! A node of which its GPUs tell two things on one day is not billed twice for the same time.
//!
//! A day of each GPU is put together by itself, and a node can be made anew under its name. So the GPUs of a node can
//! tell two machine types, regions or terms of payment on one day, and each is a node of its own here ([`NodeKey`]).
//! Those that were there one after the other are two machines: whoever goes is accounted for a while, so what nobody
//! saw of the first while the next was there is taken away. Those that were seen at the same time are one machine,
//! which is what most of the time of its GPUs tells.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::gather::{NodeDay, NodeKey, NodesByDay};
use super::nodes::trim_gone;
use super::spans::{Span, Spans, joined, length, within};

#[cfg(test)]
mod tests;

/// What is told of a node on a day.
type Told<'a> = Vec<(&'a NodeKey, NodeDay)>;

/// Has each node billed once for any time; before what the inventory knows of it is added.
pub(super) fn bill_once(nodes: &mut NodesByDay) {
    let same_node = |one: &&NodeKey, other: &&NodeKey| {
        (&one.cluster, &one.node) == (&other.cluster, &other.node)
    };
    let keys: Vec<&NodeKey> = nodes.keys().collect();
    let of_two = keys.chunk_by(same_node).filter(|it| it.len() > 1);
    let of_two: Vec<Vec<NodeKey>> = of_two
        .map(|it| it.iter().map(|it| (*it).clone()).collect())
        .collect();
    for keys in &of_two {
        of_node(nodes, keys);
    }
    if !of_two.is_empty() {
        nodes.retain(|_, (_, of_days)| !of_days.is_empty());
    }
}

/// The same of one node, by what is told of it.
fn of_node(nodes: &mut NodesByDay, keys: &[NodeKey]) {
    let mut days: BTreeMap<i64, Told<'_>> = BTreeMap::new();
    for key in keys {
        let of_key = nodes.remove(key);
        let (seen, of_days) = of_key.expect("it was there to be found");
        for (day, of_day) in of_days {
            days.entry(day).or_default().push((key, of_day));
        }
        nodes.insert(key.clone(), (seen, BTreeMap::new()));
    }
    for (day, told) in days {
        for (key, of_day) in apart(told) {
            let (_, of_days) = nodes.get_mut(key).expect("it was put back");
            of_days.insert(day, of_day);
        }
    }
}

/// Those of a day that were there one after the other.
fn apart(mut told: Told<'_>) -> Told<'_> {
    if told.len() > 1 {
        trim_tails(&mut told);
    }
    // Where two are one, the first of them is what it is taken for.
    told.sort_by_key(|(key, of_day)| Reverse((!key.machine_type.is_empty(), of_day.millis())));
    loop {
        let count = told.len();
        told = merged(told);
        // One that took another in may have come together with a third.
        if told.len() == count {
            return told;
        }
    }
}

/// Takes from each what nobody saw of it while those that came later were there, where nothing else is in their way.
fn trim_tails(told: &mut [(&NodeKey, NodeDay)]) {
    let spans: Vec<Spans> = told.iter().map(|it| joined(it.1.spans.clone())).collect();
    let begin = |spans: &Spans| spans.first().map(|it| it.from_ms);
    for ((_, of_day), own) in told.iter_mut().zip(&spans) {
        let later = spans.iter().filter(|it| begin(it) > begin(own));
        let later: Spans = later.flatten().copied().collect();
        let mut trimmed = of_day.clone();
        trimmed.gone.clone_from(&later);
        trim_gone(&mut trimmed);
        if !are_together(&trimmed.spans, &later) {
            *of_day = trimmed;
        }
    }
}

fn merged(told: Told<'_>) -> Told<'_> {
    let mut kept: Told<'_> = Vec::with_capacity(told.len());
    for (key, of_day) in told {
        let same = kept.iter_mut();
        let mut same = same.filter(|it| are_together(&it.1.spans, &of_day.spans));
        match same.next() {
            Some((_, into)) => into.take(of_day),
            None => kept.push((key, of_day)),
        }
    }
    kept
}

/// Whether two were there at the same time.
fn are_together(one: &[Span], other: &[Span]) -> bool {
    one.iter().any(|it| !within(other, *it).is_empty())
}

impl NodeDay {
    /// For how long its GPUs were accounted.
    fn millis(&self) -> i64 {
        let of_gpus = self.gpus.values().map(|it| joined(it.spans.clone()));
        of_gpus.map(|it| length(&it)).sum()
    }

    /// Takes in what else is told of the same machine, which the inventory has said nothing of yet.
    fn take(&mut self, other: Self) {
        self.spans.extend(other.spans);
        for (gpu, of_gpu) in other.gpus {
            let into = self.gpus.entry(gpu).or_default();
            if into.model.is_empty() {
                into.model = of_gpu.model;
            }
            into.spans.extend(of_gpu.spans);
            into.parts.extend(of_gpu.parts);
        }
    }
}

//! Nodes of the inventory in the days of a chargeback: they are billed from when they were made to when they
//! were gone, whether or not an agent told of them.
//!
//! A node is the one that agents tell of when it has its name, with its domain or without ([`Names`]). What
//! agents said last of its machine goes before what the cluster says. A node that is renamed within a day keeps its cards,
//! whose day is of the old name to its end: until then the new one is not billed beside it.
//!
//! Limits: the ledger is computed some minutes after the fact, so of a node that is there the last
//! [`BEHIND_MS`] count only as far as they are computed. That a node was renamed is known by its cards of the day after, so
//! not before that begins; of the last day of a report only where both sides call it by one name.

use std::collections::{BTreeMap, HashMap, HashSet};

use gpufleet_analysis::chargeback::MILLIS_PER_DAY;

use super::gather::{NodeKey, NodesByDay, Seen};
use super::spans::{Span, Spans, within};
use crate::inventory::names::Names;
use crate::store::model::NodeLife;

#[cfg(test)]
mod tests;

/// So far the ledger may lag behind what is seen: an hour that runs is computed every 5 minutes, and 10,000
/// GPUs wait for one another.
const BEHIND_MS: i64 = 20 * 60_000;

/// A node that was first seen, and first known to be ready, so long after it was made was not seen to start:
/// the cluster says since when it is ready, not since when it was first.
const STARTS_WITHIN_MS: i64 = 3_600_000;

/// Adds nodes of the inventory, sorted by cluster, name and beginning, in a time.
/// Returns what could not be told of their names, one sentence each.
pub(super) fn add(
    nodes: &mut NodesByDay,
    lives: &[NodeLife],
    next_day: &NextCards<'_>,
    range: Span,
) -> Vec<String> {
    let keys: Vec<NodeKey> = nodes.keys().cloned().collect();
    let moved = moved(nodes, next_day);
    let mut names: BTreeMap<&str, Names> = BTreeMap::new();
    let mut keys_of: HashMap<(&str, &str), Vec<&NodeKey>> = HashMap::new();
    for key in &keys {
        names.entry(&key.cluster).or_default().tell(&key.node);
        let of = (key.cluster.as_str(), key.node.as_str());
        keys_of.entry(of).or_default().push(key);
    }
    for life in lives {
        let names = names.entry(&life.cluster).or_default();
        names.list(&life.record.node.name);
    }
    for (at, life) in lives.iter().enumerate() {
        let (cluster, name) = (life.cluster.as_str(), life.record.node.name.as_str());
        let is_same = |it: &&NodeLife| it.cluster == cluster && it.record.node.name == name;
        let next = lives.get(at + 1).filter(is_same);
        let next_ms = next.map_or(i64::MAX, |it| it.from_ms);
        let told = names[cluster].told_of(name).into_iter();
        let known = told.flat_map(|it| keys_of[&(cluster, it)].iter().copied());
        let known: Vec<&NodeKey> = known.collect();
        one(nodes, (life, next_ms), &known, (&moved, next_day), range);
    }
    let doubts = names.iter().flat_map(|(cluster, it)| it.doubts(cluster));
    doubts.collect()
}

/// Cards of the day after the last by the cluster and name of their node then; none of one that was not there before.
pub(super) type NextCards<'a> = HashMap<(&'a str, &'a str), Vec<Option<usize>>>;

/// Cards that were on more than one node, or are told on the day after the last, with the nodes that they were on.
type Moved = HashMap<usize, Vec<NodeKey>>;

fn moved(nodes: &NodesByDay, next_day: &NextCards<'_>) -> Moved {
    let told: HashSet<usize> = next_day.values().flatten().copied().flatten().collect();
    let mut nodes_of: HashMap<usize, Vec<&NodeKey>> = HashMap::new();
    for (key, (_, days)) in nodes {
        for card in days.values().flat_map(|it| it.gpus.keys()) {
            let of_card = nodes_of.entry(*card).or_default();
            if of_card.last().is_none_or(|it| !std::ptr::eq(*it, key)) {
                of_card.push(key);
            }
        }
    }
    let moved = nodes_of.into_iter();
    moved
        .filter(|it| it.1.len() > 1 || told.contains(&it.0))
        .map(|(card, keys)| (card, keys.into_iter().cloned().collect()))
        .collect()
}

/// When in a time of a day a node is accounted under another name: each of its cards of the day after was on another
/// node then, and it had none of its own. `later`: its cards of the day after where that is behind the last.
fn as_another(
    nodes: &NodesByDay,
    known: &[&NodeKey],
    (moved, later): (&Moved, &[Option<usize>]),
    (day, time): (i64, Span),
) -> Spans {
    if known
        .iter()
        .any(|it| !accounted(nodes, it, time).is_empty())
    {
        return Spans::new();
    }
    let next = known
        .iter()
        .filter_map(|it| nodes.get(*it)?.1.get(&(day + 1)));
    let next = next.flat_map(|it| it.gpus.keys().copied().map(Some));
    let mut spans = Spans::new();
    for card in next.chain(later.iter().copied()) {
        let Some(card) = &card else {
            return Spans::new();
        };
        let others = moved.get(card).into_iter().flatten();
        let others = others.filter(|it| !known.contains(it));
        let of_card = others.filter_map(|it| nodes.get(it)?.1.get(&day)?.gpus.get(card));
        let there: Spans = of_card.flat_map(|it| within(&it.spans, time)).collect();
        if there.is_empty() {
            return Spans::new();
        }
        spans.extend(there);
    }
    spans
}

/// One life, which another of this name follows at this moment; `known` are the nodes of this name that agents told.
fn one(
    nodes: &mut NodesByDay,
    (life, next_ms): (&NodeLife, i64),
    known: &[&NodeKey],
    (moved, next_day): (&Moved, &NextCards<'_>),
    range: Span,
) {
    let from = life.from_ms.max(range.from_ms);
    let mut time = Span::new(from, life.until_ms.min(next_ms).min(range.until_ms));
    let last = last_told(nodes, known, time);
    if let Some((end, _)) = last
        && !life.is_gone
        && life.until_ms - end <= BEHIND_MS
    {
        time.until_ms = end;
    }
    let days = match time.length() > 0 {
        true => {
            time.from_ms.div_euclid(MILLIS_PER_DAY)
                ..(time.until_ms - 1).div_euclid(MILLIS_PER_DAY) + 1
        }
        false => 0..0,
    };
    let last_day = (range.until_ms - 1).div_euclid(MILLIS_PER_DAY);
    let record = &life.record;
    for &key in known {
        if let Some((seen, _)) = nodes.get_mut(key) {
            seen.pool.clone_from(&record.node.pool);
        }
    }
    let ready = record.ready_at.map_or(i64::MAX, |it| it.millis());
    let known_from = record.first_seen.millis().min(ready);
    let is_start_known = known_from.saturating_sub(life.from_ms) <= STARTS_WITHIN_MS;
    for day in days {
        let Some(there) = time.within(Span::days(&(day..day + 1))) else {
            continue;
        };
        // Of that day who told of it last; else who told last at all.
        let key = last_told(nodes, known, there).or(last);
        let key = key.map_or_else(|| key_of(life), |it| it.1.clone());
        let others = known.iter().filter(|it| ***it != key);
        let others = others.flat_map(|it| accounted(nodes, it, there));
        let name = (life.cluster.as_str(), record.node.name.as_str());
        let later = next_day.get(&name).filter(|_| day == last_day);
        let later = later.map_or(&[][..], Vec::as_slice);
        let others = others.chain(as_another(nodes, known, (moved, later), (day, there)));
        let there = there.without(&others.collect::<Spans>());
        let is_told = nodes.get(&key).is_some_and(|it| it.1.contains_key(&day));
        if there.is_empty() && !is_told {
            continue;
        }
        let (_, days) = nodes
            .entry(key)
            .or_insert_with(|| (seen_of(life), BTreeMap::new()));
        let of_day = days.entry(day).or_default();
        if record.node.created.is_some() && is_start_known {
            // Whoever tells no beginning tells no start.
            let starting = Span::new(life.from_ms, ready);
            of_day.starting.extend(within(&there, starting));
        }
        if let Some(since) = record.unwatched_from.filter(|_| life.is_gone) {
            let unwatched = Span::new(since.millis(), life.until_ms);
            of_day.unwatched.extend(within(&there, unwatched));
        }
        of_day.there.extend(there);
        if !record.node.is_shared {
            of_day.count = of_day.count.max(record.node.gpus);
        }
    }
    if !life.is_gone {
        return;
    }
    for &key in known {
        let Some((_, days)) = nodes.get_mut(key) else {
            continue;
        };
        let first = life.until_ms.div_euclid(MILLIS_PER_DAY);
        for (_, of_day) in days.range_mut(first..) {
            let gone = Span::new(life.until_ms, next_ms.max(life.until_ms));
            of_day.gone.push(gone);
        }
    }
}

/// Until when these nodes were accounted in a time, and which of them so long.
fn last_told<'a>(
    nodes: &NodesByDay,
    known: &[&'a NodeKey],
    time: Span,
) -> Option<(i64, &'a NodeKey)> {
    let ends = known.iter().filter_map(|&key| {
        let spans = accounted(nodes, key, time);
        let end = spans.iter().map(|it| it.until_ms).max()?;
        Some((end, key))
    });
    ends.max()
}

/// What agents accounted of a node in a time.
fn accounted(nodes: &NodesByDay, key: &NodeKey, time: Span) -> Spans {
    let Some((_, days)) = nodes.get(key) else {
        return Spans::new();
    };
    let first = time.from_ms.div_euclid(MILLIS_PER_DAY);
    let last = time.until_ms.div_euclid(MILLIS_PER_DAY);
    if last < first {
        return Spans::new();
    }
    let of_days = days.range(first..=last);
    of_days.flat_map(|it| within(&it.1.spans, time)).collect()
}

fn key_of(life: &NodeLife) -> NodeKey {
    let node = &life.record.node;
    NodeKey {
        cluster: life.cluster.clone(),
        node: node.name.clone(),
        machine_type: node.machine.clone(),
        region: node.region.clone(),
        provisioning: node.provisioning.clone(),
    }
}

fn seen_of(life: &NodeLife) -> Seen {
    let node = &life.record.node;
    Seen {
        provider: node.provider.clone(),
        zone: node.zone.clone(),
        account: node.account.clone(),
        instance: node.instance.clone(),
        gpu_model: node.model.clone(),
        pool: node.pool.clone(),
    }
}

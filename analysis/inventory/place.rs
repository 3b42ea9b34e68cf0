//! What is free, by type of GPU and zone, and the largest gang that could begin now.
//!
//! A gang is pods that begin together or not at all. How many fit depends on how many GPUs each asks for:
//! eight GPUs that are free one on each of eight nodes are room for a gang of eight pods of one, and for
//! none of eight each.
//!
//! Free is what a node can give out less what is asked for by what is bound to it. A node that is not
//! ready, cordoned or kept for others by a taint has nothing free, and is counted apart. How many places of
//! a claim fit now ([`Free`]) goes by its GPUs, their type, the taints that it tolerates and its partitions;
//! affinity, CPU, memory and volumes are the scheduler's to judge.
//!
//! A job of Slurm's runs in one partition: gangs are told of each by itself, and of a job that names several
//! the one with the most room counts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::{Claim, Node, Phase, Record, shares_one, tolerated};

/// How many GPUs a pod asks for, of which gangs are told, beside all that its node has.
pub const SIZES: [u32; 4] = [1, 2, 4, 8];

/// A gang that fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gang {
    /// The partition that it fits in, or several that have the same nodes; empty where nodes tell none.
    pub partition: String,
    /// GPUs of each pod.
    pub gpus_each: u32,
    /// Pods that fit together.
    pub pods: u32,
    /// The most of them in one block of the topology; none where nodes tell no blocks.
    pub in_one_block: Option<u32>,
}

/// The nodes of one type of GPU in one zone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pool {
    /// The type of GPU; empty where not told.
    pub model: String,
    /// The zone; empty where not told.
    pub zone: String,
    /// Nodes that are there.
    pub nodes: usize,
    /// GPUs of all of them.
    pub gpus: u64,
    /// GPUs that something bound to a node has asked for.
    pub held: u64,
    /// GPUs that could be given out now.
    pub free: u64,
    /// Nodes that come up.
    pub starting: usize,
    /// Nodes that were ready and are not.
    pub not_ready: usize,
    /// Nodes that take nothing new.
    pub cordoned: usize,
    /// GPUs that nobody has and that a taint keeps for others.
    pub kept: u64,
    /// Nodes whose GPUs are all given out in shares: in no gang.
    pub shared: usize,
    /// Gangs that fit, by partitions of the same nodes, those with most free first, of each the smallest pods first.
    pub gangs: Vec<Gang>,
    /// Partitions of which no gang is told, for want of room to say so: those with the least that is free.
    pub partitions_left_out: usize,
}

/// Most partitions whose gangs are told of a pool, those of the same nodes as one: a site may have a hundred.
const MAX_TOLD: usize = 6;

/// Most partitions of the same nodes that are named.
const MAX_NAMED: usize = 3;

/// A node with what is free on it.
type Room<'a> = (&'a Record, u32);

/// What is free on nodes that take work, those that are alike together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Free<'a> {
    /// How many nodes, by what they are and their free GPUs.
    nodes: BTreeMap<(Kind<'a>, u32), u64>,
}

/// What nodes have in common on which the same could be put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind<'a> {
    /// Their type of GPU.
    pub(super) model: &'a str,
    /// Their taints.
    pub(super) kept_for: &'a [String],
    /// Their partitions.
    pub(super) partitions: &'a [String],
}

impl<'a> Kind<'a> {
    /// What a node is.
    pub(super) fn of(node: &'a Node) -> Self {
        Self {
            model: &node.model,
            kept_for: &node.kept_for,
            partitions: &node.partitions,
        }
    }
}

impl<'a> Free<'a> {
    /// On these nodes; `held` says what is asked for on each.
    pub fn of(records: impl Iterator<Item = &'a Record>, held: &BTreeMap<String, u32>) -> Self {
        let mut free = Self::default();
        for record in records {
            let (node, left) = (&record.node, left(record, held));
            if left > 0 {
                *free.nodes.entry((Kind::of(node), left)).or_default() += 1;
            }
        }
        free
    }

    /// How many places of a claim would fit now, of one that names partitions in the best of these; none of a claim for
    /// shares.
    pub fn places(&self, claim: &Claim) -> Option<u64> {
        if claim.is_shares || claim.gpus_each == 0 {
            return None;
        }
        let may_go = |it: &Kind<'_>| {
            let is_its = claim.model.is_empty() || claim.model == it.model;
            is_its && tolerated(it.kept_for, &claim.tolerates)
        };
        let places = |partitions: &[String]| -> u64 {
            let nodes = self.nodes.iter().filter(|((kind, _), _)| may_go(kind));
            let nodes = nodes.filter(|((kind, _), _)| shares_one(partitions, kind.partitions));
            nodes
                .map(|((_, free), count)| u64::from(free / claim.gpus_each) * count)
                .sum()
        };
        let best = claim.partitions.chunks(1).map(places).max();
        Some(best.unwrap_or_else(|| places(&[])))
    }
}

/// Whole GPUs of a node that could be given out now; `held` says what is asked for on each.
pub(super) fn left(record: &Record, held: &BTreeMap<String, u32>) -> u32 {
    let node = &record.node;
    if record.phase() != Phase::Ready || node.is_shared {
        return 0;
    }
    let taken = held.get(&node.name).copied().unwrap_or(0);
    node.allocatable.saturating_sub(taken)
}

impl Gang {
    /// GPUs of the whole gang.
    pub fn gpus(&self) -> u64 {
        u64::from(self.gpus_each) * u64::from(self.pods)
    }
}

/// Pools by type and zone; `held` says what is asked for on each node.
pub fn pools<'a>(
    records: impl Iterator<Item = &'a Record>,
    held: &BTreeMap<String, u32>,
) -> Vec<Pool> {
    let mut all: BTreeMap<(&str, &str), (Pool, Vec<Room<'_>>)> = BTreeMap::new();
    for record in records {
        let (node, phase) = (&record.node, record.phase());
        if phase == Phase::Gone {
            continue;
        }
        let entry = all.entry((&node.model, &node.zone)).or_default();
        let (pool, rooms) = entry;
        pool.nodes += 1;
        pool.starting += usize::from(phase == Phase::Starting);
        pool.not_ready += usize::from(phase == Phase::NotReady);
        pool.cordoned += usize::from(node.cordoned);
        if node.is_shared {
            pool.shared += 1;
            continue;
        }
        pool.gpus += u64::from(node.gpus);
        let taken = held.get(&node.name).copied().unwrap_or(0);
        pool.held += u64::from(taken);
        let free = node.allocatable.saturating_sub(taken);
        match (phase, node.kept_for.is_empty()) {
            (Phase::Ready, true) => {
                pool.free += u64::from(free);
                rooms.push((record, free));
            }
            (Phase::Ready, false) => pool.kept += u64::from(free),
            _ => {}
        }
    }
    let finish = |((model, zone), (pool, rooms)): ((&str, &str), (Pool, Vec<_>))| {
        let (gangs, partitions_left_out) = gangs(&rooms);
        Pool {
            model: model.to_owned(),
            zone: zone.to_owned(),
            gangs,
            partitions_left_out,
            ..pool
        }
    };
    all.into_iter().map(finish).collect()
}

/// The gangs that fit, and of how many partitions none is told.
fn gangs(rooms: &[Room<'_>]) -> (Vec<Gang>, usize) {
    let told = rooms.iter().flat_map(|(it, _)| &it.node.partitions);
    let partitions: BTreeSet<&String> = told.collect();
    if partitions.is_empty() {
        return (gangs_of("", rooms), 0);
    }
    let mut alike: BTreeMap<Vec<&str>, (Vec<&str>, Vec<Room<'_>>)> = BTreeMap::new();
    for partition in partitions {
        let own = rooms.iter().copied();
        let own: Vec<_> = own
            .filter(|(it, _)| it.node.partitions.contains(partition))
            .collect();
        let nodes = own.iter().map(|(it, _)| it.node.name.as_str()).collect();
        let (names, _) = alike.entry(nodes).or_insert_with(|| (Vec::new(), own));
        names.push(partition);
    }
    let mut alike: Vec<_> = alike.into_values().collect();
    let free = |rooms: &[Room<'_>]| rooms.iter().map(|it| u64::from(it.1)).sum::<u64>();
    alike.sort_by_key(|(names, rooms)| (Reverse(free(rooms)), names.concat()));
    let left_out = alike.iter().skip(MAX_TOLD).map(|it| it.0.len()).sum();
    let told = alike.iter().take(MAX_TOLD).flat_map(|(names, rooms)| {
        let more = names.len().saturating_sub(MAX_NAMED);
        let mut name = names[..names.len() - more].join(", ");
        if more > 0 {
            name += &format!(" and {more} more");
        }
        gangs_of(&name, rooms)
    });
    (told.collect(), left_out)
}

fn gangs_of(partition: &str, rooms: &[Room<'_>]) -> Vec<Gang> {
    let whole = rooms.iter().map(|(it, _)| it.node.allocatable).max();
    let largest = whole.unwrap_or(0);
    let mut sizes: Vec<u32> = SIZES.into_iter().filter(|it| *it < largest).collect();
    sizes.extend((largest > 0).then_some(largest));
    let gang = |gpus_each: u32| {
        let mut blocks: BTreeMap<&str, u32> = BTreeMap::new();
        let mut pods = 0;
        for (record, free) in rooms {
            let fit = free / gpus_each;
            pods += fit;
            if !record.node.block.is_empty() {
                *blocks.entry(&record.node.block).or_default() += fit;
            }
        }
        Gang {
            partition: partition.to_owned(),
            gpus_each,
            pods,
            in_one_block: blocks.into_values().max(),
        }
    };
    sizes.into_iter().map(gang).collect()
}

//! A link that is slower than its like in the same job: found by how fast the collectives over it are,
//! named by what the slow ones have in common.
//!
//! Method. A collective ends nearly together on all ranks, so the one that came last waited for nobody:
//! its bandwidth, the highest of the communicator, is what the links give. Late ranks therefore never
//! make a communicator slow, only links do, and GPUs whose clock is low: who knows of those leaves
//! their communicators out. What is compared are communicators of the same function, number of ranks and
//! number of nodes, with messages that differ by less than [`LIKE_SIZE`] from one to the next larger,
//! [`LEAST_LIKE`] at least. One is slow at a look when its bandwidth is below
//! [`SLOW_RATIO`] × their median and [`FIRE_Z`] σ under it in logarithms (σ by the MAD, at least
//! [`SIGMA_FLOOR`]), and slow for good when it was so at [`SLOW_LOOKS`] of its last [`LOOKS`].
//!
//! Which link: of GPUs, nodes and pairs of nodes those that are in no fast communicator and in most of the
//! slow ones. One GPU: its own way out. One node: its. Two nodes: the way between them, or one of the two,
//! which readings of their ports may tell. More than [`MAX_ENDS`]: among them. Links of communicators
//! within a node (NVLink, PCIe) and across nodes (network) are judged apart.
//!
//! Said of nobody: when all are slow, because then the median is; when more than 1 of [`MANY_PART`] nodes
//! would be named at once, which is rather the way the network is built, or its load; when there is nothing
//! alike, as in a job whose ranks are all in one communicator.
//!
//! Measured (docs/detection.md): one port of 64 at half its speed, one node of 16, one pair.
//!
//! Limits: only AllReduce, AllGather and ReduceScatter that are timed on the GPU; a communicator of which
//! not all ranks are heard has fewer ranks than its like and is compared with none; at most [`MAX_GROUPS`]
//! communicators of a run, 40 bytes each; pairs are looked for among at most [`MAX_PAIRED`] nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_telemetry::time::Timestamp;

use crate::robust::{median, sigma_about};
use crate::straggler::collectives::Function;

/// Bandwidth below this part of its like is slow: a port at half its speed reads 0.5, ten in a hundred
/// packets repeated less; below 0.75 the job feels it.
pub const SLOW_RATIO: f64 = 0.75;
/// Least distance from its like, in σ.
pub const FIRE_Z: f64 = 5.0;
/// Least σ of logarithms: no two links measure the same.
pub const SIGMA_FLOOR: f64 = 0.02;
/// Looks that are remembered: a minute, where each tick has a reading.
pub const LOOKS: u32 = 6;
/// Of these so many have to be slow.
pub const SLOW_LOOKS: u32 = 5;
/// Communicators that are compared, with itself.
pub const LEAST_LIKE: usize = 4;
/// Messages of like communicators differ by less than this from one to the next larger.
const LIKE_SIZE: f64 = 1.25;
/// Nodes that are named of one slow communicator.
pub const MAX_ENDS: usize = 4;
/// At most one in so many nodes is named at once, and one at least.
const MANY_PART: usize = 8;
/// Nodes among which pairs are looked for.
const MAX_PAIRED: usize = 32;
/// Most communicators of a run: 20,000 ranks in three each.
pub const MAX_GROUPS: usize = 65_536;
/// Looks without a reading after which a communicator is forgotten.
const FORGOTTEN_LOOKS: u8 = 60;

/// From when a link is slow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    /// Bandwidth below this part of its like.
    pub part: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { part: SLOW_RATIO }
    }
}

/// One communicator with one function, as its ranks measured it since the last reading.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// The communicator's hash, equal on all its ranks.
    pub communicator: u64,
    /// What it does.
    pub function: Function,
    /// Bytes of one of them.
    pub bytes_per_call: f64,
    /// When the newest of its readings was taken: one that is not newer than the last is no look.
    pub at: Timestamp,
    /// Its ranks.
    pub ends: Vec<End>,
}

/// One rank of a communicator.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// Its node.
    pub node: Arc<str>,
    /// Its GPU.
    pub gpu: Arc<str>,
    /// The bus bandwidth that it measured.
    pub bytes_per_second: f64,
}

/// What is slow.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suspect {
    /// The way of one GPU out: its port, its PCIe, its NVLink. Node and GPU.
    Gpu(Arc<str>, Arc<str>),
    /// One node's.
    Node(Arc<str>),
    /// The way between two nodes, or that of one of them.
    Pair(Arc<str>, Arc<str>),
    /// One of these nodes'.
    Among(Vec<Arc<str>>),
}

/// A slow link.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Which.
    pub suspect: Suspect,
    /// Whether it leads out of a node.
    pub is_across: bool,
    /// Slow communicators that it explains.
    pub groups: usize,
    /// How many they were compared with.
    pub like: usize,
    /// The bandwidth of the slowest of them, bytes a second.
    pub bytes_per_second: f64,
    /// The median of its like.
    pub usual_bytes_per_second: f64,
}

/// Why nothing is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silent {
    /// No collective that synchronises is timed.
    NotMeasured,
    /// None has enough of its like.
    NothingLike,
    /// Too few looks so far.
    Starting,
    /// So many are slow that it is no link.
    Many,
}

/// What is remembered of one communicator and function.
#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    at: Timestamp,
    /// Its last looks, one bit each, the newest lowest; 1 is slow.
    slow: u8,
    looks: u8,
    unread: u8,
    bytes_per_second: f64,
    usual: f64,
}

/// The state of one run.
#[derive(Debug, Default)]
pub struct Watch(BTreeMap<(u64, Function), Kept>);

/// How a judged communicator is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    Slow,
    Fast,
    /// Neither for good.
    Between,
}

impl Group {
    /// What its links give: the bandwidth of the rank that waited for nobody.
    fn bandwidth(&self) -> f64 {
        let all = self.ends.iter().map(|it| it.bytes_per_second);
        all.filter(|it| it.is_finite()).fold(0.0, f64::max)
    }

    fn nodes(&self) -> BTreeSet<&Arc<str>> {
        // Those of a node mostly follow one another and share its name: it is compared once.
        let together = self
            .ends
            .chunk_by(|one, next| Arc::ptr_eq(&one.node, &next.node));
        together.map(|ends| &ends[0].node).collect()
    }

    fn gpus(&self) -> BTreeSet<(&Arc<str>, &Arc<str>)> {
        self.ends.iter().map(|it| (&it.node, &it.gpu)).collect()
    }

    fn is_judged(&self) -> bool {
        let is_sized = self.bytes_per_call.is_finite() && self.bytes_per_call > 0.0;
        self.function.synchronises() && self.ends.len() > 1 && is_sized && self.bandwidth() > 0.0
    }
}

impl Watch {
    /// Looks at all communicators of a run that are to be judged, by the documented thresholds.
    ///
    /// # Errors
    /// Why nothing can be said.
    pub fn observe(&mut self, groups: &[Group]) -> Result<Vec<Finding>, Silent> {
        self.observe_by(groups, &Thresholds::default())
    }

    /// The same by these thresholds.
    ///
    /// # Errors
    /// Why nothing can be said.
    pub fn observe_by(
        &mut self,
        groups: &[Group],
        by: &Thresholds,
    ) -> Result<Vec<Finding>, Silent> {
        self.0.values_mut().for_each(|it| it.unread += 1);
        let mut classes: BTreeMap<(Function, usize, usize), Vec<&Group>> = BTreeMap::new();
        for group in groups.iter().filter(|it| it.is_judged()).take(MAX_GROUPS) {
            let key = (group.function, group.ends.len(), group.nodes().len());
            classes.entry(key).or_default().push(group);
        }
        let is_measured = !classes.is_empty();
        // Within nodes, and across them.
        let mut judged: BTreeMap<bool, Vec<(&Group, Pace, usize)>> = BTreeMap::new();
        for ((_, _, nodes), class) in classes {
            let of_kind = judged.entry(nodes > 1).or_default();
            for like in of_one_size(class) {
                let count = like.len();
                if count >= LEAST_LIKE {
                    let paces = self.look(&like, by);
                    of_kind.extend(std::iter::zip(like, paces).map(|(it, pace)| (it, pace, count)));
                }
            }
        }
        self.0.retain(|_, it| it.unread < FORGOTTEN_LOOKS);
        let all = || judged.values().flatten();
        let looks = |it: &(&Group, Pace, usize)| self.0[&it.0.key()].looks;
        match all().map(looks).max() {
            None if is_measured => return Err(Silent::NothingLike),
            None => return Err(Silent::NotMeasured),
            Some(looks) if looks < LOOKS as u8 => return Err(Silent::Starting),
            Some(_) => {}
        }
        if all().all(|it| it.1 != Pace::Slow) {
            return Ok(Vec::new());
        }
        let nodes: BTreeSet<&Arc<str>> = all().flat_map(|it| it.0.nodes()).collect();
        let most = (nodes.len() / MANY_PART).max(1);
        let mut found = Vec::new();
        for (is_across, of_kind) in &judged {
            found.extend(self.named(of_kind, *is_across, most));
            if found.len() > most {
                return Err(Silent::Many);
            }
        }
        Ok(found)
    }

    /// Notes how each of some like communicators is, and says how it was lately.
    fn look(&mut self, like: &[&Group], by: &Thresholds) -> Vec<Pace> {
        let logarithms: Vec<f64> = like.iter().map(|it| it.bandwidth().ln()).collect();
        let usual = median(&mut logarithms.clone()).unwrap_or(0.0);
        let sigma = sigma_about(&mut logarithms.clone(), usual).unwrap_or(0.0);
        let least = (1.0 / by.part).ln().max(FIRE_Z * sigma.max(SIGMA_FLOOR));
        let look = |(group, own): (&&Group, &f64)| {
            let kept = self.0.entry(group.key()).or_default();
            kept.unread = 0;
            if group.at > kept.at {
                kept.at = group.at;
                kept.slow = kept.slow << 1 | u8::from(usual - own >= least);
                kept.looks = kept.looks.saturating_add(1);
                (kept.bytes_per_second, kept.usual) = (own.exp(), usual.exp());
            }
            kept.pace()
        };
        std::iter::zip(like, &logarithms).map(look).collect()
    }

    /// The links that the slow ones of a kind have in common; one more than `most` is enough.
    fn named(
        &self,
        judged: &[(&Group, Pace, usize)],
        is_across: bool,
        most: usize,
    ) -> Vec<Finding> {
        let of = |pace: Pace| judged.iter().filter(move |it| it.1 == pace);
        let mut slow: Vec<&(&Group, Pace, usize)> = of(Pace::Slow).collect();
        if slow.is_empty() {
            return Vec::new();
        }
        let fast: Vec<&Group> = of(Pace::Fast).map(|it| it.0).collect();
        let well = Well::of(&fast, &slow.iter().map(|it| it.0).collect::<Vec<_>>());
        let mut found = Vec::new();
        while found.len() <= most
            && let Some((suspect, explained)) = well.suspect(&slow)
        {
            let (own, others): (Vec<_>, Vec<_>) =
                std::iter::zip(0.., slow).partition(|(place, _)| explained.contains(place));
            let kept = own.iter().map(|(_, it)| (self.0[&it.0.key()], it.2));
            let worst = kept
                .min_by(|one, other| one.0.bytes_per_second.total_cmp(&other.0.bytes_per_second));
            found.extend(worst.map(|(kept, like)| Finding {
                suspect,
                is_across,
                groups: own.len(),
                like,
                bytes_per_second: kept.bytes_per_second,
                usual_bytes_per_second: kept.usual,
            }));
            slow = others.into_iter().map(|(_, it)| it).collect();
        }
        found
    }
}

impl Group {
    const fn key(&self) -> (u64, Function) {
        (self.communicator, self.function)
    }
}

impl Kept {
    fn pace(&self) -> Pace {
        let lately = self.slow & ((1 << LOOKS) - 1);
        let slow = lately.count_ones();
        match u32::from(self.looks) >= LOOKS {
            true if slow >= SLOW_LOOKS && lately & 1 == 1 => Pace::Slow,
            true if slow <= 1 => Pace::Fast,
            _ => Pace::Between,
        }
    }
}

/// Those of a class whose messages are alike.
fn of_one_size(mut class: Vec<&Group>) -> Vec<Vec<&Group>> {
    class.sort_by(|one, other| one.bytes_per_call.total_cmp(&other.bytes_per_call));
    let mut found: Vec<Vec<&Group>> = Vec::new();
    for group in class {
        let is_like = |like: &&mut Vec<&Group>| {
            let last = like.last().map_or(0.0, |it| it.bytes_per_call);
            group.bytes_per_call < last * LIKE_SIZE
        };
        match found.last_mut().filter(is_like) {
            Some(like) => like.push(group),
            None => found.push(vec![group]),
        }
    }
    found
}

/// What fast communicators show to be well.
struct Well<'a> {
    gpus: BTreeSet<(&'a Arc<str>, &'a Arc<str>)>,
    nodes: BTreeSet<&'a Arc<str>>,
    /// Of the nodes of slow ones alone; none where these are too many.
    pairs: Option<BTreeSet<(&'a Arc<str>, &'a Arc<str>)>>,
}

/// One thing that may be slow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Element<'a> {
    Gpu(&'a Arc<str>, &'a Arc<str>),
    Node(&'a Arc<str>),
    Pair(&'a Arc<str>, &'a Arc<str>),
}

type Slow<'a> = (&'a Group, Pace, usize);

impl<'a> Well<'a> {
    fn of(fast: &[&'a Group], slow: &[&'a Group]) -> Self {
        let troubled: BTreeSet<&Arc<str>> = slow.iter().flat_map(|it| it.nodes()).collect();
        let paired = |group: &&'a Group| {
            let nodes: Vec<&Arc<str>> = group.nodes().into_iter().collect();
            let nodes = nodes.into_iter().filter(|it| troubled.contains(it));
            pairs(&nodes.collect::<Vec<_>>())
        };
        Self {
            gpus: fast.iter().flat_map(|it| it.gpus()).collect(),
            nodes: fast.iter().flat_map(|it| it.nodes()).collect(),
            pairs: (troubled.len() <= MAX_PAIRED).then(|| fast.iter().flat_map(paired).collect()),
        }
    }

    /// What of this communicator may be slow.
    fn elements(&self, group: &'a Group) -> Vec<Element<'a>> {
        let nodes: Vec<&Arc<str>> = group.nodes().into_iter().collect();
        let paired = self.pairs.as_ref().filter(|_| nodes.len() <= MAX_PAIRED);
        let paired = paired.map_or(Vec::new(), |well| {
            let mut all = pairs(&nodes);
            all.retain(|it| !well.contains(it));
            all
        });
        let gpus = group.gpus().into_iter();
        let gpus = gpus.filter(|it| !self.gpus.contains(it));
        let nodes = nodes.iter().filter(|it| !self.nodes.contains(*it));
        gpus.map(|(node, gpu)| Element::Gpu(node, gpu))
            .chain(nodes.map(|it| Element::Node(it)))
            .chain(
                paired
                    .into_iter()
                    .map(|(one, other)| Element::Pair(one, other)),
            )
            .collect()
    }

    /// What most of the slow ones have in common, and which of them by their place.
    fn suspect(&self, slow: &[&Slow<'a>]) -> Option<(Suspect, BTreeSet<usize>)> {
        let mut found: BTreeMap<Element<'a>, BTreeSet<usize>> = BTreeMap::new();
        for (place, (group, ..)) in slow.iter().enumerate() {
            for element in self.elements(group) {
                found.entry(element).or_default().insert(place);
            }
        }
        let Some(most) = found.values().max_by_key(|it| it.len()).cloned() else {
            // All of it is well elsewhere: nothing of the first can be named.
            let (group, ..) = slow.first()?;
            let among = group.nodes().into_iter().map(Arc::clone).collect();
            return Some((Suspect::Among(among), BTreeSet::from([0])));
        };
        let common = found.into_iter().filter(|(_, it)| *it == most);
        let common: Vec<Element<'a>> = common.map(|(it, _)| it).collect();
        Some((narrowed(&common), most))
    }
}

/// The narrowest that what explains the same communicators comes down to.
fn narrowed(common: &[Element<'_>]) -> Suspect {
    let (mut gpus, mut nodes, mut paired) = (Vec::new(), Vec::new(), Vec::new());
    for element in common {
        match element {
            Element::Gpu(node, gpu) => gpus.push((*node, *gpu)),
            Element::Node(node) => nodes.push(*node),
            Element::Pair(one, other) => paired.push((*one, *other)),
        }
    }
    if let [(node, gpu)] = gpus[..] {
        return Suspect::Gpu(Arc::clone(node), Arc::clone(gpu));
    }
    if nodes.is_empty() {
        nodes = gpus.iter().map(|it| it.0).collect();
        nodes.dedup();
    }
    match (&nodes[..], &paired[..]) {
        ([node], _) => Suspect::Node(Arc::clone(node)),
        ([one, other], _) => Suspect::Pair(Arc::clone(one), Arc::clone(other)),
        ([], [(one, other)]) => Suspect::Pair(Arc::clone(one), Arc::clone(other)),
        ([], _) => {
            let all = paired.iter().flat_map(|it| [it.0, it.1]);
            let all: BTreeSet<&Arc<str>> = all.collect();
            Suspect::Among(all.into_iter().map(Arc::clone).collect())
        }
        (nodes, _) => Suspect::Among(nodes.iter().map(|it| Arc::clone(it)).collect()),
    }
}

/// Every two of them, in order.
fn pairs<'a>(nodes: &[&'a Arc<str>]) -> Vec<(&'a Arc<str>, &'a Arc<str>)> {
    let each = nodes.iter().enumerate();
    each.flat_map(|(place, one)| nodes[place + 1..].iter().map(move |other| (*one, *other)))
        .collect()
}

#[cfg(test)]
mod tests;

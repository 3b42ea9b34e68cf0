//! Why GPUs that nobody holds are free: nobody waits for such, those who wait need more than is free in one place,
//! or a taint keeps them for others.
//!
//! Method. GPUs are alike where the same could be put on them ([`Alike`]: type, taints, Slurm's partitions). What waits
//! could go there if it insists on no other type and on no other partition. Nobody could: no demand. Somebody could, and
//! nobody of them tolerates the taints: held back. Of those who do, none finds as many places as it needs on all nodes
//! that it may go on ([`Free::places`]): fragmented; a gang needs them for all of it at once, anything else for one of its pods. Where one
//! of them would fit, or is held back, something else keeps it from running (a quota, CPU, its turn), and nothing is
//! said. Nor is it where somebody waits for a type that no node has by this name, which may be another word for this one,
//! nor of nodes that their machine or an autoscaler tainted.
//!
//! What its owner holds back ([`Reason::ByOwner`]) is no demand, and as if it were not there.
//!
//! Limits. [`MAX_ALIKE`] kinds of GPUs. What insists on a type by its affinity looks as if any would do.
//! Shares are not looked at, neither free ones nor those that are waited for.

use std::collections::{BTreeMap, BTreeSet};

use super::place::{Free, Kind, left};
use super::{Claim, Node, Phase, Reason, Record, Toleration, shares_one, tolerated};
use crate::states::Demand;

/// How the taints begin that keep a node for nobody: it is out of order, or about to go.
const GOING: [&str; 6] = [
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/",
    "cloud.google.com/impending-node-termination",
];

/// Most kinds of GPUs of which it is said why they are free, those with the most free GPUs first: a large fleet has
/// dozens, and a taint of its own on each node would make as many as there are nodes.
pub const MAX_ALIKE: usize = 500;

/// What GPUs have in common on which the same could be put.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Alike {
    /// Their type as the cluster names it; empty where it does not.
    pub model: String,
    /// For whom they are kept: [`Node::kept_for`].
    pub kept_for: Vec<String>,
    /// The partitions that they are in: [`Node::partitions`].
    pub partitions: Vec<String>,
}

impl Alike {
    /// What the GPUs of this node are.
    pub fn of(node: &Node) -> Self {
        Self::from(Kind::of(node))
    }
}

impl From<Kind<'_>> for Alike {
    fn from(kind: Kind<'_>) -> Self {
        Self {
            model: kind.model.to_owned(),
            kept_for: kind.kept_for.to_vec(),
            partitions: kind.partitions.to_vec(),
        }
    }
}

/// Why GPUs are free now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WhyFree {
    /// Why, by what they have in common; without an entry where it is not one of these.
    pub of: BTreeMap<Alike, Demand>,
    /// How many kinds of GPUs are beyond [`MAX_ALIKE`].
    pub left_out: usize,
}

/// Why GPUs are free now. `held` says what is asked for on each node, `claims` all that wait.
pub fn why_free<'a>(
    records: impl Iterator<Item = &'a Record> + Clone,
    held: &BTreeMap<String, u32>,
    claims: &[Claim],
) -> WhyFree {
    let mut kinds: BTreeMap<Kind<'_>, u64> = BTreeMap::new();
    let there = |it: &&Record| it.phase() != Phase::Gone && !it.node.is_shared;
    for record in records.clone().filter(there) {
        *kinds.entry(Kind::of(&record.node)).or_default() += u64::from(left(record, held));
    }
    let models: BTreeSet<&str> = kinds.keys().map(|it| it.model).collect();
    let waiting = claims
        .iter()
        .filter(|it| !it.is_shares && it.reason.is_demand());
    let is_strange = |it: &Claim| {
        let model = it.model.as_str();
        !model.is_empty() && !models.contains(model)
    };
    if waiting.clone().any(is_strange) {
        return WhyFree::default();
    }
    let mut ranked: Vec<(Kind<'_>, u64)> = kinds.into_iter().collect();
    ranked.sort_by_key(|it| std::cmp::Reverse(it.1));
    let left_out = ranked.len().saturating_sub(MAX_ALIKE);
    ranked.truncate(MAX_ALIKE);
    let waiters = waiters(&Free::of(records, held), waiting);
    let of = ranked.into_iter().filter_map(|(kind, _)| {
        let why = why(kind, &waiters)?;
        Some((Alike::from(kind), why))
    });
    WhyFree {
        of: of.collect(),
        left_out,
    }
}

/// What waits by all that decides where it may go, type, tolerations and partitions, and whether something else than
/// room keeps any of it: one would fit, or is held back.
type Waiters<'a> = BTreeMap<(&'a str, &'a [Toleration], &'a [String]), bool>;

fn waiters<'a>(free: &Free<'_>, claims: impl Iterator<Item = &'a Claim> + Clone) -> Waiters<'a> {
    let gang = |it: &'a Claim| (it.namespace.as_str(), it.workload.as_str(), it.reason);
    let mut of_gangs: BTreeMap<(&str, &str, Reason), u64> = BTreeMap::new();
    for it in claims.clone().filter(|it| it.together.is_none()) {
        *of_gangs.entry(gang(it)).or_default() += it.gpus();
    }
    let mut found = Waiters::new();
    let mut looked_at = BTreeSet::new();
    for it in claims {
        let needs = match it.together {
            Some(places) => it.gpus_in(places),
            None => of_gangs[&gang(it)],
        };
        let key = (
            it.model.as_str(),
            it.tolerates.as_slice(),
            it.partitions.as_slice(),
        );
        // Thousands of pods ask for the same.
        let is_new = looked_at.insert((key, it.gpus_each, needs));
        let fits = || {
            let places = free.places(it).unwrap_or(0);
            places.saturating_mul(it.gpus_each.into()) >= needs
        };
        let is_kept = found.entry(key).or_default();
        *is_kept = *is_kept || it.reason == Reason::HeldBack || is_new && fits();
    }
    found
}

/// Why GPUs of a kind are free; none where it is not one of these.
fn why(kind: Kind<'_>, waiters: &Waiters<'_>) -> Option<Demand> {
    let is_going = |taint: &String| GOING.iter().any(|it| taint.starts_with(it));
    if kind.kept_for.iter().any(is_going) {
        return None;
    }
    let could = waiters.iter();
    let could = could.filter(|(key, _)| ["", kind.model].contains(&key.0));
    let could = could.filter(|(key, _)| shares_one(key.2, kind.partitions));
    let mut could = could.peekable();
    if could.peek().is_none() {
        return Some(Demand::None);
    }
    let mut may = could
        .filter(|(key, _)| tolerated(kind.kept_for, key.1))
        .peekable();
    if may.peek().is_none() {
        return Some(Demand::Reserved);
    }
    (!may.any(|(_, is_kept)| *is_kept)).then_some(Demand::Fragmented)
}

//! Why GPUs that nobody holds are free: nobody waits for such, those who wait need more than is free in one place,
//! or a taint keeps them for others.
//!
//! Method. GPUs are alike where the same could be put on them ([`Alike`]: type and taints). What waits could go there
//! if it insists on no other type. Nobody could: no demand. Somebody could, and nobody of them tolerates the
//! taints: held back. Of those who do, none finds as many places as it needs on all nodes that it may go on
//! ([`Free::places`]): fragmented. Where one of them would fit, or is held back, something else keeps it from running (a
//! quota, CPU, its turn), and nothing is said. Nor is it where somebody waits for a type that no node has by this
//! name, which may be another word for this one, nor of nodes that their machine or an autoscaler tainted.
//!
//! Limits. What insists on a type by its affinity looks as if any type would do. Shares are not looked at, neither
//! free ones nor those that are waited for.

use std::collections::{BTreeMap, BTreeSet};

use super::place::Free;
use super::{Claim, Node, Phase, Reason, Record, Waiting, queue};
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

/// What GPUs have in common on which the same could be put.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Alike {
    /// Their type as the cluster names it; empty where it does not.
    pub model: String,
    /// For whom they are kept: [`Node::kept_for`].
    pub kept_for: Vec<String>,
}

impl Alike {
    /// What the GPUs of this node are.
    pub fn of(node: &Node) -> Self {
        Self {
            model: node.model.clone(),
            kept_for: node.kept_for.clone(),
        }
    }
}

/// Why GPUs are free now, by what they have in common; without an entry where it is not one of these.
/// `held` says what is asked for on each node.
pub fn why_free<'a>(
    records: impl Iterator<Item = &'a Record> + Clone,
    held: &BTreeMap<String, u32>,
    claims: &[Claim],
) -> BTreeMap<Alike, Demand> {
    let free = Free::of(records.clone(), held);
    let waiting = queue(claims.iter().filter(|it| !it.is_shares));
    let fits = |it: &&Waiting| {
        let places = free.places(&it.first).unwrap_or(0);
        places.saturating_mul(it.first.gpus_each.into()) >= it.gpus
    };
    let there = records.filter(|it| it.phase() != Phase::Gone && !it.node.is_shared);
    let models: BTreeSet<&str> = there.clone().map(|it| it.node.model.as_str()).collect();
    let is_strange = |it: &Waiting| {
        let model = it.first.model.as_str();
        !model.is_empty() && !models.contains(model)
    };
    let has_strange = waiting.iter().any(is_strange);
    let mut found: BTreeMap<Alike, Option<Demand>> = BTreeMap::new();
    for record in there {
        let alike = Alike::of(&record.node);
        found.entry(alike).or_insert_with_key(|alike| {
            let is_going = |taint: &String| GOING.iter().any(|it| taint.starts_with(it));
            if has_strange || alike.kept_for.iter().any(is_going) {
                return None;
            }
            let could =
                |it: &&Waiting| ["", alike.model.as_str()].contains(&it.first.model.as_str());
            let mut could = waiting.iter().filter(could).peekable();
            if could.peek().is_none() {
                return Some(Demand::None);
            }
            let may = |it: &&Waiting| {
                let tolerates =
                    |taint: &String| it.first.tolerates.iter().any(|it| it.covers(taint));
                alike.kept_for.iter().all(tolerates)
            };
            let mut may = could.filter(may).peekable();
            if may.peek().is_none() {
                return Some(Demand::Reserved);
            }
            let is_held_back = |it: &Waiting| it.first.reason == Reason::HeldBack;
            (!may.any(|it| is_held_back(it) || fits(&it))).then_some(Demand::Fragmented)
        });
    }
    let said = found.into_iter();
    said.filter_map(|(alike, why)| Some((alike, why?)))
        .collect()
}

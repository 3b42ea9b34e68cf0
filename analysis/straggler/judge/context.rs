//! Ranks that hold the same part of each sequence (context parallelism): where attention is causal and nobody evens it
//! out, the last part has more work, and all ranks that hold it are slow alike.
//!
//! A part of which three quarters of a stage's ranks are slow, two at least, is the split's and nobody's. Where a part
//! has one rank alone, nobody can tell its work from its machine: it is named with low confidence.
//!
//! Limits: told where the run says who stands where along cp, and along dp without it. A machine that holds all ranks of
//! a part is not told from the split.

use std::collections::BTreeMap;

use super::{Evidence, Parted, Run, Silent, Verdict};
use crate::robust::median;
use crate::straggler::Unnamed;

/// A part is slow alike from this share of its ranks on: 3 of 4.
const ALIKE: (usize, usize) = (3, 4);

impl Run {
    /// Takes out of the evidence the ranks that are slow with all of their part of the sequence, and says that they are.
    pub(super) fn excuse_split(
        &mut self,
        (stage, peers): (Option<u32>, &[u32]),
        evidence: &mut BTreeMap<u32, Evidence>,
        verdict: &mut Verdict,
    ) {
        let split = self.of_the_split(peers, evidence);
        if split.is_empty() {
            return;
        }
        for number in &split {
            self.clear(*number);
        }
        match stage {
            Some(stage) => verdict.parted.push(self.split(stage, &split, peers.len())),
            None => verdict.silent = Some(Silent::MeshUnknown),
        }
    }

    /// Takes these ranks out of the evidence, and hands them out.
    fn of_the_split(&self, peers: &[u32], evidence: &mut BTreeMap<u32, Evidence>) -> Vec<u32> {
        let parts = self.contexts(peers);
        let is_alike = |ranks: &Vec<u32>| {
            let slow = ranks.iter().filter(|it| evidence.contains_key(it)).count();
            slow > 1 && slow * ALIKE.1 >= ranks.len() * ALIKE.0
        };
        let alike: Vec<u32> = match parts.len() {
            // Without another part there is no split.
            0 | 1 => Vec::new(),
            _ => parts.into_values().filter(is_alike).flatten().collect(),
        };
        let is_slow = |it: &u32| evidence.remove(it).is_some();
        alike.into_iter().filter(is_slow).collect()
    }

    /// What is said of these.
    fn split(&self, stage: u32, slow: &[u32], peers: usize) -> Parted {
        let middle = |number: &u32| self.lately(*number).slowness;
        let slowness = median(&mut slow.iter().map(middle).collect::<Vec<_>>());
        Parted {
            stage,
            slow: slow.len(),
            of: peers,
            ratio: slowness.unwrap_or(0.0).exp(),
            unnamed: Unnamed::SamePart,
        }
    }

    /// Whether this rank alone holds its part of the sequences of its stage.
    pub(super) fn is_alone_in_part(&self, peers: &[u32], number: u32) -> bool {
        let parts = self.contexts(peers);
        parts.len() > 1 && parts.values().any(|it| it[..] == [number])
    }

    /// The ranks by their part; nothing where that is not known of all.
    fn contexts(&self, peers: &[u32]) -> BTreeMap<u32, Vec<u32>> {
        let mut parts: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for number in peers {
            match self.ranks[number].seat.context {
                Some(context) => parts.entry(context).or_default().push(*number),
                None => return BTreeMap::new(),
            }
        }
        parts
    }
}

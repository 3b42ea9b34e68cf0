//! Slurm's partitions: which a node is in, which a job may go to, and which of them begin nothing.
//!
//! A partition is `UP`; `DOWN`, when jobs may be submitted and none begins; `DRAIN`, when none may be submitted and those
//! that wait begin all the same; or `INACTIVE`, when neither. A release that does not tell it, and a word that is none of
//! these, say nothing of a partition. Answers of before 23.02, which list nodes, do not tell it.
//!
//! Limits: [`MAX_PARTITIONS`].

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_telemetry::holder;
use serde_json::Value;

use super::words;

/// Most partitions of a node, and that a job names: sites have dozens, and a node is in a handful.
const MAX_PARTITIONS: usize = 64;

/// What may be done with a partition that is not up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shut {
    /// Its jobs wait until it is up.
    Down,
    /// Nothing new may be submitted; what waits begins.
    Drain,
    /// Nothing may be submitted, and nothing begins.
    Inactive,
}

/// Partitions that are not up, by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Closed(BTreeMap<String, Shut>);

impl Shut {
    /// What the state of a partition says; none where it is up or nobody says.
    pub(super) fn of(state: &Value) -> Option<Self> {
        let said = words(state);
        let is = |word: &str| said.iter().any(|it| it == word);
        match () {
            () if is("INACTIVE") => Some(Self::Inactive),
            () if is("DOWN") => Some(Self::Down),
            () if is("DRAIN") => Some(Self::Drain),
            () => None,
        }
    }
}

impl Closed {
    /// Notes the state of a partition.
    pub(super) fn note(&mut self, partition: &str, shut: Option<Shut>) {
        if let Some(shut) = shut.filter(|_| !partition.is_empty()) {
            self.0.insert(holder::cut(partition).to_owned(), shut);
        }
    }

    /// The partitions of a node in which something may be put on it; none where all of them are closed.
    pub(super) fn open(&self, all: &[String]) -> Option<Vec<String>> {
        let open = all.iter().filter(|it| !self.0.contains_key(*it));
        let open: Vec<String> = open.cloned().collect();
        (!open.is_empty() || all.is_empty()).then_some(open)
    }

    /// Slurm's word for why a job of these partitions does not begin; none where one of them begins it.
    pub(super) fn why(&self, of_job: &[String]) -> Option<&'static str> {
        let mut said = None;
        for partition in of_job {
            said = Some(match self.0.get(partition)? {
                Shut::Down => "PartitionDown",
                Shut::Inactive => "PartitionInactive",
                Shut::Drain => return None,
            });
        }
        said
    }
}

/// Partitions by name, each once.
pub(super) fn partitions<'a>(all: impl Iterator<Item = &'a str>) -> Vec<String> {
    let all = all.filter(|it| !it.is_empty()).map(holder::cut);
    let all: BTreeSet<&str> = all.collect();
    let all = all.into_iter().take(MAX_PARTITIONS);
    all.map(str::to_owned).collect()
}

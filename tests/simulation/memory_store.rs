//! What a database would keep, in memory: each commit wholly or not at all, once.

use std::collections::BTreeMap;

use gpufleet_server::fleet::Restored;
use gpufleet_server::store::model::{
    Commit, Cursor, CursorKey, ForeignMark, Gap, KnownResource, ResourceKey, StoredEvent,
};
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::Minute;

/// The store.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    /// The number of the last commit.
    pub last_commit: u64,
    cursors: BTreeMap<CursorKey, Cursor>,
    resources: BTreeMap<ResourceKey, KnownResource>,
    minutes: BTreeMap<ResourceKey, BTreeMap<Minute, MinuteRow>>,
    foreign: BTreeMap<[u8; 16], ForeignMark>,
    /// Every event, in the order of its commit.
    pub events: Vec<StoredEvent>,
    /// Every gap that a sender told.
    pub gaps: Vec<Gap>,
}

impl MemoryStore {
    /// Takes in a commit; a number that is not the next one changes nothing.
    pub fn commit(&mut self, commit: &Commit) -> bool {
        if commit.number != self.last_commit + 1 {
            return false;
        }
        self.last_commit = commit.number;
        for cursor in &commit.cursors {
            self.cursors.insert(cursor.key, cursor.clone());
        }
        for known in &commit.resources {
            self.resources.insert(known.key.clone(), known.clone());
        }
        for delta in &commit.minutes {
            self.minutes
                .entry(delta.key.clone())
                .or_default()
                .entry(delta.minute)
                .or_default()
                .merge(&delta.row);
        }
        for mark in &commit.foreign {
            self.foreign.insert(mark.series, *mark);
        }
        self.events.extend(commit.events.iter().cloned());
        self.gaps.extend(commit.gaps.iter().copied());
        true
    }

    /// What a server that starts reads from it.
    pub fn restored(&self) -> Restored {
        Restored {
            last_commit: self.last_commit,
            cursors: self.cursors.values().cloned().collect(),
            resources: self.resources.values().cloned().collect(),
            health: Vec::new(),
            foreign: self.foreign.values().copied().collect(),
            ..Restored::default()
        }
    }

    /// How far a stream is folded, durably.
    pub fn cursor(&self, key: &CursorKey) -> u64 {
        self.cursors.get(key).map_or(0, |cursor| cursor.seq)
    }

    /// The minutes of one resource.
    pub fn minutes(&self, key: &ResourceKey) -> BTreeMap<Minute, MinuteRow> {
        self.minutes.get(key).cloned().unwrap_or_default()
    }

    /// Everything that has minutes.
    pub fn keys(&self) -> impl Iterator<Item = &ResourceKey> {
        self.minutes.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_that_comes_again_changes_nothing() {
        let mut store = MemoryStore::default();
        let commit = Commit {
            number: 1,
            ..Commit::default()
        };
        assert!(store.commit(&commit));
        assert!(!store.commit(&commit));
        assert_eq!(store.last_commit, 1);
    }
}

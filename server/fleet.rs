//! The fleet as it is now, and how far each agent's data has been folded: exactly once.
//!
//! A shard holds the cursors, the live state and the uncommitted deltas of its agents under one
//! lock, so that a fold and its cursor move together. No I/O and no clock in here: time comes in
//! with every call, so that the simulation drives the same code as the server.

use std::sync::{Mutex, MutexGuard};

use crate::config::section;
use crate::store::model::ResourceKey;

pub mod live;

pub use live::Live;

/// Shards of the fleet. More than the cores of any server we run on, few enough to walk often.
pub const SHARDS: usize = 16;

section! {
    /// Live state and commits.
    pub struct FleetConfig {
        /// Time between two commits, seconds. Data younger than this is lost with the server and
        /// sent again by the agents.
        pub commit_interval_s: u64 = 20,
        /// A commit is made early when this many bytes wait for it.
        pub commit_bytes: usize = 64 * 1024 * 1024,
        /// Most bytes of fresh data that may wait for a commit; then agents are told to wait.
        pub live_bytes: usize = 192 * 1024 * 1024,
        /// Most bytes of old data (backfill) that may wait for a commit; then agents are told to wait.
        pub backfill_bytes: usize = 64 * 1024 * 1024,
    }
}

/// Every agent's live state, cursors and deltas.
pub struct Fleet {
    shards: Vec<Mutex<Shard>>,
}

/// What one lock guards.
#[derive(Default)]
struct Shard {
    resources: std::collections::HashMap<ResourceKey, Live>,
}

impl Fleet {
    /// A fleet that has heard of nobody.
    pub fn new(_config: FleetConfig) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    /// Shows every resource to `look`, in no order. A shard is locked meanwhile: copy what is
    /// needed and format later.
    pub fn visit(&self, mut look: impl FnMut(&Live)) {
        for shard in &self.shards {
            for live in lock(shard).resources.values() {
                look(live);
            }
        }
    }

    /// One resource as it is now.
    pub fn get(&self, key: &ResourceKey) -> Option<Live> {
        self.shards
            .iter()
            .find_map(|shard| lock(shard).resources.get(key).cloned())
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard
        .lock()
        .expect("a fold does not panic: it holds the only lock and takes checked data")
}

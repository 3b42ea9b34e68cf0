//! What one lock guards: the cursors, live state and deltas of a shard's agents.

use std::collections::HashMap;

use gpufleet_telemetry::identity::AgentId;

use super::agent::AgentState;
use super::commit::LaneBytes;
use super::fold::Tracked;
use super::foreign::Marks;
use crate::store::model::{Gap, ResourceKey, StoredEvent};

/// One shard.
#[derive(Default)]
pub(super) struct Shard {
    pub(super) agents: HashMap<AgentId, AgentState>,
    pub(super) resources: HashMap<ResourceKey, Tracked>,
    /// Events that wait for their commit.
    pub(super) events: Vec<StoredEvent>,
    /// Gaps that wait for their commit.
    pub(super) gaps: Vec<Gap>,
    /// How far foreign series have been seen; only in the shard of the foreign agent.
    pub(super) marks: Marks,
    /// Bytes that wait for their commit.
    pub(super) bytes: LaneBytes,
}

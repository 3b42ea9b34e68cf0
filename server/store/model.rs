//! What goes into the store and what comes out of it, in the words of the product, not of SQL.

use std::sync::Arc;

use gpufleet_telemetry::event::Event;
use gpufleet_telemetry::identity::{AgentId, Epoch, Resource, ResourceKind};
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::{Minute, Timestamp};
use gpufleet_telemetry::wire::Stream;

/// The place in the world of one spool's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CursorKey {
    /// Who sends.
    pub agent: AgentId,
    /// The life of its spool.
    pub epoch: Epoch,
    /// What the stream carries.
    pub stream: Stream,
}

/// How far a stream has been folded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// Which stream.
    pub key: CursorKey,
    /// The highest seq that is folded; 0 before the first.
    pub seq: u64,
    /// What is added to the sender's times; fixed per epoch so that a resend shifts equally.
    pub clock_offset_nanos: i64,
    /// When the stream was last heard.
    pub seen: Timestamp,
}

/// A resource's name in the whole installation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceKey {
    /// The cluster it lives in.
    pub cluster: Arc<str>,
    /// What it is.
    pub kind: ResourceKind,
    /// Its id in its kind and cluster.
    pub id: Arc<str>,
}

/// A resource as the store knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownResource {
    /// Its name.
    pub key: ResourceKey,
    /// Its attributes as last told.
    pub resource: Arc<Resource>,
    /// The agent that told them; none for foreign OTLP.
    pub agent: Option<AgentId>,
    /// The first sample ever.
    pub first_seen: Timestamp,
    /// The newest sample.
    pub last_seen: Timestamp,
}

/// What one commit adds to one minute of one resource.
#[derive(Debug, Clone, PartialEq)]
pub struct MinuteDelta {
    /// Whose minute.
    pub key: ResourceKey,
    /// Which minute.
    pub minute: Minute,
    /// What is merged into the row that is there.
    pub row: MinuteRow,
}

/// An event with its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// The cluster it happened in.
    pub cluster: Arc<str>,
    /// Who told it; none for foreign OTLP.
    pub agent: Option<AgentId>,
    /// What happened.
    pub event: Event,
}

/// Seqs that a sender gave up and will never send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// In which stream.
    pub key: CursorKey,
    /// The first of them.
    pub first: u64,
    /// The last of them.
    pub last: u64,
    /// When the server was told.
    pub seen: Timestamp,
}

/// How far a foreign series has been seen: points not newer are dropped and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignMark {
    /// A hash of cluster, resource, metric and point attributes.
    pub series: [u8; 16],
    /// The time of its newest point.
    pub newest: Timestamp,
}

/// Everything that becomes durable together, in one transaction.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Commit {
    /// Counts up by one per commit; read back after an error to learn whether it happened.
    pub number: u64,
    /// How far each touched stream is folded now.
    pub cursors: Vec<Cursor>,
    /// Resources that are new, changed, or seen again.
    pub resources: Vec<KnownResource>,
    /// What is merged into minute rows; marks their hours dirty.
    pub minutes: Vec<MinuteDelta>,
    /// What happened.
    pub events: Vec<StoredEvent>,
    /// What was given up.
    pub gaps: Vec<Gap>,
    /// How far foreign series have been seen.
    pub foreign: Vec<ForeignMark>,
}

/// Proof of being the active server: a commit with an older token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FencingToken(pub i64);

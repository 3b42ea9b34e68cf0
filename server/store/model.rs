//! What goes into the store and what comes out of it, in the words of the product, not of SQL.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_analysis::inventory::Record;
use gpufleet_analysis::ledger::{LedgerHour, Reason, State};
use gpufleet_analysis::owner::Holder;
use gpufleet_analysis::serving::Served;
use gpufleet_analysis::states::{Carry, HealthEvent, Held, Span};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{AgentId, Epoch, Resource, ResourceKind};
use gpufleet_telemetry::minute::{Aggregate, ByMetric, Counter, MinuteRow};
use gpufleet_telemetry::time::{Minute, Timestamp};
use gpufleet_telemetry::wire::Stream;

pub use super::{around::Surroundings, demand::DemandHour, unheld::FreeHour};
use crate::runs::{KnownRun, StepDelta};

mod days;

mod incident;

mod time;

pub use days::{DayFacts, DayHour, DayInput, DayOf, LedgerDay, UnreadDay};
pub use incident::IncidentFilter;
pub use time::DayTime;

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

/// Who held something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownHolder {
    /// Its number, as [`Holder::number`] gives it.
    pub number: i64,
    /// All that is known of it.
    pub holder: Holder,
    /// When it was met.
    pub met: Timestamp,
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
    /// Who was met as a holder.
    pub holders: Vec<KnownHolder>,
    /// What happened.
    pub events: Vec<StoredEvent>,
    /// What was given up.
    pub gaps: Vec<Gap>,
    /// How far foreign series have been seen.
    pub foreign: Vec<ForeignMark>,
    /// Runs that changed, and every run of `steps`.
    pub runs: Vec<KnownRun>,
    /// What is added to the steps of ranks, sorted by run.
    pub steps: Vec<StepDelta>,
}

/// Proof of being the active server: a commit with an older token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FencingToken(pub i64);

/// What a commit did, beside becoming durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Committed {
    /// It had been committed before: nothing was written again.
    pub already: bool,
    /// Minute rows that were left out because their minute is no longer kept.
    pub too_late: u64,
    /// Minute rows that were there but could not be read: set aside, named in the log.
    pub corrupt: u64,
    /// Steps that were left out because nobody knows their run.
    pub steps_of_nobody: u64,
    /// Steps that were left out because their rank told more in ten minutes than is kept.
    pub steps_too_many: u64,
}

/// The right to write, for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// What every commit must show.
    pub token: FencingToken,
    /// When it runs out unless it is renewed.
    pub expires: Timestamp,
}

/// Minute rows of one resource.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Minutes {
    /// By minute; a minute of which nothing is known is not there.
    pub rows: BTreeMap<Minute, MinuteRow>,
    /// One sentence for each row that is there but could not be read.
    pub corrupt: Vec<String>,
}

/// Ten minutes of one resource: what is left of its minute rows when those are gone.
#[derive(Debug, Clone, PartialEq)]
pub struct TenMinutes {
    /// Minutes since the Unix epoch, divided by ten.
    pub bucket: i64,
    /// Seconds with a valid sample, 0 to 600.
    pub observed_s: i64,
    /// Seconds in which the engine was active.
    pub active_s: i64,
    /// Seconds busy without work.
    pub stalled_s: i64,
    /// Seconds in which someone held it.
    pub held_s: i64,
    /// Seconds in which it was known whether someone held it.
    pub holder_known_s: i64,
    /// Gauges by metric number.
    pub metrics: ByMetric<Aggregate>,
    /// Counters by metric number; their moments count from the first of the ten minutes.
    pub counters: ByMetric<Counter>,
}

/// Which events are asked for. Empty fields ask for all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventFilter {
    /// Of this cluster.
    pub cluster: Option<Arc<str>>,
    /// About this kind of resource.
    pub resource_kind: Option<ResourceKind>,
    /// About the resource with this id.
    pub resource_id: Option<Arc<str>>,
    /// About one of these, where there are any: at most [`MAX_EVENT_IDS`](super::MAX_EVENT_IDS).
    pub resource_ids: Vec<Arc<str>>,
    /// About one whose id begins so.
    pub id_prefix: Option<Arc<str>>,
    /// Of this kind.
    pub kind: Option<EventKind>,
    /// At least this bad.
    pub severity: Option<Severity>,
    /// Not before this moment.
    pub from: Option<Timestamp>,
    /// Before this moment.
    pub until: Option<Timestamp>,
}

/// Where a page of events ends: the next one is older than this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventPlace {
    /// The time of its last event.
    pub at: Timestamp,
    /// The number of its last event.
    pub id: i64,
}

/// Events, the newest first.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EventPage {
    /// The events.
    pub events: Vec<StoredEvent>,
    /// Where to go on; none when these were the last.
    pub next: Option<EventPlace>,
}

/// A page of resources.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResourcePage {
    /// Sorted by the order in which they were first stored.
    pub resources: Vec<KnownResource>,
    /// Where to go on; none when these were the last.
    pub next: Option<i64>,
}

/// An hour whose minutes changed since it was computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirtyHour {
    /// Hours since the Unix epoch.
    pub hour: i64,
    /// The store's number of the resource.
    pub subject: i64,
    /// A new random number with every change.
    pub mark: i64,
    /// Whether data came since it was computed.
    pub is_changed: bool,
}

/// What an hour is computed from.
#[derive(Debug, Clone, PartialEq)]
pub struct LedgerInput {
    /// Which hour of which resource.
    pub dirty: DirtyHour,
    /// The resource.
    pub resource: KnownResource,
    /// The minute rows of the hour and of the lookahead after it.
    pub minutes: BTreeMap<Minute, MinuteRow>,
    /// What broke or healed it in that time.
    pub health: Vec<HealthEvent>,
    /// What the hour before handed over; none when it is not computed or was not there.
    pub carry: Option<Carry>,
    /// When in that time it was not there, because its shares were, or because its card was seen without it.
    pub away: Vec<Span>,
    /// The numbers of its card and of other shares of it: their hours depend on its minutes.
    pub family: Vec<i64>,
    /// What stands around it.
    pub around: Surroundings,
}

/// What a final hour was changed by, in one state for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Correction {
    /// Hours since the Unix epoch.
    pub hour: i64,
    /// Which restatement of the hour; 1 is the first.
    pub number: i64,
    /// The number of the holder; 0 of nobody, or nobody known.
    pub holder: i64,
    /// The code of the state.
    pub state: i64,
    /// The code of the reason.
    pub reason: i64,
    /// What is added, milliseconds; below 0 what is taken away.
    pub millis: i64,
    /// What is added, nano-USD; none without a price before or after.
    pub cost_nano_usd: Option<i64>,
    /// When it was computed.
    pub computed: Timestamp,
    /// Why, in words.
    pub why: String,
}

/// A computed hour, to replace what is there.
#[derive(Debug, Clone, PartialEq)]
pub struct ComputedHour {
    /// Which dirty hour this answers: nothing is replaced if it changed since.
    pub dirty: DirtyHour,
    /// Where its time went. Without time, nothing is kept of the hour.
    pub ledger: LedgerHour,
    /// The same time by who held it.
    pub held: BTreeMap<(i64, State, Reason), Held>,
    /// When in the hour that time is; empty where that is not known.
    pub spans: Vec<Span>,
    /// The numbers of resources whose same hour and the one after it are to be computed again.
    pub family: Vec<i64>,
    /// What it served, of a model server that told it.
    pub served: Option<Served>,
    /// What the next hour must know; none while this one runs or when it was not there at the end.
    pub carry: Option<Carry>,
    /// When to compute it again although nothing changed: it still runs, or waits for what comes after it.
    pub again: Option<Timestamp>,
    /// Its ten-minute rows.
    pub ten_minutes: Vec<TenMinutes>,
    /// Its minutes, to be packed, when nothing more is expected to change them.
    pub closed: BTreeMap<Minute, MinuteRow>,
}

/// A node from when it is billed to when it was gone, or up to when it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLife {
    /// Its cluster.
    pub cluster: String,
    /// What was known of it last.
    pub record: Record,
    /// When it began, Unix milliseconds.
    pub from_ms: i64,
    /// When it ended; of one that is there, up to when it was seen.
    pub until_ms: i64,
    /// Whether it ended.
    pub is_gone: bool,
}

/// A table of prices, owners or budgets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoneyTable {
    /// What it is called in messages: its file's name.
    pub name: String,
    /// What it is a table of ([`crate::money::tables::Kind`]).
    pub kind: String,
    /// Its text.
    pub content: String,
    /// When it was imported.
    pub imported: Timestamp,
}

/// A place in the list of incidents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IncidentPlace {
    /// When it began.
    pub since: Timestamp,
    /// Which one.
    pub id: uuid::Uuid,
}

/// A change that was asked for through pages or API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// When.
    pub at: Timestamp,
    /// The person that a trusted proxy names, or the role of the token.
    pub who: String,
    /// The address that it came from.
    pub peer: String,
    /// What was to be done.
    pub action: String,
    /// To what.
    pub target: String,
    /// With what, as JSON.
    pub detail: String,
}

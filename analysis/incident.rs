//! The life of an incident: what detectors signal at each tick becomes few things that a person acts
//! on, each with its place, cause, evidence and price.
//!
//! A [`Signal`] is one detector's word about one place at one tick. Signals of one cause are one
//! [`Group`] ([`group`]), a group is one [`Incident`] ([`book`]), and the book moves incidents on:
//!
//! - *Debounce*: an incident opens when its family was signalled at [`Family::ticks`] ticks in a row
//!   (an XID at once, a link after 5), so that one bad reading is no incident; heat, power and links
//!   say nothing for [`BOOT_QUIET_NS`] after a node booted. How many links a model has, and how many
//!   readings of them are a fault, is the detector's to know.
//! - *One cause, one incident*: a broken GPU explains its heat, its power and its idleness, a broken
//!   node its GPUs, either the run that waits for them, and with a run that stands go its GPUs that do no
//!   work, on whatever node; half of a node's GPUs with the same trouble are the node's; more than
//!   [`BREAKER_NODES`] nodes and a tenth of a cluster with the same trouble within minutes are the
//!   cluster's: the circuit breaker, one incident where there would be hundreds (`outage`); so are many runs with the same trouble within minutes (`breaker`). What opened
//!   before its cause was known becomes the incident of its cause, under the id that people know; what
//!   an open incident has explained is no other while that one is open, and GPUs that wait in a run while that stands
//!   ([`explained`]). A reader that fails explains nothing: what its agent tells of the rest is as true as before. A
//!   slow link of which the run alone is known explains what the run is, and not that one of its ranks is slow.
//! - *Two known causes, two incidents*, also of one family at one place; a cause that is found later is the same
//!   incident's, and so is what is thought of a run (`trouble`). One whose own cause is told no more takes the one
//!   that is, with a line in its log; what spoke for the first stays evidence. Of several things wrong for one cause it
//!   has the words of what asks for most, as long as that is told (`remedy`).
//! - *Quiet*: what is signalled of a run that starts, evaluates or saves opens nothing and ends
//!   nothing.
//! - *Missing data* opens nothing but [`Family::Blind`], and resolves nothing: an incident whose place
//!   is not heard from stays open and says since when it is not; so does one of a broken GPU that is
//!   forgotten (`missing`). Where nothing tells of the place any more ([`book::Tick::is_forgotten`]) it ends, and its
//!   log says that it was not seen to be over.
//! - *Resolve*: after [`Family::clear_ns`] without its signal, in which its place was heard. The same
//!   trouble at the same place within [`REOPEN_NS`] opens the same incident again, after as many ticks in a row.
//!
//! People acknowledge, silence and annotate it, and take the first two back; each with a name and a time in its log.
//!
//! Limits: [`MAX_INCIDENTS`] in the book, [`MAX_EVIDENCE`] pieces of evidence and [`MAX_LOG`] lines of
//! log each, a note of [`MAX_NOTE_BYTES`]; what is beyond is counted.

use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::cause::{Cause, Reading};
use crate::lost::{Losing, Lost};
use crate::price::{Basis, Price, Stake};
use crate::straggler::Confidence;

pub mod book;
mod breaker;
mod explained;
mod group;
mod life;
mod missing;
mod outage;
mod person;
mod priced;
mod remedy;
mod stood;
mod trouble;

#[cfg(test)]
mod tests;

pub use book::{Book, Change, Tick};
pub use breaker::{BREAKER_RUNS, BREAKER_WITHIN_NS};
pub use group::{Group, Nodes};
pub use person::{MAX_NOTE_BYTES, MAX_PERSON_BYTES, MAX_SILENCE_NS, Refused};
pub use remedy::Remedy;
pub use stood::{Standing, StandingRuns};

/// Most incidents in the book, pending and lately resolved ones with them: the circuit breaker makes
/// more than a few tens unlikely, and more than a thousand nobody reads. What is worse has more of the room, what is
/// over makes room, and what is beyond is counted, and looked at again at each tick.
pub const MAX_INCIDENTS: usize = 1_000;
/// Pieces of evidence kept of one incident: the first of each kind and place.
pub const MAX_EVIDENCE: usize = 16;
/// Lines of an incident's log.
pub const MAX_LOG: usize = 64;
/// The same trouble within this time after it was over is the same incident, nanoseconds.
pub const REOPEN_NS: i64 = 600 * 1_000_000_000;
/// For this long after a boot heat, power and links say nothing: fans, clocks and links settle.
pub const BOOT_QUIET_NS: i64 = 600 * 1_000_000_000;
/// The circuit breaker: more nodes than this whose same trouble began within minutes …
pub const BREAKER_NODES: usize = 5;
/// … that are more than one in so many of the cluster's.
pub const BREAKER_PART: usize = 10;

/// Kinds of trouble, the one that explains others first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Nothing is heard from a node, or its agent cannot read something ([`Cause::Reader`]).
    Blind,
    /// A GPU is broken: XID, lost, hung, vanished, errors that cannot be corrected.
    GpuFault,
    /// Its memory is about to be.
    Memory,
    /// It is slowed down by heat, or hotter than like ones.
    Heat,
    /// It is slowed down for want of power, or draws less than like ones.
    Power,
    /// PCIe, NVLink or the network.
    Link,
    /// A run stands still.
    Hang,
    /// A rank makes the others wait.
    Straggler,
    /// A run's numbers went wrong.
    Training,
    /// A run became slower.
    Slower,
    /// Memory grows until it is used up.
    Leak,
    /// Held or busy, and without work.
    Stalled,
    /// Held and idle.
    Idle,
    /// A card or a machine that breaks again and again.
    Offender,
    /// A team that spends more than its budget.
    Budget,
}

/// Where it is. What is none is not narrowed down.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Place {
    /// The cluster.
    pub cluster: String,
    /// The node in it.
    pub node: Option<String>,
    /// The GPU on the node.
    pub gpu: Option<String>,
    /// The run, of what is about one; node and GPU are then its suspect's.
    pub run: Option<String>,
    /// The rank of the run.
    pub rank: Option<u32>,
}

/// One detector's word at one tick.
#[derive(Debug, Clone, PartialEq)]
pub struct Signal {
    /// What kind of trouble.
    pub family: Family,
    /// Where.
    pub place: Place,
    /// How bad.
    pub severity: Severity,
    /// What it is, in few words that stay the same from tick to tick: `XID 79`.
    pub what: String,
    /// What to do about it; may be empty.
    pub action: String,
    /// What that asks for.
    pub remedy: Remedy,
    /// Why.
    pub cause: Cause,
    /// Since when, where it is known to be earlier than this tick.
    pub since: Option<Timestamp>,
    /// What was read, beside what is usual.
    pub readings: Vec<Reading>,
    /// What it costs, or why that is not known.
    pub price: Price,
    /// How sure its detector is; none of one that has no grades.
    pub confidence: Option<Confidence>,
    /// When the node came up.
    pub booted_at: Option<Timestamp>,
}

/// A piece of evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// When it was first seen.
    pub at: Timestamp,
    /// Where.
    pub place: Place,
    /// What.
    pub what: String,
    /// Why, as far as this piece says.
    pub cause: Cause,
    /// What was read first, or last where that says more ([`Family::is_read_anew`]).
    pub readings: Vec<Reading>,
}

/// Where an incident is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Signalled, and not yet for long enough. Nobody is told.
    Pending,
    /// It is so.
    Open,
    /// It is over.
    Resolved,
}

/// What happened to an incident.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what", content = "detail")]
pub enum Happened {
    /// It opened.
    Opened,
    /// It came back.
    Reopened,
    /// It turned out to be about more: where.
    Widened(String),
    /// It took in another incident of the same cause.
    Merged(Uuid),
    /// It ended, because another incident explains it.
    Explained(Uuid),
    /// What it comes from was found: what.
    Understood(String),
    /// It is over.
    Resolved,
    /// Somebody works on it.
    Acknowledged,
    /// Nobody is to be told before this moment; one that is not after its line's is the end of a silence.
    Silenced(Timestamp),
    /// Somebody wrote a note.
    Note(String),
}

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// When.
    pub at: Timestamp,
    /// Who; none is the server.
    pub who: Option<String>,
    /// What.
    pub happened: Happened,
}

/// One thing that is wrong, from its first sign to its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Incident {
    /// Its id, for ever.
    pub id: Uuid,
    /// What kind of trouble.
    pub family: Family,
    /// Where.
    pub place: Place,
    /// How bad it was at worst.
    pub severity: Severity,
    /// What it is, in few words.
    pub what: String,
    /// What to do; may be empty.
    pub action: String,
    /// What that asks for; none of one that a version wrote which did not keep it, until it is signalled again.
    #[serde(default)]
    pub remedy: Option<Remedy>,
    /// Why.
    pub cause: Cause,
    /// How sure it is, as its detector said last of the surest part of it; none of one that has no grades.
    #[serde(default)]
    pub confidence: Option<Confidence>,
    /// How many places are in it: GPUs of a node, nodes of a cluster.
    pub places: usize,
    /// Where it is in its life.
    pub state: State,
    /// When the trouble began.
    pub since: Timestamp,
    /// When it opened; none while it is pending.
    pub opened_at: Option<Timestamp>,
    /// When it was last signalled.
    pub seen_at: Timestamp,
    /// Since when it could have been over, as far as was known.
    pub clear_from: Timestamp,
    /// Since when its place is not heard from, if it is not.
    pub unheard_since: Option<Timestamp>,
    /// When it was over.
    pub resolved_at: Option<Timestamp>,
    /// Ticks in a row at which it was signalled, up to what opens it.
    pub ticks: u32,
    /// What is lost to it now; nothing once it is over.
    pub losing: Losing,
    /// What was lost to it.
    pub lost: Lost,
    /// What its figures are reckoned by, or why it has none.
    #[serde(default)]
    pub basis: Basis,
    /// Whether a place that is in it has no figure, so that it costs this at least.
    #[serde(default)]
    pub is_least: bool,
    /// What is at stake, unobserved or repeated, as the basis says: no loss, and in no sum of losses.
    #[serde(default)]
    pub stake: Stake,
    /// Up to when that is counted.
    pub counted_to: Timestamp,
    /// The first piece of evidence of each kind and place.
    pub evidence: Vec<Evidence>,
    /// Pieces of evidence that there was no room for.
    pub more_evidence: u64,
    /// The team that pays for what it is about, as it was when it opened; none where that is not known.
    #[serde(default)]
    pub owner: Option<String>,
    /// Of many runs that stand for one cause, each with when it did.
    #[serde(default, skip_serializing_if = "StandingRuns::is_empty")]
    pub standing: StandingRuns,
    /// Who works on it.
    pub acknowledged_by: Option<String>,
    /// Until when nobody is to be told.
    pub silenced_until: Option<Timestamp>,
    /// Until when a person has silenced this one alone: that holds when a longer silence, by a pattern, ends early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silenced_alone_until: Option<Timestamp>,
    /// What happened to it.
    pub log: Vec<Line>,
}

impl Family {
    /// Every family, the one that explains others first.
    pub const ALL: [Self; 15] = [
        Self::Blind,
        Self::GpuFault,
        Self::Memory,
        Self::Heat,
        Self::Power,
        Self::Link,
        Self::Hang,
        Self::Straggler,
        Self::Training,
        Self::Slower,
        Self::Leak,
        Self::Stalled,
        Self::Idle,
        Self::Offender,
        Self::Budget,
    ];

    /// The name in the API, on the page and in SQL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Blind => "blind",
            Self::GpuFault => "gpu_fault",
            Self::Memory => "memory",
            Self::Heat => "heat",
            Self::Power => "power",
            Self::Link => "link",
            Self::Hang => "hang",
            Self::Straggler => "straggler",
            Self::Training => "training",
            Self::Slower => "slower",
            Self::Leak => "leak",
            Self::Stalled => "stalled",
            Self::Idle => "idle",
            Self::Offender => "offender",
            Self::Budget => "budget",
        }
    }

    /// The family with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.name() == name)
    }

    /// Ticks in a row that open an incident. What is an event or judged over a window of its own
    /// opens at once; a silent node and what one tick shows need a second look, a link five.
    pub const fn ticks(self) -> u32 {
        match self {
            Self::GpuFault
            | Self::Memory
            | Self::Hang
            | Self::Straggler
            | Self::Training
            | Self::Slower
            | Self::Leak
            | Self::Stalled
            | Self::Idle
            | Self::Offender
            | Self::Budget => 1,
            Self::Blind | Self::Heat | Self::Power => 3,
            Self::Link => 5,
        }
    }

    /// How long its signal has to be gone for it to be over, nanoseconds: what is an event's state
    /// ends with the event, what is read comes and goes.
    pub const fn clear_ns(self) -> i64 {
        const SECOND: i64 = 1_000_000_000;
        match self {
            Self::Blind | Self::GpuFault | Self::Hang | Self::Stalled | Self::Idle => 15 * SECOND,
            Self::Memory
            | Self::Heat
            | Self::Power
            | Self::Straggler
            | Self::Training
            | Self::Slower => 60 * SECOND,
            Self::Link | Self::Leak | Self::Offender | Self::Budget => 300 * SECOND,
        }
    }

    /// Whether what was read of it last says more than what was first: times that run out, and counts.
    pub const fn is_read_anew(self) -> bool {
        matches!(
            self,
            Self::GpuFault | Self::Memory | Self::Leak | Self::Offender | Self::Budget
        )
    }

    /// Whether it says nothing while a node settles after a boot.
    pub const fn is_quiet_after_boot(self) -> bool {
        matches!(self, Self::Heat | Self::Power | Self::Link)
    }

    /// Whether it is about a run, so that its quiet phases count.
    pub const fn is_of_run(self) -> bool {
        matches!(
            self,
            Self::Hang | Self::Straggler | Self::Training | Self::Slower
        )
    }

    /// Whether it is about GPUs that somebody has and that do no work.
    const fn is_without_work(self) -> bool {
        matches!(self, Self::Stalled | Self::Idle)
    }

    /// Whether trouble of this kind at a place makes that of the other kind there no news.
    pub fn explains(self, other: Self) -> bool {
        match self {
            // That it breaks again and again is more than that it is broken, and money is another matter.
            Self::GpuFault => self < other && other < Self::Offender,
            // A broken GPU on a node that fell silent is as broken as before.
            Self::Blind => {
                other.is_of_run() || matches!(other, Self::Leak | Self::Stalled | Self::Idle)
            }
            Self::Memory | Self::Heat | Self::Power | Self::Link => {
                matches!(other, Self::Hang | Self::Straggler | Self::Slower)
            }
            Self::Hang => matches!(
                other,
                Self::Straggler | Self::Slower | Self::Stalled | Self::Idle
            ),
            Self::Straggler => other == Self::Slower,
            _ => false,
        }
    }
}

impl Place {
    /// A whole node.
    pub fn node(cluster: &str, node: &str) -> Self {
        Self {
            cluster: cluster.to_owned(),
            node: Some(node.to_owned()),
            ..Self::default()
        }
    }

    /// One GPU.
    pub fn gpu(cluster: &str, node: &str, gpu: &str) -> Self {
        Self {
            gpu: Some(gpu.to_owned()),
            ..Self::node(cluster, node)
        }
    }

    /// Whether the other place lies in this one. A run lies where its suspect is.
    pub fn contains(&self, other: &Self) -> bool {
        fn is_in<T: PartialEq>(outer: Option<&T>, inner: Option<&T>) -> bool {
            outer.is_none() || outer == inner
        }
        self.cluster == other.cluster
            && is_in(self.node.as_ref(), other.node.as_ref())
            && is_in(self.gpu.as_ref(), other.gpu.as_ref())
            && is_in(self.run.as_ref(), other.run.as_ref())
            && is_in(self.rank.as_ref(), other.rank.as_ref())
    }

    /// Whether one of the two lies in the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other) || other.contains(self)
    }
}

impl State {
    /// The name in the API, on the page and in SQL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Open => "open",
            Self::Resolved => "resolved",
        }
    }
}

impl Incident {
    /// Whether people are to be told of it now.
    pub fn is_loud(&self, now: Timestamp) -> bool {
        self.state == State::Open && self.silent_until(now).is_none()
    }
}

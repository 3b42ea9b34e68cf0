//! The words of the shipping protocol: how a request names its place in a spool, and the reply.
//!
//! Every request carries agent, epoch, stream, seq and sent-at; every reply carries durable-seq, to
//! which the agent trims its spool, and folded-seq: an agent that has sent more than that sends it
//! again, because the server died and has forgotten it. Per (agent, epoch, stream) only seq = folded + 1 is folded:
//! lower is answered with success and not folded again, higher with FAILED_PRECONDITION and the
//! wanted seq. A gap passes only when the agent says which seqs it dropped.

/// The agent's id, a UUID.
pub const AGENT: &str = "gpufleet-agent";
/// The spool's epoch, a UUID.
pub const EPOCH: &str = "gpufleet-epoch";
/// The stream, [`Stream::name`].
pub const STREAM: &str = "gpufleet-stream";
/// The request's place in its stream, from 1.
pub const SEQ: &str = "gpufleet-seq";
/// When it was sent, Unix nanoseconds of the agent's clock.
pub const SENT_AT: &str = "gpufleet-sent-at";
/// A random number per agent process: two of them on one epoch are two agents on one disk.
pub const SESSION: &str = "gpufleet-session";
/// `a..b`, both included: seqs that the agent gave up and will never send.
pub const DROPPED: &str = "gpufleet-dropped";
/// `live` or `backfill`: old data goes to minute rows and ledger, never to live detectors.
pub const LANE: &str = "gpufleet-lane";
/// In a reply: the highest seq of this stream that is on the server's disk.
pub const DURABLE_SEQ: &str = "gpufleet-durable-seq";
/// In a reply to a request that was taken: the highest seq of this stream that the server has folded,
/// durable or not. An older server leaves it out.
pub const FOLDED_SEQ: &str = "gpufleet-folded-seq";
/// In a FAILED_PRECONDITION reply: the seq that the server wants next.
pub const WANTED_SEQ: &str = "gpufleet-wanted-seq";
/// In a reply: one command for the agent, as JSON.
pub const COMMAND: &str = "gpufleet-command";
/// In a refusal: a word for the refusal that a program can act on, [`Refusal::name`].
pub const REFUSAL: &str = "gpufleet-refusal";

/// What a spool's stream carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// OTLP metrics requests.
    Metrics,
    /// OTLP logs requests: events.
    Logs,
}

/// Which queue of the server a request goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Lane {
    /// Fresh data.
    #[default]
    Live,
    /// Old data being drained after an outage.
    Backfill,
}

/// Why the server refused, where the agent must act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The seq is not the next one; the reply says which is wanted.
    WrongSeq,
    /// A newer process sends under this agent id: take a new identity.
    AgentIdConflict,
    /// The sender's clock is more than an hour off: keep the data, fix the clock.
    ClockQuarantine,
    /// The server's memory for this lane is full: try again after the delay in RetryInfo.
    Full,
    /// The request can never be accepted (malformed, too large): drop it and say so.
    Invalid,
}

impl Stream {
    /// Every stream.
    pub const ALL: [Self; 2] = [Self::Metrics, Self::Logs];

    /// The name on the wire, in SQL and in the spool.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Logs => "logs",
        }
    }

    /// The stream with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stream| stream.name() == name)
    }
}

impl Lane {
    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Backfill => "backfill",
        }
    }

    /// The lane with this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Live, Self::Backfill]
            .into_iter()
            .find(|lane| lane.name() == name)
    }
}

impl Refusal {
    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WrongSeq => "wrong_seq",
            Self::AgentIdConflict => "agent_id_conflict",
            Self::ClockQuarantine => "clock_quarantine",
            Self::Full => "full",
            Self::Invalid => "invalid",
        }
    }

    /// The refusal with this name.
    pub fn parse(name: &str) -> Option<Self> {
        [
            Self::WrongSeq,
            Self::AgentIdConflict,
            Self::ClockQuarantine,
            Self::Full,
            Self::Invalid,
        ]
        .into_iter()
        .find(|refusal| refusal.name() == name)
    }
}

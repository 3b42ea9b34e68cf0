//! What a spool is told and what it tells: limits, records, drops, errors.

use std::io;
use std::time::Duration;

use gpufleet_telemetry::identity::Epoch;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::Stream;

use crate::format::{MAX_RECORD_BYTES, VERSION};

/// When the spool is full and what it does then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes on disk.
    pub bytes: u64,
    /// Age of the oldest record.
    pub age: Duration,
    /// Records, which bounds the index in memory (16 bytes each).
    pub records: usize,
    /// Size at which a segment is closed; what is dropped or trimmed is whole segments.
    pub segment_bytes: u64,
    /// Age at which a segment is closed.
    pub segment_age: Duration,
    /// Whether a full spool gives up its oldest records or refuses new ones.
    pub when_full: WhenFull,
}

/// What a full spool does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// Gives up its oldest records, counted: the agent, to whom the newest data are dearest.
    DropOldest,
    /// Refuses new ones: the server, which has promised the old ones to their sender.
    Refuse,
}

/// One record as it was appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its place in its stream.
    pub seq: u64,
    /// The time it was appended with.
    pub at: Timestamp,
    /// What was appended.
    pub payload: Vec<u8>,
}

/// Records that were given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// In which epoch.
    pub epoch: Epoch,
    /// In which stream.
    pub stream: Stream,
    /// The first of them.
    pub first: u64,
    /// The last of them.
    pub last: u64,
    /// Why.
    pub why: DropReason,
}

/// Why records were given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// The spool or the disk was full.
    Full,
    /// They were too old.
    Age,
    /// Their bytes on disk are no longer what was written.
    Corrupt,
    /// The disk failed while they were made safe.
    Disk,
    /// The receiver refused them for ever.
    Refused,
}

/// What opening found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Opened {
    /// Why a new epoch had to be made; none when the old one goes on.
    pub new_epoch: Option<NewEpoch>,
    /// Records that wait to be sent.
    pub records: usize,
    /// Bytes that are no record: torn writes and corruption.
    pub bad_bytes: u64,
}

/// Why a new epoch was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewEpoch {
    /// There was none.
    NoSpool,
    /// The one that was there has holes or garbage.
    Corrupt,
}

/// How much waits in one stream, over all epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waiting {
    /// Payload bytes.
    pub bytes: u64,
    /// The time of the oldest record.
    pub oldest: Option<Timestamp>,
    /// Records given up since the spool was opened.
    pub dropped: u64,
}

/// What went wrong, and the way out.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The disk said no.
    #[error("the spool's disk failed while it was to {doing}")]
    Disk {
        /// What was to be done.
        doing: &'static str,
        /// What the disk said.
        #[source]
        source: io::Error,
    },
    /// The disk or the spool's own limit is full, and nothing may be dropped.
    #[error("the spool is full: it takes more when what it holds has been drained")]
    Full,
    /// A newer program wrote this.
    #[error(
        "the spool file {file} has format version {found}, and this program knows up to {VERSION}: \
         run the newer program, or move the folder away to begin a new spool"
    )]
    Newer {
        /// Which file.
        file: String,
        /// Its version.
        found: u16,
    },
    /// The payload is too large for a record.
    #[error("a record of {bytes} bytes is over the limit of {MAX_RECORD_BYTES}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 1 << 30,
            age: Duration::from_secs(24 * 3600),
            records: 200_000,
            segment_bytes: 4 << 20,
            segment_age: Duration::from_secs(15 * 60),
            when_full: WhenFull::DropOldest,
        }
    }
}

impl DropReason {
    /// The word for it in events and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Age => "age",
            Self::Corrupt => "corrupt",
            Self::Disk => "disk",
            Self::Refused => "refused",
        }
    }
}

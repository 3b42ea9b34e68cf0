//! The agent's side: copies out of a region what a client wrote, and believes none of it.
//!
//! The client is any process that may open the socket. So everything is copied first and looked at
//! after: numbers that cannot be are refused and counted by section and reason, texts are cut and
//! cleaned, places are looked up with bounds, and no amount of writing keeps a reader for longer
//! than a bounded number of copies.

mod check;
mod collectives;
mod ring;
mod sections;
mod steps;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use crate::cell::{get, get_signed};
use crate::layout::{MAGIC, Region, SIZE_BYTES, VERSION};
use crate::memory::{MapError, Mapped};
use crate::records::{
    End, Exception, Identity, Memory, Now, Occasion, Pairs, Plan, Probe, Profile, Reading, Step,
};
use crate::wire::TAKES_PROFILE;
use crate::words::{Phase, WriterKind};

pub use check::Reason;
pub use collectives::{CommunicatorTotals, FunctionTotal, Together};
pub use steps::Totals;

use check::Check;

/// Why a region as a whole is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Its header says something else.
    #[error("the file does not begin as a region does")]
    Magic,
    /// It was written by a newer client, or is garbage.
    #[error("the region has layout version {0}; this agent reads version {VERSION}")]
    Version(u64),
    /// Its header says another size.
    #[error("the region says that it has {0} bytes, and has {SIZE_BYTES}")]
    Size(u64),
    /// It is not the region that it was: no client changes that.
    #[error("the region changed its session")]
    Session,
    /// A counter that only grows became less.
    #[error("a count of records went back from {from} to {to}")]
    WentBack {
        /// What it was.
        from: u64,
        /// What it is.
        to: u64,
    },
    /// More records than any process could write.
    #[error("{0} records were written, which cannot be")]
    Count(u64),
}

/// Who writes a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the writer is; `None`: something newer.
    pub writer: Option<WriterKind>,
    /// Its process id as it sees it: claimed, and of its own pid namespace.
    pub pid: u64,
    /// Start of the process as it says: claimed.
    pub start_ticks: u64,
    /// Random number of the region.
    pub session: u128,
    /// When the region was made, Unix nanoseconds; `None` when that cannot be.
    pub created_at: Option<i64>,
    /// Grows once a second while the process lives.
    pub heartbeats: u64,
    /// When it last did, Unix nanoseconds; `None` when that cannot be.
    pub heartbeat_at: Option<i64>,
    /// Writes given up because two threads wrote one section.
    pub contended: u64,
    /// Whether it takes a [`crate::wire::Ask`] for a profile.
    pub takes_profile: bool,
}

/// How the learning goes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Learning {
    /// Loss.
    pub loss: Option<Reading>,
    /// Gradient norm.
    pub gradient_norm: Option<Reading>,
    /// Learning rate.
    pub learning_rate: Option<Reading>,
    /// Loss of the last evaluation.
    pub evaluation_loss: Option<Reading>,
    /// Steps that the gradient scaler skipped.
    pub scaler_skips: u64,
    /// Losses that were not finite.
    pub non_finite_losses: u64,
    /// Gradient norms that were not finite.
    pub non_finite_gradients: u64,
}

/// Time spent in one phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhaseTotal {
    /// Which.
    pub phase: Phase,
    /// How long in all.
    pub total_ns: u64,
    /// How often.
    pub count: u64,
}

/// What was refused: how often, by section and reason.
pub type Refused = BTreeMap<(&'static str, Reason), u64>;

/// Everything a client says of itself, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// Who writes.
    pub header: Header,
    /// Who the rank says it is.
    pub identity: Option<Identity>,
    /// What the run intends.
    pub plan: Option<Plan>,
    /// Totals over every step.
    pub totals: Totals,
    /// The steps since the snapshot before, in order.
    pub steps: Vec<Step>,
    /// Of each of them the number of its record, counted from 1: [`Reader::place`] after it.
    pub step_numbers: Vec<u64>,
    /// Steps since the snapshot before that the ring no longer has: they are in the totals.
    pub steps_missed: u64,
    /// How the learning goes.
    pub learning: Learning,
    /// Losses that were read since the snapshot before, in order; those that the ring no longer has are left out.
    pub losses: Vec<Reading>,
    /// The same of gradient norms.
    pub gradient_norms: Vec<Reading>,
    /// Checkpoints saved.
    pub checkpoint_saved: Option<Occasion>,
    /// Checkpoints restored.
    pub checkpoint_restored: Option<Occasion>,
    /// Evaluations.
    pub evaluation: Option<Occasion>,
    /// The phase the process is in.
    pub now: Option<Now>,
    /// Phases that happened at least once.
    pub phases: Vec<PhaseTotal>,
    /// The allocator.
    pub memory: Option<Memory>,
    /// What the last probe inside the process found.
    pub probe: Option<Probe>,
    /// The last profile that was asked for and begun.
    pub profile: Option<Profile>,
    /// What the ranks do together.
    pub together: Together,
    /// The last exception that nobody caught.
    pub exception: Option<Exception>,
    /// What the run is made of.
    pub fingerprint: Option<Pairs>,
    /// What people call it.
    pub tags: Option<Pairs>,
    /// How the process said that it ended.
    pub end: Option<End>,
    /// What was refused in this snapshot.
    pub refused: Refused,
}

/// Reads one region again and again.
#[derive(Debug)]
pub struct Reader {
    mapped: Mapped,
    session: Option<u128>,
    steps_read: u64,
    collectives_read: u64,
    losses_read: u64,
    gradient_norms_read: u64,
}

impl Reader {
    /// Checks and maps the file that a client sent.
    ///
    /// # Errors
    /// The file is not sealed or has another size.
    pub fn new(file: impl AsFd) -> Result<Self, MapError> {
        Ok(Self {
            mapped: Mapped::new(file)?,
            session: None,
            steps_read: 0,
            collectives_read: 0,
            losses_read: 0,
            gradient_norms_read: 0,
        })
    }

    /// Who writes the region. `now` as for [`Reader::snapshot`].
    ///
    /// # Errors
    /// The region is not one.
    pub fn header(&self, now: i64) -> Result<Header, ReadError> {
        header(self.mapped.region(), &mut Check::new(now))
    }

    /// Goes on where another reader of the same region stopped, [`Reader::place`] of that one.
    pub const fn go_on_from(&mut self, place: (u64, u64)) {
        (self.steps_read, self.collectives_read) = place;
    }

    /// How far it has read: numbers of the last step record and the last collective record.
    pub const fn place(&self) -> (u64, u64) {
        (self.steps_read, self.collectives_read)
    }

    /// What the client says now. `now` is the wall clock, Unix nanoseconds: the client's is the same.
    ///
    /// # Errors
    /// The region as a whole is not one, or is no longer the one it was.
    pub fn snapshot(&mut self, now: i64) -> Result<Snapshot, ReadError> {
        let region = self.mapped.region();
        let mut check = Check::new(now);
        let header = header(region, &mut check)?;
        if self.session.is_some_and(|before| before != header.session) {
            return Err(ReadError::Session);
        }
        self.session = Some(header.session);
        let (found, missed, upto) = steps::since(region, self.steps_read, &mut check)?;
        let (step_numbers, steps) = found.into_iter().unzip();
        self.steps_read = upto;
        let (together, upto) =
            collectives::together(&region.collectives, self.collectives_read, &mut check)?;
        self.collectives_read = upto;
        let losses = sections::readings(&region.losses, &mut self.losses_read, &mut check)?;
        let norms = &mut self.gradient_norms_read;
        let gradient_norms = sections::readings(&region.gradient_norms, norms, &mut check)?;
        Ok(Snapshot {
            header,
            identity: sections::identity(region, &mut check),
            plan: sections::plan(region, &mut check),
            totals: steps::totals(region, &mut check),
            steps,
            step_numbers,
            steps_missed: missed,
            learning: sections::learning(region, &mut check),
            losses,
            gradient_norms,
            checkpoint_saved: sections::occasion(&region.checkpoint_saved, &mut check),
            checkpoint_restored: sections::occasion(&region.checkpoint_restored, &mut check),
            evaluation: sections::occasion(&region.evaluation, &mut check),
            now: sections::now(region, &mut check),
            phases: sections::phases(region),
            memory: sections::memory(region, &mut check),
            probe: sections::probe(region, &mut check),
            profile: sections::profile(region, &mut check),
            together,
            exception: sections::exception(region, &mut check),
            fingerprint: sections::fingerprint(region, &mut check),
            tags: sections::tags(region, &mut check),
            end: sections::end(region, &mut check),
            refused: check.refused,
        })
    }
}

fn header(region: &Region, check: &mut Check) -> Result<Header, ReadError> {
    let header = &region.header;
    if header.magic.load(Ordering::Acquire) != MAGIC {
        return Err(ReadError::Magic);
    }
    let version = get(&header.version);
    if version != VERSION {
        return Err(ReadError::Version(version));
    }
    let size = get(&header.size);
    if size != SIZE_BYTES as u64 {
        return Err(ReadError::Size(size));
    }
    let (high, low) = (get(&header.session_high), get(&header.session_low));
    Ok(Header {
        writer: WriterKind::from_number(get(&header.writer)),
        pid: get(&header.pid),
        start_ticks: get(&header.start_ticks),
        session: u128::from(high) << 64 | u128::from(low),
        created_at: check.time("header", get_signed(&header.created_at)),
        heartbeats: get(&header.heartbeats),
        heartbeat_at: check.time("header", get_signed(&header.heartbeat_at)),
        contended: get(&header.contended),
        takes_profile: get(&header.takes) & TAKES_PROFILE != 0,
    })
}

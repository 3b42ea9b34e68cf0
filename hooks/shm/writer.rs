//! The training process' side: writes into its region, never waits, never fails.
//!
//! A [`Writer`] is a small handle that any thread may copy and use. [`Writer::step`], the phases and
//! the collectives are the hot path: atomics only, no lock, no allocation, no system call, no panic.
//! Two threads that write one section at once do not wait for each other: the second gives up after
//! a bounded number of looks, and the region counts it (`header.contended`). Steps, phases and
//! collectives are counters and rings, which any number of threads may write at once.

mod collectives;
mod sections;
mod text;

use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

use crate::cell::{add, add_double, set};
use crate::layout::{MAGIC, Region, SIZE_BYTES, STEPS, StepRecord, VERSION};
use crate::memory::{self, MapError};
use crate::place::Place;
use crate::process;
use crate::records::{Now, Step};
use crate::words::{Phase, WriterKind};

pub use collectives::InFlight;

/// A handle to this process' region.
#[derive(Clone, Copy)]
pub struct Writer {
    place: &'static Place,
}

/// Why a process has no region.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The kernel gives no memory file.
    #[error("no sealed memory file can be made")]
    File(#[source] std::io::Error),
    /// It does not map it.
    #[error(transparent)]
    Map(#[from] MapError),
}

impl Writer {
    /// A new region of this process. It stays until the process ends.
    ///
    /// # Errors
    /// The kernel gives no memory file, or does not map it.
    pub fn create(kind: WriterKind) -> Result<Self, CreateError> {
        let file = memory::create().map_err(CreateError::File)?;
        let region = memory::map_writable(&file)?;
        let header = &region.header;
        let [high, low] = process::random();
        set(&header.version, VERSION);
        set(&header.size, SIZE_BYTES as u64);
        set(&header.writer, kind.number());
        set(&header.pid, u64::from(std::process::id()));
        let start = process::start_ticks("self").unwrap_or_default();
        set(&header.start_ticks, start);
        set(&header.session_high, high);
        set(&header.session_low, low);
        set(&header.created_at, process::unix_ns() as u64);
        set(&header.heartbeat_at, process::unix_ns() as u64);
        header.magic.store(MAGIC, Ordering::Release);
        let place = Place::new(region, file);
        Ok(Self { place })
    }

    /// A handle whose writes nobody reads: for a process that cannot have a region.
    pub fn nobody() -> Self {
        Self {
            place: Place::nowhere(),
        }
    }

    /// A handle of the region's file, to hand to an agent. `None` where there is no region: in a
    /// forked child, or for [`Writer::nobody`].
    pub fn file(self) -> Option<OwnedFd> {
        self.place.memory()?.try_clone_to_owned().ok()
    }

    /// Where the region is kept.
    pub(crate) fn place(self) -> &'static Place {
        self.place
    }

    /// An agent took the region.
    pub(crate) fn taken(self) {
        add(&self.region().header.connections, 1);
    }

    #[inline]
    pub(crate) fn region(self) -> &'static Region {
        self.place.region()
    }

    /// A step ended.
    pub fn step(self, step: &Step) {
        let region = self.region();
        let totals = &region.totals;
        let number = totals
            .started
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1);
        // Whoever sees a word of this step sees that it was begun.
        fence(Ordering::Release);
        add(&totals.wall_ns, step.wall_ns);
        add(&totals.busy_ns, step.busy_ns);
        add(&totals.data_wait_ns, step.data_wait_ns);
        add(&totals.comm_wait_ns, step.comm_wait_ns);
        add(&totals.checkpoint_ns, step.checkpoint_ns);
        add(&totals.evaluation_ns, step.evaluation_ns);
        add(&totals.tokens, step.tokens);
        add(&totals.samples, step.samples);
        add_double(&totals.model_flops, step.model_flops);
        set(&totals.last_step, step.step);
        set(&totals.last_ended_at, step.ended_at as u64);
        let place = number as usize & (STEPS - 1);
        if let Some(record) = region.steps.get(place) {
            record_step(record, number, step);
        }
        totals.done.fetch_add(1, Ordering::Release);
    }

    /// The process is in `phase` from `at` (Unix nanoseconds) on. Returns the phase it was in, to go
    /// back to with [`Writer::back_in`].
    pub fn enter(self, phase: Phase, at: i64) -> Option<Now> {
        let now = Now { phase, since: at };
        let before = self
            .region()
            .phases
            .now
            .swap(now.packed(), Ordering::Relaxed);
        Now::unpacked(before)
    }

    /// The process is back in the phase it was in before, or in none.
    pub fn back_in(self, before: Option<Now>) {
        set(
            &self.region().phases.now,
            before.map_or(0, |now| now.packed()),
        );
    }

    /// The process spent `duration_ns` in `phase`, once.
    pub fn spent(self, phase: Phase, duration_ns: u64) {
        if let Some(total) = self.region().phases.totals.get(phase as usize) {
            add(&total.total_ns, duration_ns);
            add(&total.count, 1);
        }
    }

    /// The process lives: to be said once a second, from a thread of its own.
    pub fn heartbeat(self) {
        let header = &self.region().header;
        add(&header.heartbeats, 1);
        set(&header.heartbeat_at, process::unix_ns() as u64);
    }
}

/// Writes one record of the ring: odd, the words, even.
fn record_step(record: &StepRecord, number: u64, step: &Step) {
    let done = number.wrapping_mul(2);
    set(&record.state, done.wrapping_add(1));
    fence(Ordering::Release);
    set(&record.step, step.step);
    set(&record.ended_at, step.ended_at as u64);
    set(&record.wall_ns, step.wall_ns);
    set(&record.busy_ns, step.busy_ns);
    set(&record.data_wait_ns, step.data_wait_ns);
    set(&record.comm_wait_ns, step.comm_wait_ns);
    set(&record.checkpoint_ns, step.checkpoint_ns);
    set(&record.evaluation_ns, step.evaluation_ns);
    set(&record.tokens, step.tokens);
    set(&record.samples, step.samples);
    set(&record.model_flops, step.model_flops.to_bits());
    record.state.store(done, Ordering::Release);
}

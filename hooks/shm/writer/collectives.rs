//! Collectives: begun, in flight, ended. Hot path of the NCCL plugin.

use std::sync::atomic::{Ordering, fence};

use crate::cell::{self, add, get, set, set_text};
use crate::layout::{COLLECTIVES, COMMUNICATORS, IN_FLIGHT, Word};
use crate::records::{Collective, Communicator, CommunicatorIndex};
use crate::words::Collecting;

use super::Writer;

/// Bits of a place in the table of collectives in flight.
const PLACE_BITS: u8 = (IN_FLIGHT - 1) as u8;

/// A collective in flight: give it back with [`Writer::collective_left`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InFlight(u8);

impl InFlight {
    /// Its place in the table, for those who keep it in a number.
    pub const fn place(self) -> u8 {
        self.0
    }

    /// The one at a place; places past the table's end are the table's, modulo its size.
    pub const fn at(place: u8) -> Self {
        Self(place & PLACE_BITS)
    }
}

impl Writer {
    /// How collectives are counted from now on.
    pub fn collecting(self, collecting: Collecting) {
        set(&self.region().collectives.collecting, collecting.number());
    }

    /// Which NCCL, as it says it (22809 is 2.28.9), and by which version of its profiler interface.
    pub fn nccl(self, version: u64, interface: u64) {
        let table = &self.region().collectives;
        set(&table.nccl_version, version);
        set(&table.profiler_interface, interface);
    }

    /// The end of a collective was not reported in full.
    pub fn collective_given_up(self) {
        add(&self.region().collectives.given_up, 1);
    }

    /// A report came about a collective that is no longer known.
    pub fn report_late(self) {
        add(&self.region().collectives.reports_late, 1);
    }

    /// A duration cannot be.
    pub fn duration_refused(self) {
        add(&self.region().collectives.durations_refused, 1);
    }

    /// A communicator was made. `None` when the table is full, which the region counts.
    pub fn communicator(self, communicator: &Communicator) -> Option<CommunicatorIndex> {
        let table = &self.region().collectives;
        let taken =
            table
                .communicators_taken
                .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |taken| {
                    (taken < COMMUNICATORS as u64).then_some(taken + 1)
                });
        let Ok(index) = taken else {
            add(&table.communicators_left_out, 1);
            return None;
        };
        let place = table.communicators.get(index as usize)?;
        // The index is this thread's alone, so nobody else writes there.
        let _writing = cell::write(&place.sequence)?;
        set(&place.hash, communicator.hash);
        set(&place.ranks, communicator.ranks);
        set(&place.rank, communicator.rank);
        set(&place.nodes, communicator.nodes);
        set_text(&place.name, &communicator.name);
        Some(CommunicatorIndex(index as u8))
    }

    /// A collective was begun. `None` when the table is full, which the region counts.
    pub fn collective_begun(self, collective: &Collective) -> Option<InFlight> {
        let table = &self.region().collectives;
        let Some(place) = take(&table.in_flight_taken) else {
            add(&table.in_flight_left_out, 1);
            return None;
        };
        let entry = table.in_flight.get(place as usize)?;
        if let Some(_writing) = cell::write(&entry.sequence) {
            set(&entry.communicator, u64::from(collective.communicator.0));
            set(&entry.number, collective.number);
            set(&entry.what, what(collective));
            set(&entry.bytes, collective.bytes);
            set(&entry.peer, collective.peer as u64);
            set(&entry.started_at, collective.started_at as u64);
        }
        Some(InFlight(place))
    }

    /// A collective is no longer in flight, for whatever reason. Saying so twice does no harm.
    pub fn collective_left(self, in_flight: InFlight) {
        let table = &self.region().collectives;
        let place = in_flight.0 & PLACE_BITS;
        if let Some(entry) = table.in_flight.get(place as usize) {
            // A place that is taken and not written yet must not show what was there before.
            set(&entry.started_at, 0);
        }
        table
            .in_flight_taken
            .fetch_and(!(1 << place), Ordering::Release);
    }

    /// A collective ended: adds to the totals of its communicator and to the ring.
    pub fn collective_ended(self, collective: &Collective) {
        let table = &self.region().collectives;
        let index = collective.communicator.0 as usize;
        if let Some(communicator) = table.communicators.get(index)
            && let Some(total) = communicator.totals.get(collective.function as usize)
        {
            add(&total.count, 1);
            add(&total.bytes, collective.bytes);
            add(&total.timed, u64::from(collective.duration_ns != 0));
            add(&total.duration_ns, collective.duration_ns);
            add(&total.wait_ns, collective.wait_ns);
        }
        let number = table
            .started
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1);
        let done = number.wrapping_mul(2);
        if let Some(record) = table.recent.get(number as usize & (COLLECTIVES - 1)) {
            set(&record.state, done.wrapping_add(1));
            fence(Ordering::Release);
            set(&record.communicator, u64::from(collective.communicator.0));
            set(&record.number, collective.number);
            set(&record.what, what(collective));
            set(&record.bytes, collective.bytes);
            set(&record.started_at, collective.started_at as u64);
            set(&record.duration_ns, collective.duration_ns);
            set(&record.wait_ns, collective.wait_ns);
            record.state.store(done, Ordering::Release);
        }
        table.done.fetch_add(1, Ordering::Release);
    }
}

/// Takes the first free bit.
fn take(taken: &Word) -> Option<u8> {
    let mut before = get(taken);
    // Ends: whoever takes the bit before us leaves one free bit less.
    while before != u64::MAX {
        let place = before.trailing_ones() as u8;
        before = taken.fetch_or(1 << place, Ordering::Acquire);
        if before & (1 << place) == 0 {
            return Some(place);
        }
    }
    None
}

/// Function, data type and channels in one word.
const fn what(collective: &Collective) -> u64 {
    collective.function.number()
        | collective.data_type.number() << 8
        | (collective.channels as u64) << 16
}

//! The steps of a rank on their way to the spool: each once, over restarts of the agent as well.
//!
//! The ring in the process' region is the queue: records are taken out of it when the process is
//! known to be a rank and the way is free, and counted as gone only with the blocks that they are in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_hooks_shm::reader::{Reader, Snapshot};
use gpufleet_telemetry::steps::{MAX_BLOCKS, Packer, StepBlock};
use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use super::process::{Process, ProcessId};
use crate::sample::{Output, nanos};
use crate::steps::{Place, Shipment, Way};

/// Records of a rank beyond which its blocks go out before it is time: two rounds of a full ring.
const MAX_WAITING: usize = 4_096;

/// Entries of one shipment: some 400 KB. What is beyond goes a round later.
const MAX_ENTRIES: usize = 32_768;

/// How often steps that were missed are told of a rank.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// The steps of one process.
#[derive(Debug, Default)]
pub(super) struct Steps {
    packer: Packer,
    /// The region they are read from, and the numbers of its records that wait in the packer.
    session: Uuid,
    numbers: VecDeque<u64>,
    /// The last record that was there before this agent read, and the last that it has read.
    begun: u64,
    read: u64,
    /// Whether a step came since the last shipment.
    came: bool,
    shipped_at: Timestamp,
    missed: u64,
    told_at: Timestamp,
}

impl Steps {
    /// Goes on in a region whose records up to `record` are spooled.
    pub(super) fn begin(&mut self, session: Uuid, record: u64) {
        self.session = session;
        self.numbers.clear();
        (self.begun, self.read) = (record, record);
    }

    /// Whether no more are taken for now.
    pub(super) fn is_full(&self) -> bool {
        self.packer.waiting() >= 2 * MAX_WAITING
    }

    /// Takes the steps of a snapshot out of it.
    pub(super) fn take_in(&mut self, snapshot: &mut Snapshot, read: u64) {
        let steps = std::mem::take(&mut snapshot.steps);
        let numbers = std::mem::take(&mut snapshot.step_numbers);
        self.came |= !steps.is_empty();
        for (number, step) in numbers.into_iter().zip(&steps) {
            if self.packer.push(gpufleet_hooks_tell::step(step)) {
                self.numbers.push_back(number);
            }
        }
        self.missed += std::mem::take(&mut snapshot.steps_missed);
        self.read = read;
    }

    /// Whether it is time for the next shipment.
    fn is_due(&self, now: Timestamp, interval: Duration) -> bool {
        let is_time = now.aligned_to(interval) != self.shipped_at.aligned_to(interval);
        is_time || self.packer.waiting() >= MAX_WAITING
    }

    /// The blocks of what came. What would wait for steps that fill a sum goes as well once none come.
    fn take(&mut self, now: Timestamp, has_ended: bool) -> Vec<StepBlock> {
        let blocks = self.packer.take(has_ended || !self.came);
        (self.came, self.shipped_at) = (false, now);
        let gone = self.numbers.len().saturating_sub(self.packer.waiting());
        self.numbers.drain(..gone);
        blocks
    }

    /// The last record that is in blocks, with all before it.
    fn place(&self) -> u64 {
        match self.packer.waiting() {
            0 => self.read,
            waiting if waiting > self.numbers.len() => self.begun,
            _ => self.numbers.front().map_or(self.read, |first| first - 1),
        }
    }

    /// How many steps were missed, when it is time to tell.
    pub(super) fn missed(&mut self, now: Timestamp, has_ended: bool) -> Option<u64> {
        let is_time = has_ended || now.since(self.told_at) >= nanos(TELL_EVERY);
        if self.missed == 0 || !is_time {
            return None;
        }
        self.told_at = now;
        Some(std::mem::take(&mut self.missed))
    }
}

/// Steps that wait for the way into the spool.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    shipment: Shipment,
    entries: usize,
}

impl Outgoing {
    /// Takes the blocks of a process that is a rank, when it is time or its last.
    pub(super) fn take(&mut self, id: ProcessId, process: &mut Process, now: Timestamp, way: &Way) {
        let Some(rank) = process.resource().map(|it| Arc::clone(&it.id)) else {
            return;
        };
        let has_ended = !process.lives();
        let may = self.entries < MAX_ENTRIES && process.steps.is_due(now, way.interval);
        if !may && !has_ended {
            return;
        }
        let blocks = process.steps.take(now, has_ended);
        if blocks.is_empty() {
            return;
        }
        self.entries += blocks.iter().map(|it| it.times.len()).sum::<usize>();
        let packed = blocks.chunks(MAX_BLOCKS);
        let packed = packed.map(|blocks| (Arc::clone(&rank), blocks.to_vec()));
        self.shipment.ranks.extend(packed);
        self.shipment.places.push(Place {
            pid: id.pid,
            start_ticks: id.start_ticks,
            session: process.steps.session,
            record: process.steps.place(),
        });
    }

    /// Sends them, unless what was sent before still waits for the disk.
    pub(super) fn send(&mut self, way: &Way) {
        if self.shipment.ranks.is_empty() {
            return;
        }
        if let Ok(room) = way.output.try_reserve() {
            let shipment = std::mem::take(&mut self.shipment);
            room.send(Output::Steps(shipment, Arc::clone(&way.spooled)));
            self.entries = 0;
        }
    }
}

/// Takes the steps of a snapshot, or leaves them in the ring: then the reader goes back to `before`.
pub(super) fn gather(
    steps: &mut Steps,
    reader: &mut Reader,
    snapshot: &mut Snapshot,
    before: u64,
    is_taken: bool,
) {
    let session = Uuid::from_u128(snapshot.header.session);
    let (read, collectives) = reader.place();
    if !is_taken {
        reader.go_on_from((before, collectives));
        snapshot.steps.clear();
        snapshot.step_numbers.clear();
        return;
    }
    if steps.session != session {
        steps.begin(session, before);
    }
    steps.take_in(snapshot, read);
}

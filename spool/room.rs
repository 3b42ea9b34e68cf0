//! Making room: what is drained, too old, too much or corrupt leaves the spool, and is counted.

use std::io;

use gpufleet_telemetry::identity::Epoch;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::Stream;

use crate::disk::Disk;
use crate::format::{RECORD_HEADER_BYTES, index};
use crate::segment::Segment;
use crate::words::{DropReason, Dropped, SpoolError, WhenFull};
use crate::{Spool, disk_error};

/// Most drops remembered until they are taken; neighbours are joined, so more means that nobody
/// takes them.
const MAX_DROPS: usize = 256;

impl<D: Disk> Spool<D> {
    /// Removes the files of segments without records, and the folders of epochs without any.
    /// The live epoch keeps its last segment, which knows the next seqs.
    pub(crate) fn forget_empty(&mut self) -> Result<(), SpoolError> {
        let doing = "remove what is not needed any more";
        let mut position = 0;
        while position < self.epochs.len() {
            let live = position + 1 == self.epochs.len();
            let log = &mut self.epochs[position];
            let kept = usize::from(live);
            while log.segments.len() > kept && log.segments.front().is_some_and(Segment::is_empty) {
                let file = log.segments[0].file();
                match self.disk.remove(&log.folder, &file) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(disk_error(doing)(error));
                    }
                    _ => {}
                }
                // One by one, so that a crash never brings an older file back than it takes.
                self.disk
                    .sync_folder(&log.folder)
                    .map_err(disk_error(doing))?;
                self.bytes -= log.segments[0].bytes;
                log.segments.pop_front();
            }
            if log.segments.is_empty() && !live {
                self.remove_strays(position)?;
                self.epochs.remove(position);
            } else {
                position += 1;
            }
        }
        Ok(())
    }

    /// Removes an epoch's folder with whatever a failed attempt left in it.
    fn remove_strays(&self, position: usize) -> Result<(), SpoolError> {
        let doing = "remove a drained epoch";
        let folder = &self.epochs[position].folder;
        for name in self.disk.files(folder).map_err(disk_error(doing))? {
            self.disk.remove(folder, &name).map_err(disk_error(doing))?;
        }
        self.disk.remove_folder(folder).map_err(disk_error(doing))
    }

    /// Drops what is older than the age limit.
    pub(crate) fn drop_aged(&mut self, now: Timestamp) -> Result<(), SpoolError> {
        if self.limits.when_full == WhenFull::Refuse {
            return Ok(());
        }
        let age = i64::try_from(self.limits.age.as_nanos()).unwrap_or(i64::MAX);
        while self
            .epochs
            .iter()
            .flat_map(|log| log.segments.front())
            .next()
            .is_some_and(|segment| !segment.is_empty() && now.since(segment.newest) > age)
        {
            if !self.drop_oldest(DropReason::Age)? {
                break;
            }
        }
        Ok(())
    }

    /// Drops the oldest, or refuses, until `length` more bytes are within the limits.
    pub(crate) fn make_room(&mut self, length: u64) -> Result<(), SpoolError> {
        while self.bytes + length + RECORD_HEADER_BYTES as u64 > self.limits.bytes
            || self.records >= self.limits.records
        {
            if self.limits.when_full == WhenFull::Refuse {
                return Err(SpoolError::Full);
            }
            if !self.drop_oldest(DropReason::Full)? {
                break;
            }
        }
        Ok(())
    }

    /// Drops the oldest segment with all its records; says whether there was one to drop.
    pub(crate) fn drop_oldest(&mut self, why: DropReason) -> Result<bool, SpoolError> {
        if self.limits.when_full == WhenFull::Refuse {
            return Ok(false);
        }
        // Only records count: to drop files without any would never end on a full disk.
        self.forget_empty()?;
        let Some(position) = self.epochs.iter().position(|log| !log.is_empty()) else {
            return Ok(false);
        };
        let live = position + 1 == self.epochs.len();
        if live && self.epochs[position].segments.len() == 1 {
            // Everything that is left is in the file that is written: close it first.
            self.sync()?;
            let newest = self.live().segments[0].newest;
            self.new_segment(newest)?;
        }
        let log = &mut self.epochs[position];
        let epoch = log.epoch;
        let segment = &mut log.segments[0];
        let mut gone = Vec::new();
        self.records -= segment.records();
        for stream in Stream::ALL {
            let at = index(stream);
            gone.extend(segment.runs(at).into_iter().map(|run| (stream, run)));
            self.waiting[at] -= segment.forget_until(at, u64::MAX);
        }
        for (stream, run) in gone {
            self.note_drop(epoch, stream, run, why);
        }
        self.forget_empty()?;
        Ok(true)
    }

    /// Gives up what was appended to the live epoch since the last successful sync.
    pub(crate) fn give_up_unsynced(&mut self) {
        let live = self.epochs.last_mut().expect("there is a live epoch");
        let epoch = live.epoch;
        let mut gone = Vec::new();
        for stream in Stream::ALL {
            let at = index(stream);
            let (first, next) = (live.synced[at], live.next[at]);
            if first == next {
                continue;
            }
            let before = live.records();
            for segment in &mut live.segments {
                self.waiting[at] -= segment.forget_from(at, first);
            }
            self.records -= before - live.records();
            live.synced[at] = next;
            gone.push((stream, (first, next - 1)));
        }
        for (stream, run) in gone {
            self.note_drop(epoch, stream, run, DropReason::Disk);
        }
    }

    /// Gives up one record.
    pub(crate) fn give_up(&mut self, epoch: Epoch, stream: Stream, seq: u64, why: DropReason) {
        let at = index(stream);
        let Some(log) = self.epochs.iter_mut().find(|log| log.epoch == epoch) else {
            return;
        };
        let before = log.records();
        for segment in &mut log.segments {
            self.waiting[at] -= segment.forget_one(at, seq);
        }
        let gone = before - log.records();
        self.records -= gone;
        if gone > 0 {
            self.note_drop(epoch, stream, (seq, seq), why);
        }
    }

    /// Counts a drop and remembers it to be told, joined with its neighbour.
    pub(crate) fn note_drop(
        &mut self,
        epoch: Epoch,
        stream: Stream,
        run: (u64, u64),
        why: DropReason,
    ) {
        let (first, last) = run;
        self.dropped[index(stream)] += last - first + 1;
        let neighbour = self.drops.iter_mut().rev().find(|drop| {
            (drop.epoch, drop.stream, drop.why) == (epoch, stream, why) && drop.last + 1 == first
        });
        match neighbour {
            Some(drop) => drop.last = last,
            None => {
                if self.drops.len() == MAX_DROPS {
                    self.drops.pop_front();
                }
                self.drops.push_back(Dropped {
                    epoch,
                    stream,
                    first,
                    last,
                    why,
                });
            }
        }
    }
}

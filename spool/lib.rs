//! The write-ahead log on a node's disk: what was read is written here before it is sent, and is
//! taken away only when the server says that it is durable there.
//!
//! Limits: [`Limits`], [`MAX_RECORD_BYTES`], [`MAX_EPOCHS`]. Memory: 16 bytes a record, no payload.
//!
//! A spool holds *epochs*; each has two *streams* whose records count up from 1. Only the newest
//! epoch, the live one, is appended to; older ones wait to be drained. A record can be read once it
//! is synced, not before: so a seq that a crash takes back was never sent, and is never seen again
//! with other content. The bytes are described in `format.rs`, the way back from a crash in
//! `epoch.rs`.
//!
//! The agent spools its own requests; the server spools OTLP from others before it says 200.

pub mod disk;

mod epoch;
mod format;
mod room;
mod segment;
mod words;

#[cfg(any(test, feature = "sim"))]
pub mod sim;

use std::collections::VecDeque;
use std::io;

use gpufleet_telemetry::identity::Epoch;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::Stream;

use crate::disk::Disk;
use crate::epoch::{EpochLog, Found, RecoverError, parse_folder, recover};
use crate::format::{Header, RECORD_HEADER_BYTES, RecordHeader, STREAMS, index};
use crate::segment::{Segment, file_name, file_ordinal};

pub use crate::format::{MAX_RECORD_BYTES, VERSION};
pub use crate::words::{
    DropReason, Dropped, Limits, NewEpoch, Opened, Record, SpoolError, Waiting, WhenFull,
};

/// Most epochs kept side by side. Each outage and each corruption makes one; beyond this the oldest
/// is dropped, because a node that collects more will not drain them before they are too old.
pub const MAX_EPOCHS: usize = 64;

/// The write-ahead log.
#[derive(Debug)]
pub struct Spool<D: Disk> {
    disk: D,
    limits: Limits,
    /// Oldest first; the last one is live.
    epochs: Vec<EpochLog>,
    /// The file that is appended to: the live epoch's last segment.
    active: Option<D::File>,
    /// Bytes in files, over all epochs.
    bytes: u64,
    records: usize,
    /// Payload bytes that wait, by stream.
    waiting: [u64; STREAMS],
    dropped: [u64; STREAMS],
    drops: VecDeque<Dropped>,
}

impl<D: Disk> Spool<D> {
    /// Opens what is on the disk. `epoch` is a random one, used when the old one cannot go on.
    ///
    /// # Errors
    /// When the disk fails or a newer program wrote the spool.
    pub fn open(
        disk: D,
        limits: Limits,
        epoch: Epoch,
        now: Timestamp,
    ) -> Result<(Self, Opened), SpoolError> {
        let mut spool = Self {
            disk,
            limits,
            epochs: Vec::new(),
            active: None,
            bytes: 0,
            records: 0,
            waiting: [0; STREAMS],
            dropped: [0; STREAMS],
            drops: VecDeque::new(),
        };
        let mut opened = Opened::default();
        let mut names: Vec<(u32, Epoch)> = spool
            .disk
            .folders()
            .map_err(disk_error("list its folders"))?
            .iter()
            .filter_map(|name| parse_folder(name))
            .collect();
        names.sort_unstable();
        let mut sound = None;
        for (ordinal, epoch) in names {
            let found = recover(&spool.disk, ordinal, epoch).map_err(|error| match error {
                RecoverError::Disk(source) => SpoolError::Disk {
                    doing: "be read after a start",
                    source,
                },
                RecoverError::Newer { file, version } => SpoolError::Newer {
                    file,
                    found: version,
                },
            })?;
            opened.bad_bytes += found.bad_bytes;
            sound = Some(found.sound);
            spool.adopt(found);
        }
        opened.records = spool.records;
        match sound {
            Some(true) => {
                spool.remove_empty_tail()?;
                spool.new_segment(now)?;
            }
            found => {
                opened.new_epoch = Some(match found {
                    None => NewEpoch::NoSpool,
                    Some(_) => NewEpoch::Corrupt,
                });
                spool.start_epoch(epoch, now)?;
            }
        }
        spool.forget_empty()?;
        Ok((spool, opened))
    }

    /// The live epoch: the one that is appended to.
    pub fn epoch(&self) -> Epoch {
        self.live().epoch
    }

    /// Every epoch that has records waiting, and the live one; newest first.
    pub fn epochs(&self) -> impl Iterator<Item = Epoch> + '_ {
        self.epochs.iter().rev().map(|log| log.epoch)
    }

    /// Adds a record to the live epoch and says its seq. It can be read after the next
    /// [`Self::sync`].
    ///
    /// # Errors
    /// When it is too large, the spool is full and may not drop, or the disk fails. The seq is then
    /// given to the next record.
    pub fn append(
        &mut self,
        stream: Stream,
        payload: &[u8],
        at: Timestamp,
    ) -> Result<u64, SpoolError> {
        if payload.len() > MAX_RECORD_BYTES {
            return Err(SpoolError::TooLarge {
                bytes: payload.len(),
            });
        }
        self.drop_aged(at)?;
        self.make_room(payload.len() as u64)?;
        loop {
            match self.try_append(stream, payload, at) {
                Err(SpoolError::Disk { source, .. })
                    if source.kind() == io::ErrorKind::StorageFull =>
                {
                    if !self.drop_oldest(DropReason::Full)? {
                        return Err(SpoolError::Full);
                    }
                }
                other => return other,
            }
        }
    }

    /// Makes everything appended so far safe from a crash, and readable.
    ///
    /// # Errors
    /// When the disk fails: what was appended since the last sync is then given up and counted,
    /// because nobody can say whether it is on the disk.
    pub fn sync(&mut self) -> Result<(), SpoolError> {
        let live = self.epochs.last_mut().expect("there is a live epoch");
        if live.synced == live.next {
            return Ok(());
        }
        let Some(file) = &mut self.active else {
            return Ok(());
        };
        match self.disk.sync(file) {
            Ok(()) => {
                live.synced = live.next;
                Ok(())
            }
            Err(source) => {
                self.active = None;
                self.give_up_unsynced();
                Err(SpoolError::Disk {
                    doing: "make records safe",
                    source,
                })
            }
        }
    }

    /// The first record of a stream at or after `seq` that is kept and synced.
    ///
    /// A record whose bytes turn out to be corrupt is given up, counted, and passed over.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn get(
        &mut self,
        epoch: Epoch,
        stream: Stream,
        seq: u64,
    ) -> Result<Option<Record>, SpoolError> {
        let at = index(stream);
        loop {
            let Some(log) = self.epochs.iter().find(|log| log.epoch == epoch) else {
                return Ok(None);
            };
            let Some((segment, place)) = log.at_or_after(at, seq) else {
                return Ok(None);
            };
            let mut bytes = self
                .disk
                .read(
                    &log.folder,
                    &segment.file(),
                    place.offset,
                    RECORD_HEADER_BYTES + place.length,
                )
                .map_err(disk_error("read a record"))?;
            let header = RecordHeader::parse(&bytes).filter(|header| {
                header.seq == place.seq && header.fits(epoch, &bytes[RECORD_HEADER_BYTES..])
            });
            if let Some(header) = header {
                bytes.drain(..RECORD_HEADER_BYTES);
                return Ok(Some(Record {
                    seq: header.seq,
                    at: header.at,
                    payload: bytes,
                }));
            }
            self.give_up(epoch, stream, place.seq, DropReason::Corrupt);
        }
    }

    /// The seq and time of the first record at or after `seq` that is kept and synced, without
    /// reading it.
    pub fn peek(&self, epoch: Epoch, stream: Stream, seq: u64) -> Option<(u64, Timestamp)> {
        let log = self.epochs.iter().find(|log| log.epoch == epoch)?;
        let (_, place) = log.at_or_after(index(stream), seq)?;
        Some((place.seq, place.at))
    }

    /// The seq that the next record of a stream will get; 1 for an epoch that is not here.
    pub fn next_seq(&self, epoch: Epoch, stream: Stream) -> u64 {
        self.epochs
            .iter()
            .find(|log| log.epoch == epoch)
            .map_or(1, |log| log.next[index(stream)])
    }

    /// Takes away what is durable at the receiver: records up to and including `durable`.
    ///
    /// # Errors
    /// When the disk fails to remove a file that holds nothing any more; it is tried again at the
    /// next trim.
    pub fn trim(&mut self, epoch: Epoch, stream: Stream, durable: u64) -> Result<(), SpoolError> {
        let at = index(stream);
        let Some(log) = self.epochs.iter_mut().find(|log| log.epoch == epoch) else {
            return Ok(());
        };
        if durable <= log.durable[at] {
            return Ok(());
        }
        log.durable[at] = durable;
        let before = log.records();
        for segment in &mut log.segments {
            if segment.first(at).is_some_and(|first| first.seq > durable) {
                break;
            }
            self.waiting[at] -= segment.forget_until(at, durable);
        }
        self.records -= before - log.records();
        self.forget_empty()
    }

    /// Gives one record up that the receiver will never take.
    pub fn refuse(&mut self, epoch: Epoch, stream: Stream, seq: u64) {
        self.give_up(epoch, stream, seq, DropReason::Refused);
    }

    /// Closes the live epoch, which is drained from now on, and begins a new one.
    ///
    /// # Errors
    /// When the disk fails; the old epoch then stays live.
    pub fn start_epoch(&mut self, epoch: Epoch, now: Timestamp) -> Result<(), SpoolError> {
        if !self.epochs.is_empty() {
            self.sync()?;
        }
        let ordinal = self.epochs.last().map_or(1, |log| log.ordinal + 1);
        let log = EpochLog::new(ordinal, epoch);
        self.disk
            .create_folder(&log.folder)
            .map_err(disk_error("begin a new epoch"))?;
        self.seal();
        self.epochs.push(log);
        if let Err(error) = self.new_segment(now) {
            self.epochs.pop();
            return Err(error);
        }
        while self.epochs.len() > MAX_EPOCHS && self.drop_oldest(DropReason::Full)? {}
        self.forget_empty()
    }

    /// How much waits in a stream, over all epochs.
    pub fn waiting(&self, stream: Stream) -> Waiting {
        let at = index(stream);
        Waiting {
            bytes: self.waiting[at],
            oldest: self
                .epochs
                .iter()
                .filter_map(|log| log.oldest(at))
                .map(|place| place.at)
                .min(),
            dropped: self.dropped[at],
        }
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What was given up since the last call, to be told.
    pub fn take_drops(&mut self) -> Vec<Dropped> {
        self.drops.drain(..).collect()
    }

    fn live(&self) -> &EpochLog {
        self.epochs.last().expect("there is a live epoch")
    }

    /// Takes an epoch in that was found on the disk.
    fn adopt(&mut self, found: Found) {
        for (stream, first, last) in found.lost {
            let stream = Stream::ALL[stream];
            self.note_drop(found.log.epoch, stream, (first, last), DropReason::Corrupt);
        }
        self.records += found.log.records();
        for stream in 0..STREAMS {
            self.waiting[stream] += found.log.payload_bytes(stream);
        }
        self.bytes += found.log.segments.iter().map(|it| it.bytes).sum::<u64>();
        self.epochs.push(found.log);
    }

    /// Removes the empty segments that starts without a record in between have left, so that a
    /// process that is restarted again and again does not fill the folder with them.
    fn remove_empty_tail(&mut self) -> Result<(), SpoolError> {
        let live = self.epochs.last_mut().expect("there is a live epoch");
        while live.segments.len() > 1
            && let Some(segment) = live.segments.pop_back_if(|last| last.is_empty())
        {
            self.bytes -= segment.bytes;
            self.disk
                .remove(&live.folder, &segment.file())
                .map_err(disk_error("remove an empty file"))?;
        }
        Ok(())
    }

    fn try_append(
        &mut self,
        stream: Stream,
        payload: &[u8],
        at: Timestamp,
    ) -> Result<u64, SpoolError> {
        if self.must_roll(payload.len(), at) {
            self.sync()?;
            self.new_segment(at)?;
        }
        let live = self.epochs.last_mut().expect("there is a live epoch");
        let seq = live.next[index(stream)];
        let header = RecordHeader::new(live.epoch, stream, seq, at, payload);
        let mut bytes = Vec::with_capacity(RECORD_HEADER_BYTES + payload.len());
        bytes.extend_from_slice(&header.encode());
        bytes.extend_from_slice(payload);
        let file = self.active.as_mut().expect("a segment was just opened");
        if let Err(source) = self.disk.append(file, &bytes) {
            // Part of it may be in the file: no good record may follow there.
            self.abandon_tail();
            return Err(SpoolError::Disk {
                doing: "write a record",
                source,
            });
        }
        let segment = live.segments.back_mut().expect("the active segment");
        segment.push(&header);
        live.next[index(stream)] = seq + 1;
        self.bytes += bytes.len() as u64;
        self.records += 1;
        self.waiting[index(stream)] += payload.len() as u64;
        Ok(seq)
    }

    /// After a failed write: makes what is whole safe, cuts the rest off, and closes the segment.
    fn abandon_tail(&mut self) {
        if self.sync().is_err() {
            // `sync` has given up and counted what it could not make safe.
            return;
        }
        self.active = None;
        let live = self.live();
        if let Some(segment) = live.segments.back() {
            // If even this fails the garbage stays, and the next start finds it: it is passed over
            // there, since the segment after it begins where the good records end.
            let _ = self
                .disk
                .truncate(&live.folder, &segment.file(), segment.bytes);
        }
    }

    fn must_roll(&self, length: usize, at: Timestamp) -> bool {
        let Some(segment) = self.live().segments.back() else {
            return true;
        };
        let age = at.since(segment.created);
        self.active.is_none()
            || !segment.can_index(length)
            || (segment.records() > 0 && segment.bytes >= self.limits.segment_bytes)
            || age > i64::try_from(self.limits.segment_age.as_nanos()).unwrap_or(i64::MAX)
    }

    fn new_segment(&mut self, now: Timestamp) -> Result<(), SpoolError> {
        self.seal();
        let live = self.epochs.last_mut().expect("there is a live epoch");
        // A failed attempt may have left a file behind: its name is not used again.
        let taken = self
            .disk
            .files(&live.folder)
            .map_err(disk_error("list its files"))?;
        let newest = taken.iter().filter_map(|name| file_ordinal(name)).max();
        let header = Header {
            ordinal: newest.map_or(1, |ordinal| ordinal + 1),
            epoch: live.epoch,
            created: now,
            next: live.next,
        };
        let doing = "begin a new file";
        let name = file_name(header.ordinal);
        let mut file = self
            .disk
            .create(&live.folder, &name)
            .map_err(disk_error(doing))?;
        let written = self
            .disk
            .append(&mut file, &header.encode())
            .and_then(|()| self.disk.sync(&mut file))
            .and_then(|()| self.disk.sync_folder(&live.folder));
        if let Err(source) = written {
            drop(file);
            let _ = self.disk.remove(&live.folder, &name);
            return Err(SpoolError::Disk { doing, source });
        }
        let segment = Segment::new(&header);
        self.bytes += segment.bytes;
        live.segments.push_back(segment);
        self.active = Some(file);
        Ok(())
    }

    fn seal(&mut self) {
        self.active = None;
        if let Some(segment) = self
            .epochs
            .last_mut()
            .and_then(|live| live.segments.back_mut())
        {
            segment.seal();
        }
    }
}

fn disk_error(doing: &'static str) -> impl FnOnce(io::Error) -> SpoolError {
    move |source| SpoolError::Disk { doing, source }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod simulation;

//! One epoch: a folder of segments. How it is found again after a crash, and what is lost then.
//!
//! An epoch is *sound* when its records follow each other without a hole, each segment begins where
//! the one before ended, and no byte of the last segment is garbage. Only a sound epoch is appended
//! to again. Any other is kept for what is good in it, and a new epoch takes its place: nobody can
//! tell a torn write from a flipped bit in a record that the server has already, so its seqs must
//! never be given to other content.

use std::collections::VecDeque;
use std::io;

use gpufleet_telemetry::identity::Epoch;
use uuid::Uuid;

use crate::disk::Disk;
use crate::format::{STREAMS, index};
use crate::segment::{Place, Scan, Segment, file_ordinal, scan};

/// One life of the spool.
#[derive(Debug)]
pub(crate) struct EpochLog {
    pub(crate) epoch: Epoch,
    pub(crate) ordinal: u32,
    pub(crate) folder: String,
    /// Oldest first.
    pub(crate) segments: VecDeque<Segment>,
    /// The seq the next record of each stream gets.
    pub(crate) next: [u64; STREAMS],
    /// Records below these are on disk whatever happens.
    pub(crate) synced: [u64; STREAMS],
    /// The highest seq known to be durable at the receiver.
    pub(crate) durable: [u64; STREAMS],
}

/// An epoch as found on the disk.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) log: EpochLog,
    /// Whether records may be added to it.
    pub(crate) sound: bool,
    /// Bytes that are no record.
    pub(crate) bad_bytes: u64,
    /// Seqs that were there once: (stream, first, last).
    pub(crate) lost: Vec<(usize, u64, u64)>,
}

/// Why an epoch could not be looked at.
#[derive(Debug)]
pub(crate) enum RecoverError {
    Disk(io::Error),
    Newer { file: String, version: u16 },
}

/// The folder of an epoch: its place among the epochs, then its name.
pub(crate) fn folder_name(ordinal: u32, epoch: Epoch) -> String {
    format!("{ordinal:08x}-{}", epoch.0.simple())
}

/// The place and name of an epoch's folder, if it is one.
pub(crate) fn parse_folder(name: &str) -> Option<(u32, Epoch)> {
    let (ordinal, epoch) = name.split_once('-')?;
    let ordinal = file_ordinal(ordinal)?;
    let epoch = Uuid::try_parse(epoch).ok().map(Epoch)?;
    (folder_name(ordinal, epoch) == name).then_some((ordinal, epoch))
}

impl EpochLog {
    pub(crate) fn new(ordinal: u32, epoch: Epoch) -> Self {
        Self {
            epoch,
            ordinal,
            folder: folder_name(ordinal, epoch),
            segments: VecDeque::new(),
            next: [1; STREAMS],
            synced: [1; STREAMS],
            durable: [0; STREAMS],
        }
    }

    /// The first kept record at or after `seq` that would survive a crash.
    pub(crate) fn at_or_after(&self, stream: usize, seq: u64) -> Option<(&Segment, Place)> {
        self.segments
            .iter()
            .find_map(|segment| Some((segment, segment.at_or_after(stream, seq)?)))
            .filter(|(_, place)| place.seq < self.synced[stream])
    }

    pub(crate) fn records(&self) -> usize {
        self.segments.iter().map(Segment::records).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.segments.iter().all(Segment::is_empty)
    }

    pub(crate) fn payload_bytes(&self, stream: usize) -> u64 {
        self.segments
            .iter()
            .map(|segment| segment.payload_bytes(stream))
            .sum()
    }

    pub(crate) fn oldest(&self, stream: usize) -> Option<Place> {
        self.segments
            .iter()
            .find_map(|segment| segment.first(stream))
    }
}

/// Finds an epoch again: reads all of it, keeps what is good.
pub(crate) fn recover<D: Disk>(
    disk: &D,
    ordinal: u32,
    epoch: Epoch,
) -> Result<Found, RecoverError> {
    let mut log = EpochLog::new(ordinal, epoch);
    let mut files: Vec<u32> = disk
        .files(&log.folder)
        .map_err(RecoverError::Disk)?
        .iter()
        .filter_map(|name| file_ordinal(name))
        .collect();
    files.sort_unstable();
    let mut found = Found {
        log: EpochLog::new(ordinal, epoch),
        sound: !files.is_empty(),
        bad_bytes: 0,
        lost: Vec::new(),
    };
    let newest = files.last().copied();
    let mut expected = None;
    for file in files {
        let scan = scan(disk, &log.folder, epoch, file)
            .map_err(RecoverError::Disk)?
            .map_err(|version| RecoverError::Newer {
                file: format!("{}/{file:08x}", log.folder),
                version,
            })?;
        found.judge(disk, &scan, Some(file) == newest, &mut expected)?;
        let mut segment = scan.segment;
        if Some(file) == newest {
            segment.bytes = scan.good_end;
        }
        segment.seal();
        log.segments.push_back(segment);
    }
    log.next = expected.unwrap_or([1; STREAMS]);
    log.synced = log.next;
    found.log = log;
    Ok(found)
}

impl Found {
    /// Judges one segment against what should follow the one before it, and cuts garbage off the
    /// newest.
    fn judge<D: Disk>(
        &mut self,
        disk: &D,
        scan: &Scan,
        newest: bool,
        expected: &mut Option<[u64; STREAMS]>,
    ) -> Result<(), RecoverError> {
        let garbage = scan.segment.bytes - scan.good_end;
        self.bad_bytes += scan.bad_bytes;
        if scan.header.is_none() || scan.bad_bytes > 0 {
            self.sound = false;
        }
        if newest {
            self.sound &= garbage == 0;
            self.bad_bytes += garbage;
            // Also without garbage: what a killed process wrote may not be on the disk yet, and
            // from here on its records count as safe.
            disk.truncate(&self.log.folder, &scan.segment.file(), scan.good_end)
                .map_err(RecoverError::Disk)?;
        }
        let mut next = *expected.get_or_insert_with(|| match scan.header {
            Some(header) => header.next,
            None => [0, 1].map(|stream| scan.segment.first(stream).map_or(1, |it| it.seq)),
        });
        for (stream, next) in next.iter_mut().enumerate() {
            let runs = scan.segment.runs(stream);
            let begins = scan
                .header
                .map(|header| (header.next[stream], header.next[stream]));
            let runs = runs.into_iter().map(|(first, last)| (first, last + 1));
            for (first, end) in begins.into_iter().chain(runs) {
                if first > *next {
                    self.lost.push((stream, *next, first - 1));
                }
                self.sound &= first == *next;
                *next = (*next).max(end);
            }
        }
        if newest && let Some(stream) = scan.cut.map(index) {
            // It may have been whole and safe once, so it is told as lost.
            self.lost.push((stream, next[stream], next[stream]));
        }
        *expected = Some(next);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_folder_that_we_named_is_an_epoch() {
        let epoch = Epoch(Uuid::from_u128(5));
        assert_eq!(parse_folder(&folder_name(3, epoch)), Some((3, epoch)));
        for name in ["lost+found", "00000003", "00000003-xyz", "3-", "lock"] {
            assert_eq!(parse_folder(name), None, "{name}");
        }
    }
}

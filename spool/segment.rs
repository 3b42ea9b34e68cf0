//! One file of records and the index of it in memory: 16 bytes a record, no payload.

use std::collections::VecDeque;
use std::io;

use gpufleet_telemetry::identity::Epoch;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::Stream;

use crate::disk::Disk;
use crate::format::{
    HEADER_BYTES, Header, Parsed, RECORD_HEADER_BYTES, RECORD_MAGIC, RecordHeader, STREAMS, index,
};

/// How much is read at once in the search for the next good record after a bad one.
const SEARCH_BYTES: usize = 64 << 10;

/// Where one record is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// Its seq, after the segment's first of that stream.
    after: u32,
    /// Its place in the file.
    offset: u32,
    /// Its payload's length.
    length: u32,
    /// Its time in milliseconds after the segment's base; clamped, only ages are made of it.
    at_ms: u32,
}

/// One file of records.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) ordinal: u32,
    /// The file's length.
    pub(crate) bytes: u64,
    /// The time of its newest record, or of its creation.
    pub(crate) newest: Timestamp,
    pub(crate) created: Timestamp,
    base: [u64; STREAMS],
    entries: [VecDeque<Entry>; STREAMS],
}

/// A record's place, as the segment knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) seq: u64,
    pub(crate) offset: u64,
    pub(crate) length: usize,
    pub(crate) at: Timestamp,
}

/// What a scan of a segment found.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) segment: Segment,
    /// The header, if it is good.
    pub(crate) header: Option<Header>,
    /// Where the good bytes end; after it there is only garbage.
    pub(crate) good_end: u64,
    /// Bytes between good records that are no record.
    pub(crate) bad_bytes: u64,
    /// What the garbage after the good bytes probably was.
    pub(crate) cut: Option<Stream>,
}

impl Segment {
    pub(crate) fn new(header: &Header) -> Self {
        Self {
            ordinal: header.ordinal,
            bytes: HEADER_BYTES as u64,
            newest: header.created,
            created: header.created,
            base: header.next,
            entries: Default::default(),
        }
    }

    pub(crate) fn file(&self) -> String {
        file_name(self.ordinal)
    }

    /// Whether another record of this length still has a place the index can name.
    pub(crate) fn can_index(&self, length: usize) -> bool {
        self.bytes + (length + RECORD_HEADER_BYTES) as u64 <= u64::from(u32::MAX)
    }

    /// Adds a record that was written at the end of the file.
    pub(crate) fn push(&mut self, header: &RecordHeader) {
        let offset = self.bytes;
        self.index_record(header, offset);
        self.bytes = offset + (RECORD_HEADER_BYTES + header.length) as u64;
    }

    fn index_record(&mut self, header: &RecordHeader, offset: u64) {
        let stream = index(header.stream);
        if self.entries[stream].is_empty() {
            self.base[stream] = header.seq;
        }
        let since_ms = header.at.since(self.created) / 1_000_000;
        self.entries[stream].push_back(Entry {
            after: u32::try_from(header.seq - self.base[stream]).unwrap_or(u32::MAX),
            offset: u32::try_from(offset).expect("`can_index` was asked"),
            length: u32::try_from(header.length).expect("payloads are at most 16 MiB"),
            at_ms: u32::try_from(since_ms.max(0)).unwrap_or(u32::MAX),
        });
        self.newest = self.newest.max(header.at);
    }

    /// The first kept record at or after `seq`.
    pub(crate) fn at_or_after(&self, stream: usize, seq: u64) -> Option<Place> {
        let entries = &self.entries[stream];
        let after = u32::try_from(seq.saturating_sub(self.base[stream])).unwrap_or(u32::MAX);
        let position = entries.partition_point(|entry| entry.after < after);
        entries.get(position).map(|entry| self.place(stream, entry))
    }

    pub(crate) fn first(&self, stream: usize) -> Option<Place> {
        self.entries[stream]
            .front()
            .map(|entry| self.place(stream, entry))
    }

    pub(crate) fn last(&self, stream: usize) -> Option<Place> {
        self.entries[stream]
            .back()
            .map(|entry| self.place(stream, entry))
    }

    fn place(&self, stream: usize, entry: &Entry) -> Place {
        Place {
            seq: self.base[stream] + u64::from(entry.after),
            offset: u64::from(entry.offset),
            length: entry.length as usize,
            at: self.created.shifted(i64::from(entry.at_ms) * 1_000_000),
        }
    }

    /// Forgets records up to and including `seq`; says how many payload bytes they had.
    pub(crate) fn forget_until(&mut self, stream: usize, seq: u64) -> u64 {
        let mut bytes = 0;
        while let Some(first) = self.first(stream)
            && first.seq <= seq
        {
            self.entries[stream].pop_front();
            bytes += first.length as u64;
        }
        bytes
    }

    /// Forgets one record; says how many payload bytes it had.
    pub(crate) fn forget_one(&mut self, stream: usize, seq: u64) -> u64 {
        let found = self
            .at_or_after(stream, seq)
            .filter(|place| place.seq == seq);
        let Some(place) = found else { return 0 };
        self.entries[stream].retain(|entry| u64::from(entry.offset) != place.offset);
        place.length as u64
    }

    /// Forgets records from `seq` on; says how many payload bytes they had.
    pub(crate) fn forget_from(&mut self, stream: usize, seq: u64) -> u64 {
        let mut bytes = 0;
        while let Some(last) = self.last(stream)
            && last.seq >= seq
        {
            self.entries[stream].pop_back();
            bytes += last.length as u64;
        }
        bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.iter().all(VecDeque::is_empty)
    }

    pub(crate) fn records(&self) -> usize {
        self.entries.iter().map(VecDeque::len).sum()
    }

    pub(crate) fn payload_bytes(&self, stream: usize) -> u64 {
        self.entries[stream]
            .iter()
            .map(|entry| u64::from(entry.length))
            .sum()
    }

    /// The seqs that are kept, as runs without holes.
    pub(crate) fn runs(&self, stream: usize) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for entry in &self.entries[stream] {
            let seq = self.base[stream] + u64::from(entry.after);
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == seq => *last = seq,
                _ => runs.push((seq, seq)),
            }
        }
        runs
    }

    /// What the index takes in memory.
    #[cfg(test)]
    pub(crate) fn index_bytes(&self) -> usize {
        self.entries
            .iter()
            .map(|entries| entries.capacity() * size_of::<Entry>())
            .sum()
    }

    /// Gives back what the index has grown beyond its need, once no more records come.
    pub(crate) fn seal(&mut self) {
        for entries in &mut self.entries {
            entries.shrink_to_fit();
        }
    }
}

/// The name of a segment's file.
pub(crate) fn file_name(ordinal: u32) -> String {
    format!("{ordinal:08x}")
}

/// The ordinal in a segment's file name, if it is one.
pub(crate) fn file_ordinal(name: &str) -> Option<u32> {
    (name.len() == 8)
        .then(|| u32::from_str_radix(name, 16).ok())
        .flatten()
}

/// Reads a whole segment: every record that is good, in order, and what is not.
///
/// # Errors
/// What the disk says, or the version of a segment that a newer agent wrote.
pub(crate) fn scan<D: Disk>(
    disk: &D,
    folder: &str,
    epoch: Epoch,
    ordinal: u32,
) -> io::Result<Result<Scan, u16>> {
    let file = file_name(ordinal);
    let length = disk.length(folder, &file)?;
    let header = match Header::parse(&disk.read(folder, &file, 0, HEADER_BYTES)?) {
        Parsed::Header(header) => Some(header).filter(|it| it.epoch == epoch),
        Parsed::Newer(version) => return Ok(Err(version)),
        Parsed::Bad => None,
    };
    let reader = Reader {
        disk,
        folder,
        file: &file,
        epoch,
    };
    let created = match header {
        Some(header) => header.created,
        None => reader.first_time()?.unwrap_or_default(),
    };
    let mut scan = Scan {
        segment: Segment::new(&Header {
            ordinal,
            epoch,
            created,
            next: header.map_or([1; STREAMS], |it| it.next),
        }),
        header,
        good_end: if header.is_some() {
            HEADER_BYTES as u64
        } else {
            0
        },
        bad_bytes: 0,
        cut: None,
    };
    let mut offset = scan.good_end;
    while offset < length {
        if let Some(record) = reader.record(offset)? {
            scan.bad_bytes += offset - scan.good_end;
            scan.take(&record, offset);
            offset = scan.good_end;
        } else {
            match reader.next_magic(offset + 1)? {
                Some(candidate) => offset = candidate,
                None => break,
            }
        }
    }
    scan.segment.bytes = length;
    let cut = reader.read(scan.good_end, RECORD_HEADER_BYTES)?;
    scan.cut = RecordHeader::guess_stream(&cut);
    Ok(Ok(scan))
}

impl Scan {
    /// Takes a good record in, unless its seq does not come after the one before.
    fn take(&mut self, record: &RecordHeader, offset: u64) {
        let end = offset + (RECORD_HEADER_BYTES + record.length) as u64;
        let last = self.segment.last(index(record.stream));
        if last.is_none_or(|last| last.seq < record.seq) && end <= u64::from(u32::MAX) {
            self.segment.index_record(record, offset);
        } else {
            self.bad_bytes += end - offset;
        }
        self.good_end = end;
    }
}

/// One segment's file, read for its records.
struct Reader<'a, D> {
    disk: &'a D,
    folder: &'a str,
    file: &'a str,
    epoch: Epoch,
}

impl<D: Disk> Reader<'_, D> {
    /// The time of the first good record, for a segment whose header does not say when it began.
    fn first_time(&self) -> io::Result<Option<Timestamp>> {
        let mut from = 0;
        while let Some(offset) = self.next_magic(from)? {
            if let Some(record) = self.record(offset)? {
                return Ok(Some(record.at));
            }
            from = offset + 1;
        }
        Ok(None)
    }

    /// The record at `offset`, if a good one is there.
    fn record(&self, offset: u64) -> io::Result<Option<RecordHeader>> {
        let bytes = self.read(offset, RECORD_HEADER_BYTES)?;
        let Some(header) = RecordHeader::parse(&bytes) else {
            return Ok(None);
        };
        let payload = self.read(offset + RECORD_HEADER_BYTES as u64, header.length)?;
        Ok(header.fits(self.epoch, &payload).then_some(header))
    }

    /// Where the next record may begin, at or after `from`.
    fn next_magic(&self, mut from: u64) -> io::Result<Option<u64>> {
        loop {
            let bytes = self.read(from, SEARCH_BYTES)?;
            let found = bytes
                .windows(RECORD_MAGIC.len())
                .position(|window| window == RECORD_MAGIC);
            if let Some(position) = found {
                return Ok(Some(from + position as u64));
            }
            if bytes.len() < SEARCH_BYTES {
                return Ok(None);
            }
            // The magic may lie across the edge of what was read.
            from += (SEARCH_BYTES - RECORD_MAGIC.len() + 1) as u64;
        }
    }

    fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.disk.read(self.folder, self.file, offset, length)
    }
}

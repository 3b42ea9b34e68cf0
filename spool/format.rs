//! The bytes of a segment: a header, then records. Little-endian.
//!
//! Limits: a record's payload up to [`MAX_RECORD_BYTES`].
//!
//! ```text
//! segment header, 64 bytes
//!   0  magic      8 bytes  "gpuflSPL"
//!   8  version    u16      1
//!  10  zero       u16
//!  12  ordinal    u32      of this segment in its epoch
//!  16  epoch      16 bytes
//!  32  created    i64      Unix ns
//!  40  next       2 × u64  the seq that the next record of each stream will have
//!  56  crc        u32      CRC-32 of bytes 0..56
//!  60  zero       u32
//! record, 32 bytes and the payload
//!   0  magic      u32      "gfr1"
//!   4  length     u32      of the payload
//!   8  crc        u32      CRC-32 of the epoch, the length, bytes 12..32 and the payload
//!  12  stream     u8       0 metrics, 1 logs; then three zero bytes
//!  16  seq        u64      from 1
//!  24  at         i64      Unix ns
//! ```

use gpufleet_telemetry::identity::Epoch;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::Stream;
use uuid::Uuid;

/// The largest payload of one record, 16 MiB: what the server takes as one decompressed request.
pub const MAX_RECORD_BYTES: usize = 16 << 20;

/// The version of the format this code writes, and the newest it reads.
pub const VERSION: u16 = 1;

/// How many streams a spool has.
pub(crate) const STREAMS: usize = 2;

pub(crate) const HEADER_BYTES: usize = 64;
pub(crate) const RECORD_HEADER_BYTES: usize = 32;

const MAGIC: [u8; 8] = *b"gpuflSPL";
pub(crate) const RECORD_MAGIC: [u8; 4] = *b"gfr1";

/// The first bytes of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) ordinal: u32,
    pub(crate) epoch: Epoch,
    pub(crate) created: Timestamp,
    pub(crate) next: [u64; STREAMS],
}

/// What stands before a record's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) stream: Stream,
    pub(crate) seq: u64,
    pub(crate) at: Timestamp,
    pub(crate) length: usize,
    crc: u32,
}

/// What a segment's first bytes turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    Header(Header),
    /// Written by a newer version: not ours to touch.
    Newer(u16),
    Bad,
}

/// A stream's place in arrays.
pub(crate) const fn index(stream: Stream) -> usize {
    match stream {
        Stream::Metrics => 0,
        Stream::Logs => 1,
    }
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.ordinal.to_le_bytes());
        bytes[16..32].copy_from_slice(self.epoch.0.as_bytes());
        bytes[32..40].copy_from_slice(&self.created.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.next[0].to_le_bytes());
        bytes[48..56].copy_from_slice(&self.next[1].to_le_bytes());
        let crc = crc32fast::hash(&bytes[..56]);
        bytes[56..60].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Parsed {
        if bytes.len() < HEADER_BYTES || bytes[0..8] != MAGIC {
            return Parsed::Bad;
        }
        // Every version keeps this checksum here, so that a flipped bit is not taken for a new one.
        if crc32fast::hash(&bytes[..56]).to_le_bytes() != bytes[56..60] {
            return Parsed::Bad;
        }
        let version = u16::from_le_bytes(array(bytes, 8));
        if version > VERSION {
            return Parsed::Newer(version);
        }
        Parsed::Header(Self {
            ordinal: u32::from_le_bytes(array(bytes, 12)),
            epoch: Epoch(Uuid::from_bytes(array(bytes, 16))),
            created: Timestamp(i64::from_le_bytes(array(bytes, 32))),
            next: [
                u64::from_le_bytes(array(bytes, 40)),
                u64::from_le_bytes(array(bytes, 48)),
            ],
        })
    }
}

impl RecordHeader {
    /// The header for a payload that is at most [`MAX_RECORD_BYTES`] long.
    pub(crate) fn new(
        epoch: Epoch,
        stream: Stream,
        seq: u64,
        at: Timestamp,
        payload: &[u8],
    ) -> Self {
        let mut header = Self {
            stream,
            seq,
            at,
            length: payload.len(),
            crc: 0,
        };
        header.crc = header.checksum(epoch, payload);
        header
    }

    pub(crate) fn encode(&self) -> [u8; RECORD_HEADER_BYTES] {
        let mut bytes = self.encode_without_crc();
        bytes[8..12].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    /// The header, if these bytes can be one; the payload decides.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < RECORD_HEADER_BYTES || bytes[0..4] != RECORD_MAGIC {
            return None;
        }
        let length = u32::from_le_bytes(array(bytes, 4)) as usize;
        let stream = match bytes[12..16] {
            [0, 0, 0, 0] => Stream::Metrics,
            [1, 0, 0, 0] => Stream::Logs,
            _ => return None,
        };
        (length <= MAX_RECORD_BYTES).then(|| Self {
            stream,
            seq: u64::from_le_bytes(array(bytes, 16)),
            at: Timestamp(i64::from_le_bytes(array(bytes, 24))),
            length,
            crc: u32::from_le_bytes(array(bytes, 8)),
        })
    }

    /// Which stream a record that is cut or corrupt was probably of; only for counting it.
    pub(crate) fn guess_stream(bytes: &[u8]) -> Option<Stream> {
        match bytes.get(12)? {
            0 => Some(Stream::Metrics),
            1 => Some(Stream::Logs),
            _ => None,
        }
    }

    /// Whether this is the payload that the header was written for.
    pub(crate) fn fits(&self, epoch: Epoch, payload: &[u8]) -> bool {
        payload.len() == self.length && self.checksum(epoch, payload) == self.crc
    }

    /// The epoch is in it, so that bytes of a payload that look like a record are never taken for
    /// one: whoever sends a payload does not know the epoch.
    fn checksum(&self, epoch: Epoch, payload: &[u8]) -> u32 {
        let bytes = self.encode_without_crc();
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(epoch.0.as_bytes());
        hasher.update(&bytes[4..8]);
        hasher.update(&bytes[12..]);
        hasher.update(payload);
        hasher.finalize()
    }

    fn encode_without_crc(&self) -> [u8; RECORD_HEADER_BYTES] {
        let length = u32::try_from(self.length).expect("append refuses longer payloads");
        let mut bytes = [0; RECORD_HEADER_BYTES];
        bytes[0..4].copy_from_slice(&RECORD_MAGIC);
        bytes[4..8].copy_from_slice(&length.to_le_bytes());
        bytes[12] = u8::try_from(index(self.stream)).expect("there are two streams");
        bytes[16..24].copy_from_slice(&self.seq.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.at.0.to_le_bytes());
        bytes
    }
}

/// `N` bytes from `from`; the caller has checked the length.
fn array<const N: usize>(bytes: &[u8], from: usize) -> [u8; N] {
    bytes[from..from + N]
        .try_into()
        .expect("a range of N bytes is N bytes long")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            ordinal: 7,
            epoch: Epoch(Uuid::from_u128(9)),
            created: Timestamp(-5),
            next: [11, 13],
        }
    }

    #[test]
    fn a_header_survives_the_disk_and_no_flipped_bit_passes_as_one() {
        let bytes = header().encode();
        assert_eq!(Header::parse(&bytes), Parsed::Header(header()));
        for bit in 0..56 * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(
                !matches!(Header::parse(&flipped), Parsed::Header(_)),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn a_newer_version_is_told_from_a_bad_header() {
        let mut bytes = header().encode();
        bytes[8] = 9;
        let crc = crc32fast::hash(&bytes[..56]);
        bytes[56..60].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Header::parse(&bytes), Parsed::Newer(9));
        assert_eq!(Header::parse(&bytes[..40]), Parsed::Bad);
    }

    #[test]
    fn no_flipped_bit_of_a_record_passes() {
        let payload = b"payload".as_slice();
        let epoch = Epoch(Uuid::from_u128(9));
        let bytes = RecordHeader::new(epoch, Stream::Logs, 3, Timestamp(4), payload).encode();
        let parsed = RecordHeader::parse(&bytes).expect("a header");
        assert!(parsed.fits(epoch, payload));
        assert_eq!((parsed.stream, parsed.seq), (Stream::Logs, 3));
        for bit in 0..RECORD_HEADER_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let passes =
                RecordHeader::parse(&flipped).is_some_and(|header| header.fits(epoch, payload));
            assert!(!passes, "bit {bit}");
        }
        assert!(!parsed.fits(epoch, b"Payload"));
        assert!(
            !parsed.fits(Epoch(Uuid::from_u128(8)), payload),
            "another epoch"
        );
    }
}

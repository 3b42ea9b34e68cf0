//! The minutes of one resource in an hour that is over, packed together.
//!
//! Numbers: what one row says the 59 others mostly say too, so a block takes about half of its rows,
//! and one header and key instead of 60 (docs/storage.md). Packing costs about 1 ms of CPU an hour.
//! Limits: [`MAX_BYTES`] unpacked.
//!
//! Format, version 1: the version byte, then one zstd frame with a checksum. In the frame, by rising
//! minute: the minute of the hour (1 byte), the length of the row (4 bytes, little endian), the
//! row in its packed form (telemetry::minute::packed), which has a version of its own.

use std::collections::BTreeMap;
use std::io::Read as _;

use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::minute::packed::MAX_PACKED_BYTES;
use gpufleet_telemetry::time::Minute;

/// The version this code writes, and the newest it reads.
const VERSION: u8 = 1;

/// How hard zstd tries: beyond it a block takes 1 % less for twice the time.
const LEVEL: i32 = 9;

/// Minute of the hour and length of the row.
const HEADER: usize = 1 + 4;

/// Most bytes of an unpacked block: 60 rows at their longest. A bound for spoilt data.
const MAX_BYTES: usize = 60 * (HEADER + MAX_PACKED_BYTES);

/// Packs the minutes of one hour.
pub(super) fn pack<'a>(
    rows: impl Iterator<Item = (&'a Minute, &'a MinuteRow)>,
) -> std::io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    for (minute, row) in rows {
        let packed = row.pack();
        plain.push(minute.0.rem_euclid(60) as u8);
        plain.extend((packed.len() as u32).to_le_bytes());
        plain.extend(packed);
    }
    let mut encoder = zstd::Encoder::new(vec![VERSION], LEVEL)?;
    encoder.include_checksum(true)?;
    std::io::Write::write_all(&mut encoder, &plain)?;
    encoder.finish()
}

/// The minutes of an hour, or what is wrong with their bytes.
pub(super) fn unpack(hour: i64, bytes: &[u8]) -> Result<BTreeMap<Minute, MinuteRow>, String> {
    let frame = match bytes.split_first() {
        Some((&VERSION, frame)) if !frame.is_empty() => frame,
        Some((version, _)) if *version != VERSION => {
            return Err(format!(
                "version {version}, this server reads up to {VERSION}: run a newer one"
            ));
        }
        _ => return Err("it is empty".to_owned()),
    };
    let mut plain = Vec::new();
    let decoder = zstd::Decoder::new(frame).map_err(|error| error.to_string())?;
    let most = MAX_BYTES as u64 + 1;
    let read = decoder.take(most).read_to_end(&mut plain);
    read.map_err(|error| error.to_string())?;
    if plain.len() > MAX_BYTES {
        return Err(format!("it unpacks to more than {MAX_BYTES} bytes"));
    }
    let mut rows = BTreeMap::new();
    let mut rest = plain.as_slice();
    while let Some((header, more)) = rest.split_first_chunk::<HEADER>() {
        let [minute, length @ ..] = *header;
        let length = u32::from_le_bytes(length) as usize;
        let row = more.get(..length).ok_or("a row is cut")?;
        let row = MinuteRow::unpack(row).map_err(|error| error.to_string())?;
        rows.insert(Minute(hour * 60 + i64::from(minute)), row);
        rest = &more[length..];
    }
    match rest.len() {
        0 => Ok(rows),
        left => Err(format!("{left} bytes at its end belong to nothing")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{START, row};
    use super::*;

    fn hour(minutes: std::ops::Range<i64>) -> BTreeMap<Minute, MinuteRow> {
        minutes
            .map(|it| (Minute(START.0 + it), row(it % 3 == 0)))
            .collect()
    }

    #[test]
    fn an_hour_unpacks_to_what_was_packed() {
        for minutes in [0..60, 0..0, 7..8, 59..60] {
            let rows = hour(minutes);
            let bytes = pack(rows.iter()).expect("memory takes it");
            assert_eq!(unpack(START.hour(), &bytes), Ok(rows));
        }
    }

    #[test]
    fn a_spoilt_or_newer_block_is_an_error_that_says_why() {
        let bytes = pack(hour(0..60).iter()).expect("memory takes it");
        for place in [5, bytes.len() / 2, bytes.len() - 1] {
            let mut spoilt = bytes.clone();
            spoilt[place] ^= 0x10;
            // A bit that says nothing may change; what is read may not.
            let read = unpack(START.hour(), &spoilt);
            assert!(read.is_err() || read == Ok(hour(0..60)), "byte {place}");
        }
        for cut in [0, 1, 9, bytes.len() - 1] {
            assert!(unpack(START.hour(), &bytes[..cut]).is_err(), "{cut} bytes");
        }
        let newer = [&[2], &bytes[1..]].concat();
        let error = unpack(START.hour(), &newer).expect_err("it is newer");
        assert!(error.contains("version 2"), "{error}");
    }

    #[test]
    fn a_block_that_unpacks_without_end_is_refused() {
        let zeros = vec![0; MAX_BYTES + 1];
        let frame = zstd::bulk::compress(&zeros, LEVEL).expect("memory takes it");
        let error = unpack(START.hour(), &[&[VERSION], frame.as_slice()].concat());
        assert!(error.expect_err("it is too long").contains("more than"));
    }
}

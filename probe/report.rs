//! What the kernels write into the GPU's memory, read: see `kernels/report.cuh`.

use serde::{Deserialize, Serialize};

/// Rows of SMs.
const ROWS: usize = 1_024;

/// Bytes of a row: nanoseconds, how often it ran, how often it was wrong.
const ROW_BYTES: usize = 16;

/// Bytes of the report.
pub const BYTES: usize = ROWS * ROW_BYTES + 32;

/// What one SM did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sm {
    /// Its number, `%smid`.
    pub number: u32,
    /// Blocks that ended on it.
    pub ran: u32,
    /// Comparisons that failed on it.
    pub wrong: u32,
    /// What its blocks took together.
    pub nanoseconds: u64,
}

/// The first thing that was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct First {
    /// On which SM.
    pub sm: u32,
    /// Of what: a thread, an element, a word of memory.
    pub place: u64,
    /// What should be there.
    pub expected: u64,
    /// What is.
    pub found: u64,
}

/// A whole report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The SMs that took part or were wrong, by number.
    pub sms: Vec<Sm>,
    /// What was first wrong.
    pub first: Option<First>,
}

impl Report {
    /// Reads [`BYTES`] bytes; of fewer it is empty, as if nothing had run.
    pub fn parse(bytes: &[u8]) -> Self {
        if bytes.len() < BYTES {
            return Self::default();
        }
        let word = |at: usize| u64::from(half(bytes, at)) | u64::from(half(bytes, at + 4)) << 32;
        let row = |number: usize| {
            let at = number * ROW_BYTES;
            let (ran, wrong) = (half(bytes, at + 8), half(bytes, at + 12));
            (ran > 0 || wrong > 0).then(|| Sm {
                number: number as u32,
                ran,
                wrong,
                nanoseconds: word(at),
            })
        };
        let tail = ROWS * ROW_BYTES;
        Self {
            sms: (0..ROWS).filter_map(row).collect(),
            first: (half(bytes, tail) != 0).then(|| First {
                sm: half(bytes, tail + 4),
                place: word(tail + 8),
                expected: word(tail + 16),
                found: word(tail + 24),
            }),
        }
    }

    /// SMs that took part.
    pub fn covered(&self) -> u32 {
        self.sms.iter().filter(|it| it.ran > 0).count() as u32
    }

    /// Blocks that ended.
    pub fn blocks(&self) -> u64 {
        self.sms.iter().map(|it| u64::from(it.ran)).sum()
    }

    /// Comparisons that failed.
    pub fn wrong(&self) -> u64 {
        self.sms.iter().map(|it| u64::from(it.wrong)).sum()
    }

    /// The slowest SM and its speed as a part of the middle one's, by the time of a block; none of
    /// fewer than three SMs, or without a clock.
    pub fn slowest(&self) -> Option<(u32, f64)> {
        let mut times: Vec<(f64, u32)> = self
            .sms
            .iter()
            .filter(|it| it.ran > 0 && it.nanoseconds > 0)
            .map(|it| (it.nanoseconds as f64 / f64::from(it.ran), it.number))
            .collect();
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (longest, sm) = *times.last().filter(|_| times.len() >= 3)?;
        let (middle, _) = times[times.len() / 2];
        Some((sm, middle / longest))
    }
}

fn half(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4).and_then(|it| it.try_into().ok());
    four.map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_the_first_error_are_read_from_where_the_kernels_write_them() {
        let mut bytes = vec![0; BYTES];
        for (sm, ran, wrong, nanoseconds) in
            [(0, 1_u32, 0_u32, 90_u64), (7, 2, 3, 400), (131, 1, 0, 100)]
        {
            let at = sm * 16;
            bytes[at..at + 8].copy_from_slice(&nanoseconds.to_le_bytes());
            bytes[at + 8..at + 12].copy_from_slice(&ran.to_le_bytes());
            bytes[at + 12..at + 16].copy_from_slice(&wrong.to_le_bytes());
        }
        let tail = 16_384;
        bytes[tail..tail + 4].copy_from_slice(&1_u32.to_le_bytes());
        bytes[tail + 4..tail + 8].copy_from_slice(&7_u32.to_le_bytes());
        for (at, value) in [(8, 511_u64), (16, 1 << 40), (24, 3)] {
            bytes[tail + at..tail + at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let report = Report::parse(&bytes);
        assert_eq!(
            (report.covered(), report.blocks(), report.wrong()),
            (3, 4, 3)
        );
        let first = report.first.expect("something was wrong");
        let read = (first.sm, first.place, first.expected, first.found);
        assert_eq!(read, (7, 511, 1 << 40, 3));
        assert_eq!(report.slowest(), Some((7, 0.5)));
        assert_eq!(Report::parse(&bytes[1..]), Report::default());
    }

    #[test]
    fn the_source_of_the_kernels_has_the_same_layout() {
        let source = include_str!("kernels/report.cuh");
        assert!(source.contains(&format!("#define GPUFLEET_SMS {ROWS}u")));
        let fields = [
            "u64 nanoseconds;",
            "u32 ran;",
            "u32 wrong;",
            "u32 claimed;",
            "u32 first_sm;",
            "u64 place;",
            "u64 expected;",
            "u64 found;",
        ];
        let places: Vec<_> = fields.iter().map(|it| source.find(it)).collect();
        assert!(
            places.iter().all(Option::is_some) && places.is_sorted(),
            "{places:?}"
        );
    }
}

//! Memory errors: corrected ones of the last hour, and uncorrected ones since the card was last made whole.

use gpufleet_telemetry::time::Timestamp;

use super::counter::{Growth, Step};
use super::in_seconds;
use crate::detect::seconds_since;

/// An hour, seconds.
const HOUR_S: u32 = 3_600;

/// Buckets of an hour.
const BUCKETS: usize = 12;

/// How long a bucket is, seconds.
const BUCKET_S: u32 = HOUR_S / BUCKETS as u32;

/// Corrected errors of the last hour.
#[derive(Debug, Default)]
pub(super) struct Hour {
    buckets: [u16; BUCKETS],
    /// The number of the newest bucket, since 1970.
    newest: u32,
}

/// Errors that could not be corrected.
#[derive(Debug, Default)]
pub(super) struct Uncorrected {
    last: f64,
    /// How many of them were over when the card was made whole and its counter went on.
    over: f64,
    /// When there were last more than before.
    grew_at: Timestamp,
    /// The same of what was seen to grow: what was there at the first reading may be old.
    seen_at: Timestamp,
}

const _: () = assert!(size_of::<Hour>() <= 28 && size_of::<Uncorrected>() <= 32);

impl Hour {
    /// So many of which the last came at this moment at the latest.
    pub(super) fn told(count: f64, at: Timestamp) -> Self {
        let mut hour = Self {
            newest: in_seconds(at) / BUCKET_S,
            ..Self::default()
        };
        hour.buckets[place(hour.newest)] = count as u16;
        hour
    }

    /// Takes in a reading, if there is a newer one.
    pub(super) fn take(&mut self, step: Option<Step>, now: Timestamp) {
        if step.is_some_and(|it| it.growth == Growth::Reset) {
            self.buckets = [0; BUCKETS];
        }
        self.move_on(now);
        let grew = step.map_or(0.0, |it| it.grew()) as u16;
        let bucket = &mut self.buckets[place(self.newest)];
        *bucket = bucket.saturating_add(grew);
    }

    fn move_on(&mut self, now: Timestamp) {
        let newest = in_seconds(now) / BUCKET_S;
        let passed = newest.saturating_sub(self.newest);
        for step in 0..passed.min(BUCKETS as u32) {
            self.buckets[place(newest - step)] = 0;
        }
        self.newest = self.newest.max(newest);
    }

    /// How many there were.
    pub(super) fn count(&self) -> u64 {
        self.buckets.iter().copied().map(u64::from).sum()
    }
}

/// Where the bucket of this number is.
const fn place(bucket: u32) -> usize {
    bucket as usize % BUCKETS
}

impl Uncorrected {
    /// Takes in a newer reading.
    pub(super) fn take(&mut self, value: f64, at: Timestamp, is_first: bool) {
        if value < self.last {
            (self.last, self.over) = (0.0, 0.0);
        }
        if value > self.last {
            self.grew_at = at;
            self.seen_at = if is_first { self.seen_at } else { at };
        }
        self.last = value;
    }

    /// Takes in when the card was last made whole: those from before are over.
    pub(super) fn healed(&mut self, whole: Timestamp) {
        if whole > self.grew_at {
            self.over = self.last;
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        (self.last - self.over).max(0.0) as u64
    }

    /// The same where some came in the last hour, else 0.
    pub(super) fn lately(&self, now: Timestamp) -> u64 {
        match seconds_since(now, self.seen_at) <= f64::from(HOUR_S) {
            true => self.count(),
            false => 0,
        }
    }

    /// Whether the counter is at 0: what was over is to be known as long as it is not.
    pub(super) fn is_none(&self) -> bool {
        self.last == 0.0
    }
}

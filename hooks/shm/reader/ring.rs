//! Rings: the records that were written since the last snapshot.

use std::sync::atomic::{Ordering, fence};

use crate::cell::get;
use crate::layout::Word;

use super::ReadError;

/// Most records of one ring, and the highest number of a step: a million a second for nine years.
pub(super) const MOST_RECORDS: u64 = 1 << 48;

/// A record of a ring.
pub(super) trait Record {
    /// What is in it.
    type Copied;

    /// Twice its number, plus 1 while it is written.
    fn state(&self) -> &Word;

    /// Its other words.
    fn copied(&self) -> Self::Copied;
}

/// What there is in a ring.
pub(super) struct Found<T> {
    /// Whole records in order, each with its number.
    pub(super) records: Vec<(u64, T)>,
    /// How many are gone: written over before, or while they were copied.
    pub(super) missed: u64,
    /// The number of the last one looked at.
    pub(super) upto: u64,
}

/// The records after number `read`, of which so many were begun.
pub(super) fn since<R: Record>(
    ring: &[R],
    started: &Word,
    read: u64,
) -> Result<Found<R::Copied>, ReadError> {
    let started = started.load(Ordering::Acquire);
    if started < read {
        let (from, to) = (read, started);
        return Err(ReadError::WentBack { from, to });
    }
    if started > MOST_RECORDS {
        return Err(ReadError::Count(started));
    }
    let upto = read.max(started.saturating_sub(ring.len() as u64));
    let mut found = Found {
        records: Vec::new(),
        missed: upto - read,
        upto,
    };
    while found.upto < started {
        let number = found.upto + 1;
        let Some(record) = ring.get(number as usize % ring.len()) else {
            break;
        };
        let whole = number * 2;
        let before = record.state().load(Ordering::Acquire);
        if before < whole || before == whole + 1 {
            // Begun and not ended: the next snapshot has it.
            break;
        }
        let copied = record.copied();
        fence(Ordering::Acquire);
        if before == whole && get(record.state()) == whole {
            found.records.push((number, copied));
        } else {
            found.missed += 1;
        }
        found.upto = number;
    }
    Ok(found)
}

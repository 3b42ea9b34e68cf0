//! What is added to a sender's times, and when its clock is too wrong to take its data.
//!
//! Up to 5 s is left alone: the network takes that long too. Beyond it, all times of the epoch are
//! shifted by one offset, stored with the cursor, so that a resend shifts equally. Beyond 1 h
//! nothing is folded: the agent keeps the data until its clock is right.

use std::collections::VecDeque;

use gpufleet_telemetry::identity::Epoch;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

/// Differences up to this are left alone, nanoseconds.
pub const TOLERATED: i64 = 5 * NANOS_PER_SECOND;

/// Differences beyond this are not corrected but refused, nanoseconds.
pub const QUARANTINED: i64 = 3_600 * NANOS_PER_SECOND;

/// A clock that moves by more than this against the epoch's offset was set: the epoch goes on with
/// a new offset. More than the longest request takes, so that a slow network is not taken for it.
pub const STEPPED: i64 = 60 * NANOS_PER_SECOND;

/// Most epochs of a sender whose wrong clock is remembered: it begins one with each process.
const MAX_QUARANTINED: usize = 4;

/// A sender that was not heard for this long says nothing of our clock, nanoseconds.
const HEARD_WITHIN: i64 = 120 * NANOS_PER_SECOND;

/// What is known of a sender's clock.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// When it was last heard, and by how much its clock was behind ours then, nanoseconds.
    heard: Option<(Timestamp, i64)>,
    /// By how much the clock was off under which an epoch's data was refused, nanoseconds.
    quarantined: VecDeque<(Epoch, i64)>,
}

impl Clocks {
    /// Notes by how much it is behind ours.
    pub(super) fn note(&mut self, sent_at: Timestamp, received: Timestamp) {
        self.heard = Some((received, received.since(sent_at)));
    }

    /// By how much it is behind ours, nanoseconds, if it was heard lately.
    pub(super) fn difference(&self, now: Timestamp) -> Option<i64> {
        let (heard, difference) = self.heard?;
        (now.since(heard).saturating_abs() <= HEARD_WITHIN).then_some(difference)
    }

    /// Remembers under what clock an epoch's data was made.
    pub(super) fn quarantine(&mut self, epoch: Epoch, off_nanos: i64) {
        self.quarantined.retain(|(known, _)| *known != epoch);
        self.quarantined.push_front((epoch, off_nanos));
        self.quarantined.truncate(MAX_QUARANTINED);
    }

    /// What is to be added to a request's times, whose newest is `newest`: `offset`, unless they would
    /// lie ahead of now and were made under a clock that was refused for just that.
    pub(super) fn mended(
        &self,
        epoch: Epoch,
        offset: i64,
        newest: Option<Timestamp>,
        received: Timestamp,
    ) -> i64 {
        let is_ahead =
            |by: i64| newest.is_some_and(|it| it.shifted(by).since(received) > TOLERATED);
        let known = self.quarantined.iter().find(|(known, _)| *known == epoch);
        match known {
            Some((_, off)) if is_ahead(offset) && !is_ahead(*off) => *off,
            _ => offset,
        }
    }
}

/// What is to be done with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Fold it with this added to its times.
    Shift(i64),
    /// The sender's clock was set while its epoch ran: fold with the new offset, and say so.
    Stepped(i64),
    /// Do not fold it: the clock is this far off.
    Quarantine(i64),
}

/// Judges a request that was sent at `sent_at` of the sender's clock and arrived at `received` of
/// ours, in an epoch whose offset is `known` if it is.
pub fn judge(sent_at: Timestamp, received: Timestamp, known: Option<i64>) -> Verdict {
    let difference = received.since(sent_at);
    if difference.saturating_abs() > QUARANTINED {
        return Verdict::Quarantine(difference);
    }
    let fresh = if difference.saturating_abs() > TOLERATED {
        difference
    } else {
        0
    };
    match known {
        None => Verdict::Shift(fresh),
        Some(known) if (difference - known).saturating_abs() > STEPPED => Verdict::Stepped(fresh),
        Some(known) => Verdict::Shift(known),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_left_alone_shifted_or_refused() {
        let second = NANOS_PER_SECOND;
        let received = Timestamp::from_seconds(1_000_000);
        for (off, known, expected) in [
            (0, None, Verdict::Shift(0)),
            (5 * second, None, Verdict::Shift(0)),
            (6 * second, None, Verdict::Shift(6 * second)),
            (-6 * second, None, Verdict::Shift(-6 * second)),
            (6 * second, Some(0), Verdict::Shift(0)),
            (-second, Some(40 * second), Verdict::Shift(40 * second)),
            (0, Some(1_800 * second), Verdict::Stepped(0)),
            (120 * second, Some(0), Verdict::Stepped(120 * second)),
            (3_600 * second, None, Verdict::Shift(3_600 * second)),
            (3_601 * second, None, Verdict::Quarantine(3_601 * second)),
            (
                -3_601 * second,
                Some(0),
                Verdict::Quarantine(-3_601 * second),
            ),
        ] {
            let sent_at = received.shifted(-off);
            assert_eq!(judge(sent_at, received, known), expected, "{off} {known:?}");
        }
        let never = judge(Timestamp(i64::MIN), received, None);
        assert!(matches!(never, Verdict::Quarantine(_)), "no overflow");
    }
}

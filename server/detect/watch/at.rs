//! When a counter was last read, and what is known of it since, in four bytes.
//!
//! Limits: times are to the millisecond. 30 bits of them are kept, which begin anew after [`TURN_MS`]; a reading more than
//! a day from now has no time any more ([`Known::Stale`]), so that none is taken for another, as long as each is looked
//! at ([`At::aged`]) at least every five days.

use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

/// Bits of a time that are kept.
const TIME_BITS: u32 = 30;

/// When they begin anew, milliseconds: 12.4 days.
pub(super) const TURN_MS: i64 = 1 << TIME_BITS;

/// A reading so long before or after now is stale, nanoseconds: a day, and well below half of [`TURN_MS`].
const STALE_NS: u64 = 86_400 * NANOS_PER_SECOND as u64;

/// What is known of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// Nothing: it was never read.
    Never,
    /// What it read, and no more when.
    Stale,
    /// What it read and when.
    Read,
    /// The same, and how much it had grown by then.
    Joined,
}

/// A time and what is known, the one in the low [`TIME_BITS`] and the other in the two above.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct At([u8; 4]);

impl At {
    /// Of a reading of this moment, and what is known by it.
    pub(super) fn of(at: Timestamp, known: Known, now: Timestamp) -> Self {
        let is_stale = now.since(at).unsigned_abs() > STALE_NS;
        Self::packed(bits(at), if is_stale { Known::Stale } else { known })
    }

    const fn packed(time: u32, known: Known) -> Self {
        Self((time | (known as u32) << TIME_BITS).to_le_bytes())
    }

    pub(super) const fn known(self) -> Known {
        match u32::from_le_bytes(self.0) >> TIME_BITS {
            0 => Known::Never,
            1 => Known::Stale,
            2 => Known::Read,
            _ => Known::Joined,
        }
    }

    const fn time(self) -> u32 {
        u32::from_le_bytes(self.0) % TURN_MS as u32
    }

    /// The same when it is looked at now: stale where that is long after.
    pub(super) fn aged(self, now: Timestamp) -> Self {
        let at = self.timestamp(now);
        at.map_or(self, |at| Self::of(at, self.known(), now))
    }

    /// The same when there is no reading any more: the next one does not follow it.
    pub(super) fn parted(self) -> Self {
        match self.known() {
            Known::Joined => Self::packed(self.time(), Known::Read),
            _ => self,
        }
    }

    /// When that was, by what time it is now; none where nobody knows.
    pub(super) fn timestamp(self, now: Timestamp) -> Option<Timestamp> {
        if matches!(self.known(), Known::Never | Known::Stale) {
            return None;
        }
        let passed = (now.millis() - i64::from(self.time())).rem_euclid(TURN_MS);
        // What seems to be long ago is a reading that is a little ahead of now.
        let passed = match passed < TURN_MS / 2 {
            true => passed,
            false => passed - TURN_MS,
        };
        Some(Timestamp::from_millis(now.millis() - passed))
    }

    /// Whether a reading of this moment is newer. Any other time than that of a stale one is.
    pub(super) fn is_before(self, at: Timestamp, now: Timestamp) -> bool {
        match self.timestamp(now) {
            Some(last) => at.millis() > last.millis(),
            None => self.known() == Known::Never || self.time() != bits(at),
        }
    }
}

/// What is kept of a time.
const fn bits(at: Timestamp) -> u32 {
    at.millis().rem_euclid(TURN_MS) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fixture::NOW;

    const MILLI: i64 = NANOS_PER_SECOND / 1_000;
    const DAY: i64 = 86_400 * NANOS_PER_SECOND;

    #[test]
    fn a_time_is_told_to_the_millisecond_wherever_now_is_within_a_day_of_it() {
        let turn = Timestamp::from_millis((NOW.millis() / TURN_MS + 1) * TURN_MS);
        for at in [NOW, NOW.shifted(7 * MILLI), turn.shifted(-MILLI), turn] {
            for passed in [-DAY, -MILLI, 0, MILLI, 10 * NANOS_PER_SECOND, DAY] {
                let now = at.shifted(passed);
                let kept = At::of(at, Known::Joined, now);
                assert_eq!(kept.timestamp(now), Some(at), "{passed} ns later");
                assert_eq!(kept.aged(now).known(), Known::Joined);
                assert!(kept.is_before(at.shifted(MILLI), now));
                assert!(!kept.is_before(at, now) && !kept.is_before(at.shifted(-MILLI), now));
            }
        }
    }

    #[test]
    fn a_time_more_than_a_day_from_now_is_none_and_any_other_is_newer() {
        let kept = At::of(NOW, Known::Joined, NOW);
        for now in [NOW.shifted(DAY + MILLI), NOW.shifted(-DAY - MILLI)] {
            let stale = kept.aged(now);
            assert_eq!((stale.known(), stale.timestamp(now)), (Known::Stale, None));
            assert_eq!(At::of(NOW, Known::Joined, now), stale);
            assert!(!stale.is_before(NOW, now), "it is the same");
            assert!(stale.is_before(NOW.shifted(MILLI), now));
            assert_eq!((stale.aged(NOW), stale.parted()), (stale, stale));
        }
    }

    #[test]
    fn what_was_never_read_is_before_all_and_what_is_gone_keeps_its_time() {
        let never = At::default();
        assert_eq!((never.known(), never.timestamp(NOW)), (Known::Never, None));
        assert_eq!((never.aged(NOW), never.parted()), (never, never));
        assert!(never.is_before(Timestamp::default(), NOW));
        let gone = At::of(NOW, Known::Joined, NOW).parted();
        assert_eq!(
            (gone.known(), gone.timestamp(NOW)),
            (Known::Read, Some(NOW))
        );
    }
}

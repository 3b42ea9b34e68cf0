//! What a counter last read, in five bytes.
//!
//! Limits: whole units, rounded down; what is above 2⁴⁰ − 1 of them is that many.

/// Units in a second, of a counter of time: 100 µs each, enough of them for 3.5 years.
pub(super) const IN_A_SECOND: f64 = 10_000.0;

/// Units in one, of a counter of what comes.
pub(super) const IN_ONE: f64 = 1.0;

/// Most units.
const MOST: u64 = (1 << 40) - 1;

/// Units, the highest byte first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Last40([u8; 5]);

impl Last40 {
    /// Of a reading, with so many units in one.
    pub(super) fn of(value: f64, units: f64) -> Self {
        let all = ((value * units) as u64).min(MOST);
        let [_, _, _, kept @ ..] = all.to_be_bytes();
        Self(kept)
    }

    /// How many more units than an earlier reading, 0 where it is not more.
    pub(super) fn since(self, earlier: Self) -> f64 {
        self.count().saturating_sub(earlier.count()) as f64
    }

    fn count(self) -> u64 {
        self.0.iter().fold(0, |sum, it| (sum << 8) | u64::from(*it))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_is_known_to_its_unit_and_ordered_as_it_is() {
        for (value, units, expected) in [
            (0.0, IN_ONE, 0),
            (255.0, IN_ONE, 255),
            (256.9, IN_ONE, 256),
            (70_000.0, IN_ONE, 70_000),
            (12_345.678_96, IN_A_SECOND, 123_456_789),
            (1e8, IN_A_SECOND, 1_000_000_000_000),
            (-1.0, IN_ONE, 0),
        ] {
            assert_eq!(Last40::of(value, units).count(), expected, "{value}");
        }
        let [low, high] = [255.0, 256.0].map(|it| Last40::of(it, IN_ONE));
        assert!(low < high, "by their size, and not byte by byte");
        assert_eq!((high.since(low), low.since(high)), (1.0, 0.0));
    }

    #[test]
    fn what_is_too_much_stays_at_the_most_and_does_not_begin_anew() {
        let most = Last40::of(MOST as f64, IN_ONE);
        assert_eq!(Last40::of(1e30, IN_ONE), most);
        assert_eq!(Last40::of(1e30, IN_ONE).since(most), 0.0);
        let years = Last40::of(1.2e8, IN_A_SECOND);
        assert_eq!(years, most, "3.8 of them");
    }
}

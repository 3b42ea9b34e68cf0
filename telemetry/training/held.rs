//! What a burst leaves that was over before the next tick: the highest value that several readings in a row held.
//!
//! The highest reading of a tick says little: noise with heavy tails has single readings far off, and the more readings
//! a tick has, the higher is its highest. What [`IN_A_ROW`] readings in a row did not fall below is above a threshold
//! exactly when all of them are. So where a reading is by itself above it with probability p, this comes once in 1/p³
//! readings, however many of them a tick has: a threshold that is for single readings holds for it as it is.
//!
//! Limits: state is [`IN_A_ROW`] readings and one value for each of [`HIGHEST_S`] seconds.

use std::collections::VecDeque;

use crate::time::Timestamp;

/// Readings in a row: single ones far off come and go in every training, and two now and then.
pub const IN_A_ROW: usize = 3;

/// For how long the highest is told, seconds: a tick that is lost loses no burst, and a scrape a minute sees it.
pub const HIGHEST_S: i64 = 60;

/// A value that [`IN_A_ROW`] readings in a row did not fall below.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Held {
    /// The least of them.
    pub value: f64,
    /// The step of the first of them.
    pub step: u64,
}

/// The newest readings, the last at the end; places at the front are empty until there are enough.
#[derive(Debug, Clone, Copy, Default)]
struct InARow([Option<Held>; IN_A_ROW]);

/// The highest value that was held in the last [`HIGHEST_S`] seconds.
#[derive(Debug, Clone, Default)]
pub struct Highest {
    row: InARow,
    /// By the second in which it was read: later ones are no higher than those before.
    held: VecDeque<(i64, Held)>,
}

impl InARow {
    /// Takes in a reading and says what it and those before it held.
    fn take(&mut self, step: u64, value: f64) -> Option<Held> {
        let [.., newest] = &self.0;
        let newest = newest.map(|it| it.step);
        let is_back = newest.is_some_and(|it| step < it);
        if is_back || !value.is_finite() {
            // A run that went back to a checkpoint. What is not finite is counted elsewhere, and is no height.
            *self = Self::default();
        }
        if !value.is_finite() {
            return None;
        }
        // A step that is read again is one step.
        if newest != Some(step) {
            self.0.rotate_left(1);
        }
        let [.., place] = &mut self.0;
        *place = Some(Held { value, step });
        let [first, ..] = &self.0;
        let step = first.as_ref()?.step;
        let values = self.0.iter().flatten().map(|it| it.value);
        Some(Held {
            value: values.fold(f64::INFINITY, f64::min),
            step,
        })
    }
}

impl Highest {
    /// Takes in readings in their order, each with when it was read and its step, and says the highest that was held
    /// lately; none where fewer than [`IN_A_ROW`] in a row were read.
    pub fn take(
        &mut self,
        readings: impl IntoIterator<Item = (Timestamp, u64, f64)>,
        now: Timestamp,
    ) -> Option<Held> {
        for (at, step, value) in readings {
            if let Some(held) = self.row.take(step, value) {
                self.keep(at.min(now).seconds(), held);
            }
        }
        let is_lately = |second: i64| (0..HIGHEST_S).contains(&(now.seconds() - second));
        self.held.retain(|(second, _)| is_lately(*second));
        self.held.front().map(|it| it.1)
    }

    /// What is lower than a later one will never be the highest, and neither will what is no higher and as old.
    fn keep(&mut self, second: i64, held: Held) {
        let no_lower = self.held.partition_point(|it| it.1.value >= held.value);
        self.held.truncate(no_lower);
        if self.held.back().is_none_or(|it| it.0 < second) {
            self.held.push_back((second, held));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_seconds(1_790_000_000);

    fn later(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(NOW.seconds() + seconds)
    }

    /// What is held after these readings of steps in a row.
    fn held(readings: &[(u64, f64)]) -> Option<(f64, u64)> {
        let mut highest = Highest::default();
        let readings = readings.iter().map(|(step, value)| (NOW, *step, *value));
        highest.take(readings, NOW).map(|it| (it.value, it.step))
    }

    #[test]
    fn what_three_readings_in_a_row_held_is_the_least_of_them_with_the_step_of_the_first() {
        let check = |readings: &[(u64, f64)], expected| assert_eq!(held(readings), expected);
        check(&[(1, 9.0), (2, 9.0)], None);
        check(&[(1, 2.0), (2, 9.0), (3, 2.0)], Some((2.0, 1)));
        // Two are no burst, three are, and more than three are as high as the highest three.
        check(&[(1, 2.0), (2, 9.0), (3, 9.0), (4, 2.0)], Some((2.0, 1)));
        check(
            &[(1, 2.0), (2, 9.0), (3, 7.0), (4, 8.0), (5, 2.0)],
            Some((7.0, 2)),
        );
        // Scripts read each hundredth step.
        check(&[(100, 4.0), (200, 5.0), (300, 6.0)], Some((4.0, 100)));
    }

    #[test]
    fn a_step_read_again_is_one_and_what_is_not_finite_or_of_before_a_checkpoint_begins_anew() {
        assert_eq!(held(&[(1, 9.0), (1, 9.0), (1, 9.0)]), None);
        assert_eq!(held(&[(1, 9.0), (2, f64::NAN), (3, 9.0), (4, 9.0)]), None);
        assert_eq!(held(&[(1, f64::INFINITY); 5]), None);
        assert_eq!(held(&[(8, 9.0), (9, 9.0), (4, 9.0), (5, 9.0)]), None);
        let again = [(8, 9.0), (9, 9.0), (4, 3.0), (5, 3.0), (6, 3.0)];
        assert_eq!(held(&again), Some((3.0, 4)));
    }

    #[test]
    fn the_highest_is_told_for_a_minute_and_then_the_next_lower_one() {
        let mut highest = Highest::default();
        let mut step = 0;
        let mut second = |seconds: i64, value: f64| {
            let readings = [1, 2, 3].map(|it| (later(seconds), step + it, value));
            step += 3;
            let held = highest.take(readings, later(seconds));
            held.map(|it| (it.value, it.step))
        };
        assert_eq!(second(0, 9.0), Some((9.0, 1)));
        assert_eq!(second(1, 5.0), Some((9.0, 1)));
        // From here on each second says 2.
        let told: Vec<_> = (2..70).map(|it| second(it, 2.0)).collect();
        assert_eq!(told[57], Some((9.0, 1)), "after 59 s");
        assert_eq!(told[58], Some((5.0, 2)), "after 60 s");
        assert!(told[59].is_some_and(|it| it.0 == 2.0), "after 61 s");
    }

    #[test]
    fn nothing_is_held_where_nothing_was_read_for_long_and_the_state_is_bounded() {
        let mut highest = Highest::default();
        // Falling, so that no value makes one before it needless; and from a clock that is wrong.
        for second in 0..1_000_i64 {
            let readings = (0..9).map(|it| {
                let step = (second * 9 + it).unsigned_abs();
                let at = later(second + [0, -900, 900][it.unsigned_abs() as usize % 3]);
                (at, step, 1e6 - step as f64)
            });
            highest.take(readings, later(second));
            assert!(highest.held.len() as i64 <= HIGHEST_S);
        }
        let set_back = highest.clone().take([], later(0));
        assert_eq!(set_back, None, "the clock was set back");
        assert!(highest.take([], later(1_010)).is_some());
        assert_eq!(highest.take([], later(1_100)), None);
    }
}

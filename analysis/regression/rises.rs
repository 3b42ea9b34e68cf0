//! Rises of one run that belong together: one on top of another, and those that come back after each evaluation or
//! checkpoint, at the same distance.
//!
//! Limits: the last [`RISES`] are known, so that the third that comes as the two before it did is the first that is known
//! to come back.

use super::{BASELINE_STEPS, Change};

/// Rises whose distances say whether they come back: two are no period.
const RISES: usize = 3;

/// Distances that differ by at most this part of what is usual are the same.
const TOLERANCE: f64 = 0.1;

/// The last times that a run became slower and was not before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rises {
    /// The first step of each, the newest last.
    steps: [Option<u64>; RISES],
}

impl Rises {
    /// It became slower from this step on.
    pub const fn push(&mut self, since_step: u64) {
        let [_, second, last] = self.steps;
        self.steps = [second, last, Some(since_step)];
    }

    /// Steps from one to the next, where they come back at the same distance.
    pub fn every(&self) -> Option<u64> {
        let [first, second, last] = self.steps;
        let (one, other) = (second?.checked_sub(first?)?, last?.checked_sub(second?)?);
        let usual = one.midpoint(other);
        let is_alike = one.abs_diff(usual) as f64 <= TOLERANCE * usual as f64;
        (usual > 0 && is_alike).then_some(usual)
    }

    /// Whether at this step the next is still to come as those before did, or is too new to be sure.
    pub fn awaits(&self, step: u64) -> bool {
        let [.., last] = self.steps;
        let Some((every, last)) = self.every().zip(last) else {
            return false;
        };
        let late = every as f64 * (1.0 + TOLERANCE) + BASELINE_STEPS as f64;
        step.saturating_sub(last) as f64 <= late
    }
}

impl Change {
    /// This change with a later one on top: how long steps take by the later one, beside what they took before this.
    #[must_use]
    pub fn and(&self, later: &Self) -> Self {
        Self {
            at_step: later.at_step,
            ratio: later.baseline_ns * later.ratio / self.baseline_ns,
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regression::Direction;

    #[test]
    fn the_third_rise_at_the_same_distance_comes_back_and_is_awaited_until_it_is_late() {
        let told = |steps: &[u64]| {
            let mut rises = Rises::default();
            steps.iter().for_each(|it| rises.push(*it));
            rises
        };
        for (steps, every) in [
            (&[] as &[u64], None),
            (&[500, 1_500], None),
            (&[500, 1_500, 2_500], Some(1_000)),
            (&[500, 1_500, 2_690], Some(1_095)),
            (&[500, 1_500, 2_800], None),
            (&[7, 500, 1_500, 2_480], Some(990)),
            (&[500, 1_500, 1_600], None),
            (&[500, 500, 500], None),
            (&[2_500, 1_500, 500], None),
        ] {
            assert_eq!(told(steps).every(), every, "{steps:?}");
        }
        let rises = told(&[500, 1_500, 2_500]);
        assert!(rises.awaits(2_500) && rises.awaits(3_650));
        assert!(!rises.awaits(3_651), "a tenth late, and sure");
        assert!(!told(&[500, 1_500]).awaits(1_600));
    }

    #[test]
    fn a_change_on_top_of_another_is_held_against_what_was_before_both() {
        let of = |since_step, baseline_ns, ratio| Change {
            direction: Direction::Slower,
            since_step,
            at_step: since_step + 20,
            baseline_ns,
            ratio,
        };
        let first = of(100, 1e9, 1.2);
        let both = first.and(&of(300, 1.2e9, 1.1));
        assert_eq!((both.since_step, both.at_step), (100, 320));
        assert!((both.ratio - 1.32).abs() < 1e-9 && both.baseline_ns == 1e9);
        let left = both.and(&of(500, 1.32e9, 0.9));
        assert!((left.ratio - 1.188).abs() < 1e-9, "{left:?}");
    }
}

//! Whether a run became slower than it was ([`Watch`]), or than runs before it ([`between`]).
//!
//! Method within a run: a one-sided CUSUM against a frozen baseline. 5 warm-up steps are skipped,
//! the next 50 give the median m and σ = max(1.4826·MAD, 0.2 %·m). Per step z = clamp((y−m)/σ, ±4),
//! S ← max(0, S+z−k), k = clamp(0.5·2 %·m/σ, 0.5, 2); S ≥ 12 asks, the last 20 steps confirm: their
//! median at least +2 % and 80 % of them above m. Where σ is over 4 % of m, 50 steps do not tell well where
//! their middle is, and the median has to be 2 σ above it: 6 standard errors of the difference of two medians, of 50 and of
//! 20 steps. Then the next 50 steps are the new baseline. The
//! same downwards makes a finding smaller or ends it, so that the next rise is seen again. Small steps and slow drift add
//! up: a change on top of another is held against what was before both ([`Change::and`]). Repeats after each evaluation
//! or checkpoint are one finding ([`Rises`]).
//!
//! Measured on 149 real runs of 37,817 steps (MLPerf; the replay in the tests): 0.08 findings per
//! 1,000 steps as they are; slowed by 2, 5 and 10 %, 0.904, 1 and 1 of them found, median delay 16,
//! 11 and 11 steps.
//!
//! Limits: a change within the first 55 steps becomes the baseline; below the noise (k·σ) nothing is
//! seen; steps of evaluation and checkpoints are the caller's to leave out (`is_quiet`); a run's state
//! is ≤56 bytes, whatever its ranks, and while it learns 200 more. Steps that come again or late are left out; 10 of them
//! in order are a restart, which begins anew.

use crate::robust::{MAD_TO_SIGMA, median, sigma_about};

pub mod between;
mod rises;

#[cfg(test)]
pub(crate) mod tests;

pub use rises::Rises;

/// First steps that are skipped: compilation, autotuning, cold caches.
pub const WARM_UP_STEPS: u32 = 5;
/// Steps of a baseline: fewer make σ too uncertain, more hide early changes.
pub const BASELINE_STEPS: usize = 50;
/// Least change that matters.
pub const LEAST_CHANGE: f64 = 0.02;
/// σ is at least this part of m: clocks and logs are not finer.
const SIGMA_FLOOR: f64 = 0.002;
/// One step counts at most this much, so that a spike alone never fires.
const CLIP: f64 = 4.0;
/// The allowance k lies between these; it must stay below the clip.
const ALLOWANCE: (f64, f64) = (0.5, 2.0);
/// The sum that asks for confirmation.
pub const FIRE_SUM: f64 = 12.0;
/// Steps that confirm, and how many of them have to be on the new side of m.
const CONFIRM_STEPS: u32 = 20;
const CONFIRM_ABOVE: u32 = 16;
/// Where σ is over this many times the least change, as a part of m, the last steps' median has to be this many σ beyond m.
/// A baseline of noisy steps is not where their middle is, and a sum that goes on for long finds that out.
const NOISY: f64 = 2.0;
const CONFIRM_SIGMAS: f64 = 2.0;
/// Steps in order below the last one that mean a restart.
const RESTART_STEPS: u8 = 10;

/// From when a run is slower.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    /// Least change, as a part of the baseline.
    pub change: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            change: LEAST_CHANGE,
        }
    }
}

/// Which way the times changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Longer: a finding.
    Slower,
    /// Shorter: what ends one.
    Faster,
}

/// A confirmed change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// Which way.
    pub direction: Direction,
    /// Where it began, by the sum.
    pub since_step: u64,
    /// Where it was confirmed.
    pub at_step: u64,
    /// The baseline, nanoseconds.
    pub baseline_ns: f64,
    /// How large it is: the mean since it began ÷ the baseline, a step counting at most ×2.
    pub ratio: f64,
}

/// What is kept of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Watch {
    /// Steps of a baseline while it is learnt, nanoseconds, and how many of them are.
    learning: Option<Box<[f32; BASELINE_STEPS]>>,
    learnt: u8,
    middle_ns: f32,
    sigma_ns: f32,
    up: Sum,
    down: Sum,
    last_step: u32,
    skipped: u8,
    behind: u8,
}

const _: () = assert!(size_of::<Watch>() <= 56 && BASELINE_STEPS <= u8::MAX as usize);

/// One side of the CUSUM.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Sum {
    value: f32,
    /// Steps since it was 0.
    steps: u16,
    /// By what part of m these steps together were beyond it.
    beyond_sum: f32,
    /// How many of the last 20 were on this side of m, one bit each.
    side: Bits,
    /// How many were beyond the least change that held then.
    beyond: Bits,
}

/// The last 20 steps, one bit each, in 3 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Bits([u8; 3]);

impl Bits {
    fn push(&mut self, is_set: bool) {
        let [low, middle, high] = self.0;
        let all = u32::from_le_bytes([low, middle, high, 0]) << 1 | u32::from(is_set);
        let [low, middle, high, _] = (all & ((1 << CONFIRM_STEPS) - 1)).to_le_bytes();
        self.0 = [low, middle, high];
    }

    fn count(self) -> u32 {
        self.0.iter().map(|byte| byte.count_ones()).sum()
    }
}

impl Sum {
    /// Takes in a step by what part it is beyond m and by how many σ, both turned so that this side
    /// is positive; says whether the change is confirmed.
    fn add(&mut self, (part, least): (f64, f64), z: f64, allowance: f64) -> bool {
        let value = f64::from(self.value) + z.clamp(-CLIP, CLIP) - allowance;
        self.value = value.max(0.0) as f32;
        if value > 0.0 {
            self.steps = self.steps.saturating_add(1);
            self.beyond_sum += part.clamp(-1.0, 1.0) as f32;
        } else {
            self.steps = 0;
            self.beyond_sum = 0.0;
        }
        self.side.push(z > 0.0);
        self.beyond.push(part >= least);
        let is_confirmed =
            self.side.count() >= CONFIRM_ABOVE && self.beyond.count() * 2 >= CONFIRM_STEPS;
        value >= FIRE_SUM && is_confirmed
    }
}

impl Watch {
    /// The baseline it compares with, nanoseconds; none while it learns.
    pub fn baseline_ns(&self) -> Option<f64> {
        (self.sigma_ns > 0.0).then(|| f64::from(self.middle_ns))
    }

    /// Takes in a step by the documented thresholds. `is_quiet` leaves it out: it saved a checkpoint or evaluated.
    pub fn observe(&mut self, step: u64, wall_ns: u64, is_quiet: bool) -> Option<Change> {
        self.observe_by(step, wall_ns, is_quiet, &Thresholds::default())
    }

    /// The same by these thresholds.
    pub fn observe_by(
        &mut self,
        step: u64,
        wall_ns: u64,
        is_quiet: bool,
        by: &Thresholds,
    ) -> Option<Change> {
        // Numbers above 32 bits would take a step a millisecond for 49 days.
        let number = u32::try_from(step).unwrap_or(u32::MAX);
        if number <= self.last_step && (self.skipped > 0 || self.behind > 0) {
            self.behind += 1;
            if self.behind < RESTART_STEPS {
                return None;
            }
            *self = Self::default();
        }
        self.behind = 0;
        self.last_step = number;
        if u32::from(self.skipped) < WARM_UP_STEPS {
            self.skipped += 1;
            return None;
        }
        if is_quiet || wall_ns == 0 {
            return None;
        }
        if self.sigma_ns > 0.0 {
            return self.compare(step, wall_ns as f64, by);
        }
        self.learn(wall_ns as f32);
        None
    }

    fn learn(&mut self, wall_ns: f32) {
        let steps = self
            .learning
            .get_or_insert_with(|| Box::new([0.0; BASELINE_STEPS]));
        steps[usize::from(self.learnt)] = wall_ns;
        self.learnt += 1;
        if usize::from(self.learnt) < BASELINE_STEPS {
            return;
        }
        let mut values: Vec<f64> = steps.iter().copied().map(f64::from).collect();
        (self.learning, self.learnt) = (None, 0);
        let middle = median(&mut values).unwrap_or(0.0);
        let sigma = sigma_about(&mut values, middle).unwrap_or(0.0);
        self.middle_ns = middle as f32;
        self.sigma_ns = sigma.max(SIGMA_FLOOR * middle) as f32;
    }

    fn compare(&mut self, step: u64, wall_ns: f64, by: &Thresholds) -> Option<Change> {
        let middle = f64::from(self.middle_ns);
        let sigma = f64::from(self.sigma_ns);
        let z = (wall_ns - middle) / sigma;
        let allowance = (0.5 * by.change * middle / sigma).clamp(ALLOWANCE.0, ALLOWANCE.1);
        let part = wall_ns / middle - 1.0;
        let noise = sigma / middle;
        let least = match noise > NOISY * by.change {
            true => by.change.max(CONFIRM_SIGMAS * noise),
            false => by.change,
        };
        let is_slower = self.up.add((part, least), z, allowance);
        let is_faster = self.down.add((-part, least), -z, allowance);
        let (direction, sum) = match (is_slower, is_faster) {
            (true, _) => (Direction::Slower, self.up),
            (_, true) => (Direction::Faster, self.down),
            _ => return None,
        };
        let beyond = f64::from(sum.beyond_sum) / f64::from(sum.steps.max(1));
        let ratio = match direction {
            Direction::Slower => 1.0 + beyond,
            Direction::Faster => 1.0 - beyond,
        };
        let change = Change {
            direction,
            since_step: (step + 1).saturating_sub(u64::from(sum.steps)),
            at_step: step,
            baseline_ns: middle,
            ratio,
        };
        self.up = Sum::default();
        self.down = Sum::default();
        self.sigma_ns = 0.0;
        Some(change)
    }
}

/// A spread of medians as σ, for [`between`].
const fn as_sigma(mad: f64) -> f64 {
    mad * MAD_TO_SIGMA
}

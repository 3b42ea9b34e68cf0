//! Whether training goes wrong in its numbers: a run that burns GPU-hours and learns nothing.
//!
//! Method, per step of the rank that reads the loss, as far as it is told (the server hears of one each ten seconds at
//! most): not finite (loss or gradient norm) for 3 steps;
//! loss above its robust trend by 6σ for 20 steps; gradient norm above its trend by 6σ and ×3 for 3
//! steps; more than 5 % of the last 200 steps skipped by the loss scaler; loss the same to the bit
//! for 50 steps. Trend and σ are exponential means (1 in 50 steps) that take a step in at most 3σ
//! far off, so that a burst does not teach them; after 200 steps above it a loss is the new trend.
//!
//! Bursts between two steps: who tells one reading of many tells beside it what three in a row of all of them held
//! ([`Held`]): a loss 6σ and a quarter above its trend, a gradient norm as above. That is above a threshold exactly when
//! three single readings are, so it needs no other for how many there were. It teaches nothing.
//!
//! Measured: seeded curves in the tests (a falling curve with heavy tails is quiet for 20,000 steps);
//! there are no real curves beside this repository to replay.
//!
//! Limits: state ≤64 bytes a run. The first 200 steps only teach; a loss that nobody reads is no
//! finding, it has no steps here; loss that rises slower than its trend follows is not seen.

use gpufleet_telemetry::training::Held;

#[cfg(test)]
mod tests;

/// Steps in a row that are not finite: one is what a scaler tries out.
pub const NON_FINITE_STEPS: u8 = 3;
/// σ above the trend, and for how many steps a loss has to be there.
pub const FIRE_SIGMAS: f64 = 6.0;
/// See [`FIRE_SIGMAS`].
pub const DIVERGED_STEPS: u8 = 20;
/// How many steps a gradient norm has to be ×3 and 6σ above its trend.
pub const BURST_STEPS: u8 = 3;
/// See [`BURST_STEPS`].
pub const BURST_RATIO: f64 = 3.0;
/// How much above its trend a loss that was held has to be, as a part of it: with other data it changes by less.
pub const LOSS_BURST_PART: f64 = 0.25;
/// Steps that skips are counted over, and the most that are usual.
pub const SKIP_STEPS: u32 = 200;
/// See [`SKIP_STEPS`]: 5 % of them.
pub const MOST_SKIPS: u32 = 10;
/// Steps with a loss that is the same to the bit.
pub const STUCK_STEPS: u16 = 50;
/// Steps that only teach the trend.
pub const LEARN_STEPS: u16 = 200;
/// Steps above the trend after which it is the new one: a run that was changed on purpose is not in trouble for ever.
pub const ACCEPT_STEPS: u8 = 200;
/// Part of the way that a trend goes with a step.
const PACE: f64 = 0.02;
/// A step moves the trend at most by this many σ.
const CLIP_SIGMAS: f64 = 3.0;
/// Mean absolute deviation × this is σ of a normal distribution.
const DEVIATION_TO_SIGMA: f64 = 1.2533;
/// Least σ as a part of the trend: losses are printed no finer.
const SIGMA_FLOOR: f64 = 1e-3;

/// From when numbers are wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    /// σ above its trend at which a loss, or a gradient norm, is too high.
    pub sigmas: f64,
    /// Steps that a loss has to be there; below [`ACCEPT_STEPS`].
    pub steps: f64,
    /// Steps in a row that are not finite.
    pub not_finite_steps: f64,
    /// Steps with a loss that is the same to the bit.
    pub stuck_steps: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            sigmas: FIRE_SIGMAS,
            steps: f64::from(DIVERGED_STEPS),
            not_finite_steps: f64::from(NON_FINITE_STEPS),
            stuck_steps: f64::from(STUCK_STEPS),
        }
    }
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Loss or gradient are not finite.
    NotFinite,
    /// The loss left its trend upwards and stays there.
    Diverged,
    /// The loss was above its trend for a moment.
    LossBurst,
    /// The gradient norm left its trend.
    GradientBurst,
    /// The loss scaler skips too many steps.
    Skipping,
    /// The loss does not change at all.
    Stuck,
}

/// What a step says; none what was not read.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Step {
    /// The run's number of it.
    pub step: u64,
    /// The loss.
    pub loss: Option<f64>,
    /// The norm of the gradient.
    pub gradient_norm: Option<f64>,
    /// The highest loss that was held since the step before, where steps between the two were read.
    pub loss_held: Option<Held>,
    /// The same of the norm of the gradient.
    pub gradient_norm_held: Option<Held>,
    /// Whether the loss scaler skipped it.
    pub is_skipped: bool,
}

/// A trouble that has begun and not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub trouble: Trouble,
    /// The first step that may be of it, the one after the last that was read and was well; of a burst between two steps
    /// that are told, the first of the three readings that were highest.
    pub since_step: u64,
}

/// A value's exponential mean and mean absolute deviation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Trend {
    middle: f32,
    deviation: f32,
    seen: u16,
}

/// From which step on each trouble counts: the lower half of its number.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Onsets {
    not_finite: u32,
    above: u32,
    burst: u32,
    same: u32,
}

/// What is kept of a run.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Watch {
    last_step: u64,
    loss: Trend,
    norm: Trend,
    from: Onsets,
    /// The last loss' bits, folded.
    bits: u32,
    same: u16,
    /// Skips of this window of 200 steps and of the one before, and how far it is.
    skips: u8,
    skips_before: u8,
    window: u8,
    not_finite: u8,
    above: u8,
    burst: u8,
}

impl Trend {
    fn sigma(self) -> f64 {
        let least = SIGMA_FLOOR * f64::from(self.middle).abs();
        (f64::from(self.deviation) * DEVIATION_TO_SIGMA)
            .max(least)
            .max(f64::MIN_POSITIVE)
    }

    /// How many σ a value is above the trend; none while it learns.
    fn above(self, value: f64) -> Option<f64> {
        (self.seen >= LEARN_STEPS).then(|| (value - f64::from(self.middle)) / self.sigma())
    }

    /// Whether a loss is so far above the trend that it need not stay there.
    fn is_loss_burst(self, loss: f64, by: &Thresholds) -> bool {
        let middle = f64::from(self.middle);
        let is_high = loss - middle > LOSS_BURST_PART * middle.abs();
        is_high && self.above(loss).is_some_and(|it| it >= by.sigmas)
    }

    /// The same of a gradient norm.
    fn is_norm_burst(self, norm: f64, by: &Thresholds) -> bool {
        let is_high = norm > BURST_RATIO * f64::from(self.middle);
        is_high && self.above(norm).is_some_and(|it| it >= by.sigmas)
    }

    fn learn(&mut self, value: f64) {
        let off = value - f64::from(self.middle);
        // The first steps settle faster: the mean of all so far.
        let pace = PACE.max(1.0 / f64::from(self.seen.saturating_add(1)));
        let most = CLIP_SIGMAS * self.sigma();
        let is_settled = self.seen >= LEARN_STEPS;
        let off = if is_settled {
            off.clamp(-most, most)
        } else {
            off
        };
        self.middle += (pace * off) as f32;
        if self.seen > 0 {
            self.deviation += (pace * (off.abs() - f64::from(self.deviation))) as f32;
        }
        self.seen = self.seen.saturating_add(1);
    }
}

impl Watch {
    /// Nothing known yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in a step and says what is wrong now by the documented thresholds. A step that was seen before says nothing; a run
    /// that goes back to a checkpoint needs a new watch, or is silent until it is past its old end.
    pub fn observe(&mut self, step: &Step) -> Vec<Finding> {
        self.observe_by(step, &Thresholds::default())
    }

    /// The same by these thresholds.
    pub fn observe_by(&mut self, step: &Step, by: &Thresholds) -> Vec<Finding> {
        if step.step <= self.last_step && self.last_step > 0 {
            return Vec::new();
        }
        if self.last_step == 0 {
            // What was before the first step that is seen nobody knows.
            self.from = Onsets::all(step.step);
        }
        self.last_step = step.step;
        // By what was learnt before this step.
        let held = self.held(step, by);
        let is_broken = |value: Option<f64>| value.is_some_and(|it| !it.is_finite());
        let is_read = step.loss.is_some() || step.gradient_norm.is_some();
        if is_broken(step.loss) || is_broken(step.gradient_norm) {
            self.not_finite = self.not_finite.saturating_add(1);
        } else if is_read {
            self.not_finite = 0;
            self.from.not_finite = self.next_step();
        }
        if let Some(loss) = step.loss.filter(|it| it.is_finite()) {
            self.take_loss(loss, by);
        }
        if let Some(norm) = step.gradient_norm.filter(|it| it.is_finite()) {
            self.take_norm(norm, by);
        }
        self.count_skip(step.is_skipped);
        self.findings(by, held)
    }

    /// The lower half of the number of the step after this one.
    fn next_step(&self) -> u32 {
        self.last_step.wrapping_add(1) as u32
    }

    /// From which step on loss and gradient norm were held too high, where they were.
    fn held(&self, step: &Step, by: &Thresholds) -> [Option<u64>; 2] {
        let loss = step.loss_held;
        let loss = loss.filter(|it| self.loss.is_loss_burst(it.value, by));
        let norm = step.gradient_norm_held;
        let norm = norm.filter(|it| self.norm.is_norm_burst(it.value, by));
        // Who tells it may say any step.
        [loss, norm].map(|it| it.map(|it| it.step.min(step.step)))
    }

    fn take_loss(&mut self, loss: f64, by: &Thresholds) {
        let bits = loss.to_bits();
        let folded = (bits ^ (bits >> 32)) as u32;
        let is_same = folded == self.bits && self.loss.seen > 0;
        if is_same {
            self.same = self.same.saturating_add(1);
        } else {
            self.same = 1;
            self.from.same = self.last_step as u32;
        }
        self.bits = folded;
        let is_above = self.loss.above(loss).is_some_and(|it| it >= by.sigmas);
        if !is_above {
            self.above = 0;
            self.from.above = self.next_step();
            self.loss.learn(loss);
            return;
        }
        self.above = self.above.saturating_add(1);
        if self.above >= ACCEPT_STEPS {
            self.above = 0;
            self.from.above = self.next_step();
            self.loss = Trend::default();
        }
    }

    fn take_norm(&mut self, norm: f64, by: &Thresholds) {
        if self.norm.is_norm_burst(norm, by) {
            self.burst = self.burst.saturating_add(1);
        } else {
            self.burst = 0;
            self.from.burst = self.next_step();
        }
        self.norm.learn(norm);
    }

    fn count_skip(&mut self, is_skipped: bool) {
        self.window += 1;
        self.skips += u8::from(is_skipped);
        if u32::from(self.window) == SKIP_STEPS {
            self.skips_before = self.skips;
            self.skips = 0;
            self.window = 0;
        }
    }

    /// The part of the last 200 steps that was skipped.
    pub fn skipped_part(&self) -> f64 {
        f64::from(self.skipped()) / f64::from(SKIP_STEPS)
    }

    /// Skips over the last 200 steps: this window's, and the share of the one before that is in them.
    fn skipped(&self) -> u32 {
        let left = SKIP_STEPS - u32::from(self.window);
        u32::from(self.skips) + u32::from(self.skips_before) * left / SKIP_STEPS
    }

    /// The whole number of a step up to the last one.
    fn step_of(&self, from: u32) -> u64 {
        let behind = (self.last_step as u32).wrapping_sub(from);
        self.last_step.saturating_sub(u64::from(behind))
    }

    fn findings(&self, by: &Thresholds, [loss, norm]: [Option<u64>; 2]) -> Vec<Finding> {
        let since = |is_wrong: bool, from: u32| is_wrong.then(|| self.step_of(from));
        let is_broken = f64::from(self.not_finite) >= by.not_finite_steps;
        let has_diverged = f64::from(self.above) >= by.steps;
        let has_burst = since(self.burst >= BURST_STEPS, self.from.burst);
        let is_stuck = f64::from(self.same) >= by.stuck_steps;
        let window = self.last_step.saturating_add(1);
        let window = window.saturating_sub(u64::from(SKIP_STEPS));
        let rows = [
            (Trouble::NotFinite, since(is_broken, self.from.not_finite)),
            (Trouble::Diverged, since(has_diverged, self.from.above)),
            // What stays there is no burst.
            (Trouble::LossBurst, loss.filter(|_| !has_diverged)),
            (Trouble::GradientBurst, has_burst.or(norm)),
            (
                Trouble::Skipping,
                (self.skipped() > MOST_SKIPS).then_some(window),
            ),
            (Trouble::Stuck, since(is_stuck, self.from.same)),
        ];
        let finding = |(trouble, since_step): (Trouble, Option<u64>)| {
            since_step.map(|since_step| Finding {
                trouble,
                since_step,
            })
        };
        rows.into_iter().filter_map(finding).collect()
    }
}

impl Onsets {
    /// All from this step on.
    const fn all(step: u64) -> Self {
        let step = step as u32;
        Self {
            not_finite: step,
            above: step,
            burst: step,
            same: step,
        }
    }
}

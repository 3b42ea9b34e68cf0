//! Whether training goes wrong in its numbers: a run that burns GPU-hours and learns nothing.
//!
//! Method, per step of the rank that reads the loss: not finite (loss or gradient norm) for 3 steps;
//! loss above its robust trend by 6σ for 20 steps; gradient norm above its trend by 6σ and ×3 for 3
//! steps; more than 5 % of the last 200 steps skipped by the loss scaler; loss the same to the bit
//! for 50 steps. Trend and σ are exponential means (1 in 50 steps) that take a step in at most 3σ
//! far off, so that a burst does not teach them; after 200 steps above it a loss is the new trend.
//! Price: the GPU-time since the onset, which is the checkpoint question too.
//!
//! Measured: seeded curves in the tests (a falling curve with heavy tails is quiet for 20,000 steps);
//! there are no real curves beside this repository to replay.
//!
//! Limits: state ≤64 bytes a run. The first 200 steps only teach; a loss that nobody reads is no
//! finding, it has no steps here; loss that rises slower than its trend follows is not seen.

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
/// Steps that skips are counted over, and the most that are usual.
pub const SKIP_STEPS: u32 = 200;
/// See [`SKIP_STEPS`]: 5 % of them.
pub const MOST_SKIPS: u32 = 10;
/// Steps with a loss that is the same to the bit.
pub const STUCK_STEPS: u16 = 50;
/// Steps that only teach the trend.
pub const LEARN_STEPS: u16 = 200;
/// Steps above the trend after which it is the new one.
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
    /// Whether the loss scaler skipped it.
    pub is_skipped: bool,
}

/// A trouble that has begun and not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub trouble: Trouble,
    /// The first step of it.
    pub since_step: u64,
}

/// A value's exponential mean and mean absolute deviation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Trend {
    middle: f32,
    deviation: f32,
    seen: u16,
}

/// What is kept of a run.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Watch {
    last_step: u64,
    loss: Trend,
    norm: Trend,
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
        self.last_step = step.step;
        let is_broken = |value: Option<f64>| value.is_some_and(|it| !it.is_finite());
        let is_read = step.loss.is_some() || step.gradient_norm.is_some();
        if is_broken(step.loss) || is_broken(step.gradient_norm) {
            self.not_finite = self.not_finite.saturating_add(1);
        } else if is_read {
            self.not_finite = 0;
        }
        if let Some(loss) = step.loss.filter(|it| it.is_finite()) {
            self.take_loss(loss, by);
        }
        if let Some(norm) = step.gradient_norm.filter(|it| it.is_finite()) {
            self.take_norm(norm, by);
        }
        self.count_skip(step.is_skipped);
        self.findings(by)
    }

    fn take_loss(&mut self, loss: f64, by: &Thresholds) {
        let bits = loss.to_bits();
        let folded = (bits ^ (bits >> 32)) as u32;
        let is_same = folded == self.bits && self.loss.seen > 0;
        self.same = if is_same {
            self.same.saturating_add(1)
        } else {
            1
        };
        self.bits = folded;
        let is_above = self.loss.above(loss).is_some_and(|it| it >= by.sigmas);
        if !is_above {
            self.above = 0;
            self.loss.learn(loss);
            return;
        }
        self.above = self.above.saturating_add(1);
        if self.above >= ACCEPT_STEPS {
            self.above = 0;
            self.loss = Trend::default();
        }
    }

    fn take_norm(&mut self, norm: f64, by: &Thresholds) {
        let is_high = norm > BURST_RATIO * f64::from(self.norm.middle);
        let is_above = self.norm.above(norm).is_some_and(|it| it >= by.sigmas);
        self.burst = if is_high && is_above {
            self.burst.saturating_add(1)
        } else {
            0
        };
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

    fn findings(&self, by: &Thresholds) -> Vec<Finding> {
        let since = |steps: u32| (self.last_step + 1).saturating_sub(u64::from(steps));
        let rows = [
            (
                Trouble::NotFinite,
                f64::from(self.not_finite) >= by.not_finite_steps,
                u32::from(self.not_finite),
            ),
            (
                Trouble::Diverged,
                f64::from(self.above) >= by.steps,
                u32::from(self.above),
            ),
            (
                Trouble::GradientBurst,
                self.burst >= BURST_STEPS,
                u32::from(self.burst),
            ),
            (Trouble::Skipping, self.skipped() > MOST_SKIPS, SKIP_STEPS),
            (
                Trouble::Stuck,
                f64::from(self.same) >= by.stuck_steps,
                u32::from(self.same),
            ),
        ];
        let wrong = rows.into_iter().filter(|row| row.1);
        wrong
            .map(|(trouble, _, steps)| Finding {
                trouble,
                since_step: since(steps),
            })
            .collect()
    }
}

/// GPU-nanoseconds since the onset: what a run that learns nothing has burnt.
pub fn burnt_gpu_ns(onset_at_ns: i64, now_ns: i64, gpus: u32) -> u128 {
    let since = u64::try_from(now_ns.saturating_sub(onset_at_ns)).unwrap_or(0);
    u128::from(since) * u128::from(gpus)
}

//! Whether a run's numbers are well: hands what its ranks read to `analysis::loss`.
//!
//! A step is told whole, with its loss and the norm of its gradient, where it is the newest of a tick: one each ten seconds
//! at most, however many steps lie between two, and of such readings `analysis::loss` has 20 or 50 before a loss has left
//! its trend or does not change. What was counted meanwhile, skips and values that are not finite, is spread over the steps
//! between. Gradients that are not finite are what a loss scaler looks for: of as many steps as it skipped they are well, and
//! its skips are told where they are many. Where they alone are not finite, nobody told of a skip and the loss may be well
//! still, so that is said of them and not of the loss. A loss that repeats to the bit is taken for one that was not read
//! again, unless the gradient's norm beside it changed: scripts read the loss every hundredth step. Bursts between two
//! readings are judged by what three of the steps between held, which the process' reader tells for a minute.
//!
//! Limits: the first rank that reads a loss speaks for the run; at most [`MOST_STEPS`] steps of a tick.

use gpufleet_analysis::cause::{Cause, Reading as Evidence};
use gpufleet_analysis::incident::{Family, Remedy, Signal};
use gpufleet_analysis::loss::{Finding, Step, Thresholds, Trouble, Watch};
use gpufleet_analysis::lost::Losing;
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_telemetry::catalog::{Metric, Unit, training};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::Held;

use super::{RunSnapshot, place};
use crate::runs::RankFacts;

/// Steps of one tick that are counted one by one: a step in 20 ms.
const MOST_STEPS: u64 = 512;

/// What the rank that reads the loss says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Reading {
    step: f64,
    loss: Option<f64>,
    gradient_norm: Option<f64>,
    loss_held: Option<Held>,
    gradient_norm_held: Option<Held>,
    not_finite_losses: Option<f64>,
    not_finite_norms: Option<f64>,
    skips: Option<f64>,
}

/// What is kept of a run.
#[derive(Default)]
pub(super) struct Learning {
    watch: Watch,
    /// Since when it is learnt.
    began: Timestamp,
    /// The first reading of the newest step.
    last: Option<(Reading, Timestamp)>,
    /// Steps that the scaler skipped lately beyond the norms that were not finite.
    spare_skips: u64,
    /// Whether losses are among what is not finite.
    is_loss_broken: bool,
    found: Vec<Wrong>,
}

/// Something wrong with the numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wrong {
    trouble: Trouble,
    since_step: u64,
    since: Timestamp,
    reading: Reading,
    /// Of what is not finite: whether it is the gradients alone.
    is_of_gradients: bool,
    /// The part of the last steps that the loss scaler skipped.
    skipped: f64,
}

impl Reading {
    /// What a rank reads; none where it reads no loss.
    pub(super) fn of(facts: &RankFacts) -> Option<Self> {
        let value = |metric: &Metric| facts.reading(metric.id);
        let losses = value(&training::NON_FINITE_LOSSES);
        let loss = value(&training::LOSS);
        loss.or(losses.filter(|it| *it > 0.0))?;
        let held = |metric: &Metric, step: &Metric| {
            let (value, step) = value(metric).zip(value(step))?;
            let step = step as u64;
            Some(Held { value, step })
        };
        Some(Self {
            step: value(&training::LAST_STEP)?,
            loss,
            gradient_norm: value(&training::GRADIENT_NORM),
            loss_held: held(&training::LOSS_HELD, &training::LOSS_HELD_STEP),
            gradient_norm_held: held(
                &training::GRADIENT_NORM_HELD,
                &training::GRADIENT_NORM_HELD_STEP,
            ),
            not_finite_losses: losses,
            not_finite_norms: value(&training::NON_FINITE_GRADIENTS),
            skips: value(&training::SCALER_SKIPS),
        })
    }

    /// Steps of which a value was not finite, skipped or not, as far as that is told.
    fn not_finite(&self) -> Option<f64> {
        let told = [self.not_finite_losses, self.not_finite_norms];
        told.into_iter().flatten().reduce(f64::max)
    }
}

impl Learning {
    /// Takes in what was read and says what is wrong now. A step takes `step_ns`, where that is known.
    pub(super) fn observe(
        &mut self,
        reading: Option<&Reading>,
        by: &Thresholds,
        (now, step_ns): (Timestamp, Option<u64>),
    ) -> &[Wrong] {
        let Some(reading) = reading else {
            return &[];
        };
        let Some((before, then)) = self.last.filter(|(it, _)| it.step <= reading.step) else {
            // The first reading, or a run that went back: what was learnt is of other steps.
            *self = Self {
                began: now,
                last: Some((*reading, now)),
                ..Self::default()
            };
            return &[];
        };
        // What is counted before its step has ended is that step's.
        if before.step < reading.step {
            self.last = Some((*reading, now));
            let lately = now.since(then).max(0) as f64 / (reading.step - before.step);
            let step_ns = step_ns.map_or(lately, |it| it as f64);
            let found = self.take(&before, reading, by);
            self.found = self.kept(&found, reading, (now, step_ns));
        }
        &self.found
    }

    fn take(&mut self, before: &Reading, reading: &Reading, by: &Thresholds) -> Vec<Finding> {
        let steps = ((reading.step - before.step) as u64).clamp(1, MOST_STEPS);
        // Who tells it may say any step.
        let last = reading.step as u64;
        let first = last.saturating_add(1) - steps.min(last);
        let grew = |of: fn(&Reading) -> Option<f64>| {
            let growth = of(reading)
                .zip(of(before))
                .map_or(0.0, |(now, then)| now - then);
            growth.max(0.0) as u64
        };
        let (skips, losses) = (grew(|it| it.skips), grew(|it| it.not_finite_losses));
        let norms = self.not_skipped(grew(|it| it.not_finite_norms), skips);
        self.is_loss_broken = losses > 0 || (self.is_loss_broken && norms > 0);
        let not_finite = losses.max(norms);
        let is_read = (reading.loss, reading.gradient_norm) != (before.loss, before.gradient_norm);
        let mut found = Vec::new();
        for step in 0..steps {
            let is_last = step + 1 == steps;
            // Values that are not finite come last: a run that does not recover has only these.
            let is_broken = steps - step <= not_finite;
            let is_whole = is_last && is_read && not_finite == 0;
            let step = Step {
                step: first.saturating_add(step),
                loss: match is_broken {
                    true => Some(f64::NAN),
                    false => reading.loss.filter(|_| is_whole),
                },
                gradient_norm: reading.gradient_norm.filter(|_| is_whole),
                loss_held: reading.loss_held.filter(|_| is_last),
                gradient_norm_held: reading.gradient_norm_held.filter(|_| is_last),
                is_skipped: step < skips,
            };
            found = self.watch.observe_by(&step, by);
        }
        found
    }

    /// How many of so many norms that are not finite are of steps that the scaler did not skip.
    fn not_skipped(&mut self, norms: u64, skips: u64) -> u64 {
        // A norm arrives from the GPU after the skip of its step was counted, and then it may be of the next tick.
        let left = norms.saturating_sub(self.spare_skips);
        self.spare_skips = skips.saturating_sub(left);
        left.saturating_sub(skips)
    }

    /// The findings with when each began.
    fn kept(
        &self,
        found: &[Finding],
        reading: &Reading,
        (now, step_ns): (Timestamp, f64),
    ) -> Vec<Wrong> {
        let began = |finding: &Finding| {
            let steps = (reading.step - finding.since_step as f64).max(0.0);
            now.shifted(-((steps * step_ns) as i64)).max(self.began)
        };
        let of = |finding: &Finding| {
            let known = self.found.iter().find(|it| it.trouble == finding.trouble);
            let (since_step, since) = match known {
                Some(known) => (known.since_step, known.since),
                // Skips are counted over a window, and it is not known where in it they began to be many.
                None if finding.trouble == Trouble::Skipping => (finding.since_step, now),
                None => (finding.since_step, began(finding)),
            };
            // Once a loss was not finite either that is what is said.
            let was_of_gradients = known.is_none_or(|it| it.is_of_gradients);
            Wrong {
                trouble: finding.trouble,
                since_step,
                since,
                reading: *reading,
                is_of_gradients: was_of_gradients && !self.is_loss_broken,
                skipped: self.watch.skipped_part(),
            }
        };
        found.iter().map(of).collect()
    }
}

impl Wrong {
    /// In the words of an incident, of a run that loses this with all its GPUs.
    pub(super) fn signal(&self, run: &RunSnapshot, losing: Losing, now: Timestamp) -> Signal {
        let worthless = Price::of(Basis::WorthlessSteps, losing);
        let (what, action, price) = match self.trouble {
            Trouble::NotFinite if self.is_of_gradients => (
                "its gradients are not finite",
                "Look whether a loss scaler skips these steps, which nobody tells (run.scaler_skipped()): at the start a few are usual. If none does, stop it and go back to the last checkpoint before that step.",
                worthless,
            ),
            Trouble::NotFinite => (
                "its loss is not finite",
                "Stop it and go back to the last checkpoint before that step: what it does now is lost.",
                worthless,
            ),
            Trouble::Diverged => (
                "its loss left its trend and stays above it",
                "Look at the data and the learning rate at that step; go back to a checkpoint before it. After 200 readings, half an hour at least, so high a loss is accepted as the new trend: that this ends then is no recovery.",
                worthless,
            ),
            Trouble::LossBurst => (
                "its loss was far above its trend for a moment",
                "Look whether it came back, and at the data of that step; go back to a checkpoint before it if it did not.",
                Price::at_stake(Basis::IfItFollows, losing, self.since, now),
            ),
            Trouble::GradientBurst => (
                "its gradients burst",
                "Look whether the loss follows; clip gradients if it comes back.",
                Price::at_stake(Basis::IfItFollows, losing, self.since, now),
            ),
            Trouble::Skipping => (
                "the loss scaler skips many steps",
                "Look for values that overflow; bfloat16 needs no scaler.",
                Price::of(Basis::SkippedSteps, losing.times(self.skipped)),
            ),
            Trouble::Stuck => (
                "its loss does not change at all",
                "Look whether the optimizer steps and the data changes.",
                worthless,
            ),
        };
        let reading = |name: &str, value: Option<f64>| {
            value.map(|it| Evidence::new(name, it, None, Unit::Count))
        };
        // Of a burst no more is known than which readings were highest.
        let (when, held) = match self.trouble {
            Trouble::LossBurst => ("at step", self.reading.loss_held),
            Trouble::GradientBurst => ("at step", self.reading.gradient_norm_held),
            _ => ("since step", None),
        };
        let readings = [
            reading(when, Some(self.since_step as f64)),
            reading("held by three readings in a row", held.map(|it| it.value)),
            reading("loss", self.reading.loss),
            reading("gradient norm", self.reading.gradient_norm),
            reading(
                "values not finite",
                (self.reading.not_finite()).filter(|_| self.trouble == Trouble::NotFinite),
            ),
            reading("steps skipped", self.reading.skips.filter(|it| *it > 0.0)),
        ];
        Signal {
            family: Family::Training,
            place: place(run, None),
            severity: match self.trouble {
                // With a loss that is finite the weights are, so far.
                Trouble::NotFinite if self.is_of_gradients => Severity::Warning,
                Trouble::NotFinite | Trouble::Diverged => Severity::Error,
                Trouble::LossBurst
                | Trouble::GradientBurst
                | Trouble::Skipping
                | Trouble::Stuck => Severity::Warning,
            },
            what: what.to_owned(),
            action: action.to_owned(),
            remedy: Remedy::Look,
            cause: Cause::Program,
            since: Some(self.since.min(now)),
            readings: readings.into_iter().flatten().collect(),
            price,
            confidence: None,
            booted_at: None,
        }
    }
}

#[cfg(test)]
mod tests;

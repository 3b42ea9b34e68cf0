//! Whether a run's numbers are well: hands what its ranks read to `analysis::loss`.
//!
//! Readings come each ten seconds and not each step, so that a loss stands for the steps since the last
//! one; what was counted meanwhile, skips and values that are not finite, is spread over these steps. A
//! loss that repeats to the bit is taken for one that was not read again, unless the gradient's norm
//! beside it changed: scripts read the loss every hundredth step.
//!
//! Limits: the first rank that reads a loss speaks for the run; at most [`MOST_STEPS`] steps of a tick.

use gpufleet_analysis::cause::{Cause, Reading as Evidence};
use gpufleet_analysis::incident::{Family, Signal};
use gpufleet_analysis::loss::{Finding, Step, Thresholds, Trouble, Watch};
use gpufleet_analysis::lost::Losing;
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_telemetry::catalog::{Metric, Unit, training};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;

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
    not_finite: Option<f64>,
    skips: Option<f64>,
}

/// What is kept of a run.
#[derive(Default)]
pub(super) struct Learning {
    watch: Watch,
    last: Option<Reading>,
    found: Vec<Wrong>,
}

/// Something wrong with the numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wrong {
    trouble: Trouble,
    since_step: u64,
    since: Timestamp,
    reading: Reading,
    /// The part of the last steps that the loss scaler skipped.
    skipped: f64,
}

impl Reading {
    /// What a rank reads; none where it reads no loss.
    pub(super) fn of(facts: &RankFacts) -> Option<Self> {
        let value = |metric: &Metric| facts.reading(metric.id);
        let losses = value(&training::NON_FINITE_LOSSES);
        let norms = value(&training::NON_FINITE_GRADIENTS);
        let loss = value(&training::LOSS);
        loss.or(losses.filter(|it| *it > 0.0))?;
        let not_finite = match (losses, norms) {
            (None, None) => None,
            (losses, norms) => Some(losses.unwrap_or(0.0).max(norms.unwrap_or(0.0))),
        };
        Some(Self {
            step: value(&training::LAST_STEP)?,
            loss,
            gradient_norm: value(&training::GRADIENT_NORM),
            not_finite,
            skips: value(&training::SCALER_SKIPS),
        })
    }
}

impl Learning {
    /// Takes in what was read and says what is wrong now.
    pub(super) fn observe(
        &mut self,
        reading: Option<&Reading>,
        by: &Thresholds,
        now: Timestamp,
    ) -> &[Wrong] {
        let Some(reading) = reading else {
            return &[];
        };
        let before = self.last.replace(*reading);
        let Some(before) = before.filter(|it| it.step <= reading.step) else {
            // The first reading, or a run that went back: what was learnt is of other steps.
            (self.watch, self.found) = (Watch::new(), Vec::new());
            return &[];
        };
        if before.step < reading.step {
            let found = self.take(&before, reading, by);
            self.found = self.kept(&found, reading, now);
        }
        &self.found
    }

    fn take(&mut self, before: &Reading, reading: &Reading, by: &Thresholds) -> Vec<Finding> {
        let steps = ((reading.step - before.step) as u64).clamp(1, MOST_STEPS);
        let first = reading.step as u64 + 1 - steps.min(reading.step as u64);
        let grew = |of: fn(&Reading) -> Option<f64>| {
            let growth = of(reading)
                .zip(of(before))
                .map_or(0.0, |(now, then)| now - then);
            growth.max(0.0) as u64
        };
        let (skips, not_finite) = (grew(|it| it.skips), grew(|it| it.not_finite));
        let is_read = (reading.loss, reading.gradient_norm) != (before.loss, before.gradient_norm);
        let mut found = Vec::new();
        for step in 0..steps {
            let is_last = step + 1 == steps;
            // Values that are not finite come last: a run that does not recover has only these.
            let is_broken = steps - step <= not_finite;
            let is_whole = is_last && is_read && not_finite == 0;
            let step = Step {
                step: first + step,
                loss: match is_broken {
                    true => Some(f64::NAN),
                    false => reading.loss.filter(|_| is_whole),
                },
                gradient_norm: reading.gradient_norm.filter(|_| is_whole),
                is_skipped: step < skips,
            };
            found = self.watch.observe_by(&step, by);
        }
        found
    }

    /// The findings with when each began.
    fn kept(&self, found: &[Finding], reading: &Reading, now: Timestamp) -> Vec<Wrong> {
        let of = |finding: &Finding| {
            let known = self.found.iter().find(|it| it.trouble == finding.trouble);
            let (since_step, since) =
                known.map_or((finding.since_step, now), |it| (it.since_step, it.since));
            Wrong {
                trouble: finding.trouble,
                since_step,
                since,
                reading: *reading,
                skipped: self.watch.skipped_part(),
            }
        };
        found.iter().map(of).collect()
    }
}

impl Wrong {
    /// In the words of an incident.
    pub(super) fn signal(&self, run: &RunSnapshot, price: Option<i64>, now: Timestamp) -> Signal {
        let losing = Losing::gpus(run.ranks.len() as u64, price);
        let worthless = Price::of(Basis::WorthlessSteps, losing);
        let (what, action, price) = match self.trouble {
            Trouble::NotFinite => (
                "its loss is not finite",
                "Stop it and go back to the last checkpoint before that step: what it does now is lost.",
                worthless,
            ),
            Trouble::Diverged => (
                "its loss left its trend and stays above it",
                "Look at the data and the learning rate at that step; go back to a checkpoint before it.",
                worthless,
            ),
            Trouble::GradientBurst => (
                "its gradients burst",
                "Look whether the loss follows; clip gradients if it comes back.",
                Price::at_stake(Basis::IfItFollows, losing, self.since, now),
            ),
            Trouble::Skipping => (
                "the loss scaler skips many steps",
                "Look for values that overflow; bfloat16 needs no scaler.",
                Price::of(
                    Basis::SkippedSteps,
                    Losing::part(run.ranks.len() as u64, self.skipped, price),
                ),
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
        let readings = [
            reading("since step", Some(self.since_step as f64)),
            reading("loss", self.reading.loss),
            reading("gradient norm", self.reading.gradient_norm),
            reading(
                "values not finite",
                (self.reading.not_finite).filter(|_| self.trouble == Trouble::NotFinite),
            ),
            reading("steps skipped", self.reading.skips.filter(|it| *it > 0.0)),
        ];
        Signal {
            family: Family::Training,
            place: place(run, None),
            severity: match self.trouble {
                Trouble::NotFinite | Trouble::Diverged => Severity::Error,
                Trouble::GradientBurst | Trouble::Skipping | Trouble::Stuck => Severity::Warning,
            },
            what: what.to_owned(),
            action: action.to_owned(),
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
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_seconds(1_790_000_000);

    /// A run that learns, at this tick of ten steps.
    fn well(tick: u32) -> Reading {
        let wobble = f64::from((tick * 7_919) % 13) / 100.0;
        Reading {
            step: f64::from(tick * 10),
            loss: Some(3.0 + wobble - f64::from(tick) / 1_000.0),
            gradient_norm: Some(0.4 + wobble / 10.0),
            not_finite: Some(0.0),
            skips: Some(0.0),
        }
    }

    fn troubles(learning: &mut Learning, readings: impl Iterator<Item = Reading>) -> Vec<Trouble> {
        let mut last = Vec::new();
        for reading in readings {
            let found = learning.observe(Some(&reading), &Thresholds::default(), NOW);
            last = found.iter().map(|it| it.trouble).collect();
        }
        last
    }

    #[test]
    fn a_run_that_learns_is_well_and_one_without_finite_losses_is_not() {
        let mut learning = Learning::default();
        assert_eq!(troubles(&mut learning, (0..300).map(well)), []);
        let broken = (300..302).map(|tick| Reading {
            not_finite: Some(f64::from(tick - 299) * 10.0),
            ..well(tick)
        });
        assert_eq!(troubles(&mut learning, broken), [Trouble::NotFinite]);
        let again = (302..304).map(|tick| Reading {
            not_finite: Some(20.0),
            ..well(tick)
        });
        assert_eq!(troubles(&mut learning, again), [], "it is over");
    }

    #[test]
    fn a_loss_that_leaves_its_trend_has_diverged_and_one_that_is_read_seldom_is_not_stuck() {
        let mut learning = Learning::default();
        troubles(&mut learning, (0..300).map(well));
        let high = (300..330).map(|tick| Reading {
            loss: Some(9.0 + f64::from(tick % 3)),
            ..well(tick)
        });
        assert_eq!(troubles(&mut learning, high), [Trouble::Diverged]);
        let mut learning = Learning::default();
        let seldom = (0..300).map(|tick| Reading {
            step: f64::from(tick * 10),
            ..well(tick / 100)
        });
        assert_eq!(troubles(&mut learning, seldom), []);
        let stuck = (300..400).map(|tick| Reading {
            loss: Some(2.5),
            ..well(tick)
        });
        assert_eq!(troubles(&mut learning, stuck), [Trouble::Stuck]);
    }

    #[test]
    fn a_scaler_that_skips_one_step_in_ten_is_told() {
        let mut learning = Learning::default();
        let skipping = (0..60).map(|tick| Reading {
            skips: Some(f64::from(tick)),
            ..well(tick)
        });
        assert_eq!(troubles(&mut learning, skipping), [Trouble::Skipping]);
    }

    #[test]
    fn a_run_that_goes_back_is_learnt_anew_and_one_that_reads_nothing_is_not_judged() {
        let mut learning = Learning::default();
        let skipping = (0..60).map(|tick| Reading {
            skips: Some(f64::from(tick)),
            ..well(tick)
        });
        troubles(&mut learning, skipping);
        assert_eq!(troubles(&mut learning, (20..40).map(well)), []);
        assert!(
            learning
                .observe(None, &Thresholds::default(), NOW)
                .is_empty()
        );
        assert_eq!(Reading::of(&RankFacts::default()), None);
    }
}

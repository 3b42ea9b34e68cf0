//! Goodput and MFU by team: those of training runs, weighted by the GPU-hours that each held.
//!
//! Method. A run has its goodput and its MFU over its whole life, or a reason why not; of the month counts the
//! time that it held its GPUs in it. A team's figure is the mean of its runs' by that time. How much of all time
//! that the team held is behind the figure is said beside it: time of runs without the figure, of jobs that are no
//! training and of runs that nobody told is not covered, and not taken for good or bad.
//!
//! Numbers. Ratios in millionths, GPU-milliseconds; the mean is rounded once.
//!
//! Limits. A run that reaches over the end of a month has the same figures in both. Clocks of runs and of the
//! ledger are not the same: what is covered is at most all.

use std::collections::BTreeMap;

use crate::chargeback::Chargeback;
use crate::money::ratio;

/// A whole, in millionths.
const WHOLE: i128 = 1_000_000;

/// A run in the time of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunTime {
    /// Who pays for it, by the name that lines have.
    pub payer: String,
    /// How long it held its GPUs in that time.
    pub gpu_millis: i64,
    /// Its goodput, millionths; none when not known.
    pub goodput: Option<i64>,
    /// Its MFU, millionths; none when not known.
    pub mfu: Option<i64>,
}

/// A figure of several runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mean {
    /// Millionths × GPU-milliseconds.
    sum: i128,
    /// GPU-milliseconds of the runs that have the figure.
    pub gpu_millis: i64,
}

/// What is known of a team's training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Training {
    /// Runs.
    pub runs: usize,
    /// All that the team held.
    pub held_gpu_millis: i64,
    /// Their goodput.
    pub goodput: Mean,
    /// Their MFU.
    pub mfu: Mean,
}

impl Mean {
    fn join(&mut self, other: &Self) {
        self.sum += other.sum;
        self.gpu_millis = self.gpu_millis.saturating_add(other.gpu_millis);
    }

    fn add(&mut self, millionths: Option<i64>, gpu_millis: i64) {
        if let Some(it) = millionths {
            self.sum += i128::from(it) * i128::from(gpu_millis);
            self.gpu_millis = self.gpu_millis.saturating_add(gpu_millis);
        }
    }

    /// The figure, millionths; none where no run has it.
    pub fn millionths(&self) -> Option<i128> {
        ratio(self.sum, 1, self.gpu_millis.into())
    }
}

impl Training {
    /// Adds another team's.
    pub fn join(&mut self, other: &Self) {
        self.runs += other.runs;
        self.held_gpu_millis = self.held_gpu_millis.saturating_add(other.held_gpu_millis);
        self.goodput.join(&other.goodput);
        self.mfu.join(&other.mfu);
    }

    /// How much of what the team held is behind a figure, millionths; none where it held nothing.
    pub fn covered(&self, mean: &Mean) -> Option<i128> {
        let part = ratio(mean.gpu_millis.into(), WHOLE, self.held_gpu_millis.into());
        part.map(|it| it.min(WHOLE))
    }
}

/// Training by payer.
pub fn training<'a>(made: &'a Chargeback, runs: &'a [RunTime]) -> BTreeMap<&'a str, Training> {
    let mut found: BTreeMap<&str, Training> = BTreeMap::new();
    for (team, gpu_millis) in made.held() {
        found.entry(team).or_default().held_gpu_millis = gpu_millis;
    }
    for run in runs {
        let team = found.entry(&run.payer).or_default();
        team.runs += 1;
        team.goodput.add(run.goodput, run.gpu_millis);
        team.mfu.add(run.mfu, run.gpu_millis);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_weighted_by_time_and_says_how_much_is_behind_it() {
        let mut team = Training {
            held_gpu_millis: 1_000,
            ..Training::default()
        };
        team.mfu.add(Some(400_000), 300);
        team.mfu.add(Some(200_000), 100);
        team.mfu.add(None, 500);
        assert_eq!(team.mfu.millionths(), Some(350_000));
        assert_eq!(team.covered(&team.mfu), Some(400_000));
        assert_eq!(
            (team.goodput.millionths(), team.covered(&team.goodput)),
            (None, Some(0))
        );
        team.held_gpu_millis = 300;
        assert_eq!(team.covered(&team.mfu), Some(WHOLE), "never more than all");
    }
}

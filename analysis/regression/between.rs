//! Whether a run is slower than the runs before it, and which of two ways is faster (A/B).
//!
//! Method: medians of runs are compared, never pooled steps: steps of one run resemble each other
//! more than those of two runs of the same program, so that a step-level test calls 23 % of equal
//! pairs different. It fires when the change is above 2 %, above 4 × the robust spread of at least
//! three baseline runs, above their whole range, and Mann-Whitney over the steps against the
//! baseline run that is nearest gives p < 0.001. With fewer baselines the change is shown and
//! nothing is said. Of A/B the spread and the range are those of the runs of both, each beside its side's median: the
//! spread of three alone is often far too small or too large.
//!
//! Measured on real repeats (MLPerf; the replay in the tests): of 110 equal runs none is called
//! different.
//!
//! Limits: runs must be of one kind (model, size, machines); [`LEAST_STEPS`] steps each. A median is that of all
//! steps; at most [`MOST_RANKED`] of a run are ranked, in stretches that are spread over all of it.

use super::{LEAST_CHANGE, as_sigma};
use crate::robust::{median, normal_above};

/// Fewest baseline runs that a verdict takes.
pub const LEAST_BASELINES: usize = 3;
/// How far above the baselines' spread a change has to be.
pub const FIRE_SPREADS: f64 = 4.0;
/// Largest chance of the steps being alike.
pub const FIRE_P: f64 = 1e-3;
/// Fewest steps of a run that count.
pub const LEAST_STEPS: usize = 20;
/// Most steps of a run that are ranked: more say nothing new and cost time.
pub const MOST_RANKED: usize = 2_000;
/// They are ranked in stretches of so many in a row: each n-th step alone might always be that with the evaluation.
const RANKED_IN_A_ROW: usize = 100;

/// Stretches of a run whose medians say how uncertain its own is.
const STRETCHES: usize = 10;
/// Standard error of a median ÷ that of a mean, of normal values: √(π/2).
const MEDIAN_ERROR: f64 = 1.253_314;

/// What is said of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Slower, beyond doubt.
    Slower,
    /// Faster, beyond doubt.
    Faster,
    /// Not told apart.
    Alike,
    /// Shown, not judged: too few baselines.
    TooFewRuns,
}

impl Verdict {
    /// Its name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Slower => "slower",
            Self::Faster => "faster",
            Self::Alike => "alike",
            Self::TooFewRuns => "too_few_runs",
        }
    }
}

/// How fast a run is.
#[derive(Debug, Clone, PartialEq)]
pub struct Pace {
    median: f64,
    /// The steps that are ranked.
    ranked: Vec<f64>,
}

impl Pace {
    /// Of a run whose steps took these times, in order and without warm-up. None of fewer than [`LEAST_STEPS`], or
    /// where one is no time.
    pub fn of(steps: &[f64]) -> Option<Self> {
        let steps = usable(steps)?;
        Some(Self {
            median: median(&mut steps.to_vec())?,
            ranked: ranked(steps),
        })
    }

    /// The median of all its steps.
    pub const fn median(&self) -> f64 {
        self.median
    }

    /// For each of so many units of work that a step is.
    pub fn per(&self, work: f64) -> Self {
        Self {
            median: self.median / work,
            ranked: self.ranked.iter().map(|it| it / work).collect(),
        }
    }
}

/// The comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// What is said.
    pub verdict: Verdict,
    /// Median step, of several runs the median of their medians, ÷ the median of the baselines' median steps.
    pub ratio: f64,
    /// The least change that these baselines let tell, as a part of the faster side's median: 2 %, four times their
    /// spread, or their whole range; of A/B those of both sides.
    pub told_from: f64,
    /// Chance of the steps being alike, against the nearest baseline run.
    pub p: f64,
}

/// Compares a run with those before it. None without any of these.
pub fn compare(baselines: &[Pace], run: &Pace) -> Option<Comparison> {
    let told_from = told_from(distances(baselines)?)?;
    held(baselines, (run.median, run), told_from)
}

/// A/B: whether B is faster or slower than A by the medians of both, in which every run of B has to agree about the
/// side. None without any run of one of them.
pub fn a_b(a: &[Pace], b: &[Pace]) -> Option<Comparison> {
    let own = median_of(b)?;
    let mut apart = distances(a)?;
    apart.extend(distances(b)?);
    let told = held(a, (own, nearest(b, own)?), told_from(apart)?)?;
    let middle = own / told.ratio;
    let one_side = b
        .iter()
        .all(|it| (it.median > middle) == (told.ratio > 1.0));
    let verdict = match told.verdict {
        _ if b.len() < LEAST_BASELINES => Verdict::TooFewRuns,
        Verdict::Slower | Verdict::Faster if !one_side => Verdict::Alike,
        told => told,
    };
    Some(Comparison { verdict, ..told })
}

/// Holds a median against those of the baselines, and the steps of the run that it is of, or is nearest to it, against
/// those of the nearest of them.
fn held(baselines: &[Pace], (own, run): (f64, &Pace), told_from: f64) -> Option<Comparison> {
    let p = mann_whitney(&nearest(baselines, own)?.ranked, &run.ranked);
    let ratio = own / median_of(baselines)?;
    // As logarithms: half as long is as far away as twice as long, so that A/B says the same from either side.
    let is_real = ratio.ln().abs() > told_from.ln_1p() && p < FIRE_P;
    let verdict = match (baselines.len() >= LEAST_BASELINES, is_real) {
        (false, _) => Verdict::TooFewRuns,
        (_, false) => Verdict::Alike,
        _ if ratio > 1.0 => Verdict::Slower,
        _ => Verdict::Faster,
    };
    Some(Comparison {
        verdict,
        ratio,
        told_from,
        p,
    })
}

/// How far each run is from the median of them, as a part of it.
fn distances(runs: &[Pace]) -> Option<Vec<f64>> {
    let middle = median_of(runs)?;
    let each = runs.iter().map(|it| (it.median - middle).abs() / middle);
    Some(each.collect())
}

/// The least change that runs let tell which are so far from their medians.
fn told_from(mut distances: Vec<f64>) -> Option<f64> {
    let range = distances.iter().copied().fold(0.0, f64::max);
    let spread = as_sigma(median(&mut distances)?);
    Some(LEAST_CHANGE.max(FIRE_SPREADS * spread).max(range))
}

fn median_of(runs: &[Pace]) -> Option<f64> {
    median(&mut runs.iter().map(|it| it.median).collect::<Vec<f64>>())
}

/// The run whose median is the nearest to this.
fn nearest(runs: &[Pace], to: f64) -> Option<&Pace> {
    let distance = |it: &Pace| (it.median - to).abs();
    runs.iter()
        .min_by(|one, other| distance(one).total_cmp(&distance(other)))
}

/// How uncertain the median step of a run is, as a part of it: two standard errors, from the medians of
/// stretches of the run, because neighbouring steps resemble each other. It says nothing of how much
/// two runs of one program differ. None of fewer than three stretches of [`LEAST_STEPS`].
pub fn uncertainty(steps: &[f64]) -> Option<f64> {
    let steps = usable(steps)?;
    let length = (steps.len() / STRETCHES).max(LEAST_STEPS);
    let stretches = steps.chunks_exact(length);
    let medians: Vec<f64> = stretches
        .filter_map(|it| median(&mut it.to_vec()))
        .collect();
    if medians.len() < LEAST_BASELINES {
        return None;
    }
    let middle = median(&mut medians.clone())?;
    let mut distances: Vec<f64> = medians.iter().map(|it| (it - middle).abs()).collect();
    let sigma = as_sigma(median(&mut distances)?) / middle;
    Some(2.0 * MEDIAN_ERROR * sigma / (medians.len() as f64).sqrt())
}

fn usable(steps: &[f64]) -> Option<&[f64]> {
    let is_usable =
        steps.len() >= LEAST_STEPS && steps.iter().all(|it| it.is_finite() && *it > 0.0);
    is_usable.then_some(steps)
}

/// The steps that are ranked: all of them, else stretches from the first to the last.
fn ranked(steps: &[f64]) -> Vec<f64> {
    const COUNT: usize = MOST_RANKED / RANKED_IN_A_ROW;
    if steps.len() <= MOST_RANKED {
        return steps.to_vec();
    }
    let last = steps.len() - RANKED_IN_A_ROW;
    let begins = (0..COUNT).map(|it| it * last / (COUNT - 1));
    let stretches = begins.flat_map(|it| &steps[it..it + RANKED_IN_A_ROW]);
    stretches.copied().collect()
}

/// Two-sided chance that two samples are of one distribution (Mann-Whitney, normal, ties corrected).
pub fn mann_whitney(a: &[f64], b: &[f64]) -> f64 {
    let tagged = |values: &[f64], tag: bool| values.iter().map(|it| (*it, tag)).collect::<Vec<_>>();
    let mut all = tagged(a, true);
    all.extend(tagged(b, false));
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    let (of_a, of_b, n) = (a.len() as f64, b.len() as f64, all.len() as f64);
    let (mut ranks_of_a, mut ties, mut before) = (0.0, 0.0, 0.0);
    for equal in all.chunk_by(|x, y| x.0 == y.0) {
        let size = equal.len() as f64;
        let from_a = equal.iter().filter(|it| it.1).count() as f64;
        ranks_of_a += from_a * (before + size.midpoint(1.0));
        ties += size * size * size - size;
        before += size;
    }
    let u = ranks_of_a - of_a * (of_a + 1.0) / 2.0;
    let variance = of_a * of_b / 12.0 * (n + 1.0 - ties / (n * (n - 1.0)).max(1.0));
    if variance <= 0.0 {
        return 1.0;
    }
    let z = ((u - of_a * of_b / 2.0).abs() - 0.5).max(0.0) / variance.sqrt();
    (2.0 * normal_above(z)).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::uncertainty;

    #[test]
    fn a_run_is_as_uncertain_as_its_stretches_differ_and_a_short_one_says_nothing() {
        // Ten stretches of 20, 1 % apart, up and down: their medians' MAD is 0.5 %.
        let step = |index: usize| {
            if (index / 20).is_multiple_of(2) {
                1_000.0
            } else {
                1_010.0
            }
        };
        let steps: Vec<f64> = (0..200).map(step).collect();
        let expected = 2.0 * 1.253_314 * 1.482_6 * 5.0 / 1_005.0 / 10_f64.sqrt();
        let found = uncertainty(&steps).expect("long enough");
        assert!((found - expected).abs() < 2e-5, "{found} {expected}");
        // Of a long run all steps count and not the last alone.
        let half = |index: usize| if index < 3_000 { 1_000.0 } else { 1_010.0 };
        let long: Vec<f64> = (0..6_000).map(half).collect();
        let found = uncertainty(&long).expect("long enough");
        assert!((found - expected).abs() < 2e-5, "{found} {expected}");
        assert_eq!(uncertainty(&vec![1_000.0; 200]), Some(0.0));
        assert_eq!(uncertainty(&steps[..59]), None);
    }
}

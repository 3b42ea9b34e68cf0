//! Whether a run is slower than the runs before it, and which of two ways is faster (A/B).
//!
//! Method: medians of runs are compared, never pooled steps: steps of one run resemble each other
//! more than those of two runs of the same program, so that a step-level test calls 23 % of equal
//! pairs different. It fires when the change is above 2 %, above 4 × the robust spread of at least
//! three baseline runs, above their whole range, and Mann-Whitney over the steps against the
//! baseline run that is nearest gives p < 0.001. With fewer baselines the change is shown and
//! nothing is said.
//!
//! Measured on real repeats (MLPerf; the replay in the tests): of 110 equal runs none is called
//! different.
//!
//! Limits: runs must be of one kind (model, size, machines); [`LEAST_STEPS`] steps each; at most the
//! last [`MOST_STEPS`] steps of a run count.

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
pub const MOST_STEPS: usize = 2_000;

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

/// The comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// What is said.
    pub verdict: Verdict,
    /// Median step ÷ the median of the baselines' median steps.
    pub ratio: f64,
    /// The least change that these baselines let tell, as a part of their median: 2 %, four times their spread, or
    /// their whole range.
    pub told_from: f64,
    /// Chance of the steps being alike, against the nearest baseline run.
    pub p: f64,
}

/// Compares the steps of a run (nanoseconds, without warm-up) with those of runs before it. None
/// when it, or every baseline, has too few steps.
pub fn compare(baselines: &[&[f64]], run: &[f64]) -> Option<Comparison> {
    let usable: Vec<&[f64]> = baselines.iter().filter_map(|it| usable(it)).collect();
    let run = usable_of_one(run)?;
    let own = median(&mut run.to_vec())?;
    let medians: Vec<f64> = usable
        .iter()
        .filter_map(|it| median(&mut it.to_vec()))
        .collect();
    let middle = median(&mut medians.clone())?;
    let mut distances: Vec<f64> = medians.iter().map(|it| (it - middle).abs()).collect();
    let range = distances.iter().copied().fold(0.0, f64::max) / middle;
    let spread = as_sigma(median(&mut distances)?) / middle;
    let nearest = std::iter::zip(&medians, &usable)
        .min_by(|a, b| (a.0 - own).abs().total_cmp(&(b.0 - own).abs()));
    let p = mann_whitney(nearest?.1, run);
    let ratio = own / middle;
    let told_from = LEAST_CHANGE.max(FIRE_SPREADS * spread).max(range);
    let is_real = (ratio - 1.0).abs() > told_from && p < FIRE_P;
    let verdict = match (medians.len() >= LEAST_BASELINES, is_real) {
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

/// A/B: whether B is faster or slower than A by its middle run, in which every other run of B has to
/// agree about the side.
pub fn a_b(a: &[&[f64]], b: &[&[f64]]) -> Option<Comparison> {
    let mut runs: Vec<(f64, &[f64])> = b
        .iter()
        .filter_map(|it| Some((median(&mut usable_of_one(it)?.to_vec())?, *it)))
        .collect();
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let middle = compare(a, runs.get(runs.len() / 2)?.1)?;
    let ends = [runs.first()?.1, runs.last()?.1];
    let one_side = ends
        .iter()
        .filter_map(|it| compare(a, it))
        .all(|it| (it.ratio > 1.0) == (middle.ratio > 1.0));
    let verdict = match middle.verdict {
        _ if runs.len() < LEAST_BASELINES => Verdict::TooFewRuns,
        told @ (Verdict::Slower | Verdict::Faster) if one_side => told,
        Verdict::TooFewRuns => Verdict::TooFewRuns,
        _ => Verdict::Alike,
    };
    Some(Comparison { verdict, ..middle })
}

/// How uncertain the median step of a run is, as a part of it: two standard errors, from the medians of
/// stretches of the run, because neighbouring steps resemble each other. It says nothing of how much
/// two runs of one program differ. None of fewer than three stretches of [`LEAST_STEPS`].
pub fn uncertainty(steps: &[f64]) -> Option<f64> {
    let steps = usable_of_one(steps)?;
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

fn usable<'a>(steps: &&'a [f64]) -> Option<&'a [f64]> {
    usable_of_one(steps)
}

fn usable_of_one(steps: &[f64]) -> Option<&[f64]> {
    let is_usable =
        steps.len() >= LEAST_STEPS && steps.iter().all(|it| it.is_finite() && *it > 0.0);
    is_usable.then(|| &steps[steps.len().saturating_sub(MOST_STEPS)..])
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
        assert_eq!(uncertainty(&vec![1_000.0; 200]), Some(0.0));
        assert_eq!(uncertainty(&steps[..59]), None);
    }
}

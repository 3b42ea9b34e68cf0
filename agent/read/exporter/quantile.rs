//! Quantiles of what a histogram grew by between two scrapes, as Prometheus computes them.
//!
//! Linear inside a bucket; a quantile that falls into the bucket without an upper bound is the
//! highest finite bound, which is then "at least so much". No growth is no value.
//!
//! Limits: [`MAX_BUCKETS`].

/// Most buckets of one histogram; vLLM's longest has 22.
pub const MAX_BUCKETS: usize = 128;

/// A histogram's buckets as they stand in a scrape: upper bound and cumulative count, any order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Buckets(Vec<(f64, f64)>);

impl Buckets {
    /// Adds to the bucket with this upper bound: several series of one model come to one histogram.
    /// Bounds or counts that are no numbers, and buckets over the limit, are left out.
    pub fn add(&mut self, bound: f64, count: f64) {
        if bound.is_nan() || !count.is_finite() || count < 0.0 {
            return;
        }
        match self.0.iter().position(|(other, _)| *other == bound) {
            Some(at) => self.0[at].1 += count,
            None if self.0.len() < MAX_BUCKETS => self.0.push((bound, count)),
            None => {}
        }
    }

    /// What was added since `before`; all of it when a count went down, which is a restart.
    #[must_use]
    pub fn growth_since(&self, before: &Self) -> Self {
        let grown = self.0.iter().map(|(bound, count)| {
            let earlier = before.0.iter().find(|(other, _)| other == bound);
            (*bound, count - earlier.map_or(0.0, |(_, count)| *count))
        });
        let grown: Vec<(f64, f64)> = grown.collect();
        if grown.iter().any(|(_, count)| *count < 0.0) {
            return self.clone();
        }
        Self(grown)
    }

    /// The value below which `quantile` of the observations lie; none without observations or
    /// without the bucket that has them all (`+Inf`).
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let mut buckets = self.0.clone();
        buckets.sort_by(|left, right| left.0.total_cmp(&right.0));
        let (last_bound, total) = *buckets.last()?;
        if last_bound != f64::INFINITY || total <= 0.0 || buckets.len() < 2 {
            return None;
        }
        let rank = quantile * total;
        // Counts that two scrapes read unevenly may go down from one bucket to the next.
        let mut below = 0.0_f64;
        let mut lower = 0.0_f64;
        for (bound, count) in &buckets {
            let count = count.max(below);
            if count >= rank && count > below {
                if *bound == f64::INFINITY {
                    return Some(lower);
                }
                // A first bucket that ends at or below zero has no lower bound to start from.
                let start = if *bound <= 0.0 { *bound } else { lower };
                return Some(start + (bound - start) * ((rank - below) / (count - below)));
            }
            below = count;
            lower = *bound;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(pairs: &[(f64, f64)]) -> Buckets {
        let mut buckets = Buckets::default();
        for (bound, count) in pairs {
            buckets.add(*bound, *count);
        }
        buckets
    }

    #[test]
    fn quantiles_are_those_of_prometheus() {
        const INF: f64 = f64::INFINITY;
        type Case<'a> = (&'a [(f64, f64)], f64, Option<f64>);
        let cases: &[Case<'_>] = &[
            // 10 up to 0.1, 10 more up to 0.5: the median is the end of the first.
            (&[(0.1, 10.0), (0.5, 20.0), (INF, 20.0)], 0.5, Some(0.1)),
            (&[(0.1, 10.0), (0.5, 20.0), (INF, 20.0)], 0.75, Some(0.3)),
            (&[(INF, 20.0), (0.5, 20.0), (0.1, 10.0)], 0.75, Some(0.3)),
            // In the open bucket: the highest finite bound.
            (&[(0.1, 0.0), (0.5, 1.0), (INF, 100.0)], 0.99, Some(0.5)),
            (&[(0.1, 0.0), (INF, 0.0)], 0.5, None),
            (&[(0.1, 4.0)], 0.5, None),
            (&[(INF, 4.0)], 0.5, None),
            (&[], 0.5, None),
        ];
        for (pairs, quantile, expected) in cases {
            let got = buckets(pairs).quantile(*quantile);
            match (got, expected) {
                (Some(got), Some(expected)) => assert!((got - expected).abs() < 1e-9, "{pairs:?}"),
                (got, expected) => assert_eq!(got, *expected, "{pairs:?}"),
            }
        }
    }

    #[test]
    fn only_the_growth_counts_and_a_restart_counts_from_zero() {
        let inf = f64::INFINITY;
        let before = buckets(&[(1.0, 100.0), (2.0, 100.0), (inf, 100.0)]);
        let after = buckets(&[(1.0, 100.0), (2.0, 110.0), (inf, 110.0)]);
        assert_eq!(
            after.quantile(0.5),
            Some(0.55),
            "since the start of the server"
        );
        assert_eq!(after.growth_since(&before).quantile(0.5), Some(1.5));
        assert_eq!(before.growth_since(&before).quantile(0.5), None);
        let restarted = buckets(&[(1.0, 4.0), (2.0, 4.0), (inf, 4.0)]);
        assert_eq!(restarted.growth_since(&after).quantile(0.5), Some(0.5));
    }

    #[test]
    fn buckets_over_the_limit_and_counts_that_are_no_numbers_are_left_out() {
        let mut many = Buckets::default();
        for bound in 0..(MAX_BUCKETS + 10) {
            many.add(bound as f64, 1.0);
        }
        many.add(f64::NAN, 1.0);
        many.add(1.0, f64::INFINITY);
        many.add(1.0, -4.0);
        assert_eq!(many.0.len(), MAX_BUCKETS);
        assert_eq!(many.0[1], (1.0, 1.0));
    }
}

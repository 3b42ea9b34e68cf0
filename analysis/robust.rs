//! Medians and spreads that a few wild values do not move, for every detector.
//!
//! Limits: values have to be finite; who reads foreign numbers leaves the others out first.

/// A median absolute deviation times this is the standard deviation of a normal distribution.
pub const MAD_TO_SIGMA: f64 = 1.4826;

/// The standard error of a median of n values is this times σ/√n.
pub const MEDIAN_ERROR: f64 = 1.2533;

/// σ by the median absolute deviation of n normal values is as uncertain as the usual σ of this part of them.
pub const MAD_EFFICIENCY: f64 = 0.3675;

/// The median, the mean of the two middle ones when their number is even; none of none. The values
/// are reordered.
pub fn median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len() / 2;
    if values.is_empty() {
        return None;
    }
    let is_even = values.len().is_multiple_of(2);
    let (below, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let upper = *upper;
    if !is_even {
        return Some(upper);
    }
    let lower = below.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some(lower.midpoint(upper))
}

/// σ by the median absolute deviation from `centre`; none of none. The values are overwritten.
pub fn sigma_about(values: &mut [f64], centre: f64) -> Option<f64> {
    for value in values.iter_mut() {
        *value = (*value - centre).abs();
    }
    median(values).map(|it| it * MAD_TO_SIGMA)
}

/// Standard normal chance of a value above `z`, to 1e-7 (Abramowitz and Stegun 7.1.26).
pub fn normal_above(z: f64) -> f64 {
    const TERMS: [f64; 5] = [
        0.254_829_592,
        -0.284_496_736,
        1.421_413_741,
        -1.453_152_027,
        1.061_405_429,
    ];
    let x = z.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let polynomial = TERMS.iter().rev().fold(0.0, |sum, term| (sum + term) * t);
    let above = 0.5 * polynomial * (-x * x).exp();
    if z >= 0.0 { above } else { 1.0 - above }
}

/// The normal deviate that is as improbable as Student's `t` with these degrees of freedom, to 1 % from 10 degrees on, 3 % from 4 (Peizer and Pratt
/// 1968); 0 with one or fewer, which tell nothing.
pub fn normal_of(t: f64, freedom: f64) -> f64 {
    if freedom <= 1.0 {
        return 0.0;
    }
    let spread = (t * t / freedom).ln_1p() / (freedom - 5.0 / 6.0);
    let z = (freedom - 2.0 / 3.0 + 0.1 / freedom) * spread.sqrt();
    z.copysign(t)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_and_of_two_their_mean() {
        assert_eq!(median(&mut [3.0, 1.0, 100.0]), Some(3.0));
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 100.0]), Some(3.0));
        assert_eq!(median(&mut []), None);
    }

    #[test]
    fn one_wild_value_does_not_move_the_spread() {
        let sigma = sigma_about(&mut [1.0, 2.0, 3.0, 4.0, 1e9], 3.0);
        assert_eq!(sigma, Some(MAD_TO_SIGMA));
    }

    #[test]
    fn chances_of_the_normal_distribution_are_those_of_the_tables() {
        for (z, chance) in [
            (0.0, 0.5),
            (1.644_854, 0.05),
            (-1.0, 0.841_345),
            (3.090_232, 1e-3),
        ] {
            assert!((normal_above(z) - chance).abs() < 1e-6, "{z}");
        }
    }

    #[test]
    fn a_t_of_few_values_is_as_improbable_as_a_smaller_normal_deviate() {
        // Quantiles of Student's t at the chances of the normal deviates on the right.
        for (t, freedom, z) in [
            (0.0, 10.0, 0.0),
            (1.812_461, 10.0, 1.644_854),
            (-4.143_700, 10.0, -3.090_232),
            (3.385_185, 30.0, 3.090_232),
            (8.267_1, 15.0, 5.0),
            (5.0, 1e9, 5.0),
        ] {
            assert!(
                (normal_of(t, freedom) - z).abs() < 0.01 * z.abs() + 1e-9,
                "{t}, {freedom}"
            );
        }
        assert_eq!(normal_of(1e6, 1.0), 0.0);
    }
}

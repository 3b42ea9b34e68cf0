//! Money as integers: nano-units of a currency, and how a sum is divided without losing one.
//!
//! A rate is nano-units an hour (i64: up to 9.2 billion an hour). Arithmetic is i128, checked. Text
//! with more digits than a nano-unit has is refused and not rounded: a price is what was written.

use std::fmt::Write as _;

/// Nano-units in one unit of a currency.
pub const NANOS: i128 = 1_000_000_000;

/// Digits behind the point that a nano-unit has.
const DIGITS: usize = 9;

/// Bytes that the text of most amounts fits into.
const USUAL_LENGTH: usize = 24;

/// Why a text is not an amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotMoney {
    /// Not a decimal number.
    #[error("is not a decimal number")]
    NotDecimal,
    /// It has digits below a nano-unit.
    #[error("has digits below a billionth")]
    TooFine,
    /// It does not fit.
    #[error("is too large")]
    TooLarge,
}

/// Reads a decimal number such as `88.49` or `-0.5` to the nano-unit.
///
/// # Errors
/// When it is not one, is finer than a nano-unit, or too large.
pub fn parse(text: &str) -> Result<i64, NotMoney> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_digits = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(part) {
        return Err(NotMoney::NotDecimal);
    }
    let part = part.trim_end_matches('0');
    if part.len() > DIGITS {
        return Err(NotMoney::TooFine);
    }
    let whole: i128 = whole.parse().map_err(|_| NotMoney::TooLarge)?;
    let part: i128 = format!("{part:0<DIGITS$}")
        .parse()
        .expect("nine digits are a number");
    let nanos = whole.checked_mul(NANOS).and_then(|it| it.checked_add(part));
    let nanos = nanos.map(|it| it * sign).ok_or(NotMoney::TooLarge)?;
    i64::try_from(nanos).map_err(|_| NotMoney::TooLarge)
}

/// Writes nano-units as a decimal with at least one digit behind the point: `4.0`, `-0.25`.
pub fn decimal(nanos: i128) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let unit = NANOS.unsigned_abs();
    let (whole, part) = (nanos.unsigned_abs() / unit, nanos.unsigned_abs() % unit);
    let mut text = String::with_capacity(USUAL_LENGTH);
    write!(text, "{sign}{whole}.").expect("a text takes all that is written");
    // Digit by digit as far as there are any, since a file of a large fleet has millions of amounts.
    let narrow = |it: u128| u32::try_from(it).expect("a unit has 10^9 parts");
    let (mut unit, mut part) = (narrow(unit), narrow(part));
    loop {
        unit /= 10;
        text.push(char::from_digit(part / unit, 10).expect("it is below ten"));
        part %= unit;
        if part == 0 {
            return text;
        }
    }
}

/// `amount` × `numerator` ÷ `denominator` to the nearest, halves away from zero; none when it does
/// not fit or the denominator is not above 0.
pub fn ratio(amount: i128, numerator: i128, denominator: i128) -> Option<i128> {
    if denominator <= 0 {
        return None;
    }
    let product = amount.checked_mul(numerator)?;
    let half = denominator / 2;
    let shifted = product.checked_add(if product < 0 { -half } else { half })?;
    Some(shifted / denominator)
}

/// Thousandths to a tenth, rounded as money is: `8.0`, `0.3` of 250.
pub fn tenths(thousandths: i128) -> String {
    let tenths = ratio(thousandths, 1, 100).unwrap_or(0);
    let sign = if tenths < 0 { "-" } else { "" };
    format!("{sign}{}.{}", tenths.abs() / 10, tenths.abs() % 10)
}

/// Divides an amount in proportion to weights so that the parts add up to it exactly: each part is
/// the quota rounded towards zero, and what is left goes one by one to the largest remainders, the
/// first of equal ones first. None when the weights are negative, all zero or do not fit.
pub fn apportion(whole: i128, weights: &[i64]) -> Option<Vec<i128>> {
    let total = weights.iter().try_fold(0_i64, |sum, weight| {
        (*weight >= 0).then(|| sum.checked_add(*weight))?
    })?;
    let total = i128::from(total);
    if total == 0 {
        return None;
    }
    let (sign, amount) = (whole.signum(), whole.checked_abs()?);
    // Whole rounds of the weights first, so that the product below stays within i128.
    let (rounds, rest) = (amount / total, amount % total);
    let mut parts = Vec::with_capacity(weights.len());
    let mut remainders = Vec::with_capacity(weights.len());
    let mut given = 0;
    for (index, weight) in weights.iter().enumerate() {
        let product = rest.checked_mul(i128::from(*weight))?;
        let part = rounds * i128::from(*weight) + product / total;
        given += part;
        parts.push(part);
        remainders.push((product % total, index));
    }
    remainders.sort_by_key(|(remainder, index)| (std::cmp::Reverse(*remainder), *index));
    let left = usize::try_from(amount - given).expect("fewer are left than there are parts");
    for (_, index) in remainders.into_iter().take(left) {
        parts[index] += 1;
    }
    Some(parts.into_iter().map(|it| it * sign).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn amounts_are_read_and_written_to_the_nano_unit_and_never_rounded() {
        for (text, nanos) in [
            ("88.49", 88_490_000_000),
            ("0.000000001", 1),
            ("-0.25", -250_000_000),
            ("4", 4_000_000_000),
            ("0.4440550000000", 444_055_000),
        ] {
            assert_eq!(parse(text), Ok(nanos), "{text}");
            assert_eq!(parse(&decimal(i128::from(nanos))), Ok(nanos), "{text}");
        }
        for (nanos, text) in [
            (0, "0.0"),
            (4_000_000_000, "4.0"),
            (10_000_000_010, "10.00000001"),
            (-1, "-0.000000001"),
            (-999_999_999, "-0.999999999"),
            (i128::MIN, "-170141183460469231731687303715.884105728"),
        ] {
            assert_eq!(decimal(nanos), text);
        }
        assert_eq!(parse("0.0000000001"), Err(NotMoney::TooFine));
        assert_eq!(parse("10000000000"), Err(NotMoney::TooLarge));
        for text in ["", "1e3", ".5", "1.", "+1", "1,5", "--1", "NaN"] {
            assert_eq!(parse(text), Err(NotMoney::NotDecimal), "{text}");
        }
    }

    #[test]
    fn a_ratio_goes_to_the_nearest_and_halves_away_from_zero() {
        assert_eq!(ratio(5, 1, 2), Some(3));
        assert_eq!(ratio(-5, 1, 2), Some(-3));
        assert_eq!(ratio(4, 1, 3), Some(1));
        assert_eq!(ratio(1, 1, 0), None);
        assert_eq!(ratio(i128::MAX, 2, 1), None);
    }

    #[test]
    fn what_cannot_be_divided_is_not_divided() {
        assert_eq!(apportion(7, &[]), None);
        assert_eq!(apportion(7, &[0, 0]), None);
        assert_eq!(apportion(7, &[3, -1]), None);
        assert_eq!(apportion(7, &[i64::MAX, 1]), None);
    }

    #[test]
    fn the_largest_remainder_gets_what_is_left() {
        assert_eq!(apportion(10, &[1, 1, 1]), Some(vec![4, 3, 3]));
        assert_eq!(apportion(-10, &[1, 1, 1]), Some(vec![-4, -3, -3]));
        assert_eq!(apportion(100, &[7, 2, 0]), Some(vec![78, 22, 0]));
    }

    proptest! {
        #[test]
        fn parts_add_up_and_none_is_a_whole_unit_off_its_quota(
            whole in -1_000_000_000_000_000_000_000_i128..1_000_000_000_000_000_000_000,
            weights in prop::collection::vec(0_i64..100_000_000, 1..40),
        ) {
            let total: i64 = weights.iter().sum();
            prop_assume!(total > 0);
            let parts = apportion(whole, &weights).expect("weights are sound");
            prop_assert_eq!(parts.iter().sum::<i128>(), whole);
            for (part, weight) in parts.iter().zip(&weights) {
                let off = part * i128::from(total) - whole * i128::from(*weight);
                prop_assert!(off.abs() < i128::from(total));
                prop_assert!(*weight > 0 || *part == 0);
            }
        }
    }
}

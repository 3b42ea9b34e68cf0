//! Numbers as a person reads them, in the sentences that judgements are made of.

/// What stands between thousands: a thin space at which no line is broken.
const BETWEEN: char = '\u{202f}';

/// A count with thin spaces between its thousands: `1 496`.
pub fn grouped(count: u64) -> String {
    thousands(&count.to_string())
}

/// Decimal digits with thin spaces between their thousands.
pub fn thousands(digits: &str) -> String {
    let mut out = String::with_capacity(digits.len() * 2);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(BETWEEN);
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        for (count, shown) in [
            (0, "0"),
            (999, "999"),
            (1_496, "1\u{202f}496"),
            (12_345, "12\u{202f}345"),
            (1_234_567, "1\u{202f}234\u{202f}567"),
        ] {
            assert_eq!(grouped(count), shown);
        }
    }
}

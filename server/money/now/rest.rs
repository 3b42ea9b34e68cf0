//! What is left of a card that is cut into parts.

/// What is left of a card of which these are parts; none where nothing is.
pub(super) fn rest_of(parts: &[(u32, u32)]) -> Option<(u32, u32)> {
    let (mut taken, mut of) = (0_u64, 1_u64);
    for (slices, whole) in parts.iter().map(|it| (u64::from(it.0), u64::from(it.1))) {
        let common = of.checked_mul(whole / divisor(of, whole))?;
        // Parts that have so little in common nobody made.
        u32::try_from(common).ok()?;
        taken = taken * (common / of) + slices * (common / whole);
        of = common;
    }
    let left = of.checked_sub(taken).filter(|it| *it > 0)?;
    Some((left.try_into().ok()?, of.try_into().ok()?))
}

/// The greatest common divisor of two numbers above 0.
fn divisor(one: u64, other: u64) -> u64 {
    match one % other {
        0 => other,
        rest => divisor(other, rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shares_leave_of_their_card_is_the_rest_of_it() {
        assert_eq!(rest_of(&[(1, 7), (3, 7)]), Some((3, 7)));
        assert_eq!(rest_of(&[(1, 10); 10]), None);
        assert_eq!(
            rest_of(&[(3, 28); 4]),
            Some((16, 28)),
            "replicas of an instance"
        );
        assert_eq!(rest_of(&[(1, 7), (3, 28)]), Some((21, 28)));
        assert_eq!(rest_of(&[(4, 7), (4, 7)]), None, "more than there is");
    }
}

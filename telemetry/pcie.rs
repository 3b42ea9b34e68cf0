//! What a PCIe link can move at best.

/// Bytes a second of one lane by generation, one way, before the protocol takes its part.
const LANE_RATES: [f64; 6] = [250e6, 500e6, 984.6e6, 1_969e6, 3_938e6, 7_563e6];

/// Bytes a second of a link of this generation, counted from 1, with so many lanes, one way; none of generations that are
/// not known.
pub fn bytes_per_second(generation: u32, lanes: u32) -> Option<f64> {
    let before = usize::try_from(generation).ok()?.checked_sub(1)?;
    Some(LANE_RATES.get(before)? * f64::from(lanes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_as_fast_as_its_lanes_together() {
        for (generation, lanes, expected) in [
            (1, 1, Some(250e6)),
            (4, 16, Some(31.504e9)),
            (5, 16, Some(63.008e9)),
            (0, 16, None),
            (7, 16, None),
        ] {
            let found = bytes_per_second(generation, lanes);
            assert_eq!(found, expected, "{generation} × {lanes}");
        }
    }
}

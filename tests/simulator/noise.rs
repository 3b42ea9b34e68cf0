//! Numbers that look random and follow from a seed: no state, so any second can be asked for.

/// A source of numbers for one thing (a GPU, a node).
#[derive(Debug, Clone, Copy)]
pub struct Noise(u64);

impl Noise {
    /// The source of thing `index` of a kind, under a seed.
    pub fn new(seed: u64, kind: u64, index: u64) -> Self {
        Self(mixed(seed ^ mixed(kind) ^ mixed(index).rotate_left(17)))
    }

    /// 64 bits for a moment and a channel.
    pub fn bits(self, moment: i64, channel: u64) -> u64 {
        mixed(self.0 ^ mixed(moment.cast_unsigned()).rotate_left(31) ^ channel << 48)
    }

    /// What looks like the UUID of a card.
    pub fn uuid(self) -> uuid::Uuid {
        let high = u128::from(self.bits(0, 5));
        let bits = high << 64 | u128::from(self.bits(0, 6));
        uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
    }

    /// Evenly from 0 to 1, 1 left out.
    pub fn even(self, moment: i64, channel: u64) -> f64 {
        // 53 bits are what a double holds.
        (self.bits(moment, channel) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Around 0, mostly within ±1: the sum of three even numbers, which is close enough to normal.
    pub fn around_zero(self, moment: i64, channel: u64) -> f64 {
        let sum: f64 = (0..3)
            .map(|turn| self.even(moment, channel * 4 + turn))
            .sum();
        (sum - 1.5) * 0.67
    }
}

/// The finaliser of splitmix64: every bit of the input moves half the bits of the output.
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_question_has_the_same_answer_and_another_seed_another_one() {
        let noise = Noise::new(7, 1, 3);
        assert_eq!(noise.bits(100, 2), Noise::new(7, 1, 3).bits(100, 2));
        for other in [
            Noise::new(8, 1, 3),
            Noise::new(7, 2, 3),
            Noise::new(7, 1, 4),
        ] {
            assert_ne!(noise.bits(100, 2), other.bits(100, 2));
        }
    }

    #[test]
    fn even_numbers_are_spread_over_their_range() {
        let noise = Noise::new(1, 1, 1);
        let mean: f64 = (0..1000).map(|moment| noise.even(moment, 0)).sum::<f64>() / 1000.0;
        assert!((mean - 0.5).abs() < 0.05, "{mean}");
    }
}

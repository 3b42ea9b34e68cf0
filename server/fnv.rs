//! FNV-1a: a number for bytes that is the same on every machine and in every version, for what is stored.
//!
//! Not against people who want two things to have one number, and not for tables in memory.

/// As 64 bits.
pub(crate) fn of_64_bits(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// As 128 bits.
pub(crate) fn of_128_bits(bytes: impl Iterator<Item = u8>) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.fold(OFFSET, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(PRIME)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As its authors list them.
    #[test]
    fn numbers_are_those_of_every_other_implementation() {
        assert_eq!(of_64_bits(b"a".iter().copied()), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(of_64_bits(b"foobar".iter().copied()), 0x8594_4171_f739_67e8);
        assert_eq!(
            of_128_bits(b"a".iter().copied()),
            0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964
        );
        assert_eq!(
            of_128_bits(b"foobar".iter().copied()),
            0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18
        );
    }
}

//! LEB128: a number in as few bytes as it needs, at most 10, and in one way only.

/// Why bytes are not a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bad {
    /// They end inside it.
    Truncated,
    /// It has more than 64 bits, or is longer than it needs to be.
    OutOfRange,
}

/// Puts a number at the end.
pub(crate) fn put(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes a number from the front; what is left begins behind it, also of one that is out of range.
pub(crate) fn take(rest: &mut &[u8]) -> Result<u64, Bad> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().ok_or(Bad::Truncated)?;
        *rest = after;
        let bits = u64::from(byte & 0x7f);
        if (bits << shift) >> shift != bits {
            return Err(Bad::OutOfRange);
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            let is_padded = *byte == 0 && shift > 0;
            return if is_padded {
                Err(Bad::OutOfRange)
            } else {
                Ok(number)
            };
        }
    }
    Err(Bad::OutOfRange)
}

/// A signed number as an unsigned one that is small when it is near 0.
pub(crate) const fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

/// The signed number that [`zigzag`] was given.
pub(crate) const fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

//! The numbers of the packed form: varints, values as reversed bits.

use super::UnpackError;
use crate::varint;

/// How many bytes [`varint::put`] takes for it.
pub(super) fn length(number: u64) -> u32 {
    (u64::BITS - number.leading_zeros()).div_ceil(7).max(1)
}

/// What is left to unpack.
pub(super) struct Input<'a> {
    pub(super) rest: &'a [u8],
    pub(super) length: usize,
}

impl Input<'_> {
    pub(super) fn number(&mut self, what: &'static str, most: u64) -> Result<u64, UnpackError> {
        match varint::take(&mut self.rest) {
            Ok(number) if number <= most => Ok(number),
            Err(varint::Bad::Truncated) => Err(UnpackError::Truncated {
                what,
                at: self.length,
            }),
            Ok(_) | Err(varint::Bad::OutOfRange) => Err(self.out_of_range(what)),
        }
    }

    pub(super) fn count(&mut self, what: &'static str, least: u32) -> Result<u32, UnpackError> {
        let count = self.number(what, u64::from(u32::MAX))? as u32;
        if count < least {
            return Err(self.out_of_range(what));
        }
        Ok(count)
    }

    pub(super) fn value(&mut self, metric: u16) -> Result<f64, UnpackError> {
        let value = f64::from_bits(self.number("value", u64::MAX)?.reverse_bits());
        if value.is_finite() {
            Ok(value)
        } else {
            Err(UnpackError::NotFinite { metric })
        }
    }

    pub(super) fn out_of_range(&self, what: &'static str) -> UnpackError {
        UnpackError::OutOfRange {
            what,
            at: self.length - self.rest.len(),
        }
    }
}

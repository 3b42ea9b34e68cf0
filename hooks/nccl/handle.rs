//! What NCCL keeps for us as a pointer: a number that names an operation, never an address.
//!
//! NCCL gives handles back late, twice, or after the operation is long forgotten. A number can be
//! looked up and found to be old; an address could only be followed.

use std::ffi::c_void;

use gpufleet_hooks_shm::layout::COMMUNICATORS;

/// Bits of the channel, of the kind and of the communicator, from the lowest on; the number of the
/// operation has the rest.
const CHANNEL_BITS: u32 = 8;
const KIND_BITS: u32 = 2;
const COMMUNICATOR_BITS: u32 = COMMUNICATORS.trailing_zeros();

const KIND_SHIFT: u32 = CHANNEL_BITS;
const COMMUNICATOR_SHIFT: u32 = KIND_SHIFT + KIND_BITS;
const NUMBER_SHIFT: u32 = COMMUNICATOR_SHIFT + COMMUNICATOR_BITS;

/// What a context begins with, so that a pointer that is none of ours is seen.
const CONTEXT: u64 = 0x67_7066_6c00;

/// An operation on a communicator. The number counts its operations from 1: the place in the ring is
/// the lower part of it, the rest says whose turn the place is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Which communicator.
    pub communicator: u8,
    /// Which of its operations.
    pub number: u64,
}

/// What a handle names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handle {
    /// A collective, a send or a receive.
    Operation(Operation),
    /// One channel of its kernel.
    Channel(Operation, u8),
}

impl Handle {
    /// As NCCL keeps it. Never null.
    pub const fn to_pointer(self) -> *mut c_void {
        let (kind, operation, channel) = match self {
            Self::Operation(operation) => (1, operation, 0),
            Self::Channel(operation, channel) => (2, operation, channel),
        };
        let number = operation.number << NUMBER_SHIFT
            | (operation.communicator as u64) << COMMUNICATOR_SHIFT
            | kind << KIND_SHIFT
            | channel as u64;
        std::ptr::without_provenance_mut(number as usize)
    }

    /// What NCCL gives back; `None` for null and for what was never a handle.
    pub fn from_pointer(pointer: *const c_void) -> Option<Self> {
        let number = pointer.addr() as u64;
        let operation = Operation {
            communicator: (number >> COMMUNICATOR_SHIFT & (COMMUNICATORS as u64 - 1)) as u8,
            number: number >> NUMBER_SHIFT,
        };
        match number >> KIND_SHIFT & ((1 << KIND_BITS) - 1) {
            1 => Some(Self::Operation(operation)),
            2 => Some(Self::Channel(operation, number as u8)),
            _ => None,
        }
    }
}

/// The context of a communicator, as NCCL keeps it.
pub const fn context(communicator: u8) -> *mut c_void {
    std::ptr::without_provenance_mut((CONTEXT | communicator as u64) as usize)
}

/// The communicator of a context; `None` for null and for what was never one.
pub fn of_context(context: *const c_void) -> Option<u8> {
    let number = context.addr() as u64;
    let communicator = number & (COMMUNICATORS as u64 - 1);
    (number ^ communicator == CONTEXT).then_some(communicator as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_comes_back_as_it_went() {
        let check = |communicator: u8, number: u64, channel: u8| {
            let operation = Operation {
                communicator,
                number,
            };
            for handle in [
                Handle::Operation(operation),
                Handle::Channel(operation, channel),
            ] {
                let pointer = handle.to_pointer();
                assert!(!pointer.is_null());
                assert_eq!(Handle::from_pointer(pointer), Some(handle));
            }
        };
        check(0, 1, 0);
        check(0, 0, 0);
        check(63, (1 << 48) - 1, 255);
        check(17, 123_456_789, 63);
    }

    #[test]
    fn what_was_never_a_handle_is_none() {
        for number in [0_usize, 1, 255, 3 << 8] {
            let pointer = std::ptr::without_provenance::<c_void>(number);
            assert_eq!(Handle::from_pointer(pointer), None);
        }
    }

    #[test]
    fn a_context_comes_back_and_nothing_else_is_one() {
        assert_eq!(of_context(context(0)), Some(0));
        assert_eq!(of_context(context(63)), Some(63));
        assert_eq!(of_context(std::ptr::null()), None);
        let near = std::ptr::without_provenance::<c_void>(context(63).addr() + 1);
        assert_eq!(of_context(near), None);
    }
}

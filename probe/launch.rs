//! What both ways of running the kernels share: arguments, patterns, and a check from a report.

use std::ffi::c_void;
use std::ptr;

use crate::measured::Check;
use crate::ptx::Work;
use crate::report::Report;

/// What memory is filled with; its complement the second time, so that each bit was both.
pub const PATTERN: u64 = 0xA5C3_0F69_5A3C_F096;

/// Words that are compared under a spoilt expectation: each is wrong, and each costs an atomic.
pub const SPOILT_WORDS: u64 = 1 << 16;

/// Threads of a block that goes through memory.
pub const MEMORY_THREADS: u32 = 512;

/// Blocks of it for each SM: as many as fit on most cards.
pub const MEMORY_BLOCKS_A_SM: u32 = 4;

/// Blocks of the arithmetic for each SM: more than one, so that none is left out.
pub const BLOCKS_A_SM: u32 = 4;

/// What a kernel is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    /// Four bytes.
    Four(u32),
    /// Eight bytes: a number or an address.
    Eight(u64),
}

impl Argument {
    /// Where its bytes lie, as a launch takes it: good while it stays where it is.
    pub const fn place(&mut self) -> *mut c_void {
        match self {
            Self::Four(four) => ptr::from_mut(four).cast(),
            Self::Eight(eight) => ptr::from_mut(eight).cast(),
        }
    }
}

/// Whether every SM that ran told each block of its own that it is wrong, so often a block.
pub fn is_seen(report: &Report, a_block: u32) -> bool {
    let mut ran = report.sms.iter().filter(|it| it.ran > 0);
    report.blocks() > 0 && ran.all(|it| it.wrong == it.ran * a_block)
}

/// One work's check from its report; `sees_errors`: whether the same work under a spoilt expectation said
/// so.
pub fn check(work: Work, report: &Report, sees_errors: bool, rate: Option<f64>) -> Check {
    Check {
        work,
        covered: report.covered(),
        wrong: report.wrong(),
        wrong_sms: report
            .sms
            .iter()
            .filter(|it| it.wrong > 0)
            .copied()
            .collect(),
        first: report.first,
        sees_errors,
        rate,
    }
}

/// Values as the bytes that a table of them is.
pub fn bytes_of<T: Copy, const N: usize>(values: &[T], bytes: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|it| bytes(*it)).collect()
}

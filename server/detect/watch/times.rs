//! In which of the last ticks a counter grew: what comes in a flurry came once.

use gpufleet_telemetry::time::Timestamp;

use super::counter::{Rest, Step};
use super::in_seconds;
use crate::detect::TICK;

/// A slot, seconds: a tick.
const SLOT_S: u32 = TICK.as_secs() as u32;

/// Slots that are looked back on: five minutes.
const SLOTS: u32 = 30;

/// What did not come again for this long is over, seconds: slower than the least rate that counts by far.
const OVER_S: f64 = 150.0;

/// The slots in which a counter grew.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    /// One bit a slot, the newest lowest.
    grew: u32,
    /// The number of the newest slot, since 1970.
    newest: u32,
    rest: Rest,
}

const _: () = assert!(size_of::<Times>() <= 12 && SLOTS <= u32::BITS);

impl Times {
    /// Takes in a reading, if there is a newer one.
    pub(super) fn take(&mut self, step: Option<Step>, now: Timestamp) {
        let newest = in_seconds(now) / SLOT_S;
        let passed = newest.saturating_sub(self.newest);
        self.grew = self.grew.checked_shl(passed).unwrap_or(0);
        self.newest = self.newest.max(newest);
        if let Some(step) = step {
            self.rest.take(&step);
            self.grew |= u32::from(step.grew() > 0.0);
        }
    }

    /// In how many slots a minute it grew, over the last [`SLOTS`], 0 when it is over, if the newest reading is so old.
    pub(super) fn per_minute(&self, age_s: f64) -> f64 {
        match self.rest.seconds(age_s) > OVER_S {
            true => 0.0,
            false => f64::from(self.lately().count_ones() * 60) / f64::from(SLOTS * SLOT_S),
        }
    }

    /// Whether it grew in none of them.
    pub(super) const fn is_over(&self) -> bool {
        self.lately() == 0
    }

    const fn lately(&self) -> u32 {
        self.grew & (u32::MAX >> (u32::BITS - SLOTS))
    }
}

//! One second of evidence, judged on its own.

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::minute::{Bitmaps, MinuteRow};
use serde::{Deserialize, Serialize};

use super::around::Claim;

/// What one second shows by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Class {
    /// Not there: never told of, or not for a long time.
    #[default]
    Gone,
    /// There, but no sample.
    Silent,
    /// Sampled, but whether it is held is not known.
    HolderUnknown,
    /// Nobody holds it.
    NotHeld,
    /// Nobody is known to hold it, and it works. Of one second by itself: [`super::unheld`] says whose it
    /// is, and it is never kept.
    Unclaimed,
    /// Held, but whether it is active is not known.
    ActivityUnknown,
    /// Held and busy without work.
    Stalled,
    /// Held and active.
    Active,
    /// Held and not active.
    Inactive,
    /// Held by one whose container does not run yet.
    Starting,
}

/// What a minute row says about its seconds.
pub(super) struct MinuteFacts {
    bits: Bitmaps,
    activity_known: bool,
    /// Mean of the memory in use, bytes.
    pub(super) memory_bytes: Option<u64>,
}

impl Class {
    /// The class of one second of evidence; none when it was not observed.
    pub(super) fn of(bits: &Bitmaps, second: u32, activity_known: bool) -> Option<Self> {
        let is_set = |bitmap: u64| bitmap >> second & 1 == 1;
        if !is_set(bits.observed) {
            return None;
        }
        Some(if !is_set(bits.holder_known) {
            Self::HolderUnknown
        } else if !is_set(bits.held) && is_set(bits.active) {
            Self::Unclaimed
        } else if !is_set(bits.held) {
            Self::NotHeld
        } else if is_set(bits.stalled) {
            Self::Stalled
        } else if is_set(bits.active) {
            Self::Active
        } else if !activity_known {
            Self::ActivityUnknown
        } else {
            Self::Inactive
        })
    }

    /// The same where the container of its holder is said not to run. What was measured active runs, whatever word of it
    /// is still on its way.
    pub(super) fn starting(self, is_said: bool) -> Self {
        match self {
            Self::ActivityUnknown | Self::Stalled | Self::Inactive if is_said => Self::Starting,
            _ => self,
        }
    }
}

impl MinuteFacts {
    pub(super) fn of(row: &MinuteRow, is_activity_told: bool) -> Self {
        let has =
            |metric: &gpufleet_telemetry::catalog::Metric| row.metrics.contains_key(&metric.id);
        Self {
            bits: row.bitmaps,
            activity_known: is_activity_told
                || has(&gpu::GRAPHICS_ACTIVE)
                || has(&gpu::UTILIZATION),
            memory_bytes: row
                .metrics
                .get(&gpu::MEMORY_USED.id)
                .map(|it| it.mean().max(0.0) as u64),
        }
    }

    /// The class of a second of the minute, 0 to 59; none when it was not observed. Who watches
    /// holders knows better than the node whether it is held.
    pub(super) fn class(&self, second: u32, claim: Claim) -> Option<Class> {
        let mut bits = self.bits;
        let bit = 1 << second;
        match claim {
            Claim::Unsaid => {}
            Claim::One { .. } => {
                bits.held |= bit;
                bits.holder_known |= bit;
            }
            Claim::Many => bits.holder_known &= !bit,
        }
        let class = Class::of(&bits, second, self.activity_known)?;
        let is_starting = claim == Claim::One { runs: false };
        Some(class.starting(is_starting))
    }

    /// Whether the minute only says that it is missing.
    pub(super) fn is_never_observed(&self) -> bool {
        self.bits.observed == 0
    }
}

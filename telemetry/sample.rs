//! What a reader returns: a value or the reason why there is none. Missing is never zero.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::catalog::MetricId;
use crate::event::Event;
use crate::identity::{Part, Resource};
use crate::time::Timestamp;

/// Why there is no value. It reaches the page, the metrics and the ledger as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missing {
    /// This hardware or mode does not have the reading (NVML 3).
    NotSupported,
    /// The agent may not read it (NVML 4).
    NoPermission,
    /// The driver or library is too old to know the function (NVML 13).
    FunctionNotFound,
    /// The driver is not loaded (NVML 9) or NVML is not initialised (NVML 1).
    DriverNotLoaded,
    /// Library and driver have different versions since a driver update (NVML 18).
    LibraryMismatch,
    /// The GPU fell off the bus or is otherwise not reachable (NVML 15, 28, 999 on its handle).
    GpuLost,
    /// The GPU needs a reset before it can be read (NVML 16).
    ResetRequired,
    /// The call did not return before its deadline, and the driver was given up on.
    DriverHang,
    /// The source did not answer in time (NVML 10, a scrape that ran out of time).
    Timeout,
    /// The source has no data yet (NVML 21, 27; a rate before its second sample).
    NotReady,
    /// Another client holds the counters exclusively (profiling on GPUs before Hopper).
    HeldByOther,
    /// The source could not be reached: no socket, connection refused, file absent.
    Unreachable,
    /// The source answered with something that is not a value of this metric: NaN, infinity,
    /// negative, out of range, unparsable.
    Invalid,
    /// NVML was released on request, so that a driver reload or a GPU reset can go ahead.
    Released,
    /// The source answered with an error that has no reason of its own here.
    Unknown,
}

/// A value in the metric's base unit, or the reason why there is none.
pub type Reading = Result<f64, Missing>;

/// One reading of one metric of a resource or of a part of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Which metric.
    pub metric: MetricId,
    /// The part of the resource it is about; none when about the resource itself.
    pub part: Option<Part>,
    /// What was read.
    pub reading: Reading,
}

/// What was read of one resource at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResourceSamples {
    /// Whose samples these are.
    pub resource: Arc<Resource>,
    /// The samples, in no particular order, each (metric, part) at most once.
    pub samples: Vec<Sample>,
}

/// Everything one reader returns from one round.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Readings {
    /// When the round was taken.
    pub at: Timestamp,
    /// Per resource what was read.
    pub resources: Vec<ResourceSamples>,
    /// What happened since the last round.
    pub events: Vec<Event>,
}

/// One second of a GPU share, as evidence for the ledger: one bit each in a minute row's bitmaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Evidence {
    /// A valid sample was taken.
    pub observed: bool,
    /// The engine was active: graphics-engine activity or, without it, utilisation, ≥0.05.
    pub active: bool,
    /// It looked busy but did no work: engine ≥0.95 with tensor <0.01, DRAM <0.01, links near 0.
    pub stalled: bool,
    /// Someone holds the share.
    pub held: bool,
    /// Whether someone holds it is known at all.
    pub holder_known: bool,
}

impl Missing {
    /// Every reason.
    pub const ALL: [Self; 15] = [
        Self::NotSupported,
        Self::NoPermission,
        Self::FunctionNotFound,
        Self::DriverNotLoaded,
        Self::LibraryMismatch,
        Self::GpuLost,
        Self::ResetRequired,
        Self::DriverHang,
        Self::Timeout,
        Self::NotReady,
        Self::HeldByOther,
        Self::Unreachable,
        Self::Invalid,
        Self::Released,
        Self::Unknown,
    ];

    /// The name on the wire and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotSupported => "not_supported",
            Self::NoPermission => "no_permission",
            Self::FunctionNotFound => "function_not_found",
            Self::DriverNotLoaded => "driver_not_loaded",
            Self::LibraryMismatch => "library_mismatch",
            Self::GpuLost => "gpu_lost",
            Self::ResetRequired => "reset_required",
            Self::DriverHang => "driver_hang",
            Self::Timeout => "timeout",
            Self::NotReady => "not_ready",
            Self::HeldByOther => "held_by_other",
            Self::Unreachable => "unreachable",
            Self::Invalid => "invalid",
            Self::Released => "released",
            Self::Unknown => "unknown",
        }
    }

    /// The reason with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

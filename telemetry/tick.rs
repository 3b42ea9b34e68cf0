//! One tick (10 s by default) of one agent, ready to be shipped: what goes into an OTLP request.
//!
//! A gauge is one point, the mean of the tick's valid samples, with a maximum only where the
//! catalog asks; a counter or a code its last value; evidence one bit a second; a metric without
//! any valid sample is a point that says why.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::catalog::MetricId;
use crate::identity::{Part, Resource};
use crate::sample::Missing;
use crate::time::Timestamp;

/// Longest tick, so that its seconds fit a bitmap.
pub const MAX_TICK_SECONDS: u32 = 60;

/// What a point says.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum PointValue {
    /// The mean of a gauge's samples, or the last value of a code or flag.
    Gauge {
        /// The value in the metric's base unit.
        value: f64,
        /// The greatest sample, where the catalog asks for it.
        max: Option<f64>,
    },
    /// The last value of a running total and when it began to count.
    Counter {
        /// The total in the metric's base unit.
        value: f64,
        /// When it began at zero, as far as the reader knows: boot, driver load or agent start.
        since: Timestamp,
    },
    /// One bit a second, bit 0 the second that begins at the tick's start.
    SecondBits(u64),
    /// No valid sample in this tick, and why.
    Missing(Missing),
}

/// One metric of one resource, or of a part of it, in one tick.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Which metric.
    pub metric: MetricId,
    /// The part it is about; none when about the resource itself.
    pub part: Option<Part>,
    /// What it says.
    pub value: PointValue,
}

/// One resource in one tick.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResourceTick {
    /// The resource with its attributes.
    pub resource: Arc<Resource>,
    /// When the tick began; aligned to a multiple of its length.
    pub start: Timestamp,
    /// When it ended: the time of its points.
    pub end: Timestamp,
    /// Its points.
    pub points: Vec<Point>,
}

//! A minute row: what is kept of one GPU, share or node for one minute. Rows merge in any order.
//!
//! Five bitmaps with one bit a second, merged by OR, and per metric count, sum, min and max, merged
//! by addition and comparison: late, doubled (bitmaps) and reordered data are harmless. Double
//! counting of the sums is prevented by the cursors, not here.
//!
//! Packed form, little-endian, version first: see [`MinuteRow::pack`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::catalog::MetricId;

/// The bits of a bitmap that stand for the 60 seconds of a minute.
pub const ALL_SECONDS: u64 = (1 << 60) - 1;

/// One bit for each second of the minute, second 0 in bit 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bitmaps {
    /// A valid sample was taken.
    pub observed: u64,
    /// The engine was active.
    pub active: u64,
    /// Busy without work.
    pub stalled: u64,
    /// Someone held it.
    pub held: u64,
    /// It was known whether someone held it.
    pub holder_known: u64,
}

/// What is kept of one metric in one minute.
///
/// Of a gauge: `sum`, `min` and `max` over `count` points. Of a counter: `sum` is its growth in the
/// minute (a reset counts from zero), `min` its first and `max` its last raw value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Aggregate {
    /// How many points went in.
    pub count: u32,
    /// Their sum, or the counter's growth.
    pub sum: f64,
    /// The least of them, or the counter's first value.
    pub min: f64,
    /// The greatest of them, or the counter's last value.
    pub max: f64,
}

/// One minute of one resource.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MinuteRow {
    /// Evidence by second.
    pub bitmaps: Bitmaps,
    /// Aggregates by metric number; only metrics that the catalog keeps in minutes.
    pub metrics: BTreeMap<MetricId, Aggregate>,
}

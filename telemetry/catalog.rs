//! Every metric once: number, name, unit, kind, subject, help, and how others call it.
//!
//! A number is for ever: it is the key in minute rows, spools and recordings. Never reuse one.
//! Numbers by room: 1-9 evidence, 10-199 GPU, 200-249 parts of a GPU, 300-399 node and its parts,
//! 400-499 model servers, 500-599 the agent, 600-699 the server, 700-799 training ranks.
//!
//! Names are `gpufleet_<subject>_<thing>_<unit>[_total]` in base units, plain counts without a unit
//! (Prometheus keeps `_count` for histograms); a test checks it. A GPU metric costs one entry here
//! and one row in its reader.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::identity::{PartKind, ResourceKind};

pub mod gpu;

pub mod node;

pub mod serving;

pub mod own;

pub mod server;

pub mod training;

pub mod sources;

pub mod not_read;

pub mod producers;

/// A metric's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MetricId(pub u16);

/// The base unit of a metric's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Power in watts.
    Watts,
    /// Energy in joules.
    Joules,
    /// Temperature in degrees Celsius.
    Celsius,
    /// Frequency in hertz.
    Hertz,
    /// Bytes.
    Bytes,
    /// Bytes per second.
    BytesPerSecond,
    /// Seconds.
    Seconds,
    /// A share, 0 to 1.
    Ratio,
    /// A plain number or count.
    Count,
    /// 0 or 1.
    Flag,
    /// A set of bits or a code whose meaning the help text gives.
    Code,
}

impl Unit {
    /// How the unit ends a metric's name; none for plain counts, because Prometheus keeps `_count`
    /// for histograms.
    pub const fn suffix(self) -> Option<&'static str> {
        match self {
            Self::Watts => Some("watts"),
            Self::Joules => Some("joules"),
            Self::Celsius => Some("celsius"),
            Self::Hertz => Some("hertz"),
            Self::Bytes => Some("bytes"),
            Self::BytesPerSecond => Some("bytes_per_second"),
            Self::Seconds => Some("seconds"),
            Self::Ratio => Some("ratio"),
            Self::Count => None,
            Self::Flag => Some("flag"),
            Self::Code => Some("code"),
        }
    }
}

/// How values of a metric relate to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A state at a moment; a tick carries the mean of its samples.
    Gauge,
    /// A gauge whose mean says nothing (a code, a flag, a version): a tick carries the last value.
    Last,
    /// A running total that only a reset takes back; a tick carries the last value.
    Counter,
    /// One bit for each second of the tick, bit 0 its first second.
    SecondBits,
}

/// How often a metric is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cadence {
    /// Every sample, 1 s by default.
    Sample,
    /// Every 60 s, because it is slow to read or slow to change.
    Slow,
}

/// How dcgm-exporter names a metric (dialect A) and what its value is in our base unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dcgm {
    /// The name, `DCGM_FI_…`.
    pub name: &'static str,
    /// Its value = ours × scale.
    pub scale: f64,
}

/// How OpenTelemetry names a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Otlp {
    /// The name; the catalog name with dots where OpenTelemetry has none of its own.
    pub name: &'static str,
    /// Attributes that a shared name needs to tell its series apart.
    pub attributes: &'static [(&'static str, &'static str)],
}

/// One metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metric {
    /// Its number, for ever.
    pub id: MetricId,
    /// Its Prometheus name.
    pub name: &'static str,
    /// What it is, whole sentences: shape, range, traps, source.
    pub help: &'static str,
    /// Its base unit.
    pub unit: Unit,
    /// How its values relate.
    pub kind: Kind,
    /// What kind of resource it is about.
    pub resource: ResourceKind,
    /// What kind of part of the resource it is about, if not the resource itself.
    pub part: Option<PartKind>,
    /// How often it is read.
    pub cadence: Cadence,
    /// OpenTelemetry's own name, where it has one.
    pub otlp: Option<Otlp>,
    /// dcgm-exporter's name, where it has one.
    pub dcgm: Option<Dcgm>,
    /// Whether a tick carries the maximum beside the mean.
    pub with_max: bool,
    /// Whether minute rows keep it.
    pub in_minutes: bool,
}

/// A gauge of a GPU (and of its shares where the driver gives it).
pub(crate) const fn gauge(
    id: u16,
    name: &'static str,
    resource: ResourceKind,
    unit: Unit,
    help: &'static str,
) -> Metric {
    Metric {
        id: MetricId(id),
        name,
        help,
        unit,
        kind: Kind::Gauge,
        resource,
        part: None,
        cadence: Cadence::Sample,
        otlp: None,
        dcgm: None,
        with_max: false,
        in_minutes: false,
    }
}

/// A running total.
pub(crate) const fn counter(
    id: u16,
    name: &'static str,
    resource: ResourceKind,
    unit: Unit,
    help: &'static str,
) -> Metric {
    let mut metric = gauge(id, name, resource, unit, help);
    metric.kind = Kind::Counter;
    metric
}

/// A gauge whose last value counts.
pub(crate) const fn last(
    id: u16,
    name: &'static str,
    resource: ResourceKind,
    unit: Unit,
    help: &'static str,
) -> Metric {
    let mut metric = gauge(id, name, resource, unit, help);
    metric.kind = Kind::Last;
    metric
}

/// One bit a second.
pub(crate) const fn second_bits(id: u16, name: &'static str, help: &'static str) -> Metric {
    let mut metric = gauge(id, name, ResourceKind::Gpu, Unit::Code, help);
    metric.kind = Kind::SecondBits;
    metric
}

impl Metric {
    pub(crate) const fn part(mut self, part: PartKind) -> Self {
        self.part = Some(part);
        self
    }

    pub(crate) const fn slow(mut self) -> Self {
        self.cadence = Cadence::Slow;
        self
    }

    pub(crate) const fn otlp(
        mut self,
        name: &'static str,
        attributes: &'static [(&'static str, &'static str)],
    ) -> Self {
        self.otlp = Some(Otlp { name, attributes });
        self
    }

    pub(crate) const fn dcgm(mut self, name: &'static str, scale: f64) -> Self {
        self.dcgm = Some(Dcgm { name, scale });
        self
    }

    pub(crate) const fn with_max(mut self) -> Self {
        self.with_max = true;
        self
    }

    pub(crate) const fn in_minutes(mut self) -> Self {
        self.in_minutes = true;
        self
    }
}

/// Declares a room of the catalog: each metric as a constant, and all of them as one slice.
macro_rules! metrics {
    ($($(#[$attribute:meta])* $name:ident = $metric:expr;)+) => {
        $($(#[$attribute])* #[allow(missing_docs, reason = "the help text is the documentation")] pub const $name: $crate::catalog::Metric = $metric;)+
        /// Every metric of this room.
        pub const ALL: &[$crate::catalog::Metric] = &[$($name),+];
        /// The constants' names in the order of [`ALL`], for the rule that each is read somewhere.
        pub const CONSTANTS: &[&str] = &[$(stringify!($name)),+];
    };
}
pub(crate) use metrics;

/// Every room, in the order of the numbers.
pub const ROOMS: [&[Metric]; 6] = [
    gpu::ALL,
    node::ALL,
    serving::ALL,
    own::ALL,
    server::ALL,
    training::ALL,
];

/// Every metric, in the order of the rooms.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    ROOMS.into_iter().flatten()
}

/// The metric with this number.
pub fn by_id(id: MetricId) -> Option<&'static Metric> {
    static BY_ID: LazyLock<Vec<Option<&'static Metric>>> = LazyLock::new(|| {
        let last = all().map(|metric| metric.id.0).max().unwrap_or(0);
        let mut table = vec![None; usize::from(last) + 1];
        for metric in all() {
            table[usize::from(metric.id.0)] = Some(metric);
        }
        table
    });
    BY_ID.get(usize::from(id.0)).copied().flatten()
}

/// The metric with this Prometheus name.
pub fn by_name(name: &str) -> Option<&'static Metric> {
    static BY_NAME: LazyLock<HashMap<&'static str, &'static Metric>> =
        LazyLock::new(|| all().map(|metric| (metric.name, metric)).collect());
    BY_NAME.get(name).copied()
}

#[cfg(test)]
mod tests;

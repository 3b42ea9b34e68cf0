//! Which messages OTLP's requests are made of: what each takes in memory, and which of its fields
//! make prost allocate. A field that is not named here is a number or a text of its parent.

use std::mem::size_of;

use opentelemetry_proto::tonic::common::v1::{AnyValue, EntityRef, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::metrics::v1::summary_data_point::ValueAtQuantile;
use opentelemetry_proto::tonic::metrics::v1::{
    Exemplar, ExponentialHistogramDataPoint, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, SummaryDataPoint,
};

/// What there may be many of in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Resources with what they sent.
    Resource,
    /// Scopes.
    Scope,
    /// Metrics.
    Metric,
    /// Points of any type.
    Point,
    /// Log records.
    Record,
    /// Attributes of anything.
    Attribute,
    /// Values in lists.
    Value,
    /// Exemplars.
    Exemplar,
    /// Bounds and counts of histograms.
    Bucket,
    /// Quantiles of summaries.
    Quantile,
    /// References to entities, and their keys.
    Entity,
}

/// A message.
pub(super) struct Shape {
    /// Its fields that allocate, by number.
    pub(super) fields: &'static [(u64, Field)],
}

/// A field that allocates.
pub(super) enum Field {
    /// A message within its parent's own memory.
    One(&'static Shape),
    /// A list of messages of `bytes` each.
    Many(Kind, usize, &'static Shape),
    /// A list of texts.
    Texts(Kind),
    /// A list of numbers of eight bytes each on the wire.
    Fixed(Kind),
    /// A list of numbers of one to ten bytes each on the wire.
    Varints(Kind),
}

impl Kind {
    /// Every kind, in the order of the declaration.
    pub const ALL: [Self; 11] = [
        Self::Resource,
        Self::Scope,
        Self::Metric,
        Self::Point,
        Self::Record,
        Self::Attribute,
        Self::Value,
        Self::Exemplar,
        Self::Bucket,
        Self::Quantile,
        Self::Entity,
    ];

    /// Many of them, in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resource => "resources",
            Self::Scope => "scopes",
            Self::Metric => "metrics",
            Self::Point => "points",
            Self::Record => "log records",
            Self::Attribute => "attributes",
            Self::Value => "list values",
            Self::Exemplar => "exemplars",
            Self::Bucket => "histogram buckets",
            Self::Quantile => "quantiles",
            Self::Entity => "entity references",
        }
    }
}

use Field::{Fixed, Many, One, Texts, Varints};

const fn many<T>(kind: Kind, shape: &'static Shape) -> Field {
    Many(kind, size_of::<T>(), shape)
}

/// The fields of a message, by number.
const fn shape(fields: &'static [(u64, Field)]) -> Shape {
    Shape { fields }
}

/// ExportMetricsServiceRequest.
pub(super) static METRICS: Shape = shape(&[(
    1,
    many::<ResourceMetrics>(Kind::Resource, &RESOURCE_METRICS),
)]);

/// ExportLogsServiceRequest.
pub(super) static LOGS: Shape = shape(&[(1, many::<ResourceLogs>(Kind::Resource, &RESOURCE_LOGS))]);

static RESOURCE_METRICS: Shape = shape(&[
    (1, One(&RESOURCE)),
    (2, many::<ScopeMetrics>(Kind::Scope, &SCOPE_METRICS)),
]);

static RESOURCE_LOGS: Shape = shape(&[
    (1, One(&RESOURCE)),
    (2, many::<ScopeLogs>(Kind::Scope, &SCOPE_LOGS)),
]);

static RESOURCE: Shape = shape(&[
    (1, many::<KeyValue>(Kind::Attribute, &KEY_VALUE)),
    (3, many::<EntityRef>(Kind::Entity, &ENTITY_REF)),
]);

static ENTITY_REF: Shape = shape(&[(3, Texts(Kind::Entity)), (4, Texts(Kind::Entity))]);

static SCOPE_METRICS: Shape =
    shape(&[(2, many::<Metric>(Kind::Metric, &METRIC)), (1, One(&SCOPE))]);

static SCOPE_LOGS: Shape = shape(&[
    (2, many::<LogRecord>(Kind::Record, &LOG_RECORD)),
    (1, One(&SCOPE)),
]);

static SCOPE: Shape = shape(&[(3, many::<KeyValue>(Kind::Attribute, &KEY_VALUE))]);

static METRIC: Shape = shape(&[
    (5, One(&NUMBERS)),
    (7, One(&NUMBERS)),
    (9, One(&HISTOGRAMS)),
    (10, One(&EXPONENTIAL_HISTOGRAMS)),
    (11, One(&SUMMARIES)),
    (12, many::<KeyValue>(Kind::Attribute, &KEY_VALUE)),
]);

/// A gauge or a sum.
static NUMBERS: Shape = shape(&[(1, many::<NumberDataPoint>(Kind::Point, &NUMBER_POINT))]);

static HISTOGRAMS: Shape = shape(&[(1, many::<HistogramDataPoint>(Kind::Point, &HISTOGRAM_POINT))]);

static EXPONENTIAL_HISTOGRAMS: Shape = shape(&[(
    1,
    many::<ExponentialHistogramDataPoint>(Kind::Point, &EXPONENTIAL_POINT),
)]);

static SUMMARIES: Shape = shape(&[(1, many::<SummaryDataPoint>(Kind::Point, &SUMMARY_POINT))]);

static NUMBER_POINT: Shape = shape(&[
    (7, many::<KeyValue>(Kind::Attribute, &KEY_VALUE)),
    (5, many::<Exemplar>(Kind::Exemplar, &EXEMPLAR)),
]);

static HISTOGRAM_POINT: Shape = shape(&[
    (6, Fixed(Kind::Bucket)),
    (7, Fixed(Kind::Bucket)),
    (8, many::<Exemplar>(Kind::Exemplar, &EXEMPLAR)),
    (9, many::<KeyValue>(Kind::Attribute, &KEY_VALUE)),
]);

static EXPONENTIAL_POINT: Shape = shape(&[
    (1, many::<KeyValue>(Kind::Attribute, &KEY_VALUE)),
    (8, One(&BUCKETS)),
    (9, One(&BUCKETS)),
    (11, many::<Exemplar>(Kind::Exemplar, &EXEMPLAR)),
]);

static BUCKETS: Shape = shape(&[(2, Varints(Kind::Bucket))]);

static SUMMARY_POINT: Shape = shape(&[
    (6, many::<ValueAtQuantile>(Kind::Quantile, &QUANTILE)),
    (7, many::<KeyValue>(Kind::Attribute, &KEY_VALUE)),
]);

static QUANTILE: Shape = shape(&[]);

static EXEMPLAR: Shape = shape(&[(7, many::<KeyValue>(Kind::Attribute, &KEY_VALUE))]);

static LOG_RECORD: Shape = shape(&[
    (6, many::<KeyValue>(Kind::Attribute, &KEY_VALUE)),
    (5, One(&ANY_VALUE)),
]);

static KEY_VALUE: Shape = shape(&[(2, One(&ANY_VALUE))]);

static ANY_VALUE: Shape = shape(&[(5, One(&ARRAY_VALUE)), (6, One(&KEY_VALUE_LIST))]);

static ARRAY_VALUE: Shape = shape(&[(1, many::<AnyValue>(Kind::Value, &ANY_VALUE))]);

static KEY_VALUE_LIST: Shape = shape(&[(1, many::<KeyValue>(Kind::Attribute, &KEY_VALUE))]);

/// The largest message that a list may hold.
pub(super) const LARGEST_BYTES: usize = {
    let sizes = [
        size_of::<ResourceMetrics>(),
        size_of::<ResourceLogs>(),
        size_of::<ScopeMetrics>(),
        size_of::<ScopeLogs>(),
        size_of::<Metric>(),
        size_of::<LogRecord>(),
        size_of::<HistogramDataPoint>(),
        size_of::<ExponentialHistogramDataPoint>(),
        size_of::<SummaryDataPoint>(),
        size_of::<Exemplar>(),
        size_of::<EntityRef>(),
    ];
    let (mut largest, mut place) = (0, 0);
    while place < sizes.len() {
        if sizes[place] > largest {
            largest = sizes[place];
        }
        place += 1;
    }
    largest
};

//! One point: which series, what value, what time.

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, DataPointFlags, NumberDataPoint, Sum,
};

use super::{Series, attribute, text};
use crate::catalog::{Kind, Metric};
use crate::minute::ALL_SECONDS;
use crate::otlp::limits::{Limits, Reject};
use crate::otlp::meaning::{self, Dialect, Meaning};
use crate::otlp::{HW_TYPE_GPU, HW_TYPE_KEY, MISSING_REASON};
use crate::sample::Missing;
use crate::tick::{MAX_TICK_SECONDS, PointValue};
use crate::time::{NANOS_PER_SECOND, Timestamp};

/// What form of OTLP metric the points came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Gauge,
    /// A cumulative sum that only grows.
    Counter,
    /// A cumulative sum that goes both ways: a gauge for us.
    UpDownCounter,
    /// A sum since the request before, or one that does not say since when.
    Delta,
}

/// How a sent number becomes ours.
pub(super) enum Conversion {
    Times(f64),
    Through(f64),
}

impl Shape {
    pub(super) fn of_sum(sum: &Sum) -> Self {
        if sum.aggregation_temporality != AggregationTemporality::Cumulative as i32 {
            Self::Delta
        } else if sum.is_monotonic {
            Self::Counter
        } else {
            Self::UpDownCounter
        }
    }

    /// Whether metrics of this meaning may come in this form.
    pub(super) fn check(self, meaning: &Meaning) -> Result<(), Reject> {
        // Metrics that share a name share their kind; a test of the names sees to it.
        let is_counter = meaning.metrics[0].kind == Kind::Counter;
        match (self, meaning.dialect) {
            (Self::Delta, _) => Err(Reject::DeltaCounter),
            // dcgm-exporter types rates as counters and totals as gauges.
            (_, Dialect::Dcgm { .. }) => Ok(()),
            (Self::Counter, Dialect::Otlp) if is_counter => Ok(()),
            (Self::Gauge | Self::UpDownCounter, _) if !is_counter => Ok(()),
            _ => Err(Reject::WrongType),
        }
    }
}

impl Series<'_> {
    /// Which of the metrics that share this name a point is of.
    pub(super) fn metric(&self, attributes: &[KeyValue]) -> Result<&'static Metric, Reject> {
        if let Dialect::Dcgm { .. } = self.meaning.dialect {
            return Ok(self.meaning.metrics[0]);
        }
        let is_hardware = self.name.starts_with("hw.");
        if is_hardware && text(attributes, HW_TYPE_KEY).is_some_and(|it| it != HW_TYPE_GPU) {
            return Err(Reject::OtherHardware);
        }
        let wanted = |metric: &Metric| metric.otlp.map_or(&[][..], |otlp| otlp.attributes);
        let found = self.meaning.metrics.iter().copied().find(|metric| {
            wanted(metric)
                .iter()
                .all(|(key, value)| text(attributes, key) == Some(value))
        });
        found
            .or_else(|| {
                let default = self.meaning.default?;
                let says_none = |(key, _): &(&str, &str)| attribute(attributes, key).is_none();
                wanted(default).iter().all(says_none).then_some(default)
            })
            .ok_or(Reject::UnknownSeries)
    }

    pub(super) fn conversion(&self, metric: &Metric) -> Result<Conversion, Reject> {
        match self.meaning.dialect {
            Dialect::Dcgm { scale } => Ok(Conversion::Through(scale)),
            Dialect::Otlp | Dialect::Max => meaning::unit_scale(metric, self.unit)
                .map(Conversion::Times)
                .ok_or(Reject::WrongUnit),
        }
    }
}

impl Conversion {
    fn apply(&self, number: f64) -> f64 {
        match self {
            Self::Times(factor) => number * factor,
            Self::Through(divisor) => number / divisor,
        }
    }
}

/// When the point's tick began and ended.
pub(super) fn times(
    metric: &Metric,
    point: &NumberDataPoint,
    limits: &Limits,
) -> Result<(Timestamp, Timestamp), Reject> {
    let at = time(point.time_unix_nano)?;
    if at < limits.earliest || at > limits.latest {
        return Err(Reject::TimeOutOfRange);
    }
    let start = match point.start_time_unix_nano {
        0 if metric.kind != Kind::SecondBits => at,
        nanos => time(nanos)?,
    };
    if start > at {
        return Err(Reject::TimeOutOfRange);
    }
    match metric.kind {
        Kind::Counter => Ok((at, at)),
        Kind::SecondBits => {
            let longest = i64::from(MAX_TICK_SECONDS) * NANOS_PER_SECOND;
            let is_tick = (1..=longest).contains(&at.since(start));
            is_tick.then_some((start, at)).ok_or(Reject::TimeOutOfRange)
        }
        Kind::Gauge | Kind::Last => Ok((start, at)),
    }
}

/// What the point says, in the metric's base unit.
pub(super) fn value(
    metric: &Metric,
    point: &NumberDataPoint,
    conversion: &Conversion,
) -> Result<PointValue, Reject> {
    if point.flags & DataPointFlags::NoRecordedValueMask as u32 != 0 {
        let reason = text(&point.attributes, MISSING_REASON).and_then(Missing::parse);
        return Ok(PointValue::Missing(reason.unwrap_or(Missing::Unknown)));
    }
    if metric.kind == Kind::SecondBits {
        return match point.value {
            Some(Number::AsInt(bits)) => u64::try_from(bits)
                .ok()
                .filter(|bits| bits & !ALL_SECONDS == 0)
                .map(PointValue::SecondBits)
                .ok_or(Reject::BadBits),
            _ => Err(Reject::WrongType),
        };
    }
    let number = match point.value {
        Some(Number::AsDouble(number)) => number,
        Some(Number::AsInt(number)) => number as f64,
        None => return Err(Reject::WrongType),
    };
    let value = conversion.apply(number);
    if value.is_nan() {
        return Err(Reject::NotANumber);
    }
    if value.is_infinite() {
        return Err(Reject::Infinite);
    }
    if metric.kind != Kind::Counter {
        return Ok(PointValue::Gauge { value, max: None });
    }
    if value < 0.0 {
        return Err(Reject::NegativeCounter);
    }
    // Without a start nobody knows since when it counts: 0, as long ago as can be.
    let since = time(point.start_time_unix_nano).unwrap_or_default();
    Ok(PointValue::Counter { value, since })
}

/// OTLP's unsigned nanoseconds as ours; 0 means that there are none.
pub(super) fn time(nanos: u64) -> Result<Timestamp, Reject> {
    match i64::try_from(nanos) {
        Ok(nanos) if nanos > 0 => Ok(Timestamp(nanos)),
        _ => Err(Reject::TimeOutOfRange),
    }
}

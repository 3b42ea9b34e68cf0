//! The curves of a GPU's page: what is drawn, on which scale, and the words beside it.

use std::collections::BTreeMap;
use std::ops::Range;

use gpufleet_telemetry::catalog::{Metric, Unit, gpu};
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::Minute;

use super::draw::{self, Column, Curve};
use crate::fleet::live::Live;
use crate::words::text::quantity;
use crate::words::{self, plain_name};

/// Minutes at the end of the range that may simply not be stored yet: the one that runs, and one
/// until the next commit.
const NOT_YET_STORED: usize = 2;

/// A curve with its words.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// What it is.
    pub name: String,
    /// What it means.
    pub help: &'static str,
    /// The curve.
    pub curve: Curve,
    /// Least, mean and greatest, or why there is nothing.
    pub words: String,
    /// The top of the scale.
    pub top: String,
    /// Whether there is no point at all.
    pub is_empty: bool,
}

/// What is drawn, with a full scale where the metric has one by nature.
const DRAWN: [(Metric, Option<f64>); 5] = [
    (gpu::UTILIZATION, Some(1.0)),
    (gpu::TENSOR_ACTIVE, Some(1.0)),
    (gpu::POWER, None),
    (gpu::TEMPERATURE, Some(100.0)),
    (gpu::MEMORY_USED, None),
];

/// Draws every curve of `range`.
pub fn series(
    live: Option<&Live>,
    minutes: &BTreeMap<Minute, MinuteRow>,
    range: &Range<Minute>,
) -> Vec<Series> {
    DRAWN
        .iter()
        .map(|(metric, full)| {
            let mut columns = columns(metric, minutes, range);
            trim_end(&mut columns);
            let full = full.or_else(|| installed(metric, live));
            one(metric, &columns, full, live)
        })
        .collect()
}

/// One column per minute; a minute without a point is none.
fn columns(
    metric: &Metric,
    minutes: &BTreeMap<Minute, MinuteRow>,
    range: &Range<Minute>,
) -> Vec<Option<Column>> {
    (range.start.0..range.end.0)
        .map(|minute| {
            let it = minutes.get(&Minute(minute))?.metrics.get(&metric.id)?;
            (it.count > 0).then_some(Column {
                count: it.count,
                sum: it.sum,
                least: it.min,
                greatest: it.max,
            })
        })
        .collect()
}

/// Leaves out the last minutes where they are not stored yet; a longer silence stays and is hatched.
fn trim_end(columns: &mut Vec<Option<Column>>) {
    let silent = columns.iter().rev().take_while(|it| it.is_none()).count();
    if silent <= NOT_YET_STORED {
        columns.truncate(columns.len() - silent);
    }
}

/// The limit that the card itself has for a metric: its memory, its power limit.
fn installed(metric: &Metric, live: Option<&Live>) -> Option<f64> {
    let limit = match metric.id {
        id if id == gpu::MEMORY_USED.id => gpu::MEMORY_TOTAL,
        id if id == gpu::POWER.id => gpu::POWER_LIMIT,
        _ => return None,
    };
    live?.value(limit.id)?.reading.ok().filter(|it| *it > 0.0)
}

fn one(
    metric: &Metric,
    minutes: &[Option<Column>],
    full: Option<f64>,
    live: Option<&Live>,
) -> Series {
    let columns = draw::bucketed(minutes, draw::minutes_per_bucket(minutes.len()));
    let whole = minutes.iter().flatten().copied().reduce(Column::joined);
    let greatest = whole.map_or(0.0, |it| it.greatest);
    let top = full.unwrap_or(0.0).max(greatest);
    let top = if top > 0.0 { top } else { 1.0 };
    let words = match whole {
        Some(it) => format!(
            "{} to {}, mean {}",
            quantity(metric.unit, it.least),
            quantity(metric.unit, it.greatest),
            quantity(metric.unit, it.mean())
        ),
        None => nothing(metric, live),
    };
    Series {
        name: plain_name(metric),
        help: metric.help,
        curve: draw::curve(&columns, 0.0, top),
        words,
        top: if metric.unit == Unit::Ratio {
            "100 %".to_owned()
        } else {
            quantity(metric.unit, top)
        },
        is_empty: whole.is_none(),
    }
}

/// Why a curve has no point: what the reading says now, or that nothing was stored.
fn nothing(metric: &Metric, live: Option<&Live>) -> String {
    let reason = live
        .and_then(|live| live.value(metric.id))
        .map(|value| value.reading);
    match reason {
        Some(Err(reason)) => words::missing(reason).short.to_owned(),
        Some(Ok(_)) => "nothing stored in this time".to_owned(),
        None => words::NEVER_SENT.short.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::minute::Aggregate;

    use super::*;

    fn stored(values: &[Option<f64>]) -> BTreeMap<Minute, MinuteRow> {
        let row = |value: f64| {
            let mut row = MinuteRow::default();
            row.metrics.insert(
                gpu::POWER.id,
                Aggregate {
                    count: 6,
                    sum: value * 6.0,
                    min: value,
                    max: value,
                },
            );
            row
        };
        (0..)
            .zip(values)
            .filter_map(|(minute, value)| Some((Minute(minute), row((*value)?))))
            .collect()
    }

    fn power(values: &[Option<f64>]) -> Series {
        let end = i64::try_from(values.len()).expect("few");
        let all = series(None, &stored(values), &(Minute(0)..Minute(end)));
        all.into_iter()
            .find(|it| it.name == "power")
            .expect("power is drawn")
    }

    #[test]
    fn minutes_without_points_are_gaps_and_do_not_lower_the_mean() {
        let drawn = power(&[Some(100.0), None, None, None, Some(300.0)]);
        assert_eq!(drawn.words, "100 W to 300 W, mean 200 W");
        assert_eq!(drawn.curve.gaps, [draw::Gap { from: 1, width: 3 }]);
    }

    #[test]
    fn the_minute_that_is_not_stored_yet_is_no_gap_but_silence_is() {
        let values = [Some(100.0), Some(100.0), None, None];
        assert_eq!(power(&values).curve.gaps, []);
        let longer = [Some(100.0), None, None, None];
        assert_eq!(power(&longer).curve.gaps, [draw::Gap { from: 1, width: 3 }]);
    }

    #[test]
    fn a_metric_that_nobody_reports_says_so() {
        let all = series(None, &stored(&[Some(1.0)]), &(Minute(0)..Minute(1)));
        let tensor = all
            .iter()
            .find(|it| it.name == "tensor active")
            .expect("it is drawn");
        assert_eq!(
            (tensor.words.as_str(), tensor.is_empty),
            ("not reported", true)
        );
    }
}

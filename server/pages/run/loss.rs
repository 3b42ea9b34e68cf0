//! The curve of the loss on the job page: the rank that stands for the run, minute by minute.

use std::collections::BTreeMap;
use std::ops::Range;

use gpufleet_telemetry::catalog::training;
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::{Minute, Timestamp};

use crate::pages::draw::{self, Column};
use crate::pages::series::Series;

/// As many minutes as a range of time has, up to the one in which it ends: the one that runs, or in which the run ended.
pub(super) fn minutes(range: &Range<Timestamp>) -> Range<Minute> {
    Minute(range.start.minute().0 + 1)..Minute(range.end.minute().0 + 1)
}

/// The curve, with what it shows in words.
pub(super) fn series(rows: &BTreeMap<Minute, MinuteRow>, minutes: Range<Minute>) -> Series {
    let column = |minute: i64| {
        let it = rows.get(&Minute(minute))?.metrics.get(&training::LOSS.id)?;
        (it.count > 0).then_some(Column {
            count: it.count,
            sum: it.sum,
            least: it.min,
            greatest: it.max,
        })
    };
    let columns: Vec<_> = (minutes.start.0..minutes.end.0).map(column).collect();
    let whole = columns.iter().flatten().copied().reduce(Column::joined);
    let columns = draw::bucketed(&columns, draw::minutes_per_bucket(columns.len()));
    let (least, greatest) = whole.map_or((0.0, 1.0), |it| (it.least, it.greatest));
    let top = if greatest > least {
        greatest
    } else {
        least + 1.0
    };
    Series {
        name: "loss".to_owned(),
        help: training::LOSS.help,
        curve: draw::curve(&columns, least, top),
        words: whole.map_or_else(
            || "nothing stored in this time".to_owned(),
            |it| format!("{least:.4} to {greatest:.4}, mean {:.4}", it.mean()),
        ),
        top: format!("{greatest:.4}"),
        is_empty: whole.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::minute::Aggregate;

    use super::*;

    #[test]
    fn the_minute_in_which_the_run_ended_is_drawn_and_counted_in_the_words() {
        let end = Timestamp::from_seconds(1_790_000_400 + 30);
        let range = end.shifted(-30 * 60 * 1_000_000_000)..end;
        let minutes = minutes(&range);
        assert_eq!(minutes.end.0 - minutes.start.0, 30);
        let row = |loss: f64| {
            let mut row = MinuteRow::default();
            let told = Aggregate {
                count: 3,
                sum: loss * 3.0,
                min: loss,
                max: loss,
            };
            row.add(training::LOSS.id, told);
            row
        };
        let before = Minute(minutes.start.0 - 1);
        let last = Minute(minutes.end.0 - 1);
        assert_eq!(last, end.minute());
        let rows = [(before, row(9.0)), (last, row(0.5))].into();
        let series = series(&rows, minutes);
        assert_eq!(series.words, "0.5000 to 0.5000, mean 0.5000");
        assert_eq!(series.curve.columns, 30);
        let gap = draw::Gap { from: 0, width: 29 };
        assert_eq!(series.curve.gaps, [gap]);
        assert!(series.curve.line.starts_with("M29 "), "{:?}", series.curve);
    }
}

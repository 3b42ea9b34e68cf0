//! Ranges, cursors and counters of the past.

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::minute::{Aggregate, Counter};

use super::*;

const NOW: Timestamp = Timestamp::from_seconds(1_790_000_000);

fn range(from: Option<&str>, to: Option<&str>) -> Result<(Timestamp, Timestamp), Problem> {
    let asked = RangeAsked {
        from: from.map(str::to_owned),
        to: to.map(str::to_owned),
    };
    asked.resolve(NOW, 1, 48)
}

#[test]
fn a_range_has_defaults_and_a_greatest_length() {
    let (from, to) = range(None, None).expect("the default is good");
    assert_eq!((from, to), (NOW.shifted(-3_600_000_000_000), NOW));
    assert!(range(Some("2026-09-19T00:00:00Z"), Some("2026-09-21T00:00:00Z")).is_ok());
    for (from, to) in [
        ("2026-09-18T23:59:59Z", "2026-09-21T00:00:00Z"),
        ("2026-09-21T00:00:00Z", "2026-09-21T00:00:00Z"),
        ("2026-09-22T00:00:00Z", "2026-09-21T00:00:00Z"),
        ("yesterday", "2026-09-21T00:00:00Z"),
        ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"),
    ] {
        assert!(range(Some(from), Some(to)).is_err(), "{from} {to}");
    }
}

#[test]
fn a_counter_grows_from_minute_to_minute_and_a_gauge_has_a_mean() {
    let mut meter = Meter::default();
    let mut known = |raw: f64| {
        let mut row = MinuteRow::default();
        let counter = Counter::point(raw, 0, 60_000).expect("finite");
        row.add_counter(gpu::ENERGY.id, &counter);
        let point = Aggregate::of_gauge(300.0, None).expect("finite");
        row.add(gpu::POWER.id, point);
        minute(Minute(0), &row, &mut meter).metrics
    };
    for (raw, growth) in [(100.0, 0.0), (140.0, 40.0), (7.0, 7.0)] {
        let metrics = known(raw);
        let energy = &metrics[&metric_name(gpu::ENERGY.id)];
        assert_eq!((energy.growth, energy.last), (Some(growth), Some(raw)));
        assert_eq!((energy.mean, energy.max), (None, None));
        let power = &metrics[&metric_name(gpu::POWER.id)];
        assert_eq!((power.mean, power.growth), (Some(300.0), None));
    }
}

#[test]
fn a_cursor_of_events_cannot_overflow() {
    assert!(place("1790000000000/7").is_ok());
    for cursor in ["9223372036854775807/1", "x/1", "1", ""] {
        assert!(place(cursor).is_err(), "{cursor}");
    }
}

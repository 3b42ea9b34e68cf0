//! What is packed comes back as it was, and what is not a row is named.

use proptest::prelude::*;

use super::super::Counter;
use super::super::tests::row;
use super::*;

/// Any finite numbers, also those that no point leads to.
fn any_row() -> impl Strategy<Value = MinuteRow> {
    let finite = || any::<f64>().prop_filter("finite", |value| value.is_finite());
    let flat = (1_u32..200, finite()).prop_map(|(count, value)| (count, value, value, value));
    let spread = (1_u32.., finite(), finite(), finite());
    let aggregate = prop_oneof![flat, spread].prop_map(|(count, sum, min, max)| Aggregate {
        count,
        sum,
        min,
        max,
    });
    let metrics = proptest::collection::btree_map(any::<u16>(), aggregate, 0..40);
    (row(0), metrics).prop_map(|(mut row, metrics)| {
        row.metrics
            .extend(metrics.into_iter().map(|(id, it)| (MetricId(id), it)));
        row
    })
}

proptest! {
    #[test]
    fn a_packed_row_unpacks_to_itself(row in any_row()) {
        let bytes = row.pack();
        prop_assert!(bytes.len() <= MAX_PACKED_BYTES);
        prop_assert_eq!(MinuteRow::unpack(&bytes), Ok(row));
    }

    #[test]
    fn any_bytes_unpack_to_a_row_or_an_error(mut bytes: Vec<u8>, with_version: bool) {
        if let (true, Some(first)) = (with_version, bytes.first_mut()) {
            *first = VERSION;
        }
        if let Ok(row) = MinuteRow::unpack(&bytes) {
            prop_assert_eq!(MinuteRow::unpack(&row.pack()), Ok(row));
        }
    }

    #[test]
    fn a_cut_row_is_an_error(row in row(1), cut in 1_usize..30) {
        let bytes = row.pack();
        let kept = bytes.len().saturating_sub(cut);
        prop_assert!(MinuteRow::unpack(&bytes[..kept]).is_err());
    }
}

#[test]
fn what_is_wrong_is_named() {
    use UnpackError::{Empty, NotFinite, OutOfRange, Trailing, Truncated, Version};
    let check = |bytes: &[u8], expected: UnpackError| {
        assert_eq!(MinuteRow::unpack(bytes), Err(expected), "{bytes:?}");
    };
    check(&[], Empty);
    check(&[9], Version { found: 9 });
    let what = "bitmap codes";
    check(&[2], Truncated { what, at: 1 });
    check(&[2, 0x80, 0x40], OutOfRange { what, at: 3 });
    let what = "bitmap code of observed";
    check(&[2, 2, 0, 0], OutOfRange { what, at: 2 });
    let what = "number of metrics";
    check(&[2, 0, 6, 0x81, 0x04], OutOfRange { what, at: 5 });
    let what = "step between metric numbers";
    check(&[2, 0, 6, 1, 0, 0], OutOfRange { what, at: 5 });
    let what = "metric number";
    check(
        &[2, 0, 6, 1, 0xff, 0xff, 0xff, 1, 0],
        OutOfRange { what, at: 8 },
    );
    let what = "common count";
    check(&[2, 0, 0, 1, 8, 0], OutOfRange { what, at: 5 });
    let what = "count";
    check(&[2, 0, 6, 1, 12, 0, 0], OutOfRange { what, at: 6 });
    let what = "count of added values";
    check(&[2, 0, 61, 1, 9, 0], OutOfRange { what, at: 6 });
    let what = "value";
    check(&[2, 0, 6, 1, 8, 0x80], Truncated { what, at: 6 });
    // Eleven bytes of a number, and a number that is longer than it needs to be.
    check(
        &[[2, 0, 6, 1, 8].as_slice(), &[0xff; 11]].concat(),
        OutOfRange { what, at: 15 },
    );
    check(&[2, 0, 6, 1, 8, 0x80, 0], OutOfRange { what, at: 7 });
    check(&[2, 0, 6, 1, 8, 0xfe, 0x1f], NotFinite { metric: 0 });
    check(&[2, 0, 0, 0, 0, 7, 7], Trailing { left: 2 });
}

#[test]
fn a_minute_in_one_pair_of_hands_takes_a_few_bytes_more_and_what_is_wrong_with_holders_is_named() {
    let mut row = typical_row();
    let without = row.pack();
    assert_eq!(without[0], WITHOUT_HOLDERS);
    row.hold(i64::MAX, row.bitmaps.held);
    let with = row.pack();
    assert_eq!(with.len(), without.len() + 1 + 9 + 1);
    assert_eq!(MinuteRow::unpack(&with), Ok(row));
    let check = |holders: &[u8], what| {
        let bytes = [[3, 0, 6, 0, 0].as_slice(), holders].concat();
        let error = UnpackError::OutOfRange {
            what,
            at: bytes.len(),
        };
        assert_eq!(MinuteRow::unpack(&bytes), Err(error), "{bytes:?}");
    };
    check(&[0], "number of holders");
    check(&[61], "number of holders");
    check(&[1, 0], "step between holders");
    check(&[1, 7, 0], "seconds of a holder");
}

#[test]
fn what_is_wrong_with_a_counter_is_named() {
    use UnpackError::{NotFinite, OutOfRange};
    let check = |counters: &[u8], expected: UnpackError| {
        let bytes = [[2, 0, 6, 0].as_slice(), counters].concat();
        assert_eq!(MinuteRow::unpack(&bytes), Err(expected), "{bytes:?}");
    };
    let what = "number of counters";
    check(&[0x81, 4], OutOfRange { what, at: 6 });
    let what = "moment of a counter";
    check(&[1, 20, 0], OutOfRange { what, at: 7 });
    // 1,000 ms that are not written as a second, and a moment after ten minutes.
    check(&[1, 0, 0xd1, 0x0f], OutOfRange { what, at: 8 });
    check(&[1, 0, 0xb2, 9], OutOfRange { what, at: 8 });
    let what = "step between metric numbers";
    check(&[1, 0, 20, 8], OutOfRange { what, at: 8 });
    let what = "value of a counter";
    check(&[1, 0, 20, 16, 1], OutOfRange { what, at: 9 });
    check(
        &[
            1, 0, 20, 17, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f,
        ],
        NotFinite { metric: 0 },
    );
    let what = "number of runs";
    check(&[1, 0, 20, 19, 0, 0, 0, 32], OutOfRange { what, at: 12 });
    let what = "order of runs";
    check(
        &[1, 0, 20, 19, 0, 0, 0, 1, 20, 40, 0, 0, 0],
        OutOfRange { what, at: 14 },
    );
}

#[test]
fn a_row_of_version_1_is_read_without_its_counters() {
    let row = MinuteRow::unpack(&[1, 0, 6, 2, 0xf8, 1, 0, 24, 0]).expect("a row of version 1");
    let names: Vec<_> = row.metrics.keys().copied().collect();
    assert_eq!(names, [crate::catalog::gpu::POWER.id]);
    assert!(row.counters.is_empty());
}

/// One H200 in training: what the catalog keeps of it, as six ticks of a minute tell it.
fn typical_row() -> MinuteRow {
    use crate::catalog::{Kind, Unit, gpu};
    let mut row = MinuteRow::default();
    for (metric, bits) in [(1, ALL_SECONDS), (2, ALL_SECONDS >> 3), (4, ALL_SECONDS)] {
        row.bitmaps.set(MetricId(metric), bits);
    }
    row.bitmaps.set(gpu::HOLDER_KNOWN.id, ALL_SECONDS);
    let kept = gpu::ALL
        .iter()
        .filter(|it| it.in_minutes && it.kind != Kind::SecondBits);
    let mut varying = 0;
    for metric in kept {
        let varies = varying < 12 && metric.kind == Kind::Gauge || metric.id == gpu::ENERGY.id;
        varying += u32::from(varies);
        for tick in 0..6 {
            // Ten one-second samples in the unit the driver gives (mW, percent, °C, MiB).
            let step = if metric.unit == Unit::Ratio {
                0.01
            } else {
                0.001
            };
            let sample =
                |second: i32| f64::from(57_000 + (tick * 7_919 + second * 104_729) % 3_001) * step;
            let mean = (0..10).map(sample).sum::<f64>() / 10.0;
            if metric.kind == Kind::Counter {
                let raw = if varies {
                    8.1e9 + f64::from(tick) * 6_987.123
                } else {
                    0.0
                };
                let from = tick.unsigned_abs() * 10_000;
                let point = Counter::point(raw, from, from + 10_000).expect("finite");
                row.add_counter(metric.id, &point);
                continue;
            }
            let point = if varies {
                Aggregate::of_gauge(mean, metric.with_max.then(|| sample(9).max(mean)))
            } else {
                Aggregate::of_gauge(700.0, None)
            };
            row.add(metric.id, point.expect("finite"));
        }
    }
    assert_eq!(varying, 12);
    row
}

#[test]
fn every_metric_that_is_kept_with_12_varying_fits_300_bytes() {
    let bytes = typical_row().pack().len();
    assert!(bytes <= 300, "{bytes} bytes, {} a GPU-day", bytes * 1440);
}

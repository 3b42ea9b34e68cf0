//! Counters of one GPU: what is read once, goes, comes back, bursts and rests.

use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::sample::{Missing, Reading};
use gpufleet_telemetry::time::NANOS_PER_SECOND;

use super::*;
use crate::view::fixture::{self, Does, NOW};

fn at(seconds: i64) -> Timestamp {
    NOW.shifted(seconds * NANOS_PER_SECOND)
}

/// A GPU with one reading of one counter.
fn live(metric: &Metric, reading: Reading, seconds: i64) -> Live {
    let mut live = fixture::gpu("prod", "node-1", 0, Does::Work, Origin::Live);
    live.values = vec![LiveValue {
        metric: metric.id,
        part: None,
        reading,
        max: None,
        at: at(seconds),
    }];
    live
}

fn read(watch: &mut Watch, metric: &Metric, value: f64, seconds: i64) -> Rates {
    watch.read(&live(metric, Ok(value), seconds), None, at(seconds))
}

#[test]
fn a_counter_that_was_read_once_is_not_known_and_one_that_is_gone_is_not_0() {
    let mut watch = Watch::default();
    let metric = &gpu::THROTTLE_POWER;
    assert_eq!(read(&mut watch, metric, 5.0, 0).cap_part, None);
    assert_eq!(read(&mut watch, metric, 5.0, 10).cap_part, Some(0.0));
    let gone = live(metric, Err(Missing::NotSupported), 20);
    assert_eq!(watch.read(&gone, None, at(140)).cap_part, None);
    assert_eq!(
        read(&mut watch, metric, 9.0, 150).cap_part,
        None,
        "what lies between is not known"
    );
    assert_eq!(read(&mut watch, metric, 9.0, 160).cap_part, Some(0.0));
}

#[test]
fn counters_are_found_among_all_readings_of_a_gpu() {
    assert!(COUNTED.is_sorted_by_key(|it| it.id));
    let mut whole = live(&gpu::POWER, Ok(0.0), 0);
    let of = |metric: &Metric| LiveValue {
        metric: metric.id,
        ..whole.values[0].clone()
    };
    let mut values: Vec<LiveValue> = gpu::ALL.iter().map(of).collect();
    values.sort_by_key(|it| it.metric);
    for (place, value) in values.iter_mut().enumerate() {
        value.reading = Ok(place as f64);
    }
    values.retain(|it| it.metric != gpu::THROTTLE_BOARD_LIMIT.id);
    whole.values = values;
    let expected = COUNTED.map(|it| reading(&whole, it));
    assert_eq!(expected.iter().flatten().count(), 5);
    assert_eq!(readings(&whole, COUNTED), expected);
}

#[test]
fn slowdowns_that_come_again_and_again_are_a_rate_and_one_that_is_over_is_none() {
    let mut watch = Watch::default();
    let metric = &gpu::HARDWARE_SLOWDOWNS;
    let at = |watch: &mut Watch, seconds: i64, every: i64| {
        let count = (seconds / every) as f64;
        read(watch, metric, count, seconds).slowdowns_per_minute
    };
    let mut last = None;
    for seconds in (0..1_200).step_by(10) {
        last = at(&mut watch, seconds, 40);
    }
    let often = last.expect("it is known");
    assert!((1.2..1.8).contains(&often), "one each 40 s: {often}");
    let one = read(&mut Watch::default(), metric, 1.0, 0);
    assert_eq!(one.slowdowns_per_minute, None, "nobody knows when that was");
    for seconds in (1_200..1_330).step_by(10) {
        last = read(&mut watch, metric, 29.0, seconds).slowdowns_per_minute;
    }
    assert_eq!(last, Some(0.0));
}

#[test]
fn a_flurry_of_slowdowns_in_one_tick_is_one_time() {
    let mut watch = Watch::default();
    let metric = &gpu::HARDWARE_SLOWDOWNS;
    let mut most: f64 = 0.0;
    for seconds in (0..600).step_by(10) {
        let count = if seconds < 100 { 0.0 } else { 40.0 };
        let told = read(&mut watch, metric, count, seconds).slowdowns_per_minute;
        most = most.max(told.unwrap_or(0.0));
    }
    assert_eq!(most, 0.2, "one time in five minutes");
    // Four times in five minutes are too often, three are not.
    for (times, expected) in [(3, 0.6), (4, 0.8)] {
        let mut watch = Watch::default();
        let mut last = None;
        for seconds in (0..300).step_by(10) {
            let count = (seconds / 70).min(times) as f64;
            last = read(&mut watch, metric, count, seconds).slowdowns_per_minute;
        }
        let last = last.expect("it is known");
        assert!((last - expected).abs() < 1e-9, "{times}: {last}");
    }
}

/// What comes one time in five minutes more often than the least threshold that can be set is told at every tick: one
/// time is not over before the next.
#[test]
fn what_is_above_the_least_threshold_that_can_be_set_does_not_come_and_go() {
    let known = crate::detect::tuned::THRESHOLDS.iter();
    let mut known = known.filter(|it| it.key == "slowdowns_per_minute");
    let least = *known.next().expect("it can be set").range.start();
    let gap_s = (60.0 / (least + 0.2)).round() as i64;
    let (mut watch, metric) = (Watch::default(), &gpu::HARDWARE_SLOWDOWNS);
    for seconds in (0..3_600).step_by(10) {
        let count = (seconds / gap_s) as f64;
        let told = read(&mut watch, metric, count, seconds).slowdowns_per_minute;
        let is_told = told.is_some_and(|it| it > least);
        assert!(is_told || seconds < 400, "{told:?} at {seconds}");
    }
}

#[test]
fn errors_are_counted_over_an_hour_and_no_burst_is_a_rate() {
    let mut watch = Watch::default();
    let metric = &gpu::ECC_CORRECTED_VOLATILE;
    read(&mut watch, metric, 0.0, 0);
    assert_eq!(read(&mut watch, metric, 6.0, 10).corrected, Some(6));
    // Two each 90 s are 80 an hour, and never rest for long enough to be forgotten.
    let mut watch = Watch::default();
    let mut last = Rates::default();
    for seconds in (0..7_200).step_by(10) {
        let errors = f64::from(seconds / 90 * 2);
        last = read(&mut watch, metric, errors, i64::from(seconds));
    }
    let count = last.corrected.expect("it is known");
    assert!((72..=80).contains(&count), "{count}");
    let mut later = last;
    for seconds in (7_200..10_900).step_by(10) {
        later = read(&mut watch, metric, 158.0, seconds);
    }
    assert_eq!(later.corrected, Some(0), "an hour without any");
}

#[test]
fn uncorrected_errors_are_over_when_the_card_was_healed_or_its_counter_began_anew() {
    let metric = &gpu::ECC_UNCORRECTED_VOLATILE;
    let mut watch = Watch::default();
    read(&mut watch, metric, 0.0, 0);
    assert_eq!(read(&mut watch, metric, 2.0, 10).uncorrected, Some(2));
    let healed = watch.read(&live(metric, Ok(2.0), 20), Some(at(15)), at(20));
    assert_eq!(healed.uncorrected, Some(0));
    assert_eq!(read(&mut watch, metric, 3.0, 30).uncorrected, Some(1));
    assert_eq!(read(&mut watch, metric, 0.0, 40).uncorrected, Some(0));
    assert_eq!(read(&mut watch, metric, 1.0, 50).uncorrected, Some(1));
    let gone = live(metric, Err(Missing::NotSupported), 60);
    assert_eq!(watch.read(&gone, None, at(60)).uncorrected, None);
}

#[test]
fn uncorrected_errors_stand_until_a_reset_also_for_a_server_that_begins_anew() {
    let metric = &gpu::ECC_UNCORRECTED_VOLATILE;
    let (mut before, mut anew) = (Watch::default(), Watch::default());
    read(&mut before, metric, 1.0, 0);
    read(&mut before, metric, 2.0, 60);
    for seconds in (120..100_000).step_by(60) {
        let known = read(&mut before, metric, 2.0, seconds);
        let lately = if seconds <= 3_660 { 2 } else { 0 };
        assert_eq!(known.uncorrected, Some(2), "at {seconds}");
        assert_eq!(known.uncorrected_lately, Some(lately), "at {seconds}");
    }
    let known = read(&mut anew, metric, 2.0, 100_000);
    assert_eq!(known.uncorrected, Some(2));
    assert_eq!(known.uncorrected_lately, Some(0), "nobody saw when");
    let whole = watched_whole(&mut anew, 100_060);
    assert_eq!(whole.uncorrected, Some(0));
}

/// The same card made whole before its counter began anew.
fn watched_whole(watch: &mut Watch, seconds: i64) -> Rates {
    let read = live(&gpu::ECC_UNCORRECTED_VOLATILE, Ok(2.0), seconds);
    watch.read(&read, Some(at(seconds - 5)), at(seconds))
}

#[test]
fn corrected_errors_far_apart_are_not_added_up() {
    let mut watch = Watch::default();
    let metric = &gpu::ECC_CORRECTED_VOLATILE;
    for seconds in (0..20_000).step_by(10) {
        let errors = f64::from(seconds / 3_300);
        let known = read(&mut watch, metric, errors, i64::from(seconds));
        let most = known.corrected.unwrap_or(0);
        assert!(most <= 2, "{most} of the last hour at {seconds}");
    }
}

#[test]
fn ticks_of_parts_of_a_second_rest_for_as_long_as_they_last() {
    let mut watch = Watch::default();
    let mut read = |value: i64, millis: i64| {
        let now = NOW.shifted(millis * (NANOS_PER_SECOND / 1_000));
        let mut live = live(&gpu::THROTTLE_THERMAL, Ok(value as f64), 0);
        live.values[0].at = now;
        watch.read(&live, None, now).heat_part
    };
    let tick_ms = 1_300;
    for tick in 0..100 {
        read(tick, tick * tick_ms);
    }
    for tick in 1..100 {
        let rested_ms = tick * tick_ms;
        let part = read(99, 99 * tick_ms + rested_ms).expect("it is known");
        match rested_ms {
            ..59_000 => assert!(part > 0.0, "after {rested_ms} ms"),
            61_000.. => assert_eq!(part, 0.0, "after {rested_ms} ms"),
            _ => {}
        }
    }
}

#[test]
fn of_errors_no_more_is_kept_than_of_none_when_they_are_over() {
    let mut watch = Watch::default();
    let (corrected, uncorrected) = (&gpu::ECC_CORRECTED_VOLATILE, &gpu::ECC_UNCORRECTED_VOLATILE);
    for metric in [corrected, uncorrected] {
        read(&mut watch, metric, 0.0, 0);
        read(&mut watch, metric, 6.0, 10);
    }
    assert!(watch.corrected.hour.is_some() && watch.uncorrected.some.is_some());
    for seconds in (20..3_700).step_by(10) {
        read(&mut watch, corrected, 6.0, seconds);
    }
    read(&mut watch, uncorrected, 0.0, 3_700);
    assert!(watch.corrected.hour.is_none() && watch.uncorrected.some.is_none());
}

//! Counters of one GPU: what is read once, goes, comes back, bursts and rests.

use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::sample::{Missing, Reading};
use gpufleet_telemetry::time::NANOS_PER_SECOND;

use super::at::TURN_MS;
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
    let troubled = watch.troubled.as_ref().expect("it made errors");
    assert_eq!(
        (troubled.corrected.count(), troubled.uncorrected.count()),
        (6, 6)
    );
    for seconds in (20..3_700).step_by(10) {
        read(&mut watch, corrected, 6.0, seconds);
    }
    assert!(watch.troubled.is_some(), "a reset is owed");
    read(&mut watch, uncorrected, 0.0, 3_700);
    assert!(watch.troubled.is_none());
}

/// What a counter of time says that grew by `part` of each ten seconds.
fn slowed(watch: &mut Watch, metric: &Metric, from: &mut (f64, i64), part: f64) -> Rates {
    from.0 += 10.0 * part;
    from.1 += 10;
    read(watch, metric, from.0, from.1)
}

#[test]
fn of_a_gpu_that_is_well_and_at_its_power_cap_no_more_is_kept() {
    let mut watch = Watch::default();
    let mut last = Rates::default();
    for seconds in (0..7_200).step_by(10) {
        let capped = 500.0 + seconds as f64 * 0.6;
        let mut both = live(&gpu::THROTTLE_POWER, Ok(capped), seconds);
        let heat = live(&gpu::THROTTLE_THERMAL, Ok(90.0), seconds);
        both.values.extend(heat.values);
        last = watch.read(&both, None, at(seconds));
        assert!(watch.troubled.is_none(), "at {seconds}");
    }
    assert_eq!((last.heat_part, last.heat_now), (Some(0.0), Some(0.0)));
    let [part, now] = [last.cap_part, last.cap_now].map(|it| it.expect("it is known"));
    assert!(
        (part - 0.6).abs() < 0.001 && (now - 0.6).abs() < 0.001,
        "{last:?}"
    );
}

#[test]
fn what_is_kept_of_heat_goes_within_58_minutes_of_its_end_and_not_before_it_is_forgotten() {
    for metric in [&gpu::THROTTLE_THERMAL, &gpu::THROTTLE_BOARD_LIMIT] {
        let (mut watch, mut from) = (Watch::default(), (0.0, 0));
        for _ in 0..360 {
            slowed(&mut watch, metric, &mut from, 1.0);
        }
        for after_s in (10..=3_600).step_by(10) {
            slowed(&mut watch, metric, &mut from, 0.0);
            let is_kept = watch.troubled.is_some();
            // e^(-t / 300 s) is 1e-5 after 3,454 s.
            match after_s {
                ..=3_440 => assert!(is_kept, "after {after_s} s"),
                3_480.. => assert!(!is_kept, "after {after_s} s"),
                _ => {}
            }
        }
    }
}

#[test]
fn heat_that_comes_back_goes_on_from_what_is_not_forgotten() {
    let (mut watch, mut from) = (Watch::default(), (0.0, 0));
    let metric = &gpu::THROTTLE_THERMAL;
    let mut last = Rates::default();
    for _ in 0..360 {
        last = slowed(&mut watch, metric, &mut from, 1.0);
    }
    assert!(last.heat_part.is_some_and(|it| it > 0.999), "{last:?}");
    for _ in 0..60 {
        last = slowed(&mut watch, metric, &mut from, 0.0);
    }
    assert_eq!(last.heat_part, Some(0.0), "it is over");
    let back = slowed(&mut watch, metric, &mut from, 1.0).heat_part;
    // Two memories ago, and ten seconds of it again.
    let (kept, weight) = ((-2.0_f64).exp(), 1.0 - (-10.0_f64 / 300.0).exp());
    let expected = kept + weight * (1.0 - kept);
    let back = back.expect("it is known");
    assert!((back - expected).abs() < 0.001, "{back} and not {expected}");
}

/// Two readings ten seconds apart, the second at this moment, and what they say.
fn two_until(watch: &mut Watch, metric: &Metric, until: Timestamp, values: [f64; 2]) -> Rates {
    let [_, last] = [(values[0], 10), (values[1], 0)].map(|(value, before_s)| {
        let now = until.shifted(-before_s * NANOS_PER_SECOND);
        let mut live = live(metric, Ok(value), 0);
        live.values[0].at = now;
        watch.read(&live, None, now)
    });
    last
}

#[test]
fn readings_on_both_sides_of_where_the_bits_of_a_time_begin_anew_are_joined() {
    let turn = Timestamp::from_millis((NOW.millis() / TURN_MS + 1) * TURN_MS);
    for metric in [&gpu::THROTTLE_THERMAL, &gpu::THROTTLE_POWER] {
        let told = [NOW, turn, turn.shifted(5 * NANOS_PER_SECOND)]
            .map(|until| two_until(&mut Watch::default(), metric, until, [100.0, 105.0]));
        let grew = told[0].heat_now.or(told[0].cap_now);
        assert!(grew.is_some_and(|it| it > 0.1), "{told:?}");
        assert_eq!(told, [told[0]; 3]);
    }
}

#[test]
fn a_counter_that_is_absent_for_weeks_is_joined_to_nothing_also_where_the_bits_of_its_time_seem_to_be()
 {
    let corrected = &gpu::ECC_CORRECTED_VOLATILE;
    // Ten seconds after the bits have turned once, twice and three times: 12, 25 and 37 days; and after 30 days.
    let turns = [1, 2, 3].map(|turns| turns * TURN_MS / 1_000 + 10);
    for (is_gone, away_s) in [true, false]
        .into_iter()
        .flat_map(|is_gone| turns.map(|it| (is_gone, it)))
        .chain([(true, 30 * 86_400), (false, 30 * 86_400)])
    {
        let mut watch = Watch::default();
        let known = two_until(&mut watch, corrected, NOW, [2.0, 5.0]);
        assert_eq!(known.corrected, Some(3));
        // Its metric is gone, or its agent and the last reading stands.
        let reading = if is_gone {
            Err(Missing::NotSupported)
        } else {
            Ok(5.0)
        };
        let absent = live(corrected, reading, 0);
        for seconds in (600..away_s).step_by(1_800) {
            let told = watch.read(&absent, None, at(seconds));
            assert_eq!(told.corrected, None, "after {seconds} s");
        }
        let told = read(&mut watch, corrected, 9.0, away_s);
        assert_eq!(told.corrected, None, "away for {away_s} s: {is_gone}");
        let told = read(&mut watch, corrected, 10.0, away_s + 10);
        assert_eq!(told.corrected, Some(1), "away for {away_s} s: {is_gone}");
    }
}

#[test]
fn readings_that_come_late_are_joined_and_those_ahead_of_now_are_known() {
    let mut watch = Watch::default();
    let mut read_at = |value: f64, at_s: i64, now_s: i64| {
        let live = live(&gpu::ECC_CORRECTED_VOLATILE, Ok(value), at_s);
        watch.read(&live, None, at(now_s)).corrected
    };
    for tick in 0..6 {
        let told = read_at(tick as f64, 100 * tick, 600 + 10 * tick);
        assert_eq!(told, None, "it is more than two minutes old");
    }
    assert_eq!(read_at(6.0, 600, 660), Some(6), "all were joined");
    assert_eq!(read_at(7.0, 675, 670), Some(7), "its clock is ahead");
    assert_eq!(read_at(7.0, 680, 682), Some(7));
}

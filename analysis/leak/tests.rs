//! Series that leak and series that only rise.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

const HOUR_NS: i64 = 3_600_000_000_000;
const CAPACITY: f64 = 80e9;
const HOURS: i64 = 24;

/// A day of minutes; `used` says the share of the capacity at an hour.
fn judged(seed: u64, noise: f64, used: impl Fn(f64) -> f64) -> Verdict {
    judged_by(&Thresholds::default(), seed, noise, used)
}

fn judged_by(by: &Thresholds, seed: u64, noise: f64, used: impl Fn(f64) -> f64) -> Verdict {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let readings: Vec<Reading> = (0..HOURS * 60)
        .map(|minute| {
            let share = used(minute as f64 / 60.0) + noise * random.random::<f64>();
            Reading {
                at: Timestamp(minute * 60_000_000_000),
                used_bytes: share * CAPACITY,
            }
        })
        .collect();
    let window = (Timestamp(0), Timestamp(HOURS * HOUR_NS));
    judge_by(&readings, window, CAPACITY, by)
}

#[test]
fn a_leak_is_judged_by_the_gates_that_are_set() {
    let leaks = |by: &Thresholds| {
        let verdict = judged_by(by, 1, 0.3, |hour| {
            0.2 + 0.012 * hour - 0.000_15 * hour * hour
        });
        matches!(verdict, Verdict::Leaks(_))
    };
    assert!(leaks(&Thresholds::default()));
    let gates: [fn(&mut Thresholds); 5] = [
        |by| by.z = 10.0,
        |by| by.tau = 0.95,
        |by| by.growth = 0.5,
        |by| by.third = 0.9,
        |by| by.jump = 0.05,
    ];
    for (gate, set) in gates.into_iter().enumerate() {
        let mut by = Thresholds::default();
        set(&mut by);
        assert!(!leaks(&by), "gate {gate}");
    }
}

#[test]
fn a_leak_is_found_with_its_rate_and_the_hours_that_are_left() {
    let Verdict::Leaks(leak) = judged(1, 0.05, |hour| 0.3 + 0.01 * hour) else {
        panic!("1 % an hour for a day is a leak");
    };
    assert!(
        (leak.bytes_per_hour / (0.01 * CAPACITY) - 1.0).abs() < 0.05,
        "{leak:?}"
    );
    // At the end 54 % are in use: 46 hours are left.
    assert!((leak.hours_left - 46.0).abs() < 3.0, "{leak:?}");
}

#[test]
fn what_rises_and_is_no_leak_is_steady() {
    type Shape = fn(f64) -> f64;
    let steady: [(&str, Shape); 5] = [
        ("flat", |_| 0.6),
        ("one jump", |hour| if hour > 12.0 { 0.7 } else { 0.3 }),
        ("a cache that fills", |hour| 0.8 - 0.5 * (-hour / 2.0).exp()),
        ("a day's tide", |hour| {
            0.5 + 0.2 * (hour * std::f64::consts::PI / 12.0).sin()
        }),
        ("below 2 %", |hour| 0.3 + 0.0007 * hour),
    ];
    for (name, used) in steady {
        assert_eq!(judged(2, 0.005, used), Verdict::Steady, "{name}");
    }
}

#[test]
fn what_is_given_back_within_each_bucket_does_not_hide_a_leak() {
    let sawtooth = |hour: f64| 0.2 + 0.008 * hour + 0.2 * (hour * 4.0).fract();
    assert!(matches!(judged(3, 0.01, sawtooth), Verdict::Leaks(_)));
}

#[test]
fn missing_readings_are_unknown_and_never_a_leak() {
    let end = Timestamp(HOURS * HOUR_NS);
    assert_eq!(judge(&[], Timestamp(0), end, CAPACITY), Verdict::Unknown);
    let rising = |hours: i64| -> Vec<Reading> {
        let reading = |it: i64| Reading {
            at: Timestamp(it * HOUR_NS / 2),
            used_bytes: it as f64 * 1e9,
        };
        (0..hours * 2).map(reading).collect()
    };
    assert_eq!(
        judge(&rising(12), Timestamp(0), end, CAPACITY),
        Verdict::Unknown
    );
    assert!(matches!(
        judge(&rising(24), Timestamp(0), end, CAPACITY),
        Verdict::Leaks(_)
    ));
    assert_eq!(judge(&rising(24), Timestamp(0), end, 0.0), Verdict::Unknown);
    assert_eq!(
        judge(&rising(24), end, Timestamp(0), CAPACITY),
        Verdict::Unknown
    );
    let broken = [Reading {
        at: Timestamp(0),
        used_bytes: f64::NAN,
    }; 500];
    assert_eq!(
        judge(&broken, Timestamp(0), end, CAPACITY),
        Verdict::Unknown
    );
}

#[test]
fn seeded_scores_by_rate_are_at_least_these_and_noise_is_no_leak() {
    for (per_hour, least) in [(0.005, 48), (0.01, 50), (0.03, 50)] {
        let found = (0..50)
            .filter(|seed| {
                let leak = |hour: f64| 0.1 + per_hour * hour;
                matches!(judged(*seed, 0.05, leak), Verdict::Leaks(_))
            })
            .count();
        assert!(found >= least, "{per_hour}: {found} of 50");
    }
    let false_alarms = (0..200)
        .filter(|seed| matches!(judged(*seed, 0.1, |_| 0.5), Verdict::Leaks(_)))
        .count();
    assert_eq!(false_alarms, 0);
}

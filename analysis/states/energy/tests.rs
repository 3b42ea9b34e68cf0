//! Energy beside the states: the counter's growth, neither more nor less.

use gpufleet_telemetry::minute::Counter;
use gpufleet_telemetry::time::Timestamp;

use super::super::tests::{HOUR, Piece, rows};
use super::super::{Accounted, Around, Carry, Hour, Policy, account};
use super::*;
use crate::ledger::State;

/// Two hours, the first half of each at work, whose counter says this at the end of each tick of 10 s
/// (seconds since [`HOUR`]).
fn hours(raw: impl Fn(i64) -> Option<f64>) -> [Accounted; 2] {
    let line = [
        (Piece::Active, 1_800),
        (Piece::Inactive, 1_800),
        (Piece::Active, 1_800),
        (Piece::Inactive, 1_800),
    ];
    let mut rows = rows(0, &line, Some(8e9));
    for end in (10..=7_200).step_by(10) {
        let into = u32::try_from((end - 1) % 60 + 1).expect("a second of a minute") * 1_000;
        let minute = Minute(HOUR * 60 + (end - 1) / 60);
        if let Some(raw) = raw(end) {
            let point = Counter::point(raw, into - 10_000, into).expect("finite");
            rows.entry(minute)
                .or_default()
                .add_counter(gpu::ENERGY.id, &point);
        }
    }
    let mut carry = Carry::default();
    [HOUR, HOUR + 1].map(|hour| {
        let asked = Hour {
            hour,
            minutes: &rows,
            health: &[],
            carry,
            until: Timestamp::from_seconds((HOUR + 2) * 3_600),
            around: &Around::default(),
        };
        let accounted = account(&asked, &Policy::default());
        carry = accounted.carry;
        accounted
    })
}

/// Joules and seconds of which they are known, of a state or of all.
fn energy(accounted: &Accounted, state: Option<State>) -> (i64, i64) {
    let mut sum = Energy::default();
    for ((_, of, _), held) in &accounted.held {
        if state.is_none_or(|it| it == *of) {
            sum.add(held.energy);
        }
    }
    (sum.millijoules / 1_000, sum.metered_millis / 1_000)
}

#[test]
fn each_second_has_what_the_counter_grew_by_in_it_across_hours_as_well() {
    // 700 W at work, 100 W parked, from a counter that has counted for long.
    let drawn = |end: i64| {
        let (hour, into) = (end / 3_600, end % 3_600);
        hour * 1_800 * 800 + into.min(1_800) * 700 + (into - 1_800).max(0) * 100
    };
    let [first, second] = hours(|end| Some(5e8 + drawn(end) as f64));
    // What was drawn before the first point of all nobody told.
    assert_eq!(energy(&first, None), (1_800 * 800 - 7_000, 3_590));
    assert_eq!(energy(&first, Some(State::Parked)), (180_000, 1_800));
    assert_eq!(energy(&second, None), (1_800 * 800, 3_600));
    assert_eq!(
        energy(&second, Some(State::ActiveUnrated)),
        (1_260_000, 1_800)
    );
}

#[test]
fn a_gpu_that_tells_no_energy_drew_what_is_not_known_and_not_nothing() {
    let [first, second] = hours(|_| None);
    for hour in [first, second] {
        assert!(hour.ledger.total_millis() > 0);
        let told: Vec<_> = hour.held.values().map(|it| it.energy.told()).collect();
        assert!(told.iter().all(Option::is_none), "{told:?}");
    }
    let [idle, _] = hours(|_| Some(7.0));
    assert_eq!(energy(&idle, None), (0, 3_590), "told, and none was drawn");
}

#[test]
fn a_reset_counts_from_zero_and_what_no_card_draws_is_left_out() {
    // Reset within an hour, and in the tick that crosses the hours.
    for reset in [1_000, 3_600] {
        let raw = |end: i64| 100.0 * (if end <= reset { end } else { end - reset }) as f64;
        let [first, second] = hours(|end| Some(raw(end)));
        let all = energy(&first, None).0 + energy(&second, None).0;
        assert_eq!(all, 719_000, "reset at {reset}");
    }
    let [first, _] = hours(|end| Some(100.0 * end as f64 + if end > 600 { 1e12 } else { 0.0 }));
    assert_eq!(energy(&first, None), (3_590 * 100 - 1_000, 3_580));
}

#[test]
fn a_pause_has_what_the_counter_grew_by_in_it_unless_it_was_long() {
    let pause = |from: i64, until: i64| {
        let [first, second] =
            hours(|end| (end <= from || end >= until).then_some(end as f64 * 50.0));
        (energy(&first, None).1, energy(&second, None).1)
    };
    assert_eq!(pause(1_000, 1_300), (3_590, 3_600));
    assert_eq!(
        pause(1_000, 1_310),
        (3_280, 3_600),
        "five minutes and a tick"
    );
    assert_eq!(pause(3_450, 3_750), (3_590, 3_600), "over the hour's end");
    assert_eq!(pause(3_450, 3_760), (3_440, 3_440));
}

//! Within a minute where a tick of ten seconds stands for a step: six slow ones on end, and nothing less.

use super::*;
use crate::robust::normal_above;

/// After how many ticks each is named of which rank 3 is slow in these; none in twenty.
fn named_after(source: Source, is_slow: fn(u64) -> bool) -> Option<u64> {
    const BEFORE: u64 = 60;
    let slower = |step: u64, rank: u32| match rank == 3 && step >= BEFORE && is_slow(step - BEFORE)
    {
        true => 0.2,
        false => 0.0,
    };
    let mut run = Run::new(source);
    run_steps(&mut run, 0..BEFORE, 16, 1, slower);
    assert_eq!(run.judge(), Verdict::default());
    (1..=20).find(|ticks| {
        let now = BEFORE + ticks - 1;
        run_steps(&mut run, now..now + 1, 16, 1, slower);
        let named = names(&run.judge());
        assert!(named.is_empty() || named == [3], "{named:?}");
        !named.is_empty()
    })
}

#[test]
fn six_slow_ticks_on_end_name_a_rank_and_of_steps_seven_of_ten() {
    for (source, expected) in [
        (Source::Collectives, 6),
        (Source::Telemetry, 6),
        (Source::Hooks, 7),
    ] {
        assert_eq!(named_after(source, |_| true), Some(expected), "{source:?}");
        let five = |tick: u64| tick < 5;
        assert_eq!(named_after(source, five), None, "{source:?}");
        // With one that is as fast as the others it takes seven of ten.
        let with_a_pause = |tick: u64| tick != 3;
        assert_eq!(named_after(source, with_a_pause), Some(8), "{source:?}");
    }
}

#[test]
fn six_on_end_come_by_chance_no_more_often_than_what_names_a_rank_otherwise() {
    let looks = WINDOWS[0] as f64 / IN_A_ROW as f64;
    let more = looks * normal_above(FIRE_Z + IN_A_ROW_Z) / normal_above(FIRE_Z);
    assert!(more < 0.01, "{more}");
    for slow in [0.01_f64, 0.02, 0.05, 0.1, 0.2] {
        let of_ten =
            |ticks: i32, ways: f64| ways * slow.powi(ticks) * (1.0 - slow).powi(10 - ticks);
        let seven = of_ten(7, 120.0) + of_ten(8, 45.0) + of_ten(9, 10.0) + of_ten(10, 1.0);
        assert!(slow.powi(6) < seven, "{slow}: {seven}");
    }
}

//! Losses that are far off between two rounds.

use super::*;

#[test]
fn a_burst_between_two_rounds_is_told_with_its_step_for_a_minute() {
    let folder = folder();
    let mut hooks = hooks(folder.path());
    let writer = joins(&mut hooks, 0, "/a");
    writer.identity(&identity(0));
    let now = Timestamp(unix_ns());
    let reads = |step: u64, value: f64| Reading {
        value,
        step,
        at: now.0,
    };
    writer.loss(reads(1, 2.0));
    let told = |readings: &Readings| {
        let of = |metric| value(readings, "0", metric);
        [
            of(&training::LOSS),
            of(&training::LOSS_HELD),
            of(&training::LOSS_HELD_STEP),
            of(&training::GRADIENT_NORM_HELD),
        ]
    };
    let first = told(&round_at(&mut hooks, now));
    assert_eq!(first, [Some(2.0), None, None, None], "one is no row");
    for step in 2..=11 {
        let is_high = (4..8).contains(&step);
        writer.loss(reads(step, if is_high { 9.0 } else { 2.0 }));
    }
    let burst = told(&round_at(&mut hooks, now));
    assert_eq!(burst, [Some(2.0), Some(9.0), Some(4.0), None]);
    let after = |seconds: i64| now.shifted(seconds * 1_000_000_000);
    assert_eq!(told(&round_at(&mut hooks, after(59))), burst);
    let later = told(&round_at(&mut hooks, after(60)));
    assert_eq!(later, [Some(2.0), None, None, None]);
}

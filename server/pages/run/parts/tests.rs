//! Words of the parts of the job page.

use super::*;

#[test]
fn interruptions_have_their_times_and_a_rate_where_there_is_enough_to_say_one_of() {
    let found = |gpu_days: f64| Reliability {
        interruptions: 2,
        gpu_days,
        per_thousand_gpu_days: Some(2_000.0 / gpu_days),
        mtbf_ns: Some(7.5 * 3.6e12),
        mttr_ns: Some(2.0 * 3.6e12),
    };
    let small = |gpu_days| {
        reliability(Some(&found(gpu_days)))
            .small
            .expect("it broke off")
    };
    let times = small(0.5);
    assert!(
        times.starts_with("one in 7 h 30 min, back after 2 h"),
        "{times}"
    );
    assert!(!times.contains("GPU-days"));
    assert_eq!(small(4_000.0), format!("{times}, 0.50 in 1,000 GPU-days"));
    let never = Reliability {
        gpu_days: 50.0,
        per_thousand_gpu_days: Some(0.0),
        ..Reliability::default()
    };
    assert_eq!(reliability(Some(&never)).small, None);
}

#[test]
fn of_one_tag_that_is_not_kept_the_words_are_of_one() {
    assert_eq!(tags_left_out(0), None);
    let one = "1 more tag was told and is not kept.";
    assert_eq!(tags_left_out(1).as_deref(), Some(one));
    let many = "3 more tags were told and are not kept.";
    assert_eq!(tags_left_out(3).as_deref(), Some(many));
}

//! What agents tell after an outage of the server, and what comes too late.

use super::*;

/// Samples that are pushed of three minutes of one GPU, two of each, and whether others wait, where the server leads for so
/// long and its one agent tells that its spool is so old, or has told nothing yet.
async fn pushed(led_s: u64, spool_age_s: Option<f64>) -> (usize, bool) {
    let mut bench = bench().await;
    bench.commit(1, &[(0, &[0, 1, 2])]).await;
    bench.starts_at(Minute(FIRST.0 - 1)).await;
    bench.led = Duration::from_secs(led_s);
    bench.hears(spool_age_s);
    let mut kept = None;
    // The second finds what is left.
    for _ in 0..2 {
        bench.round(&mut kept).await.unwrap();
    }
    let waits = bench.app.pushed.waits.load(Ordering::Relaxed);
    (bench.taken().0, waits)
}

#[tokio::test]
async fn after_an_outage_minutes_wait_for_what_agents_have_of_it_and_not_for_ever() {
    // The third minute is in the spool, from its tenth second on.
    let since_third = Some(170.0);
    for (led_s, age, expected, why) in [
        (10, None, (0, true), "nobody knows what the agent has"),
        (10, since_third, (4, true), "two minutes are whole"),
        (600, since_third, (4, true), "the third still is not"),
        (600, Some(11.0), (6, false), "nothing old is in the spool"),
        (60, None, (6, false), "the agent does not come back"),
        (900, since_third, (6, false), "it has had its time"),
    ] {
        assert_eq!(pushed(led_s, age).await, expected, "{why}");
    }
}

#[tokio::test]
async fn what_comes_for_a_minute_that_was_pushed_is_counted_and_what_is_before_the_first_is_not() {
    let mut bench = bench().await;
    bench.commit(1, &[(0, &[0, 1, 2])]).await;
    bench.starts_at(Minute(FIRST.0 - 1)).await;
    bench.round(&mut None).await.unwrap();
    assert_eq!(bench.count(&bench.app.pushed.late), 0);
    // The fourth is the last that was due.
    bench.commit(2, &[(0, &[-5, 0, 2, 3, 4])]).await;
    assert_eq!(bench.count(&bench.app.pushed.late), 3);
    let other = &bench.app.cloud_monitoring.pushed;
    assert_eq!(bench.count(&other.late), 0, "nothing is pushed there");
}

//! Points that failed for now, of a request of which others were taken.

use super::*;
use crate::export::cloud_monitoring::again::MOST_TIMES;

/// Some of a request failed for now (UNAVAILABLE), those that are named.
fn failed_for_now(total: usize, places: &[usize]) -> (u16, Value) {
    let lost = places.len();
    let named = places.iter().map(ToString::to_string);
    let named: Vec<String> = named.collect();
    let mut said = error(400, "INVALID_ARGUMENT");
    said["error"]["message"] = json!(format!("told so: timeSeries[{}]", named.join(",")));
    said["error"]["details"] = json!([{
        "@type": "type.googleapis.com/google.monitoring.v3.CreateTimeSeriesSummary",
        "totalPointCount": total, "successPointCount": total - lost,
        "errors": [{"status": {"code": 14}, "pointCount": lost}],
    }]);
    (400, said)
}

#[tokio::test]
async fn points_that_failed_for_now_are_sent_again_alone_before_the_next_minute_and_counted_once() {
    let mut bench = bench().await.filled().await;
    bench.answers([failed_for_now(200, &[3, 4, 199])]);
    let mut kept = None;
    let said = bench.round(&mut kept).await.expect_err("some failed");
    assert!(said.to_string().contains("told so"), "{said}");
    bench.round(&mut kept).await.unwrap();
    // The stand-in keeps nothing of a request that it answers with an error: what it took of it is not here.
    assert_eq!(bench.taken(), (ALL - 197, ALL - 197));
    let pushed = &bench.app.cloud_monitoring.pushed;
    assert_eq!(pushed.taken.load(Ordering::Relaxed), ALL as u64);
    assert_eq!(pushed.refused.load(Ordering::Relaxed), 0);
    assert_eq!(bench.left_out(), []);
    let ends: Vec<String> = bench
        .series()
        .iter()
        .map(|it| it["points"][0]["interval"]["endTime"].to_string())
        .collect();
    assert!(ends.is_sorted(), "no minute before the one before it");
}

#[tokio::test]
async fn points_that_go_on_failing_are_given_up_counted_and_hold_nothing_up() {
    let mut bench = bench().await.filled().await;
    bench.target.is_first_minute = false;
    // The first of the two is there the second time; the other never is.
    bench.answers([failed_for_now(200, &[0, 1]), failed_for_now(2, &[1])]);
    bench.answers(vec![failed_for_now(1, &[0]); MOST_TIMES as usize]);
    let mut kept = None;
    for _ in 0..MOST_TIMES {
        bench.round(&mut kept).await.expect_err("some failed");
    }
    bench.round(&mut kept).await.expect("it is given up");
    let never_asked = bench.heard.lock().unwrap().answers.len();
    assert_eq!(never_asked, 1, "it is sent once and so often again");
    assert_eq!(bench.left_out(), [("failed", 1.0)]);
    let pushed = &bench.app.cloud_monitoring.pushed;
    assert_eq!(pushed.refused.load(Ordering::Relaxed), 1);
    assert_eq!(pushed.taken.load(Ordering::Relaxed), ALL as u64 - 1);
    let cursor = bench.app.store.export_cursor(CloudMonitoring::NAME);
    assert_eq!(cursor.await.unwrap(), Some(Minute(FIRST.0 + 3)));
}

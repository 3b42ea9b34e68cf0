//! An address that is wrong, as targets say it, and is mended.

use super::*;

#[tokio::test]
async fn a_path_that_victoria_metrics_does_not_have_can_be_mended_and_nothing_is_lost() {
    let mut bench = bench().await.filled().await;
    bench.starts_at(Minute(FIRST.0 - 1)).await;
    let mut kept = None;
    let ways = [
        "requestURI: /api/v1/writ; unsupported path requested: \"/api/v1/writ\"",
        "requestURI: /api/v1/write; cannot parse path \"/api/v1/write\": cannot find {authToken}",
        "requestURI: /api/v1/write; missing route for /api/v1/write",
    ];
    for says in ways {
        bench.told.lock().unwrap().says = says;
        bench.answers(&[StatusCode::BAD_REQUEST]);
        let error = bench.round(&mut kept).await;
        let error = error.expect_err("the address is wrong").to_string();
        assert!(error.contains(says), "{error}");
    }
    bench.told.lock().unwrap().says = "";
    bench.round(&mut kept).await.unwrap();
    assert_eq!(bench.taken(), (ALL, ALL));
    let pushed = &bench.app.pushed;
    let lost = (bench.count(&pushed.refused), bench.count(&pushed.failed));
    assert_eq!(lost, (0, ways.len() as u64), "each was one message");
}

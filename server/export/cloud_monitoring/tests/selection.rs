//! What is chosen: which minutes, what it costs, and what cannot be meant.

use super::*;

#[tokio::test]
async fn a_round_writes_one_minute_and_skips_over_those_that_are_not_of_the_interval() {
    let mut bench = bench().await.filled().await;
    let mut kept = None;
    bench.one_minute(&mut kept).await.unwrap();
    // Counters begin with it.
    assert_eq!((bench.newest(), bench.taken().0), (FIRST.0, 2 * GPUS));
    bench.one_minute(&mut kept).await.unwrap();
    assert_eq!((bench.newest(), bench.taken().0), (FIRST.0 + 1, 5 * GPUS));
    // None of those that are left ends at a multiple of four.
    bench.target.plan.every_minutes = 4;
    bench.one_minute(&mut kept).await.unwrap();
    assert_eq!((bench.newest(), bench.taken().0), (FIRST.0 + 3, 5 * GPUS));
}

#[tokio::test]
async fn only_minutes_of_the_interval_are_written_and_the_cursor_moves_over_the_others() {
    let mut bench = bench().await.filled().await;
    // FIRST ends at an odd minute: of three minutes the second is the one.
    bench.target.plan.every_minutes = 2;
    bench.round(&mut None).await.unwrap();
    let ends: HashSet<String> = bench
        .series()
        .iter()
        .map(|it| it["points"][0]["interval"]["endTime"].to_string())
        .collect();
    assert_eq!(ends.len(), 1, "{ends:?}");
    let cursor = bench.app.store.export_cursor(CloudMonitoring::NAME);
    assert_eq!(cursor.await.unwrap(), Some(Minute(FIRST.0 + 3)));
}

#[tokio::test]
async fn what_a_month_costs_is_that_of_the_series_of_the_newest_minute() {
    let mut bench = bench().await.filled().await;
    let config = bench.app.config.cloud_monitoring.clone();
    assert_eq!(bench.app.cloud_monitoring.month(&config), None);
    let said = bench.target.selection();
    assert!(said.contains("3 metrics") && said.contains("USD"), "{said}");
    bench.target.plan.max_age_minutes = 3;
    bench.round(&mut None).await.unwrap();
    // The newest minute has no rows, and costs nothing.
    let month = bench.app.cloud_monitoring.month(&config).unwrap();
    assert_eq!((month.series, month.usd), (0, Some(0.0)));
    let written = Month::of(GPUS as u64 * 3, &config);
    assert_eq!(bench.target.month.map(|it| it.series), Some(written.series));
}

#[test]
fn a_configuration_that_cannot_be_meant_is_refused_by_name() {
    let refused = |change: fn(&mut CloudMonitoringConfig), words: &[&str]| {
        let mut config = CloudMonitoringConfig {
            project: "p-1".to_owned(),
            anonymous: true,
            ..CloudMonitoringConfig::default()
        };
        change(&mut config);
        let error = CloudMonitoring::new(&config, "lease")
            .err()
            .expect("refused");
        assert!(error.starts_with("cloud_monitoring."), "{error}");
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    refused(
        |it| it.prefix = "my.example.com".to_owned(),
        &["prefix", "workload.googleapis.com"],
    );
    refused(
        |it| it.metrics = vec!["watts".to_owned()],
        &["metrics", "`watts`"],
    );
    refused(|it| it.every_minutes = 0, &["every_minutes = 0"]);
    refused(|it| it.max_age_h = 25, &["max_age_h = 25", "25 hours"]);
    refused(|it| it.price_usd_per_mib = -1.0, &["price_usd_per_mib"]);
    refused(
        |it| it.price_from_250000_mib_usd_per_mib = f64::NAN,
        &["price_from_250000_mib_usd_per_mib"],
    );
    refused(|it| it.writer = "x".repeat(300), &["writer"]);
    refused(
        |it| it.location = "rack-7".to_owned(),
        &["location = \"rack-7\"", "us-central1"],
    );
    let config = CloudMonitoringConfig::default();
    assert!(CloudMonitoring::new(&config, "lease").unwrap().is_none());
    let chosen = Selection::read(&config.metrics).expect("the default names metrics");
    assert_eq!(chosen.metrics().count(), config.metrics.len());
}

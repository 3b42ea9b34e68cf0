//! What is written to Cloud Monitoring, in the API and beside the settings that choose it.

use std::collections::BTreeMap;

use gpufleet_telemetry::catalog::gpu;

use super::*;
use crate::export::cloud_monitoring::target::Reason;

/// A server that writes three metrics.
async fn writing(price: f64) -> Fixture {
    let mut config = Config::for_tests();
    config.cloud_monitoring.project = "p-1".to_owned();
    config.cloud_monitoring.price_usd_per_mib = price;
    let metrics = [gpu::POWER, gpu::ENERGY, gpu::TEMPERATURE];
    config.cloud_monitoring.metrics = metrics.map(|it| it.name.to_owned()).to_vec();
    server_with(config, fixture::fleet(), false).await
}

#[tokio::test]
async fn each_metric_that_is_chosen_has_its_price_before_and_after_the_first_minute() {
    let server = writing(0.258).await;
    let (_, page) = server.get("/settings").await;
    assert!(page.contains("No minute has been written whole"), "{page}");
    // 43,800 × 8 bytes = 0.3342 MiB, at 0.258 0.0862 USD; of three metrics 0.26.
    assert!(
        page.contains("at most 0.26 USD a month, for 3 series"),
        "{page}"
    );
    assert_eq!(
        page.matches("<td class=\"number\">0.09</td>").count(),
        3,
        "{page}"
    );
    assert_eq!(
        server.json("/api/v1/exports").await[0]["month"],
        Value::Null
    );

    let told = &server.app.cloud_monitoring;
    told.wrote(BTreeMap::from([
        (gpu::POWER.id, 64),
        (gpu::ENERGY.id, 1_000),
    ]));
    told.count(Reason::Failed, 2);
    let exports = server.json("/api/v1/exports").await;
    let metrics = exports[0]["month"]["metrics"].as_array().unwrap();
    let of = |at: usize| {
        (
            metrics[at]["metric"].as_str().unwrap(),
            metrics[at]["series"].as_u64(),
        )
    };
    assert_eq!(of(0), (gpu::ENERGY.name, Some(1_000)));
    assert_eq!(of(1), (gpu::POWER.name, Some(64)));
    let usd = |of: &Value| of["usd"].as_f64().unwrap();
    let sum: f64 = metrics.iter().map(usd).sum();
    assert!((sum - usd(&exports[0]["month"])).abs() < 1e-9, "{exports}");
    // 1,000 × 43,800 × 8 bytes = 334.1675 MiB, at 0.258 86.2152 USD.
    assert!((usd(&metrics[0]) - 86.2152).abs() < 0.0001, "{exports}");
    let left_out = &exports[0]["left_out"];
    assert_eq!(left_out[0]["reason"], "failed", "{exports}");
    assert_eq!(left_out[0]["points"], 2, "{exports}");
    let (_, page) = server.get("/settings").await;
    assert!(page.contains("<td class=\"number\">86.22</td>"), "{page}");
    assert!(
        page.contains("2 points left out since this server started"),
        "{page}"
    );
}

#[tokio::test]
async fn without_a_price_none_is_invented_and_without_a_project_nothing_is_said() {
    let server = writing(0.0).await;
    let (_, page) = server.get("/settings").await;
    assert!(page.contains("price_usd_per_mib is 0"), "{page}");
    assert_eq!(
        page.matches("<td class=\"number\">no price</td>").count(),
        3,
        "{page}"
    );
    let (_, page) = super::server().await.get("/settings").await;
    assert!(
        !page.contains("What is written, and what it costs"),
        "{page}"
    );
}

//! What Cloud Monitoring bills for what is written to it.
//!
//! Metrics of one's own are billed by the bytes that are taken in: 8 for each point that is a number
//! (cloud.google.com/stackdriver/pricing). So a month of a series is 730 × 60 / `every_minutes` points of 8
//! bytes: 0.334 MiB at a point a minute. A MiB costs less from 100,000 MiB of a month on, and again from 250,000 on.
//! The 150 MiB that a billing account has for nothing are not counted, because others of the account may use them,
//! nor is what else the account writes, which could only move these to a lower price: what is said is the most it can
//! be. What a metric costs is its part of the bytes of all that are chosen.

use std::collections::BTreeMap;
use std::fmt;

use gpufleet_telemetry::catalog::{self, MetricId};

use super::CloudMonitoringConfig;

/// Minutes of a month of 730 hours.
const MINUTES_A_MONTH: f64 = 43_800.0;

/// What is billed for a point that is a number.
const BYTES_A_POINT: f64 = 8.0;

/// Bytes of a MiB, in which prices are given.
const MIB: f64 = 1_048_576.0;

/// From how many MiB of a month on each of [`prices`] holds.
const TIERS_MIB: [f64; 3] = [0.0, 100_000.0, 250_000.0];

/// What changes less is not worth a line in the log, as a share.
const WORTH_A_LINE: f64 = 0.1;

/// A month of some series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Month {
    /// How many series.
    pub series: u64,
    /// What is billed, bytes.
    pub bytes: f64,
    /// What that costs, dollars; none where the price is not known.
    pub usd: Option<f64>,
}

impl Month {
    /// A month of as many series as these.
    pub fn of(series: u64, config: &CloudMonitoringConfig) -> Self {
        let points = series as f64 * MINUTES_A_MONTH / config.every_minutes.max(1) as f64;
        let bytes = points * BYTES_A_POINT;
        Self {
            series,
            bytes,
            usd: usd(bytes / MIB, prices(config).map(|it| it.1)),
        }
    }

    /// Whether it differs by enough to be told.
    pub fn is_other_than(&self, other: &Self) -> bool {
        (self.bytes - other.bytes).abs() > WORTH_A_LINE * self.bytes.max(other.bytes)
    }
}

/// A month of the series of one metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OfMetric {
    /// The metric's name.
    pub name: &'static str,
    /// Its series, their bytes, and its part of what all of them cost.
    pub month: Month,
}

/// The keys with what a MiB costs in each of [`TIERS_MIB`], dollars; 0 is not known in the first, and as before in the
/// others.
pub fn prices(config: &CloudMonitoringConfig) -> [(&'static str, f64); 3] {
    [
        ("price_usd_per_mib", config.price_usd_per_mib),
        (
            "price_from_100000_mib_usd_per_mib",
            config.price_from_100000_mib_usd_per_mib,
        ),
        (
            "price_from_250000_mib_usd_per_mib",
            config.price_from_250000_mib_usd_per_mib,
        ),
    ]
}

/// What so many MiB of a month cost; none where the first price is not known.
fn usd(mib: f64, prices: [f64; 3]) -> Option<f64> {
    let mut price = prices[0];
    if price <= 0.0 {
        return None;
    }
    let mut usd = 0.0;
    for (tier, from) in TIERS_MIB.into_iter().enumerate() {
        if prices[tier] > 0.0 {
            price = prices[tier];
        }
        let until = TIERS_MIB.get(tier + 1).copied().unwrap_or(f64::INFINITY);
        usd += (mib.min(until) - from).max(0.0) * price;
    }
    Some(usd)
}

/// A month of each metric with so many series, the dearest first.
pub fn by_metric(
    series: &BTreeMap<MetricId, u64>,
    config: &CloudMonitoringConfig,
) -> Vec<OfMetric> {
    let all = Month::of(series.values().sum(), config);
    let of = |(id, count): (&MetricId, &u64)| {
        let month = Month::of(*count, config);
        let usd = all.usd.map(|usd| match all.bytes > 0.0 {
            true => usd * month.bytes / all.bytes,
            false => 0.0,
        });
        Some(OfMetric {
            name: catalog::by_id(*id)?.name,
            month: Month { usd, ..month },
        })
    };
    let mut metrics: Vec<OfMetric> = series.iter().filter_map(of).collect();
    metrics.sort_by_key(|it| (std::cmp::Reverse(it.month.series), it.name));
    metrics
}

impl fmt::Display for Month {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:.2} MiB a month", self.bytes / MIB)?;
        match self.usd {
            Some(usd) => write!(to, ", at most {usd:.2} USD"),
            None => write!(to, ", unpriced (cloud_monitoring.price_usd_per_mib is 0)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_is_its_points_at_eight_bytes_each() {
        let mut config = CloudMonitoringConfig::default();
        // 1,000 series × 43,800 minutes × 8 bytes = 350,400,000 bytes = 334.17 MiB, at 0.258 each 86.22.
        let month = Month::of(1_000, &config);
        assert_eq!(month.bytes, 350_400_000.0);
        assert_eq!(
            month.to_string(),
            "334.17 MiB a month, at most 86.22 USD",
            "{month:?}"
        );
        config.every_minutes = 5;
        assert_eq!(Month::of(1_000, &config).bytes, 70_080_000.0);
        config.price_usd_per_mib = 0.0;
        let month = Month::of(1_000, &config);
        assert_eq!(month.usd, None, "a price that is not known is not 0");
        assert!(month.to_string().contains("unpriced"), "{month}");
    }

    #[test]
    fn each_metric_costs_its_part_of_all_that_is_chosen_and_the_prices_go_down_by_volume() {
        use gpufleet_telemetry::catalog::gpu;
        let config = CloudMonitoringConfig::default();
        // 10,000 GPUs with 80 metrics, one of which 5,000 of them have: 795,000 series × 43,800 points × 8 bytes =
        // 278,568,000,000 bytes = 265,663.1470 MiB. 100,000 × 0.258 + 150,000 × 0.151 + 15,663.1470 × 0.061 =
        // 25,800 + 22,650 + 955.4520 = 49,405.4520 USD.
        let month = Month::of(795_000, &config);
        assert!((month.bytes - 278_568_000_000.0).abs() < 0.5, "{month:?}");
        let usd = month.usd.unwrap();
        assert!((usd - 49_405.452).abs() < 0.001, "{usd}");
        // Power has 10,000 of them: 10,000 / 795,000 of the money = 621.4522 USD.
        let mut series = BTreeMap::from([(gpu::POWER.id, 10_000), (gpu::ENERGY.id, 780_000)]);
        series.insert(gpu::TEMPERATURE.id, 5_000);
        let metrics = by_metric(&series, &config);
        let names: Vec<&str> = metrics.iter().map(|it| it.name).collect();
        let expected = [&gpu::ENERGY, &gpu::POWER, &gpu::TEMPERATURE].map(|it| it.name);
        assert_eq!(names, expected, "the dearest first");
        let power = metrics[1].month.usd.unwrap();
        assert!((power - 621.4522).abs() < 0.001, "{power}");
        let sum: f64 = metrics.iter().filter_map(|it| it.month.usd).sum();
        assert!((sum - usd).abs() < 1e-6, "the parts are the whole");
        assert!(
            by_metric(&BTreeMap::from([(gpu::POWER.id, 0)]), &config)[0]
                .month
                .usd
                == Some(0.0),
            "nothing written costs nothing"
        );
    }

    #[test]
    fn a_price_of_a_volume_that_is_not_set_is_the_one_before_and_none_is_invented() {
        let mut config = CloudMonitoringConfig {
            price_from_100000_mib_usd_per_mib: 0.0,
            price_from_250000_mib_usd_per_mib: 0.0,
            ..CloudMonitoringConfig::default()
        };
        let flat = Month::of(1_000_000, &config).usd.unwrap();
        // 350,400,000,000 bytes = 334,167.4805 MiB × 0.258.
        assert!((flat - 86_215.21).abs() < 0.001, "{flat}");
        config.price_usd_per_mib = 0.0;
        let metrics = by_metric(
            &BTreeMap::from([(gpufleet_telemetry::catalog::gpu::POWER.id, 3)]),
            &config,
        );
        assert_eq!(metrics[0].month.usd, None);
    }

    #[test]
    fn what_hardly_changes_is_not_told_again() {
        let month = |series| Month::of(series, &CloudMonitoringConfig::default());
        assert!(!month(1_000).is_other_than(&month(1_050)));
        assert!(month(1_000).is_other_than(&month(1_200)));
        assert!(month(1_000).is_other_than(&month(800)));
    }
}

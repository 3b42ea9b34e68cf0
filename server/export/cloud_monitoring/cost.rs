//! What Cloud Monitoring bills for what is written to it.
//!
//! Metrics of one's own are billed by the bytes that are taken in: 8 for each point that is a number
//! (cloud.google.com/stackdriver/pricing). So a month of a series is 730 × 60 / `every_minutes` points of 8
//! bytes: 0.334 MiB at a point a minute. Neither the 150 MiB that a billing account has for nothing nor the
//! discounts from 100,000 MiB on are counted: what is said is the most it can be.

use std::fmt;

use super::CloudMonitoringConfig;

/// Minutes of a month of 730 hours.
const MINUTES_A_MONTH: f64 = 43_800.0;

/// What is billed for a point that is a number.
const BYTES_A_POINT: f64 = 8.0;

/// Bytes of a MiB, in which prices are given.
const MIB: f64 = 1_048_576.0;

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
        let price = config.price_usd_per_mib;
        Self {
            series,
            bytes,
            usd: (price > 0.0).then(|| bytes / MIB * price),
        }
    }

    /// Whether it differs by enough to be told.
    pub fn is_other_than(&self, other: &Self) -> bool {
        (self.bytes - other.bytes).abs() > WORTH_A_LINE * self.bytes.max(other.bytes)
    }
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
    fn what_hardly_changes_is_not_told_again() {
        let month = |series| Month::of(series, &CloudMonitoringConfig::default());
        assert!(!month(1_000).is_other_than(&month(1_050)));
        assert!(month(1_000).is_other_than(&month(1_200)));
        assert!(month(1_000).is_other_than(&month(800)));
    }
}

//! What was measured of a holder's GPU in a week: from the ten-minute rows of the hours in which it had it.

use gpufleet_analysis::right_size::{Measured, p95};
use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::time::Timestamp;

use crate::store::model::{ResourceKey, TenMinutes};
use crate::store::{Store, StoreError};

/// Hours that are looked at: a week.
const HOURS: i64 = 7 * 24;

/// Ten-minute rows of an hour.
const ROWS_OF_AN_HOUR: f64 = 6.0;

/// What was measured of a GPU in the hours in which this holder had it.
pub(crate) async fn measure(
    store: &Store,
    key: &ResourceKey,
    holder: i64,
    at: Timestamp,
) -> Result<Measured, StoreError> {
    let end = at.seconds().div_euclid(3_600) + 1;
    let hours = store.hours_held_by(key, holder, end - HOURS..end).await?;
    let (Some(first), Some(last)) = (hours.first(), hours.last()) else {
        return Ok(Measured::default());
    };
    let mut rows = store.ten_minutes(key, first * 6..(last + 1) * 6).await?;
    rows.retain(|it| hours.binary_search(&it.bucket.div_euclid(6)).is_ok());
    Ok(measured(&rows))
}

fn measured(rows: &[TenMinutes]) -> Measured {
    let of = |metric: Metric| rows.iter().filter_map(move |it| it.metrics.get(&metric.id));
    let known = |metric: Metric| of(metric).filter(|it| it.count > 0);
    let peaks = || {
        known(gpu::MEMORY_USED)
            .map(|it| it.max)
            .collect::<Vec<f64>>()
    };
    let means = |metric: Metric| {
        known(metric)
            .map(|it| it.sum / f64::from(it.count))
            .collect()
    };
    let seen = rows.iter().filter(|it| it.observed_s > 0).count();
    // Of what is judged the least: an hour of tensor cores in a week of memory is an hour.
    let told = [gpu::MEMORY_USED, gpu::TENSOR_ACTIVE, gpu::DRAM_ACTIVE];
    let told = told.map(|it| known(it).count()).into_iter();
    let seen = told.filter(|it| *it > 0).fold(seen, usize::min);
    Measured {
        hours: seen as f64 / ROWS_OF_AN_HOUR,
        memory_peak: peaks().into_iter().reduce(f64::max),
        memory_p95: p95(peaks()),
        tensor_p95: p95(means(gpu::TENSOR_ACTIVE)),
        dram_p95: p95(means(gpu::DRAM_ACTIVE)),
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::minute::{Aggregate, ByMetric};

    use super::*;

    /// Ten minutes with so much memory at the peak and on average, and so busy tensor cores.
    fn row(bucket: i64, peak: f64, mean: f64, tensor: Option<f64>) -> TenMinutes {
        let aggregate = |mean: f64, max: f64| Aggregate {
            count: 10,
            sum: mean * 10.0,
            min: 0.0,
            max,
        };
        let mut metrics = ByMetric::default();
        metrics.insert(gpu::MEMORY_USED.id, aggregate(mean, peak));
        metrics.extend(tensor.map(|it| (gpu::TENSOR_ACTIVE.id, aggregate(it, 1.0))));
        TenMinutes {
            bucket,
            observed_s: 600,
            active_s: 0,
            stalled_s: 0,
            held_s: 600,
            holder_known_s: 600,
            metrics,
            counters: ByMetric::default(),
        }
    }

    #[test]
    fn memory_counts_by_its_peaks_and_tensor_cores_by_their_means() {
        let mut rows: Vec<TenMinutes> = (0..59).map(|it| row(it, 20.0, 10.0, Some(0.2))).collect();
        rows.push(row(59, 70.0, 10.0, None));
        let found = measured(&rows);
        assert_eq!(
            (found.memory_peak, found.memory_p95),
            (Some(70.0), Some(20.0))
        );
        let tensor = found.tensor_p95.expect("it was told");
        assert!((tensor - 0.2).abs() < 1e-12, "{tensor}");
        assert_eq!(
            (found.hours, found.dram_p95),
            (59.0 / 6.0, None),
            "as long as its tensor cores were told"
        );
        assert_eq!(measured(&[]), Measured::default());
    }
}

//! Which reader each metric of a resource is taken from, as one attribute's text, where several readers
//! report one resource: `nvml=10-62,70-81;exporter:dcgm=84,120-132`.
//!
//! A range stands for the metrics in it that are told at all. A text longer than an attribute may be is
//! not made: then nobody can say it, which is better than half of it.

use super::MetricId;
use crate::otlp::limits::MAX_LABEL_BYTES;

/// The text for these metrics and their producers.
pub fn text<'a>(told: impl Iterator<Item = (MetricId, &'a str)>) -> Option<String> {
    let mut told: Vec<(MetricId, &str)> = told.collect();
    told.sort_by_key(|(metric, _)| *metric);
    told.dedup_by_key(|(metric, _)| *metric);
    let mut producers: Vec<(&str, Vec<String>)> = Vec::new();
    for run in told.chunk_by(|a, b| a.1 == b.1) {
        let (Some((first, producer)), Some((last, _))) = (run.first(), run.last()) else {
            continue;
        };
        let range = if first == last {
            first.0.to_string()
        } else {
            format!("{}-{}", first.0, last.0)
        };
        match producers.iter_mut().find(|(name, _)| name == producer) {
            Some((_, ranges)) => ranges.push(range),
            None => producers.push((producer, vec![range])),
        }
    }
    let each = producers
        .iter()
        .map(|(name, ranges)| format!("{name}={}", ranges.join(",")));
    let text = each.collect::<Vec<_>>().join(";");
    (text.len() <= MAX_LABEL_BYTES).then_some(text)
}

/// The producer of a metric in such a text.
pub fn of(text: &str, metric: MetricId) -> Option<&str> {
    let has = |ranges: &str| {
        ranges.split(',').any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (first.parse::<u16>(), last.parse::<u16>());
            matches!((first, last), (Ok(first), Ok(last)) if (first..=last).contains(&metric.0))
        })
    };
    text.split(';').find_map(|producer| {
        let (name, ranges) = producer.split_once('=')?;
        has(ranges).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::gpu;

    #[test]
    fn each_metric_is_read_back_with_its_producer() {
        let told = [
            (gpu::POWER.id, "nvml"),
            (gpu::VGPU_LICENSE.id, "exporter:dcgm"),
            (gpu::UTILIZATION.id, "nvml"),
            (gpu::TENSOR_ACTIVE.id, "exporter:dcgm"),
            (gpu::PROCESSES.id, "nvml"),
        ];
        let text = text(told.into_iter()).expect("short enough");
        assert_eq!(text, "nvml=10-30,140;exporter:dcgm=84-123");
        for (metric, producer) in told {
            assert_eq!(of(&text, metric), Some(producer), "{metric:?}");
        }
        assert_eq!(of(&text, gpu::PROCESS_MEMORY.id), None);
        assert_eq!(of("", gpu::POWER.id), None);
        assert_eq!(of("nvml=x-y,;=;exporter", gpu::POWER.id), None);
    }

    #[test]
    fn a_text_that_no_attribute_could_hold_is_not_made() {
        let by_turns = gpu::ALL.iter().enumerate();
        let names = ["nvml", "exporter:dcgm"];
        let told = by_turns.map(|(place, metric)| (metric.id, names[place % 2]));
        assert_eq!(text(told), None);
    }
}

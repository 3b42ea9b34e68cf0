//! Memory of the sample loop: 10,000 rounds of 8 GPUs, in a process of its own.
//!
//! Limit: the last 1,000 rounds take at most 256 KiB more than the second thousand.

use std::sync::Arc;
use std::time::Duration;

use gpufleet_agent::read::NodeFacts;
use gpufleet_agent::sample::collect::Collector;
use gpufleet_agent::sample::own::{Own, pss_bytes};
use gpufleet_agent::sample::{LatestCell, Round, SampleConfig};
use gpufleet_telemetry::catalog::{Kind, gpu};
use gpufleet_telemetry::identity::{Origin, Part, PartKind, Resource, ResourceKind};
use gpufleet_telemetry::otlp::encode_metrics;
use gpufleet_telemetry::sample::{Missing, Readings, ResourceSamples, Sample};
use gpufleet_telemetry::time::Timestamp;
use prost::Message;

/// Rounds, back to back.
const ROUNDS: i64 = 10_000;

/// What the last thousand may take beyond the second.
const LIMIT_BYTES: f64 = 256.0 * 1_024.0;

/// What a round of 8 GPUs returns: everything in the catalog, and processes that come and go.
fn readings(at: Timestamp, resources: &[Arc<Resource>]) -> Readings {
    let second = at.seconds();
    let resources = resources.iter().zip(0_i64..).map(|(resource, index)| {
        let whole = gpu::ALL
            .iter()
            .filter(|metric| metric.part.is_none() && metric.kind != Kind::SecondBits)
            .map(|metric| Sample {
                metric: metric.id,
                part: None,
                reading: if (second + index) % 50 == 0 {
                    Err(Missing::Timeout)
                } else {
                    Ok((second % 100) as f64)
                },
            });
        let processes = (0..4).map(|slot| Sample {
            metric: gpu::PROCESS_MEMORY.id,
            part: Some(Part::new(
                PartKind::Process,
                (second / 300 * 8 + slot).to_string(),
            )),
            reading: Ok(1e9),
        });
        ResourceSamples {
            resource: Arc::clone(resource),
            samples: whole.chain(processes).collect(),
        }
    });
    Readings {
        at,
        resources: resources.collect(),
        events: Vec::new(),
    }
}

/// This process's memory in bytes.
fn memory() -> f64 {
    pss_bytes(std::path::Path::new("/proc"), std::process::id()).expect("Linux tells it")
}

#[test]
fn ten_thousand_rounds_take_no_more_memory_than_two_thousand() {
    let node = Arc::new(NodeFacts::for_tests());
    let config = SampleConfig::default();
    let readers = [(Arc::from("nvml"), Duration::from_secs(1))];
    let mut collector = Collector::new(Arc::clone(&node), &config, readers.into_iter());
    let mut own = Own::default();
    let latest = LatestCell::default();
    let gpus: Vec<Arc<Resource>> = (0..8)
        .map(|index| {
            let id = format!("GPU-{index}");
            Arc::new(node.resource(ResourceKind::Gpu, id, Origin::Live, "nvml"))
        })
        .collect();
    let mut highest = [0.0_f64; 10];
    let start = 1_700_000_000;
    for round in 0..ROUNDS {
        let at = Timestamp::from_seconds(start + round);
        collector.round(Round {
            reader: 0,
            at,
            result: Ok(readings(at, &gpus)),
            duration: Duration::from_millis(5),
        });
        latest.set(Arc::new(collector.latest()));
        if round % 10 == 9 {
            collector.own(own.read(at, &node), at);
            let end = Timestamp::from_seconds(start + round + 1);
            let begin = Timestamp::from_seconds(start + round - 9);
            let payload = encode_metrics(&collector.close_tick(begin, end)).encode_to_vec();
            assert!(payload.len() > 10_000, "{} bytes", payload.len());
        }
        if round % 100 == 99 {
            let thousand = usize::try_from(round / 1_000).expect("small");
            highest[thousand] = highest[thousand].max(memory());
        }
    }
    let grown = highest[9] - highest[1];
    assert!(
        grown <= LIMIT_BYTES,
        "{grown} bytes more than in the second thousand: {highest:?}"
    );
}

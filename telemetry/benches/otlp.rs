//! What a sample costs on the wire: nanoseconds to encode it, to weigh its request, to parse (prost)
//! and to decode it.
//!
//! One agent with 8 GPUs, every metric of the catalog for each, as `cargo bench -p
//! gpufleet-telemetry --bench otlp` (or `make bench-otlp`) runs it. Prints the best of [`ROUNDS`]
//! rounds, because other work on the machine only ever makes a round slower, with the allocator of
//! the server. Exits with 1 when weigh, parse and decode together take more than [`TARGET_NANOS`].
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures with the real clock"
)]

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use gpufleet_telemetry::catalog::{Kind, gpu};
use gpufleet_telemetry::identity::{Part, Resource, ResourceKind, attribute};
use gpufleet_telemetry::otlp::{Limits, decode_metrics, encode_metrics, weigh};
use gpufleet_telemetry::sample::Missing;
use gpufleet_telemetry::tick::{Point, PointValue, ResourceTick};
use gpufleet_telemetry::time::Timestamp;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use prost::Message;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How often a round is repeated.
const ROUNDS: usize = 200;
/// Most nanoseconds that a sample may cost the server before it is folded: 20,000 GPUs with 60
/// metrics every 10 s are 120,000 samples a second, 6 % of a core.
const TARGET_NANOS: f64 = 500.0;

fn main() -> ExitCode {
    let ticks: Vec<_> = (0..8).map(tick).collect();
    let samples: usize = ticks.iter().map(|tick| tick.points.len()).sum();
    let request = encode_metrics(&ticks);
    let bytes = request.encode_to_vec();
    let limits = Limits::default();
    let decoded = decode_metrics(request, &limits);
    let kept: usize = decoded.resources.iter().map(|it| it.points.len()).sum();
    assert_eq!((kept, decoded.rejected.total()), (samples, 0));

    let parse = || ExportMetricsServiceRequest::decode(bytes.as_slice()).expect("our own bytes");
    let encode_nanos = best(
        || (),
        |()| encode_metrics(black_box(&ticks)).encode_to_vec(),
    );
    let weight = weigh::metrics(&bytes).expect("our own bytes");
    let weigh_nanos = best(|| (), |()| weigh::metrics(black_box(&bytes)));
    let parse_nanos = best(|| (), |()| parse());
    let decode_nanos = best(parse, |request| decode_metrics(request, &limits));
    let per_sample = |nanos: f64| nanos / samples as f64;
    let total = per_sample(weigh_nanos + parse_nanos + decode_nanos);
    println!(
        "{samples} samples in {} bytes, {:.1} bytes a sample before compression",
        bytes.len(),
        per_sample(bytes.len() as f64)
    );
    println!("encode {:6.1} ns a sample", per_sample(encode_nanos));
    println!(
        "weigh  {:6.1} ns a sample: {:.1} bytes in memory",
        per_sample(weigh_nanos),
        per_sample(weight.bytes as f64)
    );
    println!("parse  {:6.1} ns a sample", per_sample(parse_nanos));
    println!("decode {:6.1} ns a sample", per_sample(decode_nanos));
    println!("weigh, parse and decode {total:.1} ns a sample, target {TARGET_NANOS:.0}");
    if total > TARGET_NANOS {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Nanoseconds of the fastest round; what a round returns is dropped after the clock is read.
fn best<I, O>(mut prepare: impl FnMut() -> I, mut round: impl FnMut(I) -> O) -> f64 {
    (0..ROUNDS)
        .map(|_| {
            let input = prepare();
            let start = Instant::now();
            let output = black_box(round(input));
            let took = start.elapsed();
            drop(output);
            took.as_nanos() as f64
        })
        .fold(f64::INFINITY, f64::min)
}

fn tick(index: u32) -> ResourceTick {
    let resource = Resource::new(
        ResourceKind::Gpu,
        format!("GPU-7b9e5f3a-0000-4000-8000-00000000000{index}"),
    )
    .with(attribute::CLUSTER, "training-eu")
    .with(attribute::NODE, "gke-h200-pool-7f3a-x2k9")
    .with(attribute::BOOT_ID, "3f0c5a0e-6f5d-4c8e-9d70-1f2e3d4c5b6a")
    .with(attribute::AGENT_ID, "0f8fad5b-d9cb-469f-a165-70867728950e")
    .with(attribute::AGENT_VERSION, "0.1.0")
    .with(attribute::ORIGIN, "live")
    .with(attribute::SOURCE, "nvml")
    .with(attribute::GPU_MODEL, "NVIDIA H200")
    .with(attribute::GPU_INDEX, index.to_string())
    .with(attribute::PCI_ADDRESS, "00000000:53:00.0")
    .with(attribute::SERIAL, "1652223012345")
    .with(attribute::COMPUTE_CAPABILITY, "9.0")
    .with(attribute::DRIVER_VERSION, "590.48.01")
    .with(attribute::HOLDER, "pod:team-a/llm-pretrain-0");
    let start = Timestamp::from_seconds(1_763_000_000);
    let points = gpu::ALL
        .iter()
        .map(|metric| Point {
            metric: metric.id,
            part: metric.part.map(|kind| Part::new(kind, "7")),
            value: match metric.kind {
                Kind::SecondBits => PointValue::SecondBits(0x3ff),
                Kind::Counter => PointValue::Counter {
                    value: 12_345_678.9,
                    since: Timestamp::from_seconds(1_762_000_000),
                },
                Kind::Gauge if metric.id.0.is_multiple_of(10) => {
                    PointValue::Missing(Missing::NotSupported)
                }
                Kind::Gauge | Kind::Last => PointValue::Gauge {
                    value: 698.123,
                    max: metric.with_max.then_some(700.0),
                },
            },
        })
        .collect();
    ResourceTick {
        resource: Arc::new(resource),
        start,
        end: Timestamp::from_seconds(1_763_000_010),
        points,
    }
}

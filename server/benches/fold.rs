//! What a sample costs in the fleet's memory: nanoseconds to fold it, to drain it into a commit, and
//! the memory of 10,000 GPUs with all that waits for one commit.
//!
//! `cargo bench -p gpufleet-server --bench fold`. Exits with 1 over [`TARGET_NANOS`] or
//! [`TARGET_MIB`]; the whole server is measured by `make bench-server`.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures with the real clock"
)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpufleet_server::fleet::{Body, Fleet, FleetConfig, Offer, Outcome};
use gpufleet_server::store::model::CursorKey;
use gpufleet_telemetry::catalog::{Kind, gpu};
use gpufleet_telemetry::identity::{AgentId, Epoch, Resource, ResourceKind, attribute};
use gpufleet_telemetry::otlp::{DecodedMetrics, DecodedPoint, DecodedResource, Rejected};
use gpufleet_telemetry::tick::PointValue;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::{Lane, Stream};
use uuid::Uuid;

const AGENTS: u128 = 1_250;
const GPUS: usize = 8;
const METRICS: usize = 60;
/// Ticks; a commit after every second one.
const TICKS: i64 = 12;
const TICK_NANOS: i64 = 10_000_000_000;
const START: Timestamp = Timestamp::from_seconds(1_790_000_000);

/// Most nanoseconds of folding and draining a sample: 60,000 samples a second are 3 % of a core.
const TARGET_NANOS: f64 = 500.0;
/// Most memory for 10,000 GPUs, live and waiting for a commit, in MiB.
const TARGET_MIB: f64 = 200.0;

fn main() -> ExitCode {
    let fleet = Fleet::new(FleetConfig::default());
    let (mut fold, mut drain) = (Duration::ZERO, Duration::ZERO);
    let before = resident_mib();
    let mut most = before;
    let mut samples = 0;
    for tick in 1..=TICKS {
        let end = START.shifted(tick * TICK_NANOS);
        for agent in 1..=AGENTS {
            let decoded = decoded(agent, end);
            samples += decoded
                .resources
                .iter()
                .map(|it| it.points.len())
                .sum::<usize>();
            let offer = offer(agent, tick.unsigned_abs(), end, &decoded);
            let began = Instant::now();
            let answer = fleet.offer(&offer);
            fold += began.elapsed();
            assert!(matches!(answer.outcome, Outcome::Folded(drops) if drops.total() == 0));
        }
        if tick % 2 == 0 {
            let began = Instant::now();
            let commit = fleet.take_commit(end).expect("there is much to commit");
            drain += began.elapsed();
            most = most.max(resident_mib());
            fleet.committed(commit.number);
        }
    }
    let nanos = |took: Duration| took.as_nanos() as f64 / samples as f64;
    let total = nanos(fold) + nanos(drain);
    let memory = most - before;
    println!("{samples} samples of {} GPUs", AGENTS as usize * GPUS);
    println!("fold  {:6.1} ns a sample", nanos(fold));
    println!("drain {:6.1} ns a sample", nanos(drain));
    println!("together {total:.1} ns a sample, target {TARGET_NANOS:.0}");
    println!("{memory:.0} MiB at most, target {TARGET_MIB:.0}");
    if total <= TARGET_NANOS && memory <= TARGET_MIB {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn offer(agent: u128, seq: u64, at: Timestamp, decoded: &DecodedMetrics) -> Offer<'_> {
    Offer {
        key: CursorKey {
            agent: AgentId(Uuid::from_u128(agent)),
            epoch: Epoch(Uuid::from_u128(agent)),
            stream: Stream::Metrics,
        },
        seq,
        session: 1,
        lane: Lane::Live,
        dropped: None,
        sent_at: at,
        received: at,
        bound_cluster: None,
        default_cluster: "bench".into(),
        body: Body::Metrics(decoded),
    }
}

/// A request as it comes out of the decoder: every resource newly made.
fn decoded(agent: u128, end: Timestamp) -> DecodedMetrics {
    let resources = (0..GPUS).map(|index| {
        let mut resource = Resource::new(ResourceKind::Gpu, format!("GPU-{agent:08}-{index}"))
            .with(attribute::CLUSTER, "bench")
            .with(attribute::NODE, format!("node-{agent}"));
        for number in 0..16 {
            resource = resource.with(&format!("attribute.{number}"), "a value of usual length");
        }
        let metrics = gpu::ALL.iter().filter(|it| it.part.is_none()).take(METRICS);
        let points = metrics.map(|metric| DecodedPoint {
            metric,
            part: None,
            value: match metric.kind {
                Kind::SecondBits => PointValue::SecondBits(0x3ff),
                Kind::Counter => PointValue::Counter {
                    value: end.seconds() as f64,
                    since: START,
                },
                Kind::Gauge | Kind::Last => PointValue::Gauge {
                    value: (end.seconds() % 97) as f64,
                    max: metric.with_max.then_some(97.0),
                },
            },
            start: match metric.kind {
                Kind::Counter => end,
                _ => end.shifted(-TICK_NANOS),
            },
            at: end,
        });
        DecodedResource {
            resource: Arc::new(resource),
            points: points.collect(),
        }
    });
    DecodedMetrics {
        resources: resources.collect(),
        rejected: Rejected::default(),
    }
}

/// The memory of this process that is in RAM now.
fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|it| it.trim().trim_end_matches(" kB").parse().ok());
    kib.unwrap_or(0.0) / 1024.0
}

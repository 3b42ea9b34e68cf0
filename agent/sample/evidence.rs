//! What the seconds of a GPU say for the ledger: observed, active, stalled, held, holder known.

use gpufleet_telemetry::catalog::{Metric, MetricId, gpu};
use gpufleet_telemetry::holder::Unknown;
use gpufleet_telemetry::identity::{Resource, attribute};
use gpufleet_telemetry::sample::{Evidence, Reading, Sample};

/// From here on the engine counts as active, a share of time.
const ACTIVE_RATIO: f64 = 0.05;

/// An engine at least this busy that does no work is stalled.
const BUSY_RATIO: f64 = 0.95;

/// Tensor cores and memory below this do no work.
const NO_WORK_RATIO: f64 = 0.01;

/// Links below this carry no more than heartbeats: 10 MB/s of the 50 GB/s and more they can.
const LINKS_IDLE_BYTES_PER_SECOND: f64 = 10e6;

/// Five kinds of evidence, each with its bits.
pub(super) const KINDS: [&Metric; 5] = [
    &gpu::OBSERVED,
    &gpu::ACTIVE,
    &gpu::STALLED,
    &gpu::HELD,
    &gpu::HOLDER_KNOWN,
];

/// Whose word it is that nobody holds a GPU whose holder is neither named nor unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Free {
    /// Nobody's: who knows who holds GPUs is to say it, and has not spoken of this one yet.
    Untold,
    /// The driver's, where it lists the processes.
    ByProcesses,
    /// That of who knows who holds GPUs, which spoke of this one: no driver is asked.
    Told,
}

/// What the readings of one moment are evidence of.
pub(super) fn judge(resource: &Resource, samples: &[Sample], free: Free) -> Evidence {
    let value = |metric: &Metric| whole(samples, metric.id).and_then(Result::ok);
    let engine = value(&gpu::GRAPHICS_ACTIVE).or_else(|| value(&gpu::UTILIZATION));
    let processes = value(&gpu::PROCESSES);
    let holder = resource.attribute(attribute::HOLDER).is_some();
    let unknown = resource.attribute(attribute::HOLDER_UNKNOWN);
    let unknown = unknown.map(|it| Unknown::parse(it).is_some_and(|(why, _)| why.is_held()));
    Evidence {
        observed: samples.iter().any(|sample| sample.reading.is_ok()),
        active: engine.is_some_and(|engine| engine >= ACTIVE_RATIO),
        stalled: engine.is_some_and(|engine| engine >= BUSY_RATIO)
            && value(&gpu::TENSOR_ACTIVE).is_some_and(|share| share < NO_WORK_RATIO)
            && value(&gpu::DRAM_ACTIVE).is_some_and(|share| share < NO_WORK_RATIO)
            && links_idle(samples),
        held: holder || unknown == Some(true) || processes.is_some_and(|count| count > 0.0),
        holder_known: holder
            || unknown.unwrap_or(match free {
                // That no process is there says nothing where pods may hold it and nobody tells.
                Free::Untold => false,
                Free::ByProcesses => processes.is_some(),
                Free::Told => true,
            }),
    }
}

/// Whether the links that are read carry nothing. A card without NVLink has none to look at.
fn links_idle(samples: &[Sample]) -> bool {
    let links = [
        gpu::NVLINK_SENT,
        gpu::NVLINK_RECEIVED,
        gpu::PCIE_SENT,
        gpu::PCIE_RECEIVED,
    ];
    links
        .iter()
        .filter_map(|metric| whole(samples, metric.id)?.ok())
        .all(|rate| rate < LINKS_IDLE_BYTES_PER_SECOND)
}

/// The reading of a metric of the resource itself.
fn whole(samples: &[Sample], metric: MetricId) -> Option<Reading> {
    samples
        .iter()
        .find(|sample| sample.metric == metric && sample.part.is_none())
        .map(|sample| sample.reading)
}

/// What a second of a time-sliced device is evidence of for one of its replicas: it is held as its holder is told, and did
/// what the device did while somebody holds it.
pub(super) fn of_replica(resource: &Resource, device: [bool; 5]) -> [bool; 5] {
    let [observed, active, stalled, ..] = device;
    let holder = resource.attribute(attribute::HOLDER).is_some();
    let unknown = resource.attribute(attribute::HOLDER_UNKNOWN);
    let unknown = unknown.map(|it| Unknown::parse(it).is_some_and(|(why, _)| why.is_held()));
    let held = holder || unknown == Some(true);
    flags(Evidence {
        observed,
        active: active && held,
        stalled: stalled && held,
        held,
        holder_known: holder || unknown.unwrap_or(true),
    })
}

/// Evidence as bits, in the order of [`KINDS`].
pub(super) fn flags(evidence: Evidence) -> [bool; 5] {
    [
        evidence.observed,
        evidence.active,
        evidence.stalled,
        evidence.held,
        evidence.holder_known,
    ]
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::ResourceKind;
    use gpufleet_telemetry::sample::Missing;

    use super::*;

    fn check(samples: &[(&Metric, Reading)], expected: &str) {
        check_of(
            &Resource::new(ResourceKind::Gpu, "GPU-1"),
            samples,
            expected,
        );
    }

    fn check_of(resource: &Resource, samples: &[(&Metric, Reading)], expected: &str) {
        let samples: Vec<Sample> = samples
            .iter()
            .map(|(metric, reading)| Sample {
                metric: metric.id,
                part: None,
                reading: *reading,
            })
            .collect();
        let evidence = judge(resource, &samples, Free::ByProcesses);
        let names = ["observed", "active", "stalled", "held", "holder_known"];
        let told: Vec<&str> = names
            .into_iter()
            .zip(flags(evidence))
            .filter_map(|(name, set)| set.then_some(name))
            .collect();
        assert_eq!(told.join(" "), expected, "{samples:?}");
    }

    #[test]
    fn each_second_is_evidence_of_what_was_read_and_of_nothing_else() {
        use gpu::{
            DRAM_ACTIVE, GRAPHICS_ACTIVE, NVLINK_SENT, PROCESSES, TENSOR_ACTIVE, UTILIZATION,
        };
        check(&[], "");
        check(&[(&UTILIZATION, Err(Missing::GpuLost))], "");
        check(&[(&UTILIZATION, Ok(0.04))], "observed");
        check(&[(&UTILIZATION, Ok(0.05))], "observed active");
        // The engine's own counter is better than the driver's utilisation.
        check(
            &[(&UTILIZATION, Ok(1.0)), (&GRAPHICS_ACTIVE, Ok(0.0))],
            "observed",
        );
        check(
            &[
                (&UTILIZATION, Ok(1.0)),
                (&GRAPHICS_ACTIVE, Err(Missing::NotSupported)),
            ],
            "observed active",
        );
        check(&[(&PROCESSES, Ok(0.0))], "observed holder_known");
        check(&[(&PROCESSES, Ok(2.0))], "observed held holder_known");
        let stalled = [
            (&GRAPHICS_ACTIVE, Ok(1.0)),
            (&TENSOR_ACTIVE, Ok(0.0)),
            (&DRAM_ACTIVE, Ok(0.0)),
        ];
        check(&stalled, "observed active stalled");
        check(&stalled[..2], "observed active");
        let mut talking = stalled.to_vec();
        talking.push((&NVLINK_SENT, Ok(1e9)));
        check(&talking, "observed active");
    }

    #[test]
    fn a_gpu_is_held_by_whoever_is_named_and_its_holder_unknown_where_nobody_can_tell() {
        let gpu = |name, value: &str| Resource::new(ResourceKind::Gpu, "GPU-1").with(name, value);
        let nobody = [(&gpu::PROCESSES, Ok(0.0))];
        let named = gpu(attribute::HOLDER, "pod:a/b");
        check_of(&named, &nobody, "observed held holder_known");
        let why = |reason: Unknown| gpu(attribute::HOLDER_UNKNOWN, &reason.text("x"));
        check_of(&why(Unknown::Shared), &nobody, "observed held holder_known");
        check_of(&why(Unknown::NotHeard), &nobody, "observed");
        let someone = [(&gpu::PROCESSES, Ok(1.0))];
        check_of(&why(Unknown::ClaimedTwice), &someone, "observed held");
        check_of(&why(Unknown::Unplaced), &nobody, "observed");
    }

    #[test]
    fn that_nobody_holds_a_gpu_is_known_when_who_would_know_has_spoken_of_it() {
        let samples = [Sample {
            metric: gpu::PROCESSES.id,
            part: None,
            reading: Ok(0.0),
        }];
        let gpu = Resource::new(ResourceKind::Gpu, "GPU-1");
        let all = [Free::Untold, Free::ByProcesses, Free::Told];
        let known = |gpu: &Resource, samples: &[Sample]| {
            all.map(|free| judge(gpu, samples, free).holder_known)
        };
        assert_eq!(known(&gpu, &samples), [false, true, true]);
        assert_eq!(known(&gpu, &[]), [false, false, true]);
        let unknown = Unknown::NotHeard.text("x");
        let unknown = gpu.clone().with(attribute::HOLDER_UNKNOWN, unknown);
        assert_eq!(known(&unknown, &samples), [false; 3]);
        let named = gpu.with(attribute::HOLDER, "pod:a/b");
        assert_eq!(known(&named, &[]), [true; 3]);
    }
}

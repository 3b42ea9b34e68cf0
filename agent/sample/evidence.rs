//! What the seconds of a GPU say for the ledger: observed, active, stalled, held, holder known.

use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::holder::Unknown;
use gpufleet_telemetry::identity::{Resource, attribute};
use gpufleet_telemetry::sample::{Evidence, Sample};

/// From here on the engine counts as active, a share of time.
const ACTIVE_RATIO: f64 = 0.05;

/// An engine at least this busy that does no work is stalled.
const BUSY_RATIO: f64 = 0.95;

/// Tensor cores and memory below this do no work.
const NO_WORK_RATIO: f64 = 0.01;

/// Links below this carry no more than heartbeats: 10 MB/s of the 50 GB/s and more they can.
const LINKS_IDLE_BYTES_PER_SECOND: f64 = 10e6;

/// What says how busy the engine is, the better one first: its own counter, the driver's utilisation.
pub(super) const ENGINE: [&Metric; 2] = [&gpu::GRAPHICS_ACTIVE, &gpu::UTILIZATION];

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

/// What one reader's readings of a moment are evidence of. `others`: the readings of other readers that stand then. They
/// say whether it works where these do not: of a MIG instance of an A100 NVML has no activity, and an exporter has.
pub(super) fn judge(
    resource: &Resource,
    samples: &[Sample],
    others: &impl Fn(&Metric) -> Option<f64>,
    free: Free,
) -> Evidence {
    let own = |metric: &Metric| whole(samples, metric);
    let observed = samples.iter().any(|sample| sample.reading.is_ok());
    // What was told of one that is not seen any more says nothing of it now.
    let others = |metric: &Metric| others(metric).filter(|_| observed);
    let engine = engine(&own).or_else(|| engine(&others));
    let active = engine.is_some_and(|engine| engine >= ACTIVE_RATIO);
    let spins = spins(&own).or_else(|| spins(&others));
    let processes = own(&gpu::PROCESSES);
    let holder = resource.attribute(attribute::HOLDER).is_some();
    let unknown = resource.attribute(attribute::HOLDER_UNKNOWN);
    let unknown = unknown.map(|it| Unknown::parse(it).is_some_and(|(why, _)| why.is_held()));
    Evidence {
        observed,
        active,
        stalled: active && spins == Some(true) && links_idle(&own) && links_idle(&others),
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

/// How busy the engine is, a share of time; none where that is not read.
fn engine(value: &impl Fn(&Metric) -> Option<f64>) -> Option<f64> {
    ENGINE.into_iter().find_map(value)
}

/// Whether the engine is busy and does no work; none where these readings do not say it. All are of one reader: what two
/// of them read of different moments would make one that has just begun to work look so.
fn spins(value: &impl Fn(&Metric) -> Option<f64>) -> Option<bool> {
    let no_work =
        value(&gpu::TENSOR_ACTIVE)? < NO_WORK_RATIO && value(&gpu::DRAM_ACTIVE)? < NO_WORK_RATIO;
    Some(no_work && engine(value)? >= BUSY_RATIO)
}

/// Whether the links that are read carry nothing. A card without NVLink has none to look at.
fn links_idle(value: &impl Fn(&Metric) -> Option<f64>) -> bool {
    let links = [
        gpu::NVLINK_SENT,
        gpu::NVLINK_RECEIVED,
        gpu::PCIE_SENT,
        gpu::PCIE_RECEIVED,
    ];
    links
        .iter()
        .filter_map(value)
        .all(|rate| rate < LINKS_IDLE_BYTES_PER_SECOND)
}

/// The valid reading of a metric of the resource itself.
fn whole(samples: &[Sample], metric: &Metric) -> Option<f64> {
    let is_it = |it: &&Sample| it.metric == metric.id && it.part.is_none();
    samples.iter().find(is_it)?.reading.ok()
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
    use gpufleet_telemetry::sample::{Missing, Reading};

    use super::*;

    fn nobody(_: &Metric) -> Option<f64> {
        None
    }

    fn check(samples: &[(&Metric, Reading)], expected: &str) {
        let gpu = Resource::new(ResourceKind::Gpu, "GPU-1");
        check_of(&gpu, samples, &nobody, expected);
    }

    fn check_of(
        resource: &Resource,
        samples: &[(&Metric, Reading)],
        others: &impl Fn(&Metric) -> Option<f64>,
        expected: &str,
    ) {
        let samples: Vec<Sample> = samples
            .iter()
            .map(|(metric, reading)| Sample {
                metric: metric.id,
                part: None,
                reading: *reading,
            })
            .collect();
        let evidence = judge(resource, &samples, others, Free::ByProcesses);
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
    fn whether_it_works_others_say_where_its_own_readings_do_not() {
        use gpu::{
            DRAM_ACTIVE, GRAPHICS_ACTIVE, NVLINK_SENT, PROCESSES, TENSOR_ACTIVE, UTILIZATION,
        };
        let check = |own: &[(&Metric, Reading)], others: &[(&Metric, f64)], expected: &str| {
            let gpu = Resource::new(ResourceKind::Gpu, "GPU-1");
            let told = |metric: &Metric| {
                let found = others.iter().find(|it| it.0.id == metric.id)?;
                Some(found.1)
            };
            check_of(&gpu, own, &told, expected);
        };
        let held = [
            (&PROCESSES, Ok(1.0)),
            (&UTILIZATION, Err(Missing::NotSupported)),
        ];
        let of_others = [(&GRAPHICS_ACTIVE, 0.95)];
        check(&held, &of_others, "observed active held holder_known");
        check(
            &held,
            &[(&UTILIZATION, 0.5)],
            "observed active held holder_known",
        );
        check(
            &held,
            &[(&GRAPHICS_ACTIVE, 0.0)],
            "observed held holder_known",
        );
        // Its own word is of this second, theirs of one a while ago.
        check(&[(&UTILIZATION, Ok(0.0))], &of_others, "observed");
        check(&[(&UTILIZATION, Err(Missing::GpuLost))], &of_others, "");
        let spinning = [
            (&GRAPHICS_ACTIVE, 1.0),
            (&TENSOR_ACTIVE, 0.0),
            (&DRAM_ACTIVE, 0.0),
        ];
        let busy = (&UTILIZATION, Ok(1.0));
        check(&[busy], &spinning, "observed active stalled");
        check(&[(&UTILIZATION, Ok(0.0))], &spinning, "observed");
        check(&[busy], &spinning[1..], "observed active");
        let talks = (&NVLINK_SENT, Ok(1e9));
        check(&[busy, talks], &spinning, "observed active");
        let works = [
            (&GRAPHICS_ACTIVE, Ok(1.0)),
            (&TENSOR_ACTIVE, Ok(0.5)),
            (&DRAM_ACTIVE, Ok(0.5)),
        ];
        check(&works, &spinning, "observed active");
    }

    #[test]
    fn a_gpu_is_held_by_whoever_is_named_and_its_holder_unknown_where_nobody_can_tell() {
        let gpu = |name, value: &str| Resource::new(ResourceKind::Gpu, "GPU-1").with(name, value);
        let free = [(&gpu::PROCESSES, Ok(0.0))];
        let named = gpu(attribute::HOLDER, "pod:a/b");
        check_of(&named, &free, &nobody, "observed held holder_known");
        let why = |reason: Unknown| gpu(attribute::HOLDER_UNKNOWN, &reason.text("x"));
        check_of(
            &why(Unknown::Shared),
            &free,
            &nobody,
            "observed held holder_known",
        );
        check_of(&why(Unknown::NotHeard), &free, &nobody, "observed");
        let someone = [(&gpu::PROCESSES, Ok(1.0))];
        check_of(
            &why(Unknown::ClaimedTwice),
            &someone,
            &nobody,
            "observed held",
        );
        check_of(&why(Unknown::Unplaced), &free, &nobody, "observed");
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
            all.map(|free| judge(gpu, samples, &nobody, free).holder_known)
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

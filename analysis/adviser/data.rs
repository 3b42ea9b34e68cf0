//! Data-bound: the loader is slower than the GPUs, for want of workers, CPU, disk or network.
//!
//! The loader makes a batch in a step's time; to make none wait it has to be step ÷ (step − wait) as
//! fast. With CPU to spare that many more workers do it. What stays is [`LEFT`] of the step.

use gpufleet_telemetry::catalog::Unit;

use super::{Advice, Bottleneck, Confidence, Knob, Part, Profile};
use crate::cause::Reading;

/// What a good loader still makes wait.
const LEFT: f64 = 0.02;
/// CPU from which more workers only take from each other.
const CPU_FULL: f64 = 0.85;
/// Pressure from which I/O is what the loader waits for.
const IO_PRESSED: f64 = 0.1;

pub(super) fn look(run: &Profile) -> Option<Advice> {
    let share = run.share(run.data_wait_s)?;
    let host = &run.host;
    let io = host.io_pressure?;
    let cpu = host.cpu_busy?;
    let faster = 1.0 / (1.0 - share.min(0.95));
    let workers = run.set_up.num_workers;
    let today = workers.map(|it| it.to_string());
    let (bottleneck, knob, confidence) = if io >= IO_PRESSED {
        let is_network = host.is_network_storage?;
        let (bottleneck, proposed) = if is_network {
            (
                Bottleneck::DataNetwork,
                "a cache of the data on the node's disk",
            )
        } else {
            (
                Bottleneck::DataDisk,
                "fewer, larger files, or a faster disk",
            )
        };
        let knob = Knob {
            name: "storage",
            today: Some(if is_network { "network" } else { "disk" }.to_owned()),
            proposed: proposed.to_owned(),
        };
        (bottleneck, knob, Confidence::Medium)
    } else if cpu >= CPU_FULL {
        let knob = Knob {
            name: "CPUs of the node",
            today: host.cpus_per_rank.map(|it| format!("{it:.0} a rank")),
            proposed: format!("{faster:.1} times as many, or transforms that cost less"),
        };
        (Bottleneck::DataCpu, knob, Confidence::Medium)
    } else {
        let most = host.cpus_per_rank.map_or(u32::MAX, |it| it.max(1.0) as u32);
        let wanted = workers.map(|it| ((f64::from(it.max(1)) * faster).ceil() as u32).min(most));
        // As many as there are CPUs already: more of them help nobody.
        if wanted.is_some() && wanted <= workers {
            return None;
        }
        let knob = Knob {
            name: "num_workers",
            today,
            proposed: wanted.map_or_else(
                || format!("{faster:.1} times as many, with prefetch_factor and pin_memory"),
                |it| it.to_string(),
            ),
        };
        (Bottleneck::DataWorkers, knob, Confidence::High)
    };
    Some(Advice {
        bottleneck,
        part: Part::Data,
        measured: vec![
            Reading::new("waiting for data", share, Some(LEFT), Unit::Ratio),
            Reading::new("waiting for I/O", io, None, Unit::Ratio),
            Reading::new("CPU busy", cpu, None, Unit::Ratio),
        ],
        knob,
        share,
        removed: (share - LEFT).max(0.0),
        confidence,
    })
}

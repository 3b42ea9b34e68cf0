//! The readings of a rank: what its process says, and what is learned of its collectives from outside.

use std::sync::Arc;

use gpufleet_hooks_tell::readings;
use gpufleet_telemetry::catalog::{Metric, training};
use gpufleet_telemetry::identity::{Part, PartKind};
use gpufleet_telemetry::sample::{ResourceSamples, Sample};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::training::{CollectivesFrom, collective_id};

use super::outside::Told;
use super::process::Process;

/// The readings of the process' rank; none while it has none.
pub(super) fn of(
    process: &mut Process,
    from: CollectivesFrom,
    outside: Option<&Told>,
    now: Timestamp,
) -> Option<ResourceSamples> {
    let resource = Arc::clone(process.resource()?);
    let mut kept = std::mem::take(&mut process.kept);
    let mut samples = readings::of(process.snapshots(), now, &mut kept);
    process.kept = kept;
    samples.push(sample(
        &training::COLLECTIVES_FROM,
        None,
        from.number() as f64,
    ));
    if matches!(from, CollectivesFrom::Ras | CollectivesFrom::Inspector) {
        told_outside(outside, &mut samples);
    }
    Some(ResourceSamples { resource, samples })
}

/// Its collectives as NCCL itself tells them. What the process tells of one comes first.
fn told_outside(outside: Option<&Told>, samples: &mut Vec<Sample>) {
    for told in outside.into_iter().flat_map(|it| &it.counts) {
        let name = collective_id(told.communicator, &told.function);
        let part = Part::new(PartKind::Collective, name);
        let is_told = |metric: &Metric| {
            let is_it = |it: &Sample| it.metric == metric.id && it.part.as_ref() == Some(&part);
            samples.iter().any(is_it)
        };
        if is_told(&training::COLLECTIVE_CALLS) {
            continue;
        }
        let mut push = |metric, value| samples.push(sample(metric, Some(&part), value));
        push(&training::COLLECTIVE_CALLS, told.count as f64);
        if let Some((bytes, duration_ns)) = told.measured {
            push(&training::COLLECTIVE_TRAFFIC, bytes as f64);
            let took = duration_ns as f64 / NANOS_PER_SECOND as f64;
            push(&training::COLLECTIVE_DURATION, took);
            push(&training::COLLECTIVE_TIMED, told.count as f64);
        }
    }
}

fn sample(metric: &Metric, part: Option<&Part>, value: f64) -> Sample {
    Sample {
        metric: metric.id,
        part: part.cloned(),
        reading: Ok(value),
    }
}

//! Replicas of time-sliced devices: what a device did in a second each of its replicas did, in the hands of whoever holds
//! that one. Nobody tells apart which of them it was, so one that is free did nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};
use gpufleet_telemetry::time::Timestamp;

use super::super::evidence::{self, ENGINE};
use super::{Collector, Entry, nanos};

/// A replica of which its reader says nothing for so many of its periods is none any more.
const PERIODS: u32 = 3;

/// Seconds of evidence: from, to (not included), flags.
type Seconds = Vec<(i64, i64, [bool; 5])>;

impl Collector {
    /// Hands the evidence of devices to their replicas, before a tick that ends now is made of it.
    pub(super) fn hand_to_replicas(&mut self, end: Timestamp) {
        let devices = self.resources.values();
        let devices = devices.filter(|it| device_of(&it.resource).is_none());
        let told: HashMap<Arc<str>, Seconds> = match self.resources.values().any(is_replica) {
            true => devices
                .filter(|it| it.knows_activity(self.newest))
                .map(|it| (Arc::clone(&it.resource.id), it.seconds.clone()))
                .collect(),
            false => return,
        };
        let readers = &self.readers;
        for entry in self.resources.values_mut().filter(|it| is_replica(it)) {
            let period = |it: &super::Source| readers[it.reader].period;
            let period = entry.sources.first().map_or(Duration::ZERO, period);
            let is_there = end.since(entry.seen) <= nanos(period * PERIODS);
            let device = device_of(&entry.resource).and_then(|it| told.get(it));
            let seconds = device.filter(|_| is_there).into_iter().flatten();
            let resource = &entry.resource;
            entry.seconds = seconds
                .map(|(from, to, flags)| (*from, *to, evidence::of_replica(resource, *flags)))
                .collect();
        }
    }
}

impl Entry {
    /// Whether a reading that stands says how active it is.
    fn knows_activity(&self, now: Timestamp) -> bool {
        ENGINE.iter().any(|it| self.standing(it, now).is_some())
    }
}

/// The device that this is a replica of.
fn device_of(resource: &Resource) -> Option<&str> {
    let is_share = resource.kind == ResourceKind::Share;
    resource
        .attribute(attribute::REPLICA_OF)
        .filter(|_| is_share)
}

fn is_replica(entry: &Entry) -> bool {
    device_of(&entry.resource).is_some()
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::catalog::{Metric, gpu};
    use gpufleet_telemetry::holder::Unknown;
    use gpufleet_telemetry::sample::ResourceSamples;
    use gpufleet_telemetry::tick::ResourceTick;

    use super::super::KINDS;
    use super::super::rounds::{self, close, round, told};
    use super::*;
    use crate::attribute::SOURCE;

    /// `GPU-1::0` in the hands of a pod, `::1` of nobody, `::2` of nobody knows whom.
    fn replicas() -> Vec<ResourceSamples> {
        let share = |number: u32| {
            Resource::new(ResourceKind::Share, format!("GPU-1::{number}"))
                .with(attribute::PARENT, "GPU-1")
                .with(attribute::REPLICA_OF, "GPU-1")
        };
        let unknown = Unknown::ClaimedTwice.text("two");
        vec![
            told(share(0).with(attribute::HOLDER, "pod:a/b"), &[]),
            told(share(1), &[]),
            told(share(2).with(attribute::HOLDER_UNKNOWN, unknown), &[]),
        ]
    }

    /// The bits of a share's tick in the order of [`KINDS`]; none where it is not told.
    fn bits(ticks: &[ResourceTick], id: &str) -> Option<[u64; 5]> {
        let tick = ticks.iter().find(|it| &*it.resource.id == id)?;
        assert_eq!(
            tick.points.len(),
            KINDS.len(),
            "no reading of its own: {tick:?}"
        );
        Some(rounds::bits(tick))
    }

    fn collector() -> Collector {
        rounds::collector(&[("nvml", 1), (SOURCE, 5)])
    }

    /// Ten seconds from `start` on, in the last five of which the card works.
    fn card(collector: &mut Collector, start: i64, metric: &Metric) -> Vec<ResourceTick> {
        for second in 0..10 {
            let gpu = Resource::new(ResourceKind::Gpu, "GPU-1").with(attribute::SOURCE, "nvml");
            let works = f64::from(u8::from(second >= 5));
            let read = told(gpu, &[(metric, Ok(works)), (&gpu::PROCESSES, Ok(1.0))]);
            collector.round(round(0, start + second, vec![read]));
        }
        close(collector, start)
    }

    #[test]
    fn a_replica_that_is_held_did_what_its_device_did_and_one_that_is_free_did_nothing() {
        let mut collector = collector();
        collector.round(round(1, 1_000, replicas()));
        let ticks = card(&mut collector, 1_000, &gpu::UTILIZATION);
        let (all, late) = (0b11_1111_1111, 0b11_1110_0000);
        assert_eq!(bits(&ticks, "GPU-1::0"), Some([all, late, 0, all, all]));
        assert_eq!(bits(&ticks, "GPU-1::1"), Some([all, 0, 0, 0, all]));
        assert_eq!(bits(&ticks, "GPU-1::2"), Some([all, 0, 0, 0, 0]));
        // Who says who holds them says nothing any more: nobody knows whether they are.
        let ticks = card(&mut collector, 1_010, &gpu::UTILIZATION);
        assert!(bits(&ticks, "GPU-1::0").is_none(), "for 20 s: {ticks:?}");
        collector.round(round(1, 1_020, replicas()));
        let ticks = card(&mut collector, 1_020, &gpu::UTILIZATION);
        assert_eq!(bits(&ticks, "GPU-1::0"), Some([all, late, 0, all, all]));
    }

    #[test]
    fn of_a_device_whose_activity_nobody_reads_a_replica_is_not_observed() {
        let mut collector = collector();
        collector.round(round(1, 1_000, replicas()));
        let ticks = card(&mut collector, 1_000, &gpu::POWER);
        assert!(ticks.iter().any(|it| &*it.resource.id == "GPU-1"));
        assert!(bits(&ticks, "GPU-1::0").is_none());
    }
}

//! Memory that grows until it is used up, of each GPU that somebody holds and of each machine, with when
//! that will be.
//!
//! Each is watched since its job has the GPU, or its machine is heard ([`gpufleet_analysis::leak::watch`]). What a job
//! leaks is one signal, by the GPU that is full first.
//!
//! Limits: a server that starts anew learns anew: it says nothing for 3 h 20 min, and of what leaked before that it is
//! over after [`LEARNS_S`] at the earliest, unless its job has ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use gpufleet_analysis::cause::{Cause, Reading};
use gpufleet_analysis::incident::{Family, Place, Remedy, Signal};
use gpufleet_analysis::leak::watch::Leaks;
use gpufleet_analysis::ledger::State;
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_telemetry::catalog::{Unit, gpu, node};
use gpufleet_telemetry::event::Severity;

use super::detector::Need::{Holders, Length, Reading as Read};
use super::detector::{Detector, Findings, Finds, TickSnapshot};
use super::gather::{GpuSnapshot, NodeName, NodeSnapshot, NodeSnapshots, is_unknown};
use super::stake;

/// Nothing is said before 40 of the 48 narrowest buckets are over, seconds.
const LEAST_S: i64 = 12_000;

/// Most growths are found again in this time, seconds: five hours, some more than a server looks at least.
const LEARNS_S: i64 = 18_000;

/// What is used up sooner than this is a warning, hours: within a working day.
const SOON_HOURS: f64 = 24.0;

/// Memory of GPUs and machines that grows until it is used up.
#[derive(Default)]
pub(super) struct Leaking {
    /// Machines whose memory grew when it was last read.
    told: BTreeSet<NodeName>,
    /// Under which job the memory of GPUs grew, by their numbers, when that could be said last.
    jobs: HashMap<u32, Arc<str>>,
}

impl Detector for Leaking {
    fn finds(&self) -> Vec<Finds> {
        let of_gpu = &[
            Read(&gpu::MEMORY_USED),
            Read(&gpu::MEMORY_TOTAL),
            Holders,
            Length(LEAST_S),
        ];
        let prices = &[Basis::SinceCheckpoint, Basis::SinceStart, Basis::NoRunKnown];
        let of_machine = &[
            Read(&node::MEMORY_AVAILABLE),
            Read(&node::MEMORY_TOTAL),
            Length(LEAST_S),
        ];
        vec![
            Finds::of("GPU memory that grows", Family::Leak, of_gpu, prices)
                .learns(&["device memory grows"], LEARNS_S),
            Finds::of(
                "a machine's memory that grows",
                Family::Leak,
                of_machine,
                prices,
            )
            .learns(&["the machine's memory grows"], LEARNS_S),
        ]
    }

    fn judge(&mut self, tick: &TickSnapshot<'_>, found: &mut Findings) {
        let mut signals = signals(tick.seen, tick.nodes);
        stake::price(signals.iter_mut(), tick);
        found.signals.extend(signals);
        found.unread.extend(self.unread(tick.nodes));
        found.unread.extend(self.unheld(tick.seen));
    }
}

impl Leaking {
    /// Machines whose memory grew and is not read any more: nobody knows whether it still does.
    fn unread(&mut self, nodes: &NodeSnapshots) -> Vec<(Family, Place)> {
        let is_read = |name: &NodeName| nodes.get(name).is_none_or(|it| it.has_memory);
        self.told.retain(|it| !is_read(it));
        let unread = self.told.iter();
        let unread = unread.map(|(cluster, name)| (Family::Leak, Place::node(cluster, name)));
        let unread = unread.collect();
        let grow = nodes.iter().filter(|(_, it)| it.leaks.is_some());
        self.told.extend(grow.map(|(name, _)| name.clone()));
        unread
    }

    /// GPUs whose memory grew under a job, where it is not known who holds them now: then nobody knows whether it still
    /// does.
    fn unheld(&mut self, all: &[GpuSnapshot]) -> Vec<(Family, Place)> {
        let before = std::mem::take(&mut self.jobs);
        let mut unread = Vec::new();
        for seen in all {
            if let (Some(job), Some(_)) = (&seen.alike.job, seen.leaks) {
                self.jobs.insert(seen.number, Arc::clone(job));
                continue;
            }
            // One that fell silent may come back without a holder at first.
            let is_open = seen.status.state == State::Unobserved;
            let Some(job) = before.get(&seen.number).filter(|_| is_open) else {
                continue;
            };
            self.jobs.insert(seen.number, Arc::clone(job));
            if is_unknown(&seen.status) {
                let place = Place {
                    run: Some(job.to_string()),
                    ..Place::gpu(&seen.cluster, &seen.node, &seen.id)
                };
                unread.push((Family::Leak, place));
            }
        }
        unread
    }
}

/// What leaks: one signal a job, and one a machine.
fn signals(all: &[GpuSnapshot], nodes: &NodeSnapshots) -> Vec<Signal> {
    let mut jobs: BTreeMap<(&str, &str), Vec<(&GpuSnapshot, Leaks)>> = BTreeMap::new();
    for seen in all {
        if let (Some(leaks), Some(job)) = (seen.leaks, seen.alike.job.as_deref()) {
            jobs.entry((&seen.cluster, job))
                .or_default()
                .push((seen, leaks));
        }
    }
    let of_job = |((cluster, job), gpus): ((&str, &str), Vec<(&GpuSnapshot, Leaks)>)| {
        let (first, _) = gpus[0];
        let is_one_node = gpus.iter().all(|(it, _)| it.node == first.node);
        let place = Place {
            cluster: cluster.to_owned(),
            node: is_one_node.then(|| first.node.to_string()),
            gpu: (gpus.len() == 1).then(|| first.id.to_string()),
            run: Some(job.to_owned()),
            rank: None,
        };
        let soonest = gpus.iter().map(|(_, it)| *it);
        let soonest = soonest.min_by(|one, other| one.hours_left.total_cmp(&other.hours_left));
        let what = "device memory grows until it is used up";
        let action =
            "Look for tensors that are kept from step to step; it fails when nothing is left.";
        let mut signal = signal(place, (what, action, Cause::Program), soonest?);
        let count = Reading::new("GPUs", gpus.len() as f64, None, Unit::Count);
        signal.readings.push(count);
        Some(signal)
    };
    let of_node = |((cluster, name), node): (&NodeName, &NodeSnapshot)| {
        let what = "the machine's memory grows until it is used up";
        let action =
            "Look which process grows: a data loader that keeps what it has read is the commonest.";
        let words = (what, action, Cause::HostMemory);
        Some(signal(Place::node(cluster, name), words, node.leaks?))
    };
    let of_jobs = jobs.into_iter().filter_map(of_job);
    of_jobs.chain(nodes.iter().filter_map(of_node)).collect()
}

fn signal(place: Place, (what, action, cause): (&str, &str, Cause), leaks: Leaks) -> Signal {
    let seconds = leaks.hours_left * 3_600.0;
    Signal {
        family: Family::Leak,
        place,
        severity: match leaks.hours_left < SOON_HOURS {
            true => Severity::Warning,
            false => Severity::Info,
        },
        what: what.to_owned(),
        action: action.to_owned(),
        remedy: Remedy::Look,
        cause,
        since: None,
        readings: vec![
            Reading::new("used up in", seconds, None, Unit::Seconds),
            Reading::new("in use", leaks.used, None, Unit::Ratio),
        ],
        price: Price::none(Basis::NoRunKnown),
        confidence: None,
        booted_at: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_grew_is_unknown_while_it_is_not_read_and_its_machine_is_there() {
        let mut leaking = Leaking::default();
        let mut unread = |seen: Option<(bool, bool)>| {
            let node = seen.map(|(grows, is_read)| {
                let mut node = NodeSnapshot::default();
                let leaks = Leaks {
                    hours_left: 5.0,
                    used: 0.6,
                };
                (node.leaks, node.has_memory) = (grows.then_some(leaks), is_read);
                (("prod".into(), "node-1".into()), node)
            });
            leaking.unread(&node.into_iter().collect()).len()
        };
        let (grows, rests, lost) = (
            Some((true, true)),
            Some((false, true)),
            Some((false, false)),
        );
        for (ticks, expected) in [
            (&[lost, lost][..], 0),
            (&[grows, grows], 0),
            (&[grows, lost], 1),
            (&[grows, lost, lost, lost], 1),
            (&[grows, lost, rests], 0),
            (&[rests, lost], 0),
            (&[grows, None, lost], 0),
        ] {
            let mut last = 0;
            for seen in ticks {
                last = unread(*seen);
            }
            assert_eq!(last, expected, "{ticks:?}");
            assert_eq!(unread(None), 0, "it is gone");
        }
    }
}

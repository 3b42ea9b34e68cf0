//! Time-sliced GPUs and MIG instances: how many replicas of one a device plugin gives out, and each of them as a share
//! with a holder of its own, `<uuid>::<n>`.
//!
//! How many there are only the kubelet says, by all that it can give out (`GetAllocatableResources`). While it does not,
//! or says less than what it gave to pods, nobody knows who holds how much of the device, and that is said.
//!
//! A replica has no readings: what the device does is not told apart by who does it. Its evidence is the device's, which
//! `sample` hands on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_telemetry::identity::{Origin, ResourceKind, attribute};
use gpufleet_telemetry::sample::ResourceSamples;

use super::SOURCE;
use super::devices::{Device, Directory};
use super::held::listed;
use super::kubelet::Held;
use super::labels::Facts;
use super::users::Card;
use crate::read::NodeFacts;

/// The replicas of each device by their numbers.
pub(super) type Replicas = BTreeMap<Arc<str>, BTreeSet<u32>>;

/// A replica and who holds it, as attributes.
pub(super) type Replica = (u32, Facts);

/// What a device tells of itself that its replicas tell too.
const OF_DEVICE: [&str; 7] = [
    attribute::GPU_MODEL,
    attribute::GPU_INDEX,
    attribute::GPU_MINOR,
    attribute::PCI_ADDRESS,
    attribute::DRIVER_VERSION,
    attribute::MIG_PROFILE,
    attribute::MIG_SLICES,
];

/// The replicas among all devices that the kubelet can give out.
pub(super) fn replicas(allocatable: &[String], directory: &Directory) -> Replicas {
    let mut found = Replicas::new();
    for text in allocatable {
        let Some(device) = Device::of_plugin(text) else {
            continue;
        };
        if let Some((number, id)) = device.replica.zip(directory.find(&device)) {
            found.entry(Arc::clone(id)).or_default().insert(number);
        }
    }
    found
}

/// That pods hold replicas of a device, each how many, and why it is not known how many there are.
pub(super) fn part_held<'a>(held: impl Iterator<Item = &'a Held>, why: &str) -> String {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for held in held {
        let pod = (held.namespace.as_str(), held.pod.as_str());
        *counts.entry(pod).or_default() += 1;
    }
    let names = counts
        .into_iter()
        .map(|((namespace, name), count)| format!("pod:{namespace}/{name} has {count}"));
    let names = listed(names);
    format!("of the replicas {names}; how many there are is not known: {why}")
}

/// The replicas of each device as shares.
pub(super) fn resources(
    cards: &[Card],
    replicas: &BTreeMap<Arc<str>, Vec<Replica>>,
    node: &NodeFacts,
) -> Vec<ResourceSamples> {
    let mut found = Vec::new();
    for card in cards {
        let of = &card.resource;
        let all = replicas.get(&of.id).map_or(&[][..], Vec::as_slice);
        for (number, facts) in all {
            let id = format!("{}::{number}", of.id);
            let mut resource = node
                .resource(ResourceKind::Share, id, Origin::Live, SOURCE)
                .with(
                    attribute::PARENT,
                    of.attribute(attribute::PARENT).unwrap_or(&of.id),
                )
                .with(attribute::REPLICA_OF, of.id.as_ref())
                .with(attribute::REPLICAS, all.len().to_string());
            for name in OF_DEVICE {
                resource = resource.with(name, of.attribute(name).unwrap_or_default());
            }
            resource.attributes.extend(facts.iter().cloned());
            found.push(ResourceSamples {
                resource: Arc::new(resource),
                samples: Vec::new(),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::Resource;

    use super::*;

    #[test]
    fn a_replica_is_a_share_of_its_card_and_one_of_an_instance_is_so_too() {
        let card = |resource: Resource| Card {
            resource: Arc::new(resource),
            processes: None,
        };
        let model = "NVIDIA H100 80GB HBM3";
        let gpu = |id: &str, minor: &str| {
            let gpu = Resource::new(ResourceKind::Gpu, id).with(attribute::GPU_MODEL, model);
            card(gpu.with(attribute::GPU_MINOR, minor))
        };
        let instance = Resource::new(ResourceKind::Share, "MIG-c")
            .with(attribute::PARENT, "GPU-b")
            .with(attribute::MIG_GPU_INSTANCE, "7")
            .with(attribute::MIG_SLICES, "3/7");
        let cards = [gpu("GPU-a", "0"), gpu("GPU-b", "1"), card(instance)];
        let told = [
            "GPU-a::0",
            "nvidia0/vgpu1",
            "nvidia1/gi7/vgpu0",
            "MIG-c::1",
            "GPU-b",
            "GPU-x::0",
            "?",
        ];
        let allocatable = told.map(str::to_owned);
        let found = replicas(&allocatable, &Directory::new(&cards));
        let expected = [("GPU-a", [0, 1]), ("MIG-c", [0, 1])];
        let expected = expected.map(|(id, all)| (Arc::from(id), BTreeSet::from(all)));
        assert_eq!(found, BTreeMap::from(expected));
        let holder = (attribute::HOLDER.to_owned(), "pod:a/b".to_owned());
        let answers = found.into_iter().map(|(id, all)| {
            let all = all.into_iter();
            let held = |number: u32| match number {
                0 => vec![holder.clone()],
                _ => Facts::new(),
            };
            (id, all.map(|it| (it, held(it))).collect())
        });
        let made = resources(&cards, &answers.collect(), &NodeFacts::for_tests());
        let told: Vec<_> = made
            .iter()
            .map(|it| {
                let of = |name| it.resource.attribute(name).unwrap_or_default();
                assert_eq!(it.resource.kind, ResourceKind::Share);
                assert_eq!(
                    of(attribute::MIG_GPU_INSTANCE),
                    "",
                    "it is not the instance"
                );
                (
                    it.resource.id.as_ref(),
                    of(attribute::PARENT),
                    of(attribute::REPLICA_OF),
                    of(attribute::REPLICAS),
                    of(attribute::HOLDER),
                    of(attribute::MIG_SLICES),
                )
            })
            .collect();
        let expected = [
            ("GPU-a::0", "GPU-a", "GPU-a", "2", "pod:a/b", ""),
            ("GPU-a::1", "GPU-a", "GPU-a", "2", "", ""),
            ("MIG-c::0", "GPU-b", "MIG-c", "2", "pod:a/b", "3/7"),
            ("MIG-c::1", "GPU-b", "MIG-c", "2", "", "3/7"),
        ];
        assert_eq!(told, expected);
    }
}

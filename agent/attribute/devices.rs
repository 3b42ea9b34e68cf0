//! Which GPU or share a device id of the kubelet means. Each device plugin has its own way to write it.
//!
//! NVIDIA's plugin: `GPU-<uuid>`, `MIG-<uuid>` or an index, with `::<n>` behind it for a replica of a
//! time-sliced device. GKE's: `nvidia0` (the minor number of the device file), `nvidia0/gi1` (a MIG
//! instance), either with `/vgpu3` behind it where it is shared. NVIDIA's DRA driver: `gpu-0` (the minor
//! number); its MIG devices are named by where they lie on the card: `gpu-0-mig-1g10gb-19-4` (profile, its number and
//! the first memory slice), by older versions `gpu-0-mig-19-4-1` (the number, the first slice and how many). NVML tells
//! where an instance lies to root alone; without that they stay unknown, and may be any instance of that card.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};

use super::users::Card;

/// A device id taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Device {
    which: Which,
    /// Which replica of it, where others may hold the same device by turns.
    pub(super) replica: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Which {
    /// By UUID, of a GPU or of a MIG instance.
    Id(String),
    /// By NVML's index.
    Index(u32),
    /// By the minor number of its device file, and by the GPU instance where it is a share.
    Minor(u32, Option<u32>),
    /// By the minor number of its card, and by where it lies on that.
    Placed(u32, Placement),
}

/// The number of a profile and the first memory slice.
type Placement = (u32, u32);

/// The GPUs and shares of this node, to be found by what device plugins call them.
#[derive(Debug, Default)]
pub(super) struct Directory {
    ids: BTreeMap<Arc<str>, Arc<str>>,
    indexes: BTreeMap<u32, Arc<str>>,
    minors: BTreeMap<(u32, Option<u32>), Arc<str>>,
    /// None where several lie in one place: compute instances of one GPU instance.
    placed: BTreeMap<(u32, Placement), Option<Arc<str>>>,
}

impl Device {
    /// The device of a device plugin.
    pub(super) fn of_plugin(text: &str) -> Option<Self> {
        match text.strip_prefix("nvidia") {
            Some(rest) => Self::of_gke(rest),
            None => Self::of_nvidia(text),
        }
    }

    /// The device that a driver of dynamic resources allocated.
    pub(super) fn of_claim(name: &str) -> Option<Self> {
        let name = name.strip_prefix("gpu-")?;
        let (minor, part) = match name.split_once("-mig-") {
            Some((minor, part)) => (minor, Some(part)),
            None => (name, None),
        };
        let minor = minor.parse().ok()?;
        let which = match part {
            Some(part) => Which::Placed(minor, placement(part)?),
            None => Which::Minor(minor, None),
        };
        let replica = None;
        Some(Self { which, replica })
    }

    /// Whether this may be a device that was claimed by a name under which none is found: a part of a card lies on that
    /// card, and of everything else nobody knows.
    pub(super) fn may_be(name: &str, card: &Resource) -> bool {
        let part = name
            .strip_prefix("gpu-")
            .and_then(|it| it.split_once("-mig-"));
        let of_card = part.and_then(|(minor, _)| minor.parse::<u32>().ok());
        let minor = card.attribute(attribute::GPU_MINOR);
        let minor = minor.and_then(|it| it.parse::<u32>().ok());
        of_card.is_none() || minor.is_none() || of_card == minor
    }

    fn of_nvidia(text: &str) -> Option<Self> {
        let (device, replica) = match text.split_once("::") {
            Some((device, replica)) => (device, Some(replica.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let is_id = device.starts_with("GPU-") || device.starts_with("MIG-");
        let which = match is_id {
            true => Which::Id(device.to_owned()),
            false => Which::Index(device.parse().ok()?),
        };
        Some(Self { which, replica })
    }

    /// What follows `nvidia`.
    fn of_gke(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let minor = parts.next()?.parse().ok()?;
        let (mut instance, mut replica) = (None, None);
        for part in parts {
            if let Some(number) = part.strip_prefix("vgpu") {
                replica = Some(number.parse().ok()?);
            } else if replica.is_none() && instance.is_none() {
                instance = Some(part.strip_prefix("gi")?.parse().ok()?);
            } else {
                return None;
            }
        }
        Some(Self {
            which: Which::Minor(minor, instance),
            replica,
        })
    }
}

/// What follows `-mig-` in the name of a claimed part.
fn placement(part: &str) -> Option<Placement> {
    let fields: Vec<&str> = part.split('-').collect();
    let number = |text: &str| text.parse::<u32>().ok();
    match *fields.as_slice() {
        [profile, start, size] if number(profile).is_some() && number(size).is_some() => {
            Some((number(profile)?, number(start)?))
        }
        // The name of a profile may have a dash in it: `1g10gb-me`.
        [_, .., profile, start] => Some((number(profile)?, number(start)?)),
        _ => None,
    }
}

impl Directory {
    pub(super) fn new(cards: &[Card]) -> Self {
        let mut made = Self::default();
        let mut minor_of: BTreeMap<&str, u32> = BTreeMap::new();
        for card in cards {
            let resource = &card.resource;
            let number = |name| resource.attribute(name).and_then(|it| it.parse().ok());
            made.ids
                .insert(Arc::clone(&resource.id), Arc::clone(&resource.id));
            if resource.kind != ResourceKind::Gpu {
                continue;
            }
            if let Some(index) = number(attribute::GPU_INDEX) {
                made.indexes.insert(index, Arc::clone(&resource.id));
            }
            if let Some(minor) = number(attribute::GPU_MINOR) {
                made.minors.insert((minor, None), Arc::clone(&resource.id));
                minor_of.insert(&resource.id, minor);
            }
        }
        for card in cards {
            let resource = &card.resource;
            let instance = resource.attribute(attribute::MIG_GPU_INSTANCE);
            let placement = resource.attribute(attribute::MIG_PLACEMENT);
            let parent = resource.attribute(attribute::PARENT);
            let minor = parent.and_then(|it| minor_of.get(it));
            let placement = placement.and_then(|it| {
                let (profile, start) = it.split_once(':')?;
                Some((profile.parse().ok()?, start.parse().ok()?))
            });
            if let (Some(placement), Some(minor)) = (placement, minor) {
                let lies = made.placed.entry((*minor, placement));
                let known = Some(Arc::clone(&resource.id));
                lies.and_modify(|it| *it = None).or_insert(known);
            }
            if let (Some(instance), Some(minor)) = (instance.and_then(|it| it.parse().ok()), minor)
            {
                let place = (*minor, Some(instance));
                made.minors.insert(place, Arc::clone(&resource.id));
            }
        }
        made
    }

    /// The id of the GPU or share that this is; none where the node has no such one.
    pub(super) fn find(&self, device: &Device) -> Option<&Arc<str>> {
        match &device.which {
            Which::Id(id) => self.ids.get(id.as_str()),
            Which::Index(index) => self.indexes.get(index),
            Which::Minor(minor, instance) => self.minors.get(&(*minor, *instance)),
            Which::Placed(minor, placement) => self.placed.get(&(*minor, *placement))?.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(kind: ResourceKind, id: &str, attributes: &[(&str, &str)]) -> Card {
        let mut resource = Resource::new(kind, id);
        for (name, value) in attributes {
            resource = resource.with(name, *value);
        }
        Card {
            resource: Arc::new(resource),
            processes: None,
        }
    }

    /// The minor numbers are not the indexes: on real machines they are often not.
    fn directory() -> Directory {
        let gpu = |id, index, minor| {
            let numbers = [(attribute::GPU_INDEX, index), (attribute::GPU_MINOR, minor)];
            card(ResourceKind::Gpu, id, &numbers)
        };
        let share = |id, instance, placement| {
            let place = [
                (attribute::PARENT, "GPU-b"),
                (attribute::GPU_MINOR, "0"),
                (attribute::MIG_GPU_INSTANCE, instance),
                (attribute::MIG_PLACEMENT, placement),
            ];
            card(ResourceKind::Share, id, &place)
        };
        Directory::new(&[
            gpu("GPU-a", "0", "1"),
            gpu("GPU-b", "1", "0"),
            share("MIG-c", "7", "9:0"),
            share("MIG-d", "9", "19:4"),
            share("MIG-e", "10", "19:5"),
            share("MIG-f", "10", "19:5"),
        ])
    }

    #[test]
    fn each_way_to_write_a_device_finds_the_gpu_or_share_that_it_means() {
        let directory = directory();
        let check = |text: &str, expected: Option<(&str, Option<u32>)>| {
            let device = Device::of_plugin(text);
            let found = device.and_then(|it| {
                let id = directory.find(&it)?;
                Some((id.to_string(), it.replica))
            });
            let expected = expected.map(|(id, replica)| (id.to_owned(), replica));
            assert_eq!(found, expected, "{text}");
        };
        check("GPU-a", Some(("GPU-a", None)));
        check("GPU-a::3", Some(("GPU-a", Some(3))));
        check("MIG-c", Some(("MIG-c", None)));
        check("MIG-c::0", Some(("MIG-c", Some(0))));
        check("0", Some(("GPU-a", None)));
        check("1::2", Some(("GPU-b", Some(2))));
        check("nvidia0", Some(("GPU-b", None)));
        check("nvidia1/vgpu3", Some(("GPU-a", Some(3))));
        check("nvidia0/gi9", Some(("MIG-d", None)));
        check("nvidia0/gi7/vgpu0", Some(("MIG-c", Some(0))));
        for text in [
            "",
            "GPU-x",
            "2",
            "0:1",
            "nvidia2",
            "nvidia0/gi8",
            "nvidia1/gi7",
            "nvidia0/x1",
            "nvidia0/vgpu0/gi7",
            "nvidia0/vgpux",
            "nvidia",
            "GPU-a::x",
            "tpu-0",
        ] {
            check(text, None);
        }
    }

    #[test]
    fn a_claimed_device_is_known_by_its_minor_number_and_a_part_of_one_by_where_it_lies() {
        let directory = directory();
        let find = |name: &str| {
            let device = Device::of_claim(name)?;
            directory.find(&device).map(|it| it.to_string())
        };
        assert_eq!(find("gpu-0").as_deref(), Some("GPU-b"));
        for (name, expected) in [
            ("gpu-0-mig-19-4-1", "MIG-d"),
            ("gpu-0-mig-1g10gb-19-4", "MIG-d"),
            ("gpu-0-mig-1g10gb-me-19-4", "MIG-d"),
            ("gpu-0-mig-9-0-4", "MIG-c"),
            ("gpu-0-mig-3g40gb-9-0", "MIG-c"),
        ] {
            assert_eq!(find(name).as_deref(), Some(expected), "{name}");
        }
        for name in [
            "gpu-2",
            "gpu-1-mig-19-4-1",
            "gpu-0-mig-14-4-2",
            // Two compute instances lie there.
            "gpu-0-mig-19-5-1",
            "gpu-0-mig-19",
            "gpu-0-mig-1g10gb-4",
            "gpu-0-mig-",
            "gpu-",
            "0",
            "imex-channel-0",
        ] {
            assert_eq!(find(name), None, "{name}");
        }
    }

    #[test]
    fn a_part_that_is_not_found_may_be_any_on_its_card_and_on_no_other() {
        let share = |minor: &[(&str, &str)]| card(ResourceKind::Share, "MIG-c", minor);
        let of_card = |minor| share(&[(attribute::GPU_MINOR, minor)]);
        for (name, card, expected) in [
            ("gpu-0-mig-19-4-1", of_card("0"), true),
            ("gpu-0-mig-strange", of_card("0"), true),
            ("gpu-0-mig-19-4-1", of_card("1"), false),
            ("gpu-0-mig-19-4-1", share(&[]), true),
            ("gpu-9", of_card("1"), true),
            ("3 more devices", of_card("1"), true),
        ] {
            assert_eq!(Device::may_be(name, &card.resource), expected, "{name}");
        }
    }
}

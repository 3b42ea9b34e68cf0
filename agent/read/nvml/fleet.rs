//! What the parent knows of this node's GPUs from round to round: who they are, how they were, and
//! so what happened to them. It outlives every child.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gpufleet_telemetry::catalog::{Kind, Metric, gpu, own};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{
    Origin, Part, PartKind, Resource, ResourceKind, attribute, gpu_id, is_null_uuid,
};
use gpufleet_telemetry::sample::{Missing, ResourceSamples, Sample};

use super::values::Samples;
use super::wire::{GpuAnswer, GpuFacts, LibraryFacts, ShareAnswer};
use super::xid::{Actions, Counts};
use crate::read::{NodeFacts, Turn};

mod events;

/// The name of this reader.
pub(crate) const SOURCE: &str = "nvml";

/// One GPU.
struct Known {
    index: u32,
    resource: Arc<Resource>,
    /// Why it did not answer in its last round.
    lost: Option<Missing>,
    energy: Option<f64>,
    /// What the driver asked for last, in field 230.
    recovery: f64,
    xids: Counts,
    /// Its processes, and of which GPU instance: to say whose XID it may be.
    processes: Vec<(Option<u32>, Arc<str>)>,
    shares: Vec<Arc<Resource>>,
    /// Whether its MIG layout was seen at least once.
    seen: bool,
}

/// All GPUs of the node.
pub(crate) struct Fleet {
    node: Arc<NodeFacts>,
    actions: Actions,
    library: LibraryFacts,
    gpus: BTreeMap<Arc<str>, Known>,
    by_index: BTreeMap<u32, Arc<str>>,
    /// Whether all GPUs were seen once: from then on a new one was added.
    settled: bool,
    events: Vec<Event>,
}

impl Fleet {
    pub(crate) fn new(node: Arc<NodeFacts>, actions: Actions) -> Self {
        Self {
            node,
            actions,
            library: LibraryFacts::default(),
            gpus: BTreeMap::new(),
            by_index: BTreeMap::new(),
            settled: false,
            events: Vec::new(),
        }
    }

    /// The reader's own health, as part of the node's.
    pub(crate) fn own(&self, restarts: u64) -> ResourceSamples {
        let id = self.node.node.as_str();
        let resource = self
            .node
            .resource(ResourceKind::Node, id, Origin::Live, SOURCE);
        let mut samples = Samples::default();
        samples.push(&own::NVML_CHILD_RESTARTS, Ok(restarts as f64));
        ResourceSamples {
            resource: Arc::new(resource),
            samples: samples.0,
        }
    }

    /// Whether any GPU is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// What happened since the last time.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Whether this is another number of GPUs than the last library listed.
    pub(crate) fn count_changed(&self, count: u32) -> bool {
        self.library != LibraryFacts::default() && self.library.count != count
    }

    /// A new child loaded the library.
    pub(crate) fn loaded(&mut self, library: LibraryFacts, turn: &Turn) {
        let before = std::mem::replace(&mut self.library, library);
        let same = before.driver_version == self.library.driver_version
            && before.nvml_version == self.library.nvml_version;
        if !before.driver_version.is_empty() && !same {
            let message = format!(
                "the driver changed from {} to {}",
                before.driver_version, self.library.driver_version
            );
            let attributes = [
                ("from", before.driver_version),
                ("to", self.library.driver_version.clone()),
                ("nvml_from", before.nvml_version),
                ("nvml_to", self.library.nvml_version.clone()),
            ];
            self.tell_node(
                turn,
                EventKind::DriverChanged,
                Severity::Info,
                message,
                attributes,
            );
            // Counters begin anew with the driver; that is not a reset.
            self.gpus.values_mut().for_each(|gpu| gpu.energy = None);
        }
    }

    /// One GPU's answer.
    pub(crate) fn answer(&mut self, answer: GpuAnswer, turn: &Turn, to: &mut Vec<ResourceSamples>) {
        let id = self.at(answer.index, turn);
        match answer.outcome {
            Ok(()) => self.answered(&id, answer, turn, to),
            Err(missing) => {
                self.lose(&id, missing, turn);
                self.silent(&id, missing, turn.monotonic, to);
            }
        }
    }

    /// The id of the GPU with this index; its place stands in for one that never said who it is.
    pub(crate) fn at(&mut self, index: u32, turn: &Turn) -> Arc<str> {
        match self.by_index.get(&index) {
            Some(id) => Arc::clone(id),
            None => self.identify(index, &GpuFacts::default(), turn),
        }
    }

    /// A GPU said who it is.
    pub(crate) fn identify(&mut self, index: u32, facts: &GpuFacts, turn: &Turn) -> Arc<str> {
        let place = match facts.pci_address.as_str() {
            "" => format!("index-{index}"),
            address => address.to_owned(),
        };
        let id: Arc<str> = gpu_id(&facts.uuid, &self.node.node, &place).into();
        let resource = Arc::new(self.resource(&id, index, facts));
        let before = self.by_index.insert(index, Arc::clone(&id));
        // What was known by its place only now has a name; a GPU that really went is told of when
        // the round is over.
        let stood_in = before
            .filter(|before| *before != id && self.gpus.get(before).is_some_and(|gpu| !gpu.seen))
            .and_then(|before| self.gpus.remove(&before));
        let lost = stood_in.and_then(|gpu| gpu.lost);
        match self.gpus.get_mut(&id) {
            Some(known) => {
                known.index = index;
                known.resource = resource;
            }
            None => {
                let known = Known {
                    index,
                    resource,
                    lost,
                    energy: None,
                    recovery: 0.0,
                    xids: Counts::default(),
                    processes: Vec::new(),
                    shares: Vec::new(),
                    seen: false,
                };
                self.gpus.insert(Arc::clone(&id), known);
                if self.settled {
                    let message = format!("GPU {index} ({}) appeared", facts.name);
                    self.tell(&id, turn, EventKind::GpuAdded, Severity::Info, message, []);
                }
            }
        }
        id
    }

    fn resource(&self, id: &Arc<str>, index: u32, facts: &GpuFacts) -> Resource {
        let (cluster, clique) = match &facts.fabric {
            Some((cluster, clique)) => (cluster.clone(), clique.to_string()),
            None => Default::default(),
        };
        self.node
            .resource(ResourceKind::Gpu, Arc::clone(id), Origin::Live, SOURCE)
            .with(attribute::GPU_MODEL, &facts.name)
            .with(attribute::GPU_INDEX, index.to_string())
            .with(
                attribute::GPU_MINOR,
                facts.minor.map(|it| it.to_string()).unwrap_or_default(),
            )
            .with(attribute::PCI_ADDRESS, &facts.pci_address)
            .with(attribute::SERIAL, &facts.serial)
            .with(attribute::COMPUTE_CAPABILITY, &facts.compute_capability)
            .with(attribute::VBIOS_VERSION, &facts.vbios)
            .with(attribute::FABRIC_CLUSTER, cluster)
            .with(attribute::FABRIC_CLIQUE, clique)
            .with(attribute::DRIVER_VERSION, &self.library.driver_version)
            .with(attribute::NVML_VERSION, &self.library.nvml_version)
            .with(attribute::CUDA_VERSION, &self.library.cuda_version)
    }

    fn answered(
        &mut self,
        id: &Arc<str>,
        mut answer: GpuAnswer,
        turn: &Turn,
        to: &mut Vec<ResourceSamples>,
    ) {
        self.recover(id, turn);
        self.notice_reset(id, &answer.samples, turn);
        self.notice_recovery_action(id, &answer.samples, turn);
        let shares = std::mem::take(&mut answer.shares);
        let layout = self.layout(id, &shares, turn);
        let Some(known) = self.gpus.get_mut(id) else {
            return;
        };
        known.seen = true;
        known.processes.clear();
        remember_processes(&mut known.processes, None, &answer.samples);
        for share in &shares {
            remember_processes(
                &mut known.processes,
                Some(share.gpu_instance),
                &share.samples,
            );
        }
        let mut samples = Samples(answer.samples);
        push_xids(
            &known.xids,
            turn.monotonic,
            answer.xids_missing,
            &mut samples,
        );
        to.push(ResourceSamples {
            resource: Arc::clone(&known.resource),
            samples: samples.0,
        });
        for (resource, share) in layout.into_iter().zip(shares) {
            to.push(ResourceSamples {
                resource,
                samples: share.samples,
            });
        }
    }

    /// The resources of its shares; a layout other than the last is told.
    fn layout(&mut self, id: &Arc<str>, shares: &[ShareAnswer], turn: &Turn) -> Vec<Arc<Resource>> {
        let Some(known) = self.gpus.get(id) else {
            return Vec::new();
        };
        let same = known.shares.len() == shares.len()
            && known.shares.iter().zip(shares).all(|(resource, share)| {
                *resource.id == *share_id(id, share)
                    && resource
                        .attribute(attribute::MIG_PROFILE)
                        .unwrap_or_default()
                        == share.profile
            });
        if same && known.seen {
            return known.shares.clone();
        }
        let parent = Arc::clone(&known.resource);
        let told = known.seen;
        let resources: Vec<_> = shares
            .iter()
            .map(|share| Arc::new(self.share(id, &parent, share)))
            .collect();
        if told {
            let profiles: Vec<_> = shares.iter().map(|share| share.profile.as_str()).collect();
            let message = match profiles.is_empty() {
                true => "MIG is off: the GPU is whole again".to_owned(),
                false => format!("the MIG layout is now {}", profiles.join(", ")),
            };
            let attributes = [("profiles", profiles.join(","))];
            self.tell(
                id,
                turn,
                EventKind::MigChanged,
                Severity::Info,
                message,
                attributes,
            );
        }
        if let Some(known) = self.gpus.get_mut(id) {
            known.shares = resources.clone();
        }
        resources
    }

    fn share(&self, id: &Arc<str>, parent: &Resource, share: &ShareAnswer) -> Resource {
        let (slices, of) = share.slices;
        let mut resource = self
            .node
            .resource(
                ResourceKind::Share,
                share_id(id, share),
                Origin::Live,
                SOURCE,
            )
            .with(attribute::PARENT, id.as_ref())
            .with(attribute::MIG_PROFILE, &share.profile)
            .with(attribute::MIG_GPU_INSTANCE, share.gpu_instance.to_string())
            .with(attribute::MIG_SLICES, format!("{slices}/{of}"));
        if let Some((profile, start)) = share.placement {
            resource = resource.with(attribute::MIG_PLACEMENT, format!("{profile}:{start}"));
        }
        for name in [
            attribute::GPU_MODEL,
            attribute::GPU_INDEX,
            attribute::GPU_MINOR,
            attribute::PCI_ADDRESS,
            attribute::DRIVER_VERSION,
        ] {
            resource = resource.with(name, parent.attribute(name).unwrap_or_default());
        }
        resource
    }

    /// A child has read all its GPUs for the first time: what it does not list is gone.
    pub(crate) fn settle(&mut self, listed: &BTreeSet<u32>, turn: &Turn) {
        self.by_index.retain(|index, _| listed.contains(index));
        let there: BTreeSet<_> = self.by_index.values().cloned().collect();
        let gone: Vec<_> = self
            .gpus
            .keys()
            .filter(|id| !there.contains(*id))
            .cloned()
            .collect();
        for id in gone {
            let index = self.gpus.get(&id).map_or(0, |gpu| gpu.index);
            let message = format!("GPU {index} is no longer listed by the driver");
            self.tell(
                &id,
                turn,
                EventKind::GpuRemoved,
                Severity::Warning,
                message,
                [],
            );
            self.gpus.remove(&id);
        }
        self.settled = true;
    }

    /// The id of the GPU with this index.
    pub(crate) fn id_of(&self, index: u32) -> Option<Arc<str>> {
        self.by_index.get(&index).cloned()
    }

    /// What stands for every GPU that has no samples in this round yet, with the reason by index.
    pub(crate) fn fill(
        &self,
        now: Duration,
        to: &mut Vec<ResourceSamples>,
        reason: impl Fn(u32) -> Missing,
    ) {
        let told: BTreeSet<_> = to.iter().map(|it| Arc::clone(&it.resource.id)).collect();
        for (id, known) in &self.gpus {
            if !told.contains(id) {
                self.silent(id, reason(known.index), now, to);
            }
        }
    }

    /// Every metric of the GPU and of its shares, with the reason why there is no value.
    fn silent(
        &self,
        id: &Arc<str>,
        missing: Missing,
        now: Duration,
        to: &mut Vec<ResourceSamples>,
    ) {
        let Some(known) = self.gpus.get(id) else {
            return;
        };
        let read = |metric: &&Metric| {
            metric.part.is_none()
                && metric.kind != Kind::SecondBits
                && metric.id != gpu::LAST_XID.id
        };
        let mut samples = Samples::default();
        for metric in gpu::ALL.iter().filter(read) {
            samples.push(metric, Err(missing));
        }
        // What was counted stays counted.
        push_xids(&known.xids, now, Some(missing), &mut samples);
        to.push(ResourceSamples {
            resource: Arc::clone(&known.resource),
            samples: samples.0,
        });
        for share in &known.shares {
            let mut samples = Samples::default();
            for metric in gpu::ALL
                .iter()
                .filter(read)
                .filter(|it| gpu::shares_have(it))
            {
                samples.push(metric, Err(missing));
            }
            to.push(ResourceSamples {
                resource: Arc::clone(share),
                samples: samples.0,
            });
        }
    }
}

/// A share's id: its UUID or, where that is null, its parent's id and its GPU instance.
fn share_id(parent: &str, share: &ShareAnswer) -> String {
    if is_null_uuid(&share.uuid) {
        format!("{parent}/gi{}", share.gpu_instance)
    } else {
        share.uuid.clone()
    }
}

/// A code that came lately is told whoever listens now; that none came only who is heard can say.
fn push_xids(xids: &Counts, now: Duration, deaf: Option<Missing>, to: &mut Samples) {
    let newest = match (xids.newest(now), deaf) {
        (0, Some(missing)) => Err(missing),
        (code, _) => Ok(code as f64),
    };
    to.push(&gpu::LAST_XID, newest);
    for (code, count) in xids.each() {
        to.push_part(&gpu::XID, Part::new(PartKind::Xid, code), Ok(count as f64));
    }
}

fn remember_processes(
    to: &mut Vec<(Option<u32>, Arc<str>)>,
    instance: Option<u32>,
    samples: &[Sample],
) {
    let pids = samples
        .iter()
        .filter(|it| it.metric == gpu::PROCESS_MEMORY.id)
        .filter_map(|it| it.part.as_ref());
    to.extend(pids.map(|part| (instance, Arc::clone(&part.id))));
}

fn value_of(samples: &[Sample], metric: &Metric) -> Option<f64> {
    samples
        .iter()
        .find(|it| it.metric == metric.id && it.part.is_none())
        .and_then(|it| it.reading.ok())
}

//! Which process computes on which GPU, as the driver lists them: noted from the rounds of the reader
//! that asks it, for whoever knows processes by something else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::identity::attribute;
use gpufleet_telemetry::sample::{Readings, ResourceSamples};

use super::{Read, ReadFuture, Turn};

/// GPUs, or shares of them, by id.
type Gpus = BTreeSet<Arc<str>>;

/// Who computes where, by process id on the host.
#[derive(Debug, Default)]
pub struct Users(Mutex<BTreeMap<Arc<str>, Gpus>>);

/// A reader whose process lists are noted.
pub(super) struct Noting<R> {
    /// The reader.
    pub(super) reader: R,
    /// Where they are noted.
    pub(super) users: Arc<Users>,
}

impl Users {
    /// The GPUs or shares that a process was listed on in the last round; none where it was on none, or
    /// nobody asks the driver.
    pub fn of(&self, pid: i32) -> Gpus {
        let users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        users
            .get(pid.to_string().as_str())
            .cloned()
            .unwrap_or_default()
    }

    /// Notes what one round told.
    pub fn note(&self, resources: &[ResourceSamples]) {
        let mut users: BTreeMap<Arc<str>, Gpus> = BTreeMap::new();
        for told in resources {
            for sample in &told.samples {
                if let Some(process) = &sample.part
                    && sample.metric == gpu::PROCESS_MEMORY.id
                {
                    let gpus = users.entry(Arc::clone(&process.id)).or_default();
                    gpus.insert(Arc::clone(&told.resource.id));
                }
            }
        }
        // Who is in an instance of a GPU is listed on the whole GPU as well.
        let parents = resources
            .iter()
            .filter_map(|it| Some((&it.resource.id, it.resource.attribute(attribute::PARENT)?)));
        let parents: BTreeMap<_, _> = parents.collect();
        for gpus in users.values_mut() {
            let whole: Gpus = gpus
                .iter()
                .filter_map(|gpu| parents.get(gpu).map(|parent| Arc::from(*parent)))
                .collect();
            gpus.retain(|gpu| !whole.contains(gpu));
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = users;
    }
}

impl<R: Read> Read for Noting<R> {
    fn name(&self) -> &str {
        self.reader.name()
    }

    fn deadline(&self) -> Duration {
        self.reader.deadline()
    }

    fn period(&self) -> Duration {
        self.reader.period()
    }

    fn read<'a>(&'a mut self, turn: Turn) -> ReadFuture<'a> {
        Box::pin(async move {
            let read: Result<Readings, _> = self.reader.read(turn).await;
            if let Ok(readings) = &read {
                self.users.note(&readings.resources);
            }
            read
        })
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::{Part, PartKind, Resource, ResourceKind};
    use gpufleet_telemetry::sample::Sample;

    use super::*;

    fn told(kind: ResourceKind, id: &str, parent: Option<&str>, pids: &[&str]) -> ResourceSamples {
        let mut resource = Resource::new(kind, id);
        if let Some(parent) = parent {
            resource = resource.with(attribute::PARENT, parent);
        }
        let sample = |pid: &&str| Sample {
            metric: gpu::PROCESS_MEMORY.id,
            part: Some(Part::new(PartKind::Process, *pid)),
            reading: Ok(1.0),
        };
        ResourceSamples {
            resource: Arc::new(resource),
            samples: pids.iter().map(sample).collect(),
        }
    }

    #[test]
    fn a_process_is_on_the_gpus_that_list_it_and_in_an_instance_rather_than_on_its_whole() {
        let users = Users::default();
        users.note(&[
            told(ResourceKind::Gpu, "GPU-a", None, &["7", "8", "9"]),
            told(ResourceKind::Gpu, "GPU-b", None, &["9"]),
            told(ResourceKind::Share, "MIG-c", Some("GPU-a"), &["8"]),
        ]);
        let of = |pid| -> Vec<String> {
            let gpus = users.of(pid);
            gpus.iter().map(|it| it.to_string()).collect()
        };
        assert_eq!(of(7), ["GPU-a"]);
        assert_eq!(of(8), ["MIG-c"]);
        assert_eq!(of(9), ["GPU-a", "GPU-b"]);
        assert_eq!(of(10), [""; 0]);
        users.note(&[told(ResourceKind::Gpu, "GPU-a", None, &["8"])]);
        assert_eq!(of(7), [""; 0], "it has gone");
    }
}

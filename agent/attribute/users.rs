//! Which GPUs there are and which process computes on which, as the driver lists them: noted from the
//! rounds of the reader that asks it, for whoever knows GPUs or processes by something else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};
use gpufleet_telemetry::sample::{ResourceSamples, Sample};

/// GPUs, or shares of them, by id.
type Gpus = BTreeSet<Arc<str>>;

/// Who computes where.
#[derive(Debug, Default)]
pub struct Users(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    /// By process id on the host.
    by_process: BTreeMap<Arc<str>, Gpus>,
    cards: Vec<Card>,
}

/// A GPU or a share of one, as the last round told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// What it is.
    pub resource: Arc<Resource>,
    /// The processes with a compute context on it, by id on the host; none where the driver did not
    /// say.
    pub processes: Option<Vec<i32>>,
}

impl Users {
    /// The GPUs or shares that a process was listed on in the last round; none where it was on none, or
    /// nobody asks the driver.
    pub fn of(&self, pid: i32) -> Gpus {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let users = &noted.by_process;
        users
            .get(pid.to_string().as_str())
            .cloned()
            .unwrap_or_default()
    }

    /// The GPUs and shares of the last round.
    pub fn cards(&self) -> Vec<Card> {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.cards.clone()
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
        let noted = Noted {
            by_process: users,
            cards: resources.iter().filter_map(card).collect(),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = noted;
    }
}

fn card(told: &ResourceSamples) -> Option<Card> {
    let is_card = matches!(told.resource.kind, ResourceKind::Gpu | ResourceKind::Share);
    let counted = |it: &Sample| it.metric == gpu::PROCESSES.id && it.reading.is_ok();
    let listed = |it: &Sample| {
        let process = it.part.as_ref()?;
        let is_listed = it.metric == gpu::PROCESS_MEMORY.id;
        is_listed.then(|| process.id.parse().ok()).flatten()
    };
    is_card.then(|| Card {
        resource: Arc::clone(&told.resource),
        processes: told
            .samples
            .iter()
            .any(counted)
            .then(|| told.samples.iter().filter_map(listed).collect()),
    })
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::{Part, PartKind};

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

    #[test]
    fn a_card_without_a_list_of_processes_is_not_one_without_processes() {
        let users = Users::default();
        let counted = |id: &str, pids: &[&str]| {
            let mut told = told(ResourceKind::Gpu, id, None, pids);
            told.samples.push(Sample {
                metric: gpu::PROCESSES.id,
                part: None,
                reading: Ok(pids.len() as f64),
            });
            told
        };
        let silent = told(ResourceKind::Gpu, "GPU-c", None, &[]);
        let node = told(ResourceKind::Node, "node-1", None, &[]);
        users.note(&[
            counted("GPU-a", &["7", "8"]),
            counted("GPU-b", &[]),
            silent,
            node,
        ]);
        let cards = users.cards();
        let found: Vec<_> = cards
            .iter()
            .map(|it| (it.resource.id.as_ref(), it.processes.as_deref()))
            .collect();
        let expected = [
            ("GPU-a", Some(&[7, 8][..])),
            ("GPU-b", Some(&[])),
            ("GPU-c", None),
        ];
        assert_eq!(found, expected);
    }
}

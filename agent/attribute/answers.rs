//! What those say of pods and jobs who are asked beside the rounds, the Kubernetes API and Slurm.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::claims::Devices;
use super::cluster::Snapshot;
use super::held::{Names, Pod};
use super::labels::{self, Facts};
use super::standing::Standing;

/// What they know, for one round.
pub(super) struct Answers {
    pub(super) cluster: Option<Snapshot>,
    /// What claims give only to look at.
    pub(super) claims: Arc<BTreeMap<String, Devices>>,
    pub(super) claims_standing: Standing,
    pub(super) jobs: Arc<BTreeMap<u64, Facts>>,
    pub(super) slurm: Standing,
    /// How those are doing who say which GPUs jobs have.
    pub(super) allocations: Standing,
}

impl Names for Answers {
    fn pod(&self, namespace: &str, name: &str) -> Option<Pod<'_>> {
        let cluster = self.cluster.as_ref()?;
        let pod = cluster.pod(namespace, name);
        let of_namespace = cluster.namespaces.get(namespace);
        let none = Facts::new();
        // What the namespace says is known without the pod.
        if pod.is_none() && of_namespace.is_none() {
            return None;
        }
        let facts = pod.map_or(&none, |it| &it.facts);
        Some(Pod {
            uid: pod.map_or("", |it| &it.uid),
            is_over: pod.is_some_and(|it| it.is_over),
            facts: labels::join(facts, of_namespace.unwrap_or(&none)),
        })
    }

    fn is_starting(&self, namespace: &str, pod: &str, container: &str) -> bool {
        let cluster = self.cluster.as_ref();
        cluster.is_some_and(|it| it.is_starting(namespace, pod, container))
    }

    fn pod_of(&self, uid: &str) -> Option<(String, String)> {
        let pod = self.cluster.as_ref()?.pods.with_uid(uid)?;
        Some((pod.namespace.clone(), pod.name.clone()))
    }

    fn only_looks(&self, claim: &str, device: &str) -> bool {
        let looked_at = self.claims.get(claim);
        looked_at.is_some_and(|it| it.contains(device))
    }

    fn job(&self, job: u64) -> Facts {
        self.jobs.get(&job).cloned().unwrap_or_default()
    }
}

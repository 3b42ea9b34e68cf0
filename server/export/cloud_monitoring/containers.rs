//! Which container held a GPU in the minute that is written.
//!
//! The record has the holder of each minute by its number, which is a job's; its pod and container are told of
//! now alone. So what is told now counts where its number is the minute's. In a minute that is written late
//! another pod of the same job may have been there: then it has to be the same container that was told when the
//! last minute in time was written. What is of neither is of its node.
//!
//! Limits: [`MAX_KNOWN`] containers are remembered, each for [`FORGET_MS`] after its last minute in time.

use std::collections::HashMap;

use gpufleet_analysis::owner::Holder;
use gpufleet_telemetry::identity::{ResourceKind, attribute};
use gpufleet_telemetry::time::Timestamp;

use crate::store::model::{KnownResource, ResourceKey};

/// Most containers that are remembered, at some 300 bytes each 60 MB: twice the largest fleet. Of those beyond
/// it late minutes are of their nodes.
const MAX_KNOWN: usize = 200_000;

/// How long a container is remembered, milliseconds: longer than the oldest minute that may be written.
const FORGET_MS: i64 = 25 * 3_600_000;

/// A container, by the names that Kubernetes gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// Its name in the pod.
    pub name: String,
}

/// A container with the number of the holder that it is a part of; none where nobody was told to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    by: Option<i64>,
    container: Container,
}

/// The containers of the last minutes that were written in time.
#[derive(Debug, Default)]
pub struct Containers {
    of: HashMap<ResourceKey, (Held, Timestamp)>,
}

impl Container {
    /// The one that a resource names; none where a name of it is missing.
    pub fn told_by(known: &KnownResource) -> Option<Self> {
        let text = |name| known.resource.attribute(name).filter(|it| !it.is_empty());
        Some(Self {
            namespace: text(attribute::NAMESPACE)?.to_owned(),
            pod: text(attribute::POD)?.to_owned(),
            name: text(attribute::CONTAINER)?.to_owned(),
        })
    }
}

impl Containers {
    /// The container that a resource was held by in the minute that ends at `end`, in which the record has the
    /// holder with this number.
    pub fn held(
        &mut self,
        known: &KnownResource,
        holder: Option<i64>,
        (end, is_late): (Timestamp, bool),
    ) -> Option<Container> {
        let container = Container::told_by(known);
        if !matches!(known.key.kind, ResourceKind::Gpu | ResourceKind::Share) {
            // What runs in a container is in it for all its life.
            return container;
        }
        let by = Holder::told_by(&known.resource).map(|it| it.number());
        let now = container.map(|container| Held { by, container });
        let before = self.of.get(&known.key).map(|it| it.0.clone());
        let fits = |it: &Held| it.by == holder;
        let found = match is_late {
            true => before.filter(|it| now.as_ref() == Some(it)).filter(fits),
            false => now.clone().filter(fits).or(before.filter(fits)),
        };
        if !is_late {
            self.remember(&known.key, now, end);
        }
        found.map(|it| it.container)
    }

    fn remember(&mut self, key: &ResourceKey, now: Option<Held>, end: Timestamp) {
        let has_room = self.of.len() < MAX_KNOWN || self.of.contains_key(key);
        match now.filter(|_| has_room) {
            Some(held) => _ = self.of.insert(key.clone(), (held, end)),
            None => _ = self.of.remove(key),
        }
    }

    /// Forgets what was not there for long.
    pub fn forget_before(&mut self, end: Timestamp) {
        let oldest = end.millis() - FORGET_MS;
        self.of.retain(|_, (_, at)| at.millis() >= oldest);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpufleet_telemetry::identity::Resource;
    use gpufleet_telemetry::time::Minute;

    use super::*;

    const FIRST: i64 = 29_833_334;

    fn at(minute: i64) -> Timestamp {
        Minute(FIRST + minute).start()
    }

    /// A GPU that a pod of this job holds; nobody where there is none.
    fn gpu(pod: Option<(&str, &str)>) -> KnownResource {
        let mut resource = Resource::new(ResourceKind::Gpu, "GPU-1");
        if let Some((pod, job)) = pod {
            resource = resource
                .with(attribute::HOLDER, format!("pod:ml/{pod}"))
                .with(attribute::WORKLOAD, job)
                .with(attribute::NAMESPACE, "ml")
                .with(attribute::POD, pod)
                .with(attribute::CONTAINER, "main");
        }
        known(resource)
    }

    fn known(resource: Resource) -> KnownResource {
        KnownResource {
            key: ResourceKey {
                cluster: "prod".into(),
                kind: resource.kind,
                id: Arc::clone(&resource.id),
            },
            resource: Arc::new(resource),
            agent: None,
            first_seen: at(0),
            last_seen: at(0),
        }
    }

    fn number(known: &KnownResource) -> Option<i64> {
        Holder::told_by(&known.resource).map(|it| it.number())
    }

    fn pod(found: Option<Container>) -> Option<String> {
        found.map(|it| it.pod)
    }

    #[test]
    fn a_minute_in_time_is_of_whoever_held_it_then_and_not_of_who_holds_it_now() {
        let (one, two) = (gpu(Some(("a-0", "a"))), gpu(Some(("b-0", "b"))));
        let (a, b) = (number(&one), number(&two));
        assert!(a.is_some() && a != b);
        let mut all = Containers::default();
        let mut held = |known: &KnownResource, holder, minute| {
            pod(all.held(known, holder, (at(minute), false)))
        };
        assert_eq!(held(&one, a, 1).as_deref(), Some("a-0"));
        // It was still the first's, and is the second's by now.
        assert_eq!(held(&two, a, 2).as_deref(), Some("a-0"));
        assert_eq!(held(&two, b, 3).as_deref(), Some("b-0"));
        // Nobody held it, or somebody of whom no container is known.
        assert_eq!(held(&two, None, 4), None);
        assert_eq!(held(&two, Some(7), 5), None);
        assert_eq!(held(&gpu(None), None, 6), None);
        assert_eq!(held(&gpu(None), b, 7), None, "it is forgotten with its end");
    }

    #[test]
    fn a_late_minute_is_of_the_container_that_held_it_before_and_after_or_of_none() {
        let (one, restarted) = (gpu(Some(("a-0", "a"))), gpu(Some(("a-0-again", "a"))));
        let (a, other) = (number(&one), gpu(Some(("b-0", "b"))));
        assert_eq!(a, number(&restarted), "both are of one job");
        let before = || {
            let mut all = Containers::default();
            all.held(&one, a, (at(1), false));
            all
        };
        let late = |mut all: Containers, known: &KnownResource, holder| {
            pod(all.held(known, holder, (at(9), true)))
        };
        assert_eq!(late(before(), &one, a).as_deref(), Some("a-0"));
        assert_eq!(late(before(), &one, number(&other)), None);
        assert_eq!(
            late(before(), &restarted, a),
            None,
            "which of both is not known"
        );
        assert_eq!(late(before(), &other, a), None);
        assert_eq!(
            late(Containers::default(), &one, a),
            None,
            "before is not known"
        );
    }

    #[test]
    fn what_runs_in_a_container_is_of_it_however_late_and_what_is_gone_is_forgotten() {
        let rank = Resource::new(ResourceKind::Rank, "ml/a/u/0/3")
            .with(attribute::NAMESPACE, "ml")
            .with(attribute::POD, "a-3")
            .with(attribute::CONTAINER, "main");
        let mut all = Containers::default();
        let found = all.held(&known(rank), None, (at(9), true));
        assert_eq!(pod(found).as_deref(), Some("a-3"));
        let one = gpu(Some(("a-0", "a")));
        all.held(&one, number(&one), (at(0), false));
        all.forget_before(at(25 * 60));
        assert_eq!(all.of.len(), 1);
        all.forget_before(at(25 * 60 + 1));
        assert_eq!(all.of.len(), 0);
    }
}

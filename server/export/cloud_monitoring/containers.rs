//! Which container held a GPU in the minute that is written.
//!
//! The record has the holder of each minute by its number, which is a job's; its pod and container are told of
//! now alone, and a minute is written when they may be gone. So what is told is looked at again and again
//! ([`watch`]), and from when to when it was told is remembered. A minute is of the container whose number is the
//! minute's and that was told in it, longest of several; where none was told in it, of the only one that may have
//! been there between two looks, as across an outage. What is of neither is of its node, as are minutes before
//! the server began, but for those of [`BEFORE_FIRST_MS`].
//!
//! Limits: [`KEPT`] containers of a GPU and [`MAX_STAYS`] of all are remembered, each for [`FORGET_MS`] after it
//! was last told.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpufleet_analysis::owner::Holder;
use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};
use gpufleet_telemetry::time::{Minute, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::fleet::Fleet;
use crate::store::model::{KnownResource, ResourceKey};

/// How often it is looked who holds what: twice in a tick of an agent.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Containers of one GPU that are remembered, the last ones: with the default delay of a minute, those of more
/// than ten seconds each.
const KEPT: usize = 8;

/// Containers that are remembered of all GPUs, at some 250 bytes each 100 MB: four of each in the largest fleet. Those
/// beyond it take the place of older ones of their GPU.
const MAX_STAYS: usize = 400_000;

/// How long a container is remembered, milliseconds: longer than the oldest minute that may be written.
const FORGET_MS: i64 = 25 * 3_600_000;

/// How long before it was first told a container may have been there, milliseconds, where nobody looked before: the
/// minutes that were still to be written when the server began, and a pod does not often take the place of one of
/// its own job.
const BEFORE_FIRST_MS: i64 = 180_000;

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
#[derive(Debug, PartialEq, Eq)]
struct Held {
    by: Option<i64>,
    container: Container,
}

/// A container as long as it was told.
#[derive(Debug)]
struct Stay {
    held: Held,
    /// The last time that it was not told yet.
    after: Timestamp,
    /// The first and the last time that it was told.
    told: (Timestamp, Timestamp),
    /// The first time that it was no longer told; none while it is.
    before: Option<Timestamp>,
}

/// What is remembered of a GPU.
#[derive(Debug)]
struct Watched {
    /// The GPU as it was last told; none before the first time.
    last: Option<Arc<Resource>>,
    /// When it was last told.
    looked: Timestamp,
    /// The oldest first.
    stays: VecDeque<Stay>,
}

/// The containers of the last hours.
#[derive(Debug, Default)]
pub struct Containers {
    of: HashMap<ResourceKey, Watched>,
    /// How many stays there are in all.
    stays: usize,
}

impl Container {
    /// The one that a resource names; none where a name of it is missing.
    pub fn told_by(resource: &Resource) -> Option<Self> {
        let text = |name| resource.attribute(name).filter(|it| !it.is_empty());
        Some(Self {
            namespace: text(attribute::NAMESPACE)?.to_owned(),
            pod: text(attribute::POD)?.to_owned(),
            name: text(attribute::CONTAINER)?.to_owned(),
        })
    }
}

impl Held {
    fn told_by(resource: &Resource) -> Option<Self> {
        Some(Self {
            container: Container::told_by(resource)?,
            by: Holder::told_by(resource).map(|it| it.number()),
        })
    }
}

impl Stay {
    /// For how long it was told in this minute, milliseconds; none where it was not.
    fn told_in(&self, (start, end): (Timestamp, Timestamp)) -> Option<i64> {
        let (first, last) = self.told;
        let is_in = first < end && last >= start;
        is_in.then(|| last.min(end).millis() - first.max(start).millis())
    }

    /// Whether nobody saw that it was not there in all of this minute.
    fn may_be_in(&self, (start, end): (Timestamp, Timestamp)) -> bool {
        self.after < end && self.before.is_none_or(|it| it > start)
    }
}

/// Whether containers hold such a resource in turns.
const fn is_held(kind: ResourceKind) -> bool {
    matches!(kind, ResourceKind::Gpu | ResourceKind::Share)
}

/// All that is remembered, under its lock.
pub(super) fn lock(containers: &Mutex<Containers>) -> MutexGuard<'_, Containers> {
    containers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks who holds what until it is told to stop.
pub(super) async fn watch(fleet: &Fleet, containers: &Mutex<Containers>, stop: &CancellationToken) {
    while !stop.is_cancelled() {
        look(fleet, containers);
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// Remembers who holds what now.
pub(super) fn look(fleet: &Fleet, containers: &Mutex<Containers>) {
    let mut told = Vec::new();
    fleet.visit(|live| {
        if is_held(live.key.kind) {
            told.push((
                live.key.clone(),
                Arc::clone(&live.resource),
                live.last_point,
            ));
        }
    });
    let mut containers = lock(containers);
    for (key, resource, at) in told {
        containers.tell(key, &resource, at);
    }
}

impl Watched {
    /// Of what nobody looked at before this time.
    fn since(at: Timestamp) -> Self {
        Self {
            last: None,
            looked: Timestamp::from_millis(at.millis() - BEFORE_FIRST_MS),
            stays: VecDeque::new(),
        }
    }

    /// Hears what it is told to be at this time.
    fn tell(&mut self, resource: &Arc<Resource>, at: Timestamp, has_room: bool) {
        let after = std::mem::replace(&mut self.looked, at);
        let open = self.stays.back_mut().filter(|it| it.before.is_none());
        let is_same = self
            .last
            .as_ref()
            .is_some_and(|it| Arc::ptr_eq(it, resource));
        if is_same {
            if let Some(open) = open {
                open.told.1 = at;
            }
            return;
        }
        self.last = Some(Arc::clone(resource));
        let now = Held::told_by(resource);
        match open {
            Some(open) if now.as_ref() == Some(&open.held) => {
                open.told.1 = at;
                return;
            }
            Some(open) => open.before = Some(at),
            None => {}
        }
        let Some(held) = now else { return };
        let is_full = self.stays.len() >= KEPT || !has_room;
        if is_full && self.stays.pop_front().is_none() {
            return;
        }
        self.stays.push_back(Stay {
            held,
            after,
            told: (at, at),
            before: None,
        });
    }

    /// Which of them was there in a minute whose holder has this number.
    fn held(&self, holder: Option<i64>, minute: (Timestamp, Timestamp)) -> Option<&Container> {
        let fits = || self.stays.iter().filter(|it| it.held.by == holder);
        let told = fits().filter_map(|it| Some((it.told_in(minute)?, it)));
        if let Some((_, longest)) = told.max_by_key(|it| it.0) {
            return Some(&longest.held.container);
        }
        let mut may_be = fits().filter(|it| it.may_be_in(minute));
        let only = &may_be.next()?.held.container;
        may_be.all(|it| it.held.container == *only).then_some(only)
    }
}

impl Containers {
    /// Hears what a GPU is told to be at this time.
    fn tell(&mut self, key: ResourceKey, resource: &Arc<Resource>, at: Timestamp) {
        let known = self.of.entry(key);
        let known = known.or_insert_with(|| Watched::since(at));
        let kept = known.stays.len();
        if at < known.looked {
            // What was told of a clock that was ahead, and is set.
            *known = Watched::since(at);
        }
        known.tell(resource, at, self.stays < MAX_STAYS);
        self.stays = self.stays + known.stays.len() - kept;
    }

    /// The container that a resource was in, or was held by, in the minute that ends at `end`, in which the record
    /// has the holder with this number.
    pub fn held(
        &self,
        known: &KnownResource,
        holder: Option<i64>,
        end: Timestamp,
    ) -> Option<Container> {
        if !is_held(known.key.kind) {
            // What runs in a container is in it for all its life.
            return Container::told_by(&known.resource);
        }
        let minute = (Minute(end.minute().0 - 1).start(), end);
        self.of.get(&known.key)?.held(holder, minute).cloned()
    }

    /// Forgets what was not there for long.
    pub fn forget_before(&mut self, end: Timestamp) {
        let oldest = Timestamp::from_millis(end.millis() - FORGET_MS);
        for known in self.of.values_mut() {
            known.stays.retain(|it| it.told.1 >= oldest);
        }
        self.of.retain(|_, known| known.looked >= oldest);
        self.stays = self.of.values().map(|it| it.stays.len()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: i64 = 29_833_334;

    /// So many seconds after the first minute begins.
    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(FIRST * 60 + seconds)
    }

    /// A GPU that a pod of this job holds; nobody where there is none.
    fn gpu(pod: Option<(&str, &str)>) -> Arc<Resource> {
        let resource = Resource::new(ResourceKind::Gpu, "GPU-1");
        Arc::new(match pod {
            None => resource,
            Some((pod, job)) => resource
                .with(attribute::HOLDER, format!("pod:ml/{pod}"))
                .with(attribute::WORKLOAD, job)
                .with(attribute::NAMESPACE, "ml")
                .with(attribute::POD, pod)
                .with(attribute::CONTAINER, "main"),
        })
    }

    fn known(resource: &Arc<Resource>) -> KnownResource {
        KnownResource {
            key: ResourceKey {
                cluster: "prod".into(),
                kind: resource.kind,
                id: Arc::clone(&resource.id),
            },
            resource: Arc::clone(resource),
            agent: None,
            first_seen: at(0),
            last_seen: at(0),
        }
    }

    fn number(resource: &Arc<Resource>) -> Option<i64> {
        Holder::told_by(resource).map(|it| it.number())
    }

    /// What is remembered of one that was told these at these seconds.
    fn told<'a>(all: impl IntoIterator<Item = (i64, &'a Arc<Resource>)>) -> Containers {
        let mut containers = Containers::default();
        for (seconds, resource) in all {
            containers.tell(known(resource).key, resource, at(seconds));
        }
        containers
    }

    /// The pod that held it in this minute, whose holder has this number.
    fn pod(all: &Containers, holder: Option<i64>, minute: i64) -> Option<String> {
        let found = all.held(&known(&gpu(None)), holder, at(60 * (minute + 1)));
        found.map(|it| it.pod)
    }

    #[test]
    fn a_minute_is_of_whoever_held_it_then_though_he_is_gone_when_it_is_written() {
        let (a, b, free) = (gpu(Some(("a-0", "a"))), gpu(Some(("b-0", "b"))), gpu(None));
        // Every ten seconds; a goes in minute 1, nobody holds it for long, b comes in minute 4.
        let by = |second: i64| match second {
            ..90 => &a,
            90..250 => &free,
            _ => &b,
        };
        let all = told((0..36).map(|it| (10 * it, by(10 * it))));
        let is = |holder, minute, expected: Option<&str>| {
            assert_eq!(pod(&all, holder, minute).as_deref(), expected, "{minute}");
        };
        is(number(&a), 0, Some("a-0"));
        is(number(&a), 1, Some("a-0"));
        is(number(&b), 4, Some("b-0"));
        is(number(&b), 5, Some("b-0"));
        // Nobody held it, or somebody of whom no container is known.
        is(None, 3, None);
        is(Some(7), 5, None);
        is(number(&a), 3, None);
        is(number(&b), 1, None);
    }

    #[test]
    fn of_two_containers_of_one_job_a_minute_is_of_the_one_that_was_there_for_longer() {
        let (one, again) = (gpu(Some(("a-0", "a"))), gpu(Some(("a-0-again", "a"))));
        let a = number(&one);
        assert_eq!(a, number(&again), "both are of one job");
        let all = told((0..18).map(|it| (10 * it, if it < 8 { &one } else { &again })));
        assert_eq!(pod(&all, a, 0).as_deref(), Some("a-0"));
        assert_eq!(pod(&all, a, 1).as_deref(), Some("a-0-again"));
        // Nobody looked for minutes: which of both it was is not known.
        let all = told([(0, &one), (600, &again)]);
        assert_eq!(pod(&all, a, 0).as_deref(), Some("a-0"));
        assert_eq!(pod(&all, a, 5), None);
        assert_eq!(pod(&all, a, 10).as_deref(), Some("a-0-again"));
    }

    #[test]
    fn a_minute_in_which_nobody_looked_is_of_the_only_one_that_may_have_been_there() {
        let (a, b) = (gpu(Some(("a-0", "a"))), gpu(Some(("b-0", "b"))));
        let all = told([(0, &a), (600, &a), (1_200, &b)]);
        assert_eq!(pod(&all, number(&a), 5).as_deref(), Some("a-0"));
        assert_eq!(pod(&all, number(&a), 15).as_deref(), Some("a-0"));
        assert_eq!(pod(&all, number(&b), 15).as_deref(), Some("b-0"));
        assert_eq!(pod(&all, number(&b), 5), None, "the other was there");
        // Before the first look only for a little while.
        assert_eq!(pod(&all, number(&a), -3).as_deref(), Some("a-0"));
        assert_eq!(pod(&all, number(&a), -5), None);
    }

    #[test]
    fn what_is_remembered_of_a_gpu_is_bounded_and_forgotten_when_it_is_old() {
        let pods: Vec<_> = (0..20)
            .map(|it| gpu(Some((&format!("p-{it}"), &format!("job-{it}")))))
            .collect();
        let mut all = told((0..).step_by(60).zip(&pods));
        assert_eq!(all.stays, KEPT);
        assert_eq!(pod(&all, number(&pods[19]), 19).as_deref(), Some("p-19"));
        assert_eq!(pod(&all, number(&pods[12]), 12).as_deref(), Some("p-12"));
        assert_eq!(pod(&all, number(&pods[11]), 11), None);
        // Where there is no room for one more, it takes the place of the oldest of its own.
        all.stays = MAX_STAYS;
        all.tell(known(&pods[0]).key, &pods[0], at(60 * 20));
        assert_eq!(all.stays, MAX_STAYS);
        assert_eq!(pod(&all, number(&pods[12]), 12), None);
        let other = Arc::new(Resource {
            id: "GPU-2".into(),
            ..Resource::clone(&pods[0])
        });
        all.tell(known(&other).key, &other, at(60 * 20));
        assert_eq!(all.stays, MAX_STAYS, "the first of another has no room");
        all.forget_before(at(25 * 3_600 + 60 * 20));
        assert_eq!((all.of.len(), all.stays), (2, 1));
        all.forget_before(at(25 * 3_600 + 60 * 20 + 1));
        assert_eq!((all.of.len(), all.stays), (0, 0));
    }

    #[test]
    fn a_clock_that_is_set_back_is_followed() {
        let (a, b) = (gpu(Some(("a-0", "a"))), gpu(Some(("b-0", "b"))));
        let all = told([(7_200, &a), (0, &b), (60, &b)]);
        assert_eq!(pod(&all, number(&b), 0).as_deref(), Some("b-0"));
        assert_eq!(all.stays, 1);
    }

    #[test]
    fn what_runs_in_a_container_is_of_it_however_late() {
        let rank = Resource::new(ResourceKind::Rank, "ml/a/u/0/3")
            .with(attribute::NAMESPACE, "ml")
            .with(attribute::POD, "a-3")
            .with(attribute::CONTAINER, "main");
        let found = Containers::default().held(&known(&Arc::new(rank)), None, at(9 * 60));
        assert_eq!(found.map(|it| it.pod).as_deref(), Some("a-3"));
    }
}

//! The pods of this node, by uid and by name.
//!
//! Limit: [`MAX_PODS`]. A pod that has ended makes room for one that has not; those that have no place are
//! counted, so that it can be told.

use std::collections::{BTreeMap, BTreeSet};

use super::labels::Facts;

/// Most pods of a node: four times the 250 that GKE allows, for those that have ended and stay until
/// somebody takes them away.
const MAX_PODS: usize = 1_024;

/// A pod of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) is_over: bool,
    /// Its containers that do not run and wait for something.
    pub(super) waiting: Waiting,
    pub(super) facts: Facts,
}

/// Containers of a pod that do not run and wait for something. One that came to its end waits for nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Every one: the pod was just put here.
    All,
    /// These.
    Named(BTreeSet<String>),
}

/// The pods of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Pods {
    by_uid: BTreeMap<String, Pod>,
    by_name: BTreeMap<(String, String), String>,
    /// Those without a place, up to [`MAX_PODS`].
    left_out: BTreeSet<String>,
}

impl Waiting {
    /// Whether a container of this name waits.
    pub(super) fn has(&self, container: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.contains(container),
        }
    }
}

impl Pods {
    pub(super) fn of(&self, namespace: &str, name: &str) -> Option<&Pod> {
        let key = (namespace.to_owned(), name.to_owned());
        self.by_uid.get(self.by_name.get(&key)?)
    }

    pub(super) fn with_uid(&self, uid: &str) -> Option<&Pod> {
        self.by_uid.get(uid)
    }

    /// How many have no place.
    pub(super) fn left_out(&self) -> usize {
        self.left_out.len()
    }

    pub(super) fn put(&mut self, pod: Pod) {
        if self.by_uid.len() >= MAX_PODS && !self.by_uid.contains_key(&pod.uid) {
            let mut kept = self.by_uid.values();
            let ended = kept.find(|it| it.is_over && !pod.is_over);
            let Some(ended) = ended.map(|it| it.uid.clone()) else {
                return self.leave_out(pod.uid);
            };
            self.remove(&ended);
            self.leave_out(ended);
        }
        self.left_out.remove(&pod.uid);
        let key = (pod.namespace.clone(), pod.name.clone());
        self.by_name.insert(key, pod.uid.clone());
        self.by_uid.insert(pod.uid.clone(), pod);
    }

    pub(super) fn remove(&mut self, uid: &str) {
        self.left_out.remove(uid);
        let Some(pod) = self.by_uid.remove(uid) else {
            return;
        };
        // A pod of the same name may have come after it.
        let key = (pod.namespace, pod.name);
        if self.by_name.get(&key).is_some_and(|it| it == uid) {
            self.by_name.remove(&key);
        }
    }

    fn leave_out(&mut self, uid: String) {
        if self.left_out.len() < MAX_PODS {
            self.left_out.insert(uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, name: &str) -> Pod {
        Pod {
            uid: uid.to_owned(),
            namespace: "a".to_owned(),
            name: name.to_owned(),
            is_over: false,
            waiting: Waiting::Named(BTreeSet::new()),
            facts: Facts::new(),
        }
    }

    #[test]
    fn a_pod_that_goes_does_not_take_the_next_one_of_its_name_with_it() {
        let mut pods = Pods::default();
        pods.put(pod("1", "db-0"));
        pods.put(pod("2", "db-0"));
        pods.remove("1");
        assert_eq!(pods.of("a", "db-0"), Some(&pod("2", "db-0")));
        assert_eq!(pods.with_uid("1"), None);
        pods.remove("2");
        assert_eq!(pods, Pods::default());
    }

    #[test]
    fn beyond_the_limit_pods_that_ended_make_room_and_those_without_a_place_are_counted() {
        let mut pods = Pods::default();
        let ended = Pod {
            is_over: true,
            ..pod("ended", "ended")
        };
        pods.put(ended.clone());
        for number in 1..MAX_PODS {
            pods.put(pod(&number.to_string(), &number.to_string()));
        }
        assert_eq!((pods.by_uid.len(), pods.left_out()), (MAX_PODS, 0));
        pods.put(pod("new", "new"));
        assert_eq!(pods.of("a", "new"), Some(&pod("new", "new")));
        assert_eq!(pods.with_uid("ended"), None);
        assert_eq!(pods.left_out(), 1);
        // None that ended is there any more, and one that did is worth nobody's place.
        pods.put(pod("newer", "newer"));
        pods.put(ended);
        assert_eq!(pods.with_uid("newer"), None);
        assert_eq!((pods.by_uid.len(), pods.left_out()), (MAX_PODS, 2));
        let changed = Pod {
            is_over: true,
            ..pod("1", "1")
        };
        pods.put(changed.clone());
        assert_eq!(
            pods.of("a", "1"),
            Some(&changed),
            "what is known is kept new"
        );
        pods.remove("newer");
        assert_eq!(pods.left_out(), 1);
        pods.remove("2");
        pods.put(Pod {
            is_over: true,
            ..pod("ended", "ended")
        });
        assert_eq!((pods.by_uid.len(), pods.left_out()), (MAX_PODS, 0));
    }
}

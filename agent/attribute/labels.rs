//! What a pod's labels and owner say of the job it belongs to.
//!
//! The topmost owner is known without asking for the owners between: whoever makes pods for another
//! labels them with its name. Each scheduler's labels are a row of [`WORKLOADS`].

use std::collections::BTreeMap;

use gpufleet_telemetry::holder::cut;
use gpufleet_telemetry::identity::attribute::{
    self, LABEL_PREFIX, MAX_HOLDER_LABELS, NAMESPACE_LABEL_PREFIX,
};
use serde::Deserialize;

/// Labels, as Kubernetes has them.
pub(super) type Labels = BTreeMap<String, String>;

/// What is known of a holder, as attributes of what it holds.
pub(super) type Facts = Vec<(String, String)>;

/// An owner of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Owner {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) controller: bool,
}

/// Labels that name the topmost owner, the topmost first, with the word for what it is.
const WORKLOADS: [(&str, &str); 8] = [
    ("jobset.sigs.k8s.io/jobset-name", "jobset"),
    ("leaderworkerset.sigs.k8s.io/name", "leaderworkerset"),
    ("ray.io/cluster", "raycluster"),
    // PyTorchJob, MPIJob, TFJob: the kind is the owner's.
    ("training.kubeflow.org/job-name", ""),
    ("volcano.sh/job-name", "vcjob"),
    ("kueue.x-k8s.io/pod-group-name", "podgroup"),
    ("batch.kubernetes.io/job-name", "job"),
    ("job-name", "job"),
];

/// Labels that say what the pod is in its workload.
const ROLES: [&str; 4] = [
    "jobset.sigs.k8s.io/replicatedjob-name",
    "training.kubeflow.org/replica-type",
    "ray.io/node-type",
    "volcano.sh/task-spec",
];

/// Labels that say which of its kind it is, the most exact first.
const INDEXES: [&str; 5] = [
    "training.kubeflow.org/replica-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
    "batch.kubernetes.io/job-completion-index",
    "jobset.sigs.k8s.io/job-index",
    "apps.kubernetes.io/pod-index",
];

const QUEUES: [&str; 2] = [
    "kueue.x-k8s.io/queue-name",
    "scheduling.volcano.sh/queue-name",
];

const ATTEMPT: &str = "jobset.sigs.k8s.io/restart-attempt";

/// The label that a Deployment gives its ReplicaSets and their pods, which ends the ReplicaSet's name.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// What a pod says of itself; `allowed` are the labels that are passed on.
pub(super) fn facts(
    namespace: &str,
    labels: &Labels,
    owners: &[Owner],
    allowed: &[String],
) -> Facts {
    let first = |keys: &[&str]| {
        let mut found = keys.iter().filter_map(|key| labels.get(*key));
        found.find(|it| !it.is_empty()).cloned()
    };
    let known = [
        (attribute::WORKLOAD, workload(namespace, labels, owners)),
        (attribute::WORKLOAD_ROLE, first(&ROLES)),
        (attribute::WORKLOAD_INDEX, first(&INDEXES)),
        (attribute::ATTEMPT, first(&[ATTEMPT])),
        (attribute::QUEUE, first(&QUEUES)),
    ];
    let mut facts: Facts = known
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), cut(&value?).to_owned())))
        .collect();
    facts.extend(passed_on(LABEL_PREFIX, labels, allowed));
    facts
}

/// What a namespace says of the pods in it.
pub(super) fn namespace_facts(labels: &Labels, allowed: &[String]) -> Facts {
    passed_on(NAMESPACE_LABEL_PREFIX, labels, allowed).collect()
}

/// Both together, without the labels that are too many.
pub(super) fn join(pod: &Facts, namespace: &Facts) -> Facts {
    let is_label =
        |name: &str| name.starts_with(LABEL_PREFIX) || name.starts_with(NAMESPACE_LABEL_PREFIX);
    let mut room = MAX_HOLDER_LABELS;
    let fits = |(name, _): &&(String, String)| {
        let is_label = is_label(name);
        let fits = !is_label || room > 0;
        room -= usize::from(is_label && fits);
        fits
    };
    pod.iter().chain(namespace).filter(fits).cloned().collect()
}

fn passed_on<'a>(
    prefix: &'static str,
    labels: &'a Labels,
    allowed: &'a [String],
) -> impl Iterator<Item = (String, String)> + 'a {
    let found = allowed.iter().filter_map(|key| labels.get_key_value(key));
    let found = found.filter(|(_, value)| !value.is_empty());
    found.map(move |(key, value)| (format!("{prefix}{key}"), value.clone()))
}

fn workload(namespace: &str, labels: &Labels, owners: &[Owner]) -> Option<String> {
    let owner = owners.iter().find(|it| it.controller);
    let kind = owner.map_or_else(String::new, |it| it.kind.to_lowercase());
    let named = WORKLOADS.iter().find_map(|(label, word)| {
        let name = labels.get(*label).filter(|it| !it.is_empty())?;
        let word = match (*word, kind.as_str()) {
            ("", "") => "trainingjob",
            ("", kind) => kind,
            (word, _) => word,
        };
        Some(format!("{word}:{namespace}/{name}"))
    });
    named.or_else(|| {
        let owner = owner?;
        let hash = labels.get(TEMPLATE_HASH);
        let deployment =
            hash.and_then(|it| owner.name.strip_suffix(it.as_str())?.strip_suffix('-'));
        Some(match deployment.filter(|_| kind == "replicaset") {
            Some(name) => format!("deployment:{namespace}/{name}"),
            None => format!("{kind}:{namespace}/{}", owner.name),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn owner(kind: &str, name: &str) -> Vec<Owner> {
        vec![Owner {
            kind: kind.to_owned(),
            name: name.to_owned(),
            controller: true,
        }]
    }

    #[test]
    fn the_topmost_owner_is_named_by_the_labels_that_it_gave_its_pods() {
        let check = |pairs: &[(&str, &str)], owners: &[Owner], expected: Option<&str>| {
            let found = workload("ns", &labels(pairs), owners);
            assert_eq!(found.as_deref(), expected, "{pairs:?} {owners:?}");
        };
        let job = ("batch.kubernetes.io/job-name", "train-workers-0");
        check(
            &[job],
            &owner("Job", "train-workers-0"),
            Some("job:ns/train-workers-0"),
        );
        check(
            &[job, ("jobset.sigs.k8s.io/jobset-name", "train")],
            &owner("Job", "train-workers-0"),
            Some("jobset:ns/train"),
        );
        check(
            &[("training.kubeflow.org/job-name", "bert")],
            &owner("PyTorchJob", "bert"),
            Some("pytorchjob:ns/bert"),
        );
        check(
            &[("training.kubeflow.org/job-name", "bert")],
            &[],
            Some("trainingjob:ns/bert"),
        );
        check(
            &[("ray.io/cluster", "r")],
            &owner("RayCluster", "r"),
            Some("raycluster:ns/r"),
        );
        let hash = ("pod-template-hash", "6d4cf56db6");
        check(
            &[hash],
            &owner("ReplicaSet", "api-v2-6d4cf56db6"),
            Some("deployment:ns/api-v2"),
        );
        check(
            &[hash],
            &owner("ReplicaSet", "bare"),
            Some("replicaset:ns/bare"),
        );
        check(&[], &owner("StatefulSet", "db"), Some("statefulset:ns/db"));
        check(&[], &[], None);
        let mut watcher = owner("Node", "n");
        watcher[0].controller = false;
        check(&[], &watcher, None);
    }

    #[test]
    fn a_pod_says_its_role_its_number_its_attempt_its_queue_and_the_labels_that_are_let_through() {
        let labels = labels(&[
            ("jobset.sigs.k8s.io/jobset-name", "train"),
            ("jobset.sigs.k8s.io/replicatedjob-name", "workers"),
            ("jobset.sigs.k8s.io/job-index", "0"),
            ("jobset.sigs.k8s.io/restart-attempt", "2"),
            ("batch.kubernetes.io/job-completion-index", "3"),
            ("kueue.x-k8s.io/queue-name", "research"),
            ("team", "nlp"),
            ("secret", "x"),
            ("empty", ""),
        ]);
        let allowed = ["team", "empty", "absent"].map(str::to_owned);
        let facts = facts("ns", &labels, &[], &allowed);
        let facts: Vec<_> = facts
            .iter()
            .map(|(a, b)| (a.as_str(), b.as_str()))
            .collect();
        let expected = [
            (attribute::WORKLOAD, "jobset:ns/train"),
            (attribute::WORKLOAD_ROLE, "workers"),
            (attribute::WORKLOAD_INDEX, "3"),
            (attribute::ATTEMPT, "2"),
            (attribute::QUEUE, "research"),
            ("gpufleet.label.team", "nlp"),
        ];
        assert_eq!(facts, expected);
    }

    #[test]
    fn labels_beyond_the_limit_are_left_out_and_nothing_else_is() {
        let keys: Vec<String> = (0..MAX_HOLDER_LABELS + 3)
            .map(|it| format!("k{it}"))
            .collect();
        let many: Labels = keys.iter().map(|it| (it.clone(), "x".to_owned())).collect();
        let mut pod = facts("ns", &many, &[], &keys);
        pod.push((attribute::QUEUE.to_owned(), "q".to_owned()));
        let both = join(&pod, &namespace_facts(&many, &keys));
        assert_eq!(both.len(), MAX_HOLDER_LABELS + 1);
        assert_eq!(both.last().map(|it| it.0.as_str()), Some(attribute::QUEUE));
        let few = join(&Vec::new(), &namespace_facts(&many, &keys[..1]));
        assert_eq!(
            few,
            [("gpufleet.namespace_label.k0".to_owned(), "x".to_owned())]
        );
    }
}

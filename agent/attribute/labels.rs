//! What a pod's labels and owner say of the job it belongs to; what it is called is in telemetry's
//! `workload`.

use std::collections::BTreeMap;

use gpufleet_telemetry::holder::cut;
use gpufleet_telemetry::identity::attribute::{
    self, LABEL_PREFIX, MAX_HOLDER_LABELS, NAMESPACE_LABEL_PREFIX,
};
use gpufleet_telemetry::workload;
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

/// Labels that say what the pod is in its workload, the most exact first: a TrainJob's JobSet calls its trainers `node`,
/// and of a cluster of Ray all groups but the head's are workers.
const ROLES: [&str; 6] = [
    "trainer.kubeflow.org/trainjob-ancestor-step",
    "jobset.sigs.k8s.io/replicatedjob-name",
    "training.kubeflow.org/replica-type",
    "ray.io/group",
    "ray.io/node-type",
    "volcano.sh/task-spec",
];

const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Labels that say which of its kind it is, the most exact first.
const INDEXES: [&str; 5] = [
    "training.kubeflow.org/replica-index",
    WORKER_INDEX,
    COMPLETION_INDEX,
    "jobset.sigs.k8s.io/job-index",
    "apps.kubernetes.io/pod-index",
];

/// Which of all jobs of a JobSet it is of: those of another replicated job have other numbers.
const GLOBAL_INDEX: &str = "jobset.sigs.k8s.io/job-global-index";

/// Which of the groups of a LeaderWorkerSet it is of, …
const GROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";

/// … and which of that group, whose leader is 0.
const WORKER_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";

/// Parts of a workload that each number their pods from 0: which part, and which pod of it.
const PARTS: [[&str; 2]; 2] = [
    [GLOBAL_INDEX, COMPLETION_INDEX],
    [GROUP_INDEX, WORKER_INDEX],
];

const ATTEMPT: &str = "jobset.sigs.k8s.io/restart-attempt";

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
    let owner = owners.iter().find(|it| it.controller);
    let owner = owner.map(|it| (it.kind.as_str(), it.name.as_str()));
    let workload = workload::workload(namespace, labels, owner);
    let in_part = PARTS.into_iter().find_map(|[part, pod]| {
        let part = first(&[part])?;
        Some(match first(&[pod]) {
            Some(pod) => format!("{part}/{pod}"),
            None => part,
        })
    });
    let index = in_part.or_else(|| first(&INDEXES));
    let known = [
        (attribute::WORKLOAD, workload),
        (attribute::WORKLOAD_ROLE, first(&ROLES)),
        (attribute::WORKLOAD_INDEX, index),
        (attribute::ATTEMPT, first(&[ATTEMPT])),
        (attribute::QUEUE, workload::queue(labels).map(str::to_owned)),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn only_who_controls_a_pod_is_its_owner() {
        let of = |controller| {
            let owner = Owner {
                kind: "StatefulSet".to_owned(),
                name: "db".to_owned(),
                controller,
            };
            facts("ns", &Labels::new(), &[owner], &[])
        };
        let expected = (
            attribute::WORKLOAD.to_owned(),
            "statefulset:ns/db".to_owned(),
        );
        assert_eq!(of(true), [expected]);
        assert_eq!(of(false), []);
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
    fn pods_of_a_jobset_have_a_number_of_their_own_across_its_replicated_jobs() {
        let index = |pairs: &[(&str, &str)]| {
            let mut facts = facts("ns", &labels(pairs), &[], &[]).into_iter();
            facts
                .find(|it| it.0 == attribute::WORKLOAD_INDEX)
                .map(|it| it.1)
        };
        let (job, global) = ("jobset.sigs.k8s.io/job-index", GLOBAL_INDEX);
        let of = |number| index(&[(job, "0"), (global, number), (COMPLETION_INDEX, "1")]);
        assert_eq!(of("0").as_deref(), Some("0/1"), "the driver's");
        assert_eq!(of("1").as_deref(), Some("1/1"), "the first worker's");
        assert_eq!(index(&[(job, "0"), (global, "4")]).as_deref(), Some("4"));
        // JobSets of before the label was there.
        assert_eq!(index(&[(job, "2")]).as_deref(), Some("2"));
    }

    #[test]
    fn workers_of_different_groups_of_a_leaderworkerset_have_different_numbers() {
        let index = |pairs: &[(&str, &str)]| {
            let mut facts = facts("ns", &labels(pairs), &[], &[]).into_iter();
            facts
                .find(|it| it.0 == attribute::WORKLOAD_INDEX)
                .map(|it| it.1)
        };
        let pod = "apps.kubernetes.io/pod-index";
        let of = |group, worker| index(&[(GROUP_INDEX, group), (WORKER_INDEX, worker), (pod, "7")]);
        assert_eq!(of("0", "0").as_deref(), Some("0/0"), "a leader");
        assert_eq!(of("1", "0").as_deref(), Some("1/0"), "another's");
        assert_eq!(of("1", "3").as_deref(), Some("1/3"));
        assert_eq!(index(&[(WORKER_INDEX, "3")]).as_deref(), Some("3"));
    }

    #[test]
    fn the_most_exact_label_says_what_a_pod_is_in_its_workload() {
        let role = |pairs: &[(&str, &str)]| {
            let mut facts = facts("ns", &labels(pairs), &[], &[]).into_iter();
            facts
                .find(|it| it.0 == attribute::WORKLOAD_ROLE)
                .map(|it| it.1)
        };
        let of_ray = ("ray.io/node-type", "worker");
        assert_eq!(role(&[of_ray]).as_deref(), Some("worker"));
        let group = ("ray.io/group", "h100-workers");
        assert_eq!(role(&[of_ray, group]).as_deref(), Some("h100-workers"));
        let of_set = ("jobset.sigs.k8s.io/replicatedjob-name", "node");
        assert_eq!(role(&[of_set]).as_deref(), Some("node"));
        let step = ("trainer.kubeflow.org/trainjob-ancestor-step", "trainer");
        assert_eq!(role(&[of_set, step]).as_deref(), Some("trainer"));
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

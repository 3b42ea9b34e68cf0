//! What a pod of Kubernetes belongs to, and its queue, from its labels and its owner.
//!
//! The topmost owner is known without asking for the owners between: whoever makes pods for another
//! labels them with its name. Each scheduler's labels are a row of [`WORKLOADS`].

use std::collections::BTreeMap;

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

/// Words for workloads whose pods begin together or not at all. Those of a plain Job and of a StatefulSet begin one by
/// one, those of a cluster of Ray too.
const TOGETHER: [&str; 13] = [
    "jobset",
    "leaderworkerset",
    "mpijob",
    "pytorchjob",
    "tfjob",
    "xgboostjob",
    "paddlejob",
    "jaxjob",
    "trainjob",
    "trainingjob",
    "vcjob",
    "podgroup",
    "workload",
];

const QUEUES: [&str; 2] = [
    "kueue.x-k8s.io/queue-name",
    "scheduling.volcano.sh/queue-name",
];

/// The label that a Deployment gives its ReplicaSets and their pods, which ends the ReplicaSet's name.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// What a pod belongs to: `jobset:namespace/name`; none where it stands for itself. `owner` is the kind
/// and name of what controls it.
pub fn workload(
    namespace: &str,
    labels: &BTreeMap<String, String>,
    owner: Option<(&str, &str)>,
) -> Option<String> {
    let kind = owner.map_or_else(String::new, |it| it.0.to_lowercase());
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
        let (_, name) = owner?;
        let hash = labels.get(TEMPLATE_HASH);
        let deployment = hash.and_then(|it| name.strip_suffix(it.as_str())?.strip_suffix('-'));
        Some(match deployment.filter(|_| kind == "replicaset") {
            Some(name) => format!("deployment:{namespace}/{name}"),
            None => format!("{kind}:{namespace}/{name}"),
        })
    })
}

/// Whether the pods of a workload, named as [`workload`] does or as one of Kueue's, begin together or not at all.
pub fn begins_together(workload: &str) -> bool {
    let word = workload.split_once(':').map(|it| it.0);
    word.is_some_and(|it| TOGETHER.contains(&it))
}

/// The queue that a pod waits in; none where its labels name none.
pub fn queue(labels: &BTreeMap<String, String>) -> Option<&str> {
    let mut named = QUEUES.iter().filter_map(|key| labels.get(*key));
    named.find(|it| !it.is_empty()).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn the_topmost_owner_is_named_by_the_labels_that_it_gave_its_pods() {
        let check = |pairs: &[(&str, &str)], owner, expected: Option<&str>| {
            let found = workload("ns", &labels(pairs), owner);
            assert_eq!(found.as_deref(), expected, "{pairs:?} {owner:?}");
        };
        let job = ("batch.kubernetes.io/job-name", "train-workers-0");
        let by_job = Some(("Job", "train-workers-0"));
        check(&[job], by_job, Some("job:ns/train-workers-0"));
        check(
            &[job, ("jobset.sigs.k8s.io/jobset-name", "train")],
            by_job,
            Some("jobset:ns/train"),
        );
        let bert = ("training.kubeflow.org/job-name", "bert");
        check(
            &[bert],
            Some(("PyTorchJob", "bert")),
            Some("pytorchjob:ns/bert"),
        );
        check(&[bert], None, Some("trainingjob:ns/bert"));
        check(
            &[("ray.io/cluster", "r")],
            Some(("RayCluster", "r")),
            Some("raycluster:ns/r"),
        );
        let hash = ("pod-template-hash", "6d4cf56db6");
        check(
            &[hash],
            Some(("ReplicaSet", "api-v2-6d4cf56db6")),
            Some("deployment:ns/api-v2"),
        );
        check(
            &[hash],
            Some(("ReplicaSet", "bare")),
            Some("replicaset:ns/bare"),
        );
        check(&[], Some(("StatefulSet", "db")), Some("statefulset:ns/db"));
        check(&[], None, None);
    }

    #[test]
    fn a_gang_is_told_by_what_its_pods_belong_to() {
        for workload in [
            "jobset:ml/a",
            "mpijob:ml/a",
            "podgroup:ml/a",
            "workload:ml/a",
        ] {
            assert!(begins_together(workload), "{workload}");
        }
        for workload in [
            "deployment:web/a",
            "job:ml/a",
            "pod:ml/jobset",
            "jobset",
            "",
        ] {
            assert!(!begins_together(workload), "{workload}");
        }
    }

    #[test]
    fn a_queue_without_a_name_is_none() {
        let kueue = "kueue.x-k8s.io/queue-name";
        assert_eq!(queue(&labels(&[(kueue, "research")])), Some("research"));
        assert_eq!(queue(&labels(&[(kueue, "")])), None);
        assert_eq!(queue(&labels(&[])), None);
    }
}

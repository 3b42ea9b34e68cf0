//! Who holds a GPU, from the attributes that its resource has.
//!
//! A holder is what is charged and not the pod: the pods of one job that say the same of themselves are
//! one holder. It has a number, a hash of all that is known of it, so that everyone who meets it gives
//! it the same one, in any order and after any restart.
//!
//! Limits: [`MAX_TEXT`] of each text, [`MAX_LABELS`] of each kind.

use std::collections::BTreeMap;

use gpufleet_telemetry::identity::{Resource, attribute};
use uuid::Uuid;

use super::Holder;

/// Longest text of a holder in characters: Kubernetes names and label values end at 253.
const MAX_TEXT: usize = 256;

/// Most labels of a pod, and of a namespace: the agent sends as many.
const MAX_LABELS: usize = 16;

/// What the numbers of holders are hashed in: any fixed one.
const NAMESPACE: Uuid = Uuid::from_u128(0x6770_7566_6c65_6574_2068_6f6c_6465_7273);

/// Labels that say which model a holder trains or serves, and to which project it belongs.
const MODEL_LABELS: [&str; 2] = ["gpufleet.io/model", "model"];
const PROJECT_LABELS: [&str; 2] = ["gpufleet.io/project", "project"];

impl Holder {
    /// Who holds this resource; none when nobody is known to.
    pub fn told_by(resource: &Resource) -> Option<Self> {
        let text = |name: &str| resource.attribute(name).filter(|it| !it.is_empty());
        let name = text(attribute::HOLDER)?;
        let in_namespace = pod(name).map(|it| it.0);
        let of_process = name
            .strip_prefix("process:")
            .and_then(|it| it.split_once('/'));
        let user = text(attribute::SLURM_USER).or(of_process.map(|it| it.0));
        let job = text(attribute::WORKLOAD).or(text(attribute::JOB));
        let job = job.unwrap_or_else(|| job_of(name)).to_owned();
        let pod_labels = labels(resource, attribute::LABEL_PREFIX);
        let namespace_labels = labels(resource, attribute::NAMESPACE_LABEL_PREFIX);
        let labelled = |keys: &[&str]| {
            let all = keys.iter();
            let of = |key: &&str| pod_labels.get(*key).or(namespace_labels.get(*key));
            all.filter_map(of).next().cloned().unwrap_or_default()
        };
        let model = text(attribute::MODEL_NAME).map(clipped);
        Some(Self {
            name: clipped(&job),
            namespace: text(attribute::NAMESPACE)
                .or(in_namespace)
                .map(clipped)
                .unwrap_or_default(),
            model: model.unwrap_or_else(|| labelled(&MODEL_LABELS)),
            project: labelled(&PROJECT_LABELS),
            queue: text(attribute::QUEUE).map(clipped).unwrap_or_default(),
            slurm_account: text(attribute::SLURM_ACCOUNT)
                .map(clipped)
                .unwrap_or_default(),
            user: user.map(clipped).unwrap_or_default(),
            owner: text(attribute::OWNER).map(clipped).unwrap_or_default(),
            job: clipped(&job),
            pod_labels,
            namespace_labels,
            is_starting: text(attribute::HOLDER_STARTING) == Some("true"),
        })
    }

    /// Its number: above 0, the same wherever the same is known of it.
    pub fn number(&self) -> i64 {
        let text = serde_json::to_vec(self).expect("it is made of texts");
        let hash = Uuid::new_v5(&NAMESPACE, &text).as_u128();
        let low = hash & u128::from(i64::MAX.unsigned_abs());
        i64::try_from(low).expect("the sign was cut off").max(1)
    }
}

/// The characters of the suffix that Kubernetes gives a pod: no vowels, and nothing that looks like one.
const SUFFIX: &str = "bcdfghjklmnpqrstvwxz2456789";

/// How long that suffix is.
const SUFFIX_LENGTH: usize = 5;

/// The job of a holder, where nobody says what made the pod: its name without the suffix and the index at its end, because the pods of a
/// job differ by these. One number only: `llama-3-0` is of `llama-3`, and two jobs that are taken for
/// one are worse than one that is taken for two. Other holders are a job each.
pub fn job_of(holder: &str) -> &str {
    if !holder.starts_with("pod:") {
        return holder;
    }
    let is_suffix =
        |part: &str| part.len() == SUFFIX_LENGTH && part.chars().all(|it| SUFFIX.contains(it));
    let is_index = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
    let without = |name: &str, is_end: &dyn Fn(&str) -> bool| match name.rsplit_once('-') {
        Some((front, end)) if is_end(end) => front.len(),
        _ => name.len(),
    };
    let bare = &holder[..without(holder, &is_suffix)];
    &bare[..without(bare, &is_index)]
}

/// Namespace and name of a pod.
fn pod(holder: &str) -> Option<(&str, &str)> {
    holder.strip_prefix("pod:")?.split_once('/')
}

fn labels(resource: &Resource, prefix: &str) -> BTreeMap<String, String> {
    let all = resource.attributes.iter();
    let labels = all.filter_map(|(name, value)| Some((name.strip_prefix(prefix)?, value)));
    labels
        .take(MAX_LABELS)
        .map(|(key, value)| (clipped(key), clipped(value)))
        .collect()
}

fn clipped(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::ResourceKind;

    use super::*;

    fn holder(attributes: &[(&str, &str)]) -> Option<Holder> {
        let gpu = Resource::new(ResourceKind::Gpu, "GPU-1");
        let with = |gpu: Resource, (name, value): &(&str, &str)| gpu.with(name, *value);
        Holder::told_by(&attributes.iter().fold(gpu, with))
    }

    #[test]
    fn pods_of_one_job_have_one_name_and_pods_of_two_jobs_have_two() {
        for (holder, job) in [
            (
                "pod:research/llama-70b-pretrain-0",
                "pod:research/llama-70b-pretrain",
            ),
            ("pod:ml/train-workers-3-x7k2p", "pod:ml/train-workers"),
            ("pod:ml/llama-3-8b-0", "pod:ml/llama-3-8b"),
            ("pod:ml/llama-3-70b-worker-1", "pod:ml/llama-3-70b-worker"),
            ("pod:ml/llama-3-0", "pod:ml/llama-3"),
            ("pod:ml/chat", "pod:ml/chat"),
            ("pod:ml/chat-v2-bert", "pod:ml/chat-v2-bert"),
            ("slurm:77", "slurm:77"),
            ("process:ada/train-3", "process:ada/train-3"),
        ] {
            assert_eq!(job_of(holder), job);
        }
    }

    #[test]
    fn a_pod_has_its_namespace_workload_labels_and_queue() {
        assert_eq!(
            holder(&[(attribute::WORKLOAD, "job:ml/train")]),
            None,
            "nobody holds it"
        );
        let bare = holder(&[(attribute::HOLDER, "pod:ml/train-0")]).expect("a pod");
        assert_eq!(
            (bare.namespace.as_str(), bare.job.as_str()),
            ("ml", "pod:ml/train")
        );
        let told = [
            (attribute::HOLDER, "pod:ml/train-0"),
            (attribute::WORKLOAD, "job:ml/train"),
            (attribute::QUEUE, "night"),
            ("gpufleet.label.team", "vision"),
            ("gpufleet.label.model", "llama"),
            ("gpufleet.namespace_label.cost-center", "42"),
            ("gpufleet.namespace_label.project", "north"),
        ];
        let full = holder(&told).expect("a pod");
        assert_eq!(
            (full.job.as_str(), full.queue.as_str()),
            ("job:ml/train", "night")
        );
        assert_eq!(
            (full.model.as_str(), full.project.as_str()),
            ("llama", "north")
        );
        assert_eq!(full.pod_labels["team"], "vision");
        assert_eq!(full.namespace_labels["cost-center"], "42");
    }

    #[test]
    fn a_slurm_job_and_a_process_have_their_user() {
        let told = [
            (attribute::HOLDER, "slurm:1234"),
            (attribute::SLURM_ACCOUNT, "physics"),
            (attribute::SLURM_USER, "eve"),
        ];
        let slurm = holder(&told).expect("a job");
        assert_eq!(
            (slurm.slurm_account.as_str(), slurm.user.as_str()),
            ("physics", "eve")
        );
        let process = holder(&[(attribute::HOLDER, "process:ada/python3")]).expect("a process");
        assert_eq!(
            (process.user.as_str(), process.namespace.as_str()),
            ("ada", "")
        );
    }

    #[test]
    fn the_number_is_that_of_what_is_known_and_not_of_the_pod() {
        let number = |pod: &str, team: &str| {
            let told = [(attribute::HOLDER, pod), ("gpufleet.label.team", team)];
            holder(&told).expect("a pod").number()
        };
        assert_eq!(
            number("pod:ml/train-0", "vision"),
            number("pod:ml/train-17", "vision")
        );
        assert_ne!(
            number("pod:ml/train-0", "vision"),
            number("pod:ml/train-0", "speech")
        );
        let told = [
            (attribute::HOLDER, "pod:ml/train-0"),
            ("gpufleet.label.team", "vision"),
            (attribute::HOLDER_STARTING, "true"),
        ];
        let starting = holder(&told).expect("a pod");
        assert!(starting.is_starting);
        assert_ne!(
            starting.number(),
            number("pod:ml/train-0", "vision"),
            "until it runs"
        );
        assert!(number("pod:ml/train-0", "") > 0);
        // Stored in databases: it must never change.
        assert_eq!(number("pod:ml/train-0", "vision"), 663_116_632_145_125_847);
    }
}

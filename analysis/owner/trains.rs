//! Which holders are training jobs: their active time is held against the targets of training.
//!
//! One is where a process of it said so (a run of its name), or where what made it makes training jobs: a JobSet, a
//! job of Kubeflow's, a job of Slurm. Of a bare pod, a Deployment or a process on a plain machine nobody
//! knows, so its active time is held against nothing.

use gpufleet_telemetry::training::JobId;

use super::Holder;

/// What makes training jobs, as it stands before the colon of a job.
const MAKERS: [&str; 11] = [
    "jobset",
    "trainjob",
    "trainingjob",
    "pytorchjob",
    "mpijob",
    "tfjob",
    "jaxjob",
    "xgboostjob",
    "paddlejob",
    "mxjob",
    "slurm",
];

impl Holder {
    /// Whether what made it makes training jobs.
    pub fn is_made_to_train(&self) -> bool {
        let maker = self.job.split_once(':').map(|it| it.0);
        maker.is_some_and(|it| MAKERS.contains(&it))
    }

    /// Whether it is this job: `jobset:ml/train`, `pod:ml/train`, `slurm:77`, `process:ada/train`.
    pub fn is_of(&self, job: &JobId) -> bool {
        let is_elsewhere = !job.namespace.is_empty()
            && !self.namespace.is_empty()
            && job.namespace != self.namespace;
        !is_elsewhere && self.is_called(&job.name)
    }

    /// Whether its job has this name, wherever it is.
    pub fn is_called(&self, job: &str) -> bool {
        !job.is_empty() && self.job_name() == job
    }

    /// Its job's name by itself; empty where it has none.
    pub fn job_name(&self) -> &str {
        self.job.rsplit(['/', ':']).next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(job: &str, namespace: &str) -> Holder {
        Holder {
            job: job.to_owned(),
            namespace: namespace.to_owned(),
            ..Holder::default()
        }
    }

    #[test]
    fn what_made_it_says_whether_it_trains() {
        for (job, trains) in [
            ("jobset:ml/train", true),
            ("pytorchjob:ml/train", true),
            ("slurm:77", true),
            ("deployment:ml/chat", false),
            ("job:ml/convert", false),
            ("pod:ml/slurm", false),
            ("process:ada/train", false),
            ("", false),
        ] {
            assert_eq!(holder(job, "ml").is_made_to_train(), trains, "{job}");
        }
    }

    #[test]
    fn it_is_the_job_of_its_name_and_of_no_other_namespace() {
        let job = JobId {
            namespace: "ml".to_owned(),
            name: "train".to_owned(),
            uid: String::new(),
        };
        let anywhere = JobId {
            namespace: String::new(),
            ..job.clone()
        };
        assert!(holder("pod:ml/train", "ml").is_of(&job));
        assert!(holder("process:ada/train", "").is_of(&job));
        assert!(holder("pod:web/train", "web").is_of(&anywhere));
        assert!(!holder("pod:web/train", "web").is_of(&job));
        assert!(!holder("pod:ml/train-2", "ml").is_of(&job));
        assert!(!holder("pod:ml/", "ml").is_of(&JobId {
            name: String::new(),
            ..job
        }));
    }
}

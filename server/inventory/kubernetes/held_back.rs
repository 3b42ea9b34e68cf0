//! What waits for GPUs before it has pods: Jobs and JobSets that are suspended, and Workloads of Kueue that
//! have no quota yet.
//!
//! What is suspended and in no queue, and a Workload that is deactivated, its owner holds back; but not a Workload
//! that Kueue itself gave up.
//!
//! Kueue suspends what it queues, so one and the same thing may be told twice: by its Workload, which says
//! why, and by itself. They have one name, and who merges them takes the Workload.

use gpufleet_analysis::inventory::{Claim, Reason, cut};
use gpufleet_telemetry::holder;
use serde::Deserialize;

use super::super::known::Asking;
use super::objects::{Condition, Meta, Owner, PodSpec, claim};

/// What is said of what is suspended and nobody says why.
const SUSPENDED: &str = "It is suspended";

/// What is said of a Workload that its queue passes over.
const DEACTIVATED: &str = "It is deactivated (spec.active is false)";

/// What the reasons name for which Kueue itself deactivates a Workload: releases put different words before them.
const GIVEN_UP: [&str; 3] = [
    "AdmissionCheck",
    "RequeuingLimitExceeded",
    "MaximumExecutionTimeExceeded",
];

/// Most kinds of pods of one object: a JobSet has a few, Kueue takes eight.
const MAX_KINDS: usize = 16;

/// Pods of a kind.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Template {
    spec: PodSpec,
}

/// A Job, of which this much is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct JobObject {
    pub(super) metadata: Meta,
    spec: JobSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JobSpec {
    suspend: bool,
    /// 1 where it is not said.
    parallelism: Option<u32>,
    template: Template,
}

/// A JobSet, of which this much is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct JobSetObject {
    pub(super) metadata: Meta,
    spec: JobSetSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct JobSetSpec {
    suspend: bool,
    replicated_jobs: Vec<Replicated>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Replicated {
    /// 1 where it is not said.
    replicas: Option<u32>,
    template: JobTemplate,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JobTemplate {
    spec: JobSpec,
}

/// A Workload of Kueue, of which this much is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WorkloadObject {
    pub(super) metadata: Meta,
    spec: WorkloadSpec,
    status: WorkloadStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WorkloadSpec {
    queue_name: String,
    /// True where it is not said.
    active: Option<bool>,
    pod_sets: Vec<PodSet>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodSet {
    count: Option<u32>,
    template: Template,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WorkloadStatus {
    conditions: Vec<Condition>,
}

/// What a suspended Job waits for. One that a JobSet made is told by that.
pub(super) fn job(object: &JobObject) -> Vec<Asking> {
    let (meta, spec) = (&object.metadata, &object.spec);
    let is_of_another = meta.owner_references.iter().any(|it| it.controller);
    if !spec.suspend || is_of_another || meta.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let name = format!("job:{}/{}", meta.namespace, meta.name);
    let pods = spec.parallelism.unwrap_or(1);
    let waits = claim(meta, &name, &spec.template.spec, pods);
    waits.into_iter().map(suspended).collect()
}

/// What made this object, as a Workload of that would be called; none where nothing did.
pub(super) fn made_by(meta: &Meta) -> Option<String> {
    let owner = meta.owner_references.iter().find(|it| it.controller)?;
    Some(called(owner, &meta.namespace))
}

fn called(owner: &Owner, namespace: &str) -> String {
    format!("{}:{namespace}/{}", owner.kind.to_lowercase(), owner.name)
}

/// What a suspended JobSet waits for. One that another object made, such as a TrainJob, is that's to begin.
pub(super) fn job_set(object: &JobSetObject) -> Vec<Asking> {
    let (meta, spec) = (&object.metadata, &object.spec);
    if !spec.suspend || meta.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let name = format!("jobset:{}/{}", meta.namespace, meta.name);
    let waits = spec
        .replicated_jobs
        .iter()
        .take(MAX_KINDS)
        .filter_map(|it| {
            let job = &it.template.spec;
            let pods = it.replicas.unwrap_or(1);
            let pods = pods.saturating_mul(job.parallelism.unwrap_or(1));
            claim(meta, &name, &job.template.spec, pods)
        });
    let is_of_another = made_by(meta).is_some();
    let waits = waits.map(suspended).map(|(mut waits, by)| {
        if is_of_another {
            waits.reason = Reason::HeldBack;
        }
        (waits, by)
    });
    waits.collect()
}

/// What a Workload that is not admitted waits for. That of single pods is told by these: they are there,
/// behind a gate.
pub(super) fn workload(object: &WorkloadObject) -> Vec<Asking> {
    let (meta, spec) = (&object.metadata, &object.spec);
    let conditions = &object.status.conditions;
    let is = |kind: &str| {
        conditions
            .iter()
            .any(|it| it.kind == kind && it.status == "True")
    };
    let owner = meta.owner_references.iter();
    let owner = owner.max_by_key(|it| it.controller);
    let is_of_pods = owner.is_some_and(|it| it.kind == "Pod");
    let is_over = is("Admitted") || is("Finished") || meta.deletion_timestamp.is_some();
    if is_over || is_of_pods {
        return Vec::new();
    }
    let name = match owner {
        Some(it) => called(it, &meta.namespace),
        None => format!("workload:{}/{}", meta.namespace, meta.name),
    };
    // Its quota first: what comes after it is waited for in turn.
    let why = ["QuotaReserved", "Admitted"].iter().find_map(|kind| {
        let said = conditions.iter().find(|it| it.kind == *kind);
        said.filter(|it| it.status != "True" && !it.message.is_empty())
    });
    let given_up = conditions.iter().find(|it| {
        let is_kueues = GIVEN_UP.iter().any(|kind| it.reason.contains(*kind));
        it.kind == "Evicted" && it.status == "True" && is_kueues
    });
    let (reason, why) = match (spec.active, given_up, why) {
        (Some(false), None, _) => (Reason::ByOwner, DEACTIVATED.to_owned()),
        (Some(false), Some(it), _) if it.message.is_empty() => {
            (Reason::HeldBack, DEACTIVATED.to_owned())
        }
        (Some(false), Some(it), _) | (_, _, Some(it)) => (Reason::HeldBack, cut(&it.message)),
        (_, _, None) => {
            let nothing = "Its queue has said nothing of it yet";
            (Reason::HeldBack, nothing.to_owned())
        }
    };
    let waits = spec.pod_sets.iter().take(MAX_KINDS).filter_map(|it| {
        let (waits, by) = claim(meta, &name, &it.template.spec, it.count.unwrap_or(1))?;
        let waits = Claim {
            queue: holder::cut(&spec.queue_name).to_owned(),
            reason,
            words: why.clone(),
            ..waits
        };
        Some((waits, by))
    });
    waits.collect()
}

/// What is in a queue is that's to begin, and anything else its owner's.
fn suspended((waits, by): Asking) -> Asking {
    let waits = Claim {
        reason: match waits.queue.as_str() {
            "" => Reason::ByOwner,
            _ => Reason::HeldBack,
        },
        words: SUSPENDED.to_owned(),
        ..waits
    };
    (waits, by)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::super::known::ByClaim;
    use super::*;

    fn pods(gpus: &str) -> Value {
        json!({"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus}}}]}})
    }

    fn read<T: serde::de::DeserializeOwned>(object: &Value) -> T {
        serde_json::from_value(object.clone()).expect("it is one")
    }

    /// Workload, queue, places, GPUs of each, and words of each claim; `owner's` where its owner holds it back.
    fn told(all: &[Asking]) -> Vec<String> {
        let one = |(it, _): &Asking| {
            let (workload, queue, words) = (&it.workload, &it.queue, &it.words);
            let owner = match it.reason {
                Reason::ByOwner => "owner's ",
                Reason::HeldBack => "",
                other => panic!("{other:?}"),
            };
            let size = format!("{}x{}", it.places, it.gpus_each);
            format!("{owner}{workload} {queue} {size} {words}")
        };
        all.iter().map(one).collect()
    }

    #[test]
    fn a_job_that_is_suspended_waits_for_all_its_pods_and_one_of_a_jobset_does_not() {
        let object = |suspend: bool, more: Value| {
            let mut meta = json!({"name": "a", "namespace": "team", "uid": "1",
                "labels": {"kueue.x-k8s.io/queue-name": "q"}});
            meta["ownerReferences"] = more;
            json!({"metadata": meta, "spec": {"suspend": suspend, "parallelism": 4, "template": pods("8")}})
        };
        let of = |object: &Value| told(&job(&read(object)));
        assert_eq!(
            of(&object(true, json!([]))),
            ["job:team/a q 4x8 It is suspended"]
        );
        assert_eq!(of(&object(false, json!([]))), [""; 0]);
        let owner = json!([{"kind": "JobSet", "name": "s", "controller": true}]);
        assert_eq!(of(&object(true, owner)), [""; 0]);
        let mut without = object(true, json!([]));
        without["spec"]["template"] = pods("0");
        assert_eq!(of(&without), [""; 0], "it asks for no GPU");
        without["spec"] = json!({"suspend": true, "template": pods("2")});
        assert_eq!(of(&without), ["job:team/a q 1x2 It is suspended"]);
        without["metadata"]["labels"] = json!({});
        let owners = ["owner's job:team/a  1x2 It is suspended"];
        assert_eq!(of(&without), owners, "no queue lets it begin");
    }

    #[test]
    fn a_job_whose_pods_ask_by_a_template_of_claims_waits_by_that_and_not_by_a_claim_that_they_share()
     {
        let mut object = json!({"metadata": {"name": "a", "namespace": "team", "uid": "1"},
            "spec": {"suspend": true, "parallelism": 4, "template": pods("0")}});
        object["spec"]["template"]["spec"]["resourceClaims"] = json!([
            {"name": "gpus", "resourceClaimTemplateName": "eight"},
            {"name": "nic", "resourceClaimName": "shared"}]);
        let found = job(&read(&object));
        assert_eq!(told(&found), ["owner's job:team/a  4x0 It is suspended"]);
        let by = ByClaim {
            claim: None,
            template: Some("team/eight".to_owned()),
        };
        assert_eq!(found[0].1, [by]);
    }

    #[test]
    fn a_jobset_waits_for_the_pods_of_each_of_its_jobs() {
        let replicated = |replicas: Value, parallelism: Value, gpus: &str| {
            let spec = json!({"parallelism": parallelism, "template": pods(gpus)});
            json!({"replicas": replicas, "template": {"spec": spec}})
        };
        let jobs = json!([
            replicated(json!(2), json!(3), "8"),
            replicated(Value::Null, Value::Null, "1"),
            replicated(json!(5), json!(5), "0"),
        ]);
        let mut object = json!({"metadata": {"name": "s", "namespace": "team", "uid": "1"},
            "spec": {"suspend": true, "replicatedJobs": jobs}});
        let found = told(&job_set(&read(&object)));
        assert_eq!(
            found,
            [
                "owner's jobset:team/s  6x8 It is suspended",
                "owner's jobset:team/s  1x1 It is suspended"
            ]
        );
        let maker = |object: &Value| made_by(&read::<JobSetObject>(object).metadata);
        assert_eq!(maker(&object), None);
        // What made it lets it begin.
        object["metadata"]["ownerReferences"] =
            json!([{"kind": "TrainJob", "name": "t", "controller": true}]);
        let held_back = [
            "jobset:team/s  6x8 It is suspended",
            "jobset:team/s  1x1 It is suspended",
        ];
        assert_eq!(told(&job_set(&read(&object))), held_back);
        assert_eq!(maker(&object), Some("trainjob:team/t".to_owned()));
    }

    #[test]
    fn a_workload_that_is_not_admitted_says_what_its_queue_says() {
        let object = |owner: Value, conditions: Value| {
            json!({"metadata": {"name": "w-1", "namespace": "team", "uid": "1", "ownerReferences": owner},
                "spec": {"queueName": "q", "podSets": [{"count": 4, "template": pods("8")}]},
                "status": {"conditions": conditions}})
        };
        let of = |owner: &Value, conditions: Value| {
            told(&workload(&read(&object(owner.clone(), conditions))))
        };
        let owner = json!([{"kind": "JobSet", "name": "s", "controller": true}]);
        let says = |kind: &str, status: &str, message: &str| json!({"type": kind, "status": status, "reason": "Pending", "message": message});
        let quota = "couldn't assign flavors: insufficient unused quota for nvidia.com/gpu";
        let waits = json!([says("QuotaReserved", "False", quota)]);
        let expected = format!("jobset:team/s q 4x8 {quota}");
        assert_eq!(of(&owner, waits.clone()), [expected]);
        let mut inactive = object(owner.clone(), waits.clone());
        for (active, owners) in [(json!(true), false), (json!(false), true)] {
            inactive["spec"]["active"] = active;
            let told = told(&workload(&read(&inactive)));
            let is_owners = told[0].starts_with("owner's ") && told[0].contains("spec.active");
            assert_eq!(is_owners, owners, "{told:?}");
        }
        // Kueue deactivates one itself that it gives up, and says so.
        for (status, reason, owners) in [
            ("True", "Deactivated", true),
            ("True", "Preempted", true),
            ("True", "DeactivatedDueToAdmissionCheck", false),
            ("True", "DeactivatedDueToRequeuingLimitExceeded", false),
            ("True", "InactiveWorkloadRequeuingLimitExceeded", false),
            (
                "True",
                "DeactivatedDueToMaximumExecutionTimeExceeded",
                false,
            ),
            ("False", "DeactivatedDueToAdmissionCheck", true),
        ] {
            for (message, words) in [("given up", "given up"), ("", DEACTIVATED)] {
                let evicted = json!({"type": "Evicted", "status": status, "reason": reason, "message": message});
                inactive["status"]["conditions"] = json!([waits[0], evicted]);
                let expected = match owners {
                    true => format!("owner's jobset:team/s q 4x8 {DEACTIVATED}"),
                    false => format!("jobset:team/s q 4x8 {words}"),
                };
                assert_eq!(told(&workload(&read(&inactive))), [expected], "{reason}");
            }
        }
        let checked = json!([
            says("QuotaReserved", "True", ""),
            says("Admitted", "False", "check x")
        ]);
        assert_eq!(of(&owner, checked), ["jobset:team/s q 4x8 check x"]);
        for over in ["Admitted", "Finished"] {
            assert_eq!(of(&owner, json!([says(over, "True", "")])), [""; 0]);
        }
        let pod = json!([{"kind": "Pod", "name": "p"}]);
        assert_eq!(of(&pod, waits.clone()), [""; 0], "the pod itself says it");
        let alone = of(&json!([]), json!([]));
        assert_eq!(
            alone,
            ["workload:team/w-1 q 4x8 Its queue has said nothing of it yet"]
        );
    }
}

//! Tables of cases: what objects of the API are to us.

use serde_json::{Value, json};

use super::*;

fn read_node(more: &Value) -> Option<Node> {
    let mut object = json!({
        "metadata": {
            "name": "gke-a3-1", "uid": "u-1", "creationTimestamp": "2026-11-22T10:00:00Z",
            "labels": {
                "cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb",
                "topology.kubernetes.io/region": "us-central1",
                "topology.kubernetes.io/zone": "us-central1-a",
                "node.kubernetes.io/instance-type": "a3-megagpu-8g",
                "cloud.google.com/gke-nodepool": "a3",
                "cloud.google.com/gce-topology-block": "b-7",
                "cloud.google.com/gce-topology-subblock": "b-7-2",
            },
        },
        "spec": {"providerID": "gce://a-project/us-central1-a/gke-a3-1", "taints": [
            {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
            {"key": "team", "value": "nlp", "effect": "PreferNoSchedule"},
        ]},
        "status": {
            "capacity": {"nvidia.com/gpu": "8", "cpu": "208"},
            "allocatable": {"nvidia.com/gpu": "8", "cpu": "206"},
            "conditions": [
                {"type": "MemoryPressure", "status": "False", "lastTransitionTime": "2026-11-22T10:00:00Z"},
                {"type": "Ready", "status": "True", "reason": "KubeletReady",
                    "lastTransitionTime": "2026-11-22T10:02:00Z"},
            ],
            "nodeInfo": {"osImage": "COS", "kernelVersion": "6.6"},
        },
    });
    merge(&mut object, more);
    node(serde_json::from_value(object).expect("it is a node"))
}

/// Lays one object over another; null takes away.
fn merge(object: &mut Value, more: &Value) {
    match (object, more) {
        (Value::Object(object), Value::Object(more)) => {
            for (key, value) in more {
                merge(object.entry(key.clone()).or_insert(Value::Null), value);
            }
            object.retain(|_, it| !it.is_null());
        }
        (object, more) => *object = more.clone(),
    }
}

#[test]
fn a_node_says_what_it_has_where_it_is_and_since_when() {
    let node = read_node(&json!({})).expect("it has GPUs");
    let at = |text: &str| moment(text).expect("it is a moment");
    let expected = Node {
        name: "gke-a3-1".to_owned(),
        uid: "u-1".to_owned(),
        model: "nvidia-h100-mega-80gb".to_owned(),
        zone: "us-central1-a".to_owned(),
        region: "us-central1".to_owned(),
        machine: "a3-megagpu-8g".to_owned(),
        provisioning: "on_demand".to_owned(),
        provider: "gcp".to_owned(),
        account: "a-project".to_owned(),
        instance: String::new(),
        pool: "a3".to_owned(),
        block: "b-7".to_owned(),
        subblock: "b-7-2".to_owned(),
        gpus: 8,
        allocatable: 8,
        is_shared: false,
        is_taken_back: false,
        ready: Ready::Yes,
        ready_since: Some(at("2026-11-22T10:02:00Z")),
        trouble: String::new(),
        cordoned: false,
        kept_for: Vec::new(),
        partitions: Vec::new(),
        driver: String::new(),
        image: "COS (6.6)".to_owned(),
        created: Some(at("2026-11-22T10:00:00Z")),
    };
    assert_eq!(node, expected);
}

#[test]
fn what_is_wrong_with_a_node_is_read_as_it_is_told() {
    let ready = |status: &str, reason: &str| {
        let condition =
            json!({"type": "Ready", "status": status, "reason": reason, "message": "why"});
        read_node(&json!({"status": {"conditions": [condition]}})).expect("it has GPUs")
    };
    let silent = ready("Unknown", "NodeStatusUnknown");
    assert_eq!(silent.ready, Ready::Unknown);
    assert_eq!(silent.trouble, "NodeStatusUnknown: why");
    assert_eq!(ready("False", "KubeletNotReady").ready, Ready::No);
    let untold = read_node(&json!({"status": {"conditions": []}})).expect("it has GPUs");
    assert_eq!((untold.ready, untold.ready_since), (Ready::Unknown, None));
    for more in [
        json!({"spec": {"unschedulable": true}}),
        json!({"metadata": {"deletionTimestamp": "2026-11-22T11:00:00Z"}}),
    ] {
        assert!(read_node(&more).expect("it has GPUs").cordoned, "{more}");
    }
    // An autoscaler takes it away, its provider does; one that it may take, or that is being made, is not cordoned.
    for (key, effect, expected) in [
        ("ToBeDeletedByClusterAutoscaler", "NoSchedule", true),
        (
            "cloud.google.com/impending-node-termination",
            "NoSchedule",
            true,
        ),
        ("karpenter.sh/disrupted", "NoSchedule", true),
        ("karpenter.sh/unregistered", "NoExecute", false),
        (
            "DeletionCandidateOfClusterAutoscaler",
            "PreferNoSchedule",
            false,
        ),
    ] {
        let taints = json!([{"key": key, "value": "1", "effect": effect}]);
        let node = read_node(&json!({"spec": {"taints": taints}})).expect("it has GPUs");
        assert_eq!(node.cordoned, expected, "{key}");
    }
    let taken_back = |spot: &str, keys: &[&str]| {
        let taint = |key: &&str| json!({"key": key, "effect": "NoSchedule"});
        let taints: Vec<Value> = keys.iter().map(taint).collect();
        let labels = json!({"cloud.google.com/gke-spot": spot});
        let object = json!({"metadata": {"labels": labels}, "spec": {"taints": taints}});
        read_node(&object).expect("it has GPUs").is_taken_back
    };
    assert!(taken_back("true", &[TERMINATES]));
    assert!(!taken_back("true", &[]));
    let removed = taken_back("true", &[TERMINATES, SCALED_DOWN]);
    assert!(!removed, "it is given back");
    assert!(!taken_back("false", &[TERMINATES]), "it is maintained");
    let taint = |effect: &str| json!({"key": "team", "value": "nlp", "effect": effect});
    let taints = json!([taint("NoSchedule"), taint("NoExecute")]);
    let kept = read_node(&json!({"spec": {"taints": taints}})).expect("it has GPUs");
    assert_eq!(kept.kept_for, ["team=nlp:NoSchedule", "team=nlp:NoExecute"]);
}

#[test]
fn nodes_without_gpus_are_none_those_that_wait_for_their_driver_and_those_with_shares_are() {
    let without =
        json!({"capacity": {"nvidia.com/gpu": null}, "allocatable": {"nvidia.com/gpu": null}});
    let starting = read_node(&json!({"status": without})).expect("its label says it");
    assert_eq!((starting.gpus, starting.is_ready()), (0, false));
    let unlabelled = json!({"cloud.google.com/gke-accelerator": null});
    let neither = json!({"status": without, "metadata": {"labels": unlabelled}});
    assert_eq!(read_node(&neither), None);
    // The kubelet leaves a 0 where a device plugin was.
    let none_left =
        json!({"capacity": {"nvidia.com/gpu": "0"}, "allocatable": {"nvidia.com/gpu": "0"}});
    let lost = json!({"status": none_left, "metadata": {"labels": unlabelled}});
    let lost = read_node(&lost).expect("it had GPUs");
    assert_eq!((lost.gpus, lost.is_ready()), (0, false));
    let shared = |more: &Value| read_node(more).expect("it has GPUs");
    let replicas = |count: &str| {
        let labels = json!({"nvidia.com/gpu.replicas": count});
        shared(&json!({"metadata": {"labels": labels}})).is_shared
    };
    assert!(replicas("4") && !replicas("1") && !replicas("x"));
    let mig = json!({"nvidia.com/gpu": null, "nvidia.com/mig-1g.10gb": "56"});
    let mig = shared(&json!({"status": {"capacity": mig, "allocatable": mig}}));
    assert_eq!((mig.gpus, mig.allocatable, mig.is_shared), (56, 56, true));
    // One card of eight is cut: the others are whole, one of them broken.
    let mixed = |whole: &str| json!({"nvidia.com/gpu": whole, "nvidia.com/mig-1g.10gb": "7"});
    let status = json!({"capacity": mixed("7"), "allocatable": mixed("6")});
    let one = shared(&json!({"status": status}));
    assert_eq!((one.gpus, one.allocatable, one.is_shared), (7, 6, false));
    let all = shared(&json!({"status": {"capacity": mixed("0"), "allocatable": mixed("0")}}));
    assert_eq!((all.gpus, all.allocatable, all.is_shared), (7, 7, true));
    for (label, value, is_shared) in [
        (
            "nvidia.com/gpu.product",
            "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
            true,
        ),
        ("nvidia.com/gpu.slices.gi", "1", true),
        ("nvidia.com/gpu.slices.gi", "0", false),
        ("nvidia.com/mig.strategy", "single", false),
    ] {
        let labels = json!({"cloud.google.com/gke-accelerator": null, label: value});
        let single = json!({"nvidia.com/gpu": "56"});
        let status = json!({"capacity": single, "allocatable": single});
        let single = shared(&json!({"metadata": {"labels": labels}, "status": status}));
        assert_eq!(
            (single.gpus, single.is_shared),
            (56, is_shared),
            "{label}={value}"
        );
    }
}

fn read_pod(more: &Value) -> Pod {
    let gpus = json!({"resources": {"requests": {"nvidia.com/gpu": "8"}, "limits": {"nvidia.com/gpu": "8"}}});
    let mut object = json!({
        "metadata": {
            "name": "train-0", "namespace": "research", "uid": "p-1",
            "creationTimestamp": "2026-11-22T10:00:00Z",
            "labels": {"jobset.sigs.k8s.io/jobset-name": "train", "kueue.x-k8s.io/queue-name": "a"},
        },
        "spec": {"containers": [gpus], "nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-l4"}},
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."},
        ]},
    });
    merge(&mut object, more);
    pod(serde_json::from_value(object).expect("it is a pod"))
}

#[test]
fn a_pod_that_waits_says_whose_it_is_what_for_since_when_and_why() {
    let Pod::Waits(claim) = read_pod(&json!({})) else {
        panic!("it waits");
    };
    let expected = Claim {
        namespace: "research".to_owned(),
        workload: "jobset:research/train".to_owned(),
        queue: "a".to_owned(),
        model: "nvidia-l4".to_owned(),
        places: 1,
        gpus_each: 8,
        together: None,
        is_shares: false,
        since: moment("2026-11-22T10:00:00Z").expect("it is a moment"),
        reason: Reason::NoPlace,
        words: "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.".to_owned(),
        tolerates: Vec::new(),
        partitions: Vec::new(),
        scaler: None,
    };
    assert_eq!(*claim, expected);
    let taints = json!([{"key": "team", "operator": "Equal", "value": "nlp", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Exists"}, {"key": "plain", "value": "yes"}]);
    let Pod::Waits(tolerant) = read_pod(&json!({"spec": {"tolerations": taints}})) else {
        panic!("it waits");
    };
    for (taint, expected) in [
        ("team=nlp:NoSchedule", true),
        ("team=nlp:NoExecute", false),
        ("team=web:NoSchedule", false),
        ("spot=true:NoExecute", true),
        ("plain=yes:NoSchedule", true),
        ("plain=no:NoSchedule", false),
    ] {
        let covers = tolerant.tolerates.iter().any(|it| it.covers(taint));
        assert_eq!(covers, expected, "{taint}");
    }
    let reason = |conditions: Value| match read_pod(&json!({"status": {"conditions": conditions}}))
    {
        Pod::Waits(claim) => claim.reason,
        other => panic!("{other:?}"),
    };
    let gated = json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]);
    assert_eq!(reason(gated), Reason::HeldBack);
    assert_eq!(reason(json!([])), Reason::NotTried);
    let alone = json!({"metadata": {"labels": {"jobset.sigs.k8s.io/jobset-name": null}}});
    let Pod::Waits(alone) = read_pod(&alone) else {
        panic!("it waits");
    };
    assert_eq!(alone.workload, "pod:research/train-0");
    let long = json!([{"type": "PodScheduled", "status": "False", "message": "é".repeat(9_999)}]);
    let Pod::Waits(long) = read_pod(&json!({"status": {"conditions": long}})) else {
        panic!("it waits");
    };
    assert!(long.words.len() <= gpufleet_analysis::inventory::MAX_WORDS_BYTES);
}

#[test]
fn a_pod_that_is_bound_holds_its_gpus_and_one_that_is_over_or_asks_for_none_is_neither() {
    let on_a_node = json!({"spec": {"nodeName": "n"}});
    let held = Pod::Bound(Bound {
        node: "n".into(),
        gpus: 8,
    });
    assert_eq!(read_pod(&on_a_node), held);
    for more in [
        json!({"status": {"phase": "Succeeded"}}),
        json!({"status": {"phase": "Failed"}, "spec": {"nodeName": "n"}}),
        json!({"spec": {"containers": [{}]}}),
        json!({"metadata": {"deletionTimestamp": "2026-11-22T11:00:00Z"}}),
    ] {
        assert_eq!(read_pod(&more), Pod::Neither, "{more}");
    }
    // What is told to end holds its GPUs until it has.
    let ending = json!({"metadata": {"deletionTimestamp": "2026-11-22T11:00:00Z"}, "spec": {"nodeName": "n"}});
    assert_eq!(read_pod(&ending), held);
}

#[test]
fn a_pod_asks_for_what_its_containers_need_together_or_the_greediest_before_them() {
    let check = |containers: Value, init: Value, expected: (u32, u32)| {
        let spec = json!({"containers": containers, "initContainers": init});
        let spec: PodSpec = serde_json::from_value(spec).expect("it is a spec");
        assert_eq!(asked(&spec), expected, "{containers} {init}");
    };
    let of = |name: &str, count: &str| json!({"resources": {"limits": {name: count}}});
    let gpus = |count: &str| of("nvidia.com/gpu", count);
    let beside = |count: &str| {
        let mut it = gpus(count);
        it["restartPolicy"] = json!("Always");
        it
    };
    check(json!([gpus("4"), gpus("2")]), json!([]), (6, 0));
    check(json!([gpus("4")]), json!([gpus("8")]), (8, 0));
    check(json!([gpus("4")]), json!([gpus("1"), gpus("2")]), (4, 0));
    check(json!([gpus("4")]), json!([beside("1"), gpus("4")]), (5, 0));
    check(
        json!([of("nvidia.com/mig-1g.10gb", "2")]),
        json!([]),
        (0, 2),
    );
    check(json!([of("nvidia.com/gpu.shared", "1")]), json!([]), (0, 1));
    check(json!([of("cpu", "9")]), json!([]), (0, 0));
    check(json!([gpus("many")]), json!([]), (0, 0));
    check(
        json!([gpus("4294967295"), gpus("9")]),
        json!([]),
        (u32::MAX, 0),
    );
}

#[test]
fn times_that_nobody_gave_are_null_and_break_nothing() {
    let gated: PodObject = serde_json::from_value(json!({
        "metadata": {"name": "train-0", "uid": "p-1", "creationTimestamp": null},
        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                "lastProbeTime": null, "lastTransitionTime": null},
        ]},
    }))
    .expect("the API server writes it so");
    let Pod::Waits(claim) = pod(gated) else {
        panic!("it waits");
    };
    assert_eq!((claim.reason, claim.gpus_each), (Reason::HeldBack, 8));
}

//! Who holds a GPU, case by case.
//!
//! Longer than 500 lines because one machine of pods, jobs and processes serves every case.

use gpufleet_telemetry::identity::Resource;

use std::time::Duration;

use super::super::exported::{Device as Noted, Exported};
use super::super::processes::{Process, Whose};
use super::*;
use crate::read::exporter::holder::{Pod as Named, Said};

const POD_UID: &str = "0a1b2c3d-0000-1111-2222-333344445555";

/// One pod that runs, one whose container `c` does not yet, one that has ended, one job.
struct Someone;

impl Names for Someone {
    fn pod(&self, namespace: &str, name: &str) -> Option<Pod<'_>> {
        let is_over = match (namespace, name) {
            ("a", "runs" | "starts") => false,
            ("a", "ended") => true,
            _ => return None,
        };
        Some(Pod {
            uid: POD_UID,
            is_over,
            facts: vec![(attribute::WORKLOAD.to_owned(), "job:a/j".to_owned())],
        })
    }

    fn is_starting(&self, namespace: &str, pod: &str, container: &str) -> bool {
        (namespace, pod) == ("a", "starts") && container != "sidecar"
    }

    fn pod_of(&self, uid: &str) -> Option<(String, String)> {
        (uid == POD_UID).then(|| ("a".to_owned(), "runs".to_owned()))
    }

    fn only_looks(&self, claim: &str, device: &str) -> bool {
        (claim, device) == ("monitoring/dcgm", "gpu-0")
    }

    fn job(&self, job: u64) -> Facts {
        vec![(
            attribute::SLURM_ACCOUNT.to_owned(),
            format!("account-of-{job}"),
        )]
    }
}

/// `GPU-0` with these processes.
fn card(processes: Option<&[i32]>) -> Card {
    let resource = Resource::new(ResourceKind::Gpu, "GPU-0").with(attribute::GPU_INDEX, "0");
    Card {
        resource: Arc::new(resource),
        processes: processes.map(<[i32]>::to_vec),
    }
}

fn held(pod: &str, device: &str, claim: Option<&str>) -> Held {
    Held {
        namespace: "a".to_owned(),
        pod: pod.to_owned(),
        container: "c".to_owned(),
        device: device.to_owned(),
        claim: claim.map(str::to_owned),
    }
}

/// 1 is of the pod, 2 of job 7, 3 of a user since 30, 4 of another since 40, 5 of an unknown pod, 6 of the first user
/// since 60.
fn processes() -> BTreeMap<i32, Process> {
    let user = |user: &str| Whose::User {
        user: user.to_owned(),
        unnamed: None,
        name: "python3".to_owned(),
    };
    let all = [
        (1, Whose::Pod(POD_UID.to_owned())),
        (2, Whose::Slurm(7)),
        (3, user("ada")),
        (4, user("bob")),
        (5, Whose::Pod("other".to_owned())),
        (6, user("ada")),
    ];
    all.into_iter()
        .map(|(id, whose)| {
            let started = u64::try_from(id).expect("positive") * 10;
            (id, Process { started, whose })
        })
        .collect()
}

/// All of them, and 98 and 99, which cannot be seen.
fn looked() -> Looked {
    Looked {
        processes: processes(),
        unseen: BTreeSet::from([98, 99]),
    }
}

/// What the kubelet said.
fn list(held: &[Held]) -> List {
    List {
        held: held.to_vec(),
        left_out: 0,
        allocatable: None,
    }
}

/// What the prolog wrote, by numbers.
fn wrote(of: BTreeMap<Arc<str>, BTreeSet<u64>>) -> Wrote {
    let numbered = of.values().flatten().copied().collect();
    Wrote { of, numbered }
}

fn look(kubelet: Kubelet<'_>, prolog: &[u64], on_it: Option<&[i32]>) -> Found {
    let id: Arc<str> = "GPU-0".into();
    let prolog = match prolog {
        [] => BTreeMap::new(),
        jobs => BTreeMap::from([(id, jobs.iter().copied().collect())]),
    };
    look_with(kubelet, Slurm::Wrote(&wrote(prolog)), on_it)
}

fn look_with(kubelet: Kubelet<'_>, slurm: Slurm<'_>, on_it: Option<&[i32]>) -> Found {
    found(&Known {
        cards: &[card(on_it)],
        kubelet,
        slurm,
        given: None,
        looked: &looked(),
        names: &Someone,
    })
}

/// Its holder, or why it is not known, or nothing.
fn check(kubelet: Kubelet<'_>, prolog: &[u64], on_it: Option<&[i32]>, expected: &str) {
    let told = told(&look(kubelet, prolog, on_it));
    assert_eq!(told, expected, "{kubelet:?} {prolog:?} {on_it:?}");
}

fn told(found: &Found) -> String {
    let told = [attribute::HOLDER, attribute::HOLDER_UNKNOWN];
    let told: Vec<&str> = found.attributes["GPU-0"]
        .iter()
        .filter(|(name, _)| told.contains(&name.as_str()))
        .map(|(_, value)| value.as_str())
        .collect();
    told.join(" ")
}

#[test]
fn the_kubelet_s_word_counts_first_and_a_pod_that_ended_holds_nothing() {
    let said = |held: &[Held], on_it: Option<&[i32]>, expected| {
        check(Kubelet::Said(&list(held)), &[7], on_it, expected);
    };
    let runs = held("runs", "GPU-0", None);
    said(std::slice::from_ref(&runs), None, "pod:a/runs");
    said(std::slice::from_ref(&runs), Some(&[3]), "pod:a/runs");
    said(
        &[held("unheard-of", "0", None)],
        Some(&[]),
        "pod:a/unheard-of",
    );
    // Two containers of one pod are one pod.
    said(&[runs.clone(), runs.clone()], None, "pod:a/runs");
    let ended = held("ended", "GPU-0", None);
    said(&[ended.clone(), runs.clone()], None, "pod:a/runs");
    check(Kubelet::Said(&list(&[ended])), &[], Some(&[]), "");
}

#[test]
fn a_pod_starts_while_the_container_that_was_given_the_device_does_not_run() {
    let starts = |pod: &str, container: &str, on_it: Option<&[i32]>| {
        let held = Held {
            container: container.to_owned(),
            ..held(pod, "GPU-0", None)
        };
        let found = look(Kubelet::Said(&list(&[held])), &[], on_it);
        let told = found.attributes["GPU-0"].iter();
        let mut told = told.filter(|(name, _)| name == attribute::HOLDER_STARTING);
        told.next().map(|it| it.1.clone())
    };
    assert_eq!(starts("starts", "c", Some(&[])).as_deref(), Some("true"));
    assert_eq!(starts("starts", "sidecar", None), None);
    assert_eq!(starts("runs", "c", None), None);
    // A process of it is there, and nobody says which container's: one runs.
    assert_eq!(starts("starts", "", None), None);
}

#[test]
fn a_device_that_containers_of_a_pod_share_starts_only_where_each_of_them_waits() {
    let of = |containers: [&str; 2]| {
        let held = containers.map(|container| Held {
            container: container.to_owned(),
            ..held("starts", "GPU-0", None)
        });
        let found = look(Kubelet::Said(&list(&held)), &[], None);
        let told = |name: &str| {
            let mut told = found.attributes["GPU-0"].iter();
            told.find(|it| it.0 == name).map(|it| it.1.clone())
        };
        let container = told(attribute::CONTAINER).unwrap_or_default();
        (container, told(attribute::HOLDER_STARTING).is_some())
    };
    let runs = ("sidecar".to_owned(), false);
    assert_eq!(of(["c", "sidecar"]), runs, "whatever the order");
    assert_eq!(of(["sidecar", "c"]), runs);
    assert_eq!(of(["c", "d"]), ("c".to_owned(), true));
}

#[test]
fn two_pods_on_one_device_are_named_and_neither_has_it() {
    let said =
        |held: &[Held], expected| check(Kubelet::Said(&list(held)), &[], Some(&[1]), expected);
    let twice = "claimed_twice: pod:a/other, pod:a/runs";
    said(
        &[held("runs", "GPU-0", None), held("other", "GPU-0", None)],
        twice,
    );
    said(
        &[held("runs", "GPU-0::1", None), held("other", "GPU-0", None)],
        twice,
    );
    let many: Vec<Held> = (0..6)
        .map(|it| held(&format!("p{it}"), "GPU-0", None))
        .collect();
    let named = "claimed_twice: pod:a/p0, pod:a/p1, pod:a/p2, pod:a/p3 and 2 more";
    said(&many, named);
}

#[test]
fn while_it_is_not_known_how_many_replicas_there_are_who_holds_some_is_named_and_pays_for_nothing()
{
    let said = |held: &[Held], expected: &str| {
        let list = List {
            allocatable: Some(Err("it is slow".to_owned())),
            ..list(held)
        };
        let expected = format!("{expected}; how many there are is not known: it is slow");
        check(Kubelet::Said(&list), &[], Some(&[1]), &expected);
        let found = look(Kubelet::Said(&list), &[], Some(&[1]));
        let reasons: Vec<&str> = found.unknown.into_keys().collect();
        assert_eq!(reasons, ["part_held"]);
    };
    let one = held("runs", "GPU-0::1", None);
    said(
        std::slice::from_ref(&one),
        "part_held: of the replicas pod:a/runs has 1",
    );
    said(
        &[one.clone(), held("runs", "GPU-0::2", None)],
        "part_held: of the replicas pod:a/runs has 2",
    );
    said(
        &[one, held("other", "GPU-0::0", None)],
        "part_held: of the replicas pod:a/other has 1, pod:a/runs has 1",
    );
    let ended = held("ended", "GPU-0::1", None);
    check(Kubelet::Said(&list(&[ended])), &[], Some(&[]), "");
    assert!(!Unknown::PartHeld.is_held(), "so its time is `unobserved`");
    // It gives out others than it gave away: then it is not all of it.
    let list = List {
        allocatable: Some(Ok(vec!["GPU-0::0".to_owned(), "GPU-0".to_owned()])),
        ..list(&[held("runs", "GPU-0::1", None)])
    };
    let told = told(&look(Kubelet::Said(&list), &[], Some(&[1])));
    assert!(
        told.starts_with("part_held: of the replicas pod:a/runs has 1;"),
        "{told}"
    );
}

/// The replicas of a device: the holder of each, or why it is not known, or nothing.
fn replicas_of(found: &Found, id: &str) -> Vec<(u32, String)> {
    let told = |facts: &Facts| {
        let names = [attribute::HOLDER, attribute::HOLDER_UNKNOWN];
        let mut told = facts.iter().filter(|it| names.contains(&it.0.as_str()));
        told.next().map(|it| it.1.clone()).unwrap_or_default()
    };
    let all = found.replicas.get(id).map_or(&[][..], Vec::as_slice);
    all.iter().map(|it| (it.0, told(&it.1))).collect()
}

#[test]
fn each_replica_of_a_time_sliced_gpu_has_its_holder_and_what_nobody_holds_is_free() {
    let gives = |all: &[&str], held: &[Held]| List {
        allocatable: Some(Ok(all.iter().map(|it| (*it).to_owned()).collect())),
        ..list(held)
    };
    let all = ["GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-0::3"];
    let text = |number: u32, told: &str| (number, told.to_owned());
    let look = |held: &[Held], on_it| look(Kubelet::Said(&gives(&all, held)), &[], on_it);
    let two = [
        held("runs", "GPU-0::1", None),
        held("other", "GPU-0::3", None),
        held("ended", "GPU-0::0", None),
    ];
    let found = look(&two, Some(&[1]));
    let expected = [
        text(0, ""),
        text(1, "pod:a/runs"),
        text(2, ""),
        text(3, "pod:a/other"),
    ];
    assert_eq!(replicas_of(&found, "GPU-0"), expected);
    assert_eq!(told(&found), "", "the card itself is nobody's");
    assert_eq!(found.unknown, BTreeMap::new());
    // One pod that has two of them has two parts of four; nobody is charged for the whole.
    let both = [
        held("runs", "GPU-0::1", None),
        held("runs", "GPU-0::2", None),
    ];
    let found = look(&both, Some(&[1]));
    let his = replicas_of(&found, "GPU-0")
        .into_iter()
        .filter(|it| it.1 == "pod:a/runs");
    assert_eq!(his.count(), 2);
    // Two on one replica: neither has it, and the others are as they are.
    let twice = [
        held("runs", "GPU-0::1", None),
        held("other", "GPU-0::1", None),
    ];
    let found = look(&twice, Some(&[1]));
    let expected = text(1, "claimed_twice: pod:a/other, pod:a/runs");
    assert_eq!(replicas_of(&found, "GPU-0")[1], expected);
    assert_eq!(replicas_of(&found, "GPU-0")[0], text(0, ""));
    // While none of them is held the card is one, and so it is where one has the whole.
    let nobody = look(&[held("ended", "GPU-0::0", None)], Some(&[]));
    assert_eq!(
        (replicas_of(&nobody, "GPU-0").len(), told(&nobody)),
        (0, String::new())
    );
    let whole = look(&[held("runs", "GPU-0", None)], Some(&[1]));
    assert_eq!(
        (replicas_of(&whole, "GPU-0").len(), told(&whole)),
        (0, "pod:a/runs".to_owned())
    );
    let mixed = [held("runs", "GPU-0", None), held("other", "GPU-0::1", None)];
    let found = look(&mixed, Some(&[1]));
    assert_eq!(told(&found), "claimed_twice: pod:a/other, pod:a/runs");
    // Where something that was given away has no place, what is free may be that.
    let strange = [held("runs", "GPU-0::1", None), held("other", "GPU-9", None)];
    let found = look(&strange, Some(&[1]));
    let told = &replicas_of(&found, "GPU-0")[0].1;
    assert!(told.starts_with("unplaced: "), "{told}");
}

#[test]
fn replicas_of_an_instance_have_their_holders_as_those_of_a_card_do() {
    let share = Resource::new(ResourceKind::Share, "MIG-1").with(attribute::PARENT, "GPU-0");
    let share = Card {
        resource: Arc::new(share),
        processes: Some(Vec::new()),
    };
    let list = List {
        allocatable: Some(Ok(vec!["MIG-1::0".to_owned(), "MIG-1::1".to_owned()])),
        ..list(&[held("runs", "MIG-1::0", None)])
    };
    let found = found(&Known {
        cards: &[card(Some(&[])), share],
        kubelet: Kubelet::Said(&list),
        slurm: Slurm::NotHere,
        given: None,
        looked: &looked(),
        names: &Someone,
    });
    let expected = [(0, "pod:a/runs".to_owned()), (1, String::new())];
    assert_eq!(replicas_of(&found, "MIG-1"), expected);
    assert_eq!(found.attributes["MIG-1"], [], "the instance is nobody's");
}

#[test]
fn an_instance_that_slurm_s_prolog_does_not_name_may_be_a_job_s() {
    let share = Resource::new(ResourceKind::Share, "MIG-1").with(attribute::PARENT, "GPU-0");
    let said = |prolog: &BTreeMap<Arc<str>, BTreeSet<u64>>| {
        let share = Card {
            resource: Arc::new(share.clone()),
            processes: Some(Vec::new()),
        };
        let found = found(&Known {
            cards: &[card(Some(&[])), share],
            kubelet: Kubelet::NotHere,
            slurm: Slurm::Wrote(&wrote(prolog.clone())),
            given: None,
            looked: &looked(),
            names: &Someone,
        });
        let told = found.attributes["MIG-1"].first().cloned();
        told.map(|it| it.1).unwrap_or_default()
    };
    let unnamed = said(&BTreeMap::new());
    assert!(
        unnamed.starts_with("not_heard: Slurm's prolog"),
        "{unnamed}"
    );
    let with = |jobs: &[u64]| {
        let jobs = jobs.iter().copied().collect();
        said(&BTreeMap::from([(Arc::from("MIG-1"), jobs)]))
    };
    assert_eq!(with(&[7]), "slurm:7");
    assert_eq!(with(&[]), "", "its file says that nobody has it");
}

#[test]
fn pods_that_share_a_claim_are_meant_to() {
    let resource = Resource::new(ResourceKind::Gpu, "GPU-0").with(attribute::GPU_MINOR, "0");
    let cards = [Card {
        resource: Arc::new(resource),
        processes: None,
    }];
    let reason = |claims: [&str; 2]| {
        let list = list(&[
            held("x", "gpu-0", Some(claims[0])),
            held("y", "gpu-0", Some(claims[1])),
        ]);
        let found = found(&Known {
            cards: &cards,
            kubelet: Kubelet::Said(&list),
            slurm: Slurm::NotHere,
            given: None,
            looked: &Looked::default(),
            names: &Someone,
        });
        found.unknown
    };
    assert_eq!(reason(["a/c", "a/c"]), BTreeMap::from([("shared", 1)]));
    assert_eq!(
        reason(["a/c", "a/d"]),
        BTreeMap::from([("claimed_twice", 1)])
    );
}

#[test]
fn a_pod_whose_claim_gives_a_device_only_to_look_at_does_not_hold_it() {
    let resource = Resource::new(ResourceKind::Gpu, "GPU-0").with(attribute::GPU_MINOR, "0");
    let cards = [Card {
        resource: Arc::new(resource),
        processes: Some(Vec::new()),
    }];
    let check = |held: &[Held], expected: &str| {
        let list = list(held);
        let found = found(&Known {
            cards: &cards,
            kubelet: Kubelet::Said(&list),
            slurm: Slurm::NotHere,
            given: None,
            looked: &Looked::default(),
            names: &Someone,
        });
        assert_eq!(told(&found), expected, "{held:?}");
        assert_eq!(found.strangers, BTreeSet::new());
        let claims: BTreeSet<String> = held.iter().filter_map(|it| it.claim.clone()).collect();
        assert_eq!(found.claims, claims, "they are asked for, and stay so");
    };
    let looks = held("dcgm", "gpu-0", Some("monitoring/dcgm"));
    let trains = held("runs", "gpu-0", Some("a/train"));
    check(std::slice::from_ref(&looks), "");
    check(&[looks.clone(), trains.clone()], "pod:a/runs");
    check(&[looks, held("runs", "GPU-0", None)], "pod:a/runs");
    // Another claim of the same pod, of which nothing is known.
    let unknown = held("dcgm", "gpu-0", Some("monitoring/other"));
    check(&[unknown, trains], "claimed_twice: pod:a/dcgm, pod:a/runs");
}

#[test]
fn without_the_kubelet_s_word_a_gpu_is_never_nobody_s() {
    let gone = Kubelet::NotHeard("it is gone");
    for (on_it, expected) in [
        (None, "not_heard: it is gone"),
        (Some(&[][..]), "not_heard: it is gone"),
        (Some(&[3]), "not_heard: it is gone"),
        (Some(&[5]), "not_heard: it is gone"),
        (Some(&[1]), "pod:a/runs"),
        (Some(&[1, 3]), "pod:a/runs"),
    ] {
        check(gone, &[], on_it, expected);
    }
    check(Kubelet::Said(&List::default()), &[], Some(&[]), "");
}

/// What an exporter says of `GPU-0`: these pods, some of which have a replica.
fn named(pods: &[(&str, Option<u32>)]) -> Said {
    let named = |(name, replica): &(&str, Option<u32>)| Named {
        namespace: "a".to_owned(),
        name: (*name).to_owned(),
        container: "c".to_owned(),
        replica: *replica,
    };
    Said::Pods(pods.iter().map(named).collect())
}

/// What is found of `GPU-0` where the kubelet is gone and an exporter says this of a GPU.
fn by_exporter(id: &str, said: Said, on_it: Option<&[i32]>) -> Found {
    let exported = Exported::default();
    let resource = Arc::new(Resource::new(ResourceKind::Gpu, id));
    let noted = vec![Noted { resource, said }];
    exported.note("exporter:dcgm", Duration::from_secs(10), noted);
    let told = exported.lay(&mut vec![card(on_it)]);
    look(Kubelet::ByExporter(&told, "it is gone"), &[], on_it)
}

#[test]
fn without_the_kubelet_s_word_the_pods_that_an_exporter_names_hold_gpus() {
    let check = |said: Said, on_it: Option<&[i32]>, expected: &str| {
        let found = by_exporter("GPU-0", said.clone(), on_it);
        assert_eq!(told(&found), expected, "{said:?} {on_it:?}");
    };
    let runs = || named(&[("runs", None)]);
    check(runs(), None, "pod:a/runs");
    check(runs(), Some(&[3]), "pod:a/runs");
    check(named(&[("unheard-of", None)]), None, "pod:a/unheard-of");
    let ended = ("ended", None);
    check(named(&[ended, ("runs", None)]), None, "pod:a/runs");
    check(named(&[ended]), None, "");
    check(Said::Nobody, None, "");
    check(Said::Nobody, Some(&[]), "");
    let twice = named(&[("runs", None), ("other", None)]);
    check(twice, None, "claimed_twice: pod:a/other, pod:a/runs");
    let parts = named(&[("runs", Some(1)), ("other", Some(0))]);
    let part = "part_held: of the replicas pod:a/other has 1, pod:a/runs has 1; how many there are is not known: \
        exporters do not say it";
    check(parts, None, part);
    let found = by_exporter("GPU-0", runs(), None);
    let container = (attribute::CONTAINER.to_owned(), "c".to_owned());
    let workload = (attribute::WORKLOAD.to_owned(), "job:a/j".to_owned());
    for known in [container, workload] {
        assert!(found.attributes["GPU-0"].contains(&known), "{known:?}");
    }
    assert_eq!(found.namespaces, BTreeSet::from(["a".to_owned()]));
}

#[test]
fn a_gpu_of_which_no_label_says_who_holds_it_is_never_nobody_s() {
    let check = |id: &str, said: Said, on_it: Option<&[i32]>, expected: &str| {
        let found = by_exporter(id, said.clone(), on_it);
        assert_eq!(told(&found), expected, "{id} {said:?} {on_it:?}");
        let is_known = expected.starts_with("pod:");
        assert_eq!(found.unknown.contains_key("not_heard"), !is_known);
    };
    let silent = "not_heard: it is gone, and no series of its exporter says which pod holds it";
    for on_it in [None, Some(&[][..]), Some(&[3])] {
        check("GPU-0", Said::Nothing, on_it, silent);
    }
    // Whose process it is, the kernel knows.
    check("GPU-0", Said::Nothing, Some(&[1]), "pod:a/runs");
    let unreadable = "not_heard: it is gone, and its exporter names what can be no pod";
    check("GPU-0", Said::Unreadable, None, unreadable);
    let other = "not_heard: it is gone, and no exporter tells of it";
    check("GPU-b", Said::Nobody, None, other);
}

#[test]
fn while_a_device_that_was_given_away_has_no_place_no_gpu_is_nobody_s() {
    let slice = held("runs", "gpu-0-mig-19-4-4", Some("a/claim"));
    let mut list = list(&[slice]);
    let unplaced =
        |devices: &str| format!("unplaced: the kubelet gave away {devices}, which may be this");
    check(
        Kubelet::Said(&list),
        &[],
        Some(&[]),
        &unplaced("gpu-0-mig-19-4-4"),
    );
    check(
        Kubelet::Said(&list),
        &[],
        None,
        &unplaced("gpu-0-mig-19-4-4"),
    );
    check(Kubelet::Said(&list), &[8], Some(&[]), "slurm:8");
    check(Kubelet::Said(&list), &[], Some(&[1]), "pod:a/runs");
    // A part of another card is none of this one.
    let unknown = |minor: &str| {
        let resource = Resource::new(ResourceKind::Gpu, "GPU-0").with(attribute::GPU_MINOR, minor);
        let cards = [Card {
            resource: Arc::new(resource),
            processes: Some(Vec::new()),
        }];
        let found = found(&Known {
            cards: &cards,
            kubelet: Kubelet::Said(&list),
            slurm: Slurm::NotHere,
            given: None,
            looked: &Looked::default(),
            names: &Someone,
        });
        found.unknown
    };
    assert_eq!(unknown("0"), BTreeMap::from([("unplaced", 1)]));
    assert_eq!(unknown("1"), BTreeMap::new());
    list.held.clear();
    list.left_out = 3;
    check(
        Kubelet::Said(&list),
        &[],
        Some(&[]),
        &unplaced("3 more devices"),
    );
}

#[test]
fn on_a_node_of_slurm_without_the_prolog_an_idle_gpu_may_be_a_job_s() {
    let silent = |on_it| told(&look_with(Kubelet::NotHere, Slurm::Silent, on_it));
    for on_it in [None, Some(&[][..])] {
        let told = silent(on_it);
        assert!(told.starts_with("not_heard: Slurm's prolog"), "{told}");
    }
    assert_eq!(silent(Some(&[2])), "slurm:7");
    let told = told(&look_with(Kubelet::NotHere, Slurm::NotHere, Some(&[])));
    assert_eq!(told, "");
}

#[test]
fn where_the_driver_does_not_list_processes_no_gpu_is_nobody_s() {
    let unsaid = "not_heard: the driver does not say which processes are on it";
    check(Kubelet::NotHere, &[], None, unsaid);
    check(Kubelet::Said(&List::default()), &[], None, unsaid);
    let alone = look_with(Kubelet::NotHere, Slurm::NotHere, None);
    assert_eq!(told(&alone), unsaid);
    assert_eq!(alone.unknown, BTreeMap::from([("not_heard", 1)]));
    // Whoever is named holds it all the same.
    check(Kubelet::NotHere, &[8], None, "slurm:8");
}

#[test]
fn on_a_machine_without_kubernetes_the_prolog_and_then_the_processes_tell() {
    let here = |prolog: &[u64], on_it: Option<&[i32]>, expected| {
        check(Kubelet::NotHere, prolog, on_it, expected);
        check(Kubelet::Said(&List::default()), prolog, on_it, expected);
    };
    here(&[], Some(&[]), "");
    here(&[8], Some(&[]), "slurm:8");
    here(&[8, 9], Some(&[]), "shared: slurm:8, slurm:9");
    here(&[], Some(&[2]), "slurm:7");
    here(&[], Some(&[2, 3]), "slurm:7");
    here(&[], Some(&[1, 2]), "shared: pod:a/runs, slurm:7");
    here(&[], Some(&[4, 3]), "shared: process:ada, process:bob");
    here(&[], Some(&[3, 6]), "process:ada/python3");
    here(&[], Some(&[2, 3, 4]), "slurm:7");
    here(&[], Some(&[4, 99]), "process:bob/python3");
    let hidden = "unnamed: 2 processes that the agent cannot see; run as root, or mount /proc without hidepid; in \
        Kubernetes set hostPID: true";
    here(&[], Some(&[98, 99]), hidden);
    let passing = "not_heard: the processes on it ended or began in this round";
    here(&[], Some(&[97]), passing);
    let nameless = "unnamed: a pod with uid other, which the API server did not name";
    here(&[], Some(&[5]), nameless);
}

#[test]
fn a_holder_comes_with_what_is_known_of_it_and_asks_for_what_is_not() {
    let list = list(&[held("runs", "GPU-0", None), held("runs", "GPU-9", None)]);
    let found = look(Kubelet::Said(&list), &[], Some(&[]));
    let told: BTreeMap<&str, &str> = found.attributes["GPU-0"]
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let expected = [
        (attribute::HOLDER, "pod:a/runs"),
        (attribute::NAMESPACE, "a"),
        (attribute::POD, "runs"),
        (attribute::POD_UID, POD_UID),
        (attribute::CONTAINER, "c"),
        (attribute::WORKLOAD, "job:a/j"),
    ];
    assert_eq!(told, BTreeMap::from(expected));
    assert_eq!(found.namespaces, BTreeSet::from(["a".to_owned()]));
    assert_eq!(found.strangers, BTreeSet::from(["GPU-9".to_owned()]));
    let found = look(Kubelet::NotHere, &[7], Some(&[]));
    assert_eq!(found.jobs, BTreeSet::from([7]));
    let account = (
        attribute::SLURM_ACCOUNT.to_owned(),
        "account-of-7".to_owned(),
    );
    assert!(found.attributes["GPU-0"].contains(&account));
}

#[test]
fn of_a_card_that_is_cut_the_instances_are_held_and_not_the_card() {
    let share = Resource::new(ResourceKind::Share, "MIG-1").with(attribute::PARENT, "GPU-0");
    let share = Card {
        resource: Arc::new(share),
        processes: Some(vec![3]),
    };
    let found = found(&Known {
        cards: &[card(Some(&[3])), share],
        kubelet: Kubelet::NotHere,
        slurm: Slurm::NotHere,
        given: None,
        looked: &looked(),
        names: &Someone,
    });
    assert_eq!(
        told(&found),
        "",
        "and it is said, so that what was said before goes"
    );
    let holder = (
        attribute::HOLDER.to_owned(),
        "process:ada/python3".to_owned(),
    );
    assert_eq!(found.attributes["MIG-1"], [holder]);
}

/// A node of two GPUs, `GPU-a` and `GPU-b`, of which the second has the first device file.
struct Two {
    a: Option<&'static [i32]>,
    b: Option<&'static [i32]>,
    wrote: Option<Wrote>,
    given: Option<Given>,
}

impl Two {
    /// What is told of `GPU-a` and of `GPU-b`, and whether Slurm has to be asked.
    fn told(&self) -> (String, String, bool) {
        let gpu = |id: &str, index: &str, minor: &str, on_it: Option<&[i32]>| Card {
            resource: Arc::new(
                Resource::new(ResourceKind::Gpu, id)
                    .with(attribute::GPU_INDEX, index)
                    .with(attribute::GPU_MINOR, minor),
            ),
            processes: on_it.map(<[i32]>::to_vec),
        };
        let found = found(&Known {
            cards: &[
                gpu("GPU-a", "0", "1", self.a),
                gpu("GPU-b", "1", "0", self.b),
            ],
            kubelet: Kubelet::NotHere,
            slurm: self.wrote.as_ref().map_or(Slurm::Silent, Slurm::Wrote),
            given: self.given.as_ref(),
            looked: &looked(),
            names: &Someone,
        });
        let told = |id: &str| {
            let told = [attribute::HOLDER, attribute::HOLDER_UNKNOWN];
            let mut told = found.attributes[id]
                .iter()
                .filter(|it| told.contains(&it.0.as_str()));
            told.next().map(|it| it.1.clone()).unwrap_or_default()
        };
        (told("GPU-a"), told("GPU-b"), found.asks_slurm)
    }

    #[track_caller]
    fn check(&self, a: &str, b: &str, asks: bool) {
        let told = self.told();
        assert!(told.0.starts_with(a), "GPU-a: {told:?}");
        assert!(told.1.starts_with(b), "GPU-b: {told:?}");
        assert_eq!(
            (told.0.is_empty(), told.1.is_empty()),
            (a.is_empty(), b.is_empty()),
            "{told:?}"
        );
        assert_eq!(told.2, asks, "{told:?}");
    }
}

const NONE: Option<&[i32]> = Some(&[]);

/// What the prolog wrote, by numbers.
fn by_number(of: &[(&str, &[u64])]) -> Option<Wrote> {
    let of = of.iter();
    let of = of.map(|(id, jobs)| (Arc::from(*id), jobs.iter().copied().collect()));
    Some(wrote(of.collect()))
}

/// What Slurm said when it was asked, of this many GPUs.
fn said(total: usize, used: &[u32], of: &[(u32, &[u64])]) -> Option<Given> {
    let of = of.iter();
    let of = of.map(|(gpu, jobs)| (*gpu, jobs.iter().copied().collect()));
    Some(Given {
        total,
        used: used.iter().copied().collect(),
        of: of.collect(),
    })
}

#[test]
fn a_process_of_a_job_is_believed_rather_than_what_the_prolog_wrote() {
    // Process 2 is of job 7.
    let node = |a, b, of: &[(&str, &[u64])]| Two {
        a,
        b,
        wrote: by_number(of),
        given: None,
    };
    let on_it: Option<&'static [i32]> = Some(&[2]);
    node(on_it, NONE, &[("GPU-a", &[7])]).check("slurm:7", "", false);
    node(on_it, NONE, &[("GPU-a", &[8])]).check("slurm:7", "", false);
    node(on_it, NONE, &[("GPU-a", &[7, 8])]).check("shared: slurm:7, slurm:8", "", false);
    // Its numbers are of other GPUs: then they say nothing of the rest either.
    let other = "not_heard: Slurm's prolog wrote numbers of other GPUs than job 7 computes on";
    node(on_it, NONE, &[("GPU-b", &[7])]).check("slurm:7", other, true);
    node(on_it, NONE, &[("GPU-a", &[8]), ("GPU-b", &[7])]).check("slurm:7", other, true);
    // A job that is on one of its own as well only goes beyond them.
    node(on_it, on_it, &[("GPU-b", &[7])]).check("slurm:7", "slurm:7", false);
    // A user's process may be a job's whose cgroup does not say so.
    node(Some(&[3]), NONE, &[("GPU-a", &[8])]).check("slurm:8", "", false);
    // What stands in files named by UUID is no number.
    let mut by_id = node(on_it, NONE, &[("GPU-b", &[7])]);
    by_id.wrote.as_mut().expect("written").numbered.clear();
    by_id.check("slurm:7", "slurm:7", false);
}

#[test]
fn what_slurm_says_when_it_is_asked_counts_where_neither_processes_nor_the_prolog_tell() {
    let node = |a, b, given| Two {
        a,
        b,
        wrote: None,
        given,
    };
    let on_it: Option<&'static [i32]> = Some(&[2]);
    // Slurm's first is the one with the first device file.
    node(NONE, NONE, said(2, &[0], &[(0, &[9])])).check("", "slurm:9", true);
    node(NONE, NONE, said(2, &[0, 1], &[(0, &[9]), (1, &[8, 9])])).check(
        "shared: slurm:8, slurm:9",
        "slurm:9",
        true,
    );
    let unseen = "unnamed: a Slurm job that squeue does not show";
    node(NONE, NONE, said(2, &[0], &[])).check("", unseen, true);
    node(NONE, Some(&[3]), said(2, &[0], &[])).check("", "process:ada", true);
    node(NONE, Some(&[3]), said(2, &[0], &[(0, &[9])])).check("", "slurm:9", true);
    // That no job has it, is no word on users, nor on processes that the driver does not list.
    node(Some(&[3]), None, said(2, &[], &[])).check("process:ada", "not_heard: the driver", true);
    // A process of a job is newer than an answer, and shows as well that the order is another.
    node(on_it, NONE, said(2, &[], &[])).check("slurm:7", "", true);
    let silent = "not_heard: Slurm's prolog does not say";
    node(on_it, NONE, said(2, &[0], &[(0, &[7])])).check("slurm:7", silent, true);
    node(on_it, on_it, said(2, &[], &[])).check("slurm:7", "slurm:7", false);
    // Of more or fewer GPUs than there are it cannot be known which it means.
    for given in [None, said(1, &[], &[]), said(4, &[0], &[(0, &[9])])] {
        node(NONE, NONE, given).check(silent, silent, true);
    }
}

#[test]
fn what_slurm_said_counts_beside_a_prolog_only_where_a_process_refutes_that() {
    let node = |a, of: &[(&str, &[u64])], given| Two {
        a,
        b: NONE,
        wrote: by_number(of),
        given,
    };
    // An answer is older than the files: the epilog has taken those of job 9 away.
    let both = || said(2, &[0, 1], &[(0, &[9]), (1, &[7])]);
    node(NONE, &[("GPU-a", &[8])], both()).check("slurm:8", "", false);
    node(NONE, &[("GPU-a", &[])], both()).check("", "", false);
    node(NONE, &[], both()).check("", "", false);
    // Process 2 is of job 7, and it is on GPU-a, which is Slurm's second.
    node(Some(&[2]), &[("GPU-b", &[7])], both()).check("slurm:7", "slurm:9", true);
}

#[test]
fn slurm_s_numbers_are_of_no_card_of_a_node_with_instances() {
    let share = Resource::new(ResourceKind::Share, "MIG-1").with(attribute::PARENT, "GPU-0");
    let share = Card {
        resource: Arc::new(share),
        processes: Some(Vec::new()),
    };
    let given = said(1, &[], &[]);
    let found = found(&Known {
        cards: &[card(Some(&[])), share],
        kubelet: Kubelet::NotHere,
        slurm: Slurm::Silent,
        given: given.as_ref(),
        looked: &looked(),
        names: &Someone,
    });
    assert_eq!(found.unknown, BTreeMap::from([("not_heard", 1)]));
    assert!(!found.asks_slurm, "it would not help");
}

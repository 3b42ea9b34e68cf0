//! GPUs that are given out by resource claims, in what is known of the cluster.

use std::time::Duration;

use gpufleet_analysis::inventory::{Phase, Ready, Reason};
use gpufleet_program::kubernetes::Refusal;
use gpufleet_telemetry::time::Timestamp;

use super::super::{Bound, ClusterState, Maker, Pod, Pods};
use super::*;

fn now(seconds: i64) -> Moment {
    Moment {
        at: Timestamp::from_seconds(1_000_000 + seconds),
        monotonic: Duration::from_secs(seconds.unsigned_abs()),
    }
}

fn node(name: &str, gpus: u32) -> Node {
    Node {
        name: name.to_owned(),
        gpus,
        allocatable: gpus,
        ready: Ready::Yes,
        ..Node::default()
    }
}

/// A slice with so many whole GPUs, `gpu-0` and on.
fn slice(node: &str, generation: u64, gpus: u32) -> Slice {
    let device = |number: u32| Device {
        name: format!("gpu-{number}"),
        gives: Gives::Whole,
        is_free_of_taints: true,
        card: String::new(),
    };
    Slice {
        node: node.to_owned(),
        pool: node.to_owned(),
        generation,
        model: "NVIDIA H100 80GB HBM3".to_owned(),
        devices: (0..gpus).map(device).collect(),
    }
}

fn asks(class: &str, count: Count) -> DeviceClaim {
    DeviceClaim {
        asks: vec![(class.to_owned(), count)],
        ..DeviceClaim::default()
    }
}

fn given(devices: &[(&str, &str)]) -> DeviceClaim {
    let given = devices.iter();
    DeviceClaim {
        given: given
            .map(|(pool, it)| ((*pool).to_owned(), (*it).to_owned()))
            .collect(),
        is_given: true,
        ..asks("gpu.nvidia.com", Count::Exactly(1))
    }
}

fn waits(gpus_each: u32, is_shares: bool) -> Box<Claim> {
    Box::new(Claim {
        namespace: "team".to_owned(),
        workload: "job:team/a".to_owned(),
        queue: String::new(),
        model: String::new(),
        places: 1,
        gpus_each,
        together: Some(1),
        is_shares,
        since: now(0).at,
        reason: Reason::NoPlace,
        words: String::new(),
        tolerates: Vec::new(),
        partitions: Vec::new(),
        scaler: None,
    })
}

/// A claim that a pod names itself.
fn named(claim: &str) -> ByClaim {
    ByClaim {
        claim: Some(claim.to_owned()),
        template: None,
    }
}

/// Two nodes: `a` gives out eight GPUs by claims, `b` eight by count.
fn known() -> ClusterState {
    let mut known = ClusterState::default();
    known
        .claimed
        .all_slices(vec![("s".to_owned(), slice("a", 1, 8))], now(0));
    known.all_nodes(vec![node("a", 0), node("b", 8)], now(1));
    known
}

fn of<'a>(known: &'a ClusterState, name: &str) -> &'a gpufleet_analysis::inventory::Record {
    let mut records = known.records();
    records
        .find(|it| it.node.name == name)
        .expect("it is known")
}

#[test]
fn a_node_has_the_gpus_of_its_slices_and_loses_them_with_these() {
    let mut known = known();
    let node = &of(&known, "a").node;
    assert_eq!((node.gpus, node.allocatable), (8, 8));
    assert_eq!(node.model, "NVIDIA H100 80GB HBM3");
    assert_eq!(of(&known, "a").phase(), Phase::Ready);
    // The driver tells anew, and the old slice is still there.
    let mut newer = slice("a", 2, 8);
    newer.devices[7].is_free_of_taints = false;
    known.claimed.slice("t", newer);
    known.slices_changed(["a"].into_iter(), now(2).at);
    let node = &of(&known, "a").node;
    assert_eq!(
        (node.gpus, node.allocatable),
        (8, 7),
        "of the newest generation"
    );
    // What the node says itself does not take them away, nor count them twice.
    let mut told = self::node("a", 8);
    told.driver = "580".to_owned();
    known.node(told, now(3).at);
    assert_eq!(
        (of(&known, "a").node.gpus, of(&known, "a").node.allocatable),
        (8, 8)
    );
    known.node(self::node("a", 0), now(4).at);
    for name in ["s", "t"] {
        known.claimed.slice_gone(name, "a");
    }
    known.slices_changed(["a"].into_iter(), now(5).at);
    assert_eq!(of(&known, "a").node.allocatable, 0);
    assert_eq!(of(&known, "a").phase(), Phase::NotReady);
    assert_eq!(of(&known, "b").node.gpus, 8);
}

#[test]
fn a_node_that_gives_out_shares_alone_has_these() {
    let mut known = ClusterState::default();
    let mut shares = slice("a", 1, 7);
    for device in &mut shares.devices {
        device.gives = Gives::Share;
    }
    let all = vec![("s".to_owned(), shares.clone())];
    known.claimed.all_slices(all, now(0));
    known.all_nodes(vec![node("a", 0)], now(1));
    let record = of(&known, "a");
    assert_eq!((record.node.gpus, record.node.allocatable), (7, 7));
    assert!(record.node.is_shared);
    assert_eq!(record.node.model, "NVIDIA H100 80GB HBM3");
    assert_eq!(record.phase(), Phase::Ready);
    // Beside whole GPUs they may be parts of them.
    shares.devices[0].gives = Gives::Whole;
    known.claimed.slice("s", shares);
    known.slices_changed(["a"].into_iter(), now(2).at);
    let node = &of(&known, "a").node;
    assert_eq!((node.gpus, node.is_shared), (1, false));
}

#[test]
fn whole_gpus_beside_shares_are_free_until_they_or_a_part_of_them_is_given() {
    let mut known = ClusterState::default();
    let mut both = slice("a", 1, 6);
    // Two of three cards are given out whole, the second in parts too.
    let cards = ["first", "second", "second", "second", "third", "third"];
    for (place, (device, card)) in both.devices.iter_mut().zip(cards).enumerate() {
        card.clone_into(&mut device.card);
        if place >= 2 {
            device.gives = Gives::Share;
        }
    }
    known
        .claimed
        .all_slices(vec![("s".to_owned(), both)], now(0));
    known.all_nodes(vec![node("a", 0)], now(1));
    known.claimed.all_claims(BTreeMap::new(), now(1));
    let node = &of(&known, "a").node;
    assert_eq!((node.gpus, node.allocatable), (2, 2));
    assert!(!node.is_shared);
    for (device, expected) in [
        ("gpu-4", 0),
        ("gpu-2", 1),
        ("gpu-3", 1),
        ("gpu-1", 1),
        ("gpu-0", 2),
    ] {
        let claim = given(&[("a", device)]);
        known.claimed.claim(&format!("team/{device}"), Some(claim));
        let held = known.held().expect("all is known");
        assert_eq!(held.get("a").copied().unwrap_or(0), expected, "{device}");
    }
    // What a plugin counts whole stays so beside shares of the driver's.
    let mut shares = slice("b", 1, 7);
    for device in &mut shares.devices {
        device.gives = Gives::Share;
    }
    known.claimed.slice("t", shares);
    known.node(self::node("b", 5), now(2).at);
    let node = &of(&known, "b").node;
    assert_eq!((node.gpus, node.is_shared), (5, false));
}

#[test]
fn a_failure_of_a_moment_does_not_decide_that_there_are_no_slices() {
    let mut known = ClusterState::default();
    let slices = known.claimed.standing(DeviceKind::Slice);
    slices.failed("500 Internal Server Error".to_owned(), None);
    assert!(!known.claimed.is_decided());
    let slices = known.claimed.standing(DeviceKind::Slice);
    slices.failed("403 Forbidden".to_owned(), Some(Refusal::NoRight));
    assert!(known.claimed.is_decided());
}

#[test]
fn a_pod_asks_for_what_its_template_says_until_its_claim_is_made_and_each_pod_for_itself() {
    let mut known = known();
    known.all_pods(Pods::default(), now(1));
    for maker in Maker::ALL {
        known.held_back(maker).standing.is_absent("not installed");
    }
    known.claimed.all_claims(BTreeMap::new(), now(1));
    let by = |claim: Option<&str>| ByClaim {
        claim: claim.map(str::to_owned),
        template: Some("team/four".to_owned()),
    };
    let gpus = |known: &ClusterState| -> Vec<u32> {
        known.waiting().iter().map(|it| it.gpus_each).collect()
    };
    for uid in ["p", "q"] {
        known.pod(uid, Pod::WaitsByClaims(waits(0, false), vec![by(None)]));
    }
    assert_eq!(gpus(&known), [0; 0], "nobody told of the template");
    assert!(
        !known.sees_who_waits(now(1)),
        "so it is not known who waits"
    );
    let four = vec![("gpu.nvidia.com".to_owned(), Count::Exactly(4))];
    let all = BTreeMap::from([("team/four".to_owned(), four.clone())]);
    known.claimed.all_templates(all, now(2));
    assert_eq!(gpus(&known), [4, 4]);
    assert!(known.sees_who_waits(now(2)));
    // The claim of one is made: named first, then read, then given.
    let made = vec![by(Some("team/p-gpus"))];
    known.pod("p", Pod::WaitsByClaims(waits(0, false), made));
    assert_eq!(gpus(&known), [4, 4]);
    let claim = DeviceClaim {
        asks: four,
        ..DeviceClaim::default()
    };
    known.claimed.claim("team/p-gpus", Some(claim));
    assert_eq!(gpus(&known), [4, 4]);
    known
        .claimed
        .claim("team/p-gpus", Some(given(&[("a", "gpu-0")])));
    assert_eq!(gpus(&known), [4], "one has all it asked for");
    // Before there are pods.
    let job = Claim {
        workload: "job:team/b".to_owned(),
        places: 3,
        ..*waits(1, false)
    };
    known
        .held_back(Maker::Job)
        .put("b", vec![(job, vec![by(None)])]);
    assert_eq!(gpus(&known), [4, 5], "by count and by the template");
    known.claimed.template("team/four", None);
    assert_eq!(gpus(&known), [1], "the template is gone");
}

#[test]
fn a_claim_that_pods_share_is_waited_for_once() {
    let mut known = known();
    let eight = asks("gpu.nvidia.com", Count::Exactly(8));
    known.claimed.claim("team/shared", Some(eight));
    for uid in ["p", "q", "r"] {
        let claim = waits(u32::from(uid == "r"), false);
        known.pod(uid, Pod::WaitsByClaims(claim, vec![named("team/shared")]));
    }
    let waiting: Vec<u32> = known.waiting().iter().map(|it| it.gpus_each).collect();
    assert_eq!(waiting, [8, 1], "the first that waits asks for it");
}

#[test]
fn what_claims_were_given_is_held_once_however_many_share_it() {
    let mut known = known();
    let held = |known: &ClusterState, node: &str| {
        known.held().map(|it| it.get(node).copied().unwrap_or(0))
    };
    assert_eq!(held(&known, "a"), None, "no claim was told of yet");
    known.claimed.all_claims(BTreeMap::new(), now(1));
    assert_eq!((held(&known, "a"), held(&known, "b")), (Some(0), Some(0)));
    known
        .claimed
        .claim("team/x", Some(given(&[("a", "gpu-0"), ("a", "gpu-1")])));
    known.claimed.claim(
        "team/y",
        Some(given(&[("a", "gpu-1"), ("a", "no-gpu"), ("c", "gpu-0")])),
    );
    assert_eq!(held(&known, "a"), Some(2));
    // By count: of `b` by its plugin; of `a` by a claim of the scheduler's, which is counted.
    for (uid, node) in [("p", "a"), ("q", "b")] {
        let (node, gpus) = (node.into(), 3);
        known.pod(uid, Pod::Bound(Bound { node, gpus }));
    }
    assert_eq!((held(&known, "a"), held(&known, "b")), (Some(2), Some(3)));
    known.claimed.claim("team/x", None);
    assert_eq!(held(&known, "a"), Some(1));
}

#[test]
fn who_waits_asks_for_what_its_claims_ask_for() {
    let mut known = known();
    let classes = [
        ("ours".to_owned(), Gives::Whole),
        ("nic".to_owned(), Gives::Nothing),
    ];
    known.claimed.all_classes(classes.into(), now(1));
    for (name, claim) in [
        ("team/four", asks("gpu.nvidia.com", Count::Exactly(4))),
        ("team/all", asks("ours", Count::All)),
        ("team/share", asks("mig.nvidia.com", Count::Exactly(2))),
        ("team/nic", asks("nic", Count::Exactly(8))),
        ("team/has", given(&[("a", "gpu-0")])),
    ] {
        known.claimed.claim(name, Some(claim));
    }
    for (names, by_count, expected) in [
        (&["team/four"][..], (0, false), Some((4, false))),
        (&["team/four", "team/nic"], (2, false), Some((6, false))),
        (&["team/all"], (0, false), Some((8, false))),
        (&["team/share"], (0, false), Some((2, true))),
        (&["team/share"], (3, true), Some((5, true))),
        (&["team/nic"], (0, false), None),
        (&["team/has"], (0, false), None),
        (&["team/not-told-yet"], (0, false), None),
    ] {
        let claim = waits(by_count.0, by_count.1);
        let by = names.iter().map(|it| named(it)).collect();
        known.pod("p", Pod::WaitsByClaims(claim, by));
        let waiting = known.waiting();
        let found = waiting.first().map(|it| (it.gpus_each, it.is_shares));
        assert_eq!(found, expected, "{names:?}");
    }
    known.pod("p", Pod::Waits(waits(1, false)));
    assert_eq!(
        known.waiting()[0].gpus_each,
        1,
        "it names no claim any more"
    );
}

#[test]
fn beyond_the_limits_it_is_not_told_what_is_free() {
    let mut known = known();
    known.claimed.all_claims(BTreeMap::new(), now(1));
    for number in 0..=MAX_CLAIMS {
        known
            .claimed
            .claim(&format!("team/{number}"), Some(DeviceClaim::default()));
    }
    assert_eq!(known.held(), None);
    known.claimed.claim(&format!("team/{MAX_CLAIMS}"), None);
    assert!(known.held().is_some());
    for number in 0..MAX_SLICES {
        let node = format!("n-{number}");
        known.claimed.slice(&node, slice(&node, 1, 1));
    }
    assert_eq!(known.claimed.slice_count, MAX_SLICES);
    assert_eq!(
        known.held(),
        None,
        "nor what a slice without room gives out"
    );
    let last = format!("n-{}", MAX_SLICES - 1);
    known.claimed.slice_gone(&last, &last);
    assert!(known.held().is_some());
    known.claimed.slice(&last, slice(&last, 1, 1));
    assert_eq!(known.held(), None);
    known.claimed.all_slices(Vec::new(), now(2));
    assert!(known.held().is_some(), "all of them are there again");
}

#[test]
fn what_claims_were_given_is_worked_out_once_and_anew_after_each_change() {
    type Change = fn(&mut Claimed);
    let changes: [(Change, u32); 5] = [
        (|it| it.claim("team/x", Some(given(&[("a", "gpu-1")]))), 1),
        (|it| it.claim("team/y", Some(given(&[("a", "gpu-2")]))), 2),
        (|it| it.slice_gone("s", "a"), 0),
        (|it| it.slice("s", slice("a", 1, 2)), 1),
        (|it| it.all_claims(BTreeMap::new(), now(3)), 0),
    ];
    let mut known = known();
    known.claimed.all_claims(BTreeMap::new(), now(1));
    // Another slice, so that there is one when that of `a` is gone.
    known.claimed.slice("other", slice("c", 1, 1));
    for (place, (change, expected)) in changes.into_iter().enumerate() {
        change(&mut known.claimed);
        assert_eq!(known.claimed.given.get(), None, "change {place}");
        let held = known.held().expect("all is known");
        let of_node = held.get("a").copied().unwrap_or(0);
        assert_eq!(of_node, expected, "change {place}");
        assert!(known.claimed.given.get().is_some(), "change {place}");
    }
}

//! Tables of cases: a node's life, what is free, who waits and why.

use super::change::changes;
use super::place::{Free, Gang, pools};
use super::why::plain;
use super::*;

mod unheld;

const NOW: Timestamp = Timestamp::from_seconds(1_000_000);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_seconds(1_000_000 + seconds)
}

fn node(name: &str, gpus: u32) -> Node {
    Node {
        name: name.to_owned(),
        model: "h100".to_owned(),
        zone: "a".to_owned(),
        gpus,
        allocatable: gpus,
        ready: Ready::Yes,
        created: Some(at(-900)),
        ready_since: Some(at(-800)),
        ..Node::default()
    }
}

fn record(node: Node) -> Record {
    Record::new(node, NOW)
}

fn claim(workload: &str, gpus: u32, since: i64, words: &str) -> Claim {
    Claim {
        namespace: "team".to_owned(),
        workload: workload.to_owned(),
        queue: String::new(),
        model: String::new(),
        places: 1,
        gpus_each: gpus,
        together: Some(1),
        is_shares: false,
        since: at(since),
        reason: Reason::NoPlace,
        words: words.to_owned(),
        tolerates: Vec::new(),
        partitions: Vec::new(),
        scaler: None,
    }
}

#[test]
fn a_node_is_billed_from_when_it_was_made_ready_when_it_can_give_gpus_out_and_gone_once() {
    let mut young = node("n", 0);
    (young.ready, young.ready_since) = (Ready::No, None);
    let mut record = Record::new(young.clone(), NOW);
    assert_eq!((record.phase(), record.ready_at), (Phase::Starting, None));
    assert_eq!(record.billed_from(), at(-900));
    // Ready without a GPU that can be given out is not ready.
    let mut up = young.clone();
    (up.ready, up.ready_since) = (Ready::Yes, Some(at(10)));
    assert!(record.take(up.clone(), at(11)));
    assert_eq!(record.phase(), Phase::Starting);
    (up.gpus, up.allocatable) = (8, 8);
    assert!(record.take(up.clone(), at(30)));
    assert_eq!((record.phase(), record.phase_since), (Phase::Ready, at(30)));
    assert_eq!(record.ready_at, Some(at(30)), "its GPUs came after it");
    assert!(!record.take(up.clone(), at(31)), "nothing is different");
    let mut down = up.clone();
    (down.ready, down.ready_since) = (Ready::Unknown, Some(at(50)));
    assert!(record.take(down, at(51)));
    assert_eq!(
        (record.phase(), record.phase_since),
        (Phase::NotReady, at(51))
    );
    let mut empty = up.clone();
    (empty.allocatable, empty.ready_since) = (0, Some(at(55)));
    assert!(record.take(empty.clone(), at(55)));
    assert_eq!(record.phase(), Phase::NotReady);
    assert_eq!(record.told_phase(), Phase::Ready, "its plugin begins anew");
    empty.ready = Ready::No;
    assert!(record.take(empty, at(57)));
    let told = (record.told_phase(), record.phase_since);
    assert_eq!(told, (Phase::NotReady, at(57)), "from when it is not ready");
    up.cordoned = true;
    assert!(record.take(up.clone(), at(60)));
    assert_eq!(record.phase(), Phase::Cordoned);
    record.ends(at(70));
    record.ends(at(80));
    assert_eq!(
        (record.phase(), record.gone_at),
        (Phase::Gone, Some(at(70)))
    );
    assert!(record.take(up, at(90)), "it is back");
    assert_eq!(record.phase(), Phase::Cordoned);
}

#[test]
fn what_a_node_cannot_give_out_is_not_free_and_is_counted_apart() {
    let mut starting = node("starting", 0);
    starting.ready = Ready::No;
    let mut cordoned = node("cordoned", 8);
    cordoned.cordoned = true;
    let mut kept = node("kept", 8);
    kept.kept_for = vec!["team=nlp:NoSchedule".to_owned()];
    let mut shared = node("shared", 32);
    shared.is_shared = true;
    let mut lost = record(node("lost", 8));
    lost.take(
        Node {
            ready: Ready::Unknown,
            ..node("lost", 8)
        },
        NOW,
    );
    let mut gone = record(node("gone", 8));
    gone.ends(NOW);
    let mut broken = node("broken", 8);
    broken.allocatable = 7;
    let mut all: Vec<Record> = [node("full", 8), broken, starting, cordoned, kept, shared]
        .into_iter()
        .map(record)
        .collect();
    all.extend([lost, gone]);
    let held = BTreeMap::from([("full".to_owned(), 3), ("kept".to_owned(), 6)]);
    let found = pools(all.iter(), &held);
    assert_eq!(found.len(), 1);
    let pool = &found[0];
    assert_eq!((pool.nodes, pool.gpus, pool.held), (7, 40, 9));
    assert_eq!((pool.free, pool.kept), (5 + 7, 2));
    let apart = [pool.starting, pool.not_ready, pool.cordoned, pool.shared];
    assert_eq!(apart, [1, 1, 1, 1]);
}

#[test]
fn the_largest_gang_depends_on_what_each_of_its_pods_asks_for() {
    // Free GPUs by node, and what fits: pods of 1, 2, 4 and 8.
    for (free, expected) in [
        (&[8, 8][..], [16, 8, 4, 2]),
        (&[1; 8], [8, 0, 0, 0]),
        (&[7, 7, 3], [17, 7, 2, 0]),
        (&[0, 0], [0, 0, 0, 0]),
    ] {
        let name = |index: usize| format!("n{index}");
        let all = free.iter().enumerate();
        let nodes: Vec<Record> = all
            .clone()
            .map(|(it, _)| record(node(&name(it), 8)))
            .collect();
        let held = all.map(|(it, free)| (name(it), 8 - free)).collect();
        let found = &pools(nodes.iter(), &held)[0].gangs;
        let fits: Vec<(u32, u32)> = found.iter().map(|it| (it.gpus_each, it.pods)).collect();
        let expected: Vec<_> = [1, 2, 4, 8].into_iter().zip(expected).collect();
        assert_eq!(fits, expected, "{free:?}");
        assert!(
            found.iter().all(|it| it.in_one_block.is_none()),
            "none is told"
        );
    }
}

#[test]
fn how_many_places_of_a_claim_fit_goes_by_gpus_type_and_the_taints_that_it_tolerates() {
    let kept = |name: &str, taints: &[&str]| {
        record(Node {
            kept_for: taints.iter().map(|it| (*it).to_owned()).collect(),
            ..node(name, 8)
        })
    };
    let other = record(Node {
        model: "l4".to_owned(),
        ..node("other", 4)
    });
    let mut cordoned = node("cordoned", 8);
    cordoned.cordoned = true;
    let nodes = [
        kept("plain", &[]),
        kept("half", &[]),
        kept("team", &["team=nlp:NoSchedule"]),
        kept("both", &["team=nlp:NoSchedule", "spot=true:NoExecute"]),
        other,
        record(cordoned),
    ];
    let held = BTreeMap::from([("half".to_owned(), 5)]);
    let free = Free::of(nodes.iter(), &held);
    let toleration = |key: &str, value: Option<&str>, effect: &str| Toleration {
        key: key.to_owned(),
        value: value.map(str::to_owned),
        effect: effect.to_owned(),
    };
    for (gpus, model, tolerates, expected) in [
        (8, "", vec![], 1),
        (2, "", vec![], 4 + 1 + 2),
        (2, "h100", vec![], 4 + 1),
        (1, "l4", vec![], 4),
        (
            8,
            "",
            vec![toleration("team", Some("nlp"), "NoSchedule")],
            2,
        ),
        (8, "", vec![toleration("team", Some("web"), "")], 1),
        (8, "", vec![toleration("team", None, "NoExecute")], 1),
        (
            8,
            "",
            vec![
                toleration("team", None, ""),
                toleration("spot", Some("true"), ""),
            ],
            3,
        ),
        (8, "", vec![toleration("", None, "")], 3),
        (16, "", vec![toleration("", None, "")], 0),
    ] {
        let claim = Claim {
            model: model.to_owned(),
            tolerates: tolerates.clone(),
            ..claim("job:team/a", gpus, 0, "")
        };
        let found = free.places(&claim);
        assert_eq!(found, Some(expected), "{gpus} {model} {tolerates:?}");
    }
    let shares = Claim {
        is_shares: true,
        ..claim("job:team/a", 1, 0, "")
    };
    assert_eq!(free.places(&shares), None);
}

#[test]
fn what_the_autoscaler_said_last_of_any_pod_is_told_of_the_workload() {
    let said = |seconds: i64, what: Scaling| Claim {
        scaler: Some(Scaled {
            at: at(seconds),
            what,
            words: format!("{seconds}"),
        }),
        ..claim("job:team/a", 8, -60, "")
    };
    let claims = [
        said(-30, Scaling::Adds),
        said(-10, Scaling::Failed),
        claim("job:team/a", 8, -60, ""),
        said(-20, Scaling::Refuses),
    ];
    for rows in [queue(claims.iter()), queue(claims.iter().rev())] {
        let scaler = rows[0].scaler.as_ref().expect("it said something");
        assert_eq!((scaler.what, &*scaler.words), (Scaling::Failed, "-10"));
    }
}

#[test]
fn gangs_are_told_of_each_type_and_zone_apart_and_within_one_block_where_blocks_are_told() {
    let in_block = |name: &str, zone: &str, block: &str| {
        record(Node {
            zone: zone.to_owned(),
            block: block.to_owned(),
            ..node(name, 4)
        })
    };
    let nodes = [
        in_block("1", "a", "x"),
        in_block("2", "a", "x"),
        in_block("3", "a", "y"),
        in_block("4", "b", ""),
    ];
    let found = pools(nodes.iter(), &BTreeMap::new());
    assert_eq!(
        found.iter().map(|it| &*it.zone).collect::<Vec<_>>(),
        ["a", "b"]
    );
    let last = |index: usize| found[index].gangs.last().expect("there is room");
    let whole = Gang {
        partition: String::new(),
        gpus_each: 4,
        pods: 3,
        in_one_block: Some(2),
    };
    assert_eq!(*last(0), whole);
    assert_eq!((last(0).gpus(), last(1).gpus()), (12, 4));
    assert_eq!(last(1).in_one_block, None);
}

#[test]
fn a_job_fits_in_one_of_its_partitions_and_gangs_are_told_of_each() {
    let of = |name: &str, partitions: &[&str]| {
        record(Node {
            partitions: partitions.iter().map(|it| (*it).to_owned()).collect(),
            ..node(name, 8)
        })
    };
    let nodes = [
        of("1", &["long"]),
        of("2", &["long", "short"]),
        of("3", &["short"]),
        of("4", &["short"]),
    ];
    let free = Free::of(nodes.iter(), &BTreeMap::new());
    let places = |partitions: &[&str]| {
        let partitions = partitions.iter().map(|it| (*it).to_owned());
        free.places(&Claim {
            partitions: partitions.collect(),
            ..claim("slurm:1", 8, 0, "")
        })
    };
    assert_eq!(places(&["long"]), Some(2));
    assert_eq!(places(&["long", "short"]), Some(3), "not over both");
    assert_eq!(places(&["other"]), Some(0));
    assert_eq!(places(&[]), Some(4), "nobody says which");
    let found = &pools(nodes.iter(), &BTreeMap::new())[0];
    assert_eq!((found.nodes, found.free), (4, 32), "each node once");
    let whole = found.gangs.iter().filter(|it| it.gpus_each == 8);
    let whole: Vec<_> = whole.map(|it| (it.partition.as_str(), it.pods)).collect();
    assert_eq!(
        whole,
        [("short", 3), ("long", 2)],
        "where most is free first"
    );
}

#[test]
fn partitions_of_the_same_nodes_are_told_as_one_and_of_many_those_with_most_free() {
    let of = |number: usize, partitions: &[&str]| {
        record(Node {
            partitions: partitions.iter().map(|it| (*it).to_owned()).collect(),
            ..node(&format!("node-{number}"), 8)
        })
    };
    let told = |nodes: &[Record]| {
        let found = pools(nodes.iter(), &BTreeMap::new()).remove(0);
        let whole = found.gangs.into_iter().filter(|it| it.gpus_each == 8);
        let names: Vec<String> = whole.map(|it| it.partition).collect();
        (names, found.partitions_left_out)
    };
    let alike = [of(1, &["a", "b", "c", "d"]), of(2, &["e"])];
    assert_eq!(told(&alike).0, ["a, b, c and 1 more", "e"]);
    // Partition pN has N nodes.
    let names: Vec<String> = (1..=8).map(|it| format!("p{it}")).collect();
    let own = |number: usize| -> Vec<&str> { names[number..].iter().map(String::as_str).collect() };
    let many: Vec<Record> = (0..8).map(|number| of(number, &own(number))).collect();
    let (named, left_out) = told(&many);
    assert_eq!(named, ["p8", "p7", "p6", "p5", "p4", "p3"]);
    assert_eq!(left_out, 2);
}

#[test]
fn pods_of_one_workload_wait_in_one_row_since_the_first_of_them_the_oldest_row_first() {
    let claims = [
        claim("job:team/b", 8, -10, "young"),
        claim("job:team/a", 8, -60, ""),
        claim("job:team/a", 8, -60, "old"),
        claim("job:team/a", 4, -5, "newer"),
        Claim {
            reason: Reason::HeldBack,
            places: 2,
            ..claim("job:team/a", 1, -100, "gate")
        },
    ];
    let rows = queue(claims.iter());
    let told: Vec<_> = rows
        .iter()
        .map(|it| (&*it.first.words, it.claims, it.gpus))
        .collect();
    assert_eq!(told, [("gate", 1, 2), ("old", 3, 20), ("young", 1, 8)]);
    let turned = queue(claims.iter().rev());
    assert_eq!(turned, rows, "whatever the order");
}

#[test]
fn a_schedulers_words_are_put_plainly_and_what_has_no_sentence_is_told_as_it_is() {
    let check = |words: &str, expected: &[&str]| {
        assert_eq!(plain(Reason::NoPlace, words), expected, "{words}");
    };
    check(
        "0/14 nodes are available: 3 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint {node.kubernetes.io/unschedulable: }, 2 node(s) had untolerated taint {team: nlp, x}, 5 node(s) didn't match Pod's node affinity/selector, 3 node(s) sulk. preemption: 0/14 nodes are available: 14 Preemption is not helpful for scheduling.",
        &[
            "3 nodes have too few free GPUs.",
            "1 node is cordoned.",
            "2 nodes are kept for others by a taint.",
            "5 nodes are not of the kind that it asks for (node selector or affinity).",
            "3 nodes: node(s) sulk.",
        ],
    );
    check(
        "Resources",
        &["Nothing that it asks for is free; it is the next of its partition."],
    );
    check(
        "QOSMaxGRESPerUser",
        &["Its quality of service has used up what it may have at once."],
    );
    check("something new", &["something new."]);
    check("", &["The scheduler found no place and does not say why."]);
    let held = plain(Reason::HeldBack, "");
    assert!(held[0].contains("holds it back"), "{held:?}");
    let limited = plain(Reason::ByOwner, "JobArrayTaskLimit");
    assert!(limited[0].contains("tasks of its array"), "{limited:?}");
    assert!(limited[1].contains("no demand"), "{limited:?}");
    let new = plain(Reason::NotTried, "ignored");
    assert!(new[0].contains("not said anything"), "{new:?}");
    let many: Vec<String> = (0..30).map(|it| format!("1 reason-{it}")).collect();
    let many = format!("0/30 nodes are available: {}.", many.join(", "));
    let said = plain(Reason::NoPlace, &many);
    assert_eq!(said.len(), 9);
    assert_eq!(said[8], "And 22 more reasons.");
}

#[test]
fn what_changed_is_told_once_and_what_did_not_is_not() {
    let told = |before: Option<&Record>, after: &Record| -> Vec<String> {
        let before = before.map(|it| (&it.node, it.phase()));
        let found = changes(before, after, NOW);
        found.into_iter().map(|it| it.what).collect()
    };
    let ready = record(Node {
        driver: "550.1".to_owned(),
        uid: "1".to_owned(),
        ..node("n", 8)
    });
    assert_eq!(told(None, &ready), ["came with 8 GPUs of type h100"]);
    assert_eq!(told(Some(&ready), &ready), [""; 0]);
    let with = |change: fn(&mut Node)| {
        let mut after = ready.clone();
        let mut node = after.node.clone();
        change(&mut node);
        after.take(node, NOW);
        after
    };
    for (change, expected) in [
        ((|it| it.cordoned = true) as fn(&mut Node), "is cordoned"),
        (
            |it| it.driver = "570.2".to_owned(),
            "has another driver: 550.1 → 570.2",
        ),
        (|it| it.driver = String::new(), ""),
        (|it| it.allocatable = 7, "can give out 7 GPUs, not 8"),
        (|it| it.uid = "2".to_owned(), "was made anew under its name"),
        (
            |it| {
                it.ready = Ready::No;
                it.trouble = "KubeletNotReady".to_owned();
            },
            "is not ready any more: KubeletNotReady",
        ),
        (|it| it.ready_since = Some(NOW), ""),
    ] {
        let after = with(change);
        assert_eq!(told(Some(&ready), &after).concat(), expected);
        let back = told(Some(&after), &ready).concat();
        if expected == "is cordoned" {
            assert_eq!(back, "takes work again");
        }
    }
    let mut gone = ready.clone();
    gone.ends(NOW);
    assert_eq!(told(Some(&ready), &gone), ["is gone"]);
    assert_eq!(told(Some(&gone), &ready), ["came with 8 GPUs of type h100"]);
}

#[test]
fn a_node_that_just_came_up_or_a_server_that_just_started_calls_none_blind() {
    let blind = |record: &Record, watched_from: i64, heard: bool| {
        let from = (at(watched_from), NOW);
        !without_agent([record].into_iter(), |_| heard, from, AGENT_WITHIN_NS).is_empty()
    };
    let old = record(node("n", 8));
    assert!(blind(&old, -700, false));
    assert!(!blind(&old, -700, true), "its agent is heard");
    assert!(
        !blind(&old, -599, false),
        "the server has just begun to look"
    );
    let mut young = node("n", 8);
    young.ready_since = Some(at(-599));
    assert!(
        !blind(&record(young), -700, false),
        "it is not ready for long"
    );
    let mut cordoned = node("n", 8);
    cordoned.cordoned = true;
    assert!(
        blind(&record(cordoned), -700, false),
        "what runs on it runs on"
    );
    let mut starting = node("n", 8);
    starting.ready = Ready::No;
    assert!(
        !blind(&record(starting), -700, false),
        "nothing can run there"
    );
    let mut gone = old;
    gone.ends(NOW);
    assert!(!blind(&gone, -700, false));
}

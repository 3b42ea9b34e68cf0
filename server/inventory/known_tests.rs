//! What is kept of what is told, whether it can be believed, and what is left to write.

use gpufleet_analysis::inventory::{Ready, Scaled};

use super::*;
use crate::inventory::gone_for_ns;

fn now(seconds: i64) -> Moment {
    Moment {
        at: Timestamp::from_seconds(1_000_000 + seconds),
        monotonic: Duration::from_secs(seconds.unsigned_abs()),
    }
}

fn node(name: &str) -> Node {
    Node {
        name: name.to_owned(),
        gpus: 8,
        allocatable: 8,
        ready: Ready::Yes,
        ..Node::default()
    }
}

fn bound(node: &str, gpus: u32) -> Pod {
    Pod::Bound(Bound {
        node: node.into(),
        gpus,
    })
}

fn waits() -> Pod {
    Pod::Waits(Box::new(Claim {
        namespace: "team".to_owned(),
        workload: "job:team/a".to_owned(),
        queue: String::new(),
        model: String::new(),
        places: 1,
        gpus_each: 8,
        together: Some(1),
        is_shares: false,
        since: now(0).at,
        reason: inventory::Reason::NoPlace,
        words: String::new(),
        tolerates: Vec::new(),
        partitions: Vec::new(),
        scaler: None,
    }))
}

fn whats(known: &ClusterState) -> Vec<String> {
    let told = known.changes();
    told.map(|it| format!("{} {}", it.node, it.what)).collect()
}

fn is_gone(known: &ClusterState, node: &str) -> bool {
    known.record(node).is_some_and(Record::is_gone)
}

#[test]
fn what_is_not_told_is_never_taken_for_nothing() {
    let mut told = Standing::default();
    assert_eq!(told.sight(now(0)), Sight::Starting);
    // A part of a list is none.
    told.heard(now(1));
    assert_eq!(told.sight(now(1)), Sight::Starting);
    assert!(
        told.failed("no right".to_owned(), Some(Refusal::NoRight)),
        "it is news"
    );
    assert!(
        !told.failed("no right".to_owned(), Some(Refusal::NoRight)),
        "and then no more"
    );
    let never = told.sight(now(2));
    assert_eq!(never.name(), "never_seen");
    assert_eq!(never.refusal(), Some(Refusal::NoRight));
    assert!(!never.is_known());
    let fix = |sight: &Sight| sight.told("nodes", now(2).at).map(|it| it.fix);
    assert!(fix(&never).is_some_and(|it| it.starts_with("Apply ClusterRole")));
    told.failed("401".to_owned(), Some(Refusal::UnknownToken));
    let never = told.sight(now(2));
    assert!(
        fix(&never).is_some_and(|it| it.starts_with("The credentials are invalid")),
        "{never:?}"
    );
    told.whole(now(3));
    assert_eq!(told.sight(now(3)), Sight::Seen);
    let last = now(3 + TOLD_FOR.as_secs().cast_signed());
    assert_eq!(told.sight(last), Sight::Seen);
    let old = told.sight(now(4 + TOLD_FOR.as_secs().cast_signed()));
    assert!(
        matches!(&old, Sight::Stale { since, .. } if *since == now(3).at),
        "{old:?}"
    );
    assert!(told.failed("gone".to_owned(), None));
    let stale = told.sight(now(5));
    assert!(
        matches!(&stale, Sight::Stale { why, .. } if why == "gone"),
        "{stale:?}"
    );
    told.heard(now(6));
    assert_eq!(told.sight(now(6)), Sight::Seen, "it goes on");
    told.is_absent("nobody");
    assert_eq!(told.sight(now(6)), Sight::Absent("nobody"));
}

#[test]
fn nodes_that_are_in_no_list_any_more_are_gone_and_the_first_list_is_no_news() {
    let mut known = ClusterState::default();
    known.all_nodes(vec![node("a"), node("b")], now(0));
    assert_eq!(whats(&known), [""; 0]);
    let mut cordoned = node("a");
    cordoned.cordoned = true;
    known.node(cordoned, now(10).at);
    known.all_nodes(vec![node("a"), node("c")], now(20));
    let expected = [
        "c came with 8 GPUs",
        "a takes work again",
        "b is gone",
        "a is cordoned",
    ];
    assert_eq!(whats(&known), expected, "the newest first");
    assert!(is_gone(&known, "b") && !is_gone(&known, "a") && !is_gone(&known, "never-seen"));
    known.node_gone("b", now(30).at);
    assert_eq!(known.changes().count(), 4, "it went once");
    let gone_for = gone_for_ns(86_400);
    let forgotten = now(21).at.shifted(gone_for);
    known.forget(forgotten, gone_for);
    assert!(is_gone(&known, "b"), "it is not written yet");
    known.unwritten();
    known.forget(forgotten, gone_for_ns(2 * 86_400));
    assert!(is_gone(&known, "b"), "the fleet still has its GPUs");
    known.forget(forgotten, gone_for);
    assert!(!is_gone(&known, "b"));
    assert_eq!(known.changes().count(), 0);
}

#[test]
fn a_node_that_is_there_without_its_gpus_is_not_gone() {
    let mut known = ClusterState::default();
    let without = |names: &[&str]| -> BTreeSet<String> {
        let names = names.iter().map(|it| (*it).to_owned());
        names.collect()
    };
    known.all_nodes(vec![node("a"), node("b")], now(0));
    known.node_without_gpus("a", now(10).at);
    known.node_without_gpus("never-had-any", now(10).at);
    assert_eq!(whats(&known), ["a has no GPUs any more"]);
    assert!(is_gone(&known, "a"), "there is nothing to give out");
    assert!(!known.is_gone("a") && known.is_without_gpus("a"));
    assert!(!known.is_without_gpus("never-had-any"));
    // A list says the same of both, and of a server that starts anew.
    let (records, changes) = known.unwritten();
    let mut anew = ClusterState::default();
    anew.restore(records, changes, Some(now(10).at));
    for it in [&mut known, &mut anew] {
        it.all_without_gpus(&without(&["a", "b", "never-had-any"]), now(20).at);
        it.all_nodes(vec![node("c")], now(20));
        assert!(!it.is_gone("a") && !it.is_gone("b"));
        assert_eq!(it.count(), 1, "c has some");
    }
    assert_eq!(whats(&known)[1], "b has no GPUs any more");
    // It goes, or has them again.
    known.all_without_gpus(&without(&["b"]), now(30).at);
    known.all_nodes(vec![node("c")], now(30));
    assert!(known.is_gone("a") && !known.is_gone("b"));
    known.node_gone("b", now(40).at);
    assert!(known.is_gone("b"));
    known.node_without_gpus("c", now(50).at);
    known.node(node("c"), now(60).at);
    assert!(!known.is_without_gpus("c") && !known.is_gone("c"));
}

#[test]
fn a_server_that_starts_anew_knows_since_when_a_node_is_ready_and_sees_what_went_meanwhile() {
    let mut before = ClusterState::default();
    before.all_nodes(vec![node("a"), node("b")], now(0));
    let (records, changes) = before.unwritten();
    assert_eq!((records.len(), changes.len()), (2, 0));
    let mut after = ClusterState::default();
    after.restore(records, changes, Some(now(100).at));
    after.all_nodes(vec![node("a")], now(500));
    assert_eq!(whats(&after), ["b is gone"]);
    let all: Vec<&Record> = after.records().collect();
    let [a, b] = all[..] else { panic!("{all:?}") };
    assert_eq!((a.first_seen, a.ready_at), (now(0).at, Some(now(0).at)));
    // When it went nobody knows.
    assert_eq!(
        (a.unwatched_from, b.unwatched_from),
        (None, Some(now(100).at))
    );
    after.all_nodes(Vec::new(), now(560));
    let a = after.records().next().expect("it went a moment ago");
    assert_eq!((a.gone_at, a.unwatched_from), (Some(now(560).at), None));
    after.all_nodes(vec![node("b")], now(600));
    let b = after.records().last().expect("it is there again");
    assert_eq!((b.gone_at, b.unwatched_from), (None, None));
}

#[test]
fn what_was_not_written_is_written_later_as_it_is_by_then() {
    let mut known = ClusterState::default();
    known.all_nodes(vec![node("a")], now(0));
    known.node(node("b"), now(1).at);
    let (records, changes) = known.unwritten();
    assert_eq!((records.len(), changes.len()), (2, 1));
    known.node_gone("b", now(2).at);
    known.not_written(&records, changes);
    let (records, changes) = known.unwritten();
    assert!(records[1].gone_at.is_some());
    let told: Vec<_> = changes.iter().map(|it| it.what.as_str()).collect();
    assert_eq!(told, ["came with 8 GPUs", "is gone"], "in their order");
    assert_eq!(known.unwritten(), (Vec::new(), Vec::new()));
}

#[test]
fn a_pod_holds_what_it_asks_for_from_when_it_is_bound_until_it_is_gone() {
    let mut known = ClusterState::default();
    let held = |known: &ClusterState, node: &str| known.held().and_then(|it| it.get(node).copied());
    known.pod("1", waits());
    assert_eq!(known.waiting().len(), 1);
    known.pod("1", bound("a", 8));
    known.pod("2", bound("a", 2));
    known.pod("2", bound("a", 2));
    assert_eq!((held(&known, "a"), known.waiting().len()), (Some(10), 0));
    known.pod("1", Pod::Neither);
    assert_eq!(held(&known, "a"), Some(2));
    known.pod_gone("2");
    known.pod_gone("never-seen");
    assert_eq!(held(&known, "a"), None);
    assert!(known.held().is_some_and(|it| it.is_empty()));
}

#[test]
fn beyond_the_limits_pods_are_counted_and_what_is_free_is_not_told() {
    let mut known = ClusterState::default();
    for number in 0..MAX_WAITING + 3 {
        known.pod(&number.to_string(), waits());
    }
    assert_eq!(known.waiting().len(), MAX_WAITING);
    assert_eq!(known.waiting_left_out(), 3);
    for number in 0..=MAX_BOUND {
        known.pod(&format!("b{number}"), bound("a", 1));
    }
    assert_eq!(known.held(), None, "one that holds a GPU is not known");
    known.pod_gone(&format!("b{MAX_BOUND}"));
    assert!(known.held().is_some());
    for number in 0..MAX_NODES + 2 {
        known.node(node(&number.to_string()), now(0).at);
    }
    assert_eq!(known.records().count(), MAX_NODES);
    assert_eq!(known.nodes_left_out(), 2);
    assert!(known.changes().count() <= MAX_CHANGES);
}

#[test]
fn no_node_is_called_blind_before_all_were_told() {
    let mut known = ClusterState::default();
    let blind =
        |known: &ClusterState, at: i64| known.without_agent(|_| false, 60, now(at).at).len();
    known.node(node("a"), now(0).at);
    assert_eq!(blind(&known, 1_000), 0);
    known.all_nodes(vec![node("a")], now(1_000));
    assert_eq!(blind(&known, 1_001), 1, "nanoseconds");
}

#[test]
fn a_node_is_taken_back_once_in_its_life_and_not_where_it_came_so() {
    let mut known = ClusterState::default();
    let one = |uid: &str, is_taken_back: bool| Node {
        uid: uid.to_owned(),
        is_taken_back,
        ..node("a")
    };
    // Each as the node is seen then, and whether that is news.
    for (second, uid, is_taken_back, is_news) in [
        (0, "1", false, false),
        (1, "1", true, true),
        (2, "1", true, false),
        (3, "1", false, false),
        (4, "1", true, false),
        // Another machine of its name, which its pool makes so.
        (5, "2", true, false),
        (6, "2", true, false),
        (7, "3", false, false),
        (8, "3", true, true),
    ] {
        known.node(one(uid, is_taken_back), now(second).at);
        let expected = is_news.then(|| ("a".to_owned(), now(second).at));
        assert!(
            known.news_of_taken_back().into_iter().eq(expected),
            "{second}"
        );
    }
}

#[test]
fn what_is_held_back_is_told_once_by_who_says_more_and_a_pod_with_what_the_autoscaler_said_last() {
    let claim = |workload: &str, words: &str| {
        let Pod::Waits(claim) = waits() else {
            panic!("it waits");
        };
        let claim = Claim {
            workload: workload.to_owned(),
            words: words.to_owned(),
            reason: inventory::Reason::HeldBack,
            ..*claim
        };
        (claim, Vec::new())
    };
    let mut known = ClusterState::default();
    let set = "jobset:team/s";
    known
        .held_back(Maker::JobSet)
        .put("s", vec![claim(set, "suspended"), claim(set, "too")]);
    known
        .held_back(Maker::Workload)
        .put("w", vec![claim(set, "no quota")]);
    known
        .held_back(Maker::Job)
        .put("a", vec![claim("job:team/a", "suspended")]);
    let words = |known: &ClusterState| -> Vec<String> {
        let waiting = known.waiting().into_iter();
        waiting.map(|it| it.words).collect()
    };
    assert_eq!(words(&known), ["no quota", "suspended"]);
    known.held_back(Maker::Workload).remove("w");
    assert_eq!(
        words(&known),
        ["suspended", "too", "suspended"],
        "all of one kind"
    );
    // What another object made is told by the Workload of that.
    let maker = "trainjob:team/t";
    let sets = known.held_back(Maker::JobSet);
    sets.put_of("s", vec![claim(set, "suspended")], Some(maker.to_owned()));
    assert_eq!(words(&known), ["suspended", "suspended"]);
    let workloads = known.held_back(Maker::Workload);
    workloads.put("w", vec![claim(maker, "no quota")]);
    assert_eq!(words(&known), ["no quota", "suspended"]);
    known.held_back(Maker::Workload).remove("w");
    let sets = known.held_back(Maker::JobSet);
    sets.put("s", vec![claim(set, "suspended"), claim(set, "too")]);
    // Its pods are there: they tell it.
    known.pod("p", waits());
    assert_eq!(words(&known), ["", "suspended", "too"]);
    let said = |seconds: i64, words: &str| Scaled {
        at: now(seconds).at,
        what: inventory::Scaling::Adds,
        words: words.to_owned(),
    };
    known.scaler.said("p", said(20, "new"));
    known.scaler.said("p", said(10, "old"));
    let scaler = |known: &ClusterState| known.waiting()[0].scaler.clone().map(|it| it.words);
    assert_eq!(scaler(&known), Some("new".to_owned()));
    known.forget(now(3_600 + 21).at, gone_for_ns(86_400));
    assert_eq!(scaler(&known), None, "that was an hour ago");
    // What is not waited for any more, and what has no place.
    known.held_back(Maker::JobSet).put("s", Vec::new());
    for number in 0..MAX_WAITING {
        let waits = vec![claim(&format!("job:team/{number}"), "")];
        known.held_back(Maker::Job).put(&number.to_string(), waits);
    }
    assert_eq!(known.waiting_left_out(), 1);
}

#[test]
fn who_waits_is_seen_when_nothing_that_may_wait_is_kept_from_us() {
    let mut known = ClusterState::default();
    known.all_pods(Pods::default(), now(0));
    assert!(
        !known.sees_who_waits(now(0)),
        "what waits before it has pods is still read"
    );
    known
        .held_back(Maker::Workload)
        .standing
        .is_absent("not installed");
    known
        .held_back(Maker::JobSet)
        .standing
        .is_absent("not installed");
    known.held_back(Maker::Job).all(HeldBack::default(), now(0));
    assert!(known.sees_who_waits(now(1)));
    // Kueue is there, and its list is forbidden.
    known.held_back(Maker::Workload).standing = Standing::default();
    let workloads = &mut known.held_back(Maker::Workload).standing;
    workloads.failed("403".to_owned(), Some(Refusal::NoRight));
    assert!(!known.sees_who_waits(now(2)));
    known
        .held_back(Maker::Workload)
        .all(HeldBack::default(), now(3));
    assert!(known.sees_who_waits(now(3)));
    let late = now(10 + TOLD_FOR.as_secs().cast_signed());
    assert!(!known.sees_who_waits(late), "nobody said anything for long");
}

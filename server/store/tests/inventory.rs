//! The inventory: nodes as they were written last, what happened to them, and what goes when it is old.

use gpufleet_analysis::inventory::change::Change;
use gpufleet_analysis::inventory::{Node, Phase, Ready, Record};

use super::hours::{at, hour};
use super::money::node_of_eight;
use super::*;
use crate::ledger::days;
use crate::money::month;

fn record(name: &str, gpus: u32) -> Record {
    let node = Node {
        name: name.to_owned(),
        gpus,
        allocatable: gpus,
        ready: Ready::Yes,
        ..Node::default()
    };
    Record::new(node, at(0))
}

fn change(seconds: i64, node: &str, what: &str) -> Change {
    Change {
        at: at(seconds),
        node: node.to_owned(),
        what: what.to_owned(),
    }
}

/// What is old before this goes.
fn expiry(events: Timestamp) -> Expiry {
    Expiry {
        events,
        ..keep_all()
    }
}

both! {
    async fn a_node_is_there_once_as_it_was_written_last_and_gone_ones_go_when_they_are_old(bench) {
        let (mut first, second) = (record("a", 8), record("b", 4));
        let all = [first.clone(), second.clone()];
        let changes = [change(1, "a", "came"), change(2, "b", "came")];
        let store = &bench.store;
        store.write_inventory("live", (&all, &changes), bench.token).await.unwrap();
        first.ends(at(60));
        let news = [change(60, "a", "is gone")];
        let gone = [first.clone()];
        // Written twice, as after an answer that was lost.
        for _ in 0..2 {
            let written = store.write_inventory("live", (&gone, &news), bench.token);
            written.await.unwrap();
        }
        let known = store.inventory("live", at(0)).await.unwrap();
        assert_eq!(known, [first.clone(), second.clone()]);
        assert_eq!(known[0].phase(), Phase::Gone);
        let still = store.inventory("live", at(61)).await.unwrap();
        assert_eq!(still.iter().collect::<Vec<_>>(), [&second]);
        assert_eq!(store.inventory("other", at(0)).await.unwrap(), []);
        let told = async |until| store.inventory_changes("live", at(2), until).await.unwrap();
        assert_eq!(told(None).await, [news[0].clone(), changes[1].clone()], "the newest first");
        assert_eq!(told(Some(at(60))).await, [changes[1].clone()], "what was before");
        let gone = store.retain(&expiry(at(60))).await.unwrap();
        assert_eq!(gone.others, 2, "the two first changes");
        let gone = store.retain(&expiry(at(61))).await.unwrap();
        assert_eq!(gone.others, 4, "the node that is gone, that it went, and its two phases");
        assert_eq!(store.inventory("live", at(0)).await.unwrap(), [second]);
    }
}

both! {
    async fn a_server_that_was_replaced_writes_no_node(bench) {
        let old = FencingToken(bench.token.0 - 1);
        let all = [record("a", 8)];
        let written = bench.store.write_inventory("live", (&all, &[]), old).await;
        assert!(matches!(written, Err(CommitError::Fenced { .. })));
        assert_eq!(bench.store.inventory("live", at(0)).await.unwrap(), []);
    }
}

both! {
    async fn a_node_whose_row_is_spoilt_stops_no_other_and_is_written_anew(bench) {
        let all = [record("a", 8), record("b", 4)];
        bench.store.write_inventory("live", (&all, &[]), bench.token).await.unwrap();
        let sql = "UPDATE inventory_node SET data = '{' WHERE name = 'a'";
        assert_eq!(bench.execute(sql).await, 1);
        assert_eq!(bench.store.inventory("live", at(0)).await.unwrap(), all[1..]);
        bench.store.write_inventory("live", (&all[..1], &[]), bench.token).await.unwrap();
        assert_eq!(bench.store.inventory("live", at(0)).await.unwrap(), all);
    }
}

/// From when to when, in seconds after [`START`], each node was there, and whether it is gone.
async fn lives(bench: &Bench, cluster: Option<&str>) -> Vec<(String, i64, i64, bool)> {
    let found = bench
        .store
        .inventory_lives((at(0), at(86_400)), cluster)
        .await;
    let seconds = |ms: i64| (ms - at(0).millis()) / 1_000;
    let told = |it: NodeLife| {
        let (from, until) = (seconds(it.from_ms), seconds(it.until_ms));
        (it.record.node.name, from, until, it.is_gone)
    };
    found.unwrap().into_iter().map(told).collect()
}

both! {
    async fn each_life_of_a_node_is_kept_for_what_it_cost_and_ends_when_the_next_begins(bench) {
        let (store, token) = (&bench.store, bench.token);
        let made = |name: &str, uid: &str, seconds: i64| {
            let mut record = record(name, 8);
            (record.node.uid, record.node.created) = (uid.to_owned(), Some(at(seconds)));
            record
        };
        let mut first = made("a", "1", -60);
        let other = made("b", "3", -10);
        store.write_inventory("live", (&[first.clone(), other], &[]), token).await.unwrap();
        let there = |name: &str, from: i64, until: i64, is_gone: bool| (name.to_owned(), from, until, is_gone);
        // Nobody has said yet up to when they were seen.
        assert_eq!(lives(bench, None).await, [there("a", -60, -60, false), there("b", -10, -10, false)]);
        assert_eq!(store.inventory_seen("live").await.unwrap(), None);
        store.write_inventory_seen("live", at(300), token).await.unwrap();
        store.write_inventory_seen("live", at(200), token).await.unwrap();
        assert_eq!(store.inventory_seen("live").await.unwrap(), Some(at(300)));
        assert_eq!(store.inventory_seen("other").await.unwrap(), None);
        assert_eq!(lives(bench, None).await, [there("a", -60, 300, false), there("b", -10, 300, false)]);
        // It was made anew under its name, and nobody saw the first go.
        first.take(made("a", "2", 400).node, at(400));
        store.write_inventory("live", (&[first.clone()], &[]), token).await.unwrap();
        first.ends(at(500));
        store.write_inventory("live", (&[first.clone()], &[]), token).await.unwrap();
        let of_a = [there("a", -60, 400, true), there("a", 400, 500, true)];
        assert_eq!(lives(bench, Some("live")).await[..2], of_a);
        assert_eq!(lives(bench, Some("other")).await, []);
        // They go with the days, not with the events.
        let day = at(0).millis() / 86_400_000;
        let kept = Expiry { events: at(10_000), days: day, ..keep_all() };
        store.retain(&kept).await.unwrap();
        assert_eq!(lives(bench, None).await.len(), 3);
        let old = Expiry { days: day + 1, ..keep_all() };
        assert_eq!(store.retain(&old).await.unwrap().others, 2, "of the lives");
        assert_eq!(lives(bench, None).await, [there("b", -10, 300, false)], "what is there stays");
        let fenced = store.write_inventory_seen("live", at(600), FencingToken(token.0 - 1)).await;
        assert!(matches!(fenced, Err(CommitError::Fenced { .. })));
    }
}

both! {
    async fn hours_of_demand_are_replaced_and_added_up_by_cluster(bench) {
        let (store, token) = (&bench.store, bench.token);
        let hour = |hour: i64, seen_ms: i64, waiting_gpu_ms: i64| DemandHour {
            hour,
            seen_ms,
            nodes_seen_ms: seen_ms / 5,
            waiting_gpu_ms,
        };
        store.write_demand("live", &[hour(10, 60, 480), hour(11, 30, 0)], token).await.unwrap();
        store.write_demand("live", &[hour(11, 90, 90)], token).await.unwrap();
        store.write_demand("other", &[hour(10, 5, 5)], token).await.unwrap();
        assert_eq!(store.demand_hour("live", 11).await.unwrap(), Some(hour(11, 90, 90)));
        assert_eq!(store.demand_hour("live", 12).await.unwrap(), None);
        let sums = async |hours: std::ops::Range<i64>, cluster: Option<&str>| {
            let found = store.demand(hours, cluster).await.unwrap().into_iter();
            found.map(|it| (it.cluster, it.seen_millis, it.waiting_gpu_millis)).collect::<Vec<_>>()
        };
        let live = ("live".to_owned(), 150, 570);
        assert_eq!(sums(0..20, None).await, [live.clone(), ("other".to_owned(), 5, 5)]);
        assert_eq!(sums(0..20, Some("live")).await, [live]);
        assert_eq!(sums(11..12, Some("live")).await, [("live".to_owned(), 90, 90)]);
        // An hour of which nothing was seen is none in which anybody looked, nor is one without a view of the nodes.
        store.write_demand("live", &[hour(50, 5, 0), hour(80, 0, 0)], token).await.unwrap();
        let blind = DemandHour { nodes_seen_ms: 0, ..hour(100, 3_600_000, 8) };
        store.write_demand("live", &[blind], token).await.unwrap();
        assert_eq!(store.demand_hour("live", 100).await.unwrap(), Some(blind));
        let days = async |days: std::ops::Range<i64>, cluster: Option<&str>| {
            let found = store.days_looked(days, cluster).await.unwrap().into_iter();
            found.map(|it| format!("{} {}", it.0, it.1)).collect::<Vec<_>>()
        };
        assert_eq!(days(0..9, None).await, ["live 0", "live 2", "other 0"]);
        assert_eq!(days(1..9, Some("live")).await, ["live 2"]);
        let fenced = store.write_demand("live", &[hour(12, 1, 1)], FencingToken(token.0 - 1)).await;
        assert!(fenced.is_err() && store.demand_hour("live", 12).await.unwrap().is_none());
    }
}

both! {
    async fn of_a_node_that_began_on_the_last_day_of_a_report_the_day_after_is_read(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * 3_600 + 90)).await;
        assert_eq!(days::round(&bench.store, at(3 * 3_600)).await.unwrap(), 8);
        let day = hour() / 24;
        let sql = format!(
            "INSERT INTO ledger_day (day, subject, lease, cluster, data, computed_ms)
             SELECT day + 1, subject, lease, cluster, data, computed_ms
             FROM ledger_day WHERE day = {day}"
        );
        assert_eq!(bench.execute(&sql).await, 8);
        let next = async |until: i64| {
            let read = month::read(&bench.store, day..until, Some("live")).await.unwrap();
            read.next_day.len()
        };
        assert_eq!(next(day + 1).await, 0, "no node began");
        let began = [record("node-1", 8)];
        bench.store.write_inventory("live", (&began, &[]), bench.token).await.unwrap();
        assert_eq!(next(day + 1).await, 8);
        assert_eq!(next(day + 2).await, 0, "it began before the last day");
    }
}

//! Advice as it is kept, and what upgrades can no longer know.

use gpufleet_analysis::taken::{Advice, Before, Kind, Record, Standing};
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;

use super::hours::{at, hour};
use super::*;
use crate::money::advice;

const DAY_S: i64 = 86_400;

/// An advice of a cluster that was given from one moment to another, seconds after [`START`].
fn record(number: i64, cluster: &str, origin: Origin, from: i64, until: i64) -> Record {
    let advice = Advice {
        kind: Kind::Idle,
        cluster: cluster.to_owned(),
        origin,
        about: "job:ml/note".to_owned(),
        payer: "science".to_owned(),
        what: "GPUs".to_owned(),
        today: "2 of 2 idle".to_owned(),
        proposed: "given back, or used".to_owned(),
        worth: Some(5),
        before: Before::default(),
    };
    Record {
        last_ms: at(until).millis(),
        ..Record::new(number, advice, at(from).millis())
    }
}

both! {
    async fn advice_is_kept_as_it_stands_and_found_by_its_time(bench) {
        let (store, token) = (&bench.store, bench.token);
        let time = |from: i64, until: i64| at(from)..at(until);
        let none = advice::read(store, time(0, DAY_S), None).await.expect("the store answers");
        assert!(none.not_kept.is_some_and(|it| it.contains("no server has kept it yet")));
        let mut first = record(1, "prod", Origin::Live, 0, 7_200);
        let demo = record(2, "demo", Origin::Simulated, 0, 7_200);
        store.write_advice(&[&first, &demo], at(100), token).await.expect("the store answers");
        let numbers = async |time: std::ops::Range<Timestamp>, cluster: Option<&str>| {
            let found = advice::read(store, time, cluster).await.expect("the store answers");
            let numbers: Vec<i64> = found.records.iter().map(|it| it.number).collect();
            (numbers, found.not_kept)
        };
        assert_eq!(numbers(time(200, DAY_S), None).await, (vec![1], None));
        assert_eq!(numbers(time(200, DAY_S), Some("demo")).await, (vec![2], None));
        assert_eq!(numbers(time(7_300, DAY_S), None).await, (Vec::new(), None));
        let before = numbers(time(0, DAY_S), None).await.1;
        assert!(before.is_some_and(|it| it.contains("not known")), "of before it was kept");
        let (open, next) = store.open_advice().await.expect("the store answers");
        assert_eq!((open, next), (vec![demo.clone(), first.clone()], 3));

        first.standing = Standing::TakenAndOver;
        first.saved.insert(at(3 * DAY_S).seconds() / DAY_S, 70);
        store.write_advice(&[&first], at(200), token).await.expect("the store answers");
        assert_eq!(store.open_advice().await.expect("the store answers"), (vec![demo], 3));
        let found = advice::read(store, time(3 * DAY_S, 4 * DAY_S), None).await.expect("the store answers");
        assert_eq!((found.records, found.not_kept), (vec![first.clone()], None));
        let fenced = store.write_advice(&[&first], at(9), FencingToken(token.0 - 1)).await;
        assert!(matches!(fenced, Err(CommitError::Fenced { .. })));

        let old = Expiry { events: at(2 * DAY_S), ..keep_all() };
        assert_eq!(store.retain(&old).await.expect("the store answers").others, 1, "what saved later stays");
        assert_eq!(bench.int("SELECT COUNT(*) FROM advice").await, 1);
        let deleted = numbers(time(200, DAY_S), None).await.1;
        assert!(deleted.is_some_and(|it| it.contains("is deleted")), "not none");
    }
}

both! {
    async fn runs_that_an_older_server_deleted_leave_their_time_unknown(bench) {
        bench.commit(&commit(1, 1, START)).await;
        let since = async || {
            bench.execute("DELETE FROM schema_version WHERE version = 14").await;
            bench.execute("ALTER TABLE ledger_hour DROP COLUMN version").await;
            let store = bench.another().await;
            store.migrate(bench.token, &leases::standing(), leases::LENGTH).await.expect("the store answers");
            let since = store.runs_kept_since().await.expect("the store answers");
            bench.execute("DELETE FROM horizon WHERE name = 'runs'").await;
            store.close().await;
            since
        };
        assert_eq!(since().await, None, "nothing is older than what is there");
        let events = |days: i64| vec![event(EventKind::Xid, "GPU-0", at(days * DAY_S))];
        let three = Commit { events: events(3), ..commit(2, 1, Minute(START.0 + 4 * 1_440)) };
        bench.commit(&three).await;
        assert_eq!(since().await, Some(at(3 * DAY_S)));
        let first = Commit { number: 3, cursors: vec![cursor(3)], events: events(0), ..Commit::default() };
        bench.commit(&first).await;
        assert_eq!(since().await, None, "events of its first day are left: none was deleted");
    }
}

both! {
    async fn what_gpus_drew_is_added_up_by_who_held_them(bench) {
        bench.commit(&super::energy::metered()).await;
        bench.compute(at(2 * 3_600 + 90)).await;
        let drawn = async |gpus: &[&str], hours: i64| {
            bench.store.drawn("live", gpus, hour()..hour() + hours).await.expect("the store answers")
        };
        let of = drawn(&["GPU-0", "GPU-1", "GPU-none"], 2).await.expect("it is little");
        let (millis, joules) = of.values().fold((0, 0), |(millis, joules), it| {
            (millis + it.0, joules + it.1.millijoules / 1_000)
        });
        assert_eq!((millis, joules), (4 * 3_600_000, 7_190 * 600));
        assert_eq!(drawn(&["GPU-none"], 2).await, Some(std::collections::BTreeMap::new()));
        assert_eq!(drawn(&["GPU-0", "GPU-1"], 60_000).await, None, "too much to add up");
    }
}

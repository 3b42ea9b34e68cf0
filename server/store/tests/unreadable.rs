//! Rows that cannot be read: each kind is spoilt in turn, and everything else goes on.

use super::hours::{at, hour};
use super::*;

/// SQL that spoils one row of GPU-0, and the table it stands in.
const SPOILT: [(&str, &str); 9] = [
    (
        "UPDATE ledger_hour SET carry = '{' WHERE hour = HOUR AND carry <> ''",
        "ledger_hour",
    ),
    (
        "UPDATE ledger_hour SET carry = '7' WHERE hour = HOUR AND carry <> ''",
        "ledger_hour",
    ),
    ("UPDATE subject SET attributes = '{' WHERE 1 = 1", "subject"),
    (
        "UPDATE subject SET agent = (SELECT substr(c.agent, 1, 3) FROM agent_cursor c) WHERE 1 = 1",
        "subject",
    ),
    (
        "UPDATE event SET attributes = 'x' WHERE resource_id = 'GPU-0' AND kind = 'gpu_added'",
        "event",
    ),
    (
        "UPDATE event SET severity = 'x' WHERE resource_id = 'GPU-0' AND kind = 'gpu_reset'",
        "event",
    ),
    (
        "UPDATE minute10_row SET data = substr(data, 1, 9) WHERE bucket = HOUR * 6",
        "minute10_row",
    ),
    (
        "UPDATE ledger_time SET state = 99 WHERE hour = HOUR",
        "ledger_time",
    ),
    (
        "UPDATE minute_row SET data = substr(data, 1, 9) WHERE minute = HOUR * 60 + 30",
        "minute_row",
    ),
];

/// Two GPUs of two whole hours, computed.
async fn two_hours(bench: &Bench) {
    let mut all = commit(1, 2, START);
    all.minutes = (0..120)
        .flat_map(|minute| commit(1, 2, Minute(START.0 + minute)).minutes)
        .collect();
    for resource in &mut all.resources {
        resource.last_seen = Minute(START.0 + 119).start();
    }
    all.events = vec![
        event(EventKind::GpuAdded, "GPU-0", at(0)),
        event(EventKind::GpuReset, "GPU-0", at(1)),
    ];
    bench.commit(&all).await;
    bench.compute(at(20_000)).await;
}

/// Every hour from this on is to be computed again.
async fn mark_from(bench: &Bench, first: i64) {
    let sql = format!(
        "INSERT INTO ledger_dirty (hour, subject, mark, due_ms, why)
         SELECT hour, subject, 1, 0, 1 FROM ledger_hour WHERE hour >= {first}
         ON CONFLICT (hour, subject) DO UPDATE SET due_ms = 0, why = ledger_dirty.why | 1"
    );
    assert!(bench.execute(&sql).await >= 4);
}

async fn read_all(bench: &Bench) -> Vec<Vec<gpufleet_analysis::ledger::LedgerHour>> {
    let mut hours = Vec::new();
    for id in ["GPU-0", "GPU-1"] {
        let found = bench.store.hours(&key(id), hour()..hour() + 3).await;
        hours.push(found.expect("one row does not stop the others"));
        let bucket = START.0 / 10;
        let tens = bench.store.ten_minutes(&key(id), bucket..bucket + 12).await;
        tens.expect("one row does not stop the others");
    }
    let events = bench.store.events(&EventFilter::default(), None, 9).await;
    events.expect("one row does not stop the others");
    hours
}

fn counted(bench: &Bench, table: &str) -> u64 {
    let mut tables = bench.store.unreadable_rows().by_table();
    let found = tables.find(|(name, _)| *name == table);
    found.expect("the table is counted").1
}

both! {
    async fn a_spoilt_row_of_any_kind_is_counted_kept_and_computed_again_and_stops_nothing(bench) {
        two_hours(bench).await;
        let before = read_all(bench).await;
        for (done, (sql, table)) in SPOILT.into_iter().enumerate() {
            let whose = "(SELECT s.id FROM subject s WHERE s.resource_id = 'GPU-0')";
            let whose = match table {
                "event" => String::new(),
                "subject" => "AND resource_id = 'GPU-0'".to_owned(),
                _ => format!("AND subject = {whose}"),
            };
            let sql = format!("{} {whose}", sql.replace("HOUR", &hour().to_string()));
            if table == "minute_row" {
                // The hour is packed by now: a row is what came late.
                bench.commit(&commit(2, 1, Minute(START.0 + 30))).await;
            }
            assert_eq!(bench.execute(&sql).await, 1, "{sql}");
            let known = counted(bench, table);
            read_all(bench).await;
            assert_eq!(bench.store.resources(None, None).await.unwrap().len(), 2, "{sql}");
            // What an hour hands over is read by the next one.
            let is_carry = i64::from(table == "ledger_hour");
            mark_from(bench, hour() + is_carry).await;
            bench.compute(at(20_000)).await;
            let after = read_all(bench).await;
            assert_eq!(after[1], before[1], "{sql}");
            assert_eq!(after[0], before[0], "{sql}");
            assert_eq!(counted(bench, table), known + 1, "{sql}");
            let kept = format!("SELECT COUNT(*) FROM set_aside WHERE source = '{table}'");
            assert_eq!(bench.int(&kept).await, known as i64 + 1, "{sql}");
            assert_eq!(bench.int("SELECT COUNT(*) FROM set_aside").await, done as i64 + 1);
            let waiting = "SELECT COUNT(*) FROM ledger_dirty WHERE why <> 0";
            assert_eq!(bench.int(waiting).await, 0, "{sql}");
        }
        // What could be computed again is there again, and the next word of a resource is written.
        assert_eq!(bench.int("SELECT COUNT(*) FROM minute10_row").await, 24);
        bench.commit(&commit(3, 2, Minute(START.0 + 119))).await;
        let found = bench.store.resources(None, None).await.unwrap();
        assert_eq!(found[0].resource, known(&key("GPU-0"), START).resource);
        assert_eq!(found[0].agent, Some(AGENT));
    }
}

both! {
    async fn a_resource_of_no_known_kind_keeps_nobody_waiting(bench) {
        two_hours(bench).await;
        let before = read_all(bench).await;
        let spoil = "UPDATE subject SET kind = 'gqu' WHERE resource_id = 'GPU-0'";
        assert_eq!(bench.execute(spoil).await, 1);
        mark_from(bench, hour()).await;
        bench.close(20_000).await;
        let waiting = "SELECT COUNT(*) FROM ledger_dirty WHERE subject =
            (SELECT id FROM subject WHERE resource_id = 'GPU-0')";
        assert_eq!(bench.int(waiting).await, 0);
        assert_eq!(read_all(bench).await[1], before[1]);
        assert_eq!(bench.store.resources(None, None).await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_text_of_sqlite_that_is_none_is_set_aside_too() {
    let bench = Bench::sqlite().await;
    two_hours(&bench).await;
    let before = read_all(&bench).await;
    for sql in [
        "UPDATE subject SET attributes = CAST(x'7bff' AS TEXT) WHERE resource_id = 'GPU-0'",
        "UPDATE event SET message = CAST(x'ff' AS TEXT) WHERE kind = 'gpu_added'",
        "UPDATE ledger_hour SET carry = CAST(x'ff' AS TEXT) WHERE carry <> '' AND subject =
         (SELECT id FROM subject WHERE resource_id = 'GPU-0')",
    ] {
        assert!(bench.execute(sql).await > 0, "{sql}");
    }
    mark_from(&bench, hour() + 1).await;
    bench.compute(at(20_000)).await;
    assert_eq!(read_all(&bench).await, before);
    assert!(bench.int("SELECT COUNT(*) FROM set_aside").await >= 3);
}

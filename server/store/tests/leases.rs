//! Servers of two clusters in one database: what one writes the other neither reads, nor computes,
//! nor deletes, though all names are the same.

use super::hours::at;
use super::*;
use crate::hand::Hand;
use crate::ledger::{LedgerConfig, round};
use crate::store::schema;

const HOUR_S: i64 = 3_600;

/// How long a right to write is good here.
pub(super) const LENGTH: Duration = Duration::from_secs(15);

/// A clock that stands at [`START`].
pub(super) fn standing() -> Hand {
    Hand::at(START.start())
}

/// The right to write under a store's own lease.
async fn right(store: &Store) -> FencingToken {
    let lease = store.acquire_lease("new", START.start(), LENGTH).await;
    lease.unwrap().token
}

/// Everything up to this is too old.
fn forget_until(seconds: i64) -> Expiry {
    Expiry {
        minutes: at(seconds).minute(),
        steps: at(seconds).minute().0 / 10,
        days: at(seconds).minute().hour() / 24,
        buckets: at(seconds).minute().0 / 10,
        hours: at(seconds).minute().hour(),
        events: at(seconds),
        senders: at(seconds),
        epochs: at(seconds),
        resources: at(seconds),
    }
}

/// Another cluster's server on the same database, with the right to write under its own lease.
async fn other(bench: &Bench) -> (Store, FencingToken) {
    let config = StoreConfig {
        lease: "other".to_owned(),
        ..bench.config.clone()
    };
    let store = Store::open(&config).await.unwrap();
    let lease = store.acquire_lease("them", START.start(), LENGTH).await;
    (store, lease.unwrap().token)
}

/// One of everything that a commit holds.
fn full(number: u64, gpus: usize) -> Commit {
    let mut full = commit(number, gpus, START);
    full.gaps.push(Gap {
        key: cursor(1).key,
        first: 4,
        last: number,
        seen: START.start(),
    });
    full.foreign.push(ForeignMark {
        series: [3; 16],
        newest: Timestamp(i64::try_from(number).unwrap()),
    });
    full.events
        .push(event(EventKind::Xid, "GPU-0", at(number as i64)));
    full
}

async fn holds_only(store: &Store, commit: &Commit) {
    assert_eq!(store.last_commit().await.unwrap(), commit.number);
    assert_eq!(store.cursors().await.unwrap(), commit.cursors);
    assert_eq!(store.cursors_of(&[AGENT]).await.unwrap(), commit.cursors);
    assert_eq!(store.gaps(None).await.unwrap(), commit.gaps);
    assert_eq!(store.foreign_marks().await.unwrap(), commit.foreign);
    let resources = store.resources(None, None).await.unwrap();
    assert_eq!(resources, commit.resources);
    let page = store.events(&EventFilter::default(), None, 10).await;
    assert_eq!(page.unwrap().events, commit.events);
    let range = START..Minute(START.0 + 1);
    let found = store.minutes(&key("GPU-0"), range).await.unwrap();
    assert_eq!(found.rows[&START].metrics[&gpu::POWER.id].count, 1);
}

both! {
    async fn what_two_servers_write_stays_apart_though_all_names_are_the_same(bench) {
        let (store, token) = other(bench).await;
        let (ours, theirs) = (full(7, 2), full(3, 1));
        bench.commit(&ours).await;
        store.commit(&theirs, token).await.unwrap();
        holds_only(&bench.store, &ours).await;
        holds_only(&store, &theirs).await;
        store.close().await;
    }
}

both! {
    async fn the_jobs_of_a_server_leave_alone_what_is_another_servers(bench) {
        let (store, token) = other(bench).await;
        let theirs = full(3, 1);
        bench.commit(&full(7, 1)).await;
        store.commit(&theirs, token).await.unwrap();
        let later = at(6 * HOUR_S);
        // Once computed, once final, and once more to pack its minutes.
        for hours in 3..=6 {
            bench.compute(at(hours * HOUR_S)).await;
        }
        assert!(!bench.hours().await.is_empty());
        let hour = START.hour();
        let hours = async || store.hours(&key("GPU-0"), hour..hour + 1).await.unwrap();
        assert_eq!(hours().await, [], "nobody has computed it");
        assert_eq!(bench.store.dirty_hours(at(-1)).await.unwrap(), []);
        assert_eq!(store.dirty_hours(later).await.unwrap().len(), 1);

        // The other server runs.
        bench.execute("UPDATE lease SET expires_ms = 9000000000000000 WHERE name = 'other'").await;
        while bench.store.retain(&forget_until(90 * 86_400)).await.unwrap().more {}
        assert_eq!(bench.store.resources(None, None).await.unwrap(), []);
        assert_eq!(bench.store.cursors().await.unwrap(), []);
        assert!(bench.hours().await.is_empty());
        holds_only(&store, &theirs).await;
        while round(&store, &LedgerConfig::default(), hours::no_rules(), later).await.unwrap() > 0 {}
        assert_eq!(hours().await.len(), 1);
        // How far back data is taken is each server's own, too.
        let again = |number| Commit { cursors: Vec::new(), ..commit(number, 1, START) };
        assert_eq!(bench.commit(&again(8)).await.too_late, 1);
        assert_eq!(store.commit(&again(4), token).await.unwrap().too_late, 0);
        store.close().await;
    }
}

both! {
    async fn an_older_schema_stays_as_it_is_until_the_server_that_writes_by_it_is_gone(bench) {
        let config = bench.another_database().await;
        let database = Database::open(&config.url, true).await.unwrap();
        schema::begin_until(&database, 6).await.unwrap();
        let execute = async |sql: &str| {
            let mut transaction = database.write().await.unwrap();
            transaction.execute(sql, &[]).await.unwrap();
            transaction.commit().await.unwrap();
        };
        let old = format!("INSERT INTO lease (name, token, holder, expires_ms)
            VALUES ('gpufleet', 4, 'old', {})", at(60).millis());
        execute(&old).await;
        let store = Store::open(&config).await.unwrap();
        assert!(store.is_behind());
        let held = store.acquire_lease("new", START.start(), LENGTH).await;
        assert!(matches!(held, Err(LeaseError::Held { .. })), "{held:?}");
        let stolen = store.migrate(FencingToken(5), &standing(), LENGTH).await;
        assert!(matches!(stolen, Err(CommitError::Fenced { .. })), "{stolen:?}");
        // What the old server commits with: 0008 takes this key away.
        let by_old = "INSERT INTO subject (cluster, kind, resource_id, attributes, first_seen_ms)
            VALUES ('live', 'gpu', 'GPU-0', '{}', 5)
            ON CONFLICT (cluster, kind, resource_id) DO NOTHING";
        execute(by_old).await;
        assert!(store.is_behind());

        execute("UPDATE lease SET expires_ms = 0").await;
        let token = right(&store).await;
        execute("UPDATE lease SET expires_ms = 0").await;
        store.migrate(token, &standing(), LENGTH).await.unwrap();
        assert!(!store.is_behind());
        assert_eq!(store.resources(None, None).await.unwrap().len(), 1);
        let other = store.acquire_lease("other", START.start(), LENGTH).await;
        assert!(matches!(other, Err(LeaseError::Held { .. })), "good from the end on: {other:?}");
        assert!(!Store::open(&config).await.unwrap().is_behind());
        database.close().await;
        store.close().await;
    }
}

both! {
    async fn a_migration_that_came_into_the_program_after_a_later_one_is_made_too(bench) {
        bench.execute("DROP TABLE incident").await;
        bench.execute("DELETE FROM schema_version WHERE version = 10").await;
        let store = bench.another().await;
        assert!(store.is_behind());
        store.migrate(bench.token, &standing(), LENGTH).await.unwrap();
        assert_eq!(bench.int("SELECT COUNT(*) FROM incident").await, 0);
        store.close().await;
    }
}

both! {
    async fn rows_from_before_rows_had_a_lease_belong_to_the_one_that_was_there(bench) {
        let config = StoreConfig { lease: "ours".to_owned(), ..bench.another_database().await };
        let database = Database::open(&config.url, true).await.unwrap();
        schema::begin_until(&database, 5).await.unwrap();
        let mut transaction = database.write().await.unwrap();
        let epoch = format!("'{}'", Uuid::from_u128(8).simple());
        let blob = match transaction {
            Transaction::Sqlite(_) => format!("unhex({epoch})"),
            Transaction::Postgres(_) => format!("decode({epoch}, 'hex')"),
        };
        for sql in [
            "INSERT INTO commit_log (lease, number, token) VALUES ('ours', 9, 1), ('stale', 2, 1)",
            "INSERT INTO subject (cluster, kind, resource_id, attributes, first_seen_ms)
             VALUES ('live', 'gpu', 'GPU-0', '{}', 5)",
            "INSERT INTO subject_seen (subject, last_seen_ms) SELECT id, 7 FROM subject",
            &format!("INSERT INTO agent_cursor (agent, epoch, stream, seq, clock_offset_nanos,
                seen_ms, first_seen_ms) VALUES ({blob}, {blob}, 'metrics', 4, 0, 6, 6)"),
            &format!("INSERT INTO gap (agent, epoch, stream, first, last, seen_ms)
                VALUES ({blob}, {blob}, 'metrics', 1, 2, 6)"),
            &format!("INSERT INTO foreign_mark (series, newest_nanos) VALUES ({blob}, 3)"),
            "INSERT INTO event (at_ms, cluster, kind, severity, resource_kind, resource_id, message,
                attributes) VALUES (8, 'live', 'xid', 'error', 'gpu', 'GPU-0', '', '{}')",
            "INSERT INTO horizon (name, value) VALUES ('minute', 77)",
        ] {
            transaction.execute(sql, &[]).await.unwrap();
        }
        transaction.commit().await.unwrap();
        database.close().await;

        let store = Store::open(&config).await.unwrap();
        store.migrate(right(&store).await, &standing(), LENGTH).await.unwrap();
        let found = store.resources(None, None).await.unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].first_seen.millis(), found[0].last_seen.millis()), (5, 7));
        assert_eq!(store.cursors().await.unwrap()[0].seq, 4);
        assert_eq!(store.gaps(None).await.unwrap().len(), 1);
        assert_eq!(store.foreign_marks().await.unwrap().len(), 1);
        let page = store.events(&EventFilter::default(), None, 10).await.unwrap();
        assert_eq!(page.events.len(), 1);
        let mut transaction = store.read().await.unwrap();
        assert_eq!(minutes::horizon(&mut transaction, "ours").await.unwrap(), 77);
        drop(transaction);
        store.close().await;
    }
}

both! {
    async fn what_was_written_under_a_lease_that_nobody_holds_goes_when_it_is_older_than_anything_kept(bench) {
        let (store, token) = other(bench).await;
        bench.commit(&full(7, 1)).await;
        store.commit(&full(3, 2), token).await.unwrap();
        let of_others = "SELECT COUNT(*) FROM subject WHERE lease = 'other'";
        let forget = async |seconds: i64| {
            while bench.store.retain(&forget_until(seconds)).await.unwrap().more {}
            bench.int(of_others).await
        };
        let left = forget(-10).await;
        assert_eq!(left, 2, "it was heard since");
        bench.execute("UPDATE lease SET expires_ms = 9000000000000000 WHERE name = 'other'").await;
        assert_eq!(forget(90 * 86_400).await, 2, "its server is there, and deletes by its own retention");
        bench.execute("UPDATE lease SET expires_ms = 0 WHERE name = 'other'").await;
        assert_eq!(forget(90 * 86_400).await, 0);
        for table in ["agent_cursor", "gap", "foreign_mark", "event"] {
            let left = format!("SELECT COUNT(*) FROM {table} WHERE lease = 'other'");
            assert_eq!(bench.int(&left).await, 0, "{table}");
        }
        let orphans = "SELECT COUNT(*) FROM minute_row WHERE subject NOT IN (SELECT id FROM subject)";
        assert_eq!(bench.int(orphans).await, 0);
        let again = store.acquire_lease("them", at(90 * 86_400), LENGTH).await.unwrap();
        assert!(again.token.0 > token.0, "whoever had it before stays fenced");
        store.close().await;
    }
}

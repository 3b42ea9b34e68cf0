//! What goes wrong: disks that fill, connections that die, schemas from the future, spoilt rows.

use super::*;

both! {
    async fn a_newer_schema_is_refused_with_both_numbers_and_the_way_out(bench) {
        bench.execute("INSERT INTO schema_version (version) VALUES (999)").await;
        let error = Store::open(&bench.config).await.err().expect("it is refused");
        let text = error.to_string();
        for part in ["schema 999", &format!("up to {}", super::super::schema::NEWEST), "start the newer server again", "backup"] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
    }
}

both! {
    async fn a_command_opens_what_a_server_uses(bench) {
        bench.commit(&commit(1, 3, START)).await;
        let used = Store::open_used(&bench.config).await.unwrap();
        assert!(!used.is_behind());
        assert_eq!(used.last_commit().await.unwrap(), 1);
        used.close().await;
        bench.execute("DELETE FROM schema_version").await;
        let error = Store::open_used(&bench.config).await.err().expect("it is refused");
        assert!(error.to_string().contains("no server has used the database"), "{error}");
    }
}

#[tokio::test]
async fn a_command_makes_no_database_where_there_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let config = StoreConfig::for_tests(&folder.path().join("typo"));
    let error = Store::open_used(&config)
        .await
        .err()
        .expect("it is refused");
    let text = error.to_string();
    for part in ["typo", "no such file", "Start a server on it first"] {
        assert!(text.contains(part), "{text} lacks {part}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

both! {
    async fn a_spoilt_row_is_named_and_set_aside_and_the_rest_goes_on(bench) {
        bench.commit(&commit(1, 3, START)).await;
        let changed = bench.execute(
            "UPDATE minute_row SET data = substr(data, 1, 9) WHERE subject =
             (SELECT id FROM subject WHERE resource_id = 'GPU-1')",
        ).await;
        assert_eq!(changed, 1);
        let range = START..Minute(START.0 + 1);
        let found = bench.store.minutes(&key("GPU-1"), range.clone()).await.unwrap();
        assert_eq!(found.rows, BTreeMap::new());
        let sentence = &found.corrupt[0];
        for part in ["gpu GPU-1", "cluster live", &START.start().seconds().to_string(), "ends at byte 9"] {
            assert!(sentence.contains(part), "{sentence} lacks {part}");
        }

        let committed = bench.commit(&commit(2, 3, START)).await;
        assert_eq!(committed.corrupt, 1);
        assert_eq!(bench.int("SELECT COUNT(*) FROM set_aside").await, 1);
        for (id, count) in [("GPU-0", 2), ("GPU-1", 1)] {
            let found = bench.store.minutes(&key(id), range.clone()).await.unwrap();
            assert_eq!(found.corrupt, Vec::<String>::new());
            assert_eq!(found.rows[&START].metrics[&gpu::POWER.id].count, count, "{id}");
        }
    }
}

#[tokio::test]
async fn what_is_written_into_a_file_that_is_gone_is_refused_and_passes_once_it_is_back() {
    let bench = Bench::sqlite().await;
    bench.commit(&commit(1, 3, START)).await;
    let file = bench.store.file().unwrap();
    let aside = file.with_extension("aside");
    std::fs::rename(&file, &aside).unwrap();
    let second = commit(2, 3, Minute(START.0 + 1));
    let error = bench.store.commit(&second, bench.token).await.unwrap_err();
    assert!(
        error.to_string().contains("is not there any more"),
        "{error}"
    );
    let resources = bench.store.resources(None, None).await.unwrap();
    assert!(!resources.is_empty(), "it may be read");
    assert!(!file.exists(), "nobody makes another");
    std::fs::rename(&aside, &file).unwrap();
    bench.commit(&second).await;
    assert_eq!(bench.store.last_commit().await.unwrap(), 2);
}

#[tokio::test]
async fn a_full_disk_fails_a_commit_whole_and_the_same_commit_passes_once_there_is_room() {
    let bench = Bench::sqlite().await;
    bench.commit(&commit(1, 10, START)).await;
    let pages = bench.int("PRAGMA page_count").await;
    bench
        .pragma(&format!("PRAGMA max_page_count = {}", pages + 3))
        .await;
    let mut second = commit(2, 2_000, Minute(START.0 + 1));
    second
        .events
        .push(event(EventKind::Xid, "GPU-1", START.start()));
    let refused = bench.store.commit(&second, bench.token).await.unwrap_err();
    assert!(matches!(refused, CommitError::Unknown(_)), "{refused}");
    assert!(refused.to_string().contains("full"), "{refused}");
    assert_eq!(bench.store.last_commit().await.unwrap(), 1);
    assert_eq!(bench.store.cursors().await.unwrap(), [cursor(1)]);
    assert_eq!(bench.int("SELECT COUNT(*) FROM minute_row").await, 10);
    assert_eq!(bench.int("SELECT COUNT(*) FROM event").await, 0);

    bench.pragma("PRAGMA max_page_count = 1000000").await;
    assert!(!bench.commit(&second).await.already);
    assert_eq!(bench.store.last_commit().await.unwrap(), 2);
    assert_eq!(bench.int("SELECT COUNT(*) FROM minute_row").await, 2_010);
    assert_eq!(bench.int("SELECT COUNT(*) FROM event").await, 1);
}

#[tokio::test]
async fn a_commit_that_waits_for_a_lock_is_given_up_by_postgresql_and_passes_when_tried_again() {
    let bench = Bench::postgres().await;
    let config = StoreConfig {
        url: format!("{}?options[lock_timeout]=200", bench.config.url),
        ..bench.config.clone()
    };
    let store = Store::open(&config).await.unwrap();
    let mut blocker = bench.store.write().await.unwrap();
    let lock = "LOCK TABLE agent_cursor IN EXCLUSIVE MODE";
    blocker.execute(lock, &[]).await.unwrap();
    let first = commit(1, 10, START);
    let refused = store.commit(&first, bench.token).await.unwrap_err();
    assert!(refused.to_string().contains("lock timeout"), "{refused}");
    drop(blocker);
    assert_eq!(store.last_commit().await.unwrap(), 0);
    assert!(!store.commit(&first, bench.token).await.unwrap().already);
    // Without a word in the URL there is a bound as well.
    for (name, expected) in [("lock_timeout", 15_000), ("statement_timeout", 60_000)] {
        let sql = format!("SELECT setting::bigint FROM pg_settings WHERE name = '{name}'");
        assert_eq!(bench.int(&sql).await, expected, "{name}");
    }
    store.close().await;
    bench.drop_database().await;
}

#[tokio::test]
async fn a_connection_that_is_killed_in_a_commit_leaves_it_out_and_the_retry_folds_once() {
    let bench = Bench::postgres().await;
    bench.commit(&commit(1, 10, START)).await;
    // The commit waits for this lock in its middle; there it is killed.
    let mut blocker = bench.store.write().await.unwrap();
    blocker
        .execute("LOCK TABLE agent_cursor IN EXCLUSIVE MODE", &[])
        .await
        .unwrap();
    let (store, token) = (bench.store.clone(), bench.token);
    let second = commit(2, 10, START);
    let running = tokio::spawn({
        let second = second.clone();
        async move { store.commit(&second, token).await }
    });
    waiting(&bench, 1).await;
    let kill = "SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let admin = bench.another().await;
    let mut transaction = admin.write().await.unwrap();
    assert_eq!(transaction.fetch_int(kill, &[]).await.unwrap(), Some(1));
    drop(transaction);
    let failed = running.await.unwrap().unwrap_err();
    assert!(matches!(failed, CommitError::Unknown(_)), "{failed}");
    drop(blocker);

    assert_eq!(bench.store.last_commit().await.unwrap(), 1);
    assert!(!bench.commit(&second).await.already);
    assert!(bench.commit(&second).await.already);
    let found = bench
        .store
        .minutes(&key("GPU-9"), START..Minute(START.0 + 1))
        .await
        .unwrap();
    assert_eq!(found.rows[&START].metrics[&gpu::POWER.id].count, 2);
    admin.close().await;
    bench.drop_database().await;
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_found_by_reading_back() {
    let bench = Bench::postgres().await;
    let second = commit(1, 10, START);
    // The server is gone after its COMMIT was carried out: it never hears of it.
    bench.commit(&second).await;
    let restarted = bench.another().await;
    assert_eq!(restarted.last_commit().await.unwrap(), 1);
    let again = restarted.commit(&second, bench.token).await.unwrap();
    assert!(again.already);
    restarted.close().await;
    bench.drop_database().await;
}

#[tokio::test]
async fn reading_back_waits_for_a_commit_that_is_still_under_way() {
    let bench = Bench::postgres().await;
    let mut blocker = bench.store.write().await.unwrap();
    blocker
        .execute("LOCK TABLE agent_cursor IN EXCLUSIVE MODE", &[])
        .await
        .unwrap();
    let (store, token) = (bench.store.clone(), bench.token);
    let running = tokio::spawn(async move { store.commit(&commit(1, 1, START), token).await });
    waiting(&bench, 1).await;
    let store = bench.another().await;
    let reading = tokio::spawn(async move { store.last_commit().await });
    waiting(&bench, 2).await;
    blocker.commit().await.unwrap();
    running.await.unwrap().unwrap();
    assert_eq!(reading.await.unwrap().unwrap(), 1);
    bench.drop_database().await;
}

/// Returns when so many connections wait for a lock.
async fn waiting(bench: &Bench, connections: i64) {
    let sql = "SELECT COUNT(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let reached = async { while bench.int(sql).await < connections {} };
    let reached = tokio::time::timeout(Duration::from_secs(30), reached).await;
    reached.expect("they wait for the lock");
}

#[tokio::test]
async fn an_address_that_is_none_is_refused_without_telling_its_password() {
    for (url, said) in [
        (
            "mysql://root:secret@host/x",
            "neither SQLite nor PostgreSQL",
        ),
        (
            "postgres://me:secret@127.0.0.1:1/x",
            "postgres://me@127.0.0.1:1/x",
        ),
        (
            "postgres://127.0.0.1:1/x?user=me&password=secret",
            "postgres://127.0.0.1:1/x?…",
        ),
        ("sqlite:/proc/nowhere/x.db", "folder cannot be made"),
    ] {
        let config = StoreConfig {
            url: url.to_owned(),
            ..StoreConfig::default()
        };
        let error = Store::open(&config)
            .await
            .err()
            .expect("it is refused")
            .to_string();
        assert!(error.contains(said) && !error.contains("secret"), "{error}");
    }
}

#[test]
fn every_file_of_a_migration_is_listed_and_the_numbers_are_the_same_on_both_sides() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations");
    let files = |side: &str| {
        let mut names: Vec<String> = std::fs::read_dir(root.join(side))
            .expect("the folder is there")
            .map(|it| {
                it.expect("it can be read")
                    .file_name()
                    .into_string()
                    .expect("ASCII")
            })
            .collect();
        names.sort();
        names
    };
    assert_eq!(files("sqlite"), files("postgres"));
    assert_eq!(files("sqlite"), super::super::schema::files());
}

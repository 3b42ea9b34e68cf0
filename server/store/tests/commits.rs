//! Exactly once: commits, their numbers, the lease.

use super::*;

both! {
    async fn what_is_committed_is_there_after_a_restart(bench) {
        let mut first = commit(1, 3, START);
        first.gaps.push(Gap { key: cursor(1).key, first: 4, last: 9, seen: START.start() });
        first.foreign.push(ForeignMark { series: [3; 16], newest: Timestamp(123_456_789) });
        first.events.push(event(EventKind::Xid, "GPU-1", START.start()));
        bench.commit(&first).await;

        let store = bench.another().await;
        assert_eq!(store.last_commit().await.unwrap(), 1);
        assert_eq!(store.cursors().await.unwrap(), first.cursors);
        assert_eq!(store.gaps(Some(AGENT)).await.unwrap(), first.gaps);
        assert_eq!(store.gaps(Some(AgentId(Uuid::nil()))).await.unwrap(), []);
        assert_eq!(store.foreign_marks().await.unwrap(), first.foreign);
        assert_eq!(store.resources(None, None).await.unwrap(), first.resources);
        let found = store.minutes(&key("GPU-2"), START..Minute(START.0 + 1)).await.unwrap();
        assert_eq!(found.rows, BTreeMap::from([(START, row(true))]));
        let page = store.events(&EventFilter::default(), None, 10).await.unwrap();
        assert_eq!(page.events, first.events);
        store.close().await;
    }
}

both! {
    async fn minutes_of_several_commits_merge_into_one_row(bench) {
        for number in 1..=3 {
            bench.commit(&commit(number, 600, START)).await;
        }
        let found = bench.store.minutes(&key("GPU-599"), START..Minute(START.0 + 1)).await.unwrap();
        let power = found.rows[&START].metrics[&gpu::POWER.id];
        assert_eq!((power.count, power.sum), (3, 900.0));
        assert_eq!(found.rows[&START].bitmaps, row(true).bitmaps);
    }
}

both! {
    async fn a_commit_that_is_repeated_is_not_folded_twice(bench) {
        let mut first = commit(5, 2, START);
        first.events.push(event(EventKind::GpuAdded, "GPU-0", START.start()));
        assert!(!bench.commit(&first).await.already);
        assert!(bench.commit(&first).await.already);
        let found = bench.store.minutes(&key("GPU-0"), START..Minute(START.0 + 1)).await.unwrap();
        assert_eq!(found.rows[&START].metrics[&gpu::POWER.id].count, 1);
        let page = bench.store.events(&EventFilter::default(), None, 10).await.unwrap();
        assert_eq!(page.events.len(), 1);
    }
}

both! {
    async fn a_cursor_never_goes_back(bench) {
        bench.commit(&Commit { number: 1, cursors: vec![cursor(9)], ..Commit::default() }).await;
        bench.commit(&Commit { number: 2, cursors: vec![cursor(4)], ..Commit::default() }).await;
        assert_eq!(bench.store.cursors().await.unwrap(), [cursor(9)]);
    }
}

both! {
    async fn a_changed_resource_is_written_and_an_unchanged_one_keeps_its_first_sight(bench) {
        bench.commit(&commit(1, 2, START)).await;
        let later = Minute(START.0 + 2);
        let mut second = commit(2, 2, later);
        second.resources[1].resource = Arc::new(
            Resource::new(ResourceKind::Gpu, "GPU-1").with(attribute::DRIVER_VERSION, "580.1"),
        );
        bench.commit(&second).await;
        let found = bench.another().await.resources(Some("live"), Some(ResourceKind::Gpu)).await;
        let found = found.unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[1].resource, second.resources[1].resource);
        for resource in found {
            assert_eq!(resource.first_seen, START.start());
            assert_eq!(resource.last_seen, later.start());
        }
        assert_eq!(bench.store.resources(Some("other"), None).await.unwrap(), []);
        let (store, live) = (&bench.store, Some("live".to_owned()));
        assert_eq!(store.cluster_after("").await.unwrap(), live);
        assert_eq!(store.cluster_after("live").await.unwrap(), None);
        let has = async |name: &str| store.has_cluster(name).await.unwrap();
        assert!(has("live").await && !has("other").await);
    }
}

both! {
    async fn a_minute_of_a_resource_that_nobody_described_is_kept(bench) {
        let mut bare = commit(1, 1, START);
        bare.resources.clear();
        bench.commit(&bare).await;
        let found = bench.store.resources(None, None).await.unwrap();
        assert_eq!(found[0].key, key("GPU-0"));
        assert_eq!(found[0].first_seen, START.start());
        // The second time its number is known from the first.
        bare.number = 2;
        bench.another().await.commit(&bare, bench.token).await.unwrap();
        let found = bench.store.minutes(&key("GPU-0"), START..Minute(START.0 + 1)).await.unwrap();
        assert_eq!(found.rows[&START].metrics[&gpu::POWER.id].count, 2);
    }
}

both! {
    async fn the_lease_has_one_holder_and_a_fenced_server_writes_nothing(bench) {
        let store = bench.another().await;
        let length = Duration::from_secs(15);
        let early = START.start().shifted(14_000_000_000);
        let refused = store.acquire_lease("second", early, length).await.unwrap_err();
        assert!(refused.to_string().contains("first holds the lease"), "{refused}");
        let renewed = bench.store.renew_lease(bench.token, early, length).await.unwrap();
        assert_eq!(renewed.token, bench.token);
        let late = START.start().shifted(29_000_000_000);
        let lease = store.acquire_lease("second", late, length).await.unwrap();
        assert!(lease.token > bench.token);
        let fenced = bench.store.commit(&commit(1, 1, START), bench.token).await;
        assert!(matches!(fenced, Err(CommitError::Fenced { .. })), "{fenced:?}");
        let fenced = bench.store.renew_lease(bench.token, late, length).await;
        assert!(matches!(fenced, Err(CommitError::Fenced { .. })), "{fenced:?}");
        assert_eq!(bench.store.resources(None, None).await.unwrap(), []);
        store.commit(&commit(1, 1, START), lease.token).await.unwrap();
        store.release_lease(lease.token).await.unwrap();
        let back = bench.store.acquire_lease("first", late, length).await.unwrap();
        assert!(back.token > lease.token);
        store.close().await;
    }
}

both! {
    async fn a_server_that_comes_back_under_its_name_need_not_wait_and_fences_its_old_self(bench) {
        let store = bench.another().await;
        let lease = store.acquire_lease("first", START.start(), Duration::from_secs(15)).await;
        assert!(lease.unwrap().token > bench.token);
        let fenced = bench.store.commit(&commit(1, 1, START), bench.token).await;
        assert!(matches!(fenced, Err(CommitError::Fenced { .. })), "{fenced:?}");
        store.close().await;
    }
}

both! {
    async fn a_server_refuses_to_begin_with_some_of_the_cursors(bench) {
        let other = Cursor {
            key: CursorKey { stream: Stream::Logs, ..cursor(1).key },
            ..cursor(2)
        };
        let cursors = vec![cursor(1), other];
        bench.commit(&Commit { number: 1, cursors, ..Commit::default() }).await;
        assert_eq!(bench.store.cursors_up_to(2).await.unwrap().len(), 2);
        let refused = bench.store.cursors_up_to(1).await.unwrap_err().to_string();
        assert!(refused.contains("more than 1 cursors"), "{refused}");
    }
}

both! {
    async fn who_changes_what_is_kept_by_lease_newest_first_and_goes_with_the_events(bench) {
        let entry = |seconds: i64| AuditEntry {
            at: START.start().shifted(seconds * 1_000_000_000),
            who: "ada@example.org".to_owned(),
            peer: "10.0.0.1".to_owned(),
            action: "command probe_now".to_owned(),
            target: "agent 7".to_owned(),
            detail: "{}".to_owned(),
        };
        for seconds in [0, 60] {
            bench.store.audit(&entry(seconds)).await.unwrap();
        }
        assert_eq!(bench.store.audited(10).await.unwrap(), [entry(60), entry(0)]);
        assert_eq!(bench.store.audited(1).await.unwrap(), [entry(60)]);
        let last = |action: &'static str| bench.store.last_audited(action);
        assert_eq!(last("command probe_now").await.unwrap(), Some(entry(60)));
        assert_eq!(last("silence").await.unwrap(), None);
        let config = StoreConfig { lease: "other".to_owned(), ..bench.config.clone() };
        let store = Store::open(&config).await.unwrap();
        assert_eq!(store.audited(10).await.unwrap(), []);
        store.close().await;
    }
}

//! What is pushed to others: minutes in pages of resources, and how far each way is.

use super::*;

/// The ids on the pages of a minute, of at most `limit` resources each.
async fn pages(bench: &Bench, minute: Minute, limit: usize) -> Vec<Vec<Arc<str>>> {
    let (mut found, mut after) = (Vec::new(), Some(0));
    while let Some(from) = after {
        let page = bench.store.minute_page(minute, from, limit).await;
        let page = page.expect("the database answers");
        assert!(page.rows.iter().all(|it| it.1 == row(true)));
        found.push(page.rows.into_iter().map(|it| it.0.key.id).collect());
        after = page.next;
    }
    found
}

both! {
    async fn a_minute_is_read_in_pages_with_each_of_its_resources_once_and_none_of_another_lease(bench) {
        bench.commit(&commit(1, 5, START)).await;
        // Of the next minute two are known: the others have gone, and are still asked for.
        bench.commit(&commit(2, 2, Minute(START.0 + 1))).await;
        let config = StoreConfig { lease: "other".to_owned(), ..bench.config.clone() };
        let other = Store::open(&config).await.expect("a known database opens");
        let lease = other.acquire_lease("second", START.start(), Duration::from_secs(15)).await;
        let mut theirs = commit(1, 1, START);
        theirs.resources[0].key = key("GPU-of-another");
        theirs.minutes[0].key = key("GPU-of-another");
        other.commit(&theirs, lease.expect("nobody has it").token).await.expect("it leads");

        let ids = |numbers: std::ops::Range<usize>| -> Vec<Arc<str>> {
            numbers.map(|it| format!("GPU-{it}").into()).collect()
        };
        let all = pages(bench, START, 2).await;
        assert_eq!(all, [ids(0..2), ids(2..4), ids(4..5)]);
        assert_eq!(pages(bench, START, 100).await, [ids(0..5)]);
        let next = pages(bench, Minute(START.0 + 1), 2).await;
        assert_eq!(next, [ids(0..2), ids(0..0), ids(0..0)]);
        // Who was not seen for longer than its note may be behind is not asked for.
        let later = Minute(START.0 + 3 * 60);
        assert_eq!(pages(bench, later, 2).await, [ids(0..0)]);
        other.close().await;
    }
}

both! {
    async fn each_way_of_each_lease_has_a_cursor_of_its_own_that_stays(bench) {
        let at = async |store: &Store, way: &str| {
            let minute = store.export_cursor(way).await;
            minute.expect("the database answers").map(|it| it.0)
        };
        let keep = async |store: &Store, way: &str, minute: i64| {
            let kept = store.keep_export_cursor(way, Minute(minute)).await;
            kept.expect("the database answers");
        };
        assert_eq!(at(&bench.store, "remote_write").await, None);
        keep(&bench.store, "remote_write", 7).await;
        keep(&bench.store, "cloud_monitoring", 5).await;
        keep(&bench.store, "remote_write", 8).await;
        let config = StoreConfig { lease: "other".to_owned(), ..bench.config.clone() };
        let other = Store::open(&config).await.expect("a known database opens");
        assert_eq!(at(&other, "remote_write").await, None);
        keep(&other, "remote_write", 3).await;
        let again = bench.another().await;
        for (way, expected) in [("remote_write", Some(8)), ("cloud_monitoring", Some(5)), ("third", None)] {
            assert_eq!(at(&again, way).await, expected, "{way}");
        }
        for store in [other, again] {
            store.close().await;
        }
    }
}

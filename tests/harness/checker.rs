//! Reads a stopped server's database and compares it with what was made.

use std::collections::BTreeMap;
use std::ops::Range;

use gpufleet_server::store::model::{EventFilter, ResourceKey};
use gpufleet_server::store::{Store, StoreConfig};
use gpufleet_telemetry::event::Event;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::Minute;

use crate::simulator::journal::Expected;

/// Minutes looked at before the first and after the last that was made: nothing may be there.
const MARGIN: i64 = 60;

/// Events read at a time.
const PAGE: usize = 1_000;

/// Everything that differs, one line each; empty when nothing was lost and nothing counts twice.
///
/// # Panics
/// When the database cannot be read.
pub fn differences(database: &str, cluster: &str, expected: &Expected) -> Vec<String> {
    with_store(database, async |store| {
        let mut wrong = Vec::new();
        for (kind, id) in expected.resources() {
            let found = minutes(store, cluster, kind, &id, expected.span(MARGIN)).await;
            wrong.extend(expected.differences(kind, &id, &found));
        }
        wrong
    })
}

/// The minute rows of a resource.
///
/// # Panics
/// When the database cannot be read.
pub fn rows(
    database: &str,
    cluster: &str,
    kind: ResourceKind,
    id: &str,
    range: Range<Minute>,
) -> BTreeMap<Minute, MinuteRow> {
    with_store(database, async |store| {
        minutes(store, cluster, kind, id, range).await
    })
}

/// The events of a cluster that are there more or less often than they were told, one line each.
///
/// # Panics
/// When the database cannot be read.
pub fn event_differences(database: &str, cluster: &str, told: &[Event]) -> Vec<String> {
    // What the store keeps of an event's time are milliseconds.
    let name = |it: &Event| format!("{} {:?} {}", it.at.millis(), it.kind, it.message);
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    for event in told {
        *counts.entry(name(event)).or_default() += 1;
    }
    for event in events(database, cluster) {
        *counts.entry(name(&event)).or_default() -= 1;
    }
    let differ = counts.into_iter().filter(|(_, count)| *count != 0);
    differ
        .map(|(name, count)| match count {
            1.. => format!("event lost ({count}): {name}"),
            _ => format!("event too often ({}): {name}", -count),
        })
        .collect()
}

/// The events of a cluster.
///
/// # Panics
/// When the database cannot be read.
pub fn events(database: &str, cluster: &str) -> Vec<Event> {
    let filter = EventFilter {
        cluster: Some(cluster.into()),
        ..EventFilter::default()
    };
    with_store(database, async |store| {
        let (mut found, mut place) = (Vec::new(), None);
        loop {
            let page = store.events(&filter, place, PAGE).await;
            let page = page.expect("the database can be read");
            found.extend(page.events.into_iter().map(|it| it.event));
            place = page.next;
            if place.is_none() {
                return found;
            }
        }
    })
}

fn with_store<T>(database: &str, work: impl AsyncFnOnce(&Store) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a test may start a runtime");
    runtime.block_on(async {
        let config = StoreConfig {
            url: database.to_owned(),
            ..StoreConfig::default()
        };
        let store = Store::open(&config)
            .await
            .expect("the database can be read");
        let found = work(&store).await;
        store.close().await;
        found
    })
}

async fn minutes(
    store: &Store,
    cluster: &str,
    kind: ResourceKind,
    id: &str,
    range: Range<Minute>,
) -> BTreeMap<Minute, MinuteRow> {
    let key = ResourceKey {
        cluster: cluster.into(),
        kind,
        id: id.into(),
    };
    let minutes = store
        .minutes(&key, range)
        .await
        .expect("the database can be read");
    assert_eq!(minutes.corrupt, Vec::<String>::new());
    minutes.rows
}

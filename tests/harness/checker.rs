//! Reads a stopped server's database and compares it with what was made.

use std::collections::BTreeMap;
use std::ops::Range;

use gpufleet_server::store::model::ResourceKey;
use gpufleet_server::store::{Store, StoreConfig};
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::Minute;

use crate::simulator::journal::Expected;

/// Minutes looked at before the first and after the last that was made: nothing may be there.
const MARGIN: i64 = 60;

/// Everything that differs, one line each; empty when nothing was lost and nothing counts twice.
///
/// # Panics
/// When the database cannot be read.
pub fn differences(database: &str, cluster: &str, expected: &Expected) -> Vec<String> {
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
        let mut wrong = Vec::new();
        for (kind, id) in expected.resources() {
            let found = minutes(&store, cluster, kind, &id, expected.span(MARGIN)).await;
            wrong.extend(expected.differences(kind, &id, &found));
        }
        store.close().await;
        wrong
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

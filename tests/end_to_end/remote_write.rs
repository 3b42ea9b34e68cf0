//! Minutes of the record, pushed to Debian's VictoriaMetrics and Prometheus by the real server.
//!
//! An hour of simulated history lies in the record; the cursor is set back by ten minutes, as if the
//! target had been away for so long.

use std::sync::Arc;
use std::time::Duration;

use gpufleet_program::clock::SystemClock;
use gpufleet_server::store::Store;
use gpufleet_server::store::model::{Commit, KnownResource, MinuteDelta, ResourceKey};
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};
use gpufleet_telemetry::minute::{Aggregate, MinuteRow};
use gpufleet_telemetry::time::{Clock as _, Minute, Timestamp};
use gpufleet_tests::harness::checker::with_store;
use gpufleet_tests::harness::{World, server, wait};
use gpufleet_tests::on_both_databases;

use crate::exports::{GPUS, MISSED, record_history, set_back};
use crate::peers::Peer;

/// The cluster of a GPU that is gone.
const GONE: &str = "gone";

/// Ten minutes are pushed and found.
const PUSH_LIMIT: Duration = Duration::from_secs(120);

fn now() -> Timestamp {
    SystemClock::start().now()
}

/// Whether the peer has a sample of every GPU for minutes in a row, and none twice.
fn arrives(peer: &Peer, first: Minute) {
    let power = "gpufleet_gpu_power_watts{origin=\"simulated\",cluster=\"demo\",from=\"record\"}";
    wait::until("ten minutes of every GPU arrive", PUSH_LIMIT, || {
        peer.get("/internal/force_flush");
        let counted = peer.query(&format!("count_over_time({power}[30m])"));
        let whole = counted.iter().filter(|it| it.value >= MISSED as f64 - 2.0);
        (whole.count() == GPUS).then_some(())
    });
    let since = (now().seconds() - first.start().seconds()).div_euclid(60) as f64;
    for series in peer.query(&format!("count_over_time({power}[30m])")) {
        assert!(series.value <= since, "one sample a minute: {series:?}");
        assert!(series.label("gpu").starts_with("GPU-"), "{series:?}");
        assert!(!series.label("node").is_empty(), "{series:?}");
    }
    let counter = "gpufleet_gpu_energy_joules_total{origin=\"simulated\"}";
    let rates = peer.query(&format!("rate({counter}[30m])"));
    assert_eq!(rates.len(), GPUS);
    assert!(
        rates.iter().all(|it| it.value > 1.0),
        "a counter grows: {rates:?}"
    );
}

/// Puts a GPU into the record of a server that does not run, which is gone after these minutes.
async fn put_one_that_ends(store: &Store, minutes: std::ops::Range<i64>) {
    let length = Duration::from_secs(60);
    let lease = store.acquire_lease("the test", now(), length).await;
    let token = lease.expect("a server that stops gives it back").token;
    let key = ResourceKey {
        cluster: GONE.into(),
        kind: ResourceKind::Gpu,
        id: "GPU-gone".into(),
    };
    let minutes = minutes.map(|minute| {
        let mut row = MinuteRow::default();
        let power = Aggregate::of_gauge(300.0, None).expect("a finite number");
        row.add(gpu::POWER.id, power);
        MinuteDelta {
            key: key.clone(),
            minute: Minute(minute),
            row,
        }
    });
    let minutes: Vec<_> = minutes.collect();
    let last = store.last_commit().await.expect("the store answers");
    let resource = Resource::new(key.kind, &*key.id).with(attribute::NODE, "node-1");
    let commit = Commit {
        number: last + 1,
        resources: vec![KnownResource {
            resource: Arc::new(resource),
            agent: None,
            first_seen: minutes[0].minute.start(),
            last_seen: now(),
            key,
        }],
        minutes,
        ..Commit::default()
    };
    store.commit(&commit, token).await.expect("it leads");
    store.release_lease(token).await.expect("the store answers");
}

/// That a GPU of two minutes is there until the end of the first that is without it, and no longer: without a marker it
/// would be for the five minutes that Prometheus looks back.
fn ends(prometheus: &Peer, first: Minute) {
    let at = |minute: i64| {
        let moment = Minute(first.0 + minute).start().seconds() + 30;
        let query = format!("gpufleet_gpu_power_watts{{cluster=\"{GONE}\"}} @ {moment}");
        prometheus.query(&query).len()
    };
    assert_eq!((at(1), at(2), at(3)), (1, 1, 0));
}

on_both_databases!(minutes_arrive_in_victoria_metrics_and_prometheus_from_where_the_cursor_stands);

fn minutes_arrive_in_victoria_metrics_and_prometheus_from_where_the_cursor_stands(world: World) {
    let place = server::Place::new(&world);
    // For both targets from the time at which the record ends, however long the first takes.
    let first = record_history(&world, &place);
    with_store(&place.database, async |store| {
        put_one_that_ends(store, first.0..first.0 + 2).await;
    });
    set_back(&place, "remote_write", first);
    let victoria = Peer::victoria(&world);
    let pushing = place.clone().with(&format!(
        "remote_write.url=http://{}/api/v1/write",
        victoria.address
    ));
    let server = pushing.start();
    arrives(&victoria, first);
    // A crash in between costs nothing and doubles nothing.
    let server = server.kill().start();
    arrives(&victoria, first);
    let told = server.get("/metrics").text();
    assert!(
        told.contains("gpufleet_server_remote_write_samples_total"),
        "{told}"
    );
    server.stop();

    set_back(&place, "remote_write", first);
    let prometheus = Peer::prometheus_receiving(&world);
    let pushing = place.with(&format!(
        "remote_write.url=http://{}/api/v1/write",
        prometheus.address
    ));
    let server = pushing.start();
    arrives(&prometheus, first);
    ends(&prometheus, first);
    server.stop();
}

//! Minutes of the record, pushed to Debian's VictoriaMetrics and Prometheus by the real server.
//!
//! An hour of simulated history lies in the record; the cursor is set back by ten minutes, as if the
//! target had been away for so long.

use std::time::Duration;

use gpufleet_program::clock::SystemClock;
use gpufleet_telemetry::time::{Clock as _, Minute, Timestamp};
use gpufleet_tests::harness::{World, server, wait};
use gpufleet_tests::on_both_databases;

use crate::exports::{GPUS, MISSED, record_history, set_back};
use crate::peers::Peer;

/// Ten minutes are pushed and found.
const PUSH_LIMIT: Duration = Duration::from_secs(120);

fn now() -> Timestamp {
    SystemClock::start().now()
}

/// Whether the peer has a sample of every GPU for minutes in a row, and none twice.
fn arrives(peer: &Peer, first: Minute) {
    let power = "gpufleet_gpu_power_watts{origin=\"simulated\",cluster=\"demo\"}";
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

on_both_databases!(minutes_arrive_in_victoria_metrics_and_prometheus_from_where_the_cursor_stands);

fn minutes_arrive_in_victoria_metrics_and_prometheus_from_where_the_cursor_stands(world: World) {
    let place = server::Place::new(&world);
    // For both targets from the time at which the record ends, however long the first takes.
    let first = record_history(&world, &place);
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
    server.stop();
}

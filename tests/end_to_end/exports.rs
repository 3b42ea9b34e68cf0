//! What the tests of every way on which minutes are pushed begin with: an hour of the demo's history in the
//! record, and a cursor that is set back as if the target had been away.

use std::time::Duration;

use gpufleet_telemetry::time::{Minute, Timestamp};
use gpufleet_tests::harness::checker::with_store;
use gpufleet_tests::harness::simulator::Simulator;
use gpufleet_tests::harness::{World, server, wait};
use serde_json::Value;

/// GPUs of the demo fleet.
pub(crate) const GPUS: usize = 64;
/// Minutes that the target has missed.
pub(crate) const MISSED: i64 = 10;
/// An hour of history is shipped and committed.
const HISTORY_LIMIT: Duration = Duration::from_secs(120);
/// It is shipped in three pieces of 20 minutes, the oldest first: more than two of them are there.
const MOST_OF_IT: usize = 45;

/// Puts the history into the record of a server that is stopped again; the first minute that the target is to
/// have missed. The record goes on until this was said, however long the stopping takes.
pub(crate) fn record_history(world: &World, place: &server::Place) -> Minute {
    let server = place.clone().start();
    let endpoint = format!("http://{}", place.grpc);
    let simulator = Simulator::start(world, &endpoint, &["--history-hours", "1"]);
    wait::until("the history is in the record", HISTORY_LIMIT, || {
        has_history(&server).then_some(())
    });
    let last = Timestamp::from_seconds(wait::unix_seconds()).minute();
    simulator.stop();
    server.stop();
    Minute(last.0 - MISSED)
}

/// Sets the cursor of a server that does not run: this is the first minute that it will push.
pub(crate) fn set_back(place: &server::Place, way: &'static str, first: Minute) {
    let last = Minute(first.0 - 1);
    with_store(&place.database, async |store| {
        let kept = store.keep_export_cursor(way, last).await;
        kept.expect("the cursor is kept");
    });
}

/// Whether the minutes that will be missed are committed, of every GPU.
fn has_history(server: &server::Server) -> bool {
    let gpus = server
        .get("/api/v1/gpus?origin=simulated&limit=1000")
        .json();
    let gpus = gpus["items"].as_array().cloned().unwrap_or_default();
    let has = |gpu: &Value| {
        let id = gpu["id"].as_str().unwrap_or_default();
        let past = server
            .get(&format!("/api/v1/gpus/demo/{id}/minutes"))
            .json();
        past["minutes"].as_array().map_or(0, Vec::len) > MOST_OF_IT
    };
    gpus.len() == GPUS && gpus.iter().all(has)
}

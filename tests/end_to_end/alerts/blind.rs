//! The rules about what only a server in trouble tells: its database refuses, it is behind and nearly full, rows are
//! spoilt, a way out is gone, and nobody leads. A server of its own, so that nothing else is disturbed by it.

use gpufleet_telemetry::time::{Minute, NANOS_PER_SECOND, Timestamp};
use gpufleet_tests::harness::server::{Place, Server};
use gpufleet_tests::harness::{World, free_port, wait};
use gpufleet_tests::on_both_databases;

use super::{LIMIT, hurried, rule_fires, rules};
use crate::exports::set_back;
use crate::otlp;
use crate::peers::Peer;

/// What fires here.
pub(super) const RULES: [&str; 7] = [
    "GpufleetServerStuck",
    "GpufleetServerCommitsFail",
    "GpufleetServerBehind",
    "GpufleetServerMemoryFull",
    "GpufleetServerUnreadableRows",
    "GpufleetServerNobodyLeads",
    "GpufleetPushBehind",
];

/// Bytes that may wait for a commit here.
const LIVE_BYTES: usize = 65_536;
/// GPUs of one request.
const GPUS: usize = 100;
/// Old enough for the rules about what is behind: minutes of the record, and samples.
const OLD_MINUTES: i64 = 20;
const LATE_MINUTES: i64 = 2;

/// So many minutes ago.
fn ago(minutes: i64) -> Minute {
    let now = Timestamp::from_seconds(wait::unix_seconds());
    Minute(now.minute().0 - minutes)
}

/// Tells the power of a GPU in a minute, so many seconds after its begin.
fn power(server: &Server, gpu: &str, minute: Minute, seconds: i64) {
    let at = minute.start().shifted(seconds * NANOS_PER_SECOND);
    let point = (gpu, 300.0, at.0.unsigned_abs());
    let answer = otlp::send(server, &otlp::power(&[point]));
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Waits until a minute of a GPU is in the record.
fn is_recorded(server: &Server, gpu: &str) {
    let path = format!("/api/v1/gpus/default/{gpu}/minutes");
    wait::until(&format!("{gpu} is in the record"), LIMIT, || {
        let known = server.get(&path).json();
        let minutes = known["minutes"].as_array()?;
        (!minutes.is_empty()).then_some(())
    });
}

/// A server that pushes to nobody from a minute on that lies far back, with that minute in its record.
fn pushing(world: &World) -> Place {
    let place = Place::new(world)
        .with("fleet.commit_interval_s=1")
        .with(&format!("fleet.live_bytes={LIVE_BYTES}"));
    let server = place.start();
    let old = ago(OLD_MINUTES);
    power(&server, "GPU-old", old, 30);
    is_recorded(&server, "GPU-old");
    let place = server.stop();
    set_back(&place, "remote_write", old);
    let nobody = format!("http://127.0.0.1:{}/api/v1/write", free_port());
    place.with(&format!("remote_write.url={nobody}"))
}

/// A server whose leader is gone, and the lease of it runs on for years.
fn waiting(world: &World) -> Place {
    world.execute(
        "INSERT INTO lease (name, token, holder, expires_ms) VALUES ('gone', 1, 'nobody', 9000000000000)",
    );
    let mut waiting = Place::new(world).with("store.lease=gone");
    (waiting.log, waiting.spool) = (world.path("waiting.log"), world.path("waiting-spool"));
    waiting
}

on_both_databases!(the_rules_about_a_server_in_trouble_fire_of_what_it_really_serves);

fn the_rules_about_a_server_in_trouble_fire_of_what_it_really_serves(world: World) {
    let known = rules();
    for name in RULES {
        assert!(known.iter().any(|it| it.name == name), "there is no {name}");
    }
    let place = pushing(&world);
    let server = place.start();
    let waiting = waiting(&world).start_standby();
    let targets = [server.place.web.clone(), waiting.place.web.clone()];
    let jobs = [("gpufleet-server", targets.to_vec())];
    let rules = hurried(&world, &["server.yml".to_owned()]);
    let prometheus = Peer::prometheus_of(&world, 1, &jobs, &rules);
    rule_fires(&prometheus, "GpufleetPushBehind");

    // Samples that are old when they come; nothing newer comes before the rule has seen it.
    let late = ago(LATE_MINUTES);
    power(&server, "GPU-late", late, 10);
    is_recorded(&server, "GPU-late");
    rule_fires(&prometheus, "GpufleetServerBehind");

    // What is to grow has to be known before.
    let counted = "gpufleet_server_unreadable_rows_total{table=\"minute_row\"} == 0";
    wait::until("nothing was unreadable", LIMIT, || {
        (!prometheus.query(counted).is_empty()).then_some(())
    });
    world.execute("UPDATE minute_row SET data = substr(data, 1, 1)");
    // The commit that has more of the minute puts the row aside.
    power(&server, "GPU-late", late, 20);
    rule_fires(&prometheus, "GpufleetServerUnreadableRows");

    // Every commit writes its number: now none can, and what comes in waits until there is no room.
    world.execute("ALTER TABLE commit_log RENAME TO away");
    let mut request = 0;
    wait::until("as much waits as may", LIMIT, || {
        request += 1;
        let names: Vec<String> = (0..GPUS).map(|it| format!("GPU-{request}-{it}")).collect();
        let now = otlp::now_nanos();
        let points: Vec<_> = names.iter().map(|it| (it.as_str(), 1.0, now)).collect();
        otlp::send(&server, &otlp::power(&points));
        let waits = "gpufleet_server_uncommitted_bytes{lane=\"live\"}";
        let told = prometheus.query(waits);
        told.iter()
            .any(|it| it.value >= LIVE_BYTES as f64)
            .then_some(())
    });
    for name in [
        "GpufleetServerMemoryFull",
        "GpufleetServerCommitsFail",
        "GpufleetServerStuck",
    ] {
        rule_fires(&prometheus, name);
    }

    // The other one would lead if it could.
    server.kill();
    rule_fires(&prometheus, "GpufleetServerNobodyLeads");
    waiting.stop();
}

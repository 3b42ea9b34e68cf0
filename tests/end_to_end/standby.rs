//! Two servers of one cluster on one machine, so of one machine name: one leads, the other says that
//! it does not, takes nothing, and takes over; what a dead one had acknowledged waits on its disk.

use std::time::Duration;

use gpufleet_tests::harness::postgres::Database;
use gpufleet_tests::harness::server::{Place, Server};
use gpufleet_tests::harness::{World, wait};

use super::otlp;

/// A standby asks every two seconds; starting and restoring come on top.
const TAKES_OVER: Duration = Duration::from_secs(20);

fn says(server: &Server, path: &str, status: u16, words: &[&str]) {
    let answer = server.get(path);
    let text = answer.text();
    assert_eq!(answer.status, status, "{path}: {text}");
    for word in words {
        assert!(text.contains(word), "{path} lacks {word:?}: {text}");
    }
}

fn send(server: &Server, gpu: &str) -> u16 {
    let request = otlp::power(&[(gpu, 321.0, otlp::now_nanos())]);
    otlp::send(server, &request).status
}

fn stands_by_and_takes_over(first: &Place, second: &Place) {
    let leader = first.start();
    let standby = second.start_standby();
    says(&standby, "/healthz", 200, &["standby: "]);
    says(
        &standby,
        "/readyz",
        503,
        &["standby: ", "lease gpufleet", "store.lease"],
    );
    says(
        &standby,
        "/",
        503,
        &["This server does not lead", "standby: "],
    );
    says(&standby, "/api/v1/fleet", 503, &["standby: "]);
    says(&standby, "/metrics", 200, &["gpufleet_server_leads 0"]);
    assert_eq!(
        send(&standby, "GPU-1"),
        503,
        "agents and others keep what they have"
    );
    says(&leader, "/readyz", 200, &["ok"]);
    says(&leader, "/metrics", 200, &["gpufleet_server_leads 1"]);
    assert_eq!(send(&leader, "GPU-1"), 200);
    let first = leader.stop();
    wait::until("the standby leads", TAKES_OVER, || {
        (standby.get("/readyz").status == 200).then_some(())
    });
    says(&standby, "/api/v1/gpus/default/GPU-1", 200, &["GPU-1"]);
    // The one that comes back is the standby now.
    let back = first.start_standby();
    says(&back, "/readyz", 503, &["standby: "]);
    back.stop();
    standby.stop();
}

#[test]
fn a_standby_says_what_it_is_and_takes_over_on_sqlite() {
    let (world, other) = (World::new(), World::new());
    let first = Place::sqlite(&world);
    let second = Place::sqlite(&other).on(&first.database);
    stands_by_and_takes_over(&first, &second);
}

#[test]
fn a_standby_says_what_it_is_and_takes_over_on_postgres() {
    let (world, other) = (World::new(), World::new());
    let database = Database::new();
    let place = |world: &World| Place::sqlite(world).on(&database.url());
    stands_by_and_takes_over(&place(&world), &place(&other));
}

#[test]
fn what_a_dead_server_had_acknowledged_waits_on_its_disk_until_it_leads_again() {
    let (world, other) = (World::new(), World::new());
    let database = Database::new();
    let place = |world: &World| Place::sqlite(world).on(&database.url());
    let first = place(&world).start();
    assert_eq!(send(&first, "GPU-kept"), 200);
    let first = first.kill();
    // As when the thirty seconds of its lease are over.
    database.execute("UPDATE lease SET expires_ms = 0");
    let second = place(&other).start();
    says(&second, "/api/v1/gpus/default/GPU-kept", 404, &[]);
    let back = first.start_standby();
    let told = "1 request of other senders here waits until this server leads";
    says(&back, "/healthz", 200, &[told]);
    second.stop();
    wait::until("what was acknowledged is there", TAKES_OVER, || {
        let answer = back.get("/api/v1/gpus/default/GPU-kept");
        (answer.status == 200).then_some(())
    });
    back.stop();
}

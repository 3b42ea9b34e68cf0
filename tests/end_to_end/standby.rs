//! Two servers of one cluster on one machine, so of one machine name: one leads, the other says that
//! it does not, takes nothing, and takes over; what a dead one had acknowledged waits on its disk.

use std::time::Duration;

use gpufleet_tests::harness::client::typed;
use gpufleet_tests::harness::server::{Place, Server};
use gpufleet_tests::harness::{World, wait};
use gpufleet_tests::on_both_databases;

use super::otlp;

/// A standby asks every two seconds; starting and restoring come on top, on a busy machine.
const TAKES_OVER: Duration = Duration::from_secs(90);

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

on_both_databases!(
    a_standby_says_what_it_is_and_takes_over,
    what_a_dead_server_had_acknowledged_waits_on_its_disk_until_it_leads_again,
);

/// Two servers of one database.
fn two(world: &World, other: &World) -> [Place; 2] {
    let first = Place::new(world);
    let second = Place::new(other).on(&first.database);
    [first, second]
}

fn a_standby_says_what_it_is_and_takes_over(world: World) {
    let other = World::new();
    let [first, second] = two(&world, &other);
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
    let status = typed(&standby.place.web, ["status"]);
    assert_eq!(status.code, Some(1), "{}", status.complained);
    assert!(status.said.contains("lead: standby: "), "{}", status.said);
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

fn what_a_dead_server_had_acknowledged_waits_on_its_disk_until_it_leads_again(world: World) {
    let other = World::new();
    let [first, second] = two(&world, &other);
    let first = first.start();
    assert_eq!(send(&first, "GPU-kept"), 200);
    let first = first.kill();
    // As when the thirty seconds of its lease are over.
    world.execute("UPDATE lease SET expires_ms = 0");
    let second = second.start();
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

//! Disks that are full, corrupt or of a newer program: a clear word, the rest goes on, and what was
//! acknowledged is there afterwards.

use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use gpufleet_telemetry::event::EventKind;
use gpufleet_tests::harness::postgres::Database;
use gpufleet_tests::harness::relay::Relay;
use gpufleet_tests::harness::small_disk::SmallDisk;
use gpufleet_tests::harness::{World, agent, checker, http, server, wait};
use gpufleet_tests::on_both_databases;

use crate::otlp;

/// A request a second, so that a disk is full soon.
const EACH_SECOND: &str = "[sample]\nship_interval_seconds = 1\n[exporter]\nauto = false\n";
const LIMIT: Duration = Duration::from_secs(120);
/// How long until a full database cannot take a commit: PostgreSQL goes on for as long as what earlier
/// versions of rows have left in its pages is enough, and each minute needs rows of its own.
const FULL_LIMIT: Duration = Duration::from_secs(200);
const GPUS: u8 = 2;
/// So many that their rows of a minute do not fit beside each other in a few pages.
const MANY_GPUS: u8 = 16;

/// Every request that passed is in the database, once.
fn is_complete(place: &server::Place, relay: &Relay) {
    let (expected, events) = relay.expected();
    assert!(!expected.sure.is_empty());
    let mut wrong = checker::differences(&place.database, "test", &expected);
    wrong.extend(checker::event_differences(&place.database, "test", &events));
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn a_server_whose_disk_is_full_says_so_serves_on_and_loses_nothing_it_has_acknowledged() {
    let world = World::new();
    let disk = SmallDisk::new(&world, "disk", 32);
    let file = disk.path().join("server.db");
    let mut place = server::Place::sqlite(&world).on(&format!("sqlite:{}", file.display()));
    place.spool = disk.path().join("spool");
    full_disk(&world, &disk, place, "full");
}

#[test]
fn a_postgresql_whose_disk_is_full_is_said_served_on_and_loses_nothing_acknowledged() {
    let world = World::new();
    let disk = SmallDisk::new(&world, "disk", 48);
    let database = Database::on(&world, &disk);
    let mut place = server::Place::sqlite(&world).on(&database.url());
    place.spool = disk.path().join("spool");
    full_disk(&world, &disk, place, "No space left on device");
}

/// `reason` is what the database says in the log.
fn full_disk(world: &World, disk: &SmallDisk, place: server::Place, reason: &str) {
    let place = place.with("fleet.commit_interval_s=1");
    let relay = Relay::start(&format!("http://{}", place.grpc));
    let server = place.start();
    let agent_place = agent::Place::new(world, "node-1", &relay.endpoint(), EACH_SECOND);
    agent_place.show(&agent::gpus(0, MANY_GPUS));
    let agent = agent_place.start();
    let list = || server.get("/api/v1/gpus?cluster=test").text();
    wait::until("the GPUs are listed", LIMIT, || {
        list().contains("GPU-5eed0001").then_some(())
    });
    let now = otlp::now_nanos();
    let before = otlp::send(&server, &otlp::power(&[("GPU-before", 1.0, now)]));
    assert_eq!(before.status, 200, "{}", before.text());
    let health = wait::until("/healthz says that nothing is durable", FULL_LIMIT, || {
        // What a database gives back is taken again.
        disk.fill();
        let answer = server.get("/healthz");
        (answer.status == 503).then(|| answer.text())
    });
    assert!(health.contains("agents keep what they send"), "{health}");
    wait::until("the log names the reason", LIMIT, || {
        server.output().contains(reason).then_some(())
    });
    assert_eq!(server.get("/").status, 200, "the pages go on");
    wait::until("and say it on top, with since when", LIMIT, || {
        disk.fill();
        let page = server.get("/fleet").text();
        page.contains("<b>The database takes nothing</b>, since 20")
            .then_some(())
    });
    let refused = wait::until("what cannot be kept is not acknowledged", LIMIT, || {
        let many: Vec<String> = (0..200).map(|it| format!("GPU-many-{it}")).collect();
        let points: Vec<_> = many
            .iter()
            .map(|it| (it.as_str(), 2.0, otlp::now_nanos()))
            .collect();
        let answer = otlp::send(&server, &otlp::power(&points));
        (answer.status != 200).then_some(answer)
    });
    assert!(
        matches!(refused.status, 429 | 503),
        "{}: {}",
        refused.status,
        refused.text()
    );
    disk.free();
    wait::until("/healthz is well again", LIMIT, || {
        (server.get("/healthz").status == 200).then_some(())
    });
    // The page is drawn anew with the next tick.
    wait::until("the pages say no more that it is not", LIMIT, || {
        let page = server.get("/fleet").text();
        (!page.contains("The database takes nothing")).then_some(())
    });
    agent.catches_up();
    agent.stop();
    let server = server.stop().start();
    assert_eq!(relay.wrong(), Vec::<String>::new());
    wait::until("what was acknowledged before is there", LIMIT, || {
        let answer = server.get("/api/v1/gpus/default/GPU-before");
        (answer.status == 200).then_some(())
    });
    server.stop();
    is_complete(&place, &relay);
}

#[test]
fn an_agent_whose_disk_is_full_says_so_reads_on_and_ships_what_it_has_kept() {
    let world = World::new();
    let disk = SmallDisk::new(&world, "disk", 8);
    let place = server::Place::new(&world).with("fleet.commit_interval_s=1");
    let relay = Relay::start(&format!("http://{}", place.grpc));
    let mut agent_place = agent::Place::new(&world, "node-1", &relay.endpoint(), EACH_SECOND);
    agent_place.keep_state_in(disk.path());
    let mut scenario = agent::gpus(0, GPUS);
    scenario.time_s = None;
    agent_place.show(&scenario);
    // Nobody takes what it spools yet.
    let agent = agent_place.start();
    let energy = || agent.values("gpufleet_gpu_energy_joules_total");
    wait::until("the agent reads its GPUs", LIMIT, || {
        (!energy().is_empty()).then_some(())
    });
    wait::until("and has spooled some", LIMIT, || {
        let bytes = agent.values("gpufleet_agent_spool_bytes");
        bytes.iter().any(|it| *it > 30_000.0).then_some(())
    });
    disk.fill();
    wait::until("the log says that a tick is lost, and why", LIMIT, || {
        let said = agent.output();
        let clear =
            said.contains("could not be spooled") && said.to_lowercase().contains("no space left");
        clear.then_some(())
    });
    let before = energy();
    assert!(!before.is_empty(), "it was there before");
    wait::until("it reads on", LIMIT, || {
        let now = energy();
        let grown = now.iter().zip(&before).all(|(now, then)| now > then);
        (now.len() == before.len() && grown).then_some(())
    });
    disk.free();
    let server = place.start();
    agent.catches_up();
    agent.stop();
    server.stop();
    is_complete(&place, &relay);
    let events = checker::events(&place.database, "test");
    let told = events
        .iter()
        .any(|it| it.kind == EventKind::SpoolDropped && it.message.contains("No space left"));
    assert!(told, "what was lost is told: {events:?}");
}

#[test]
fn a_spool_with_garbage_is_told_and_what_is_whole_in_it_is_shipped() {
    let world = World::new();
    let place = server::Place::new(&world).with("fleet.commit_interval_s=1");
    let relay = Relay::start(&format!("http://{}", place.grpc));
    let agent_place = agent::Place::new(&world, "node-1", &relay.endpoint(), EACH_SECOND);
    agent_place.show(&agent::gpus(0, GPUS));
    let agent = agent_place.start();
    wait::until("a few requests are in the spool", LIMIT, || {
        let bytes = agent.values("gpufleet_agent_spool_bytes");
        bytes.iter().any(|it| *it > 60_000.0).then_some(())
    });
    agent.kill();
    let segment = find_largest(&agent_place.state.join("spool"));
    let file = std::fs::File::options()
        .write(true)
        .open(&segment)
        .expect("the agent is dead");
    let middle = file.metadata().expect("it is there").len() / 2;
    file.write_all_at(&[0xA5; 64], middle)
        .expect("it can be written");
    drop(file);
    let agent = agent_place.start();
    let server = place.start();
    agent.catches_up();
    let said = agent.output();
    assert!(said.contains("a torn write or a bad disk"), "{said}");
    agent.stop();
    server.stop();
    is_complete(&place, &relay);
    let events = checker::events(&place.database, "test");
    let told = events.iter().any(|it| {
        it.attributes
            .get("epoch")
            .is_some_and(|it| it.contains("garbage"))
    });
    assert!(told, "{events:?}");
    let (expected, _) = relay.expected();
    assert!(expected.sure.len() > 1, "what was whole has come");
}

fn find_largest(folder: &std::path::Path) -> std::path::PathBuf {
    let epochs = std::fs::read_dir(folder)
        .expect("the spool's folder")
        .flatten();
    let files = epochs
        .filter_map(|it| std::fs::read_dir(it.path()).ok())
        .flatten()
        .flatten();
    files
        .map(|it| it.path())
        .max_by_key(|it| it.metadata().map_or(0, |it| it.len()))
        .expect("the spool has a file")
}

on_both_databases!(a_database_of_a_newer_server_is_refused_with_both_versions_and_left_alone);

fn a_database_of_a_newer_server_is_refused_with_both_versions_and_left_alone(world: World) {
    let place = server::Place::new(&world);
    place.start().stop();
    world.execute("INSERT INTO schema_version (version) VALUES (9999)");
    let output = place.command().output().expect("the server was built");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    for words in [
        "9999",
        "this server knows up to",
        "start the newer server",
        "backup",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(http::get(&place.web, "/").is_err(), "it must not serve");
}

//! The client that people type, against the real server: what it prints, and how it ends.

use std::fs::File;
use std::time::Duration;

use gpufleet_tests::harness::client::{typed, typed_to};
use gpufleet_tests::harness::simulator::{Simulator, steady_seed};
use gpufleet_tests::harness::small_disk::SmallDisk;
use gpufleet_tests::harness::{World, free_port, server, wait};
use gpufleet_tests::on_both_databases;

/// Ticks of 10 s, a commit and the start.
const FIRST_DATA_LIMIT: Duration = Duration::from_secs(120);
/// More room than the doctor wants; none of it is used before something is written.
const DISK_MEGABYTES: u32 = 20_000;
const TOKEN: &str = "a token that is long enough";

on_both_databases!(the_client_shows_the_fleet_and_its_idle_gpus);

fn the_client_shows_the_fleet_and_its_idle_gpus(world: World) {
    // The doctor looks at the disks, and what this machine's have is not the test's to say.
    let disk = SmallDisk::new(&world, "disk", DISK_MEGABYTES);
    let mut place = server::Place::new(&world).with("fleet.commit_interval_s=2");
    if place.database.starts_with("sqlite:") {
        place.database = format!("sqlite:{}", disk.path().join("server.db").display());
    }
    place.spool = disk.path().join("spool");
    let server = place.start();
    let web = server.place.web.clone();
    let endpoint = format!("http://{}", server.place.grpc);
    let empty = typed(&web, ["gpus"]);
    assert_eq!(empty.code, Some(0), "{}", empty.complained);
    assert!(empty.said.contains("no GPU is there"), "{}", empty.said);
    let simulator = Simulator::start(&world, &endpoint, &["--history-hours", "1"]);
    wait::until("all GPUs are listed", FIRST_DATA_LIMIT, || {
        let answer = typed(&web, ["gpus", "--json"]).json();
        (answer["items"].as_array()?.len() == 64).then_some(())
    });
    // A GPU is listed before a minute of it is judged.
    let idle = wait::until("some GPUs are idle", FIRST_DATA_LIMIT, || {
        let answer = typed(&web, ["gpus", "--json", "--idle"]).json();
        let idle = answer["items"].as_array()?.clone();
        (8..64).contains(&idle.len()).then_some(idle)
    });
    for gpu in idle {
        let state = gpu["state"].as_str().unwrap_or_default();
        let is_idle = ["unallocated", "parked", "held_empty"].contains(&state);
        assert!(is_idle, "{gpu}");
    }
    let all = typed(&web, ["gpus", "--node", "demo-node-8"]);
    let lines = all.said;
    assert_eq!(lines.lines().count(), 1 + 8, "{lines}");
    assert!(lines.contains("demo (simulated)"), "{lines}");
    assert!(lines.contains("NVIDIA A100-SXM4-80GB"), "{lines}");
    // Of a cluster or node that there is not it is not said that nothing of it is idle.
    for (command, says) in [
        ("gpus --idle --cluster dmeo", "no cluster “dmeo”"),
        ("gpus --idle --node demo-node-88", "no node “demo-node-88”"),
        ("fleet --cluster dmeo", "no cluster “dmeo”"),
        ("top --cluster dmeo", "no cluster “dmeo”"),
    ] {
        let mistyped = typed(&web, command.split(' '));
        assert_eq!(mistyped.code, Some(3), "{command}: {}", mistyped.said);
        let complaint = mistyped.complained;
        assert!(complaint.contains(says), "{command}: {complaint}");
    }
    let none = typed(&web, ["gpus", "--cluster", "demo", "--origin", "live"]);
    assert_eq!(none.code, Some(0), "{}", none.complained);
    let found = typed(&web, ["find", "Demo-Node-8"]).said;
    let page = format!("{web}/clusters/demo/nodes/demo-node-8");
    assert!(found.contains(&page), "{found}");
    // While history comes in the database may be late with its word for a moment.
    let lines = wait::until("the server is well", FIRST_DATA_LIMIT, || {
        let status = typed(&web, ["status"]);
        (status.code == Some(0)).then_some(status.said)
    });
    assert!(lines.contains(": ok\n"), "{lines}");
    assert!(lines.contains("simulated    64"), "{lines}");
    let fleet = typed(&web, ["fleet", "--by", "node", "--cluster", "demo"]);
    assert_eq!(fleet.code, Some(0), "{}", fleet.complained);
    let nodes = fleet.said.lines().filter(|it| it.contains("demo-node-"));
    assert_eq!(nodes.count(), 8, "{}", fleet.said);
    assert_eq!(fleet.complained, "", "nobody is told of waiting in a pipe");
    let fleet = typed(&web, ["fleet", "--json"]).json();
    assert_eq!(fleet["items"][0]["gpus"], 64, "{fleet}");
    // In a pipe there is one table.
    let top = typed(&web, ["top"]);
    assert_eq!(top.code, Some(0), "{}", top.complained);
    assert!(top.said.starts_with("CLUSTER"), "{}", top.said);
    let top = typed(&web, ["top", "--by", "gpu", "--json"]).json();
    let gpus = top["items"].as_array().expect("it is a list");
    assert_eq!(gpus.len(), 64);
    let cost = typed(&web, ["cost", "--cluster", "demo", "--by", "team,job"]);
    assert_eq!(cost.code, Some(0), "{}", cost.complained);
    assert!(cost.said.contains("GPU-hours"), "{}", cost.said);
    let incidents = typed(&web, ["incidents", "--state", "all", "--json"]);
    assert_eq!(incidents.code, Some(0), "{}", incidents.complained);
    let stand_since = incidents.json().get("detectors_stand_since").cloned();
    assert_eq!(stand_since, Some(serde_json::Value::Null), "they judge");
    let nobody = typed(&web, ["incidents", "0199c0de-0000-7000-8000-000000000000"]);
    assert_eq!(nobody.code, Some(3), "{}", nobody.said);
    let doctor = typed(&web, ["doctor"]);
    assert_eq!(doctor.code, Some(0), "{}", doctor.complained);
    // Nothing that is simulated is called fine.
    assert!(
        doctor.said.contains("not checked: no live node"),
        "{}",
        doctor.said
    );
    simulator.stop();
    server.stop();
}

on_both_databases!(the_client_shows_jobs_with_their_ranks_and_fails_a_run_that_is_slower);

fn the_client_shows_jobs_with_their_ranks_and_fails_a_run_that_is_slower(world: World) {
    let server = server::Place::new(&world)
        .with("fleet.commit_interval_s=2")
        .start();
    let web = server.place.web.clone();
    let endpoint = format!("http://{}", server.place.grpc);
    let more = ["--history-hours", "1", "--seed", &steady_seed()];
    let simulator = Simulator::start(&world, &endpoint, &more);
    let large = "llama-70b-pretrain";
    let small = "support-assistant-sft";
    let same = ["compare", large, large, "--fail-if-slower", "2%"];
    wait::until("steps of both jobs are there", FIRST_DATA_LIMIT, || {
        let is_known = |name| {
            let same = ["compare", name, name, "--fail-if-slower", "0"];
            typed(&web, same).code == Some(0)
        };
        (is_known(large) && is_known(small)).then_some(())
    });
    let jobs = typed(&web, ["jobs", "--state", "running"]).said;
    for name in [large, small] {
        assert!(jobs.contains(name), "{jobs}");
    }
    // Steps of the past may be there before each rank has said where it is.
    wait::until("its ranks are on their nodes", FIRST_DATA_LIMIT, || {
        let job = typed(&web, ["job", large]);
        assert_eq!(job.code, Some(0), "{}", job.complained);
        let lines = job.said.lines();
        let listed = lines.filter(|line| !line.starts_with("attempt "));
        let ranks = listed.filter(|line| line.contains("demo-node-"));
        (ranks.count() == 32).then_some(())
    });
    let like = typed(&web, same);
    assert_eq!(like.code, Some(0), "{}", like.said);
    assert!(like.said.contains("passed"), "{}", like.said);
    let slower = typed(&web, ["compare", large, small, "--fail-if-slower", "2%"]);
    assert_eq!(slower.code, Some(1), "{}", slower.said);
    assert!(slower.said.contains("tp4 pp2 dp4"), "{}", slower.said);
    let both = format!("{large}, {small}");
    let several = typed(&web, ["compare", &both, large]);
    for said in ["the middle one of 2 runs", "that takes three of each"] {
        assert!(several.said.contains(said), "{said}: {}", several.said);
    }
    let empty = typed(&web, ["compare", &format!("{large},"), large]);
    assert_eq!(empty.code, Some(3));
    assert!(
        empty.complained.contains("is empty"),
        "{}",
        empty.complained
    );
    let nobody = typed(&web, ["job", "no-such-job"]);
    assert_eq!(nobody.code, Some(3));
    assert!(nobody.complained.contains("no-such-job"));
    simulator.stop();
    server.stop();
}

#[test]
fn a_server_that_is_not_there_or_lets_nobody_read_is_named_with_the_way_out() {
    let world = World::new();
    let nobody = format!("127.0.0.1:{}", free_port());
    let away = typed(&nobody, ["status"]);
    assert_eq!(away.code, Some(3));
    let complaint = away.complained;
    for word in [nobody.as_str(), "--server"] {
        assert!(complaint.contains(word), "{complaint}");
    }
    assert_eq!(typed(&nobody, ["statuss"]).code, Some(2));
    let slower = ["compare", "a", "b", "--fail-if-slower", "much"];
    assert_eq!(typed(&nobody, slower).code, Some(2));
    let file = world.file("read.token", &format!("{TOKEN}\n"));
    let file = file.display().to_string();
    let tokens = format!("auth.tokens=[{{ role = \"read\", file = \"{file}\" }}]");
    let server = server::Place::new(&world).with(&tokens).start();
    let web = server.place.web.clone();
    let closed = typed(&web, ["gpus"]);
    assert_eq!(closed.code, Some(3));
    let complaint = closed.complained;
    assert!(complaint.contains("--token-file"), "{complaint}");
    let open = typed(&web, ["gpus", "--token-file", &file]);
    assert_eq!(open.code, Some(0), "{}", open.complained);
    let missing = typed(&web, ["gpus", "--token-file", "/no/such.token"]);
    assert_eq!(missing.code, Some(3));
    assert!(missing.complained.contains("/no/such.token"));
    server.stop();
}

#[test]
fn an_answer_that_cannot_be_written_is_none() {
    let world = World::new();
    let server = server::Place::new(&world).start();
    let web = server.place.web.clone();
    for command in [&["status"][..], &["report", "chargeback"]] {
        let full = File::options().write(true).open("/dev/full");
        let cut = typed_to(&web, command, full.expect("Linux has it"));
        assert_eq!(cut.code, Some(3), "{command:?}: {}", cut.complained);
        let complaint = cut.complained;
        assert!(complaint.contains("cannot be written"), "{complaint}");
    }
    let focus = ["report", "chargeback", "--format", "focus"];
    for command in [&["report", "chargeback"][..], &focus, &["digest", "--json"]] {
        let full = File::options().write(true).open("/dev/full");
        let mut own = server.place.command();
        let own = own.args(command).stdout(full.expect("Linux has it"));
        let own = own.output().expect("the server is built");
        let complaint = String::from_utf8_lossy(&own.stderr);
        let is_told = complaint.contains("cannot be written");
        assert!(!own.status.success() && is_told, "{command:?}: {complaint}");
    }
    server.stop();
}

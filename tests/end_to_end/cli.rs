//! The client that people type, against the real server: what it prints, and how it ends.

use std::process::{Command, Output};
use std::time::Duration;

use gpufleet_tests::harness::simulator::{Simulator, steady_seed};
use gpufleet_tests::harness::small_disk::SmallDisk;
use gpufleet_tests::harness::{World, built, free_port, server, wait};
use gpufleet_tests::on_both_databases;
use serde_json::Value;

/// Ticks of 10 s, a commit and the start.
const FIRST_DATA_LIMIT: Duration = Duration::from_secs(120);
/// More room than the doctor wants; none of it is used before something is written.
const DISK_MEGABYTES: u32 = 20_000;
const TOKEN: &str = "a token that is long enough";

/// Runs it against this address; nothing of this machine's environment is taken in.
fn typed(address: &str, arguments: &[&str]) -> Output {
    Command::new(built("gpufleet"))
        .env_clear()
        .env("GPUFLEET_SERVER", format!("http://{address}"))
        .args(arguments)
        .output()
        .expect("it can be started")
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn complained(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {} {}", said(output), complained(output)))
}

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
    let empty = typed(&web, &["gpus"]);
    assert_eq!(code(&empty), Some(0), "{}", complained(&empty));
    assert!(said(&empty).contains("no GPU is there"), "{}", said(&empty));
    let simulator = Simulator::start(&world, &endpoint, &["--history-hours", "1"]);
    wait::until("all GPUs are listed", FIRST_DATA_LIMIT, || {
        let answer = json(&typed(&web, &["gpus", "--json"]));
        (answer["items"].as_array()?.len() == 64).then_some(())
    });
    // A GPU is listed before a minute of it is judged.
    let idle = wait::until("some GPUs are idle", FIRST_DATA_LIMIT, || {
        let answer = json(&typed(&web, &["gpus", "--json", "--idle"]));
        let idle = answer["items"].as_array()?.clone();
        (8..64).contains(&idle.len()).then_some(idle)
    });
    for gpu in idle {
        let state = gpu["state"].as_str().unwrap_or_default();
        let is_idle = ["unallocated", "parked", "held_empty", "gap"].contains(&state);
        assert!(is_idle, "{gpu}");
    }
    let all = typed(&web, &["gpus", "--node", "demo-node-8"]);
    let lines = said(&all);
    assert_eq!(lines.lines().count(), 1 + 8, "{lines}");
    assert!(lines.contains("demo (simulated)"), "{lines}");
    assert!(lines.contains("NVIDIA A100-SXM4-80GB"), "{lines}");
    let status = typed(&web, &["status"]);
    assert_eq!(code(&status), Some(0), "{}", complained(&status));
    let lines = said(&status);
    assert!(lines.contains(": ok\n"), "{lines}");
    assert!(lines.contains("simulated    64"), "{lines}");
    let fleet = typed(&web, &["fleet", "--by", "node", "--cluster", "demo"]);
    assert_eq!(code(&fleet), Some(0), "{}", complained(&fleet));
    let nodes = said(&fleet);
    let nodes = nodes.lines().filter(|it| it.contains("demo-node-"));
    assert_eq!(nodes.count(), 8, "{}", said(&fleet));
    assert_eq!(
        complained(&fleet),
        "",
        "nobody is told of waiting in a pipe"
    );
    let fleet = json(&typed(&web, &["fleet", "--json"]));
    assert_eq!(fleet["items"][0]["gpus"], 64, "{fleet}");
    // In a pipe there is one table.
    let top = typed(&web, &["top"]);
    assert_eq!(code(&top), Some(0), "{}", complained(&top));
    assert!(said(&top).starts_with("CLUSTER"), "{}", said(&top));
    let top = json(&typed(&web, &["top", "--by", "gpu", "--json"]));
    let gpus = top["items"].as_array().expect("it is a list");
    assert_eq!(gpus.len(), 64);
    let cost = typed(&web, &["cost", "--cluster", "demo", "--by", "team,job"]);
    assert_eq!(code(&cost), Some(0), "{}", complained(&cost));
    assert!(said(&cost).contains("GPU-hours"), "{}", said(&cost));
    let incidents = typed(&web, &["incidents", "--state", "all"]);
    assert_eq!(code(&incidents), Some(0), "{}", complained(&incidents));
    let nobody = typed(&web, &["incidents", "0199c0de-0000-7000-8000-000000000000"]);
    assert_eq!(code(&nobody), Some(3), "{}", said(&nobody));
    let doctor = typed(&web, &["doctor"]);
    assert_eq!(code(&doctor), Some(0), "{}", complained(&doctor));
    // Nothing that is simulated is called fine.
    assert!(
        said(&doctor).contains("not checked: no live node"),
        "{}",
        said(&doctor)
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
            code(&typed(
                &web,
                &["compare", name, name, "--fail-if-slower", "0"],
            )) == Some(0)
        };
        (is_known(large) && is_known(small)).then_some(())
    });
    let jobs = said(&typed(&web, &["jobs", "--state", "running"]));
    for name in [large, small] {
        assert!(jobs.contains(name), "{jobs}");
    }
    let job = typed(&web, &["job", large]);
    assert_eq!(code(&job), Some(0), "{}", complained(&job));
    let lines = said(&job);
    let ranks = lines.lines().filter(|line| line.contains("demo-node-"));
    assert_eq!(ranks.count(), 32, "{lines}");
    let like = typed(&web, &same);
    assert_eq!(code(&like), Some(0), "{}", said(&like));
    assert!(said(&like).contains("passed"), "{}", said(&like));
    let slower = typed(&web, &["compare", large, small, "--fail-if-slower", "2%"]);
    assert_eq!(code(&slower), Some(1), "{}", said(&slower));
    assert!(said(&slower).contains("tp4 pp2 dp4"), "{}", said(&slower));
    let nobody = typed(&web, &["job", "no-such-job"]);
    assert_eq!(code(&nobody), Some(3));
    assert!(complained(&nobody).contains("no-such-job"));
    simulator.stop();
    server.stop();
}

#[test]
fn a_server_that_is_not_there_or_lets_nobody_read_is_named_with_the_way_out() {
    let world = World::new();
    let nobody = format!("127.0.0.1:{}", free_port());
    let away = typed(&nobody, &["status"]);
    assert_eq!(code(&away), Some(3));
    let complaint = complained(&away);
    for word in [nobody.as_str(), "--server"] {
        assert!(complaint.contains(word), "{complaint}");
    }
    assert_eq!(code(&typed(&nobody, &["statuss"])), Some(2));
    let slower = ["compare", "a", "b", "--fail-if-slower", "much"];
    assert_eq!(code(&typed(&nobody, &slower)), Some(2));
    let file = world.file("read.token", &format!("{TOKEN}\n"));
    let file = file.display().to_string();
    let tokens = format!("auth.tokens=[{{ role = \"read\", file = \"{file}\" }}]");
    let server = server::Place::new(&world).with(&tokens).start();
    let web = server.place.web.clone();
    let closed = typed(&web, &["gpus"]);
    assert_eq!(code(&closed), Some(3));
    let complaint = complained(&closed);
    assert!(complaint.contains("--token-file"), "{complaint}");
    let open = typed(&web, &["gpus", "--token-file", &file]);
    assert_eq!(code(&open), Some(0), "{}", complained(&open));
    let missing = typed(&web, &["gpus", "--token-file", "/no/such.token"]);
    assert_eq!(code(&missing), Some(3));
    assert!(complained(&missing).contains("/no/such.token"));
    server.stop();
}

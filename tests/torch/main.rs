//! Real PyTorch under the real agent and server: what a person sees of the job of `make demo-training` while it runs,
//! with a rank that is slow, one that is asked for a profile, and after one of its ranks was killed; of one where no
//! agent is; and of one that probes its GPU from inside.
//!
//! A stage of its own (`scripts/test.sh hooks-setup hooks torch`), because it needs Debian's torch
//! and the package of the hooks, which that stage installs.

mod demo;
mod inside;
mod profile;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use demo::{CLUSTER, Demo};
use gpufleet_tests::harness::process::Process;
use gpufleet_tests::harness::{World, agent, repository, server, wait};
use serde_json::Value;

const RANKS: usize = 3;
const SLOW: usize = 1;
const KILLED: usize = 2;
/// Importing torch takes many seconds on a busy machine, and a slow rank is named after 25 steps.
const SHOWN_LIMIT: Duration = Duration::from_secs(240);
/// The ends of all ranks, and the look at why.
const ENDED_LIMIT: Duration = Duration::from_secs(120);

/// The Python that has torch and the hooks.
fn python() -> PathBuf {
    let python = repository().join("target/hooks/python/bin/python");
    assert!(
        python.exists(),
        "{} is not there: scripts/hooks.sh install makes it",
        python.display()
    );
    python
}

/// Every incident about a rank. That all steps take longer than they did is another one, of the run, and true where
/// the machine has other work to do meanwhile.
fn incidents(server: &server::Server) -> Vec<Value> {
    let answer = server.get(&format!("/api/v1/incidents?cluster={CLUSTER}"));
    let items = answer.json()["items"].as_array().cloned();
    let items = items.unwrap_or_default();
    let of_rank = items
        .into_iter()
        .filter(|it| it["place"]["rank"].is_number());
    of_rank.collect()
}

/// The run as the API has it; none while it has not heard of it.
fn run(server: &server::Server, job: &str) -> Option<Value> {
    let answer = server.get(&format!("/api/v1/runs/{CLUSTER}/{job}/0"));
    (answer.status == 200).then(|| answer.json())
}

fn rank_of(run: &Value, rank: usize) -> &Value {
    let all = run["ranks"].as_array().into_iter().flatten();
    let found = all.into_iter().find(|it| it["rank"] == rank);
    found.unwrap_or(&Value::Null)
}

fn reading(rank: &Value, name: &str) -> f64 {
    rank["readings"][name].as_f64().unwrap_or(0.0)
}

/// Whether it took time in every phase of the script.
fn has_phases(rank: &Value) -> bool {
    let phases = ["forward", "backward", "optimizer", "communication"];
    let names = phases.map(|it| format!("gpufleet_training_phase_{it}_seconds_total"));
    names.iter().all(|name| reading(rank, name) > 0.0)
}

#[test]
fn a_job_shows_its_slow_rank_gives_a_profile_while_it_runs_and_says_who_failed_first_when_it_ended()
{
    let world = World::new();
    let server = server::Place::sqlite(&world)
        .with("fleet.commit_interval_s=2")
        .with(demo::PRICE)
        .start();
    let endpoint = format!("http://{}", server.place.grpc);
    demo::folders(&world);
    let place = agent::Place::new(&world, "node-1", &endpoint, &demo::config(&world));
    place.replace_in_config("cluster = \"test\"", &format!("cluster = \"{CLUSTER}\""));
    // A machine without a GPU, where a rank has a price of its own.
    let none = world.path("no-driver.so").display().to_string();
    place.replace_in_config(&agent::library(), &none);
    let agent = place.start();
    demo::are_up(&world, &server, &agent);
    let slow_while = world.file("slow", "").display().to_string();
    let slow_rank = SLOW.to_string();
    let mut demo = Demo::start(
        &world,
        "demo",
        &[
            ["--step-seconds", "0.15"],
            ["--slow-by", "1.0"],
            ["--slow-rank", &slow_rank],
            ["--slow-while", &slow_while],
        ]
        .concat(),
    );
    let job = demo.job(&server);
    let shown = wait::until("the slow rank is named", SHOWN_LIMIT, || {
        demo.must_train();
        let run = run(&server, &job)?;
        let slow = run["slow_ranks"].as_array()?;
        let is_named = !slow.is_empty();
        // What ranks read comes with their ticks, beside their steps.
        let is_whole = (0..RANKS).all(|it| has_phases(rank_of(&run, it)));
        (is_named && is_whole).then_some(run)
    });
    assert_eq!(shown["state"], "running", "{shown}");
    assert_eq!(shown["world"], RANKS, "{shown}");
    let slow = shown["slow_ranks"].as_array().expect("it was looked at");
    let named: Vec<_> = slow.iter().map(|it| it["rank"].as_u64()).collect();
    assert_eq!(named, [Some(SLOW as u64)], "{shown}");
    assert!(
        shown["step_seconds"]["value"].as_f64() > Some(0.22),
        "{shown}"
    );
    // Of a CPU no peak is in a table: it is held against the one that the script has measured and states.
    let mfu = shown["mfu_ratio"]["value"].as_f64();
    assert!(mfu > Some(0.0) && mfu < Some(0.8), "{shown}");
    let peak = shown["mfu_peak"].as_str();
    assert!(
        peak.is_some_and(|it| it.contains("as the run states it")),
        "{shown}"
    );
    let productive = shown["goodput_seconds"]["productive"].as_f64();
    assert!(productive > Some(0.0), "{shown}");
    let told = wait::until("it is an incident", SHOWN_LIMIT, || {
        let all = incidents(&server);
        assert!(all.len() <= 1, "{all:#?}");
        all.into_iter().next()
    });
    assert_eq!(told["family"], "straggler", "{told}");
    assert_eq!(told["place"]["rank"], SLOW, "{told}");
    assert_eq!(told["cause"], "data", "{told}");
    let lost = |key: &str| told[key].as_u64().unwrap_or(0);
    let seconds = lost("losing_gpu_seconds_per_hour");
    let nano_usd = lost("losing_nano_usd_per_hour");
    // It is rounded to a second.
    let of_price = seconds * demo::NANO_USD_PER_SECOND;
    assert!(seconds > 0, "{told}");
    assert!(
        nano_usd.abs_diff(of_price) <= demo::NANO_USD_PER_SECOND,
        "{told}"
    );
    wait::until("the map of ranks and time shows it", SHOWN_LIMIT, || {
        let page = server.get(&format!("/clusters/{CLUSTER}/jobs/{job}/0"));
        let words = format!("Over this time rank {SLOW} took longest for its own part");
        let peak = "that the run itself states as its fp32 peak";
        (page.text().contains(&words) && page.text().contains(peak)).then_some(())
    });
    std::fs::remove_file(slow_while).expect("it was written");
    wait::until("it is over", SHOWN_LIMIT, || {
        demo.must_train();
        let all = incidents(&server);
        assert_eq!(all.len(), 1, "one rank, one incident: {all:#?}");
        (all[0]["state"] == "resolved" && all[0]["id"] == told["id"]).then_some(())
    });
    // Here, because another job for it would take as long as all of this again to come up.
    profile::of_two_steps_lies_where_the_client_says(&world, &server, &job);
    demo.must_train();
    demo.kill(KILLED);
    let ended = wait::until("the run has ended", ENDED_LIMIT, || {
        let run = run(&server, &job)?;
        (run["state"] == "ended" && run["ending"].is_object()).then_some(run)
    });
    assert_eq!(ended["ending"]["first_rank"], KILLED, "{ended}");
    let killed = rank_of(&ended, KILLED);
    assert_eq!(killed["ended"], "vanished", "{killed}");
    assert!(
        reading(killed, "gpufleet_training_last_step") > 20.0,
        "{killed}"
    );
    for it in (0..RANKS).filter(|it| *it != KILLED) {
        assert_eq!(rank_of(&ended, it)["ended"], "exception", "{ended}");
    }
    demo.ends();
    demo::ends_when_it_is_told_to(&world);
    agent.stop();
    server.stop();
}

/// A script that trains where no agent is, and dies of an exception.
const ALONE: &str = "
import time, gpufleet
run = gpufleet.init(job_namespace='demo', job_name='alone', job_uid='1', attempt=0, rank=0, world=1)
for number in range(120):
    time.sleep(0.12)
    run.step(tokens=100, loss=2.0)
raise RuntimeError('out of luck')
";

#[test]
fn a_script_without_an_agent_tells_the_server_itself_and_is_only_claimed() {
    let world = World::new();
    let server = server::Place::sqlite(&world)
        .with("fleet.commit_interval_s=2")
        .start();
    let mut command = Command::new(python());
    command
        .args(["-c", ALONE])
        .env("GPUFLEET_CLUSTER", "test")
        .env("GPUFLEET_HOOKS_SOCKET", world.path("no-agent.sock"))
        .env(
            "GPUFLEET_OTLP_ENDPOINT",
            format!("http://{}", server.place.http),
        );
    let script = Process::start("python", command, &world.path("alone.log"));
    let run = || {
        let answer = server.get("/api/v1/runs/test/demo%2Falone%2F1/0");
        (answer.status == 200).then(|| answer.json())
    };
    let shown = wait::until("the run is there", SHOWN_LIMIT, || {
        run().filter(|it| it["state"] == "running" && !rank_of(it, 0).is_null())
    });
    assert_eq!(rank_of(&shown, 0)["trust"], "claimed", "{shown}");
    let ended = wait::until("the run has ended", ENDED_LIMIT, || {
        run().filter(|it| it["state"] == "ended" && it["ending"].is_object())
    });
    let rank = rank_of(&ended, 0);
    assert_eq!(rank["ended"], "exception", "{ended}");
    assert_eq!(rank["exception"], "RuntimeError: out of luck", "{ended}");
    assert_eq!(reading(rank, "gpufleet_training_steps_total"), 120.0);
    assert_eq!(reading(rank, "gpufleet_training_tokens_total"), 12_000.0);
    let steps = server.get("/api/v1/runs/test/demo%2Falone%2F1/0/steps");
    let blocks = steps.json();
    let each = blocks.as_array().into_iter().flatten();
    let count = each.map(|it| {
        let entries = it["wall_seconds"].as_array().map_or(0, Vec::len) as u64;
        entries * it["steps_per_entry"].as_u64().unwrap_or(0)
    });
    assert_eq!(count.sum::<u64>(), 120, "each step once: {blocks}");
    drop(script);
    server.stop();
}

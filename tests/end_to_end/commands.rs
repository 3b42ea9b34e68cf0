//! A command's whole way: asked for over the API, given in a reply, done by the agent, its result told
//! as an event.

use std::time::Duration;

use gpufleet_tests::harness::client::typed;
use gpufleet_tests::harness::training::{self, Pace};
use gpufleet_tests::harness::{World, agent, http, server, wait};
use gpufleet_tests::on_both_databases;
use serde_json::Value;

const EACH_SECOND: &str = "[sample]\nship_interval_seconds = 1\n[exporter]\nauto = false\n";
const LIMIT: Duration = Duration::from_secs(120);
const GPUS: u8 = 2;
const GPU: &str = "GPU-5eed0001-0000-4000-8000-000000000001";

/// Asks for it, and waits for what came of it: verdict and reason.
fn command(server: &server::Server, agent: &str, asked: &Value) -> (String, String) {
    let path = format!("/api/v1/agents/{agent}/commands");
    let body = asked.to_string();
    let answer = http::post(
        &server.place.web,
        &path,
        &[("content-type", "application/json")],
        body.as_bytes(),
    )
    .expect("the server answers");
    assert_eq!(answer.status, 202, "{asked}: {}", answer.text());
    let id = answer.json()["id"].as_str().expect("an id").to_owned();
    let told = wait::until(&format!("the result of {asked}"), LIMIT, || {
        let events = server.get("/api/v1/events?cluster=test&limit=200").json();
        let of_this = |it: &&Value| it["attributes"]["command"] == id.as_str();
        events["items"].as_array()?.iter().find(of_this).cloned()
    });
    assert_eq!(told["kind"], "command_result", "{told}");
    let text = |name: &str| {
        told["attributes"][name]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(text("action"), asked["action"].as_str().expect("text"));
    (text("verdict"), text("reason"))
}

on_both_databases!(
    a_command_goes_from_the_api_to_the_agent_and_its_result_comes_back,
    the_client_asks_the_agent_of_a_rank_for_a_profile_and_says_why_there_is_none,
);

fn a_command_goes_from_the_api_to_the_agent_and_its_result_comes_back(world: World) {
    let place = server::Place::new(&world).with("fleet.commit_interval_s=1");
    let server = place.start();
    let endpoint = format!("http://{}", server.place.grpc);
    let agent_place = agent::Place::new(&world, "node-1", &endpoint, EACH_SECOND);
    agent_place.show(&agent::gpus(0, GPUS));
    let agent = agent_place.start();
    let id = wait::until("the agent is known", LIMIT, || {
        let agents = server.get("/api/v1/agents").json();
        Some(agents["items"][0]["id"].as_str()?.to_owned())
    });
    wait::until("its GPUs are read", LIMIT, || {
        (agent.values("gpufleet_gpu_power_watts").len() == usize::from(GPUS)).then_some(())
    });
    let asked = |action: &str| serde_json::json!({ "action": action });
    let (verdict, reason) = command(&server, &id, &asked("release_nvml"));
    assert_eq!(verdict, "done", "{reason}");
    wait::until("no GPU is read, and each says why", LIMIT, || {
        let text = agent.get("/metrics")?.text();
        let power = "metric=\"gpufleet_gpu_power_watts\",reason=\"released\"";
        let none = agent.values("gpufleet_gpu_power_watts").is_empty();
        (none && text.matches(power).count() == usize::from(GPUS)).then_some(())
    });
    wait::until("the server shows it", LIMIT, || {
        let gpu = server.get(&format!("/api/v1/gpus/test/{GPU}")).text();
        gpu.contains("released").then_some(())
    });
    let (verdict, reason) = command(&server, &id, &asked("acquire_nvml"));
    assert_eq!(verdict, "done", "{reason}");
    wait::until("the GPUs are read again", LIMIT, || {
        (agent.values("gpufleet_gpu_power_watts").len() == usize::from(GPUS)).then_some(())
    });
    let about = |action: &str| serde_json::json!({ "action": action, "arguments": { "gpu": GPU } });
    // There is no CUDA driver here, and what could not be measured is no pass.
    let (verdict, reason) = command(&server, &id, &about("probe_now"));
    assert_eq!(verdict, "done", "{reason}");
    assert!(reason.starts_with("could not measure"), "{reason}");
    let (verdict, reason) = command(&server, &id, &about("capture_profile"));
    assert_eq!(verdict, "failed", "{reason}");
    let nobody = format!("no training process that uses the package gpufleet is listed on {GPU}");
    assert!(reason.starts_with(&nobody), "{reason}");
    agent.stop();
    server.stop();
}

/// A rank that outlives the test, and is killed with it.
const TRAINS_ON: Pace = Pace {
    per_second: 5,
    steps: 10_000,
};

fn the_client_asks_the_agent_of_a_rank_for_a_profile_and_says_why_there_is_none(world: World) {
    let server = server::Place::new(&world)
        .with("fleet.commit_interval_s=1")
        .start();
    let endpoint = format!("http://{}", server.place.grpc);
    let config = format!("{EACH_SECOND}{}", training::config(&world));
    let agent = agent::Place::new(&world, "node-1", &endpoint, &config).start();
    let mut trainers = training::start(&world, &[TRAINS_ON]);
    wait::until("its job and the node of its rank are known", LIMIT, || {
        trainers.iter_mut().for_each(|it| it.must_run());
        let run = server.get("/api/v1/runs/test/%2Ftrainer%2F/0");
        let known = (run.status == 200).then(|| run.json())?;
        let is_stored = server.get("/api/v1/jobs/test/%2Ftrainer%2F").status == 200;
        (is_stored && known["ranks"][0]["node"] == "node-1").then_some(())
    });
    let profile = |more: &[&str]| {
        let asked = ["profile", "trainer"].iter().chain(more);
        let asked = typed(&server.place.web, asked);
        (asked.code, asked.said, asked.complained)
    };
    // It is there, and takes no such request: it is written in Rust, and uses no profiler.
    let (code, said, error) = profile(&[]);
    assert_eq!(code, Some(1), "{said} {error}");
    let why = "there is no profile: its process takes no such request";
    assert!(said.starts_with(why), "{said} {error}");
    let (code, said, error) = profile(&["--rank", "7"]);
    assert_eq!(code, Some(3), "{said} {error}");
    assert!(error.contains("has no rank 7"), "{error}");
    drop(trainers);
    agent.stop();
    server.stop();
}

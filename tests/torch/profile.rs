//! A profile that somebody asks for over the API, of a process that trains with real PyTorch: the command's result, the
//! event of its rank, and the trace itself.

use std::path::Path;
use std::process::Command;

use gpufleet_tests::harness::process::Process;
use gpufleet_tests::harness::{World, agent, http, server, training, wait};
use serde_json::Value;

use super::{SHOWN_LIMIT, python};

/// Trains until it is killed.
const SCRIPT: &str = "
import time, torch, gpufleet
run = gpufleet.init(job_namespace='demo', job_name='profiled', job_uid='1', attempt=0, rank=0, world=1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
    run.step(tokens=16)
";

/// What reads a trace as a viewer does: its events, and the steps that are marked in it.
const READ: &str = "
import gzip, json, sys
whole = json.load(gzip.open(sys.argv[1], 'rt'))
events = whole if isinstance(whole, list) else whole['traceEvents']
names = [str(event.get('name')) for event in events]
steps = {name for name in names if name.startswith('ProfilerStep#')}
print(len(steps), sum(name.startswith('aten::') for name in names) > 0)
";

fn event(server: &server::Server, is_meant: impl Fn(&Value) -> bool) -> Option<Value> {
    let events = server.get("/api/v1/events?cluster=test&limit=200").json();
    let all = events["items"].as_array()?;
    all.iter().find(|it| is_meant(it)).cloned()
}

#[test]
fn a_profile_that_is_asked_for_lies_where_the_answer_says_and_holds_the_steps() {
    let world = World::new();
    let server = server::Place::sqlite(&world)
        .with("fleet.commit_interval_s=1")
        .start();
    let endpoint = format!("http://{}", server.place.grpc);
    let agent = agent::Place::new(&world, "node-1", &endpoint, &training::config(&world)).start();
    let folder = world.path("profiles");
    let mut command = Command::new(python());
    command
        .args(["-c", SCRIPT])
        .env("GPUFLEET_HOOKS_SOCKET", training::socket(&world))
        .env("GPUFLEET_PROFILE_DIR", &folder);
    let mut script = Process::start("python", command, &world.path("profiled.log"));
    wait::until("the rank is there", SHOWN_LIMIT, || {
        script.must_run();
        let run = server.get("/api/v1/runs/test/demo%2Fprofiled%2F1/0");
        (run.status == 200).then_some(())
    });
    let agents = server.get("/api/v1/agents").json();
    let id = agents["items"][0]["id"].as_str().expect("it has sent");
    let arguments = serde_json::json!({ "rank": "demo/profiled/1/0/0", "steps": "2" });
    let body = serde_json::json!({ "action": "capture_profile", "arguments": arguments });
    let answer = http::post(
        &server.place.web,
        &format!("/api/v1/agents/{id}/commands"),
        &[("content-type", "application/json")],
        body.to_string().as_bytes(),
    );
    let answer = answer.expect("the server answers");
    assert_eq!(answer.status, 202, "{}", answer.text());
    let asked = answer.json()["id"].clone();
    let came = wait::until("the result of the command", SHOWN_LIMIT, || {
        script.must_run();
        event(&server, |it| it["attributes"]["command"] == asked)
    });
    assert_eq!(came["attributes"]["verdict"], "done", "{came}");
    let told = wait::until("the event of the rank", SHOWN_LIMIT, || {
        event(&server, |it| it["kind"] == "profiled")
    });
    let path = told["attributes"]["path"].as_str().expect("a path");
    assert_eq!(told["attributes"]["steps"], "2", "{told}");
    let reason = came["attributes"]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains(path), "{reason}: {path}");
    assert_eq!(Path::new(path).parent(), Some(folder.as_path()));
    let bytes = std::fs::metadata(path).expect("the file is there").len();
    assert_eq!(told["attributes"]["bytes"], bytes.to_string(), "{told}");
    let read = Command::new(python()).args(["-c", READ, path]).output();
    let read = read.expect("python starts");
    let said = String::from_utf8_lossy(&read.stdout);
    let error = String::from_utf8_lossy(&read.stderr);
    assert_eq!(said.trim(), "2 True", "{error}");
    let page = server
        .get("/clusters/test/jobs/demo%2Fprofiled%2F1/0")
        .text();
    assert!(page.contains(path), "the job's page has it: {page}");
    agent.stop();
    server.stop();
}

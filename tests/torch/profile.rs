//! A profile that somebody asks of a rank that trains with real PyTorch: what the client says, the event of the rank,
//! and the trace itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpufleet_tests::harness::client::typed;
use gpufleet_tests::harness::{World, server, wait};

use super::demo::CLUSTER;
use super::{SHOWN_LIMIT, python};

/// What reads a trace as a viewer does: the steps that are marked in it, and whether operators are in it. A torch
/// that is built without Kineto, as Debian's, writes its events as a list.
const READ: &str = "
import gzip, json, sys
whole = json.load(gzip.open(sys.argv[1], 'rt'))
events = whole if isinstance(whole, list) else whole['traceEvents']
names = [str(event.get('name')) for event in events]
steps = {name for name in names if name.startswith('ProfilerStep#')}
print(len(steps), any(name.startswith('aten::') for name in names))
";

/// Where the job's processes put them.
pub(super) fn folder(world: &World) -> PathBuf {
    world.path("profiles")
}

/// Asks rank 0 of the job at the prompt, while it trains.
pub(super) fn of_two_steps_lies_where_the_client_says(
    world: &World,
    server: &server::Server,
    job: &str,
) {
    let asked = ["profile", "demo-training", "--steps", "2", "--json"];
    let asked = typed(&server.place.web, asked);
    let (said, error) = (&asked.said, &asked.complained);
    assert_eq!(asked.code, Some(0), "{error} {said}");
    let came = asked.json();
    assert_eq!(came["attributes"]["verdict"], "done", "{came}");
    let told = wait::until("the event of the rank", SHOWN_LIMIT, || {
        let events = server.get(&format!("/api/v1/events?cluster={CLUSTER}&kind=profiled"));
        events.json()["items"].as_array()?.first().cloned()
    });
    let rank = format!("{}/0/0", job.replace("%2F", "/"));
    assert_eq!(told["resource_id"], rank, "{told}");
    assert_eq!(told["attributes"]["steps"], "2", "{told}");
    let path = told["attributes"]["path"].as_str().expect("a path");
    let reason = came["attributes"]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains(path), "{reason}: {path}");
    assert_eq!(Path::new(path).parent(), Some(folder(world).as_path()));
    let bytes = std::fs::metadata(path).expect("the file is there").len();
    assert_eq!(told["attributes"]["bytes"], bytes.to_string(), "{told}");
    let read = Command::new(python()).args(["-c", READ, path]).output();
    let read = read.expect("python starts");
    let error = String::from_utf8_lossy(&read.stderr);
    assert_eq!(
        String::from_utf8_lossy(&read.stdout).trim(),
        "2 True",
        "{error}"
    );
    let page = server.get(&format!("/clusters/{CLUSTER}/jobs/{job}/0"));
    let page = page.text();
    assert!(page.contains(path), "the job's page has it: {page}");
}

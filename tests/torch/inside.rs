//! A training process that probes its own GPU, from the kernel's answer to the incident and its end: Python, its
//! region of memory, the agent, the server. The GPU is the stand-ins': NVML lists the process on it, CUDA's driver is
//! the process's own.

use std::path::Path;
use std::process::Command;

use gpufleet_standin_nvml::load::Load;
use gpufleet_standin_nvml::{Process as OnGpu, Scenario};
use gpufleet_tests::harness::process::Process;
use gpufleet_tests::harness::{World, agent, built, repository, server, training, wait};
use serde_json::Value;

use super::{SHOWN_LIMIT, python};

/// A wrong SM in one kernel; one that gets nothing to do.
const WRONG: &str = r#"{ wrong = ["gpufleet_tensor_bf16", 4] }"#;
const ABSENT: &str = "{ absent = 4 }";

/// What is wrong with the GPU from now on.
fn breaks(faults: &Path, text: &str) {
    let next = faults.with_extension("next");
    std::fs::write(&next, text).expect("the test's own folder can be written");
    std::fs::rename(&next, faults).expect("so can its files be renamed");
}

fn script(world: &World, faults: &Path) -> Process {
    let mut command = Command::new(python());
    command
        .arg(repository().join("tests/torch/inside.py"))
        .arg(faults)
        .env("PYTHONPATH", repository().join("hooks/python/tests"))
        .env(
            "GPUFLEET_STANDIN_CUDA",
            built("libgpufleet_standin_cuda.so"),
        )
        .env("GPUFLEET_HOOKS_SOCKET", training::socket(world));
    Process::start("python", command, &world.path("inside.log"))
}

/// How many probes the script says were over, and what the last came to.
fn said(script: &mut Process) -> Option<(u64, String)> {
    script.must_run();
    let output = script.output();
    let whole = &output[..=output.rfind('\n')?];
    let (runs, verdict) = whole.lines().last()?.split_once(' ')?;
    Some((runs.parse().ok()?, verdict.to_owned()))
}

/// Waits until the probe said this in so many more runs.
fn says(script: &mut Process, verdict: &str, more: u64) {
    let (before, _) = said(script).expect("it has said something");
    wait::until(verdict, SHOWN_LIMIT, || {
        said(script).filter(|it| it.1 == verdict && it.0 >= before + more)
    });
}

/// The incidents of GPUs.
fn incidents(server: &server::Server) -> Vec<Value> {
    let answer = server.get("/api/v1/incidents?cluster=test").json();
    let items = answer["items"].as_array().cloned().unwrap_or_default();
    let of_gpu = items.into_iter();
    of_gpu.filter(|it| it["family"] == "gpu_fault").collect()
}

#[test]
fn what_a_process_finds_wrong_on_its_gpu_is_one_incident_until_it_was_measured_again() {
    let world = World::new();
    let faults = world.file("faults", "");
    let mut script = script(&world, &faults);
    let server = server::Place::sqlite(&world)
        .with("fleet.commit_interval_s=2")
        .start();
    let endpoint = format!("http://{}", server.place.grpc);
    let place = agent::Place::new(&world, "node-1", &endpoint, &training::config(&world));
    let mut scenario = Scenario::of(1, "NVIDIA H100 80GB HBM3", Load::Training);
    scenario.gpus[0].processes = vec![OnGpu {
        pid: script.id(),
        memory_mib: 60_000,
        sm_percent: 90,
        mig: None,
    }];
    place.show(&scenario);
    let agent = place.start();
    let verdict = |expected: f64| {
        let found = agent.values("gpufleet_agent_probe_verdict_code");
        (found == [expected]).then_some(())
    };
    wait::until("it passes", SHOWN_LIMIT, || {
        script.must_run();
        verdict(1.0)
    });
    assert_eq!(incidents(&server), Vec::<Value>::new());

    breaks(&faults, WRONG);
    let open = wait::until("it is an incident", SHOWN_LIMIT, || {
        script.must_run();
        incidents(&server).into_iter().next()
    });
    assert_eq!(open["what"], "the probe found SM 4 wrong", "{open}");
    let gpu = open["place"]["gpu"].as_str().unwrap_or_default();
    assert!(gpu.starts_with("GPU-"), "{open}");
    assert_eq!(open["place"]["node"], "node-1", "{open}");
    let id = open["id"].as_str().unwrap_or_default();
    let page = server.get(&format!("/incidents/{id}")).text();
    assert!(page.contains("the probe found SM 4 wrong"), "{page}");

    // A pass without that SM says nothing of it: not in the process, and so nowhere else.
    breaks(&faults, ABSENT);
    says(&mut script, "fail", 12);
    verdict(3.0).expect("the agent has it as the process does");
    let still = incidents(&server);
    assert_eq!(still.len(), 1, "{still:#?}");
    assert_ne!(still[0]["state"], "resolved", "{still:#?}");

    breaks(&faults, "");
    says(&mut script, "pass", 1);
    let over = wait::until("it is over", SHOWN_LIMIT, || {
        script.must_run();
        let all = incidents(&server);
        assert_eq!(all.len(), 1, "one GPU, one incident: {all:#?}");
        (all[0]["state"] == "resolved").then(|| all[0].clone())
    });
    assert_eq!(over["id"], open["id"]);
    verdict(1.0).expect("it passes again");
    agent.stop();
    server.stop();
}

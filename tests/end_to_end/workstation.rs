//! A plain workstation, without a kubelet and without Slurm: who trains there, what his GPU does, and that he pays.

use std::path::Path;
use std::time::Duration;

use gpufleet_analysis::money;
use gpufleet_server::money::report::month_of;
use gpufleet_standin_nvml::load::Load;
use gpufleet_standin_nvml::scenario::Process;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_tests::harness::{World, agent, server, wait};
use gpufleet_tests::on_both_databases;
use serde_json::{Value, json};

/// The start, some rounds and ticks, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The process that trains.
const PID: u32 = 4_711;

/// How far the clock of the server goes on while it is down: minutes of the ledger are due five minutes after they
/// began, and are looked at once they are 90 s old.
const LATER: &str = "+15m";

/// What an hour of the card costs, nano-USD.
const HOUR: i128 = 36_000_000_000;

/// A /proc in which one process of root trains, in no pod and in no job.
fn write_process(proc: &Path) {
    let folder = proc.join(PID.to_string());
    std::fs::create_dir_all(&folder).expect("the test's own folder");
    let zeros = "0 ".repeat(18);
    let stat = format!("{PID} (python3) S {zeros}70 0\n");
    for (name, text) in [
        ("stat", stat.as_str()),
        ("cgroup", "0::/user.slice/user-0.slice/session-3.scope\n"),
        ("cmdline", "/usr/bin/python3\0train.py\0"),
        ("status", "Name:\tpython3\nUid:\t0\t0\t0\t0\n"),
    ] {
        std::fs::write(folder.join(name), text).expect("the test's own folder");
    }
}

/// What is asked of whom: a kubelet and a Slurm that are not there.
fn config(world: &World) -> String {
    let path = |name: &str| world.path(name).display().to_string();
    format!(
        "[sample]\nship_interval_seconds = 1\n[exporter]\nauto = false\n\
         [host]\nenabled = false\nproc_folder = \"{}\"\n\
         [attribute]\nperiod_seconds = 1\nkubelet_socket = \"{}\"\nslurm_jobs_folder = \"{}\"\n\
         scontrol_path = \"{}\"\nsqueue_path = \"{}\"\n",
        path("proc"),
        path("no-kubelet/kubelet.sock"),
        path("no-jobs"),
        path("no-scontrol"),
        path("no-squeue"),
    )
}

/// GPU-milliseconds and nano-USD of a sum in a report.
fn sum(told: &Value) -> (i64, i128) {
    let millis = told["gpu_millis"].as_i64().unwrap_or(0);
    let cost = told["cost"].as_str().and_then(|it| money::parse(it).ok());
    (millis, cost.map_or(0, i128::from))
}

on_both_databases!(a_process_without_pod_or_job_is_its_user_s_who_works_and_pays);

fn a_process_without_pod_or_job_is_its_user_s_who_works_and_pays(world: World) {
    let owners = "from,until,kind,key,value,team\n2020-01-01,,user,,root,vision\n";
    let owners = world.file("owners.csv", owners).display().to_string();
    let place = server::Place::new(&world)
        .with("fleet.commit_interval_s=1")
        .with("detect.gpu_hour_usd={ 'NVIDIA H100 80GB HBM3' = '36' }")
        .with(&format!("cost.tables=['{owners}']"));
    let month = month_of(Timestamp::from_seconds(wait::unix_seconds()));
    let server = place.start();
    write_process(&world.path("proc"));
    let endpoint = format!("http://{}", server.place.grpc);
    let workstation = agent::Place::new(&world, "desk-7", &endpoint, &config(&world));
    let mut scenario = agent::gpus(0, 1);
    scenario.gpus[0].load = Load::Training;
    scenario.gpus[0].processes = vec![Process {
        pid: PID,
        memory_mib: 20_000,
        sm_percent: 90,
        mig: None,
    }];
    workstation.show(&scenario);
    let agent = workstation.start();
    let gpu = wait::until("its user holds the GPU and works", LIMIT, || {
        let listed = server.get("/api/v1/gpus?cluster=test").json();
        let id = listed["items"][0]["id"].as_str()?.to_owned();
        let gpu = server.get(&format!("/api/v1/gpus/test/{id}")).json();
        let is_his = gpu["holder"] == json!({"known": true, "name": "process:root/python3"});
        let works = gpu["state"].as_str()?.starts_with("active");
        (is_his && works).then_some(gpu)
    });
    for name in ["k8s.pod.name", "gpufleet.holder.unknown", "slurm.account"] {
        assert_eq!(gpu["attributes"][name], Value::Null, "{gpu}");
    }
    // A while of it, so that its money is more than the first ticks.
    let worked = |server: &server::Server| {
        let id = gpu["id"].as_str().expect("it has one");
        let path = format!("/api/v1/gpus/test/{id}/minutes");
        let minutes = server.get(&path).json();
        let minutes = minutes["minutes"].as_array().cloned().unwrap_or_default();
        let active = minutes
            .iter()
            .filter_map(|it| it["active_seconds"].as_i64());
        active.sum::<i64>()
    };
    wait::until("it worked for 20 s", LIMIT, || {
        (worked(&server) >= 20).then_some(())
    });
    agent.catches_up();
    agent.stop();
    let server = server.stop().later(LATER).start();
    let path = format!("/api/v1/reports/chargeback?cluster=test&by=team,job&month={month}");
    let report = wait::until("his time is in the report", LIMIT, || {
        let report = server.get(&path).json();
        let groups = report["groups"].as_array()?;
        let his = groups.iter().any(|it| it["by"]["team"] == "vision");
        his.then_some(report)
    });
    let groups = report["groups"].as_array().expect("there are some");
    let mut his = groups.iter().filter(|it| it["by"]["team"] == "vision");
    let (his, others) = (his.next().expect("it was there"), his.next());
    assert_eq!(others, None, "{report}");
    let states = his["states"].as_object().expect("there are some");
    let (mut active, mut cost) = (0, 0);
    for (state, told) in states {
        assert!(state.starts_with("active"), "{state} is his too: {report}");
        let told = sum(told);
        (active, cost) = (active + told.0, cost + told.1);
    }
    assert!(active >= 20_000, "{active} ms: {report}");
    // Each piece is rounded to the nano-dollar.
    let expected = HOUR * i128::from(active) / 3_600_000;
    let rounded = states.len() as i128;
    assert!((cost - expected).abs() <= rounded, "{cost}: {report}");
    for state in ["unallocated", "parked", "held_empty"] {
        let is_idle = |it: &&Value| it["states"][state] != Value::Null;
        assert_eq!(groups.iter().find(is_idle), None, "{state}");
    }
    assert_eq!(report["balance"]["is_exact"], true, "{report}");
    server.stop();
}

//! A driver call that does not return: the other GPUs report on, with no pause of more than two ticks in the
//! record, and the agent says which hangs.

use std::collections::BTreeMap;
use std::time::Duration;

use gpufleet_standin_nvml::load::Load;
use gpufleet_standin_nvml::{Fault, FaultKind, Scenario};
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::{Minute, Timestamp};
use gpufleet_tests::harness::{World, agent, checker, server, wait};
use serde_json::Value;

const GPUS: u8 = 8;
const HUNG: u8 = 3;
const ENERGY: &str = "gpufleet_gpu_energy_joules_total";
/// Two ship intervals and the start.
const FIRST_DATA_LIMIT: Duration = Duration::from_secs(120);
/// A change is read, shipped and told, on a busy machine.
const TOLD_LIMIT: Duration = Duration::from_secs(120);
/// Two ticks of 10 s: for so long, by the record, a GPU beside the one that hangs may be unread.
const TWO_TICKS_S: i64 = 20;

/// The `gpu` labels under which the agent serves a power reading now, with the time of the newest.
fn reporting(agent: &agent::Agent) -> Vec<String> {
    let text = agent
        .get("/metrics")
        .map(|answer| answer.text())
        .unwrap_or_default();
    let mut gpus: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("DCGM_FI_DEV_POWER_USAGE{"))
        .filter_map(|line| line.split("gpu=\"").nth(1)?.split('"').next())
        .map(str::to_owned)
        .collect();
    gpus.sort();
    gpus
}

#[test]
fn a_hang_in_one_gpus_call_leaves_the_other_seven_reporting_within_two_ticks() {
    let world = World::new();
    let began = Timestamp::from_seconds(wait::unix_seconds());
    let server = server::Place::new(&world).start();
    let endpoint = format!("http://{}", server.place.grpc);
    let place = agent::Place::new(&world, "node-1", &endpoint, "");
    // Time goes on in this scenario, so that a stale value would be seen as one.
    let mut scenario = Scenario {
        time_s: None,
        ..Scenario::of(GPUS, "NVIDIA H100 80GB HBM3", Load::Training)
    };
    place.show(&scenario);
    let agent = place.start();
    let all: Vec<_> = (0..GPUS).map(|gpu| gpu.to_string()).collect();
    wait::until("all eight GPUs report", FIRST_DATA_LIMIT, || {
        (reporting(&agent) == all).then_some(())
    });
    wait::until("the server has all eight", FIRST_DATA_LIMIT, || {
        (energies(&server).len() == usize::from(GPUS)).then_some(())
    });
    scenario.faults = vec![Fault::of(HUNG, FaultKind::Hang)];
    let hung_at = wait::unix_seconds();
    place.show(&scenario);
    let then = energies(&server);
    let hung = format!("GPU-5eed{HUNG:04x}");
    let is_hung = |id: &str| id.starts_with(&hung);
    wait::until("the server hears of the other seven", TOLD_LIMIT, || {
        let now = energies(&server);
        let others = then.iter().filter(|(id, _)| !is_hung(id));
        let mut grown = others.map(|(id, then)| now.get(id).is_some_and(|now| now > then));
        grown.all(|it| it).then_some(())
    });
    let others: Vec<_> = all
        .iter()
        .filter(|gpu| **gpu != HUNG.to_string())
        .cloned()
        .collect();
    wait::until(
        "the seven others report, the hung one does not",
        TOLD_LIMIT,
        || (reporting(&agent) == others).then_some(()),
    );
    // And they go on: their energy counters still move.
    let before = agent.values(ENERGY);
    wait::until("their counters still move", TOLD_LIMIT, || {
        let now = agent.values(ENERGY);
        (now.len() == others.len() && now.iter().zip(&before).all(|(now, then)| now > then))
            .then_some(())
    });
    wait::until(
        "the server shows no value of the hung one",
        TOLD_LIMIT,
        || {
            let now = energies(&server);
            let gone = !now.keys().any(|id| is_hung(id)) && now.len() == others.len();
            gone.then_some(())
        },
    );
    let health = agent.get("/healthz").expect("the agent answers");
    assert!(
        health.text().contains("hang"),
        "/healthz must say that a GPU hangs: {}",
        health.text()
    );
    agent.stop();
    let place = server.stop();
    for id in then.keys().filter(|id| !is_hung(id)) {
        let seconds = observed(&place.database, id, began);
        assert!(seconds.last() > Some(&hung_at), "{id}: {seconds:?}");
        let longest = seconds.windows(2).map(|it| it[1] - it[0]).max();
        assert!(longest <= Some(TWO_TICKS_S), "{id}: {seconds:?}");
    }
}

/// The seconds of Unix time in which a GPU was read.
fn observed(database: &str, id: &str, began: Timestamp) -> Vec<i64> {
    let ended = Timestamp::from_seconds(wait::unix_seconds() + 60);
    let minutes = began.minute()..ended.minute();
    let rows = checker::rows(database, "test", ResourceKind::Gpu, id, minutes);
    let of_row = |(minute, row): (&Minute, &MinuteRow)| {
        let (start, bits) = (minute.start().seconds(), row.bitmaps.observed);
        (0..60)
            .filter(move |it| bits >> it & 1 == 1)
            .map(move |it| start + it)
    };
    rows.iter().flat_map(of_row).collect()
}

/// The energy of every GPU of which the server has a value now, by id.
fn energies(server: &server::Server) -> BTreeMap<String, f64> {
    let list = server.get("/api/v1/gpus?cluster=test").json();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let energy = |item: &Value| {
        let id = item["id"].as_str()?;
        let gpu = server.get(&format!("/api/v1/gpus/test/{id}")).json();
        let readings = gpu["all_readings"].as_array()?;
        let energy = readings.iter().find(|it| it["metric"] == ENERGY)?;
        Some((id.to_owned(), energy["value"].as_f64()?))
    };
    items.iter().filter_map(energy).collect()
}

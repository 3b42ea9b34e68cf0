//! A driver call that does not return: the other GPUs report on, and the agent says which hangs.

use std::time::Duration;

use gpufleet_standin_nvml::load::Load;
use gpufleet_standin_nvml::{Fault, FaultKind, Scenario};
use gpufleet_tests::harness::{World, agent, wait};

const GPUS: u8 = 8;
const HUNG: u8 = 3;
const ENERGY: &str = "gpufleet_gpu_energy_joules_total";
/// Two ticks of 10 s.
const TWO_TICKS: Duration = Duration::from_secs(20);

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
    let place = agent::Place::new(&world, "node-1", "", "");
    // Time goes on in this scenario, so that a stale value would be seen as one.
    let mut scenario = Scenario {
        time_s: None,
        ..Scenario::of(GPUS, "NVIDIA H100 80GB HBM3", Load::Training)
    };
    place.show(&scenario);
    let agent = place.start();
    let all: Vec<_> = (0..GPUS).map(|gpu| gpu.to_string()).collect();
    wait::until("all eight GPUs report", Duration::from_secs(30), || {
        (reporting(&agent) == all).then_some(())
    });
    scenario.faults = vec![Fault::of(HUNG, FaultKind::Hang)];
    place.show(&scenario);
    let others: Vec<_> = all
        .iter()
        .filter(|gpu| **gpu != HUNG.to_string())
        .cloned()
        .collect();
    wait::until(
        "the seven others report, the hung one does not",
        TWO_TICKS,
        || (reporting(&agent) == others).then_some(()),
    );
    // And they go on: their energy counters still move.
    let before = agent.values(ENERGY);
    wait::until("their counters still move", TWO_TICKS, || {
        let now = agent.values(ENERGY);
        (now.len() == others.len() && now.iter().zip(&before).all(|(now, then)| now > then))
            .then_some(())
    });
    let health = agent.get("/healthz").expect("the agent answers");
    assert!(
        health.text().contains("hang"),
        "/healthz must say that a GPU hangs: {}",
        health.text()
    );
}

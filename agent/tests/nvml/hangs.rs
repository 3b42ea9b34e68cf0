//! A driver call that does not return costs its GPU, not the node.

use std::time::Duration;

use gpufleet_agent::commands::NvmlAction;
use gpufleet_standin_nvml::load::Load;
use gpufleet_standin_nvml::{Fault, FaultKind, Scenario};
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::sample::Missing;

use crate::bench::Bench;

const H200: &str = "NVIDIA H200";

/// The sampling period by default, whose turns end before a hanging call is given up.
const TICK: Duration = Duration::from_secs(1);

fn answering(round: &crate::bench::Round) -> Vec<u32> {
    round
        .gpus()
        .into_keys()
        .filter(|index| round.of(*index, &gpu::TEMPERATURE).is_ok())
        .collect()
}

#[tokio::test]
async fn a_hang_in_one_gpus_call_leaves_the_other_seven_reporting_within_two_ticks() {
    // In whatever function it hangs, the first one, one in the middle and the last one of a round.
    for function in [
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetTemperature",
        "nvmlGpmMetricsGet",
    ] {
        let mut bench = Bench::every(TICK, Scenario::of(8, H200, Load::Training), |_| {});
        assert_eq!(answering(&bench.opened().await).len(), 8);
        bench.settled().await;
        // So that GPM has a window to compare.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let hang = Fault::of(3, FaultKind::Hang).in_function(function);
        bench.change(|scenario| scenario.faults = vec![hang]).await;
        let first = bench.read().await;
        let second = bench.read().await;
        assert_eq!(answering(&second), [0, 1, 2, 4, 5, 6, 7], "{function}");
        assert_eq!(
            second.of(3, &gpu::TEMPERATURE),
            Err(Missing::DriverHang),
            "{function}"
        );
        let mut events = first.0.events;
        events.extend(second.0.events);
        let told: Vec<_> = events
            .iter()
            .filter(|it| it.kind == EventKind::DriverHang)
            .collect();
        assert_eq!(told.len(), 1, "{function}: {events:?}");
        assert_eq!(told[0].attributes["gpu"], "3");
        assert_eq!(told[0].attributes["function"], function);
        assert!(told[0].attributes["since"].parse::<i64>().is_ok());
        // It stays so, and is told once.
        let third = bench.read().await;
        assert_eq!(answering(&third).len(), 7);
        assert_eq!(third.kinds(), []);
    }
}

#[tokio::test]
async fn a_gpu_that_hung_is_read_again_when_the_driver_answers() {
    let mut bench = Bench::new(Scenario::of(4, H200, Load::Training));
    bench.read().await;
    let hang = Fault::of(1, FaultKind::Hang).in_function("nvmlDeviceGetTemperature");
    bench.change(|scenario| scenario.faults = vec![hang]).await;
    for _ in 0..3 {
        bench.read().await;
    }
    // Tried again while it still hangs: the others do not notice.
    bench.reader.retry_now();
    for _ in 0..4 {
        let round = bench.read().await;
        assert_eq!(answering(&round), [0, 2, 3]);
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    bench.change(|scenario| scenario.faults.clear()).await;
    bench.reader.retry_now();
    let mut kinds = Vec::new();
    for _ in 0..200 {
        let round = bench.read().await;
        kinds.extend(round.kinds());
        if answering(&round).len() == 4 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(kinds, [EventKind::DriverRecovered]);
}

#[tokio::test]
async fn two_gpus_that_hang_one_after_the_other_cost_two() {
    let mut bench = Bench::new(Scenario::of(4, H200, Load::Training));
    bench.read().await;
    bench
        .change(|scenario| {
            let hang =
                |gpu| Fault::of(gpu, FaultKind::Hang).in_function("nvmlDeviceGetTemperature");
            scenario.faults = vec![hang(0), hang(2)];
        })
        .await;
    let mut last = bench.read().await;
    for _ in 0..4 {
        last = bench.read().await;
    }
    assert_eq!(answering(&last), [1, 3]);
}

#[tokio::test]
async fn a_gpu_that_hangs_from_the_start_is_shown_under_its_own_name() {
    let mut scenario = Scenario::of(2, H200, Load::Training);
    scenario.faults = vec![Fault::of(1, FaultKind::Hang).in_function("nvmlDeviceGetTemperature")];
    let round = Bench::new(scenario).read().await;
    assert_eq!(answering(&round), [0]);
    assert_eq!(round.of(1, &gpu::TEMPERATURE), Err(Missing::DriverHang));
    let id = &round.gpu(1).resource.id;
    assert_eq!(**id, *"GPU-5eed0001-0000-4000-8000-000000000001");
    assert_eq!(round.event(EventKind::DriverHang).resource_id, *id);
}

#[tokio::test]
async fn a_gpu_that_hangs_when_its_handle_is_asked_for_costs_the_longer_limit_once() {
    let mut scenario = Scenario::of(4, H200, Load::Training);
    scenario.faults = vec![Fault::of(1, FaultKind::Hang)];
    let mut bench = Bench::with(scenario, |config| config.open_timeout_ms = 2_000);
    let round = bench.read().await;
    assert_eq!(answering(&round), [0, 2, 3]);
    assert_eq!(
        round.event(EventKind::DriverHang).attributes["function"],
        "nvmlDeviceGetHandleByIndex_v2"
    );
    let round = bench.read().await;
    assert_eq!(answering(&round), [0, 2, 3]);
    assert_eq!(
        round.of(1, &gpu::POWER),
        Err(Missing::DriverHang),
        "it is shown all the same"
    );
    assert_eq!(&*round.gpu(1).resource.id, "node-1/index-1");
}

#[tokio::test]
async fn a_library_that_hangs_as_a_whole_is_reported_and_tried_again_later() {
    let mut scenario = Scenario::of(2, H200, Load::Training);
    scenario.faults = vec![Fault {
        gpu: None,
        ..Fault::of(0, FaultKind::Hang).in_function("nvmlInit_v2")
    }];
    let mut bench = Bench::with(scenario, |config| config.open_timeout_ms = 2_000);
    let round = bench.read().await;
    assert_eq!(
        round.event(EventKind::DriverHang).attributes["function"],
        "nvmlInit_v2"
    );
    bench.change(|scenario| scenario.faults.clear()).await;
    assert_eq!(bench.read().await.gpus().len(), 0, "not before its time");
    bench.reader.retry_now();
    assert_eq!(answering(&bench.read().await).len(), 2);
}

#[tokio::test]
async fn a_killed_child_is_replaced() {
    let mut bench = Bench::new(Scenario::of(2, H200, Load::Training));
    bench.read().await;
    let child = bench.reader.child_id().expect("a child");
    let killed = std::process::Command::new("kill")
        .args(["-9", &child.to_string()])
        .status();
    assert!(killed.expect("kill runs").success());
    tokio::time::sleep(Duration::from_millis(100)).await;
    let round = bench.read().await;
    assert_eq!(round.of(0, &gpu::POWER), Err(Missing::Unknown));
    assert!(
        round
            .event(EventKind::ReaderFailed)
            .message
            .contains("ended")
    );
    bench.reader.retry_now();
    let round = bench.read().await;
    assert_eq!(answering(&round).len(), 2);
    assert_eq!(round.kinds(), [EventKind::ReaderRecovered]);
    assert_ne!(bench.reader.child_id(), Some(child));
}

#[tokio::test]
async fn released_means_that_no_process_holds_the_driver() {
    let mut bench = Bench::new(Scenario::of(2, H200, Load::Training));
    bench.read().await;
    let child = bench.reader.child_id().expect("a child");
    let released = bench.order(NvmlAction::Release).await;
    let round = bench.read().await;
    assert_eq!(released.await.expect("an answer"), Ok(()));
    assert_eq!(round.of(1, &gpu::POWER), Err(Missing::Released));
    assert!(
        !std::path::Path::new(&format!("/proc/{child}")).exists(),
        "the child is gone"
    );
    assert_eq!(
        bench.read().await.of(1, &gpu::POWER),
        Err(Missing::Released)
    );
    let acquired = bench.order(NvmlAction::Acquire).await;
    let round = bench.read().await;
    assert_eq!(acquired.await.expect("an answer"), Ok(()));
    assert_eq!(answering(&round).len(), 2);
}

//! Whether anyone listens for a GPU's XIDs is told: that none came is said of those alone that are heard.

use std::time::Duration;

use gpufleet_agent::read::nvml::xid::TOLD_FOR;
use gpufleet_standin_nvml::load::Load;
use gpufleet_standin_nvml::{Fault, FaultKind, Scenario, Xid};
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::sample::{Missing, Reading};

use crate::bench::{Bench, Round, assert_close};
use crate::changes::until;

const H100: &str = "NVIDIA H100 80GB HBM3";
const WAIT: &str = "nvmlEventSetWait_v2";

/// A fault of the wait, which is about no GPU.
fn of_wait(kind: FaultKind) -> Fault {
    Fault {
        gpu: None,
        ..Fault::of(0, kind).in_function(WAIT)
    }
}

fn xid(gpu: u8, code: u64) -> Xid {
    Xid {
        gpu,
        code,
        after_s: None,
        mig: None,
    }
}

/// Turns until this is what the newest XID of a GPU reads.
async fn until_newest(bench: &mut Bench, index: u32, wanted: Reading) -> Round {
    // Ten seconds on an idle machine: many more than it takes.
    for _ in 0..500 {
        let round = bench.read().await;
        if round.of(index, &gpu::LAST_XID) == wanted {
            return round;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the newest XID of GPU {index} is never {wanted:?}");
}

/// Turns until the one XID comes; it is this GPU's.
async fn until_xid_of(bench: &mut Bench, index: u32) {
    let (round, _) = until(bench, EventKind::Xid).await;
    let heard = round.event(EventKind::Xid);
    assert_eq!(heard.resource_id, round.gpu(index).resource.id);
}

#[tokio::test]
async fn a_gpu_that_nobody_is_registered_for_has_no_code_and_hurts_no_other() {
    let mut scenario = Scenario::of(3, H100, Load::Training);
    scenario.faults = vec![
        Fault::of(0, FaultKind::NoPermission).in_function("nvmlDeviceRegisterEvents"),
        Fault::of(2, FaultKind::Unknown).in_function("nvmlDeviceGetSupportedEventTypes"),
    ];
    let mut bench = Bench::new(scenario);
    let first = bench.read().await;
    for index in 0..3 {
        let newest = first.of(index, &gpu::LAST_XID);
        assert_eq!(newest, Err(Missing::NotReady), "nobody listens yet");
    }
    bench.listens().await;
    let round = bench.read().await;
    assert_close(round.of(1, &gpu::LAST_XID), 0.0, "it is heard");
    for (index, missing) in [(0, Missing::NoPermission), (2, Missing::Unknown)] {
        assert_eq!(round.of(index, &gpu::LAST_XID), Err(missing));
        assert!(round.of(index, &gpu::POWER).is_ok(), "it is read");
    }
    bench
        .change(|scenario| scenario.xids = vec![xid(1, 31)])
        .await;
    until_xid_of(&mut bench, 1).await;
}

#[tokio::test]
async fn a_lost_gpu_does_not_deafen_the_others() {
    let mut bench = Bench::new(Scenario::of(3, H100, Load::Training));
    bench.read().await;
    bench.listens().await;
    bench
        .change(|scenario| {
            scenario.xids = vec![xid(1, 79)];
            scenario.faults = vec![Fault::of(1, FaultKind::Lost)];
        })
        .await;
    until_xid_of(&mut bench, 1).await;
    // The set with the lost GPU is refused, and another one made of the others.
    let calls = bench.calls();
    for _ in 0..500 {
        if calls.of(None, "nvmlEventSetCreate") > 1 {
            break;
        }
        bench.read().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(calls.of(None, "nvmlEventSetCreate"), 2);
    until_newest(&mut bench, 0, Ok(0.0)).await;
    let round = until_newest(&mut bench, 2, Ok(0.0)).await;
    let newest = round.of(1, &gpu::LAST_XID);
    assert_close(newest, 79.0, "what it said is told while nobody hears it");
    bench
        .change(|scenario| scenario.xids.push(xid(2, 74)))
        .await;
    until_xid_of(&mut bench, 2).await;
    bench.pass(TOLD_FOR);
    let later = bench.read().await;
    assert_eq!(later.of(1, &gpu::LAST_XID), Err(Missing::GpuLost));
    assert_close(later.of(0, &gpu::LAST_XID), 0.0, "none came");
}

#[tokio::test]
async fn a_wait_that_the_driver_refuses_is_told_with_its_reason() {
    let mut scenario = Scenario::of(2, H100, Load::Training);
    scenario.faults = vec![of_wait(FaultKind::NoPermission)];
    let mut bench = Bench::new(scenario);
    for index in 0..2 {
        let round = until_newest(&mut bench, index, Err(Missing::NoPermission)).await;
        assert!(round.of(index, &gpu::POWER).is_ok(), "it is read");
    }
}

#[tokio::test]
async fn a_wait_that_hangs_while_all_else_is_quick_is_told_and_begun_again_later() {
    let mut scenario = Scenario::of(2, H100, Load::Training);
    scenario.faults = vec![of_wait(FaultKind::Hang)];
    let mut bench = Bench::new(scenario);
    let (round, kinds) = until(&mut bench, EventKind::DriverHang).await;
    assert_eq!(kinds, [EventKind::DriverHang]);
    let hang = round.event(EventKind::DriverHang);
    assert_eq!(hang.attributes["function"], WAIT);
    assert_eq!(hang.resource_kind, ResourceKind::Node);
    // Not before its time: the next child does not wait, and says so.
    bench.change(|scenario| scenario.faults.clear()).await;
    for _ in 0..3 {
        let round = bench.read().await;
        for index in 0..2 {
            let newest = round.of(index, &gpu::LAST_XID);
            assert_eq!(newest, Err(Missing::DriverHang));
            assert!(round.of(index, &gpu::POWER).is_ok(), "it is read on");
        }
    }
    bench.reader.retry_now();
    until_newest(&mut bench, 1, Ok(0.0)).await;
    bench
        .change(|scenario| scenario.xids = vec![xid(1, 31)])
        .await;
    until_xid_of(&mut bench, 1).await;
}

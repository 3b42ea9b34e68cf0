//! What happens to GPUs while the agent runs is reported, and survived.

use std::time::Duration;

use gpufleet_agent::read::nvml::xid::TOLD_FOR;
use gpufleet_standin_nvml::load::Load;
use gpufleet_standin_nvml::{Fault, FaultKind, Process, Scenario, Xid};
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::event::{EventKind, Severity};
use gpufleet_telemetry::identity::{ResourceKind, attribute};
use gpufleet_telemetry::sample::Missing;

use crate::bench::{Bench, Round, assert_close, reading};

const H100: &str = "NVIDIA H100 80GB HBM3";

/// Turns until the wanted event came; every event on the way.
pub(crate) async fn until(bench: &mut Bench, wanted: EventKind) -> (Round, Vec<EventKind>) {
    let mut kinds = Vec::new();
    // Ten seconds on an idle machine: many more than it takes.
    for _ in 0..200 {
        let round = bench.read().await;
        kinds.extend(round.kinds());
        if kinds.contains(&wanted) {
            return (round, kinds);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{wanted:?} never came, only {kinds:?}");
}

#[tokio::test]
async fn a_lost_gpu_is_told_once_and_the_others_go_on() {
    for (kind, missing) in [
        (FaultKind::Lost, Missing::GpuLost),
        (FaultKind::OffBus, Missing::GpuLost),
        (FaultKind::ResetRequired, Missing::ResetRequired),
    ] {
        let mut bench = Bench::new(Scenario::of(4, H100, Load::Training));
        bench.read().await;
        bench
            .change(|scenario| scenario.faults = vec![Fault::of(2, kind)])
            .await;
        let round = bench.read().await;
        let event = round.event(EventKind::GpuLost);
        assert_eq!(event.resource_id, round.gpu(2).resource.id, "{kind:?}");
        for _ in 0..3 {
            let round = bench.read().await;
            assert_eq!(round.of(2, &gpu::POWER), Err(missing), "{kind:?}");
            assert_eq!(round.of(2, &gpu::SM_ACTIVE), Err(missing), "{kind:?}");
            assert!(round.of(3, &gpu::POWER).is_ok(), "{kind:?}");
            assert_eq!(round.kinds(), [], "{kind:?}");
        }
    }
}

#[tokio::test]
async fn a_lost_gpu_that_was_reset_comes_back_with_its_reset_told() {
    let mut bench = Bench::new(Scenario::of(2, H100, Load::Training));
    bench.read().await;
    bench
        .change(|scenario| scenario.faults = vec![Fault::of(1, FaultKind::Lost)])
        .await;
    until(&mut bench, EventKind::GpuLost).await;
    bench
        .change(|scenario| {
            scenario.faults.clear();
            scenario.gpus[1].resets = 1;
        })
        .await;
    // The process that saw it die never sees it again; a new one does.
    assert_eq!(bench.read().await.of(1, &gpu::POWER), Err(Missing::GpuLost));
    bench.reader.retry_now();
    let (round, kinds) = until(&mut bench, EventKind::GpuReset).await;
    assert_eq!(kinds, [EventKind::GpuRecovered, EventKind::GpuReset]);
    assert!(round.of(1, &gpu::POWER).is_ok());
}

#[tokio::test]
async fn a_gpu_that_never_answered_is_shown_by_its_place() {
    let mut scenario = Scenario::of(2, H100, Load::Training);
    scenario.faults = vec![Fault::of(1, FaultKind::OffBus)];
    let round = Bench::new(scenario).read().await;
    assert_eq!(&*round.gpu(1).resource.id, "node-1/index-1");
    assert_eq!(round.of(1, &gpu::POWER), Err(Missing::GpuLost));
    assert_eq!(round.kinds(), [EventKind::GpuLost]);
}

#[tokio::test]
async fn a_gpu_taken_away_and_one_put_in_are_told() {
    let mut scenario = Scenario::of(3, H100, Load::Training);
    scenario.absent = vec![2];
    let mut bench = Bench::new(scenario);
    assert_eq!(
        bench.read().await.kinds(),
        [],
        "what is there at the start was not added"
    );
    bench.change(|scenario| scenario.absent = vec![1]).await;
    // One came and one went: the kernel's list is as long as before, but the library is told by
    // the GPU that no longer answers, and looked at again.
    let (_, kinds) = until(&mut bench, EventKind::GpuLost).await;
    assert_eq!(kinds, [EventKind::GpuLost]);
    bench.change(|scenario| scenario.absent.clear()).await;
    let (_, kinds) = until(&mut bench, EventKind::GpuAdded).await;
    assert!(kinds.contains(&EventKind::GpuAdded), "{kinds:?}");
    let round = bench.read().await;
    assert_eq!(round.gpus().len(), 3);
    bench.change(|scenario| scenario.absent = vec![0]).await;
    bench.reader.retry_now();
    let (round, _) = until(&mut bench, EventKind::GpuRemoved).await;
    let gone = round.event(EventKind::GpuRemoved);
    assert_eq!(
        &*gone.resource_id,
        "GPU-5eed0000-0000-4000-8000-000000000000"
    );
    let round = bench.read().await;
    assert_eq!(
        round.gpus().len(),
        2,
        "a GPU that was removed is no longer told of"
    );
    assert_eq!(
        &*round.gpu(0).resource.id,
        "GPU-5eed0001-0000-4000-8000-000000000001"
    );
}

#[tokio::test]
async fn a_driver_upgrade_is_survived_and_told() {
    let mut bench = Bench::new(Scenario::of(2, H100, Load::Training));
    bench.read().await;
    bench
        .change(|scenario| scenario.driver_version = "590.48.01".to_owned())
        .await;
    let round = bench.read().await;
    assert_eq!(round.of(0, &gpu::POWER), Err(Missing::LibraryMismatch));
    let (round, kinds) = until(&mut bench, EventKind::DriverChanged).await;
    assert_eq!(kinds, [EventKind::DriverChanged]);
    let event = round.event(EventKind::DriverChanged);
    assert_eq!(
        (
            event.attributes["from"].as_str(),
            event.attributes["to"].as_str()
        ),
        ("580.105.08", "590.48.01")
    );
    assert_eq!(event.resource_kind, ResourceKind::Node);
    assert!(round.of(0, &gpu::POWER).is_ok());
    let version = round.gpu(0).resource.attribute(attribute::DRIVER_VERSION);
    assert_eq!(version, Some("590.48.01"));
}

#[tokio::test]
async fn a_driver_that_is_being_replaced_is_waited_for() {
    let mut bench = Bench::new(Scenario::of(2, H100, Load::Training));
    bench.read().await;
    bench
        .change(|scenario| {
            scenario.driver_version = "590.48.01".to_owned();
            scenario.init = 9;
        })
        .await;
    bench.read().await;
    let round = bench.read().await;
    assert_eq!(round.of(0, &gpu::POWER), Err(Missing::DriverNotLoaded));
    assert_eq!(round.kinds(), [EventKind::ReaderFailed]);
    assert_eq!(bench.read().await.kinds(), [], "told once");
    bench.change(|scenario| scenario.init = 0).await;
    bench.reader.retry_now();
    let (round, kinds) = until(&mut bench, EventKind::ReaderRecovered).await;
    assert_eq!(
        kinds,
        [EventKind::DriverChanged, EventKind::ReaderRecovered]
    );
    assert!(round.of(0, &gpu::POWER).is_ok());
}

#[tokio::test]
async fn an_xid_that_comes_twice_is_two_events_and_counts_two() {
    let mut scenario = Scenario::of(2, H100, Load::Training);
    scenario.gpus[1].processes = vec![Process {
        pid: 4_242,
        memory_mib: 10,
        sm_percent: 0,
        mig: None,
    }];
    let mut bench = Bench::new(scenario);
    bench.read().await;
    bench.listens().await;
    for expected in [1.0, 2.0] {
        let xid = Xid {
            gpu: 1,
            code: 79,
            after_s: None,
            mig: None,
        };
        bench.change(|scenario| scenario.xids.push(xid)).await;
        let (round, _) = until(&mut bench, EventKind::Xid).await;
        let event = round.event(EventKind::Xid);
        assert_eq!(event.severity, Severity::Error);
        assert_eq!(event.resource_id, round.gpu(1).resource.id);
        for (name, value) in [
            ("xid", "79"),
            ("action", "reboot_node"),
            ("action_from", "table"),
            ("pid", "4242"),
        ] {
            assert_eq!(event.attributes[name], value, "{name}");
        }
        let counted = bench.read().await;
        assert_close(
            reading(counted.gpu(1), &gpu::XID, Some("79")),
            expected,
            "count",
        );
        assert_close(counted.of(1, &gpu::LAST_XID), 79.0, "the newest code");
        assert_close(counted.of(0, &gpu::LAST_XID), 0.0, "the other GPU has none");
    }
    bench.pass(TOLD_FOR);
    let later = bench.read().await;
    assert_close(later.of(1, &gpu::LAST_XID), 0.0, "it is not sticky");
    let count = reading(later.gpu(1), &gpu::XID, Some("79"));
    assert_close(count, 2.0, "what was counted stays counted");
}

#[tokio::test]
async fn the_drivers_own_recovery_action_wins_over_the_table() {
    let mut scenario = Scenario::of(1, H100, Load::Training);
    scenario.gpus[0].recovery_action = 4;
    let mut bench = Bench::new(scenario);
    let round = bench.read().await;
    assert_eq!(
        round.event(EventKind::RecoveryAction).attributes["action"],
        "drain_and_reset"
    );
    bench.listens().await;
    let xid = Xid {
        gpu: 0,
        code: 154,
        after_s: None,
        mig: None,
    };
    bench.change(|scenario| scenario.xids.push(xid)).await;
    let (round, _) = until(&mut bench, EventKind::Xid).await;
    let event = round.event(EventKind::Xid);
    assert_eq!(event.attributes["action"], "drain_and_reset");
    assert_eq!(event.attributes["action_from"], "driver");
}

#[tokio::test]
async fn a_changed_mig_layout_is_told_and_read() {
    let mut scenario = Scenario::of(1, H100, Load::Training);
    scenario.gpus[0].mig = vec!["7g.80gb".to_owned()];
    let mut bench = Bench::new(scenario);
    bench.read().await;
    bench
        .change(|scenario| scenario.gpus[0].mig = vec!["3g.40gb".to_owned(), "4g.40gb".to_owned()])
        .await;
    let (round, _) = until(&mut bench, EventKind::MigChanged).await;
    assert_eq!(
        round.event(EventKind::MigChanged).attributes["profiles"],
        "3g.40gb,4g.40gb"
    );
    let shares = |round: &Round| {
        let is_share = |it: &&gpufleet_telemetry::sample::ResourceSamples| {
            it.resource.kind == ResourceKind::Share
        };
        round.0.resources.iter().filter(is_share).count()
    };
    assert_eq!(shares(&round), 2);
    bench.change(|scenario| scenario.gpus[0].mig.clear()).await;
    let (round, _) = until(&mut bench, EventKind::MigChanged).await;
    assert_eq!(shares(&round), 0);
    assert!(bench.settled().await.of(0, &gpu::UTILIZATION).is_ok());
}

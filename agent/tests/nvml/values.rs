//! What is read is what the driver says, in base units, and what is not there says why.

use gpufleet_agent::read::nvml::NvmlConfig;
use gpufleet_standin_nvml::load::Load;
use gpufleet_standin_nvml::{Fault, FaultKind, Process, Scenario};
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::identity::{ResourceKind, attribute};
use gpufleet_telemetry::sample::Missing;

use crate::bench::{Bench, assert_close, index, reading};
use crate::every_metric::is_read_here;

const H100: &str = "NVIDIA H100 80GB HBM3";
const A100: &str = "NVIDIA A100-SXM4-80GB";
const MIB: f64 = 1_048_576.0;

#[tokio::test]
async fn eight_gpus_read_as_the_driver_says_in_base_units() {
    let mut bench = Bench::new(Scenario::of(8, H100, Load::Training));
    let round = bench.settled().await;
    assert_eq!(round.gpus().len(), 8);
    for slot in 0..8 {
        let (says, _, model) = bench.says(slot);
        let index = u32::from(slot);
        let cases = [
            (gpu::UTILIZATION, f64::from(says.gpu_percent) / 100.0),
            (
                gpu::MEMORY_UTILIZATION,
                f64::from(says.memory_percent) / 100.0,
            ),
            (gpu::MEMORY_TOTAL, model.memory_mib.0 as f64 * MIB),
            (gpu::MEMORY_RESERVED, model.memory_mib.1 as f64 * MIB),
            (gpu::POWER, f64::from(says.power_mw) / 1e3),
            (gpu::POWER_INSTANT, f64::from(says.power_mw) / 1e3),
            (gpu::POWER_LIMIT, 700.0),
            (gpu::ENERGY, says.energy_mj as f64 / 1e3),
            (gpu::TEMPERATURE, f64::from(says.temperature_c)),
            (
                gpu::MEMORY_TEMPERATURE,
                f64::from(says.memory_temperature_c),
            ),
            (
                gpu::TEMPERATURE_MARGIN,
                87.0 - f64::from(says.temperature_c),
            ),
            (gpu::SM_CLOCK, f64::from(says.clock_mhz[0]) * 1e6),
            (gpu::MEMORY_CLOCK, f64::from(says.clock_mhz[1]) * 1e6),
            (gpu::PERFORMANCE_STATE, f64::from(says.performance_state)),
            (gpu::THROTTLE_REASONS, says.throttle as f64),
            (gpu::THROTTLE_POWER, says.violation_ns[0] as f64 / 1e9),
            (
                gpu::THROTTLE_LOW_UTILIZATION,
                says.violation_ns[4] as f64 / 1e9,
            ),
            (gpu::PCIE_GENERATION, 5.0),
            (gpu::PCIE_WIDTH, 16.0),
            (gpu::PCIE_SENT, says.pcie_mib_s[0] * MIB),
            (gpu::PCIE_RECEIVED, says.pcie_mib_s[1] * MIB),
            (gpu::NVLINK_RECEIVED, says.nvlink_mib_s[0] * MIB),
            (gpu::NVLINK_SENT, says.nvlink_mib_s[1] * MIB),
            (
                gpu::NVLINK_BANDWIDTH,
                (says.nvlink_mib_s[0] + says.nvlink_mib_s[1]) * MIB,
            ),
            (gpu::NVLINKS_ACTIVE, 18.0),
            (gpu::GRAPHICS_ACTIVE, says.gpm_percent[0] / 100.0),
            (gpu::SM_ACTIVE, says.gpm_percent[1] / 100.0),
            (gpu::TENSOR_ACTIVE, says.gpm_percent[4] / 100.0),
            (gpu::DRAM_ACTIVE, says.gpm_percent[9] / 100.0),
            (gpu::POWER_AVERAGE, f64::from(says.power_mw) / 1e3),
            (gpu::TEMPERATURE_MARGIN_SHUTDOWN, -8.0),
            (gpu::TEMPERATURE_MARGIN_SLOWDOWN, -2.0),
            (gpu::ECC_MODE, 1.0),
            (gpu::MIG_MODE, 0.0),
            (gpu::FABRIC_STATE, 3.0),
            (gpu::FABRIC_HEALTH, 2.0),
            (gpu::SRAM_UNCORRECTED_VOLATILE, 0.0),
            (gpu::VGPU_LICENSE, 0.0),
            (gpu::REMAP_FAILURE, 0.0),
            (gpu::RECOVERY_ACTION, 0.0),
            (gpu::LAST_XID, 0.0),
            (gpu::PROCESSES, 0.0),
        ];
        for (metric, expected) in cases {
            assert_close(round.of(index, &metric), expected, metric.name);
        }
    }
}

#[tokio::test]
async fn every_gpu_metric_is_told_as_a_value_or_a_reason() {
    let mut bench = Bench::new(Scenario::of(1, H100, Load::Training));
    let round = bench.settled().await;
    for metric in gpu::ALL.iter().filter(|it| it.part.is_none()) {
        if is_read_here(metric) {
            // Panics when it was not told.
            let _ = round.of(0, metric);
        }
    }
}

#[tokio::test]
async fn a_gpu_says_who_it_is() {
    let mut bench = Bench::new(Scenario::of(2, H100, Load::Idle));
    let round = bench.read().await;
    let resource = &round.gpu(1).resource;
    let expected = [
        (attribute::GPU_MODEL, H100),
        (attribute::GPU_INDEX, "1"),
        (attribute::GPU_MINOR, "1"),
        (attribute::PCI_ADDRESS, "00000000:1B:00.0"),
        (attribute::SERIAL, "1650000000001"),
        (attribute::COMPUTE_CAPABILITY, "9.0"),
        (attribute::DRIVER_VERSION, "580.105.08"),
        (attribute::CUDA_VERSION, "13.0"),
        (attribute::SOURCE, "nvml"),
        (attribute::ORIGIN, "live"),
    ];
    assert_eq!(&*resource.id, "GPU-5eed0001-0000-4000-8000-000000000001");
    for (name, value) in expected {
        assert_eq!(resource.attribute(name), Some(value), "{name}");
    }
}

#[tokio::test]
async fn a_null_uuid_is_no_identity_the_place_is() {
    let mut scenario = Scenario::of(2, H100, Load::Idle);
    scenario
        .gpus
        .iter_mut()
        .for_each(|gpu| gpu.null_uuid = true);
    let round = Bench::new(scenario).read().await;
    assert_eq!(&*round.gpu(0).resource.id, "node-1/00000000:18:00.0");
    assert_eq!(&*round.gpu(1).resource.id, "node-1/00000000:1b:00.0");
}

#[tokio::test]
async fn a_card_without_gpm_says_so_and_its_link_rates_come_from_counters() {
    let mut scenario = Scenario::of(1, A100, Load::Training);
    scenario.time_s = None;
    let mut bench = Bench::new(scenario);
    bench.read().await;
    // So long that a step more or less, and a machine that is late, are within the bounds below.
    tokio::time::sleep(std::time::Duration::from_millis(5_100)).await;
    let round = bench.read().await;
    for metric in [gpu::GRAPHICS_ACTIVE, gpu::TENSOR_ACTIVE, gpu::DRAM_ACTIVE] {
        assert_eq!(
            round.of(0, &metric),
            Err(Missing::NotSupported),
            "{}",
            metric.name
        );
    }
    // The stand-in counts at 600 MiB/s, in steps of whole seconds.
    let rate = round.of(0, &gpu::PCIE_SENT).expect("a rate from growth");
    let second = 600.0 * MIB;
    assert!((second * 0.8..second * 2.1).contains(&rate), "{rate}");
    let sum = round.of(0, &gpu::NVLINK_SENT).expect("a rate")
        + round.of(0, &gpu::NVLINK_RECEIVED).expect("a rate");
    assert_close(round.of(0, &gpu::NVLINK_BANDWIDTH), sum, "both ways");
}

#[tokio::test]
async fn a_card_without_the_part_says_not_supported() {
    let round = Bench::new(Scenario::of(1, "Tesla T4", Load::Training))
        .settled()
        .await;
    for metric in [
        gpu::MEMORY_TEMPERATURE,
        gpu::TEMPERATURE_MARGIN,
        gpu::NVLINKS_ACTIVE,
        gpu::NVLINK_REPLAYS,
        gpu::NVLINK_SENT,
        gpu::REMAPPED_CORRECTABLE,
        gpu::SM_ACTIVE,
    ] {
        assert_eq!(
            round.of(0, &metric),
            Err(Missing::NotSupported),
            "{}",
            metric.name
        );
    }
    assert_close(
        round.of(0, &gpu::RETIRED_PAGES_DOUBLE),
        0.0,
        "pages are retired on old cards",
    );
}

#[tokio::test]
async fn a_vgpu_slice_that_gives_no_gpm_data_is_not_trusted() {
    let mut scenario = Scenario::of(1, H100, Load::Training);
    scenario.gpus[0].gpm_data = false;
    let mut bench = Bench::new(scenario);
    let mut round = bench.read().await;
    for _ in 0..6 {
        assert_eq!(round.of(0, &gpu::SM_ACTIVE), Err(Missing::NotReady));
        tokio::time::sleep(std::time::Duration::from_millis(110)).await;
        round = bench.read().await;
    }
    assert_eq!(round.of(0, &gpu::SM_ACTIVE), Err(Missing::NotSupported));
}

#[tokio::test]
async fn a_nan_of_gpm_is_no_value() {
    let mut scenario = Scenario::of(1, H100, Load::Training);
    scenario.gpus[0].gpm_nan = true;
    let round = Bench::new(scenario).settled().await;
    assert_eq!(round.of(0, &gpu::SM_ACTIVE), Err(Missing::NotReady));
}

#[tokio::test]
async fn a_gpu_that_is_opened_anew_has_no_window_before_its_second_sample_and_leaves_none_behind() {
    let window = std::time::Duration::from_millis(110);
    let mut scenario = Scenario::of(1, H100, Load::Training);
    scenario.gpus[0].mig = vec!["3g.40gb".to_owned()];
    let mut bench = Bench::new(scenario);
    assert!(bench.settled().await.of(0, &gpu::SM_ACTIVE).is_ok());
    bench.change(|scenario| scenario.gpus[0].mig.clear()).await;
    // The instance is found gone, and the layout looked at in the next round.
    assert_eq!(bench.read().await.kinds(), []);
    tokio::time::sleep(window).await;
    let anew = bench.read().await;
    assert_eq!(anew.kinds(), [EventKind::MigChanged]);
    assert_eq!(anew.of(0, &gpu::SM_ACTIVE), Err(Missing::NotReady));
    tokio::time::sleep(window).await;
    assert!(bench.read().await.of(0, &gpu::SM_ACTIVE).is_ok());
    let calls = bench.calls();
    let of_samples = |function| calls.of(None, function);
    // Two of the GPU and of its instance, and two of the GPU opened anew, which are left.
    assert_eq!(of_samples("nvmlGpmSampleAlloc"), 6);
    assert_eq!(of_samples("nvmlGpmSampleFree"), 4);
    let refused = of_samples("nvmlGpmMetricsGet");
    assert_eq!(refused, 0, "of samples that were freed or never taken");
}

#[tokio::test]
async fn one_refused_function_is_one_missing_metric() {
    let cases = [
        (FaultKind::NoPermission, Missing::NoPermission),
        (FaultKind::NotSupported, Missing::NotSupported),
        (FaultKind::FunctionNotFound, Missing::FunctionNotFound),
        (FaultKind::Timeout, Missing::Timeout),
        (FaultKind::NoData, Missing::NotReady),
        (FaultKind::Unknown, Missing::Unknown),
    ];
    for (kind, missing) in cases {
        let mut scenario = Scenario::of(1, H100, Load::Training);
        scenario.faults = vec![Fault::of(0, kind).in_function("nvmlDeviceGetPowerUsage")];
        let round = Bench::new(scenario).read().await;
        assert_eq!(round.of(0, &gpu::POWER), Err(missing), "{kind:?}");
        assert!(
            round.of(0, &gpu::TEMPERATURE).is_ok(),
            "{kind:?} hurt its neighbour"
        );
    }
}

#[tokio::test]
async fn processes_are_told_one_by_one_and_counted() {
    let mut scenario = Scenario::of(1, H100, Load::Training);
    // More than the reader has room for at first, so that it must ask again.
    scenario.gpus[0].processes = (0..40)
        .map(|pid| Process {
            pid: 1_000 + pid,
            memory_mib: u64::from(pid) + 1,
            sm_percent: 2,
            mig: None,
        })
        .collect();
    let mut bench = Bench::new(scenario);
    let round = bench.read().await;
    assert_close(round.of(0, &gpu::PROCESSES), 40.0, "processes");
    let noted = bench.users.of(1_007);
    assert!(noted.contains(&round.gpu(0).resource.id), "{noted:?}");
    let gpu_0 = round.gpu(0);
    assert_close(
        reading(gpu_0, &gpu::PROCESS_MEMORY, Some("1007")),
        8.0 * MIB,
        "memory",
    );
    assert_close(
        reading(gpu_0, &gpu::PROCESS_SM_UTILIZATION, Some("1007")),
        0.02,
        "SM time",
    );
}

#[tokio::test]
async fn errors_of_memory_and_links_are_told() {
    let mut scenario = Scenario::of(1, H100, Load::Training);
    scenario.gpus[0].ecc = [7, 1];
    scenario.gpus[0].sram = [4, 2, 3];
    scenario.gpus[0].remapped = [3, 1, 1, 0];
    scenario.gpus[0].links_down = vec![4];
    let round = Bench::new(scenario).read().await;
    for (metric, expected) in [
        (gpu::ECC_CORRECTED_VOLATILE, 7.0),
        (gpu::ECC_UNCORRECTED_VOLATILE, 1.0),
        (gpu::SRAM_CORRECTED_VOLATILE, 4.0),
        (gpu::SRAM_UNCORRECTED_AGGREGATE, 5.0),
        (gpu::REMAPPED_CORRECTABLE, 3.0),
        (gpu::REMAP_PENDING, 1.0),
        (gpu::NVLINKS_ACTIVE, 17.0),
        (gpu::NVLINK_CRC_ERRORS, 1.0),
    ] {
        assert_close(round.of(0, &metric), expected, metric.name);
    }
    let link = |link| reading(round.gpu(0), &gpu::NVLINK_UP, Some(link));
    assert_eq!((link("4"), link("5")), (Ok(0.0), Ok(1.0)));
    let speed = reading(round.gpu(0), &gpu::NVLINK_SPEED, Some("5"));
    assert_close(speed, 26_562e6, "line rate");
    let errors = reading(round.gpu(0), &gpu::NVLINK_LINK_ERRORS, Some("4"));
    assert_close(
        errors,
        3.0,
        "replay, recovery and CRC of the link that is down",
    );
}

#[tokio::test]
async fn nvlink_5_tells_each_links_errors_in_its_own_fields() {
    let mut scenario = Scenario::of(1, "NVIDIA B200", Load::Training);
    scenario.gpus[0].links_down = vec![4];
    let round = Bench::new(scenario).read().await;
    assert_eq!(
        round.of(0, &gpu::NVLINK_REPLAYS),
        Err(Missing::NotSupported)
    );
    let of_link = |metric| reading(round.gpu(0), metric, Some("4"));
    assert_close(of_link(&gpu::NVLINK_SYMBOL_ERRORS), 1.0, "symbol errors");
    assert_close(
        of_link(&gpu::NVLINK_NOT_RECOVERED),
        1.0,
        "recovery failures",
    );
    let ratio = of_link(&gpu::NVLINK_EFFECTIVE_BER).expect("a ratio");
    assert!(ratio < 1e-200, "{ratio}");
}

#[tokio::test]
async fn mig_instances_are_shares_and_the_whole_has_no_utilisation() {
    let mut scenario = Scenario::of(2, H100, Load::Training);
    scenario.gpus[0].mig = ["3g.40gb", "1g.10gb", "1c.2g.20gb"]
        .map(str::to_owned)
        .to_vec();
    scenario.gpus[0].processes = vec![Process {
        pid: 77,
        memory_mib: 100,
        sm_percent: 0,
        mig: Some(1),
    }];
    let mut bench = Bench::new(scenario);
    let round = bench.settled().await;
    assert_eq!(round.of(0, &gpu::UTILIZATION), Err(Missing::NotSupported));
    assert!(round.of(0, &gpu::POWER).is_ok());
    assert!(
        round.of(1, &gpu::UTILIZATION).is_ok(),
        "the other GPU is whole"
    );
    let shares: Vec<_> = round
        .0
        .resources
        .iter()
        .filter(|it| it.resource.kind == ResourceKind::Share)
        .collect();
    assert_eq!(shares.len(), 3);
    // A compute instance with one of the two slices of its GPU instance.
    let part = &shares[2].resource;
    assert_eq!(part.attribute(attribute::MIG_PROFILE), Some("1c.2g.20gb"));
    assert_eq!(part.attribute(attribute::MIG_SLICES), Some("1/7"));
    let small = shares[1];
    let parent = &*round.gpu(0).resource.id;
    for (name, value) in [
        (attribute::PARENT, parent),
        (attribute::MIG_PROFILE, "1g.10gb"),
        (attribute::MIG_GPU_INSTANCE, "8"),
        // Behind the four memory slices of the first.
        (attribute::MIG_PLACEMENT, "19:4"),
        (attribute::MIG_SLICES, "1/7"),
        (attribute::GPU_MODEL, H100),
    ] {
        assert_eq!(small.resource.attribute(name), Some(value), "{name}");
    }
    assert_eq!(
        &*small.resource.id,
        "MIG-5eed0000-0000-4000-8000-000000000002"
    );
    assert_eq!(index(&small.resource), 0);
    let (says, _, _) = bench.says(0);
    assert_close(
        reading(small, &gpu::MEMORY_TOTAL, None),
        10_240.0 * MIB,
        "memory",
    );
    assert_close(
        reading(small, &gpu::SM_ACTIVE, None),
        says.gpm_percent[1] / 100.0,
        "GPM",
    );
    assert_close(reading(small, &gpu::PROCESSES, None), 1.0, "processes");
    assert_close(
        reading(small, &gpu::PROCESS_MEMORY, Some("77")),
        100.0 * MIB,
        "its memory",
    );
    assert_close(
        reading(shares[0], &gpu::PROCESSES, None),
        0.0,
        "the other's",
    );
    assert_close(round.of(0, &gpu::PROCESSES), 1.0, "the whole card's count");
}

#[tokio::test]
async fn no_more_than_twelve_calls_for_a_gpu_and_round() {
    for (model, what) in [(H100, "with GPM"), (A100, "without GPM")] {
        let mut bench = Bench::new(Scenario::of(8, model, Load::Training));
        bench.settled().await;
        let calls = bench.calls();
        let mut seen = Vec::new();
        for _ in 0..60 {
            let before: Vec<_> = (0..8).map(|slot| calls.total(Some(slot))).collect();
            // GPM does not compare windows under 100 ms, and the budget must hold when it does.
            tokio::time::sleep(std::time::Duration::from_millis(101)).await;
            bench.read().await;
            seen.extend((0..8).map(|slot| calls.total(Some(slot)) - before[usize::from(slot)]));
        }
        assert!(seen.iter().all(|calls| *calls <= 12), "{what}: {seen:?}");
        assert!(
            seen.contains(&12),
            "{what}: the budget is there to be used: {seen:?}"
        );
    }
}

#[tokio::test]
async fn a_share_costs_three_more_calls() {
    let mut scenario = Scenario::of(1, H100, Load::Training);
    scenario.gpus[0].mig = vec!["1g.10gb".to_owned(); 7];
    let mut bench = Bench::new(scenario);
    bench.settled().await;
    let calls = bench.calls();
    for _ in 0..20 {
        let before = calls.total(Some(0));
        tokio::time::sleep(std::time::Duration::from_millis(101)).await;
        bench.read().await;
        let made = calls.total(Some(0)) - before;
        assert!(made <= 12 + 7 * 3, "{made} calls");
    }
}

#[tokio::test]
async fn no_library_is_an_error_that_says_what_to_do() {
    let change =
        |config: &mut NvmlConfig| config.library_path = "/nowhere/libnvidia-ml.so.1".into();
    let mut bench = Bench::with(Scenario::default(), change);
    let error = bench
        .turn()
        .await
        .expect_err("there is no library")
        .to_string();
    for word in [
        "/nowhere/libnvidia-ml.so.1",
        "mount",
        "nvml.library_path",
        "nvml.enabled",
    ] {
        assert!(error.contains(word), "{error}");
    }
    // It costs nothing until it is tried again in 30 s.
    let before = bench.reader.restarts();
    for _ in 0..20 {
        assert!(bench.turn().await.is_err());
    }
    assert_eq!(bench.reader.restarts(), before);
}

#[tokio::test]
async fn a_driver_that_refuses_says_which_right_or_step_is_missing() {
    for (code, word) in [
        (4, "/dev/nvidiactl"),
        (9, "modprobe"),
        (18, "restart the container"),
    ] {
        let mut scenario = Scenario::of(1, H100, Load::Idle);
        scenario.init = code;
        let mut bench = Bench::new(scenario);
        let error = bench.turn().await.expect_err("it refuses").to_string();
        assert!(error.contains(word), "{code}: {error}");
        bench.change(|scenario| scenario.init = 0).await;
        bench.reader.retry_now();
        assert_eq!(bench.read().await.gpus().len(), 1, "{code} is over");
    }
}

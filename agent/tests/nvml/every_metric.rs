//! Every GPU metric of the catalog is read from where its row in the table of sources says: the
//! stand-in gives each field, each metric of GPM and each function a number of its own, so that
//! whoever asks for another one, or in another unit, reads another number.

use std::time::Duration;

use gpufleet_standin_nvml::load::Load;
use gpufleet_standin_nvml::{Process, Scenario, Xid};
use gpufleet_telemetry::catalog::sources::{self, Source};
use gpufleet_telemetry::catalog::{Kind, Metric, gpu};
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::identity::PartKind;
use gpufleet_telemetry::sample::Reading;

use crate::bench::{Bench, Round, assert_close, reading};

const MIB: f64 = 1_048_576.0;
/// Links of the card, one of which is down.
const LINKS: f64 = 18.0;
const DOWN: u8 = 4;
const UP: &str = "5";
const PID: u32 = 1_007;
const XID: u32 = 79;

/// What the stand-in's functions say of a card with numbers of its own, in base units.
const BY_CALL: &[(Metric, f64)] = &[
    (gpu::UTILIZATION, 0.31),
    (gpu::MEMORY_UTILIZATION, 0.32),
    (gpu::ENCODER_UTILIZATION, 0.33),
    (gpu::DECODER_UTILIZATION, 0.34),
    (gpu::MEMORY_TOTAL, 81_559.0 * MIB),
    (gpu::MEMORY_USED, 34_794.0 * MIB),
    (gpu::MEMORY_FREE, 46_285.0 * MIB),
    (gpu::MEMORY_RESERVED, 480.0 * MIB),
    (gpu::POWER, 36.0),
    (gpu::POWER_LIMIT, 700.0),
    (gpu::TEMPERATURE, 37.0),
    (gpu::TEMPERATURE_MARGIN, 50.0),
    (gpu::TEMPERATURE_SLOWDOWN, 89.0),
    (gpu::SM_CLOCK, 1.038e9),
    (gpu::MEMORY_CLOCK, 1.039e9),
    (gpu::SM_CLOCK_MAX, 1.98e9),
    (gpu::PERFORMANCE_STATE, 9.0),
    (gpu::THROTTLE_REASONS, 341.0),
    (gpu::MIG_MODE, 0.0),
    (gpu::XID, 1.0),
    (gpu::LAST_XID, XID as f64),
    (gpu::VGPU_LICENSE, 0.0),
    (gpu::SRAM_CORRECTED_VOLATILE, 51.0),
    (gpu::SRAM_UNCORRECTED_VOLATILE, 105.0),
    (gpu::SRAM_CORRECTED_AGGREGATE, 151.0),
    (gpu::SRAM_UNCORRECTED_AGGREGATE, 305.0),
    (gpu::SRAM_THRESHOLD_EXCEEDED, 1.0),
    (gpu::PCIE_GENERATION, 5.0),
    (gpu::PCIE_WIDTH, 16.0),
    (gpu::NVLINK_BANDWIDTH, 121.0 * MIB),
    (gpu::FABRIC_STATE, 3.0),
    (gpu::FABRIC_HEALTH, 2.0),
    (gpu::PROCESSES, 1.0),
    (gpu::PROCESS_MEMORY, 40.0 * MIB),
    (gpu::PROCESS_SM_UTILIZATION, 0.41),
];

fn scenario() -> Scenario {
    let mut scenario = Scenario::of(1, "NVIDIA H100 80GB HBM3", Load::Distinct);
    scenario.gpus[0].sram = [51, 52, 53];
    scenario.gpus[0].links_down = vec![DOWN];
    scenario.gpus[0].processes = vec![Process {
        pid: PID,
        memory_mib: 40,
        sm_percent: 41,
        mig: None,
    }];
    scenario.xids = vec![Xid {
        gpu: 0,
        code: u64::from(XID),
        after_s: Some(0.0),
        mig: None,
    }];
    scenario
}

/// What a field of this id is worth in base units, when it reads its id.
fn of_field(id: u32) -> f64 {
    let number = f64::from(id);
    match id {
        // Nanoseconds, millijoules and milliwatts, MB/s.
        74..=81 => number * 1e-9,
        83 | 185 | 186 => number * 1e-3,
        164 => number * 1e6,
        // A flag is 0 or 1, and a fraction of it still plausible.
        1 | 31 | 144 | 145 => number * 1e-3,
        // A ratio packed into a number: 15 × 10^-220.
        220 => 15e-220,
        _ => number,
    }
}

/// Whether the reader has it: the seconds' evidence and the count of slowdowns the sample loop makes, out of these.
pub(crate) fn is_read_here(metric: &Metric) -> bool {
    metric.kind != Kind::SecondBits && metric.id != gpu::HARDWARE_SLOWDOWNS.id
}

/// What a metric must read, by its row in the table of sources.
fn expected(metric: &Metric) -> f64 {
    let from = sources::of(metric.id);
    match from.first().expect("every metric has a source") {
        // A state, counted over the links or told of one.
        Source::Field(165) if metric.part.is_none() => LINKS - 1.0,
        Source::Field(165) => 1.0,
        Source::Field(161..=163) if metric.part.is_none() => LINKS * sum_of_fields(from),
        Source::Field(_) => sum_of_fields(from),
        Source::Gpm(id @ 1..=13) => f64::from(*id) / 100.0,
        Source::Gpm(id) => f64::from(*id) * MIB,
        _ => {
            let row = BY_CALL.iter().find(|(it, _)| it.id == metric.id);
            row.unwrap_or_else(|| panic!("{} has no row in this test", metric.name))
                .1
        }
    }
}

fn sum_of_fields(from: &[Source]) -> f64 {
    from.iter()
        .map(|source| match source {
            Source::Field(id) => of_field(*id),
            other => panic!("{other:?} beside a field: which of them is it?"),
        })
        .sum()
}

fn read(round: &Round, metric: &Metric) -> Reading {
    let pid = PID.to_string();
    let xid = XID.to_string();
    let part = metric.part.map(|kind| match kind {
        PartKind::NvLink => UP,
        PartKind::Process => &pid,
        PartKind::Xid => &xid,
        other => panic!("{}: what is a {other:?} of a GPU?", metric.name),
    });
    reading(round.gpu(0), metric, part)
}

#[tokio::test]
async fn every_gpu_metric_reads_the_number_of_its_own_source() {
    let mut bench = Bench::new(scenario());
    let mut round = bench.settled().await;
    for _ in 0..200 {
        if round.kinds().contains(&EventKind::Xid) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        round.add(bench.read().await);
    }
    // The count is told in the round after; GPM has no value for a shorter window.
    tokio::time::sleep(Duration::from_millis(120)).await;
    round.add(bench.read().await);
    let read_here = gpu::ALL.iter().filter(|it| is_read_here(it));
    let mut wrong = Vec::new();
    for metric in read_here {
        let (is, must) = (read(&round, metric), expected(metric));
        // Relative alone: some are a billionth of a second.
        if !is.is_ok_and(|is| (is - must).abs() <= must.abs() * 1e-9) {
            wrong.push(format!("{}: {is:?}, expected {must:e}", metric.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_two_rows_of_the_table_can_be_taken_for_each_other() {
    let metrics: Vec<_> = gpu::ALL.iter().filter(|it| is_read_here(it)).collect();
    for (place, metric) in metrics.iter().enumerate() {
        for other in &metrics[..place] {
            // What is counted in the same unit and by the same call or batch.
            let alike = metric.unit == other.unit && metric.part == other.part;
            let from = (sources::of(metric.id), sources::of(other.id));
            let same = alike && from.0 != from.1 && expected(metric) == expected(other);
            let is_field = matches!(from.0[0], Source::Field(_) | Source::Gpm(_));
            assert!(!(same && is_field), "{} and {}", metric.name, other.name);
        }
    }
}

#[tokio::test]
async fn without_gpm_each_link_rate_is_the_growth_of_its_own_counter() {
    let mut scenario = Scenario::of(1, "NVIDIA A100-SXM4-80GB", Load::Training);
    scenario.time_s = Some(1_000_000.0);
    let mut bench = Bench::new(scenario);
    bench.read().await;
    bench
        .change(|scenario| scenario.time_s = Some(1_000_001.0))
        .await;
    let round = bench.read().await;
    let rate = |metric| round.of(0, metric).expect("a rate from growth");
    // All four grew in the same time, whatever it was by the machine's clock: the stand-in counts
    // 600 and 900 MiB, 90 and 100 GiB in a second.
    let sent = rate(&gpu::PCIE_SENT);
    assert!(sent > 0.0);
    for (metric, times) in [
        (&gpu::PCIE_RECEIVED, 900.0 / 600.0),
        (&gpu::NVLINK_SENT, 90.0 * 1_024.0 / 600.0),
        (&gpu::NVLINK_RECEIVED, 100.0 * 1_024.0 / 600.0),
        (&gpu::NVLINK_BANDWIDTH, 190.0 * 1_024.0 / 600.0),
    ] {
        assert_close(Ok(rate(metric) / sent), times, metric.name);
    }
}

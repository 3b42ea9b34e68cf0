//! What a run reads, and what it says when something is wrong.

use std::time::Duration;

use gpufleet_agent::probe::measured::{Ended, Stage, Why};
use gpufleet_agent::probe::ptx::{Capability, Work};
use gpufleet_agent::probe::verdict::{Usual, Verdict, judge};
use gpufleet_standin_cuda::Fault;
use gpufleet_standin_nvml::Process;

use crate::bench::Bench;

const ARITHMETIC: &str = "gpufleet_arithmetic";
const BF16: &str = "gpufleet_tensor_bf16";

pub(crate) fn near(value: Option<f64>, expected: f64) {
    let value = value.expect("it was measured");
    assert!(
        (value / expected - 1.0).abs() < 0.01,
        "{value} beside {expected}"
    );
}

#[tokio::test]
async fn every_work_is_done_on_every_sm_and_every_rate_is_read() {
    let bench = Bench::new();
    let measured = bench.measured().await;
    let works: Vec<Work> = measured.checks.iter().map(|it| it.work).collect();
    assert_eq!(works, Work::ALL);
    for check in &measured.checks {
        assert_eq!((check.covered, check.wrong), (6, 0), "{:?}", check.work);
        assert!(check.sees_errors, "{:?}", check.work);
        assert_eq!(check.rate.is_some(), check.work.shape().is_some());
    }
    near(measured.memory_rate, 3.0e12);
    near(measured.to_gpu, 52e9);
    near(measured.from_gpu, 52e9);
    near(measured.checks[4].rate, 620e12);
    // PCIe 5 with 16 lanes.
    near(measured.link, 63e9);
    near(measured.slowest.map(|it| it.1), 1.0);
    assert_eq!(measured.card, "NVIDIA H100 80GB HBM3");
    assert_eq!(measured.ecc, Some((0, 0)));
    assert_eq!(
        measured.context_bytes,
        Some(0),
        "the stand-in's context takes nothing"
    );
    assert_eq!(measured.checked_bytes, 64 << 20);
    let alone = "copies between GPUs: no other GPU is known that nobody uses";
    assert_eq!(measured.left_out, [alone]);
    assert!(measured.gpu_seconds > 0.0);
}

#[tokio::test]
async fn a_healthy_gpu_passes() {
    let judgement = Bench::new().judged().await;
    assert_eq!(judgement.verdict, Verdict::Pass, "{}", judgement.reason);
}

#[tokio::test]
async fn one_wrong_result_of_one_sm_fails_and_names_the_sm_in_whatever_kernel() {
    for work in Work::ALL {
        let bench = Bench::with(Fault::Wrong(work.kernel().to_owned(), 4));
        let judgement = bench.judged().await;
        assert_eq!(judgement.verdict, Verdict::Fail, "{work:?}");
        assert_eq!(judgement.sm, Some(4), "{}", judgement.reason);
        assert!(
            judgement.reason.contains(work.name()),
            "{}",
            judgement.reason
        );
    }
}

#[tokio::test]
async fn a_spoilt_expectation_fails_and_a_gpu_that_notices_none_does_not_pass() {
    for work in [Work::Arithmetic, Work::Memory, Work::Fp8] {
        let mut bench = Bench::new();
        bench.order.spoil = Some(work.name().to_owned());
        let judgement = bench.judged().await;
        assert_eq!(
            judgement.verdict,
            Verdict::Fail,
            "{work:?}: {}",
            judgement.reason
        );
    }
    let judgement = Bench::with(Fault::Blind).judged().await;
    assert_eq!(judgement.verdict, Verdict::CouldNotMeasure);
    assert!(judgement.reason.contains("spoilt"), "{}", judgement.reason);
}

#[tokio::test]
async fn an_sm_that_takes_no_part_is_no_pass_and_a_slow_one_is_named() {
    let judgement = Bench::with(Fault::Absent(2)).judged().await;
    assert_eq!(judgement.verdict, Verdict::CouldNotMeasure);
    assert!(judgement.reason.contains("5 of 6"), "{}", judgement.reason);
    let judgement = Bench::with(Fault::Slow(3, 2.0)).judged().await;
    assert_eq!(judgement.verdict, Verdict::Degraded);
    assert_eq!(judgement.sm, Some(3), "{}", judgement.reason);
}

#[tokio::test]
async fn what_an_older_card_or_driver_cannot_do_is_left_out_and_said() {
    let mut bench = Bench::new();
    bench.cuda.capability = [7, 5];
    let measured = bench.measured().await;
    let works: Vec<Work> = measured.checks.iter().map(|it| it.work).collect();
    assert_eq!(
        works,
        [Work::Arithmetic, Work::Memory, Work::Fp16, Work::Int8]
    );
    assert_eq!(measured.left_out.len(), 4, "{:?}", measured.left_out);
    let mut bench = Bench::new();
    bench.cuda.cuda = 12_020;
    let measured = bench.measured().await;
    assert_eq!(measured.checks.len(), 6);
    assert!(
        measured.left_out[0].contains("CUDA 12.4"),
        "{:?}",
        measured.left_out
    );
}

#[tokio::test]
async fn a_gpu_that_cannot_be_probed_says_why() {
    let mut bench = Bench::new();
    bench.has_driver = false;
    assert_eq!(bench.stopped().await.why, Why::NoLibrary);

    let mut bench = Bench::new();
    bench.cuda.cuda = 10_020;
    assert_eq!(bench.stopped().await.why, Why::OldDriver(10_020));

    let mut bench = Bench::new();
    bench.cuda.capability = [7, 0];
    assert_eq!(bench.stopped().await.why, Why::OldCard(Capability(7, 0)));

    let mut bench = Bench::new();
    bench.cuda.gpus = vec!["GPU-another".to_owned()];
    assert_eq!(bench.stopped().await.why, Why::NoGpu);

    let mut bench = Bench::new();
    bench.cuda.compute_mode = 2;
    let why = bench.stopped().await.why;
    assert!(
        matches!(&why, Why::ComputeMode(mode) if mode == "prohibited"),
        "{why:?}"
    );

    let bench = Bench::with(Fault::Error("cuDevicePrimaryCtxRetain".to_owned(), 46));
    let why = bench.stopped().await.why;
    assert!(
        matches!(&why, Why::ComputeMode(mode) if mode.contains("exclusive")),
        "{why:?}"
    );

    let mut bench = Bench::new();
    bench.cuda.free_mib = 100;
    assert_eq!(bench.stopped().await.why, Why::NoMemory(100 << 20));

    let mut bench = Bench::new();
    bench.nvml.gpus[0].mig = vec!["1g.10gb".to_owned()];
    assert_eq!(bench.stopped().await.why, Why::MigIsOn);

    let mut bench = Bench::new();
    bench.nvml.gpus[0].processes = vec![Process {
        pid: 77,
        memory_mib: 4,
        sm_percent: 0,
        mig: None,
    }];
    assert_eq!(bench.stopped().await.why, Why::Busy(1));
}

#[tokio::test]
async fn without_nvml_it_runs_and_says_what_it_could_not_know() {
    let mut bench = Bench::new();
    bench.order.nvml_library = "/nowhere/libnvidia-ml.so.1".to_owned();
    let measured = bench.measured().await;
    assert_eq!(
        (measured.ecc, measured.link, measured.context_bytes),
        (None, None, None)
    );
    assert!(measured.left_out.iter().any(|it| it.contains("NVML")));
    assert_eq!(measured.checks.len(), Work::ALL.len());
}

#[tokio::test]
async fn what_breaks_while_kernels_run_fails_and_what_breaks_before_could_not_measure() {
    let broken = Bench::with(Fault::Breaks(BF16.to_owned(), 214));
    let judgement = broken.judged().await;
    assert_eq!(judgement.verdict, Verdict::Fail);
    assert!(judgement.reason.contains("ECC") && judgement.reason.contains("bf16"));

    let refused = Bench::with(Fault::Error("cuInit".to_owned(), 802));
    let judgement = refused.judged().await;
    assert_eq!(
        judgement.verdict,
        Verdict::CouldNotMeasure,
        "{}",
        judgement.reason
    );

    let crashed = Bench::with(Fault::Crash(ARITHMETIC.to_owned()));
    let stopped = crashed.stopped().await;
    assert_eq!(stopped.stage, Stage::Run(Work::Arithmetic));
    assert!(matches!(stopped.why, Why::Died(_)), "{stopped:?}");
}

#[tokio::test]
async fn what_does_not_come_back_is_killed_and_named() {
    for (fault, stage, verdict) in [
        (
            Fault::NeverEnds(ARITHMETIC.to_owned()),
            Stage::Run(Work::Arithmetic),
            Verdict::Fail,
        ),
        (
            Fault::Hang("cuModuleLoadData".to_owned()),
            Stage::Compile,
            Verdict::CouldNotMeasure,
        ),
    ] {
        let mut bench = Bench::with(fault);
        // A machine that is busy with other things takes its time to come that far.
        for seconds in [3, 10, 30, 90] {
            bench.order.deadline = Duration::from_secs(seconds);
            let ran = bench.run().await;
            assert!(ran.stuck.is_none(), "it was killed");
            let judgement = judge(&ran.ended, None, Usual::default());
            let Ended::Stopped(stopped) = ran.ended else {
                panic!("it came back: {:?}", ran.ended);
            };
            assert_eq!(stopped.why, Why::Hung(seconds * 1_000));
            if stopped.stage == stage {
                assert_eq!(judgement.verdict, verdict, "{}", judgement.reason);
                break;
            }
            assert!(seconds < 90, "it never came to {stage:?}: {stopped:?}");
        }
    }
}

//! Verdicts on readings as runs of the probe write them down.

use gpufleet_telemetry::gpu_specs::lookup;

use super::super::measured::Peer;
use super::super::report::{First, Sm};
use super::*;

const CARD: &str = "NVIDIA H100 80GB HBM3";

fn check(work: Work, rate: Option<f64>) -> Check {
    Check {
        work,
        covered: 132,
        wrong: 0,
        wrong_sms: Vec::new(),
        first: None,
        sees_errors: true,
        rate,
    }
}

/// A run on an H100 with nothing wrong.
fn good() -> Measured {
    Measured {
        card: CARD.to_owned(),
        capability: Some(Capability(9, 0)),
        cuda: 12_080,
        sms: 132,
        checks: vec![
            check(Work::Arithmetic, None),
            check(Work::Memory, None),
            check(Work::Fp16, Some(600e12)),
            check(Work::Bf16, Some(610e12)),
        ],
        memory_rate: Some(3.0e12),
        to_gpu: Some(52e9),
        from_gpu: Some(53e9),
        link: Some(63e9),
        slowest: Some((17, 0.99)),
        ecc: Some((0, 0)),
        ..Measured::default()
    }
}

fn judged(measured: Measured, usual: Usual<'_>) -> Judgement {
    let ended = Ended::Measured(Box::new(measured));
    judge(&ended, lookup(CARD), usual)
}

/// The verdict on a run that differs from a good one by `change`, and whether its reason has the words.
fn check_run(change: impl FnOnce(&mut Measured), verdict: Verdict, words: &[&str]) -> Judgement {
    let mut measured = good();
    change(&mut measured);
    let judgement = judged(measured, Usual::default());
    assert_eq!(judgement.verdict, verdict, "{}", judgement.reason);
    for word in words {
        assert!(
            judgement.reason.contains(word),
            "{word}: {}",
            judgement.reason
        );
    }
    judgement
}

#[test]
fn a_run_with_nothing_wrong_passes_and_says_what_was_done() {
    check_run(
        |_| {},
        Verdict::Pass,
        &["arithmetic, memory, fp16, bf16", "132 SMs"],
    );
}

#[test]
fn a_wrong_result_fails_and_names_the_sm() {
    let wrong = |run: &mut Measured| {
        let check = &mut run.checks[3];
        check.wrong = 9;
        let sm = |number, wrong| Sm {
            number,
            ran: 3,
            wrong,
            nanoseconds: 1,
        };
        check.wrong_sms = vec![sm(4, 1), sm(17, 8)];
        check.first = Some(First {
            sm: 4,
            place: 300,
            expected: 0x41,
            found: 0x40,
        });
    };
    let words = [
        "9 wrong results of bf16",
        "2 SMs",
        "SM 17",
        "at 300",
        "0x40",
        "0x41",
    ];
    assert_eq!(check_run(wrong, Verdict::Fail, &words).sm, Some(17));
    // What is also slow is wrong all the same.
    check_run(
        |run| {
            wrong(run);
            run.memory_rate = Some(1.0);
        },
        Verdict::Fail,
        &["wrong results"],
    );
}

#[test]
fn an_ecc_error_that_the_probe_raised_fails_and_corrected_ones_do_not() {
    check_run(
        |run| run.ecc = Some((0, 2)),
        Verdict::Fail,
        &["2 ECC errors"],
    );
    check_run(|run| run.ecc = Some((5, 0)), Verdict::Pass, &[]);
    check_run(|run| run.ecc = None, Verdict::Pass, &[]);
}

#[test]
fn slow_is_degraded_with_the_part_that_it_reaches() {
    check_run(
        |run| run.memory_rate = Some(1.675e12),
        Verdict::Degraded,
        &["memory at 50 % of its peak"],
    );
    check_run(
        |run| run.checks[3].rate = Some(200e12),
        Verdict::Degraded,
        &["bf16 at 20 %"],
    );
    check_run(
        |run| run.from_gpu = Some(6.3e9),
        Verdict::Degraded,
        &["PCIe from the GPU at 10 %"],
    );
    let slow = check_run(
        |run| run.slowest = Some((31, 0.5)),
        Verdict::Degraded,
        &["SM 31 runs at 50 %"],
    );
    assert_eq!(slow.sm, Some(31));
}

#[test]
fn a_part_of_a_card_is_not_held_against_the_whole_ones_rates() {
    check_run(
        |run| {
            run.is_slice = true;
            run.memory_rate = Some(0.4e12);
            run.checks[3].rate = Some(80e12);
        },
        Verdict::Pass,
        &[],
    );
}

#[test]
fn it_is_held_against_its_own_runs_and_like_gpus_when_there_are_enough() {
    let rates = Rates {
        memory: Some(3.3e12),
        tensor: Some(610e12),
        peers: None,
    };
    let faster = Rates {
        memory: Some(3.5e12),
        ..rates
    };
    for (own, like, verdict) in [
        (&[rates; 5][..], &[rates; 3][..], Verdict::Pass),
        (&[faster; 5], &[], Verdict::Degraded),
        (&[faster; 4], &[], Verdict::Pass),
        (&[], &[faster; 3], Verdict::Degraded),
        (&[], &[faster; 2], Verdict::Pass),
    ] {
        let usual = Usual {
            own,
            like,
            ..Usual::default()
        };
        let judgement = judged(good(), usual);
        assert_eq!(judgement.verdict, verdict, "{}", judgement.reason);
    }
}

fn peer(gpu: &str, rate: f64) -> Peer {
    Peer {
        gpu: gpu.to_owned(),
        link: 0,
        to: rate,
        from: rate,
    }
}

#[test]
fn copies_between_gpus_are_held_against_what_is_usual_over_links_of_the_same_kind() {
    let mut run = good();
    run.peers = vec![peer("GPU-b", 200e9)];
    let of = |link, rate| Rates {
        peers: Some((link, rate)),
        ..Rates::default()
    };
    let (faster, alike, other_link) = (of(0, 400e9), of(0, 210e9), of(1, 400e9));
    for (own, like, verdict) in [
        (&[faster; 5][..], &[][..], Verdict::Degraded),
        (&[], &[faster; 3], Verdict::Degraded),
        (&[faster; 4], &[faster; 2], Verdict::Pass),
        (&[alike; 5], &[alike; 3], Verdict::Pass),
        (&[other_link; 5], &[other_link; 3], Verdict::Pass),
    ] {
        let usual = Usual {
            own,
            like,
            ..Usual::default()
        };
        let judgement = judged(run.clone(), usual);
        assert_eq!(judgement.verdict, verdict, "{}", judgement.reason);
        if verdict == Verdict::Degraded {
            let reason = &judgement.reason;
            assert!(reason.contains("copies between GPUs at 50 %"), "{reason}");
        }
    }
    run.peers
        .extend([peer("GPU-c", 400e9), peer("GPU-d", 400e9)]);
    let judgement = judged(run.clone(), Usual::default());
    assert_eq!(judgement.verdict, Verdict::Degraded);
    assert!(judgement.reason.contains("GPU-b"), "{}", judgement.reason);
    let usual = Usual {
        known_bad: &[Arc::from("GPU-b")],
        ..Usual::default()
    };
    assert_eq!(judged(run, usual).verdict, Verdict::Pass);
}

#[test]
fn copies_between_gpus_that_break_or_do_not_end_fail_and_name_the_other() {
    for (why, words) in [
        (Why::Cuda(220, "CUDA_ERROR".to_owned()), "NVLink"),
        (Why::Hung(8_000), "did not end within 8000 ms"),
    ] {
        let stopped = Stopped {
            stage: Stage::Between(0),
            why,
        };
        check_run(
            |run| run.broke_with = Some(("GPU-b".to_owned(), stopped)),
            Verdict::Fail,
            &["GPU-b", words, "between two GPUs"],
        );
    }
    let mut run = good();
    let stopped = Stopped {
        stage: Stage::Between(0),
        why: Why::Hung(8_000),
    };
    run.broke_with = Some(("GPU-b".to_owned(), stopped));
    let usual = Usual {
        known_bad: &[Arc::from("GPU-b")],
        ..Usual::default()
    };
    assert_eq!(judged(run, usual).verdict, Verdict::Pass);
}

#[test]
fn what_cannot_see_errors_or_did_not_reach_every_sm_is_no_pass() {
    let unknown = Verdict::CouldNotMeasure;
    check_run(
        |run| run.checks[2].sees_errors = false,
        unknown,
        &["fp16", "spoilt"],
    );
    check_run(|run| run.checks[0].covered = 131, unknown, &["131 of 132"]);
    check_run(|run| run.checks.clear(), unknown, &["nothing"]);
    check_run(|run| drop(run.checks.remove(0)), unknown, &["arithmetic"]);
    check_run(|run| run.checks[1].covered = 1, Verdict::Pass, &[]);
}

#[test]
fn a_run_that_ended_early_says_why_and_only_a_gpu_that_broke_its_work_fails() {
    let run = Stage::Run(Work::Bf16);
    let cuda = |code: u32| Why::Cuda(code, "CUDA_ERROR".to_owned());
    let (fail, unknown) = (Verdict::Fail, Verdict::CouldNotMeasure);
    for (stage, why, verdict, word) in [
        (run, cuda(214), fail, "ECC"),
        (run, cuda(719), fail, "bf16"),
        (run, Why::Hung(8_000), fail, "8000 ms"),
        (Stage::Transfer, Why::Hung(8_000), fail, "PCIe"),
        (
            Stage::Context,
            Why::Hung(8_000),
            unknown,
            "making a context",
        ),
        (Stage::Initialise, cuda(802), unknown, "802"),
        (Stage::Library, Why::NoLibrary, unknown, "libcuda.so.1"),
        (Stage::Initialise, Why::NoGpu, unknown, "no such GPU"),
        (Stage::Initialise, Why::OldDriver(10_020), unknown, "10.2"),
        (
            Stage::Initialise,
            Why::OldCard(Capability(7, 0)),
            unknown,
            "7.0",
        ),
        (Stage::Look, Why::MigIsOn, unknown, "MIG"),
        (
            Stage::Look,
            Why::ComputeMode("prohibited".to_owned()),
            unknown,
            "prohibited",
        ),
        (Stage::Look, Why::Busy(2), unknown, "2 processes"),
        (Stage::Allocate, Why::NoMemory(5 << 20), unknown, "5 MiB"),
        (
            run,
            Why::Died("was killed by signal 11".to_owned()),
            unknown,
            "signal 11",
        ),
    ] {
        let ended = Ended::Stopped(Stopped {
            stage,
            why: why.clone(),
        });
        let judgement = judge(&ended, None, Usual::default());
        assert_eq!(judgement.verdict, verdict, "{why:?}: {}", judgement.reason);
        assert!(
            judgement.reason.contains(word),
            "{word}: {}",
            judgement.reason
        );
    }
}

#[test]
fn verdicts_have_a_number_a_name_and_an_exit_code_each() {
    for (place, verdict) in Verdict::ALL.into_iter().enumerate() {
        assert_eq!(usize::from(verdict.number()), place + 1);
    }
    let codes = Verdict::ALL.map(Verdict::exit_code);
    assert_eq!(codes, [0, 10, 20, 30]);
}

#[test]
fn inside_a_training_process_half_of_the_sms_are_enough_and_speed_is_not_judged() {
    let mut run = good();
    run.memory_rate = Some(1.0);
    run.slowest = Some((17, 0.1));
    run.checks[2].covered = 66;
    run.left_out.push("fp8: the card is older".to_owned());
    let judgement = judge_inside(&run);
    assert_eq!(judgement.verdict, Verdict::Pass, "{}", judgement.reason);
    for words in [
        "66 of 132 SMs",
        "inside the training process",
        "left out: fp8",
    ] {
        assert!(judgement.reason.contains(words), "{}", judgement.reason);
    }
    run.checks[2].covered = 65;
    let judgement = judge_inside(&run);
    assert_eq!(judgement.verdict, Verdict::CouldNotMeasure);
    assert!(
        judgement.reason.contains("65 of 132"),
        "{}",
        judgement.reason
    );
    run.checks[3].wrong = 2;
    run.checks[3].wrong_sms = vec![Sm {
        number: 40,
        ran: 1,
        wrong: 2,
        nanoseconds: 9,
    }];
    let judgement = judge_inside(&run);
    assert_eq!((judgement.verdict, judgement.sm), (Verdict::Fail, Some(40)));
    let nothing = judge_inside(&Measured::default());
    assert_eq!(nothing.verdict, Verdict::CouldNotMeasure, "nothing ran");
    let mut blind = good();
    blind.checks[0].sees_errors = false;
    assert_eq!(judge_inside(&blind).verdict, Verdict::CouldNotMeasure);
}

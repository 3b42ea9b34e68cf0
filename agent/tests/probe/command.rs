//! `gpufleet-agent probe` as scripts see it: exit codes and what is written.

use std::process::{Command, Output};

use gpufleet_standin_cuda::Fault;

use crate::bench::{AGENT, Bench, GPU};

fn run(bench: &Bench, arguments: &[&str]) -> Output {
    Command::new(AGENT)
        .args(["probe"])
        .args(arguments)
        .envs(bench.environment())
        .env("GPUFLEET_NVML__LIBRARY_PATH", &bench.order.nvml_library)
        .env("GPUFLEET_PROBE__REGION_MIB", "64")
        .env("GPUFLEET_PROBE__DEADLINE_SECONDS", "100")
        .output()
        .expect("the agent starts")
}

fn check(bench: &Bench, arguments: &[&str], code: i32, words: &str) {
    let output = run(bench, arguments);
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{arguments:?}: {text}{errors}"
    );
    assert!(
        text.contains(words) || errors.contains(words),
        "{words}: {text}{errors}"
    );
}

#[test]
fn the_exit_code_is_the_verdict_and_a_gate_lets_slow_ones_through() {
    let good = Bench::new();
    check(&good, &[], 0, &format!("{GPU}: pass"));
    check(&good, &["--gpu", GPU, "--gate"], 0, "memory, copied");
    check(&good, &["--spoil", "bf16"], 20, "wrong results of bf16");
    check(&good, &["--spoil", "dance"], 1, "arithmetic, memory, fp16");

    let slow = Bench::with(Fault::Slow(3, 2.0));
    check(&slow, &[], 10, "degraded");
    check(&slow, &["--gate"], 0, "degraded");

    let wrong = Bench::with(Fault::Wrong("gpufleet_arithmetic".to_owned(), 1));
    check(&wrong, &["--gate"], 20, "on SM 1");

    let mut two = Bench::new();
    two.nvml.gpus.push(two.nvml.gpus[0].clone());
    check(&two, &["--gpu", GPU], 0, "copied to");
    check(&two, &["--gpu", "0"], 0, "copied to");

    let mut none = Bench::new();
    none.has_driver = false;
    check(&none, &["--gate"], 30, "libcuda.so.1");
}

#[test]
fn json_has_the_readings() {
    let output = run(&Bench::new(), &["--json"]);
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one line");
    assert_eq!(line["verdict"], "pass");
    assert_eq!(line["gpu"], GPU);
    assert_eq!(line["measured"]["checks"][0]["work"], "arithmetic");
    assert!(
        line["measured"]["memory_rate"]
            .as_f64()
            .is_some_and(|it| it > 1e12)
    );
}

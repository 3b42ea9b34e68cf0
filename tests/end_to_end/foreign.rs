//! OpenTelemetry's own Python SDK sends metrics; they survive a kill -9 right after the success.

use std::process::Command;
use std::time::Duration;

use gpufleet_tests::harness::{World, repository, server, wait};
use gpufleet_tests::on_both_databases;

const GPUS: usize = 3;
/// How long it may take until what is in the spool is folded.
const LIMIT: Duration = Duration::from_secs(120);

/// Sends with the SDK; returns when every export was answered with success.
fn send(protocol: &str, endpoint: &str, prefix: &str) {
    let output = Command::new(repository().join("target/test-python/bin/python"))
        .arg(repository().join("tests/end_to_end/foreign_sender.py"))
        .args([protocol, endpoint, prefix])
        .output()
        .expect("Python's SDK is there: scripts/setup.sh test installs it");
    assert!(
        output.status.success(),
        "{protocol}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

on_both_databases!(what_the_python_sdk_was_told_is_kept_survives_a_kill_after_the_success);

fn what_the_python_sdk_was_told_is_kept_survives_a_kill_after_the_success(world: World) {
    let mut running = server::Place::new(&world).start();
    for (protocol, prefix) in [("http/protobuf", "http"), ("grpc", "grpc")] {
        let endpoint = match protocol {
            "grpc" => running.place.grpc.clone(),
            _ => format!("http://{}", running.place.http),
        };
        send(protocol, &endpoint, prefix);
        running = running.kill().start();
        for gpu in 0..GPUS {
            let id = format!("GPU-{prefix}-{gpu}");
            let watts = 321.0 + gpu as f64;
            wait::until(&format!("{id} is there after the kill"), LIMIT, || {
                let answer = running.get(&format!("/api/v1/gpus/default/{id}"));
                (answer.status == 200 && answer.text().contains(&format!("{watts}"))).then_some(())
            });
        }
    }
    running.stop();
}

//! `tests/gpu/run.sh`, dry: as it is packed, against the stand-ins, without PyTorch. What it says on a GPU only a
//! GPU can show; here it must run to its end, find nothing wrong with a healthy card, and find a broken one.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpufleet_standin_cuda::Fault;
use serde_json::Value;

use crate::bench::{AGENT, Bench};

/// The rows of the table, by name: verdict and what it says.
fn table(bench: &Bench, into: &Path) -> Vec<(String, String, String)> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let pack = into.join("gpu-pack");
    let laid = Command::new(root.join("tests/gpu/pack.sh"))
        .arg("lay")
        .arg(&pack)
        .args([AGENT, "-", "-"])
        .status();
    assert!(laid.expect("bash").success(), "it cannot be packed");
    let output = Command::new("sh")
        .arg(pack.join("tests/gpu/run.sh"))
        .args(["--short", "--patience", "110", "--into"])
        .arg(into)
        .envs(bench.environment())
        // The one that lies beside it.
        .env_remove("GPUFLEET_AGENT")
        .env("GPUFLEET_NVML__LIBRARY_PATH", &bench.order.nvml_library)
        .env("GPUFLEET_PROBE__REGION_MIB", "64")
        .env("GPUFLEET_PROBE__DEADLINE_SECONDS", "100")
        .output()
        .expect("a shell");
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = std::fs::read_to_string(into.join("table.json"));
    let text = text.unwrap_or_else(|error| panic!("no table: {error}: {errors}"));
    let table: Value = serde_json::from_str(&text).expect("JSON");
    let rows = table["rows"].as_array().expect("rows").iter();
    let word = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    rows.map(|it| (word(it, "row"), word(it, "verdict"), word(it, "says")))
        .collect()
}

fn check(rows: &[(String, String, String)], name: &str, verdict: &str) {
    let row = rows.iter().find(|it| it.0 == name);
    let row = row.unwrap_or_else(|| panic!("{name} is not in {rows:?}"));
    assert_eq!(row.1, verdict, "{name}: {}", row.2);
    assert!(!row.2.is_empty(), "{name} says nothing");
}

#[test]
fn the_suite_runs_to_its_end_without_a_gpu_and_says_what_was_not_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows = table(&Bench::new(), folder.path());
    // How long a probe takes is a GPU's to show.
    for name in [
        "probe of an idle GPU",
        "probe: time on the GPU",
        "probe: memory of its context",
        "probe fails when arithmetic is spoilt",
        "probe fails when memory is spoilt",
        "catalog: a value or a reason each",
    ] {
        check(&rows, name, "ok");
    }
    check(&rows, "recording", "NOT RUN");
    check(&rows, "probe: copies between GPUs", "NOT RUN");
    let catalog = std::fs::read_to_string(folder.path().join("catalog.tsv")).expect("it is left");
    assert!(
        catalog.contains("gpufleet_gpu_power_watts\tvalue\t"),
        "{catalog}"
    );

    let broken = tempfile::tempdir().expect("a folder");
    let wrong = Bench::with(Fault::Wrong("gpufleet_tensor_fp16".to_owned(), 2));
    let rows = table(&wrong, broken.path());
    check(&rows, "probe of an idle GPU", "FAILED");
}

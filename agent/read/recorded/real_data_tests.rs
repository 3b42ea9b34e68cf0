//! The captures of real machines that lie beside the repository where it is developed. They are not
//! part of it: without them these tests say NOT RUN.

use gpufleet_telemetry::catalog::{Metric, Unit, gpu};

use super::*;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/real");

/// Every capture in a folder of the real data, read.
fn captures(folder: &str) -> Vec<(String, Round)> {
    let folder = Path::new(FOLDER).join(folder);
    let Ok(entries) = std::fs::read_dir(&folder) else {
        eprintln!("NOT RUN: {} is not there", folder.display());
        return Vec::new();
    };
    let tables = table::shipped();
    let mut captures: Vec<(String, Round)> = entries
        .map(|entry| {
            let path = entry.expect("readable").path();
            let source = Source::open(&path, &tables).expect("every capture can be read");
            assert_eq!(
                (source.samples, source.damaged),
                (1, 0),
                "{}",
                path.display()
            );
            let round = source.play().expect("there").next().expect("one round");
            (
                path.file_name()
                    .expect("a name")
                    .to_string_lossy()
                    .into_owned(),
                round,
            )
        })
        .collect();
    captures.sort_by(|left, right| left.0.cmp(&right.0));
    assert!(!captures.is_empty(), "{} is empty", folder.display());
    captures
}

fn value(gpu: &ResourceSamples, metric: &Metric) -> Reading {
    let found = gpu.samples.iter().find(|it| it.metric == metric.id);
    found
        .unwrap_or_else(|| panic!("{} of {}", metric.name, gpu.resource.id))
        .reading
}

/// What every GPU of every capture must satisfy.
fn check_sane(name: &str, gpu: &ResourceSamples) {
    assert!(
        gpu.resource.attribute(attribute::GPU_MODEL).is_some(),
        "{name}"
    );
    assert!(
        gpu.resource.attribute(attribute::DRIVER_VERSION).is_some(),
        "{name}"
    );
    assert!(
        gpu.samples.len() >= 20,
        "{name}: {} samples",
        gpu.samples.len()
    );
    for sample in &gpu.samples {
        let metric = catalog::by_id(sample.metric).expect("known");
        let Ok(value) = sample.reading else { continue };
        let range = match metric.unit {
            Unit::Ratio | Unit::Flag => 0.0..=1.0,
            Unit::Watts => 1.0..=2_000.0,
            Unit::Celsius => -50.0..=110.0,
            Unit::Hertz => 1e8..=1e10,
            Unit::Bytes => 0.0..=400e9,
            _ => 0.0..=1e18,
        };
        assert!(range.contains(&value), "{name}: {} = {value}", metric.name);
    }
}

#[test]
fn every_exporter_capture_is_one_sane_gpu() {
    for (name, round) in captures("nvidia_gpu_exporter") {
        assert_eq!(round.resources.len(), 1, "{name}");
        assert_eq!(round.reader, "exporter:nvidia_gpu_exporter");
        check_sane(&name, &round.resources[0]);
        let id = &round.resources[0].resource.id;
        assert!(
            id.starts_with("recorded/0000"),
            "{name}: its UUID is null: {id}"
        );
    }
}

#[test]
fn the_h200_under_load_looks_like_one_and_differs_from_the_idle_one() {
    let captures = captures("nvidia_gpu_exporter");
    let of = |state: &str| {
        let found = captures
            .iter()
            .find(|(name, _)| name.contains("nvidia-h200__") && name.contains(state));
        found.map(|(_, round)| &round.resources[0])
    };
    let (Some(load), Some(idle)) = (of("__load"), of("__idle")) else {
        return;
    };
    let within = |gpu, metric: &Metric, range: std::ops::RangeInclusive<f64>| {
        let value = value(gpu, metric).expect(metric.name);
        assert!(range.contains(&value), "{} = {value}", metric.name);
    };
    assert_eq!(
        load.resource.attribute(attribute::GPU_MODEL),
        Some("NVIDIA H200")
    );
    assert_eq!(load.resource.id.as_ref(), "recorded/00000000:83:00.0");
    within(load, &gpu::POWER, 100.0..=800.0);
    within(load, &gpu::MEMORY_TOTAL, 141e9..=151e9);
    within(load, &gpu::UTILIZATION, 0.9..=1.0);
    within(load, &gpu::SM_CLOCK, 1e9..=2.1e9);
    within(load, &gpu::POWER_LIMIT, 700.0..=700.0);
    within(idle, &gpu::UTILIZATION, 0.0..=0.01);
    within(idle, &gpu::POWER, 50.0..=120.0);
    for metric in [&gpu::POWER, &gpu::TEMPERATURE, &gpu::MEMORY_USED] {
        let (load, idle) = (value(load, metric), value(idle, metric));
        assert!(
            load.expect(metric.name) > idle.expect(metric.name),
            "{}",
            metric.name
        );
    }
}

#[test]
fn a_card_in_mig_mode_has_no_utilisation_rather_than_a_zero() {
    for (name, round) in captures("nvidia_gpu_exporter") {
        if name.contains("-mig__") {
            let samples = &round.resources[0].samples;
            let utilization = samples.iter().find(|it| it.metric == gpu::UTILIZATION.id);
            assert_eq!(utilization, None, "{name}");
        }
    }
}

#[test]
fn every_nvidia_smi_document_gives_all_its_gpus() {
    let counts = [
        ("a100", 1),
        ("b200", 8),
        ("gb200", 4),
        ("gb300", 4),
        ("h100", 8),
        ("l40s", 1),
        ("t4", 1),
    ];
    for (name, round) in captures("nvidia_smi/hardware") {
        let model = name.trim_start_matches("qx-").trim_end_matches(".xml.gz");
        let (_, count) = counts
            .iter()
            .find(|(it, _)| *it == model)
            .expect("a known machine");
        assert_eq!(round.resources.len(), *count, "{name}");
        for gpu in &round.resources {
            check_sane(&name, gpu);
        }
        if model == "h100" {
            let first = &round.resources[0];
            assert_eq!(value(first, &gpu::MEMORY_TOTAL), Ok(81_559.0 * 1_048_576.0));
            assert_eq!(value(first, &gpu::PCIE_REPLAYS), Ok(150.0));
            assert_eq!(value(first, &gpu::THROTTLE_REASONS), Ok(1.0), "idle");
            assert_eq!(
                value(first, &gpu::THROTTLE_POWER),
                Ok(7_015_662_857.0 * 1e-6)
            );
        }
    }
}

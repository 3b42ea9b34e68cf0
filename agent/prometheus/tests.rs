//! Our own names, and which of the two name sets is served.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use gpufleet_telemetry::catalog::{self, Kind, Metric, MetricId, gpu, own as own_room};
use gpufleet_telemetry::identity::{Part, PartKind, Resource, ResourceKind, attribute};
use gpufleet_telemetry::sample::{Missing, Reading};

use super::*;
use crate::read::NodeFacts;
use crate::sample::{LatestResource, LatestValue};

pub(super) fn reading(metric: &Metric, value: f64) -> (MetricId, Reading) {
    (metric.id, Ok(value))
}

pub(super) fn gpu_resource(uuid: &str, index: &str, pci_address: &str) -> Resource {
    NodeFacts::for_tests()
        .resource(ResourceKind::Gpu, uuid, Default::default(), "nvml")
        .with(attribute::GPU_INDEX, index)
        .with(attribute::PCI_ADDRESS, pci_address)
        .with(attribute::GPU_MODEL, "NVIDIA H100 80GB HBM3")
        .with(attribute::DRIVER_VERSION, "580.105.08")
}

pub(super) fn latest(resources: Vec<(Resource, Vec<(MetricId, Reading)>)>) -> Latest {
    let resources = resources.into_iter().map(|(resource, readings)| {
        let values = readings.into_iter().map(|(metric, reading)| LatestValue {
            metric,
            part: catalog::by_id(metric)
                .and_then(|metric| metric.part)
                .map(|kind| Part::new(kind, "part-1")),
            reading,
            at: Default::default(),
        });
        LatestResource {
            resource: Arc::new(resource),
            values: values.collect(),
        }
    });
    Latest {
        resources: resources.collect(),
        ..Latest::default()
    }
}

fn own_names(latest: &Latest) -> String {
    let config = PrometheusConfig {
        dcgm_names: DcgmNames::Off,
    };
    encode(latest, &config)
}

#[test]
fn a_gpu_has_its_labels_and_only_what_is_not_live_says_so() {
    let live = gpu_resource("GPU-1", "0", "a");
    let recorded = gpu_resource("GPU-\"2\"", "1", "a").with(attribute::ORIGIN, "recorded");
    let text = own_names(&latest(vec![
        (live, vec![reading(&gpu::POWER, 300.5)]),
        (recorded, vec![reading(&gpu::POWER, 1e12)]),
    ]));
    let common = "cluster=\"test\",node=\"node-1\"";
    let model = "model=\"NVIDIA H100 80GB HBM3\"";
    let lines: Vec<&str> = text.lines().skip(2).collect();
    assert_eq!(
        lines,
        [
            format!("gpufleet_gpu_power_watts{{{common},gpu=\"0\",uuid=\"GPU-1\",{model}}} 300.5"),
            format!(
                "gpufleet_gpu_power_watts{{{common},gpu=\"1\",uuid=\"GPU-\\\"2\\\"\",{model},origin=\"recorded\"}} 1000000000000"
            ),
        ]
    );
}

#[test]
fn a_missing_reading_is_told_with_its_reason_and_never_as_zero() {
    let link = Part::new(PartKind::NvLink, "3");
    let mut latest = latest(vec![(
        gpu_resource("GPU-1", "0", "a"),
        vec![
            (gpu::POWER.id, Err(Missing::GpuLost)),
            (gpu::NVLINK_UP.id, Err(Missing::NotSupported)),
        ],
    )]);
    latest.resources[0].values[1].part = Some(link);
    let text = own_names(&latest);
    assert!(!text.contains("gpufleet_gpu_power_watts{"), "{text}");
    assert!(
        text.contains(",metric=\"gpufleet_gpu_power_watts\",reason=\"gpu_lost\"} 1\n"),
        "{text}"
    );
    assert!(text.contains(
        ",link=\"3\",metric=\"gpufleet_gpu_nvlink_up_flag\",reason=\"not_supported\"} 1\n"
    ));
}

#[test]
fn dcgm_names_are_left_out_where_another_exporter_serves_them_unless_asked_for() {
    let with = |foreign: Option<f64>| {
        let node = Resource::new(ResourceKind::Node, "node-1");
        let own = foreign.map(|value| reading(&own_room::FOREIGN_DCGM, value));
        latest(vec![
            (
                gpu_resource("GPU-1", "0", "a"),
                vec![reading(&gpu::POWER, 1.0)],
            ),
            (node, own.into_iter().collect()),
        ])
    };
    let cases = [
        (DcgmNames::Auto, None, true),
        (DcgmNames::Auto, Some(0.0), true),
        (DcgmNames::Auto, Some(1.0), false),
        (DcgmNames::On, Some(1.0), true),
        (DcgmNames::Off, None, false),
    ];
    for (dcgm_names, foreign, served) in cases {
        let text = encode(&with(foreign), &PrometheusConfig { dcgm_names });
        assert_eq!(
            text.contains("DCGM_FI_DEV_POWER_USAGE{"),
            served,
            "{dcgm_names:?} {foreign:?}"
        );
        assert!(text.contains("gpufleet_gpu_power_watts{"));
    }
}

/// A snapshot with every metric of the catalog that the agent serves, and one missing.
fn everything() -> Latest {
    let of = |kind: ResourceKind| {
        let metrics = catalog::all().filter(move |it| it.resource == kind);
        metrics.map(|it| reading(it, 0.5)).collect::<Vec<_>>()
    };
    let mut gpu = of(ResourceKind::Gpu);
    gpu[10].1 = Err(Missing::NotReady);
    latest(vec![
        (gpu_resource("GPU-1", "0", "00000000:04:00.0"), gpu),
        (
            Resource::new(ResourceKind::Node, "node-1"),
            of(ResourceKind::Node),
        ),
        (
            Resource::new(ResourceKind::Endpoint, "e/m"),
            of(ResourceKind::Endpoint),
        ),
        (
            Resource::new(ResourceKind::Rank, "team/llama/u/0/3")
                .with(attribute::JOB, "team/llama/u")
                .with(attribute::RANK, "3"),
            of(ResourceKind::Rank),
        ),
    ])
}

#[test]
fn what_is_written_is_read_back_by_our_own_parser() {
    let text = encode(&everything(), &PrometheusConfig::default());
    let body = crate::read::exporter::text::parse(&text);
    assert_eq!(body.refused, 0, "{:?}", body.refusals);
    assert!(body.series.len() > 100);
    let bits = catalog::all().filter(|it| it.kind == Kind::SecondBits);
    for metric in bits {
        assert!(
            !body.series.iter().any(|it| it.name == metric.name),
            "{}",
            metric.name
        );
    }
}

#[test]
fn promtool_has_nothing_to_say_about_our_own_names() {
    let child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            eprintln!("NOT RUN: promtool is not installed ({error}); make test installs it");
            return;
        }
    };
    let mut input = child.stdin.take().expect("a pipe");
    input
        .write_all(own_names(&everything()).as_bytes())
        .expect("written");
    drop(input);
    let output = child.wait_with_output().expect("promtool ends");
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.trim().is_empty(), "{said}");
}

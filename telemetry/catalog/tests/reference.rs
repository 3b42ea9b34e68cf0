//! docs/metrics.md is the catalog in words: this test fails when it is stale, and writes it anew
//! when GPUFLEET_BLESS=1 is set.

use std::fmt::Write;

use crate::catalog::not_read::{NOT_READ, Offer};
use crate::catalog::sources::{self, Source};
use crate::catalog::{Kind, Metric, Unit, gpu, node, own, server, serving, training};
use crate::otlp;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");

const HEAD: &str = "# Metrics

Made from the catalog (`telemetry/catalog/`); do not edit. `GPUFLEET_BLESS=1 cargo test -p \
gpufleet-telemetry reference` writes it anew.

The name is the one on `/metrics`. Values are in base units. A gauge of a tick is the mean of its \
valid one-second samples, a last value and a counter the last one, a mask one bit a second. Where \
a maximum is carried beside the mean, it is the OTLP metric with `.max` behind its name. A value \
that could not be read is absent on `/metrics` and a point with its reason in OTLP, never 0. Masks \
travel in OTLP only. \
Metrics marked *by …* have one series for each such part.
";

const ROOMS: [(&str, &str, &[Metric]); 6] = [
    (
        "GPUs",
        "Of a GPU; those marked *also by share* of its MIG instances too.",
        gpu::ALL,
    ),
    ("Nodes", "Of the machine that holds the GPUs.", node::ALL),
    (
        "Model servers",
        "Of an endpoint of vLLM, SGLang, TGI or Triton.",
        serving::ALL,
    ),
    ("The agent", "The agent's own health.", own::ALL),
    (
        "The server",
        "The server's own health, on its own `/metrics` only.",
        server::ALL,
    ),
    (
        "Training",
        "Of one rank of a training run, told by the process itself through `hooks`.",
        training::ALL,
    ),
];

fn unit(metric: &Metric) -> &'static str {
    match metric.unit {
        Unit::Watts => "W",
        Unit::Joules => "J",
        Unit::Celsius => "°C",
        Unit::Hertz => "Hz",
        Unit::Bytes => "bytes",
        Unit::BytesPerSecond => "bytes/s",
        Unit::Seconds => "s",
        Unit::Ratio => "0 to 1",
        Unit::Count => "count",
        Unit::Flag => "0 or 1",
        Unit::Code => "code",
    }
}

fn kind(metric: &Metric) -> &'static str {
    match (metric.kind, metric.with_max) {
        (Kind::Gauge, true) => "gauge, with maximum",
        (Kind::Gauge, false) => "gauge",
        (Kind::Last, _) => "last value",
        (Kind::Counter, _) => "counter",
        (Kind::SecondBits, _) => "mask",
    }
}

fn subject(metric: &Metric) -> String {
    let mut subject = metric.resource.name().to_owned();
    if let Some(part) = metric.part {
        let _ = write!(subject, ", by {}", part.label());
    }
    if gpu::shares_have(metric) {
        subject.push_str(", also by share");
    }
    subject
}

fn otlp_name(metric: &Metric) -> String {
    let mut name = format!("`{}`", otlp::name(metric));
    for (key, value) in metric.otlp.map_or(&[][..], |it| it.attributes) {
        let _ = write!(name, " `{key}={value}`");
    }
    name
}

fn source(metric: &Metric) -> String {
    let of_one = |source: &Source| match source {
        Source::Field(id) => format!("field {id}"),
        Source::Gpm(id) => format!("GPM {id}"),
        Source::Event(bit) => format!("event {bit:#x}"),
        Source::Function(name) | Source::File(name) => format!("`{name}`"),
        Source::Exporter => "exporter".to_owned(),
        Source::Derived(from) => format!("from {from}"),
        Source::Agent => "agent".to_owned(),
        Source::Server => "server".to_owned(),
        Source::Hooks => "hooks".to_owned(),
    };
    let sources: Vec<_> = sources::of(metric.id).iter().map(of_one).collect();
    sources.join(", ")
}

fn offer(offer: &Offer) -> String {
    match offer {
        Offer::Fields(first, last) if first == last => format!("field {first}"),
        Offer::Fields(first, last) => format!("fields {first} to {last}"),
        Offer::Gpm(first, last) => format!("GPM {first} to {last}"),
        Offer::Event(bit) => format!("event {bit:#x}"),
        Offer::Function(name) | Offer::Dcgm(name) => format!("`{name}`"),
    }
}

fn reference() -> String {
    let mut text = HEAD.to_owned();
    for (title, what, room) in ROOMS {
        let _ = write!(
            text,
            "\n## {title}\n\n{what}\n\n\
             | name | unit | kind | subject | OTLP name | DCGM name | what it is | read from |\n\
             |---|---|---|---|---|---|---|---|\n"
        );
        for metric in room {
            let dcgm = metric
                .dcgm
                .map_or_else(String::new, |it| format!("`{}`", it.name));
            let cells = [
                format!("`{}`", metric.name),
                unit(metric).to_owned(),
                kind(metric).to_owned(),
                subject(metric),
                otlp_name(metric),
                dcgm,
                metric.help.replace('|', "\\|"),
                source(metric),
            ];
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
    }
    text.push_str(
        "\n## What is not read, and why\n\n\
         What NVIDIA's driver and exporter offer beyond this.\n\n| what | why not |\n|---|---|\n",
    );
    for (what, why) in NOT_READ {
        let _ = writeln!(text, "| {} | {} |", offer(what), why);
    }
    text
}

#[test]
fn the_reference_of_the_metrics_is_the_catalog() {
    let expected = reference();
    if std::env::var_os("GPUFLEET_BLESS").is_some_and(|it| it == "1") {
        std::fs::write(PATH, &expected).expect("docs/metrics.md can be written");
    }
    let found = std::fs::read_to_string(PATH).unwrap_or_default();
    let stale = found
        .lines()
        .zip(expected.lines())
        .find(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "docs/metrics.md is stale, run with GPUFLEET_BLESS=1; first difference: {stale:?}"
    );
}

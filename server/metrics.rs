//! The server's own /metrics: its health, a few series for each GPU and for each open incident. Raw series come from the
//! agents; these say what only the server knows: which state, how old.
//!
//! Limits: [`SERIES_PER_GPU`] series a GPU, [`MAX_GPUS`] GPUs, [`LABEL_BYTES`] a label. What is over
//! is left out whole and counted, never cut: two cut names could be one series twice.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use gpufleet_telemetry::catalog::{Kind, Metric, server};
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;

use crate::auth::Grant;
use crate::threads::apart;
use crate::view::{FleetView, GpuView};
use crate::web::Web;

mod incidents;

pub mod own;

/// Most series of one GPU; the list in [`GPU_SERIES`] is held against it.
pub const SERIES_PER_GPU: usize = 8;

/// Most GPUs with series: ten times what one server is built for.
pub const MAX_GPUS: usize = 100_000;

/// Longest label value, bytes.
pub const LABEL_BYTES: usize = 256;

/// What every GPU has.
const GPU_SERIES: [Metric; 5] = [
    server::GPU_STATE,
    server::GPU_OBSERVED,
    server::GPU_HELD,
    server::GPU_LAST_SAMPLE_AGE,
    server::GPU_IDENTITY,
];

const _: () = assert!(GPU_SERIES.len() <= SERIES_PER_GPU);

/// `GET /metrics`, for those who may read.
pub fn router() -> Router<Arc<Web>> {
    Router::new().route("/metrics", get(show))
}

async fn show(State(web): State<Arc<Web>>, Extension(grant): Extension<Grant>) -> Response {
    let view = web.views.get(&web.app).await.seen_with(&grant);
    let mut text = own::text(&web, web.app.clock.now()).await;
    let open = web.app.incidents.open(&grant);
    // Of 10,000 GPUs it is 9 MB.
    let writing = move || {
        write_fleet(&mut text, &view);
        incidents::write(&mut text, &open);
        text
    };
    let text = apart(writing).await;
    const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
    ([(CONTENT_TYPE, FORMAT)], text).into_response()
}

/// Help and type of a metric.
pub fn write_head(out: &mut String, metric: &Metric) {
    let kind = if metric.kind == Kind::Counter {
        "counter"
    } else {
        "gauge"
    };
    let _ = writeln!(out, "# HELP {} {}", metric.name, metric.help);
    let _ = writeln!(out, "# TYPE {} {kind}", metric.name);
}

/// A label value as the text format has it.
fn label(out: &mut String, name: &str, value: &str) {
    let _ = write!(out, "{name}=\"");
    for character in value.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            _ => out.push(character),
        }
    }
    out.push('"');
}

/// A GPU with the labels that all its series share, written once.
struct Labelled<'a> {
    gpu: &'a GpuView,
    labels: String,
}

fn write_fleet(out: &mut String, view: &FleetView) {
    let mut left_out = BTreeMap::from([("long_name", 0_usize), ("too_many", 0)]);
    let mut gpus: Vec<Labelled<'_>> = Vec::new();
    for gpu in view.gpus() {
        let names = [
            &gpu.key.cluster,
            &gpu.key.id,
            &gpu.node,
            &gpu.model,
            &gpu.source,
        ];
        let reason = if names.iter().any(|name| name.len() > LABEL_BYTES) {
            "long_name"
        } else if gpus.len() >= MAX_GPUS {
            "too_many"
        } else {
            gpus.push(Labelled {
                gpu,
                labels: shared_labels(gpu),
            });
            continue;
        };
        *left_out.entry(reason).or_default() += 1;
    }
    out.reserve(gpus.len() * 900);
    for metric in &GPU_SERIES {
        write_head(out, metric);
        for labelled in &gpus {
            write_gpu(out, metric, labelled, view.at);
        }
    }
    write_clusters(out, view);
    write_head(out, &server::GPUS_LEFT_OUT);
    for (reason, count) in left_out {
        let _ = writeln!(
            out,
            "{}{{reason=\"{reason}\"}} {count}",
            server::GPUS_LEFT_OUT.name
        );
    }
}

fn shared_labels(gpu: &GpuView) -> String {
    let mut labels = String::with_capacity(160);
    label(&mut labels, "cluster", &gpu.key.cluster);
    labels.push(',');
    label(&mut labels, "node", &gpu.node);
    labels.push(',');
    label(&mut labels, "gpu", &gpu.key.id);
    labels.push(',');
    label(&mut labels, "origin", gpu.origin.name());
    labels
}

fn write_gpu(out: &mut String, metric: &Metric, labelled: &Labelled<'_>, at: Timestamp) {
    let gpu = labelled.gpu;
    let mut more = String::new();
    let value = match metric.id {
        id if id == server::GPU_STATE.id => {
            let _ = write!(
                more,
                ",state=\"{}\",reason=\"{}\"",
                gpu.state.name(),
                gpu.reason.name()
            );
            1.0
        }
        id if id == server::GPU_OBSERVED.id => f64::from(u8::from(gpu.is_observed())),
        id if id == server::GPU_HELD.id => match is_held(gpu) {
            Some(held) => f64::from(u8::from(held)),
            None => return,
        },
        id if id == server::GPU_LAST_SAMPLE_AGE.id => at.since(gpu.last_point) as f64 / 1e9,
        _ => {
            if let Some(index) = gpu.index {
                let _ = write!(more, ",index=\"{index}\"");
            }
            for (name, value) in [("model", &gpu.model), ("source", &gpu.source)] {
                if !value.is_empty() {
                    more.push(',');
                    label(&mut more, name, value);
                }
            }
            1.0
        }
    };
    let _ = writeln!(out, "{}{{{}{more}}} {value}", metric.name, labelled.labels);
}

/// Whether someone holds it; none while that is not known, and so while nothing is.
fn is_held(gpu: &GpuView) -> Option<bool> {
    let is_known = gpu.holder_known && gpu.is_observed();
    is_known.then_some(gpu.held)
}

fn write_clusters(out: &mut String, view: &FleetView) {
    write_head(out, &server::GPUS);
    for cluster in &view.clusters {
        let labels = cluster_labels(&cluster.name, cluster.origin);
        for (state, count) in &cluster.counts.by_state {
            let (name, state) = (server::GPUS.name, state.name());
            let _ = writeln!(out, "{name}{{{labels},state=\"{state}\"}} {count}");
        }
    }
    write_head(out, &server::NODES);
    for cluster in &view.clusters {
        let labels = cluster_labels(&cluster.name, cluster.origin);
        let silent = cluster
            .nodes
            .iter()
            .filter(|it| it.silent_since.is_some())
            .count();
        let name = server::NODES.name;
        let _ = writeln!(
            out,
            "{name}{{{labels},state=\"reporting\"}} {}",
            cluster.nodes.len() - silent
        );
        let _ = writeln!(out, "{name}{{{labels},state=\"silent\"}} {silent}");
    }
}

fn cluster_labels(cluster: &str, origin: Origin) -> String {
    let mut labels = String::new();
    // A cluster is one label among few series: its name is cut, with its length to tell it apart.
    let end = cluster.floor_char_boundary(LABEL_BYTES);
    match &cluster[..end] {
        whole if end == cluster.len() => label(&mut labels, "cluster", whole),
        cut => label(
            &mut labels,
            "cluster",
            &format!("{cut}… ({} bytes)", cluster.len()),
        ),
    }
    labels.push(',');
    label(&mut labels, "origin", origin.name());
    labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{fixture, gather};

    fn text() -> String {
        let view = gather::of(fixture::fleet().iter(), fixture::NOW);
        let mut out = String::new();
        write_fleet(&mut out, &view);
        out
    }

    fn series<'a>(text: &'a str, name: &str, with: &str) -> Vec<&'a str> {
        let start = format!("{name}{{");
        text.lines()
            .filter(|line| line.starts_with(&start) && line.contains(with))
            .collect()
    }

    #[test]
    fn a_gpu_has_at_most_eight_series() {
        let text = text();
        let id = "gpu=\"GPU-prod-h100-00-0000\"";
        let count = text.lines().filter(|line| line.contains(id)).count();
        assert_eq!(count, GPU_SERIES.len());
    }

    #[test]
    fn what_is_not_known_is_absent_and_not_zero() {
        let text = text();
        for unknown in ["GPU-prod-h100-04-0000", "GPU-prod-h100-08-0000"] {
            let held = series(&text, server::GPU_HELD.name, unknown);
            assert!(held.is_empty(), "{held:?}");
            let observed = series(&text, server::GPU_OBSERVED.name, unknown);
            assert!(observed.iter().all(|line| line.ends_with(" 0")) && observed.len() == 1);
        }
        let held = series(&text, server::GPU_HELD.name, "GPU-prod-h100-05-0000");
        assert!(held.len() == 1 && held[0].ends_with(" 0"), "{held:?}");
    }

    #[test]
    fn every_series_says_where_its_data_comes_from() {
        let text = text();
        let gpus = series(&text, server::GPU_STATE.name, "");
        assert!(gpus.iter().all(|line| line.contains("origin=\"")));
        assert_eq!(
            series(&text, server::GPU_STATE.name, "origin=\"simulated\"").len(),
            64
        );
    }

    #[test]
    fn a_name_too_long_for_a_label_leaves_its_gpu_out_and_is_counted() {
        let long = "n".repeat(10_240);
        let lives = [fixture::gpu(
            "prod",
            &long,
            0,
            fixture::Does::Work,
            Origin::Live,
        )];
        let view = gather::of(lives.iter(), fixture::NOW);
        let mut out = String::new();
        write_fleet(&mut out, &view);
        assert!(!out.contains(&long));
        assert!(
            out.contains("gpufleet_server_gpus_left_out{reason=\"long_name\"} 1"),
            "{out}"
        );
    }

    #[test]
    fn a_label_value_cannot_end_its_line() {
        let mut out = String::new();
        label(&mut out, "node", "a\"b\\c\nd");
        assert_eq!(out, "node=\"a\\\"b\\\\c\\nd\"");
    }
}
